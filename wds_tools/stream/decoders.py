"""WebDataset's decoders for a shard that is not trusted: what `ShardDataset.decode` uses unless told otherwise.

They are webdataset's own, but nothing is unpickled (``pyd pkl pickle pth pt`` stay bytes), ``npy`` is read without
pickles and within its limits, and a ``gz`` field unpacks to `MAX_FIELD` bytes at most.
"""

from __future__ import annotations

import zlib
from typing import Any

from webdataset import autodecode, filters

from wds_tools.errors import DecodeError
from wds_tools.image.arrays import decode_npy
from wds_tools.stream.shards import MAX_FIELD

PICKLES = frozenset(("pkl", "pickle", "pyd", "pth", "pt"))

XDECODE = [(pattern, decoder) for pattern, decoder in filters.default_decoders if pattern[2:] not in PICKLES]
XDECODE += [(f"*.{ext}", lambda stream: stream.read()) for ext in sorted(PICKLES)]


def unpack(key: str, data: bytes) -> Any:
    """A handler that goes before others: what is in a ``gz`` field."""
    if not key.endswith(".gz"):
        return None
    parts: list[bytes] = []
    left = MAX_FIELD
    try:
        while data:  # gzip files may follow each other
            stream = zlib.decompressobj(wbits=31)
            parts.append(stream.decompress(data, left + 1))
            left -= len(parts[-1])
            if left < 0:
                raise DecodeError(f"{key[1:]} unpacks to more than {MAX_FIELD} bytes")
            if not stream.eof:
                raise DecodeError(f"{key[1:]} is cut short")
            data = stream.unused_data.lstrip(b"\0")
    except zlib.error as error:
        raise DecodeError(f"{key[1:]} is no gzip file: {error}") from error
    return autodecode.Continue(key[:-3], b"".join(parts))


def basic(key: str, data: bytes) -> Any:
    """A handler that goes after others: text, numbers, JSON, arrays, as in webdataset; None leaves the bytes."""
    ext = key.rpartition(".")[2]
    if ext in PICKLES:
        return None
    return decode_npy(data) if ext == "npy" else autodecode.basichandlers(key, data)
