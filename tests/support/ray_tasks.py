"""Tasks that tests run on a Ray cluster, and calls of the engine that a driver makes for them.

A task that waits opens a pipe to which nobody has written yet: it is there, does nothing, and goes on when told.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from wds_tools.convert import ray_engine, ray_task
from wds_tools.convert.engines import Tick
from wds_tools.convert.ray_engine import RayEngine
from wds_tools.errors import NotFoundError, SampleError, StoreError, WdsToolsError
from wds_tools.records import NodeWork


def double(item: int) -> int:
    return 2 * item


def double_and_tick(item: int, tick: Tick) -> int:
    tick(1, item)
    return 2 * item


def divide(item: int) -> float:
    return 1 / item


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def wait_once(folder: str, item: int, tick: Tick) -> int:
    """The first attempt at item 1 says where it is, and waits for ever; all others are done at once."""
    if item == 1 and not (begun := Path(folder, "begun")).exists():
        Path(folder, "begun.part").write_text(_node())
        Path(folder, "begun.part").rename(begun)
        open(Path(folder, "pipe"), "rb").close()
    tick(1, 10)
    return item


def fail_once_others_wait(folder: str, item: int, tick: Tick) -> int:
    """Item 0 fails when item 1 has begun; that one goes on until it is told to end, and says that it was."""
    if item == 0:
        while not Path(folder, "1").exists():
            tick(0, 0)
        raise SampleError("broken", "item 0")
    Path(folder, str(item)).touch()
    try:
        while True:
            tick(0, 0)
    except BaseException:
        Path(folder, "told").touch()
        raise


def count(folder: str, item: int) -> int:
    """Mark one more attempt; how many there were before."""
    before = len(list(Path(folder).glob(f"{item}-*")))
    Path(folder, f"{item}-{before}").touch()
    return before


def fail_first(folder: str, times: int, kind: str, item: int, tick: Tick) -> int:
    tick(1, 1)
    if count(folder, item) < times and item == 3:
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "missing":
            raise NotFoundError("gone")
        raise StoreError("the mount is away") from OSError(errno.ESTALE, "stale")
    return item


# ---------------------------------------------------------------- what the driver calls


def ignore(samples: int, size: int) -> None:
    """Watches nothing."""


def map_with(function: Any, items: Iterable[Any], workers: int | None = None) -> list[Any]:
    with RayEngine(None, workers) as engine:
        return list(engine.map(function, items))


def run_with(
    function: Any, items: Iterable[Any], workers: int | None = None
) -> tuple[list[Any], list[tuple[int, int]], tuple[NodeWork, ...]]:
    """Results, the totals that were told, and the nodes."""
    seen: list[tuple[int, int]] = []
    with RayEngine(None, workers) as engine:
        found = list(engine.run(function, items, lambda *totals: seen.append(totals)))
    return found, seen, engine.nodes


def error_of(function: Any, items: Iterable[Any], grace: float = 5.0) -> tuple[str, str]:
    """Kind and message of the error that ends a run."""
    ray_engine._GRACE_SECONDS = grace
    try:
        run_with(function, items)
    except WdsToolsError as error:
        return type(error).__name__, str(error)
    raise AssertionError("no error")


def error_of_map(function: Any, items: Iterable[Any]) -> str:
    try:
        map_with(function, items)
    except ZeroDivisionError as error:
        return type(error).__name__
    raise AssertionError("no error")


def items_asked_for(workers: int) -> int:
    """How many of a thousand items are asked for until the first result is there."""
    asked = []

    def items() -> Iterable[int]:
        for item in range(1000):
            asked.append(item)
            yield item

    with RayEngine(None, workers) as engine:
        next(engine.run(double_and_tick, items(), ignore))
        return len(asked)


def items_asked_for_in_map() -> int:
    with RayEngine(None, None) as engine:
        results = iter(engine.map(double, range(10_000)))
        next(results)
        return len(engine._flight)


def error_of_another_version() -> tuple[str, str]:
    before = ray_task.VERSION
    ray_task.VERSION = "0.0.9"
    try:
        return error_of(double_and_tick, range(3))
    finally:
        ray_task.VERSION = before


def error_without_a_cpu(pipe: str) -> tuple[str, str]:
    patience, cpus = ray_engine._PATIENCE_SECONDS, RayEngine._cpus
    ray_engine._PATIENCE_SECONDS = 0.0
    RayEngine._cpus = lambda self: 0  # type: ignore[method-assign]
    try:
        return error_of(partial(_wait_for, pipe), range(1), 0.1)
    finally:
        ray_engine._PATIENCE_SECONDS, RayEngine._cpus = patience, cpus  # type: ignore[method-assign]


def _wait_for(pipe: str, item: int, tick: Tick) -> int:
    open(pipe, "rb").close()
    return item
