"""How remote stores behave: one frozen value, checked when made.

Defaults, and why. ``timeout``: a server that says nothing for half a minute is taken for gone; one that is slow but
alive is waited for, however long. ``retries`` and ``backoff``: eight waits that double from a quarter of a second last
up to a minute in all, which a server takes to restart. ``chunk_size``: streaming from
nginx on loopback, requests of 1, 4, 8, 16 and 64 MiB reach 0.70, 0.83, 1.03, 1.12 and 0.92 times curl's rate
(benchmarks/remote.py); a break costs nothing, since reading goes on at the byte. ``concurrency``:
connections that a process keeps open to a server; more threads than this may read, and then open more for a while.
"""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from wds_tools.errors import OptionError

MIN_CHUNK, MAX_CHUNK = 1 << 16, 1 << 30


@dataclass(frozen=True)
class StoreOptions:
    """What HTTP and S3 stores go by; the last four are for S3 alone.

    Attributes:
        timeout: seconds without a byte, or without a connection, after which an attempt has failed.
        retries: failed attempts in a row that are tried again; an attempt that brought bytes begins a new row.
        backoff: seconds that the first wait lasts at most; each next one at most twice as long.
        patience: seconds that any wait lasts at most, unless the server asks for a longer one.
        chunk_size: bytes of one request while streaming.
        concurrency: connections kept open by a process.
        ca_file: certificates to trust in place of the system's.
        endpoint_url: the S3 server; None means what the AWS configuration says, else Amazon's.
        region: None means what the AWS configuration says; Amazon's servers correct a wrong one.
        profile: of the AWS configuration; None means ``AWS_PROFILE`` or the default one.
        anonymous: send unsigned requests, to a public bucket; so it is anyway where no credentials are found.
    """

    timeout: float = 30.0
    retries: int = 8
    backoff: float = 0.25
    patience: float = 30.0
    chunk_size: int = 8 << 20
    concurrency: int = 8
    ca_file: str | os.PathLike[str] | None = None
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.timeout < float("inf"):
            raise OptionError(f"timeout is {self.timeout}; it must be a positive number of seconds")
        if not 0 <= self.retries <= 1000:
            raise OptionError(f"retries is {self.retries}; it must be between 0 and 1000")
        for name in ("backoff", "patience"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise OptionError(f"{name} is {getattr(self, name)}; it must be a number of seconds, 0 or more")
        if not MIN_CHUNK <= self.chunk_size <= MAX_CHUNK:
            raise OptionError(f"chunk_size is {self.chunk_size}; it must be between {MIN_CHUNK} and {MAX_CHUNK} bytes")
        if self.concurrency < 1:
            raise OptionError(f"concurrency is {self.concurrency}; it must be at least 1")
        if self.ca_file is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self.ca_file)
            except OSError as error:
                raise OptionError(
                    f"ca_file is {os.fspath(self.ca_file)!r}, which is no file of certificates in PEM ({error})"
                ) from None
        if self.endpoint_url is not None:
            _check_endpoint(self.endpoint_url)


def _check_endpoint(url: str) -> None:
    parts = urlsplit(url)
    shown = re.sub(r"//[^/]*@", "//", url.partition("?")[0])  # whatever secrets it holds
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OptionError(f"endpoint_url is {shown!r}; it must be an http or https address")
    if parts.username is not None or parts.query or parts.fragment:
        raise OptionError(
            f"endpoint_url {shown!r} has a password or a query; credentials come from the AWS configuration"
        )
