"""A file that is read once, front to back, for its content and its digest together."""

from __future__ import annotations

import hashlib
from typing import BinaryIO

_STEP = 256 << 10  # one buffer that stays in the processor's cache


class DigestReader:
    """Wraps a readable file. Not seekable on purpose: every byte must pass by."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.size = 0  # bytes that passed by so far

    def seekable(self) -> bool:
        return False

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._sha256.update(data)
        self.size += len(data)
        return data

    def finish(self) -> str:
        """Read what is left; the sha256 of the whole, in hexadecimal."""
        buffer = memoryview(bytearray(_STEP))
        while count := self._file.readinto(buffer):  # type: ignore[attr-defined]
            self._sha256.update(buffer[:count])
            self.size += count
        return self._sha256.hexdigest()
