"""A few threads that do jobs in the order in which they are handed in.

They are daemons, and nobody waits for them at the end: a job that waits for a dead server would make a broken-off pass, a
worker's end or Ctrl-C wait as well. A thread ends after the job that it is at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")


class Crew:
    """Threads of one process: not to be used after a fork, nor after `close`."""

    def __init__(self, threads: int, name: str) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads = threads
        for number in range(threads):
            threading.Thread(target=_work, args=(self._jobs,), name=f"{name}-{number}", daemon=True).start()

    def do(self, job: Callable[[], _T], future: Future[_T] | None = None) -> Future[_T]:
        """What will become of ``job``."""
        future = future or Future()
        self._jobs.put((future, job))
        return future

    def close(self) -> None:
        """Cancel what is not begun, and let the threads end."""
        while True:
            try:
                waiting = self._jobs.get_nowait()
            except Empty:
                break
            if waiting is not None:
                waiting[0].cancel()
        for _ in range(self._threads):
            self._jobs.put(None)


def _work(jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (waiting := jobs.get()) is not None:
        future, job = waiting
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(job())
        except BaseException as error:  # noqa: BLE001  # raised where the result is asked for
            future.set_exception(error)
        del waiting, future, job  # or what was fetched last would stay
