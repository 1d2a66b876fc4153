"""One conversion at a time in one place.

The lock is an advisory one of the kernel's on a file in the workspace, held by the driver and, through the fork, by its
workers, so it is gone when the last of them is. Tasks of one array share it, and take a second one for as long as they
bring the manifest up to date. A holder that is dead by its process id may leave workers that are just ending; those few
moments are waited for. Where the file system has no locks (some cluster file systems), and on Windows, two conversions
at once write the same bytes, or one fails because the other removed its temporary file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator

from wds_tools.convert.claim import manifest_turn
from wds_tools.convert.workspace import FOLDER
from wds_tools.errors import TargetBusyError
from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore, store_error

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

_LOCK = f"{FOLDER}/lock"
_MANIFEST_LOCK = f"{FOLDER}/manifest.lock"
_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 30.0
_HOLDER_BYTES = 300  # a process id and a host's name, filled up with spaces
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


@contextlib.contextmanager
def target_lock(store: Store, *, shared: bool = False, patience: float | None = None) -> Iterator[None]:
    """Hold the dataset at ``store`` for this process, or `TargetBusyError`.

    ``shared`` goes together with others who share, and waits for one who does not. Who wants it alone waits ``patience``
    seconds; by default not at all for a holder that lives, and a while for what a dead one left. Other stores than local
    folders have no locks; there `convert.claim` sees to it that two conversions at once write the same bytes.
    """
    if fcntl is None or not isinstance(store, LocalStore):
        yield
        return
    with _held(store.url(_LOCK), fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB, patience):
        try:
            yield
        finally:
            if not shared:
                with contextlib.suppress(OSError):
                    os.unlink(store.url(_LOCK))
                    with contextlib.suppress(FileNotFoundError):  # it is there after a kill only
                        os.unlink(store.url(_MANIFEST_LOCK))
                    os.rmdir(store.url(FOLDER))


@contextlib.contextmanager
def manifest_lock(store: Store, holder: str) -> Iterator[None]:
    """Hold the manifest for as long as it takes to bring it up to date. Only for who holds the dataset.

    ``holder`` is the part of the dataset that is asked for, which tells those who ask in a bucket apart.
    """
    if not isinstance(store, LocalStore):
        with manifest_turn(store, holder):
            yield
        return
    if fcntl is None:
        yield
        return
    with _held(store.url(_MANIFEST_LOCK), fcntl.LOCK_EX, None):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(store.url(_MANIFEST_LOCK))


@contextlib.contextmanager
def _held(path: str, how: int, patience: float | None) -> Iterator[None]:
    try:
        fd = _acquire(path, how, patience)
    except OSError as error:
        raise store_error(error, path, "write") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # nothing in it is needed any more
            os.close(fd)


def _acquire(path: str, how: int, patience: float | None) -> int:
    started = time.monotonic()
    while True:
        waited = time.monotonic() - started
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            if waited > _PATIENCE_SECONDS:
                raise
            continue  # the last holder removed the folder after we made it
        holder = None
        try:
            if _lock(fd, how, path):
                # Of those who share, the last one to come is written down.
                os.pwrite(fd, f"{os.getpid()} {socket.gethostname()}\n".encode().ljust(_HOLDER_BYTES), 0)
                return fd
        except BlockingIOError:
            holder = os.pread(fd, _HOLDER_BYTES, 0).decode("utf-8", "replace").split()
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        if holder is None:
            continue
        lives = _lives(holder)
        if (lives and patience is None) or waited > (_PATIENCE_SECONDS if patience is None else patience):
            who = f" (process {holder[0]} on {holder[1]})" if lives else ""
            raise TargetBusyError(
                f"another conversion is writing to {os.path.dirname(os.path.dirname(path))!r}{who}; "
                "wait for it, or stop it and run again"
            )
        time.sleep(_POLL_SECONDS)


def _lock(fd: int, how: int, path: str) -> bool:
    """Whether the lock is ours now, and not one on a file that its last holder removed after we opened it."""
    try:
        fcntl.flock(fd, how)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        return os.stat(path).st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False


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
