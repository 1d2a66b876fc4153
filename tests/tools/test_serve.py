"""A dataset over HTTP: ranges and conditions as RFC 9110 has them, nothing but the dataset, no difference for readers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import urllib3

from tests.support import needs, streams
from tests.support.servers import answers
from wds_tools import ShardDataset
from wds_tools.errors import NotFoundError, OptionError, StoreError
from wds_tools.store.http import HttpStore
from wds_tools.store.options import StoreOptions
from wds_tools.tools.serve import ServeOptions, listen, serving

SHARD = "train-000000.tar"
SECRET = b"CONFIDENTIAL"
DEADLINE = 30.0

needs.package("aiohttp")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, with what must not go out in and around it."""
    place = tmp_path_factory.mktemp("serve")
    data = streams.numbered(place / "data", 60, per_shard=20)
    (place / "secret.tar").write_bytes(SECRET)
    (place / "data-private").mkdir()
    (place / "data-private" / "a.tar").write_bytes(SECRET)
    (data / ".wds_tools").mkdir()
    for name in (".wds_tools/plan.tar", ".hidden.tar", "notes.txt", "private.json", f"{SHARD}.gz"):
        (data / name).write_bytes(SECRET)
    (data / "folder.tar").mkdir()
    (data / "more").mkdir()
    (data / "more" / "of it.tar").write_bytes(b"0123456789")
    (data / "empty.tar").write_bytes(b"")
    (data / "inside.tar").symlink_to(data / "more" / "of it.tar")
    (data / "outside.tar").symlink_to(place / "secret.tar")
    (data / "beside.tar").symlink_to("../data-private/a.tar")
    (data / "away").symlink_to(place)
    (data / "shown.tar").symlink_to(".hidden.tar")
    (data / "circle.tar").symlink_to("circle.tar")
    os.mkfifo(data / "pipe.tar")
    return data


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with serving(folder) as found:
        yield found


def ask(url: str, name: str, method: str = "GET", **headers: str) -> urllib3.BaseHTTPResponse:
    sent = {key.replace("_", "-"): value for key, value in headers.items()}
    with urllib3.PoolManager() as pool:
        return pool.request(method, f"{url}/{name}", headers=sent, retries=False, timeout=DEADLINE)


def raw(url: str, target: str, *headers: str, version: str = "1.1") -> bytes:
    """The answer to a request whose target no client has tidied up."""
    address = urllib3.util.parse_url(url)
    lines = [f"GET {target} HTTP/{version}", *headers, "Connection: close", "", ""]
    with socket.create_connection((str(address.host), address.port or 0), DEADLINE) as connection:
        connection.sendall("\r\n".join(lines).encode("utf-8", "surrogateescape"))
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


# -- ranges


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("0-0", 0, 0),
        ("5-104", 5, 104),
        ("100-", 100, -1),
        ("-512", -512, -1),
        ("7-999999999", 7, -1),
        ("-99999999", 0, -1),
    ],
)
def test_a_range_is_answered_with_exactly_its_bytes(folder: Path, url: str, asked: str, first: int, last: int) -> None:
    data = (folder / SHARD).read_bytes()
    start, stop = first % len(data), last % len(data)
    answer = ask(url, SHARD, Range=f"bytes={asked}")
    assert answer.status == 206
    assert answer.headers["Content-Range"] == f"bytes {start}-{stop}/{len(data)}"
    assert answer.headers["Content-Length"] == str(stop + 1 - start)
    assert answer.data == data[start : stop + 1]


@pytest.mark.parametrize("asked", ["bytes=99999999-", "bytes=99999999-100000000", "bytes=5-4", "bytes=x", "lines=0-1"])
def test_a_range_that_cannot_be_is_refused_with_the_size(folder: Path, url: str, asked: str) -> None:
    answer = ask(url, SHARD, Range=asked)
    assert (answer.status, answer.headers["Content-Range"]) == (416, f"bytes */{(folder / SHARD).stat().st_size}")


def test_a_whole_file_says_that_it_can_be_had_in_parts(folder: Path, url: str) -> None:
    answer = ask(url, SHARD, Accept_Encoding="gzip")
    assert (answer.status, answer.data) == (200, (folder / SHARD).read_bytes())
    assert answer.headers["Accept-Ranges"] == "bytes"
    assert "Content-Encoding" not in answer.headers
    assert answer.headers["ETag"].startswith('"')
    assert ask(url, "empty.tar").data == b""


def test_head_says_the_same_without_the_bytes(folder: Path, url: str) -> None:
    whole, part = ask(url, SHARD, "HEAD"), ask(url, SHARD, "HEAD", Range="bytes=5-14")
    assert (whole.status, part.status) == (200, 206)
    assert whole.headers["Content-Length"] == str((folder / SHARD).stat().st_size)
    assert part.headers["Content-Length"] == "10"
    assert whole.data == part.data == b""


def test_other_methods_are_refused(url: str) -> None:
    assert {ask(url, SHARD, method).status for method in ("PUT", "POST", "DELETE", "PATCH")} == {405}


# -- conditions


def test_a_range_goes_out_only_if_it_is_of_the_version_that_is_known(url: str) -> None:
    whole = ask(url, SHARD)
    tag, old = whole.headers["ETag"], "Thu, 01 Jan 1970 00:00:00 GMT"
    for condition, status in ((tag, 206), (f"W/{tag}", 200), ('"another"', 200), ('""', 200), (old, 200)):
        answer = ask(url, SHARD, Range="bytes=0-9", If_Range=condition)
        assert (answer.status, answer.data) == (status, whole.data[:10] if status == 206 else whole.data)
    assert ask(url, SHARD, "HEAD", If_Range='"another"', Range="bytes=0-9").status == 200


def test_if_match_and_if_none_match(url: str) -> None:
    tag = ask(url, SHARD).headers["ETag"]
    assert ask(url, SHARD, Range="bytes=0-9", If_Match=tag).status == 206
    assert ask(url, SHARD, Range="bytes=0-9", If_Match='"another"').status == 412
    assert ask(url, SHARD, If_None_Match=tag).status == 304


def test_a_file_that_is_replaced_has_another_tag(tmp_path: Path) -> None:
    data = streams.numbered(tmp_path / "data", 4, per_shard=4)
    with serving(data) as url:
        store = HttpStore(url, StoreOptions(backoff=0))
        version = store.version(SHARD)
        streams.rewrite(data / SHARD, lambda content: content[:-1] + b"\1")
        with pytest.raises(StoreError, match="other bytes under this name now"):
            store.read(SHARD, 0, 10, version)
        assert ask(url, SHARD, Range="bytes=0-9", If_Range=version.tag).status == 200


# -- nothing but the dataset


@pytest.mark.parametrize(
    "name", ["info.json", "sizes.json", "train-000001.idx", "more/of%20it.tar", "inside.tar", "m%6Fre%2Fof it.tar"]
)
def test_what_belongs_to_the_dataset_goes_out(url: str, name: str) -> None:
    answer = raw(url, f"/{name.replace(' ', '%20')}", "Host: localhost")
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/nothing.tar",
        "/more",
        "/more/",
        "/folder.tar",
        "/notes.txt",
        "/private.json",
        f"/{SHARD}.gz",
        "/.hidden.tar",
        "/%2ehidden.tar",
        "/.wds_tools/plan.tar",
        "/shown.tar",
        "/outside.tar",
        "/beside.tar",
        "/circle.tar",
        "/pipe.tar",
        "/away/secret.tar",
        "/../secret.tar",
        "/more/../../secret.tar",
        "/more/../inside.tar",
        "/./inside.tar",
        "//inside.tar",
        "/%2e%2e/secret.tar",
        "/%2e%2e%2fsecret.tar",
        "/..%2fdata-private/a.tar",
        "/..%5csecret.tar",
        "/%252e%252e/secret.tar",
        "/%c0%ae%c0%ae/secret.tar",
        "/info.json%00.tar",
        "/%00.tar",
        "/%ff.tar",
        "/inside.tar/",
        "/inside.tar/x.tar",
        "/" + "a" * 5000 + ".tar",
    ],
)
def test_anything_else_is_not_there(url: str, target: str) -> None:
    answer = raw(url, target, "Host: localhost")
    assert answer.startswith(b"HTTP/1.1 404 "), answer[:100]
    assert SECRET not in answer


@pytest.mark.parametrize("target", ["{outside}", "../secret.tar", "http://localhost{outside}", "file://{outside}"])
def test_absolute_targets_lead_nowhere(folder: Path, url: str, target: str) -> None:
    answer = raw(url, target.format(outside=folder.parent / "secret.tar"), "Host: localhost")
    assert answer.split()[1] in (b"400", b"404")
    assert SECRET not in answer.partition(b"\r\n\r\n")[2]


def test_a_page_of_another_host_is_not_answered(url: str) -> None:
    port = url.rpartition(":")[2]
    for host in ("localhost", f"localhost:{port}", f"127.0.0.1:{port}", "127.1.2.3", "[::1]:9"):
        assert raw(url, "/info.json", f"Host: {host}").startswith(b"HTTP/1.1 200 "), host
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "[::1", "192.0.2.1"):
        assert raw(url, "/info.json", f"Host: {host}").split()[1] in (b"403", b"400"), host
    assert raw(url, "/info.json", version="1.0").split()[1] == b"200"


def test_garbage_is_answered_and_survived(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(folder) as url:
        send_garbage(url)
        assert ask(url, "info.json").status == 200
    assert capfd.readouterr() == ("", "")


def send_garbage(url: str) -> None:
    address = urllib3.util.parse_url(url)
    for junk in (
        b"\x16\x03\x01\x02",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000 + b"\r\n",
        bytes(100),
    ):
        where = (str(address.host), address.port or 0)
        with socket.create_connection(where, DEADLINE) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(junk)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass


# -- readers


def test_a_dataset_is_the_same_as_on_the_disk(folder: Path, url: str) -> None:
    def read(place: str) -> list[tuple[str, bytes, bytes]]:
        dataset = ShardDataset(place, split="train", shuffle=True, seed=3)
        return [(sample["__key__"], sample["png"], sample["cls"]) for sample in dataset]

    here, there = read(os.fspath(folder)), read(url)
    assert len(here) == 60
    assert there == here
    assert ShardDataset(url, split="train")[17] == {
        **ShardDataset(os.fspath(folder), split="train")[17],
        "__url__": f"{url}/{SHARD}",
    }


def test_many_readers_at_once(folder: Path, url: str) -> None:
    data = (folder / SHARD).read_bytes()
    store = HttpStore(url)

    def read(number: int) -> bool:
        start = number * 37 % (len(data) - 500)
        return store.read(SHARD, start, 500) == data[start : start + 500]

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(read, range(400)))


def test_readers_that_leave_disturb_nobody(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = streams.numbered(tmp_path / "data", 4, per_shard=4)
    with (data / "large.tar").open("wb") as file:
        file.truncate(1 << 26)
    with serving(data) as url:
        address = urllib3.util.parse_url(url)
        for _ in range(10):
            with socket.create_connection((str(address.host), address.port or 0), DEADLINE) as connection:
                connection.sendall(b"GET /large.tar HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
        assert ask(url, "info.json").status == 200
    assert capfd.readouterr() == ("", "")


# -- slow networks


def test_latency_is_added_to_every_request(folder: Path) -> None:
    with serving(folder, ServeOptions(latency=0.2)) as url:
        assert ask(url, "info.json").status == 200  # it has begun
        before = time.monotonic()
        assert [ask(url, name).status for name in ("info.json", "nothing.tar")] == [200, 404]
        assert time.monotonic() - before >= 0.4  # a lower bound, which a slow machine does not break


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux paces connections")
def test_the_rate_of_a_connection_is_held(tmp_path: Path) -> None:
    data = streams.numbered(tmp_path / "data", 4, per_shard=4)
    (data / "large.tar").write_bytes(bytes(1_000_000))
    with serving(data, ServeOptions(rate=2e6)) as url:
        assert ask(url, "info.json").status == 200  # it has begun
        before = time.monotonic()
        assert len(ask(url, "large.tar").data) == 1_000_000
        assert time.monotonic() - before >= 0.3  # half a second, less what goes out at once


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"port": -1}, "port is -1; it must be between 1 and 65535, or 0 for a free one"),
        ({"latency": 61}, "latency is 61 s; it must be between 0 and 60 s"),
        ({"rate": 999}, "rate is 999 bytes a second; it must be at least 1000"),
        ({"rate": float("inf")}, "rate is inf bytes a second"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, float], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        ServeOptions(**options)  # type: ignore[arg-type]


# -- where it listens, and how it ends


def test_it_listens_at_loopback_only(folder: Path) -> None:
    server = listen(folder)
    try:
        assert server.url == f"http://127.0.0.1:{server.listening.getsockname()[1]}"
        assert server.listening.getsockname()[0] == "127.0.0.1"
    finally:
        server.close()


def test_a_host_of_its_own_may_be_given(folder: Path) -> None:
    with serving(folder, ServeOptions(host="0.0.0.0")) as url:
        port = url.rpartition(":")[2]
        assert url == f"http://{socket.gethostname()}:{port}"
        assert raw(f"http://127.0.0.1:{port}", "/info.json", "Host: any.example").startswith(b"HTTP/1.1 200 ")


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="there is no IPv6 here")
def test_loopback_has_an_address_of_six_bytes_more(folder: Path) -> None:
    with serving(folder, ServeOptions(host="::1")) as url:
        assert url.startswith("http://[::1]:")
        assert HttpStore(url).size(SHARD) == (folder / SHARD).stat().st_size


def test_a_port_that_is_taken_is_said(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StoreError, match=f"cannot listen at 127.0.0.1 port {port} .*; choose another port, or 0"):
            listen(folder, ServeOptions(port=port))


def test_what_holds_no_dataset_is_refused_before_anything_listens(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="holds no dataset"), serving(tmp_path):
        pass
    with pytest.raises(OptionError, match="is no folder; give the one"):
        listen(folder / SHARD)


def test_the_server_ends_with_the_block_whatever_happens_in_it(folder: Path) -> None:
    before = set(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else set()
    with contextlib.suppress(ZeroDivisionError), serving(folder) as url:
        assert ask(url, "info.json").status == 200
        raise ZeroDivisionError
    port = int(url.rpartition(":")[2])
    assert not answers(port)
    with serving(folder, ServeOptions(port=port)) as again:  # the same one, at once
        assert again == url
    assert set(os.listdir("/proc/self/fd")) == before if before else True


def test_the_server_ends_with_a_killed_parent(folder: Path) -> None:
    code = (
        "import os, sys; from wds_tools.tools.serve import serving\n"
        "with serving(sys.argv[1]) as url: print(url, flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, os.fspath(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        assert json.loads(ask(url, "info.json").data)["format"] == "wds_tools"
        address = urllib3.util.parse_url(url)
        with socket.create_connection((str(address.host), address.port or 0), DEADLINE / 2) as connection:
            parent.send_signal(signal.SIGKILL)
            assert connection.recv(1) == b"", "it hangs up when it ends"


def test_an_interrupt_of_the_whole_program_is_not_meant_for_the_server(folder: Path) -> None:
    """As a terminal and a notebook send it, to the group of processes; the program itself chooses to go on."""
    code = (
        "import os, signal, sys; from wds_tools.tools.serve import serving\n"
        "signal.signal(signal.SIGINT, lambda *_: None)\n"
        "with serving(sys.argv[1]) as url: print(url, flush=True); print(sys.stdin.readline(), flush=True); sys.stdin.read()"
    )
    words, pipe = [sys.executable, "-c", code, os.fspath(folder)], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        url = parent.stdout.readline().strip()
        assert ask(url, "info.json").status == 200
        os.killpg(parent.pid, signal.SIGINT)
        print("go on", file=parent.stdin, flush=True)
        assert parent.stdout.readline() == "go on\n"
        assert ask(url, "info.json").status == 200


def test_it_runs_in_this_process_too_and_stops_from_another_thread(folder: Path) -> None:
    server = listen(folder)
    thread = threading.Thread(target=server.run)
    thread.start()
    assert ask(server.url, "info.json").status == 200
    server.stop()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert not answers(int(server.url.rpartition(":")[2]))


def test_a_server_that_was_stopped_before_it_ran_does_not_run(folder: Path) -> None:
    server = listen(folder)
    server.stop()
    server.run()


def test_without_aiohttp_it_is_said_what_to_install(folder: Path) -> None:
    code = """
import sys
sys.modules["aiohttp"] = None
from wds_tools.errors import MissingExtraError
from wds_tools.tools.serve import listen
try:
    listen(sys.argv[1])
except MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    assert (
        done.stdout == f"serving needs aiohttp, which is not installed; run: {sys.executable} -m pip install aiohttp\n"
    ), done.stderr
