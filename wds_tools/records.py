"""The frozen values that rooms hand each other.

Nothing here does work: a record says what was found or decided, in the field's words, and is the whole
interface between the room that makes it and the rooms that read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Member:
    """One regular file in a tar: its name and where its payload lies, in bytes from the shard's start."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a sample: its extension in lower case, and the payload's place."""

    ext: str
    offset: int
    size: int
    name: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample as a shard holds it: a key and its fields, in the order in which they lie."""

    key: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something in the source that did not become a sample, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """What one shard will hold: the name, and a digest over everything that decides its bytes."""

    name: str
    digest: str
    samples: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that a shard stands: what was planned (``digest``) and what was written and read back.

    ``fields`` counts samples by field; ``suffixes`` counts source suffixes by field (``{"jpg": {".JPEG": 9}}``);
    ``source_bytes`` is the size of the source files read. ``tiled`` images were given restart tiles, which took them
    from ``tiled_from`` bytes to ``tiled_to``. ``stamp`` is what a bucket tells these bytes from others by.
    """

    name: str
    digest: str
    samples: int
    size: int
    sha256: str
    fields: dict[str, int]
    suffixes: dict[str, dict[str, int]]
    source_bytes: int
    skipped: tuple[Skipped, ...] = ()
    tiled: int = 0
    tiled_from: int = 0
    tiled_to: int = 0
    stamp: str = ""


@dataclass(frozen=True, slots=True)
class NodeWork:
    """What one machine of a cluster did: ``node`` is the cluster's name for it, ``host`` its own, ``address`` its IP.

    ``tasks`` are those that ended well there, ``samples`` and ``source_bytes`` what they read.
    """

    node: str
    host: str
    address: str
    tasks: int
    samples: int
    source_bytes: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with a dataset: what, and where (key and offset where they are known)."""

    shard: str
    message: str
    key: str | None = None
    offset: int | None = None

    def __str__(self) -> str:
        place = self.shard
        if self.key is not None:
            place += f", key {self.key!r}"
        if self.offset is not None:
            place += f", offset {self.offset}"
        return f"{place}: {self.message}"


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard as the manifest lists it. Size and digest are None for shards that were never measured."""

    name: str
    samples: int
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class SplitInfo:
    """A split as the manifest lists it. ``fields`` counts samples by field."""

    name: str
    shards: tuple[ShardInfo, ...]
    fields: dict[str, int] = field(default_factory=dict)
    suffixes: dict[str, str] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    num_skipped: int = 0

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)
