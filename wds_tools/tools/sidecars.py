"""Write what other readers look for beside a dataset's shards, and write it anew when the dataset has changed.

Everything is planned, and held against what is there, before the first byte is written: what is missing, stale, or somebody
else's ends it with nothing changed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike

from wds_tools.convert.several import each
from wds_tools.convert.target import check_writable
from wds_tools.errors import ManifestError, NotFoundError, OptionError, TargetError
from wds_tools.format import blocks, card, clip_benchmark, energon
from wds_tools.format.dataset import open_dataset
from wds_tools.store.base import Store
from wds_tools.store.http import HttpStore
from wds_tools.store.local import LocalStore
from wds_tools.store.options import StoreOptions
from wds_tools.store.resolve import locate
from wds_tools.tools.readers import PLANS, Sidecar

_NUMBERED = re.compile(r"\d+\.tar")


@dataclass
class SidecarReport:
    """What was done, by name. ``kept`` files are there, are meant to be edited, and say something else than we would.

    ``needs_card``: Hugging Face ``datasets`` takes a ``.tar.idx`` for a shard and fails, unless a card says what is what.
    """

    place: str
    readers: tuple[str, ...]
    written: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    needs_card: bool = False


def write_sidecars(
    dataset: str | PathLike[str],
    readers: Sequence[str],
    *,
    overwrite: bool = False,
    store_options: StoreOptions | None = None,
) -> SidecarReport:
    """Write beside the shards of ``dataset`` what ``readers`` look for: any of ``energon``, ``clip-benchmark``, ``hf``.

    ``dataset`` is a folder with ``info.json``, or one in a bucket, for which ``store_options`` are; over HTTP nothing can be
    written: `OptionError`. A file that somebody else wrote or edited is kept where it is meant to be edited, and is a
    `TargetError` where it is not; ``overwrite`` replaces both. The same dataset gives the same bytes; a file that has
    them is left alone, and what is left of an earlier, longer dataset goes.
    """
    if not readers or not set(readers) <= PLANS.keys():
        raise OptionError(f"readers {tuple(readers)!r} are not known; give some of {', '.join(PLANS)}")
    place = locate(dataset, remote=True, options=store_options)
    store = place.store
    if isinstance(store, HttpStore):
        raise OptionError(
            f"{store.url()} can only be read, and these files lie beside the shards; run this where the shards lie, "
            "or on a copy in a folder or a bucket"
        )
    if place.names is not None:
        raise OptionError("these files speak of a whole dataset; give its folder, not shards")
    if "clip-benchmark" in readers and not isinstance(store, LocalStore):
        raise OptionError(
            f"{store.url()} has no links, and CLIP_benchmark wants shards that are called 0.tar, 1.tar, …; "
            "run this on a copy in a folder"
        )
    content = open_dataset(store, None).manifest
    if content is None:
        raise ManifestError(
            f"{store.url()!r} has no info.json, which says what is what; make it with 'wds-tools index'"
        )
    if not isinstance(store, LocalStore):
        check_writable(store)
    report = SidecarReport(store.url(), tuple(name for name in PLANS if name in readers))
    planned = [sidecar for name in report.readers for sidecar in PLANS[name](store, content)]
    found = list(each(store, partial(_held_against, store, content.classes, overwrite), planned))
    todo = [new for new in found if isinstance(new, Sidecar)]
    report.unchanged = [old.name for old, new in zip(planned, found, strict=True) if new == "same"]
    report.kept = [old.name for old, new in zip(planned, found, strict=True) if new == "kept"]
    # The many go first, several at a time; what a reader knows a dataset by goes last.
    many = [new for new in todo if new.name.endswith(energon.SUFFIX)]
    for _ in each(store, partial(_write, store), many):
        pass
    for new in todo:
        if new not in many:
            _write(store, new)
    report.written = [new.name for new in todo]
    for name in _leftovers(store, {sidecar.name for sidecar in planned}, report.readers):
        store.delete(name)
        report.removed.append(name)
    report.needs_card = "energon" in report.readers and card.NAME not in store.list()
    return report


def _held_against(store: Store, classes: tuple[str, ...], overwrite: bool, sidecar: Sidecar) -> Sidecar | str:
    """What is to be written; or ``same`` or ``kept`` where nothing is."""
    if sidecar.link is not None:
        return _link_held_against(store, overwrite, sidecar)
    fresh = card.new_card(sidecar.data) if sidecar.name == card.NAME else sidecar.data
    try:
        old = store.read(sidecar.name)
    except NotFoundError:
        return replace(sidecar, data=fresh)
    block = blocks.find(sidecar.data)
    mine = blocks.find(old) if block else None
    if mine is not None and (overwrite or not mine.edited):
        new = old[: mine.start] + sidecar.data + old[mine.end :]  # what stands around it is its owner's
    else:
        new = fresh
        if sidecar.rule != "derived" and old != new and not overwrite:
            if sidecar.rule == "edited" and (
                sidecar.name != clip_benchmark.CLASSES or clip_benchmark.suits(old, classes)
            ):
                return "kept"
            raise TargetError(
                f"{store.url(sidecar.name)!r} is not what this command wrote, or was edited since; "
                "move it away, or replace it with --overwrite"
            )
    return "same" if old == new else replace(sidecar, data=new)


def _link_held_against(store: Store, overwrite: bool, sidecar: Sidecar) -> Sidecar | str:
    assert isinstance(store, LocalStore)
    leads = store.leads_to(sidecar.name)
    if leads is None and store.exists(sidecar.name) and not overwrite:
        raise TargetError(
            f"{store.url(sidecar.name)!r} is a file where a link to a shard belongs; "
            "move it away, or replace it with --overwrite"
        )
    return "same" if leads == sidecar.link else sidecar


def _write(store: Store, sidecar: Sidecar) -> None:
    if sidecar.link is None:
        store.write_atomic(sidecar.name, [sidecar.data])
        if isinstance(store, LocalStore):
            store.let_edit(sidecar.name)
    else:
        assert isinstance(store, LocalStore)
        store.link(sidecar.name, sidecar.link)


def _leftovers(store: Store, planned: Collection[str], readers: Sequence[str]) -> Iterator[str]:
    """What this command wrote for shards and splits that are no more."""
    if "energon" in readers:
        names = store.list()
        for name in names:
            if name.endswith(energon.SUFFIX) and name not in planned and name.removesuffix(".idx") not in names:
                yield name
    if "clip-benchmark" in readers and isinstance(store, LocalStore):
        for folder in store.list(f"{clip_benchmark.FOLDER}/"):
            if not store.is_folder(folder):
                continue
            for name in store.list(f"{folder}/"):
                base = name.rpartition("/")[2]
                ours = base == clip_benchmark.COUNT or (_NUMBERED.fullmatch(base) and store.leads_to(name))
                if ours and name not in planned:
                    yield name
            store.remove_folder(folder)
