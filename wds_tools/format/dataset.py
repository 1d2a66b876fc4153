"""A dataset as a whole: its splits and shards, by its manifest or, for others' shards, by their names."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from wds_tools.errors import NotFoundError, OptionError, StoreError
from wds_tools.format import index, manifest
from wds_tools.format.manifest import Manifest
from wds_tools.records import Sample
from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore

WORKSPACE = ".wds_tools"
"""The folder that a conversion works in, which is gone when the dataset is finished."""

_NUMBERED = re.compile(r"(.*?)[-_.]?\d+(?:-of-\d+)?\.tar")


@dataclass(frozen=True)
class Dataset:
    """Shards by split, in order. ``manifest`` is None where there is none, or where only some shards are meant."""

    store: Store
    splits: dict[str, tuple[str, ...]]
    manifest: Manifest | None


def split_of(shard: str) -> str:
    """The split that a shard's name tells: ``imagenet-val-000003.tar`` is of ``imagenet-val``; ``train`` if it tells none."""
    match = _NUMBERED.fullmatch(shard.rpartition("/")[2])
    return match[1] if match and match[1] else "train"


def open_dataset(store: Store, names: Sequence[str] | None) -> Dataset:
    """The dataset in ``store``: what ``info.json`` lists, or the shards there, or just the ``names``."""
    if names is None:
        try:
            found = manifest.load(store.read(manifest.NAME), store.url(manifest.NAME))
        except NotFoundError:
            names = list_shards(store)
            if not names:
                raise NotFoundError(_holds_none(store)) from None
        else:
            return Dataset(
                store,
                {name: tuple(shard.name for shard in split.shards) for name, split in found.splits.items()},
                found,
            )
    splits: dict[str, list[str]] = {}
    for name in names:
        splits.setdefault(split_of(name), []).append(name)
    return Dataset(store, {name: tuple(shards) for name, shards in splits.items()}, None)


def list_shards(store: Store) -> list[str]:
    """The shards of a folder without a manifest; `NotFoundError` where a conversion has not written it yet."""
    try:
        there = store.list()
    except StoreError as error:
        raise type(error)(f"{store.url(manifest.NAME)} does not exist, and {error}") from error
    if any(name.partition("/")[0] == WORKSPACE for name in there) and manifest.NAME not in there:
        raise NotFoundError(
            f"{store.url()!r} is not finished: info.json, which a conversion writes last, is not there; wait for it, or run "
            "the same 'wds-tools convert' again (a glob of shards reads those that are there)"
        )
    return [name for name in there if name.endswith(".tar") and not name.startswith(".")]


def choose_split(found: Dataset, split: str | None) -> str:
    """``split``, or the only one there is; `OptionError` says which there are."""
    has = ", ".join(found.splits) or "none"
    if split is None and len(found.splits) != 1:
        example = next(iter(found.splits), "train")
        raise OptionError(
            f"{found.store.url()!r} has the splits {has}; choose one with split={example!r} (--split {example})"
        )
    if split is None:
        return next(iter(found.splits))
    if split not in found.splits:
        raise OptionError(f"{found.store.url()!r} has no split {split!r}, only {has}")
    return split


def _holds_none(store: Store) -> str:
    """That there is no dataset, and in which folder below there is one."""
    what = f"{store.url()!r} holds no dataset: neither info.json nor shards (*.tar)"
    if isinstance(store, LocalStore):
        for name in store.list()[:1000]:
            if os.path.isfile(store.url(f"{name}/{manifest.NAME}")):
                return f"{what}; there is one in {store.url(name)!r}"
    return f"{what}; make one with 'wds-tools convert'"


def read_index(store: Store, shard: str) -> list[Sample]:
    """The samples of ``shard`` by the index beside it; `NotFoundError` if there is none, `StaleIndexError` if it lies."""
    name = index.index_name(shard)
    samples = index.load(store.read(name), store.url(name))
    with store.stream(shard) as file:
        index.check_fits(samples, file, store.size(shard), store.url(shard))
    return samples
