"""From entries and options to shards, as a pure function: the same entries in, the same shards out.

The order comes from ``random.Random(seed).random()``, the one sequence that Python promises to keep between versions
(`random.shuffle` does not promise, nor does numpy): every entry draws a number, and the numbers are sorted. Shards are
filled up in that order: one is closed when the next sample would take it over ``max_size`` bytes or ``max_count``
samples. Large plans are computed with numpy, which gives the same numbers and is slow to load, and those that do not
fit in memory through a file (`scatter.py`), which gives the same order.

Where entries come in blocks that are read as a whole or not at all (the row groups of a parquet file), whole blocks are
shuffled and put together to pools of about a shard's size (and no more than a worker can keep decoded), and entries only
within a pool: a shard then needs two or three pools, not all of them.
"""

from __future__ import annotations

import hashlib
import json
import random
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import Any, TypeVar

from wds_tools.convert.options import ConvertOptions
from wds_tools.convert.origin import POOL_BYTES
from wds_tools.convert.scatter import scattered
from wds_tools.convert.spool import Spool
from wds_tools.format import tar
from wds_tools.records import ShardPlan

_MANY = 100_000  # entries from which on numpy pays
_LABEL_BYTES = 2 * tar.BLOCK  # a ``cls`` member: header and one block

Item = TypeVar("Item")
# Lines in their order, and what each takes in a shard.
Weighed = tuple[list[str], Sequence[int]]


def draws(seed: int, pools: Iterable[tuple[int, int]] = ()) -> Iterator[float]:
    """What the entries draw, in turn. Of ``pools``, each a length and a number, every entry draws within its own."""
    draw = random.Random(seed).random
    if not pools:
        return iter(draw, None)
    within = chain.from_iterable(repeat(number, length) for length, number in pools)
    return (number + draw() for number in within)


def permutation(count: int, drawn: Iterator[float]) -> Sequence[int]:
    """``range(count)`` shuffled: the positions, sorted by a number each has drawn."""
    numbers = [next(drawn) for _ in range(count)]
    if count < _MANY:
        return sorted(range(count), key=numbers.__getitem__)
    import numpy as np

    order: list[int] = np.argsort(np.array(numbers), kind="stable").tolist()
    return order


def pool(blocks: Sequence[int], most: int, seed: int) -> list[tuple[int, int]]:
    """Lengths of ``blocks``, each with the number of its pool: blocks are shuffled, and pooled up to ``most`` entries."""
    numbers = [0] * len(blocks)
    number = filled = 0
    for block in permutation(len(blocks), draws(seed)):
        if filled and filled + blocks[block] > most:
            number, filled = number + 1, 0
        numbers[block] = number
        filled += blocks[block]
    return list(zip(blocks, numbers, strict=True))


def tar_bytes(sizes: Sequence[int], scale: float, fixed: int) -> Sequence[int]:
    """What each sample takes in a shard: a member of ``scale`` times its source's size, and ``fixed`` for the others."""
    if len(sizes) < _MANY:
        return [fixed + tar.member_bytes(int(size * scale)) for size in sizes]
    import numpy as np

    payloads = (np.asarray(sizes, dtype=np.int64) * scale).astype(np.int64)
    return array("q", (fixed + tar.BLOCK + payloads + -payloads % tar.BLOCK).tobytes())


def running_totals(weights: Sequence[int]) -> Sequence[int]:
    """At each position, the sum of the ``weights`` up to and with it."""
    if len(weights) < _MANY:
        return array("q", accumulate(weights))
    import numpy as np

    return array("q", np.cumsum(np.asarray(weights, dtype=np.int64)).tobytes())


def cut(
    blocks: Iterable[tuple[Sequence[Item], Sequence[int]]], max_size: int, max_count: int | None
) -> Iterator[Sequence[Item]]:
    """Cut items, which come in ``blocks`` with their weights, into runs, each of at least one item.

    The weights of a run add up to at most ``max_size``. Where the blocks begin and end makes no difference.
    """
    items: Sequence[Item] = []
    weights: Sequence[int] = []
    for more, theirs in blocks:
        # What was left over, and what has come.
        items, weights = ([*items, *more], [*weights, *theirs]) if items else (more, theirs)
        ends = running_totals(weights)
        start = before = 0
        while True:
            stop = bisect_right(ends, before + max_size - len(tar.END), lo=start)
            if max_count is not None:
                stop = min(stop, start + max_count)
            stop = max(stop, start + 1)
            if stop >= len(items):
                break  # what comes next may have a place here
            yield items[start:stop]
            start, before = stop, ends[stop - 1]
        items, weights = items[start:], weights[start:]
    if items:
        yield items


def settings_digest(settings: dict[str, Any]) -> str:
    """What every shard's digest begins with, so that no shard of other settings passes for one of these."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def shard_digest(settings: str, name: str, blob: bytes) -> str:
    """A digest over everything that decides a shard's bytes: `settings_digest`, its name, its entries."""
    return hashlib.sha256(b"\0".join((settings.encode(), name.encode(), blob))).hexdigest()


def make_plan(
    lines: Spool, options: ConvertOptions, *, scale: float = 1.0, blocks: Sequence[int] = ()
) -> Iterator[tuple[ShardPlan, bytes]]:
    """Each shard's plan, and the lines of its entries as bytes.

    ``scale`` is expected output per source byte; ``blocks`` are the lengths of runs of entries that are read as a whole.
    """
    settings = settings_digest(options.settings())

    def weigh(some: list[str], sizes: Sequence[int]) -> Sequence[int]:
        weights = tar_bytes(sizes, scale, _LABEL_BYTES)
        if options.metadata:
            weights = [weight + _metadata_bytes(line) for weight, line in zip(weights, some, strict=True)]
        return weights

    for number, run in enumerate(cut(_ordered(lines, options, blocks, weigh), options.max_size, options.max_count)):
        name = f"{options.split}-{number:06d}.tar"
        blob = "\n".join(run).encode("utf-8", "surrogateescape")
        yield ShardPlan(name, shard_digest(settings, name, blob), len(run)), blob


def _ordered(
    lines: Spool,
    options: ConvertOptions,
    blocks: Sequence[int],
    weigh: Callable[[list[str], Sequence[int]], Sequence[int]],
) -> Iterator[Weighed]:
    """The entries in the order of the shards."""
    weighed = ((some, weigh(some, sizes)) for some, sizes in lines.blocks())
    if not options.shuffle or not len(lines):
        yield from weighed
        return
    pools = pool(blocks, _entries_a_pool(lines, options), options.seed) if blocks else []
    drawn = draws(options.seed, pools)
    if not lines.in_memory:
        highest = 1 + max((number for _, number in pools), default=0)
        yield from scattered(weighed, drawn, len(lines), highest, 2 * lines.block, lines.folder)
        return
    for some, weights in weighed:  # one block
        order = permutation(len(some), drawn)
        yield [some[number] for number in order], array("q", map(weights.__getitem__, order))


def _entries_a_pool(lines: Spool, options: ConvertOptions) -> int:
    most = min(options.max_size, POOL_BYTES)
    entries = max(1, most * len(lines) // max(lines.total, 1))
    return min(entries, options.max_count or entries)


def _metadata_bytes(line: str) -> int:
    """At most what the ``json`` field takes that holds the entry's path and its class, whose name begins the path."""
    path = line.split("\t", 4)[3]
    return tar.member_bytes(len('{"class": , "path": }') + 2 * len(json.dumps(path)))
