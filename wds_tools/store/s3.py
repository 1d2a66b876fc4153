"""A bucket of an S3 server: Amazon's, or any that speaks its protocol, such as MinIO, Ceph, Swift or Google's.

Requests are signed by botocore (extra ``s3``) and sent as those of `store.http` are. A write is one PUT, or a multipart upload
that takes its name when it is complete and is aborted when it cannot be.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

from wds_tools.errors import NotFoundError, OptionError, StoreError
from wds_tools.store.base import Chunk
from wds_tools.store.options import StoreOptions
from wds_tools.store.remote import RemoteStore
from wds_tools.store.retry import Attempts
from wds_tools.store.signing import Signer
from wds_tools.store.upload import Target, upload
from wds_tools.store.wire import Request, Wire

PAGE = 1000  # names of one answer; servers give no more

_ROOT = re.compile(r"s3://([A-Za-z0-9][\w.-]{0,254})(?:/(.*))?", re.DOTALL | re.ASCII)


class S3Store(RemoteStore):
    """What lies under a prefix of a bucket, ``s3://bucket/prefix``, as a `Store`.

    Server, region and credentials come from ``options``, else from the AWS configuration (environment, files, roles).
    """

    def __init__(self, root: str, options: StoreOptions | None = None) -> None:
        match = _ROOT.fullmatch(root)
        if match is None:
            shown = root.rpartition("@")[2].partition("?")[0]  # what stands before or behind may be a secret
            raise OptionError(f"{shown!r} is no address in S3; write s3://bucket/prefix, and no login or query in it")
        self._bucket = match[1]
        self._prefix = f"{(match[2] or '').strip('/')}/".lstrip("/")
        options = options or StoreOptions()
        super().__init__(Wire(Signer(self._bucket, options), options))

    def __repr__(self) -> str:
        return f"S3Store({self.url()!r})"

    def url(self, name: str = "") -> str:
        return f"s3://{self._bucket}/{self._prefix}{name}".rstrip("/")

    def request(self, name: str, method: str = "GET", query: str = "", body: bytes = b"") -> Request:
        key = quote(self._prefix + name, safe="/~", errors="surrogateescape")
        return Request(f"/{key}{query and '?' + query}", self.url(name), method, body=body)

    def list(self, prefix: str = "") -> list[str]:
        found: set[str] = set()
        token: str | None = ""
        while token is not None:
            page = self._page(prefix, token)
            keys = [*_texts(page, "Contents", "Key"), *_texts(page, "CommonPrefixes", "Prefix")]
            found.update(unquote_plus(key, errors="surrogateescape")[len(self._prefix) :].rstrip("/") for key in keys)
            token = next(_texts(page, "NextContinuationToken"), None)
        return sorted(name for name in found if name and name.startswith(prefix))

    def write_atomic(self, name: str, chunks: Iterable[Chunk], *, durable: bool = True) -> None:
        def request(method: str, query: str, body: bytes) -> Request:
            return self.request(name, method, query, body)

        target = Target(self._wire, request, lambda: self.size(name), self.timing)
        upload(target, chunks, self._wire.options.chunk_size)

    def delete(self, name: str) -> None:
        request = self.request(name, "DELETE")
        with contextlib.suppress(NotFoundError):
            self._wire.call(request, self._attempts(request))

    def _attempts(self, request: Request) -> Attempts:
        return Attempts(request.shown, self._wire.options, self.timing)

    def _page(self, prefix: str, token: str) -> ElementTree.Element:
        words = {"list-type": "2", "encoding-type": "url", "delimiter": "/", "prefix": self._prefix + prefix}
        words["max-keys"] = str(PAGE)
        if token:
            words["continuation-token"] = token
        query = "&".join(f"{key}={quote(words[key], safe='~', errors='surrogateescape')}" for key in sorted(words))
        request = Request(f"?{query}", self.url(prefix))
        reply = self._wire.call(request, self._attempts(request))
        try:
            page = ElementTree.fromstring(reply.body)
        except ElementTree.ParseError:
            page = None
        if page is None or _plain(page.tag) != "ListBucketResult":
            raise StoreError(f"{request.shown} cannot be listed: no list came; check that the server speaks S3")
        return page


def _plain(tag: str) -> str:
    """Without its namespace, of which servers have several."""
    return tag.rpartition("}")[2]


def _texts(element: ElementTree.Element, *path: str) -> Iterator[str]:
    """The texts of what lies under this path of tags."""
    for child in element:
        if _plain(child.tag) == path[0]:
            if path[1:]:
                yield from _texts(child, *path[1:])
            elif child.text:
                yield child.text
