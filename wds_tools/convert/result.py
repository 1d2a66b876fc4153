"""What a conversion tells whoever called it: while it runs, and in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wds_tools.convert.workspace import Plan
from wds_tools.format import manifest
from wds_tools.records import NodeWork, Receipt, ShardInfo, Skipped, SplitInfo


class Progress(Protocol):
    """Told how a conversion goes on; a command line draws a bar from it."""

    def begin(self, samples: int, size: int) -> None:
        """The plan stands: so many samples, so many source bytes."""

    def update(self, samples: int, size: int) -> None:
        """So much of it is done."""


class Quiet:
    """Progress for nobody."""

    def begin(self, samples: int, size: int) -> None: ...

    def update(self, samples: int, size: int) -> None: ...


@dataclass(frozen=True)
class Result:
    """What a conversion did. ``complete`` is False while other tasks of the array have shards to make.

    ``nodes`` tells which machine of a Ray cluster made how much of what was built; it is empty on one machine.
    """

    target: str
    split: str
    samples: int
    shards: int
    size: int
    source_bytes: int
    classes: int
    built: int
    complete: bool
    skipped: tuple[Skipped, ...] = ()
    num_skipped: int = 0
    ignored: dict[str, int] = field(default_factory=dict)
    empty_classes: tuple[str, ...] = ()
    jpegs: int = 0
    tiled: int = 0
    tiled_from: int = 0
    tiled_to: int = 0
    notes: tuple[str, ...] = ()
    nodes: tuple[NodeWork, ...] = ()


def split_info(name: str, plan: Plan, receipts: Sequence[Receipt]) -> SplitInfo:
    """What the manifest will say of a split, from all its receipts."""
    fields: Counter[str] = Counter()
    suffixes: dict[str, set[str]] = {}
    skipped = list(plan.skipped)
    for receipt in receipts:
        fields.update(receipt.fields)
        skipped += receipt.skipped
        for kind, counts in receipt.suffixes.items():
            suffixes.setdefault(kind, set()).update(counts)
    return SplitInfo(
        name=name,
        shards=tuple(ShardInfo(r.name, r.samples, r.size, r.sha256) for r in receipts),
        fields=dict(fields),
        # Where all files of a field had one suffix, extracting can give it back.
        suffixes=plan.suffixes or {k: s for k, (s, *more) in suffixes.items() if not more and s != f".{k}"},
        settings=plan.settings,
        skipped=tuple(skipped[: manifest.MAX_LISTED_SKIPS]),
        num_skipped=plan.num_skipped + sum(len(r.skipped) for r in receipts),
    )
