import gzip
import json
import os
import sys
import zlib

import numpy as np
import pytest

from tests.support import commands, images, needs, records, trees
from tests.support.sources import convert, found, is_repeatable
from wds_tools.convert import tfrecord_file
from wds_tools.convert.run import convert_tree
from wds_tools.convert.tfrecord import TFRecordOrigin
from wds_tools.errors import MissingExtraError, OptionError, SampleError, SourceChangedError, SourceError
from wds_tools.image.arrays import decode_npy

IMAGE, LABEL, NAME = "image/encoded", "image/class/label", "image/filename"


@pytest.fixture(autouse=True)
def _packages():
    needs.package("google_crc32c")
    needs.package("google.protobuf")


def sample(number, label=0, **more):
    return {IMAGE: trees.picture(number), LABEL: label, **more}


def write(path, *samples, **options):
    return records.by_hand(path, samples, **options)


def refused(source, kind=SourceError, **options):
    with pytest.raises(kind) as caught:
        found(source, **options)
    assert len(str(caught.value)) < 600
    return str(caught.value)


# ---------------------------------------------------------------- what becomes of records


def test_files_of_imagenets_kind_become_the_same_shards_whatever_the_workers(tmp_path):
    root = tmp_path / "tf"
    root.mkdir()
    expected = {}
    for file in range(3):
        samples = []
        for row in range(20):
            image = trees.picture((file, row), 40 * row)
            name = f"n0{row % 4}_{file}_{row}"
            samples.append(
                {IMAGE: image, LABEL: row % 4 + 1, NAME: f"{name}.JPEG".encode(), "image/height": 8, "image/ratio": 0.5}
            )
            metadata = {NAME: f"{name}.JPEG", "image/height": 8, "image/ratio": 0.5}
            expected[name] = {"jpg": image, "cls": b"%d" % (row % 4 + 1), "json": metadata}
        records.by_package(root / f"train-{file:05d}-of-00003", samples)
    read = is_repeatable(root, tmp_path, max_size=60_000)
    assert {key: {**fields, "json": json.loads(fields["json"])} for key, fields in read} == expected


@pytest.mark.parametrize("packed", [True, False])
def test_bytes_written_after_the_formats_description_are_read(tmp_path, packed):
    path = write(tmp_path / "some.tfrecord", *(sample(n, n % 3) for n in range(5)), packed=packed)
    source, entries = found(path)
    assert [(e.path, e.label) for e in entries] == [(f"some/{n:08d}.jpg", n % 3) for n in range(5)]
    assert source.notes[0] == f"images from {IMAGE!r}, labels from {LABEL!r}"
    assert source.classes == ()
    convert(path, tmp_path / "out")
    assert dict(trees.read(tmp_path / "out"))["some/00000003"] == {"jpg": trees.picture(3), "cls": b"0"}


def test_checksums_are_those_of_the_standard():
    assert tfrecord_file.crc(b"123456789") == records.masked_crc(b"123456789")
    assert records.masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.parametrize("names", [[b"a.jpg", b"a.png"], [b"a.jpg", b""], [b"a.jpg", b"."]])
def test_names_that_tell_no_samples_apart_give_way_to_numbers(tmp_path, names):
    path = write(tmp_path / "x.tfrecords", *(sample(n, **{NAME: name}) for n, name in enumerate(names)))
    source, entries = found(path)
    assert [e.path for e in entries] == ["x/00000000.jpg", "x/00000001.jpg"]
    assert any("keys are numbers" in note for note in source.notes)


def test_names_lead_nowhere(tmp_path):
    path = write(tmp_path / "x.tfrecord", *(sample(n, **{NAME: b"../../etc/p %d.jpg" % n}) for n in range(2)))
    convert(path, tmp_path / "out")
    assert sorted(key for key, _ in trees.read(tmp_path / "out")) == ["etc/p_0", "etc/p_1"]


def test_raw_pixels_become_arrays(tmp_path):
    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    raw = {"image_raw": pixels.tobytes(), "height": 4, "width": 5, "depth": 3, "label": 2}
    convert(write(tmp_path / "raw.tfrecord", raw), tmp_path / "out")
    [(key, fields)] = trees.read(tmp_path / "out")
    assert key == "raw/00000000"
    assert (decode_npy(fields["npy"]) == pixels).all()
    assert refused(write(tmp_path / "odd.tfrecord", {**raw, "height": 7}), SampleError).startswith(
        "'odd.tfrecord', offset 0"
    )


def test_what_is_neither_number_nor_text_is_left_out_and_said(tmp_path):
    more = {"blob": b"\xff\xfe", "long": list(range(2000)), "inf": float("inf"), "box": [1, 2], "none": []}
    source, [entry] = found(write(tmp_path / "x.tfrecord", sample(0, **more)))
    assert entry.metadata == {"inf": None, "box": [1, 2], "none": []}
    assert source.notes[-1].endswith(": blob, long")


# ---------------------------------------------------------------- which feature is what


def test_features_are_chosen_by_name(tmp_path):
    path = write(tmp_path / "x.tfrecord", {"a": trees.picture(1), "b": trees.picture(2), "n": 5, "m": 6})
    assert "'a' and 'b' or" not in refused(path)
    assert "a and b could each be the image; say which with --images; it has a (bytes), b (bytes)" in refused(path)
    _, [entry] = found(path, images="b", labels="m")
    assert (entry.label, entry.metadata) == (6, {"n": 5})
    assert "has no 'c'; it has a (bytes)" in refused(path, images="c")
    assert "'n' holds int, no image" in refused(path, images="n")
    assert "'a' holds bytes, no label" in refused(path, images="b", labels="a")
    assert found(path, images="b", labels="none")[1][0].label is None
    assert "no feature is an image; name one with --images" in refused(write(tmp_path / "y.tfrecord", {"n": 5}))


def test_labels_may_count_from_one_and_are_held_to_the_classes(tmp_path):
    path = write(tmp_path / "x.tfrecord", sample(0, 1), sample(1, 2))
    assert [e.label for e in found(path, first_label=1)[1]] == [0, 1]
    assert found(path, first_label=1, classes=("a", "b"))[0].classes == ("a", "b")
    said = refused(path, SampleError, classes=("a", "b"))
    assert said.startswith("'x.tfrecord', offset ")
    assert "label 2 is beyond the 2 classes" in said
    assert "out of range, and labels count from 2" in refused(path, SampleError, first_label=2)
    with pytest.raises(OptionError, match="first_label is 1"):
        convert_tree(trees.classes(tmp_path / "tree"), tmp_path / "out", first_label=1)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({LABEL: -1}, "label -1 is negative"),
        ({LABEL: [1, 2]}, "2 values in 'image/class/label'"),
        ({LABEL: []}, "0 values in"),
        ({LABEL: b"cat"}, "label b'cat' is no class index"),
        ({LABEL: 1.0}, "label 1.0 is no class index"),
        ({IMAGE: b""}, "empty file"),
        ({IMAGE: b"text"}, "not an image"),
        ({IMAGE: images.truncated(images.jpeg())}, "truncated JPEG"),
        ({IMAGE: []}, "0 x  in 'image/encoded'"),
        ({IMAGE: [images.jpeg(), images.jpeg()]}, "2 x bytes in 'image/encoded'"),
        ({IMAGE: 5}, "int in 'image/encoded'"),
    ],
)
def test_a_bad_sample_is_named_or_left_out(tmp_path, bad, why):
    path = write(tmp_path / "x.tfrecord", sample(0), {**sample(1), **bad}, sample(2))
    offset = len(records.record(records.example(sample(0))))
    said = refused(path, SampleError)
    assert said.startswith(f"'x.tfrecord', offset {offset}: ")
    assert why in said
    result = convert(path, tmp_path / "out", on_error="skip")
    assert result.samples == 2
    assert [skip.path for skip in result.skipped] == [f"'x.tfrecord', offset {offset}"]


# ---------------------------------------------------------------- damage


FIRST, SECOND = (records.record(records.example(sample(n))) for n in range(2))
PLACE = f"'x.tfrecord', offset {len(FIRST)}: "


def flipped(data, position):
    return data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :]


LOST = {
    "cut in the header": (FIRST + SECOND[:7], "cut, 7 of 12 bytes of a record's header"),
    "cut in the payload": (FIRST + SECOND[:-9], "cut, "),
    "cut in the last CRC": (FIRST + SECOND[:-1], "cut, "),
    "a bit of a length": (FIRST + flipped(SECOND, 1) + FIRST, "the CRC of a record's length does not match"),
    "a bit of its CRC": (FIRST + flipped(SECOND, 9) + FIRST, "the CRC of a record's length does not match"),
    "a length of 2^63": (FIRST + records.record(b"x", 1 << 63), f"of a record's {1 << 63} bytes"),
    "a length of 2^64-1": (FIRST + records.record(b"x", (1 << 64) - 1), f"of a record's {(1 << 64) - 1} bytes"),
}


@pytest.mark.parametrize(("data", "why"), LOST.values(), ids=LOST)
def test_where_the_next_record_cannot_be_found_the_rest_is_lost_and_said(tmp_path, data, why):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(data)
    said = refused(path)
    assert said.startswith(PLACE)
    assert why in said
    result = convert(path, tmp_path / "out", on_error="skip")
    assert result.samples == 1
    assert "what follows is lost" in result.skipped[0].reason


def deep(levels):
    message = b""
    for _ in range(levels):
        message = b"\x4b" + message + b"\x4c"  # an unknown group in another
    return message


BAD = {
    "a bit of the payload": flipped(SECOND, 60),
    "a bit of its CRC": flipped(SECOND, len(SECOND) - 2),
    "no protobuf": records.record(b"\xff" * 40),
    "cut protobuf": records.record(records.example(sample(1))[:-5]),
    "deep protobuf": records.record(deep(20_000)),
    "empty": records.record(b""),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_a_damaged_record_is_named_or_left_out(tmp_path, data):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(FIRST + data + SECOND)
    assert refused(path, SampleError).startswith(PLACE)
    result = convert(path, tmp_path / "out", on_error="skip")
    assert (result.samples, result.num_skipped) == (2, 1)


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 40, b"some text that is no record", gzip.compress(FIRST), zlib.compress(FIRST)]
)
def test_what_is_no_tfrecord_is_refused(tmp_path, data):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(data)
    said = refused(path)
    assert "x.tfrecord" in said
    assert ("compressed" in said) == (data[:1] in (b"\x1f", b"\x78"))
    said = commands.call("convert", path, tmp_path / "out")
    assert said.code == 1
    assert not (tmp_path / "out").exists()


def test_a_file_that_changed_since_the_plan_is_seen(tmp_path):
    path = write(tmp_path / "x.tfrecord", sample(0), sample(1))
    source, [entry, other] = found(path)
    with TFRecordOrigin(source.root) as origin:
        assert origin.read(entry.path, entry.size, entry.mtime_ns, entry.at) == trees.picture(0)
        with pytest.raises(SourceChangedError):
            origin.read(entry.path, entry.size, entry.mtime_ns + 1, entry.at)
        with pytest.raises(SourceChangedError):
            origin.read(entry.path, entry.size + 1, entry.mtime_ns, entry.at)
        data = bytearray(path.read_bytes())
        data[-40] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(other.mtime_ns, other.mtime_ns))
        with pytest.raises(SampleError, match="CRC does not match"):
            origin.read(other.path, other.size, other.mtime_ns, other.at)


def test_another_record_of_the_same_size_is_not_taken_for_the_planned_one(tmp_path):
    path = write(tmp_path / "x.tfrecord", sample(0))
    source, [entry] = found(path)
    write(path, sample(1))
    os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))
    with TFRecordOrigin(source.root) as origin, pytest.raises(SourceChangedError):
        origin.read(entry.path, entry.size, entry.mtime_ns, entry.at)


def test_other_content_of_the_same_sizes_is_another_source(tmp_path):
    digests = set()
    for label, number in ((0, 0), (1, 0), (0, 1)):
        digests.add(found(write(tmp_path / "x.tfrecord", sample(number, label)))[0].digest)
    assert len(digests) == 3


@pytest.mark.parametrize("name", ["google_crc32c", "google.protobuf"])
def test_what_is_missing_is_named_with_the_command_that_brings_it(tmp_path, monkeypatch, name):
    path = write(tmp_path / "x.tfrecord", sample(0))
    tfrecord_file._example.cache_clear()
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match="pip install"):
        found(path)
    tfrecord_file._example.cache_clear()


def test_the_command_says_what_was_found(tmp_path):
    path = write(tmp_path / "x.tfrecord", {"a": trees.picture(1), "b": trees.picture(2), "n": 5})
    said = commands.call("convert", path, tmp_path / "out", "--images", "b", "--labels", "n", "--first-label", "5")
    assert said.code == 0, said.err
    assert "images from 'b', labels from 'n'" in said.err
    assert trees.read(tmp_path / "out") == [("x/00000000", {"jpg": trees.picture(2), "cls": b"0"})]


def test_features_come_in_the_order_of_their_names(tmp_path):
    # A map has none on the wire, nor in the parser's memory; lines of the plan must be the same in every process.
    names = [f"f{number}" for number in range(40)]
    assert list(tfrecord_file.parse(records.example(dict.fromkeys(names, 1)))) == sorted(names)
