"""Mixed order: several sources take turns by their weights, and each is gone through in rounds of its own.

The turns are a `schedule`'s, so that of any stretch of the line every source has its share, within two samples; so a
batch has. A stream of the line has a stretch of each source's draws, and delivers it as a stream of that source alone would:
shards interleaved, samples moved within the window. Only what the stream puts in between is other sources' samples. So reads
stay as near to each other as they are without mixing, and turns stay where they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from wds_tools.draws import Purpose, make_key
from wds_tools.errors import OptionError
from wds_tools.stream.balanced import BalancedLine, BalancedOrder
from wds_tools.stream.line import Ids, Line
from wds_tools.stream.order import Order
from wds_tools.stream.rounds import Draws, LargeSource, RoundsOrder, SmallSource
from wds_tools.stream.schedule import whole_shares

_LISTED = 16  # weights that a state has one by one


@dataclass(frozen=True)
class MixedOrder(RoundsOrder):
    """The order of several ``sources``. Made by `mixed_order`.

    Its shards are theirs, one source's after the other's. It has no window of its own.
    """

    sources: tuple[Order, ...] = field(default=(), repr=False)

    @property
    def settings(self) -> dict[str, Any]:
        of_each = [{**source.settings, "tail": None} for source in self.sources]
        digest = hashlib.sha256(json.dumps(of_each, sort_keys=True).encode()).hexdigest()[:16]
        weights = list(self.shares)
        if len(weights) > _LISTED:
            return self.settings_of(sources=digest, weights=hashlib.sha256(repr(weights).encode()).hexdigest()[:16])
        return self.settings_of(sources=digest, weights=weights)

    @property
    def spread(self) -> tuple[int, int]:
        merged, moved = zip(*(source.spread for source in self.sources), strict=True)
        return sum(merged), sum(moved)

    def line(self, epoch: int) -> Line:
        return MixedLine(self, self.start(epoch))

    @cached_property
    def firsts(self) -> Ids:
        """The position of each source's first sample."""
        sizes = np.array([source.num_samples for source in self.sources], np.int64)
        return np.cumsum(sizes) - sizes

    def draws_of(self, number: int) -> Draws:
        """What is drawn from a source."""
        source = self.sources[number]
        # Two sources of one size and seed would else be permuted alike, and the same pairs meet in every epoch.
        seed = make_key(self.seed, Purpose.ROUND, number, source.seed)
        if isinstance(source, BalancedOrder):
            return _BalancedSource(replace(source, seed=seed))
        if source.num_samples <= source.window or not source.shuffle:
            return SmallSource(source, seed)
        return LargeSource(source, seed)


class MixedLine:
    """An epoch of it, from draw ``start`` on."""

    def __init__(self, order: MixedOrder, start: int) -> None:
        self._order = order
        self._start = start
        self._sources = [order.draws_of(number) for number in range(len(order.sources))]

    @property
    def total(self) -> int:
        return self._order.epoch_size

    def ids(self, start: int, stop: int) -> Ids:
        return self._gathered(start, stop, lambda number, begin, end: self._sources[number].ids(begin, end))

    def delivered(self, first: int, last: int, start: int, stop: int) -> Ids:
        # What a stream has of a source, a stretch of turns being a stretch of each source's draws.
        counts = self._order.schedule.counts
        since, until = counts(self._start + first).tolist(), counts(self._start + last).tolist()

        def part(number: int, begin: int, end: int) -> tuple[Ids, Ids]:
            low = since[number]
            return self._sources[number].delivered(low, until[number], begin - low, end - low)

        return self._gathered(first + start, first + stop, part)

    def _gathered(self, start: int, stop: int, part: Callable[[int, int, int], tuple[Ids, Ids]]) -> Ids:
        """Turns filled with ``part`` of each source: given its number, and its draws from where to where."""
        numbers, draw = self._order.schedule.turns(self._start + start, self._start + stop)
        result = np.empty_like(draw)
        for number in np.unique(numbers).tolist():
            where = np.flatnonzero(numbers == number)
            begin = int(draw[where[0]])
            positions, rounds = part(number, begin, begin + len(where))
            result[where] = self._order.name(self._order.firsts[number] + positions, rounds)
        return result


class _BalancedSource:
    """Draws from a class-balanced source, whose classes have rounds of their own."""

    def __init__(self, order: BalancedOrder) -> None:
        self._line = BalancedLine(order, 0)

    def ids(self, start: int, stop: int) -> tuple[Ids, Ids]:
        return self._line.drawn(start, stop)

    def delivered(self, first: int, last: int, start: int, stop: int) -> tuple[Ids, Ids]:
        return self._line.drawn(first + start, first + stop)


def mixed_order(
    sources: Sequence[Order], weights: Sequence[float] | None = None, seed: int = 0, epoch_size: int | None = None
) -> MixedOrder:
    """The order of ``sources`` by ``weights``, alike without; an epoch has as many samples as they have, or ``epoch_size``."""
    if not sources:
        raise OptionError("there is nothing to mix; give one dataset at least")
    weights = [1] * len(sources) if weights is None else list(weights)
    if len(weights) != len(sources):
        raise OptionError(f"weights is {weights!r} for {len(sources)} datasets; give one for each")
    for number, source in enumerate(sources):
        if not source.num_samples:
            raise OptionError(f"dataset {number} (counted from 0) has no samples to mix; leave it out")
    return MixedOrder(
        tuple(size for source in sources for size in source.shard_sizes),
        seed=seed,
        shuffle=any(source.shuffle for source in sources),
        shares=whole_shares(weights),
        epoch_size=sum(source.num_samples for source in sources) if epoch_size is None else epoch_size,
        sources=tuple(sources),
    )
