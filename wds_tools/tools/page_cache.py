"""What of a file the kernel holds in memory, and how to have it let go: so that a read can be called cold or warm.

Nothing here promises anything. Dropping is advice, which pages not yet written to the disk do not heed, nor some file
systems; so it is looked at afterwards whether it worked. Without Linux's calls the answer is that nothing is known.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

PROBES = 8  # places of a file that are looked at
_PAGE = 4096


def cached_share(paths: Iterable[str]) -> float | None:
    """The part of these files, 0 to 1, that is in the page cache, from a few places of each; None if that cannot be told."""
    found = [answer for path in paths for answer in _probe(path)]
    if not found or None in found:
        return None
    return sum(map(bool, found)) / len(found)


def _probe(path: str) -> list[bool | None]:
    if not hasattr(os, "RWF_NOWAIT"):
        return [None]
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return [None]
    try:
        size = os.fstat(fd).st_size
        places = {size * (2 * number + 1) // (2 * PROBES) // _PAGE for number in range(PROBES)} if size else set()
        # Backwards: a kernel may begin to read what lies behind the place that it was asked for.
        return [_is_cached(fd, place * _PAGE) for place in sorted(places, reverse=True)]
    finally:
        os.close(fd)


def _is_cached(fd: int, offset: int) -> bool | None:
    try:
        os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:  # it would have to wait for the disk
        return False
    except OSError:  # the file system knows no such question
        return None
    return True


def drop(paths: Iterable[str]) -> None:
    """Ask the kernel to forget these files."""
    _advise(paths, "POSIX_FADV_DONTNEED")


def fetch(paths: Iterable[str]) -> None:
    """Ask the kernel to read these files into its cache, in its own time."""
    _advise(paths, "POSIX_FADV_WILLNEED")


def _advise(paths: Iterable[str], advice: str) -> None:
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:  # whoever reads it will say so
            continue
        try:
            os.posix_fadvise(fd, 0, 0, getattr(os, advice))
        finally:
            os.close(fd)
