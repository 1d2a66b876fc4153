"""The datasets that are to become one: which shards of each are meant, and what their manifests say of them.

Shards that are named one by one may still be those of a manifest beside them, which then tells their classes.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from wds_tools.convert import keys
from wds_tools.convert.selection import Selection
from wds_tools.errors import NotFoundError, OptionError, StoreError
from wds_tools.format import manifest
from wds_tools.format.dataset import Dataset, open_dataset
from wds_tools.format.manifest import Manifest
from wds_tools.records import ShardInfo
from wds_tools.store.base import Store
from wds_tools.store.options import StoreOptions
from wds_tools.store.resolve import Place, locate

_TAR = ".tar"
_UNKNOWN = -1  # samples of a shard that no manifest lists
_KEPT = ("metadata", "siblings", "encode", "image_size")  # settings that tell how to extract


@dataclass(frozen=True)
class Part:
    """One of the datasets. ``prefix`` is put before its keys; ``suffixes`` and ``earlier`` are how its images were made."""

    place: str
    store: Store
    shards: tuple[ShardInfo, ...]
    classes: tuple[str, ...]
    prefix: str
    suffixes: Mapping[str, str]
    earlier: Mapping[str, Any]


def find_parts(sources: Sequence[str], selection: Selection, options: StoreOptions | None = None) -> list[Part]:
    """What ``sources`` mean: folders, addresses, globs, brace notation; shards side by side in the list are one dataset.

    Raises `NotFoundError` for what is not there, and `OptionError` for what is not understood, and for an address with a secret.
    """
    groups = _grouped(sources)
    if not groups:
        raise OptionError("no source is given; give a folder of shards, a glob, brace notation, or an address")
    for text in sources:
        _refuse_secrets(text)
    places = [locate(group if len(group) > 1 else group[0], remote=True, options=options) for group in groups]
    prefixes = _names([place.store.url() for place in places]) if selection.prefix else [""] * len(places)
    return [_part(place, selection, prefix) for place, prefix in zip(places, prefixes, strict=True)]


def _grouped(sources: Sequence[str]) -> list[list[str]]:
    """Single shards of one folder together, as a shell makes them of a glob."""
    groups: dict[str, list[str]] = {}
    for text in sources:
        single = text.endswith(_TAR) and not glob.has_magic(text) and "{" not in text
        groups.setdefault(text.rpartition("/")[0] + "/*" if single else text, []).append(text)
    twice = next((group[0] for group in groups.values() if len(set(group)) < len(group)), None)
    if twice is not None:
        raise OptionError(f"source {twice!r} is given twice")
    return list(groups.values())


def _refuse_secrets(text: str) -> None:
    if text.startswith(("http://", "https://")):
        parts = urlsplit(text)
        if parts.username is not None or parts.query:
            raise OptionError(
                f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path} is given with a password or a query, and the "
                "plan that is written down must hold no secret; use an address without, an s3:// address, or a copy"
            )


def _names(places: Sequence[str]) -> list[str]:
    """The last folder of each place, with as many before it as it takes to tell them apart."""
    parts = [place.rstrip("/").split("/") for place in places]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]).lstrip("/") for part in parts]
        if len(set(names)) == len(names):
            return [keys.clean(f"{name}/x").removesuffix("/x") + "/" for name in names]
    twice = next(place for number, place in enumerate(places) if place in places[:number])
    raise OptionError(f"two sources lie in {twice!r}, so there is no name to put before their keys; leave --prefix out")


def _part(place: Place, selection: Selection, prefix: str) -> Part:
    store = place.store
    found = open_dataset(store, place.names)
    names = _chosen(found, place, selection.splits)
    content = found.manifest if place.names is None else _manifest_beside(store)
    listed = {shard.name: shard for split in content.splits.values() for shard in split.shards} if content else {}
    if content is None or not all(name in listed for name in names):
        return Part(store.url(), store, tuple(ShardInfo(name, _UNKNOWN) for name in names), (), prefix, {}, {})
    splits = [split for split in content.splits.values() if any(shard.name in names for shard in split.shards)]
    return Part(
        store.url(),
        store,
        tuple(listed[name] for name in names),
        content.classes,
        prefix,
        common([split.suffixes for split in splits]),
        common([_how_made(split.settings) for split in splits]),
    )


def _chosen(found: Dataset, place: Place, splits: tuple[str, ...]) -> list[str]:
    """The shards of the ``splits``; without any, those that were named, or those of the only split."""
    if not splits and place.names is not None:
        return list(place.names)
    if not splits and len(found.splits) > 1:
        raise OptionError(
            f"{place.store.url()!r} has the splits {', '.join(found.splits)}; choose with --from-split, which may be repeated"
        )
    missing = [split for split in splits if split not in found.splits]
    if missing:
        raise OptionError(
            f"{place.store.url()!r} has no split {missing[0]!r}, only {', '.join(found.splits) or 'none'}; "
            "--from-split chooses among them"
        )
    return [name for split in splits or found.splits for name in found.splits[split]]


def _manifest_beside(store: Store) -> Manifest | None:
    try:
        return manifest.load(store.read(manifest.NAME), store.url(manifest.NAME))
    except NotFoundError:
        return None
    except StoreError:  # a server that lets nobody near what it does not have
        return None


def _how_made(settings: Mapping[str, Any]) -> dict[str, Any]:
    """How the images of a split came to be, be it through other shards."""
    earlier = settings.get("earlier")
    before = earlier if isinstance(earlier, dict) else {}
    made = {name: settings[name] for name in _KEPT if settings.get(name) not in (None, False, "keep")}
    return {**{name: before[name] for name in _KEPT if name in before}, **made}


def common(every: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all of them say alike."""
    return {key: value for key, value in every[0].items() if all(other.get(key) == value for other in every[1:])}
