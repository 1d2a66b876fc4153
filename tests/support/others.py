"""Shards of others as files, and what happens to files: they are replaced, cut, and lose bits."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support import shards

Members = Mapping[str, bytes] | Iterable[tuple[str, bytes]]


def tar(path: Path, members: Members, form: str = "ustar") -> Path:
    """A tar by Python's tarfile, which writes whatever names it is given."""
    path.write_bytes(shards.python(list(members.items() if isinstance(members, Mapping) else members), form))
    return path


def gnu_tar(path: Path, folder: Path, *options: str) -> Path:
    """Everything in ``folder`` by GNU tar, in the order of the names."""
    path.write_bytes(shards.gnu(folder, *options))
    return path


def linked(path: Path, kind: bytes) -> Path:
    """A sample, and behind it a link, a device or a FIFO that would be read as one."""
    info = tarfile.TarInfo("b.jpg")
    info.type, info.linkname = kind, "/etc/passwd"
    path.write_bytes(
        shards.ours([("a.jpg", b"x"), ("a.cls", b"0")], end=info.tobuf(tarfile.USTAR_FORMAT) + bytes(1024))
    )
    return path


def rewrite(path: Path, data: bytes) -> None:
    """Other bytes under the same name; what we write is read-only, so the file itself is replaced."""
    path.unlink()
    path.write_bytes(data)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    rewrite(path, shards.flipped(path.read_bytes(), offset, bit))


def cut(path: Path, size: int) -> None:
    rewrite(path, path.read_bytes()[:size])
