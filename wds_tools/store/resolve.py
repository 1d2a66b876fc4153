"""From what a user writes to a store and names in it.

A dataset is given as a folder, as shards in brace notation (``train-{000000..000146}.tar``), as a glob, or as a list
of any of these. Brace notation is counted before it is expanded, because it can ask for billions of names.
"""

from __future__ import annotations

import glob
import os
import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from braceexpand import braceexpand

from wds_tools.errors import NotFoundError, OptionError
from wds_tools.store.addresses import SCHEMES, find_remote, refuse_half_address
from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore
from wds_tools.store.missing import why_missing
from wds_tools.store.options import StoreOptions

MAX_NAMES = 1_000_000
MAX_DEPTH = 100  # braces in braces
MAX_DIGITS = 18  # of a number in braces

# Ranges and letters as braceexpand takes them; {A..z} goes through both cases.
_RANGE = re.compile(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.-?(\d+))?\n?")
_LETTERS = string.ascii_uppercase + string.ascii_lowercase


@dataclass(frozen=True)
class Place:
    """Where a dataset is. ``names`` are its shards, None where the folder itself is meant and its manifest decides."""

    store: Store
    names: tuple[str, ...] | None


def expand_braces(text: str) -> list[str]:
    """The names that brace notation stands for; `OptionError` beyond `MAX_NAMES` or when a brace is not closed."""
    if "{" not in text:
        return [text]
    try:
        count = _count(text)
    except ValueError as error:
        raise OptionError(
            f"{text!r} is no brace notation: {error}; write for example train-{{000000..000146}}.tar"
        ) from None
    if count > MAX_NAMES:
        raise OptionError(f"{text!r} stands for more than {MAX_NAMES:,} names; give the shards as a folder or a glob")
    return list(braceexpand(text))


def _count(text: str) -> int:
    """How many names ``text`` stands for, or more than `MAX_NAMES`, without making one of them.

    What stands side by side multiplies, what commas part adds up. ``ValueError`` where braces do not match.
    """
    product, total = 1, 0  # of the names that the innermost brace stands for so far
    outer: list[tuple[int, int, int]] = []  # the same of the braces around it, and where each begins
    position = 0
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 1
        elif character == "{":
            outer.append((product, total, position))
            product, total = 1, 0
            if len(outer) > MAX_DEPTH:
                raise ValueError(f"more than {MAX_DEPTH} braces in each other")
        elif character == "," and outer:
            product, total = 1, total + product
        elif character == "}":
            if not outer:
                raise ValueError("a brace is closed that was not opened")
            before, before_total, begin = outer.pop()
            names = _range_length(text[begin + 1 : position]) or product + total
            product, total = min(before * names, MAX_NAMES + 1), before_total
        position += 1
    if outer:
        raise ValueError("a brace is not closed")
    return product


def _range_length(inner: str) -> int:
    """How many names a range such as ``0..9``, ``a..z`` or ``00..90..10`` stands for; 0 for what is no range."""
    match = _RANGE.fullmatch(inner)
    if match is None or match[1].isalpha() != match[2].isalpha():
        return 0
    first, last, step = match[1], match[2], match[3] or "1"
    if max(len(first), len(last), len(step)) > MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    distance = _LETTERS.index(last) - _LETTERS.index(first) if first.isalpha() else int(last) - int(first)
    return abs(distance) // (int(step) or 1) + 1


def locate(
    dataset: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    remote: bool = False,
    options: StoreOptions | None = None,
) -> Place:
    """The store and the shard names that ``dataset`` means. `NotFoundError` says which part of it is not there.

    With ``remote``, http, https and s3 addresses are taken too: of a folder, or of shards of one server or bucket. A ``~``
    at the beginning of a path is the home folder.
    """
    texts = _texts(dataset)
    if remote and any(text.startswith(SCHEMES) for text in texts):
        if not all(text.startswith(SCHEMES) for text in texts):
            raise OptionError("some shards are local and others are not; give those of one place")
        return Place(*find_remote([address for text in texts for address in expand_braces(text)], options))
    for text in texts:
        _refuse_urls(text, remote)
    if isinstance(dataset, (str, os.PathLike)):
        text = texts[0]
        if os.path.isdir(text):
            return Place(LocalStore(text), None)
        if os.path.basename(text) == "info.json" and os.path.isfile(text):
            return Place(LocalStore(os.path.dirname(text) or "."), None)
        return _shards([text])
    return _shards(texts)


def _texts(dataset: Any) -> list[str]:
    items = [dataset] if isinstance(dataset, (str, os.PathLike)) or not isinstance(dataset, Iterable) else list(dataset)
    for item in items:
        if not isinstance(item, (str, os.PathLike)):
            raise OptionError(f"{item!r:.100} is no place of a dataset; give a path, an address, or a list of shards")
    return [os.path.expanduser(os.fspath(item)) for item in items]


def _shards(texts: Sequence[str]) -> Place:
    paths: list[str] = []
    for text in texts:
        names = expand_braces(text)
        for name in names:
            if os.path.isdir(name):
                raise OptionError(f"{name!r} is a folder; give either one folder or a list of shards")
        if len(names) > 1:
            _refuse_missing(text, names)
        for name in names:
            if os.path.exists(name) or not glob.has_magic(name):
                paths.append(name)
                continue
            found = sorted(glob.glob(name))
            if not found:
                raise NotFoundError(_why_nothing_matches(name))
            paths += found
    if not paths:
        raise OptionError("no shards are given; give a folder, a glob, brace notation or a list")
    for path in paths:
        if not os.path.isfile(path):
            raise NotFoundError(f"{path!r} is no file; check the path" if os.path.exists(path) else why_missing(path))
    full = [os.path.abspath(path) for path in paths]
    root = os.path.dirname(full[0]) if len(full) == 1 else os.path.commonpath([os.path.dirname(path) for path in full])
    return Place(LocalStore(root), tuple(os.path.relpath(path, root).replace(os.sep, "/") for path in full))


def _refuse_missing(text: str, names: Sequence[str]) -> None:
    """Brace notation is often right but for its numbers, so it is said how many are wrong."""
    missing = [name for name in names if not glob.has_magic(name) and not os.path.lexists(name)]
    if missing and len(missing) < len(names):
        raise NotFoundError(
            f"{len(missing):,} of the {len(names):,} shards that {text!r} stands for do not exist, the first is "
            f"{missing[0]!r}; check the numbers"
        )
    if missing:
        raise NotFoundError(why_missing(missing[0]))


def _why_nothing_matches(pattern: str) -> str:
    folder = os.path.dirname(pattern)
    if folder and not glob.has_magic(folder) and not os.path.exists(folder):
        return f"nothing matches {pattern!r}: {why_missing(folder)}"
    seen_from = "" if os.path.isabs(pattern) else f", seen from {os.getcwd()!r}"
    return f"nothing matches {pattern!r}{seen_from}; check the path"


def _refuse_urls(text: str, remote: bool) -> None:
    """Nothing is ever handed to a shell, and remote places have stores of their own."""
    if text.startswith("pipe:"):
        raise OptionError(f"{text.split()[0]!r} asks for a shell command, which is never run; give a path")
    refuse_half_address(text)
    if "://" in text:
        shown = re.sub(r"//[^/]*@", "//", text.partition("?")[0])  # neither a signature nor a password
        reads = "http, https and s3 addresses are read" if remote else "this command reads local datasets"
        raise OptionError(f"{shown!r} is a URL; {reads}")
