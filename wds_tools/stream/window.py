"""The shuffle inside a stream: interleaved shards, then a window.

A stream is a range of positions of the line, made of pieces (what it holds of each shard). Every position gets a
number, and the stream is delivered in the order of these numbers:

* Its *place*. Pieces are taken ``interleave`` at a time; a group's pieces are merged in proportion to their
  lengths, so that all of them begin and end together. Sample t of a piece of n in a group of m samples that
  begins at s has the place ``s + m * (t + 1/2) / n``.
* Plus ``window`` times a uniform draw in [0, 1), addressed by the position.

Why any part can be found without the rest: fewer than ``interleave`` samples separate a place from the rank of
that place (each piece of a group is at most half a sample off), and a draw moves a sample by less than
``window``. So what is delivered at k has its place within ``margin = window + interleave`` of k: sorting the
positions with such places is enough, and how many positions lie below them is a sum over pieces.
The same argument bounds the displacement: against the merged order a sample moves by less than the margin, and
with ``interleave=1`` by less than ``window``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wds_tools.draws import uniform


def window_order(
    borders: npt.NDArray[np.int64], start: int, stop: int, *, interleave: int, window: int, key: int
) -> npt.NDArray[np.int64]:
    """The positions that a stream delivers as its samples ``start`` to ``stop``.

    ``borders`` are the stream's pieces: strictly increasing, from its first position to its end.
    Time and memory are O(stop - start + window + pieces).
    """
    margin = window + interleave
    low = int(borders[0]) + start - margin
    high = int(borders[0]) + stop + margin

    # Whole groups, as many as reach into [low, high): groups are counted from the stream's first piece.
    first = max(int(np.searchsorted(borders, low, side="right")) - 1, 0) // interleave * interleave
    last = -(-int(np.searchsorted(borders, high)) // interleave) * interleave
    pieces = borders[first : last + 1]
    begin, length = pieces[:-1], np.diff(pieces)
    opens = np.arange(0, len(length), interleave)
    group = np.arange(len(length)) // interleave
    group_begin = begin[opens][group]
    group_length = np.add.reduceat(length, opens)[group]
    spacing = group_length / length

    # Of each piece the samples [since, until) with places in [low, high), and one more to either side: rounding.
    since = np.clip(np.floor((low - group_begin) / spacing) - 1, 0, length).astype(np.int64)
    until = np.clip(np.ceil((high - group_begin) / spacing) + 1, 0, length).astype(np.int64)
    count = until - since
    piece = np.repeat(np.arange(len(length)), count)
    nth = np.arange(len(piece)) - (np.cumsum(count) - count - since)[piece]

    positions = begin[piece] + nth
    place = group_begin[piece] + (nth + 0.5) * spacing[piece]
    ordered: npt.NDArray[np.int64] = positions[np.argsort(place + window * uniform(key, positions), kind="stable")]
    below = int(pieces[0] - borders[0]) + int(since.sum())
    return ordered[start - below : stop - below]
