"""Real servers for a session of tests, each a process of its own on a free port of loopback, ended by its number.

nginx serves files as it does everywhere: honestly. `tests.support.swift` is the S3 server, and
`tests.support.streams.Server` the one that misbehaves on request.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.support import needs

DEADLINE = 30.0
FLUSH = "/nothing-but-the-log"
RATE = 5  # requests a second that /limited/ lets through


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


class Process:
    """A server that was started; gone after the ``with`` block."""

    def __init__(self, words: Sequence[str], port: int, log: Path) -> None:
        self.words, self.port, self.log = words, port, log

    def __enter__(self) -> Process:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(self.words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE)

    def until_it_answers(self) -> None:
        deadline = time.monotonic() + DEADLINE
        while not answers(self.port):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.01)
                raise AssertionError(f"{self.words[0]} ended: {self._said()}")
            assert time.monotonic() < deadline, f"{self.words[0]} does not answer: {self._said()}"

    def _said(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]


@dataclass(frozen=True)
class Nginx:
    """A folder of files at ``url``, and what the server wrote down of each request: its line, status and range."""

    root: Path
    url: str
    log: Path
    secret: str = "s3cret"

    def requests(self) -> list[str]:
        """The log's lines. nginx's one process writes a request's line after its answer and before the next request's."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=10)
        connection.request("GET", FLUSH)
        connection.getresponse().read()
        connection.close()
        return [line for line in self.log.read_text().splitlines() if FLUSH not in line]


@contextlib.contextmanager
def nginx(folder: Path, port: int | None = None) -> Iterator[Nginx]:
    """nginx with the files of ``folder``/root.

    Plain at ``/``, signed and expiring at ``/signed/``, a few a second at ``/limited/``, redirected at ``/moved/``, and in a
    circle at ``/loop/``.
    """
    program, port = needs.tool("nginx"), port or free_port()
    made = Nginx(folder / "root", f"http://127.0.0.1:{port}", folder / "access.log")
    made.root.mkdir(parents=True, exist_ok=True)
    config = folder / "nginx.conf"
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(
        f"""daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log; {user}
        events {{ worker_connections 256; }}
        http {{
          {temporary}
          types {{ application/x-tar tar; application/json json; text/html html; }}
          default_type application/octet-stream;
          log_format line '$request_method $uri $status $http_range';
          access_log {made.log} line;
          limit_req_zone $binary_remote_addr zone=few:1m rate={RATE}r/s;
          sendfile on; tcp_nopush on; keepalive_requests 100000;
          server {{
            listen 127.0.0.1:{port};
            root {made.root};
            location /signed/ {{
              alias {made.root}/;
              secure_link $arg_md5,$arg_expires;
              secure_link_md5 "$secure_link_expires {made.secret}";
              if ($secure_link = "") {{ return 403; }}
              if ($secure_link = "0") {{ return 403; }}
            }}
            location /limited/ {{ alias {made.root}/; limit_req zone=few; limit_req_status 429; }}
            location /moved/ {{ rewrite ^/moved/(.*)$ /$1 redirect; }}
            location /loop/ {{ return 302 /loop/again; }}
          }}
        }}
        """
    )
    with Process([program, "-c", str(config), "-p", str(folder)], port, folder / "output.log") as process:
        process.until_it_answers()
        yield made
