import io
import os

import numpy as np
import pytest

from tests.support import commands, sources, trees
from tests.support.sources import arrays_by_key, convert, found, labels_by_key, pictures
from wds_tools.convert.npy import NpyOrigin
from wds_tools.errors import DecodeError, OptionError, SampleError, SourceChangedError, SourceError
from wds_tools.image import codec

LABELS = np.arange(40) * 7 % 5


@pytest.fixture
def source(tmp_path):
    np.save(tmp_path / "images.npy", pictures())
    np.save(tmp_path / "labels.npy", LABELS)
    return tmp_path / "images.npy"


def refused(source, **options):
    with pytest.raises(SourceError) as caught:
        found(source, **options)
    assert len(str(caught.value)) < 500
    return str(caught.value)


def saved(tmp_path, array, name="images.npy"):
    np.save(tmp_path / name, array)
    return tmp_path / name


# ---------------------------------------------------------------- what becomes of an array


def test_every_row_is_a_sample_with_its_label_whatever_the_workers(source, tmp_path):
    samples = sources.is_repeatable(source, tmp_path / "out", max_count=12)
    assert [key for key, _ in sorted(samples)] == [f"images/{number:08d}" for number in range(40)]
    assert [key for key, _ in samples] != sorted(key for key, _ in samples)
    np.testing.assert_array_equal(arrays_by_key(samples), pictures())
    assert labels_by_key(samples) == LABELS.tolist()
    for _, fields in samples:
        np.load(io.BytesIO(fields["npy"]), allow_pickle=False)


def test_what_is_trained_on_are_the_array_s_pixels(source, tmp_path):
    convert(source, tmp_path / "out", max_count=12)
    pixels, labels = sources.trained(tmp_path / "out")
    np.testing.assert_array_equal(np.stack(pixels), pictures())
    assert labels == LABELS.tolist()


def test_pictures_are_encoded_if_asked(source, tmp_path):
    samples = sources.is_repeatable(source, tmp_path / "out", encode="png", max_count=12)
    for key, fields in samples:
        np.testing.assert_array_equal(codec.decode(fields["png"]), pictures()[int(key[-8:])])
    small = convert(source, tmp_path / "small", image_size=3)
    assert small.samples == 40
    assert codec.dimensions(trees.read(tmp_path / "small")[0][1]["jpg"]) == (3, 4)


@pytest.mark.parametrize("shape", [(3, 7, 6), (1, 7, 6)])
def test_channels_first_are_turned_and_it_is_said(tmp_path, shape):
    images = pictures(40, *shape)
    path = saved(tmp_path, images)
    result = convert(path, tmp_path / "out")
    assert any("channels first" in note for note in result.notes)
    np.testing.assert_array_equal(arrays_by_key(trees.read(tmp_path / "out")), images.transpose(0, 2, 3, 1))


@pytest.mark.parametrize(
    "images",
    [
        pictures(5, 3, 6, 3),  # as likely three rows of pixels
        pictures()[..., 0],
        pictures(5, 3, 6, 8)[..., 0],
        pictures(channels=1),
        pictures(channels=4),
        pictures(5, 2, 6, 8),
        pictures().reshape(40, -1),
        pictures().astype(">u2"),
        pictures(5, 3, 6, 8).astype(np.float16),
        pictures(5) > 100,
        np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_other_arrays_are_kept_as_they_are(tmp_path, images):
    result = convert(saved(tmp_path, images, "features.npy"), tmp_path / "out")
    again = arrays_by_key(trees.read(tmp_path / "out"))
    assert again.dtype == images.dtype.newbyteorder("=") or again.dtype == images.dtype
    np.testing.assert_array_equal(again, images)
    picture = images.dtype == np.uint8 and images.shape[3:] in ((), (1,), (3,)) and images.ndim > 2
    assert ("no pictures" in result.notes[0]) is not picture


def test_what_is_no_picture_cannot_be_encoded(tmp_path):
    path = saved(tmp_path, np.zeros((4, 16), np.float32), "features.npy")
    with pytest.raises(DecodeError, match=r"features/0000000\d.npy.*float32 array"):
        convert(path, tmp_path / "out", encode="png")


def test_a_raw_memmap_becomes_an_array_by_the_line_that_the_message_says(tmp_path):
    (tmp_path / "images.bin").write_bytes(pictures().tobytes())
    (tmp_path / "raw.npy").write_bytes(pictures().tobytes())
    assert "np.save('images.npy', np.memmap(" in refused(tmp_path / "raw.npy")
    np.save(tmp_path / "images.npy", np.memmap(tmp_path / "images.bin", "uint8", "r", shape=(40, 7, 6, 3)))
    convert(tmp_path / "images.npy", tmp_path / "out")
    np.testing.assert_array_equal(arrays_by_key(trees.read(tmp_path / "out")), pictures())


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("my images.v2.npy", "my_images.v2/"),
        ("é.npy", "%C3%A9/"),
        ("__a.npy", "%5F_a/"),
        ("x" * 120 + ".npy", "x" * 43 + "_"),
        ("é" * 50 + ".npy", "_" * 43 + "_"),
    ],
)
def test_keys_are_clean_whatever_the_file_is_called(tmp_path, name, prefix):
    convert(saved(tmp_path, pictures(3), name), tmp_path / "out")
    keys = [key for key, _ in trees.read(tmp_path / "out")]
    assert sorted(key[-9:] for key in keys) == ["/00000000", "/00000001", "/00000002"]
    assert all(key.startswith(prefix if prefix[0] != "_" else "%5F_") for key in keys)


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        ("images.npy", "images_labels.npy"),
        ("train_images.npy", "train_labels.npy"),
        ("images.npy", "labels.npy"),
        ("x.npy", "x_labels.npy"),
    ],
)
def test_labels_beside_are_found_and_it_is_said(tmp_path, images, labels):
    path = saved(tmp_path, pictures(), images)
    scanned, samples = found(path)
    assert [entry.label for entry in samples] == [None] * 40
    assert "no labels" in scanned.notes[1]
    saved(tmp_path, LABELS, labels)
    scanned, samples = found(path)
    assert [entry.label for entry in samples] == LABELS.tolist()
    assert repr(labels) in scanned.notes[1]
    assert [entry.label for entry in found(path, labels="none")[1]] == [None] * 40


def test_two_files_that_could_be_the_labels_are_refused_unless_one_is_named(source, tmp_path):
    other = saved(tmp_path, 4 - LABELS, "images_labels.npy")
    assert "'images_labels.npy' and 'labels.npy'" in refused(source)
    assert [entry.label for entry in found(source, labels=str(other))[1]] == (4 - LABELS).tolist()


def test_the_command_takes_the_labels_by_name_and_tells_what_it_found(tmp_path):
    path, labels = saved(tmp_path, pictures()), saved(tmp_path, LABELS, "y.npy")
    said = commands.call("convert", path, tmp_path / "out", "--labels", labels, "--workers", "0")
    assert said.code == 0
    assert "labels from 'y.npy'" in said.err
    assert "'images.npy': pictures of 7 x 6 x 3" in said.err
    assert labels_by_key(trees.read(tmp_path / "out")) == LABELS.tolist()
    assert str(tmp_path) not in (tmp_path / "out/info.json").read_text()
    assert "nothing to do" in commands.call("convert", path, tmp_path / "out", "--labels", labels).out


@pytest.mark.parametrize(
    "labels",
    [
        LABELS.astype(np.uint8),
        LABELS.astype(">i4"),
        LABELS.astype(np.uint64),
        LABELS[:, None],
        np.asfortranarray(LABELS),
    ],
)
def test_labels_may_be_any_whole_numbers(source, tmp_path, labels):
    saved(tmp_path, labels, "labels.npy")
    scanned, samples = found(source)
    assert [entry.label for entry in samples] == LABELS.tolist()
    assert scanned.classes == ()


@pytest.mark.parametrize("dtype", ["U", "S"])
def test_names_become_classes(source, tmp_path, dtype):
    names = np.array(["dog", "ant", "cat", "bee", "eel"], dtype)[LABELS]
    saved(tmp_path, names, "labels.npy")
    scanned, samples = found(source)
    assert scanned.classes == ("ant", "bee", "cat", "dog", "eel")
    assert [scanned.classes[entry.label] for entry in samples] == names.astype("U").tolist()
    classes = ("eel", "zoo", "dog", "cat", "bee", "ant")
    scanned, samples = found(source, classes=classes)
    assert scanned.classes == classes
    assert [classes[entry.label] for entry in samples] == names.astype("U").tolist()
    assert "row 1: class 'cat' is not among the dataset's 1 classes" in refused(source, classes=("dog",))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (LABELS[:-1], "has 40 rows, and the labels .* 39"),
        (np.append(LABELS, 0), "has 40 rows, and the labels .* 41"),
        (np.array(3), "only one number"),
        (LABELS - 1, "row 0: label -1 is negative"),
        (np.where(np.arange(40) == 17, -2, LABELS), "row 17: label -2 is negative"),
        (LABELS.astype(np.uint64) + 2**63, "row 0: label 9223372036854775808 is too large"),
        (LABELS.astype(float), "float64"),
        (np.eye(5, dtype=int)[LABELS], "argmax"),
        (np.array(["a"] * 39 + [""]), "row 39: '' is no class name"),
        (np.array([b"\xff"] * 40), "row 0"),
        (LABELS.astype("M8[s]"), "datetime"),
    ],
)
def test_fault_wrong_labels_are_refused_with_the_row(source, tmp_path, labels, said):
    import re

    saved(tmp_path, labels, "labels.npy")
    message = refused(source)
    assert re.search(said, message), message
    assert "labels.npy" in message


def test_fault_a_label_beyond_the_classes_is_refused_with_the_row(source):
    assert "row 2: label 4 is beyond the 4 classes" in refused(source, classes=tuple("abcd"))
    assert found(source, classes=tuple("abcde"))[0].classes == tuple("abcde")


def test_fault_labels_that_are_gone_cut_or_pickled_are_refused(source, tmp_path):
    assert "No such file" in refused(source, labels=str(tmp_path / "none.npy"))
    whole = (tmp_path / "labels.npy").read_bytes()
    (tmp_path / "labels.npy").write_bytes(whole[:-8])
    assert "cut off" in refused(source)
    np.save(tmp_path / "labels.npy", np.array([Trap()] * 40, object), allow_pickle=True)
    assert "pickle" in refused(source)
    (tmp_path / "labels.npy").write_bytes(b"0\n1\n")
    assert "not an npy array" in refused(source)


# ---------------------------------------------------------------- arrays that are wrong


class Trap:
    """Ends the tests when it is unpickled."""

    def __reduce__(self):
        return os._exit, (66,)


def test_fault_an_array_of_objects_is_refused_and_never_unpickled(tmp_path):
    np.save(tmp_path / "images.npy", np.array([Trap(), Trap()], object), allow_pickle=True)
    said = commands.run("convert", tmp_path / "images.npy", tmp_path / "out")
    assert said.code == 1
    assert "pickle" in said.err
    assert not (tmp_path / "out/info.json").exists()


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.array(3), "single number"),
        (LABELS, "may be labels"),
        (np.zeros((0, 4, 4, 3), np.uint8), "no samples"),
        (np.zeros((4, 0, 3), np.uint8), "rows are empty"),
        (np.array([["a", "b"]]), "images are numbers"),
        (np.zeros((4, 2), "M8[s]"), "images are numbers"),
        (np.zeros((4, 2), [("a", "u1")]), "images are numbers"),
        (np.asfortranarray(pictures()), "Fortran order"),
    ],
)
def test_fault_arrays_that_hold_no_samples_are_refused(tmp_path, array, said):
    message = refused(saved(tmp_path, array))
    assert said in message
    assert "images.npy" in message


def test_fault_a_cut_file_is_refused_before_any_work(source, tmp_path):
    whole = source.read_bytes()
    source.write_bytes(whole[:-1])
    assert "is cut off: its header promises 5040 bytes of numbers, and 5039 are there" in refused(source)
    with pytest.raises(SourceError):
        convert(source, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))
    for content in (b"", whole[:50], b"\x93NUMPY\xff", whole.replace(b"(40, 7", b"(99, 7", 1)):
        source.write_bytes(content)
        refused(source)


def test_fault_a_header_that_lies_allocates_nothing(tmp_path):
    header = io.BytesIO()
    shape = (10**12, 100, 100, 3)
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    (tmp_path / "images.npy").write_bytes(header.getvalue() + bytes(100))
    assert "cut off" in refused(tmp_path / "images.npy")


def test_fault_an_array_that_changed_since_the_plan_is_not_read(source):
    _, samples = found(source)
    entry = samples[3]

    def read(size=entry.size):
        with NpyOrigin(str(source)) as origin:
            return origin.read(entry.path, size, entry.mtime_ns, entry.at)

    np.testing.assert_array_equal(codec.decode(read()), pictures()[3])
    with pytest.raises(SourceChangedError):
        read(entry.size + 1)
    os.utime(source, (1, 1))
    with pytest.raises(SourceChangedError, match="changed since the plan"):
        read()
    source.unlink()
    with pytest.raises(SourceChangedError, match="gone"):
        read()


def test_other_content_of_the_same_shape_is_another_source(source, tmp_path):
    before = found(source)[0].digest
    os.utime(source, (1, 1))
    assert found(source)[0].digest == before
    saved(tmp_path, pictures()[::-1])
    assert found(source)[0].digest != before
    saved(tmp_path, pictures())
    assert found(source)[0].digest == before
    saved(tmp_path, LABELS[::-1], "labels.npy")
    assert found(source)[0].digest != before


def test_a_bad_row_is_skipped_if_asked(tmp_path):
    path = saved(tmp_path, pictures(channels=4))
    with pytest.raises(SourceError, match=r"no usable image: 40 skipped"):
        convert(path, tmp_path / "out", encode="png", on_error="skip")
    with pytest.raises(SampleError):
        convert(path, tmp_path / "other", encode="png")


def test_options_that_say_nothing_here_are_refused(source, tmp_path):
    with pytest.raises(OptionError, match="one array"):
        found(source, images="x")
    with pytest.raises(OptionError, match="siblings"):
        convert(source, tmp_path / "out", siblings=True)
    refused(tmp_path / "none.npy")
