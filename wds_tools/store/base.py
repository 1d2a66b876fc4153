"""What every place that holds bytes can do.

A name is relative to the store's root, plain text, and uses ``/``. Errors are `wds_tools.errors.StoreError`, with
`NotFoundError` for a missing name; each message names the place in full, without secrets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO, Protocol, TypeAlias

Chunk: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Version:
    """Which bytes a name stands for: their length, and whatever the store tells them apart by, empty if nothing."""

    size: int
    tag: str = ""


class Store(Protocol):
    """A local folder, an HTTP server, or a bucket. Instances pickle, cross a fork, and serve many threads at once.

    Readers who come back to a name ask for its `version` once and hand it in with every read: bytes of another version
    are then a `ChangedError`, and never mixed with those. A single read or stream holds together by itself.
    """

    def url(self, name: str = "") -> str:
        """How messages and samples name ``name``."""

    def size(self, name: str) -> int:
        """Length in bytes."""

    def version(self, name: str) -> Version:
        """What ``name`` stands for now. Costs a remote store one request."""

    def read(self, name: str, start: int = 0, length: int | None = None, version: Version | None = None) -> bytes:
        """The bytes from ``start``: exactly ``length`` of them, or all. Fewer is an error, never a short answer."""

    def stream(self, name: str, start: int = 0, version: Version | None = None) -> BinaryIO:
        """A readable file from ``start`` on; the caller closes it."""

    def list(self, prefix: str = "") -> list[str]:
        """The names that begin with ``prefix``, sorted: files and folders of one level, which the last ``/`` in it ends."""

    def write_atomic(self, name: str, chunks: Iterable[Chunk], *, durable: bool = True) -> None:
        """Write all chunks under ``name``, which readers see whole or not at all.

        A chunk may be reused by its maker once the next one is asked for. ``durable`` waits until the bytes
        would survive a power cut.
        """

    def delete(self, name: str) -> None:
        """Remove ``name``; a missing name is no error."""
