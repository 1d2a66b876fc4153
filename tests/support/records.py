"""TFRecord files, by the package ``tfrecord`` or byte by byte after the format's description."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support import needs

_TABLE = [0] * 256
for _index in range(256):
    _value = _index
    for _ in range(8):
        _value = _value >> 1 ^ (0x82F63B78 if _value & 1 else 0)
    _TABLE[_index] = _value


def masked_crc(data: bytes) -> int:
    """The masked CRC32C, a byte at a time."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(payload: bytes, length: int | None = None) -> bytes:
    """A record, which may announce another ``length`` than it has."""
    size = struct.pack("<Q", len(payload) if length is None else length)
    return size + struct.pack("<I", masked_crc(size)) + payload + struct.pack("<I", masked_crc(payload))


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    """A field of protobuf that has a length."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(features: Mapping[str, Any], packed: bool = True) -> bytes:
    """A ``tf.train.Example`` on the wire: features of bytes, ints or floats, or lists of these."""
    out = b""
    for name, given in features.items():
        values = given if isinstance(given, list) else [given]
        if not values:
            feature = b""
        elif isinstance(values[0], bytes):
            feature = field(1, b"".join(field(1, value) for value in values))
        elif isinstance(values[0], float):
            feature = field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
        elif packed:
            feature = field(3, field(1, b"".join(map(varint, values))))
        else:
            feature = field(3, b"".join(varint(1 << 3) + varint(value) for value in values))
        out += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, out)


def by_hand(path: Path, samples: Iterable[Mapping[str, Any]], **options: Any) -> Path:
    path.write_bytes(b"".join(record(example(sample, **options)) for sample in samples))
    return path


def by_package(path: Path, samples: Iterable[Mapping[str, Any]]) -> Path:
    needs.package("tfrecord")
    from tfrecord.writer import TFRecordWriter

    kinds = {bytes: "byte", int: "int", float: "float"}
    writer = TFRecordWriter(str(path))
    for sample in samples:
        writer.write({name: (value, kinds[type(value)]) for name, value in sample.items()})
    writer.close()
    return path
