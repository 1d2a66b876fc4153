"""`ShardDataset`: shards as a `webdataset.DataPipeline`, and as a sequence.

It replaces ``wds.WebDataset`` by changing one line: the fluent methods, ``wds.WebLoader`` and plain iteration work as
before, and samples are the same dicts. What differs is below: the order is computed, every sample comes exactly once
over all ranks and workers, and the length is known. `ShardLoader` adds even batches and exact resume.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import inspect
import operator
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch
from webdataset.compat import FluidInterface
from webdataset.pipeline import DataPipeline

from wds_tools.errors import OptionError
from wds_tools.store.options import StoreOptions
from wds_tools.stream import decoders, sequential
from wds_tools.stream.batch import Fields, check_transform
from wds_tools.stream.order import Order, Topology
from wds_tools.stream.partition import whole_number
from wds_tools.stream.reader import SampleDict, ShardReader, shards_at_once
from wds_tools.stream.shards import Cache, Shards, Urls, find_shards
from wds_tools.stream.world import find_world

# What wds.WebDataset takes and this class does by itself.
_ACCEPTED = {"nodesplitter", "workersplitter", "empty_check", "verbose", "detshuffle"}
# What it takes and this class has another way for; None and False ask for nothing.
_REFUSED = {
    "resampled": "it draws samples with repetition, and here every sample comes exactly once: leave it out",
    "mode": "it draws samples with repetition, and here every sample comes exactly once: leave it out",
    "repeat": "use the method repeat()",
    "handler": "use on_error='skip' with ShardLoader, or the handler of decode() and map()",
    "cache_dir": "use cache=path and cache_bytes=N",
    "cache_size": "use cache=path and cache_bytes=N",
    "url_to_name": "copies in a cache have names of their own: leave it out",
    "select_files": "use select() or to_tuple()",
    "rename_files": "use rename() or rename_keys()",
}


class ShardDataset(DataPipeline, FluidInterface):  # type: ignore[misc]  # webdataset is untyped
    """The samples of one split.

    ``urls`` is a dataset's folder (local, or an http or s3 address), a glob, brace notation, or a list of shards. ``split``
    chooses where there are several. ``shuffle`` permutes shards and moves samples
    within ``window``, merging ``interleave`` shards; ``seed`` and the epoch decide how. ``fields`` and ``transform`` (any
    callable on a PIL image) say what `ShardLoader` makes batches of. ``on_error="skip"`` leaves bad samples out, up to
    ``max_errors`` of them.

    Of a remote dataset, ``cache`` names a folder that keeps whole shards, at most ``cache_bytes`` of them, for every process of
    the machine; ``options`` are timeouts, retries, requests and credentials (docs/remote.md).

    Iterating gives this worker's part of this rank's part of the epoch, as WebDataset's dicts: ``__key__``, ``__url__``, and
    the fields as bytes. Each pass is the next epoch, with workers if they are persistent, and `set_epoch` chooses one.
    `decode` never unpickles: see `stream.decoders`.

    Remote shards without indexes are streamed header by header: then there is no length, no random access and no
    resume, shards are dealt whole, and a warning says so.

    Raises `OptionError`, `NotFoundError` and `StoreError` when made, and `TarError`, `StaleIndexError` and `StoreError`
    while reading.
    """

    def __init__(
        self,
        urls: Urls,
        *,
        split: str | None = None,
        shuffle: bool | None = None,
        seed: int | None = 0,
        window: int = 2048,
        interleave: int = 16,
        fields: Sequence[str] = ("jpg;png;webp", "cls"),
        transform: Callable[[Any], Any] | None = None,
        on_error: str = "raise",
        max_errors: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        options: StoreOptions | None = None,
        shardshuffle: bool | int | None = None,
        **webdataset_options: Any,
    ) -> None:
        super().__init__()
        _check_webdataset_options(webdataset_options)
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
        self.shards: Shards = find_shards(urls, split, options, _cache(cache, cache_bytes))
        self.order = Order(
            self.shards.sizes,
            seed=seed or 0,
            shuffle=bool(shardshuffle) if shuffle is None else shuffle,
            window=window,
            interleave=interleave,
        )
        if not self.shards.counted:
            warnings.warn(
                f"{self.shards.store.url()} has no indexes: its shards are streamed header by header, without length, "
                "random access or resume; 'wds-tools index' makes indexes",
                stacklevel=2,
            )
        self.pipeline.append(_Source(self))

    @property
    def classes(self) -> list[str]:
        """The class names, by class index; empty where no manifest tells them."""
        return list(self.shards.classes)

    def __len__(self) -> int:
        """Samples of the whole split, whatever the rank, before any stage that batches or selects."""
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
        return ShardReader(self.shards)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers."""
        return self._epoch.next

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration delivers, also in workers that are there already."""
        self._epoch.choose(whole_number("epoch", epoch, 0, 2**63))

    def shuffle(self, size: int, **options: Any) -> ShardDataset:
        """As in webdataset; on the bare dataset, a computed shuffle with this window takes the place of a buffer."""
        if len(self.pipeline) > 1 or not self.shards.counted:
            return super().shuffle(size, **options)  # type: ignore[no-any-return]
        if size < 1:
            return self
        other = self._copy()
        sizes = self.order
        other.order = Order(
            sizes.shard_sizes, seed=sizes.seed, window=size, interleave=sizes.interleave, tail=sizes.tail
        )
        other.pipeline = [_Source(other)]
        return other

    def compose(self, *stages: Any) -> ShardDataset:
        """A copy with further stages."""
        other = self._copy()
        # The source stage must follow its own dataset, whose epoch may be set.
        other.pipeline = [_Source(other), *self.pipeline[1:], *stages]
        return other

    def decode(self, *args: Any, pre: Any = None, post: Any = None, **options: Any) -> ShardDataset:
        """As in webdataset, but pickles stay bytes, unless handlers are given that load them."""
        pre = [decoders.unpack] if pre is None else pre
        post = [decoders.basic] if post is None else post
        return super().decode(*args, pre=pre, post=post, **options)  # type: ignore[no-any-return]

    def xdecode(self, *args: Any, **options: Any) -> ShardDataset:
        """As in webdataset, but pickles stay bytes, unless decoders are given that load them."""
        return super().xdecode(*args, **{"defaults": decoders.XDECODE, **options})  # type: ignore[no-any-return]

    def _copy(self) -> ShardDataset:
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

    def __init__(self, dataset: ShardDataset) -> None:
        self._dataset = dataset

    def __call__(self) -> Iterator[SampleDict]:
        dataset = self._dataset
        rank, world = dataset.world()
        worker = torch.utils.data.get_worker_info()
        workers, number = (worker.num_workers, worker.id) if worker is not None else (0, 0)
        epoch = dataset._epoch.begin()
        if not dataset.shards.counted:
            streams = world * max(workers, 1)
            mine = sequential.deal(
                dataset.order.seed, epoch, dataset.order.shuffle, len(dataset.shards.shards), streams
            )
            yield from sequential.read(dataset.shards, mine[rank * max(workers, 1) + number])
            return
        order = dataset.order.epoch(epoch, Topology(world, workers, 1))
        reader = ShardReader(dataset.shards, keep=shards_at_once(dataset.order))
        with contextlib.closing(reader.following(order.stream(rank, number).blocks(), dataset.order)) as blocks:
            for ids in blocks:
                shards, numbers = (part.tolist() for part in dataset.order.locate(ids))
                yield from map(reader.read, shards, numbers)


def _cache(path: str | os.PathLike[str] | None, max_bytes: int | None) -> Cache | None:
    if (path is None) != (max_bytes is None):
        raise OptionError(f"cache is {path!r} and cache_bytes is {max_bytes}; give both, or neither")
    return None if path is None or max_bytes is None else Cache(path, max_bytes)


def _check_webdataset_options(options: dict[str, Any]) -> None:
    for name, value in options.items():
        # webdataset has two functions of this name, which do what happens here.
        asks = value not in (None, False) and getattr(value, "__name__", "") != "reraise_exception"
        if name in _REFUSED and asks:
            raise OptionError(f"{name}={value!r} cannot be given to ShardDataset; {_REFUSED[name]}")
        if name in ("batch_size", "num_workers", "tail", "ledger", "pin_memory", "persistent_workers"):
            raise OptionError(f"{name} cannot be given to ShardDataset; give it to ShardLoader")
        if name not in _ACCEPTED and name not in _REFUSED:
            known = [each for each in inspect.signature(ShardDataset).parameters if each != "webdataset_options"]
            alike = difflib.get_close_matches(name, known, 1)
            advice = f"did you mean {alike[0]}?" if alike else f"what can is {', '.join(known)}"
            raise OptionError(f"{name} cannot be given to ShardDataset; {advice}")
