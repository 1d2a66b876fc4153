"""Samples and tar bytes, on file objects: no paths, no URLs.

Writing is plain USTAR and says the same for the same input: mode 0444, owner 0, time 0. Reading takes what
webdataset, GNU tar, Python and Ray write: USTAR, GNU long names, PAX paths and sizes, folders (passed over),
archives laid end to end. Everything else is refused by name, because a reader that guesses loses samples in silence:

* a header whose checksum does not hold, or that is not a header at all;
* a size below zero or beyond 2^63 - 1; a payload or header that is cut; a missing end-of-archive mark;
* links, devices, FIFOs and sparse members;
* extended headers beyond `MAX_EXTENDED` bytes, two for one member, or for the whole archive with a name or a size:
  there other readers disagree about what they mean;
* zeros that go on after the end: a download that was given its full size and broke off looks like that.

Sources: POSIX.1-2001 pax (ustar and extended headers); the GNU tar manual's "Basic Tar Format".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Protocol, cast

from wds_tools.errors import TarError
from wds_tools.records import Field, Member, Sample

BLOCK = 512
END = bytes(2 * BLOCK)  # the end-of-archive mark
MAX_NAME = 100  # what a USTAR name field holds
MAX_SIZE = 8**11 - 1  # what a USTAR size field holds
MAX_EXTENDED = 1 << 20  # bytes of one PAX or GNU long-name header: a path needs a few hundred
MAX_MEMBERS = 50_000_000  # members of one shard
MAX_ZEROS = 1 << 20  # zero bytes in a row: writers fill up their last record, mostly of 10 kB

_ZEROS = bytes(BLOCK)
# Everything of a header that is the same for all of ours, around name, size and checksum.
_AFTER_NAME = b"0000444\0" + b"0000000\0" * 2
_AFTER_SIZE = b"00000000000\0"
_AFTER_CHECKSUM = b"0" + bytes(100) + b"ustar\0" + b"00" + bytes(64) + b"0000000\0" * 2 + bytes(167)
# A checksum counts its own field as eight spaces.
_FIXED_SUM = sum(_AFTER_NAME) + sum(_AFTER_SIZE) + 8 * ord(" ") + sum(_AFTER_CHECKSUM)

_REFUSED = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a FIFO",
    b"S": "a sparse file",
    b"M": "a part of a file from another volume",
}
_DIRECTORY = b"5"
_PASSED_OVER = {b"V", b"D"}  # volume label, GNU directory listing
_REGULAR = {b"0", b"\0", b"7"}


def padding(size: int) -> int:
    """Zero bytes between a payload of ``size`` bytes and the next header."""
    return -size % BLOCK


def member_bytes(size: int) -> int:
    """What a member with a payload of ``size`` bytes takes in a shard."""
    return BLOCK + size + -size % BLOCK


def header(name: str, size: int) -> bytes:
    """The 512 header bytes of a regular file. ``name`` is ASCII of at most 100 bytes, as `TarError` says if not."""
    try:
        encoded = name.encode("ascii")
    except UnicodeEncodeError:
        raise TarError(f"member name {name!r} is not ASCII") from None
    if not encoded or len(encoded) > MAX_NAME or 0 in encoded:
        raise TarError(f"member name {name!r} has {len(encoded)} bytes; 1 to {MAX_NAME} fit, none of them NUL")
    if not 0 <= size <= MAX_SIZE:
        raise TarError(f"member {name!r} has {size} bytes; at most {MAX_SIZE} fit")
    octal = b"%011o\0" % size
    checksum = _FIXED_SUM + sum(encoded) + sum(octal)
    return b"".join(
        (encoded.ljust(MAX_NAME, b"\0"), _AFTER_NAME, octal, _AFTER_SIZE, b"%06o\0 " % checksum, _AFTER_CHECKSUM)
    )


def split_name(name: str) -> tuple[str, str] | None:
    """Key and extension of a member, webdataset's way: cut at the first dot of the basename; extension in lower case.

    None for a member that belongs to no sample: without an extension, hidden (its basename begins with a dot), or
    metadata (``__…__`` is its name or its first folder).
    """
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot <= base or dot == len(name) - 1:
        return None
    if name.startswith("__"):
        first = name.partition("/")[0]
        if len(first) >= 4 and first.endswith("__"):
            return None
    return name[:dot], name[dot + 1 :].lower()


class Readable(Protocol):
    """What reading a tar needs of a file. One that is seekable also has ``seek`` and ``tell``."""

    def read(self, size: int, /) -> bytes: ...

    def seekable(self) -> bool: ...


class _Source:
    """A file read in order, which knows where it is and can pass over payloads cheaply."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._seekable = cast(BinaryIO, file) if file.seekable() else None
        self.position = 0
        self.end = 0
        if self._seekable is not None:
            self.position = self._seekable.tell()
            self.end = self._seekable.seek(0, 2)
            self._seekable.seek(self.position)

    def block(self) -> bytes:
        """The next 512 bytes, fewer at the end of the file."""
        data = self._file.read(BLOCK)
        while len(data) < BLOCK:  # a socket may answer with less than it was asked for
            more = self._file.read(BLOCK - len(data))
            if not more:
                break
            data += more
        self.position += len(data)
        return data

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        left = size
        while left:
            part = self._file.read(left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
        self.position += size - left
        return b"".join(parts)

    def skip(self, size: int) -> int:
        """Pass over ``size`` bytes; answers how many of them exist."""
        if self._seekable is not None:
            there = min(size, self.end - self.position)
            self._seekable.seek(there, 1)
            self.position += there
            return there
        there = 0
        while there < size:
            part = self._file.read(min(size - there, 1 << 20))
            if not part:
                break
            there += len(part)
        self.position += there
        return there


def members(file: Readable, *, lenient: bool = False) -> Iterator[Member]:
    """The regular files of a tar, in order; `TarError` at the first thing that is wrong.

    ``file`` need not be seekable; its payloads are passed over. ``lenient`` accepts a missing end-of-archive mark
    after a whole member, which some writers leave out; it is otherwise a sign that the shard was cut.
    """
    source = _Source(file)
    for member in _headers(source, lenient):
        _skip_payload(source, member.name, member.size)
        yield member


def payloads(
    file: Readable, *, lenient: bool = False, max_size: int = MAX_SIZE, wanted: Callable[[Member], bool] | None = None
) -> Iterator[tuple[Member, bytes]]:
    """The same with the payloads, or those that are ``wanted``; one of more than ``max_size`` bytes is a `TarError`."""
    source = _Source(file)
    for member in _headers(source, lenient):
        if wanted is not None and not wanted(member):
            _skip_payload(source, member.name, member.size)
            yield member, b""
            continue
        if member.size > max_size:
            raise TarError(
                f"member {member.name!r} at offset {member.offset} has {member.size} bytes; at most {max_size} are read"
            )
        data = source.read(member.size)
        _check_payload(member, len(data) + source.skip(padding(member.size)))
        yield member, data


def _headers(source: _Source, lenient: bool) -> Iterator[Member]:
    """The regular files; whoever asks for the next one has moved the source past the payload and its padding."""
    zero_blocks = 0
    count = 0
    path: str | None = None  # what an extended header says of the member that follows it
    size: int | None = None
    while True:
        start = source.position
        block = source.block()
        if not block:
            break
        if len(block) < BLOCK:
            if not start:
                _check_is_tar(block)
            raise _broken(f"cut short: a header at offset {start} has {len(block)} of {BLOCK} bytes")
        if block == _ZEROS:
            if path is not None or size is not None:
                break
            zero_blocks += 1
            if zero_blocks > MAX_ZEROS // BLOCK:
                raise TarError(
                    f"cut short: more than {MAX_ZEROS} zero bytes up to offset {source.position}, as in a file that was "
                    "given its full size and never filled; fetch it again"
                )
            continue
        kind, stated_size, name = _parse_header(block, start)
        zero_blocks = 0
        count += 1
        if count > MAX_MEMBERS:
            raise TarError(f"more than {MAX_MEMBERS} members")
        if kind in (b"x", b"X", b"g", b"L", b"K"):
            if path is not None or size is not None:
                raise _broken(f"damaged: the extended header at offset {start} comes second for one member")
            extended = _read_extended(source, stated_size, start)
            if kind == b"L":
                path = extended.partition(b"\0")[0].decode("utf-8", "surrogateescape")
            elif kind != b"K":  # the target of a link, which is refused when it comes
                path, size = _parse_pax(extended, start)
            if path == "" or (kind == b"g" and (path is not None or size is not None)):
                raise _broken(f"damaged: the extended header at offset {start} names no member, or all of them")
            continue
        if size is not None:
            stated_size, size = size, None
        if path is not None:
            name, path = path, None
        if kind in _REFUSED:
            raise TarError(
                f"member {name!r} at offset {start} is {_REFUSED[kind]}; only regular files belong in a shard"
            )
        if kind == _DIRECTORY or kind in _PASSED_OVER or (kind == b"\0" and name.endswith("/")):
            if kind != _DIRECTORY and stated_size:
                _skip_payload(source, name, stated_size)
            continue
        if kind not in _REGULAR:
            raise TarError(f"member {name!r} at offset {start} has the unknown type {kind!r}")
        yield Member(name, source.position, stated_size)
    if source.position == 0:
        raise TarError("empty: 0 bytes where a tar was expected")
    if path is not None or size is not None:
        raise _broken(f"cut short: an extended header is the last thing before the end at offset {source.position}")
    if zero_blocks < 2 and not lenient:
        raise TarError(
            f"cut short: no end-of-archive mark before the end at offset {source.position} "
            "(copy the shard again; 'index --lenient' accepts it if its writer never makes one)"
        )


def samples(found: Iterable[Member]) -> Iterator[Sample]:
    """Group adjacent members by key. A key that comes back later, or a field that comes twice, is a `TarError`."""
    seen: set[str] = set()
    key: str | None = None
    fields: list[Field] = []
    exts: set[str] = set()
    for member in found:
        parts = split_name(member.name)
        if parts is None:
            continue
        this_key, ext = parts
        if this_key != key:
            if key is not None:
                yield Sample(key, tuple(fields))
            if this_key in seen:
                raise TarError(
                    f"key {this_key!r} comes again at offset {member.offset}: a sample's members must lie side by side, "
                    "and a key must be there once (sort the names before packing: tar --sort=name)"
                )
            seen.add(this_key)
            key, fields, exts = this_key, [], set()
        elif ext in exts:
            raise TarError(f"key {key!r} has two fields {ext!r}, the second at offset {member.offset}")
        exts.add(ext)
        fields.append(Field(ext, member.offset, member.size, member.name))
    if key is not None:
        yield Sample(key, tuple(fields))


def read_header(block: bytes, offset: int) -> tuple[str, int]:
    """Name and size that one header block states; extended headers are not looked at. `TarError` if it is none."""
    _, size, name = _parse_header(block, offset)
    return name, size


def _parse_header(block: bytes, start: int) -> tuple[bytes, int, str]:
    stated = _number(block[148:156])
    unsigned = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if stated != unsigned and stated != unsigned - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        # The second sum is of signed bytes, as some old writers had it.
        if not start:
            _check_is_tar(block)
        raise _broken(f"damaged: the header at offset {start} does not have the checksum that it states")
    size = _number(block[124:136])
    name = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0":
        prefix = block[345:500].partition(b"\0")[0]
        if prefix:
            name = prefix + b"/" + name
    text = name.decode("utf-8", "surrogateescape")
    if size is None or not 0 <= size < 1 << 63:
        raise _broken(f"damaged: the header at offset {start} ({text!r}) states an impossible size")
    return block[156:157], size, text


def _number(field: bytes) -> int | None:
    """A header's number: octal digits, or base 256 with the top bit set (GNU, negative when the next bit is)."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big") & ~(0x80 << 8 * (len(field) - 1))
        return value - (1 << 8 * len(field) - 1) if field[0] & 0x40 else value
    digits = field.strip(b" \0")
    if not digits:
        return 0
    if digits.strip(b"01234567"):
        return None
    return int(digits, 8)


def _read_extended(source: _Source, size: int, start: int) -> bytes:
    if size > MAX_EXTENDED:
        raise TarError(f"the extended header at offset {start} has {size} bytes; at most {MAX_EXTENDED} are read")
    data = source.read(size)
    if len(data) < size or source.skip(padding(size)) < padding(size):
        raise _broken(f"cut short: the extended header at offset {start} is not whole")
    return data


def _parse_pax(data: bytes, start: int) -> tuple[str | None, int | None]:
    """Path and size from records of the form ``<length> <keyword>=<value>\\n``."""
    path: str | None = None
    size: int | None = None
    position = 0
    while position < len(data):
        space = data.find(b" ", position, position + 20)
        digits = data[position:space] if space > 0 else b""
        length = int(digits) if digits.isdigit() else 0
        record = data[position : position + length]
        if length < 5 or len(record) < length or not record.endswith(b"\n"):
            raise _broken(f"damaged: the extended header at offset {start} has a malformed record")
        keyword, _, value = record[space - position + 1 : -1].partition(b"=")
        if keyword == b"path":
            path = value.decode("utf-8", "surrogateescape")
        elif keyword == b"size":
            if not value.isdigit() or len(value) > 19 or int(value) >= 1 << 63:
                raise _broken(f"damaged: the extended header at offset {start} states the impossible size {value!r}")
            size = int(value)
        elif keyword.startswith(b"GNU.sparse"):
            raise TarError(f"the member after offset {start} is a sparse file; only regular files belong in a shard")
        position += length
    return path, size


def _broken(what: str) -> TarError:
    return TarError(f"{what}; copy or fetch the shard again")


def _skip_payload(source: _Source, name: str, size: int) -> None:
    member = Member(name, source.position, size)
    _check_payload(member, source.skip(size + padding(size)))


def _check_payload(member: Member, there: int) -> None:
    """Whether all bytes of a payload and its padding are there."""
    if there < member.size:
        raise _broken(
            f"cut short: member {member.name!r} at offset {member.offset} has {there} of its {member.size} bytes"
        )
    if there < member.size + padding(member.size):
        raise _broken(f"cut short: the padding after member {member.name!r} is not whole")


def _check_is_tar(block: bytes) -> None:
    """Say what a file is that does not begin with a tar header, when that is easy to tell."""
    text = block.lstrip()[:64].lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        raise TarError("an HTML or XML page, not a tar: the server answered with a message instead of the shard")
    if block.startswith(b"\x1f\x8b"):
        raise TarError("compressed with gzip; shards are uncompressed tars: unpack it with 'gunzip' first")
    if block.startswith((b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")):
        raise TarError("compressed; shards are uncompressed tars: unpack it first")
    if not block.startswith(_ZEROS[:4]) and block[257:262] != b"ustar":
        raise TarError("not a tar: it does not begin with a tar header")
