"""Where tasks run: in this process, or in a pool of processes (and on a Ray cluster, see `ray_engine`).

An engine maps a function over items and lets go of everything when the caller stops early. Workers leave Ctrl-C to
the driver, report progress through shared counters, look at a shared flag to end early, and exit when the driver is gone.
A worker may be killed at any moment, so the driver never waits for a lock that a worker may hold, nor for the rest of
an answer that a dead one began to send.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from types import TracebackType
from typing import Any, Protocol, TypeVar

from wds_tools.errors import OptionError, WorkerError
from wds_tools.records import NodeWork

Item = TypeVar("Item")
Result = TypeVar("Result")
Tick = Callable[[int, int], None]
# Called in the driver with the totals so far: samples, bytes.
Watch = Callable[[int, int], None]

_POLL_SECONDS = 0.1  # how often a progress bar is brought up to date while tasks run
_GRACE_SECONDS = 5.0  # for running tasks to see that they are to end; workers that do not are killed


class Cancelled(BaseException):
    """Raised in a task whose driver has given up; never seen outside."""


class Engine(Protocol):
    """What `run` needs to get its tasks done."""

    @property
    def nodes(self) -> tuple[NodeWork, ...]:
        """What each machine did in `run`, where there may be several; empty where there is only this one."""

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

    nodes: tuple[NodeWork, ...] = ()

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
    """A pool of ``workers`` processes on this machine.

    ``carried`` is a function that they are born with, to be run later: what it holds, such as the password of an
    address, then never goes through a pipe.
    """

    nodes: tuple[NodeWork, ...] = ()

    def __init__(self, workers: int, carried: Callable[..., Any] | None = None) -> None:
        # A fork is ready in a millisecond and sees what is loaded already; elsewhere than Linux it is not safe.
        self._context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._workers = workers
        self._carried = carried
        self._pool: Any = None

    def __enter__(self) -> ProcessEngine:
        self._stop = self._context.RawValue("b", 0)
        self._counters = self._context.RawArray("q", 2 * self._workers)  # samples and bytes by worker
        seats = self._context.Value("i", 0)
        self._pool = ProcessPoolExecutor(
            self._workers, self._context, _start_worker, (self._stop, self._counters, seats, self._carried)
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.value = 1
        # A second Ctrl-C need not hurry what ends by itself, or is made to.
        with held_interrupts():
            timer = threading.Timer(_GRACE_SECONDS, self._kill_workers)
            timer.start()
            self._pool.shutdown(wait=True, cancel_futures=True)
            timer.cancel()
            timer.join()

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterable[Result]:
        found = list(items)
        size = max(1, len(found) // (self._workers * 8))
        with _worker_errors():
            futures = deque(
                self._submit(run_chunk, function, found[start : start + size]) for start in range(0, len(found), size)
            )
            while futures:
                while not futures[0].done():
                    self._wait({futures[0]})
                yield from futures.popleft().result()

    def run(self, function: Callable[[Item, Tick], Result], items: Iterable[Item], watch: Watch) -> Iterator[Result]:
        waiting: set[Future[Result]] = set()
        source = iter(items)
        with _worker_errors():
            while True:
                # A short queue keeps workers busy without holding every task in memory.
                while len(waiting) < 2 * self._workers + 2 and (item := next(source, None)) is not None:
                    waiting.add(self._submit(_run_task, None if function is self._carried else function, item))
                if not waiting:
                    return
                finished, waiting = self._wait(waiting)
                watch(sum(self._counters[::2]), sum(self._counters[1::2]))
                for future in finished:
                    yield future.result()

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        # The first one forks the workers, and they are to leave Ctrl-C alone from their first moment on.
        with held_interrupts():
            future: Future[Any] = self._pool.submit(function, *arguments)
            return future

    def _wait(self, futures: set[Future[Result]]) -> tuple[set[Future[Result]], set[Future[Result]]]:
        with held_interrupts():  # one that comes amid its locks would leave them locked
            finished, waiting = wait(futures, _POLL_SECONDS, FIRST_COMPLETED)
        if not finished and connection.wait([process.sentinel for process in self._processes()], 0):
            # The pool sees by itself that a worker is dead, unless it waits for the rest of that worker's answer.
            # With no writer left, its wait ends.
            self._kill_workers()
            self._pool._result_queue._writer.close()
        return finished, waiting

    def _processes(self) -> list[Any]:
        return list((self._pool._processes or {}).values())

    def _kill_workers(self) -> None:
        for process in self._processes():
            process.kill()


def make_engine(name: str, workers: int | None, carried: Callable[..., Any] | None = None) -> Engine:
    """The engine called ``name``, with as many workers as this process has cores unless ``workers`` says.

    Of a function that is ``carried``, see `ProcessEngine`, nothing need be pickled where processes are forked.
    """
    if name != "process":
        raise OptionError(f"engine is {name!r}; here it can only be 'process'")
    if workers is None:
        workers = cores()
    if not isinstance(workers, int) or not 0 <= workers <= 1024:
        raise OptionError(f"workers is {workers!r}; it must be between 0 (no processes) and 1024")
    return ProcessEngine(workers, carried) if workers > 1 else SerialEngine()


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def _worker_errors() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise WorkerError(
            "a worker process was killed, perhaps because memory ran out; run again to go on where it stopped, "
            "with fewer --workers if it happens again"
        ) from error


@contextlib.contextmanager
def held_interrupts() -> Iterator[None]:
    """Ctrl-C comes after the block, and not at all to processes that begin in it, where the system can do that."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_shared: tuple[Any, Any, int, Any] | None = None


def _start_worker(stop: Any, counters: Any, seats: Any, carried: Any) -> None:
    global _shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with seats.get_lock():
        seat = seats.value
        seats.value += 1
    _shared = stop, counters, 2 * seat, carried
    threading.Thread(target=_exit_with_driver, daemon=True).start()


def _exit_with_driver() -> None:
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


def _run_task(function: Callable[[Item, Tick], Result] | None, item: Item) -> Result:
    """Run ``function``, or the one that this worker was born with."""
    assert _shared is not None
    stop, counters, seat, carried = _shared

    def tick(samples: int, size: int) -> None:
        counters[seat] += samples
        counters[seat + 1] += size
        if stop.value:
            raise Cancelled

    result: Result = (function or carried)(item, tick)
    return result


def run_chunk(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Several items as one task, where each is less work than sending it."""
    return [function(item) for item in items]
