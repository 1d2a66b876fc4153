import hashlib
import io
import json
import os
import shutil
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

from tests.support import images, needs, trees
from wds_tools.convert import sources
from wds_tools.convert.claim import Claim
from wds_tools.convert.entries import Request
from wds_tools.convert.options import ConvertOptions
from wds_tools.convert.plan import make_plan
from wds_tools.convert.shard import CHUNK, Job, build_shard, output_scale
from wds_tools.convert.spool import Spool
from wds_tools.convert.workspace import Workspace
from wds_tools.errors import DecodeError, SampleError, SourceChangedError, StoreError
from wds_tools.image import codec, tiles
from wds_tools.store.local import LocalStore


def quiet(samples, size):
    pass


def prepare(source, target, store=LocalStore, **changes):
    """Scan a tree or a table and write the plan of its one shard down; what is left is to build it."""
    options = ConvertOptions(**{"shuffle": False, **changes})
    strict = options.on_error == "raise"
    found = sources.scan(Request(str(source), Spool(), options.classes, strict, options.siblings))
    job = Job(found.root, found.kind, store(target), options, found.classes, Claim(store(target), options.split, ""))
    [(plan, lines)] = make_plan(found.lines, options)
    Workspace(job.target, options.split).write_entries(plan.name, lines)
    return job, plan


def build(source, target, **changes):
    job, plan = prepare(source, target, **changes)
    return build_shard(job, plan, quiet)


def one(tmp_path, name, data, **changes):
    """The fields of the one sample that an image file becomes."""
    target = tmp_path / "out"
    build(trees.make(tmp_path / "in", {f"a/{name}": data}), target, **changes)
    [(_, fields)] = trees.read(target)
    assert fields.pop("cls") == b"0"
    return fields


# ---------------------------------------------------------------- the bytes of a shard


def test_headers_say_the_same_of_every_member(tmp_path):
    build(trees.classes(tmp_path / "in"), tmp_path / "out", metadata=True)
    members = trees.members(tmp_path / "out/train-000000.tar")
    assert len(members) == 45
    for member in members:
        assert member.isreg()
        assert (member.mode, member.uid, member.gid, member.mtime) == (0o444, 0, 0, 0)
        assert (member.uname, member.gname, member.linkname) == ("", "", "")
        assert member.pax_headers == {}
    data = (tmp_path / "out/train-000000.tar").read_bytes()
    for member in members:
        assert data[member.offset + 257 : member.offset + 265] == b"ustar\x0000"


def test_a_shard_ends_with_two_blocks_of_zeros_and_has_zeros_between_members(tmp_path):
    build(trees.classes(tmp_path / "in"), tmp_path / "out")
    data = (tmp_path / "out/train-000000.tar").read_bytes()
    end = 0
    for member in trees.members(tmp_path / "out/train-000000.tar"):
        assert member.offset == end
        end = member.offset_data + -(-member.size // 512) * 512
        assert not data[member.offset_data + member.size : end].strip(b"\0")
    assert data[end:] == bytes(1024)


def test_images_are_stored_untouched_with_the_index_of_their_class(tmp_path):
    source = trees.classes(tmp_path / "in", ["dog", "cat", "10", "9"], count=3)
    build(source, tmp_path / "out")
    stored = trees.read(tmp_path / "out")
    assert [(key, fields["cls"]) for key, fields in stored][::3] == [
        ("10/10_000", b"0"),
        ("9/9_000", b"1"),
        ("cat/cat_000", b"2"),
        ("dog/dog_000", b"3"),
    ]
    assert {f"{key}.jpg": fields["jpg"] for key, fields in stored} == trees.snapshot(source)


def test_a_sample_s_members_are_adjacent_image_first_and_label_last(tmp_path):
    source = trees.make(tmp_path / "in", ["a/1.jpg", "a/2.jpg", "b/3.jpg"])
    trees.make(source, {"a/1.txt": b"one", "a/1.bbox": b"box", "a/2.txt": b"two"})
    build(source, tmp_path / "out", siblings=True, metadata=True)
    assert [member.name for member in trees.members(tmp_path / "out/train-000000.tar")] == [
        "a/1.jpg",
        "a/1.bbox",
        "a/1.txt",
        "a/1.json",
        "a/1.cls",
        "a/2.jpg",
        "a/2.txt",
        "a/2.json",
        "a/2.cls",
        "b/3.jpg",
        "b/3.json",
        "b/3.cls",
    ]


def test_files_longer_than_a_chunk_and_shards_of_many_chunks_come_out_whole(tmp_path):
    files = {
        "a/1.jpg": trees.picture(1),
        "a/2.jpg": images.jpeg(8, 8) + bytes(3 * CHUNK + 5),
        "a/3.jpg": trees.picture(3),
        **{f"b/{number}.jpg": images.jpeg(8, 8) + bytes(CHUNK // 4 + number) for number in range(9)},
    }
    source = trees.make(tmp_path / "in", files)
    receipt = build(source, tmp_path / "out")
    assert {f"{key}.jpg": fields["jpg"] for key, fields in trees.read(tmp_path / "out")} == files
    assert receipt.size == (tmp_path / "out/train-000000.tar").stat().st_size
    assert_index_fits(tmp_path / "out/train-000000.tar")


def assert_index_fits(shard):
    """DALI's rules, read anew: ``<ext> <offset> <size> <name>`` for every member of a sample on a line of its own."""
    version, *lines = shard.with_suffix(".idx").read_text("ascii").split("\n")
    assert version == f"v1.2 {len(lines) - 1}"
    assert lines.pop() == ""
    data = shard.read_bytes()
    members = {member.name: member for member in trees.members(shard)}
    listed = []
    for line, (key, fields) in zip(lines, trees.read_shard(shard), strict=True):
        columns = line.split(" ")
        rows = list(zip(columns[::4], columns[1::4], columns[2::4], columns[3::4], strict=True))
        assert [ext for ext, *_ in rows] == list(fields)
        for ext, offset, size, name in rows:
            assert name == f"{key}.{ext}"
            assert int(offset) % 512 == 0
            assert int(offset) == members[name].offset_data
            assert data[int(offset) : int(offset) + int(size)] == fields[ext]
            listed.append(name)
    assert listed == list(members)


@pytest.mark.parametrize(
    "changes", [{}, {"metadata": True}, {"siblings": True}, {"encode": "png"}, {"on_error": "skip"}]
)
def test_the_index_points_at_the_very_bytes(tmp_path, changes):
    source = trees.classes(tmp_path / "in")
    trees.write(source, "ant/ant_001.txt", b"text")
    if "on_error" in changes:
        trees.write(source, "ant/ant_002.jpg", b"")
        trees.write(source, "cat/cat_004.jpg", b"no image")
    build(source, tmp_path / "out", **changes)
    assert_index_fits(tmp_path / "out/train-000000.tar")


def test_a_table_without_labels_has_no_cls_field(tmp_path):
    trees.make(tmp_path / "in", ["1.jpg", "sub/2.jpg"])
    (tmp_path / "in/l.csv").write_text("path\n1.jpg\nsub/2.jpg\n")
    build(tmp_path / "in/l.csv", tmp_path / "out")
    assert [(key, set(fields)) for key, fields in trees.read(tmp_path / "out")] == [("1", {"jpg"}), ("sub/2", {"jpg"})]
    assert_index_fits(tmp_path / "out/train-000000.tar")


# ---------------------------------------------------------------- the receipt


def test_the_receipt_says_what_was_written(tmp_path):
    source = trees.make(tmp_path / "in", ["a/1.jpg", "a/2.JPEG", "b/3.jpg", "b/4.png"])
    trees.make(source, {"a/1.txt": b"x" * 50, "b/4.png": images.png(), "b/5.jpg": b""})
    job, plan = prepare(source, tmp_path / "out", siblings=True, on_error="skip")
    receipt = build_shard(job, plan, quiet)
    data = (tmp_path / "out" / plan.name).read_bytes()
    assert (receipt.name, receipt.digest) == (plan.name, plan.digest)
    assert (receipt.size, receipt.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert receipt.samples == 4
    assert receipt.fields == {"jpg": 3, "png": 1, "txt": 1, "cls": 4}
    assert receipt.suffixes == {"jpg": {".jpg": 2, ".JPEG": 1}, "png": {".png": 1}}
    assert receipt.source_bytes == sum(len(data) for data in trees.snapshot(source).values())
    assert [(skip.path, skip.reason) for skip in receipt.skipped] == [("b/5.jpg", "empty file")]
    assert Workspace(job.target, "train").read_receipt(plan) == receipt


def test_suffixes_are_those_of_the_names_alone(tmp_path):
    trees.make(tmp_path / "in", ["bare", "dir.v2/bare2", ".jpg", "x.JPG"])
    (tmp_path / "in/l.csv").write_text("path\nbare\ndir.v2/bare2\n.jpg\nx.JPG\n")
    assert build(tmp_path / "in/l.csv", tmp_path / "out").suffixes == {"jpg": {"": 3, ".JPG": 1}}


@pytest.mark.parametrize("changes", [{}, {"encode": "png"}, {"siblings": True}])
def test_progress_adds_up_to_the_samples_and_their_bytes(tmp_path, changes):
    source = trees.classes(tmp_path / "in", count=100)
    trees.write(source, "ant/ant_000.txt", b"text")
    job, plan = prepare(source, tmp_path / "out", **changes)
    ticks = []
    receipt = build_shard(job, plan, lambda samples, size: ticks.append((samples, size)))
    assert len(ticks) > 1
    assert [sum(column) for column in zip(*ticks, strict=True)] == [300, receipt.source_bytes]


class Stop(BaseException):
    pass


def test_a_task_that_is_stopped_leaves_nothing_under_the_shard_s_name(tmp_path):
    job, plan = prepare(trees.classes(tmp_path / "in", count=100), tmp_path / "out")

    def tick(samples, size):
        raise Stop

    with pytest.raises(Stop):
        build_shard(job, plan, tick)
    assert_nothing_made(tmp_path / "out")


class Rotten(LocalStore):
    """A folder on a disk that does not give back what was written to it."""

    def stream(self, name, start=0):
        data = bytearray(self.read(name))
        data[len(data) // 2] ^= 1
        return io.BytesIO(data[start:])


def test_a_shard_that_does_not_read_back_as_written_is_refused(tmp_path):
    job, plan = prepare(trees.classes(tmp_path / "in"), tmp_path / "out", store=Rotten)
    with pytest.raises(StoreError, match=r"train-000000\.tar' does not read back"):
        build_shard(job, plan, quiet)
    assert_nothing_made(tmp_path / "out")


def assert_nothing_made(target):
    """Nothing but the plan's entries: no shard, no index, no receipt, no temporary file."""
    assert list(trees.snapshot(target)) == [".wds_tools/train/train-000000.entries"]


def test_building_twice_gives_the_same_bytes_and_receipt(tmp_path):
    source = trees.classes(tmp_path / "in")
    receipts = [build(source, tmp_path / name, metadata=True) for name in ("one", "two")]
    assert receipts[0] == receipts[1]
    assert trees.snapshot(tmp_path / "one") == trees.snapshot(tmp_path / "two")


# ---------------------------------------------------------------- faults 7 and 8: files that changed, files that do not open


def grow(path):
    path.write_bytes(path.read_bytes() + b"x")


def grow_unseen(path):
    """As an append does on a file system whose clock is too coarse to show it."""
    time = path.stat().st_mtime_ns
    grow(path)
    os.utime(path, ns=(time, time))


def shrink(path):
    path.write_bytes(path.read_bytes()[:-1])


def touch(path):
    os.utime(path, ns=(1, 1))


def give_way_to_a_file(path):
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"")


def give_way_to_a_folder(path):
    path.unlink()
    path.mkdir()


CHANGES = {
    "gone": os.unlink,
    "gone with its folder": give_way_to_a_file,
    "grown": grow,
    "grown without a trace": grow_unseen,
    "shrunk": shrink,
    "emptied": lambda path: path.write_bytes(b""),
    "touched": touch,
    "a folder now": give_way_to_a_folder,
}


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("kind", ["image", "image to encode", "sibling"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_fault_07_a_file_that_is_not_what_the_plan_saw_fails_its_shard(tmp_path, change, kind, on_error):
    source = trees.make(tmp_path / "in", ["a/1.jpg", "b/2.jpg", "c/3.jpg"])
    changed = "b/2.jpg"
    options = {"on_error": on_error}
    if kind == "sibling":
        changed, options["siblings"] = "b/2.txt", True
        trees.write(source, changed, b"text")
    if kind == "image to encode":
        options["encode"] = "png"
    job, plan = prepare(source, tmp_path / "out", **options)
    change(source / changed)
    with pytest.raises(SourceChangedError) as caught:
        build_shard(job, plan, quiet)
    assert "'b/2." in str(caught.value)
    assert "since the plan was made" in str(caught.value)
    assert_nothing_made(tmp_path / "out")


def test_fault_07_a_source_that_is_gone_as_a_whole_is_said(tmp_path):
    job, plan = prepare(trees.classes(tmp_path / "in"), tmp_path / "out")
    (tmp_path / "in").rename(tmp_path / "away")
    with pytest.raises(SourceChangedError, match=r"/in' cannot be opened any more \(No such file"):
        build_shard(job, plan, quiet)
    assert_nothing_made(tmp_path / "out")


@pytest.mark.parametrize("what", ["b/2.jpg", "b/2.txt"])
def test_fault_08_an_unreadable_file_is_raised_with_its_path_or_skipped(what):
    with trees.open_to_all() as folder:
        source = trees.make(folder / "in", ["a/1.jpg", "b/2.jpg", "b/2.txt"])
        (source / what).chmod(0)

        def attempt(on_error, target):
            return build(source, folder / target, siblings=True, on_error=on_error)

        with pytest.raises(SampleError) as caught:
            trees.unprivileged(partial(attempt, "raise", "one"))
        assert str(caught.value) == f"{what!r}: unreadable: Permission denied"
        receipt = trees.unprivileged(partial(attempt, "skip", "two"))
        assert receipt.samples == 1
        assert [skip.path for skip in receipt.skipped] == ["b/2.jpg"]
        assert "unreadable: Permission denied" in receipt.skipped[0].reason
        assert [key for key, _ in trees.read(folder / "two")] == ["a/1"]


@pytest.mark.parametrize("name", ["b/2.jpg", "a/1.txt"])
def test_a_file_too_large_for_a_tar_is_raised_or_skipped_unread(tmp_path, name):
    source = trees.make(tmp_path / "in", ["a/1.jpg", "b/3.jpg"])
    with open(trees.write(source, name), "r+b") as file:
        file.truncate(1 << 40)  # a hole, which takes no room
    with pytest.raises(SampleError, match=f"{name}': too large: 1099511627776 bytes"):
        build(source, tmp_path / "one", siblings=True, max_size=1 << 50)
    receipt = build(source, tmp_path / "two", siblings=True, max_size=1 << 50, on_error="skip")
    assert len(receipt.skipped) == 1
    assert "b/3" in dict(trees.read(tmp_path / "two"))


# ---------------------------------------------------------------- faults 10 to 13: bytes that are no whole image

WITHOUT_END = images.png()[:-12]
HOLE = images.png(200, 200)[:2000] + images.png(200, 200)[-12:]  # ends well, and lacks pixels

BAD = {
    "fault 10: empty": (b"", "empty file"),
    "fault 11: JPEG": (images.truncated(images.jpeg(64, 64)), "truncated JPEG"),
    "fault 11: progressive JPEG": (images.truncated(images.jpeg(64, 64, progressive=True)), "truncated JPEG"),
    "fault 11: JPEG with a whole thumbnail": (
        images.truncated(images.with_thumbnail(images.jpeg(64, 64))),
        "truncated JPEG",
    ),
    "fault 11: PNG": (images.truncated(images.png(64, 64)), "truncated PNG"),
    "fault 11: PNG without its last chunk": (WITHOUT_END, "truncated PNG"),
    "fault 11: WebP": (images.truncated(images.saved(images.picture(), "webp")), "truncated WebP"),
    "fault 11: GIF": (images.truncated(images.saved(images.picture(), "gif")), "truncated GIF"),
    "fault 13: text": (b"<html>404 not found</html>", "not an image"),
    "fault 13: zeros": (bytes(5000), "not an image"),
    "fault 13: one byte": (b"\xff", "not an image"),
}


@pytest.mark.parametrize("changes", [{}, {"metadata": True}, {"encode": "png"}, {"image_size": 8}], ids=str)
@pytest.mark.parametrize(("data", "reason"), BAD.values(), ids=BAD)
def test_faults_10_11_13_a_file_that_is_no_whole_image_is_raised_or_skipped(tmp_path, data, reason, changes):
    source = trees.make(tmp_path / "in", {"a/1.jpg": None, "b/2.jpg": data, "b/3.jpg": None})
    with pytest.raises(SampleError) as caught:
        build(source, tmp_path / "one", **changes)
    assert caught.value.place == "'b/2.jpg'"
    assert reason in caught.value.reason
    assert_nothing_made(tmp_path / "one")
    receipt = build(source, tmp_path / "two", on_error="skip", **changes)
    assert [key for key, _ in trees.read(tmp_path / "two")] == ["a/1", "b/3"]
    assert [(skip.path, reason in skip.reason) for skip in receipt.skipped] == [("b/2.jpg", True)]
    assert_index_fits(tmp_path / "two/train-000000.tar")


@pytest.mark.parametrize("changes", [{"encode": "jpg"}, {"encode": "npy"}, {"image_size": 20}], ids=str)
def test_fault_11_what_only_decoding_shows_is_found_when_images_are_encoded_anew(tmp_path, changes):
    with pytest.raises(DecodeError) as caught:
        one(tmp_path, "x.png", HOLE, **changes)
    assert caught.value.place == "'a/x.png'"
    assert "cannot decode this png" in caught.value.reason


def test_fault_11_the_same_file_is_kept_where_images_are_not_decoded(tmp_path):
    assert one(tmp_path, "x.png", HOLE) == {"png": HOLE}


@pytest.mark.parametrize(
    "changes", [{"image_size": 64}, {"encode": "jpg"}, {"encode": "npy", "image_size": 9}], ids=str
)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_fault_12_a_decompression_bomb_is_refused_before_decoding(tmp_path, changes, on_error):
    source = trees.make(tmp_path / "in", {"a/1.jpg": None, "a/bomb.png": images.bomb_png()})
    with (
        pytest.raises(DecodeError, match="2500000000 pixels, above the limit") if on_error == "raise" else nullcontext()
    ):
        receipt = build(source, tmp_path / "out", on_error=on_error, **changes)
        assert [skip.path for skip in receipt.skipped] == ["a/bomb.png"]


KINDS = {
    "jpg": images.jpeg(),
    "png": images.png(),
    "webp": images.saved(images.picture(), "webp"),
    "gif": images.saved(images.picture(mode="P"), "gif"),
    "bmp": images.saved(images.picture(), "bmp"),
    "tiff": images.saved(images.picture(), "tiff"),
    "ppm": images.saved(images.picture(), "ppm"),
    "npy": images.npy(images.pixels()),
}


@pytest.mark.parametrize("name", ["x.jpg", "x.JPEG", "x.png", "x.tif"])
@pytest.mark.parametrize("kind", KINDS)
def test_fault_13_the_magic_bytes_name_the_field(tmp_path, kind, name):
    assert one(tmp_path, name, KINDS[kind]) == {kind: KINDS[kind]}


# ---------------------------------------------------------------- images encoded anew

PICTURES = {
    "RGB": images.jpeg(),
    "grey": images.jpeg(mode="L"),
    "progressive": images.jpeg(progressive=True),
    "CMYK": images.cmyk_jpeg(),
    "YCCK": images.ycck_jpeg(),
    "16 bits": images.sixteen_bit_png(),
    "alpha": images.png(mode="RGBA"),
    "palette": images.png(mode="P"),
    "animated": images.animation("gif"),
    "arithmetic": images.ARITHMETIC_JPEG,
    "PNG": images.png(),
    "npy": KINDS["npy"],
    **{f"orientation {turn}": images.with_exif_orientation(turn) for turn in range(1, 9)},
}


@pytest.mark.parametrize("encode", ["png", "npy"])
@pytest.mark.parametrize("data", PICTURES.values(), ids=PICTURES)
def test_faults_14_15_stored_pixels_are_the_one_documented_conversion_upright(tmp_path, data, encode):
    fields = one(tmp_path, "x.jpg", data, encode=encode)
    assert list(fields) == [encode]
    np.testing.assert_array_equal(codec.decode(fields[encode]), codec.decode(data))
    if encode == "npy":
        array = np.load(io.BytesIO(fields["npy"]), allow_pickle=False)
        assert array.dtype == np.uint8
        assert array.ndim == 3
    else:
        assert images.Image.open(io.BytesIO(fields["png"])).getexif() == {}


@pytest.mark.parametrize("encode", ["jpg", "png", "webp", "npy"])
def test_an_image_that_is_of_the_kind_already_is_left_alone(tmp_path, encode):
    assert one(tmp_path, "x.jpg", KINDS[encode], encode=encode) == {encode: KINDS[encode]}


@pytest.mark.parametrize("encode", ["jpg", "webp"])
def test_lossy_kinds_come_close_and_quality_decides_how_close(tmp_path, encode):
    fine = one(tmp_path / "fine", "x.png", images.png(64, 48), encode=encode, quality=98)[encode]
    plain = one(tmp_path / "plain", "x.png", images.png(64, 48), encode=encode)[encode]
    coarse = one(tmp_path / "coarse", "x.png", images.png(64, 48), encode=encode, quality=10)[encode]
    assert len(fine) > len(plain) > len(coarse)
    assert codec.sniff(plain) == encode
    errors = [np.abs(codec.decode(data).astype(int) - images.pixels(64, 48)).mean() for data in (fine, plain, coarse)]
    assert errors[0] < errors[1] < errors[2]
    assert errors[1] < 6


def test_quality_encodes_images_of_the_same_kind_anew(tmp_path):
    data = images.jpeg(64, 48, quality=100)
    stored = one(tmp_path, "x.jpg", data, encode="jpg", quality=20)["jpg"]
    assert len(stored) < len(data)
    assert codec.dimensions(stored) == (64, 48)


@pytest.mark.parametrize(
    ("kind", "stored_as"),
    [("jpg", "jpg"), ("png", "png"), ("webp", "webp"), ("bmp", "jpg"), ("gif", "jpg"), ("npy", "jpg")],
)
def test_image_size_brings_the_shorter_side_down_and_keeps_the_kind(tmp_path, kind, stored_as):
    fields = one(tmp_path, f"x.{kind}", KINDS[kind], image_size=15)
    assert list(fields) == [stored_as]
    assert codec.dimensions(fields[stored_as]) == (20, 15)


@pytest.mark.parametrize("turn", [1, 6])
def test_image_size_counts_upright(tmp_path, turn):
    fields = one(tmp_path, "x.jpg", images.with_exif_orientation(turn, width=90, height=30), image_size=10)
    assert codec.dimensions(fields["jpg"]) == ((30, 10) if turn == 1 else (10, 30))


@pytest.mark.parametrize("size", [30, 31, 4000])
@pytest.mark.parametrize("kind", KINDS)
def test_image_size_never_enlarges_and_leaves_small_images_untouched(tmp_path, kind, size):
    assert one(tmp_path, f"x.{kind}", KINDS[kind], image_size=size) == {kind: KINDS[kind]}


def test_image_size_and_another_kind_together(tmp_path):
    big = one(tmp_path / "big", "x.jpg", images.jpeg(), image_size=15, encode="png")
    small = one(tmp_path / "small", "x.jpg", images.jpeg(), image_size=1000, encode="png")
    assert codec.dimensions(big["png"]) == (20, 15)
    assert codec.dimensions(small["png"]) == (40, 30)


# ---------------------------------------------------------------- siblings and metadata


def test_siblings_are_fields_with_their_bytes(tmp_path):
    source = trees.make(tmp_path / "in", {"a/1.jpg": None, "a/1.txt": b"a\0b", "a/1.JSON": b"{}", "a/1.mask0": b""})
    build(source, tmp_path / "out", siblings=True)
    [(_, fields)] = trees.read(tmp_path / "out")
    assert fields == {"jpg": trees.picture("a/1.jpg"), "txt": b"a\0b", "json": b"{}", "mask0": b"", "cls": b"0"}


def test_a_flat_folder_s_cls_files_are_its_labels(tmp_path):
    source = trees.make(tmp_path / "in", {"1.jpg": None, "1.cls": b"7", "2.jpg": None})
    build(source, tmp_path / "out", siblings=True)
    assert [(key, fields.get("cls")) for key, fields in trees.read(tmp_path / "out")] == [("1", b"7"), ("2", None)]


NAMES = [b"caf\xe9 1/\xff.x y.jpg", "é/日本.JPG".encode(), b"a.b/__c\t\n\\.jpg", b"n01440764/n01440764_10026.JPEG"]


def test_faults_03_04_metadata_gives_path_and_class_back_byte_by_byte(tmp_path):
    source = trees.make(tmp_path / "in", NAMES)
    build(source, tmp_path / "out", metadata=True)
    stored = [json.loads(fields["json"]) for _, fields in trees.read(tmp_path / "out")]
    assert [fields["json"] for _, fields in trees.read(tmp_path / "out")] == [
        json.dumps(content, sort_keys=True).encode() for content in stored
    ]
    assert {os.fsencode(content["path"]) for content in stored} == set(NAMES)
    assert all(content["path"].startswith(content["class"] + "/") for content in stored)
    assert all(set(content) == {"path", "class"} for content in stored)


def test_a_table_s_further_columns_are_in_the_json_field(tmp_path):
    trees.make(tmp_path / "in", ["1.jpg", "2.jpg"])
    (tmp_path / "in/l.jsonl").write_text(
        '{"path": "1.jpg", "class": "x", "caption": "é \\ud83d\\ude00", "box": [1, 2.5]}\n{"path": "2.jpg", "class": "x"}\n'
    )
    build(tmp_path / "in/l.jsonl", tmp_path / "plain")
    [(_, one), (_, two)] = trees.read(tmp_path / "plain")
    assert json.loads(one["json"]) == {"caption": "é 😀", "box": [1, 2.5]}
    assert "json" not in two
    build(tmp_path / "in/l.jsonl", tmp_path / "full", metadata=True)
    [(_, one), (_, two)] = trees.read(tmp_path / "full")
    assert json.loads(one["json"]) == {"caption": "é 😀", "box": [1, 2.5], "path": "1.jpg", "class": "x"}
    assert json.loads(two["json"]) == {"path": "2.jpg", "class": "x"}


def test_metadata_beside_a_json_sibling_is_refused(tmp_path):
    source = trees.make(tmp_path / "in", {"a/1.jpg": None, "a/1.json": b"{}"})
    with pytest.raises(SampleError, match=r"'a/1.jpg': it has a json file beside it, so --metadata has no place"):
        build(source, tmp_path / "out", siblings=True, metadata=True)


# ---------------------------------------------------------------- how much larger a shard becomes


@pytest.mark.parametrize(
    ("changes", "low", "high"), [({}, 1, 1), ({"encode": "npy"}, 6.5, 8), ({"image_size": 20}, 0.05, 0.9)], ids=str
)
def test_the_scale_says_how_many_bytes_come_of_one(tmp_path, changes, low, high):
    data = images.jpeg(64, 48, quality=95)
    source = trees.make(tmp_path / "in", {f"a/{number}.jpg": data for number in range(50)})
    job, _ = prepare(source, tmp_path / "out", **changes)
    lines = sources.scan(Request(str(source), Spool())).lines
    assert low <= output_scale(job, lines) <= high


def test_the_scale_is_not_thrown_off_by_what_lies_beside_the_images(tmp_path):
    files = {f"a/{number}.jpg": images.jpeg(64, 48) for number in range(20)}
    source = trees.make(tmp_path / "in", files | {f"a/{number}.txt": bytes(100_000) for number in range(20)})
    job, _ = prepare(source, tmp_path / "out", siblings=True, encode="png")
    lines = sources.scan(Request(str(source), Spool(), siblings=True)).lines
    assert output_scale(job, lines) < 2


def test_the_scale_passes_over_bad_images(tmp_path):
    source = trees.make(tmp_path / "in", {"a/1.jpg": b"", "a/2.jpg": b"", "a/3.jpg": images.jpeg(64, 48)})
    job, _ = prepare(source, tmp_path / "out", encode="npy")
    lines = sources.scan(Request(str(source), Spool())).lines
    assert output_scale(job, lines) > 2
    bad = Spool()
    for line in list(lines)[:2]:
        bad.append(line, 0)
    assert output_scale(job, bad) == 1.0


# ---------------------------------------------------------------- restart tiles


def same_pixels(one, other):
    return np.array_equal(codec.decode(one), codec.decode(other))


TILED = {
    "colour": images.jpeg(300, 200, quality=85),
    "grey": images.jpeg(300, 200, "L"),
    "444": images.sampled_jpeg("444", 300, 200),
    "turned": images.with_exif_orientation(6, "jpg", 300, 200),
    "best tables": images.jpeg(300, 200, optimize=True),
    "two rows of blocks": images.jpeg(3, 17),
}
LEFT_ALONE = {
    "one pixel": images.jpeg(1, 1),
    "progressive": images.jpeg(300, 200, progressive=True),
    "cmyk": images.cmyk_jpeg(300, 200),
    "arithmetic": images.ARITHMETIC_JPEG,
    "png": images.png(300, 200),
    "webp": images.saved(images.picture(), "webp"),
}


@pytest.mark.parametrize("data", TILED.values(), ids=TILED)
def test_tiling_keeps_every_pixel_and_whatever_else_is_in_the_file(tmp_path, data):
    needs.kernel()
    fields = one(tmp_path, "x.jpg", data, tile=True)
    assert list(fields) == ["jpg"]
    assert tiles.is_tiled(fields["jpg"])
    assert same_pixels(fields["jpg"], data)
    assert codec.dimensions(fields["jpg"]) == codec.dimensions(data)


@pytest.mark.parametrize("data", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_cannot_be_tiled_is_stored_untouched(tmp_path, data):
    needs.kernel()
    assert list(one(tmp_path, "x.jpg", data, tile=True).values()) == [data]


def test_what_has_tiles_already_is_stored_untouched(tmp_path):
    needs.kernel()
    data = tiles.tile(TILED["colour"])
    assert one(tmp_path, "x.jpg", data, tile=True) == {"jpg": data}


def test_the_receipt_counts_what_is_tiled_and_its_bytes(tmp_path):
    needs.kernel()
    files = {f"a/{number}.jpg": data for number, data in enumerate([*TILED.values(), *LEFT_ALONE.values()])}
    files["a/x.jpg"] = tiles.tile(TILED["colour"])
    receipt = build(trees.make(tmp_path / "in", files), tmp_path / "out", tile=True)
    assert receipt.fields["jpg"] == len(TILED) + 4 + 1
    assert receipt.tiled == len(TILED) + 1
    stored = {key: fields.get("jpg", b"") for key, fields in trees.read(tmp_path / "out")}
    tiled = [data for data in stored.values() if tiles.is_tiled(data)]
    assert len(tiled) == receipt.tiled
    assert receipt.tiled_to == sum(map(len, tiled))
    assert receipt.tiled_from == sum(map(len, TILED.values())) + len(files["a/x.jpg"])
    assert build(tmp_path / "in", tmp_path / "plain").tiled == 0


@pytest.mark.parametrize(
    "changes", [{"image_size": 100}, {"encode": "jpg"}, {"encode": "jpg", "image_size": 100}], ids=str
)
@pytest.mark.parametrize(
    "data", [TILED["colour"], LEFT_ALONE["progressive"], LEFT_ALONE["png"]], ids=["jpg", "prog", "png"]
)
def test_what_is_encoded_anew_is_tiled_after_that(tmp_path, data, changes):
    needs.kernel()
    plain = one(tmp_path / "plain", "x.jpg", data, **changes)
    tiled = one(tmp_path / "tiled", "x.jpg", data, tile=True, **changes)
    assert list(plain) == list(tiled)
    for kind, stored in plain.items():
        assert same_pixels(stored, tiled[kind])
        assert tiles.is_tiled(tiled[kind]) == (kind == "jpg" and (stored != data or data is TILED["colour"]))
        assert kind == "jpg" or tiled[kind] == stored


def test_siblings_are_not_tiled(tmp_path):
    needs.kernel()
    data = images.png()
    source = trees.make(tmp_path / "in", {"a/x.png": data, "a/x.txt": TILED["colour"]})
    build(source, tmp_path / "out", tile=True, siblings=True)
    [(_, fields)] = trees.read(tmp_path / "out")
    assert (fields["png"], fields["txt"]) == (data, TILED["colour"])


@pytest.mark.parametrize("data", [TILED["colour"][:-700], TILED["colour"][:900] + bytes(50) + TILED["colour"][950:]])
def test_a_damaged_image_is_as_bad_as_without_tiling(tmp_path, data):
    needs.kernel()
    found = []
    for changes in ({}, {"tile": True}):
        try:
            found.append(one(tmp_path / str(changes), "x.jpg", data, **changes))
        except SampleError as error:
            found.append(str(error))
    assert found[0] == found[1]


def test_the_scale_knows_what_tiles_cost(tmp_path):
    needs.kernel()
    source = trees.make(tmp_path / "in", {f"a/{number}.jpg": TILED["best tables"] for number in range(50)})
    job, _ = prepare(source, tmp_path / "out", tile=True)
    lines = sources.scan(Request(str(source), Spool())).lines
    expected = len(tiles.tile(TILED["best tables"])) / len(TILED["best tables"])
    assert abs(output_scale(job, lines) / expected - 1) < 0.25  # it counts in blocks
