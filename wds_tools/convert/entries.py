"""What every kind of source gives: one entry a sample, kept as a line of text.

A million entries must fit in a driver's memory, go to worker processes and be written down in a plan. A line does all
three for about a hundred bytes: ``label TAB size TAB mtime_ns TAB path``, then a TAB and a JSON object where a sample has
more than one file, has metadata, or lies inside a file with others. Tabs, line ends and backslashes in a path are
escaped; bytes that are not UTF-8 are kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from wds_tools.convert.spool import Spool
from wds_tools.records import Skipped

_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another field of the same sample: a file, or a part of one as in `Entry`."""

    ext: str
    path: str
    size: int
    mtime_ns: int
    at: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One sample to be: its image, as it was when the plan was made, and what goes beside it.

    ``path`` is relative to the source's root, or absolute. ``label`` is None where there are no classes. Of an image that
    is no file of its own, ``at`` tells the source's `origin.Origin` where it lies; ``path`` is then ``<key>.<ext>``,
    what the sample is to be called, ``size`` its payload's bytes, and ``mtime_ns`` the time of the file around it.
    """

    path: str
    size: int
    mtime_ns: int
    label: int | None = None
    siblings: tuple[Sibling, ...] = ()
    metadata: dict[str, Any] | None = None
    at: str = ""


@dataclass
class Source:
    """Everything that was found: the ``lines`` of the entries, with the bytes that each will take.

    ``digest`` is over labels, paths and sizes (not over times, which copying changes). ``notes`` say what was found that the
    user did not name. ``kind`` names the
    `origin.Origin` that reads them, ``root`` is what that is opened with. ``blocks`` are the lengths of runs of entries
    that are read as a whole or not at all. ``suffixes`` and ``earlier`` are of a dataset that was made before: the suffixes that
    its images had as files, and those of its settings that tell how to extract.
    """

    root: str
    lines: Spool
    classes: tuple[str, ...]
    digest: str
    skipped: list[Skipped] = field(default_factory=list)
    ignored: dict[str, int] = field(default_factory=dict)
    empty_classes: tuple[str, ...] = ()
    kind: str = "files"
    blocks: Sequence[int] = ()
    notes: tuple[str, ...] = ()
    suffixes: dict[str, str] = field(default_factory=dict)
    earlier: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Search:
    """What a conversion is made from: ``source`` is how messages name it, ``settings`` what decides beside the options."""

    source: str
    scan: Callable[[Request], Source]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """What a source is scanned for.

    ``lines`` take the entries. ``classes`` fix names and indexes, ``strict`` raises for what is otherwise skipped,
    ``siblings`` makes files of one stem one sample, ``images`` and ``labels`` name the columns of a source that has several.
    ``first_label`` is what labels count from, ``split`` what is made, where a source has files of several.
    ``map_`` spreads work over processes, and keeps its order.
    """

    path: str
    lines: Spool
    classes: tuple[str, ...] | None = None
    strict: bool = True
    siblings: bool = False
    images: str | None = None
    labels: str | None = None
    first_label: int = 0
    split: str = "train"
    map_: Callable[[Callable[[Any], Any], list[Any]], Iterable[Any]] = map


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
        more["siblings"] = [
            [s.ext, s.path, s.size, s.mtime_ns, s.at] if s.at else [s.ext, s.path, s.size, s.mtime_ns]
            for s in entry.siblings
        ]
    if entry.metadata is not None:
        more["metadata"] = entry.metadata
    if entry.at:
        more["at"] = entry.at
    return f"{line}\t{json.dumps(more)}" if more else line


def load_line(line: str) -> Entry:
    """The entry in ``line``."""
    label, size, mtime_ns, path, *rest = line.split("\t", 4)
    siblings: tuple[Sibling, ...] = ()
    metadata = None
    at = ""
    if rest:
        more = json.loads(rest[0])
        siblings = tuple(Sibling(*sibling) for sibling in more.get("siblings", ()))
        metadata, at = more.get("metadata"), more.get("at", "")
    return Entry(unescape(path), int(size), int(mtime_ns), int(label) if label else None, siblings, metadata, at)
