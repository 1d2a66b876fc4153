"""Whose turn it is: sources take turns in proportion to their weights, evenly, by arithmetic.

An endless row of turns, in which each source has its share of any beginning: of the first n turns a source with a share
of p has n p, rounded up or down. No draw decides that, so no batch lacks a source by bad luck.

Weights become whole numbers (`whole_shares`), and the row repeats after their sum. One period is laid out when a
schedule is made: turn number j of a source with q of W turns is due between ``floor(j W / q)`` and
``ceil((j + 1) W / q)``, and each turn goes to whoever's is due first. All turns meet these limits, and meeting them is
what keeps every beginning within one turn of its share. (R. Tijdeman, "The chairman assignment problem", Discrete
Mathematics 1980; as a rule for processors: S. Baruah and others, "Proportionate progress", Algorithmica 1996.)

With a ``key``, sources of equal shares trade places anew in each period, so that a thousand classes do not come in one
row for ever. Their counts stay within the same limits.

So a turn, and how many a source had before it, is found by a division and a look into the period: the millionth costs what
the first costs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from numbers import Rational
from typing import Any

import numpy as np
import numpy.typing as npt

from wds_tools.draws import uniform
from wds_tools.errors import OptionError

Ids = npt.NDArray[np.int64]

PARTS = 1 << 16
"""Weights whose ratios need a longer period than this are rounded to parts of it."""
_LONG = Fraction(2**64)
_FINEST = 10_000  # 0.1 means a tenth, and not the nearest binary fraction


def whole_shares(weights: Sequence[Any], names: str = "weights") -> tuple[int, ...]:
    """Whole numbers, 1 or more, in the proportion of the weights. `OptionError` unless all are numbers above 0."""
    fractions = []
    for weight in weights:
        try:
            exact = Fraction(weight if isinstance(weight, Rational) else float(weight))
        except (TypeError, ValueError, OverflowError):  # OverflowError is infinity's
            exact = Fraction(0)
        if exact <= 0:
            raise OptionError(
                f"{names} has {weight!r}; each weight must be a number above 0 (leave out what gets none)"
            )
        near = exact.limit_denominator(_FINEST)
        fractions.append(near if abs(near - exact) <= exact / 10**9 else exact)
    scale = Fraction(1)
    for fraction in fractions:
        scale = Fraction(math.lcm(int(scale), fraction.denominator))
        if scale > _LONG:  # they are rounded anyway
            scale = _LONG / max(fractions)
            break
    shares = [max(int(fraction * scale), 1) for fraction in fractions]
    divisor = math.gcd(*shares)
    shares = [share // divisor for share in shares]
    parts = max(PARTS, 16 * len(shares))
    return tuple(shares) if sum(shares) <= parts else _rounded(shares, parts)


def _rounded(shares: Sequence[int], parts: int) -> tuple[int, ...]:
    """The shares as parts of ``parts``, 1 at least; the largest remainders are rounded up."""
    total = sum(shares)
    spare = parts - len(shares)  # beyond the one that each has
    above = [max(share * parts - total, 0) for share in shares]
    summed = sum(above)
    whole = [1 + each * spare // summed for each in above]
    rest = sorted(range(len(shares)), key=lambda n: (-(above[n] * spare % summed), n))
    for number in rest[: parts - sum(whole)]:
        whole[number] += 1
    divisor = math.gcd(*whole)
    return tuple(share // divisor for share in whole)


@lru_cache(maxsize=8)
def _period(shares: tuple[int, ...]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """One period: for each turn the source, and how many turns of the period it had before."""
    period = sum(shares)
    sources, before = np.empty(period, np.int32), np.empty(period, np.int32)
    due = [(-(-period // share), number) for number, share in enumerate(shares)]  # a heap of (until when, who)
    heapq.heapify(due)
    released: list[list[tuple[int, int]]] = [[] for _ in range(period + 1)]
    had = [0] * len(shares)
    for turn in range(period):
        for each in released[turn]:
            heapq.heappush(due, each)
        released[turn] = []
        _, number = heapq.heappop(due)
        sources[turn], before[turn] = number, had[number]
        had[number] += 1
        share, next_turn = shares[number], had[number]
        if next_turn < share:
            begin = max(next_turn * period // share, turn + 1)
            released[begin].append((-(-(next_turn + 1) * period // share), number))
    return sources, before


class Schedule:
    """The turns of sources with these ``shares``. ``key`` makes sources of equal shares trade places; None leaves them."""

    def __init__(self, shares: tuple[int, ...], key: int | None = None) -> None:
        self._roles, self._before = _period(shares)
        self._shares = np.array(shares, np.int64)
        self._key = key
        _, self._group = np.unique(self._shares, return_inverse=True)
        self._by_group = np.argsort(self._group, kind="stable")
        self._trades = key is not None and len(np.unique(self._shares)) < len(shares)

    @property
    def period(self) -> int:
        """Turns after which the row repeats, but for who trades places."""
        return len(self._roles)

    def turns(self, start: int, stop: int) -> tuple[Ids, Ids]:
        """For each turn from ``start`` to ``stop`` the source, and how many turns that source had before."""
        turn = np.arange(start, stop, dtype=np.int64)
        period, at = turn // self.period, turn % self.period
        roles = self._roles[at].astype(np.int64)
        numbers: Ids = period * self._shares[roles] + self._before[at]
        if not self._trades or start >= stop:
            return roles, numbers
        first = start // self.period
        players = self._players(first, (stop - 1) // self.period + 1)
        return players[period - first, roles], numbers

    def counts(self, turn: int) -> Ids:
        """How many turns each source had before this one."""
        period, at = divmod(turn, self.period)
        within = np.bincount(self._roles[:at], minlength=len(self._shares))
        if self._trades:
            traded = np.empty_like(within)
            traded[self._players(period, period + 1)[0]] = within
            within = traded
        counts: Ids = period * self._shares + within
        return counts

    def _players(self, first: int, last: int) -> Ids:
        """For each period from ``first`` to ``last``: by role, the source that plays it. Shape (periods, sources)."""
        assert self._key is not None
        count = len(self._shares)
        index = np.arange(first * count, last * count, dtype=np.int64).reshape(-1, count)
        drawn = np.argsort(self._group + uniform(self._key, index), axis=1, kind="stable")
        players = np.empty_like(index)
        players[:, self._by_group] = drawn
        return players
