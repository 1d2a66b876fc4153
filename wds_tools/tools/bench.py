"""How fast a dataset is read, decoded and loaded on this machine, and what limits it.

Each step is measured by itself for about the same short time: reading raw samples in one process (`reading`), what one
worker makes of samples in memory (`decoding`), then whole loaders with more and more workers (`loading`).
`verdict.judge` compares the rates.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike

import torch

from wds_tools.convert.engines import Watch
from wds_tools.errors import FormatError, NotFoundError, OptionError
from wds_tools.stream.batch import Fields
from wds_tools.stream.dataset import ShardDataset
from wds_tools.tools.cores import usable_cores
from wds_tools.tools.decoding import find_content, make_transform, measure_decoding
from wds_tools.tools.loading import measure_loading
from wds_tools.tools.pictures import look_at
from wds_tools.tools.reading import cached_share, is_remote, measure_reading
from wds_tools.tools.verdict import Measured, Verdict, judge

MAX_WORKERS = 1024


@dataclass(frozen=True)
class BenchOptions:
    """``workers`` are the numbers to try (None: 0, and powers of two up to the cores); ``seconds`` is for each step.

    ``image_size`` is the side of the crops in pixels, ``target`` a rate in samples/s that is wanted. ``cold`` allows that
    shards are dropped from the page cache.
    """

    split: str | None = None
    workers: tuple[int, ...] | None = None
    batch_size: int = 64
    image_size: int = 224
    seconds: float = 2.0
    target: float | None = None
    cold: bool = True

    def __post_init__(self) -> None:
        if self.workers is not None and not self.workers:
            raise OptionError("workers is empty; give the numbers to try, such as 0,1,2")
        for number in self.workers or ():
            if not 0 <= number <= MAX_WORKERS:
                raise OptionError(f"workers is {number}; it must be between 0 (no processes) and {MAX_WORKERS}")
        if not 1 <= self.batch_size <= 1 << 20:
            raise OptionError(f"batch_size is {self.batch_size}; it must be between 1 and {1 << 20}")
        if not 1 <= self.image_size <= 65535:
            raise OptionError(f"image_size is {self.image_size}; it must be between 1 and 65535")
        if not 0.01 <= self.seconds <= 3600:
            raise OptionError(f"seconds is {self.seconds}; it must be between 0.01 and 3600")
        if self.target is not None and not 0 < self.target < float("inf"):
            raise OptionError(f"target is {self.target}; it must be a rate above 0, in images per second")


@dataclass(frozen=True)
class BenchReport:
    """What was measured, and what follows. The split has ``samples`` in ``shards``; ``fields`` is what a batch is made of."""

    place: str
    samples: int
    shards: int
    fields: tuple[str, ...]
    options: BenchOptions
    measured: Measured
    verdict: Verdict


def bench_dataset(
    dataset: str | PathLike[str] | Sequence[str | PathLike[str]],
    options: BenchOptions | None = None,
    *,
    watch: Watch = lambda samples, size: None,
) -> BenchReport:
    """Measure anything that `ShardDataset` takes; ``watch`` is told how many samples and bytes so far.

    Bad samples are left out and counted. Raises `NotFoundError` where nothing is, or indexes are missing; `FormatError`
    where there are no samples, or none can be used; and what `ShardDataset` and `ShardLoader` raise.
    """
    options = options or BenchOptions()
    source = _open(dataset, options.split)
    note = _Sum(watch).add
    shards, cores, seconds = source.shards, usable_cores(), options.seconds
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker
    try:
        reading = measure_reading(shards, seconds, note, cold=options.cold)
        content = find_content(reading.samples)
        source.fields = Fields(content.fields)
        images = [data for data in map(content.image, reading.samples) if data is not None]
        decode, bad, good = None, 0, 0
        if content.images:
            source.transform = make_transform(options.image_size)
            decode, bad, good = measure_decoding(
                reading.samples, content, options.image_size, options.batch_size, seconds, note
            )
        cached = cached_share(shards)
        loads = []
        for workers in _numbers(options.workers, cores):
            load, more_bad, more_good = measure_loading(source, workers, options.batch_size, seconds, note)
            loads.append(load)
            bad, good = bad + more_bad, good + more_good
    finally:
        torch.set_num_threads(threads)
    measured = Measured(
        cores=cores,
        batch_size=options.batch_size,
        image_size=options.image_size,
        reads=reading.reads,
        cached=cached,
        decode=decode,
        loads=tuple(loads),
        bad=bad / max(bad + good, 1),
        pictures=look_at(images),
    )
    verdict = judge(measured, options.target)
    place, fields = shards.store.url(), content.fields
    return BenchReport(place, sum(shards.sizes), len(shards.shards), fields, options, measured, verdict)


def _open(dataset: str | PathLike[str] | Sequence[str | PathLike[str]], split: str | None) -> ShardDataset:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* has no indexes")  # said below
        source = ShardDataset(dataset, split=split, shuffle=True, on_error="skip")
    place = source.shards.store.url()
    if not source.shards.counted:
        raise NotFoundError(
            f"{place}: these shards have no indexes, so they cannot be loaded in batches; "
            "make some with 'wds-tools index' where the shards lie"
        )
    if not len(source):
        raise FormatError(f"{place}: there are no samples in its shards, so nothing to measure")
    if is_remote(source.shards):  # so that what is fetched is used in so short a time, as in `reading`
        source.order = replace(source.order, shuffle=False)
    return source


class _Sum:
    """Sums up what the steps do, for whoever watches."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._samples = self._size = 0

    def add(self, samples: int, size: int) -> None:
        self._samples, self._size = self._samples + samples, self._size + size
        self._watch(self._samples, self._size)


def _numbers(given: tuple[int, ...] | None, cores: int) -> list[int]:
    """The numbers of workers to try, in order."""
    if given is not None:
        return sorted(set(given))
    return sorted({0, cores, *(1 << power for power in range(cores.bit_length()))})
