"""A store whose calls are counted and slowed down, to see what others ask of it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import BinaryIO

from wds_tools.store.base import Chunk, Store, Version


class Watched:
    """``store``, with every call noted in ``calls`` (name of the call, then of what was asked for), ``delay`` seconds later.

    Pickles, like any store; each process has its own notes.
    """

    def __init__(self, store: Store, delay: float = 0.0) -> None:
        self.store = store
        self.delay = delay
        self.calls: list[tuple[object, ...]] = []

    def _note(self, *call: object) -> Store:
        self.calls.append(call)
        time.sleep(self.delay)
        return self.store

    def url(self, name: str = "") -> str:
        return self.store.url(name)

    def size(self, name: str) -> int:
        return self._note("size", name).size(name)

    def version(self, name: str) -> Version:
        return self._note("version", name).version(name)

    def read(self, name: str, start: int = 0, length: int | None = None, version: Version | None = None) -> bytes:
        return self._note("read", name, start, length).read(name, start, length, version)

    def stream(self, name: str, start: int = 0, version: Version | None = None) -> BinaryIO:
        return self._note("stream", name, start).stream(name, start, version)

    def list(self, prefix: str = "") -> list[str]:
        return self._note("list", prefix).list(prefix)

    def write_atomic(self, name: str, chunks: Iterable[Chunk], *, durable: bool = True) -> None:
        self._note("write_atomic", name).write_atomic(name, chunks, durable=durable)

    def delete(self, name: str) -> None:
        self._note("delete", name).delete(name)
