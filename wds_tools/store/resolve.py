"""From what a user writes to a store and names in it.

A dataset is given as a folder, as shards in brace notation (``train-{000000..000146}.tar``), as a glob, or as a list
of any of these. Brace notation is counted before it is expanded, because it can ask for billions of names.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from braceexpand import braceexpand

from wds_tools.errors import NotFoundError, OptionError
from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore

MAX_NAMES = 1_000_000

_RANGE = re.compile(r"\{(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.(-?\d+))?\}")


@dataclass(frozen=True)
class Place:
    """Where a dataset is. ``names`` are its shards, None where the folder itself is meant and its manifest decides."""

    store: Store
    names: tuple[str, ...] | None


def expand_braces(text: str) -> list[str]:
    """The names that brace notation stands for; `OptionError` beyond `MAX_NAMES` or when a brace is not closed."""
    if "{" not in text:
        return [text]
    count = 1
    for match in _RANGE.finditer(text):
        first, last, step = match.groups()
        if first.lstrip("-").isdigit() and last.lstrip("-").isdigit():
            count *= abs(int(last) - int(first)) // max(abs(int(step or 1)), 1) + 1
    count *= 2 ** text.count(",")
    if count > MAX_NAMES and _exact_count(text) > MAX_NAMES:
        raise OptionError(f"{text!r} stands for more than {MAX_NAMES:,} names; give the shards as a folder or a glob")
    try:
        return list(braceexpand(text))
    except ValueError as error:
        raise OptionError(
            f"{text!r} is no brace notation: {error}; write for example train-{{000000..000146}}.tar"
        ) from None


def _exact_count(text: str) -> int:
    """Names that ``text`` stands for where braces hold ranges or plain lists; beyond `MAX_NAMES` for nested ones."""
    count = 1
    for inner in re.findall(r"\{([^{}]*)\}", text):
        match = _RANGE.fullmatch("{" + inner + "}")
        if match and match[1].lstrip("-").isdigit() and match[2].lstrip("-").isdigit():
            count *= abs(int(match[2]) - int(match[1])) // max(abs(int(match[3] or 1)), 1) + 1
        elif match:
            count *= 26
        else:
            count *= inner.count(",") + 1
    nested = re.search(r"\{[^{}]*\{", text)
    return MAX_NAMES + 1 if nested else count


def locate(dataset: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Place:
    """The store and the shard names that ``dataset`` means. `NotFoundError` says which part of it is not there."""
    if isinstance(dataset, (str, os.PathLike)):
        text = os.fspath(dataset)
        _refuse_urls(text)
        if os.path.isdir(text):
            return Place(LocalStore(text), None)
        if os.path.basename(text) == "info.json" and os.path.isfile(text):
            return Place(LocalStore(os.path.dirname(text) or "."), None)
        return _shards([text])
    return _shards([os.fspath(item) for item in dataset])


def _shards(texts: Sequence[str]) -> Place:
    paths: list[str] = []
    for text in texts:
        _refuse_urls(text)
        for name in expand_braces(text):
            if os.path.isdir(name):
                raise OptionError(f"{name!r} is a folder; give either one folder or a list of shards")
            if os.path.exists(name) or not glob.has_magic(name):
                paths.append(name)
                continue
            found = sorted(glob.glob(name))
            if not found:
                raise NotFoundError(f"nothing matches {name!r}; check the path")
            paths += found
    if not paths:
        raise OptionError("no shards are given; give a folder, a glob, brace notation or a list")
    for path in paths:
        if not os.path.isfile(path):
            raise NotFoundError(f"{path!r} does not exist; check the path")
    full = [os.path.abspath(path) for path in paths]
    root = os.path.dirname(full[0]) if len(full) == 1 else os.path.commonpath([os.path.dirname(path) for path in full])
    return Place(LocalStore(root), tuple(os.path.relpath(path, root).replace(os.sep, "/") for path in full))


def _refuse_urls(text: str) -> None:
    """Nothing is ever handed to a shell, and remote places have stores of their own."""
    if text.startswith("pipe:"):
        raise OptionError(f"{text.split()[0]!r} asks for a shell command, which is never run; give a path")
    if "://" in text:
        raise OptionError(f"{text.partition('?')[0]!r} is a URL; this command reads local datasets")
