"""A dataset as a whole: its splits and shards, by its manifest or, for others' shards, by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from wds_tools.errors import NotFoundError
from wds_tools.format import index, manifest
from wds_tools.format.manifest import Manifest
from wds_tools.records import Sample
from wds_tools.store.base import Store

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
            names = [name for name in store.list() if name.endswith(".tar") and not name.startswith(".")]
            if not names:
                raise NotFoundError(
                    f"{store.url()!r} holds no dataset: neither info.json nor shards (*.tar); "
                    "make one with 'wds-tools convert'"
                ) from None
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


def read_index(store: Store, shard: str) -> list[Sample]:
    """The samples of ``shard`` by the index beside it; `NotFoundError` if there is none, `StaleIndexError` if it lies."""
    name = index.index_name(shard)
    samples = index.load(store.read(name), store.url(name))
    with store.stream(shard) as file:
        index.check_fits(samples, file, store.size(shard), store.url(shard))
    return samples
