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
from array import array
from collections.abc import Iterator
from typing import Any

from wds_tools.convert import entries, keys
from wds_tools.convert.entries import Entry, Source
from wds_tools.errors import OptionError, SampleError, SourceError
from wds_tools.records import Skipped
from wds_tools.store.missing import why_missing

SUFFIXES = (".csv", ".tsv", ".jsonl")
_PACKED = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
MAX_LABEL_DIGITS = 18  # what fits into 64 bits

# A NUL, and code points that stand for no byte of a file's name.
_NO_NAME = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")


def is_list(path: str) -> bool:
    """Whether ``path`` names a table rather than a folder."""
    return path.lower().endswith(SUFFIXES) and not os.path.isdir(path)


def check(source: str, *, siblings: bool) -> None:
    """See that ``source`` is a folder or a table: `SourceError` says what it is instead."""
    if is_list(source) and siblings:
        raise OptionError(
            f"siblings are for folders, and {source!r} is a table; give what belongs to an image in its columns"
        )
    if not is_list(source) and not os.path.isdir(source):
        wanted = f"give a folder of class folders, or a table that ends in {', '.join(SUFFIXES)}"
        if "://" in source:
            shown = re.sub(r"//[^/]*@", "//", source.partition("?")[0])  # neither a signature nor a password
            raise SourceError(f"source {shown!r} is a URL, and only what lies on this machine is converted; {wanted}")
        if not os.path.exists(source):
            raise SourceError(f"source {why_missing(source)}")
        packed = source.lower().endswith(_PACKED)
        raise SourceError(f"source {source!r} is a file, not a folder; {'unpack it first, and ' * packed}{wanted}")


def read_list(path: str, *, classes: tuple[str, ...] | None, strict: bool) -> Source:
    """Find every sample that the table at ``path`` names; `SourceError` names the row that is wrong.

    ``strict`` raises for a file that is missing or no regular file; it is otherwise skipped.
    """
    root = os.path.dirname(os.path.abspath(path))
    rows = list(_rows(path))
    if not rows:
        raise SourceError(f"{path!r} has no rows; write one a sample, with the columns path and label (or class)")
    column = next((name for name in ("label", "class") if any(name in row for _, row in rows)), None)
    names, labels = _labels(path, rows, column, classes)
    source = Source(root, [], array("q"), names, "")
    sizes = array("q")
    seen: dict[str, tuple[str, int]] = {}
    digest = hashlib.sha256()
    for (number, row), label in zip(rows, labels, strict=True):
        name = os.path.normpath(row["path"])
        key = keys.key_of(name)
        other, line = seen.setdefault(key, (name, number))
        if line != number:
            raise SourceError(
                f"{path!r}: {other!r} (line {line}) and {name!r} (line {number}) would both have the key {key!r}; "
                "list a file once, and rename one of two that differ"
            )
        try:
            status = os.stat(os.path.join(root, name))
            reason = None if stat.S_ISREG(status.st_mode) else "not a regular file"
        except OSError as error:
            reason = error.strerror or str(error)
        if reason is not None:
            if strict:
                raise SampleError(f"{reason} (line {number} of {path!r})", repr(name))
            source.skipped.append(Skipped(name, reason))
            continue
        metadata = {other: value for other, value in row.items() if other not in ("path", column)}
        entry = Entry(name, status.st_size, status.st_mtime_ns, label, metadata=metadata or None)
        source.lines.append(entries.dump_line(entry))
        # As with siblings: what the metadata takes beside the image, its header and padding included.
        sizes.append(entry.size + (1024 + len(json.dumps(metadata)) if metadata else 0))
        digest.update(json.dumps([name, label, entry.size, metadata]).encode())
    if not source.lines:
        raise SourceError(
            f"{path!r} names no usable image: the first is {source.skipped[0].path!r}: {source.skipped[0].reason}"
        )
    source.sizes, source.digest = sizes, digest.hexdigest()
    return source


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


def _labels(
    path: str, rows: list[tuple[int, dict[str, Any]]], column: str | None, classes: tuple[str, ...] | None
) -> tuple[tuple[str, ...], list[int | None]]:
    """Class names, and a label a row, from the ``column`` that says it."""
    if column == "class":
        found = sorted({str(row.get("class", "")) for _, row in rows})
        names = classes if classes is not None else tuple(found)
        index = {name: number for number, name in enumerate(names)}
        for number, row in rows:
            name = row.get("class")
            if not isinstance(name, str) or not name:
                raise SourceError(f"{path!r}, line {number}: no 'class'")
            if name not in index:
                raise SourceError(
                    f"{path!r}, line {number}: class {name!r} is not among the dataset's {len(names)} classes"
                )
        return names, [index[row["class"]] for _, row in rows]
    if column is None:
        return classes or (), [None] * len(rows)
    labels: list[int | None] = []
    for number, row in rows:
        text = str(row.get("label", "")).strip()
        if not (text.isascii() and text.isdigit() and len(text) <= MAX_LABEL_DIGITS):
            raise SourceError(
                f"{path!r}, line {number}: label {text[:40]!r} is not a class index; give class names in a column named 'class'"
            )
        label = int(text)
        if classes is not None and label >= len(classes):
            raise SourceError(f"{path!r}, line {number}: label {label} is beyond the dataset's {len(classes)} classes")
        labels.append(label)
    return classes or (), labels
