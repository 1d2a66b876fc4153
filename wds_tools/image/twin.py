"""The cutting of restart tiles in plain Python: the kernel's oracle, and what is used where no kernel was built.

Strategy: the same answers as ``_kernel.crop`` gives for a tiled file, byte for byte, by the same steps, with nothing but
slices and one regular expression. A file without tiles is not cut here: going over its Huffman codes in Python would
take longer than decoding it.
"""

import re

from wds_tools.errors import DecodeError
from wds_tools.image.jpeg import SOF_BASELINE, SOF_EXTENDED, Header, parse

NARROWEST = 8
"""libjpeg-turbo smooths chroma only where a row has more than two samples of it; no cut is narrower than this."""

_MARKER = re.compile(rb"\xff[^\0]")
_DHT, _DQT, _APP0, _APP14 = 0xC4, 0xDB, 0xE0, 0xEE


def crop(data: "bytes | memoryview", x: int, y: int, width: int, height: int) -> "tuple[bytes, int, int] | str | None":
    """``tiles.crop`` of a tiled file; a clause that says why not, or None when the box does not lie in the picture."""
    try:
        header = parse(data)
    except DecodeError as error:
        return error.reason
    if not header.tileable:
        return "it is not a baseline JPEG of one scan, grey or in three components, sampled by 1, 2 and 4"
    if x < 0 or y < 0 or width < 1 or height < 1 or x + width > header.width or y + height > header.height:
        return None
    interval, columns, rows = header.restart_interval, header.mcu_columns, header.mcu_rows
    if not interval or columns % interval:
        return "it has no restart tiles, and only the C kernel can cut it without"
    left, right = _span(x, width, header.width, interval * header.mcu_width)
    top, bottom = _span(y, height, header.height, header.mcu_height)
    dx, dy = x - left * interval * header.mcu_width, y - top * header.mcu_height
    across = columns // interval
    if (left, top, right, bottom) == (0, 0, across, rows):
        return bytes(data), dx, dy
    scan = _tiles(data, header.scan_at, across, rows, (left, top, right, bottom))
    if scan is None:
        return "its restart markers are missing or out of order"
    size = (
        min(right * interval * header.mcu_width, header.width) - left * interval * header.mcu_width,
        min(bottom * header.mcu_height, header.height) - top * header.mcu_height,
    )
    return _head(data, header, *size) + scan + b"\xff\xd9", dx, dy


def _span(start: int, length: int, size: int, unit: int) -> tuple[int, int]:
    """The units of so many pixels that hold the pixels from ``start`` on and their neighbours: first, and end."""
    last = min(start + length, size - 1)
    first = max(start - 1, 0) // unit
    if first and size - first * unit < NARROWEST:
        first -= 1
    return first, last // unit + 1


def _tiles(
    data: "bytes | memoryview", at: int, across: int, rows: int, part: tuple[int, int, int, int]
) -> "bytes | None":
    """The coded bytes of the tiles in ``part``, with new restart markers between them."""
    left, top, right, bottom = part
    last, total = (bottom - 1) * across + right - 1, across * rows
    pieces: list[bytes] = []
    for tile in range(last + 1):
        marker = _MARKER.search(data, at)
        if marker is None or data[marker.start() + 1] != (0xD0 + tile % 8 if tile + 1 < total else 0xD9):
            return None
        row, column = divmod(tile, across)
        if row >= top and left <= column < right:
            if pieces:
                pieces.append(b"\xff%c" % (0xD0 + (len(pieces) // 2) % 8))
            pieces.append(bytes(data[at : marker.start()]))
        at = marker.end()
    return b"".join(pieces)


def _head(data: "bytes | memoryview", header: Header, width: int, height: int) -> bytes:
    """The segments that decoding needs, with another size, and the restart interval last before the scan."""
    pieces = [b"\xff\xd8"]
    at = 2
    while True:
        while data[at + 1] == 0xFF:
            at += 1
        code, end = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if end == header.scan_at:
            break
        segment = bytes(data[at:end])
        if code in (SOF_BASELINE, SOF_EXTENDED):
            segment = segment[:5] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + segment[9:]
        kept = code in (SOF_BASELINE, SOF_EXTENDED, _DHT, _DQT)
        if kept or (code == _APP0 and segment[4:9] == b"JFIF\0") or (code == _APP14 and segment[4:9] == b"Adobe"):
            pieces.append(segment)
        at = end
    pieces.append(b"\xff\xdd\0\4" + header.restart_interval.to_bytes(2, "big"))
    pieces.append(bytes(data[at : header.scan_at]))
    return b"".join(pieces)
