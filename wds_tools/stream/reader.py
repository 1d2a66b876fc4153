"""Store + index → samples, at any place, by arithmetic.

A shard is opened once and its index stays in memory as columns of numbers. Local: a small sample costs one ``pread``, a large
one a ``pread`` a field, so that no large payload is copied twice; where a batch has a place for a field, it is read there.
Remote: a single sample is one ranged request, and what a stream needs is fetched ahead of it (`ahead`), for whoever says by
`ShardReader.following` what the stream is.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from functools import partial
from typing import Any

from wds_tools.format import index
from wds_tools.store.cache import CacheStore
from wds_tools.store.local import LocalStore
from wds_tools.store.options import StoreOptions
from wds_tools.stream.ahead import Ahead, Plan
from wds_tools.stream.line import Ids
from wds_tools.stream.opened import LocalShard, Part, RemoteShard, Source, open_shard
from wds_tools.stream.order import Order
from wds_tools.stream.shards import JointShards, Shards

KEEP = 32
MAX_KEEP = 512  # a process may usually open 1024 files
SMALL = 16 << 10  # a sample of at most so many bytes is read with one call

SampleDict = dict[str, Any]
Landing = Callable[[int], "list[memoryview] | None"]


def shards_at_once(order: Order) -> int:
    """How many shards a stream moves through at a time, so that each is opened about once: two groups, and the window's."""
    if not order.shuffle and order.spread == (1, 1):
        return 2
    merged, window = order.spread
    mean = max(order.num_samples // max(len(order.shard_sizes), 1), 1)
    return min(2 * merged + 2 * window // mean, MAX_KEEP)


class ShardReader:
    """Reads samples of ``shards`` by shard number and index. Pickles, and may cross a fork: nothing open goes along.

    ``wanted`` names the fields that are read; None means all. ``keep`` is how many shards stay open.
    """

    def __init__(self, shards: Shards | JointShards, wanted: Collection[str] | None = None, keep: int = KEEP) -> None:
        self._shards = shards
        self._wanted = None if wanted is None else frozenset(wanted)
        self._open: OrderedDict[int, LocalShard | RemoteShard] = OrderedDict()
        self._ahead: Ahead | None = None
        self._keep = keep
        self._pid = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict(), "_ahead": None}

    def following(self, batches: Iterator[Ids], order: Order) -> Generator[Ids, None, None]:
        """``batches`` of ids, as they are: their samples will be read in this order, each batch before the next one.

        What lies ahead in remote shards is then fetched before it is asked for, until the iterator ends or is closed. One
        stream at a time.
        """
        remote = [part for part in self._shards.parts if not isinstance(part.store, LocalStore)]
        if not remote:
            yield from batches
            return
        options = [part.options or StoreOptions() for part in remote]
        cached = any(isinstance(part.store, CacheStore) for part in remote)
        sizes = [shard.size for shard in self._shards.shards]
        plan = Plan.of(order, sizes, min(each.chunk_size for each in options), cached)
        opening = partial(open_shard, self._shards, wanted=self._wanted)
        local = [isinstance(part.store, LocalStore) for part in self._shards.parts for _ in part.shards]
        threads = max(each.concurrency for each in options)
        ahead = self._ahead = Ahead(batches, order, opening, plan, threads, cached, local)
        try:
            yield from ahead.batches()
        finally:
            ahead.close()
            if self._ahead is ahead:
                self._ahead = None

    def read(self, shard: int, number: int, landings: Mapping[str, Landing] | None = None) -> SampleDict:
        """The sample as WebDataset has it: ``__key__``, ``__url__``, and the fields as bytes.

        ``landings`` says for some fields where bytes of a given length may be put; the field's value then is that memory.
        Raises `StoreError` for bytes that are not there and `StaleIndexError` for an index of another shard.
        """
        source = self._source(shard, number)
        table = source.table
        if table.mixed is not None:
            return self._read_mixed(source, number)
        sample: SampleDict = {"__key__": table.keys[number], "__url__": source.url}
        if not table.fields:
            return sample
        length = table.spans[number]
        if length <= SMALL:
            first = table.firsts[number]
            data = source.pread(length, first)
            for ext, offsets, sizes in table.fields:
                at = offsets[number] - first
                sample[ext] = data[at : at + sizes[number]]
        else:
            for ext, offsets, sizes in table.fields:
                pieces = landings[ext](sizes[number]) if landings and ext in landings else None
                if pieces is not None and source.land(pieces, offsets[number]):
                    sample[ext] = pieces
                else:
                    sample[ext] = source.pread(sizes[number], offsets[number])
        return sample

    def _read_mixed(self, source: Source, number: int) -> SampleDict:
        sample: SampleDict = {"__key__": source.table.key(number), "__url__": source.url}
        for field in source.table.mixed_fields(number):
            sample[field.ext] = source.pread(field.size, field.offset)
        return sample

    def _source(self, shard: int, number: int) -> Source:
        found = self._ahead.take(shard, number) if self._ahead is not None else None
        if found is not None:
            return found
        opened = self._open.get(shard) or self._open_shard(shard)
        return opened if isinstance(opened, LocalShard) else Part(opened, [number]).fetch_now()

    def place(self, shard: int, number: int) -> tuple[str, str, int]:
        """Shard, key and first offset of a sample, for a message about it."""
        opened = self._open.get(shard) or self._open_shard(shard)
        table = opened.table
        if table.mixed is not None:
            return opened.url, table.key(number), index.parse_line(table.mixed[number]).fields[0].offset
        return opened.url, table.key(number), table.fields[0][1][number] if table.fields else 0

    def close(self) -> None:
        """Let go of every open shard."""
        while self._open:
            self._open.popitem()[1].close()

    def after_fork(self) -> None:
        """Let go of what a parent process opened: the descriptors are shared, and nothing says for how long."""
        if self._pid != os.getpid():
            self._open, self._ahead, self._pid = OrderedDict(), None, os.getpid()

    def _open_shard(self, shard: int) -> LocalShard | RemoteShard:
        opened = open_shard(self._shards, shard, self._wanted)
        self._open[shard] = opened
        while len(self._open) > self._keep:
            self._open.popitem(last=False)[1].close()
        return opened
