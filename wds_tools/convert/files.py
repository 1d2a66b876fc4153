"""The origin of trees and tables: every field is a file of its own, below one folder or anywhere by its whole path."""

from __future__ import annotations

import errno
import os

from wds_tools.errors import SampleError, SourceChangedError

_OPEN = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_DIR_FD = os.open in os.supports_dir_fd


class FileOrigin:
    """The files below ``root``, which is opened once, so that each file costs three system calls and no walk to it."""

    images = True

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder: int | None = None
        # The whole path for systems that cannot open relative to a folder.
        self._prefix = "" if _DIR_FD else root + os.sep

    def __enter__(self) -> FileOrigin:
        if _DIR_FD:
            try:
                self._folder = os.open(self._root, os.O_RDONLY)
            except OSError as error:
                raise SourceChangedError(
                    f"source {self._root!r} cannot be opened any more ({error.strerror}); run again when it is back"
                ) from error
        return self

    def __exit__(self, *error: object) -> None:
        if self._folder is not None:
            os.close(self._folder)

    def read(self, path: str, size: int, mtime_ns: int, at: str = "") -> bytes:
        """The bytes of a file, which must be as the plan saw it."""
        try:
            fd = os.open(self._prefix + path, _OPEN, dir_fd=self._folder)
            try:
                status = os.fstat(fd)
                # One byte more than expected, to notice that a file has grown.
                data = os.read(fd, size + 1)
                while len(data) < size and (more := os.read(fd, size + 1 - len(data))):
                    data += more
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
                raise SourceChangedError(
                    f"{path!r} is gone since the plan was made; run again for a new plan"
                ) from error
            raise SampleError(f"unreadable: {error.strerror}", repr(path)) from error
        if len(data) != size or status.st_mtime_ns != mtime_ns:
            now = f"{status.st_size} bytes now" if status.st_size != size else "other content now"
            raise SourceChangedError(
                f"{path!r} changed since the plan was made ({size} bytes then, {now}); run again for a new plan"
            )
        return data
