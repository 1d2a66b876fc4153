"""One folder of a few files behind a server that misbehaves on request, and the store that reads it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import streams
from wds_tools.store.http import HttpStore
from wds_tools.store.options import StoreOptions

DATA = random.Random(0).randbytes(256_000)  # four requests of a stream; nowhere like itself, so that no shift is missed
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
