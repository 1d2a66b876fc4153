"""Peers that take turns: processes that stay, each making one pass over its data when it is its turn.

Each peer starts, compiles and warms up once. Then come rounds: in every round each makes one pass while the others
wait, so that drifts of the machine meet them all. Processor time is that of all of a peer's processes, which says who does
less work even where others use the machine. What a peer says is described in peers/turn.py. A peer that fails, falls
silent or delivers something else than the rest is out, with its reason, and the rest go on.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import select
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.environments import ROOT, PeerError, last_line

WARM_SECONDS, TURN_SECONDS = 240, 120
# By so many grey levels may the mean of all pixels differ, where crops are random.
ALIKE = 4.0


@dataclass(frozen=True)
class Result:
    """What became of a side: a pass each, images per second and processor milliseconds an image; or why there are none."""

    rates: Sequence[float] = ()
    costs: Sequence[float] = ()
    fault: str | None = None

    @property
    def median(self) -> float | None:
        return statistics.median(self.rates) if self.rates else None


@dataclass
class Peer:
    """A process that takes turns. ``command`` may be a `PeerError`: then it is out from the start."""

    name: str
    command: Sequence[str] | PeerError
    counts_only: bool = False  # it delivers no pixels to compare
    rates: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    fault: str | None = None
    _process: subprocess.Popen[bytes] | None = None
    _messages: Any = None
    _pending: bytes = b""

    def warm_up(self) -> dict[str, Any] | None:
        """Start it, and wait until it has made a pass; what that pass delivered, or None if it is out."""
        if isinstance(self.command, PeerError):
            self.fault = str(self.command)
            return None
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,  # it is ended together with its workers
        )
        return self._guarded(WARM_SECONDS)

    def turn(self) -> None:
        """One pass, unless the peer is out."""
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(BrokenPipeError):  # what ended it is found where its answer is awaited
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        group = self._process.pid
        if self._guarded(TURN_SECONDS) is None:
            return
        before = processor_seconds(group)
        answer = self._guarded(TURN_SECONDS)
        if answer is not None:
            self.rates.append(answer["images"] / answer["seconds"])
            if before is not None:
                self.costs.append(1000 * ((processor_seconds(group) or before) - before) / answer["images"])

    def drop(self, fault: str | None) -> None:
        """End its processes; with a fault it is out."""
        self.fault = fault
        if fault is not None:
            self.rates.clear()
            self.costs.clear()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._messages.close()
            self._process = None

    def _guarded(self, seconds: float) -> dict[str, Any] | None:
        try:
            return self._answer(seconds)
        except PeerError as error:
            self.drop(str(error))
            return None

    def _answer(self, seconds: float) -> dict[str, Any]:
        """Its next line of JSON; other lines are what libraries print when they are imported."""
        deadline = time.monotonic() + seconds
        while True:
            line = self._line(deadline)
            if line.startswith(b"{"):
                answer: dict[str, Any] = json.loads(line)
                return answer

    def _line(self, deadline: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise PeerError("no answer in time")
            heard = os.read(self._process.stdout.fileno(), 65536)
            if not heard:
                self._messages.seek(0)
                raise PeerError(last_line(self._messages.read().decode(errors="replace")))
            self._pending += heard
        line, _, self._pending = self._pending.partition(b"\n")
        return line


def processor_seconds(group: int) -> float | None:
    """What the living processes of a group have used so far; None where the system does not tell."""
    total = None
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as file:
                words = file.read().rpartition(")")[2].split()
        except OSError:  # gone meanwhile
            continue
        if int(words[2]) == group:
            total = (total or 0.0) + (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return total


def take_turns(peers: Sequence[Peer], images: int, rounds: int) -> dict[str, Result]:
    """Warm all peers up, check that they deliver the same, and run ``rounds``; what became of each."""
    try:
        delivered = {peer.name: answer for peer in peers if (answer := peer.warm_up()) is not None}
        _drop_others(peers, delivered, images)
        os.sync()  # nobody pays for what was left to be written
        for number in range(rounds):
            # Who comes after whom changes too.
            for peer in peers if number % 2 == 0 else reversed(peers):
                peer.turn()
    finally:
        for peer in peers:
            peer.drop(peer.fault)
    return {peer.name: Result(tuple(peer.rates), tuple(peer.costs), peer.fault) for peer in peers}


def _drop_others(peers: Sequence[Peer], delivered: dict[str, dict[str, Any]], images: int) -> None:
    """Out with who did not deliver every image, as uint8, of the same shape and about the same brightness as the rest."""
    comparable = [answer for peer in peers if (answer := delivered.get(peer.name)) and not peer.counts_only]
    if not comparable:
        return
    mean = statistics.median(answer["mean"] for answer in comparable)
    shape = statistics.mode(tuple(answer["shape"]) for answer in comparable)
    for peer in peers:
        answer = delivered.get(peer.name)
        if answer is None:
            continue
        # A last batch of DALI's is filled up.
        wrong = not images <= answer["images"] < images + 128 or answer["dtype"] != "uint8"
        wrong |= tuple(answer["shape"]) != shape or (not peer.counts_only and abs(answer["mean"] - mean) > ALIKE)
        if wrong:
            peer.drop(
                f"it delivers something else: {json.dumps(answer)} where {images} images of mean {mean:.0f} are due"
            )
