"""Shards that are open: a file of this machine, or a shard on a server of which parts are fetched.

A sample is read from a `LocalShard`, or from a `Part`: bytes of a remote shard that a request brought, or will bring. What
they share is `Source`. A shard is checked when it is opened: its size against the manifest, the index against the
size; a local one its headers and its end, a remote one the header before every part, which costs no request of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from concurrent.futures import Future
from typing import Protocol

from wds_tools.errors import (
    FormatError,
    IndexFileError,
    SampleError,
    StaleIndexError,
    StoreError,
    TarError,
)
from wds_tools.format import index, tar
from wds_tools.records import ShardInfo
from wds_tools.store.base import Store, Version
from wds_tools.store.cache import CacheStore
from wds_tools.store.local import LocalStore, store_error
from wds_tools.stream.shards import MAX_FIELD, JointShards, Shards, find_lines
from wds_tools.stream.table import Table

ADVANCE = 4 << 20  # what lies ahead in a local shard is announced to the kernel in steps of so many bytes


class Source(Protocol):
    """What a sample is read from."""

    @property
    def table(self) -> Table: ...

    @property
    def url(self) -> str: ...

    def pread(self, length: int, offset: int) -> bytes:
        """The bytes at an offset in the shard. Raises `StoreError`, `StaleIndexError`, and `SampleError` for a huge field."""

    def land(self, pieces: list[memoryview], offset: int) -> bool:
        """Put bytes straight into these pieces of memory; False where that is not to be had, and `pread` is to tell why."""


def open_shard(shards: Shards | JointShards, number: int, wanted: frozenset[str] | None) -> LocalShard | RemoteShard:
    """A shard with its index, checked. Costs a remote store two requests; a whole copy in a cache is opened as a file."""
    shards, number = shards.own(number)
    store, info = shards.store, shards.shards[number]
    lines = shards.lines.get(number)
    if lines is None:
        lines = find_lines(store, info.name)
    if len(lines) != info.samples:
        raise StaleIndexError(
            f"{store.url(info.name)}: its index lists {len(lines)} samples where {info.samples} are expected; "
            "run 'wds-tools index' on the dataset"
        )
    try:
        table = Table(lines, wanted)
    except (ValueError, OverflowError) as error:
        raise IndexFileError(
            f"{store.url(index.index_name(info.name))}: malformed ({error}); make it anew with 'wds-tools index'"
        ) from None
    ends = lines[:1] + lines[-1:]
    url = store.url(info.name)
    if isinstance(store, LocalStore):
        return LocalShard(url, url, info, table, ends)
    opened = RemoteShard(store, info, table, ends)
    return opened.kept_copy() or opened


class LocalShard:
    """The file at ``path``, known to users as ``url``."""

    _fd = -1
    _close = staticmethod(os.close)  # at the interpreter's end modules are gone before shards are

    def __init__(self, path: str, url: str, info: ShardInfo, table: Table, ends: Collection[bytes]) -> None:
        self.table = table
        self.url = url
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise store_error(error, path, "read") from error
        self._size = os.fstat(self._fd).st_size
        self._announced = 0
        if table.end > self._size:
            self.close()
            raise StaleIndexError(
                f"{path!r} has {self._size} bytes where its index expects {table.end} or more; fetch the shard again, "
                "or run 'wds-tools index' on it if it is right"
            )
        if info.size is not None and info.size != self._size:
            self.close()
            raise StaleIndexError(
                f"{path!r} has {self._size} bytes where the manifest says {info.size}; fetch the shard again, "
                "or run 'wds-tools index' on the dataset if this one is right"
            )
        with open(self._fd, "rb", closefd=False) as file:
            try:
                index.check_fits([index.parse_line(line) for line in ends], file, self._size, path)
            except FormatError:
                self.close()
                raise

    def pread(self, length: int, offset: int) -> bytes:
        if length > MAX_FIELD:
            raise _too_large(length)
        try:
            self._announce(offset, length)
            data = os.pread(self._fd, length, offset)
            if len(data) != length:
                while len(data) < length and (more := os.pread(self._fd, length - len(data), offset + len(data))):
                    data += more
        except OSError as error:
            raise store_error(error, self._path, "read") from error
        if len(data) != length:
            raise StaleIndexError(
                f"{self._path!r} ends at byte {offset + len(data)} where its index expects {offset + length}; "
                "fetch the shard again, or run 'wds-tools index' on it if it is right"
            )
        return data

    def land(self, pieces: list[memoryview], offset: int) -> bool:
        length = sum(map(len, pieces))
        if length > MAX_FIELD or not hasattr(os, "preadv"):
            return False
        try:
            self._announce(offset, length)
            return os.preadv(self._fd, pieces, offset) == length
        except OSError:
            return False

    def read_little(self) -> None:
        """Announce nothing to the kernel: of what lies ahead, little is going to be read."""
        self._announced = sys.maxsize

    def _announce(self, offset: int, length: int) -> None:
        if offset + length > self._announced and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, offset, ADVANCE, os.POSIX_FADV_WILLNEED)
            self._announced = offset + ADVANCE

    def close(self) -> None:
        if self._fd >= 0:
            self._close(self._fd)
            self._fd = -1

    __del__ = close


class RemoteShard:
    """A shard on a server. All that is ever read of it belongs to the version that it had when it was opened."""

    def __init__(self, store: Store, info: ShardInfo, table: Table, ends: Collection[bytes]) -> None:
        self.table = table
        self.url = store.url(info.name)
        self.version: Version = store.version(info.name)
        self._cache = store if isinstance(store, CacheStore) else None
        self._store = store.source if isinstance(store, CacheStore) else store
        self._info = info
        self._ends = ends
        if info.size is not None and info.size != self.version.size:
            raise StoreError(
                f"{self.url} has {self.version.size} bytes where the manifest says {info.size}: it was replaced; "
                "upload shard and manifest again"
            )
        if table.end > self.version.size:
            raise StaleIndexError(
                f"{self.url} has {self.version.size} bytes where its index expects {table.end} or more; "
                "make it anew with 'wds-tools index'"
            )

    def fetch(self, start: int, stop: int, first: int, last: int) -> bytes:
        """The bytes from ``start`` to ``stop``, from the header of sample ``first`` to the end of ``last``: one request."""
        data = self._store.read(self._info.name, start, stop - start, self.version)
        try:
            fits = self._fits(data, start, first, 0) and self._fits(data, start, last, -1)
        except TarError:
            fits = False
        if not fits:
            raise StaleIndexError(
                f"{self.url}: the index beside it speaks of another shard; make it anew with 'wds-tools index'"
            )
        return data

    def _fits(self, data: bytes, start: int, number: int, place: int) -> bool:
        """Whether the header of a field is where the index has it."""
        field = self.table.field(number, place)
        if field is None:
            return True
        at = field.offset - tar.BLOCK - start
        return index.is_header_of(field, data[at : at + tar.BLOCK])

    def kept_copy(self) -> LocalShard | None:
        """The copy of this shard that a cache has."""
        return self._local(None if self._cache is None else self._cache.find(self._info.name, self.version))

    def made_copy(self) -> LocalShard | None:
        """The same, fetched whole if need be; None where the cache cannot have one."""
        return self._local(None if self._cache is None else self._cache.local_path(self._info.name, self.version))

    def _local(self, path: str | None) -> LocalShard | None:
        if path is None:
            return None
        try:
            return LocalShard(path, self.url, self._info, self.table, self._ends)
        except StoreError:  # another process made room meanwhile
            return None

    def close(self) -> None:
        """Nothing is held."""


class Part:
    """Bytes of a remote shard, there or under way. ``left`` counts the samples that are still to be read of it."""

    __slots__ = ("_bytes", "_shard", "_start", "_stop", "coming", "left", "numbers", "table", "url")

    def __init__(self, shard: RemoteShard, numbers: list[int]) -> None:
        """``numbers`` are samples in the order of the shard, of which something is wanted."""
        self._shard, self.table, self.url, self.numbers = shard, shard.table, shard.url, numbers
        first, self._stop = shard.table.extent(numbers[0])[0], shard.table.extent(numbers[-1])[1]
        self._start = max(first - tar.BLOCK, 0)
        self.left = len(numbers)
        self.coming: Future[bytes] = Future()
        self._bytes: bytes | None = None

    @property
    def size(self) -> int:
        return self._stop - self._start

    def fetch(self) -> bytes:
        """One request. `SampleError` for a single sample that is too large for anybody."""
        if self.size > MAX_FIELD:
            _refuse_huge(self.table, self.numbers[0])
        return self._shard.fetch(self._start, self._stop, self.numbers[0], self.numbers[-1]) if self.size else b""

    def fetch_now(self) -> Part:
        self._bytes = self.fetch()
        return self

    def data(self) -> bytes:
        """The bytes, waited for; raises what became of the request."""
        if self._bytes is None:
            self._bytes = self.coming.result()
        return self._bytes

    def pread(self, length: int, offset: int) -> bytes:
        if length > MAX_FIELD:
            raise _too_large(length)
        at = offset - self._start
        return self.data()[at : at + length]

    def land(self, pieces: list[memoryview], offset: int) -> bool:
        view = memoryview(self.data())
        at = offset - self._start
        for piece in pieces:
            piece[:] = view[at : at + len(piece)]
            at += len(piece)
        return True


def _refuse_huge(table: Table, number: int) -> None:
    """`SampleError` for a sample with a field that nobody reads."""
    if table.mixed is not None:
        sizes = [field.size for field in table.mixed_fields(number)]
    else:
        sizes = [sizes[number] for _, _, sizes in table.fields]
    if sizes and max(sizes) > MAX_FIELD:
        raise _too_large(max(sizes))


def _too_large(length: int) -> SampleError:
    """Fields of more than `MAX_FIELD` are read by nobody: a shard is untrusted, and memory is not without end."""
    return SampleError(f"a field of it has {length} bytes; at most {MAX_FIELD} are read")
