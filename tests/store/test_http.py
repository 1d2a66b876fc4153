"""An HTTP server that answers as it should, and servers that do not."""

from __future__ import annotations

import base64
import logging
import multiprocessing
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import streams
from wds_tools.errors import NotFoundError, OptionError, StoreError
from wds_tools.store import http
from wds_tools.store.http import HttpStore

DATA = bytes(range(256)) * 40  # 10,240 bytes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[streams.Server]:
    (tmp_path / "a.bin").write_bytes(DATA)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.bin").write_bytes(b"deep")
    with streams.served(tmp_path) as made:
        yield made


@pytest.fixture
def store(server: streams.Server, monkeypatch: pytest.MonkeyPatch) -> HttpStore:
    monkeypatch.setattr(http, "BACKOFF_SECONDS", 0.0)
    return HttpStore(server.url)


def read_elsewhere(store: HttpStore) -> bytes:
    return store.read("a.bin", 5, 10)


# ── what a store does ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("start", "length"), [(0, None), (0, 1), (100, 300), (10_239, 1), (10_000, None), (7, 0)])
def test_a_range_is_exactly_its_bytes(store: HttpStore, start: int, length: int | None) -> None:
    assert store.read("a.bin", start, length) == DATA[start:][:length]


def test_sizes_and_names_below_folders(store: HttpStore, server: streams.Server) -> None:
    assert (store.size("a.bin"), store.size("empty"), store.size("deep/b.bin")) == (len(DATA), 0, 4)
    assert (store.read("empty"), store.read("deep/b.bin")) == (b"", b"deep")
    assert HttpStore(f"{server.url}/deep/").read("b.bin") == b"deep"


def test_a_stream_is_read_in_bounded_requests(
    store: HttpStore, server: streams.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CHUNK", 4000)
    with store.stream("a.bin") as file:
        assert file.read() == DATA
    assert server.ranges() == ["bytes=0-3999", "bytes=4000-7999", "bytes=8000-10239"]
    with store.stream("a.bin", 9000) as file:
        assert (file.read(7), file.read(10_000), file.read(1)) == (DATA[9000:9007], DATA[9007:], b"")
    with store.stream("empty") as file:
        assert file.read() == b""


def test_bytes_past_the_end_are_an_error(store: HttpStore) -> None:
    with pytest.raises(StoreError, match=r"a\.bin"):
        store.read("a.bin", 10_000, 300)


def test_connections_are_kept(store: HttpStore, server: streams.Server) -> None:
    ports = set()
    honest = streams.honest
    server.always = lambda handler, path: (ports.add(handler.client_address), honest(handler, path))[1]  # type: ignore[func-returns-value]
    for _ in range(5):
        store.size("a.bin")
        store.read("a.bin", 3, 100)
    assert len(ports) == 1


@pytest.mark.parametrize("name", ["white space", "a#b", "a?b", "ä"])
def test_strange_names_are_quoted(store: HttpStore, server: streams.Server, name: str) -> None:
    server.always = streams.status(200)
    store.size(name)
    path = server.requests[0][1]
    assert path.isascii()
    assert not set(" #?") & set(path)


def test_what_a_server_cannot_do_is_refused(store: HttpStore) -> None:
    for ask in (store.list, lambda: store.write_atomic("x", []), lambda: store.delete("x")):
        with pytest.raises(StoreError, match="cannot be"):
            ask()


@pytest.mark.parametrize(
    "root", ["ftp://user:secret@host/x", "http://", "http:///x?secret", "host/x", "https://u:secret@/x"]
)
def test_what_is_no_address_is_refused(root: str) -> None:
    with pytest.raises(OptionError) as caught:
        HttpStore(root)
    assert "secret" not in str(caught.value)


# ── what servers do ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", [404, 410])
def test_fault_37_what_is_not_there_is_not_found_at_once(store: HttpStore, server: streams.Server, code: int) -> None:
    server.always = streams.status(code)
    for ask in (store.size, store.read, store.stream):
        with pytest.raises(NotFoundError, match=rf"/nothing does not exist \(HTTP {code}\)"):
            ask("nothing")
    assert len(server.requests) == 3


@pytest.mark.parametrize("code", [400, 401, 403, 304, 416])
def test_fault_37_a_refusal_is_told_at_once(store: HttpStore, server: streams.Server, code: int) -> None:
    server.always = streams.status(code)
    with pytest.raises(StoreError, match=f"HTTP {code}"):
        store.read("a.bin", 0, 5)
    assert len(server.requests) == 1


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_fault_32_a_busy_server_is_asked_again(
    store: HttpStore, server: streams.Server, code: int, method: str
) -> None:
    server.script.extend([streams.status(code), streams.status(code, Retry_After="0")])
    if method == "HEAD":
        assert store.size("a.bin") == len(DATA)
    else:
        assert store.read("a.bin", 1, 9) == DATA[1:10]
    assert server.counts() == {method: 3}


def test_fault_32_the_server_says_how_long_to_wait(
    store: HttpStore, server: streams.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(http.time, "sleep", waits.append)
    busy = [streams.status(503, Retry_After=value) for value in ("7", "86400", "nonsense")]
    server.script.extend(busy)
    assert store.size("a.bin") == len(DATA)
    assert waits == [7, http.PATIENCE_SECONDS, 0]


def test_fault_32_a_server_that_stays_busy_is_given_up(store: HttpStore, server: streams.Server) -> None:
    server.always = streams.status(503)
    with pytest.raises(StoreError, match=rf"a\.bin: no answer after {http.RETRIES + 1} attempts \(HTTP 503\)"):
        store.size("a.bin")
    assert len(server.requests) == http.RETRIES + 1


@pytest.mark.parametrize("after", [0, 1, 100, 299])
def test_fault_29_a_body_that_breaks_off_goes_on_at_the_byte(
    store: HttpStore, server: streams.Server, after: int
) -> None:
    server.script.extend([streams.cut(after), streams.cut(0)])
    assert store.read("a.bin", 1000, 300) == DATA[1000:1300]
    rest = f"bytes={1000 + after}-1299"
    assert server.ranges() == ["bytes=1000-1299", rest, rest]


def test_fault_29_a_connection_that_is_reset_is_made_again(store: HttpStore, server: streams.Server) -> None:
    server.script.extend([streams.no_answer, streams.no_answer])
    assert store.read("a.bin", 1000, 300) == DATA[1000:1300]
    assert len(server.requests) == 3


@pytest.mark.parametrize("act", [streams.cut(0), streams.no_answer])
def test_fault_29_one_that_always_breaks_is_given_up(
    store: HttpStore, server: streams.Server, act: streams.Act
) -> None:
    server.always = act
    with pytest.raises(StoreError, match=r"a\.bin.*(broke|attempts)"):
        store.read("a.bin", 1000, 300)
    assert len(server.requests) == http.RETRIES + 1


def test_fault_30_a_server_that_stalls_is_asked_again(
    store: HttpStore, server: streams.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.05)
    import threading

    over = threading.Event()

    def stall(handler: streams._Handler, path: Path) -> None:
        handler.send_response(206)
        handler.send_header("Content-Length", "300")
        handler.send_header("Content-Range", f"bytes 1000-1299/{len(DATA)}")
        handler.end_headers()
        handler.wfile.write(DATA[1000:1010])
        over.wait(10)
        handler.close_connection = True

    server.script.extend([stall])
    assert store.read("a.bin", 1000, 300) == DATA[1000:1300]
    over.set()
    assert server.ranges()[1] == "bytes=1010-1299"


@pytest.mark.parametrize("act", [streams.without_ranges, streams.page, streams.another_range, streams.whole_as_range])
def test_fault_34_an_answer_that_is_not_the_range_is_refused(
    store: HttpStore, server: streams.Server, act: streams.Act
) -> None:
    server.always = act
    with pytest.raises(StoreError, match=r"a\.bin: bytes 5 to 9 were asked for.*honours ranges"):
        store.read("a.bin", 5, 5)


def test_fault_35_a_server_that_does_not_say_how_long_a_file_is_is_refused(
    store: HttpStore, server: streams.Server
) -> None:
    def silent(handler: streams._Handler, path: Path) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.close_connection = True

    server.always = silent
    with pytest.raises(StoreError, match="does not say how long"):
        store.size("a.bin")


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_to_another_path_is_followed(store: HttpStore, server: streams.Server, code: int) -> None:
    server.script.extend(
        [streams.moved("/deep/b.bin", code), streams.honest, streams.moved(f"{server.url}/a.bin", code)]
    )
    assert store.size("x") == 4
    assert store.read("y", 2, 3) == DATA[2:5]


def test_fault_38_redirects_that_never_end_are_refused(store: HttpStore, server: streams.Server) -> None:
    server.always = streams.moved("/a.bin")
    with pytest.raises(StoreError, match=r"more than 5 redirects"):
        store.size("a.bin")
    assert len(server.requests) == 6


@pytest.mark.parametrize("to", ["file:///etc/passwd", "ftp://host/x"])
def test_fault_38_a_redirect_out_of_http_is_refused(store: HttpStore, server: streams.Server, to: str) -> None:
    server.always = streams.moved(to)
    with pytest.raises(StoreError, match="is not followed"):
        store.size("a.bin")


def test_fault_38_a_redirect_from_https_to_http_is_refused(
    store: HttpStore, server: streams.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no certificate here to serve https with, so the pool is told that the secure server is the plain one."""
    store = HttpStore(server.url.replace("http://", "https://"))
    ask = http.urllib3.PoolManager.request
    monkeypatch.setattr(
        http.urllib3.PoolManager,
        "request",
        lambda pool, method, url, **kw: ask(pool, method, url.replace("https", "http"), **kw),
    )
    assert store.size("a.bin") == len(DATA)
    server.script.extend([streams.moved(f"{server.url}/a.bin")])
    with pytest.raises(StoreError, match="redirects from https to http, which is not followed"):
        store.size("a.bin")


# ── secrets ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_query_goes_along_with_every_request_and_is_never_shown(
    server: streams.Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "BACKOFF_SECONDS", 0.0)
    query = "sig=secret&x=1"
    store = HttpStore(f"{server.url}/deep/?{query}")
    assert (store.size("b.bin"), store.read("b.bin", 1, 2)) == (4, b"ee")
    with store.stream("b.bin") as file:
        assert file.read() == b"deep"
    assert {path for _, path, _ in server.requests} == {"/deep/b.bin?sig=secret&x=1"}
    shown = [repr(store), store.url(), store.url("b.bin")]
    with caplog.at_level(logging.INFO):
        for act in (streams.status(404), streams.status(403), streams.status(503), streams.no_answer, streams.page):
            server.always = act
            with pytest.raises(StoreError) as caught:
                store.read("b.bin", 0, 2)
            shown += traceback.format_exception(caught.value)
    server.__exit__()
    with pytest.raises(StoreError) as caught:
        HttpStore(f"http://user:{query[4:10]}@127.0.0.1:1/x?{query}").size("a")
    shown += [*traceback.format_exception(caught.value), caplog.text]
    assert not [text for text in shown if "secret" in text]


def test_a_password_is_sent_to_its_server_only_and_never_shown(server: streams.Server, tmp_path: Path) -> None:
    store = HttpStore(server.url.replace("//", "//me:s%40cret@"))
    with streams.served(tmp_path) as other:
        server.script.extend([streams.honest, streams.moved(f"{other.url}/a.bin")])
        assert store.size("a.bin") == store.size("a.bin") == len(DATA)
        sent = "Basic " + base64.b64encode(b"me:s@cret").decode()
        assert [headers.get("authorization") for _, _, headers in server.requests] == [sent, sent]
        assert [headers.get("authorization") for _, _, headers in other.requests] == [None]
    assert "cret" not in repr(store) + store.url("a.bin")


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_store_pickles_without_its_connections(store: HttpStore) -> None:
    store.size("a.bin")
    again = pickle.loads(pickle.dumps(store))
    assert again.read("a.bin", 5, 10) == DATA[5:15]
    assert again.url() == store.url()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_fault_46_a_store_that_was_used_works_in_another_process(store: HttpStore, method: str) -> None:
    store.size("a.bin")
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(read_elsewhere, [store] * 6) == [DATA[5:15]] * 6
    assert read_elsewhere(store) == DATA[5:15]


def test_fault_46_a_forked_process_makes_connections_of_its_own(store: HttpStore, server: streams.Server) -> None:
    ports: list[object] = []
    server.always = lambda handler, path: (ports.append(handler.client_address), streams.honest(handler, path))[1]  # type: ignore[func-returns-value]
    store.size("a.bin")
    process = multiprocessing.get_context("fork").Process(target=store.size, args=("a.bin",))
    process.start()
    process.join(20)
    store.size("a.bin")
    assert process.exitcode == 0
    assert ports[0] == ports[2] != ports[1]


def test_the_programs_own_random_state_is_left_alone(store: HttpStore, server: streams.Server) -> None:
    import random

    before = random.getstate()
    server.script.extend([streams.status(503)])
    store.size("a.bin")
    assert random.getstate() == before
