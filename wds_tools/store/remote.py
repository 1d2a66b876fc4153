"""Reading from a server by ranges: what HTTP and S3 stores have in common."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO, cast

from wds_tools.errors import StoreError
from wds_tools.store.base import Version
from wds_tools.store.body import Body
from wds_tools.store.retry import TIMING, Timing
from wds_tools.store.wire import Request, Wire

_PART = 1 << 20  # of one call: more than a socket has at a time
_BUFFER = 1 << 16


class RemoteStore:
    """The reading half of a `Store`. A range is one request, and one more for each time that it breaks."""

    timing: Timing = TIMING

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def request(self, name: str) -> Request:
        """What asks for ``name``."""
        raise NotImplementedError

    def size(self, name: str) -> int:
        return self.version(name).size

    def version(self, name: str) -> Version:
        # Not a HEAD: an address that is signed for GET is good for nothing else, and this tells of ranges too.
        body = self._body(name, 0, 1, clip=True, version=None)
        body.open()
        body.read1(1)
        assert body.version is not None
        return body.version

    def read(self, name: str, start: int = 0, length: int | None = None, version: Version | None = None) -> bytes:
        if length is None:
            with self.stream(name, start, version) as file:
                return file.read()
        if length == 0:
            return b""
        body = self._body(name, start, start + length, clip=False, version=version)
        try:
            first = body.read1(_PART)
            if len(first) == length:
                return first
            parts = [first]
            while part := body.read1(_PART):
                parts.append(part)
        finally:
            body.close()
        return b"".join(parts)

    def stream(self, name: str, start: int = 0, version: Version | None = None) -> BinaryIO:
        chunk = self._wire.options.chunk_size
        if start and version is None:  # else nobody could tell a start at the end from one behind it
            version = self.version(name)

        def body_at(at: int, its: Version | None) -> Body:
            return self._body(name, at, at + chunk, clip=True, version=its)

        return cast(BinaryIO, io.BufferedReader(_Stream(body_at, start, version), _BUFFER))

    def _body(self, name: str, start: int, stop: int, *, clip: bool, version: Version | None) -> Body:
        return Body(self._wire, self.request(name), start, stop, clip=clip, version=version, timing=self.timing)

    def _refuse(self, name: str, doing: str) -> StoreError:
        return StoreError(f"{self.request(name).shown} cannot be {doing}")


class _Stream(io.RawIOBase):
    """A remote file from front to back, a bounded request at a time."""

    def __init__(self, body_at: Callable[[int, Version | None], Body], start: int, version: Version | None) -> None:
        self._body_at = body_at
        self._at = start
        self._body = body_at(start, version)
        self._body.open()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._part(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._part(_PART), b""))

    def _part(self, most: int) -> bytes:
        part = self._body.read1(most)
        version = self._body.version
        if not part and version is not None and self._at < version.size:
            self._body = self._body_at(self._at, version)
            part = self._body.read1(most)
        self._at += len(part)
        return part

    def close(self) -> None:
        if not self.closed:
            self._body.close()
        super().close()
