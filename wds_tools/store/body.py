"""The bytes of one range, as they come over the wire.

Every answer is held against what was asked for before a byte of it is used: the exact range, the size and ETag of
those before it, no encoding, no web page. A transfer that breaks goes on at the byte where it broke.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace

import urllib3
from urllib3 import exceptions

from wds_tools.errors import StoreError
from wds_tools.store.base import Version
from wds_tools.store.retry import TIMING, Attempts, Timing
from wds_tools.store.wire import Request, Wire, changed, explain

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_UNSATISFIED = re.compile(r"bytes \*/(\d{1,18})")
# Amazon keeps "aws-chunked" of some uploads, though the bytes are plain.
_PLAIN = ("", "identity", "aws-chunked")


class Body:
    """Bytes ``start`` to ``stop`` of what ``request`` asks for.

    With ``clip``, as many of them as there are; without, fewer are an error. ``version`` is what they must belong to;
    None takes that of the first answer. It is None until there is one. One thread reads.
    """

    def __init__(
        self,
        wire: Wire,
        request: Request,
        start: int,
        stop: int,
        *,
        clip: bool = False,
        version: Version | None = None,
        timing: Timing = TIMING,
    ) -> None:
        self.version = version
        self._wire = wire
        self._request = request
        self._attempts = Attempts(request.shown, wire.options, timing)
        self._at = start
        self._stop = min(stop, version.size) if clip and version is not None else stop
        self._clip = clip
        self._answer: urllib3.BaseHTTPResponse | None = None
        self._pid = -1

    def open(self) -> None:
        """Ask for what is missing. Also before the first `read1`, so that errors come here."""
        if self.version is not None and max(self._at, self._stop) > self.version.size:
            raise _ends(self._request.shown, self.version.size, max(self._at, self._stop))
        if self._at >= self._stop:
            return
        headers = {"Range": f"bytes={self._at}-{self._stop - 1}"}
        if self.version is not None and self.version.tag.startswith('"'):  # a weak tag never matches
            headers["If-Match"] = self.version.tag
        request = replace(self._request, headers=headers)
        answer = self._wire.send(request, self._attempts, good=(200, 206, 416))
        try:
            self._check(answer)
        except StoreError:
            answer.close()
            raise
        self._answer, self._pid = answer, os.getpid()

    def read1(self, most: int) -> bytes:
        """What is there, at most so many bytes; nothing at the end."""
        while self._at < self._stop:
            if self._answer is None or self._pid != os.getpid():  # a forked child must not read its parent's socket
                self._answer = None
                self.open()
                continue
            try:
                part = self._answer.read1(min(most, self._stop - self._at), decode_content=False)
            except exceptions.HTTPError as error:
                self._broke(explain(error, self._request.shown))
                continue
            if not part:
                self._broke("the body ended early")
                continue
            self._at += len(part)
            self._attempts.progress(len(part))
            if self._at == self._stop:
                self.close()
            return part
        return b""

    def close(self) -> None:
        """Let go of the answer. Its connection is kept if it was read to its end, and closed if anything may still come."""
        answer, self._answer = self._answer, None
        if answer is not None and self._pid == os.getpid():
            answer.close()

    def _broke(self, reason: str) -> None:
        self.close()
        self._attempts.failed(f"{reason} at byte {self._at}")

    def _check(self, answer: urllib3.BaseHTTPResponse) -> None:
        """Whether the answer is the very bytes that are wanted; what is not known yet is learned from it."""
        headers, shown = answer.headers, self._request.shown
        if answer.status == 416:
            return self._check_end(headers.get("Content-Range", ""))
        if (kind := headers.get("Content-Type", "").lower()).startswith("text/html") and not self._is_page():
            raise StoreError(
                f"{shown}: the server sends a web page ({kind}) and no file: perhaps a page to sign in, or an error; "
                "check the address, or have the server state another Content-Type"
            )
        if (encoding := headers.get("Content-Encoding", "").strip().lower()) not in _PLAIN:
            raise StoreError(
                f"{shown}: the server sends it compressed ({encoding}), so that no byte is where the index says; "
                "switch that off for datasets"
            )
        size = self._size(answer)
        version = Version(size, headers.get("ETag") or headers.get("Last-Modified", ""))
        if self.version is not None:
            self._check_version(version)
        self.version = version
        if self._stop > size:
            if not self._clip:
                raise _ends(shown, size, self._stop)
            self._stop = size
        return None

    def _size(self, answer: urllib3.BaseHTTPResponse) -> int:
        """The whole length, from an answer whose body is the range that was asked for."""
        stated, length = answer.headers.get("Content-Range", ""), answer.headers.get("Content-Length", "")
        whole = int(length) if length.isdigit() else -1
        if answer.status == 206 and (found := _CONTENT_RANGE.fullmatch(stated)):
            first, last, size = map(int, found.groups())
            if (first, last) == (self._at, min(self._stop, size) - 1) and whole in (-1, last + 1 - first):
                return size
        elif answer.status == 200 and not stated and self._at == 0:
            if whole < 0:
                raise StoreError(
                    f"{self._request.shown}: the server does not say how long it is; use one that does, such as nginx"
                )
            if whole <= self._stop:
                return whole  # all of it was asked for, and comes
        raise StoreError(
            f"{self._request.shown}: bytes {self._at} to {self._stop - 1} were asked for and the server answered "
            f"HTTP {answer.status} {stated!r}; use a server that honours ranges, such as nginx"
        )

    def _check_version(self, found: Version) -> None:
        before = self.version
        assert before is not None
        if found.size != before.size:
            raise changed(self._request.shown, f"it has {found.size} bytes where it had {before.size}")
        if before.tag and found.tag != before.tag:
            raise changed(self._request.shown, f"its ETag changed from {before.tag} to {found.tag or 'none'}")

    def _check_end(self, stated: str) -> None:
        """The server has no byte at the beginning of the range. Not all say how many there are, unless there is none."""
        found = _UNSATISFIED.fullmatch(stated)
        size = int(found[1]) if found else 0 if self._at == 0 else -1
        if self.version is not None:
            less = f"{size} bytes" if size >= 0 else "fewer bytes"
            raise changed(self._request.shown, f"it has {less} where it had {self.version.size}")
        if not self._clip or size != self._at:
            raise _ends(self._request.shown, size, self._stop)
        self.version, self._stop = Version(size), self._at

    def _is_page(self) -> bool:
        return self._request.shown.lower().endswith((".html", ".htm"))


def _ends(shown: str, size: int, expected: int) -> StoreError:
    end = f"ends at byte {size}" if size >= 0 else "ends earlier"
    return StoreError(f"cannot read {shown}: it {end}, {expected} were expected; fetch or convert it again")
