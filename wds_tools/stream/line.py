"""The samples of an epoch laid end to end, and what is left of them.

Two lines answer the same questions. `ShardLine` is a whole epoch: shards in that epoch's order. `Remainder` is
what some batches have left of another line, to be dealt again to another topology: for each rank, each of its
streams in turn, the samples not yet delivered in the order in which they would have been; then what the rank
would have dropped.

A remainder is not shuffled again. Its samples are already within a window of their places, and stay so; a
stream of it reads the rest of one old stream after another, as near to each other on disk as before; and a part of
it costs no more than the parts of the old streams that it overlaps, however many topologies there have been.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from wds_tools.draws import Purpose, draws, make_key
from wds_tools.stream.partition import Partition
from wds_tools.stream.window import window_order

Ids = npt.NDArray[np.int64]


class Line(Protocol):
    """Samples in a row; positions count from 0 to ``total``."""

    @property
    def total(self) -> int: ...

    def ids(self, start: int, stop: int) -> Ids:
        """The samples at these positions, in line order."""

    def delivered(self, first: int, last: int, start: int, stop: int) -> Ids:
        """What the stream over positions ``first`` to ``last`` delivers as its samples ``start`` to ``stop``."""


class ShardLine:
    """A whole epoch. Its arrays have an entry a shard, never an entry a sample."""

    def __init__(self, sizes: Ids, *, seed: int, epoch: int, shuffle: bool, window: int, interleave: int) -> None:
        shards = np.flatnonzero(sizes)
        if shuffle:
            shards = shards[np.argsort(draws(make_key(seed, epoch, Purpose.SHARDS), shards), kind="stable")]
        self._first_ids = (np.cumsum(sizes) - sizes)[shards]
        self._borders = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[shards])])
        self._shuffle = shuffle
        self._window = window
        self._interleave = interleave
        self._key = make_key(seed, epoch, Purpose.WINDOW)

    @property
    def total(self) -> int:
        return int(self._borders[-1])

    def ids(self, start: int, stop: int) -> Ids:
        return self._at(np.arange(start, stop, dtype=np.int64))

    def delivered(self, first: int, last: int, start: int, stop: int) -> Ids:
        if not self._shuffle or start >= stop:
            return self.ids(first + start, first + stop)
        inner = self._borders[np.searchsorted(self._borders, first, "right") : np.searchsorted(self._borders, last)]
        borders = np.concatenate([[first], inner, [last]])
        return self._at(
            window_order(borders, start, stop, interleave=self._interleave, window=self._window, key=self._key)
        )

    def one_of_each(self, start: int, stop: int) -> Ids:
        """A sample of each shard that these positions are in; at a cost by shards, not by samples."""
        within = slice(np.searchsorted(self._borders, start, "right") - 1, np.searchsorted(self._borders, stop))
        return self._first_ids[within] if start < stop else self._first_ids[:0]

    def _at(self, positions: Ids) -> Ids:
        shard = np.searchsorted(self._borders, positions, side="right") - 1
        ids: Ids = self._first_ids[shard] + (positions - self._borders[shard])
        return ids


class Remainder:
    """What is left of a dealt line after every rank has delivered ``batches``."""

    def __init__(self, line: Line, partition: Partition, batches: int) -> None:
        self._line = line
        ranks = np.arange(partition.topology.world)
        size, larger = divmod(partition.total, partition.topology.world)
        rows = np.where(  # (rank, stream, [start, stop, skip]): only two sizes of rank, so two lists of rows
            (ranks < larger)[:, None, None],
            np.array(partition.undelivered(size + 1, batches)),
            np.array(partition.undelivered(size, batches)),
        )
        rows[:, :, :2] += (ranks * size + np.minimum(ranks, larger))[:, None, None]
        flat = rows.reshape(-1, 3)
        left = flat[:, 1] - flat[:, 0] - flat[:, 2]
        self._rows = flat[left > 0]
        self._ends = np.cumsum(left[left > 0])

    @property
    def total(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def ids(self, start: int, stop: int) -> Ids:
        parts = [np.zeros(0, np.int64)]
        row = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            first, last, _ = (int(value) for value in self._rows[row])
            end = int(self._ends[row])
            upto = min(stop, end)
            # Counted from the old stream's end, because the row's last sample is the stream's last.
            since = last - first - end
            parts.append(self._line.delivered(first, last, since + start, since + upto))
            start, row = upto, row + 1
        return np.concatenate(parts)

    def delivered(self, first: int, last: int, start: int, stop: int) -> Ids:
        return self.ids(first + start, first + stop)
