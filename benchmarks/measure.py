"""Time commands side by side: whole processes, in turn, several times, and medians of what each took.

Timings of one machine mean little and drift while it is used; ratios of commands that took turns mean more. Every
benchmark in this folder goes through `side_by_side` and quotes `ratio`s of medians.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """One run of a command: seconds on the clock, seconds of processor time with its children, peak kB of one process."""

    wall: float
    cpu: float
    peak_kb: int


@dataclass(frozen=True)
class Side:
    """One of the commands to compare. ``output`` is removed before each run."""

    name: str
    command: Sequence[str]
    output: Path | None = None


def run_once(side: Side) -> Run:
    """Run a command to its end; `RuntimeError` with its messages if it fails."""
    if side.output is not None:
        shutil.rmtree(side.output, ignore_errors=True)
        side.output.unlink(missing_ok=True) if side.output.is_file() else None
    os.sync()  # nobody pays for what the run before left to be written
    # As users have it: modules are compiled once, not at every start.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    process = subprocess.Popen(side.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
    assert process.stderr is not None
    messages = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(side.command)} failed: {messages.decode(errors='replace')[-2000:]}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)


def side_by_side(
    sides: Sequence[Side], runs: int, after: Callable[[Side], None] | None = None
) -> Mapping[str, list[Run]]:
    """Run every side once to warm up, then ``runs`` times in turn. ``after`` may check what a side made."""
    found: dict[str, list[Run]] = {side.name: [] for side in sides}
    for number in range(runs + 1):
        for side in sides:
            run = run_once(side)
            if after is not None and not number:
                after(side)
            if number:
                found[side.name].append(run)
    return found


def median(runs: Sequence[Run], figure: str = "wall") -> float:
    return statistics.median(getattr(run, figure) for run in runs)


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its head."""
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join(["---"] * len(head)) + " |"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in body])


def rates(found: Mapping[str, list[Run]], items: int, against: Sequence[str]) -> list[list[str]]:
    """Rows of a table: rate in items per second, spread, peak memory, and the ratio of rates to each of ``against``."""
    rows = [["side", "items/s (median)", "slowest to fastest", "peak MB", *(f"rate / {name}" for name in against)]]
    for name, runs in found.items():
        walls = sorted(run.wall for run in runs)
        rows.append(
            [
                name,
                f"{items / median(runs):,.0f}",
                f"{items / walls[-1]:,.0f} to {items / walls[0]:,.0f}",
                f"{max(run.peak_kb for run in runs) / 1000:,.0f}",
                *(f"{median(found[other]) / median(runs):.2f}" for other in against),
            ]
        )
    return rows
