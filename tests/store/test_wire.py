"""Requests that are refused, put off, sent elsewhere, or meant for a server that cannot prove who it is."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import certificates, streams
from tests.support.places import DATA, FAST, server, store
from tests.support.servers import free_port
from wds_tools.errors import NotFoundError, OptionError, StoreError
from wds_tools.store.http import HttpStore
from wds_tools.store.options import StoreOptions
from wds_tools.store.retry import Timing

__all__ = ["server", "store"]


# ── 37: refused ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", [404, 410])
def test_fault_37_what_is_not_there_is_not_found_at_once(store: HttpStore, server: streams.Server, code: int) -> None:
    server.always = streams.status(code)
    for ask in (store.size, store.read, store.stream):
        with pytest.raises(NotFoundError, match=rf"/nothing does not exist \(HTTP {code}\)"):
            ask("nothing")
    assert len(server.requests) == 3


@pytest.mark.parametrize("code", [400, 401, 403, 304, 405, 206 + 99, 501])
def test_fault_37_a_refusal_is_told_at_once(store: HttpStore, server: streams.Server, code: int) -> None:
    server.always = streams.status(code)
    with pytest.raises(StoreError, match=f"HTTP {code}"):
        store.read("a.bin", 0, 5)
    assert len(server.requests) == 1


# ── 32: busy ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_fault_32_a_busy_server_is_asked_again(store: HttpStore, server: streams.Server, code: int) -> None:
    server.script.extend([streams.status(code), streams.status(code, Retry_After="0")])
    assert store.read("a.bin", 1, 9) == DATA[1:10]
    assert len(server.requests) == 3


def test_fault_32_the_server_says_how_long_to_wait(store: HttpStore, server: streams.Server) -> None:
    waits: list[float] = []
    store.timing = Timing(sleep=waits.append, draw=lambda: 0.5)
    busy = [streams.status(503, Retry_After=value) for value in ("7", "86400", "nonsense")]
    server.script.extend(busy)
    assert store.size("a.bin") == len(DATA)
    assert waits == [7, 600, 0]
    server.script.extend([streams.status(429, Retry_After="Thu, 01 Jan 2099 00:00:00 GMT")])
    assert store.size("a.bin") == len(DATA)
    assert waits[3:] == [600]


def test_fault_32_waits_grow_and_differ(server: streams.Server) -> None:
    waits: list[float] = []
    draws = iter([0.0, 0.9, 0.5])
    store = HttpStore(server.url, replace(FAST, backoff=1.0))
    store.timing = Timing(sleep=waits.append, draw=lambda: next(draws))
    server.script.extend([streams.status(503)] * 3)
    store.size("a.bin")
    assert waits == [0, 1.8, 2]


def test_fault_32_a_server_that_stays_busy_is_given_up(store: HttpStore, server: streams.Server) -> None:
    server.always = streams.status(503)
    with pytest.raises(StoreError, match=rf"a\.bin: HTTP 503; given up after {FAST.retries + 1} attempts in a row"):
        store.size("a.bin")
    assert len(server.requests) == FAST.retries + 1


def test_a_server_that_is_not_there_is_given_up() -> None:
    store = HttpStore(f"http://127.0.0.1:{free_port()}", FAST)
    with pytest.raises(
        StoreError, match=r"/a\.bin: no connection, the server is down or the address is wrong; given up"
    ):
        store.size("a.bin")


def test_a_server_that_comes_back_is_read_on(server: streams.Server) -> None:
    """It is down when a transfer breaks, and up again when it is next asked: the rest comes from the new one."""
    store = HttpStore(server.url, FAST)
    port = int(server.url.rpartition(":")[2])
    again: list[streams.Server] = []

    def restart(seconds: float) -> None:
        if len(waits) == 2:
            again.append(streams.Server(server.root, port=port).__enter__())
        waits.append(seconds)

    waits: list[float] = []
    store.timing = Timing(sleep=restart)
    server.script.extend([streams.cut(100_000)])
    with store.stream("a.bin") as file:
        begin = file.read(50_000)
        server.__exit__()
        rest = file.read()
    assert begin + rest == DATA
    assert len(waits) == 3
    again[0].__exit__()


# ── 38: redirects ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_to_another_path_is_followed(store: HttpStore, server: streams.Server, code: int) -> None:
    server.script.extend(
        [streams.moved("/deep/b.bin", code), streams.honest, streams.moved(f"{server.url}/a.bin", code)]
    )
    assert store.size("x") == 4
    assert store.read("y", 2, 3) == DATA[2:5]
    assert server.ranges() == ["bytes=0-0", "bytes=0-0", "bytes=2-4", "bytes=2-4"]


def test_fault_38_five_redirects_are_followed_and_no_more(store: HttpStore, server: streams.Server) -> None:
    server.script.extend([streams.moved("/a.bin")] * 5)
    assert store.size("x") == len(DATA)
    server.requests.clear()
    server.always = streams.moved("/a.bin")
    with pytest.raises(StoreError, match=r"more than 5 redirects"):
        store.size("a.bin")
    assert len(server.requests) == 6


@pytest.mark.parametrize("to", ["file:///etc/passwd", "ftp://host/x"])
def test_fault_38_a_redirect_out_of_http_is_refused(store: HttpStore, server: streams.Server, to: str) -> None:
    server.always = streams.moved(to)
    with pytest.raises(StoreError, match="is not followed"):
        store.size("a.bin")


def test_a_redirect_to_nowhere_is_refused(store: HttpStore, server: streams.Server) -> None:
    server.always = streams.moved("http://[half")
    with pytest.raises(StoreError, match=r"a\.bin: the server redirects to what is no address"):
        store.size("a.bin")
    server.always = streams.status(302)
    with pytest.raises(StoreError, match=r"HTTP 302"):
        store.size("a.bin")


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> certificates.Authority:
    return certificates.authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def secure(authority: certificates.Authority, tmp_path: Path) -> Iterator[streams.Server]:
    (tmp_path / "a.bin").write_bytes(DATA)
    with streams.served(tmp_path, authority.good) as server:
        yield server


def test_over_tls_bytes_are_the_same(secure: streams.Server, authority: certificates.Authority) -> None:
    store = HttpStore(secure.url, replace(FAST, ca_file=authority.file))
    assert store.read("a.bin") == DATA
    secure.script.extend([streams.cut(100)])
    assert store.read("a.bin", 0, 1000) == DATA[:1000]


def test_fault_38_a_redirect_from_https_to_http_is_refused(
    secure: streams.Server, authority: certificates.Authority, server: streams.Server
) -> None:
    store = HttpStore(secure.url, replace(FAST, ca_file=authority.file))
    secure.script.extend([streams.moved(f"{server.url}/a.bin")])
    with pytest.raises(StoreError, match="redirects from https to http, which is not followed"):
        store.size("a.bin")
    assert server.requests == []
    server.script.extend([streams.moved(f"{secure.url}/a.bin")])
    assert HttpStore(server.url, replace(FAST, ca_file=authority.file)).size("a.bin") == len(DATA)


def test_a_server_nobody_vouches_for_is_refused_at_once(secure: streams.Server) -> None:
    with pytest.raises(StoreError, match=r"a\.bin: its certificate cannot be trusted .*ca_file") as caught:
        HttpStore(secure.url, FAST).read("a.bin")
    assert "given up" not in str(caught.value)
    assert secure.requests == []


def test_a_certificate_of_another_host_is_refused(authority: certificates.Authority, tmp_path: Path) -> None:
    with streams.served(tmp_path, authority.other) as server:
        with pytest.raises(StoreError, match="its certificate cannot be trusted"):
            HttpStore(server.url, replace(FAST, ca_file=authority.file)).read("a.bin")
        assert server.requests == []


def test_a_file_that_holds_no_certificate_is_said(tmp_path: Path) -> None:
    (tmp_path / "odd.pem").write_text("nothing of the kind")
    with pytest.raises(OptionError, match=r"odd\.pem.*no file of certificates"):
        StoreOptions(ca_file=tmp_path / "odd.pem")


def test_plain_words_from_a_server_of_something_else_are_an_error() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        # It accepts and says nothing at all.
        store = HttpStore(f"https://127.0.0.1:{listener.getsockname()[1]}", replace(FAST, timeout=0.1, retries=1))
        with pytest.raises(StoreError, match=r"given up after 2 attempts"):
            store.size("a.bin")
