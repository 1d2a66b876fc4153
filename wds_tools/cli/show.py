"""How commands show numbers, progress and answers."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from wds_tools.store.resolve import expand_braces


def size_text(size: float) -> str:
    """``44.9 MB``: bytes in decimal units, as ``--max-size`` takes them."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"


def count_text(count: int, noun: str) -> str:
    """``1 shard``, ``1,000 samples``, ``2 classes``."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{count:,} {noun if count == 1 else plural}"


def brace_notation(names: Sequence[str]) -> str | None:
    """``train-{000000..000009}.tar`` for shards that are numbered through, None for others and for a single one."""
    first, last = (re.search(r"\d+(?=\.tar$)", name) for name in (names[0], names[-1]))
    if first and last and 0 < int(last[0]) - int(first[0]) == len(names) - 1:
        braces = f"{names[0][: first.start()]}{{{first[0]}..{last[0]}}}.tar"
        if expand_braces(braces) == list(names):
            return braces
    return None


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=1))


class Bar:
    """A progress bar on standard error, where that is a terminal: images/s, MB/s, time left."""

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        self._bar: Any = None
        self._started = time.monotonic()
        if not quiet and sys.stderr.isatty():
            from tqdm import tqdm  # slow to load, and most runs in scripts show no bar

            # tqdm's monitor is a thread, and a process that forks should have none.
            tqdm.monitor_interval = 0
            self._bar = tqdm(desc=what, unit=" images", unit_scale=True, leave=False, dynamic_ncols=True)

    def begin(self, samples: int, size: int) -> None:
        self._started = time.monotonic()
        if self._bar is not None:
            self._bar.reset(total=samples or None)

    def update(self, samples: int, size: int) -> None:
        if self._bar is None:
            return
        seconds = max(time.monotonic() - self._started, 1e-3)
        self._bar.set_postfix_str(f"{size / seconds / 1e6:.0f} MB/s", refresh=False)
        self._bar.update(samples - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


@contextmanager
def progress(what: str, *, quiet: bool = False, total: int | None = None) -> Iterator[Bar]:
    """A bar for as long as the block lasts."""
    bar = Bar(what, quiet=quiet)
    if total:
        bar.begin(total, 0)
    try:
        yield bar
    finally:
        bar.close()
