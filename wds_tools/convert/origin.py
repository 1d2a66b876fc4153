"""Where the bytes of entries are read from: one small class for each kind of source.

The plan says of every entry where it lies; an origin is opened in the worker that makes a shard, once a shard, and reads
what the plan says. The bytes must be those that the plan was made from: each origin says `SourceChangedError` if they are not.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import BinaryIO, Protocol

from wds_tools.errors import SampleError, SourceChangedError


class Origin(Protocol):
    """An open source.

    ``images`` tells whether the first field of every sample has to be an image: where it has not, as in shards that others
    made, a field that is none by its name is taken as it is.
    """

    images: bool

    def __enter__(self) -> Origin: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def read(self, path: str, size: int, mtime_ns: int, at: str) -> bytes:
        """The ``size`` bytes of the entry, or sibling, with this ``path`` and place (see `entries.Entry`).

        Raises `SampleError` for what cannot be read and `SourceChangedError` for what is not as it was planned.
        """


def open_unchanged(path: str, mtime_ns: int) -> BinaryIO:
    """The file at ``path``, opened for reading, if it is the one that the plan was made from."""
    try:
        file = open(path, "rb")  # noqa: SIM115 (the caller's)
    except FileNotFoundError as error:
        raise SourceChangedError(f"{path!r} is gone since the plan was made; run again for a new plan") from error
    except OSError as error:
        raise SampleError(f"unreadable: {error.strerror}", repr(path)) from error
    if os.fstat(file.fileno()).st_mtime_ns != mtime_ns:
        file.close()
        raise SourceChangedError(f"{path!r} changed since the plan was made; run again for a new plan")
    return file
