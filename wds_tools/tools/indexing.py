"""Indexes and a manifest for shards that somebody else wrote, or that were replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike

from wds_tools.convert.engines import Tick, Watch, make_engine
from wds_tools.convert.target import check_writable
from wds_tools.errors import FormatError, NotFoundError, OptionError, TarError
from wds_tools.format import index, manifest, sidecars, tar
from wds_tools.format.dataset import list_shards, split_of
from wds_tools.format.digest import DigestReader
from wds_tools.format.manifest import Manifest
from wds_tools.records import ShardInfo, SplitInfo
from wds_tools.store.base import Store
from wds_tools.store.http import HttpStore
from wds_tools.store.local import LocalStore
from wds_tools.store.options import StoreOptions
from wds_tools.store.resolve import locate


@dataclass(frozen=True)
class IndexReport:
    """What was indexed. ``manifest`` tells whether ``info.json`` was written beside the shards."""

    place: str
    shards: tuple[ShardInfo, ...]
    manifest: bool

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)


@dataclass(frozen=True)
class _Indexed:
    shard: ShardInfo
    fields: Counter[str]
    keys: list[str]


def index_shards(
    shards: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    split: str | None = None,
    lenient: bool = False,
    workers: int | None = None,
    watch: Watch = lambda samples, size: None,
    store_options: StoreOptions | None = None,
) -> IndexReport:
    """Write an ``.idx`` beside every shard, and ``info.json`` and ``sizes.json`` into their folder.

    ``shards`` is a folder, a glob, brace notation, or a list, local or in a bucket, for which ``store_options`` are; each is
    read once. Over HTTP nothing can be written: `OptionError`. A shard's split is what the manifest says, else what its
    name tells (``val-000.tar`` is of ``val``), unless ``split`` names one for all. A manifest that is there keeps its
    other splits, its classes and its unknown keys. ``lenient`` accepts shards without an end-of-archive mark. No index
    is written for a shard that is damaged, or where a key comes twice or a sample's members are not adjacent:
    `TarError`, naming the shard; and then no manifest either. A key that is in two shards of a split is a `FormatError`.
    """
    place = locate(shards, remote=True, options=store_options)
    store = place.store
    if isinstance(store, HttpStore):
        raise OptionError(
            f"{store.url()} can only be read, and an index lies beside its shard; run this where the shards lie, "
            "or on a copy in a folder or a bucket"
        )
    if not isinstance(store, LocalStore):
        check_writable(store)
    names = place.names
    if names is None:
        names = tuple(list_shards(store))
        if not names:
            raise NotFoundError(f"{store.url()!r} holds no shards (*.tar); give the folder that holds them")
    names = tuple(dict.fromkeys(names))
    # Shards of several folders have no one place for a manifest; their indexes are enough to read them.
    together = all("/" not in name for name in names)
    before = _read_manifest(store) if together else Manifest()
    function = partial(_index_shard, store, lenient)
    with make_engine("process", workers, function) as engine:
        found = {each.shard.name: each for each in engine.run(function, names, watch)}
    listed = {shard.name: each.name for each in before.splits.values() for shard in each.shards}
    by_split: dict[str, list[_Indexed]] = {}
    for name in names:
        by_split.setdefault(split or listed.get(name) or split_of(name), []).append(found[name])
    for members in by_split.values():
        _refuse_repeated_keys(store, members)
    if together:
        _write_manifest(store, before, by_split, whole=place.names is None)
    return IndexReport(store.url(), tuple(found[name].shard for name in names), together)


def _index_shard(store: Store, lenient: bool, name: str, tick: Tick) -> _Indexed:
    with store.stream(name) as file:
        reader = DigestReader(file)
        try:
            samples = list(tar.samples(tar.members(reader, lenient=lenient)))
        except TarError as error:
            raise TarError(f"{store.url(name)}: {error}") from error
        sha256 = reader.finish()
    store.write_atomic(index.index_name(name), [index.dump_samples(samples)])
    tick(len(samples), reader.size)
    return _Indexed(
        ShardInfo(name, len(samples), reader.size, sha256),
        Counter(field.ext for sample in samples for field in sample.fields),
        [sample.key for sample in samples],
    )


def _refuse_repeated_keys(store: Store, members: list[_Indexed]) -> None:
    seen: dict[str, str] = {}
    for member in members:
        for key in member.keys:
            other = seen.setdefault(key, member.shard.name)
            if other is not member.shard.name:
                raise FormatError(
                    f"{store.url()}: key {key!r} is in {other} and in {member.shard.name}; keys are unique in a split "
                    "(are these shards of different splits? name them apart, or index them one split at a time with --split)"
                )


def _read_manifest(store: Store) -> Manifest:
    try:
        return manifest.load(store.read(manifest.NAME), store.url(manifest.NAME))
    except NotFoundError:
        return Manifest()


def _write_manifest(store: Store, content: Manifest, by_split: dict[str, list[_Indexed]], *, whole: bool) -> None:
    """Put the splits into the manifest. With ``whole``, shards that are gone are taken out."""
    classes = content.classes
    indexed = {member.shard.name for members in by_split.values() for member in members}
    for name, split in list(content.splits.items()):
        # What was indexed goes into its split anew, which may be another one.
        shards = () if whole else tuple(shard for shard in split.shards if shard.name not in indexed)
        if not shards and name not in by_split:
            content = content.without_split(name)
        elif len(shards) < len(split.shards):
            content = content.with_split(replace(split, shards=shards, fields={}))
    for name, members in by_split.items():
        before = content.splits.get(name, SplitInfo(name, ()))
        fields: Counter[str] = Counter()
        if not before.shards:  # else not all of the split was read, and nobody knows
            for member in members:
                fields.update(member.fields)
        shards = tuple(sorted((*before.shards, *(member.shard for member in members)), key=lambda shard: shard.name))
        content = content.with_split(replace(before, shards=shards, fields=dict(fields)), classes)
    store.write_atomic(sidecars.SIZES, [sidecars.dump_sizes(dict(content.splits))])
    store.write_atomic(manifest.NAME, [manifest.dump(content)])
