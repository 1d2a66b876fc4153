"""The end of an array of tasks, by itself: the manifest when all shards stand, or the names of those that do not.

The task that finishes last completes the dataset by itself. This is for a job that runs after all of them, whatever became
of them: nobody else says that a task was lost, and the last one may be killed between its last shard and the manifest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from wds_tools.convert.conversion import Conversion
from wds_tools.convert.engines import SerialEngine
from wds_tools.convert.entries import Request, Search, Source
from wds_tools.convert.lock import target_lock
from wds_tools.convert.options import ConvertOptions
from wds_tools.convert.result import Quiet
from wds_tools.convert.target import Target, check_writable
from wds_tools.errors import TargetError
from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore
from wds_tools.store.options import StoreOptions
from wds_tools.store.s3 import S3Store


def _scan(request: Request) -> Source:
    raise AssertionError("the plan is written down, and its source is not needed")


_NOTHING = Search("", _scan)


@dataclass(frozen=True)
class Finalized:
    """What stands of a split: ``shards`` with so many ``samples``; ``missing`` are the planned shards' names and numbers.

    ``done`` tells that the manifest was there already.
    """

    target: str
    split: str
    shards: int
    samples: int
    missing: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    done: bool = False


def finalize_split(
    target: str | os.PathLike[str], split: str = "train", *, store_options: StoreOptions | None = None
) -> Finalized:
    """Complete a split that tasks of an array have made, if nothing of it is missing; the source is not needed.

    Raises `TargetError` where no conversion was begun, `TargetBusyError` while one is at work in a folder, `StoreError`.
    """
    conversion_options = ConvertOptions(split=split)
    store = _open(os.fspath(target), store_options)
    with target_lock(store):
        conversion = Conversion(_NOTHING, store, conversion_options, SerialEngine(), Quiet(), split)
        found = conversion.finalize()
        if found is not None:
            result, missing = found
            numbers = tuple(int(name[len(split) + 1 : -len(".tar")]) for name in missing)
            return Finalized(store.url(), split, result.shards, result.samples, missing, numbers)
        there = Target(store, split).read_manifest().splits.get(split)
    if there is None:
        raise TargetError(
            f"{store.url()!r} has neither a split {split!r} nor a conversion to one that was begun; check --split, and that "
            "the first task has run"
        )
    return Finalized(store.url(), split, len(there.shards), there.samples, done=True)


def _open(target: str, options: StoreOptions | None) -> Store:
    if target.startswith("s3://"):
        bucket = S3Store(target, options)
        check_writable(bucket)
        return bucket
    if not os.path.isdir(target):
        raise TargetError(f"{target!r} is no folder; give the folder or the s3:// address that the tasks convert to")
    return LocalStore(os.path.realpath(target))
