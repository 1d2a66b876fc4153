"""Shards as bytes: by our own writer, Python's tarfile, webdataset, GNU tar, or byte by byte; and ways to damage them."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support import needs
from wds_tools.format import tar
from wds_tools.records import Member, Sample

BLOCK = 512
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}

Pairs = Sequence[tuple[str, bytes]]


def pairs(samples: int = 3, first: int = 0) -> list[tuple[str, bytes]]:
    """The members of small samples of distinct sizes: an image and a label each."""
    found = []
    for number in range(first, first + samples):
        found.append((f"c/s{number:03d}.jpg", bytes([65 + number % 26]) * (500 + 37 * number)))
        found.append((f"c/s{number:03d}.cls", b"%d" % number))
    return found


# -- writers


def ours(members: Pairs, end: bytes = tar.END) -> bytes:
    """By the header writer that conversion uses."""
    return b"".join(tar.header(name, len(data)) + padded(data) for name, data in members) + end


def python(members: Pairs, form: str = "ustar", folders: Sequence[str] = ()) -> bytes:
    """By tarfile; ``folders`` are added in front as members of their own."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=FORMATS[form]) as archive:
        for name in folders:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def webdataset(samples: Iterable[dict[str, Any]]) -> bytes:
    """By webdataset's TarWriter."""
    from webdataset.writer import TarWriter  # slow to load

    file = io.BytesIO()
    with TarWriter(file, mtime=0) as writer:
        for sample in samples:
            writer.write(dict(sample))
    return file.getvalue()


def webdataset_shards(folder: Path, samples: Iterable[dict[str, Any]], count: int) -> list[Path]:
    """By webdataset's ShardWriter, ``count`` samples a shard."""
    from webdataset.writer import ShardWriter  # slow to load

    with ShardWriter(str(folder / "train-%06d.tar"), maxcount=count, verbose=0) as writer:
        for sample in samples:
            writer.write(dict(sample))
    return sorted(folder.glob("*.tar"))


def gnu(folder: Path, *options: str | bytes, names: Sequence[str | bytes] = (".",)) -> bytes:
    """By GNU tar, of what lies in ``folder``."""
    command = [needs.tool("tar"), "--sort=name", "-C", str(folder), *options, "-cf", "-", "--", *names]
    return subprocess.run(command, check=True, capture_output=True).stdout


def files(folder: Path, members: Iterable[tuple[str | bytes, bytes]]) -> Path:
    """The members as files."""
    for name, data in members:
        path = os.path.join(os.fsencode(folder), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    return folder


# -- byte by byte


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def header(
    name: bytes = b"a.jpg",
    size: int | bytes = 0,
    kind: bytes = b"0",
    *,
    prefix: bytes = b"",
    magic: bytes = b"ustar\x0000",
) -> bytes:
    """A header that says anything, with the right checksum; ``size`` may be the bytes of the field itself."""
    field = b"%011o\0" % size if isinstance(size, int) else size
    parts = (name.ljust(100, b"\0"), b"0000644\0", b"0000000\0" * 2, field.ljust(12, b"\0"), b"0" * 11 + b"\0")
    block = b"".join(parts) + b" " * 8 + kind + bytes(100) + magic + bytes(80) + prefix
    return with_checksum(block.ljust(BLOCK, b"\0"))


def member(name: bytes, data: bytes, kind: bytes = b"0", **fields: Any) -> bytes:
    return header(name, len(data), kind, **fields) + padded(data)


def pax(records: Iterable[tuple[str, str | bytes]], kind: bytes = b"x") -> bytes:
    """A PAX extended header."""
    return member(b"PaxHeaders/x", b"".join(pax_record(key, value) for key, value in records), kind)


def pax_record(key: str, value: str | bytes) -> bytes:
    content = b" %s=%s\n" % (key.encode(), value.encode() if isinstance(value, str) else value)
    length = len(content)
    while length != len(content) + len(str(length)):
        length = len(content) + len(str(length))
    return str(length).encode() + content


def gnu_long(name: bytes) -> bytes:
    """The header that GNU tar puts before a member with a long name."""
    return member(b"././@LongLink", name + b"\0", b"L", magic=b"ustar  \0")


# -- damage


def with_checksum(block: bytes) -> bytes:
    total = sum(block[:148]) + 8 * 32 + sum(block[156:])
    return block[:148] + b"%06o\0 " % total + block[156:]


def replaced(data: bytes, position: int, new: bytes) -> bytes:
    return data[:position] + new + data[position + len(new) :]


def flipped(data: bytes, position: int, bit: int) -> bytes:
    return replaced(data, position, bytes([data[position] ^ 1 << bit]))


def header_starts(data: bytes) -> list[int]:
    """Where the header blocks of a whole tar begin, those of extended headers too."""
    starts, position = [], 0
    while data[position : position + BLOCK].strip(b"\0"):
        starts.append(position)
        position += tar.member_bytes(int(data[position + 124 : position + 135], 8))
    return starts


def extended_payloads(data: bytes) -> list[range]:
    """Where the contents of PAX headers and GNU long names lie in a whole tar."""
    return [
        range(start + BLOCK, start + tar.member_bytes(int(data[start + 124 : start + 135], 8)))
        for start in header_starts(data)
        if data[start + 156 : start + 157] in (b"x", b"L")
    ]


# -- reading


class OneWay(io.RawIOBase):
    """Bytes as a pipe or a socket gives them: forward only, and never more than ``step`` at a time."""

    def __init__(self, data: bytes, step: int = 300) -> None:
        self._data = memoryview(data)
        self._step = step

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        size = self._step if size < 0 else min(size, self._step)
        part, self._data = self._data[:size], self._data[size:]
        return bytes(part)


def members(data: bytes, *, lenient: bool = False) -> list[Member]:
    """What our reader makes of ``data``; the same whether it can seek or not."""
    found = list(tar.members(io.BytesIO(data), lenient=lenient))
    assert list(tar.members(OneWay(data), lenient=lenient)) == found
    return found


def samples(data: bytes, *, lenient: bool = False) -> list[Sample]:
    return list(tar.samples(members(data, lenient=lenient)))


def contents(data: bytes) -> list[tuple[str, bytes]]:
    """Names and payloads, the latter cut out at the places that our reader gives."""
    return [(found.name, data[found.offset : found.offset + found.size]) for found in members(data)]


def by_python(data: bytes) -> Iterator[Member]:
    """The same by tarfile."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
        for info in archive:
            if info.isreg():
                yield Member(info.name, info.offset_data, info.size)
