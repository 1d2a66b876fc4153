"""From entries and options to shards, as a pure function: the same entries in, the same shards out.

The order comes from ``random.Random(seed).random()``, the one sequence that Python promises to keep between versions,
through a Fisher-Yates shuffle of our own (`random.shuffle` does not promise). Shards are filled up in that order:
one is closed when the next sample would take it over ``max_size`` bytes or ``max_count`` samples.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from wds_tools.convert.options import ConvertOptions
from wds_tools.format import tar
from wds_tools.records import ShardPlan

_LABEL_BYTES = 2 * tar.BLOCK  # a ``cls`` member: header and one block


def permutation(count: int, seed: int) -> list[int]:
    """``range(count)`` shuffled by ``seed``. Source: Durstenfeld, Algorithm 235, CACM 7 (1964)."""
    order = list(range(count))
    draw = random.Random(seed).random
    for last in range(count - 1, 0, -1):
        other = int(draw() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order


def cut(weights: Sequence[int], order: Sequence[int], max_size: int, max_count: int | None) -> Iterator[Sequence[int]]:
    """Cut ``order`` into runs whose ``weights`` add up to at most ``max_size``, each of at least one sample."""
    start, total = 0, len(tar.END)
    for position, entry in enumerate(order):
        weight = weights[entry]
        if position > start and (total + weight > max_size or position - start == max_count):
            yield order[start:position]
            start, total = position, len(tar.END)
        total += weight
    if start < len(order):
        yield order[start:]


def settings_digest(settings: dict[str, Any]) -> str:
    """What every shard's digest begins with, so that no shard of other settings passes for one of these."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def make_plan(
    lines: Sequence[str], sizes: Sequence[int], options: ConvertOptions, *, scale: float = 1.0
) -> Iterator[tuple[ShardPlan, bytes]]:
    """Each shard's plan, and the lines of its entries as bytes. ``scale`` is expected output per source byte."""
    fixed = tar.BLOCK + _LABEL_BYTES + (2 * tar.BLOCK if options.metadata else 0)
    if scale == 1.0:
        weights = [fixed + size + -size % tar.BLOCK for size in sizes]
    else:
        weights = [fixed + tar.member_bytes(int(size * scale)) for size in sizes]
    order = permutation(len(lines), options.seed) if options.shuffle else range(len(lines))
    settings = settings_digest(options.settings()).encode()
    for number, run in enumerate(cut(weights, order, options.max_size, options.max_count)):
        name = f"{options.split}-{number:06d}.tar"
        blob = "\n".join([lines[entry] for entry in run]).encode("utf-8", "surrogateescape")
        digest = hashlib.sha256(b"\0".join((settings, name.encode(), blob))).hexdigest()
        yield ShardPlan(name, digest, len(run)), blob
