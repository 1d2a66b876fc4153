"""Whole shards of another store, kept in a local folder that has a size.

A shard is fetched once for all processes of a machine, checked against the other store's version, and put in its place
whole; the least recently used ones make room for it. The cache is never needed: what does not fit, or a disk that is full
or broken, is read past, straight from the other store.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from wds_tools.errors import OptionError, StoreError
from wds_tools.store.base import Chunk, Store, Version
from wds_tools.store.local import LocalStore

try:
    import fcntl
except ImportError:  # Windows: two processes may fetch one shard twice, to the same bytes
    fcntl = None  # type: ignore[assignment]

_STEP = 1 << 20
_SUFFIX = ".tar"  # what is kept: everything else is small, and may change


class CacheStore:
    """``store`` through a cache of at most ``max_bytes`` at ``path``. Many processes, and unrelated jobs, may share one.

    The address and the version of a shard name its copy, so a shard that was replaced is fetched anew. Asking for the
    version is a request; readers who know it hand it in.
    """

    def __init__(self, store: Store, path: str | os.PathLike[str], max_bytes: int) -> None:
        if max_bytes < 1:
            raise OptionError(f"cache_bytes is {max_bytes}; it must be at least 1")
        self._store = store
        self._folder = LocalStore(os.path.expanduser(path))
        self._max_bytes = max_bytes

    @property
    def source(self) -> Store:
        """The store behind the cache."""
        return self._store

    def __repr__(self) -> str:
        return f"CacheStore({self._store!r}, {self._folder.root!r}, {self._max_bytes})"

    def url(self, name: str = "") -> str:
        return self._store.url(name)

    def size(self, name: str) -> int:
        return self._store.size(name)

    def version(self, name: str) -> Version:
        return self._store.version(name)

    def read(self, name: str, start: int = 0, length: int | None = None, version: Version | None = None) -> bytes:
        kept = self._kept(name, version)
        if kept is not None:
            with contextlib.suppress(StoreError):  # another process made room meanwhile, or the disk is broken
                return self._folder.read(kept, start, length)
        return self._store.read(name, start, length, version)

    def stream(self, name: str, start: int = 0, version: Version | None = None) -> BinaryIO:
        kept = self._kept(name, version)
        if kept is not None:
            with contextlib.suppress(StoreError):
                return self._folder.stream(kept, start)
        return self._store.stream(name, start, version)

    def local_path(self, name: str, version: Version | None = None) -> str | None:
        """The file of the whole copy, fetched if need be; None where there cannot be one, and this store reads past it.

        It may be removed at any time, to make room; who has it open reads on.
        """
        kept = self._kept(name, version)
        return None if kept is None else self._folder.url(kept)

    def find(self, name: str, version: Version) -> str | None:
        """The file of the whole copy if it is there already; it then counts as used now."""
        kept = self._copy_name(name, version)
        return self._folder.url(kept) if self._touch(kept) else None

    def list(self, prefix: str = "") -> list[str]:
        return self._store.list(prefix)

    def write_atomic(self, name: str, chunks: Iterable[Chunk], *, durable: bool = True) -> None:
        self._forget(name)
        self._store.write_atomic(name, chunks, durable=durable)

    def delete(self, name: str) -> None:
        self._forget(name)
        self._store.delete(name)

    def _forget(self, name: str) -> None:
        """What is written through this store is never read from an old copy, even one of the same size."""
        with contextlib.suppress(StoreError):
            self._folder.delete(self._copy_name(name, self._store.version(name)))

    def _copy_name(self, name: str, version: Version) -> str:
        identity = f"{self._store.url(name)} {version.size} {version.tag}"
        return hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:32] + _SUFFIX

    def _kept(self, name: str, version: Version | None) -> str | None:
        """The name of the whole copy in the cache, fetched if need be; None where the cache cannot have one."""
        if not name.endswith(_SUFFIX):
            return None
        version = version or self._store.version(name)
        kept = self._copy_name(name, version)
        if self._touch(kept):
            return kept
        if version.size > self._max_bytes:
            return None
        try:
            with self._one_at_a_time(kept):
                # Another process may have fetched it while this one waited.
                return kept if self._touch(kept) or self._fetch(name, kept, version) else None
        except StoreError:
            raise
        except OSError:  # a cache that cannot be used at all: no folder, no permission, read-only
            return None

    def _touch(self, kept: str) -> bool:
        """Whether the copy is there; it then counts as used now."""
        try:
            os.utime(self._folder.url(kept))
        except OSError:
            return False
        return True

    def _fetch(self, name: str, kept: str, version: Version) -> bool:
        """Copy the shard; errors of the other store are errors, those of the cache's disk make it answer False."""
        self._make_room(version.size)
        for last in (False, True):
            source = _Counted(self._store, name, version)
            try:
                self._folder.write_atomic(kept, source, durable=False)
            except StoreError:
                if source.failed:
                    raise
                if last:
                    return False
                self._make_room(self._max_bytes)  # the disk has less room than the cache may use
            else:
                break
        if source.count != version.size:
            self._folder.delete(kept)
            raise StoreError(
                f"{self._store.url(name)} has {version.size} bytes and {source.count} came; it changed meanwhile, run again"
            )
        self._make_room(0)  # others may have fetched other shards at the same time
        return True

    def _make_room(self, size: int) -> None:
        """Remove what was used longest ago, until ``size`` more bytes fit."""
        copies = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder.root) as found:
            for entry in found:
                if entry.name.endswith(_SUFFIX) and not entry.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat()
                        copies.append((status.st_mtime_ns, entry.name, status.st_size))
        total = sum(copy[2] for copy in copies)
        for _, name, its_size in sorted(copies):
            if total + size <= self._max_bytes:
                break
            with contextlib.suppress(StoreError):
                self._folder.delete(name)
            total -= its_size

    @contextlib.contextmanager
    def _one_at_a_time(self, kept: str) -> Iterator[None]:
        """Let one process fetch a shard while others wait; the kernel lets go of a killed one's lock."""
        os.makedirs(self._folder.root, exist_ok=True)
        path = self._folder.url(f".{kept}.lock")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            if fcntl is not None:
                fcntl.flock(fd, fcntl.LOCK_EX)
            with contextlib.suppress(StoreError):
                self._folder.sweep(prefix=kept)  # what a killed one began
            yield
        finally:
            os.close(fd)


class _Counted:
    """The chunks of a file in a store; tells whether reading them failed, and how many bytes there were."""

    def __init__(self, store: Store, name: str, version: Version) -> None:
        self._store = store
        self._name = name
        self._version = version
        self.count = 0
        self.failed = False

    def __iter__(self) -> Iterator[bytes]:
        try:
            with self._store.stream(self._name, 0, self._version) as file:
                while chunk := file.read(_STEP):
                    self.count += len(chunk)
                    yield chunk
        except StoreError:
            self.failed = True
            raise
