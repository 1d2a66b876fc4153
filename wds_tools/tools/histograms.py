"""Numbers → bins and a few words about them, for charts that anybody can read.

Bins have round edges and equal widths (of equal ratios for aspect ratios). They cover all but the outermost hundredth at
either end, so that one odd image does not squeeze the others into one bar; what lies further out is counted in the first or
last bin, which then is open. Nothing is lost: the counts add up to the number of values.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

BINS = 30  # at most

_STEPS = (1, 2, 2.5, 5, 10)
_ASPECTS = (("1:3", 1 / 3), ("1:2", 1 / 2), ("3:4", 3 / 4), ("1:1", 1.0), ("4:3", 4 / 3), ("2:1", 2.0), ("3:1", 3.0))
_ASPECT_BINS = 6  # in each doubling; 1:1 lies in the middle of one
_ASPECT_ENDS = 14  # bins on either side of 1:1 at the most: a little beyond 5:1


@dataclass(frozen=True)
class Bin:
    """How many values lie in a range, which ``text`` says; ``height`` is that number as a share of the fullest bin's."""

    text: str
    count: int
    height: float


@dataclass(frozen=True)
class Tick:
    """A mark on the axis: ``position`` is 0 at the left end and 1 at the right one."""

    position: float
    text: str


@dataclass(frozen=True)
class Histogram:
    """``count`` values in ``bins``, ``peak`` of them in the fullest; marks for the axis; least, quartiles and most in words."""

    count: int
    peak: int
    bins: tuple[Bin, ...]
    ticks: tuple[Tick, ...]
    least: str
    lower: str
    median: str
    upper: str
    most: str


def histogram(values: Sequence[float], text: Callable[[float], str], *, bins: int = BINS) -> Histogram | None:
    """Whole numbers in at most ``bins`` bins of a round width; None of no values. ``text`` says a value with its unit."""
    if not values:
        return None
    ordered = sorted(values)
    low, high = quantile(ordered, 0.01), quantile(ordered, 0.99)
    step = _round_step(max(high - low, 1) / (bins - 2))
    first, last = math.floor(low / step), math.floor(high / step) + 1
    edges = [number * step for number in range(first, last + 1)]
    every = _round_step((last - first) / 4) * step
    marks = [number * every for number in range(math.ceil(edges[0] / every), math.floor(edges[-1] / every) + 1)]
    ticks = tuple(Tick((mark - edges[0]) / (edges[-1] - edges[0]), text(mark)) for mark in marks)
    return _filled(ordered, edges, ticks, text)


def aspects(values: Sequence[float]) -> Histogram | None:
    """Width by height, in bins of equal ratios around 1:1; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    low, high = (_ASPECT_BINS * math.log2(quantile(ordered, share)) for share in (0.01, 0.99))
    reach = min(max(math.ceil(max(-low, high, 0) + 0.5), _ASPECT_BINS), _ASPECT_ENDS)
    edges = [2 ** ((number - 0.5) / _ASPECT_BINS) for number in range(-reach, reach + 2)]
    width = math.log2(edges[-1] / edges[0])
    ticks = [Tick(math.log2(ratio / edges[0]) / width, name) for name, ratio in _ASPECTS]
    return _filled(ordered, edges, tuple(tick for tick in ticks if 0 < tick.position < 1), "{:.2f}".format)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which about ``share`` of the ``ordered`` values lie: always one of them."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _round_step(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 25, 50, 100, … that is not below ``least``."""
    power = 10 ** max(math.floor(math.log10(least)), 0) if least > 0 else 1
    steps = (step * power for step in _STEPS)
    return next(int(step) for step in steps if step >= least and step == int(step))


def _filled(
    ordered: Sequence[float], edges: list[float] | list[int], ticks: tuple[Tick, ...], text: Callable[[float], str]
) -> Histogram:
    counts = [0] * (len(edges) - 1)
    for value in ordered:
        counts[min(max(bisect_right(edges, value) - 1, 0), len(counts) - 1)] += 1
    names = [f"{text(low)} to {text(high)}" for low, high in pairwise(edges)]
    if ordered[0] < edges[0]:
        names[0] = f"below {text(edges[1])}"
    if ordered[-1] >= edges[-1]:
        names[-1] = f"{text(edges[-2])} or more"
    fullest = max(counts)
    return Histogram(
        len(ordered),
        fullest,
        tuple(Bin(name, count, count / fullest) for name, count in zip(names, counts, strict=True)),
        ticks,
        *(text(quantile(ordered, share)) for share in (0, 0.25, 0.5, 0.75, 1)),
    )
