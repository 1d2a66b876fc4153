"""Every stream of every rank, worked through: who gets what, how evenly, and whether each sample comes exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from wds_tools.stream.order import EpochOrder, Order, Phase, Topology


@dataclass(frozen=True)
class Dealt:
    """One epoch, or what was left of one: the least and the most, over all ranks or all streams.

    ``opened`` is the sum of shards over all streams: as many indexes are read. ``short`` counts batches that are not full.
    """

    batches: tuple[int, int]
    samples: tuple[int, int]
    by_stream: tuple[int, int]
    shards: tuple[int, int]
    at_first: tuple[int, int]
    opened: int
    short: int


@dataclass(frozen=True)
class Coverage:
    """How often samples came: ``once`` of ``total``; ``deliveries`` counts all."""

    total: int
    deliveries: int
    once: int

    @property
    def exact(self) -> bool:
        return self.total == self.deliveries == self.once


class Seen:
    """How often each sample of a dataset came, up to 255 times: a byte a sample."""

    def __init__(self, total: int) -> None:
        self._times = np.zeros(total, np.uint8)
        self._deliveries = 0

    def add(self, ids: npt.NDArray[np.int64]) -> None:
        self._deliveries += len(ids)
        self._times[ids] += 1  # a sample twice in `ids` counts once here, and shows in the sum of deliveries

    def coverage(self) -> Coverage:
        return Coverage(len(self._times), self._deliveries, int((self._times == 1).sum()))


def places(topology: Topology) -> Iterator[tuple[int, int]]:
    """Rank and worker of every stream."""
    for rank in range(topology.world):
        for worker in range(topology.streams):
            yield rank, worker


def deliver(epoch: EpochOrder, seen: Seen, batches: int | None = None) -> Dealt:
    """Work through every stream of every rank, up to so many ``batches`` of each rank."""
    topology = epoch.partition.topology
    stop = epoch.num_batches if batches is None else batches
    by_rank = np.zeros((topology.world, 2), np.int64)
    by_stream, shards, at_first, short = [], [], [], 0
    for rank, worker in places(topology):
        stream = epoch.stream(rank, worker)
        found = list(islice(stream, len(range(worker, stop, topology.streams))))
        lengths = np.array([len(ids) for ids in found], np.int64)
        ids = np.concatenate([np.zeros(0, np.int64), *found])
        seen.add(ids)
        by_rank[rank] += len(found), len(ids)
        by_stream.append(len(ids))
        short += int((lengths < topology.batch_size).sum())
        if batches is None and not epoch.earlier:
            shards.append(len(stream.shards()))
        else:
            shards.append(_distinct(epoch.order, ids))
        at_first.append(_distinct(epoch.order, found[0]) if found else 0)
    return Dealt(
        _span(by_rank[:, 0]), _span(by_rank[:, 1]), _span(by_stream), _span(shards), _span(at_first), sum(shards), short
    )


def whole(order: Order, topology: Topology, epoch: int = 0) -> tuple[Dealt, Coverage]:
    """An epoch that nothing disturbs."""
    seen = Seen(order.num_samples)
    return deliver(order.epoch(epoch, topology), seen), seen.coverage()


def resumed(order: Order, before: Topology, after: Topology, batches: int, epoch: int = 0) -> tuple[Dealt, Coverage]:
    """An epoch that is broken off after so many batches of every rank, and goes on with another topology."""
    seen = Seen(order.num_samples)
    begun = order.epoch(epoch, before)
    deliver(begun, seen, batches)
    history: tuple[Phase, ...] = begun.history(batches)
    return deliver(order.epoch(epoch, after, history), seen), seen.coverage()


def _distinct(order: Order, ids: npt.NDArray[np.int64]) -> int:
    return len(np.unique(order.locate(ids)[0]))


def _span(values: npt.ArrayLike) -> tuple[int, int]:
    found = np.asarray(values)
    return int(found.min()), int(found.max())
