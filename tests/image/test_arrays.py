import io
import pickle
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import images
from wds_tools.errors import DecodeError
from wds_tools.image.arrays import decode_npy, encode_npy, npy_header, npy_shape


@pytest.mark.parametrize(
    "array",
    [
        images.pixels(),
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(24, dtype=">i2").reshape(2, 3, 4)),
        np.array(5),
        np.zeros((0, 3)),
        np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array(["ab", "c"]),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_arrays_are_read_as_numpy_reads_them(array):
    read = decode_npy(images.npy(array))
    expected = np.load(io.BytesIO(images.npy(array)))
    np.testing.assert_array_equal(read, expected)
    assert (read.dtype, read.shape, read.flags.writeable) == (expected.dtype, expected.shape, True)
    assert npy_shape(images.npy(array)) == array.shape
    assert np.array_equal(decode_npy(memoryview(images.npy(array) + b"tail")), expected)


def test_version_2_is_read():
    file = io.BytesIO()
    np.lib.format.write_array(file, images.pixels(), version=(2, 0))
    assert np.array_equal(decode_npy(file.getvalue()), images.pixels())


def test_what_is_written_is_version_1_and_repeatable():
    data = encode_npy(images.pixels()[:, ::-1])
    assert data.startswith(b"\x93NUMPY\x01\x00")
    assert data == encode_npy(images.pixels()[:, ::-1])
    assert np.array_equal(np.load(io.BytesIO(data)), images.pixels()[:, ::-1])


def test_a_pickle_is_never_loaded():
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was executed",))

    array = np.empty(1, object)
    array[0] = Trap()
    with pytest.raises(DecodeError, match="pickle"):
        decode_npy(images.npy(array))
    with pytest.raises(DecodeError, match="not an npy"):
        decode_npy(pickle.dumps([1, 2]))


HEADER = "{{'descr': {}, 'fortran_order': False, 'shape': {}}}"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty file"),
        (images.npy(images.pixels())[:-1], "truncated array: 3599 of 3600 bytes"),
        (images.npy_claiming(HEADER.format("'|u1'", (10**12,))), "limit of 1073741824"),
        (images.npy_claiming(HEADER.format("'|u1'", (10**8,))), "truncated array: 0 of 100000000"),
        (images.npy_claiming(HEADER.format("'|u1'", (10**18,) * 60)), "limit"),
        (images.npy_claiming(HEADER.format("'|u1'", (10**30, 10**30))), "damaged npy header"),
        (images.npy_claiming(HEADER.format("'|u1'", (10**4000, 10**4000))), "damaged npy header"),
        (images.npy_claiming(HEADER.format("'|u1'", (1,) * 65), b"1"), "damaged npy header"),
        (images.npy_claiming(HEADER.format("'|u1'", (-1, -4)), bytes(4)), "damaged npy header"),
        (images.npy_claiming(HEADER.format("'|V0'", (10**15,))), "damaged npy header"),
        (images.npy_claiming(HEADER.format("'|u1'", "[4]"), bytes(4)), "header is damaged"),
        (images.npy_claiming(HEADER.format("'|u1'", "__import__('os').abort()")), "header is damaged"),
        (images.npy_claiming(HEADER.format("'zz'", (1,))), "header is damaged"),
        (images.npy_claiming("(" * 9000), "header is damaged"),
        (images.npy_claiming("'''"), "header is damaged"),
        (images.npy_claiming("{" + " " * 60_000 + "}"), "header is damaged"),
        (b"\x93NUMPY\x03\x00" + bytes(100), "version 3.0"),
        (b"\x93NUMPY", "header is damaged"),
        (b"PK\x03\x04", "not an npy array"),
    ],
)
def test_bad_files_say_what_is_wrong(data, reason):
    with pytest.raises(DecodeError, match=reason):
        decode_npy(data)


def test_the_limit_is_the_callers():
    data = images.npy(images.pixels())
    assert decode_npy(data, max_bytes=3600).size == 3600
    with pytest.raises(DecodeError, match="array of 3600 bytes exceeds the limit of 3599"):
        decode_npy(data, max_bytes=3599)


WHOLE = images.npy(images.pixels(4, 4))


@given(st.lists(st.tuples(st.integers(0, 127), st.integers(0, 255)), min_size=1, max_size=6))
@example([(83, ord("9"))])
def test_a_mutated_file_is_read_or_is_a_decode_error(changes):
    data = bytearray(WHOLE)
    for place, value in changes:
        data[place] = value
    with suppress(DecodeError):
        decode_npy(bytes(data))


def test_the_header_of_plain_pixels_is_all_before_them():
    data = images.npy(images.pixels())
    header = npy_header(data)
    assert header + images.pixels().tobytes() == data
    assert npy_header(memoryview(data + b"tail")) == header
    assert npy_header(images.npy(images.pixels()[::-1].copy())) == header
    assert npy_header(images.npy(images.pixels(41))) != header


@pytest.mark.parametrize(
    "array",
    [
        images.pixels()[..., 0],
        images.pixels()[..., :1],
        images.pixels()[None],
        np.asfortranarray(images.pixels()),
        images.pixels().astype(np.int8),
        images.pixels().astype(np.uint16),
        np.zeros((4, 4, 4), np.uint8),
        np.array(5, np.uint8),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_other_arrays_have_no_such_header(array):
    assert npy_header(images.npy(array)) == b""


def test_what_is_no_array_has_no_header_and_a_damaged_one_is_an_error():
    for data in (b"", b"\x93NUM", images.png(), images.jpeg()):
        assert npy_header(data) == b""
    for data in (b"\x93NUMPY", images.npy_claiming(HEADER.format("'O'", (1, 1, 3))), images.npy_claiming("{")):
        with pytest.raises(DecodeError):
            npy_header(data)
