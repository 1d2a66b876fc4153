"""Several real processes that train together: started, watched, killed.

They are waited for by their end or by what they have done, under a deadline, and never for a fixed time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEADLINE = 120.0  # seconds, for what takes about ten; whoever waits longer hangs


def environment(**more: str) -> dict[str, str]:
    """Ours, without what torchrun may have set in it, and with one thread a process."""
    ours = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
    return {**ours, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}


class Command:
    """A Python process and what it starts. Everything of it is gone after the ``with`` block."""

    def __init__(self, *words: str | os.PathLike[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
        )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._process.communicate(timeout=DEADLINE)

    def ranks(self) -> list[int]:
        """The processes that it has started."""
        return _children(self._process.pid)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is so; an error if the command ended before."""
        deadline = time.monotonic() + DEADLINE
        while not condition():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.001)
                raise AssertionError(f"it ended too early:\n{self._process.communicate()[0]}")
            assert time.monotonic() < deadline, "it neither goes on nor ends"

    def kill(self) -> None:
        """End it and all that it has started at once, as a power cut does."""
        for pid in (self._process.pid, *_descendants(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Stand still, so that what lies on the disk is what a kill at this moment leaves. Of a process on its own."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def end(self) -> tuple[int, str]:
        """Wait for its end: exit code, and all that it wrote. Its pipe ends with the last process that holds it."""
        out, _ = self._process.communicate(timeout=DEADLINE)
        return self._process.returncode, out


class Torchrun(Command):
    """``torchrun --nproc-per-node RANKS SCRIPT WORDS…``."""

    def __init__(self, ranks: int, script: Path, *words: str | os.PathLike[str]) -> None:
        super().__init__(
            *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(script)), *words
        )


def run_together(code: str, each: Sequence[tuple[dict[str, str], list[str]]]) -> list[Any]:
    """Run Python code in a process for each (environment, arguments) at the same time; the JSON that each printed."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**more),
        )
        for more, words in each
    ]
    try:
        said = [process.communicate(timeout=DEADLINE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, err) in zip(processes, said, strict=True):
        assert process.returncode == 0, err
    return [json.loads(out) for out, _ in said]


def _children(parent: int) -> list[int]:
    return [pid for pid, above in _parents() if above == parent]


def _descendants(parent: int) -> list[int]:
    found = _children(parent)
    for pid in found:  # grows while it is gone through
        found += _children(pid)
    return found


def _parents() -> Iterator[tuple[int, int]]:
    """Every process of this machine, and the one that started it."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            yield int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1])
