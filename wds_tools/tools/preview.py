"""What an epoch will be like before it is run: steps, samples and shards by worker, short batches, shuffle quality."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np

from wds_tools.errors import OptionError
from wds_tools.store.local import LocalStore
from wds_tools.stream.order import EpochOrder, Order, Tail, Topology
from wds_tools.stream.quality import mean_displacement, shuffle_quality
from wds_tools.stream.reader import ShardReader
from wds_tools.stream.shards import Shards, find_shards

MAX_STREAMS = 256  # looked at one by one; of more, as many spread over all ranks
MAX_LABELS = 200_000  # samples up to which the labels are read for the shuffle's quality
MAX_MOVED = 1 << 20  # samples whose displacement is looked at; of more, as many in pieces spread over the epoch
PIECE = 1 << 12


def preview_epoch(
    dataset: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    split: str | None = None,
    world: int = 1,
    workers: int = 0,
    batch_size: int = 1,
    tail: Tail = "even",
    seed: int = 0,
    window: int = 2048,
    interleave: int = 16,
) -> dict[str, Any]:
    """Epoch 0 as a `ShardLoader` with these options would deliver it, as plain values ready for JSON.

    ``samples`` and ``shards`` are the least and the most that one worker reads and opens, ``short_batches`` counts those of
    all ranks. ``quality`` compares the shuffle with a true permutation (displacement 1, neighbours 0); ``neighbours``,
    the excess probability that samples up to 32 apart share a label, is None
    where there are no labels or too many, and of remote datasets.
    """
    shards = find_shards(dataset, split)
    if not shards.counted:
        raise OptionError("these shards have no indexes, so nothing is known of an epoch; 'wds-tools index' makes them")
    order = Order(shards.sizes, seed=seed, window=window, interleave=interleave, tail=tail)
    epoch = order.epoch(0, Topology(world, workers, batch_size))
    places = [(rank, worker) for rank in range(world) for worker in range(max(workers, 1))]
    if len(places) > MAX_STREAMS:
        places = [places[number * len(places) // MAX_STREAMS] for number in range(MAX_STREAMS)]
    streams = [epoch.stream(*place) for place in places]
    return {
        "samples": order.num_samples,
        "steps": epoch.num_batches,
        "streams": world * max(workers, 1),
        "samples_by_worker": _span([stream.num_samples for stream in streams]),
        "shards_by_worker": _span([len(stream.shards()) for stream in streams]),
        "short_batches": _short_batches(epoch, world),
        "quality": _quality(shards, order),
    }


def _span(values: list[int]) -> list[int]:
    return [min(values), max(values)]


def _short_batches(epoch: EpochOrder, world: int) -> int:
    full = epoch.partition.topology.batch_size
    count = 0
    for rank in range(world):
        start, stop = epoch.partition.rank_range(rank)
        missing = full * epoch.num_batches - (stop - start)
        # Only a rank's last batch lacks samples, and the one before it where the last had to borrow.
        if epoch.order.tail == "even" and missing > 0:
            count += 2 if missing == full and epoch.num_batches > 1 and full > 1 else 1
    return count


def _quality(shards: Shards, order: Order) -> dict[str, float | None]:
    ids = _delivered(order)
    labels = _labels(shards, order)
    if labels is None:
        return {"displacement": round(mean_displacement(ids), 4), "neighbours": None}
    quality = shuffle_quality(ids, labels)
    return {"displacement": round(quality.displacement, 4), "neighbours": round(quality.neighbours, 4)}


def _delivered(order: Order) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Samples as one process is given them: all, or of many those of pieces at even distances."""
    if order.num_samples <= MAX_MOVED:
        return np.concatenate([np.zeros(0, np.int64), *order.epoch(0, Topology()).stream().blocks()])
    stream = order.epoch(0, Topology(batch_size=PIECE)).stream()
    pieces = MAX_MOVED // PIECE
    return np.concatenate([stream.batch(number * len(stream) // pieces) for number in range(pieces)])


def _labels(shards: Shards, order: Order) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """The label of every sample, None where one has none, or where reading them would be as much as reading the images."""
    if not 0 < order.num_samples <= MAX_LABELS or not isinstance(shards.store, LocalStore):
        return None
    reader = ShardReader(shards, ["cls"])
    labels = []
    for shard, count in enumerate(shards.sizes):
        for number in range(count):
            label = reader.read(shard, number).get("cls", b"")
            if not label.isdigit() or len(label) > 18:
                return None
            labels.append(int(label))
    return np.array(labels)
