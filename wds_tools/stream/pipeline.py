"""What `ShardDataset` and `MixedDataset` share: a `webdataset.DataPipeline` over an order, and a sequence.

Each pass is an epoch of the order, dealt to this rank and this worker; the fluent methods and ``wds.WebLoader`` work on it.
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any

import torch
from webdataset.compat import FluidInterface
from webdataset.pipeline import DataPipeline

from wds_tools.errors import OptionError
from wds_tools.stream import decoders, sequential
from wds_tools.stream.batch import Fields, check_transform
from wds_tools.stream.order import Order, Topology
from wds_tools.stream.partition import whole_number
from wds_tools.stream.reader import SampleDict, ShardReader, shards_at_once
from wds_tools.stream.recoding import reader_of
from wds_tools.stream.shards import JointShards, Shards
from wds_tools.stream.world import find_world

if TYPE_CHECKING:
    from typing_extensions import Self


class ShardPipeline(DataPipeline, FluidInterface):  # type: ignore[misc]  # webdataset is untyped
    """Samples of ``shards`` in ``order``, and what `ShardLoader` is to make of them."""

    shards: Shards | JointShards
    order: Order

    def __init__(
        self,
        *,
        fields: Sequence[str],
        transform: Callable[[Any], Any] | None,
        on_error: str,
        max_errors: int | None,
        rank: int | None,
        world_size: int | None,
    ) -> None:
        super().__init__()
        if on_error not in ("raise", "skip"):
            raise OptionError(f"on_error is {on_error!r}; it must be 'raise' or 'skip'")
        if max_errors is not None:
            max_errors = whole_number("max_errors", max_errors, 0)
        self.fields = Fields(fields)
        check_transform(transform)
        self.transform = transform
        self.on_error = on_error
        self.max_errors = max_errors
        if rank is not None or world_size is not None:
            find_world(rank, world_size)  # refuses what cannot be
        self.given_world = (rank, world_size)
        self._epoch = _Epoch()
        self.pipeline.append(_Source(self))

    @property
    def classes(self) -> list[str]:
        """The class names, by class index; empty where no manifest tells them."""
        return list(self.shards.classes)

    def __len__(self) -> int:
        """Samples that there are, whatever the rank, before any stage that batches or selects."""
        if not self.shards.counted:
            raise TypeError("this dataset has no length: its shards have no indexes ('wds-tools index' makes them)")
        return self.order.num_samples

    def __getitem__(self, number: int) -> SampleDict:
        """The sample at a position in the manifest's order, by one read; negative positions count from the end."""
        count, number = len(self), operator.index(number)
        if not -count <= number < count:
            raise IndexError(f"sample {number} of {count}")
        shard, index = self.order.locate(number % count)
        self.reader.after_fork()
        return self.reader.read(int(shard), int(index))

    @cached_property
    def reader(self) -> ShardReader:
        """Reads every field of any sample."""
        return reader_of(self.shards)

    @property
    def epoch_size(self) -> int:
        """Samples that an epoch delivers, over all ranks."""
        if not self.shards.counted:
            len(self)
        return self.order.epoch_samples

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers."""
        return self._epoch.next

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration delivers, also in workers that are there already."""
        self._epoch.choose(whole_number("epoch", epoch, 0, 2**63))

    def compose(self, *stages: Any) -> Self:
        """A copy with further stages."""
        other = self._copy()
        # The source stage must follow its own dataset, whose epoch may be set.
        other.pipeline = [_Source(other), *self.pipeline[1:], *stages]
        return other

    def decode(self, *args: Any, pre: Any = None, post: Any = None, **options: Any) -> Self:
        """As in webdataset, but pickles stay bytes, unless handlers are given that load them."""
        pre = [decoders.unpack] if pre is None else pre
        post = [decoders.basic] if post is None else post
        return super().decode(*args, pre=pre, post=post, **options)  # type: ignore[no-any-return]

    def xdecode(self, *args: Any, **options: Any) -> Self:
        """As in webdataset, but pickles stay bytes, unless decoders are given that load them."""
        return super().xdecode(*args, **{"defaults": decoders.XDECODE, **options})  # type: ignore[no-any-return]

    def _ordered(self, order: Order) -> Self:
        """A copy without further stages, in another order."""
        other = self._copy()
        other.order = order
        other.pipeline = [_Source(other)]
        return other

    def _copy(self) -> Self:
        other = copy.copy(self)
        other._epoch = _Epoch(self.epoch)
        return other

    def world(self) -> tuple[int, int]:
        """Rank and world size."""
        return find_world(*self.given_world)

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__}
        if get_spawning_popen() is not None:  # a spawned worker cannot ask torch.distributed, so it is told
            state["given_world"] = self.world()
        state.pop("reader", None)
        return state


class _Epoch:
    """The epoch that is next. Passes are counted where they are made, so in each worker; a choice reaches all of them."""

    def __init__(self, epoch: int = 0) -> None:
        self._chosen = torch.tensor([epoch, 0])  # and how often was chosen
        self._chosen.share_memory_()  # type: ignore[no-untyped-call]
        self._passes = 0
        self._choice = 0

    @property
    def next(self) -> int:
        epoch, choice = self._chosen.tolist()
        if choice != self._choice:
            self._choice, self._passes = choice, 0
        return int(epoch) + self._passes

    def begin(self) -> int:
        """The epoch of a pass that begins now."""
        epoch = self.next
        self._passes += 1
        return epoch

    def choose(self, epoch: int) -> None:
        self._chosen.copy_(torch.tensor([epoch, int(self._chosen[1]) + 1]))


class _Source:
    """The first stage of the pipeline: the samples of one worker of one rank."""

    def __init__(self, dataset: ShardPipeline) -> None:
        self._dataset = dataset

    def __call__(self) -> Iterator[SampleDict]:
        dataset = self._dataset
        rank, world = dataset.world()
        worker = torch.utils.data.get_worker_info()
        workers, number = (worker.num_workers, worker.id) if worker is not None else (0, 0)
        epoch = dataset._epoch.begin()
        if isinstance(dataset.shards, Shards) and not dataset.shards.counted:
            streams = world * max(workers, 1)
            mine = sequential.deal(
                dataset.order.seed, epoch, dataset.order.shuffle, len(dataset.shards.shards), streams
            )
            yield from sequential.read(dataset.shards, mine[rank * max(workers, 1) + number])
            return
        order = dataset.order.epoch(epoch, Topology(world, workers, 1))
        reader = reader_of(dataset.shards, keep=shards_at_once(dataset.order))
        with contextlib.closing(reader.following(order.stream(rank, number).blocks(), dataset.order)) as blocks:
            for ids in blocks:
                shards, numbers = (part.tolist() for part in dataset.order.locate(ids))
                yield from map(reader.read, shards, numbers)
