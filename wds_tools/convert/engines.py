"""Where tasks run: in this process, or in a pool of processes.

An engine maps a function over items and lets go of everything when the caller stops early. Workers leave Ctrl-C to
the driver, report progress through shared counters, look at a shared flag to end early, and exit when the driver is gone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, Protocol, TypeVar

from wds_tools.errors import OptionError, WorkerError

Item = TypeVar("Item")
Result = TypeVar("Result")
Tick = Callable[[int, int], None]
# Called in the driver with the totals so far: samples, bytes.
Watch = Callable[[int, int], None]

_POLL_SECONDS = 0.1  # how often a progress bar is brought up to date while tasks run


class Cancelled(BaseException):
    """Raised in a task whose driver has given up; never seen outside."""


class Engine(Protocol):
    """What `run` needs to get its tasks done."""

    def __enter__(self) -> Engine: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterable[Result]:
        """The results, in the items' order."""

    def run(self, function: Callable[[Item, Tick], Result], items: Iterable[Item], watch: Watch) -> Iterator[Result]:
        """The results as they come. ``function`` gets a `Tick` to report with; the first error ends all tasks."""


class SerialEngine:
    """Everything in this process: for debugging, for one worker, and where there are no processes to be had."""

    def __enter__(self) -> SerialEngine:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterable[Result]:
        return map(function, items)

    def run(self, function: Callable[[Item, Tick], Result], items: Iterable[Item], watch: Watch) -> Iterator[Result]:
        done = [0, 0]

        def tick(samples: int, size: int) -> None:
            done[0] += samples
            done[1] += size
            watch(*done)

        for item in items:
            yield function(item, tick)


class ProcessEngine:
    """A pool of ``workers`` processes on this machine."""

    def __init__(self, workers: int) -> None:
        # A fork is ready in a millisecond and sees what is loaded already; elsewhere than Linux it is not safe.
        self._context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._workers = workers
        self._stop = self._context.Event()
        self._counters = self._context.Array("q", 2)
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> ProcessEngine:
        self._pool = ProcessPoolExecutor(self._workers, self._context, _start_worker, (self._stop, self._counters))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._pool is not None
        if error is not None:
            self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterable[Result]:
        assert self._pool is not None
        found = list(items)
        with _worker_errors():
            yield from self._pool.map(function, found, chunksize=max(1, len(found) // (self._workers * 8)))

    def run(self, function: Callable[[Item, Tick], Result], items: Iterable[Item], watch: Watch) -> Iterator[Result]:
        assert self._pool is not None
        waiting: set[Future[Result]] = set()
        source = iter(items)
        with _worker_errors():
            while True:
                # A short queue keeps workers busy without holding every task in memory.
                while len(waiting) < 2 * self._workers + 2 and (item := next(source, None)) is not None:
                    waiting.add(self._pool.submit(_run_task, function, item))
                if not waiting:
                    return
                finished, waiting = wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
                watch(*self._counters[:])
                for future in finished:
                    yield future.result()


def make_engine(name: str, workers: int | None) -> Engine:
    """The engine called ``name``, with as many workers as this process has cores unless ``workers`` says."""
    if name != "process":
        raise OptionError(f"engine is {name!r}; only 'process' is there")
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not 0 <= workers <= 1024:
        raise OptionError(f"workers is {workers}; it must be between 0 (no processes) and 1024")
    return ProcessEngine(workers) if workers > 1 else SerialEngine()


@contextlib.contextmanager
def _worker_errors() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise WorkerError(
            "a worker process was killed, perhaps because memory ran out; run again to go on where it stopped, "
            "with fewer --workers if it happens again"
        ) from error


_shared: tuple[Any, Any] | None = None


def _start_worker(stop: Any, counters: Any) -> None:
    global _shared
    _shared = stop, counters
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_exit_with_driver, daemon=True).start()


def _exit_with_driver() -> None:
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


def _run_task(function: Callable[[Item, Tick], Result], item: Item) -> Result:
    assert _shared is not None
    stop, counters = _shared

    def tick(samples: int, size: int) -> None:
        with counters.get_lock():
            counters[0] += samples
            counters[1] += size
        if stop.is_set():
            raise Cancelled

    return function(item, tick)
