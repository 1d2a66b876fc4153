"""Where the bytes of entries are read from: one small class for each kind of source.

The plan says of every entry where it lies; an origin is opened in the worker that makes a shard, once a shard, and reads
what the plan says. The bytes must be those that the plan was made from: each origin says `SourceChangedError` if they are not.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType
from typing import BinaryIO, Generic, Protocol, TypeVar

from wds_tools.errors import SampleError, SourceChangedError

POOL_BYTES = 256_000_000
"""The most bytes of blocks that are shuffled together, and so have to be kept together while they are read."""

_PIECES, _PIECE = 64, 4096  # of a large file, that stand for its content
_WHOLE = 1 << 24  # bytes of a file that is read whole instead

Block = TypeVar("Block")


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


def pread(file: BinaryIO, length: int, offset: int) -> bytes:
    """``length`` bytes at ``offset``, fewer where the file ends."""
    file.seek(offset)
    return file.read(length)


def fingerprint(path: str) -> str:
    """A digest of a large file: its length, and 64 pieces of 4 KiB that lie evenly in it; of up to 16 MiB, all of it.

    It tells a file that was made anew. One in which a few bytes were changed in place may pass for the same.
    """
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(b"%d" % size)
        if size <= _WHOLE:
            digest.update(file.read(_WHOLE))
            return digest.hexdigest()
        for number in range(_PIECES):
            digest.update(pread(file, _PIECE, (size - _PIECE) * number // (_PIECES - 1)))
    return digest.hexdigest()


class Recent(Generic[Block]):
    """Blocks that were decoded, kept while they take at most ``most`` bytes; the least recently used goes first."""

    def __init__(self, most: int = POOL_BYTES) -> None:
        self._most = most
        self._kept: OrderedDict[object, tuple[Block, int]] = OrderedDict()
        self._size = 0

    def get(self, key: object, load: Callable[[], tuple[Block, int]]) -> Block:
        """The block called ``key``: the one that is kept, or what ``load`` answers with, beside its bytes."""
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = load()
            self._size += kept[1]
            while self._size > self._most and len(self._kept) > 1:
                self._size -= self._kept.popitem(last=False)[1][1]
        else:
            self._kept.move_to_end(key)
        return kept[0]
