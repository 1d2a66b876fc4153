"""How fast one process reads raw samples of a dataset: the bytes that training would read, nothing decoded.

Local shards are read in the order of training, a few of them. They are dropped from the page cache before, as far as the
kernel does that, read again from there, and put back if they were there: see `page_cache`. What is on a server is read
shard by shard, so that what is fetched is also used in so short a time; what the server itself had at hand nobody can tell.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from wds_tools.errors import FormatError, SampleError
from wds_tools.store.local import LocalStore
from wds_tools.stream.order import Order, Topology
from wds_tools.stream.reader import SampleDict, ShardReader, shards_at_once
from wds_tools.stream.shards import Shards
from wds_tools.tools import page_cache
from wds_tools.tools.verdict import CACHED, Read, Source

Note = Callable[[int, int], None]
"""Is told samples and bytes, as they come."""

READ_SHARDS = 4
PROBED_SHARDS = 32
COLD = 0.1  # of the files in memory, at most: they are read from the disk
KEPT_SAMPLES = 512
KEPT_BYTES = 256 << 20
_STEP = 64  # samples between two notes


@dataclass(frozen=True)
class Reading:
    """The passes over the samples, and those that the first one began with, to go on with in memory."""

    reads: tuple[Read, ...]
    samples: list[SampleDict]


def measure_reading(shards: Shards, seconds: float, note: Note, *, cold: bool = True) -> Reading:
    """One pass, and for local shards a second one over the same samples.

    With ``cold``, local shards are dropped from the page cache first. Raises the errors of reading, and `FormatError`
    where no sample can be read.
    """
    if is_remote(shards):
        order = Order(shards.sizes, shuffle=False)
        with contextlib.closing(ShardReader(shards, keep=shards_at_once(order))) as reader:
            read, samples, _ = _read(reader, order, seconds, None, "network", note)
        return Reading((read,), samples)
    shards = _some(shards, READ_SHARDS)
    order, paths = Order(shards.sizes), _paths(shards)
    before = page_cache.cached_share(paths)
    if cold:
        page_cache.drop(paths)
    source = _source(page_cache.cached_share(paths))
    with contextlib.closing(ShardReader(shards, keep=shards_at_once(order))) as reader:
        first, samples, count = _read(reader, order, seconds, None, source, note)
        if cold and before is not None and before >= CACHED:
            page_cache.fetch(paths)
        again, _, _ = _read(reader, order, seconds / 2, count, "page cache", note)
    return Reading((first, again), samples)


def is_remote(shards: Shards) -> bool:
    return not isinstance(shards.store, LocalStore)


def cached_share(shards: Shards) -> float | None:
    """The part of local shards, 0 to 1, that is in memory; None for remote ones, and where that cannot be told."""
    return None if is_remote(shards) else page_cache.cached_share(_paths(_some(shards, PROBED_SHARDS)))


def _some(shards: Shards, count: int) -> Shards:
    """A few shards, spread over all; those without samples are left out."""
    numbers = [number for number, size in enumerate(shards.sizes) if size]
    if len(numbers) > count:
        numbers = [numbers[place * len(numbers) // count] for place in range(count)]
    lines = {place: shards.lines[number] for place, number in enumerate(numbers) if number in shards.lines}
    return replace(shards, shards=tuple(shards.shards[number] for number in numbers), lines=lines)


def _paths(shards: Shards) -> list[str]:
    return [shards.store.url(shard.name) for shard in shards.shards]


def _source(cached: float | None) -> Source:
    if cached is None:
        return "disk or page cache"
    if cached >= CACHED:
        return "page cache"
    return "disk" if cached <= COLD else "disk and page cache"


def _read(
    reader: ShardReader, order: Order, seconds: float, most: int | None, source: Source, note: Note
) -> tuple[Read, list[SampleDict], int]:
    """Read until the time is over, or the samples are, or ``most`` of them, which a second pass meets again."""
    kept: list[SampleDict] = []
    count = size = 0
    bad: SampleError | None = None
    started = time.perf_counter()
    end = started + seconds
    blocks = reader.following(order.epoch(0, Topology()).stream().blocks(), order)
    places = (place for ids in blocks for place in zip(*(part.tolist() for part in order.locate(ids)), strict=True))
    for shard, number in places:
        try:
            sample = reader.read(shard, number)
        except SampleError as error:
            bad = error
            continue
        count += 1
        size += sum(len(value) for name, value in sample.items() if not name.startswith("__"))
        if len(kept) < KEPT_SAMPLES and size < KEPT_BYTES:
            kept.append(sample)
        if not count % _STEP:
            note(_STEP, 0)
        if time.perf_counter() >= end or count == most:
            break
    elapsed = max(time.perf_counter() - started, 1e-9)
    note(count % _STEP, size)
    if not count:
        raise FormatError(f"none of the samples can be read; the last of them: {bad}; check with 'wds-tools verify'")
    return Read(count / elapsed, size / elapsed, source), kept, count
