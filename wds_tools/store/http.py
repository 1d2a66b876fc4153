"""An HTTP server that answers ranged requests, such as nginx over a folder of shards. For reading only.

An address may hold secrets: a password, or a query that signs it. They go along with every request to that server, and
nowhere else: not into messages, and into a pickle only on its way to a worker process that is being started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from multiprocessing.context import get_spawning_popen
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

import urllib3

from wds_tools.errors import NotFoundError, OptionError, StoreError
from wds_tools.store.base import Chunk
from wds_tools.store.options import StoreOptions
from wds_tools.store.remote import RemoteStore
from wds_tools.store.wire import Refusal, Request, Wire


class HttpStore(RemoteStore):
    """A folder on an HTTP server as a `Store`.

    A query in ``root`` goes along with every request. ``queries`` gives names queries of their own; then a name without
    one counts as missing, since nothing lets anybody in there.
    """

    def __init__(
        self, root: str, options: StoreOptions | None = None, queries: Mapping[str, str] | None = None
    ) -> None:
        parts = split_address(root)
        host = parts.netloc.rpartition("@")[2]
        self._base = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        login = "" if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        self._secrets: _Secrets | None = _Secrets(parts.query, dict(queries or {}), login)
        super().__init__(Wire(_Login(login), options or StoreOptions()))

    def __repr__(self) -> str:
        return f"HttpStore({self.url()!r})"

    def __getstate__(self) -> dict[str, Any]:
        if self._secrets is None or not self._secrets or get_spawning_popen() is not None:
            return self.__dict__
        return {**self.__dict__, "_secrets": None, "_wire": Wire(_Login(""), self._wire.options)}

    def url(self, name: str = "") -> str:
        """The address without its query, which may be a secret, and without a password."""
        return f"{self._base}/{quote(name, safe='/~', errors='surrogateescape')}" if name else self._base

    def request(self, name: str) -> Request:
        shown = self.url(name)
        if self._secrets is None:
            raise StoreError(
                f"{shown}: its password or query was left out when this store was pickled; "
                "make the store where it is used, or hand it to a process when that is started"
            )
        query = self._secrets.query
        if self._secrets.queries:
            if name not in self._secrets.queries:
                raise NotFoundError(f"{shown} is not among the addresses that were given")
            query = self._secrets.queries[name]
        return Request(f"{shown}?{query}" if query else shown, shown)

    def list(self, prefix: str = "") -> list[str]:
        raise StoreError(
            f"{self.url()} cannot be listed; give a folder with info.json, brace notation, or a list of shards"
        )

    def write_atomic(self, name: str, chunks: Iterable[Chunk], *, durable: bool = True) -> None:
        raise StoreError(f"{self.url(name)} cannot be written to; give a folder or an s3:// address")

    def delete(self, name: str) -> None:
        raise StoreError(f"{self.url(name)} cannot be deleted; give a folder or an s3:// address")


def split_address(address: str) -> SplitResult:
    """The parts of an http or https address; `OptionError`, without its secrets, for anything else."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise OptionError("an address is not well formed; check its host and port") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        raise OptionError(f"{shown} is no http or https address")
    return parts


class _Secrets:
    """What must not be shown."""

    def __init__(self, query: str, queries: dict[str, str], login: str) -> None:
        self.query = query
        self.queries = queries
        self.login = login

    def __bool__(self) -> bool:
        return bool(self.query or self.queries or self.login)

    def __repr__(self) -> str:
        return "_Secrets(...)"


class _Login:
    """A password, if there is one. There is nothing to renew: whoever signed the address must sign it again."""

    def __init__(self, login: str) -> None:
        self._headers = urllib3.make_headers(basic_auth=login) if login else {}

    def sign(self, request: Request) -> tuple[str, Mapping[str, str]]:
        return request.target, self._headers

    def renew(self, refusal: Refusal) -> bool:
        return False

    def advice(self, refusal: Refusal) -> str:
        if refusal.status in (401, 403):
            return "check the password or the query of the address; one that is signed may have expired: get a new one"
        return "check the address"
