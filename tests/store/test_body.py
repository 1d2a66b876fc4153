"""Transfers that break, stall, crawl, change, or are not what was asked for: what comes is right, or nothing does.

Each fault comes from a real server, whose log says what was asked for: nothing twice but what never came.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import faults, streams
from tests.support.places import CHUNK, DATA, FAST, server, store
from wds_tools.errors import ChangedError, NotFoundError, StoreError
from wds_tools.store import wire
from wds_tools.store.base import Version
from wds_tools.store.http import HttpStore

__all__ = ["server", "store"]

HASTY = replace(FAST, timeout=0.2)


# ── 29: breaks ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("after", [0, 1, 100, 299])
def test_fault_29_a_body_that_breaks_off_goes_on_at_the_byte(
    store: HttpStore, server: streams.Server, after: int
) -> None:
    server.script.extend([streams.cut(after), streams.cut(0)])
    assert store.read("a.bin", 1000, 300) == DATA[1000:1300]
    rest = f"bytes={1000 + after}-1299"
    assert server.ranges() == ["bytes=1000-1299", rest, rest]


@pytest.mark.parametrize("act", [streams.cut(50_000), faults.without_length(50_000)])
def test_fault_29_a_stream_that_breaks_off_goes_on_at_the_byte(
    store: HttpStore, server: streams.Server, act: streams.Act
) -> None:
    server.script.extend([act, streams.honest, act])
    with store.stream("a.bin") as file:
        assert file.read() == DATA
    starts = [int(each.partition("=")[2].partition("-")[0]) for each in server.ranges()]
    assert starts == [0, 50_000, CHUNK, CHUNK + 50_000, 2 * CHUNK, 3 * CHUNK]


def test_fault_29_a_connection_that_is_reset_goes_on(store: HttpStore, server: streams.Server) -> None:
    """What was on its way may be lost with it, so the rest begins at any byte, and all is right."""
    server.script.extend([faults.reset(100_000), faults.reset(0), faults.reset(50_000)])
    assert store.read("a.bin", 0, len(DATA)) == DATA
    starts = [int(each.partition("=")[2].partition("-")[0]) for each in server.ranges()]
    assert starts == sorted(starts)
    assert len(starts) == 4


def test_fault_29_a_connection_that_is_reset_is_made_again(store: HttpStore, server: streams.Server) -> None:
    server.script.extend([streams.no_answer, streams.no_answer])
    assert store.read("a.bin", 1000, 300) == DATA[1000:1300]
    assert len(server.requests) == 3


@pytest.mark.parametrize("act", [streams.cut(0), streams.no_answer, faults.reset(0)])
def test_fault_29_one_that_always_breaks_is_given_up(
    store: HttpStore, server: streams.Server, act: streams.Act
) -> None:
    server.always = act
    attempts = FAST.retries + 1
    with pytest.raises(StoreError, match=rf"/a\.bin: .*given up after {attempts} attempts in a row, [\d.]+ s in all; "):
        store.read("a.bin", 1000, 300)
    assert len(server.requests) == attempts


def test_fault_29_attempts_that_get_on_are_not_counted_and_those_of_a_byte_are(
    store: HttpStore, server: streams.Server
) -> None:
    server.always = streams.cut(70_000)
    assert store.read("a.bin", 0, len(DATA)) == DATA
    server.always = streams.cut(20_000)
    assert store.read("a.bin", 0, len(DATA)) == DATA
    server.always = streams.cut(1)
    with pytest.raises(StoreError, match="given up after"):
        store.read("a.bin", 0, len(DATA))


# ── 30, 31: stalls and crawls ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("act", "came"), [(faults.stall(10), 10), (faults.stall(0), 0), (faults.silence, 0)])
def test_fault_30_a_server_that_stalls_is_asked_again(server: streams.Server, act: streams.Act, came: int) -> None:
    server.script.extend([act])
    assert HttpStore(server.url, HASTY).read("a.bin", 1000, 300) == DATA[1000:1300]
    assert server.ranges() == ["bytes=1000-1299", f"bytes={1000 + came}-1299"]


def test_fault_30_a_server_that_always_stalls_is_given_up(server: streams.Server) -> None:
    server.always = faults.stall(0)
    with pytest.raises(StoreError, match=r"a\.bin: the server stopped sending at byte 1000; given up after 2 attempts"):
        HttpStore(server.url, replace(HASTY, retries=1)).read("a.bin", 1000, 300)


def test_fault_31_slow_but_alive_goes_on(server: streams.Server) -> None:
    """It takes longer than the timeout in all, and never as long between two bytes."""
    server.script.extend([faults.drip(12, 0.1)])
    assert HttpStore(server.url, replace(FAST, timeout=1.0)).read("a.bin", 0, 300) == DATA[:300]
    assert len(server.requests) == 1


def test_fault_31_a_pause_may_be_longer_than_connecting_may_take(
    server: streams.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "CONNECT_SECONDS", 0.1)
    server.script.extend([faults.drip(2, 0.4)])
    assert HttpStore(server.url, replace(FAST, timeout=5.0)).read("a.bin", 0, 300) == DATA[:300]
    assert len(server.requests) == 1


# ── 33: changes ───────────────────────────────────────────────────────────────────────────────────────────────


def test_fault_33_what_is_replaced_between_two_requests_is_never_mixed(
    store: HttpStore, server: streams.Server
) -> None:
    with store.stream("a.bin") as file:
        first = file.read(CHUNK)
        streams.rewrite(server.root / "a.bin", lambda data: data[::-1])
        with pytest.raises(ChangedError, match=r"a\.bin: .*not mixed with those read before.*wds-tools index"):
            file.read(CHUNK)
    assert first == DATA[:CHUNK]
    assert all("If-Match" in headers for _, _, headers in server.requests[1:])


def test_fault_33_what_is_replaced_while_it_is_sent_is_never_mixed(store: HttpStore, server: streams.Server) -> None:
    def replaced(handler: streams._Handler, path: Path) -> None:
        streams.cut(1000)(handler, path)
        streams.rewrite(path, lambda data: data[::-1])

    server.script.extend([replaced])
    with pytest.raises(ChangedError):
        store.read("a.bin", 0, 2000)


def test_fault_33_a_version_holds_for_every_read(store: HttpStore, server: streams.Server) -> None:
    version = store.version("a.bin")
    assert version == Version(len(DATA), streams.tag(server.root / "a.bin"))
    assert store.read("a.bin", 5, 10, version) == DATA[5:15]
    streams.rewrite(server.root / "a.bin", lambda data: data[::-1])
    for ask in (store.read, store.stream):
        with pytest.raises(ChangedError, match=r"a\.bin"):
            ask("a.bin", 5, version=version)
    assert store.read("a.bin", 5, 10) == DATA[::-1][5:15]


CHANGES = {
    "another tag": ({"ETag": '"other"'}, "its ETag changed"),
    "a weak tag": ({"ETag": 'W/"other"'}, "its ETag changed"),
    "another size": ({"Content_Range": "bytes 5-14/256001"}, "it has 256001 bytes where it had 256000"),
}


@pytest.mark.parametrize(("headers", "words"), CHANGES.values(), ids=CHANGES.keys())
def test_fault_33_a_server_that_ignores_if_match_is_seen_through(
    store: HttpStore, server: streams.Server, headers: dict[str, str], words: str
) -> None:
    version = store.version("a.bin")
    server.script.extend([faults.stating(**headers)])
    with pytest.raises(ChangedError, match=words):
        store.read("a.bin", 5, 10, version)


def test_fault_33_a_shorter_file_is_seen_at_its_end(store: HttpStore, server: streams.Server) -> None:
    version = replace(store.version("a.bin"), tag="")
    streams.rewrite(server.root / "a.bin", lambda data: data[:1000])
    with pytest.raises(ChangedError, match="it has 1000 bytes where it had 256000"):
        store.read("a.bin", 5000, 10, version)


def test_a_weak_tag_is_compared_and_not_sent(store: HttpStore, server: streams.Server) -> None:
    server.always = faults.stating(ETag='W/"a"')
    assert store.read("a.bin", 5, 10, store.version("a.bin")) == DATA[5:15]
    assert not [headers for _, _, headers in server.requests if "If-Match" in headers]


# ── 26, 34, 35: not what was asked for ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("act", [streams.without_ranges, streams.page, streams.another_range, streams.whole_as_range])
def test_fault_34_an_answer_that_is_not_the_range_is_refused(
    store: HttpStore, server: streams.Server, act: streams.Act
) -> None:
    server.always = act
    with pytest.raises(StoreError, match=r"a\.bin: bytes 5 to 9 were asked for.*honours ranges"):
        store.read("a.bin", 5, 5)


def test_fault_34_a_server_that_forgets_ranges_in_the_middle_is_refused(
    store: HttpStore, server: streams.Server
) -> None:
    server.script.extend([streams.cut(100), streams.without_ranges])
    with pytest.raises(StoreError, match=r"bytes 100 to 255999 were asked for .* HTTP 200"):
        store.read("a.bin", 0, len(DATA))


def test_fault_34_a_whole_file_is_taken_where_it_is_what_was_asked_for(
    store: HttpStore, server: streams.Server
) -> None:
    server.always = streams.without_ranges
    assert store.read("deep/b.bin") == store.read("deep/b.bin", 0, 4) == b"deep"
    assert store.read("empty") == b""
    with pytest.raises(StoreError, match="honours ranges"):
        store.read("a.bin")


@pytest.mark.parametrize(
    "stated",
    ["", "bytes 5-9", "bytes 5-9/*", "bytes 5-8/256000", "bytes 4-9/256000", "items 5-9/256000", "bytes 5-9/9"],
)  # fmt: skip
def test_fault_34_a_range_must_be_stated_exactly(store: HttpStore, server: streams.Server, stated: str) -> None:
    server.always = faults.stating(Content_Range=stated)
    with pytest.raises(StoreError, match="honours ranges"):
        store.read("a.bin", 5, 5)


def test_fault_34_a_length_that_is_not_the_ranges_is_refused(store: HttpStore, server: streams.Server) -> None:
    server.always = faults.stating(Content_Length="6")
    with pytest.raises(StoreError, match="honours ranges"):
        store.read("a.bin", 5, 5)


def test_fault_35_a_body_without_length_is_held_against_the_range(store: HttpStore, server: streams.Server) -> None:
    server.script.extend([faults.without_length(100)])
    assert store.read("a.bin", 0, 300) == DATA[:300]
    assert server.ranges() == ["bytes=0-299", "bytes=100-299"]
    server.always = faults.without_length(0)
    with pytest.raises(StoreError, match=r"a\.bin: the body ended early at byte 0; given up after"):
        store.read("a.bin", 0, 300)


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


def test_fault_26_a_web_page_instead_of_a_file_is_said(store: HttpStore, server: streams.Server) -> None:
    for act in (faults.stating(Content_Type="text/html; charset=utf-8"), streams.status(200, Content_Type="text/HTML")):
        server.always = act
        for ask in (store.read, store.size, store.stream):
            with pytest.raises(StoreError, match=rf"{server.url}/a\.bin: the server sends a web page \(text/html"):
                ask("a.bin")


def test_fault_26_an_empty_body_is_an_empty_file_and_no_more(store: HttpStore, server: streams.Server) -> None:
    server.always = streams.status(200, Content_Length="0")
    assert store.read("a.bin") == b""
    with pytest.raises(StoreError, match=r"a\.bin"):
        store.read("a.bin", 0, 1)


def test_an_encoded_body_is_refused(store: HttpStore, server: streams.Server) -> None:
    server.always = faults.stating(Content_Encoding="gzip")
    with pytest.raises(StoreError, match=r"a\.bin: the server sends it compressed \(gzip\)"):
        store.read("a.bin", 5, 5)
    assert {headers["Accept-Encoding"] for _, _, headers in server.requests} == {"identity"}


def test_what_vanishes_in_the_middle_is_not_found(store: HttpStore, server: streams.Server) -> None:
    server.script.extend([streams.cut(100), streams.status(404)])
    with pytest.raises(NotFoundError):
        store.read("a.bin", 0, 300)
