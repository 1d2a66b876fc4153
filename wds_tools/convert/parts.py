"""Which files a source of several files is made of: a folder that holds nothing else, or a glob or brace text.

A folder as datasets are published in is taken as well: the files may lie in its one subfolder (``data/``), with a README
beside that, and may belong to several splits. Then those are taken that are called after the split that is made.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Callable

from wds_tools.errors import SourceError
from wds_tools.image.kinds import EXTENSIONS
from wds_tools.store.missing import why_missing
from wds_tools.store.resolve import expand_braces

_LOOKED_AT = 10_000  # names of a folder that decide what it is: a class folder may hold a million
_DEEPEST = 4
_WORDS = re.compile(r"[A-Za-z0-9]+")
_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}

IsPart = Callable[[str], bool]


def folder_of(folder: str, is_part: IsPart) -> str | None:
    """The folder at or below ``folder`` that holds files of a kind and neither images nor folders; None if none does."""
    for _ in range(_DEEPEST):
        folders, parts = [], 0
        try:
            with os.scandir(folder) as found:
                for entry in itertools.islice(found, _LOOKED_AT):
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        folders.append(entry.path)
                    elif entry.name.rpartition(".")[2].lower() in EXTENSIONS:
                        return None
                    else:
                        parts += is_part(entry.name)
        except OSError:
            return None
        if parts or len(folders) != 1:
            return folder if parts and not folders else None
        folder = folders[0]
    return None


def is_pattern(source: str) -> bool:
    """Whether ``source`` is no path but a text that stands for several."""
    return any(char in source for char in "*?[{") and not os.path.exists(source) and "://" not in source


def expand(pattern: str) -> list[str]:
    """The files that a glob or brace text stands for, sorted; `SourceError` if there are none."""
    found: set[str] = set()
    for text in expand_braces(pattern):
        found.update(glob.iglob(text) if glob.has_magic(text) else (text,))
    missing = next((path for path in sorted(found) if not os.path.exists(path)), None)
    if missing is not None:
        raise SourceError(f"source {pattern!r}: {why_missing(missing)}")
    if not found:
        raise SourceError(f"source {pattern!r} matches no file in {os.getcwd()!r}; check the pattern, and its quotes")
    return sorted(found)


def find(source: str, is_part: IsPart, split: str) -> tuple[str, list[str]]:
    """A folder, and the names in it of the files that ``source`` means, sorted. Of a folder those of ``split``."""
    if is_pattern(source):
        paths = [os.path.abspath(path) for path in expand(source)]
        strange = next((path for path in paths if not is_part(os.path.basename(path))), None)
        if strange is not None:
            raise SourceError(
                f"source {source!r} matches {strange!r} too, which is of another kind; narrow the pattern"
            )
        root = os.path.dirname(paths[0]) if len(paths) == 1 else os.path.commonpath(map(os.path.dirname, paths))
        return root, [os.path.relpath(path, root) for path in paths]
    if not os.path.exists(source):
        raise SourceError(f"source {why_missing(source)}")
    path = os.path.abspath(source)
    if not os.path.isdir(path):
        return os.path.dirname(path), [os.path.basename(path)]
    root = folder_of(path, is_part) or path
    names = sorted(name for name in os.listdir(root) if is_part(name) and not name.startswith("."))
    return root, _of_split(source, names, split)


def _of_split(source: str, names: list[str], split: str) -> list[str]:
    """The files of a split, where their names tell."""
    exact = [name for name in names if re.match(rf"{re.escape(split)}([-_.]|$)", name)]
    if exact:
        return exact
    told = {name: _split_in(name) for name in names}
    if None in told.values():
        return names
    wanted = _SPLITS.get(split.lower(), split)
    chosen = [name for name in names if told[name] == wanted]
    if not chosen:
        there = ", ".join(sorted({str(told[name]) for name in names}))
        raise SourceError(
            f"{source!r} holds files of {there}, none of {split!r}; give --split, or the files that you mean as a quoted "
            f"pattern such as {os.path.join(source, '') + names[0][:4] + '*'!r}"
        )
    return chosen


def _split_in(name: str) -> str | None:
    """The split that a file's name speaks of, None if it is none or several."""
    found = {_SPLITS[word] for word in _WORDS.findall(name.lower()) if word in _SPLITS}
    return found.pop() if len(found) == 1 else None
