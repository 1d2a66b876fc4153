"""``wds-tools serve``: what it prints, and how it ends."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3

from tests.support import streams
from tests.support.commands import Said, call, run
from tests.support.servers import answers

DEADLINE = 60.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    streams.numbered(folder / "shards", 20, per_shard=5)
    streams.numbered(folder / "theirs", 20, per_shard=5)
    (folder / "theirs" / "info.json").unlink()
    streams.numbered(folder / "odd", 20, per_shard=10)
    (folder / "odd" / "info.json").unlink()
    (folder / "odd" / "train-000001.tar").rename(folder / "odd" / "train-x.tar")
    (folder / "odd" / "train-000001.idx").rename(folder / "odd" / "train-x.idx")
    return folder


class Serving:
    """The command while it serves."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._process = process
        self.said = process.stdout.readline(), process.stdout.readline()
        self.url = self.said[0].split(" ")[0]
        self.line = self.said[1].strip()

    def end(self, number: int) -> Said:
        self._process.send_signal(number)
        out, err = self._process.communicate(timeout=DEADLINE)
        return Said(self._process.returncode, out, err)


@contextmanager
def served(place: Path, *words: str) -> Iterator[Serving]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-X", "dev", "-m", "wds_tools", *words]
    with subprocess.Popen(command, cwd=place, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield Serving(process)
        finally:
            process.kill()


def test_it_prints_an_address_and_a_line_that_reads_it(place: Path) -> None:
    with served(place, "serve", "shards") as server:
        assert re.fullmatch(
            rf"http://127\.0\.0\.1:\d+ serves {place}/shards; Ctrl-C ends it\. Read it:\n", server.said[0]
        )
        space: dict[str, object] = {}
        exec(server.line, space)
        assert sorted(streams.keys(space["dataset"])) == [f"k{number:04d}" for number in range(20)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("folder", "argument"),
    [
        ("shards", r"'{url}', split='train'"),
        ("theirs", r"'{url}/train-\{{000000..000003\}}.tar'"),
        ("odd", r"\['{url}/train-000000.tar', '{url}/train-x.tar'\]"),
    ],
)
def test_the_line_fits_shards_without_a_manifest(place: Path, folder: str, argument: str) -> None:
    with served(place, "serve", folder) as server:
        begin = "from wds_tools import ShardDataset; dataset = ShardDataset"
        assert re.fullmatch(rf"{begin}\({argument.format(url=re.escape(server.url))}\)", server.line)
        space: dict[str, object] = {}
        exec(server.line, space)
        assert len(list(space["dataset"])) == 20  # type: ignore[call-overload]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_it_quietly_also_in_the_middle_of_a_transfer(place: Path, number: int, code: int) -> None:
    with (place / "shards" / "large.tar").open("wb") as file:
        file.truncate(1 << 28)
    with served(place, "serve", "shards") as server:
        address = urllib3.util.parse_url(server.url)
        with socket.create_connection((str(address.host), address.port or 0), DEADLINE) as connection:
            connection.sendall(b"GET /large.tar HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
            assert server.end(number) == Said(code, "", "")
        assert not answers(address.port or 0)


def test_the_example_of_its_help_runs(place: Path) -> None:
    found = re.search(r"Example: wds-tools (.*)\s*\Z", call("serve", "--help").out)
    assert found
    with served(place, *found[1].split()) as server:
        with urllib3.PoolManager() as pool:
            assert pool.request("GET", f"{server.url}/info.json", retries=False, timeout=DEADLINE).status == 200
        assert server.end(signal.SIGTERM).code == 0


def test_a_port_may_be_chosen_and_one_that_is_taken_is_one_sentence(place: Path) -> None:
    with served(place, "serve", "shards", "--rate", "100") as server:
        port = server.url.rpartition(":")[2]
        said = run("serve", place / "shards", "--port", port)
        assert (said.code, said.out) == (1, "")
        assert re.fullmatch(
            rf"Error: cannot listen at 127\.0\.0\.1 port {port} \(Address already in use\); "
            r"choose another port, or 0 for a free one\n",
            said.err,
        )
        server.end(signal.SIGTERM)
    with served(place, "serve", "shards", "--port", port) as again:
        assert again.url == server.url
