"""Samples that lie many to a file: what a part of the source was found to hold, and all parts put together.

A part (a file, a row group) is scanned by itself, so that processes can share the work. A sample is called as its source
calls it, where every sample has a name and no two have the same; else by its file and its number in that, such as
``train-00000/00000012``: such keys sort as the samples lie.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from wds_tools.convert import entries, keys
from wds_tools.convert.entries import Entry, Request, Source
from wds_tools.convert.spool import Spool
from wds_tools.convert.unique import Keys
from wds_tools.errors import SampleError, SourceError
from wds_tools.image.kinds import EXTENSIONS, check, sniff
from wds_tools.records import Skipped

_DIGITS = 8


@dataclass
class Found:
    """What a part holds: ``lines`` and their ``sizes``, as `Request.lines` takes them; ``named`` if each has a name."""

    lines: list[str] = field(default_factory=list)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    skipped: list[Skipped] = field(default_factory=list)
    named: bool = True
    left_out: set[str] = field(default_factory=set)
    unlabelled: int = 0

    def add(self, entry: Entry, name: str | None, number: str) -> None:
        """Add a sample, with the ``name`` that its source gives it, and the key that it has without."""
        named = key_of_name(name) if name else ""
        if not named:
            self.named = False
        metadata = entry.metadata
        if name and named and not keys.is_clean(posixpath.splitext(name)[0]):
            metadata = {**(metadata or {}), "filename": name}
        entry = replace(entry, path=f"{named or number}.{entry.path}", metadata=metadata or None)
        self.lines.append(entries.dump_line(entry))
        # As with tables: what the metadata takes beside the image, its header and padding included.
        self.sizes.append(entry.size + (1024 + len(json.dumps(metadata)) if metadata else 0))

    def skip(self, error: SampleError, strict: bool) -> None:
        """Raise what is wrong with a sample, or note it."""
        if strict:
            raise error
        self.skipped.append(Skipped(error.place, error.reason))


def key_of_name(name: str) -> str:
    """The key of a sample whose source calls it ``name``; empty if that says nothing."""
    path = posixpath.normpath(name.replace("\\", "/"))
    return "" if path in (".", "..", "/", "//") else keys.key_of(path)


def numbered(part: str, number: int) -> str:
    """The key of the sample with this number in the file called ``part``."""
    return keys.clean(f"{part}/{number:0{_DIGITS}d}")


def part_of(name: str, suffixes: tuple[str, ...]) -> str:
    """What the numbered samples of a file are called after: its name without the suffix of its kind."""
    stem, suffix = os.path.splitext(name.replace(os.sep, "/"))
    return stem if suffix.lower() in suffixes else stem + suffix


def check_parts(names: Iterable[str], suffixes: tuple[str, ...]) -> None:
    """Refuse files whose samples would be called alike."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(numbered(part_of(name, suffixes), 0), name)
        if other != name:
            raise SourceError(
                f"the samples of {other!r} and {name!r} would have the same keys; rename one of the files"
            )


def extension(data: bytes | memoryview, name: str | None, place: str) -> str:
    """What the name of an image is to end in; `SampleError` if ``data`` is no whole image."""
    kind = sniff(data[:16])
    reason = check(kind, data)
    if reason is not None or kind is None:
        raise SampleError(reason or "not an image", place)
    given = keys.split_suffix(name)[1][1:].lower() if name else ""
    return given if EXTENSIONS.get(given) == kind else kind


def collect(request: Request, found: Iterable[Found], digest: Any, number: Callable[[Entry], str]) -> Source:
    """Put all parts together. ``number`` tells the key of an entry without a name; each part is a block of the source."""
    source = Source("", request.lines, (), "")
    seen, named, blocks, left_out, unlabelled = Keys(), True, array("q"), set[str](), 0
    for part in found:
        request.lines.extend(part.lines, part.sizes)
        for line in part.lines:
            seen.add(line.split("\t", 4)[3].rpartition(".")[0])
        source.skipped += part.skipped
        named = named and part.named
        left_out |= part.left_out
        unlabelled += part.unlabelled
        if part.lines:
            blocks.append(len(part.lines))
    if not len(request.lines):
        first = f": {source.skipped[0].path}: {source.skipped[0].reason}" if source.skipped else ""
        raise SourceError(f"{request.path!r} has no usable image{first}")
    notes = []
    if not named or seen.doubtful():
        notes.append("keys are numbers: " + ("names are not unique" if named else "not every sample has a name"))
        _rename(request.lines, number)
    if unlabelled:
        notes.append(f"{unlabelled:,} sample{'s have' if unlabelled > 1 else ' has'} no label (-1)")
    if left_out:
        notes.append(f"left out, being neither numbers nor text: {', '.join(sorted(left_out))}")
    for some, _ in request.lines.blocks():
        for line in some:
            label, size, _, rest = line.split("\t", 3)
            digest.update(f"{label}\t{size}\t{rest}\n".encode("utf-8", "surrogateescape"))
    source.digest, source.blocks, source.notes = digest.hexdigest(), blocks, tuple(notes)
    return source


def new_digest(kind: str, names: Iterable[str]) -> Any:
    """A digest that begins with what the source is made of."""
    return hashlib.sha256(json.dumps([kind, *names]).encode())


def _rename(lines: Spool, number: Callable[[Entry], str]) -> None:
    """Give every sample the key that ``number`` tells."""
    before = Spool(lines.folder, block=lines.block)
    for some, sizes in lines.blocks():
        before.extend(some, sizes)
    lines.clear()
    for some, sizes in before.blocks():
        renamed = []
        for line in some:
            entry = entries.load_line(line)
            suffix = entry.path.rpartition(".")[2]
            renamed.append(entries.dump_line(replace(entry, path=f"{number(entry)}.{suffix}")))
        lines.extend(renamed, sizes)
    before.clear()
