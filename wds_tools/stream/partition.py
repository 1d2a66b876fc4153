"""Who gets how many: a line's samples dealt to ranks, workers and batches, by counting alone.

The rules:

* A rank has a contiguous range of the line; the sizes of these ranges differ by one at most.
* Every rank makes the same number of batches S, which does not depend on the number of workers.
* Batch b of a rank is made by worker ``b % workers``, as `torch.utils.data.DataLoader` asks its workers in turn.
  A worker's stream is the contiguous part of the rank's range that is just long enough for its batches.
* No workers means that the rank makes its batches itself, which deals like one worker.

How a rank's last batches come out (``tail``), for N samples, R ranks and batches of B:

* ``"even"``: S = ceil(N / RB). Nothing is dropped and nothing repeated: all batches are full but the last one, which
  holds what is left. A rank that is one sample smaller than others may have nothing left for it; it then holds one
  sample borrowed from the batch before. Where there is nothing to borrow (B is 1, or the rank has no samples at
  all) that last batch is empty, of length 0: a step without samples, rather than a rank that stops a step early.
* ``"drop"``: S = floor(N / RB), all batches full; a rank does not read the end of its range.
* ``"pad"``: S = ceil(N / RB), all batches full; a rank goes round its range again to fill the last one. (A rank
  without samples, when N < R, repeats a neighbour's.)
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from wds_tools.errors import OptionError, WdsToolsError

Tail: TypeAlias = Literal["even", "drop", "pad"]


def whole_number(name: str, value: Any, low: int, high: int | None = None) -> int:
    """``value`` as an int in [low, high), or an `OptionError` that says so."""
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if number < low or (high is not None and number >= high):
        limit = f"of at least {low}" if high is None else f"from {low} to {high - 1}"
        raise OptionError(f"{name}={value!r} cannot be used: it must be a whole number {limit}.")
    return number


@dataclass(frozen=True)
class Topology:
    """How many processes share an epoch, and the size of a batch on each."""

    world: int = 1
    workers: int = 0
    batch_size: int = 1

    def __post_init__(self) -> None:
        for name, low in (("world", 1), ("workers", 0), ("batch_size", 1)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), low))

    @property
    def streams(self) -> int:
        """Streams of a rank."""
        return max(self.workers, 1)

    def deals_like(self, other: Topology) -> bool:
        """Whether the same samples go to the same places: 0 workers and 1 are alike."""
        return (self.world, self.streams, self.batch_size) == (other.world, other.streams, other.batch_size)


@dataclass(frozen=True)
class Phase:
    """A part of an epoch: ``batches`` that every rank has delivered under one topology."""

    world: int
    workers: int
    batch_size: int
    batches: int

    def __post_init__(self) -> None:
        topology = self.topology
        for name in ("world", "workers", "batch_size"):
            object.__setattr__(self, name, getattr(topology, name))
        object.__setattr__(self, "batches", whole_number("batches", self.batches, 0))

    @property
    def topology(self) -> Topology:
        return Topology(self.world, self.workers, self.batch_size)

    def to_dict(self) -> dict[str, int]:
        """Four numbers, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Phase:
        """Back from `to_dict`; whatever else is in it is an error."""
        try:
            return cls(**values)
        except TypeError:
            raise WdsToolsError(
                f"The saved state is damaged: {dict(values)!r} must have world, workers, batch_size and batches."
            ) from None


@dataclass(frozen=True)
class Partition:
    """A line of ``total`` samples, dealt. A rank is known here by the ``size`` of its range: there are two sizes."""

    total: int
    topology: Topology
    tail: Tail

    @property
    def num_batches(self) -> int:
        """Batches of every rank."""
        step = self.topology.world * self.topology.batch_size
        return self.total // step if self.tail == "drop" else -(-self.total // step)

    def rank_range(self, rank: int) -> tuple[int, int]:
        """The part of the line that a rank has: the first ranks are the larger ones."""
        size, larger = divmod(self.total, self.topology.world)
        start = rank * size + min(rank, larger)
        return start, start + size + (rank < larger)

    def taken(self, size: int, worker: int, batches: int) -> int:
        """How many samples of a worker are in the first ``batches`` batches of its rank."""
        made = len(range(worker, batches, self.topology.streams)) * self.topology.batch_size
        missing = sum(
            fewer for batch, fewer in self._short(size) if batch < batches and batch % self.topology.streams == worker
        )
        return made - missing

    def stream_range(self, size: int, worker: int) -> tuple[int, int]:
        """Where a worker's stream lies in its rank, counted from the rank's start; with "pad" it may reach past it."""
        total = self.num_batches
        start = sum(self.taken(size, before, total) for before in range(worker))
        return start, start + self.taken(size, worker, total)

    def undelivered(self, size: int, batches: int) -> list[tuple[int, int, int]]:
        """What a rank has not delivered after some batches, as ``(start, stop, skip)`` in its range.

        For each stream, in order: without the repeats, and all but its first ``skip`` samples. The last row is what
        the rank would have dropped.
        """
        rows = []
        for worker in range(self.topology.streams):
            start, stop = (min(border, size) for border in self.stream_range(size, worker))
            rows.append((start, stop, min(self.taken(size, worker, batches), stop - start)))
        return [*rows, (min(self.num_batches * self.topology.batch_size, size), size, 0)]

    def _short(self, size: int) -> tuple[tuple[int, int], ...]:
        """The batches of a rank that are not full, and what each lacks: the last one, or the last two."""
        if self.tail != "even":
            return ()
        last, full = self.num_batches - 1, self.topology.batch_size
        missing = (last + 1) * full - size
        if missing == full and last > 0 and full > 1:
            return ((last - 1, 1), (last, full - 1))
        return ((last, missing),)
