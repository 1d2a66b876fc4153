"""TFRecord files and the ``tf.train.Example`` in each record, without TensorFlow.

A record is ``length (8 bytes) CRC of that (4) payload CRC of that (4)``, little-endian; a CRC is a masked CRC32C. There is no
header, no index and no end mark. The payload is parsed by Google's protobuf, with a description of the message that is
kept apart from the one that TensorFlow would register in the same process.
"""

from __future__ import annotations

import functools
import os
import re
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

from wds_tools.convert.origin import pread
from wds_tools.errors import MissingExtraError, SampleError, SourceError

NAMES = re.compile(r".*(\.tfrecords?(-\d+-of-\d+)?|-\d{5}-of-\d{5})", re.IGNORECASE | re.DOTALL)
HEADER, FOOTER = 12, 4
MAX_RECORD = (1 << 31) - 1  # protobuf's own limit
_COMPRESSED = ((b"\x1f\x8b", "GZIP"), (b"\x78\x01", "ZLIB"), (b"\x78\x9c", "ZLIB"), (b"\x78\xda", "ZLIB"))
_LISTS = (("bytes_list", "BytesList", 12), ("float_list", "FloatList", 2), ("int64_list", "Int64List", 3))


def crc(data: bytes) -> int:
    """The masked CRC32C of ``data``."""
    try:
        import google_crc32c
    except ImportError as error:
        raise MissingExtraError.of("reading TFRecords", "google-crc32c") from error
    value: int = google_crc32c.value(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def place(name: str, offset: int) -> str:
    """Where a record lies, for messages."""
    return f"{name!r}, offset {offset}"


def records(file: BinaryIO, name: str) -> Iterator[tuple[int, bytes | SampleError]]:
    """Offset and payload of every record of a file, or what is wrong with the payload.

    Raises `SourceError` where the next record cannot be found: the file is cut, a length is damaged, or it is no TFRecord.
    """
    end, offset = os.fstat(file.fileno()).st_size, 0
    while offset < end:
        header = file.read(HEADER)
        if len(header) < HEADER:
            raise SourceError(f"{place(name, offset)}: cut, {len(header)} of {HEADER} bytes of a record's header")
        length, check = struct.unpack("<QI", header)
        if crc(header[:8]) != check:
            raise SourceError(_no_header(name, offset, header))
        if length > end - offset - HEADER - FOOTER:
            there = max(0, end - offset - HEADER - FOOTER)
            raise SourceError(f"{place(name, offset)}: cut, {there} of a record's {length} bytes")
        if length > MAX_RECORD:
            yield offset, SampleError(f"too large: a record of {length} bytes, and at most {MAX_RECORD} are read")
            file.seek(length + FOOTER, os.SEEK_CUR)
        else:
            payload = file.read(length + FOOTER)
            yield offset, _checked(payload, length)
        offset += HEADER + length + FOOTER


def read_record(file: BinaryIO, offset: int, length: int) -> bytes:
    """The payload of the record at ``offset``; `SampleError` if it is damaged."""
    found = _checked(pread(file, length + FOOTER, offset + HEADER), length)
    if isinstance(found, SampleError):
        raise found
    return found


def _checked(payload: bytes, length: int) -> bytes | SampleError:
    data = payload[:length]
    if len(payload) != length + FOOTER or crc(data) != int.from_bytes(payload[length:], "little"):
        return SampleError("damaged: the record's CRC does not match its bytes")
    return data


def _no_header(name: str, offset: int, header: bytes) -> str:
    kind = next((kind for magic, kind in _COMPRESSED if header.startswith(magic)), None)
    if offset == 0 and kind is not None:
        return f"{name!r} is compressed ({kind}); decompress it first, then its records can be found"
    what = "this is no TFRecord file" if offset == 0 else "the rest of the file cannot be read"
    return f"{place(name, offset)}: the CRC of a record's length does not match; {what}"


def parse(payload: bytes) -> dict[str, list[Any]]:
    """The features of an ``Example`` by name, sorted: lists of bytes, floats or ints. Raises `SampleError`."""
    message, error_kind = _example()
    try:
        example = message.FromString(payload)
    except error_kind as error:
        raise SampleError(f"no tf.train.Example: {error}") from error
    found = {}
    for name, feature in sorted(example.features.feature.items(), key=lambda item: item[0]):
        kind = feature.WhichOneof("kind")
        found[name] = list(getattr(feature, kind).value) if kind else []
    return found


@functools.cache
def _example() -> tuple[Any, type[Exception]]:
    """The class of ``tf.train.Example``, and what it raises for bytes that are none."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
    except ImportError as error:
        raise MissingExtraError.of("reading TFRecords", "protobuf") from error
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind, scalar) in enumerate(_LISTS, start=1):
        values = file.message_type.add(name=kind)
        values.field.add(name="value", number=1, label=field.LABEL_REPEATED, type=scalar)
        feature.field.add(
            name=name,
            number=number,
            label=field.LABEL_OPTIONAL,
            type=11,
            type_name=f".tensorflow.{kind}",
            oneof_index=0,
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
    entry.field.add(
        name="value", number=2, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE, type_name=".tensorflow.Feature"
    )
    features.field.add(
        name="feature",
        number=1,
        label=field.LABEL_REPEATED,
        type=field.TYPE_MESSAGE,
        type_name=".tensorflow.Features.FeatureEntry",
    )
    example = file.message_type.add(name="Example")
    example.field.add(
        name="features", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE, type_name=".tensorflow.Features"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    described = pool.FindMessageTypeByName("tensorflow.Example")
    return message_factory.GetMessageClass(described), message.DecodeError
