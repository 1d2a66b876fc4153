"""The command as processes that a test watches, interrupts, kills, and whose system calls it makes fail.

A process is waited for by its end or by what it has done, under a deadline, and never for a fixed time. Its end is that
of every process that it started: they all hold its pipes, and reading those ends when the last one is gone.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support import needs, trees
from tests.support.commands import Said
from wds_tools.tools.verify import verify_dataset

DEADLINE = 60.0  # seconds, for what takes less than one; whoever waits longer hangs

# Stops when all is loaded and nothing is done, so that a tracer can be attached to what matters. Any process may attach.
_HELD = """
import ctypes, os, signal
from wds_tools.cli import convert, main
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
os.kill(os.getpid(), signal.SIGSTOP)
main.main()
"""


class Command:
    """``wds-tools`` with these words, in a session of its own. Everything of it is gone after the ``with`` block."""

    def __init__(self, *words: str | os.PathLike[str], held: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *(["-c", _HELD] if held else ["-m", "wds_tools"]), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._gone = False  # and its number perhaps given to somebody else

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._gone:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGKILL, everyone=True)
            self._process.communicate(timeout=DEADLINE)

    def signal(self, number: int, *, everyone: bool = False) -> None:
        """Send a signal to the driver, or to its whole process group, as a terminal does."""
        if everyone:
            os.killpg(self.pid, number)
        else:
            self._process.send_signal(number)

    def until(self, condition: Callable[[], object]) -> bool:
        """Wait until something is so; False if the command ended before."""
        deadline = time.monotonic() + DEADLINE
        while not condition():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.0005)
                return bool(condition())
            assert time.monotonic() < deadline, "the command neither goes on nor ends"
        return True

    def finish(self) -> Said:
        """Wait until the command and all that it started are gone."""
        try:
            out, err = self._process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {DEADLINE} s: {sorted(self.processes())}") from None
        deadline = time.monotonic() + DEADLINE
        while self.processes():  # pipes are closed a moment before the process is gone
            assert time.monotonic() < deadline, f"still there: {sorted(self.processes())}"
            os.sched_yield()
        self._gone = True
        return Said(self._process.returncode, out, err)

    def processes(self) -> set[int]:
        """The processes of this command that live: the driver and its workers."""
        if not os.path.exists("/proc/self/stat"):
            needs._missing("there is no /proc here to see processes in")
        found = set()
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                state, _, _, session = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.pid and state not in "ZX":
                    found.add(int(name))
        return found

    def workers(self) -> set[int]:
        return self.processes() - {self.pid}


def run(*words: str | os.PathLike[str]) -> Said:
    """``wds-tools`` to its end."""
    with Command(*words) as command:
        return command.finish()


@dataclass(frozen=True)
class Traced:
    """A command that ran under strace: how it ended, and its system calls, as strace writes them."""

    said: Said
    calls: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.said}", *self.calls[-5:]])


@contextlib.contextmanager
def tracing(command: Command, log: Path, calls: str, inject: str = "", path: str = "") -> Iterator[None]:
    """Have strace log these system ``calls`` of a held command, and spoil some as its ``--inject`` says; let it go on.

    With ``path``, only those calls that concern this path.
    """
    words = [needs.strace(), "-f", "-y", "-o", os.fspath(log), "-e", f"trace={calls}", "-p", str(command.pid)]
    words += ["-e", f"inject={inject}"] if inject else []
    words += ["-P", path] if path else []
    os.waitid(os.P_PID, command.pid, os.WSTOPPED | os.WNOWAIT)
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        first = strace.stderr.readline()
        assert "attached" in first, first
        command.signal(signal.SIGCONT)
        yield
        strace.communicate(timeout=DEADLINE)


def traced(log: Path, calls: str, *words: str | os.PathLike[str], inject: str = "", path: str = "") -> Traced:
    """Run ``wds-tools`` under strace to its end, see `tracing`.

    Calls are counted in each process from the moment when everything is loaded and nothing is done yet.
    """
    with Command(*words, held=True) as command, tracing(command, log, calls, inject, path):
        said = command.finish()
    lines = [line.partition(" ")[2].strip() for line in log.read_text(errors="replace").splitlines()]
    return Traced(said, tuple(line for line in lines if re.match(r"\w+\(", line)))


def steps(undisturbed: Traced, folder: Path) -> dict[str, list[int]]:
    """Which of its calls concern ``folder``: for each kind of call, their numbers as strace counts them."""
    counts: Counter[str] = Counter()
    found: dict[str, list[int]] = {}
    for line in undisturbed.calls:
        call = line.partition("(")[0]
        counts[call] += 1
        if re.search(rf'[<"]{re.escape(os.fspath(folder))}[/>"]', line):
            found.setdefault(call, []).append(counts[call])
    return found


def assert_same(folder: Path, expected: Mapping[str, bytes]) -> None:
    """Every file, hidden ones too, equal byte for byte, and no folder more."""
    found = trees.snapshot(folder)
    missing, more = sorted(expected.keys() - found), sorted(found.keys() - expected)
    different = sorted(name for name in expected.keys() & found if expected[name] != found[name])
    assert (missing, more, different) == ([], [], [])
    folders = {os.path.dirname(name) for name in expected} - {""}
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_dir()} == folders


def assert_nothing_looks_whole(folder: Path, *, others: bool = False) -> None:
    """There is no manifest, or what it lists is there to the last byte; with ``others``, perhaps beside half a split."""
    if (folder / "info.json").exists():
        found = verify_dataset(folder, workers=0).problems
        if others:
            found = [
                problem for problem in found if problem.shard != "sizes.json" and "no split" not in problem.message
            ]
        assert not found, found


def standing(folder: Path) -> dict[str, tuple[int, int]]:
    """Each shard that has a receipt, or that the manifest lists, and which file it is: inode and time."""
    names = {path.stem for path in folder.glob(".wds_tools/*/*.receipt")}
    if (folder / "info.json").exists():
        names |= {path.stem for path in folder.glob("*.tar")}
    return identities(folder, names)


def identities(folder: Path, names: set[str]) -> dict[str, tuple[int, int]]:
    status = {name: (folder / f"{name}.tar").stat() for name in names}
    return {name: (found.st_ino, found.st_mtime_ns) for name, found in status.items()}


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """A file system in memory at ``folder``, mounted with ``options``."""
    needs.root()
    folder.mkdir(exist_ok=True)
    words = [needs.tool("mount"), "-t", "tmpfs", "-o", ",".join(options), "tmpfs", os.fspath(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        needs._missing(f"nothing can be mounted here ({done.stderr.strip()})")
    try:
        yield folder
    finally:
        subprocess.run([needs.tool("umount"), "-l", os.fspath(folder)], check=True)


def waits_for_a_lock(pid: int) -> bool:
    """Whether the kernel keeps this process waiting for a file's lock."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        needs._missing("there is no /proc/locks here to see who waits")
        raise
    return any("->" in line and str(pid) in line.split() for line in lines)
