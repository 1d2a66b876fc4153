"""A table that names the images: CSV, TSV or JSON lines, one row a sample.

``path`` is relative to the table's folder, or absolute. ``label`` is a class index, ``class`` a class name; names are
indexed sorted, as class folders are; where there are both, the label counts. All other columns go into the sample's
``json`` field.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from typing import Any

from wds_tools.convert import entries, keys
from wds_tools.convert.entries import Entry, Request, Source
from wds_tools.convert.unique import Keys
from wds_tools.errors import SampleError, SourceError
from wds_tools.records import Skipped

SUFFIXES = (".csv", ".tsv", ".jsonl")
MAX_LABEL_DIGITS = 18  # what fits into 64 bits

# A NUL, and code points that stand for no byte of a file's name.
_NO_NAME = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")


def is_list(path: str) -> bool:
    """Whether ``path`` names a table rather than a folder."""
    return path.lower().endswith(SUFFIXES) and not os.path.isdir(path)


def scan(request: Request) -> Source:
    """Find every sample that a table names; `SourceError` names the row that is wrong.

    The table is read twice, for its classes and for its rows, and never held in memory. ``strict`` raises for a file
    that is missing or no regular file; it is otherwise skipped.
    """
    path, lines = request.path, request.lines
    root = os.path.dirname(os.path.abspath(path))
    labels, seen = _Labels(path, request.classes), Keys()
    labels.survey(seen)
    _check_keys(path, seen)
    source = Source(root, lines, labels.names, "")
    digest = hashlib.sha256()
    for number, row in _rows(path):
        label = labels.of(number, row)
        name = os.path.normpath(row["path"])
        try:
            status = os.stat(os.path.join(root, name))
            reason = None if stat.S_ISREG(status.st_mode) else "not a regular file"
        except OSError as error:
            reason = error.strerror or str(error)
        if reason is not None:
            if request.strict:
                raise SampleError(f"{reason} (line {number} of {path!r})", repr(name))
            source.skipped.append(Skipped(name, reason))
            continue
        metadata = {other: value for other, value in row.items() if other not in ("path", labels.column)}
        entry = Entry(name, status.st_size, status.st_mtime_ns, label, metadata=metadata or None)
        # As with siblings: what the metadata takes beside the image, its header and padding included.
        lines.append(entries.dump_line(entry), entry.size + (1024 + len(json.dumps(metadata)) if metadata else 0))
        digest.update(json.dumps([name, label, entry.size, metadata]).encode())
    if not len(lines):
        raise SourceError(
            f"{path!r} names no usable image: the first is {source.skipped[0].path!r}: {source.skipped[0].reason}"
        )
    source.digest = digest.hexdigest()
    return source


def _check_keys(path: str, seen: Keys) -> None:
    """Refuse two rows with one key."""
    doubtful = seen.doubtful()
    if not doubtful:
        return
    known: dict[str, tuple[str, int]] = {}
    for number, row in _rows(path):
        name = os.path.normpath(row["path"])
        key = keys.key_of(name)
        if hash(key) not in doubtful:
            continue
        other, line = known.setdefault(key, (name, number))
        if line != number:
            raise SourceError(
                f"{path!r}: {other!r} (line {line}) and {name!r} (line {number}) would both have the key {key!r}; "
                "list a file once, and rename one of two that differ"
            )


def _rows(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and columns of every row; a row without a path is a `SourceError`."""
    parse = _json_rows if path.lower().endswith(".jsonl") else _table_rows
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            for number, row in parse(path, file):
                if not isinstance(row.get("path"), str) or not row["path"]:
                    raise SourceError(
                        f"{path!r}, line {number}: no 'path'; its columns are {', '.join(map(str, row)) or 'none'}"
                    )
                if _NO_NAME.search(row["path"]):
                    raise SourceError(f"{path!r}, line {number}: {row['path']!r} cannot be the name of a file")
                yield number, row
    except OSError as error:
        raise SourceError(f"cannot read {path!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{path!r} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def _json_rows(path: str, file: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, text in enumerate(file, start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{path!r}, line {number}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise SourceError(
                f'{path!r}, line {number}: a JSON object is expected, such as {{"path": "a.jpg", "label": 0}}'
            )
        yield number, row


def _table_rows(path: str, file: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(file, delimiter="\t" if path.lower().endswith(".tsv") else ",", strict=True)
    columns: list[str] | None = None
    try:
        for row in reader:
            if not row:
                continue
            if columns is None:
                columns = [name.strip() for name in row]
                if "path" not in columns:
                    raise SourceError(
                        f"{path!r}, line 1: the first row must name the columns, 'path' among them; it says {', '.join(columns)}"
                    )
                if len(set(columns)) < len(columns):
                    twice = next(name for name in columns if columns.count(name) > 1)
                    raise SourceError(f"{path!r}, line 1: two columns are called {twice!r}; rename one")
                continue
            if len(row) != len(columns):
                raise SourceError(
                    f"{path!r}, line {reader.line_num}: {len(row)} columns where the first row names {len(columns)}"
                )
            yield reader.line_num, dict(zip(columns, row, strict=True))
    except csv.Error as error:
        raise SourceError(f"{path!r}, line {reader.line_num}: {error}") from None


class _Labels:
    """Which column says the label, the class names, and the label of a row."""

    def __init__(self, path: str, classes: tuple[str, ...] | None) -> None:
        self._path = path
        self._classes = classes
        self.column: str | None = None
        self.names: tuple[str, ...] = ()
        self._index: dict[str, int] = {}

    def survey(self, seen: Keys) -> None:
        """Read the table once: for the column, the names, and the keys, which are added to ``seen``."""
        count = 0
        columns: set[str] = set()
        found: set[str] = set()
        for _, row in _rows(self._path):
            count += 1
            seen.add(keys.key_of(os.path.normpath(row["path"])))
            columns.update(name for name in ("label", "class") if name in row)
            if self._classes is None and isinstance(row.get("class"), str):
                found.add(row["class"])
        if not count:
            raise SourceError(
                f"{self._path!r} has no rows; write one a sample, with the columns path and label (or class)"
            )
        self.column = next((name for name in ("label", "class") if name in columns), None)
        self.names = (
            self._classes if self._classes is not None else tuple(sorted(found)) if self.column == "class" else ()
        )
        self._index = {name: number for number, name in enumerate(self.names)}

    def of(self, number: int, row: dict[str, Any]) -> int | None:
        """The label of the ``row`` in line ``number``."""
        if self.column == "class":
            return self._by_name(number, row)
        if self.column is None:
            return None
        text = str(row.get("label", "")).strip()
        if not (text.isascii() and text.isdigit() and len(text) <= MAX_LABEL_DIGITS):
            raise SourceError(
                f"{self._path!r}, line {number}: label {text[:40]!r} is not a class index; "
                "give class names in a column named 'class'"
            )
        label = int(text)
        if self._classes is not None and label >= len(self._classes):
            raise SourceError(
                f"{self._path!r}, line {number}: label {label} is beyond the dataset's {len(self._classes)} classes"
            )
        return label

    def _by_name(self, number: int, row: dict[str, Any]) -> int:
        name = row.get("class")
        if not isinstance(name, str) or not name:
            raise SourceError(f"{self._path!r}, line {number}: no 'class'")
        if name not in self._index:
            raise SourceError(
                f"{self._path!r}, line {number}: class {name!r} is not among the dataset's {len(self.names)} classes"
            )
        return self._index[name]
