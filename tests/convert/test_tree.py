import os
import socket
import stat

import pytest

from tests.support import needs, torchvision_ops, trees  # noqa: F401 - torchvision imports only after its operators
from wds_tools.convert import entries, tree
from wds_tools.convert.spool import Spool
from wds_tools.errors import SampleError, SourceError


def scan(root, *, classes=None, siblings=False, strict=True):
    return tree.scan(entries.Request(str(root), Spool(), classes, strict, siblings))


def found(source):
    """Path and class name of every entry."""
    loaded = [entries.load_line(line) for line in source.lines]
    return [(entry.path, None if entry.label is None else source.classes[entry.label]) for entry in loaded]


def sizes(source):
    [(_, sizes)] = source.lines.blocks()
    return list(sizes)


def refused(root, **options):
    with pytest.raises(SourceError) as caught:
        scan(root, **options)
    return str(caught.value)


# ---------------------------------------------------------------- classes and files


def test_classes_are_the_folders_sorted_by_name(tmp_path):
    trees.make(tmp_path, ["b/1.jpg", "a/2.jpg", "B/3.jpg", "10/4.jpg", "9/5.jpg", "é/6.jpg", "z.x/7.jpg"])
    source = scan(tmp_path)
    assert source.classes == ("10", "9", "B", "a", "b", "z.x", "é")
    assert [entries.load_line(line).label for line in source.lines] == [0, 1, 2, 3, 4, 5, 6]


def test_the_samples_are_those_of_imagefolder_with_its_labels(tmp_path):
    needs.package("torchvision")
    from torchvision.datasets import ImageFolder

    files = [
        "b/1.jpg",
        "b/2.JPEG",
        "a/deep/er/3.png",
        "a/deep/4.jpg",
        "a/.jpg.txt",
        "c d/5.webp",
        "c d/6.Tif",
        "é/7.ppm",
    ]
    trees.make(tmp_path, [*files, "b/notes.txt", "a/deep/README", "b/x.jpg.bak", "top.jpg", b"n\xff/\xfe.bmp"])
    peer = ImageFolder(str(tmp_path))
    source = scan(tmp_path)
    assert list(source.classes) == peer.classes
    ours = {(str(tmp_path / entry.path), entry.label) for entry in map(entries.load_line, source.lines)}
    assert ours == set(peer.samples)
    assert len(source.lines) == len(peer.samples) == 8


def test_samples_come_sorted_by_class_then_folder_then_name(tmp_path):
    trees.make(tmp_path, ["b/x.jpg", "a/z.jpg", "a/n/q.jpg", "a/n/b/r.jpg", "a/m/s.jpg", "a/B.jpg"])
    assert [path for path, _ in found(scan(tmp_path))] == [
        "a/B.jpg",
        "a/z.jpg",
        "a/m/s.jpg",
        "a/n/q.jpg",
        "a/n/b/r.jpg",
        "b/x.jpg",
    ]


def test_folders_of_nothing_but_plain_names_are_scanned_as_all_others_are(tmp_path):
    files = ["a/1.jpg", "a/2.jpg", "a/n/3.png", "b/4.JPEG", "b/m.x/5.jpg"]
    plain = scan(trees.make(tmp_path, files))
    for folder in {path.rpartition("/")[0] for path in files}:
        trees.write(tmp_path, f"{folder}/README")
    careful = scan(tmp_path)
    assert careful.ignored == {"": 4}
    assert (list(careful.lines.blocks()), careful.digest) == (list(plain.lines.blocks()), plain.digest)


def test_entries_say_size_and_time(tmp_path):
    trees.make(tmp_path, {"a/1.jpg": b"x" * 7, "b/2.jpg": b"y" * 700})
    os.utime(tmp_path / "b/2.jpg", ns=(5, 1_234_567_890_123_456_789))
    source = scan(tmp_path)
    assert sizes(source) == [7, 700]
    assert [entries.load_line(line).size for line in source.lines] == [7, 700]
    assert entries.load_line(list(source.lines)[1]).mtime_ns == 1_234_567_890_123_456_789


def test_hidden_files_and_folders_are_no_samples(tmp_path):
    trees.make(
        tmp_path,
        ["a/1.jpg", "a/.2.jpg", "a/._1.jpg", "a/.git/3.jpg", ".cache/4.jpg", "__MACOSX/a/._5.jpg", ".DS_Store"],
    )
    source = scan(tmp_path)
    assert found(source) == [("a/1.jpg", "a")]
    assert source.classes == ("a",)
    assert [skip.path for skip in source.skipped] == [".cache", "__MACOSX"]
    assert source.ignored == {"hidden": 3}


def test_other_files_are_counted_by_their_suffix(tmp_path):
    trees.make(tmp_path, ["a/1.jpg", "a/1.TXT", "a/2.txt", "b/3.png", "b/README", "b/x.jpg.bak"])
    assert scan(tmp_path).ignored == {".txt": 2, "": 1, ".bak": 1}


def test_files_beside_the_class_folders_are_reported(tmp_path):
    trees.make(tmp_path, ["a/1.jpg", "loose.jpg", "labels.csv"])
    source = scan(tmp_path)
    assert found(source) == [("a/1.jpg", "a")]
    assert [(skip.path, skip.reason) for skip in source.skipped] == [
        ("labels.csv", "not inside a class folder"),
        ("loose.jpg", "not inside a class folder"),
    ]


@pytest.mark.parametrize(
    "suffix", ["jpg", "JPG", "Jpeg", "jfif", "png", "webp", "GIF", "bmp", "tif", "TIFF", "pgm", "npy"]
)
def test_images_are_known_by_their_suffix_in_any_case(tmp_path, suffix):
    trees.make(tmp_path, [f"a/1.{suffix}"])
    assert found(scan(tmp_path)) == [(f"a/1.{suffix}", "a")]


# ---------------------------------------------------------------- the digest of a source


def digest(root, **options):
    return scan(root, **options).digest


def test_the_digest_does_not_know_place_or_time(tmp_path):
    one = trees.classes(tmp_path / "one")
    other = trees.copy(one, tmp_path / "else/where", mtime=86_400)
    assert digest(one) == digest(other)
    assert list(scan(one).lines) != list(scan(other).lines)


@pytest.mark.parametrize(
    "change",
    [
        lambda root: trees.write(root, "ant/new.jpg"),
        lambda root: (root / "ant/ant_000.jpg").unlink(),
        lambda root: (root / "ant/ant_000.jpg").rename(root / "ant/renamed.jpg"),
        lambda root: (root / "ant/ant_000.jpg").rename(root / "bee/ant_000.jpg"),
        lambda root: trees.write(root, "ant/ant_000.jpg", b"of another size"),
        lambda root: (root / "bee").rename(root / "wasp"),
        lambda root: trees.write(root, "aardvark/1.jpg"),
    ],
)
def test_the_digest_changes_with_whatever_decides_a_sample(tmp_path, change):
    root = trees.classes(tmp_path / "tree")
    before = digest(root)
    change(root)
    assert digest(root) != before


def test_the_digest_knows_the_labels_and_the_siblings(tmp_path):
    root = trees.make(tmp_path / "tree", ["a/1.jpg", "b/2.jpg", "a/1.txt"])
    assert digest(root, classes=("a", "b")) == digest(root)
    assert digest(root, classes=("b", "a")) != digest(root)
    with_siblings = digest(root, siblings=True)
    assert with_siblings != digest(root)
    trees.write(root, "a/1.txt", b"of another size")
    assert digest(root, siblings=True) != with_siblings


# ---------------------------------------------------------------- classes that are given


def test_given_classes_fix_the_labels(tmp_path):
    trees.make(tmp_path, ["a/1.jpg", "c/2.jpg"])
    source = scan(tmp_path, classes=("c", "b", "a"))
    assert source.classes == ("c", "b", "a")
    assert found(source) == [("a/1.jpg", "a"), ("c/2.jpg", "c")]


def test_fault_09_a_class_that_is_not_among_the_given_ones_is_refused(tmp_path):
    trees.make(tmp_path, ["a/1.jpg", "new/2.jpg", "other/3.jpg"])
    said = refused(tmp_path, classes=("a", "b"))
    assert "'new'" in said
    assert "1 others" in said
    assert "2 classes" in said
    assert "--classes" in said


# ---------------------------------------------------------------- layouts that are likely mistakes


@pytest.mark.parametrize("names", [("train", "val"), ("train",), ("Train", "TEST", "validation")])
def test_a_folder_of_splits_is_refused_with_the_command_that_is_meant(tmp_path, names):
    trees.make(tmp_path, [f"{name}/a/1.jpg" for name in names])
    said = refused(tmp_path)
    assert all(name in said for name in names)
    assert f"convert {tmp_path}/{sorted(names)[-1]} OUT --split {sorted(names)[-1]}" in said


def test_a_class_that_is_called_like_a_split_is_no_mistake(tmp_path):
    trees.make(tmp_path, ["train/1.jpg", "bus/2.jpg"])
    assert scan(tmp_path).classes == ("bus", "train")


def test_a_flat_folder_is_refused_with_what_to_do_instead(tmp_path):
    trees.make(tmp_path, ["1.jpg", "2.jpg"])
    said = refused(tmp_path)
    assert f"{tmp_path}/<class>/<image>" in said
    assert "--siblings" in said
    assert "CSV" in said


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    assert "does not exist" in refused(tmp_path / "none")


# ---------------------------------------------------------------- siblings


def siblings_of(source):
    return {e.path: {s.ext: s.path for s in e.siblings} for e in map(entries.load_line, source.lines)}


def test_files_of_one_stem_are_one_sample(tmp_path):
    trees.make(tmp_path, ["a/1.jpg", "a/1.txt", "a/1.JSON", "a/n/1.png", "a/n/1.txt", "b/2.jpg"])
    source = scan(tmp_path, siblings=True)
    assert siblings_of(source) == {
        "a/1.jpg": {"txt": "a/1.txt", "json": "a/1.JSON"},
        "a/n/1.png": {"txt": "a/n/1.txt"},
        "b/2.jpg": {},
    }
    assert found(source) == [("a/1.jpg", "a"), ("a/n/1.png", "a"), ("b/2.jpg", "b")]


def test_a_flat_folder_with_siblings_has_no_classes(tmp_path):
    trees.make(tmp_path, ["1.jpg", "1.txt", "2.jpg", "2.cls", ".3.jpg"])
    source = scan(tmp_path, siblings=True)
    assert siblings_of(source) == {"1.jpg": {"txt": "1.txt"}, "2.jpg": {"cls": "2.cls"}}
    assert source.classes == ()
    assert found(source) == [("1.jpg", None), ("2.jpg", None)]


def test_siblings_that_cannot_be_fields_are_left_out_and_counted(tmp_path):
    trees.make(
        tmp_path, ["a/1.jpg", "a/1.txt~", "a/1.waytoolongext", "a/1.cls", "a/1.é", "a/1.", "a/2.txt", "a/README"]
    )
    source = scan(tmp_path, siblings=True)
    assert siblings_of(source) == {"a/1.jpg": {}}
    assert source.ignored == {".txt~": 1, ".waytoolongext": 1, ".cls": 1, ".é": 1, ".": 1, ".txt": 1, "": 1}


def test_the_size_of_a_sample_counts_its_siblings(tmp_path):
    trees.make(tmp_path, {"a/1.jpg": b"x" * 10, "a/1.txt": b"y" * 500, "b/2.jpg": b"z" * 20})
    one, other = sizes(scan(tmp_path, siblings=True))
    assert 510 < one <= 510 + 2048
    assert other == 20


@pytest.mark.parametrize("pair", [("1.jpg", "1.png"), ("1.jpg", "1.JPG"), ("1.jpeg", "1.jpg")])
def test_two_images_of_one_stem_are_refused_with_siblings_too(tmp_path, pair):
    trees.make(tmp_path, [f"a/{name}" for name in pair] + ["a/1.txt"])
    said = refused(tmp_path, siblings=True)
    assert all(repr(f"a/{name}") in said for name in pair)


def test_fault_05_two_siblings_that_would_be_one_field_are_refused(tmp_path):
    trees.make(tmp_path, ["a/1.jpg", "a/1.txt", "a/1.TXT"])
    said = refused(tmp_path, siblings=True)
    assert "'a/1.txt'" in said
    assert "'a/1.TXT'" in said


# ---------------------------------------------------------------- faults


def test_fault_01_an_empty_tree_is_refused(tmp_path):
    assert "is empty" in refused(tmp_path)


def test_fault_01_an_empty_class_folder_is_reported_and_keeps_its_index(tmp_path):
    trees.make(tmp_path, ["a/1.jpg", "c/3.jpg", "d/readme.txt"])
    (tmp_path / "b").mkdir()
    source = scan(tmp_path)
    assert source.classes == ("a", "b", "c", "d")
    assert found(source) == [("a/1.jpg", "a"), ("c/3.jpg", "c")]
    assert source.empty_classes == ("b", "d")


def test_fault_01_a_tree_without_images_is_refused_with_what_it_has(tmp_path):
    trees.make(tmp_path, ["a/1.txt", "b/2.txt", "b/3.csv"])
    said = refused(tmp_path)
    assert "no images" in said
    assert "2 .txt" in said


def test_fault_02_links_out_of_the_tree_loops_and_broken_links_are_not_followed_and_reported(tmp_path):
    outside = trees.write(tmp_path / "outside", "a/secret.jpg")
    root = trees.make(tmp_path / "tree", ["a/1.jpg", "b/2.jpg"])
    links = {
        "a/out.jpg": outside,
        "a/relative.jpg": "../../outside/a/secret.jpg",
        "a/broken.jpg": "nowhere.jpg",
        "a/self.jpg": "self.jpg",
        "a/up": "..",
        "a/folder.jpg": "../b",
        "b/device.jpg": "/dev/null",
        "linked_class": outside.parent,
        "loop": ".",
        "self": "self",
        "lost": "nowhere",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    source = scan(root)
    assert found(source) == [("a/1.jpg", "a"), ("b/2.jpg", "b")]
    reported = {skip.path: skip.reason for skip in source.skipped}
    assert set(reported) == set(links) - {"a/up"}  # which is no image by its name
    assert all("link" in reason and "not followed" in reason for reason in reported.values())
    assert "out of the tree" in reported["a/out.jpg"]
    assert "to a folder" in reported["linked_class"]
    assert all("broken" in reported[path] for path in ("a/broken.jpg", "a/self.jpg", "self", "lost"))


def test_fault_02_a_tree_of_nothing_but_links_is_refused_naming_one(tmp_path):
    outside = trees.classes(tmp_path / "outside")
    (tmp_path / "tree").mkdir()
    for name in ("ant", "bee"):
        (tmp_path / "tree" / name).symlink_to(outside / name)
    said = refused(tmp_path / "tree")
    assert "'ant'" in said
    assert "link" in said


def test_a_link_to_a_file_inside_the_tree_is_followed(tmp_path):
    trees.make(tmp_path, ["a/1.jpg", "b/2.jpg"])
    (tmp_path / "b/linked.jpg").symlink_to("../a/1.jpg")
    (tmp_path / "b/twice.jpg").symlink_to("linked.jpg")
    source = scan(tmp_path)
    assert found(source) == [("a/1.jpg", "a"), ("b/2.jpg", "b"), ("b/linked.jpg", "b"), ("b/twice.jpg", "b")]
    assert sizes(source)[2] == sizes(source)[0]
    assert source.skipped == []


def test_a_root_that_is_a_link_is_followed(tmp_path):
    root = trees.make(tmp_path / "tree", ["a/1.jpg"])
    (root / "a/linked.jpg").symlink_to("1.jpg")
    (tmp_path / "link").symlink_to("tree")
    assert len(found(scan(tmp_path / "link"))) == 2


def test_fault_03_names_that_are_not_utf_8_are_found_and_keep_their_bytes(tmp_path):
    trees.make(tmp_path, [b"caf\xe9/\xff.jpg", "café/1.jpg", "a/tab\tnew\nline\\.jpg"])
    source = scan(tmp_path)
    assert {os.fsencode(path) for path, _ in found(source)} == {
        b"caf\xe9/\xff.jpg",
        "café/1.jpg".encode(),
        b"a/tab\tnew\nline\\.jpg",
    }
    assert source.classes == ("a", "café", "caf\udce9")


COLLISIONS = {
    "by suffix": ("a/1.jpg", "a/1.png"),
    "by the case of the suffix": ("a/1.jpg", "a/1.JPG"),
    "by white space": ("a/x y.jpg", "a/x_y.jpg"),
    "by dots": ("a/x.y.jpg", "a/x_y.jpg"),
    "in nested folders": ("a/n m/1.jpg", "a/n_m/1.jpg"),
    "in nested folders of which the other is read first": ("a/n\u3000m/1.jpg", "a/n_m/1.jpg"),
    "across class folders": ("a b/1.jpg", "a_b/1.jpg"),
    "across class folders and in depth": ("a b/n/1.jpg", "a_b/n/1.png"),
    "by kinds of white space": ("a/x\u3000y.jpg", "a/x\ty.jpg"),
}


@pytest.mark.parametrize("pair", COLLISIONS.values(), ids=COLLISIONS)
def test_fault_05_two_paths_with_one_key_are_refused_naming_both(tmp_path, pair):
    trees.make(tmp_path, [*pair, "a/other.jpg", "z/1.jpg"])
    said = refused(tmp_path)
    assert all(repr(path) in said for path in pair)


def test_paths_that_only_look_alike_keep_their_keys_apart(tmp_path):
    names = ["a/1.jpg", "a/1%.jpg", "a/é.jpg", "a/e\u0301.jpg", b"a/\xe9.jpg", "b/1.jpg", "a/n/1.jpg", "a/n1.jpg"]
    trees.make(tmp_path, names)
    assert len(found(scan(tmp_path))) == len(names)


@pytest.mark.parametrize("strict", [True, False], ids=["raise", "skip"])
@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a character device", "a block device"])
def test_fault_06_what_is_no_regular_file_is_skipped_or_raised_with_its_place(tmp_path, monkeypatch, kind, strict):
    trees.make(tmp_path, ["a/1.jpg"])
    path = tmp_path / "a/2.jpg"
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a socket":
        monkeypatch.chdir(path.parent)  # a socket's whole path has room for 108 bytes only
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    else:
        needs.root()
        os.mknod(path, stat.S_IFCHR if kind == "a character device" else stat.S_IFBLK, os.makedev(7, 200))
    if strict:
        with pytest.raises(SampleError) as caught:
            scan(tmp_path)
        assert str(caught.value) == f"'a/2.jpg': {kind}, not an image"
    else:
        source = scan(tmp_path, strict=False)
        assert found(source) == [("a/1.jpg", "a")]
        assert [(skip.path, skip.reason) for skip in source.skipped] == [("a/2.jpg", f"{kind}, not an image")]


def test_fault_08_a_folder_that_cannot_be_listed_is_refused(tmp_path):
    with trees.open_to_all() as root:
        trees.make(root, ["a/1.jpg", "b/2.jpg"])
        (root / "b").chmod(0)
        with pytest.raises(SourceError, match=r"cannot list '.*/b': Permission denied; mend its permissions"):
            trees.unprivileged(lambda: scan(root))
        (root / "b").chmod(0o700)
