"""From shards to shards: another size or order, chosen classes, a part divided off, several datasets as one.

It is a conversion whose source is datasets, with all that a conversion promises. A split that is divided makes two of them, one
after the other; running again goes on where it stopped.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from wds_tools.convert import shards
from wds_tools.convert.datasets import Part, find_parts
from wds_tools.convert.entries import Search
from wds_tools.convert.options import ConvertOptions
from wds_tools.convert.result import Progress, Result
from wds_tools.convert.run import convert
from wds_tools.convert.selection import Selection
from wds_tools.convert.target import check_apart
from wds_tools.errors import OptionError, TargetError
from wds_tools.store.local import LocalStore
from wds_tools.store.options import StoreOptions

VAL = "val"


def reshard(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    options: ConvertOptions | None = None,
    selection: Selection | None = None,
    *,
    val: float | None = None,
    workers: int | None = None,
    engine: str = "process",
    ray_address: str | None = None,
    task: tuple[int, int] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    store_options: StoreOptions | None = None,
    **changes: Any,
) -> tuple[Result, ...]:
    """Make a dataset at ``target`` of the samples of ``sources``: folders, globs, brace notation, http, https or s3 addresses.

    ``options`` (or keywords such as ``max_count=1000``) say how, as for `convert_tree`; ``metadata``, ``siblings``,
    ``images``, ``labels`` and ``first_label`` have no meaning here. ``selection`` says which samples. Every field is kept
    byte for byte, in its order, unless options encode images anew; then the first field that is an image by its name
    changes, and no other. ``val`` divides off this fraction of the keys' shares as a second split, ``val``. All else is
    as in `convert_tree`.

    Answers with a result for each split that was made, the one of ``options.split`` first. Raises `OptionError`, `SourceError`,
    `TargetError`, `StoreError`, `FormatError` for shards that are damaged, and `SampleError` for a bad sample unless
    ``on_error="skip"``.
    """
    options = replace(options or ConvertOptions(), **changes)
    selection = selection or Selection()
    _check(options, selection, val)
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    texts = [os.path.expanduser(os.fspath(source)) for source in given]
    out = os.path.expanduser(os.fspath(target))
    parts = find_parts(texts, selection, store_options)
    _check_target(out, parts, texts)

    def made(split: str, share: tuple[float, float]) -> Result:
        chosen = replace(selection, share=share, divides=val is not None)
        search = Search(
            texts[0],
            partial(shards.scan, parts=parts, selection=chosen, options=store_options),
            {"selection": chosen.settings()},
        )
        return convert(
            search,
            out,
            replace(options, split=split),
            workers=workers,
            engine=engine,
            ray_address=ray_address,
            task=task,
            overwrite=overwrite,
            progress=progress,
            store_options=store_options,
        )

    if val is None:
        return (made(options.split, selection.share),)
    return made(options.split, (val, 1.0)), made(VAL, (0.0, val))


def _check(options: ConvertOptions, selection: Selection, val: float | None) -> None:
    for name in ("metadata", "siblings", "images", "labels", "first_label"):
        if getattr(options, name):
            raise OptionError(f"{name} is {getattr(options, name)!r}, and samples in shards have their fields already")
    if val is None:
        return
    if not (math.isfinite(val) and 0 < val < 1):
        raise OptionError(f"val is {val}; it must be a fraction between 0 and 1, such as 0.1")
    if options.split == VAL:
        raise OptionError(f"split is {VAL!r}, and val makes a split of that name; leave one of them out")
    if not selection.everyone:
        raise OptionError("val and share both divide; give one of them")


def _check_target(target: str, parts: Sequence[Part], texts: Sequence[str]) -> None:
    """Refuse to write where a source lies, and below one that is a folder as a whole."""
    for part in parts:
        local = "://" not in target and isinstance(part.store, LocalStore)
        here = os.path.realpath(target) if local else target.rstrip("/")
        if here == (os.path.realpath(part.store.url()) if local else part.store.url()):
            raise TargetError(f"target {target!r} is where a source lies; choose another place")
    for text in texts:
        if "://" not in target and os.path.isdir(text):
            check_apart(target, text)
