"""`ShardDataset`: shards as a `webdataset.DataPipeline`, and as a sequence.

It replaces ``wds.WebDataset`` by changing one line: the fluent methods, ``wds.WebLoader`` and plain iteration work as
before, and samples are the same dicts. What differs is below: the order is computed, every sample comes exactly once
over all ranks and workers, and the length is known. `ShardLoader` adds even batches and exact resume.
"""

from __future__ import annotations

import difflib
import inspect
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from wds_tools.errors import OptionError
from wds_tools.store.options import StoreOptions
from wds_tools.stream.balanced import balanced_order
from wds_tools.stream.labels import read_labels
from wds_tools.stream.order import Order
from wds_tools.stream.pipeline import ShardPipeline
from wds_tools.stream.rounds import RoundsOrder
from wds_tools.stream.shards import Cache, Shards, Urls, find_shards

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


class ShardDataset(ShardPipeline):
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
        _check_webdataset_options(webdataset_options)
        super().__init__(
            fields=fields,
            transform=transform,
            on_error=on_error,
            max_errors=max_errors,
            rank=rank,
            world_size=world_size,
        )
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

    def shuffle(self, size: int, **options: Any) -> ShardDataset:
        """As in webdataset; on the bare dataset, a computed shuffle with this window takes the place of a buffer."""
        if len(self.pipeline) > 1 or not self.shards.counted:
            return super().shuffle(size, **options)  # type: ignore[no-any-return]
        if size < 1:
            return self
        return self._ordered(replace(self.order, shuffle=True, window=size))

    def balanced(
        self,
        labels: str | Sequence[int] | npt.NDArray[Any] = "cls",
        *,
        weights: Sequence[float] | None = None,
        power: float = 0.0,
        epoch_size: int | None = None,
    ) -> ShardDataset:
        """A copy in which classes take turns: each as often as any other, whatever its size.

        Each class is gone through in rounds of its own, without repetition in a round and in another order in each, so
        small classes come round again more often. ``power`` draws a class by its size to this power (0: all alike, 0.5:
        by square root, 1: as they are); ``weights`` says it class by class instead, 0 leaves a class out.
        An epoch has as many samples as the dataset, or ``epoch_size``; the next one goes on where it ended.

        ``labels`` is where classes are read from, once, here: the field ``"cls"``, or ``"folder"``, the first folder in the
        key, which needs the indexes only. Or it is the labels themselves, a whole number for each sample in the
        manifest's order.

        Raises `OptionError`; `SampleError` for a sample without a label; and what reading raises.
        """
        if len(self.pipeline) > 1:
            raise OptionError("balanced() is for a dataset without further stages; call it before them")
        if isinstance(self.order, RoundsOrder):
            raise OptionError("this dataset is balanced already; call balanced() once")
        if not self.shards.counted:
            len(self)  # says why there is none
        found = read_labels(self.shards, labels) if isinstance(labels, str) else labels
        return self._ordered(balanced_order(self.order, found, weights, power, epoch_size))


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
