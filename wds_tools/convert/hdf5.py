"""Images and labels in HDF5: which datasets they are, their labels, and a line a sample.

Images are one dataset: an array whose rows are the samples (`rows.py`), or one whose elements are the bytes of encoded
images. Several files with the same datasets, in a folder that holds nothing else, are one source; sorted by name.

A chunk with several rows is decompressed as a whole or not at all, so chunks are the blocks of the plan. Encoded images of
variable length lie outside of the chunks: they are shuffled freely, and read once to know how long they are.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from dataclasses import dataclass
from typing import Any

from wds_tools.convert import entries, keys, rows
from wds_tools.convert.entries import Entry, Request, Source
from wds_tools.convert.hdf5_file import Images, datasets, open_file, read_part, refuse, shape_text
from wds_tools.convert.labels import NO_LABELS, Labels
from wds_tools.convert.origin import fingerprint
from wds_tools.errors import SourceError
from wds_tools.image.kinds import sniff

SUFFIXES = (".h5", ".hdf5", ".hdf")
_PART = 1 << 16  # labels that are looked at together
_ENCODED = 16  # encoded images that are read together: they may be large
_LABELS = ("labels", "label", "targets", "target", "y")
_IMAGES = ("images", "image", "data", "x")
_CLASSES = ("classes", "class_names")


@dataclass(frozen=True)
class Names:
    """What images and labels are called, in every file of a source."""

    images: str
    labels: str | None


def files(path: str) -> tuple[str, list[str]]:
    """The folder of a source, and the names of its files in it."""
    path = os.path.abspath(path)
    if not os.path.isdir(path):
        return os.path.split(path)[0], [os.path.basename(path)]
    return path, sorted(name for name in os.listdir(path) if not name.startswith("."))


def scan(request: Request) -> Source:
    """Every sample of one file, or of all in a folder; `SourceError` says what is wrong and where."""
    folder, names = files(request.path)
    chosen: Names | None = None
    labels = Labels(request.classes)
    notes: list[str] = []
    for name in names:
        with open_file(os.path.join(folder, name)) as file:
            found = datasets(file, name)
            if chosen is None:
                chosen = _choose(found, name, request)
                notes.append(
                    f"images from {chosen.images!r}, "
                    + (f"labels from {chosen.labels!r}" if chosen.labels else "no labels")
                )
            _take_labels(file, found, name, chosen, labels)
    assert chosen is not None
    classes = labels.finish() if chosen.labels is not None else ()
    source = Source(json.dumps([folder, chosen.images]), request.lines, classes, "", kind="hdf5")
    digest = hashlib.sha256(labels.numbers.tobytes())
    blocks = array("q")
    prefixes: dict[str, str] = {}
    for name in names:
        prefix = rows.key_prefix(os.path.splitext(name)[0])
        other = prefixes.setdefault(keys.clean(f"{prefix}/x"), name)
        if other != name:
            raise SourceError(f"the samples of {other!r} and {name!r} would have the same keys; rename one")
        path = os.path.join(folder, name)
        mtime_ns = os.stat(path).st_mtime_ns
        digest.update(f"{name} {fingerprint(path)} {chosen.images} ".encode("utf-8", "surrogateescape"))
        with open_file(path) as file:
            images = Images(datasets(file, name)[chosen.images], name)
            _write_lines(images, prefix, mtime_ns, labels, source, digest)
            blocks.extend(images.blocks())
            if (note := images.note) not in notes:
                notes.append(note)
    source.digest = digest.hexdigest()
    source.blocks = blocks if any(length > 1 for length in blocks) else ()
    source.notes = tuple(notes)
    return source


def _write_lines(images: Images, prefix: str, mtime_ns: int, labels: Labels, source: Source, digest: Any) -> None:
    lines = source.lines
    before = len(lines)

    def add(number: int, ext: str, size: int) -> None:
        label = labels.numbers[before + number] if labels.numbers else None
        path = f"{rows.numbered(prefix, number)}.{ext}"
        lines.append(entries.dump_line(Entry(path, size, mtime_ns, label, at=f"{number} {images.where}")), size)

    if images.rows is not None:
        size = len(images.rows.header()) + images.rows.row_bytes
        for number in range(images.count):
            add(number, "npy", size)
        return
    for first in range(0, images.count, _ENCODED):
        for number, data in enumerate(images.encoded(first, first + _ENCODED), start=first):
            digest.update(hashlib.sha256(data).digest())
            add(number, sniff(data[:16]) or "bin", len(data))


# -- which datasets


def _choose(found: dict[str, Any], where: str, request: Request) -> Names:
    """Images and labels: as they were named, or the only ones that it can be."""
    there = "; it has " + (", ".join(f"{name} ({shape_text(one)})" for name, one in list(found.items())[:20]) or "none")
    for option, wanted in (("images", request.images), ("labels", request.labels)):
        if wanted not in (None, NO_LABELS) and wanted.strip("/") not in found:
            raise SourceError(f"{where!r} has no dataset {wanted!r} (--{option}){there}")
    images = request.images and request.images.strip("/")
    if images is None:
        can = [name for name, one in found.items() if _could_be_images(one)]
        images = _only(can, _IMAGES)
        if images is None:
            what = (
                f"several datasets could be the images ({', '.join(can[:20])})"
                if can
                else "no dataset could be the images"
            )
            raise SourceError(f"{where!r}: {what}; name one with --images{'' if can else there}")
    labels = _labels_of(images, found, where) if request.labels is None else request.labels.strip("/")
    return Names(images, None if labels == NO_LABELS else labels)


def _labels_of(images: str, found: dict[str, Any], where: str) -> str | None:
    """What lies beside the images and is called labels, or is the only thing there with a number or name for each of them."""
    beside = [name for name in found if name != images and _folder(name) == _folder(images)]
    called = [name for name in beside if name.rpartition("/")[2].lower() in _LABELS]
    if len(called) != 1:
        count = found[images].shape[:1]
        shaped = [
            name for name in beside if found[name].shape in (count, (*count, 1)) and not Images.is_encoded(found[name])
        ]
        called = called or [name for name in shaped if found[name].dtype.kind in "biuSO"]
    if len(called) > 1:
        raise SourceError(
            f"{where!r}: {', '.join(called[:20])} could be the labels of {images!r}; "
            f"name one with --labels (or say --labels {NO_LABELS})"
        )
    return called[0] if called else None


def _only(can: list[str], usual: tuple[str, ...]) -> str | None:
    """The only one, or the only one of a usual name."""
    called = can if len(can) == 1 else [name for name in can if name.rpartition("/")[2].lower() in usual]
    return called[0] if len(called) == 1 else None


def _could_be_images(dataset: Any) -> bool:
    return len(dataset.shape) >= 3 or Images.is_encoded(dataset)


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


# -- labels and classes


def _take_labels(file: Any, found: dict[str, Any], where: str, names: Names, labels: Labels) -> None:
    for name in (names.images, names.labels):
        if name is not None and name not in found:
            raise SourceError(f"{where!r} has no dataset {name!r}, as the files before it have")
    count = Images(found[names.images], where).count
    if names.labels is None:
        return
    dataset = refuse(found[names.labels], where)
    place = f"{names.labels!r} in {where!r}"
    length = dataset.shape[0] if dataset.shape else 1
    if length != count:
        raise SourceError(f"{where!r}: {names.images!r} has {count} samples, and {names.labels!r} {length}")
    parents = {_folder(names.labels), _folder(names.images), ""}
    holders = [dataset, found[names.images], *(file[parent or "/"] for parent in sorted(parents, reverse=True))]
    for attribute in _CLASSES:
        listed = next((given for holder in holders if (given := _listed(holder, attribute)) is not None), None)
        if listed is not None and dataset.dtype.kind in "biu":
            labels.name(listed, f"attribute {attribute!r} in {where!r}")
            break
    for first in range(0, count, _PART):
        labels.add(read_part(dataset, first, first + _PART, place), place, first)


def _listed(holder: Any, attribute: str) -> list[str] | None:
    """The class names in an attribute; None if there is none, or if it is no list of names (it is never unpickled)."""
    if attribute not in holder.attrs:
        return None
    try:
        kind = holder.attrs.get_id(attribute)
        if len(kind.shape or ()) != 1 or kind.dtype.kind not in "SUO":
            return None
        values = [value.decode() if isinstance(value, bytes) else value for value in holder.attrs[attribute].tolist()]
    except (UnicodeDecodeError, TypeError, OSError):
        return None
    return values if values and all(isinstance(value, str) and value for value in values) else None
