"""A distant server: a proxy, a process of its own, that hands every request on after a while.

Only what clients send is held back, so that each request waits once, whatever else is under way; answers pass at once, moved
by the kernel from socket to socket.

Usage as a process: latency.py PORT TARGET SECONDS, both ports of loopback.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

STEP = 1 << 20


@contextlib.contextmanager
def distant(url: str, seconds: float, log: Path) -> Iterator[str]:
    """Another address of the server at ``url`` on loopback, ``seconds`` away."""
    from tests.support.servers import Process, free_port

    host, _, target = url.rpartition(":")
    port = free_port()
    with Process([sys.executable, __file__, str(port), target, str(seconds)], port, log) as process:
        process.until_it_answers()
        yield f"{host}:{port}"


def _requests(client: socket.socket, server: socket.socket, seconds: float) -> None:
    with contextlib.suppress(OSError):
        while data := client.recv(1 << 16):
            time.sleep(seconds)
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)


def _answers(server: socket.socket, client: socket.socket) -> None:
    out, into = os.pipe()
    try:
        while count := os.splice(server.fileno(), into, STEP):
            while count:
                count -= os.splice(out, client.fileno(), count)
    except OSError:
        pass
    finally:
        os.close(out)
        os.close(into)
        for each in (client, server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _connected(client: socket.socket, target: int, seconds: float) -> None:
    with client, socket.create_connection(("127.0.0.1", target)) as server:
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = threading.Thread(target=_answers, args=(server, client), daemon=True)
        answers.start()
        _requests(client, server, seconds)
        answers.join()


def main() -> None:
    port, target, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    listening = socket.create_server(("127.0.0.1", port), backlog=256)
    while True:
        client, _ = listening.accept()
        threading.Thread(target=_connected, args=(client, target, seconds), daemon=True).start()


if __name__ == "__main__":
    main()
