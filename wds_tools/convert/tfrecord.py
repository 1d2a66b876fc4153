"""TFRecords as a source: one file, or many as ``train-00000-of-01024``, with a ``tf.train.Example`` in each record.

Nothing in a TFRecord says where its records begin, so every file is read once to plan, and every CRC checked; a file is one
task. The plan says of each sample which record it is, and a worker reads and checks that record again.

| feature | becomes |
| --- | --- |
| the image, encoded | the image field, untouched |
| the image, raw uint8, with height, width and depth beside it | ``npy`` |
| the label, one int | ``cls``, less `Request.first_label` |
| a file name | the key, where all have one and no two the same |
| other numbers and text, at most 1,024 values | ``json`` |
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from wds_tools.convert import fields, packed, parts
from wds_tools.convert.entries import Entry, Request, Source
from wds_tools.convert.fields import Labelling
from wds_tools.convert.labels import NO_LABELS
from wds_tools.convert.origin import open_unchanged
from wds_tools.convert.packed import Found
from wds_tools.convert.tfrecord_file import NAMES, crc, parse, place, read_record, records
from wds_tools.errors import SampleError, SourceChangedError, SourceError
from wds_tools.image import kinds
from wds_tools.image.arrays import encode_npy
from wds_tools.records import Skipped

SUFFIXES = (".tfrecord", ".tfrecords")
_IMAGES = (
    "image/encoded",
    "image",
    "image_raw",
    "image/raw",
    "encoded",
    "jpeg",
    "jpg",
    "png",
    "img",
    "image_bytes",
    "data",
)
_LABELS = ("image/class/label", "label", "labels", "class", "target", "class_id", "y")
_FILENAMES = ("image/filename", "filename", "file_name")
_SIDES = (
    ("image/height", "image/width", "image/channels"),
    ("height", "width", "depth"),
    ("height", "width", "channels"),
    ("rows", "cols", "depth"),
)
_PART = 4096  # samples that are handed over together


def is_part(name: str) -> bool:
    """Whether a file of this name is one of TFRecords."""
    return NAMES.fullmatch(name) is not None


@dataclass(frozen=True)
class _File:
    """A file to be scanned, and what for."""

    root: str
    name: str
    images: str
    labels: str | None
    labelling: Labelling
    strict: bool


def scan(request: Request) -> Source:
    """Every record of one file, or of many; `SourceError` and `SampleError` say file and offset."""
    root, names = parts.find(request.path, is_part, request.split)
    packed.check_parts(names, SUFFIXES)
    first = _first(root, names)
    there = {name: _kind(values) for name, values in first.items()}
    where = f"{names[0]!r}"
    fit = [name for name, values in first.items() if len(values) == 1 and isinstance(values[0], bytes)]
    if request.images is None:
        # What is an image; of a first record that is damaged, what is called like one.
        fit = [name for name in fit if _is_image(first[name], first)] or [name for name in fit if name in _IMAGES]
    images = fields.choose("image", request.images, _IMAGES, fit, there, where)
    if images is None:
        listed = ", ".join(f"{name} ({kind})" for name, kind in there.items())
        raise SourceError(f"{where}: no feature is an image; name one with --images; it has {listed or 'nothing'}")
    labels = None
    if request.labels != NO_LABELS:
        ints = [name for name, values in first.items() if len(values) == 1 and isinstance(values[0], int)]
        fit = [name for name in ints if request.labels is not None or name in _LABELS]
        labels = fields.choose("label", request.labels, _LABELS, fit, there, where)
    labelling = Labelling.of(request, (), where)
    jobs = [_File(root, name, images, labels, labelling, request.strict) for name in names]
    found: Iterator[Found] = (
        _scan_file(jobs[0]) if len(jobs) == 1 else (part for some in request.map_(_scan_whole, jobs) for part in some)
    )
    digest = packed.new_digest("tfrecord", (images, str(labels)))
    source = packed.collect(request, found, digest, _number)
    source.root, source.kind, source.blocks = json.dumps([root, images]), "tfrecord", ()
    source.classes = labelling.classes if labels is not None else ()
    source.notes = (f"images from {images!r}, " + (f"labels from {labels!r}" if labels else "no labels"), *source.notes)
    return source


def _number(entry: Entry) -> str:
    row, *_, name = entry.at.split(" ", 4)
    return packed.numbered(packed.part_of(name, SUFFIXES), int(row))


def _open(root: str, name: str) -> BinaryIO:
    try:
        return open(os.path.join(root, name), "rb", buffering=1 << 20)
    except OSError as error:
        raise SourceError(f"cannot read {os.path.join(root, name)!r}: {error.strerror}") from error


def _first(root: str, names: list[str]) -> dict[str, list[Any]]:
    """The features of the first record that can be read."""
    problem = "there is no record in it"
    for name in names:
        with _open(root, name) as file:
            for offset, payload in records(file, name):
                try:
                    return parse(_payload(payload))
                except SampleError as error:
                    problem = f"{place(name, offset)}: {error.reason}"
                    break
    raise SourceError(f"{os.path.join(root, names[0])!r}: {problem}")


def _payload(found: bytes | SampleError) -> bytes:
    if isinstance(found, SampleError):
        raise found
    return found


def _scan_whole(job: _File) -> list[Found]:
    return list(_scan_file(job))


def _scan_file(job: _File) -> Iterator[Found]:
    """The samples of a file, some thousand at a time."""
    found = Found()
    with _open(job.root, job.name) as file:
        mtime_ns = os.fstat(file.fileno()).st_mtime_ns
        try:
            for row, (offset, payload) in enumerate(records(file, job.name)):
                try:
                    _add(found, job, row, offset, _payload(payload), mtime_ns)
                except SampleError as error:
                    found.skip(error.at(place(job.name, offset)), job.strict)
                if len(found.lines) >= _PART:
                    yield found
                    found = Found()
        except SourceError as error:
            if job.strict:
                raise
            found.skipped.append(Skipped(repr(job.name), f"what follows is lost: {error}"))
    yield found


def _add(found: Found, job: _File, row: int, offset: int, payload: bytes, mtime_ns: int) -> None:
    features = parse(payload)
    image = image_of(features, job.images)
    label = None
    if job.labels is not None:
        values = features.pop(job.labels, [])
        if len(values) != 1:
            raise SampleError(f"{len(values)} values in {job.labels!r}, and a label is one")
        label = job.labelling.index(values[0], "")
    name = _text(next((features[name] for name in _FILENAMES if name in features), None))
    ext = packed.extension(image, name, "")
    del features[job.images]
    metadata = {}
    for other, values in features.items():
        try:
            metadata[other] = _plain(values)
        except (TypeError, UnicodeDecodeError):
            found.left_out.add(other)
    at = f"{row} {offset} {len(payload)} {crc(payload):08x} {job.name}"
    entry = Entry(ext, len(image), mtime_ns, label, metadata=metadata or None, at=at)
    found.add(entry, name, packed.numbered(packed.part_of(job.name, SUFFIXES), row))


def _plain(values: list[Any]) -> Any:
    plain = fields.plain([value.decode() if isinstance(value, bytes) else value for value in values])
    return plain[0] if len(plain) == 1 else plain


def _text(values: list[Any] | None) -> str | None:
    if not values or not isinstance(values[0], bytes):
        return None
    return values[0].decode("utf-8", "surrogateescape")


def image_of(features: Mapping[str, list[Any]], name: str) -> bytes:
    """The image of a sample as a file: the bytes as they are, or the ``.npy`` of raw pixels. Raises `SampleError`."""
    values = features.get(name, [])
    if len(values) != 1 or not isinstance(values[0], bytes):
        raise SampleError(
            f"{_kind(values) if name in features else 'nothing'} in {name!r}, and an image is one value of bytes"
        )
    data: bytes = values[0]
    kind = kinds.sniff(data[:16])
    if kind is None and data:
        shape = _shape(features)
        if shape is not None and shape[0] * shape[1] * shape[2] == len(data):
            import numpy as np

            return encode_npy(np.frombuffer(data, np.uint8).reshape(shape))
    reason = kinds.check(kind, data)
    if reason is not None:
        raise SampleError(reason)
    return data


def _shape(features: Mapping[str, list[Any]]) -> tuple[int, int, int] | None:
    """Height, width and depth, where features say them."""
    for names in _SIDES:
        sides = [features[name][0] for name in names if len(features.get(name, [])) == 1]
        if len(sides) == 3 and all(isinstance(side, int) and side > 0 for side in sides):
            return sides[0], sides[1], sides[2]
    return None


def _is_image(values: list[Any], features: Mapping[str, list[Any]]) -> bool:
    try:
        image_of({**features, "": values}, "")
    except SampleError:
        return False
    return True


def _kind(values: list[Any]) -> str:
    kind = {bytes: "bytes", float: "float", int: "int"}.get(type(values[0]), "") if values else ""
    return f"{len(values)} x {kind}" if len(values) != 1 else kind


class TFRecordOrigin:
    """Records of the files below a folder, read one by one; ``root`` is that folder, and what images are called."""

    images = True

    def __init__(self, root: str) -> None:
        self._folder, self._images = json.loads(root)

    def __enter__(self) -> TFRecordOrigin:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def read(self, path: str, size: int, mtime_ns: int, at: str) -> bytes:
        """The image in the record that ``at`` names."""
        _, offset, length, check, name = at.split(" ", 4)
        where = place(name, int(offset))
        with open_unchanged(os.path.join(self._folder, name), mtime_ns) as file:
            try:
                payload = read_record(file, int(offset), int(length))
                image = image_of(parse(payload), self._images)
            except SampleError as error:
                raise error.at(where) from error
        if len(image) != size or crc(payload) != int(check, 16):
            raise SourceChangedError(f"{where} changed since the plan was made; run again for a new plan")
        return image
