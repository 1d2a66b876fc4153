"""The order of an epoch: who reads what, when.

Everything follows from counts (the shards' sizes, seed, epoch, topology, batches delivered), by arithmetic:
nothing is read, nothing is remembered, and nothing is drawn from a generator that has a past. The steps, a file each:

* `line`: the epoch's samples laid end to end, shards in that epoch's order;
* `partition`: the line cut into ranks, workers' streams and batches;
* `window`: the shuffle inside a stream;
* `draws`: the random numbers, addressed by (seed, epoch, purpose, position).

A sample is named by its id: its position in the manifest, counted over all shards from 0. Where samples come more than once
in an epoch (`rounds`), each coming has an id of its own, which `Order.locate` and `Order.seeds` understand.

Resuming. All ranks deliver in step, so what has been delivered is told by a history: `Phase` values, each a
topology and the batches that every rank delivered under it. `Order.epoch` takes it back and gives the rest:

* under the topology of the last phase, exactly the batches that an undisturbed run would have delivered next;
* under another one, what is left is a new line, dealt anew. With ``tail="even"`` the phases together deliver every
  sample exactly once; with ``"drop"`` none twice, and what an earlier phase was going to drop is dealt again; with
  ``"pad"`` every one at least once, and a repeat does not count as a delivery.

Phases without batches say nothing and are left out; two that follow each other under one topology are one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from wds_tools.draws import sample_rng_seed
from wds_tools.errors import OptionError, WdsToolsError
from wds_tools.stream.line import Ids, Line, Remainder, ShardLine
from wds_tools.stream.partition import Partition, Phase, Tail, Topology, whole_number

__all__ = ["EpochOrder", "Order", "Phase", "Stream", "Tail", "Topology", "sample_rng_seed"]

# Part of every saved state: to be raised when the same options give another order than before.
_VERSION = 1

# A block of a stream is computed at once, this many times longer than the margin that is computed beside it.
_BLOCK = 4


@dataclass(frozen=True)
class Order:
    """What decides the order of every epoch.

    ``window`` bounds how far a sample moves along its stream, ``interleave`` is how many shards a stream merges;
    1 means none. ``shuffle=False`` is the manifest's order, whatever these two say.
    """

    shard_sizes: Sequence[int] = field(repr=False)
    seed: int = 0
    shuffle: bool = True
    window: int = 2048
    interleave: int = 16
    tail: Tail = "even"

    def __post_init__(self) -> None:
        sizes = tuple(whole_number("shard size", size, 0) for size in self.shard_sizes)
        object.__setattr__(self, "shard_sizes", sizes)
        object.__setattr__(self, "seed", whole_number("seed", self.seed, 0, 2**64))
        object.__setattr__(self, "window", whole_number("window", self.window, 1))
        object.__setattr__(self, "interleave", whole_number("interleave", self.interleave, 1))
        if self.tail not in get_args(Tail):
            raise OptionError(f"tail={self.tail!r} cannot be used: it must be one of {', '.join(get_args(Tail))}.")

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return int(self._sizes.sum())

    @property
    def settings(self) -> dict[str, Any]:
        """All that a saved history depends on, ready for JSON."""
        return {
            "version": _VERSION,
            "seed": self.seed,
            "shuffle": bool(self.shuffle),
            "window": self.window,
            "interleave": self.interleave,
            "tail": self.tail,
            "samples": self.num_samples,
            "shards": hashlib.sha256(self._sizes.astype("<i8").tobytes()).hexdigest()[:16],
        }

    @property
    def epoch_samples(self) -> int:
        """Samples of an epoch."""
        return self.num_samples

    @property
    def spread(self) -> tuple[int, int]:
        """How many shards a stream merges, and within how many samples it moves them: what it has open at a time."""
        return (self.interleave, self.window) if self.shuffle else (1, 1)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuse a history that was saved under other `settings`: its counts would mean other samples."""
        for name, value in self.settings.items():
            if settings.get(name) != value:
                raise WdsToolsError(
                    f"The saved state has {name}={settings.get(name)!r}, this dataset {name}={value!r}. "
                    "Resume with the same dataset and options, or start the epoch over without the state."
                )

    def epoch(self, epoch: int, topology: Topology, history: Iterable[Phase] = ()) -> EpochOrder:
        """The order of what ``history`` has left of an epoch."""
        line = self.line(epoch)
        phases = _joined(history)
        delivered = phases.pop().batches if phases and phases[-1].topology.deals_like(topology) else 0
        for phase in phases:
            line = Remainder(line, self._partition(line, phase.topology, phase.batches), phase.batches)
        partition = self._partition(line, topology, delivered)
        return EpochOrder(self, line, partition, tuple(phases), delivered)

    def line(self, epoch: int) -> Line:
        """The samples of a whole epoch, end to end."""
        return ShardLine(
            self._sizes,
            seed=self.seed,
            epoch=whole_number("epoch", epoch, 0, 2**64),
            shuffle=self.shuffle,
            window=self.window,
            interleave=self.interleave,
        )

    def seeds(self, epoch: int, ids: Ids) -> npt.NDArray[np.uint64]:
        """What the augmentation of each sample is drawn from in this epoch."""
        return sample_rng_seed(self.seed, epoch, ids)

    def locate(self, ids: npt.ArrayLike) -> tuple[Ids, Ids]:
        """Shard, and index within the shard, of each id."""
        ids = np.asarray(ids, np.int64)
        outside = (ids < 0) | (ids >= self.num_samples)
        if outside.any():
            raise OptionError(f"sample id {ids[outside].flat[0]} does not exist: there are {self.num_samples} samples.")
        shard = np.asarray(np.searchsorted(self._starts, ids, side="right") - 1)
        return shard, ids - self._starts[shard]

    def _partition(self, line: Line, topology: Topology, batches: int) -> Partition:
        partition = Partition(line.total, topology, self.tail)
        if batches > partition.num_batches:
            raise WdsToolsError(
                f"The saved state has {batches} batches delivered with {topology}, but {line.total} samples make "
                f"{partition.num_batches}. Resume with the dataset that it was saved for."
            )
        return partition

    @cached_property
    def _sizes(self) -> Ids:
        return np.array(self.shard_sizes, np.int64)

    @cached_property
    def _starts(self) -> Ids:
        return np.cumsum(self._sizes) - self._sizes


@dataclass(frozen=True, eq=False)
class EpochOrder:
    """What is left of an epoch, dealt to a topology. Made by `Order.epoch`."""

    order: Order
    line: Line
    partition: Partition
    earlier: tuple[Phase, ...]
    delivered: int

    @property
    def num_batches(self) -> int:
        """Batches left, the same for every rank."""
        return self.partition.num_batches - self.delivered

    def stream(self, rank: int = 0, worker: int = 0) -> Stream:
        """The batches left to one worker of one rank: batch ``b`` of the rank is its worker ``b % workers``'s.

        Counted from where the history ends, as a new set of workers counts: the streams then begin with whichever
        is next.
        """
        topology = self.partition.topology
        rank = whole_number("rank", rank, 0, topology.world)
        worker = whole_number("worker", worker, 0, topology.streams)
        return Stream(self.order, self.line, self.partition, rank, self.delivered + worker)

    def batches(self, rank: int = 0) -> Iterator[Ids]:
        """The batches left to a rank, in the order in which its workers deliver them."""
        streams = [iter(self.stream(rank, worker)) for worker in range(self.partition.topology.streams)]
        for batch in range(self.num_batches):
            yield next(streams[batch % len(streams)])

    def history(self, batches: int) -> tuple[Phase, ...]:
        """The history after ``batches`` more on every rank."""
        batches = whole_number("batches", batches, 0, self.num_batches + 1)
        topology = self.partition.topology
        phase = Phase(topology.world, topology.workers, topology.batch_size, self.delivered + batches)
        return tuple(_joined([*self.earlier, phase]))


@dataclass(frozen=True, eq=False)
class Stream:
    """The batches left to one worker, by number: any of them is found without those before it.

    ``first`` is the first one's number among all batches of the rank.
    """

    order: Order
    line: Line
    partition: Partition
    rank: int
    first: int

    def __len__(self) -> int:
        """Batches left."""
        return len(range(self.first, self.partition.num_batches, self.partition.topology.streams))

    def batch(self, number: int) -> Ids:
        """The ids of one batch."""
        number = whole_number("batch", number, 0, len(self))
        return self._ids(self._border(number), self._border(number + 1))

    def batch_sizes(self) -> list[int]:
        """The length of each batch."""
        borders = [self._border(number) for number in range(len(self) + 1)]
        return [stop - start for start, stop in pairwise(borders)]

    def __iter__(self) -> Iterator[Ids]:
        """All batches, in turn; cheaper than one by one."""
        for first, last in self._steps():
            borders = [self._border(number) for number in range(first, last + 1)]
            block = self._ids(borders[0], borders[-1])
            for start, stop in pairwise(borders):
                yield block[start - borders[0] : stop - borders[0]]

    def blocks(self) -> Iterator[Ids]:
        """The same samples in the same order without regard to batches, many at a time."""
        for first, last in self._steps():
            yield self._ids(self._border(first), self._border(last))

    def _steps(self) -> Iterator[tuple[int, int]]:
        """Ranges of batches that are computed together."""
        margin = sum(self.order.spread) if self.order.shuffle else 1024
        step = max(1, _BLOCK * margin // self.partition.topology.batch_size)
        for first in range(0, len(self), step):
            yield first, min(first + step, len(self))

    @property
    def num_samples(self) -> int:
        """Samples of all batches left, repeats included."""
        return self._border(len(self)) - self._border(0)

    def shards(self) -> Ids:
        """The shards that hold the samples left, in the manifest's order."""
        start, size, begin, length = self._place
        if isinstance(self.line, ShardLine) and self.first == self._worker and begin + length <= size:
            # All of a part of the line: samples need not be put in order to know where they lie.
            ids = self.line.one_of_each(start + begin, start + begin + length)
            return np.sort(self.order.locate(ids)[0])
        found = [np.unique(self.order.locate(batch)[0]) for batch in self]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    @cached_property
    def _place(self) -> tuple[int, int, int, int]:
        """Start and size of the rank's range; start and length of the stream in it."""
        start, stop = self.partition.rank_range(self.rank)
        begin, end = self.partition.stream_range(stop - start, self._worker)
        return start, stop - start, begin, end - begin

    @property
    def _worker(self) -> int:
        return self.first % self.partition.topology.streams

    def _border(self, number: int) -> int:
        """How many samples of the whole stream, delivered ones included, come before batch ``number``."""
        batch = self.first + number * self.partition.topology.streams
        return self.partition.taken(self._place[1], self._worker, min(batch, self.partition.num_batches))

    def _ids(self, start: int, stop: int) -> Ids:
        """Samples ``start`` to ``stop`` of the whole stream; its repeats come last, where "pad" has any."""
        rank_start, size, begin, length = self._place
        fresh = min(max(size - begin, 0), length)
        ids = self.line.delivered(rank_start + begin, rank_start + begin + fresh, start, min(stop, fresh))
        if stop <= fresh:
            return ids
        return np.concatenate([ids, self._repeats(begin + max(start, fresh) - size, begin + stop - size)])

    def _repeats(self, start: int, stop: int) -> Ids:
        """Samples ``start`` to ``stop`` of a rank's second round and those that follow it, in line order."""
        rank_start, size, _, _ = self._place
        first = min(rank_start, self.line.total - 1)  # a rank without samples repeats a neighbour's
        one_round = self.line.ids(first, first + min(max(size, 1), stop))
        return one_round[np.arange(start, stop) % max(size, 1)]


def _joined(history: Iterable[Phase]) -> list[Phase]:
    """The history without empty phases, and with neighbours of one topology made one."""
    phases: list[Phase] = []
    for phase in history:
        if phase.batches == 0:
            continue
        before = phases[-1].batches if phases and phases[-1].topology.deals_like(phase.topology) else 0
        if before:
            phases.pop()
        phases.append(Phase(phase.world, phase.workers, phase.batch_size, before + phase.batches))
    return phases
