"""One conversion at a time in one place.

The lock is an advisory one of the kernel's on a file in the workspace, held by the driver and, through the fork, by its
workers, so it is gone when the last of them is. Tasks of one array share it. A holder that is dead by its process id
may leave workers that are just ending; those few moments are waited for.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator

from wds_tools.convert.workspace import FOLDER
from wds_tools.errors import TargetBusyError
from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore, store_error

try:
    import fcntl
except ImportError:  # Windows: two conversions at once write the same bytes, or fail on rename
    fcntl = None  # type: ignore[assignment]

_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 30.0


@contextlib.contextmanager
def target_lock(store: Store, *, shared: bool = False) -> Iterator[None]:
    """Hold the dataset at ``store`` for this process, or `TargetBusyError`.

    ``shared`` goes together with others who share, and waits for one who does not. Stores other than local folders are
    not locked: there, two conversions at once write the same bytes.
    """
    if fcntl is None or not isinstance(store, LocalStore):
        yield
        return
    path = store.url(f"{FOLDER}/lock")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = _acquire(path, shared)
    except OSError as error:
        raise store_error(error, path, "write") from error
    try:
        yield
    finally:
        if not shared:
            with contextlib.suppress(OSError):
                os.unlink(path)
                os.rmdir(os.path.dirname(path))
        os.close(fd)


def _acquire(path: str, shared: bool) -> int:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 300, 0).decode("utf-8", "replace").split()
            os.close(fd)
            if _lives(holder) or time.monotonic() > deadline:
                who = f" (process {holder[0]} on {holder[1]})" if len(holder) == 2 else ""
                raise TargetBusyError(
                    f"another conversion is writing to {os.path.dirname(os.path.dirname(path))!r}{who}; "
                    "wait for it, or stop it and run again"
                ) from None
            time.sleep(_POLL_SECONDS)
            continue
        try:
            current = os.stat(path).st_ino == os.fstat(fd).st_ino
        except FileNotFoundError:
            current = False
        if current:
            if not shared:
                os.truncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
            return fd
        os.close(fd)  # the last holder removed the file between our open and our lock


def _lives(holder: list[str]) -> bool:
    """Whether the process that wrote itself into the lock runs, as far as this machine can tell."""
    if len(holder) != 2 or not holder[0].isdigit():
        return False
    if holder[1] != socket.gethostname():
        return True
    try:
        os.kill(int(holder[0]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
