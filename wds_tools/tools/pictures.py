"""What a dataset's images are like, from some of them: kind, size, whether restart tiles let a decoder skip.

Only headers are looked at: of a JPEG the segments before its first scan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from wds_tools.errors import SampleError
from wds_tools.image import codec

_BASELINE = (0xC0, 0xC1)
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
NARROW = 128  # pixels: an image no wider is one tile anyway


@dataclass(frozen=True)
class Pictures:
    """Means over ``count`` images whose headers could be read. Shares are from 0 to 1; ``size`` is in bytes."""

    count: int
    width: float
    height: float
    size: float
    kinds: dict[str, float]
    tiled: float
    progressive: float

    @property
    def short_side(self) -> float:
        return min(self.width, self.height)


@dataclass(frozen=True)
class JpegLayout:
    """How a JPEG's pixels are coded."""

    progressive: bool
    tiled: bool


def look_at(images: Sequence[bytes]) -> Pictures | None:
    """What these images are like; None where no header can be read."""
    kinds: Counter[str] = Counter()
    width = height = size = tiled = progressive = 0
    for data in images:
        try:
            across, down = codec.dimensions(data)
        except SampleError:
            continue
        kinds[codec.sniff(data) or ""] += 1
        width, height, size = width + across, height + down, size + len(data)
        layout = jpeg_layout(data)
        if layout is not None:
            tiled, progressive = tiled + layout.tiled, progressive + layout.progressive
    count = kinds.total()
    if not count:
        return None
    shares = {kind: number / count for kind, number in kinds.most_common()}
    return Pictures(count, width / count, height / count, size / count, shares, tiled / count, progressive / count)


def jpeg_layout(data: bytes) -> JpegLayout | None:
    """The layout of a JPEG; None for what is none, or has no frame before its first scan.

    Tiled is a baseline JPEG whose restart interval divides its rows of blocks (MCUs) into shorter runs.
    """
    if data[:2] != b"\xff\xd8":
        return None
    frame, interval, position = None, 0, 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # fill
            position += 1
            continue
        segment = data[position + 4 : position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")]
        if marker == 0xDA:
            break
        if marker in _FRAMES:
            frame = marker, segment
        elif marker == 0xDD:
            interval = int.from_bytes(segment[:2], "big")
        position += 4 + len(segment) if segment else 4
    if frame is None or len(frame[1]) < 9:
        return None
    marker, header = frame
    if marker not in _BASELINE:
        return JpegLayout(True, False)
    width = int.from_bytes(header[3:5], "big")
    components = header[5]
    # One component alone is not interleaved: its blocks are 8 pixels wide whatever it says.
    across = max(
        (header[7 + 3 * number] >> 4 for number in range(components) if 7 + 3 * number < len(header)), default=1
    )
    blocks = -(-width // (8 * (across if components > 1 else 1) or 8))
    divides = interval > 0 and blocks % interval == 0
    return JpegLayout(False, divides and (interval < blocks or width <= NARROW))
