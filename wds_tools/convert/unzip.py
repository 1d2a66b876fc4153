"""The origin of zip archives: members are read where they lie, and unpacked in memory.

Of a member no more is unpacked than the archive's directory announced, and its checksum must be right.
"""

from __future__ import annotations

import struct
import zlib
from typing import BinaryIO

from wds_tools.convert.origin import open_unchanged, pread
from wds_tools.errors import SampleError, SourceChangedError

STORED, DEFLATED = 0, 8

_LOCAL = struct.Struct("<4s22xHH")  # a local header: its signature, and the lengths of name and extra field


class ZipOrigin:
    """The members of one archive, each read with a call or two and unpacked in memory."""

    images = True

    def __init__(self, root: str) -> None:
        self._path = root
        self._file: BinaryIO | None = None
        self._mtime_ns = 0

    def __enter__(self) -> ZipOrigin:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, path: str, size: int, mtime_ns: int, at: str) -> bytes:
        """A member; ``at`` is where its header lies, its length there, how it is compressed, and its checksum."""
        if self._file is None or self._mtime_ns != mtime_ns:
            self.__exit__()
            self._file, self._mtime_ns = open_unchanged(self._path, mtime_ns), mtime_ns
        offset, length, method, checksum = map(int, at.split(" "))
        try:
            data = self._packed(offset, length)
        except OSError as error:
            raise SampleError(f"unreadable: {error.strerror}", repr(path)) from error
        if data is None:
            raise SourceChangedError(f"{self._path!r} has no member at {offset} any more; run again for a new plan")
        if method == DEFLATED:
            try:
                unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
                data = unpacker.decompress(data, size + 1)  # one more than announced, to see that there is more
            except zlib.error as error:
                raise SampleError(f"damaged in the archive: {error}", repr(path)) from error
        if len(data) != size:
            more = "more" if len(data) > size else f"{len(data)}"
            raise SampleError(f"the archive announces {size} bytes, and {more} come out", repr(path))
        if zlib.crc32(data) != checksum:
            raise SampleError("damaged in the archive: its checksum is wrong", repr(path))
        return data

    def _packed(self, offset: int, length: int) -> bytes | None:
        """The bytes of a member as they lie there."""
        assert self._file is not None
        head = pread(self._file, _LOCAL.size, offset)
        if len(head) < _LOCAL.size:
            return None
        signature, name, extra = _LOCAL.unpack(head)
        data = pread(self._file, length, offset + _LOCAL.size + name + extra)
        return data if signature == b"PK\3\4" and len(data) == length else None
