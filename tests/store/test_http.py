"""A store over HTTP: what it asks for, what it keeps secret, and in which processes it works."""

from __future__ import annotations

import base64
import gc
import logging
import multiprocessing
import os
import pickle
import random
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import faults, streams
from tests.support.places import CHUNK, DATA, FAST, server, store
from wds_tools.errors import NotFoundError, OptionError, StoreError
from wds_tools.store.http import HttpStore

__all__ = ["server", "store"]


def read_elsewhere(store: HttpStore) -> bytes:
    return store.read("a.bin", 5, 10)


def seen_from(server: streams.Server) -> list[object]:
    """Each request's connection, from now on."""
    ports: list[object] = []
    server.always = lambda handler, path: (ports.append(handler.client_address), streams.honest(handler, path))[1]  # type: ignore[func-returns-value]
    return ports


# ── what a store does ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("start", "length"), [(0, None), (0, 1), (100, 300), (10_239, 1), (250_000, None), (7, 0)])
def test_a_range_is_exactly_its_bytes(store: HttpStore, start: int, length: int | None) -> None:
    assert store.read("a.bin", start, length) == DATA[start:][:length]


def test_a_range_is_one_request_for_it_and_a_version_one_for_a_byte(store: HttpStore, server: streams.Server) -> None:
    store.read("a.bin", 1000, 200_000)
    store.version("a.bin")
    assert server.ranges() == ["bytes=1000-200999", "bytes=0-0"]
    assert server.counts() == {"GET": 2}


def test_sizes_and_names_below_folders(store: HttpStore, server: streams.Server) -> None:
    assert (store.size("a.bin"), store.size("empty"), store.size("deep/b.bin")) == (len(DATA), 0, 4)
    assert (store.read("empty"), store.read("deep/b.bin")) == (b"", b"deep")
    assert HttpStore(f"{server.url}/deep/").read("b.bin") == b"deep"


def test_a_stream_is_read_in_bounded_requests(store: HttpStore, server: streams.Server) -> None:
    with store.stream("a.bin") as file:
        assert file.read() == DATA
    ends = [CHUNK - 1, 2 * CHUNK - 1, 3 * CHUNK - 1, len(DATA) - 1]
    assert server.ranges()[:1] == [f"bytes=0-{CHUNK - 1}"]
    assert [int(each.rpartition("-")[2]) for each in server.ranges()[:3]] == ends[:3]
    assert [int(each.partition("=")[2].partition("-")[0]) for each in server.ranges()] == [
        0,
        *(e + 1 for e in ends[:3]),
    ]
    with store.stream("a.bin", 250_000) as file:
        assert (file.read(7), file.read(10_000), file.read(1)) == (DATA[250_000:250_007], DATA[250_007:], b"")
    with store.stream("empty") as file:
        assert file.read() == b""


def test_bytes_past_the_end_are_an_error(store: HttpStore) -> None:
    with pytest.raises(StoreError, match=rf"a\.bin: it ends at byte {len(DATA)}"):
        store.read("a.bin", len(DATA) - 10, 300)


def test_connections_are_kept(store: HttpStore, server: streams.Server) -> None:
    ports = seen_from(server)
    for _ in range(5):
        store.size("a.bin")
        store.read("a.bin", 3, 100)
        with store.stream("a.bin", 200_000) as file:
            file.read()
    assert len(set(ports)) == 1


def test_threads_read_side_by_side(store: HttpStore) -> None:
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda at=at: results.append(store.read("a.bin", at, 1000)))
        for at in range(0, 200_000, 5000)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted(DATA[at : at + 1000] for at in range(0, 200_000, 5000))


@pytest.mark.parametrize("name", ["white space", "a#b", "a?b", "ä", "a%20b", "a+b"])
def test_strange_names_are_quoted(store: HttpStore, server: streams.Server, name: str) -> None:
    server.always = faults.stating(Content_Length="1", Content_Range="bytes 0-0/1", ETag='"a"')
    (server.root / "x").write_bytes(b"x")
    with pytest.raises(Exception):  # noqa: B017, PT011  # the server knows no such file
        store.size(name)
    path = server.requests[0][1]
    assert path.isascii()
    assert not set(" #?+") & set(path)
    assert "%2520" in path or "%20b" not in name


def test_what_a_server_cannot_do_is_refused(store: HttpStore) -> None:
    for ask in (store.list, lambda: store.write_atomic("x", []), lambda: store.delete("x")):
        with pytest.raises(StoreError, match="cannot be"):
            ask()


@pytest.mark.parametrize(
    "root",
    [
        "ftp://user:secret@host/x",
        "http://u:secret@[bad/",
        "http://u:secret@h:99999/",
        "http://h:x/?secret",
        "http://",
        "http:///x?secret",
        "host/x",
        "https://u:secret@/x",
    ],
)
def test_what_is_no_address_is_refused(root: str) -> None:
    with pytest.raises(OptionError) as caught:
        HttpStore(root)
    assert "secret" not in str(caught.value)


# ── secrets ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_query_goes_along_with_every_request_and_is_never_shown(
    server: streams.Server, caplog: pytest.LogCaptureFixture
) -> None:
    query = "sig=t0ken&x=1"
    store = HttpStore(f"{server.url}/deep/?{query}", FAST)
    assert (store.size("b.bin"), store.read("b.bin", 1, 2)) == (4, b"ee")
    with store.stream("b.bin") as file:
        assert file.read() == b"deep"
    assert {path for _, path, _ in server.requests} == {"/deep/b.bin?sig=t0ken&x=1"}
    shown = [repr(store), store.url(), store.url("b.bin"), repr(store.request("b.bin")), repr(vars(store))]
    with caplog.at_level(logging.INFO):
        for act in (
            streams.status(404), streams.status(403), streams.status(412), streams.status(503), streams.no_answer,
            streams.page, streams.moved("http://[bad?t0ken"), faults.stating(Content_Encoding="gzip"),
        ):  # fmt: skip
            server.always = act
            with pytest.raises(StoreError) as caught:
                store.read("b.bin", 0, 2)
            shown += traceback.format_exception(caught.value)
    server.__exit__()
    with pytest.raises(StoreError) as caught:
        HttpStore(f"http://user:{query[4:9]}@127.0.0.1:1/x?{query}", FAST).size("a")
    shown += [*traceback.format_exception(caught.value), caplog.text]
    assert not [text for text in shown if "t0ken" in text]
    assert "trying again" in caplog.text


def test_names_may_have_queries_of_their_own(server: streams.Server) -> None:
    store = HttpStore(server.url, FAST, {"a.bin": "sig=1", "deep/b.bin": "sig=2"})
    assert (store.read("a.bin", 0, 4), store.read("deep/b.bin")) == (DATA[:4], b"deep")
    assert [path for _, path, _ in server.requests] == ["/a.bin?sig=1", "/deep/b.bin?sig=2"]
    with pytest.raises(NotFoundError, match="not among the addresses"):
        store.read("a.idx")
    assert len(server.requests) == 2


def test_fault_36_an_address_that_is_refused_says_that_it_may_have_expired(server: streams.Server) -> None:
    server.always = streams.status(403)
    with pytest.raises(StoreError, match=r"a\.bin: .*HTTP 403.*may have expired: get a new one"):
        HttpStore(f"{server.url}?sig=x", FAST).read("a.bin")
    assert len(server.requests) == 1


def test_a_password_is_sent_to_its_server_only_and_never_shown(server: streams.Server, tmp_path: Path) -> None:
    store = HttpStore(server.url.replace("//", "//me:s%40cret@"))
    with streams.served(tmp_path) as other:
        server.script.extend([streams.honest, streams.moved(f"{other.url}/a.bin")])
        assert store.size("a.bin") == store.size("a.bin") == len(DATA)
        sent = "Basic " + base64.b64encode(b"me:s@cret").decode()
        assert [headers.get("authorization") for _, _, headers in server.requests] == [sent, sent]
        assert [headers.get("authorization") for _, _, headers in other.requests] == [None]
    assert "cret" not in repr(store) + store.url("a.bin")


SECRETS: list[Callable[[str], HttpStore]] = [
    lambda url: HttpStore(f"{url}?sig=t0ken"),
    lambda url: HttpStore(url.replace("//", "//me:t0ken@")),
    lambda url: HttpStore(url, queries={"a.bin": "t0ken"}),
]


@pytest.mark.parametrize(("make", "method"), list(zip(SECRETS, ["spawn", "forkserver", "fork"], strict=True)))
def test_a_pickle_holds_no_secret_but_for_a_process_that_is_started(server: streams.Server, make, method) -> None:
    store = make(server.url)
    pickled = pickle.dumps(store)
    assert b"t0ken" not in pickled
    assert base64.b64encode(b"me:t0ken")[:8] not in pickled
    with pytest.raises(StoreError, match="left out when this store was pickled"):
        pickle.loads(pickled).read("a.bin")
    receiver, sender = multiprocessing.Pipe(False)
    process = multiprocessing.get_context(method).Process(target=send_part, args=(store, sender))
    process.start()
    assert receiver.poll(60)
    assert receiver.recv() == DATA[5:15]
    process.join()


def send_part(store: HttpStore, sender) -> None:
    sender.send(read_elsewhere(store))


# ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_store_pickles_without_its_connections(store: HttpStore) -> None:
    store.size("a.bin")
    again = pickle.loads(pickle.dumps(store))
    assert again.read("a.bin", 5, 10) == DATA[5:15]
    assert again.url() == store.url()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_fault_46_a_store_that_was_used_works_in_another_process(store: HttpStore, method: str) -> None:
    store.size("a.bin")
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(read_elsewhere, [store] * 6) == [DATA[5:15]] * 6
    assert read_elsewhere(store) == DATA[5:15]


def test_fault_46_a_forked_process_makes_connections_of_its_own(store: HttpStore, server: streams.Server) -> None:
    ports = seen_from(server)
    store.size("a.bin")
    process = multiprocessing.get_context("fork").Process(target=store.size, args=("a.bin",))
    process.start()
    process.join(20)
    store.size("a.bin")
    assert process.exitcode == 0
    assert ports[0] == ports[2] != ports[1]


def test_fault_46_a_stream_that_is_open_goes_on_in_both_processes(server: streams.Server) -> None:
    store = HttpStore(server.url, replace(FAST, chunk_size=1 << 20, timeout=5))
    ready, go = os.pipe()
    with store.stream("a.bin") as file:
        begin = file.read(1000)
        child = os.fork()
        if not child:
            right = False
            try:
                os.read(ready, 1)  # what the parent has read by then would be missing here, on a connection of both
                right = begin + file.read() == DATA
            finally:
                os._exit(0 if right else 1)
        begin += file.read(150_000)
        os.write(go, b"x")
        assert os.waitpid(child, 0)[1] == 0
        assert begin + file.read() == DATA
    os.close(ready)
    os.close(go)


def test_nothing_is_left_open(store: HttpStore, server: streams.Server) -> None:
    def connections() -> int:
        gc.collect()
        return sum(
            os.path.realpath(f"/proc/self/fd/{fd}").partition(":")[0].endswith("socket")
            for fd in os.listdir("/proc/self/fd")
        )

    before, threads = connections(), threading.active_count()
    for _ in range(30):
        made = HttpStore(server.url, FAST)
        made.read("a.bin", 5, 10)
        made.stream("a.bin").close()
        with made.stream("a.bin") as file:
            file.read(10)
        with pytest.raises(NotFoundError):
            made.read("nothing")
        del made, file
    # The server's own ends live in this process too, and end after ours, each in a thread.
    deadline = threading.Event()
    for _ in range(500):
        if connections() <= before and threading.active_count() <= threads:
            break
        deadline.wait(0.01)
    assert (connections(), threading.active_count()) == (before, threads)


def test_the_programs_own_random_state_is_left_alone(store: HttpStore, server: streams.Server) -> None:
    before = random.getstate()
    server.script.extend([streams.status(503)])
    store.size("a.bin")
    assert random.getstate() == before
