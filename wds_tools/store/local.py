"""A folder of this machine.

A write goes to a hidden temporary file beside its target, is flushed to the disk, and only then takes the
target's name: whoever looks sees the old bytes, the new bytes, or nothing. A writer that fails removes its
temporary file; one that is killed leaves it, and `LocalStore.sweep` removes it later.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from wds_tools.errors import ChangedError, NotFoundError, StoreError
from wds_tools.store.base import Chunk, Version

_READ_ONLY = 0o444
_FLUSH = 8 << 20  # bytes between two hints to the disk that there is something to write
_TEMPORARY = re.compile(r".*\.[0-9a-f]{8}\.tmp", re.DOTALL)
_REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space and run again, what is complete is kept",
    errno.EDQUOT: "the disk quota is used up: free some space and run again, what is complete is kept",
    errno.EROFS: "the file system is read-only: choose another place",
    errno.EACCES: "permission denied: check the owner and the mode, or choose another place",
    errno.EPERM: "not permitted: check the owner and the mode, or choose another place",
    errno.EIO: "the disk reported an input/output error: check its health, then run again",
    errno.EFBIG: "the file system or a limit does not allow files of this size: use smaller shards (--max-size)",
    errno.ENOTDIR: "a part of this path is a file, not a folder: check the path",
    errno.EEXIST: "a part of this path is a file, not a folder: check the path",
    errno.EISDIR: "this is a folder, not a file: check the path",
    errno.ENOENT: "no such file or folder: check the path",
    errno.ELOOP: "its symbolic links lead in a circle: check the path",
    errno.EMFILE: "too many open files: raise the limit with 'ulimit -n', or use fewer workers",
    errno.ENAMETOOLONG: "the name is too long for this file system: choose a shorter one",
    errno.ESTALE: "the network file system has lost it: run again, and check the mount if it stays so",
}


def store_error(error: OSError, path: str, doing: str) -> StoreError:
    """The `StoreError` that says what ``error`` means for someone who was ``doing`` something to ``path``."""
    why = _REMEDIES.get(error.errno or 0) or error.strerror or str(error)
    kind = NotFoundError if error.errno == errno.ENOENT else StoreError
    return kind(f"cannot {doing} {path!r}: {why}")


@contextlib.contextmanager
def _told(path: str, doing: str) -> Iterator[None]:
    """Says what an `OSError` means, as `store_error` does."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise store_error(error, path, doing) from error


def write_all(fd: int, chunk: Chunk) -> None:
    """Write the whole of ``chunk``: the kernel may take less than it is offered (and does so near a full disk)."""
    written = os.write(fd, chunk)
    if written != len(chunk):
        view = memoryview(chunk)
        while written < len(view):
            written += os.write(fd, view[written:])


def _begin_flush(fd: int, start: int, length: int) -> None:
    """Let the disk begin with these bytes while the next are made, so that `os.fsync` has little left to wait for."""
    if hasattr(os, "posix_fadvise"):
        # Linux starts to write what is dirty; only what is on the disk already would leave the cache.
        os.posix_fadvise(fd, start, length, os.POSIX_FADV_DONTNEED)


def _version(status: os.stat_result) -> Version:
    """A file that is replaced is another file, or at least has another time."""
    return Version(status.st_size, f"{status.st_ino:x}-{status.st_mtime_ns:x}")


def _check(file: io.FileIO, path: str, expected: Version | None) -> None:
    if expected is not None and _version(os.fstat(file.fileno())) != expected:
        file.close()
        raise ChangedError(
            f"{path!r} is not the file that it was a moment ago; "
            "begin anew, after 'wds-tools index' if it was replaced on purpose"
        )


class _Raw(io.FileIO):
    """A file to read whose errors are told as all others are, whoever reads it."""

    def __init__(self, path: str) -> None:
        self._path = path
        super().__init__(path)

    def readinto(self, buffer: Any) -> int:
        with _told(self._path, "read"):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with _told(self._path, "read"):
            return super().readall()

    def close(self) -> None:
        with _told(self._path, "read"):
            super().close()


class LocalStore:
    """A folder as a `Store`. The folder need not exist before the first write."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(os.fspath(root))

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalStore) and other.root == self.root

    def __hash__(self) -> int:
        return hash(self.root)

    def url(self, name: str = "") -> str:
        return os.path.join(self.root, name) if name else self.root

    def size(self, name: str) -> int:
        path = self.url(name)
        try:
            return os.stat(path).st_size
        except OSError as error:
            raise store_error(error, path, "read") from error

    def version(self, name: str) -> Version:
        path = self.url(name)
        with _told(path, "read"):
            return _version(os.stat(path))

    def read(self, name: str, start: int = 0, length: int | None = None, version: Version | None = None) -> bytes:
        path = self.url(name)
        with _told(path, "read"), open(path, "rb", buffering=0) as file:
            _check(file, path, version)
            file.seek(start)
            if length is None:
                return file.readall()
            # Asked before, because a length that makes no sense would take as much memory.
            size = os.fstat(file.fileno()).st_size
            data = file.read(length) if start + length <= size else b""
            while 0 < len(data) < length and (more := file.read(length - len(data))):
                data += more
        if len(data) != length:
            raise StoreError(
                f"cannot read {path!r}: it ends at byte {size}, {start + length} were expected; "
                "fetch or convert it again"
            )
        return data

    def stream(self, name: str, start: int = 0, version: Version | None = None) -> BinaryIO:
        path = self.url(name)
        with _told(path, "read"):
            raw = _Raw(path)
            _check(raw, path, version)
            file = io.BufferedReader(raw, 1 << 16)
            file.seek(start)
        return file

    def list(self, prefix: str = "") -> list[str]:
        folder, start = os.path.split(prefix)
        path = os.path.join(self.root, folder)
        try:
            found = [name for name in os.listdir(path) if name.startswith(start)]
        except OSError as error:
            raise store_error(error, path, "list") from error
        return sorted(f"{folder}/{name}" if folder else name for name in found)

    def write_atomic(self, name: str, chunks: Iterable[Chunk], *, durable: bool = True) -> None:
        path = self.url(name)
        folder, base = os.path.split(path)
        temporary = os.path.join(folder, f".{base}.{secrets.token_hex(4)}.tmp")
        try:
            with _told(path, "write"):
                os.makedirs(folder, exist_ok=True)
                fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), _READ_ONLY)
            try:
                written = begun = 0
                for chunk in chunks:  # errors of making them are not ours to explain
                    with _told(path, "write"):
                        write_all(fd, chunk)
                    written += len(chunk)
                    if durable and written - begun >= _FLUSH:
                        _begin_flush(fd, begun, written - begun)
                        begun = written
                if durable:
                    with _told(path, "write"):
                        os.fsync(fd)
            finally:
                with _told(path, "write"):
                    os.close(fd)
            with _told(path, "write"):
                os.replace(temporary, path)
                if durable:
                    self.sync_folder(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def link(self, name: str, target: str) -> None:
        """Let ``name`` lead to ``target``, relative to its own folder; what was there of that name is replaced at once."""
        path = self.url(name)
        folder, base = os.path.split(path)
        temporary = os.path.join(folder, f".{base}.{secrets.token_hex(4)}.tmp")
        with _told(path, "write"):
            os.makedirs(folder, exist_ok=True)
            try:
                os.symlink(target, temporary)
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise

    def leads_to(self, name: str) -> str | None:
        """Where the link ``name`` leads; None for a file, and for nothing."""
        try:
            return os.readlink(self.url(name))
        except OSError:
            return None

    def exists(self, name: str) -> bool:
        """Whether anything is there of that name, a link that leads nowhere too."""
        return os.path.lexists(self.url(name))

    def is_folder(self, name: str) -> bool:
        return os.path.isdir(self.url(name))

    def let_edit(self, name: str) -> None:
        """Give the owner leave to write to ``name``, which files are made without."""
        path = self.url(name)
        with _told(path, "write"):
            os.chmod(path, _READ_ONLY | 0o200)

    def delete(self, name: str) -> None:
        path = self.url(name)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise store_error(error, path, "delete") from error

    def sweep(self, folder: str = "", prefix: str = "") -> None:
        """Remove the temporary files that killed writers of names with ``prefix`` left in ``folder``."""
        with contextlib.suppress(NotFoundError):
            for name in self.list(os.path.join(folder, f".{prefix}")):
                if _TEMPORARY.fullmatch(name):
                    self.delete(name)

    def remove_folder(self, name: str) -> None:
        """Remove a folder if it is empty; one that is not, or is not there, is no error."""
        with contextlib.suppress(OSError):
            os.rmdir(self.url(name))

    @staticmethod
    def sync_folder(folder: str) -> None:
        """Make renames in ``folder`` survive a power cut, where the platform can."""
        with contextlib.suppress(PermissionError, IsADirectoryError):
            fd = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(fd)
            except OSError as error:
                # Some network file systems cannot flush a folder; they order renames by themselves.
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                    raise
            finally:
                os.close(fd)
