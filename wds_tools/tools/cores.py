"""How many processor cores this process may use: its affinity, and the share that a container leaves it.

A container's limit is no affinity: the kernel shows every core and stops the process when its time is used up.
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path, PurePosixPath


def usable_cores() -> int:
    """Cores of this process, at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(count, math.ceil(cpu_quota() or count)), 1)


def cpu_quota(root: str | os.PathLike[str] = "/") -> float | None:
    """Cores' worth of time that Linux control groups, versions 1 and 2, leave this process; None without a limit.

    ``root`` is where ``proc`` and ``sys`` are. A group is bound by the limits of those above it as well.
    """
    place = Path(root)
    quotas = []
    for line in _text(place / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = place / "sys/fs/cgroup" / ("cpu" if controllers else "")
        path = PurePosixPath(group.lstrip("/"))
        # In a container the path may be the host's, of which only the root is to be seen.
        for part in (path, *path.parents):
            quotas.append(_quota_of(folder / part, bool(controllers)))
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_of(folder: Path, old: bool) -> float | None:
    if old:
        words = [_text(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    else:
        words = _text(folder / "cpu.max").split()
    if len(words) != 2 or not all(word.isdigit() and int(word) for word in words):  # "max", -1, or not there
        return None
    return int(words[0]) / int(words[1])


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""
