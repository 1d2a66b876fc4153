"""A dataset over HTTP, for trying things out: what is served, where, and how slowly.

`listen` takes a port for a server that the caller runs; `serving` runs one in a process of its own, so that neither the
interpreter's lock nor the sockets that forked workers inherit disturb whoever reads from it. What aiohttp does is in
`tools.ranged`, which is loaded when a server is wanted.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wds_tools.errors import MissingExtraError, OptionError, StoreError
from wds_tools.format.dataset import open_dataset
from wds_tools.store.resolve import locate

if TYPE_CHECKING:
    from wds_tools.tools.ranged import RangedServer

LOOPBACK = "127.0.0.1"
MAX_LATENCY = 60.0

_CHILD = "import sys; sys.path[:] = {path!r}; from wds_tools.tools import ranged; ranged.run_for_parent(*{words!r})"


@dataclass(frozen=True)
class ServeOptions:
    """Where a server listens, and how slow a network it plays.

    Attributes:
        host: name or address to listen at. Any but loopback shows the dataset to whoever reaches this machine.
        port: 0 takes a free one.
        latency: seconds added to every request.
        rate: bytes a second of each connection at most, kept by the kernel (Linux only); None sends at full speed.
    """

    host: str = LOOPBACK
    port: int = 0
    latency: float = 0.0
    rate: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise OptionError(f"port is {self.port}; it must be between 1 and 65535, or 0 for a free one")
        if not 0 <= self.latency <= MAX_LATENCY:
            raise OptionError(f"latency is {self.latency} s; it must be between 0 and {MAX_LATENCY:g} s")
        if self.rate is not None and not 1000 <= self.rate < float("inf"):
            raise OptionError(f"rate is {self.rate} bytes a second; it must be at least 1000")
        if self.rate is not None and sys.platform != "linux":
            raise OptionError(f"rate is {self.rate}; only Linux can slow a connection down, leave it out")


def listen(folder: str | os.PathLike[str], options: ServeOptions | None = None) -> RangedServer:
    """A server of the dataset in ``folder``, already connected to by whoever tries; `RangedServer.run` answers them.

    `NotFoundError` without a dataset there, `OptionError` for what is no folder or no host, `StoreError` for a port that
    cannot be had, `MissingExtraError` without aiohttp.
    """
    options = options or ServeOptions()
    place = locate(folder)
    if place.names is not None:
        raise OptionError(f"{os.fspath(folder)!r} is no folder; give the one that holds info.json or the shards")
    open_dataset(place.store, None)
    try:
        from wds_tools.tools import ranged
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        raise MissingExtraError.of("serving", "aiohttp") from None
    return ranged.RangedServer(place.store.url(), _bound(options), options.latency, options.rate)


@contextlib.contextmanager
def serving(folder: str | os.PathLike[str], options: ServeOptions | None = None) -> Iterator[str]:
    """The address of the dataset in ``folder``, served by another process for as long as the block lasts.

    That process also ends when this one does, however it ends. Errors are those of `listen`; Windows is an `OptionError`,
    since it cannot hand a socket on like this.
    """
    if sys.platform == "win32":
        raise OptionError("serving() is not there on Windows; run 'wds-tools serve' in another terminal")
    server = listen(folder, options)
    listening = server.listening.fileno()
    words = (listening, server.root, server.latency, server.rate)
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD.format(path=sys.path, words=words)],
        stdin=subprocess.PIPE,  # which closes when this process ends
        stdout=subprocess.DEVNULL,
        pass_fds=[listening],
        start_new_session=True,  # an interrupt of this program, or of a notebook's cell, is not meant for the server
    )
    server.close()  # the socket is the other process's now
    with process:
        try:
            yield server.url
        finally:
            process.terminate()


def _bound(options: ServeOptions) -> socket.socket:
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise OptionError(f"host is {options.host!r}, which is no name or address of this machine") from None
    family, _, _, _, address = found[0]
    try:
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)  # Python adds the address to its text
        raise StoreError(
            f"cannot listen at {options.host} port {options.port} ({why}); choose another port, or 0 for a free one"
        ) from None
