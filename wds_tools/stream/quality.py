"""How well an order is shuffled, in two numbers that a true permutation has a known value for.

* ``displacement``: how far samples moved, as a share of the dataset; 0 for the manifest's order. A true
  permutation moves them by a third of the dataset on average, so that is the unit: a true permutation has 1.
* ``neighbours``: how much likelier than chance it is that two samples delivered near each other have one label. A
  true permutation has 0, an order in which neighbours always agree has 1. "Near" is all distances up to
  ``reach``: shards merged in turn look well mixed at distance 1, and only there.

Displacement tells whether an epoch begins with other samples than the last; neighbours tells what a batch, and so
a gradient, is made of. An order can do well on either and badly on the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wds_tools.errors import OptionError


@dataclass(frozen=True)
class ShuffleQuality:
    """0 and 1 for no shuffle of a sorted dataset, 1 and 0 for a true permutation."""

    displacement: float
    neighbours: float


def shuffle_quality(ids: npt.ArrayLike, labels: npt.ArrayLike, reach: int = 32) -> ShuffleQuality:
    """The quality of a delivered order. ``ids`` are all samples as delivered, ``labels`` the label of each id."""
    delivered = np.asarray(ids, np.int64)
    return ShuffleQuality(mean_displacement(delivered), neighbour_excess(np.asarray(labels)[delivered], reach))


def mean_displacement(ids: npt.ArrayLike) -> float:
    """The mean distance between where a sample was and where it is delivered; 1 for a true permutation.

    Only the ranks of ``ids`` count, so that a part of a dataset can be measured too.
    """
    delivered = np.asarray(ids, np.int64)
    if len(delivered) < 2:
        return 0.0
    rank = np.empty(len(delivered), np.int64)
    rank[np.argsort(delivered, kind="stable")] = np.arange(len(delivered))
    expected = (len(delivered) ** 2 - 1) / (3 * len(delivered))
    return float(np.abs(rank - np.arange(len(rank))).mean() / expected)


def neighbour_excess(labels: npt.ArrayLike, reach: int = 32) -> float:
    """How much likelier than chance labels agree at distances 1 to ``reach``: 0 for chance, 1 for always."""
    if reach < 1:
        raise OptionError(f"reach={reach!r} cannot be used: it must be at least 1.")
    _, number = np.unique(np.asarray(labels), return_inverse=True)
    if len(number) < 2:
        return 0.0
    counts = np.bincount(number).astype(np.float64)
    chance = float((counts * (counts - 1)).sum() / (len(number) * (len(number) - 1)))
    if chance == 1.0:
        return 0.0  # one label only: every order is as good
    distances = range(1, min(reach, len(number) - 1) + 1)
    agree = float(np.mean([np.mean(number[distance:] == number[:-distance]) for distance in distances]))
    return (agree - chance) / (1.0 - chance)
