"""Look at every byte of a dataset and list what is wrong with it.

A shard is read once, front to back: the digest, the tar structure, labels and images come from the same pass, so that a
remote one is fetched once. Shards are checked by processes side by side, which for remote ones means several
downloads at a time; what concerns the dataset as a whole (counts, keys, files) is compared here afterwards.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike

from wds_tools.convert.engines import Tick, Watch, make_engine
from wds_tools.errors import FormatError, NotFoundError, SampleError, StoreError, TarError
from wds_tools.format import index, manifest, sidecars, tar
from wds_tools.format.dataset import Dataset, open_dataset
from wds_tools.format.digest import DigestReader
from wds_tools.image.kinds import KINDS, sniff
from wds_tools.records import Member, Problem, Sample, ShardInfo
from wds_tools.store.base import Store
from wds_tools.store.http import HttpStore
from wds_tools.store.options import StoreOptions
from wds_tools.store.resolve import locate
from wds_tools.tools.stale import stale_sidecars

_MAX_LABEL, _MAX_IMAGE = 20, 1 << 30  # bytes that are looked at
MAX_PROBLEMS = 1000  # listed a shard; a shard full of garbage need not fill the memory

_KEY = re.compile(r"(?!\.|__)(?:[!-~]+/)?[!-\-/-~]+")  # ASCII, no white space, no dot in the basename


@dataclass
class ShardReport:
    """What one shard was found to hold."""

    name: str
    samples: int = 0
    size: int = 0
    sha256: str = ""
    fields: Counter[str] = field(default_factory=Counter)
    keys: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass
class VerifyReport:
    """What a dataset was found to hold, and everything that is wrong with it."""

    place: str
    shards: int = 0
    samples: int = 0
    size: int = 0
    decoded: bool = False
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True)
class _Check:
    """How to check a shard. ``ours`` holds it to the rules for shards that we write."""

    store: Store
    ours: bool
    decode: bool
    lenient: bool
    num_classes: int | None


def verify_dataset(
    dataset: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    decode: bool = False,
    lenient: bool = False,
    workers: int | None = None,
    watch: Watch = lambda samples, size: None,
    store_options: StoreOptions | None = None,
) -> VerifyReport:
    """Check structure, keys, labels, sizes, digests and indexes of a dataset, and with ``decode`` every image.

    ``dataset`` is a folder, a glob, brace notation, or a list of shards, local or on a server or in a bucket, for which
    ``store_options`` are. ``lenient`` accepts shards without an end-of-archive mark. ``watch`` is told samples and bytes
    done so far. What is wrong comes back as
    `VerifyReport.problems`; only a dataset that cannot be found or whose manifest cannot be read raises.
    """
    place = locate(dataset, remote=True, options=store_options)
    found = open_dataset(place.store, place.names)
    content = found.manifest
    listed: dict[str, ShardInfo | None] = {shard: None for shards in found.splits.values() for shard in shards}
    if content is not None:
        listed |= {shard.name: shard for split in content.splits.values() for shard in split.shards}
    ours = content is not None and any(split.settings for split in content.splits.values())
    check = _Check(place.store, ours, decode, lenient, len(content.classes) if content and content.classes else None)
    function = partial(check_shard, check)
    with make_engine("process", workers, function) as engine:
        reports = {report.name: report for report in engine.run(function, listed, watch)}

    result = VerifyReport(place.store.url(), decoded=decode)
    for split, shards in found.splits.items():
        in_order = [reports[shard] for shard in shards]
        for report in in_order:
            result.problems += report.problems
            result.problems += _against_manifest(report, listed[report.name])
        result.problems += _keys_across(in_order)
        result.problems += _counts(found, split, in_order)
        result.shards += len(in_order)
        result.samples += sum(report.samples for report in in_order)
        result.size += sum(report.size for report in in_order)
    result.problems += _beside(found)
    return result


def check_shard(check: _Check, name: str, tick: Tick) -> ShardReport:
    """Read one shard whole and report what it holds and what is wrong with it. Never raises for its content."""
    report = ShardReport(name)
    samples: list[Sample] = []
    contents = _Contents(check, tick)
    try:
        with check.store.stream(name) as file:
            reader = DigestReader(file)
            try:
                found = tar.payloads(reader, lenient=check.lenient, wanted=contents.wanted)
                for sample in tar.samples(map(contents.look, found)):
                    samples.append(sample)
                    if len(samples) % 512 == 0:
                        tick(512, reader.size - report.size)
                        report.size = reader.size
            except TarError as error:
                report.problems.append(Problem(name, str(error)))
            report.sha256 = reader.finish()
            tick(len(samples) % 512, reader.size - report.size)
            report.size = reader.size
        report.samples = len(samples)
        report.keys = [sample.key for sample in samples]
        report.fields = Counter(part.ext for sample in samples for part in sample.fields)
        report.problems += _index_problems(check, name, None if report.problems else samples)
        for problem in _sample_problems(check, name, samples, contents.problems):
            report.problems.append(problem)
            if len(report.problems) >= MAX_PROBLEMS:
                report.problems.append(Problem(name, f"more than {MAX_PROBLEMS} problems; the others are not listed"))
                break
    except StoreError as error:
        report.problems.append(Problem(name, str(error)))
    return report


def _index_problems(check: _Check, name: str, samples: list[Sample] | None) -> list[Problem]:
    """What is wrong with the index. ``samples`` is None for a damaged shard, which no index can be held against."""
    idx = index.index_name(name)
    try:
        indexed = index.load(check.store.read(idx), idx)
    except NotFoundError:
        return [Problem(idx, "missing; make it with 'wds-tools index'")] if check.ours else []
    except FormatError as error:
        return [Problem(idx, str(error).removeprefix(f"{idx}: "))]
    if samples is None or [sample.fields for sample in indexed] == [sample.fields for sample in samples]:
        return []
    for number, (said, there) in enumerate(zip(indexed, samples, strict=False)):
        if said != there:
            return [Problem(idx, f"sample {number} is not what the shard holds; run 'wds-tools index'", key=there.key)]
    return [Problem(idx, f"it lists {len(indexed)} samples and the shard holds {len(samples)}; run 'wds-tools index'")]


def _sample_problems(check: _Check, name: str, samples: list[Sample], contents: dict[int, str]) -> Iterator[Problem]:
    for sample in samples:
        if check.ours and (not _KEY.fullmatch(sample.key) or any(len(f.name) > tar.MAX_NAME for f in sample.fields)):
            yield Problem(name, "the key breaks the format's rules (docs/format.md)", key=sample.key)
        for part in sample.fields:
            if part.offset in contents:
                reason = contents[part.offset]
                yield Problem(name, f"field {part.ext!r}: {reason}", key=sample.key, offset=part.offset)


_IMAGE_FIELDS = {*KINDS, "jpeg", "tif", "pgm", "pbm", "pnm"}


class _Contents:
    """Looks at labels and images while a shard passes by. ``problems`` says by offset what is wrong with a field."""

    def __init__(self, check: _Check, tick: Tick) -> None:
        self.problems: dict[int, str] = {}
        self._check = check
        self._tick = tick

    def wanted(self, member: Member) -> bool:
        """Whether the payload of ``member`` is to be looked at; what is too large for that is a problem by itself."""
        ext = _ext(member)
        if ext == "cls":
            if member.size > _MAX_LABEL:
                self._note(member, "no class index")
            return member.size <= _MAX_LABEL
        if not self._check.decode or ext.rpartition(".")[2] not in _IMAGE_FIELDS:
            return False
        if member.size > _MAX_IMAGE:
            self._note(member, f"{member.size} bytes; an image of more than {_MAX_IMAGE} is not decoded")
        return member.size <= _MAX_IMAGE

    def look(self, found: tuple[Member, bytes]) -> Member:
        member, data = found
        ext = _ext(member)
        if ext == "cls" and member.size <= _MAX_LABEL:
            self._note(member, _label_problem(data, self._check.num_classes))
        elif data or (ext != "cls" and self.wanted(member)):
            self._note(member, _decode_problem(data, ext))
            self._tick(0, 0)
        return member

    def _note(self, member: Member, reason: str | None) -> None:
        if reason is not None and len(self.problems) <= MAX_PROBLEMS:
            self.problems[member.offset] = reason


def _ext(member: Member) -> str:
    parts = tar.split_name(member.name)
    return parts[1] if parts else ""


def _label_problem(data: bytes, num_classes: int | None) -> str | None:
    if not data.isdigit():
        return f"{data[:20]!r} is not a class index in ASCII digits"
    if num_classes is not None and int(data) >= num_classes:
        return f"class index {int(data)} where the dataset has {num_classes} classes"
    return None


def _decode_problem(data: bytes, ext: str) -> str | None:
    from wds_tools.image import codec  # loads numpy and Pillow

    try:
        if sniff(data[:16]) == "npy":
            codec.decode_npy(data)
        else:
            codec.decode(data)
    except SampleError as error:
        return error.reason
    return None


def _against_manifest(report: ShardReport, listed: ShardInfo | None) -> list[Problem]:
    if listed is None or not report.sha256:
        return []
    if listed.size is not None and listed.size != report.size:
        return [
            Problem(
                report.name, f"{report.size} bytes where {manifest.NAME} says {listed.size}; fetch or convert it again"
            )
        ]
    if listed.sha256 is not None and listed.sha256 != report.sha256:
        return [Problem(report.name, f"its sha256 is not the one in {manifest.NAME}; fetch or convert it again")]
    if listed.samples != report.samples:
        return [Problem(report.name, f"{report.samples} samples where {manifest.NAME} says {listed.samples}")]
    return []


def _keys_across(reports: list[ShardReport]) -> list[Problem]:
    seen: dict[str, str] = {}
    problems = []
    for report in reports:
        for key in report.keys:
            other = seen.setdefault(key, report.name)
            if other is not report.name:
                problems.append(Problem(report.name, f"the key is in {other} too", key=key))
        if len(problems) >= MAX_PROBLEMS:
            break
    return problems


def _counts(found: Dataset, split: str, reports: list[ShardReport]) -> list[Problem]:
    if found.manifest is None:
        return []
    listed = Counter(found.splits[split])
    problems = [
        Problem(manifest.NAME, f"split {split!r} lists {shard} {count} times; remove it and run 'wds-tools index'")
        for shard, count in listed.items()
        if count > 1
    ]
    stated = found.manifest.splits[split].fields
    counted: Counter[str] = Counter()
    for report in reports:
        counted.update(report.fields)
    if stated and stated != dict(counted) and not any(report.problems for report in reports) and not problems:
        problems.append(
            Problem(manifest.NAME, f"split {split!r} has the fields {dict(counted)} where it says {stated}")
        )
    return problems


def _beside(found: Dataset) -> list[Problem]:
    """Files that should be there and are not, and shards that no split lists."""
    if found.manifest is None:
        return []
    problems = []
    listed = {shard for shards in found.splits.values() for shard in shards}
    # A server over HTTP has no listing; what lies there unlisted, nobody finds.
    there = [] if isinstance(found.store, HttpStore) else found.store.list()
    for name in there:
        if name.endswith(".tar") and not name.startswith(".") and name not in listed:
            problems.append(
                Problem(name, f"no split in {manifest.NAME} lists this shard; remove it or run 'wds-tools index'")
            )
    try:
        if found.store.read(sidecars.SIZES) != sidecars.dump_sizes(dict(found.manifest.splits)):
            problems.append(Problem(sidecars.SIZES, f"not what {manifest.NAME} says; run 'wds-tools index'"))
    except NotFoundError:
        if any(split.settings for split in found.manifest.splits.values()):
            problems.append(Problem(sidecars.SIZES, "missing; run 'wds-tools index'"))
    return [*problems, *stale_sidecars(found.store, found.manifest, there)]
