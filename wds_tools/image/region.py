"""Image bytes → the pixels of a box: decode no more than the box needs.

For a JPEG, in order of gain: the bytes are cut down to the box before anything is decoded (`tiles.crop`), and where the
box is to shrink to half or less, the decoder scales by 1/2, 1/4 or 1/8 on the way: whole factors of its 8x8 blocks,
other ones are slower than none. Whatever cannot be done that way is decoded whole by `codec`, which has the last word.

Boxes are in pixels of the upright image, so an image that is stored turned is cut where it lies and turned then.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import simplejpeg

from wds_tools.errors import DecodeError
from wds_tools.image import codec, jpeg, tiles
from wds_tools.image.resize import Box
from wds_tools.image.twin import NARROWEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

FACTORS = (8, 4, 2)
# The margin that chroma upsampling wants on each side of a box, in pixels of the scaled picture.
MARGIN = 2


class Region(NamedTuple):
    """Pixels, uint8 (height, width, 3), each ``factor`` pixels of the image wide; the first begins at (left, top)."""

    pixels: NDArray[np.uint8]
    left: float
    top: float
    factor: int


class Picture(Protocol):
    """An image that is open: its upright size is known, its pixels are decoded when asked for."""

    width: int
    height: int

    def region(self, box: Box, factor: int = 1) -> Region:
        """At least the pixels of the box, scaled down by ``factor`` or less; `DecodeError` if they do not decode."""


def open_picture(data: bytes | memoryview, max_pixels: int = codec.MAX_PIXELS) -> Picture:
    """The image in these bytes; `DecodeError` for what is no whole image, or one above the pixel limit."""
    data, kind = codec.whole(data)
    if kind == "npy":
        return Pixels(codec.array_pixels(data, max_pixels))
    if kind == "jpg":
        size, orientation = _jpeg_size(data)
        if size is not None:
            codec.limit(size, max_pixels)
            return Jpeg(data, size, orientation, max_pixels)
    return Pixels(codec.decode(data, max_pixels))


def _jpeg_size(data: bytes) -> tuple[tuple[int, int] | None, int]:
    """Stored width and height, None where Pillow may know better or say what is wrong; and the orientation."""
    size = None if tiles.kernel is None else tiles.kernel.plain_size(data)
    if size is not None:
        return size, 1
    try:
        header = jpeg.parse(data)
    except DecodeError:
        return None, 1
    if not header.height or len(header.components) not in (1, 3) or header.precision != 8:
        return None, 1
    return (header.width, header.height), codec.jpeg_orientation(data) if header.exif else 1


class Pixels:
    """A picture that is decoded already."""

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        self._pixels = pixels
        self.height, self.width = pixels.shape[:2]

    def region(self, box: Box, factor: int = 1) -> Region:
        return Region(self._pixels, 0, 0, 1)


class Jpeg:
    """A JPEG of which nothing but the header was looked at."""

    def __init__(self, data: bytes, stored: tuple[int, int], orientation: int, max_pixels: int) -> None:
        self._data = data
        self._max_pixels = max_pixels
        self._stored = stored
        self._orientation = orientation
        self.width, self.height = self._stored[::-1] if self._orientation >= 5 else self._stored

    def region(self, box: Box, factor: int = 1) -> Region:
        stored = box if self._orientation == 1 else _turned_box(box, self._orientation, *self._stored)
        left, right = _span(stored.left, stored.right, self._stored[0], factor)
        top, bottom = _span(stored.top, stored.bottom, self._stored[1], factor)
        try:
            data, x, y = tiles.crop(self._data, left, top, right - left, bottom - top)
        except DecodeError:  # no JPEG that can be cut
            data, x, y = self._data, left, top
        try:
            pixels = _decode(data, factor)
        except ValueError:  # of libjpeg's warnings too
            return Region(codec.decode(self._data, self._max_pixels), 0, 0, 1)
        if self._orientation == 1:
            return Region(pixels, left - x, top - y, factor)
        height, width = pixels.shape[:2]
        covered = Box(left - x, top - y, left - x + width * factor, top - y + height * factor)
        upright = _upright_box(covered, self._orientation, *self._stored)
        return Region(_turned(pixels, self._orientation), upright.left, upright.top, factor)


def _span(low: float, high: float, size: int, factor: int) -> tuple[int, int]:
    """The pixels from ``low`` to ``high`` and, where they will be scaled, what keeps the decoder's smoothing the same."""
    first, last = math.floor(low), math.ceil(high)
    if factor > 1:
        first = min(first - MARGIN * factor, size - NARROWEST * factor)
        last = max(last + MARGIN * factor, NARROWEST * factor)
    return max(0, first), min(size, last)


def _decode(data: bytes, factor: int) -> NDArray[np.uint8]:
    least = {}
    if factor > 1:
        height, width = simplejpeg.decode_jpeg_header(data)[:2]
        least = {"min_height": -(-height // factor), "min_width": -(-width // factor), "min_factor": factor}
    pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "RGB", **least)
    return pixels


def _turned(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Stored pixels put upright, as a view."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    across, down = orientation in (2, 3, 6, 7), orientation in (3, 4, 7, 8)
    return pixels[:: -1 if down else 1, :: -1 if across else 1]


def _upright_box(box: Box, orientation: int, width: int, height: int) -> Box:
    """Where a box of the stored picture, which is ``width`` x ``height``, lies when it is upright."""
    left, top, right, bottom = box
    if orientation >= 5:
        left, top, right, bottom, width, height = top, left, bottom, right, height, width
    if orientation in (2, 3, 6, 7):
        left, right = width - right, width - left
    if orientation in (3, 4, 7, 8):
        top, bottom = height - bottom, height - top
    return Box(left, top, right, bottom)


def _turned_box(box: Box, orientation: int, width: int, height: int) -> Box:
    """Where a box of the upright picture lies in the stored one, which is ``width`` x ``height``."""
    left, top, right, bottom = box
    if orientation >= 5:
        width, height = height, width
    if orientation in (2, 3, 6, 7):
        left, right = width - right, width - left
    if orientation in (3, 4, 7, 8):
        top, bottom = height - bottom, height - top
    return Box(top, left, bottom, right) if orientation >= 5 else Box(left, top, right, bottom)
