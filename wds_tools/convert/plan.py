"""From entries and options to shards, as a pure function: the same entries in, the same shards out.

The order comes from ``random.Random(seed).random()``, the one sequence that Python promises to keep between versions
(`random.shuffle` does not promise, nor does numpy): every entry draws a number, and the numbers are sorted. Shards are
filled up in that order: one is closed when the next sample would take it over ``max_size`` bytes or ``max_count``
samples. Large plans are computed with numpy, which gives the same numbers and is slow to load.
"""

from __future__ import annotations

import hashlib
import json
import random
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from wds_tools.convert.options import ConvertOptions
from wds_tools.format import tar
from wds_tools.records import ShardPlan

_MANY = 100_000  # entries from which on numpy pays
_LABEL_BYTES = 2 * tar.BLOCK  # a ``cls`` member: header and one block


def permutation(count: int, seed: int) -> Sequence[int]:
    """``range(count)`` shuffled by ``seed``: the positions, sorted by a random number each has drawn."""
    draw = random.Random(seed).random
    draws = [draw() for _ in range(count)]
    if count < _MANY:
        return sorted(range(count), key=draws.__getitem__)
    import numpy as np

    order: list[int] = np.argsort(np.array(draws), kind="stable").tolist()
    return order


def tar_bytes(sizes: Sequence[int], scale: float, fixed: int) -> Sequence[int]:
    """What each sample takes in a shard: a member of ``scale`` times its source's size, and ``fixed`` for the others."""
    if len(sizes) < _MANY:
        return [fixed + tar.member_bytes(int(size * scale)) for size in sizes]
    import numpy as np

    payloads = (np.asarray(sizes, dtype=np.int64) * scale).astype(np.int64)
    return array("q", (fixed + tar.BLOCK + payloads + -payloads % tar.BLOCK).tobytes())


def running_totals(weights: Sequence[int], order: Sequence[int]) -> Sequence[int]:
    """At each position of ``order``, the sum of the ``weights`` up to and with it."""
    if len(order) < _MANY:
        return array("q", accumulate(map(weights.__getitem__, order)))
    import numpy as np

    return array("q", np.cumsum(np.asarray(weights)[np.asarray(order)]).tobytes())


def cut(weights: Sequence[int], order: Sequence[int], max_size: int, max_count: int | None) -> Iterator[Sequence[int]]:
    """Cut ``order`` into runs whose ``weights`` add up to at most ``max_size``, each of at least one sample."""
    ends = running_totals(weights, order)
    start = before = 0
    while start < len(order):
        stop = bisect_right(ends, before + max_size - len(tar.END), lo=start)
        if max_count is not None:
            stop = min(stop, start + max_count)
        stop = max(stop, start + 1)
        yield order[start:stop]
        start, before = stop, ends[stop - 1]


def settings_digest(settings: dict[str, Any]) -> str:
    """What every shard's digest begins with, so that no shard of other settings passes for one of these."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def shard_digest(settings: str, name: str, blob: bytes) -> str:
    """A digest over everything that decides a shard's bytes: `settings_digest`, its name, its entries."""
    return hashlib.sha256(b"\0".join((settings.encode(), name.encode(), blob))).hexdigest()


def make_plan(
    lines: Sequence[str], sizes: Sequence[int], options: ConvertOptions, *, scale: float = 1.0
) -> Iterator[tuple[ShardPlan, bytes]]:
    """Each shard's plan, and the lines of its entries as bytes. ``scale`` is expected output per source byte."""
    weights = tar_bytes(sizes, scale, _LABEL_BYTES)
    if options.metadata:
        weights = [weight + _metadata_bytes(line) for weight, line in zip(weights, lines, strict=True)]
    order = permutation(len(lines), options.seed) if options.shuffle else range(len(lines))
    settings = settings_digest(options.settings())
    for number, run in enumerate(cut(weights, order, options.max_size, options.max_count)):
        name = f"{options.split}-{number:06d}.tar"
        blob = "\n".join(map(lines.__getitem__, run)).encode("utf-8", "surrogateescape")
        yield ShardPlan(name, shard_digest(settings, name, blob), len(run)), blob


def _metadata_bytes(line: str) -> int:
    """At most what the ``json`` field takes that holds the entry's path and its class, whose name begins the path."""
    path = line.split("\t", 4)[3]
    return tar.member_bytes(len('{"class": , "path": }') + 2 * len(json.dumps(path)))
