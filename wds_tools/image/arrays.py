"""``.npy`` bytes to arrays and back: a header and the numbers, never a pickle.

Strategy: the header is read first and held against the bytes that are there, so a lying header cannot make us allocate;
only then are the numbers copied out. What numpy's header parser raises leaves as DecodeError. Format versions 1 and 2
are read; version 3 only exists for record fields with names beyond Latin-1, which no training sample has.
"""

import io
import math
import tokenize
from typing import TYPE_CHECKING, Any

from wds_tools.errors import DecodeError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_ARRAY_BYTES = 1 << 30
"""The most bytes that an array may have unless told otherwise."""

# The parser evaluates a Python literal, so these are also the ways in which a Python literal can be bad.
_FOREIGN = (ValueError, TypeError, LookupError, SyntaxError, OverflowError, RecursionError, MemoryError, EOFError)


def decode_npy(data: "bytes | memoryview", max_bytes: int = MAX_ARRAY_BYTES) -> "NDArray[Any]":
    """The array in an ``.npy`` file, as a copy of its own; bytes behind the array are ignored, as numpy does."""
    import numpy as np

    if not data:
        raise DecodeError("empty file")
    shape, fortran, dtype, start = parse_header(data)
    count = math.prod(shape)
    claimed = count * dtype.itemsize
    if claimed > max_bytes:
        raise DecodeError(f"array of {claimed} bytes exceeds the limit of {max_bytes}")
    if claimed > len(data) - start:
        raise DecodeError(f"truncated array: {len(data) - start} of {claimed} bytes")
    try:
        flat = np.frombuffer(data, dtype, count, start) if claimed else np.empty(count, dtype)
        array: NDArray[Any] = flat.reshape(shape, order="F" if fortran else "C").copy(order="K")
    except _FOREIGN as error:
        raise DecodeError(f"damaged npy header: shape {shape} of {dtype.name}") from error
    return array


def npy_shape(data: "bytes | memoryview") -> tuple[int, ...]:
    """The shape that an ``.npy`` file announces."""
    return parse_header(data)[0]


def npy_header(data: "bytes | memoryview") -> bytes:
    """Everything before the numbers, or nothing where that is no ``.npy`` file of plain uint8 pixels.

    Files with this header and of one length hold arrays of one shape, row by row, three numbers a pixel.
    """
    if bytes(data[:6]) != b"\x93NUMPY":
        return b""
    shape, fortran, dtype, start = parse_header(data)
    plain = dtype.str == "|u1" and not fortran and len(shape) == 3 and shape[2] == 3
    return bytes(data[:start]) if plain else b""


def encode_npy(array: "NDArray[Any]") -> bytes:
    """The array as an ``.npy`` file, format version 1.0."""
    import numpy as np

    file = io.BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    return file.getvalue()


def parse_header(data: "bytes | memoryview") -> "tuple[tuple[int, ...], bool, np.dtype[Any], int]":
    """Shape, Fortran order, element type, and where the numbers begin; the first 20,000 bytes of a file suffice."""
    import numpy as np

    # numpy refuses headers above 10,000 characters; the length field of version 2 could ask for more than we have.
    file = io.BytesIO(data[:20_000])
    try:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise DecodeError(f"npy format version {version[0]}.{version[1]} is not read")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (*_FOREIGN, tokenize.TokenError) as error:
        raise DecodeError("not an npy array, or its header is damaged") from error
    if dtype.hasobject:
        raise DecodeError("array of Python objects: a pickle, which is never loaded")
    # A type of no width would make any count of elements look free; numpy has 64 dimensions at most.
    if len(shape) > 64 or not all(0 <= side < 1 << 63 for side in shape) or not dtype.itemsize:
        raise DecodeError("damaged npy header: there is no such array")
    return shape, fortran, dtype, file.tell()
