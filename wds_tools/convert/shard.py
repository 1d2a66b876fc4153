"""One plan, one shard: a repeatable task.

Source files are read straight into the place that their bytes have in the shard, in a buffer of a few megabytes that
also holds the headers and is hashed and written whole; nothing is done byte by byte or member by member in between.
(`copy_file_range` would save one copy, but the bytes are needed here for the digest and to see what they are.)
Then the shard is read back and must have the same digest, and its index and its receipt are written. A task that
ends early leaves nothing under the shard's name.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from wds_tools.convert import entries, keys
from wds_tools.convert.entries import Entry
from wds_tools.convert.options import ConvertOptions
from wds_tools.convert.workspace import Workspace
from wds_tools.errors import SampleError, SourceChangedError, StoreError
from wds_tools.format import index, tar
from wds_tools.image.kinds import check, sniff
from wds_tools.records import Receipt, ShardPlan, Skipped
from wds_tools.store.base import Store

CHUNK = 4 << 20  # what is hashed and written at a time: large enough to amortise calls, small enough for the cache

# Called with samples and source bytes done since the last call; raises to end the task early.
Tick = Callable[[int, int], None]
_TICK_EVERY = 256  # samples
_Field = tuple[str, bytes | memoryview]

_ZEROS = bytes(tar.BLOCK)
_OPEN = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_DIR_FD = os.open in os.supports_dir_fd


@dataclass(frozen=True)
class Job:
    """What all shards of a conversion have in common."""

    source: str
    target: Store
    options: ConvertOptions
    classes: tuple[str, ...]


def build_shard(job: Job, plan: ShardPlan, tick: Tick) -> Receipt:
    """Make the shard of ``plan`` with its index, and answer with the receipt, which is written down as well.

    Raises `SampleError` for a bad source file unless the options say to skip it, `SourceChangedError` for one that is
    not what it was, `StoreError` when the target cannot be written or does not give back what was written.
    """
    workspace = Workspace(job.target, job.options.split)
    packer = _Packer(job, tick)
    job.target.write_atomic(plan.name, packer.chunks(workspace.read_entries(plan.name)))
    if _digest(job.target, plan.name, packer.buffer) != packer.sha256.hexdigest():
        raise StoreError(
            f"{job.target.url(plan.name)!r} does not read back as it was written; check the disk's health and run again"
        )
    job.target.write_atomic(index.index_name(plan.name), [index.dump(packer.lines)])
    receipt = Receipt(
        name=plan.name,
        digest=plan.digest,
        samples=len(packer.lines),
        size=packer.size,
        sha256=packer.sha256.hexdigest(),
        fields=dict(packer.fields),
        suffixes={kind: dict(suffixes) for kind, suffixes in packer.suffixes.items()},
        source_bytes=packer.source_bytes,
        skipped=tuple(packer.skipped),
    )
    workspace.write_receipt(receipt)
    return receipt


def _digest(store: Store, name: str, buffer: bytearray) -> str:
    digest = hashlib.sha256()
    view = memoryview(buffer)
    with store.stream(name) as file:
        while count := file.readinto(buffer):  # type: ignore[attr-defined]
            digest.update(view[:count])
    return digest.hexdigest()


class _Packer:
    """Fills a buffer with members and hands it out when it is full.

    A sample of one untouched image is read straight into its place; anything else is gathered first.
    """

    def __init__(self, job: Job, tick: Tick) -> None:
        self.buffer = bytearray(CHUNK)
        self.sha256 = hashlib.sha256()
        self.lines: list[str] = []
        self.fields: Counter[str] = Counter()
        self.suffixes: dict[str, Counter[str]] = {}
        self.skipped: list[Skipped] = []
        self.source_bytes = 0
        self.size = 0  # bytes handed out: the place in the shard where the buffer begins
        self._end = 0  # bytes in the buffer
        self._job = job
        self._tick = tick
        self._labels: dict[int, tuple[int, bytes]] = {}
        self._folder: int | None = None
        # The whole path for systems that cannot open relative to a folder.
        self._prefix = "" if _DIR_FD else job.source + os.sep

    def chunks(self, lines: list[str]) -> Iterator[memoryview]:
        """The shard's bytes, from the lines of its entries."""
        options = self._job.options
        ticked = ticked_bytes = 0
        if _DIR_FD:
            self._folder = os.open(self._job.source, os.O_RDONLY)
        try:
            for number, line in enumerate(lines, start=1):
                entry = entries.load_line(line)
                gathered: list[_Field] | None = None
                try:
                    if options.transcodes or options.metadata or entry.siblings or entry.metadata is not None:
                        gathered = self._gather(entry)
                        room = sum(tar.member_bytes(len(data)) for _, data in gathered) + 2 * tar.BLOCK
                    else:
                        room = tar.member_bytes(entry.size + 1) + 2 * tar.BLOCK
                    if self._end + room > len(self.buffer):
                        if self._end:
                            yield self._flush()
                        if room > len(self.buffer):
                            self.buffer = bytearray(room)
                    if gathered is None:
                        self._add_untouched(entry)
                    else:
                        self._add_gathered(entry, gathered)
                except SampleError as error:
                    if options.on_error == "raise":
                        raise
                    self.skipped.append(Skipped(entry.path, error.reason))
                if number - ticked >= _TICK_EVERY or options.transcodes:
                    self._tick(number - ticked, self.source_bytes - ticked_bytes)
                    ticked, ticked_bytes = number, self.source_bytes
            if self._end + len(tar.END) > len(self.buffer):
                yield self._flush()
            self._put(tar.END)
            yield self._flush()
            self._tick(len(lines) - ticked, self.source_bytes - ticked_bytes)
        finally:
            if self._folder is not None:
                os.close(self._folder)

    def _flush(self) -> memoryview:
        chunk = memoryview(self.buffer)[: self._end]
        self.sha256.update(chunk)
        self.size += self._end
        self._end = 0
        return chunk

    def _put(self, data: bytes | memoryview) -> None:
        self.buffer[self._end : self._end + len(data)] = data
        self._end += len(data)

    def _add_untouched(self, entry: Entry) -> None:
        size = entry.size
        payload = self._end + tar.BLOCK
        # One byte more than expected, to notice that a file has grown.
        place = memoryview(self.buffer)[payload : payload + size + 1]
        self._read(entry.path, size, entry.mtime_ns, place)
        kind = _whole_image(place[:size], entry.path)
        key = keys.key_of(entry.path)
        line = f"{kind} {self.size + payload} {size} {key}.{kind}"
        # Header and padding go around the payload, which is in its place already.
        self._put(tar.header(f"{key}.{kind}", size))
        self._end += size
        self._put(_ZEROS[: tar.padding(size)])
        self._close_sample(entry, key, kind, line, (kind,))

    def _add_gathered(self, entry: Entry, gathered: list[_Field]) -> None:
        key = keys.key_of(entry.path)
        line = []
        for ext, data in gathered:
            name = f"{key}.{ext}"
            self._put(tar.header(name, len(data)))
            line.append(f"{ext} {self.size + self._end} {len(data)} {name}")
            self._put(data)
            self._put(_ZEROS[: tar.padding(len(data))])
        self._close_sample(entry, key, gathered[0][0], " ".join(line), tuple(ext for ext, _ in gathered))

    def _close_sample(self, entry: Entry, key: str, kind: str, line: str, added: tuple[str, ...]) -> None:
        """Add the label, the line in the index, and the sample to the counts."""
        if entry.label is not None:
            length, block = self._label(entry.label)
            self._put(tar.header(f"{key}.cls", length))
            line += f" cls {self.size + self._end} {length} {key}.cls"
            self._put(block)
            self.fields["cls"] += 1
        self.lines.append(line)
        self.source_bytes += entry.size
        for ext in added:
            self.fields[ext] += 1
        self.suffixes.setdefault(kind, Counter())[keys.split_suffix(entry.path)[1]] += 1

    def _label(self, label: int) -> tuple[int, bytes]:
        known = self._labels.get(label)
        if known is None:
            text = b"%d" % label
            known = self._labels[label] = (len(text), text.ljust(tar.BLOCK, b"\0"))
        return known

    def _gather(self, entry: Entry) -> list[_Field]:
        """The image, encoded anew if the options ask, its siblings, and the metadata."""
        options = self._job.options
        payload = self._read_whole(entry.path, entry.size, entry.mtime_ns)
        kind = _whole_image(payload, entry.path)
        gathered: list[_Field] = [(kind, payload)]
        if options.transcodes:
            try:
                gathered = [transcode(payload, kind, options)]
            except SampleError as error:
                raise error.at(repr(entry.path)) from error
        gathered += [(s.ext, self._read_whole(s.path, s.size, s.mtime_ns)) for s in entry.siblings]
        if options.metadata or entry.metadata is not None:
            if any(sibling.ext == "json" for sibling in entry.siblings):
                raise SampleError("it has a json file beside it, so --metadata has no place", repr(entry.path))
            content = dict(entry.metadata or {})
            if options.metadata:
                content["path"] = entry.path
                if entry.label is not None and self._job.classes:
                    content["class"] = self._job.classes[entry.label]
            gathered.append(("json", json.dumps(content, sort_keys=True).encode("ascii")))
        return gathered

    def _read_whole(self, path: str, size: int, mtime_ns: int) -> memoryview:
        place = memoryview(bytearray(size + 1))
        self._read(path, size, mtime_ns, place)
        return place[:size]

    def _read(self, path: str, size: int, mtime_ns: int, place: memoryview) -> None:
        """Read a file into ``place``. It must be as the plan saw it."""
        try:
            fd = os.open(self._prefix + path, _OPEN, dir_fd=self._folder)
            try:
                status = os.fstat(fd)
                count = os.readv(fd, [place])
                while count < size and (more := os.readv(fd, [place[count:]])):
                    count += more
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise SourceChangedError(
                    f"{path!r} is gone since the plan was made; run again for a new plan"
                ) from error
            raise SampleError(f"unreadable: {error.strerror}", repr(path)) from error
        if count != size or status.st_mtime_ns != mtime_ns:
            now = f"{status.st_size} bytes now" if status.st_size != size else "other content now"
            raise SourceChangedError(
                f"{path!r} changed since the plan was made ({size} bytes then, {now}); run again for a new plan"
            )


def _whole_image(data: memoryview, path: str) -> str:
    """The kind of image that ``data`` is, whatever its name says."""
    kind = sniff(data[:16])
    reason = check(kind, data)
    if reason is not None or kind is None:
        raise SampleError(reason or "not an image", repr(path))
    return kind


def transcode(data: memoryview, kind: str, options: ConvertOptions) -> _Field:
    """The field that the options make of an image. Bytes that need no change are not encoded anew.

    With ``keep``, only images larger than ``image_size`` change, and what is neither jpg, png nor webp becomes a jpg.
    """
    from wds_tools.image import codec  # loads Pillow

    wanted = options.encode if options.encode != "keep" else kind if kind in ("jpg", "png", "webp") else "jpg"
    size = options.image_size
    if wanted == kind and options.quality is None and (size is None or min(codec.dimensions(data)) <= size):
        return kind, data
    if options.encode == "keep" and size is not None and min(codec.dimensions(data)) <= size:
        return kind, data
    return wanted, codec.transcode(data, wanted, size=size, quality=options.quality)


def output_scale(job: Job, lines: list[str], probes: int = 32) -> float:
    """Expected output bytes per source byte, from a few entries spread over the source; 1.0 when nothing is encoded."""
    if not job.options.transcodes:
        return 1.0
    picked = [lines[number * len(lines) // probes] for number in range(min(probes, len(lines)))]
    skipping = replace(job, options=replace(job.options, on_error="skip"))
    packer = _Packer(skipping, lambda samples, size: None)
    for _ in packer.chunks(picked):
        pass
    overhead = len(packer.lines) * 4 * tar.BLOCK
    return max(packer.size - overhead, 1) / max(packer.source_bytes, 1) if packer.lines else 1.0
