"""The origin of datasets: every field is read where it lies in a shard, each shard being the one that was planned.

A field's place is ``<shard>:<offset>``, for a local shard: one ``pread``. On a server a request a field would take as long as the
way there and back for each, so the place of a remote field names a block as well, ``<shard>:<offset>:<start>:<stop>``: a run of
samples of about `BLOCK` bytes, which one request fetches. The plan shuffles blocks into pools and samples within a pool; the last
`KEPT` bytes of blocks stay in memory. ``<shard>=7`` is no place but the bytes themselves, of a label that has changed.

Size and time of a local shard are compared whenever it is opened and again when it is closed, so that one that is written over
meanwhile is noticed; of a remote one every request pins the version.
"""

from __future__ import annotations

import functools
import json
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wds_tools.convert.origin import Recent
from wds_tools.errors import ChangedError, NotFoundError, SampleError, SourceChangedError, StoreError
from wds_tools.store.base import Store, Version
from wds_tools.store.http import HttpStore
from wds_tools.store.local import LocalStore
from wds_tools.store.options import StoreOptions
from wds_tools.store.s3 import S3Store

BLOCK = 8 << 20  # bytes of a request, of the samples side by side in a remote shard
KEPT = 512 << 20  # bytes of blocks in memory, of one worker
OPEN = 128  # local shards that are open at a time

_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True)
class Pinned:
    """A shard as it was when the plan was made. A local one's tag is its time."""

    store: Store
    name: str
    version: Version


def local_version(path: str) -> Version:
    """Size and time of a file. Not its number, which may differ between machines that share a disk."""
    return _version(os.stat(path))


def _version(status: os.stat_result) -> Version:
    return Version(status.st_size, str(status.st_mtime_ns))


def dump_root(shards: Sequence[Pinned], options: StoreOptions | None) -> str:
    """What `ShardOrigin` is opened with: every shard, by its number. There are no secrets in it, since it is written down."""
    default = asdict(StoreOptions())
    changed = {
        key: os.fspath(value) if key == "ca_file" else value
        for key, value in asdict(options or StoreOptions()).items()
        if value != default[key]
    }
    places = list(dict.fromkeys(shard.store.url() for shard in shards))
    number = {place: index for index, place in enumerate(places)}
    listed = [[number[shard.store.url()], shard.name, shard.version.size, shard.version.tag] for shard in shards]
    return json.dumps({"places": places, "options": changed, "shards": listed})


@functools.lru_cache(maxsize=1)
def _load_root(root: str) -> tuple[Pinned, ...]:
    content: dict[str, Any] = json.loads(root)
    options = StoreOptions(**content["options"])
    stores = [_open_store(place, options) for place in content["places"]]
    return tuple(Pinned(stores[place], name, Version(size, tag)) for place, name, size, tag in content["shards"])


def _open_store(place: str, options: StoreOptions) -> Store:
    if place.startswith("s3://"):
        return S3Store(place, options)
    return HttpStore(place, options) if "://" in place else LocalStore(place)


class ShardOrigin:
    """The shards that ``root`` lists, open. Fields are taken as they are: not every sample has an image."""

    images = False

    def __init__(self, root: str) -> None:
        self._shards = _load_root(root)
        self._files: OrderedDict[int, int] = OrderedDict()  # descriptors by shard, the last used at the end
        self._blocks: Recent[bytes] = Recent(KEPT)

    def __enter__(self) -> ShardOrigin:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._blocks = Recent(KEPT)
        while self._files:
            number, fd = self._files.popitem()
            self._close(number, fd, compare=kind is None)

    def read(self, path: str, size: int, mtime_ns: int, at: str) -> bytes:
        """The bytes of a field. A server that cannot be reached is a `StoreError`, which is no sample's fault."""
        _, changed, label = at.partition("=")
        if changed:
            return label.encode("ascii")
        number, offset, *block = map(int, at.split(":"))
        if not block:
            return self._pread(path, number, offset, size)
        start, stop = block
        data = self._blocks.get((number, start), lambda: self._fetch(number, start, stop))
        return data[offset - start : offset - start + size]

    def _pread(self, path: str, number: int, offset: int, size: int) -> bytes:
        fd = self._files.get(number)
        if fd is None:
            fd = self._open(number)
        else:
            self._files.move_to_end(number)
        try:
            data = _pread(fd, size, offset)
            while 0 < len(data) < size and (more := _pread(fd, size - len(data), offset + len(data))):
                data += more
        except OSError as error:
            raise SampleError(f"unreadable in {self._url(number)!r}: {error.strerror}", repr(path)) from error
        if len(data) != size:
            raise self._changed(number)
        return data

    def _open(self, number: int) -> int:
        path = self._url(number)
        try:
            fd = os.open(path, _FLAGS)
        except FileNotFoundError as error:
            raise self._changed(number) from error
        except OSError as error:
            raise StoreError(f"cannot read {path!r}: {error.strerror}; run again when it is back") from error
        if _version(os.fstat(fd)) != self._shards[number].version:
            os.close(fd)
            raise self._changed(number)
        while len(self._files) >= OPEN:
            self._close(*self._files.popitem(last=False), compare=True)
        self._files[number] = fd
        return fd

    def _close(self, number: int, fd: int, compare: bool) -> None:
        now = _version(os.fstat(fd))
        os.close(fd)
        if compare and now != self._shards[number].version:
            raise self._changed(number)

    def _fetch(self, number: int, start: int, stop: int) -> tuple[bytes, int]:
        shard = self._shards[number]
        try:
            data = shard.store.read(shard.name, start, stop - start, shard.version)
        except (ChangedError, NotFoundError) as error:
            raise self._changed(number) from error
        return data, len(data)

    def _url(self, number: int) -> str:
        shard = self._shards[number]
        return shard.store.url(shard.name)

    def _changed(self, number: int) -> SourceChangedError:
        return SourceChangedError(
            f"{self._url(number)!r} is gone or was replaced since the plan was made; run again for a new plan"
        )


def _pread(fd: int, size: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(fd, size, offset)
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, size)
