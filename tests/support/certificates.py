"""A certificate authority, and the servers that it vouches for."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from tests.support import needs


@dataclass(frozen=True)
class Authority:
    """``file`` is what a client must trust; ``good`` serves 127.0.0.1, ``other`` is of another host."""

    file: Path
    good: ssl.SSLContext
    other: ssl.SSLContext


def authority(folder: Path) -> Authority:
    trustme = needs.package("trustme")
    made = trustme.CA()  # type: ignore[attr-defined]
    made.cert_pem.write_to_path(str(folder / "ca.pem"))
    contexts = []
    for host in ("127.0.0.1", "another.example"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.issue_cert(host).configure_cert(context)
        contexts.append(context)
    return Authority(folder / "ca.pem", *contexts)
