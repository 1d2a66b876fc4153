"""The ``.idx`` file beside a shard: where every field's bytes lie. DALI's v1.2 text format.

    v1.2 2
    jpg 512 8917 n01440764/n01440764_10026.jpg cls 9728 1 n01440764/n01440764_10026.cls
    jpg 10752 7311 n01440764/n01440764_10027.jpg cls 18432 1 n01440764/n01440764_10027.cls

Offsets are of payloads, from the shard's start, and grow from field to field. White space separates columns, so white
space and backslashes in other writers' member names stand as octal escapes (``\\040``), the way Linux writes paths in
/proc/mounts; names that we write need none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import BinaryIO

from wds_tools.errors import IndexFileError, StaleIndexError, TarError
from wds_tools.format import tar
from wds_tools.records import Field, Sample

VERSION = "v1.2"
SUFFIX = ".idx"

_NEEDS_ESCAPE = re.compile(r"[ \t\n\r\f\v\\]")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def index_name(shard: str) -> str:
    """The name of the index beside ``shard``: ``train-000000.tar`` has ``train-000000.idx``."""
    return (shard[:-4] if shard.endswith(".tar") else shard) + SUFFIX


def escape(name: str) -> str:
    return _NEEDS_ESCAPE.sub(lambda match: f"\\{ord(match[0]):03o}", name)


def unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text) if "\\" in text else text


def dump(lines: list[str]) -> bytes:
    """The index file of a shard whose samples have these ``lines`` (see `line`)."""
    return "\n".join([f"{VERSION} {len(lines)}", *lines, ""]).encode("utf-8", "surrogateescape")


def line(sample: Sample) -> str:
    """The index line of a sample, without the line's end."""
    return " ".join(f"{escape(field.ext)} {field.offset} {field.size} {escape(field.name)}" for field in sample.fields)


def dump_samples(samples: Iterable[Sample]) -> bytes:
    """The index file of a shard that holds ``samples``."""
    return dump([line(sample) for sample in samples])


def load(data: bytes, place: str = "index") -> list[Sample]:
    """The samples of an index file; ``place`` is how messages name it. Also reads DALI's v1.1 (without names)."""
    version, found = _split(data, place)
    rows = [row.decode("utf-8", "surrogateescape") for row in found]
    parse = _parse_row if version == VERSION else _parse_row_without_names
    samples = []
    end = 0  # of the payload before
    for number, row in enumerate(rows, start=2):
        try:
            sample = parse(row, number)
            for field in sample.fields:
                if field.offset % tar.BLOCK or field.offset < end + tar.BLOCK:
                    raise ValueError(f"offset {field.offset} can be no payload's, after one that ends at {end}")
                end = field.offset + field.size
            samples.append(sample)
        except ValueError as error:
            raise IndexFileError(
                f"{place}: line {number} is malformed: {error} (make it anew with 'wds-tools index')"
            ) from None
    return samples


def split_lines(data: bytes, place: str = "index") -> list[bytes]:
    """The lines of an index file, one a sample, unparsed, for a reader that wants few of them; see `parse_line`."""
    version, rows = _split(data, place)
    if version != VERSION:
        raise IndexFileError(f"{place}: its version {version} has no names (make it anew with 'wds-tools index')")
    return rows


def parse_line(row: bytes) -> Sample:
    """The sample of one line; `IndexFileError` if it is malformed."""
    try:
        return _parse_row(row.decode("utf-8", "surrogateescape"), 0)
    except ValueError as error:
        raise IndexFileError(
            f"malformed index line {row[:60]!r}: {error} (make it anew with 'wds-tools index')"
        ) from None


def _split(data: bytes, place: str) -> tuple[str, list[bytes]]:
    """Version and lines of an index file that is whole."""
    head, *lines = data.split(b"\n")
    version, _, count = head.decode("utf-8", "replace").partition(" ")
    if version not in (VERSION, "v1.1") or not re.fullmatch(r"[0-9]{1,18}", count.strip()):
        raise IndexFileError(
            f"{place}: not an index: its first line is {head[:40]!r}, not '{VERSION} <number of samples>' "
            "(make it anew with 'wds-tools index')"
        )
    rows = [row for row in lines if row]
    if len(rows) != int(count) or not lines or lines[-1]:
        raise IndexFileError(
            f"{place}: cut short: {count.strip()} samples are promised and {len(rows)} whole lines are there "
            "(make it anew with 'wds-tools index')"
        )
    return version, rows


def _parse_row(row: str, number: int) -> Sample:
    columns = row.split(" ")
    if len(columns) % 4:
        raise ValueError(f"{len(columns)} columns, not a multiple of four")
    fields = tuple(
        Field(unescape(ext).lower(), _count(offset), _count(size), unescape(name))
        for ext, offset, size, name in zip(columns[::4], columns[1::4], columns[2::4], columns[3::4], strict=True)
    )
    parts = tar.split_name(fields[0].name)
    if parts is None:
        raise ValueError(f"{fields[0].name!r} names no sample")
    key = parts[0]
    for field in fields:
        if field.name != f"{key}.{field.ext}" and tar.split_name(field.name) != (key, field.ext):
            raise ValueError(f"{field.name!r} is not the field {field.ext!r} of {key!r}")
    return Sample(key, fields)


def _parse_row_without_names(row: str, number: int) -> Sample:
    columns = row.split(" ")
    if len(columns) % 3:
        raise ValueError(f"{len(columns)} columns, not a multiple of three")
    key = f"{number - 2:09d}"
    return Sample(
        key,
        tuple(
            Field(ext, _count(offset), _count(size), "")
            for ext, offset, size in zip(columns[::3], columns[1::3], columns[2::3], strict=True)
        ),
    )


def _count(text: str) -> int:
    if not text.isdigit():
        raise ValueError(f"{text[:40]!r} is not a number")
    return int(text)


def check_fits(samples: list[Sample], file: BinaryIO, size: int, place: str) -> None:
    """Tell cheaply whether an index speaks of this shard: `StaleIndexError` if not.

    Every payload must lie inside the file (`load` sees to it that the last one lies furthest), nothing that belongs to
    a sample may follow, and the headers before the first and the last must state the indexed names and sizes. Three
    small reads; `tools.verify` compares everything.
    """
    stale = StaleIndexError(
        f"{place}: the index beside it speaks of another shard; run 'wds-tools index' on it if the shard is right, "
        "or fetch the shard again"
    )
    end = 0
    try:
        if samples:
            first, last = samples[0].fields[0], samples[-1].fields[-1]
            end = last.offset + last.size + tar.padding(last.size)
            if end > size or not (_is_there(first, file) and _is_there(last, file)):
                raise stale
        # Members that belong to no sample (folders, metadata) may follow; where the archive was meant to end does not
        # matter, because another one may have been appended.
        file.seek(end)
        if any(tar.split_name(member.name) for member in tar.members(file, lenient=True)):
            raise stale
    except TarError:
        raise stale from None


def _is_there(field: Field, file: BinaryIO) -> bool:
    file.seek(field.offset - tar.BLOCK)
    return is_header_of(field, file.read(tar.BLOCK))


def is_header_of(field: Field, block: bytes) -> bool:
    """Whether the block before a field's payload is its header; `TarError` if it is none at all."""
    name, size = tar.read_header(block.ljust(tar.BLOCK, b"\0"), field.offset - tar.BLOCK)
    # What does not fit into a header, or not into ASCII, stands in an extended header before it; v1.1 has no names.
    named = not field.name.isascii() or len(field.name) > tar.MAX_NAME or name == field.name or not field.name
    return named and (size == field.size or field.size > tar.MAX_SIZE)
