"""What every kind of source gives: one entry a sample, kept as a line of text.

A million entries must fit in a driver's memory, go to worker processes and be written down in a plan. A line does all
three for about a hundred bytes: ``label TAB size TAB mtime_ns TAB path``, then a TAB and a JSON object where a sample has
more than one file or has metadata. Tabs, line ends and backslashes in a path are escaped; bytes that are not UTF-8 are kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wds_tools.records import Skipped

_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another file of the same sample."""

    ext: str
    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One sample to be: its image file, as it was when the plan was made, and what goes beside it.

    ``path`` is relative to the source's root, or absolute. ``label`` is None where there are no classes.
    """

    path: str
    size: int
    mtime_ns: int
    label: int | None = None
    siblings: tuple[Sibling, ...] = ()
    metadata: dict[str, Any] | None = None


@dataclass
class Source:
    """Everything that was found: ``lines`` and, at the same positions, the bytes of ``sizes``.

    ``digest`` is over labels, paths and sizes (not over times, which copying changes).
    """

    root: str
    lines: list[str]
    sizes: Sequence[int]
    classes: tuple[str, ...]
    digest: str
    skipped: list[Skipped] = field(default_factory=list)
    ignored: dict[str, int] = field(default_factory=dict)
    empty_classes: tuple[str, ...] = ()


def escape(path: str) -> str:
    for char, escaped in _ESCAPES:
        path = path.replace(char, escaped)
    return path


def unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts = text.split("\\\\")
    for char, escaped in _ESCAPES[1:]:
        parts = [part.replace(escaped, char) for part in parts]
    return "\\".join(parts)


def dump_line(entry: Entry) -> str:
    """The line that holds ``entry``."""
    label = "" if entry.label is None else entry.label
    line = f"{label}\t{entry.size}\t{entry.mtime_ns}\t{escape(entry.path)}"
    more: dict[str, Any] = {}
    if entry.siblings:
        more["siblings"] = [[s.ext, s.path, s.size, s.mtime_ns] for s in entry.siblings]
    if entry.metadata is not None:
        more["metadata"] = entry.metadata
    return f"{line}\t{json.dumps(more)}" if more else line


def load_line(line: str) -> Entry:
    """The entry in ``line``."""
    label, size, mtime_ns, path, *rest = line.split("\t", 4)
    siblings: tuple[Sibling, ...] = ()
    metadata = None
    if rest:
        more = json.loads(rest[0])
        siblings = tuple(Sibling(*sibling) for sibling in more.get("siblings", ()))
        metadata = more.get("metadata")
    return Entry(unescape(path), int(size), int(mtime_ns), int(label) if label else None, siblings, metadata)
