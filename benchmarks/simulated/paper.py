"""What a dataset of any size would take, by arithmetic: sizes of files, memory, requests.

For N samples of ``payload`` bytes in shards of at most ``shard_bytes``, read by S streams (ranks times workers):

    samples of a shard   n = (shard_bytes - 1024) / stride, rounded down; stride is what a sample takes in a tar
    shards               M = N / n, rounded up
    info.json            M times the bytes of an entry, as measured; so the time and the memory of opening it
    an index             n times the bytes of a line
    order                M times the bytes that planning took for a shard, as measured; in each worker
    shards of a stream   N / S / n + 1
    open indexes         n times the bytes of a sample in an open index, as measured, for as many shards as a reader keeps open,
                         or as its stream has; in each worker
    requests             2 (M + S) + M n stride / chunk + 6 * 16 S, as docs/remote.md has it, all of an epoch
    epoch                N / (ranks times rate)
"""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass

from benchmarks.simulated.server import CHUNK
from benchmarks.simulated.setting import Samples, Setting
from wds_tools.format import index
from wds_tools.format.tar import END
from wds_tools.stream.order import Order
from wds_tools.stream.reader import MAX_KEEP
from wds_tools.stream.table import Table


@dataclass(frozen=True)
class Rates:
    """What was measured, by shard: bytes and seconds of opening info.json, bytes of planning; and by sample of an open index."""

    listed: float
    opening: float
    opening_peak: float
    planning: float
    indexed: float


@dataclass(frozen=True)
class Figures:
    """Bytes, seconds and counts of one dataset."""

    samples: int
    per_shard: int
    shards: int
    data: int
    manifest: float
    opening: float
    opening_peak: float
    index: int
    order: float
    by_stream: int
    open_indexes: float
    requests: float
    epoch: float


def figures(setting: Setting, samples: Samples, total: int, shard_bytes: int, rates: Rates) -> Figures:
    per_shard = (shard_bytes - len(END)) // samples.stride
    shards = -(-total // per_shard)
    data = total * samples.stride + shards * len(END)
    by_stream = min(-(-total // (setting.streams * per_shard)) + 1, shards)
    order = Order([per_shard])
    kept = min(2 * order.interleave + 2 * order.window // per_shard, MAX_KEEP, by_stream)
    return Figures(
        samples=total,
        per_shard=per_shard,
        shards=shards,
        data=data,
        manifest=rates.listed * shards,
        opening=rates.opening * shards,
        opening_peak=rates.opening_peak * shards,
        index=per_shard * line_bytes(samples),
        order=rates.planning * shards,
        by_stream=by_stream,
        open_indexes=kept * per_shard * rates.indexed,
        requests=expected_requests(shards, setting.streams, data),
        epoch=setting.seconds(total),
    )


def expected_requests(shards: int, streams: int, data: int) -> float:
    """Requests of an epoch as docs/remote.md has them."""
    return 2 * (shards + streams) + data / CHUNK + 6 * 16 * streams


def line_bytes(samples: Samples) -> int:
    """Bytes of an index line of a typical sample."""
    return len(samples.index(50_000, 1000)) // 1000


def table_bytes(samples: Samples, count: int = 1280) -> float:
    """Bytes of memory that each sample of an open index takes."""
    lines = index.split_lines(samples.index(50_000, count))
    tracemalloc.start()
    try:
        table = Table(lines, frozenset({"jpg", "cls"}))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(table.keys) >= count
    return taken / count
