"""One request to a server, through redirects and as many attempts as it takes, to an answer that can be used.

What HTTP and S3 have in common. Connections are pooled by process: a child of a fork opens its own. urllib3 only moves
bytes; redirects and retries are decided here, because they concern secrets. Addresses are shown without their query, and
the errors of urllib3, which quote addresses, are told in words of our own.
"""

from __future__ import annotations

import http.client
import os
import re
import ssl
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import SplitResult, urljoin, urlsplit

import urllib3
from urllib3 import exceptions

from wds_tools.errors import ChangedError, NotFoundError, StoreError
from wds_tools.store.options import StoreOptions
from wds_tools.store.retry import TRANSIENT, Attempts, asked_wait

CONNECT_SECONDS = 10.0
REDIRECTS = 5
MAX_REFUSAL = 16 << 10  # bytes read of an error's body
MAX_REPLY = 16 << 20  # bytes of an answer that is read whole: a page of a thousand long names has one or two

_MOVED = (301, 302, 303, 307, 308)
_CODE = re.compile(rb"<Code>(\w{1,80})</Code>")
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "wds_tools"}


@dataclass(frozen=True)
class Request:
    """``target`` is what the store's `Access` makes an address of, secrets and all; ``shown`` is how messages name it."""

    target: str = field(repr=False)
    shown: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Reply:
    """The body and the headers of an answer."""

    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Refusal:
    """A server's answer that is no good: S3 servers give their reason a name."""

    status: int
    code: str
    headers: Mapping[str, str]

    def __str__(self) -> str:
        return f"HTTP {self.status} {self.code}".rstrip()


class Access(Protocol):
    """How a store is let in by its server."""

    def sign(self, request: Request) -> tuple[str, Mapping[str, str]]:
        """The address to ask, and the headers that let this request in; they are sent to no other server."""

    def renew(self, refusal: Refusal) -> bool:
        """Whether it makes sense to ask again, once, with what is known now."""

    def advice(self, refusal: Refusal) -> str:
        """What to do about it."""


class Wire:
    """Sends requests. Pickles without its connections."""

    def __init__(self, access: Access, options: StoreOptions) -> None:
        self.access = access
        self.options = options
        self._pool: urllib3.PoolManager | None = None
        self._pid = -1

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None, "_pid": -1}

    def send(self, request: Request, attempts: Attempts, good: Collection[int] = (200,)) -> urllib3.BaseHTTPResponse:
        """An answer whose status is ``good``, its body unread; the caller closes it or reads it to its end."""
        renewed = False
        while True:
            try:
                answer = self._follow(request)
            except exceptions.HTTPError as error:
                attempts.failed(explain(error, request.shown))
                continue
            if answer.status in good:
                return answer
            refusal = _refusal(answer)
            if answer.status in TRANSIENT or refusal.code == "RequestTimeout":
                attempts.failed(str(refusal), asked_wait(answer.headers.get("Retry-After"), time.time()))
            elif not renewed and self.access.renew(refusal):
                renewed = True
            else:
                raise self._error(request, refusal)

    def call(
        self, request: Request, attempts: Attempts, good: Collection[int] = (200, 204), limit: int = MAX_REPLY
    ) -> Reply:
        """A whole answer, for what is small."""
        while True:
            answer = self.send(request, attempts, good)
            parts: list[bytes] = []
            try:
                while part := answer.read1(limit, decode_content=False):
                    parts.append(part)
                    if (limit := limit - len(part)) < 1:
                        raise StoreError(f"{request.shown}: the server's answer has no end; check the address")
                return Reply(b"".join(parts), answer.headers)
            except exceptions.HTTPError as error:
                attempts.failed(explain(error, request.shown))
            finally:
                answer.close()

    def _pools(self) -> urllib3.PoolManager:
        if self._pool is None or self._pid != os.getpid():
            # block=False: whoever finds no connection free opens one more.
            ca_file = None if self.options.ca_file is None else os.fspath(self.options.ca_file)
            self._pool = urllib3.PoolManager(maxsize=self.options.concurrency, ca_certs=ca_file)
            self._pid = os.getpid()
        return self._pool

    def _follow(self, request: Request) -> urllib3.BaseHTTPResponse:
        """One attempt, through all redirects."""
        timeout = urllib3.Timeout(connect=min(CONNECT_SECONDS, self.options.timeout), read=self.options.timeout)
        url, signature = self.access.sign(request)
        headers = {**_HEADERS, **request.headers, **signature}
        for _ in range(REDIRECTS + 1):
            answer = self._pools().urlopen(
                request.method,
                url,
                body=request.body or None,
                headers=headers,
                retries=False,
                redirect=False,
                timeout=timeout,
                preload_content=False,
            )
            location = answer.headers.get("Location")
            if answer.status not in _MOVED or not location or request.method != "GET":
                return answer
            answer.close()
            before, after = urlsplit(url), _target(request, url, location)
            url = after.geturl()
            if after.scheme not in ("http", "https") or (before.scheme, after.scheme) == ("https", "http"):
                raise StoreError(
                    f"{request.shown}: the server redirects from {before.scheme} to {after.scheme}, which is not "
                    "followed; give the address that it redirects to, if you trust it"
                )
            if (before.scheme, before.netloc) != (after.scheme, after.netloc):
                headers = {**_HEADERS, **request.headers}  # another server gets no credentials
        raise StoreError(f"{request.shown}: more than {REDIRECTS} redirects; check the address")

    def _error(self, request: Request, refusal: Refusal) -> StoreError:
        if refusal.status in (404, 410):
            return NotFoundError(f"{request.shown} does not exist ({refusal}); check the address")
        if refusal.status == 412:
            return changed(request.shown, "the server has other bytes under this name now")
        return StoreError(f"{request.shown}: the server refuses ({refusal}); {self.access.advice(refusal)}")


def _target(request: Request, url: str, location: str) -> SplitResult:
    try:
        return urlsplit(urljoin(url, location))
    except ValueError:
        raise StoreError(f"{request.shown}: the server redirects to what is no address; check the server") from None


def changed(shown: str, what: str) -> ChangedError:
    return ChangedError(
        f"{shown}: {what}, and they are not mixed with those read before; "
        "begin anew, after 'wds-tools index' if the dataset was replaced on purpose"
    )


def _refusal(answer: urllib3.BaseHTTPResponse) -> Refusal:
    """What the server says, its body read as far as it helps."""
    body = b""
    try:
        while len(body) < MAX_REFUSAL and (part := answer.read1(MAX_REFUSAL, decode_content=False)):
            body += part
    except exceptions.HTTPError:
        pass
    answer.close()
    code = _CODE.search(body)
    return Refusal(answer.status, code[1].decode() if code else "", answer.headers)


def explain(error: exceptions.HTTPError, shown: str) -> str:
    """Why there was no answer, or no more of it; `StoreError` where another attempt would change nothing.

    Not urllib3's own words, which may quote the address with its query.
    """
    causes = _causes(error)
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise StoreError(
                f"{shown}: its certificate cannot be trusted ({cause.verify_message}); "
                "check the address, or name the certificates to trust (ca_file)"
            ) from None
        if isinstance(cause, exceptions.LocationValueError):
            raise StoreError(
                f"{shown}: the address cannot be understood; check it, and where it redirects to"
            ) from None
    for kind, words in _WORDS.items():
        if any(isinstance(cause, kind) for cause in causes):
            return words
    for cause in causes:
        if isinstance(cause, OSError) and cause.strerror:
            return f"the connection broke ({cause.strerror})"
    return f"the connection broke ({type(error).__name__})"


def _causes(error: BaseException) -> list[BaseException]:
    """The error, and what it was made from."""
    found: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, BaseException) and each not in found:
            found.append(each)
            waiting += [*each.args, each.__cause__]
    return found


_WORDS: dict[type[BaseException], str] = {
    exceptions.NameResolutionError: "its host's name is not known",
    exceptions.NewConnectionError: "no connection, the server is down or the address is wrong",
    exceptions.ConnectTimeoutError: "no connection in time",
    exceptions.ReadTimeoutError: "the server stopped sending",
    http.client.IncompleteRead: "the body ended early",
    http.client.RemoteDisconnected: "the server hung up",
}
