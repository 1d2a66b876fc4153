"""Measured rates → what limits loading, and what to change. A pure function of its numbers.

Three limits are compared with the best rate that a loader reached:

* main process: what it could take from workers if it did nothing but wait for them, by its processor time a sample;
* decode: what one process makes of samples that are in memory, times the processes that have a core;
* reading: what one process reads without decoding. Several may read more, or not: that is what a disk or a server decides.

The main process limits where the loader comes near its limit. Decoding does where one process alone reads twice what
is loaded (reading cannot be what is waited for), or where the processors spend most of the time on it. What remains is
reading, so the disk, or the network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from wds_tools.tools.pictures import Pictures

Bottleneck = Literal["disk", "network", "decode", "main process"]
Source = Literal["disk", "page cache", "disk and page cache", "disk or page cache", "network"]

NEAR = 0.7  # of the main process's limit: it is what limits
BUSY = 0.5  # of the processors' time
SAME = 0.95  # rates that differ by less are one
ALONE = 0.9  # of the time on a core: nobody else wanted it
CACHED = 0.9  # of the files: they are read from memory
NPY_PIXELS = 160 * 160  # images of at most so many cost less to store as arrays than to decode
SMALLER = 2.0  # times the size that shards are advised to have: images so large are worth shrinking


@dataclass(frozen=True)
class Read:
    """Samples read by one process, without decoding: rate in samples/s and bytes/s, and where they came from."""

    rate: float
    bytes_rate: float
    source: Source


@dataclass(frozen=True)
class Decode:
    """What one process makes of samples in memory: ``rate`` of whole batches' worth of work in images/s.

    ``whole`` is the rate of decoding whole images and nothing else, ``cpu`` the part of the time, 0 to 1, in which the
    process had a core: the work never waits, so the rest went to other programs.
    """

    rate: float
    whole: float
    cpu: float


@dataclass(frozen=True)
class Load:
    """A loader's rate in samples/s, and the main process's processor seconds for each sample."""

    workers: int
    rate: float
    main_seconds: float


@dataclass(frozen=True)
class Measured:
    """Everything that a verdict follows from. ``cached`` is the share of the files that was in memory before loading.

    ``bad`` is the share of samples that cannot be used. ``decode`` and ``pictures`` are None for a dataset without images;
    ``loads`` has at least one entry.
    """

    cores: int
    batch_size: int
    image_size: int
    reads: tuple[Read, ...]
    cached: float | None
    decode: Decode | None
    loads: tuple[Load, ...]
    bad: float
    pictures: Pictures | None

    @property
    def remote(self) -> bool:
        return self.reads[0].source == "network"

    @property
    def best(self) -> Load:
        return max(self.loads, key=lambda load: load.rate)

    @property
    def enough(self) -> Load:
        """The fewest workers that are as good as any."""
        return min((load for load in self.loads if load.rate >= SAME * self.best.rate), key=lambda load: load.workers)

    @property
    def read(self) -> Read:
        """The pass that tells how fast the loads could read: from memory, where they read from there as well."""
        return self.reads[-1] if self.cached is not None and self.cached >= CACHED else self.reads[0]

    @property
    def decode_limit(self) -> float | None:
        """Images/s of all processes that the best load had a core for."""
        if self.decode is None:
            return None
        return self.decode.rate * min(max(self.best.workers, 1), self.cores)

    @property
    def main_limit(self) -> float | None:
        """Samples/s that the main process could take from workers; None without workers."""
        load = self._with_workers
        return 1 / load.main_seconds if load is not None and load.main_seconds > 0 else None

    @property
    def main_limited(self) -> bool:
        load, limit = self._with_workers, self.main_limit
        return load is not None and limit is not None and load.rate >= NEAR * limit

    @property
    def _with_workers(self) -> Load | None:
        return max((load for load in self.loads if load.workers), key=lambda load: load.rate, default=None)

    @property
    def still_rising(self) -> bool:
        """Whether the most workers tried were better than all fewer."""
        most = max(self.loads, key=lambda load: load.workers)
        return len(self.loads) > 1 and self.enough is most


@dataclass(frozen=True)
class Target:
    """Whether a rate that was asked for is reached. ``workers`` are those it needs; None where no number is enough."""

    rate: float
    reached: bool
    workers: int | None
    text: str


@dataclass(frozen=True)
class Verdict:
    """What limits, why, the number of workers to use, and what else to change."""

    bottleneck: Bottleneck
    bound: Literal["CPU", "I/O"]
    reason: str
    workers: int
    rate: float
    advice: tuple[str, ...]
    target: Target | None = None


def judge(measured: Measured, target: float | None = None) -> Verdict:
    """The verdict on what was measured; ``target`` is a rate in samples/s that something consumes."""
    bottleneck, reason = _bottleneck(measured)
    return Verdict(
        bottleneck,
        "I/O" if bottleneck in ("disk", "network") else "CPU",
        reason,
        measured.enough.workers,
        measured.enough.rate,
        tuple(_advice(measured, bottleneck)),
        None if target is None else _target(measured, bottleneck, target),
    )


def rate_text(rate: float) -> str:
    """``1,234``, ``12.3`` or ``0.04``: as many digits as mean something."""
    digits = 0 if rate >= 100 else 1 if rate >= 10 else 2
    return f"{rate:,.{digits}f}"


def workers_text(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"


def _bottleneck(measured: Measured) -> tuple[Bottleneck, str]:
    best, read, main = measured.best, measured.read, measured.main_limit
    loaded = f"{rate_text(best.rate)} samples/s were loaded with {workers_text(best.workers)}"
    if measured.main_limited and main is not None:
        return "main process", f"it can take {rate_text(main)} samples/s from workers at most; {loaded}"
    decode, limit = measured.decode, measured.decode_limit
    reads = f"reads {rate_text(read.rate)} samples/s ({read.source})"
    where: Bottleneck = "network" if measured.remote else "disk"
    quick = read.rate >= 2 * best.rate  # so it is not what is waited for
    if decode is None or limit is None:
        return "main process" if quick else where, f"one process {reads} and has nothing to decode; {loaded}"
    decodes = f"decodes {rate_text(decode.rate)} images/s"
    if quick or best.rate >= BUSY * limit:
        return "decode", f"one process {decodes} and {reads}; {loaded}"
    return where, f"one process {reads} and {decodes}; {loaded}"


def _advice(measured: Measured, bottleneck: Bottleneck) -> Iterator[str]:
    if measured.decode is not None and measured.decode.cpu < ALONE:
        yield (
            f"Other programs took {1 - measured.decode.cpu:.0%} of a core's time from this measurement: "
            "repeat it when they are gone"
        )
    yield _workers_advice(measured, bottleneck)
    if bottleneck == "decode":
        yield from _decode_advice(measured)
    elif bottleneck == "main process":
        yield from _main_advice(measured)
    else:
        yield from _read_advice(measured, bottleneck)
    first = measured.reads[0]
    if bottleneck == "decode" and measured.read is not first and first.rate < measured.best.rate:
        yield (
            f"From the {first.source} one process reads {rate_text(first.rate)} samples/s: the first epoch, and every one "
            "of a dataset that does not fit into memory, may be I/O-bound"
        )
    if measured.bad:
        yield (
            f"{measured.bad:.1%} of the samples cannot be used: 'wds-tools verify --decode' lists them, "
            'ShardDataset(on_error="skip") leaves them out'
        )


def _workers_advice(measured: Measured, bottleneck: Bottleneck) -> str:
    enough, most = measured.enough.workers, max(load.workers for load in measured.loads)
    if len(measured.loads) == 1:
        return f"Measure other numbers of workers than {most} as well, to see what they change"
    if measured.still_rising:
        if bottleneck in ("disk", "network"):
            return f"Try more workers than {most}, also more than cores: they wait more than they compute"
        if most < measured.cores:
            return f"Try more workers than {most}: this process may use {measured.cores} cores"
    elif most > enough:
        return f"num_workers={enough} is enough: more are no faster"
    if bottleneck == "decode" and enough >= measured.cores:
        return f"num_workers={enough} keeps all cores of this process busy ({measured.cores}); more cores would help"
    return f"Use num_workers={enough}"


def _decode_advice(measured: Measured) -> Iterator[str]:
    pictures, size = measured.pictures, measured.image_size
    if pictures is None or measured.decode is None:
        return
    kind = next(iter(pictures.kinds))
    shape = f"{pictures.width:,.0f}x{pictures.height:,.0f} {kind} images"
    stored = _stored_size(size)
    if kind != "npy" and pictures.width * pictures.height <= NPY_PIXELS:
        yield f"'wds-tools convert --encode npy': {shape} are so small that reading pixels costs less than decoding them"
        return
    if pictures.short_side >= SMALLER * stored:
        yield (
            f"'wds-tools convert --image-size {stored}': {shape} are far larger than crops of {size} need "
            f"(choose more than {stored} where small crops must stay sharp)"
        )
    if kind == "jpg" and pictures.progressive > 0.5:
        yield "'wds-tools convert --encode jpg': progressive JPEGs decode slowly, and cannot be tiled"
    elif kind == "jpg" and pictures.tiled < 0.5 and pictures.short_side > size:
        yield (
            "'wds-tools convert --tile': the JPEGs have no restart tiles, with which a crop decodes only what it shows; "
            "no pixel changes"
        )
    elif kind in ("png", "webp", "tiff"):
        yield f"'wds-tools convert --encode jpg': JPEG decodes faster than {kind}, where its loss does not matter"
    if measured.decode.whole >= 2 * measured.decode.rate:
        yield "The transform takes more time than decoding: leave to it only what must be done on the CPU, a sample at a time"


def _stored_size(image_size: int) -> int:
    """The shorter side that images are usually stored with for crops of ``image_size``: 256 for 224."""
    return round(image_size * 8 / 7)


def _main_advice(measured: Measured) -> Iterator[str]:
    if measured.decode is None:
        yield "Ask for fewer fields: each value is handed over by itself, and there is nothing for workers to decode"
    else:
        yield "Let the transform return smaller images: what workers make is handed over by memory"
    if measured.batch_size < 256:
        yield f"Use larger batches than {measured.batch_size}: much of what the main process does is done once a batch"
    yield "Several ranks (DistributedDataParallel) have a main process each"


def _read_advice(measured: Measured, bottleneck: Bottleneck) -> Iterator[str]:
    pictures, size = measured.pictures, measured.image_size
    if bottleneck == "network":
        yield (
            "ShardDataset(cache=folder, cache_bytes=N) keeps the shards on a local disk, so that only the first epoch "
            "waits for the network; a server that is nearer helps from the start"
        )
    else:
        yield "Copy the shards to a faster disk; what fits into memory is read from there after the first epoch"
    stored = _stored_size(size)
    if pictures is not None and next(iter(pictures.kinds)) != "npy" and pictures.short_side >= 1.25 * stored:
        yield f"'wds-tools convert --image-size {stored}': smaller images have fewer bytes, and crops of {size} need no more"
    elif pictures is not None and next(iter(pictures.kinds)) in ("npy", "png", "bmp", "tiff", "ppm"):
        yield "'wds-tools convert --encode jpg': fewer bytes, where JPEG's loss does not matter"


def _target(measured: Measured, bottleneck: Bottleneck, rate: float) -> Target:
    best, wanted = measured.best, rate_text(rate)
    reaching = [load.workers for load in measured.loads if load.rate >= rate]
    if reaching:
        fewest = min(reaching)
        reached = next(load.rate for load in measured.loads if load.workers == fewest)
        return Target(
            rate, True, fewest, f"{wanted} samples/s are reached with {workers_text(fewest)} ({rate_text(reached)})"
        )
    misses = f"{wanted} samples/s are not reached: {rate_text(best.rate)} with {workers_text(best.workers)}"
    reads = bottleneck in ("disk", "network")
    # Those that compute share the cores; those that wait are as many as there are.
    busy = max(best.workers if reads else min(best.workers, measured.cores), 1)
    needed = math.ceil(rate * busy / best.rate)
    most = max(load.workers for load in measured.loads)
    if bottleneck == "main process":
        return Target(rate, False, None, f"{misses}, and more workers do not help")
    if measured.main_limit is not None and rate > measured.main_limit:
        limit = rate_text(measured.main_limit)
        return Target(rate, False, None, f"{misses}, and the main process takes {limit} at most")
    if not measured.still_rising and (reads or needed <= most):
        return Target(rate, False, None, f"{misses}, and up to {most} were no faster: something else must change first")
    if reads:
        condition = f", if the {bottleneck} gives each of them as much"
    elif needed > measured.cores:
        condition = f" with a core each, and this process has {measured.cores}"
    else:
        condition = ", by these figures"
    return Target(rate, False, needed, f"{misses}; it would take about {workers_text(needed)}{condition}")
