"""Files beside the shards that `wds_tools.tools.sidecars` wrote for other readers, and that speak of an earlier dataset."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from wds_tools.errors import FormatError, IndexFileError, NotFoundError, StoreError
from wds_tools.format import blocks, card, clip_benchmark, energon
from wds_tools.format.manifest import Manifest
from wds_tools.records import Problem
from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore
from wds_tools.tools.readers import PLANS, Sidecar

_SIGNS = {"energon": energon.FOLDER, "clip-benchmark": clip_benchmark.FOLDER, "hf": card.NAME}


def stale_sidecars(store: Store, content: Manifest, there: Collection[str]) -> Iterator[Problem]:
    """A problem for each such file that does not say what the dataset says; ``there`` are the names in its folder.

    Files that somebody edited are theirs to judge, and so are those of another program but for what shows by itself.
    """
    for reader, sign in _SIGNS.items():
        if sign not in there:
            continue
        try:
            planned = list(PLANS[reader](store, content))
        except (StoreError, IndexFileError):
            continue  # of an index, which is a problem of its own
        except FormatError as error:  # it could be served before
            if sign == clip_benchmark.FOLDER:
                yield Problem(sign, str(error))
            continue
        for sidecar in planned:
            if _is_stale(store, content, sidecar):
                yield Problem(
                    sidecar.name, f"not what the dataset says now; run 'wds-tools sidecars --for {reader}' again"
                )


def _is_stale(store: Store, content: Manifest, sidecar: Sidecar) -> bool:
    if sidecar.link is not None:
        return isinstance(store, LocalStore) and store.leads_to(sidecar.name) not in (None, sidecar.link)
    try:
        old = store.read(sidecar.name)
    except NotFoundError:
        return False
    if sidecar.name == energon.INFO:
        return not energon.suits(old, content.splits)
    if sidecar.name == clip_benchmark.CLASSES:
        return not clip_benchmark.suits(old, content.classes)
    if sidecar.name.endswith(energon.SUFFIX):  # the end of the last sample is told in two ways, which read the same
        return old[:-8] != sidecar.data[:-8]
    if sidecar.rule == "derived":
        return old != sidecar.data
    found = blocks.find(old)
    return found is not None and not found.edited and old[found.start : found.end] != sidecar.data
