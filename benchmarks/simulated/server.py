"""A server that is not there: shards are computed when they are asked for, and every request is counted."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from benchmarks.simulated.setting import Samples, name
from wds_tools.errors import StoreError
from wds_tools.format import tar
from wds_tools.store.base import Chunk, Version
from wds_tools.store.options import StoreOptions

CHUNK = StoreOptions().chunk_size


@dataclass
class Counts:
    """Requests that came, and the bytes that they brought. Threads append, which is safe; nothing is added up before."""

    indexes: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    ranges: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)

    def to_dict(self) -> dict[str, int]:
        found = {kind: len(lengths) for kind, lengths in self.__dict__.items()}
        return {**found, "bytes": sum(map(sum, self.__dict__.values()))}


class Server:
    """A `wds_tools.store.base.Store` that counts what an HTTP or S3 store would send for the same calls."""

    def __init__(self, sizes: Sequence[int], samples: Samples) -> None:
        self._sizes = sizes
        self._samples = samples
        self.counts = Counts()

    def url(self, name: str = "") -> str:
        return f"count://server/{name}"

    def size(self, name: str) -> int:
        return self.version(name).size

    def version(self, name: str) -> Version:
        self.counts.versions.append(1)
        return Version(self._samples.size(self._sizes[_number(name)]), "1")

    def read(self, name: str, start: int = 0, length: int | None = None, version: Version | None = None) -> bytes:
        shard = _number(name)
        if length is None:
            data = self._samples.index(shard, self._sizes[shard])
            self.counts.indexes += _pieces(len(data))
            return data
        self.counts.ranges.append(length)
        return self.content(shard, start, start + length)

    def stream(self, name: str, start: int = 0, version: Version | None = None) -> BinaryIO:
        shard = _number(name)
        size = self._samples.size(self._sizes[shard])
        self.counts.copies += _pieces(size - start)
        return cast(BinaryIO, io.BufferedReader(_Stream(self, shard, start, size), 1 << 20))

    def content(self, shard: int, start: int, stop: int) -> bytes:
        """These bytes of a shard: headers, and zeros."""
        data, samples = bytearray(stop - start), self._samples
        last = min(-(-stop // samples.stride), self._sizes[shard])
        for number in range(start // samples.stride, last):
            jpg, cls = samples.names(shard, number)
            at = number * samples.stride
            for place, member, size in ((at, jpg, samples.payload), (at + samples.cls_header, cls, 1)):
                if start <= place and place + tar.BLOCK <= stop:
                    data[place - start : place - start + tar.BLOCK] = tar.header(member, size)
        return bytes(data)

    def list(self, prefix: str = "") -> list[str]:
        return [name(shard) for shard in range(len(self._sizes)) if name(shard).startswith(prefix)]

    def write_atomic(self, name: str, chunks: Iterable[Chunk], *, durable: bool = True) -> None:
        raise StoreError(f"{self.url(name)} cannot be written: nothing is there")

    def delete(self, name: str) -> None:
        raise StoreError(f"{self.url(name)} cannot be removed: nothing is there")


class _Stream(io.RawIOBase):
    def __init__(self, server: Server, shard: int, start: int, size: int) -> None:
        self._server, self._shard, self._at, self._size = server, shard, start, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._server.content(self._shard, self._at, min(self._at + len(buffer), self._size))
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


def _number(member: str) -> int:
    return int(member.partition("-")[2].partition(".")[0])


def _pieces(length: int) -> list[int]:
    """The requests of one after the other of a whole file."""
    return [min(CHUNK, length - at) for at in range(0, length, CHUNK)]
