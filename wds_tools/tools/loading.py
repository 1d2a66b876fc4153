"""How fast a `ShardLoader` delivers, with so many workers, and what the main process has to do for it.

The clock starts when every worker has delivered its first batch: processes and shards are opened once, not for each
image. Where an epoch is short the next one follows, with the same processes. The main process's part is the processor
time that it spent, whatever it waited for.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import Any

from wds_tools.convert.engines import held_interrupts
from wds_tools.errors import FormatError
from wds_tools.stream.dataset import ShardDataset
from wds_tools.stream.loader import ShardLoader
from wds_tools.tools.reading import Note
from wds_tools.tools.verdict import Load

PATIENCE_SECONDS = 60.0  # for what is not timed


def measure_loading(
    dataset: ShardDataset, workers: int, batch_size: int, seconds: float, note: Note
) -> tuple[Load, int, int]:
    """The loader's rate, and how many samples were bad and good. Raises the errors of loading.

    `FormatError` where all samples are bad.
    """
    with _no_warning():
        loader = ShardLoader(dataset, batch_size, workers, rank=0, world_size=1)
    clock = _Clock(seconds)
    seen = 0
    while not clock.over:
        with held_interrupts(), _no_warning():
            batches: Any = iter(
                loader
            )  # starts the workers; at Ctrl-C the main process ends them, without their traces
        with contextlib.closing(batches):
            seen += _load(batches, len(loader), workers, clock, note)
        if not seen:
            raise FormatError(f"no sample could be loaded; the first: {loader.errors[0]}")
    return Load(workers, clock.samples / clock.seconds, clock.cpu / clock.samples), len(loader.errors), seen


class _Clock:
    """Samples, seconds and the main process's processor seconds of the timed parts of all passes."""

    def __init__(self, budget: float) -> None:
        self.samples, self.seconds, self.cpu = 0, 0.0, 0.0
        self._budget = budget
        self._given_up = time.perf_counter() + 2 * budget + PATIENCE_SECONDS
        self.start()

    def start(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def lap(self, samples: int) -> None:
        """Count what was loaded since the last lap, or the start."""
        wall, cpu = self._wall, self._cpu
        self.start()
        self.samples, self.seconds, self.cpu = (
            self.samples + samples,
            self.seconds + self._wall - wall,
            self.cpu + self._cpu - cpu,
        )

    @property
    def over(self) -> bool:
        return self.samples > 0 and (self.seconds >= self._budget or time.perf_counter() > self._given_up)


def _load(batches: Iterator[Any], length: int, workers: int, clock: _Clock, note: Note) -> int:
    """Load until the time is over, or the epoch: how many samples. Each worker's first batch is not timed, if it has others."""
    untimed = max(workers, 1) if length > 2 * max(workers, 1) else 0
    seen = 0
    clock.start()
    for number, batch in enumerate(batches):
        samples = len(batch[0])
        seen += samples
        if number < untimed:
            clock.start()
        else:
            clock.lap(samples)
        note(samples, 0)
        if clock.over:
            break
    return seen


@contextlib.contextmanager
def _no_warning() -> Iterator[None]:
    """More workers than cores are tried to see what they do; DataLoader need not warn of them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield
