"""What servers and networks do to a transfer: acts for `streams.Server`, each answering one request."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from tests.support.streams import Act, _Handler, tag


def reset(after: int) -> Act:
    """So many bytes, then the connection is torn down."""

    def act(handler: _Handler, path: Path) -> None:
        handler.wfile.write(handler.part(path)[:after])
        # A client that has read all this sees the reset next: it is sent when the last descriptor is closed.
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.close_connection = True

    return act


def stall(after: int) -> Act:
    """So many bytes, then silence on an open connection, until the server ends."""

    def act(handler: _Handler, path: Path) -> None:
        handler.wfile.write(handler.part(path)[:after])
        handler.owner.over.wait()
        handler.close_connection = True

    return act


def silence(handler: _Handler, path: Path) -> None:
    """Not even a status."""
    handler.owner.over.wait()
    handler.close_connection = True


def drip(pieces: int, seconds: float) -> Act:
    """All bytes, in pieces with pauses between them."""

    def act(handler: _Handler, path: Path) -> None:
        data = handler.part(path)
        step = -(-len(data) // pieces)
        for at in range(0, len(data), step):
            handler.owner.over.wait(seconds)
            handler.wfile.write(data[at : at + step])

    return act


def without_length(after: int | None = None) -> Act:
    """The body goes on until the connection ends, which it may do early."""

    def act(handler: _Handler, path: Path) -> None:
        data, start, size = handler.wanted(path) or (b"", 0, 0)
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {start}-{start + len(data) - 1}/{size}")
        handler.send_header("ETag", tag(path))
        handler.end_headers()
        handler.wfile.write(data[:after])
        handler.close_connection = True

    return act


def stating(**headers: str) -> Act:
    """The right bytes under headers of one's own."""
    return lambda handler, path: (handler.wfile.write(handler.part(path, **headers)), None)[1]
