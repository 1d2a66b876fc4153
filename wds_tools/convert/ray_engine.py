"""Tasks on a Ray cluster: one that is there, or one that is started on this machine for as long as it takes.

Ray finds a place for each task; what is tried again is decided here, where the reason is known. An attempt that is lost with
its worker or its node, or meets a store that is gone for a while, is made again, at most `ATTEMPTS` times. Any other error
ends all tasks and is raised as itself. Only so many tasks are submitted as keep all workers busy.

Two attempts at one shard may overlap: a node that is cut off is taken for dead, and may be alive and go on, and so
may for a moment the tasks of a driver that was killed, when the next one begins. That is safe because both do the same:

* Each writes to a temporary name of its own (in a bucket: an upload of its own), which takes the shard's name at once and
  whole. Plan and entries decide every byte, so whichever comes last puts the same bytes in place of the same bytes;
  a reader keeps the file that it has opened. The same holds for index and receipt.
* A task compares its entries with the plan's digest before it begins. One that comes late, to a folder where another plan is
  being made or none any more, finds no entries, or others, and ends. The sweep at the beginning and the end of a
  conversion takes away the temporary files of those that are at it, whose rename then fails. What one may leave
  that is just behind its rename is an index and a receipt of the same bytes; the next run clears the receipt away.
* Of the two answers the driver takes one. The manifest is written by the driver alone, under its lock.
* In a bucket the claim is looked for before and after each shard, as always, and the driver sees by the versions of the
  shards when one was replaced by bytes that are stored differently.

So much for the same command. The lock of a folder is held by the driver and not, as in a pool, by its workers as well. Another
command (other options, ``--overwrite``) should not be begun while a node that was cut off is still at the old one.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from wds_tools._version import VERSION
from wds_tools.convert.engines import Item, Result, Tick, Watch, cores, held_interrupts, run_chunk
from wds_tools.convert.ray_task import Answer, forget, give_up, make_stub, pack
from wds_tools.errors import (
    MissingExtraError,
    OptionError,
    SourceChangedError,
    StoreError,
    WdsToolsError,
    WorkerError,
)
from wds_tools.records import NodeWork

ATTEMPTS = 4
_POLL_SECONDS = 0.5
_GRACE_SECONDS = 5.0  # for running tasks to see that they are to end; then their workers are killed
_PATIENCE_SECONDS = 600.0  # for a cluster without any CPU to get one: machines that are rented take minutes to start
_REACH_SECONDS = 10.0
_CHUNK = 64  # items of a task in `RayEngine.map`, each of which may find a folder of a thousand files
_OBJECT_BYTES = 160 << 20  # of a local cluster's shared memory; what a scan finds passes through it, a bit at a time
_ADDRESS = re.compile(r"(\[?[\w.:-]+?\]?):(\d{1,5})", re.ASCII)


@dataclass
class _Task:
    """An item on its way."""

    number: int
    name: str
    packed: bytes
    attempts: int = 0


class RayEngine:
    """The cluster at ``address`` (``host:port`` or ``auto``), or one of this machine with ``workers`` CPUs.

    On a cluster that is there, ``workers`` bounds the tasks at a time. A program that is connected to Ray already stays so, and
    its cluster is used.
    """

    def __init__(self, address: str | None, workers: int | None) -> None:
        if workers is not None and not (isinstance(workers, int) and 1 <= workers <= 100_000):
            raise OptionError(f"workers is {workers!r}; on Ray it must be between 1 and 100000")
        if address is not None and address != "auto" and not _ADDRESS.fullmatch(address):
            shown = address.rpartition("@")[2]
            raise OptionError(
                f"ray_address is {shown!r}; run on a machine of the cluster and give host:port of its head, such as "
                "10.0.0.1:6379, or 'auto' (what has :// in it is for other ways into a cluster)"
            )
        self._address = address
        self._workers = workers
        self._flight: dict[Any, _Task] = {}
        self._work: dict[str, NodeWork] = {}
        self._ours = False  # the connection
        self._stop = b""

    @property
    def nodes(self) -> tuple[NodeWork, ...]:
        return tuple(sorted(self._work.values(), key=lambda work: (work.host, work.address, work.node)))

    def __enter__(self) -> RayEngine:
        self._ray = _load()
        self._work.clear()
        self._stop = f"wds_tools-stop-{secrets.token_hex(8)}".encode()
        try:
            if not self._ray.is_initialized():
                if self._address not in (None, "auto"):
                    _reach(str(self._address))
                # Ray's threads are born in there and never see a Ctrl-C: it stays with us, who hold it where it would hurt.
                with held_interrupts():
                    self._ours = True
                    self._connect()
            stub = self._ray.remote(make_stub())
            self._remote = stub.options(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")
        except BaseException:
            self._disconnect()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C need not hurry what ends by itself, or is made to.
        with held_interrupts():
            self._cancel()
            self._disconnect()

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterable[Result]:
        every = list(items)
        size = min(max(1, len(every) // (8 * self._window(self._cpus()))), _CHUNK)
        chunks = (every[start : start + size] for start in range(0, len(every), size))
        for answer in self._answers(pack(partial(run_chunk, function), False, self._stop), chunks, ordered=True):
            yield from answer.result

    def run(self, function: Callable[[Item, Tick], Result], items: Iterable[Item], watch: Watch) -> Iterator[Result]:
        done = [0, 0]
        for answer in self._answers(pack(function, True, self._stop), items):
            self._book(answer)
            done[0] += answer.samples
            done[1] += answer.source_bytes
            watch(*done)
            yield answer.result

    def _answers(self, function: bytes, items: Iterable[Any], *, ordered: bool = False) -> Iterator[Answer]:
        """The answer for each item, as they come or in the items' order, and then no more than a few windows ahead."""
        shared = self._ray.put(function)
        source = enumerate(items)
        flight = self._flight
        found: dict[int, Answer] = {}  # and not given away yet
        given = 0
        idle_since = time.monotonic()
        while True:
            cpus = self._cpus()  # nodes come and go
            window = self._window(cpus)
            while len(flight) < window and len(found) < 4 * window:
                number, item = next(source, (-1, None))
                if number < 0:
                    break
                self._submit(shared, _Task(number, str(getattr(item, "name", item)), pickle.dumps(item)))
            if not flight:
                return
            ready, _ = self._ray.wait(list(flight), num_returns=1, timeout=_POLL_SECONDS)
            if ready or cpus:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since >= _PATIENCE_SECONDS:
                raise WorkerError(
                    f"the Ray cluster has had no CPU for {_PATIENCE_SECONDS / 60:.0f} minutes; start its nodes "
                    "('ray start --address=…') and run again to go on where it stopped"
                )
            for ref in ready:
                task = flight.pop(ref)
                answer = self._answer(ref, task)
                if answer is None:
                    self._submit(shared, task)
                else:
                    found[task.number] = answer
            while found and (not ordered or given in found):
                yield found.pop(given if ordered else next(iter(found)))
                given += 1

    def _cpus(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 0))

    def _window(self, cpus: int) -> int:
        """So many tasks are submitted at a time."""
        if self._workers is not None and not (self._ours and self._address is None):
            return self._workers
        # A short queue keeps workers busy. Without a CPU too something is asked for: some clusters grow only then.
        return 2 * cpus + 2

    def _submit(self, shared: Any, task: _Task) -> None:
        task.attempts += 1
        with held_interrupts():  # nothing runs that is not in the books
            self._flight[self._remote.remote(shared, task.packed)] = task

    def _answer(self, ref: Any, task: _Task) -> Answer | None:
        """What became of an attempt, None if there should be another; raises the error that ends all."""
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(ref)
        except errors.RayTaskError as error:
            raise (error.cause or error) from error
        except errors.RayError as error:
            if task.attempts < ATTEMPTS:
                return None
            raise WorkerError(
                f"{task.name!r} was given up: {ATTEMPTS} workers were lost over it ({type(error).__name__}), perhaps because "
                "memory ran out; run again to go on where it stopped, with fewer --workers if it happens again"
            ) from error
        if not isinstance(answer, Answer):
            host, reason = answer
            raise WorkerError(
                f"node {host!r} cannot run wds_tools {VERSION}, which this machine has ({reason}); install it on every "
                "node, and run again"
            )
        if answer.error is None:
            return answer
        if answer.passing and task.attempts < ATTEMPTS:
            return None
        raise self._told(answer, answer.error)

    def _told(self, answer: Answer, error: WdsToolsError) -> WdsToolsError:
        """The error itself; of what a node may lack it is said which node."""
        if answer.host != socket.gethostname() and isinstance(
            error, (SourceChangedError, StoreError, MissingExtraError)
        ):
            return type(error)(
                f"{error} (on node {answer.host!r}, {answer.address}; every node needs the same source and target, "
                "by the same names, and its own credentials for a bucket)"
            )
        return error

    def _book(self, answer: Answer) -> None:
        before = self._work.get(answer.node) or NodeWork(answer.node, answer.host, answer.address, 0, 0, 0)
        self._work[answer.node] = NodeWork(
            answer.node,
            answer.host,
            answer.address,
            before.tasks + 1,
            before.samples + answer.samples,
            before.source_bytes + answer.source_bytes,
        )

    def _cancel(self) -> None:
        """End what runs: told first, killed if that does not help (by `_disconnect`, or here if we stay connected)."""
        running = list(self._flight)
        self._flight.clear()
        if not running:
            return
        with contextlib.suppress(self._ray.exceptions.RayError):
            give_up(self._stop)
            _, running = self._ray.wait(running, num_returns=len(running), timeout=_GRACE_SECONDS)
            for ref in [] if self._ours else running:
                self._ray.cancel(ref, force=True)
            forget(self._stop)

    def _connect(self) -> None:
        quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        try:
            if self._address is None:
                self._ray.init(
                    "local",
                    num_cpus=self._workers or cores(),
                    object_store_memory=_OBJECT_BYTES,
                    include_dashboard=False,
                    **quiet,
                )
            else:
                self._ray.init(self._address, **quiet)
        except (ConnectionError, RuntimeError, ValueError, OSError, self._ray.exceptions.RayError) as error:
            first = str(error).strip().partition("\n")[0].rstrip(".")
            where = "a local Ray cluster cannot be started"
            if self._address is not None:
                where = f"the Ray cluster at {self._address!r} cannot be joined"
            raise WorkerError(f"{where}: {first}; look at it with 'ray status'") from error

    def _disconnect(self) -> None:
        """Leave, which ends all that is left of our tasks, and all of a cluster that was started for us."""
        if self._ours:
            self._ours = False
            self._ray.shutdown()


def _load() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtraError.of("engine 'ray'", "ray") from None
    return ray


def _reach(address: str) -> None:
    """See that somebody listens there. Ray itself would try for two minutes, and talk meanwhile."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise WorkerError(
            f"nobody answers at the Ray address {address!r} ({why}); check it with 'ray status', or start the cluster "
            "with 'ray start --head'"
        ) from None
