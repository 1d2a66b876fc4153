"""What other tools' readers look for beside the shards of a dataset, planned from ``info.json`` and the indexes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from wds_tools.convert.several import each
from wds_tools.errors import NotFoundError, StaleIndexError, TarError
from wds_tools.format import card, clip_benchmark, energon, index, tar
from wds_tools.format.manifest import Manifest
from wds_tools.records import Sample, ShardInfo
from wds_tools.store.base import Store


@dataclass(frozen=True)
class Sidecar:
    """A file that a reader looks for, or with ``link`` a link that leads there, relative to its own folder.

    ``rule`` says what happens to another one that is there already: ``derived`` is replaced; ``block`` has its block
    replaced, unless somebody edited it; ``edited`` is meant to be edited, and stays.
    """

    name: str
    data: bytes = b""
    rule: Literal["derived", "block", "edited"] = "derived"
    link: str | None = None


def plan_energon(store: Store, content: Manifest) -> Iterator[Sidecar]:
    """``.info.json`` comes last: by it Energon knows a dataset."""
    shards = [shard for split in content.splits.values() for shard in split.shards]
    splits = energon.dump_splits(content.splits)
    dataset = energon.dump_dataset(_fields(store, content), _samples(content))
    for shard, data in zip(shards, each(store, partial(_tar_index, store), shards), strict=True):
        yield Sidecar(energon.tar_index_name(shard.name), data)
    yield Sidecar(energon.DATASET, dataset, "edited")
    yield Sidecar(energon.SPLITS, splits, "block")
    yield Sidecar(energon.INFO, energon.dump_info(content.splits))


def plan_clip_benchmark(store: Store, content: Manifest) -> Iterator[Sidecar]:
    """A split's links come before their number, by which CLIP_benchmark finds them."""
    kind = clip_benchmark.kind(_fields(store, content), _samples(content))
    if content.classes:
        yield Sidecar(clip_benchmark.CLASSES, clip_benchmark.dump_classes(content.classes), "edited")
    if kind == "classification":  # which is taken for granted
        yield Sidecar(clip_benchmark.TEMPLATES, clip_benchmark.PLAIN_TEMPLATE, "edited")
    else:
        yield Sidecar(clip_benchmark.KIND, f"{kind}\n".encode())
    for split in content.splits.values():
        for name, target in clip_benchmark.links(split).items():
            yield Sidecar(name, link=target)
        yield Sidecar(clip_benchmark.count_name(split.name), clip_benchmark.dump_count(split))


def plan_card(store: Store, content: Manifest) -> Iterator[Sidecar]:
    """The dataset card's block."""
    yield Sidecar(card.NAME, card.dump_block(content.splits, content.classes, _fields(store, content)), "block")


PLANS: dict[str, Callable[[Store, Manifest], Iterator[Sidecar]]] = {
    "energon": plan_energon,
    "clip-benchmark": plan_clip_benchmark,
    "hf": plan_card,
}


def _samples(content: Manifest) -> int:
    return sum(split.samples for split in content.splits.values())


def _fields(store: Store, content: Manifest) -> Counter[str]:
    """Samples by field: the manifest's numbers, and the indexes' where it has none."""
    counts: Counter[str] = Counter()
    for split in content.splits.values():
        if split.fields:
            counts.update(split.fields)
            continue
        for samples in each(store, partial(_read, store), split.shards):
            counts.update(part.ext for sample in samples for part in sample.fields)
    return counts


def _tar_index(store: Store, shard: ShardInfo) -> bytes:
    return energon.dump_tar_index(_read(store, shard), partial(store.read, shard.name))


def _read(store: Store, shard: ShardInfo) -> list[Sample]:
    """The samples of a shard, by an index that is of it as far as count, size, and its first and last header tell."""
    name = index.index_name(shard.name)
    try:
        samples = index.load(store.read(name), store.url(name))
    except NotFoundError as error:
        raise NotFoundError(f"{error}; 'wds-tools index' makes indexes") from None
    ends = [samples[0].fields[0], samples[-1].fields[-1]] if samples else []
    try:
        fits = len(samples) == shard.samples and shard.size in (None, store.size(shard.name))
        fits = fits and all(
            index.is_header_of(part, store.read(shard.name, part.offset - tar.BLOCK, tar.BLOCK)) for part in ends
        )
    except TarError:
        fits = False
    if not fits:
        raise StaleIndexError(
            f"{store.url(shard.name)}: its index, its size or its number of samples in info.json is that of another shard; "
            "run 'wds-tools index' if the shard is right, or fetch it again"
        )
    return samples
