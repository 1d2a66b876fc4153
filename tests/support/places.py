"""One folder of a few files behind a server that misbehaves on request, and the store that reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import streams
from wds_tools.store.http import HttpStore
from wds_tools.store.options import StoreOptions

DATA = bytes(range(256)) * 1000  # 256,000 bytes: four requests of a stream
CHUNK = 1 << 16
FAST = StoreOptions(backoff=0, retries=3, chunk_size=CHUNK)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[streams.Server]:
    (tmp_path / "a.bin").write_bytes(DATA)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.bin").write_bytes(b"deep")
    with streams.served(tmp_path) as made:
        yield made


@pytest.fixture
def store(server: streams.Server) -> HttpStore:
    return HttpStore(server.url, FAST)
