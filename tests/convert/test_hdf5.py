import io
import json
import os
import shutil
import sys

import numpy as np
import pytest

from tests.support import commands, images, needs, sources, trees
from tests.support.sources import arrays_by_key, convert, found, labels_by_key, pictures
from wds_tools.convert import hdf5_file
from wds_tools.convert.hdf5_file import Hdf5Origin
from wds_tools.errors import MissingExtraError, SampleError, SourceChangedError, SourceError
from wds_tools.image import codec

LABELS = np.arange(40) * 7 % 5
NAMES = ["dog", "ant", "cat", "bee", "eel"]


@pytest.fixture
def h5py():
    return needs.package("h5py")


@pytest.fixture
def make(h5py, tmp_path):
    """Write a file: datasets by their path, each an array or a dict of what ``create_dataset`` takes."""

    def write(datasets, name="images.h5", attrs=(), **options):
        with h5py.File(tmp_path / name, "w", **options) as file:
            for path, content in datasets.items():
                file.create_dataset(path, **(content if isinstance(content, dict) else {"data": content}))
            for path, attribute, value in attrs:
                file[path].attrs[attribute] = value
        return tmp_path / name

    return write


def refused(source, **options):
    with pytest.raises(SourceError) as caught:
        found(source, **options)
    assert len(str(caught.value)) < 600
    return str(caught.value)


def jpegs(h5py, count=40, **options):
    """Encoded images of variable length, and what the dataset is made with."""
    encoded = [trees.picture(number, 50 * number) for number in range(count)]
    data = np.empty(count, object)
    data[:] = [np.frombuffer(image, np.uint8) for image in encoded]
    return encoded, {"data": data, "dtype": h5py.vlen_dtype(np.uint8), **options}


LAYOUTS = {
    "contiguous": {},
    "chunks of a row": {"chunks": (1, 7, 6, 3)},
    "chunks of rows": {"chunks": (3, 7, 6, 3)},
    "parts of rows": {"chunks": (9, 4, 6, 1)},
    "one chunk": {"chunks": (40, 7, 6, 3), "compression": "gzip"},
    "gzip": {"chunks": (3, 7, 6, 3), "compression": "gzip", "shuffle": True},
    "lzf": {"chunks": (4, 7, 6, 3), "compression": "lzf", "fletcher32": True},
}

# ---------------------------------------------------------------- what becomes of a dataset


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_row_is_a_sample_with_its_label_however_it_is_stored(make, tmp_path, layout):
    source = make({"images": {"data": pictures(), **layout}, "labels": LABELS})
    convert(source, tmp_path / "out", max_count=7)
    samples = trees.read(tmp_path / "out")
    assert [key for key, _ in sorted(samples)] == [f"images/{number:08d}" for number in range(40)]
    np.testing.assert_array_equal(arrays_by_key(samples), pictures())
    assert labels_by_key(samples) == LABELS.tolist()


@pytest.mark.parametrize("layout", ["contiguous", "gzip"])
def test_the_bytes_are_the_same_whatever_the_workers(make, tmp_path, layout):
    source = make({"images": {"data": pictures(), **LAYOUTS[layout]}, "labels": LABELS})
    samples = sources.is_repeatable(source, tmp_path / "out", max_count=12)
    np.testing.assert_array_equal(arrays_by_key(samples), pictures())


def test_what_is_trained_on_are_the_dataset_s_pixels(make, tmp_path):
    convert(make({"images": {"data": pictures(), **LAYOUTS["gzip"]}, "labels": LABELS}), tmp_path / "out")
    pixels, labels = sources.trained(tmp_path / "out")
    np.testing.assert_array_equal(np.stack(pixels), pictures())
    assert labels == LABELS.tolist()


def test_pictures_are_encoded_if_asked(make, tmp_path):
    source = make({"images": {"data": pictures(), **LAYOUTS["gzip"]}, "labels": LABELS})
    convert(source, tmp_path / "out", encode="png")
    for key, fields in trees.read(tmp_path / "out"):
        np.testing.assert_array_equal(codec.decode(fields["png"]), pictures()[int(key[-8:])])


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_channels_first_are_turned(make, tmp_path, layout):
    turned = {key: (value[0], value[3], *value[1:3]) if key == "chunks" else value for key, value in layout.items()}
    source = make({"images": {"data": pictures().transpose(0, 3, 1, 2), **turned}})
    result = convert(source, tmp_path / "out")
    assert any("channels first" in note for note in result.notes)
    np.testing.assert_array_equal(arrays_by_key(trees.read(tmp_path / "out")), pictures())


@pytest.mark.parametrize(
    "array", [pictures().astype(">i4"), pictures().astype(np.float16), pictures() > 9, pictures().astype("f8") / 3]
)
@pytest.mark.parametrize("layout", ["contiguous", "gzip"])
def test_other_numbers_are_kept(make, tmp_path, array, layout):
    convert(make({"images": {"data": array, **LAYOUTS[layout]}}), tmp_path / "out")
    np.testing.assert_array_equal(arrays_by_key(trees.read(tmp_path / "out")), array)


def test_a_type_that_lies_otherwise_in_the_file_is_read_through_the_library(h5py, make, tmp_path):
    kind = h5py.h5t.STD_U16LE.copy()
    kind.set_precision(12)
    kind.set_offset(4)  # twelve bits, which lie in the upper part of two bytes
    lacking = h5py.h5t.STD_U16LE.copy()
    lacking.set_size(3)  # numpy has no such type
    path = make({"labels": LABELS})
    with h5py.File(path, "a") as file:
        for name, one in ((b"images", kind), (b"odd", lacking)):
            odd = h5py.h5d.create(file.id, name, one, h5py.h5s.create_simple((40, 7, 6)))
            odd.write(h5py.h5s.ALL, h5py.h5s.ALL, pictures()[..., 0].astype(np.uint16))
    convert(path, tmp_path / "out")
    np.testing.assert_array_equal(arrays_by_key(trees.read(tmp_path / "out")), pictures()[..., 0])


def test_a_user_block_before_the_file_moves_nothing(make, tmp_path):
    convert(make({"images": pictures()}, userblock_size=512), tmp_path / "out")
    np.testing.assert_array_equal(arrays_by_key(trees.read(tmp_path / "out")), pictures())


@pytest.mark.parametrize("layout", [{}, {"chunks": (8,), "compression": "gzip"}])
def test_encoded_images_pass_untouched(h5py, make, tmp_path, layout):
    encoded, dataset = jpegs(h5py, **layout)
    source = make({"images": dataset, "labels": LABELS})
    samples = sources.is_repeatable(source, tmp_path / "out", max_count=12)
    assert [fields["jpg"] for _, fields in sorted(samples)] == encoded
    assert labels_by_key(samples) == LABELS.tolist()


def test_encoded_images_of_one_length_are_void_elements(make, tmp_path):
    picture = images.png()
    source = make({"images": np.array([np.void(picture)] * 5), "labels": LABELS[:5]})
    convert(source, tmp_path / "out", max_count=2)
    assert [fields["png"] for _, fields in trees.read(tmp_path / "out")] == [picture] * 5


def test_a_bad_encoded_image_is_raised_with_its_row_or_skipped(h5py, make, tmp_path):
    _, dataset = jpegs(h5py)
    dataset["data"][7] = dataset["data"][7][:-9]
    dataset["data"][9] = np.zeros(0, np.uint8)
    source = make({"images": dataset, "labels": LABELS})
    with pytest.raises(SampleError, match=r"images/0000000[79]"):
        convert(source, tmp_path / "out")
    result = convert(source, tmp_path / "skip", on_error="skip")
    assert (result.samples, result.num_skipped) == (38, 2)
    assert {skip.path[:15] for skip in result.skipped} == {"images/00000007", "images/00000009"}


# ---------------------------------------------------------------- chunks


def test_a_chunk_is_decompressed_once_in_a_shard_or_two(make, tmp_path, monkeypatch):
    """400 rows in chunks of 10, shards of 100: a shard reads 10 chunks or a few more, not all 40."""
    source = make({"images": {"data": pictures(400), "chunks": (10, 7, 6, 3), "compression": "gzip"}})
    loads = []
    get = hdf5_file.Recent.get

    def counting(self, key, load):
        def loading():
            loads.append(key)
            return load()

        return get(self, key, loading)

    monkeypatch.setattr(hdf5_file.Recent, "get", counting)
    result = convert(source, tmp_path / "out", max_count=100)
    assert result.shards == 4
    assert 40 <= len(loads) <= 48
    keys = [key for key, _ in trees.read(tmp_path / "out")]
    assert keys[:20] != sorted(keys[:20])
    assert len({int(key[-8:]) // 10 for key in keys[:20]}) > 5


def test_large_chunks_are_read_in_parts(make, tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5_file, "_BLOCK", 126 * 6)
    source = make({"images": {"data": pictures(), **LAYOUTS["one chunk"]}})
    scanned, _ = found(source)
    assert list(scanned.blocks) == [6] * 6 + [4]
    convert(source, tmp_path / "out")
    np.testing.assert_array_equal(arrays_by_key(trees.read(tmp_path / "out")), pictures())


# ---------------------------------------------------------------- which datasets, labels, classes


def test_datasets_are_found_by_their_names_or_named_by_the_user(make, tmp_path):
    source = make(
        {
            "train/images": pictures(),
            "train/labels": LABELS,
            "val/images": pictures(4),
            "val/labels": LABELS[:4],
            "val/weights": np.ones(4),
        }
    )
    said = refused(source)
    assert "several datasets could be the images (train/images, val/images); name one with --images" in said
    assert "No 'x'" not in refused(source, images="x")
    assert "has no dataset 'x' (--images); it has train/images (uint8 40x7x6x3), train/labels (int64 40)" in refused(
        source, images="x"
    )
    scanned, samples = found(source, images="/val/images")
    assert [entry.label for entry in samples] == LABELS[:4].tolist()
    assert scanned.notes[0] == "images from 'val/images', labels from 'val/labels'"
    said = commands.call("convert", source, tmp_path / "out", "--images", "train/images", "--workers", "0")
    assert said.code == 0, said.err
    assert "images from 'train/images', labels from 'train/labels'" in said.err
    assert [entry.label for entry in found(source, images="val/images", labels="none")[1]] == [None] * 4
    assert "could be the labels" not in refused(source, images="val/images", labels="val/weights")
    assert "float64" in refused(source, images="val/images", labels="val/weights")


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"labels": LABELS}, "labels from 'labels'"),
        ({"kind": LABELS}, "labels from 'kind'"),
        ({"kind": LABELS[:, None]}, "labels from 'kind'"),
        ({"Label": LABELS, "ids": np.arange(40)}, "labels from 'Label'"),
        ({"weights": np.ones(40), "more": np.arange(3)}, "no labels"),
        ({}, "no labels"),
    ],
)
def test_labels_are_what_is_called_so_or_the_only_numbers_beside(make, others, said):
    scanned, samples = found(make({"pixels": pictures(), **others}))
    assert scanned.notes[0] == f"images from 'pixels', {said}"
    assert (samples[3].label is None) is (said == "no labels")


def test_several_that_could_be_the_labels_are_refused(make):
    source = make({"images": pictures(), "ids": np.arange(40), "kind": LABELS})
    assert "ids, kind could be the labels of 'images'; name one with --labels" in refused(source)
    assert [entry.label for entry in found(source, labels="kind")[1]] == LABELS.tolist()


@pytest.mark.parametrize("holder", ["labels", "images", "/"])
@pytest.mark.parametrize("attribute", ["classes", "class_names"])
def test_class_names_come_from_an_attribute(make, tmp_path, holder, attribute):
    source = make({"images": pictures(), "labels": LABELS}, attrs=[(holder, attribute, NAMES)])
    convert(source, tmp_path / "out", metadata=True)
    assert json.loads((tmp_path / "out/info.json").read_text())["classes"] == NAMES
    for key, fields in trees.read(tmp_path / "out"):
        assert json.loads(fields["json"])["class"] == NAMES[LABELS[int(key[-8:])]]


def test_given_classes_decide_over_those_of_the_file(make):
    source = make({"images": pictures(), "labels": LABELS}, attrs=[("/", "classes", np.array(NAMES, "S"))])
    classes = ("zoo", *sorted(NAMES))
    scanned, samples = found(source, classes=classes)
    assert [classes[entry.label] for entry in samples] == [NAMES[label] for label in LABELS]
    assert scanned.classes == classes
    assert "class 'eel' is not among the dataset's 4 classes" in refused(source, classes=tuple(NAMES[:4]))


@pytest.mark.parametrize("value", [3, "ant", np.arange(5), np.array([[b"a"]]), np.array([np.void(b"\x80\x04K\x01.")])])
def test_an_attribute_that_lists_no_names_is_none(make, value):
    assert found(make({"images": pictures(), "labels": LABELS}, attrs=[("/", "classes", value)]))[0].classes == ()


@pytest.mark.parametrize("dtype", [object, "S3"])
def test_names_become_classes(h5py, make, dtype):
    source = make({"images": pictures(), "labels": np.array([NAMES[label].encode() for label in LABELS], dtype)})
    scanned, samples = found(source)
    assert scanned.classes == tuple(sorted(NAMES))
    assert [scanned.classes[entry.label] for entry in samples] == [NAMES[label] for label in LABELS]


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (LABELS[:39], "'images' has 40 samples, and 'labels' 39"),
        (np.append(LABELS, 1), "'images' has 40 samples, and 'labels' 41"),
        (LABELS - 2, "row 0: label -2 is negative"),
        (LABELS.astype("f4"), "float32"),
        (np.eye(5)[LABELS], "argmax"),
        (np.uint8(3), "'labels' 1"),
    ],
)
def test_fault_wrong_labels_are_refused_with_the_place(make, labels, said):
    message = refused(make({"images": pictures(), "labels": labels}))
    assert said in message
    assert "'images.h5'" in message


def test_fault_a_label_beyond_the_named_classes_is_refused(make):
    source = make({"images": pictures(), "labels": LABELS}, attrs=[("/", "classes", NAMES[:3])])
    assert "row 2: label 4 is beyond the 3 classes" in refused(source)
    source = make({"images": pictures(), "labels": LABELS}, attrs=[("/", "classes", ["a", "a"])])
    assert "lists a class twice" in refused(source)


# ---------------------------------------------------------------- several files


def test_a_folder_of_files_is_one_source(make, tmp_path):
    (tmp_path / "in").mkdir()
    labels = (LABELS + np.arange(40) // 20) % 5
    for number in (0, 1):
        part = slice(20 * number, 20 * number + 20)
        make({"images": pictures()[part], "labels": np.array(NAMES, "S")[labels[part]]}, f"in/part{number}.h5")
    (tmp_path / "in/.hidden").write_bytes(b"")
    samples = sources.is_repeatable(tmp_path / "in", tmp_path / "out", max_count=12)
    assert [key for key, _ in sorted(samples)][19:21] == ["part0/00000019", "part1/00000000"]
    np.testing.assert_array_equal(arrays_by_key(samples), pictures())
    assert labels_by_key(samples) == [sorted(NAMES).index(NAMES[label]) for label in labels]
    make({"images": pictures(4), "labels": LABELS[:4]}, "in/part2.h5")
    assert "labels of another kind" in refused(tmp_path / "in")
    make({"other": pictures(4)}, "in/part2.h5")
    assert "'part2.h5' has no dataset 'images', as the files before it have" in refused(tmp_path / "in")
    shutil.copy(tmp_path / "in/part1.h5", tmp_path / "in/part1.hdf5")
    (tmp_path / "in/part2.h5").unlink()
    assert "same keys" in refused(tmp_path / "in")


# ---------------------------------------------------------------- files that are wrong


def test_fault_a_cut_or_foreign_file_is_refused(make, tmp_path):
    source = make({"images": {"data": pictures(400), **LAYOUTS["gzip"]}, "labels": np.zeros(400, int)})
    whole = source.read_bytes()
    for content in (b"", whole[:9], whole[:1000], whole[: len(whole) // 2], whole[:-1], b"no HDF5 at all" * 99):
        source.write_bytes(content)
        assert "as HDF5" in refused(source)
        with pytest.raises(SourceError):
            convert(source, tmp_path / "out")
    assert not (tmp_path / "out/info.json").exists()
    assert "No such file" in refused(tmp_path / "none.h5")


def test_fault_a_damaged_chunk_is_raised_with_its_row_or_skipped(h5py, make, tmp_path):
    source = make({"images": {"data": pictures(), "chunks": (10, 7, 6, 3), "fletcher32": True}, "labels": LABELS})
    with h5py.File(source) as file:
        place = file["images"].id.get_chunk_info(2).byte_offset
    whole = bytearray(source.read_bytes())
    whole[place + 5] ^= 255
    source.write_bytes(whole)
    with pytest.raises(SampleError, match=r"images/0000002\d.npy.*unreadable"):
        convert(source, tmp_path / "out")
    result = convert(source, tmp_path / "skip", on_error="skip")
    assert (result.samples, result.num_skipped) == (30, 10)


def test_fault_links_and_datasets_that_lead_out_of_the_file_are_refused(h5py, make, tmp_path):
    secret = make({"images": pictures(), "labels": LABELS}, "secret.h5")
    (tmp_path / "raw.bin").write_bytes(pictures().tobytes())
    source = make({"labels": LABELS})
    with h5py.File(source, "a") as file:
        file["images"] = h5py.ExternalLink(str(secret), "images")
        file["more"] = h5py.SoftLink("/images")
    assert "no dataset could be the images; name one with --images; it has labels (int64 40)" in refused(source)
    refused(source, images="images")
    with h5py.File(source, "a") as file:
        file.create_dataset("virtual", shape=(40, 7, 6, 3), dtype="u1", external=[(str(tmp_path / "raw.bin"), 0, 5040)])
    assert "'/virtual' in 'images.h5' takes its bytes from other files" in refused(source)
    layout = h5py.VirtualLayout((40, 7, 6, 3), "u1")
    layout[:] = h5py.VirtualSource(str(secret), "images", (40, 7, 6, 3))
    with h5py.File(source, "w") as file:
        file.create_virtual_dataset("images", layout)
    assert "takes its bytes from other files" in refused(source)


def test_fault_circles_of_groups_end(h5py, make):
    source = make({"a/images": pictures()})
    with h5py.File(source, "a") as file:
        file["a/b"] = file["a"]
        file["a/c"] = file["/"]
    assert len(found(source)[1]) == 40


@pytest.mark.parametrize("chunks", [None, (10, 100, 100, 3)])
def test_fault_what_was_never_written_is_no_source_of_zeros(make, chunks):
    """A few hundred bytes that promise terabytes."""
    source = make({"images": {"shape": (100_000_000, 100, 100, 3), "dtype": "u1", "chunks": chunks}})
    assert source.stat().st_size < 10_000
    assert "was not written to its end: 0 of" in refused(source)


def test_fault_a_dataset_written_in_part_says_how_much(h5py, make):
    source = make({"images": {"shape": (40, 7, 6, 3), "dtype": "u1", "chunks": (10, 7, 6, 3)}})
    with h5py.File(source, "a") as file:
        file["images"][:15] = 1
    assert "2 of 4 chunks are there" in refused(source)
    source = make({"images": {"shape": (40,), "dtype": h5py.vlen_dtype(np.uint8)}})
    assert "was not written" in refused(source)


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ({"shape": (0, 7, 6, 3), "dtype": "u1", "maxshape": (None, 7, 6, 3)}, "is empty"),
        (
            {"shape": (2, 1 << 15, 1 << 15, 3), "dtype": "u1", "chunks": (1, 1 << 15, 1 << 15, 3)},
            "chunks of 3221225472",
        ),
        ({"data": np.zeros((4, 2, 2), [("a", "u1")])}, "images are numbers"),
        ({"data": np.full((4, 2, 2), "a", object)}, "objects"),
        ({"data": np.array([[["a"]]] * 4, "S1")}, "images are numbers"),
    ],
)
def test_fault_datasets_that_hold_no_images_are_refused(make, dataset, said):
    assert said in refused(make({"images": dataset}))


def test_fault_one_dataset_a_sample_is_told(make, monkeypatch):
    monkeypatch.setattr("wds_tools.convert.hdf5_file.MAX_OBJECTS", 10)
    source = make({f"image{number}": pictures(1)[0] for number in range(30)})
    assert "one a sample, and all images must be rows of one dataset" in refused(source)


def test_fault_an_unknown_compression_is_named(h5py, make, tmp_path):
    source = make({"labels": LABELS})
    with h5py.File(source, "a") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((4, 7, 6, 3))
        plist.set_filter(32_099, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((40, 7, 6, 3))
        h5py.h5d.create(file.id, b"images", h5py.h5t.STD_U8LE, space, plist)
    assert "is compressed with 32099, which this h5py cannot read; use h5repack" in refused(source)


def test_fault_a_file_that_changed_since_the_plan_is_not_read(make):
    source = make({"images": {"data": pictures(), **LAYOUTS["gzip"]}, "labels": LABELS})
    scanned, samples = found(source)
    entry = samples[3]

    def read():
        with Hdf5Origin(scanned.root) as origin:
            return origin.read(entry.path, entry.size, entry.mtime_ns, entry.at)

    np.testing.assert_array_equal(np.load(io.BytesIO(read())), pictures()[3])
    os.utime(source, (1, 1))
    with pytest.raises(SourceChangedError, match="changed since the plan"):
        read()
    source.unlink()
    with pytest.raises(SourceChangedError, match="gone"):
        read()


def test_other_content_of_the_same_shape_is_another_source(make):
    before = found(make({"images": pictures(), "labels": LABELS}))[0].digest
    assert found(make({"images": pictures(), "labels": LABELS}))[0].digest == before
    assert found(make({"images": pictures()[::-1], "labels": LABELS}))[0].digest != before
    assert found(make({"images": pictures(), "labels": LABELS[::-1]}))[0].digest != before


def test_without_h5py_it_is_said_what_to_install(make, monkeypatch):
    source = make({"images": pictures()})
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'wds_tools\[sources\]'"):
        found(source)
