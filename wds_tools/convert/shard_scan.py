"""One shard of a source, scanned: the lines of its samples, by its index or, without one, by its headers."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from wds_tools.convert import entries, keys
from wds_tools.convert.classes import Relabelling
from wds_tools.convert.entries import Entry, Sibling
from wds_tools.convert.origin import fingerprint
from wds_tools.convert.selection import Selection, key_hash
from wds_tools.convert.shard_origin import BLOCK, local_version
from wds_tools.errors import NotFoundError, SampleError, StaleIndexError, TarError
from wds_tools.format import index, tar
from wds_tools.records import Field, Sample, ShardInfo, Skipped
from wds_tools.store.base import Store, Version
from wds_tools.store.local import LocalStore, store_error

_EXT = re.compile(r"[!-.0-\[\]-~]+")  # what an index line takes as it is
_LABEL = re.compile(rb"\s*([0-9]{1,18})\s*")
_NOT_CHOSEN = -1
_GAP = 1 << 20  # bytes that are fetched and not wanted, at most, between two samples
_WIDEST_LABEL = 64  # bytes; no number of a class is longer
_OTHERS = tar.member_bytes(0) + 2 * tar.BLOCK  # what the plan adds to a sample: a header and a cls


_Taken = tuple[str, Sample, int | None]  # key, sample, new label


@dataclass(frozen=True)
class ShardJob:
    """One shard to be scanned."""

    store: Store
    number: int
    info: ShardInfo
    prefix: str
    labels: Relabelling | None
    selection: Selection
    strict: bool
    blocks: bool

    @property
    def url(self) -> str:
        return self.store.url(self.info.name)


@dataclass
class ShardFound:
    """What one shard has: ``lines``, the arrays of 64-bit numbers beside them, and the digest of all but times."""

    version: Version
    lines: list[str] = field(default_factory=list)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    hashes: array[int] = field(default_factory=lambda: array("q"))
    blocks: array[int] = field(default_factory=lambda: array("q"))
    digest: bytes = b""
    skipped: list[Skipped] = field(default_factory=list)
    passed: int = 0  # samples whose keys lie in another share


def scan_shard(job: ShardJob) -> ShardFound:
    with _Shard(job) as shard:
        found = ShardFound(shard.version)
        taken: list[_Taken] = []
        listing = hashlib.sha256(shard.content().encode())
        for sample in shard.samples():
            key = _key(_relative(sample.key), sample)
            if not job.selection.everyone and not job.selection.has(key_hash(key)):
                found.passed += 1
                continue
            try:
                label = shard.label(sample)
                if label == _NOT_CHOSEN:
                    continue
                if job.prefix:
                    key = _key(job.prefix + key, sample)
                _check_fields(key, sample)
            except SampleError as error:
                if job.strict:
                    raise error.at(f"{job.url}, key {sample.key!r}") from error
                found.skipped.append(Skipped(sample.key, f"{error.reason} ({job.info.name})"))
                continue
            taken.append((key, sample, label))
            found.hashes.append(signed(key_hash(key)))
            listing.update(repr((key, label, [(each.ext, each.size) for each in sample.fields])).encode())
    found.digest = listing.digest()
    for run in _blocks([sample for _, sample, _ in taken]) if job.blocks else [range(len(taken))]:
        some = taken[run.start : run.stop]
        block = f":{_start(some[0][1])}:{_stop(some[-1][1])}" if job.blocks and not shard.local else ""
        for key, sample, label in some:
            found.lines.append(_line(job.number, shard.stamp, key, sample, label, block))
            total = sum(tar.member_bytes(each.size) for each in sample.fields)
            found.sizes.append(max(total - _OTHERS, 0))
        if job.blocks:
            found.blocks.append(len(run))
    return found


def _relative(key: str) -> str:
    """A key without what leads to the root, or out of it, as ``tar cf x.tar .`` begins every name."""
    key = key.lstrip("/")
    while key.startswith(("./", "../")):
        key = key.partition("/")[2].lstrip("/")
    return key


def _key(key: str, sample: Sample) -> str:
    """The same key where it can stand, else a clean one."""
    fits = len(key) + 1 + max(len(each.ext) for each in sample.fields) <= tar.MAX_NAME
    return key if fits and keys.is_key(key) else keys.clean(key)


def _blocks(samples: Sequence[Sample]) -> Iterator[range]:
    """Runs of samples that one request fetches: of about `BLOCK` bytes, and with no large gap."""
    first = 0
    for number, sample in enumerate(samples):
        if number > first and (
            _stop(sample) - _start(samples[first]) > BLOCK or _start(sample) - _stop(samples[number - 1]) > _GAP
        ):
            yield range(first, number)
            first = number
    if samples:
        yield range(first, len(samples))


def _start(sample: Sample) -> int:
    return sample.fields[0].offset


def _stop(sample: Sample) -> int:
    return sample.fields[-1].offset + sample.fields[-1].size


class _Shard:
    """A shard that is scanned: its samples, and their labels where these are asked for."""

    def __init__(self, job: ShardJob) -> None:
        self._job = job
        self.local = isinstance(job.store, LocalStore)
        if self.local:
            try:
                self.version = local_version(job.url)
            except OSError as error:
                raise store_error(error, job.url, "read") from error
        else:
            self.version = job.store.version(job.info.name)
        if job.info.size is not None and job.info.size != self.version.size:
            raise StaleIndexError(
                f"{job.url}: it has {self.version.size} bytes where the manifest says {job.info.size}; fetch the shard again, "
                "or run 'wds-tools index' on the dataset if this one is right"
            )
        # What a line says of the shard's version, so that no receipt outlives it.
        self.stamp = int(self.version.tag) if self.local else key_hash(ascii(self.version)) >> 1
        self._file = open(job.url, "rb", buffering=0) if self.local else None  # noqa: SIM115 (closed in __exit__)

    def __enter__(self) -> _Shard:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def content(self) -> str:
        """What tells other bytes of the same sizes: the manifest's digest, or some pieces of a local shard without one."""
        return self._job.info.sha256 or (fingerprint(self._job.url) if self.local else "")

    def samples(self) -> list[Sample]:
        """By the index, else by the headers. The index of version 1.1 has no names: it is as if there were none."""
        store, name = self._job.store, self._job.info.name
        try:
            idx = index.index_name(name)
            data = store.read(idx)
        except NotFoundError:
            return self._by_headers()
        if data.startswith(b"v1.1"):
            return self._by_headers()
        found = index.load(data, store.url(idx))
        if self.local:
            with store.stream(name) as file:
                index.check_fits(found, file, self.version.size, self._job.url)
        else:
            self._check_ends(found)
        return found

    def _by_headers(self) -> list[Sample]:
        version = None if self.local else self.version
        with self._job.store.stream(self._job.info.name, version=version) as file:
            try:
                return list(tar.samples(tar.members(file)))
            except TarError as error:
                raise TarError(f"{self._job.url}: {error}") from error

    def _check_ends(self, found: Sequence[Sample]) -> None:
        """The first and the last header, two requests."""
        try:
            fields = [found[0].fields[0], found[-1].fields[-1]] if found else []
            fits = all(each.offset + each.size <= self.version.size for each in fields) and all(
                index.is_header_of(each, self._read(each.offset - tar.BLOCK, tar.BLOCK)) for each in fields
            )
        except TarError:
            fits = False
        if not fits:
            raise StaleIndexError(
                f"{self._job.url}: the index beside it speaks of another shard; make it anew with 'wds-tools index'"
            )

    def label(self, sample: Sample) -> int | None:
        """The new label, None where it stays as it is, `_NOT_CHOSEN` for a class that is left out."""
        labels = self._job.labels
        if labels is None:
            return None
        place = next((each for each in sample.fields if each.ext == "cls"), None)
        if place is None:
            if self._job.selection.classes:
                raise SampleError("it has no cls, and classes are chosen")
            return None
        data = self._read(place.offset, place.size) if place.size <= _WIDEST_LABEL else b""
        match = _LABEL.fullmatch(data)
        if match is None:
            raise SampleError(f"its cls is {data[:40]!r}, not a class index" if data else "its cls is no class index")
        try:
            new = labels.of(int(match[1]))
        except KeyError:
            raise SampleError(f"its label {int(match[1])} is beyond the {labels.count} classes") from None
        return _NOT_CHOSEN if new is None else new

    def _read(self, offset: int, size: int) -> bytes:
        if self._file is None:
            return self._job.store.read(self._job.info.name, offset, size, self.version)
        self._file.seek(offset)
        return self._file.read(size)


def _check_fields(key: str, sample: Sample) -> None:
    """Whether every field's name can stand in a shard and an index of ours."""
    for each in sample.fields:
        if not _EXT.fullmatch(each.ext):
            raise SampleError(f"its field {each.ext!r} has a name that is not plain ASCII without white space")
        if len(key) + 1 + len(each.ext) > tar.MAX_NAME:
            raise SampleError(f"its field {each.ext!r} makes a name of more than {tar.MAX_NAME} bytes with the key")


def _line(shard: int, stamp: int, key: str, sample: Sample, label: int | None, block: str) -> str:
    first, *others = (_piece(shard, each, label, block) for each in sample.fields)
    path = f"{key}.{sample.fields[0].ext}"
    return entries.dump_line(Entry(path, first.size, stamp, siblings=tuple(others), at=first.at))


def _piece(shard: int, each: Field, label: int | None, block: str) -> Sibling:
    """A field by its place, or a label that changes by itself."""
    if label is not None and each.ext == "cls":
        return Sibling("cls", "", len(str(label)), 0, f"{shard}={label}")
    return Sibling(each.ext, "", each.size, 0, f"{shard}:{each.offset}{block}")


def signed(hashed: int) -> int:
    return hashed - (1 << 64) if hashed >> 63 else hashed
