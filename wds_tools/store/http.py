"""An HTTP server that answers ranged requests, such as nginx over a folder of shards.

Plain and careful: every request is bounded, an answer must be the very bytes that were asked for, a transfer that breaks
goes on at the byte where it broke. Requests of one process share a pool of connections, made anew after a fork.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import time
from collections.abc import Iterable
from typing import Any, BinaryIO, cast
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

import urllib3

from wds_tools.errors import NotFoundError, OptionError, StoreError
from wds_tools.store.base import Chunk

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 30.0  # without a byte, not in all
RETRIES = 5
REDIRECTS = 5
CHUNK = 8 << 20  # bytes of one request while streaming
BACKOFF_SECONDS = 0.2  # doubled with each attempt, of which a random part is waited
PATIENCE_SECONDS = 60.0  # at most, whatever the server asks for

_JITTER = random.SystemRandom()  # neither the program's own random state, nor the same in all workers
_BUSY = (429, 500, 502, 503, 504)
_MOVED = (301, 302, 303, 307, 308)
_PLAIN = "/%:@!$&'()*+,;=~"  # stays as it is in a name: an address has its percent signs already


class HttpStore:
    """A folder on an HTTP server as a `Store`, for reading. A query in the address goes along with every request."""

    def __init__(self, root: str) -> None:
        parts = urlsplit(root)
        host = parts.netloc.rpartition("@")[2]
        if parts.scheme not in ("http", "https") or not host:
            raise OptionError(f"{parts.scheme}://{host}{parts.path} is no http or https address")
        self._base = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._query = parts.query
        self._headers = {"Accept-Encoding": "identity"}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers |= urllib3.make_headers(basic_auth=login)
        self._pool: urllib3.PoolManager | None = None
        self._pid = -1

    def __repr__(self) -> str:
        return f"HttpStore({self.url()!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None, "_pid": -1}

    def url(self, name: str = "") -> str:
        """The address without its query, which may be a secret, and without a password."""
        return f"{self._base}/{quote(name, safe=_PLAIN)}" if name else self._base

    def size(self, name: str) -> int:
        answer = self._request("HEAD", name, {})
        answer.release_conn()
        length = answer.headers.get("Content-Length", "")
        if not length.isdigit():
            raise StoreError(
                f"{self.url(name)}: the server does not say how long it is; use one that does, such as nginx"
            )
        return int(length)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if length is None:
            length = self.size(name) - start
        if length == 0:
            return b""
        parts: list[bytes] = []
        missing = length
        for attempt in range(RETRIES + 1):
            at = start + length - missing
            answer = self._request("GET", name, {"Range": f"bytes={at}-{at + missing - 1}"})
            try:
                self._check_range(answer, name, at, missing)
                # Not read(), which keeps what came to itself when the rest does not.
                while missing and (part := answer.read1(min(missing, 1 << 20))):
                    parts.append(part)
                    missing -= len(part)
            except urllib3.exceptions.HTTPError as error:
                if attempt == RETRIES:
                    raise StoreError(
                        f"{self.url(name)}: the transfer broke {attempt + 1} times, last at byte {at}: {error}"
                    ) from error
            finally:
                answer.release_conn() if not missing else answer.close()
            if not missing:
                return b"".join(parts)
        raise StoreError(
            f"{self.url(name)}: {missing} of {length} bytes from {start} never came in {RETRIES + 1} attempts"
        )

    def stream(self, name: str, start: int = 0) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(_Ranged(self, name, start), 1 << 16))

    def list(self, prefix: str = "") -> list[str]:
        raise StoreError(
            f"{self.url()} cannot be listed; give a folder with info.json, brace notation, or a list of shards"
        )

    def write_atomic(self, name: str, chunks: Iterable[Chunk], *, durable: bool = True) -> None:
        raise StoreError(f"{self.url(name)} cannot be written to")

    def delete(self, name: str) -> None:
        raise StoreError(f"{self.url(name)} cannot be deleted")

    def _request(self, method: str, name: str, headers: dict[str, str]) -> Any:
        """The answer to a request, its body unread. Tried again while the server is busy or cannot be reached.

        Not by urllib3, which would log addresses with their queries, and follow a redirect from https to http.
        """
        address = f"{self.url(name)}?{self._query}" if self._query else self.url(name)
        for attempt in range(RETRIES + 1):
            wait = BACKOFF_SECONDS * 2**attempt * _JITTER.random()
            try:
                answer = self._follow(method, name, address, headers)
            except urllib3.exceptions.HTTPError as error:
                # Without the cause, which quotes the address with its query.
                reason = type(getattr(error, "reason", None) or error).__name__
            else:
                if answer.status not in _BUSY:
                    break
                reason = f"HTTP {answer.status}"
                with contextlib.suppress(urllib3.exceptions.HTTPError):
                    wait = urllib3.Retry().get_retry_after(answer) or wait
                answer.close()
            if attempt < RETRIES:
                time.sleep(min(wait, PATIENCE_SECONDS))
        else:
            raise StoreError(f"{self.url(name)}: no answer after {RETRIES + 1} attempts ({reason}); try again later")
        if answer.status >= 300:
            answer.close()
            if answer.status in (404, 410):
                raise NotFoundError(f"{self.url(name)} does not exist (HTTP {answer.status}); check the address")
            raise StoreError(f"{self.url(name)}: the server refuses with HTTP {answer.status} {answer.reason}")
        return answer

    def _follow(self, method: str, name: str, address: str, headers: dict[str, str]) -> Any:
        """One attempt, through all redirects."""
        if self._pool is None or self._pid != os.getpid():
            self._pool, self._pid = urllib3.PoolManager(maxsize=8), os.getpid()
        headers = {**self._headers, **headers}
        for _ in range(REDIRECTS + 1):
            answer = self._pool.request(
                method,
                address,
                headers=headers,
                retries=False,
                redirect=False,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=IDLE_SECONDS),
                preload_content=False,
            )
            location = answer.headers.get("Location")
            if answer.status not in _MOVED or not location:
                return answer
            answer.close()
            before, address = urlsplit(address), urljoin(address, location)
            after = urlsplit(address)
            if after.scheme not in ("http", "https") or (before.scheme, after.scheme) == ("https", "http"):
                raise StoreError(
                    f"{self.url(name)}: the server redirects from {before.scheme} to {after.scheme}, which is not followed"
                )
            if (before.scheme, before.netloc) != (after.scheme, after.netloc):  # another server gets no password
                headers = {key: value for key, value in headers.items() if key != "authorization"}
        raise StoreError(f"{self.url(name)}: more than {REDIRECTS} redirects; check the address")

    def _check_range(self, answer: Any, name: str, start: int, length: int) -> None:
        stated = answer.headers.get("Content-Range", "")
        if answer.status != 206 or not stated.startswith(f"bytes {start}-{start + length - 1}/"):
            raise StoreError(
                f"{self.url(name)}: bytes {start} to {start + length - 1} were asked for and the server answered "
                f"HTTP {answer.status} {stated!r}; use a server that honours ranges, such as nginx"
            )


class _Ranged(io.RawIOBase):
    """A remote file read front to back, a bounded request at a time."""

    def __init__(self, store: HttpStore, name: str, start: int) -> None:
        self._store = store
        self._name = name
        self._at = start
        self._size = store.size(name)
        self._chunk = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._chunk and self._at < self._size:
            self._chunk = memoryview(self._store.read(self._name, self._at, min(CHUNK, self._size - self._at)))
            self._at += len(self._chunk)
        part = self._chunk[: len(buffer)]
        buffer[: len(part)] = part
        self._chunk = self._chunk[len(part) :]
        return len(part)
