"""One plan, one shard: a repeatable task.

Every source file is read with one call; headers and files are joined to chunks of a fixed size, which are hashed and
written whole while they are in the processor's cache; nothing is done byte by byte, or written member by member.
(`copy_file_range` would save one copy, but the bytes are needed here for the digest and to see what they are.)
Then the shard is read back and must have the same digest, and its index and its receipt are written. A task that
ends early leaves nothing under the shard's name.

In a bucket too: the shard goes up in parts while it is made, so that a worker holds about three parts of 8 MiB and no
disk is needed, and comes down once to be hashed. A checksum by the server would save that, but the one that all servers
have (an ETag) is no digest of the whole where parts are encrypted, and nothing that is said of a shard elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from wds_tools.convert import entries, keys
from wds_tools.convert.claim import Claim
from wds_tools.convert.entries import Entry
from wds_tools.convert.options import ConvertOptions
from wds_tools.convert.plan import settings_digest
from wds_tools.convert.sources import open_origin
from wds_tools.convert.spool import Spool
from wds_tools.convert.workspace import Workspace
from wds_tools.errors import SampleError, StoreError
from wds_tools.format import index, tar
from wds_tools.format.digest import DigestReader
from wds_tools.image import tiles
from wds_tools.image.kinds import EXTENSIONS, check, sniff
from wds_tools.records import Receipt, ShardPlan, Skipped
from wds_tools.store.base import Store

CHUNK = 128 << 10  # what is hashed and written at a time: larger ones leave the cache in between (docs/performance.md)

# Called with samples and source bytes done since the last call; raises to end the task early.
Tick = Callable[[int, int], None]
_TICK_EVERY = 256  # samples
_Field = tuple[str, bytes]

# The line of a sample of one file whose name can be its key as it is: label, size, mtime, key, suffix.
_PLAIN = re.compile(rf"(\d*)\t(\d+)\t(\d+)\t({keys.CLEAN})(\.[A-Za-z0-9]+)")
_ZEROS = bytes(tar.BLOCK)


@dataclass(frozen=True)
class Job:
    """What all shards of a conversion have in common."""

    source: str
    kind: str
    target: Store
    options: ConvertOptions
    classes: tuple[str, ...]
    claim: Claim


def build_shard(job: Job, plan: ShardPlan, tick: Tick) -> Receipt:
    """Make the shard of ``plan`` with its index, and answer with the receipt, which is written down as well.

    Raises `SampleError` for a bad source file unless the options say to skip it, `SourceChangedError` for one that is
    not what it was, `StoreError` when the target cannot be written or does not give back what was written.
    """
    workspace = Workspace(job.target, job.options.split)
    packer = _Packer(job, tick)
    lines = workspace.read_entries(plan, settings_digest(job.options.settings()))
    job.claim.check()
    job.target.write_atomic(plan.name, _claimed(packer.chunks(lines), job.claim))
    stamp = workspace.stamp(plan.name)
    if _digest(job.target, plan.name) != packer.sha256.hexdigest():
        job.target.delete(plan.name)
        raise StoreError(
            f"{job.target.url(plan.name)!r} does not read back as it was written; check the disk's or the server's health, "
            "and that no other conversion writes there, and run again"
        )
    job.claim.check()
    job.target.write_atomic(index.index_name(plan.name), [index.dump(packer.lines)])
    receipt = Receipt(
        name=plan.name,
        digest=plan.digest,
        samples=len(packer.lines),
        size=packer.size,
        sha256=packer.sha256.hexdigest(),
        fields=packer.fields,
        suffixes=packer.suffixes,
        source_bytes=packer.source_bytes,
        skipped=tuple(packer.skipped),
        tiled=packer.tiled,
        tiled_from=packer.tiled_from,
        tiled_to=packer.tiled_to,
        stamp=stamp,
    )
    workspace.write_receipt(receipt)
    return receipt


def _claimed(chunks: Iterator[bytes], claim: Claim) -> Iterator[bytes]:
    """The same chunks, the end of which comes only if the claim still holds then: else no shard shows."""
    yield from chunks
    claim.check()


def _digest(store: Store, name: str) -> str:
    with store.stream(name) as file:
        return DigestReader(file).finish()


class _Packer:
    """Turns entries into a shard's bytes, `CHUNK` of them or more at a time, and keeps the books: index, digest, counts."""

    def __init__(self, job: Job, tick: Tick) -> None:
        self.sha256 = hashlib.sha256()
        self.lines: list[str] = []
        self.skipped: list[Skipped] = []
        self.source_bytes = 0
        self.size = 0  # bytes handed out and waiting: where the next header will be
        self.tiled = self.tiled_from = self.tiled_to = 0
        self._parts: list[bytes] = []  # bytes waiting to be handed out
        self._kinds: dict[tuple[str, str], int] = {}  # samples by image field and source suffix
        self._beside: Counter[str] = Counter()  # samples by every other field
        self._job = job
        self._tick = tick
        self._labels: dict[str, tuple[int, bytes]] = {}
        self._origin = open_origin(job.kind, job.source)

    @property
    def fields(self) -> dict[str, int]:
        """Samples by field."""
        counts = Counter(self._beside)
        for (kind, _), count in self._kinds.items():
            counts[kind] += count
        return dict(counts)

    @property
    def suffixes(self) -> dict[str, dict[str, int]]:
        """Samples by image field and source suffix."""
        counts: dict[str, dict[str, int]] = {}
        for (kind, suffix), count in self._kinds.items():
            counts.setdefault(kind, {})[suffix] = count
        return counts

    def chunks(self, lines: list[str]) -> Iterator[bytes]:
        """The shard's bytes, from the lines of its entries."""
        options = self._job.options
        gathers = options.transcodes or options.metadata
        flushed = ticked = ticked_bytes = 0
        with self._origin:
            for number, line in enumerate(lines, start=1):
                try:
                    plain = None if gathers or "\\" in line else _PLAIN.fullmatch(line)
                    if plain is not None and len(plain[4]) <= keys.MAX_KEY:
                        self._add_untouched(*plain.groups())
                    else:
                        self._add_gathered(entries.load_line(line))
                except SampleError as error:
                    if options.on_error == "raise":
                        raise
                    self.skipped.append(Skipped(entries.load_line(line).path, error.reason))
                if self.size - flushed >= CHUNK:
                    yield self._flush()
                    flushed = self.size
                if number - ticked >= _TICK_EVERY or options.transcodes:
                    self._tick(number - ticked, self.source_bytes - ticked_bytes)
                    ticked, ticked_bytes = number, self.source_bytes
            self._put(tar.END)
            yield self._flush()
            self._tick(len(lines) - ticked, self.source_bytes - ticked_bytes)

    def _flush(self) -> bytes:
        chunk = b"".join(self._parts)
        self._parts.clear()
        self.sha256.update(chunk)
        return chunk

    def _put(self, data: bytes) -> None:
        self._parts.append(data)
        self.size += len(data)

    def _add_untouched(self, label: str, size_text: str, mtime: str, key: str, suffix: str) -> None:
        """Append a sample of one file with a clean name. Every microsecond here is a second in a million files."""
        size = int(size_text)
        path = key + suffix
        data = self._read(path, size, int(mtime))
        # The usual answers of sniff and check, without asking.
        kind = "jpg" if data[:3] == b"\xff\xd8\xff" and data[-2:] == b"\xff\xd9" else _whole_image(data, path)
        name = f"{key}.{kind}"
        offset = self.size + tar.BLOCK
        pad = -size % tar.BLOCK
        end = offset + size + pad
        if label:
            length, block = self._label(label)
            label_name = f"{key}.cls"
            self._parts += (tar.header(name, size), data, _ZEROS[:pad], tar.header(label_name, length), block)
            self.lines.append(f"{kind} {offset} {size} {name} cls {end + tar.BLOCK} {length} {label_name}")
            self.size = end + 2 * tar.BLOCK
            self._beside["cls"] += 1
        else:
            self._parts += (tar.header(name, size), data, _ZEROS[:pad])
            self.lines.append(f"{kind} {offset} {size} {name}")
            self.size = end
        self._count(kind, suffix, size)

    def _add_gathered(self, entry: Entry) -> None:
        """Append a sample of several fields, or of an image that is encoded anew."""
        gathered = self._gather(entry)
        if self._origin.images:
            key = keys.key_of_member(entry.path) if entry.at else keys.key_of(entry.path)
        else:
            key = keys.stem_of_member(entry.path)  # of a sample that was one before
        line = []
        for ext, data in gathered:
            name = f"{key}.{ext}"
            self._put(tar.header(name, len(data)))
            line.append(f"{ext} {self.size} {len(data)} {name}")
            self._put(data)
            self._put(_ZEROS[: tar.padding(len(data))])
        self.lines.append(" ".join(line))
        self._beside.update(ext for ext, _ in gathered[1:])
        self._count(
            gathered[0][0],
            keys.split_suffix(entry.path)[1] if self._origin.images else f".{gathered[0][0]}",
            entry.size + sum(sibling.size for sibling in entry.siblings),
        )

    def _count(self, kind: str, suffix: str, size: int) -> None:
        self._kinds[kind, suffix] = self._kinds.get((kind, suffix), 0) + 1
        self.source_bytes += size

    def _label(self, label: str) -> tuple[int, bytes]:
        """Length of a label, and the block that holds it."""
        known = self._labels.get(label)
        if known is None:
            known = self._labels[label] = (len(label), label.encode("ascii").ljust(tar.BLOCK, b"\0"))
        return known

    def _gather(self, entry: Entry) -> list[_Field]:
        """The image, encoded anew if the options ask, its siblings, the metadata, and the label."""
        options = self._job.options
        if self._origin.images:
            data = self._read(entry.path, entry.size, entry.mtime_ns, entry.at)
            gathered: list[_Field] = [self._encode(_whole_image(data, entry.path), data, entry.path)]
            gathered += [(s.ext, self._read(s.path, s.size, s.mtime_ns, s.at)) for s in entry.siblings]
        else:
            gathered = self._gather_fields(entry)
        if options.metadata or entry.metadata is not None:
            if any(sibling.ext == "json" for sibling in entry.siblings):
                raise SampleError("it has a json file beside it, so --metadata has no place", repr(entry.path))
            content = dict(entry.metadata or {})
            if options.metadata:
                content["path"] = entry.path
                if entry.label is not None and self._job.classes:
                    content["class"] = self._job.classes[entry.label]
            gathered.append(("json", json.dumps(content, sort_keys=True).encode("ascii")))
        if entry.label is not None:
            gathered.append(("cls", b"%d" % entry.label))
        return gathered

    def _gather_fields(self, entry: Entry) -> list[_Field]:
        """The fields as they are, in their order. If the options ask, the first that is an image by its name is encoded anew.

        An array may be anything, so it counts as an image only where there is no other.
        """
        read = self._read
        first = keys.ext_of_member(entry.path)
        gathered: list[_Field] = [(first, read(entry.path, entry.size, entry.mtime_ns, entry.at))]
        gathered += [(s.ext, read(s.path or entry.path, s.size, s.mtime_ns, s.at)) for s in entry.siblings]
        images = [number for number, (ext, _) in enumerate(gathered) if ext in EXTENSIONS]
        if not self._job.options.transcodes or not images:
            return gathered
        number = min(images, key=lambda image: gathered[image][0] == "npy")
        ext, before = gathered[number]
        was = _whole_image(before, entry.path)
        kind, data = self._encode(was, before, entry.path)
        name = ext if kind == was else kind
        if name in {other for other, _ in gathered} - {ext}:
            raise SampleError(f"its {ext} would become a {name}, and it has one already", repr(entry.path))
        gathered[number] = name, data
        return gathered

    def _encode(self, kind: str, data: bytes, path: str) -> _Field:
        """What the options make of an image."""
        if self._job.options.transcodes:
            try:
                kind, data = transcode(data, kind, self._job.options)
            except SampleError as error:
                raise error.at(repr(path)) from error
        return kind, self._tile(data) if self._job.options.tile and kind == "jpg" else data

    def _tile(self, data: bytes) -> bytes:
        tiled = tiles.tile(data)
        if tiles.is_tiled(tiled):
            self.tiled += 1
            self.tiled_from += len(data)
            self.tiled_to += len(tiled)
        return tiled

    def _read(self, path: str, size: int, mtime_ns: int, at: str = "") -> bytes:
        """The bytes of a field, which must be as the plan saw it."""
        if size > tar.MAX_SIZE:
            raise SampleError(
                f"too large: {size} bytes, and a member of a shard has at most {tar.MAX_SIZE}", repr(path)
            )
        return self._origin.read(path, size, mtime_ns, at)


def _whole_image(data: bytes, path: str) -> str:
    """The kind of image that ``data`` is, whatever its name says."""
    kind = sniff(data[:16])
    reason = check(kind, data)
    if reason is not None or kind is None:
        raise SampleError(reason or "not an image", repr(path))
    return kind


def transcode(data: bytes, kind: str, options: ConvertOptions) -> _Field:
    """The field that the options make of an image. Bytes that need no change are not encoded anew.

    With ``keep``, only images larger than ``image_size`` change, and what is neither jpg, png nor webp becomes a jpg.
    """
    from wds_tools.image import codec  # loads Pillow

    if options.encode == "keep" and options.image_size is None:
        return kind, data
    wanted = options.encode if options.encode != "keep" else kind if kind in ("jpg", "png", "webp") else "jpg"
    size = options.image_size
    if wanted == kind and options.quality is None and (size is None or min(codec.dimensions(data)) <= size):
        return kind, data
    if options.encode == "keep" and size is not None and min(codec.dimensions(data)) <= size:
        return kind, data
    return wanted, codec.transcode(data, wanted, size=size, quality=options.quality)


def output_scale(job: Job, lines: Spool, probes: int = 32) -> float:
    """Expected output bytes per source byte, from a few entries spread over the source; 1.0 when nothing is encoded."""
    if not job.options.transcodes:
        return 1.0
    skipping = replace(job, options=replace(job.options, on_error="skip"))
    packer = _Packer(skipping, lambda samples, size: None)
    for _ in packer.chunks(lines.pick(probes)):
        pass
    overhead = len(packer.lines) * 4 * tar.BLOCK
    return max(packer.size - overhead, 1) / max(packer.source_bytes, 1) if packer.lines else 1.0
