"""Writing to a bucket: one PUT for what fits into a part, else a multipart upload.

Either shows under its name only when it is whole. An upload that fails is aborted; one whose writer is
killed leaves parts that no listing shows, which a rule of the bucket should clear away (AbortIncompleteMultipartUpload).
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote
from xml.sax.saxutils import escape

from wds_tools.errors import NotFoundError, StoreError
from wds_tools.store.base import Chunk
from wds_tools.store.retry import Attempts, Timing
from wds_tools.store.wire import Reply, Request, Wire

MIN_PART = 8 << 20  # servers take no less than 5 MiB
MAX_PARTS = 10_000

_UPLOAD = re.compile(rb"<UploadId>([^<]+)</UploadId>")
_ERROR = re.compile(rb"<Error>.*?<Code>(\w{1,80})</Code>", re.DOTALL)


@dataclass(frozen=True)
class Target:
    """One name to write. ``request`` makes what asks for something about it, from method, query and body."""

    wire: Wire
    request: Callable[[str, str, bytes], Request]
    size: Callable[[], int]
    timing: Timing

    def attempts(self) -> Attempts:
        return Attempts(self.request("PUT", "", b"").shown, self.wire.options, self.timing)

    def ask(self, method: str, query: str = "", body: bytes = b"", attempts: Attempts | None = None) -> Reply:
        return self.wire.call(self.request(method, query, body), attempts or self.attempts())

    def error(self, what: str) -> StoreError:
        return StoreError(f"{self.request('PUT', '', b'').shown} cannot be written: {what}")


def upload(target: Target, chunks: Iterable[Chunk], part_size: int) -> None:
    """Write ``chunks``, in parts of ``part_size`` bytes where they are more."""
    parts = _cut(chunks, max(part_size, MIN_PART))
    first = next(parts, b"")
    second = next(parts, None)
    if second is None:
        target.ask("PUT", body=first)
        return
    begun = _UPLOAD.search(target.ask("POST", "uploads=").body)
    if begun is None:
        raise target.error("the server began no upload; check that it speaks S3")
    upload_id = f"uploadId={quote(begun[1].decode(), safe='~')}"
    try:
        size, tags = 0, []
        for number, part in enumerate(itertools.chain((first, second), parts), 1):
            if number > MAX_PARTS:
                raise target.error(f"more than {MAX_PARTS} parts of {len(first)} bytes; raise chunk_size")
            tag = target.ask("PUT", f"partNumber={number}&{upload_id}", part).headers.get("ETag")
            if not tag:
                raise target.error("the server gives a part no ETag; check that it speaks S3")
            tags.append(tag)
            size += len(part)
        _complete(target, upload_id, tags, size)
    except BaseException:
        with contextlib.suppress(StoreError):
            target.ask("DELETE", upload_id)
        raise


def _cut(chunks: Iterable[Chunk], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of ``size``, the last one shorter; none of no bytes."""
    gathered = bytearray()
    for chunk in chunks:
        gathered += chunk
        while len(gathered) >= size:
            yield bytes(memoryview(gathered)[:size])
            del gathered[:size]
    if gathered:
        yield bytes(gathered)


def _complete(target: Target, upload_id: str, tags: list[str], size: int) -> None:
    """Give the upload its name."""
    listed = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(tag)}</ETag></Part>"
        for number, tag in enumerate(tags, 1)
    )
    body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
    attempts = target.attempts()
    while True:
        try:
            reply = target.ask("POST", upload_id, body, attempts)
        except NotFoundError:
            # The answer to an earlier attempt was lost on the way, and that attempt had done it.
            if attempts.failures and target.size() == size:
                return
            raise
        error = _ERROR.search(reply.body)  # after a good status, which was sent before the work was done
        if error is None:
            return
        if error[1] not in (b"InternalError", b"SlowDown", b"ServiceUnavailable"):
            raise target.error(f"the server refuses ({error[1].decode()}); run again")
        attempts.failed(error[1].decode())
