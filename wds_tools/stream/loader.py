"""`ShardLoader`: even batches over ranks and workers, exact resume, and an epoch that moves on by itself.

A `torch.utils.data.DataLoader` whose dataset makes whole batches, so that everything a loop knows of a loader holds.
Workers are told what to do through a small block of shared memory, because persistent workers are never sent anything
again. A batch travels with the bad samples that were left out of it; what was delivered is counted here, where the
loop takes it, whatever workers have prefetched.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from wds_tools.errors import OptionError, SampleError, TooManyErrors, WdsToolsError
from wds_tools.store.local import store_error
from wds_tools.stream.batch import BadSample, Batcher, MissingField, kept_randomness
from wds_tools.stream.order import EpochOrder, Order, Phase, Tail, Topology
from wds_tools.stream.partition import whole_number
from wds_tools.stream.pipeline import ShardPipeline
from wds_tools.stream.reader import ShardReader, shards_at_once
from wds_tools.stream.recoding import reader_of
from wds_tools.stream.slots import SPARE, Parcel, Slots
from wds_tools.stream.workers import told_of_pickling, worker_errors
from wds_tools.stream.world import find_world

STATE_VERSION = 1
# Options of DataLoader that would make another order, or other batches.
_REFUSED = {
    "shuffle": "use ShardDataset(shuffle=…)",
    "sampler": "the order is the dataset's",
    "batch_sampler": "the order is the dataset's",
    "drop_last": "use tail='drop'",
    "collate_fn": "use ShardDataset's fields and transform",
    "in_order": "batches come in order, so that a pass can be resumed",
}
_OF_DATASET = {
    "split",
    "seed",
    "window",
    "interleave",
    "fields",
    "transform",
    "on_error",
    "max_errors",
    "cache",
    "cache_bytes",
}
MAX_PHASES = 64  # changes of topology in one epoch that fit into the memory shared with workers


class ShardLoader(DataLoader[Any]):
    """Batches of a `ShardDataset` or a `MixedDataset`, the same number on every rank.

    ``tail`` says how an epoch ends: ``"even"`` drops and repeats nothing, only a rank's last batches may be short;
    ``"drop"`` and ``"pad"`` give full batches only. ``rank`` and ``world_size`` are found out from `torch.distributed` or
    torchrun's RANK and WORLD_SIZE unless given. ``ledger`` names a file that each bad sample is appended to as a line of
    JSON. Everything else is passed on to `torch.utils.data.DataLoader`.

    A batch is a tuple with an entry for each of the dataset's ``fields``: images from a transform as one tensor
    ``(B, C, H, W)``, ``cls`` as int64 ``(B,)``, ``__seed__``, which a sample's augmentation is drawn from, likewise,
    ``__key__`` as a list of str, all else as a list of bytes.

    ``len`` is the number of batches that the next pass delivers. Each pass moves on to the next epoch, also one that was
    broken off; `load_state_dict` continues one where it was. Raises `SampleError` for a bad sample, or `TooManyErrors`,
    as the dataset's ``on_error`` and ``max_errors`` say, and `WorkerError` when a worker process dies.
    """

    def __init__(
        self,
        dataset: ShardPipeline,
        batch_size: int = 1,
        num_workers: int = 0,
        *,
        tail: Tail = "even",
        rank: int | None = None,
        world_size: int | None = None,
        ledger: str | os.PathLike[str] | None = None,
        **loader_options: Any,
    ) -> None:
        if not isinstance(dataset, ShardPipeline):
            raise OptionError(
                f"dataset is {dataset!r:.100}; give a ShardDataset, as in ShardLoader(ShardDataset(path), 64)"
            )
        for name in _OF_DATASET & loader_options.keys():
            raise OptionError(f"{name} cannot be given to ShardLoader; give it to ShardDataset")
        for name, instead in _REFUSED.items():
            if name in loader_options:
                raise OptionError(f"{name} cannot be given to ShardLoader; {instead}")
        if not dataset.shards.counted:
            raise OptionError("ShardLoader needs indexes, and these shards have none; make them with 'wds-tools index'")
        if len(dataset.pipeline) > 1:
            raise OptionError(
                "ShardLoader makes its batches from fields= and transform=; for a dataset with further stages use wds.WebLoader"
            )
        if dataset.shards.fields:
            dataset.fields.check(dataset.shards.fields)
        num_workers = whole_number("num_workers", num_workers, 0)
        given = (rank, world_size) if rank is not None or world_size is not None else dataset.given_world
        self._given_world = given
        self._order = replace(dataset.order, tail=tail)
        self._epoch = dataset.epoch
        self._history: tuple[Phase, ...] = ()
        self._position: EpochOrder | None = None  # of the pass that goes on
        self._delivered = 0
        self._ledger = _checked_ledger(ledger) if ledger is not None else None
        self._batch_size, self._workers = batch_size, num_workers
        self.errors: list[BadSample] = []
        self._topology()  # refuses what cannot be
        source = _Batches(dataset, self._order, batch_size, num_workers)
        if num_workers:
            loader_options.setdefault("persistent_workers", True)
        # DataLoader draws a seed for its workers at each pass: not from the process's own generator.
        loader_options.setdefault("generator", torch.Generator())
        super().__init__(source, batch_size=None, num_workers=num_workers, collate_fn=_as_made, **loader_options)

    @property
    def epoch(self) -> int:
        """The epoch of the pass that goes on, or of the next one."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch`` with the next pass. The epoch that a loaded state is in stays where it is."""
        epoch = whole_number("epoch", epoch, 0, 2**63)
        if epoch != self._epoch or self._position is not None:
            self._epoch, self._history, self._position = epoch, (), None

    def __len__(self) -> int:
        """Batches that the next pass delivers, or the one that goes on delivers in all."""
        return (self._position or self._next()).num_batches

    def _next(self) -> EpochOrder:
        return self._order.epoch(self._epoch, self._topology(), self._history)

    def _topology(self) -> Topology:
        return Topology(self._world()[1], self._workers, self._batch_size)

    def _world(self) -> tuple[int, int]:
        return find_world(*self._given_world)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self._position is not None and self._delivered:  # a pass was broken off; one without batches never began
            self._epoch, self._history = self._epoch + 1, ()
        position = self._next()
        rank, world = self._world()
        source: _Batches = self.dataset  # type: ignore[assignment]
        source.tell(self._epoch, self._history, rank, world)
        if not (self.persistent_workers and self._iterator is not None):  # workers that start now learn of these slots
            source.slots = self._slots()
        self._position, self._delivered = position, 0
        if not position.num_batches and not self._history and self._order.epoch_samples:
            warnings.warn(
                f"tail={self._order.tail!r} leaves no batch at all: {self._order.epoch_samples} samples do not make a full one "
                f"of {self._batch_size} for each of {world} ranks; use smaller batches, or tail='even'",
                stacklevel=2,
            )
        with worker_errors(self._workers), told_of_pickling():
            return self._deliver(position, super().__iter__())

    def _slots(self) -> Slots | None:
        # A thread that pins memory copies what it is given, and there its tensors must be.
        if not self.num_workers or self.pin_memory or not Slots.possible():
            return None
        source: _Batches = self.dataset  # type: ignore[assignment]
        size = self._batch_size * source.row_bytes
        if not size:
            return None
        try:
            return Slots(self.num_workers, ((self.prefetch_factor or 0) + SPARE) * source.pictures, size)
        except OSError:
            return None  # a limit on files or address space: batches then come as DataLoader brings them

    def _deliver(self, position: EpochOrder, batches: Iterator[Any]) -> Iterator[Any]:
        for _ in range(position.num_batches):
            if self._position is not position:
                raise WdsToolsError(
                    "this pass cannot go on: since it began, another one was begun or another place chosen; "
                    "use one ShardLoader for each loop"
                )
            batch, bad = self._take(batches)
            self._note(bad)
            self._delivered += 1
            yield batch
        if self._position is position:
            self._epoch, self._history, self._position = self._epoch + 1, (), None

    def _take(self, batches: Iterator[Any]) -> tuple[Any, tuple[BadSample, ...]]:
        try:
            with worker_errors(self._workers):
                made = next(batches)
        except StopIteration:
            raise WdsToolsError("a worker ended before its batches did; this is a bug, please report it") from None
        if isinstance(made, _Failure):
            try:
                raise made.error
            finally:
                # Its trace has this frame. What the garbage collector must find is not shut down well: 5 s a worker.
                del made
        batch, bad = made
        return tuple(self._unpacked(value) for value in batch), bad

    def _unpacked(self, value: Any) -> Any:
        if not isinstance(value, Parcel):
            return value
        source: _Batches = self.dataset  # type: ignore[assignment]
        assert source.slots is not None
        return source.slots.take(value)

    def _note(self, bad: Sequence[BadSample]) -> None:
        """Put bad samples on the ledger, and end the run when there are too many."""
        if not bad:
            return
        self.errors += bad
        if self._ledger is not None:
            try:
                with open(self._ledger, "a", encoding="utf-8") as file:
                    file.write("".join(json.dumps(asdict(sample)) + "\n" for sample in bad))
            except OSError as error:
                raise store_error(error, self._ledger, "write") from error
        source: _Batches = self.dataset  # type: ignore[assignment]
        budget = source.max_errors
        if budget is not None and len(self.errors) > budget:
            reasons: dict[str, int] = {}
            for sample in self.errors:
                reasons[sample.reason] = reasons.get(sample.reason, 0) + 1
            summary = "; ".join(
                f"{count} times {reason}" for reason, count in sorted(reasons.items(), key=lambda x: -x[1])[:5]
            )
            raise TooManyErrors(
                f"{len(self.errors)} bad samples where max_errors is {budget} ({summary}); the last: {bad[-1]}"
            )

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is: a few numbers, ready for JSON, the same on every rank, whatever is prefetched."""
        epoch, history = self._epoch, self._history
        if self._position is not None:
            history = self._position.history(self._delivered)
            if self._delivered == self._position.num_batches:
                epoch, history = epoch + 1, ()
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "history": [phase.to_dict() for phase in history],
            "order": self._order.settings,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that any rank saved, with this loader's world size, workers and batch size.

        Raises `WdsToolsError` for a state of another dataset, seed, tail or version.
        """
        try:
            version = state["version"]
            if version != STATE_VERSION:
                raise WdsToolsError(
                    f"the state is of version {version!r:.40} and this program reads {STATE_VERSION}; "
                    "use the program that it was saved with"
                )
            epoch, settings = state["epoch"], dict(state["order"])
            history = tuple(Phase.from_dict(phase) for phase in state["history"])
        except (KeyError, TypeError, ValueError):
            raise WdsToolsError("this is no state of a ShardLoader; give what its state_dict() returned") from None
        self._order.check(settings)
        self._order.epoch(epoch, self._topology(), history)  # refuses what cannot be
        self._epoch, self._history, self._position = epoch, history, None


def _as_made(batch: Any) -> Any:
    """In the place of DataLoader's own conversion, which makes lists of tuples and looks at each of their entries."""
    return batch


def _checked_ledger(ledger: str | os.PathLike[str]) -> str:
    """A file is opened when the first sample is bad, which may be hours later."""
    path = os.path.expanduser(os.fspath(ledger))
    if not os.path.isdir(os.path.dirname(path) or "."):
        raise OptionError(f"ledger is {path!r}, and there is no such folder; make it first")
    return path


@dataclass(frozen=True)
class _Failure:
    """An error on its way from a worker; raised in the loop as it is, without a worker's trace around it."""

    error: WdsToolsError


class _Batches(IterableDataset[Any]):
    """What a worker iterates: the batches of its stream, each with the bad samples that were left out of it."""

    def __init__(self, dataset: ShardPipeline, order: Order, batch_size: int, workers: int) -> None:
        self.max_errors = dataset.max_errors
        self._skip = dataset.on_error == "skip"
        self._order = order
        self._shards = dataset.shards
        self._batcher = Batcher(dataset.fields, dataset.transform)
        self._reader = reader_of(dataset.shards, dataset.fields.wanted, keep=shards_at_once(order))
        self._batch_size, self._workers = batch_size, workers
        self.slots: Slots | None = None
        # epoch, rank, world size, number of phases, then the phases: told to persistent workers between passes.
        self._told = torch.zeros(4 + 4 * MAX_PHASES, dtype=torch.int64)
        self._told.share_memory_()  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            return self.__dict__
        return {**self.__dict__, "slots": None}  # a copy makes its own

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one sample's picture in a batch; 0 where that is not known, or there is none."""
        if not self.pictures or not self._order.num_samples:
            return 0
        shard, number = self._order.locate(0)
        return self._batcher.row_bytes(lambda: self._reader.read(int(shard), int(number)))

    @property
    def pictures(self) -> int:
        """How many entries of a batch are images."""
        return self._batcher.pictures

    def tell(self, epoch: int, history: Sequence[Phase], rank: int, world: int) -> None:
        """What the next pass is."""
        if len(history) > MAX_PHASES:
            raise WdsToolsError(
                f"the state has {len(history)} changes of topology in one epoch; at most {MAX_PHASES} can be resumed"
            )
        numbers = [epoch, rank, world, len(history)]
        for phase in history:
            numbers += phase.world, phase.workers, phase.batch_size, phase.batches
        self._told[: len(numbers)] = torch.tensor(numbers, dtype=torch.int64)

    def __iter__(self) -> Iterator[Any]:
        epoch, rank, world, phases = self._told[:4].tolist()
        if not world:
            raise OptionError(
                "the dataset inside a ShardLoader was taken out of it, and only the loader knows what it is to deliver; "
                "use the loader itself (with Accelerate: do not give it to prepare())"
            )
        history = [Phase(*self._told[4 + 4 * n : 8 + 4 * n].tolist()) for n in range(phases)]
        worker = get_worker_info()
        self._reader.after_fork()
        if worker is not None and self.slots is not None:
            self.slots.reclaim(worker.id)
        order = self._order.epoch(epoch, Topology(world, self._workers, self._batch_size), history)
        stream = order.stream(rank, worker.id if worker is not None else 0)
        try:
            with closing(self._reader.following(iter(stream), self._order)) as batches:
                for ids in batches:
                    if worker is None:
                        with kept_randomness():
                            made = self._make(ids, epoch)
                    else:
                        made = self._make(ids, epoch, worker.id)
                    yield made
        except WdsToolsError as error:
            yield _Failure(error)

    def _make(
        self, ids: np.ndarray[Any, np.dtype[np.int64]], epoch: int, worker: int | None = None
    ) -> tuple[Any, tuple[BadSample, ...]]:
        shards, numbers = (part.tolist() for part in self._order.locate(ids))
        seeds = self._order.seeds(epoch, ids).tolist()
        batch, bad = self._batcher.begin(len(ids), self.slots, worker), []
        for shard, number, seed in zip(shards, numbers, seeds, strict=True):
            try:
                batch.add(self._reader.read(shard, number, batch.landings), seed)
            except SampleError as error:
                name, key, offset = self._reader.place(shard, number)
                if not self._skip:
                    if isinstance(error, MissingField):  # only the fields that are wanted were read
                        error = error.among(ShardReader(self._shards).read(shard, number))
                    raise error.at(f"{name}, key {key!r}, offset {offset}") from error
                bad.append(BadSample(name, key, offset, error.reason))
        return batch.done(), tuple(bad)
