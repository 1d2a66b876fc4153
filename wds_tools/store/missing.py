"""Why there is nothing at a path: which part of it is missing, where that was looked for, and what is called alike."""

from __future__ import annotations

import difflib
import itertools
import os
from pathlib import PurePath

_LOOKED_AT = 2000  # names of a folder that are compared: one may hold a million


def why_missing(path: str) -> str:
    """A sentence such as ``'dta' does not exist in '/home/me'; did you mean 'data'?``."""
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        return f"{path!r} does not exist; check the path"
    parts = PurePath(path).parts
    if not parts:
        return f"{path!r} does not exist: the path is empty; check the variable that it comes from"
    for number, part in enumerate(parts, start=1):
        there = os.path.join(here, part)
        if not os.path.lexists(there):
            return _not_in(path, os.path.normpath(here), part)
        if not os.path.exists(there):
            return f"{path!r} does not exist: {there!r} is a broken symbolic link; check the path"
        if number < len(parts) and not os.path.isdir(there):
            return f"{path!r} does not exist: {there!r} is a file, not a folder; check the path"
        here = there
    return f"{path!r} does not exist; check the path"


def _not_in(path: str, folder: str, part: str) -> str:
    alike: list[str] = []
    try:
        with os.scandir(folder) as found:
            names = [entry.name for entry in itertools.islice(found, _LOOKED_AT)]
        alike = difflib.get_close_matches(part, names, 1)
    except OSError:
        if not os.access(folder, os.X_OK):
            return f"{path!r} cannot be looked for in {folder!r}: permission denied; check the owner and the mode"
    advice = f"did you mean {alike[0]!r}?" if alike else "check the path"
    if part == path:
        return f"{path!r} does not exist in {folder!r}; {advice}"
    return f"{path!r} does not exist: there is no {part!r} in {folder!r}; {advice}"
