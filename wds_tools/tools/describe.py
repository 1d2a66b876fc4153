"""What a dataset says of itself, as plain values: the manifest where there is one, the indexes where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from os import PathLike
from typing import Any

from wds_tools.convert.several import each
from wds_tools.errors import StoreError, TarError
from wds_tools.format import index, tar
from wds_tools.format.dataset import open_dataset
from wds_tools.store.base import Store
from wds_tools.store.options import StoreOptions
from wds_tools.store.resolve import locate


def describe_dataset(
    dataset: str | PathLike[str] | Sequence[str | PathLike[str]], *, store_options: StoreOptions | None = None
) -> dict[str, Any]:
    """Splits, classes, sizes and fields of a dataset, ready for JSON. Counts that nothing tells are None.

    Reads ``info.json`` and, without one, the first line of every index and the first header of the first shard, to
    see that it is one: `TarError` if not.
    """
    place = locate(dataset, remote=True, options=store_options)
    store = place.store
    found = open_dataset(store, place.names)
    content = found.manifest
    if content is None:
        _check_is_shard(store, next(shards[0] for shards in found.splits.values()))
    splits: dict[str, Any] = {}
    for name, shards in found.splits.items():
        if content is not None:
            info = content.splits[name]
            counts: list[int | None] = [shard.samples for shard in info.shards]
            sizes: list[int | None] = [shard.size for shard in info.shards]
            fields, settings, skipped = info.fields, info.settings, info.num_skipped
        else:
            counts = list(each(store, partial(_indexed_count, store), shards))
            sizes = list(each(store, store.size, shards))
            fields, settings, skipped = {}, {}, 0
        splits[name] = {
            "samples": _total(counts),
            "shards": len(shards),
            "bytes": _total(sizes),
            "fields": fields,
            "skipped": skipped,
            "settings": settings,
            "names": list(shards),
            "shard_samples": counts,
        }
    return {
        "place": store.url(),
        "manifest": content is not None,
        "classes": list(content.classes) if content is not None else [],
        "splits": splits,
    }


def _check_is_shard(store: Store, shard: str) -> None:
    with store.stream(shard) as file:
        try:
            next(tar.members(file, lenient=True), None)
        except TarError as error:
            raise TarError(f"{store.url(shard)}: {error}") from error


def _total(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _indexed_count(store: Store, shard: str) -> int | None:
    name = index.index_name(shard)
    try:
        words = store.read(name, 0, min(store.size(name), 100)).partition(b"\n")[0].split()
    except StoreError:
        return None
    return int(words[1]) if len(words) == 2 and words[1].isdigit() else None
