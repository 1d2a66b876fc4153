"""A large ``.npy`` array, one row a sample, and beside it the labels in another.

Neither is ever read whole: the header says where each row lies, and a row is read with one call. See `rows.py` for what a
row becomes. Labels are the file that is named, or ``images_labels.npy``, or what is called alike with "labels" for "images"
(``train_images.npy`` and ``train_labels.npy``).
"""

from __future__ import annotations

import hashlib
import math
import os
from typing import BinaryIO

from wds_tools.convert import entries, rows
from wds_tools.convert.entries import Entry, Request, Source
from wds_tools.convert.labels import NO_LABELS, Labels
from wds_tools.convert.origin import fingerprint, open_unchanged, pread
from wds_tools.convert.rows import Rows
from wds_tools.errors import DecodeError, OptionError, SampleError, SourceChangedError, SourceError
from wds_tools.image.arrays import parse_header

SUFFIXES = (".npy",)
_HEAD = 20_000  # bytes that hold any header
_PART = 1 << 16  # labels that are looked at together


def scan(request: Request) -> Source:
    """Every row of an array; `SourceError` says what is wrong with it or with its labels."""
    path = os.path.abspath(request.path)
    if request.images is not None:
        raise OptionError(f"images is {request.images!r}, but {request.path!r} is one array, where nothing has a name")
    array_rows, _, mtime_ns = _open(path)
    notes = [array_rows.note]
    digest = hashlib.sha256(f"{array_rows.count} {array_rows.shape} {fingerprint(path)}".encode())
    labels = Labels(request.classes)
    beside = _labels_beside(path) if request.labels is None else request.labels
    if beside == NO_LABELS:
        beside = None
    elif beside is None:
        notes.append("no labels: there is no " + " or ".join(repr(name) for name in _names_beside(path)))
    if beside is not None:
        _read_labels(beside, array_rows, labels)
        notes.append(f"labels from {os.path.basename(beside)!r}")
    classes = labels.finish() if beside is not None else ()
    digest.update(labels.numbers.tobytes())
    size = len(array_rows.header()) + array_rows.row_bytes
    prefix = rows.key_prefix(os.path.splitext(os.path.basename(path))[0])
    digest.update(prefix.encode())
    for number in range(array_rows.count):
        label = labels.numbers[number] if labels.numbers else None
        entry = Entry(rows.numbered(prefix, number) + ".npy", size, mtime_ns, label, at=str(number))
        request.lines.append(entries.dump_line(entry), size)
    return Source(path, request.lines, classes, digest.hexdigest(), kind="npy", notes=tuple(notes))


def _open(path: str) -> tuple[Rows, int, int]:
    """An array's rows, where they begin, and the file's time; all of it must be there."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
            status = os.fstat(file.fileno())
        shape, fortran, dtype, start = parse_header(head)
    except OSError as error:
        raise SourceError(f"cannot read {path!r}: {error.strerror}") from error
    except DecodeError as error:
        raise SourceError(
            f"{path!r}: {error.reason} (of numbers without a header, as np.memmap writes them, "
            "make an .npy with np.save('images.npy', np.memmap(…)))"
        ) from None
    if not shape:
        raise SourceError(f"{path!r} holds a single number, and not a row a sample")
    there, claimed = status.st_size - start, math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and there < claimed:
        raise SourceError(f"{path!r} is cut off: its header promises {claimed} bytes of numbers, and {there} are there")
    if fortran and sum(side > 1 for side in shape) > 1:
        raise SourceError(
            f"{path!r} is in Fortran order, where a row lies scattered over the whole file; "
            "save np.ascontiguousarray(images)"
        )
    return Rows(repr(os.path.basename(path)), shape[0], shape[1:], dtype), start, status.st_mtime_ns


def _names_beside(path: str) -> list[str]:
    stem = os.path.basename(path)[: -len(".npy")]
    names = [f"{stem}_labels.npy"]
    return [*names, stem.replace("images", "labels") + ".npy"] if "images" in stem else names


def _labels_beside(path: str) -> str | None:
    names = (os.path.join(os.path.dirname(path), name) for name in _names_beside(path))
    found = [name for name in names if os.path.isfile(name)]
    if len(found) > 1:
        both = " and ".join(repr(os.path.basename(name)) for name in found)
        raise SourceError(f"{both} could both be the labels of {path!r}; say which with --labels")
    return found[0] if found else None


def _read_labels(path: str, images: Rows, labels: Labels) -> None:
    import numpy as np

    try:
        with open(path, "rb") as file:
            shape, _, _, _ = parse_header(file.read(_HEAD))
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise SourceError(f"cannot read the labels {path!r}: {error.strerror or error}") from error
    except (DecodeError, ValueError) as error:
        reason = error.reason if isinstance(error, DecodeError) else "it is cut off"
        raise SourceError(f"the labels {path!r} cannot be read: {reason}") from None
    if not shape or shape[0] != images.count:
        raise SourceError(
            f"{images.where} has {images.count} rows, and the labels {path!r} {shape[0] if shape else 'only one number'}"
        )
    for first in range(0, images.count, _PART):
        labels.add(values[first : first + _PART], repr(path), first)


class NpyOrigin:
    """The rows of one array. Each is read with one call, at a place that is computed."""

    images = True

    def __init__(self, root: str) -> None:
        self._path = root
        self._file: BinaryIO | None = None
        self._mtime_ns = 0

    def __enter__(self) -> NpyOrigin:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, path: str, size: int, mtime_ns: int, at: str) -> bytes:
        """A row as an ``.npy`` file; ``at`` is its number."""
        if self._file is None or mtime_ns != self._mtime_ns:
            self._open(mtime_ns)
        assert self._file is not None
        length = self._rows.row_bytes
        try:
            data = pread(self._file, length, self._start + int(at) * length)
        except OSError as error:
            raise SampleError(f"unreadable: {error.strerror}", repr(path)) from error
        if len(data) != length or size != len(self._header) + length:
            raise SourceChangedError(f"{self._path!r} changed since the plan was made; run again for a new plan")
        return self._header + self._rows.body(data)

    def _open(self, mtime_ns: int) -> None:
        self.__exit__()
        self._file = open_unchanged(self._path, mtime_ns)
        self._mtime_ns = mtime_ns
        self._rows, self._start, _ = _open(self._path)
        self._header = self._rows.header()
