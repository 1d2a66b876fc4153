"""Parquet as a source: one file or many, as Hugging Face publishes datasets.

How long each image is stands nowhere but in front of its bytes, so every row group is decoded once to plan. Row groups are the
plan's blocks: a worker decodes the images of one as a whole, and keeps the last ones while they take at most `POOL_BYTES`.

| column | becomes |
| --- | --- |
| the image: bytes, or a struct of bytes and path | the image field, untouched |
| the label: whole numbers or names | ``cls``, less `Request.first_label`; Hugging Face's -1 is none |
| the image's path, or a column of file names | the key, where all have one and no two the same |
| other numbers, text, times, and lists of them | ``json`` |
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from wds_tools.convert import fields, packed, parts
from wds_tools.convert.entries import Entry, Request, Source
from wds_tools.convert.fields import Labelling
from wds_tools.convert.origin import Recent, fingerprint, open_unchanged
from wds_tools.convert.packed import Found
from wds_tools.convert.parquet_file import MAX_GROUP, Layout, group_bytes, layout, open_parquet, readable
from wds_tools.errors import SampleError, SourceChangedError, SourceError
from wds_tools.records import Skipped

SUFFIXES = (".parquet",)
_BATCH = 64  # rows decoded together to plan
_RUN_GROUPS, _RUN_BYTES = 64, 64 << 20  # of one task
_OPEN = 8  # files that an origin keeps open


def is_part(name: str) -> bool:
    """Whether a file of this name is parquet."""
    return name.lower().endswith(SUFFIXES)


@dataclass(frozen=True)
class _Run:
    """Row groups of a file that are scanned together; ``row`` is the first one's number in the file."""

    root: str
    name: str
    groups: range
    row: int
    layout: Layout
    labelling: Labelling
    strict: bool


def scan(request: Request) -> Source:
    """Every row of one file, or of many; `SourceError` and `SampleError` say file and row."""
    root, names = parts.find(request.path, is_part, request.split)
    packed.check_parts(names, SUFFIXES)
    shared = _layout(root, names, request)
    if shared.texts:
        shared = replace(shared, classes=_text_classes(root, names, str(shared.labels), request))
    labelling = Labelling.of(request, shared.classes, repr(names[0]))
    digest = packed.new_digest("parquet", (shared.bytes_column, str(shared.labels)))
    runs: list[_Run] = []
    for name in names:
        digest.update(fingerprint(os.path.join(root, name)).encode())
        runs += _runs(root, name, shared, labelling, request)
    found = (part for some in request.map_(_scan_run, runs) for part in some)
    source = packed.collect(request, found, digest, _number)
    source.root, source.kind = json.dumps([root, shared.bytes_column]), "parquet"
    source.classes = labelling.classes if shared.labels is not None else ()
    chosen = f"labels from {shared.labels!r}" if shared.labels is not None else "no labels"
    source.notes = (f"images from {shared.images!r}, {chosen}", *source.notes)
    return source


def _open(root: str, name: str) -> BinaryIO:
    try:
        return open(os.path.join(root, name), "rb")
    except OSError as error:
        raise SourceError(f"cannot read {os.path.join(root, name)!r}: {error.strerror}") from error


def _layout(root: str, names: list[str], request: Request) -> Layout:
    """The layout that all files have."""
    found: Layout | None = None
    for name in names:
        with _open(root, name) as file:
            theirs = layout(open_parquet(file, name), name, request)
        if found is not None and theirs != found:
            raise SourceError(
                f"{name!r} has other columns, or classes, than {names[0]!r}; convert them to one, or one by one"
            )
        found = theirs
    assert found is not None
    return found


def _text_classes(root: str, names: list[str], column: str, request: Request) -> tuple[str, ...]:
    """The names in a column of labels, sorted."""
    if request.classes is not None:
        return request.classes
    found: set[str] = set()
    for name in names:
        with _open(root, name) as file, readable(repr(name)):
            for batch in open_parquet(file, name).iter_batches(columns=[column], use_threads=False):
                found.update(value for value in batch.column(column).to_pylist() if value)
    return tuple(sorted(found))


def _runs(root: str, name: str, shared: Layout, labelling: Labelling, request: Request) -> Iterator[_Run]:
    """The row groups of a file, some together."""
    with _open(root, name) as file, readable(repr(name)):
        parquet = open_parquet(file, name)
        start = size = row = first = 0
        for group in range(parquet.num_row_groups):
            theirs = group_bytes(parquet, group, shared.bytes_column, name)
            if group > start and (group - start >= _RUN_GROUPS or size + theirs > _RUN_BYTES):
                yield _Run(root, name, range(start, group), first, shared, labelling, request.strict)
                start, size, first = group, 0, row
            size += theirs
            row += parquet.metadata.row_group(group).num_rows
        yield _Run(root, name, range(start, parquet.num_row_groups), first, shared, labelling, request.strict)


def _scan_run(run: _Run) -> list[Found]:
    """The samples of every row group."""
    parts_: list[Found] = []
    row = run.row
    with _open(run.root, run.name) as file:
        mtime_ns = os.fstat(file.fileno()).st_mtime_ns
        parquet = open_parquet(file, run.name)
        for group in run.groups:
            found = Found(left_out=set(run.layout.left_out))
            rows = parquet.metadata.row_group(group).num_rows
            try:
                _scan_group(found, run, parquet, group, row, mtime_ns)
            except SourceError as error:
                if run.strict:
                    raise
                found = Found(skipped=[Skipped(f"{run.name!r}, row group {group}", f"{rows} rows are lost: {error}")])
            parts_.append(found)
            row += rows
    return parts_


def _scan_group(found: Found, run: _Run, parquet: Any, group: int, row: int, mtime_ns: int) -> None:
    shared, first, total = run.layout, row, 0
    columns = [shared.bytes_column, *shared.cheap_columns]
    with readable(f"{run.name!r}, row group {group}"):
        for batch in parquet.iter_batches(_BATCH, row_groups=[group], columns=columns, use_threads=False):
            images, paths = _image_values(batch.column(shared.images), shared)
            names = batch.column(shared.names).to_pylist() if shared.names else paths
            labels = batch.column(shared.labels).to_pylist() if shared.labels else None
            others = {name: batch.column(name).to_pylist() for name in shared.others}
            for number in range(len(batch)):
                place = f"{run.name!r}, row {row}"
                name = names[number] if names else None
                try:
                    metadata = {other: fields.plain(values[number]) for other, values in others.items()}
                    data = images[number].as_buffer()
                    if data is None:
                        raise SampleError(f"no image bytes, {_only(paths[number] if paths else None)}", place)
                    total += data.size
                    ext = packed.extension(memoryview(data).cast("B"), name, place)
                    label = _label(run, labels[number], place) if labels is not None else None
                    at = f"{group} {row - first} {row} {run.name}"
                    entry = Entry(ext, data.size, mtime_ns, label, metadata=metadata or None, at=at)
                    found.unlabelled += labels is not None and label is None
                    found.add(entry, name, packed.numbered(packed.part_of(run.name, SUFFIXES), row))
                except TypeError:
                    error = SampleError(f"a list of more than {fields.MAX_LIST} values in a column", place)
                    found.skip(error, run.strict)
                except SampleError as error:
                    found.skip(error, run.strict)
                row += 1
        if total > MAX_GROUP:
            raise SourceError(f"{run.name!r}, row group {group}: more bytes of images than the file announces")


def _only(path: str | None) -> str:
    return f"only the path {path!r:.200}; write the bytes into the file" if path else "and no path either"


def _label(run: _Run, value: Any, place: str) -> int | None:
    unlabelled = value == -1 and run.layout.classes and not run.layout.texts
    return None if unlabelled else run.labelling.index(value, place)


def _image_values(column: Any, shared: Layout) -> tuple[Any, list[str | None] | None]:
    """The bytes of the images, and their paths, where there are any."""
    if not shared.struct:
        return column, None
    # Flattened, a struct that is null has parts that are null.
    children = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
    return children["bytes"], children["path"].to_pylist() if shared.path else None


def _number(entry: Entry) -> str:
    _, _, row, name = entry.at.split(" ", 3)
    return packed.numbered(packed.part_of(name, SUFFIXES), int(row))


class ParquetOrigin:
    """Images in the row groups of files below a folder. ``root`` is that folder, and the column of bytes."""

    images = True

    def __init__(self, root: str) -> None:
        self._folder, self._column = json.loads(root)
        self._files: OrderedDict[str, tuple[BinaryIO, Any]] = OrderedDict()
        self._groups: Recent[Any] = Recent()

    def __enter__(self) -> ParquetOrigin:
        return self

    def __exit__(self, *error: object) -> None:
        for file, _ in self._files.values():
            file.close()
        self._files.clear()

    def read(self, path: str, size: int, mtime_ns: int, at: str) -> bytes:
        """The image in the row that ``at`` names."""
        group, number, row, name = at.split(" ", 3)
        place = f"{name!r}, row {row}"
        try:
            images = self._groups.get((name, group), lambda: self._decode(name, int(group), mtime_ns))
        except SourceChangedError:
            raise
        except SourceError as error:
            raise SampleError(str(error), place) from error
        data = images[int(number)].as_py() if int(number) < len(images) else None
        if data is None or len(data) != size:
            raise SourceChangedError(f"{place} changed since the plan was made; run again for a new plan")
        return bytes(data)

    def _decode(self, name: str, group: int, mtime_ns: int) -> tuple[Any, int]:
        """The images of a row group, and the bytes that they take."""
        opened = self._files.pop(name, None)
        if opened is None:
            file = open_unchanged(os.path.join(self._folder, name), mtime_ns)
            opened = file, open_parquet(file, name)
        self._files[name] = opened
        if len(self._files) > _OPEN:
            self._files.popitem(last=False)[1][0].close()
        with readable(f"{name!r}, row group {group}") as pyarrow:
            column = opened[1].read_row_group(group, columns=[self._column], use_threads=False).column(0)
            if pyarrow.types.is_struct(column.type):
                column = column.flatten()[0]
            return column, column.nbytes
