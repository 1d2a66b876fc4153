"""What every place that holds bytes can do.

A name is relative to the store's root and uses ``/``. Errors are `wds_tools.errors.StoreError`, with
`NotFoundError` for a missing name; each message names the place in full, without secrets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO, Protocol, TypeAlias

Chunk: TypeAlias = bytes | bytearray | memoryview


class Store(Protocol):
    """A local folder, an HTTP server, or a bucket. Instances pickle, and may cross a fork."""

    def url(self, name: str = "") -> str:
        """How messages and samples name ``name``."""

    def size(self, name: str) -> int:
        """Length in bytes."""

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """The bytes from ``start``: exactly ``length`` of them, or all. Fewer is an error, never a short answer."""

    def stream(self, name: str, start: int = 0) -> BinaryIO:
        """A readable file from ``start`` on; the caller closes it."""

    def list(self, prefix: str = "") -> list[str]:
        """The names that begin with ``prefix``, sorted; a local folder's own level only."""

    def write_atomic(self, name: str, chunks: Iterable[Chunk], *, durable: bool = True) -> None:
        """Write all chunks under ``name``, which readers see whole or not at all.

        A chunk may be reused by its maker once the next one is asked for. ``durable`` waits until the bytes
        would survive a power cut.
        """

    def delete(self, name: str) -> None:
        """Remove ``name``; a missing name is no error."""
