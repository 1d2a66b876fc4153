import json
import os
import stat
import struct
import subprocess
import zipfile

import pytest

from tests.support import commands, images, needs, sources, trees
from tests.support.processes import assert_same
from tests.support.sources import convert, found
from wds_tools.convert.unzip import ZipOrigin
from wds_tools.errors import OptionError, SampleError, SourceChangedError, SourceError
from wds_tools.image import codec

LINK = (stat.S_IFLNK | 0o777) << 16


@pytest.fixture
def tree(tmp_path):
    """Four classes, a nested folder, odd names, a PNG that says it is a JPEG."""
    root = trees.classes(tmp_path / "in", ["ant", "bee", "cat", "dog"], count=6, padding=3000)
    trees.make(root, ["dog/deep/er.jpg", "dog/deep.b/er.jpg", "dog/sp ace é.v2.jpg", "cat/UP.JPEG"])
    trees.write(root, "ant/png.jpg", images.png())
    trees.write(root, "ant/notes.txt", b"no image")
    (root / "eel").mkdir()
    return root


def pack(target, members, method=zipfile.ZIP_DEFLATED):
    """An archive of ``members``: bytes by name, or by a ZipInfo; a name with a slash at its end is a folder."""
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, data in members.items() if isinstance(members, dict) else members:
            archive.writestr(name, data)
    return target


def packed(root, target, top="", method=zipfile.ZIP_DEFLATED):
    """What is below ``root``, in no order, folders last."""
    files = {f"{top}{name}": data for name, data in reversed(trees.snapshot(root).items())}
    folders = {f"{top}{path.relative_to(root)}/": b"" for path in root.rglob("*") if path.is_dir()}
    return pack(target, files | folders, method)


def info(name, **values):
    made = zipfile.ZipInfo(name)
    for field, value in values.items():
        setattr(made, field, value)
    return made


def refused(source, **options):
    with pytest.raises(SourceError) as caught:
        found(source, **options)
    assert len(str(caught.value)) < 500
    return str(caught.value)


def paths(source, **options):
    return [entry.path for entry in found(source, **options)[1]]


# ---------------------------------------------------------------- what becomes of an archive


@pytest.mark.parametrize("top", ["", "imagenet/train/"])
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_the_shards_are_those_of_the_tree_that_was_packed(tree, tmp_path, top, method):
    from_tree = convert(tree, tmp_path / "tree", max_count=9)
    result = convert(packed(tree, tmp_path / "in.zip", top, method), tmp_path / "zip", max_count=9)
    shards = {name: data for name, data in trees.snapshot(tmp_path / "tree").items() if name.startswith("train-")}
    assert len(shards) == 8
    assert {name: data for name, data in trees.snapshot(tmp_path / "zip").items() if name in shards} == shards
    assert (result.samples, result.classes, result.empty_classes) == (29, 5, ("eel",))
    assert result.ignored == from_tree.ignored == {".txt": 1}
    assert result.notes == (("classes are the folders in 'imagenet/train'",) if top else ())
    for name in ("tree", "zip"):
        content = json.loads((tmp_path / name / "info.json").read_text())
        assert content["classes"] == ["ant", "bee", "cat", "dog", "eel"]


def test_the_bytes_are_the_same_whatever_the_workers(tree, tmp_path):
    sources.is_repeatable(packed(tree, tmp_path / "in.zip"), tmp_path / "out", max_count=9, metadata=True)


def test_the_path_is_kept_with_metadata(tree, tmp_path):
    convert(packed(tree, tmp_path / "in.zip", "top/"), tmp_path / "out", metadata=True)
    content = {key: json.loads(fields["json"]) for key, fields in trees.read(tmp_path / "out")}
    assert content["cat/UP"] == {"path": "cat/UP.JPEG", "class": "cat"}
    assert content["ant/ant_000"] == {"path": "ant/ant_000.jpg", "class": "ant"}


def test_an_archive_by_the_zip_command_is_read(tree, tmp_path):
    subprocess.run([needs.tool("zip"), "-q", "-r", tmp_path / "in.zip", "in"], cwd=tmp_path, check=True)
    convert(tree, tmp_path / "tree", max_count=9)
    convert(tmp_path / "in.zip", tmp_path / "zip", max_count=9)
    for name, data in trees.snapshot(tmp_path / "tree").items():
        assert not name.startswith("train-") or (tmp_path / "zip" / name).read_bytes() == data


def test_siblings_are_those_of_the_tree(tmp_path):
    tree = trees.classes(tmp_path / "in", count=3)
    for path in list(tree.rglob("*.jpg")):
        path.with_suffix(".txt").write_text(f"about {path.name}")
        path.with_suffix(".JSON").write_text("{}")
    trees.make(tree, {"ant/alone.txt": b"x", "ant/ant_000.cls": b"9", "ant/ant_001.too long": b"x"})
    convert(tree, tmp_path / "tree", siblings=True)
    result = convert(packed(tree, tmp_path / "in.zip"), tmp_path / "zip", siblings=True)
    assert (tmp_path / "zip/train-000000.tar").read_bytes() == (tmp_path / "tree/train-000000.tar").read_bytes()
    assert result.ignored == {".txt": 1, ".cls": 1, ".too long": 1}
    flat = pack(tmp_path / "flat.zip", {"a.jpg": trees.picture(1), "a.txt": b"one", "b.jpg": trees.picture(2)})
    convert(flat, tmp_path / "flat", siblings=True, shuffle=False)
    assert trees.read(tmp_path / "flat") == [
        ("a", {"jpg": trees.picture(1), "txt": b"one"}),
        ("b", {"jpg": trees.picture(2)}),
    ]
    assert "no class folders" in refused(flat)
    twice = pack(tmp_path / "twice.zip", {"a/x.jpg": trees.picture(1), "a/x.png": images.png()})
    assert "have one stem" in refused(twice, siblings=True)
    fields = pack(tmp_path / "fields.zip", {"a/x.jpg": trees.picture(1), "a/x.txt": b"", "a/x.TXT": b""})
    assert "would both be the field 'txt'" in refused(fields, siblings=True)


def test_pictures_are_encoded_if_asked_and_trained_on(tmp_path):
    members = {f"c{number % 3}/{number}.png": images.png(20 + number, 16) for number in range(12)}
    source = pack(tmp_path / "in.zip", members)
    convert(source, tmp_path / "out", encode="npy")
    seen = {}
    for key, fields in trees.read(tmp_path / "out"):
        seen[f"{key}.png"] = codec.decode(fields["npy"]).tobytes()
    assert seen == {name: codec.decode(data).tobytes() for name, data in members.items()}
    same = {f"c{number % 3}/{number}.png": images.png(20, 16) for number in range(12)}
    convert(pack(tmp_path / "same.zip", same), tmp_path / "same")
    pixels, labels = sources.trained(tmp_path / "same", "png")
    assert labels == [0] * 4 + [1] * 4 + [2] * 4
    assert all(image.tobytes() == codec.decode(images.png(20, 16)).tobytes() for image in pixels)


# ---------------------------------------------------------------- which folders are the classes


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a/1.jpg", "b/1.jpg"], ["a/1.jpg", "b/1.jpg"]),
        (["top/a/1.jpg", "top/b/1.jpg"], ["a/1.jpg", "b/1.jpg"]),
        (["README.md", "x/y/a/1.jpg", "x/y/b/1.jpg", "x/LICENSE"], ["a/1.jpg", "b/1.jpg"]),
        (["a/1.jpg"], ["a/1.jpg"]),
        (["a/1.jpg", "a/deep/2.jpg"], ["a/1.jpg", "a/deep/2.jpg"]),
        (["top/a/1.jpg"], ["a/1.jpg"]),
        (["a/1.jpg", "__MACOSX/a/._1.jpg", ".DS_Store", "a/.hidden.jpg", ".git/x/1.jpg"], ["a/1.jpg"]),
        (["top/a/1.jpg", "top/__MACOSX/a/1.jpg", "__MACOSX/top/a/._1.jpg"], ["a/1.jpg"]),
        (["./top/a/1.jpg", "top//b/1.jpg"], ["a/1.jpg", "b/1.jpg"]),
    ],
)
def test_the_classes_are_where_the_tree_begins_to_spread(tmp_path, names, expected):
    source = pack(tmp_path / "in.zip", {name: trees.picture(name) for name in names})
    assert paths(source) == expected


def test_names_by_windows_have_slashes(tmp_path):
    source = pack(tmp_path / "in.zip", [(info("a|1.jpg", create_system=0), b"x"), (info("b|2.jpg"), b"y")])
    source.write_bytes(source.read_bytes().replace(b"a|1", b"a\\1").replace(b"b|2", b"b/2"))
    assert paths(source) == ["a/1.jpg", "b/2.jpg"]


def test_splits_are_refused_and_one_can_be_named(tmp_path):
    names = [f"data/{split}/{name}/1.jpg" for split in ("train", "val") for name in ("a", "b")]
    source = pack(tmp_path / "in.zip", {name: trees.picture(name) for name in names})
    assert "holds splits (train, val), not classes" in refused(source)
    said = commands.call(
        "convert", source, tmp_path / "out", "--images", "data/val", "--split", "val", "--workers", "0"
    )
    assert said.code == 0, said.err
    assert [fields["jpg"] for _, fields in sorted(trees.read(tmp_path / "out", "val"))] == list(
        map(trees.picture, names[2:])
    )
    assert "has no folder 'test' (--images); it has data" in refused(source, images="test")
    with pytest.raises(OptionError, match="names of its folders"):
        found(source, labels="x")


def test_given_classes_fix_the_labels(tree, tmp_path):
    source = packed(tree, tmp_path / "in.zip")
    scanned, samples = found(source, classes=("zoo", "eel", "dog", "cat", "bee", "ant"))
    assert {entry.path[:3]: entry.label for entry in samples} == {"ant": 5, "bee": 4, "cat": 3, "dog": 2}
    assert scanned.empty_classes == ("eel",)
    assert "class 'ant'" in refused(source, classes=("dog",))


# ---------------------------------------------------------------- members that are wrong


def wrong(name, data=b"x" * 100, **values):
    return info(name, **values), data


def patched(source, before, after, where="PK\1\2"):
    """The archive with bytes of its directory changed."""
    whole = source.read_bytes()
    start = whole.index(where.encode())
    assert before in whole[start:]
    source.write_bytes(whole[:start] + whole[start:].replace(before, after, 1))
    return source


@pytest.mark.parametrize("name", ["../a/1.jpg", "a/../../1.jpg", "/etc/1.jpg", "C:/a/1.jpg", "a/.."])
def test_fault_names_that_lead_out_are_refused(tmp_path, name):
    source = pack(tmp_path / "in.zip", {"a/0.jpg": trees.picture(), name: trees.picture()})
    assert f"the name {name!r} leads out of the archive" in refused(source, strict=False)


def test_fault_links_are_not_followed_and_listed(tmp_path):
    link = info("a/link.jpg", external_attr=LINK, create_system=3)
    source = pack(tmp_path / "in.zip", [("a/1.jpg", trees.picture()), (link, b"/etc/passwd")])
    result = convert(source, tmp_path / "out")
    assert [(skip.path, skip.reason) for skip in result.skipped] == [("a/link.jpg", "a symbolic link, not followed")]
    assert result.samples == 1


@pytest.mark.parametrize(
    ("reason", "change"),
    {
        "encrypted": lambda source: _flag(source, 1),
        "compressed by method 12": lambda source: _set(source, 10, "<H", 12),
        "claim to be 1048576": lambda source: _set(source, 24, "<I", 1 << 20),
        "too large: 4000000000": lambda source: _set(source, 24, "<I", 4_000_000_000),
        "not a regular file": lambda source: _set(source, 38, "<I", (stat.S_IFIFO | 0o644) << 16),
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fault_members_that_cannot_be_read_are_raised_or_skipped(tmp_path, reason, change):
    source = pack(tmp_path / "in.zip", {"a/bad.jpg": b"x" * 500, "b/good.jpg": trees.picture()})
    change(source)
    with pytest.raises(SampleError, match=f"'a/bad.jpg': .*{reason}"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out/info.json").exists()
    result = convert(source, tmp_path / "skip", on_error="skip")
    assert (result.samples, [skip.path for skip in result.skipped]) == (1, ["a/bad.jpg"])


def _set(source, offset, form, value):
    """Change a field of the first member in the archive's directory."""
    whole = bytearray(source.read_bytes())
    struct.pack_into(form, whole, whole.index(b"PK\1\2") + offset, value)
    source.write_bytes(whole)


def _flag(source, bits):
    whole = source.read_bytes()
    start = whole.index(b"PK\1\2")
    _set(source, 8, "<H", whole[start + 8] | bits)


def test_fault_a_member_stored_with_two_lengths_is_bad(tmp_path):
    source = pack(tmp_path / "in.zip", {"a/bad.jpg": b"x" * 500}, zipfile.ZIP_STORED)
    _set(source, 24, "<I", 400)
    with pytest.raises(SampleError, match="two lengths differ"):
        found(source)


@pytest.mark.parametrize(
    ("offset", "value", "said"),
    [
        (24, 60_000, "announces 60000 bytes, and more come out"),
        (24, 110_000, "announces 110000 bytes, and 100000 come out"),
        (16, 1234, "its checksum is wrong"),
    ],
)
def test_fault_no_more_is_unpacked_than_announced(tmp_path, offset, value, said):
    picture = trees.picture(0, 50_000).ljust(100_000, b"\0")
    source = pack(tmp_path / "in.zip", {"a/bad.jpg": picture, "b/good.jpg": trees.picture()})
    _set(source, offset, "<I", value)
    with pytest.raises(SampleError, match=f"'a/bad.jpg': .*{said}"):
        convert(source, tmp_path / "out")
    assert convert(source, tmp_path / "skip", on_error="skip").num_skipped == 1


def test_fault_damaged_bytes_are_bad(tmp_path):
    source = pack(tmp_path / "in.zip", {"a/bad.jpg": os.urandom(900), "b/good.jpg": trees.picture()})
    whole = bytearray(source.read_bytes())
    whole[60:80] = b"\xff" * 20
    source.write_bytes(whole)
    with pytest.raises(SampleError, match=r"'a/bad.jpg': damaged in the archive|'a/bad.jpg': the archive announces"):
        convert(source, tmp_path / "out")
    assert convert(source, tmp_path / "skip", on_error="skip").samples == 1


def test_fault_members_that_overlap_are_refused(tmp_path):
    """Ten names for the same bytes: each is honest, together they fill a disk."""
    source = pack(tmp_path / "in.zip", {f"a/{number}.jpg": trees.picture(0, 5000) for number in range(9)}, 0)
    whole = source.read_bytes()
    start = whole.index(b"PK\1\2")
    first = whole[: whole.index(b"PK\3\4", 4)]
    directory = b""
    for record in whole[start : whole.index(b"PK\5\6")].split(b"PK\1\2")[1:]:
        entry = bytearray(b"PK\1\2" + record)
        struct.pack_into("<I", entry, 42, 0)
        directory += entry
    end = bytearray(whole[whole.index(b"PK\5\6") :])
    struct.pack_into("<I", end, 16, len(first))
    source.write_bytes(first + directory + bytes(end))
    assert "overlap" in refused(source)


def test_fault_the_same_name_or_key_twice_is_refused(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate"):
        source = pack(tmp_path / "in.zip", [("a/1.jpg", b"x"), ("a/1.jpg", b"y")])
    assert "has 'a/1.jpg' twice" in refused(source)
    source = pack(tmp_path / "in.zip", {"a/1.jpg": b"x", "a/1.png": b"y"})
    assert "'a/1.jpg' and 'a/1.png' would both have the key 'a/1'" in refused(source)
    source = pack(tmp_path / "in.zip", {"a/1 .jpg": b"x", "a/1_.jpg": b"y"})
    assert "would both have the key 'a/1_'" in refused(source)


def test_fault_a_cut_or_foreign_file_is_refused(tree, tmp_path):
    source = packed(tree, tmp_path / "in.zip")
    whole = source.read_bytes()
    for content in (b"", b"no zip", whole[: len(whole) // 2], whole[:-30]):
        source.write_bytes(content)
        assert "no whole zip archive" in refused(source)
    source.write_bytes(whole[1000:])
    assert "lost its beginning" in refused(source)
    assert "No such file" in refused(tmp_path / "none.zip")
    assert "is empty" in refused(pack(tmp_path / "empty.zip", {}))
    assert "no usable image" in refused(pack(tmp_path / "text.zip", {"a/1.txt": b"x"}))
    assert "no class folders" in refused(pack(tmp_path / "flat.zip", {"1.jpg": b"x"}))


def test_fault_an_archive_that_changed_since_the_plan_is_not_read(tree, tmp_path):
    source = packed(tree, tmp_path / "in.zip")
    scanned, [entry, *_] = found(source)

    def read(at=entry.at):
        with ZipOrigin(scanned.root) as origin:
            return origin.read(entry.path, entry.size, entry.mtime_ns, at)

    assert read() == (tree / entry.path).read_bytes()
    for at in ("1 10 8 0", f"{1 << 40} 10 8 0", f"0 {1 << 30} 8 0"):
        with pytest.raises(SourceChangedError, match="no member"):
            read(at)
    with open(source, "r+b") as file:
        file.seek(int(entry.at.split()[0]))
        file.write(b"XX")
    os.utime(source, ns=(entry.mtime_ns, entry.mtime_ns))
    with pytest.raises(SourceChangedError, match="no member"):
        read()
    os.utime(source, (1, 1))
    with pytest.raises(SourceChangedError, match="changed since the plan"):
        read()


def test_the_digest_changes_with_content_of_the_same_length_and_not_with_time_or_order(tree, tmp_path):
    before = found(packed(tree, tmp_path / "in.zip"))[0].digest
    os.utime(tmp_path / "in.zip", (1, 1))
    assert found(tmp_path / "in.zip")[0].digest == before
    assert found(pack(tmp_path / "in.zip", trees.snapshot(tree)))[0].digest == before
    other = trees.snapshot(tree)
    other["ant/ant_000.jpg"] = other["ant/ant_000.jpg"][::-1]
    assert found(pack(tmp_path / "in.zip", other))[0].digest != before


def test_a_large_archive_with_64_bit_fields_is_read(tree, tmp_path):
    files = trees.snapshot(tree)
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        for name, data in files.items():
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(data)
    convert(tmp_path / "in.zip", tmp_path / "zip")
    convert(pack(tmp_path / "plain.zip", files), tmp_path / "plain")
    assert_same(tmp_path / "zip", trees.snapshot(tmp_path / "plain"))
