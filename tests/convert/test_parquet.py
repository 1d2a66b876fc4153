import datetime
import json
import os
import sys

import pytest

from tests.support import commands, images, needs, trees
from tests.support.sources import convert, found, is_repeatable
from wds_tools.convert import parquet, parquet_file
from wds_tools.convert.parquet import ParquetOrigin
from wds_tools.errors import MissingExtraError, SampleError, SourceChangedError, SourceError

NAMES = ["dog", "ant", "cat"]


@pytest.fixture(autouse=True)
def pa():
    needs.package("pyarrow.parquet")
    return needs.package("pyarrow")


@pytest.fixture
def make(pa, tmp_path):
    """Write a table of columns; ``features`` are what Hugging Face's metadata say of them."""

    def write(columns, name="x.parquet", features=None, rows=1000, **options):
        table = pa.table(columns)
        if features is not None:
            content = features if isinstance(features, bytes) else json.dumps({"info": {"features": features}}).encode()
            table = table.replace_schema_metadata({b"huggingface": content})
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pa.parquet.write_table(table, path, row_group_size=rows, **options)
        return path

    return write


def picture(number, name=None):
    return {"bytes": trees.picture(number, number * 30), "path": name}


FEATURES = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": NAMES}}


def refused(source, kind=SourceError, **options):
    with pytest.raises(kind) as caught:
        found(source, **options)
    assert len(str(caught.value)) < 600
    return str(caught.value)


# ---------------------------------------------------------------- what becomes of rows


def test_a_hugging_face_folder_becomes_the_same_shards_whatever_the_workers(make, tmp_path):
    expected = {}
    for file in range(2):
        rows = [(file * 30 + row, f"{file}_{row}") for row in range(30)]
        columns = {
            "image": [picture(number, f"{name}.JPEG") for number, name in rows],
            "label": [number % 3 for number, _ in rows],
            "text": [f"a picture of {name}" for _, name in rows],
        }
        make(columns, f"hf/data/train-{file:05d}-of-00002.parquet", FEATURES, rows=7)
        for number, name in rows:
            expected[name] = (picture(number)["bytes"], number % 3, {"text": f"a picture of {name}"})
    make({"image": [picture(1)], "label": [0]}, "hf/data/test-00000-of-00001.parquet", FEATURES)
    trees.write(tmp_path, "hf/README.md", b"a card")
    samples = is_repeatable(tmp_path / "hf", tmp_path, max_size=60_000)
    read = {key: (fields["jpg"], int(fields["cls"]), json.loads(fields["json"])) for key, fields in samples}
    assert read == expected
    result = convert(tmp_path / "hf", tmp_path / "0", split="test")
    assert (result.samples, result.classes) == (1, 3)
    assert "none of 'extra'" in refused(tmp_path / "hf", split="extra")


def test_what_the_library_datasets_writes_is_read(tmp_path):
    datasets = needs.package("datasets")
    given = {"image": [trees.picture(n) for n in range(5)], "label": [0, 1, 2, -1, 0]}
    features = datasets.Features({"image": datasets.Image(decode=False), "label": datasets.ClassLabel(names=NAMES)})
    given["image"] = [{"bytes": data, "path": None} for data in given["image"]]
    path = tmp_path / "d.parquet"
    datasets.Dataset.from_dict(given, features).to_parquet(path)
    source, entries = found(path)
    assert source.classes == tuple(NAMES)
    assert [e.label for e in entries] == [0, 1, 2, None, 0]
    assert [e.path for e in entries] == [f"d/{n:08d}.jpg" for n in range(5)]
    assert "1 sample has no label (-1)" in source.notes
    convert(path, tmp_path / "out")
    assert sorted(f["jpg"] for _, f in trees.read(tmp_path / "out")) == sorted(
        image["bytes"] for image in given["image"]
    )


def test_rows_are_read_group_by_group(make, monkeypatch, tmp_path):
    path = make({"image": [picture(n) for n in range(40)]}, rows=10)
    source, entries = found(path)
    assert list(source.blocks) == [10] * 4
    decoded = []
    decode = ParquetOrigin._decode
    monkeypatch.setattr(ParquetOrigin, "_decode", lambda self, *which: decoded.append(which[1]) or decode(self, *which))
    convert(path, tmp_path / "out", max_size=60_000)
    shards = len(list((tmp_path / "out").glob("*.tar")))
    assert shards >= 3
    # Blocks are pooled: a shard needs those of two pools at most, not all.
    assert len(decoded) < shards * 4
    assert len(entries) == 40


@pytest.mark.parametrize("kind", ["binary", "large_binary", "struct"])
@pytest.mark.parametrize("labels", ["int8", "uint64", "string", "dictionary"])
def test_columns_of_every_type_that_says_the_same(pa, make, tmp_path, kind, labels):
    data = [trees.picture(n) for n in range(4)]
    column = [{"bytes": each} for each in data] if kind == "struct" else pa.array(data, getattr(pa, kind)())
    names = pa.array(["cat", "ant", "cat", "dog"])
    numbers = {"string": names, "dictionary": names.dictionary_encode()}.get(labels)
    if numbers is None:
        numbers = pa.array([1, 0, 1, 2], getattr(pa, labels)())
    source, entries = found(make({"image": column, "label": numbers}))
    assert [(e.label, e.size) for e in entries] == [
        (label, len(each)) for label, each in zip([1, 0, 1, 2], data, strict=True)
    ]
    assert source.classes == (("ant", "cat", "dog") if labels in ("string", "dictionary") else ())


def test_other_columns_go_into_the_json(pa, make, tmp_path):
    columns = {
        "image": [picture(0)],
        "n": [5],
        "x": [float("nan")],
        "day": [datetime.date(2020, 1, 2)],
        "box": [[1.5, 2.0]],
        "objects": [{"id": [1, 2], "name": ["a", None]}],
        "mask": [b"bytes"],
    }
    source, [entry] = found(make(columns), images="image")
    objects = {"id": [1, 2], "name": ["a", None]}
    assert entry.metadata == {"n": 5, "x": None, "day": "2020-01-02", "box": [1.5, 2.0], "objects": objects}
    assert source.notes[-1].endswith(": mask")


def test_names_of_images_are_keys_where_they_tell_them_apart(make):
    assert [e.path for e in found(make({"image": [picture(0, "a b.JPEG"), picture(1, "c.JPEG")]}))[1]] == [
        "a_b.jpeg",
        "c.jpeg",
    ]
    for second in ("a.jpg", "a.JPEG", None, ""):
        source, entries = found(make({"image": [picture(0, "a.jpg"), picture(1, second)]}))
        assert [key.path.rpartition(".")[0] for key in entries] == ["x/00000000", "x/00000001"]
        assert any("keys are numbers" in note for note in source.notes)
    column = {"img": [trees.picture(0)], "file_name": ["../../d/e.jpg"]}
    assert [e.path for e in found(make(column))[1]] == ["d/e.jpg"]


# ---------------------------------------------------------------- which column is what


def test_columns_are_chosen_by_metadata_then_by_name(make):
    pair = {"a": [b"no image"], "b": [picture(1)], "fine": [2], "coarse": [1]}
    class_label = {"_type": "ClassLabel", "names": NAMES}
    path = make(pair, features={"b": {"_type": "Image"}, "fine": class_label, "coarse": class_label})
    assert "fine and coarse could each be the label; say which with --labels" in refused(path)
    assert found(path, labels="coarse")[1][0].label == 1
    assert found(path, labels="none")[1][0].label is None
    path = make(pair)
    assert "a and b could each be the image" in refused(path)
    source, [entry] = found(path, images="b")
    assert (entry.label, source.notes[0]) == (None, "images from 'b', no labels")
    assert "has no 'c'; it has a (binary)" in refused(path, images="c")
    assert "'fine' holds int64, no image" in refused(path, images="fine")
    assert "'a' holds binary, no label" in refused(path, images="b", labels="a")


def test_several_images_a_row_are_refused(make):
    assert "no column holds one image a row" in refused(make({"image": [[picture(0), picture(1)]]}))


def test_classes_that_are_fixed_are_kept_by_name(make):
    path = make({"image": [picture(n) for n in range(3)], "label": [0, 1, 2]}, features=FEATURES)
    assert [e.label for e in found(path, classes=("ant", "cat", "cow", "dog"))[1]] == [3, 0, 1]
    assert "class 'dog' is not among the dataset's 1 classes (nor are 1 others)" in refused(path, classes=("ant",))
    plain = make({"image": [picture(n) for n in range(3)], "label": [0, 1, 2]}, "plain.parquet")
    assert "row 2: label 2 is beyond the 2 classes" in refused(plain, SampleError, classes=("a", "b"))
    assert [e.label for e in found(make({"image": [picture(0)], "label": [1]}), first_label=1)[1]] == [0]
    text = make({"image": [picture(0), picture(1)], "label": ["ant", "owl"]})
    assert "row 1: label 'owl'" in refused(text, SampleError, classes=("ant",))


# ---------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("image", "label", "why"),
    [
        (None, 0, "no image bytes, and no path either"),
        ({"bytes": None, "path": "a/b.jpg"}, 0, "no image bytes, only the path 'a/b.jpg'"),
        ({"bytes": b"", "path": None}, 0, "empty file"),
        ({"bytes": b"text", "path": "a.jpg"}, 0, "not an image"),
        ({"bytes": images.truncated(images.jpeg()), "path": None}, 0, "truncated JPEG"),
        (picture(1), None, "label None is no class index"),
        (picture(1), -2, "label -2 is negative"),
        (picture(1), 3, "label 3 is beyond the 3 classes"),
    ],
)
def test_a_bad_row_is_named_or_left_out(make, tmp_path, image, label, why):
    columns = {"image": [picture(n) for n in range(130)], "label": [n % 3 for n in range(130)]}
    columns["image"][100], columns["label"][100] = image, label
    path = make(columns, features=FEATURES, rows=90)
    said = refused(path, SampleError)
    assert said.startswith("'x.parquet', row 100: ")
    assert why in said
    result = convert(path, tmp_path / "out", on_error="skip")
    assert (result.samples, [skip.path for skip in result.skipped]) == (129, ["'x.parquet', row 100"])


def test_what_lies_below_a_null_is_no_image(make, pa):
    data, path = pa.array([trees.picture(0)] * 2), pa.array(["a.jpg", "b.jpg"])
    column = pa.StructArray.from_arrays([data, path], ["bytes", "path"], mask=pa.array([False, True]))
    batch = pa.record_batch({"image": column})
    layout = parquet_file.Layout("image", True, True, None, False, (), None, (), ())
    images_, paths = parquet._image_values(batch.column(0), layout)
    assert (images_[1].as_py(), paths) == (None, ["a.jpg", None])


def test_a_label_of_minus_one_is_bad_where_no_classes_are_named(make):
    assert "label -1 is negative" in refused(make({"image": [picture(0)], "label": [-1]}), SampleError)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"PAR1",
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: b"PAR1" + data,
        lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1",
        lambda data: data[:-60] + bytes(50) + data[-10:],
        lambda data: b"not parquet at all",
    ],
)
def test_a_file_that_is_no_parquet_is_refused(make, tmp_path, damage):
    path = make({"image": [picture(n) for n in range(9)]})
    path.write_bytes(damage(path.read_bytes()))
    assert "x.parquet" in refused(path)
    assert commands.call("convert", path, tmp_path / "out").code == 1
    assert not (tmp_path / "out").exists()


def test_a_row_group_that_cannot_be_decoded_is_named_or_left_out(make, pa, tmp_path):
    path = make({"image": [picture(n) for n in range(30)]}, rows=10, compression="zstd", use_dictionary=False)
    data = path.read_bytes()
    page = pa.parquet.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    start = data.index(b"\x28\xb5\x2f\xfd", page) + 4  # behind the magic bytes of zstd
    path.write_bytes(data[:start] + bytes(30) + data[start + 30 :])
    said = refused(path)
    assert "'x.parquet', row group 1" in said
    assert "cannot be read" in said
    result = convert(path, tmp_path / "out", on_error="skip")
    assert result.samples == 20
    assert "10 rows are lost" in result.skipped[0].reason


def test_a_flipped_bit_is_seen_where_pages_have_checksums(make):
    path = make({"image": [picture(n) for n in range(30)]}, write_page_checksum=True, compression="none")
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    assert "cannot be read" in refused(path)


def test_a_row_group_too_large_to_decode_is_refused(make, monkeypatch, tmp_path):
    path = make({"image": [picture(n) for n in range(30)]}, use_dictionary=False)
    monkeypatch.setattr(parquet_file, "MAX_GROUP", 10_000)
    assert "row group 0" in refused(path)
    assert "smaller row groups" in refused(path)
    # Where the file announces less than it has.
    monkeypatch.undo()
    monkeypatch.setattr(parquet, "MAX_GROUP", 10_000)
    assert "more bytes of images than the file announces" in refused(path)


def test_a_row_group_that_announces_more_than_there_is_takes_no_memory(make, pa):
    path = make({"image": [trees.picture(n) for n in range(30)]}, use_dictionary=False, compression="none")
    size = pa.parquet.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size
    data = path.read_bytes()
    encoded, huge = varint(2 * size), varint(2 * ((1 << 20) - 1))
    assert len(encoded) == len(huge)
    path.write_bytes(data.replace(encoded, huge))
    assert path.read_bytes() != data
    with pytest.raises(SourceError, match=r"x\.parquet"):
        found(path)


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize("text", [b"[", b"[" * 100_000, b"{}", b'{"info": 5}', b"\xff"])
def test_metadata_that_cannot_be_read_are_refused(make, text):
    assert "huggingface metadata cannot be read" in refused(make({"image": [picture(0)]}, features=text))


def test_class_names_that_are_none_are_refused(make):
    for names in ([1, 2], "ab", [None]):
        features = {"label": {"_type": "ClassLabel", "names": names}}
        assert "no list of names" in refused(make({"image": [picture(0)], "label": [0]}, features=features))
    features = {"label": {"_type": "ClassLabel", "names": ["a", "a"]}}
    assert "lists a class twice" in refused(make({"image": [picture(0)], "label": [0]}, features=features))


def test_files_of_other_columns_or_classes_are_refused(make, tmp_path):
    make({"image": [picture(0)], "label": [0]}, "d/a.parquet", FEATURES)
    other = {**FEATURES, "label": {"_type": "ClassLabel", "names": NAMES[::-1]}}
    make({"image": [picture(0)], "label": [0]}, "d/b.parquet", other)
    assert "'b.parquet' has other columns, or classes, than 'a.parquet'" in refused(tmp_path / "d")


def test_a_file_that_changed_since_the_plan_is_seen(make):
    path = make({"image": [picture(n) for n in range(3)]})
    source, [entry, *_] = found(path)
    with ParquetOrigin(source.root) as origin:
        assert origin.read(entry.path, entry.size, entry.mtime_ns, entry.at) == picture(0)["bytes"]
    for changed in ({"mtime_ns": entry.mtime_ns + 1}, {"size": entry.size + 1}, {"at": "0 70 70 x.parquet"}):
        asked = {"size": entry.size, "mtime_ns": entry.mtime_ns, "at": entry.at, **changed}
        with ParquetOrigin(source.root) as origin, pytest.raises(SourceChangedError):
            origin.read(entry.path, **asked)
    os.remove(path)
    with ParquetOrigin(source.root) as origin, pytest.raises(SourceChangedError):
        origin.read(entry.path, entry.size, entry.mtime_ns, entry.at)


def test_other_content_of_the_same_sizes_is_another_source(make):
    digests = [
        found(make({"image": [trees.picture(n)], "label": [label]}))[0].digest for n, label in ((0, 0), (1, 0), (0, 1))
    ]
    assert len(set(digests)) == 3


def test_without_pyarrow_it_is_said_what_to_install(make, monkeypatch):
    path = make({"image": [picture(0)]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="pip install pyarrow"):
        found(path)
