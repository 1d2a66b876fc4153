"""From what a user names to shards with known sizes: where a stream begins.

Sample counts come from the manifest, else from the indexes, else from a look through the shard: at once for local
ones, never for remote ones, which are then streamed without a length (`stream.sequential`).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from wds_tools.errors import NotFoundError, OptionError, TarError
from wds_tools.format import index, tar
from wds_tools.format.dataset import choose_split, open_dataset
from wds_tools.records import ShardInfo
from wds_tools.store.base import Store
from wds_tools.store.cache import CacheStore
from wds_tools.store.local import LocalStore
from wds_tools.store.options import StoreOptions
from wds_tools.store.resolve import Place, locate

MAX_FIELD = 1 << 30  # bytes of a field: shards are untrusted, and nothing but a header says how large a field is

Urls = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class Shards:
    """The shards of one split, in order. ``counted`` is False where nothing tells how many samples a shard has.

    ``lines`` are the index lines, by shard number, of shards that have no index file. ``options`` are those of a remote
    store. ``fields`` are those that a manifest lists, empty where none does.
    """

    store: Store
    shards: tuple[ShardInfo, ...]
    classes: tuple[str, ...]
    counted: bool = True
    lines: dict[int, list[bytes]] = field(default_factory=dict, repr=False)
    options: StoreOptions | None = None
    fields: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each shard."""
        return tuple(shard.samples for shard in self.shards)

    @property
    def parts(self) -> tuple[Shards, ...]:
        """Itself; see `JointShards`."""
        return (self,)

    def own(self, number: int) -> tuple[Shards, int]:
        """Whose shard this is, and its number there."""
        return self, number

    def __getstate__(self) -> dict[str, Any]:
        # Every spawned worker is sent this. As columns 100,000 shards take 0.1 s to pickle, one by one 0.7 s.
        shards = self.shards
        columns = (
            [s.name for s in shards],
            [s.samples for s in shards],
            [s.size for s in shards],
            [s.sha256 for s in shards],
        )
        return {**self.__dict__, "shards": columns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, shards=tuple(map(ShardInfo, *state["shards"])))


@dataclass(frozen=True)
class JointShards:
    """The shards of several sources as one row, in their stores."""

    parts: tuple[Shards, ...]
    classes: tuple[str, ...] = ()
    counted: bool = True

    @cached_property
    def shards(self) -> tuple[ShardInfo, ...]:
        return tuple(shard for part in self.parts for shard in part.shards)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each shard."""
        return tuple(shard.samples for shard in self.shards)

    def own(self, number: int) -> tuple[Shards, int]:
        """Whose shard this is, and its number there."""
        part = self.part_of(number)
        return self.parts[part], number - self._firsts[part]

    def part_of(self, number: int) -> int:
        """The number of the source whose shard this is."""
        return bisect_right(self._firsts, number) - 1

    @property
    def fields(self) -> tuple[str, ...]:
        """Those that the manifests list; empty where one does not tell."""
        if not all(part.fields for part in self.parts):
            return ()
        return tuple(dict.fromkeys(field for part in self.parts for field in part.fields))

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self.parts, "classes": self.classes, "counted": self.counted}

    @cached_property
    def _firsts(self) -> list[int]:
        return [0, *accumulate(len(part.shards) for part in self.parts[:-1])]


@dataclass(frozen=True)
class Cache:
    """A folder that keeps whole shards of a remote store, and how many bytes of them."""

    path: str | os.PathLike[str]
    max_bytes: int


def find_shards(
    urls: Urls, split: str | None, options: StoreOptions | None = None, cache: Cache | None = None
) -> Shards:
    """The shards that ``urls`` means. ``split`` chooses where there are several; None takes the only one."""
    place = locate(urls, remote=True, options=options)
    if isinstance(place.store, LocalStore):
        if cache is not None:
            raise OptionError(f"cache is {os.fspath(cache.path)!r}, and {place.store.url()!r} is local: leave it out")
        return _find(place, split)
    if cache is not None:
        place = Place(CacheStore(place.store, cache.path, cache.max_bytes), place.names)
    return replace(_find(place, split), options=options)


def _find(place: Place, split: str | None) -> Shards:
    found = open_dataset(place.store, place.names)
    if place.names is not None and split is None:
        names = [name for shards in found.splits.values() for name in shards]  # named one by one: all are meant
        return _count(place.store, names)
    if place.names is not None and split not in found.splits:
        has = ", ".join(found.splits)
        raise OptionError(f"split is {split!r}, and by their names the given shards are of {has}; leave split out")
    split = choose_split(found, split)
    if found.manifest is None:
        return _count(place.store, found.splits[split])
    info = found.manifest.splits[split]
    return Shards(place.store, info.shards, found.manifest.classes, fields=tuple(info.fields))


def _count(store: Store, names: Sequence[str]) -> Shards:
    shards: list[ShardInfo] = []
    lines: dict[int, list[bytes]] = {}
    for number, name in enumerate(names):
        try:
            count = len(load_lines(store, name))
        except NotFoundError:
            if not isinstance(store, LocalStore):
                return Shards(store, tuple(ShardInfo(name, 0) for name in names), (), counted=False)
            lines[number] = scan_lines(store, name)
            count = len(lines[number])
        shards.append(ShardInfo(name, count))
    return Shards(store, tuple(shards), (), lines=lines)


def load_lines(store: Store, name: str) -> list[bytes]:
    """The lines of a shard's index, unparsed: a stream touches few of them at a time. Checked to be whole.

    DALI's index v1.1 has no names, so no keys: it is as if there were none.
    """
    idx = index.index_name(name)
    data = store.read(idx)
    if data.startswith(b"v1.1"):
        raise NotFoundError(f"{store.url(idx)} is of version 1.1, without names; make it anew with 'wds-tools index'")
    return index.split_lines(data, store.url(idx))


def find_lines(store: Store, name: str) -> list[bytes]:
    """The same; where a local shard has no index, what `scan_lines` finds."""
    try:
        return load_lines(store, name)
    except NotFoundError:
        if isinstance(store, LocalStore):
            return scan_lines(store, name)
        raise NotFoundError(f"{store.url(name)} has no index; make one with 'wds-tools index'") from None


def scan_lines(store: Store, name: str) -> list[bytes]:
    """The lines that the index of a shard would have, from a look through all its headers; `TarError` names the shard."""
    with store.stream(name) as file:
        try:
            samples = list(tar.samples(tar.members(file)))
        except TarError as error:
            raise TarError(f"{store.url(name)}: {error}") from error
    return [index.line(sample).encode("utf-8", "surrogateescape") for sample in samples]
