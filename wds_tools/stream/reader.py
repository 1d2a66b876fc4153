"""Store + index → samples, at any place, by arithmetic.

A shard is opened once and its index stays in memory as columns of numbers. A small sample costs one ``pread``, a large
one a ``pread`` a field, so that no large payload is copied twice; where a batch has a place for a field, it is read
there. What lies ahead of a stream that moves forward is announced to the kernel in steps of `AHEAD` bytes.

Shards are checked on opening: their size against the manifest, the index against the size, the headers and the end.
"""

from __future__ import annotations

import os
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from itertools import repeat
from typing import Any

import numpy as np

from wds_tools.errors import (
    FormatError,
    IndexFileError,
    NotFoundError,
    SampleError,
    StaleIndexError,
    StoreError,
    TarError,
)
from wds_tools.format import index, tar
from wds_tools.records import Field, ShardInfo
from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore, store_error
from wds_tools.stream.order import Order
from wds_tools.stream.shards import MAX_FIELD, Shards, load_lines, scan_lines

KEEP = 32
MAX_KEEP = 512  # a process may usually open 1024 files
SMALL = 16 << 10  # a sample of at most so many bytes is read with one call
AHEAD = 4 << 20
REMOTE_CHUNK = 2 << 20
REMOTE_CHUNKS = 2  # kept of each open remote shard

SampleDict = dict[str, Any]
Landing = Callable[[int], "list[memoryview] | None"]


class _Columns:
    """An index in memory: key by position, and a row ``(ext, offsets, sizes)`` for each field that is wanted.

    Samples of one shard nearly always have the same fields; `mixed` keeps the lines of those that do not. Offsets and
    sizes are held against each other here, so that later each is a place in the shard: ``ValueError`` if they are none.
    """

    def __init__(self, lines: list[bytes], wanted: frozenset[str] | None) -> None:
        self.mixed: list[bytes] | None = None
        self.end = 0  # where the last payload ends
        self.fields: list[tuple[str, array[int], array[int]]] = []
        self.keys: list[str] = []
        if not lines:
            return
        widths = {spaces + 1 for spaces in set(map(bytes.count, lines, repeat(b" ")))}
        if any(width % 4 for width in widths):
            raise ValueError("a line whose columns are no multiple of four")
        columns = b" ".join(lines).split(b" ")
        offsets = array("q", map(int, columns[1::4]))
        sizes = array("q", map(int, columns[2::4]))
        _check_places(np.frombuffer(offsets, np.int64), np.frombuffer(sizes, np.int64))
        self.end = offsets[-1] + sizes[-1]
        width = lines[0].count(b" ") + 1
        exts = columns[0:width:4]
        if columns[::4] != exts * len(lines) or len(widths) > 1:
            self.mixed = lines
            return
        joined = b""
        for number, raw in enumerate(exts):
            # All names at once, each with a line's end behind it, which no name has inside.
            end = b"." + raw.lower() + b"\n"
            names = b"\n".join(columns[4 * number + 3 :: width]) + b"\n"
            if raw != raw.lower() or names.count(end) != len(lines) or (number and names.replace(end, b"\n") != joined):
                self.mixed = lines  # `key` and `read` tell which one is wrong
                return
            joined = names.replace(end, b"\n")
        self.keys = joined.decode("utf-8", "surrogateescape").split("\n")
        if b"\\" in joined:
            self.keys = list(map(index.unescape, self.keys))
        fields = width // 4
        for number, raw in enumerate(exts):
            ext = index.unescape(raw.decode("utf-8", "surrogateescape")).lower()
            if wanted is None or ext in wanted:
                self.fields.append((ext, offsets[number::fields], sizes[number::fields]))
        if self.fields:
            (_, self.firsts, _), (_, lasts, ends) = self.fields[0], self.fields[-1]
            spans = (
                np.frombuffer(lasts, np.int64) + np.frombuffer(ends, np.int64) - np.frombuffer(self.firsts, np.int64)
            )
            self.spans = array("q", spans.tobytes())

    def key(self, number: int) -> str:
        if self.mixed is not None:
            return index.parse_line(self.mixed[number]).key
        return self.keys[number]


def _check_places(offsets: np.ndarray[Any, np.dtype[np.int64]], sizes: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """Every payload begins at a block, behind the one before it and a header: as `index.load` has it, for many at once."""
    if offsets.min() < tar.BLOCK or sizes.min() < 0:
        raise ValueError("a place before the shard's first payload")
    if (offsets % tar.BLOCK).any() or (offsets[1:] - offsets[:-1] - tar.BLOCK < sizes[:-1]).any():
        raise ValueError("an offset that can be no payload's")


def shards_at_once(order: Order) -> int:
    """How many shards a stream moves through at a time, so that each is opened about once: two groups, and the window's."""
    if not order.shuffle:
        return 2
    mean = max(order.num_samples // max(len(order.shard_sizes), 1), 1)
    return min(2 * order.interleave + 2 * order.window // mean, MAX_KEEP)


class ShardReader:
    """Reads samples of ``shards`` by shard number and index. Pickles, and may cross a fork: nothing open goes along.

    ``wanted`` names the fields that are read; None means all. ``keep`` is how many shards stay open.
    """

    def __init__(self, shards: Shards, wanted: Collection[str] | None = None, keep: int = KEEP) -> None:
        self._shards = shards
        self._wanted = None if wanted is None else frozenset(wanted)
        self._open: OrderedDict[int, _LocalShard | _RemoteShard] = OrderedDict()
        self._keep = keep
        self._pid = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def read(self, shard: int, number: int, landings: Mapping[str, Landing] | None = None) -> SampleDict:
        """The sample as WebDataset has it: ``__key__``, ``__url__``, and the fields as bytes.

        ``landings`` says for some fields where bytes of a given length may be put; the field's value then is that memory.
        Raises `StoreError` for bytes that are not there and `StaleIndexError` for an index of another shard.
        """
        opened = self._open.get(shard) or self._open_shard(shard)
        columns = opened.columns
        if columns.mixed is not None:
            return self._read_mixed(opened, columns.mixed[number])
        sample: SampleDict = {"__key__": columns.keys[number], "__url__": opened.url}
        if not columns.fields:
            return sample
        length = columns.spans[number]
        if length <= SMALL:
            first = columns.firsts[number]
            data = opened.pread(length, first)
            for ext, offsets, sizes in columns.fields:
                at = offsets[number] - first
                sample[ext] = data[at : at + sizes[number]]
        else:
            for ext, offsets, sizes in columns.fields:
                pieces = landings[ext](sizes[number]) if landings and ext in landings else None
                if pieces is not None and opened.land(pieces, offsets[number]):
                    sample[ext] = pieces
                else:
                    sample[ext] = opened.pread(sizes[number], offsets[number])
        return sample

    def _read_mixed(self, opened: _LocalShard | _RemoteShard, line: bytes) -> SampleDict:
        found = index.parse_line(line)
        sample: SampleDict = {"__key__": found.key, "__url__": opened.url}
        for field in found.fields:
            if self._wanted is None or field.ext in self._wanted:
                sample[field.ext] = opened.pread(field.size, field.offset)
        return sample

    def place(self, shard: int, number: int) -> tuple[str, str, int]:
        """Shard, key and first offset of a sample, for a message about it."""
        opened = self._open.get(shard) or self._open_shard(shard)
        columns = opened.columns
        if columns.mixed is not None:
            return opened.url, columns.key(number), index.parse_line(columns.mixed[number]).fields[0].offset
        return opened.url, columns.key(number), columns.fields[0][1][number] if columns.fields else 0

    def close(self) -> None:
        """Let go of every open shard."""
        while self._open:
            self._open.popitem()[1].close()

    def after_fork(self) -> None:
        """Let go of what a parent process opened: the descriptors are shared, and nothing says for how long."""
        if self._pid != os.getpid():
            self._open, self._pid = OrderedDict(), os.getpid()

    def _load_lines(self, name: str) -> list[bytes]:
        store = self._shards.store
        try:
            return load_lines(store, name)
        except NotFoundError:
            if isinstance(store, LocalStore):
                return scan_lines(store, name)
            raise NotFoundError(f"{store.url(name)} has no index; make one with 'wds-tools index'") from None

    def _open_shard(self, shard: int) -> _LocalShard | _RemoteShard:
        store, info = self._shards.store, self._shards.shards[shard]
        lines = self._shards.lines.get(shard)
        if lines is None:
            lines = self._load_lines(info.name)
        if len(lines) != info.samples:
            raise StaleIndexError(
                f"{store.url(info.name)}: its index lists {len(lines)} samples where {info.samples} are expected; "
                "run 'wds-tools index' on the dataset"
            )
        try:
            columns = _Columns(lines, self._wanted)
        except (ValueError, OverflowError) as error:
            raise IndexFileError(
                f"{store.url(index.index_name(info.name))}: malformed ({error}); make it anew with 'wds-tools index'"
            ) from None
        kind = _LocalShard if isinstance(store, LocalStore) else _RemoteShard
        opened = kind(store, info, columns, lines[:1] + lines[-1:])
        self._open[shard] = opened
        while len(self._open) > self._keep:
            self._open.popitem(last=False)[1].close()
        return opened


def _too_large(length: int) -> SampleError:
    """Fields of more than `MAX_FIELD` are read by nobody: a shard is untrusted, and memory is not without end."""
    return SampleError(f"a field of it has {length} bytes; at most {MAX_FIELD} are read")


class _LocalShard:
    _fd = -1

    def __init__(self, store: Store, info: ShardInfo, columns: _Columns, ends: list[bytes]) -> None:
        self.columns = columns
        self.url = store.url(info.name)
        try:
            self._fd = os.open(self.url, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise store_error(error, self.url, "read") from error
        self._size = os.fstat(self._fd).st_size
        self._announced = 0
        if columns.end > self._size:
            self.close()
            raise StaleIndexError(
                f"{self.url!r} has {self._size} bytes where its index expects {columns.end} or more; fetch the shard again, "
                "or run 'wds-tools index' on it if it is right"
            )
        if info.size is not None and info.size != self._size:
            self.close()
            raise StaleIndexError(
                f"{self.url!r} has {self._size} bytes where the manifest says {info.size}; fetch the shard again, "
                "or run 'wds-tools index' on the dataset if this one is right"
            )
        with open(self._fd, "rb", closefd=False) as file:
            try:
                index.check_fits([index.parse_line(line) for line in ends], file, self._size, self.url)
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
            raise store_error(error, self.url, "read") from error
        if len(data) != length:
            raise StaleIndexError(
                f"{self.url!r} ends at byte {offset + len(data)} where its index expects {offset + length}; "
                "fetch the shard again, or run 'wds-tools index' on it if it is right"
            )
        return data

    def land(self, pieces: list[memoryview], offset: int) -> bool:
        """Read straight into these pieces of memory; False where that is not to be had, and `pread` is to tell why."""
        length = sum(map(len, pieces))
        if length > MAX_FIELD or not hasattr(os, "preadv"):
            return False
        try:
            self._announce(offset, length)
            return os.preadv(self._fd, pieces, offset) == length
        except OSError:
            return False

    def _announce(self, offset: int, length: int) -> None:
        if offset + length > self._announced and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, offset, AHEAD, os.POSIX_FADV_WILLNEED)
            self._announced = offset + AHEAD

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


class _RemoteShard:
    """A shard read in aligned chunks, of which the last few stay: a stream moves forward, with small steps back."""

    def __init__(self, store: Store, info: ShardInfo, columns: _Columns, ends: list[bytes]) -> None:
        self.columns = columns
        self.url = store.url(info.name)
        self._store = store
        self._name = info.name
        self._size = store.size(info.name)
        self._chunks: OrderedDict[int, bytes] = OrderedDict()
        if info.size is not None and info.size != self._size:
            raise StoreError(
                f"{self.url} has {self._size} bytes where the manifest says {info.size}: it was replaced; "
                "upload shard and manifest again"
            )
        if columns.end > self._size:
            raise StaleIndexError(f"{self.url} has {self._size} bytes where its index expects {columns.end}")
        if ends:
            self._check_header(index.parse_line(ends[-1]).fields[-1])

    def _check_header(self, last: Field) -> None:
        """Whether the last payload is where the index has it: one small request, and a replaced shard shows."""
        block = self._store.read(self._name, last.offset - tar.BLOCK, tar.BLOCK)
        try:
            fits = index.is_header_of(last, block)
        except TarError:
            fits = False
        if not fits:
            raise StaleIndexError(
                f"{self.url}: the index beside it speaks of another shard; make it anew with 'wds-tools index'"
            )

    def pread(self, length: int, offset: int) -> bytes:
        if length > MAX_FIELD:
            raise _too_large(length)
        if offset + length > self._size:
            raise StaleIndexError(f"{self.url} has {self._size} bytes where its index expects {offset + length}")
        first, last = offset // REMOTE_CHUNK, (offset + length - 1) // REMOTE_CHUNK
        if last - first > 1:
            return self._store.read(self._name, offset, length)
        data = b"".join(self._chunk(number) for number in range(first, last + 1))
        at = offset - first * REMOTE_CHUNK
        return data[at : at + length]

    def land(self, pieces: list[memoryview], offset: int) -> bool:
        return False  # bytes come in chunks of many samples

    def _chunk(self, number: int) -> bytes:
        chunk = self._chunks.get(number)
        if chunk is None:
            start = number * REMOTE_CHUNK
            chunk = self._chunks[number] = self._store.read(self._name, start, min(REMOTE_CHUNK, self._size - start))
            while len(self._chunks) > REMOTE_CHUNKS:
                self._chunks.popitem(last=False)
        return chunk

    def close(self) -> None:
        self._chunks.clear()
