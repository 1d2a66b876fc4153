"""The ``.idx`` file beside a shard: where every field's bytes lie. DALI's v1.2 text format.

    v1.2 2
    jpg 512 8917 n01440764/n01440764_10026.jpg cls 9728 1 n01440764/n01440764_10026.cls
    jpg 10752 7311 n01440764/n01440764_10027.jpg cls 18432 1 n01440764/n01440764_10027.cls

Offsets are of payloads, from the shard's start. White space separates columns, so white space and backslashes
in other writers' member names stand as octal escapes (``\\040``), the way Linux writes paths in /proc/mounts;
names that we write need none.
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
    return " ".join(f"{field.ext} {field.offset} {field.size} {escape(field.name)}" for field in sample.fields)


def dump_samples(samples: Iterable[Sample]) -> bytes:
    """The index file of a shard that holds ``samples``."""
    return dump([line(sample) for sample in samples])


def load(data: bytes, place: str = "index") -> list[Sample]:
    """The samples of an index file; ``place`` is how messages name it. Also reads DALI's v1.1 (without names)."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    version, _, count = lines[0].partition(" ")
    if version not in (VERSION, "v1.1") or not count.strip().isdigit():
        raise IndexFileError(
            f"{place}: not an index: its first line is {lines[0][:40]!r}, not '{VERSION} <number of samples>' "
            "(make it anew with 'wds-tools index')"
        )
    rows = [row for row in lines[1:] if row]
    if len(rows) != int(count) or lines[-1]:
        raise IndexFileError(
            f"{place}: cut short: {count.strip()} samples are promised and {len(rows)} whole lines are there "
            "(make it anew with 'wds-tools index')"
        )
    parse = _parse_row if version == VERSION else _parse_row_without_names
    samples = []
    for number, row in enumerate(rows, start=2):
        try:
            samples.append(parse(row, number))
        except ValueError as error:
            raise IndexFileError(
                f"{place}: line {number} is malformed: {error} (make it anew with 'wds-tools index')"
            ) from None
    return samples


def _parse_row(row: str, number: int) -> Sample:
    columns = row.split(" ")
    if len(columns) % 4:
        raise ValueError(f"{len(columns)} columns, not a multiple of four")
    fields = tuple(
        Field(ext, int(offset), int(size), unescape(name))
        for ext, offset, size, name in zip(columns[::4], columns[1::4], columns[2::4], columns[3::4], strict=True)
    )
    parts = tar.split_name(fields[0].name)
    if parts is None:
        raise ValueError(f"{fields[0].name!r} names no sample")
    return Sample(parts[0], fields)


def _parse_row_without_names(row: str, number: int) -> Sample:
    columns = row.split(" ")
    if len(columns) % 3:
        raise ValueError(f"{len(columns)} columns, not a multiple of three")
    key = f"{number - 2:09d}"
    return Sample(
        key,
        tuple(
            Field(ext, int(offset), int(size), f"{key}.{ext}")
            for ext, offset, size in zip(columns[::3], columns[1::3], columns[2::3], strict=True)
        ),
    )


def check_fits(samples: list[Sample], file: BinaryIO, size: int, place: str) -> None:
    """Tell cheaply whether an index speaks of this shard: `StaleIndexError` if not.

    The last payload must lie inside the file, only an end-of-archive mark may follow it, and the headers before the
    first and the last payload must state the indexed sizes. Three small reads; `tools.verify` compares everything.
    """
    stale = StaleIndexError(
        f"{place}: the index beside it speaks of another shard; run 'wds-tools index' on it if the shard is right, "
        "or fetch the shard again"
    )
    if not samples:
        if size > 20 * tar.BLOCK:
            raise stale
        return
    last = max((field for sample in samples[-1:] for field in sample.fields), key=lambda field: field.offset)
    end = last.offset + last.size + tar.padding(last.size)
    if end > size:
        raise stale
    for field in (samples[0].fields[0], last):
        file.seek(field.offset - tar.BLOCK)
        try:
            _, stated = tar.read_header(file.read(tar.BLOCK).ljust(tar.BLOCK, b"\0"), field.offset - tar.BLOCK)
        except TarError:
            raise stale from None
        if stated != field.size and field.size < 8**11:
            raise stale
    file.seek(end)
    if file.read(tar.BLOCK).strip(b"\0") and samples:
        _check_no_sample_follows(file, end, stale)


def _check_no_sample_follows(file: BinaryIO, end: int, stale: StaleIndexError) -> None:
    """Members that belong to no sample (folders, metadata) may follow the last indexed payload; samples may not."""
    file.seek(end)
    try:
        for member in tar.members(file, lenient=True):
            if tar.split_name(member.name) is not None:
                raise stale
    except TarError:
        raise stale from None
