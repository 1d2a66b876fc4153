"""When to try again, and how long to wait before: exponential backoff with full jitter.

The rule is a function of numbers. `Attempts` goes by it for one operation, with the clock, the sleep and the draw handed
in. A server that says how long to wait is obeyed, with jitter on top, so that its clients do not come back as one.
Full jitter is described in "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import email.utils
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from wds_tools.errors import StoreError
from wds_tools.store.options import StoreOptions

TRANSIENT = (429, 500, 502, 503, 504)
LONGEST_ASKED = 600.0  # seconds that a server may make us wait
PROGRESS = 1 << 14  # bytes that attempts must have brought to begin a new row: a byte each would never end

_LOG = logging.getLogger(__name__)
_JITTER = random.SystemRandom()  # neither the program's own random state, nor the same in all workers


def wait_before(failures: int, draw: float, options: StoreOptions, asked: float | None = None) -> float | None:
    """Seconds to wait after so many failures in a row, None to give up.

    ``draw`` is uniform in [0, 1). ``asked`` is what the server wants, in seconds.
    """
    if failures > options.retries:
        return None
    jitter = draw * min(options.backoff * 2.0 ** min(failures - 1, 60), options.patience)
    return jitter if asked is None else min(asked, LONGEST_ASKED) + jitter


def asked_wait(retry_after: str | None, now: float) -> float | None:
    """The seconds that a ``Retry-After`` header asks for: a number, or a date. None for no header or nonsense."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(email.utils.parsedate_to_datetime(text).timestamp() - now, 0.0)
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True)
class Timing:
    """Where time comes from and goes to."""

    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    draw: Callable[[], float] = _JITTER.random


TIMING = Timing()


class Attempts:
    """The attempts of one operation at ``where``, an address that may be shown."""

    def __init__(self, where: str, options: StoreOptions, timing: Timing = TIMING) -> None:
        self._where = where
        self._options = options
        self._timing = timing
        self._begin = timing.clock()
        self._row = 0
        self._brought = 0
        self.failures = 0

    def progress(self, count: int) -> None:
        """So many bytes came."""
        self._brought += count
        if self._brought >= PROGRESS:
            self._row = self._brought = 0

    def failed(self, reason: str, asked: float | None = None) -> None:
        """Wait before the next attempt, or raise the `StoreError` that sums them up."""
        self._row += 1
        self.failures += 1
        wait = wait_before(self._row, self._timing.draw(), self._options, asked)
        if wait is None:
            raise StoreError(
                f"{self._where}: {reason}; given up after {self._row} attempts in a row, "
                f"{self._timing.clock() - self._begin:.1f} s in all; check the server and the network, then run again"
            )
        _LOG.info("%s: %s; trying again in %.1f s", self._where, reason, wait)
        self._timing.sleep(wait)
