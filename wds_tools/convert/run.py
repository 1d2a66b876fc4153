"""Converting, as a function: all of it at once, or one part of an array of tasks.

What is checked here needs no look into source or target. The steps themselves are `conversion.Conversion`'s.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import Any

from wds_tools.convert import sources
from wds_tools.convert.conversion import Conversion
from wds_tools.convert.engines import Engine, make_engine
from wds_tools.convert.entries import Search
from wds_tools.convert.lock import target_lock
from wds_tools.convert.options import ConvertOptions
from wds_tools.convert.ray_engine import RayEngine
from wds_tools.convert.result import Progress, Quiet, Result
from wds_tools.convert.target import not_left_empty, open_target
from wds_tools.errors import OptionError, SourceChangedError, TargetBusyError
from wds_tools.image import tiles
from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore
from wds_tools.store.options import StoreOptions


def convert_tree(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    options: ConvertOptions | None = None,
    *,
    workers: int | None = None,
    engine: str = "process",
    ray_address: str | None = None,
    task: tuple[int, int] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    store_options: StoreOptions | None = None,
    **changes: Any,
) -> Result:
    """Convert a folder of class folders, or a table of images, to a dataset at ``target``, a folder or ``s3://bucket/prefix``.

    ``options`` (or keywords such as ``split="val"``) say how, see `ConvertOptions`. ``workers`` processes share the work,
    all cores' by default; 0 or 1 does it in this process. ``engine="ray"`` does it on the Ray cluster at ``ray_address``
    (``host:port``, or ``auto`` for the one that this machine belongs to), or on one that is started here for this call;
    ``workers`` are then the tasks at a time, by default as many as the cluster has CPUs. ``task=(i, n)`` makes only the
    i-th of n parts, counted from 0, and the part that finishes last completes the dataset. ``overwrite`` replaces a
    split that is there. Running the same call again goes on where an interrupted one stopped, and does nothing when all
    is done. ``store_options`` say how to reach a bucket.

    Raises `OptionError`, `SourceError`, `TargetError`, `StoreError`, `WorkerError`, and `SampleError` for a bad image unless
    ``on_error="skip"``.
    """
    options = replace(options or ConvertOptions(), **changes)
    path, out = (os.path.expanduser(os.fspath(each)) for each in (source, target))
    sources.check(
        path,
        siblings=options.siblings,
        images=options.images,
        labels=options.labels,
        first_label=options.first_label,
    )
    return convert(
        Search(path, sources.scan),
        out,
        options,
        workers=workers,
        engine=engine,
        ray_address=ray_address,
        task=task,
        overwrite=overwrite,
        progress=progress,
        store_options=store_options,
    )


def convert(
    search: Search,
    target: str,
    options: ConvertOptions,
    *,
    workers: int | None = None,
    engine: str = "process",
    ray_address: str | None = None,
    task: tuple[int, int] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    store_options: StoreOptions | None = None,
) -> Result:
    """The same of whatever can be scanned; see `convert_tree`."""
    if task is not None and not 0 <= task[0] < task[1]:
        raise OptionError(f"task {task[0]}/{task[1]} is none; the first of four is 0/4, the last 3/4")
    if task is not None and overwrite:
        raise OptionError(
            "overwrite cannot go with task: each task would remove what the others made; use it in a first run"
        )
    if options.tile:
        tiles.require_kernel()
    chosen = _engine(engine, workers, ray_address)
    with not_left_empty(target):
        store = open_target(target, search.source, store_options)
        holder = options.split if task is None else f"{options.split}-{task[0]}-of-{task[1]}"
        conversion = Conversion(search, store, options, chosen, progress or Quiet(), holder)
        if task is None:
            with target_lock(store):
                return conversion.run(overwrite)
        return _run_task(conversion, store, task)


def _engine(name: str, workers: int | None, ray_address: str | None) -> Engine:
    if name == "ray":
        return RayEngine(ray_address, workers)
    if name != "process":
        raise OptionError(f"engine is {name!r}; it can be 'process' or 'ray'")
    if ray_address is not None:
        raise OptionError(
            f"ray_address is {ray_address!r}, but the engine is {name!r}; it says something to 'ray' only"
        )
    return make_engine(name, workers)


def _run_task(conversion: Conversion, store: Store, task: tuple[int, int]) -> Result:
    """Make one part: the first task that comes writes the plan down, all others wait for it."""
    result = None
    while result is None:
        try:
            with target_lock(store, shared=True):
                result = conversion.run_planned(task)
        except SourceChangedError:
            # The next one to come makes a new plan, unless others are at this one, who will see for themselves.
            # In a bucket nobody can know whether they are; there --overwrite does it.
            if isinstance(store, LocalStore):
                with contextlib.suppress(TargetBusyError), target_lock(store, patience=0.0):
                    conversion.drop_plan()
            raise
        # Alone: either there was no plan yet, or this was the last task, and the lock goes with it.
        patience = 1.0 if result is None else 0.0
        with contextlib.suppress(TargetBusyError), target_lock(store, patience=patience):
            if result is None:
                result = conversion.plan_only()
            else:
                conversion.tidy()
    return result
