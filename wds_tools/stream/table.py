"""An index in memory, as columns of numbers: where every wanted field of a shard's samples lies.

Parsing it once when a shard is opened costs less than parsing a line when a sample is read.
"""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import Any

import numpy as np

from wds_tools.format import index, tar
from wds_tools.records import Field


class Table:
    """An index in memory: key by position, and a row ``(ext, offsets, sizes)`` for each field that is wanted.

    Samples of one shard nearly always have the same fields; `mixed` keeps the lines of those that do not. Offsets and
    sizes are held against each other here, so that later each is a place in the shard: ``ValueError`` if they are none.
    """

    def __init__(self, lines: list[bytes], wanted: frozenset[str] | None) -> None:
        self._wanted = wanted
        self.mixed: list[bytes] | None = None
        self.end = 0  # where the last payload ends
        self.fields: list[tuple[str, array[int], array[int]]] = []
        self.keys: list[str] = []
        if not lines:
            return
        widths = {spaces + 1 for spaces in set(map(bytes.count, lines, repeat(b" ")))}
        if any(width % 4 for width in widths):
            raise ValueError("a line whose columns are no multiple of four")
        columns = b" ".join(lines).split(b" ")
        offsets = array("q", map(int, columns[1::4]))
        sizes = array("q", map(int, columns[2::4]))
        _check_places(np.frombuffer(offsets, np.int64), np.frombuffer(sizes, np.int64))
        self.end = offsets[-1] + sizes[-1]
        width = lines[0].count(b" ") + 1
        exts = columns[0:width:4]
        if columns[::4] != exts * len(lines) or len(widths) > 1:
            self.mixed = lines
            return
        joined = b""
        for number, raw in enumerate(exts):
            # All names at once, each with a line's end behind it, which no name has inside.
            end = b"." + raw.lower() + b"\n"
            names = b"\n".join(columns[4 * number + 3 :: width]) + b"\n"
            if raw != raw.lower() or names.count(end) != len(lines) or (number and names.replace(end, b"\n") != joined):
                self.mixed = lines  # `key` and `read` tell which one is wrong
                return
            joined = names.replace(end, b"\n")
        self.keys = joined.decode("utf-8", "surrogateescape").split("\n")
        if b"\\" in joined:
            self.keys = list(map(index.unescape, self.keys))
        fields = width // 4
        for number, raw in enumerate(exts):
            ext = index.unescape(raw.decode("utf-8", "surrogateescape")).lower()
            if wanted is None or ext in wanted:
                self.fields.append((ext, offsets[number::fields], sizes[number::fields]))
        if self.fields:
            (_, self.firsts, _), (_, lasts, ends) = self.fields[0], self.fields[-1]
            spans = (
                np.frombuffer(lasts, np.int64) + np.frombuffer(ends, np.int64) - np.frombuffer(self.firsts, np.int64)
            )
            self.spans = array("q", spans.tobytes())

    def key(self, number: int) -> str:
        if self.mixed is not None:
            return index.parse_line(self.mixed[number]).key
        return self.keys[number]

    def mixed_fields(self, number: int) -> list[Field]:
        """The wanted fields of a sample, where each line is on its own."""
        assert self.mixed is not None
        fields = index.parse_line(self.mixed[number]).fields
        return [field for field in fields if self._wanted is None or field.ext in self._wanted]

    def field(self, number: int, place: int) -> Field | None:
        """One of the wanted fields of a sample, by its place among them; None where nothing is wanted."""
        if self.mixed is not None:
            fields = self.mixed_fields(number)
            return fields[place] if fields else None
        if not self.fields:
            return None
        ext, offsets, sizes = self.fields[place]
        return Field(ext, offsets[number], sizes[number], f"{self.keys[number]}.{ext}")

    def extent(self, number: int) -> tuple[int, int]:
        """Where the wanted payloads of a sample begin and end, with whatever lies between them."""
        if self.mixed is not None:
            fields = self.mixed_fields(number)
            return (fields[0].offset, fields[-1].offset + fields[-1].size) if fields else (0, 0)
        if not self.fields:
            return 0, 0
        return self.firsts[number], self.firsts[number] + self.spans[number]


def _check_places(offsets: np.ndarray[Any, np.dtype[np.int64]], sizes: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """Every payload begins at a block, behind the one before it and a header: as `index.load` has it, for many at once."""
    if offsets.min() < tar.BLOCK or sizes.min() < 0:
        raise ValueError("a place before the shard's first payload")
    if (offsets % tar.BLOCK).any() or (offsets[1:] - offsets[:-1] - tar.BLOCK < sizes[:-1]).any():
        raise ValueError("an offset that can be no payload's")
