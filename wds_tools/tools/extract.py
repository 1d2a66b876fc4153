"""A dataset back to an image tree, without trusting a name in it.

A file's place is the ``path`` in the sample's metadata if there is one, else the key; both come from the shard, so both are
held to the same rules: relative, no ``..``, nothing that a file system would read as anything but a name. The target
folder must be new or empty, so there is no link in it to be led astray by, and files are created, never overwritten.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, BinaryIO

from wds_tools.convert.engines import Watch
from wds_tools.errors import FormatError, NotFoundError, OptionError, StoreError, TargetError
from wds_tools.format import tar
from wds_tools.format.dataset import open_dataset, read_index
from wds_tools.records import Sample, SplitInfo
from wds_tools.store.base import Store
from wds_tools.store.local import store_error, write_all
from wds_tools.store.resolve import locate

MAX_METADATA = 1 << 20  # bytes of a json field that is looked at for a path


@dataclass(frozen=True)
class ExtractReport:
    """How much was extracted, and where to."""

    target: str
    split: str
    samples: int
    files: int
    size: int


def extract_dataset(
    dataset: str | PathLike[str] | Sequence[str | PathLike[str]],
    target: str | PathLike[str],
    *,
    split: str | None = None,
    watch: Watch = lambda samples, size: None,
) -> ExtractReport:
    """Write every sample's files below ``target``, which must be empty or not there.

    A tree that was converted comes back with the same files, byte for byte. Keys without a folder go into one folder a
    class. ``cls`` is not written (it is the folder), nor the ``json`` that ``--metadata`` added. Raises `FormatError` for a
    name that would lead out of ``target`` and `TargetError` for a ``target`` that is not empty.
    """
    place = locate(dataset)
    found = open_dataset(place.store, place.names)
    if split is None:
        if len(found.splits) > 1:
            raise OptionError(
                f"{place.store.url()!r} has the splits {', '.join(found.splits)}; choose one with --split"
            )
        split = next(iter(found.splits), "")
    if split not in found.splits:
        raise OptionError(f"{place.store.url()!r} has no split {split!r}, only {', '.join(found.splits) or 'none'}")
    root = _new_folder(os.fspath(target))
    content = found.manifest
    info = content.splits[split] if content is not None else SplitInfo(split, ())
    writer = _Writer(root, content.classes if content is not None else (), info)
    for shard in found.splits[split]:
        with place.store.stream(shard) as file:
            for sample in _samples(place.store, shard, file):
                writer.write(shard, sample, file)
                watch(writer.samples, writer.size)
    return ExtractReport(root, split, writer.samples, writer.files, writer.size)


def _samples(store: Store, shard: str, file: BinaryIO) -> list[Sample]:
    try:
        return read_index(store, shard)
    except NotFoundError:
        samples = list(tar.samples(tar.members(file)))
        file.seek(0)
        return samples


def _new_folder(target: str) -> str:
    try:
        os.makedirs(target, exist_ok=True)
        if os.listdir(target):
            raise TargetError(f"{target!r} is not empty; give a new folder")
    except OSError as error:
        raise TargetError(f"cannot write to {target!r}: {error.strerror}; choose another folder") from error
    return os.path.realpath(target)


class _Writer:
    """Writes samples as files, and counts them."""

    def __init__(self, root: str, classes: Sequence[str], split: SplitInfo) -> None:
        self.samples = self.files = self.size = 0
        self._root = root
        self._classes = classes
        self._suffixes = split.suffixes
        self._metadata = bool(split.settings.get("metadata"))
        self._folders: set[str] = set()

    def write(self, shard: str, sample: Sample, file: BinaryIO) -> None:
        payloads = {}
        for field in sample.fields:
            file.seek(field.offset)
            payloads[field.ext] = file.read(field.size)
            if len(payloads[field.ext]) < field.size:
                raise FormatError(f"{shard}: cut short in key {sample.key!r}; check it with 'wds-tools verify'")
        path = self._path(payloads) or self._stem(sample.key, payloads)
        for number, (ext, data) in enumerate(payloads.items()):
            if ext == "cls" or (ext == "json" and self._metadata):
                continue
            stem, suffix = os.path.splitext(path)
            if number:  # a sibling of the image
                suffix = f".{ext}"
            elif not suffix:
                suffix = self._suffixes.get(ext, f".{ext}")
            self._write_file(shard, stem + suffix, data)
        self.samples += 1

    def _path(self, payloads: dict[str, bytes]) -> str | None:
        """The path of the source file, where the metadata that we wrote has it."""
        data = payloads.get("json", b"")
        if not self._metadata or not data or len(data) > MAX_METADATA:
            return None
        try:
            content: Any = json.loads(data)
        except (ValueError, RecursionError):
            return None
        path = content.get("path") if isinstance(content, dict) else None
        if not isinstance(path, str):
            return None
        # A re-encoded image keeps its name but not its suffix; absolute paths of a table become relative.
        image = next(iter(payloads))
        stem, suffix = os.path.splitext(path.lstrip("/"))
        while stem.startswith("../"):
            stem = stem[3:]
        same = suffix[1:].lower() == image or (suffix.lower(), image) in ((".jpeg", "jpg"), (".tif", "tiff"))
        return stem + (suffix if same else f".{image}")

    def _stem(self, key: str, payloads: dict[str, bytes]) -> str:
        if "/" in key or "cls" not in payloads or not payloads["cls"].isdigit() or len(payloads["cls"]) > 9:
            return key
        label = int(payloads["cls"])
        folder = self._classes[label] if label < len(self._classes) else str(label)
        return f"{folder}/{key}"

    def _write_file(self, shard: str, name: str, data: bytes) -> None:
        parts = name.split("/")
        if parts[0] == ".":
            parts = parts[1:]  # 'tar cf x.tar .' begins every name with it
        # Backslash and colon are separators on Windows; a NUL ends a name in C.
        if (
            any(part in ("", ".", "..") for part in parts)
            or "\0" in name
            or (os.name == "nt" and set(name) & set("\\:"))
        ):
            raise FormatError(
                f"{shard}: the name {name!r} would lead out of the target folder; nothing was written for it"
            )
        folder = os.path.join(self._root, *parts[:-1])
        path = os.path.join(folder, parts[-1])
        try:
            if folder not in self._folders:
                os.makedirs(folder, exist_ok=True)
                self._folders.add(folder)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o644)
            try:
                write_all(fd, data)
            finally:
                os.close(fd)
        except FileExistsError:
            raise StoreError(f"{shard}: two samples would be {name!r}; extract the shards one by one") from None
        except OSError as error:
            raise store_error(error, path, "write") from error
        self.files += 1
        self.size += len(data)
