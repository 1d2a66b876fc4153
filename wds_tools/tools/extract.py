"""A dataset back to an image tree, without trusting a name in it.

A file's place is the ``path`` in the sample's metadata if there is one, else the key; both come from the shard, so both are
held to the same rules: relative, no ``..``, nothing that a file system would read as anything but a name. Files are
created, never overwritten, in a new folder, so there is no link in it to be led astray by.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, BinaryIO

from wds_tools.convert import keys
from wds_tools.convert.engines import Watch
from wds_tools.errors import FormatError, NotFoundError, StoreError, TarError
from wds_tools.format import tar
from wds_tools.format.dataset import choose_split, open_dataset, read_index
from wds_tools.image.kinds import EXTENSIONS
from wds_tools.records import Member, Sample, SplitInfo
from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore, store_error, write_all
from wds_tools.store.options import StoreOptions
from wds_tools.store.resolve import locate
from wds_tools.tools.folder import new_folder

MAX_FIELD = 1 << 30  # bytes of a field that is fetched
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
    store_options: StoreOptions | None = None,
) -> ExtractReport:
    """Write every sample's files below ``target``, which must be empty or not there.

    ``dataset`` may be on a server or in a bucket, for which ``store_options`` are; each shard is then read once, front to back.

    A tree that was converted comes back with the same files, byte for byte. Keys without a folder go into one folder a
    class. ``cls`` is not written (it is the folder), nor the ``json`` that ``--metadata`` added. Raises `FormatError` for a
    name that would lead out of ``target`` and `TargetError` for a ``target`` that is not empty; nothing is left there when
    anything goes wrong.
    """
    place = locate(dataset, remote=True, options=store_options)
    found = open_dataset(place.store, place.names)
    split = choose_split(found, split)
    target = os.path.expanduser(os.fspath(target))
    content = found.manifest
    info = content.splits[split] if content is not None else SplitInfo(split, ())
    with new_folder(target) as folder:
        writer = _Writer(folder, target, content.classes if content is not None else (), info)
        for shard in found.splits[split]:
            for sample, payloads in _samples(place.store, shard):
                writer.write(shard, sample, payloads)
                watch(writer.samples, writer.size)
    return ExtractReport(os.path.realpath(target), split, writer.samples, writer.files, writer.size)


def _samples(store: Store, shard: str) -> Iterator[tuple[Sample, dict[str, bytes]]]:
    """The samples of a shard with their fields: through the index of a local one, front to back through a remote one."""
    with store.stream(shard) as file:
        if not isinstance(store, LocalStore):
            try:
                yield from _passing(file)
            except TarError as error:
                raise TarError(f"{store.url(shard)}: {error}") from error
            return
        for sample in _indexed(store, shard, file):
            payloads = {}
            for field in sample.fields:
                file.seek(field.offset)
                payloads[field.ext] = file.read(field.size)
                if len(payloads[field.ext]) < field.size:
                    raise FormatError(f"{shard}: cut short in key {sample.key!r}; check it with 'wds-tools verify'")
            yield sample, payloads


def _indexed(store: Store, shard: str, file: BinaryIO) -> list[Sample]:
    try:
        return read_index(store, shard)
    except NotFoundError:
        try:
            samples = list(tar.samples(tar.members(file)))
        except TarError as error:
            raise TarError(f"{store.url(shard)}: {error}") from error
        return samples


def _passing(file: BinaryIO) -> Iterator[tuple[Sample, dict[str, bytes]]]:
    waiting: dict[int, bytes] = {}

    def members() -> Iterator[Member]:
        for member, data in tar.payloads(file, max_size=MAX_FIELD):
            if tar.split_name(member.name):
                waiting[member.offset] = data
            yield member

    for sample in tar.samples(members()):
        yield sample, {field.ext: waiting.pop(field.offset) for field in sample.fields}


class _Writer:
    """Writes samples as files, and counts them."""

    def __init__(self, root: str, shown: str, classes: Sequence[str], split: SplitInfo) -> None:
        self.samples = self.files = self.size = 0
        self._root = root
        self._shown = shown  # what messages call the root
        self._classes = classes
        self._suffixes = split.suffixes
        earlier = split.settings.get("earlier")  # what made the shards that these were made of
        before = earlier if isinstance(earlier, dict) else {}
        self._metadata = bool(split.settings.get("metadata") or before.get("metadata"))
        # Images that were copied as they were keep their whole name.
        self._untouched = all(
            made.get("encode", "keep") == "keep" and made.get("image_size") is None for made in (split.settings, before)
        ) and ("encode" in split.settings)
        # Converted from a folder without classes: a ``cls`` is a file that lay there, not a class folder.
        self._flat = bool(split.settings.get("siblings") or before.get("siblings")) and not classes
        self._folders: set[str] = set()

    def write(self, shard: str, sample: Sample, payloads: dict[str, bytes]) -> None:
        image = next(iter(payloads))
        stem, suffix = self._path(payloads, image) or (
            self._stem(sample.key, payloads),
            self._suffixes.get(image, f".{image}"),
        )
        for ext, data in payloads.items():
            if (ext == "cls" and not self._flat) or (ext == "json" and self._metadata):
                continue
            self._write_file(shard, stem + (suffix if ext == image else f".{ext}"), data)
        self.samples += 1

    def _path(self, payloads: dict[str, bytes], image: str) -> tuple[str, str] | None:
        """Path and suffix of the source file, where the metadata that we wrote has it."""
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
        # Absolute paths of a table, and such that lead above it, become relative, as in keys.
        path = path.lstrip("/")
        while path.startswith("../"):
            path = path[3:]
        stem, suffix = keys.split_suffix(path)
        return stem, suffix if self._untouched or EXTENSIONS.get(suffix[1:].lower()) == image else f".{image}"

    def _stem(self, key: str, payloads: dict[str, bytes]) -> str:
        if (
            self._flat
            or "/" in key
            or "cls" not in payloads
            or not payloads["cls"].isdigit()
            or len(payloads["cls"]) > 9
        ):
            return key
        label = int(payloads["cls"])
        folder = self._classes[label] if label < len(self._classes) else str(label)
        return f"{folder}/{key}"

    def _write_file(self, shard: str, name: str, data: bytes) -> None:
        parts = name.split("/")
        if parts[0] == "." and len(parts) > 1:
            parts = parts[1:]  # 'tar cf x.tar .' begins every name with it
        if any(part in ("", ".", "..") for part in parts) or not _is_name(name):
            raise FormatError(f"{shard}: the name {name!r} would lead out of the target folder; nothing was extracted")
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
        except (FileExistsError, NotADirectoryError):
            raise StoreError(f"{shard}: two samples would be {name!r}; extract the shards one by one") from None
        except OSError as error:
            raise store_error(error, os.path.join(self._shown, *parts), "write") from error
        self.files += 1
        self.size += len(data)


def _is_name(name: str) -> bool:
    """Whether the system takes ``name`` for what it says: a NUL ends a name in C; Windows has more separators."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write
        return False
    return "\0" not in name and not (os.name == "nt" and set(name) & set("\\:"))
