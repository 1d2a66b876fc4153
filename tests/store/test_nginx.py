"""Over HTTP from nginx, as most people will: signed addresses that expire, limits, redirects, and what is asked for in all."""

from __future__ import annotations

import base64
import hashlib
import random
import time
from dataclasses import replace

import pytest

from tests.support.servers import Nginx
from wds_tools.errors import ChangedError, StoreError
from wds_tools.store.http import HttpStore
from wds_tools.store.options import StoreOptions

DATA = random.Random(0).randbytes(512_000)
FAST = StoreOptions(backoff=0, chunk_size=1 << 17)


@pytest.fixture(autouse=True)
def files(nginx: Nginx) -> None:
    (nginx.root / "a.tar").write_bytes(DATA)


def signed(nginx: Nginx, expires: float) -> str:
    digest = hashlib.md5(f"{int(expires)} {nginx.secret}".encode()).digest()
    return f"md5={base64.urlsafe_b64encode(digest).decode().rstrip('=')}&expires={int(expires)}"


def test_a_stream_asks_for_each_byte_once(nginx: Nginx) -> None:
    before = len(nginx.requests())
    with HttpStore(nginx.url, FAST).stream("a.tar") as file:
        assert file.read() == DATA
    step = FAST.chunk_size
    asked = [f"GET /a.tar 206 bytes={at}-{min(at + step, len(DATA)) - 1}" for at in range(0, len(DATA), step)]
    # Of the first, it is not known yet that the file ends; of the others it is.
    assert nginx.requests()[before:] == asked


def test_a_signed_address_lets_in_and_its_siblings_too(nginx: Nginx) -> None:
    (nginx.root / "a.idx").write_bytes(b"v1.2 0\n")
    store = HttpStore(f"{nginx.url}/signed?{signed(nginx, time.time() + 3600)}", FAST)
    assert store.read("a.tar") == DATA
    assert store.read("a.idx") == b"v1.2 0\n"


def test_fault_36_an_address_that_has_expired_is_refused_at_once_without_showing_it(nginx: Nginx) -> None:
    query = signed(nginx, time.time() - 10)
    before = len(nginx.requests())
    with pytest.raises(StoreError, match=r"/signed/a\.tar: .*HTTP 403.*get a new one") as caught:
        HttpStore(f"{nginx.url}/signed?{query}", FAST).read("a.tar")
    assert len(nginx.requests()) == before + 1
    assert query[4:20] not in str(caught.value)


def test_fault_37_a_wrong_signature_is_refused(nginx: Nginx) -> None:
    query = signed(nginx, time.time() + 3600).replace("md5=", "md5=x")
    with pytest.raises(StoreError, match="HTTP 403"):
        HttpStore(f"{nginx.url}/signed?{query}", FAST).read("a.tar")


def test_fault_32_a_limited_server_is_waited_for(nginx: Nginx) -> None:
    store = HttpStore(f"{nginx.url}/limited", replace(FAST, backoff=0.05, patience=0.2, retries=20))
    before = len(nginx.requests())
    assert [store.read("a.tar", at, 10) for at in range(3)] == [DATA[at : at + 10] for at in range(3)]
    assert any(" 429 " in line for line in nginx.requests()[before:])


def test_redirects_are_followed_with_their_ranges(nginx: Nginx) -> None:
    assert HttpStore(f"{nginx.url}/moved", FAST).read("a.tar", 5, 100) == DATA[5:105]


def test_fault_38_a_redirect_loop_ends(nginx: Nginx) -> None:
    with pytest.raises(StoreError, match=r"/loop/a\.tar: more than 5 redirects"):
        HttpStore(f"{nginx.url}/loop", FAST).read("a.tar")


def test_fault_33_nginx_itself_refuses_another_version(nginx: Nginx) -> None:
    store = HttpStore(nginx.url, FAST)
    version = store.version("a.tar")
    (nginx.root / "a.tar").write_bytes(DATA + b"more")
    before = len(nginx.requests())
    with pytest.raises(ChangedError, match="other bytes under this name now"):
        store.read("a.tar", 5, 10, version)
    assert nginx.requests()[before:] == ["GET /a.tar 412 bytes=5-14"]
