"""Files with ranges over HTTP, by aiohttp: what it may send, and what has to be added to it.

aiohttp answers ranges, conditions and HEAD, and has the kernel send the bytes. Added here: only files of the dataset go out
and none through a link that leaves it; an ``If-Range`` with an ETag, which aiohttp reads as none; and, at loopback, no answer
to a request that was meant for another host, which is how a page in a browser reaches what listens on this machine.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import threading
from urllib.parse import unquote, urlsplit

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError

SUFFIXES, NAMES = (".tar", ".idx"), ("info.json", "sizes.json")

_PACING = 47  # SO_MAX_PACING_RATE of Linux: bytes a second of one connection
_SHUTDOWN = 0.1  # seconds that transfers under way get when the server ends

_LOG = logging.getLogger(__name__)
# What is no HTTP, such as https, is answered and worth no trace.
_LOG.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))


def find_file(root: str, path: str) -> str | None:
    """The real path of what a request's ``path``, percent signs and all, may have of ``root``, itself a real path.

    None for what is no file of a dataset there, however it is written: hidden, above ``root``, or a link out of it.
    """
    name = unquote(path, errors="surrogateescape").removeprefix("/")
    if not (name.endswith(SUFFIXES) or name.rpartition("/")[2] in NAMES) or "\0" in name:
        return None
    real = os.path.realpath(os.path.join(root, name))
    # Out of root the way begins with "..", which is hidden like any name with a dot before it.
    parts = [*name.split("/"), *os.path.relpath(real, root).split(os.sep)]
    whole = all(part and not part.startswith(".") for part in parts)
    return real if whole and os.path.isfile(real) else None


class RangedServer:
    """Answers for the files of ``root`` at a socket that listens. ``latency`` is in seconds, ``rate`` in bytes a second."""

    def __init__(self, root: str, listening: socket.socket, latency: float = 0.0, rate: float | None = None) -> None:
        self.root, self.listening, self.latency, self.rate = root, listening, latency, rate
        host, port = listening.getsockname()[:2]
        self._private = _is_loopback(host)
        if ipaddress.ip_address(host).is_unspecified:  # every address of this machine, and none to ask for
            host = socket.gethostname()
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._real = os.path.realpath(root)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()
        self._stopped = False

    def run(self) -> None:
        """Answer until `stop` is called; then the port is free again."""
        try:
            asyncio.run(self._serve())
        finally:
            self.close()

    def stop(self) -> None:
        """End `run`; from any thread, and from a signal handler."""
        self._stopped = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._over.set)

    def close(self) -> None:
        """Let go of the socket."""
        self.listening.close()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        app = web.Application()
        app.router.add_get("/{name:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, logger=_LOG, shutdown_timeout=_SHUTDOWN)
        await runner.setup()
        try:
            await web.SockSite(runner, self.listening, backlog=1024).start()
            if not self._stopped:
                await self._over.wait()
        finally:
            self._loop = None
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self._private and not _is_for_loopback(request.headers.get("Host", "")):
            raise web.HTTPForbidden(text="this server answers for 127.0.0.1 and localhost only\n")
        await asyncio.sleep(self.latency)
        path = find_file(self._real, request.rel_url.raw_path)  # takes less than handing it to a thread
        if path is None:
            raise web.HTTPNotFound(text="there is no such file of a dataset here\n")
        if self.rate is not None and request.transport is not None:
            connection = request.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, _PACING, min(int(self.rate), 2**31 - 1))
        return _File(path)


class _File(web.FileResponse):
    """A file as it lies there, of which a range goes out only if it is of the version that the client knows."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        headers = request.headers.copy()
        headers.popall("Accept-Encoding", None)  # aiohttp would send a file.tar.gz that lies beside
        condition = headers.get("If-Range", "")
        if '"' in condition and condition != self._tag():
            headers.popall("Range", None)
        return await super().prepare(request.clone(headers=headers))

    def _tag(self) -> str:
        """As aiohttp makes it."""
        try:
            status = os.stat(self._path)
        except OSError:
            return ""
        return f'"{status.st_mtime_ns:x}-{status.st_size:x}"'


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_for_loopback(host: str) -> bool:
    """Whether a ``Host`` header, with or without a port, names this machine to itself; HTTP/1.0 has none."""
    try:
        return not host or _is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def run_for_parent(listening: int, root: str, latency: float, rate: float | None) -> None:
    """The whole of a server's process: it answers at an inherited socket, until its standard input is closed."""
    server = RangedServer(root, socket.socket(fileno=listening), latency, rate)

    def wait() -> None:
        os.read(0, 1)
        server.stop()

    threading.Thread(target=wait, daemon=True).start()
    server.run()
