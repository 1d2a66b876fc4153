"""What kind of image some bytes are, and whether all of them are there.

Strategy: the magic bytes decide, never the file's name, and a look at the container's skeleton tells a whole file from
a cut one without decoding a pixel. A converter asks both questions of every file, so the usual answer takes a slice or
two: a whole file nearly always ends as its format says, and only one that does not has its skeleton walked. Every walk
moves forward at each step and reads no further than the bytes go, so hostile ones can neither raise nor loop.

| kind | is whole when |
| --- | --- |
| jpg | an end-of-image marker follows the first scan (one inside an EXIF thumbnail does not count) |
| png | the IEND chunk is reached |
| webp | the length that RIFF announces is there |
| gif | the trailer is reached |
| bmp, tiff, ppm, npy | it is not empty; decoding tells the rest |

Bytes after the end are harmless and allowed.
"""

import re
import struct

KINDS = ("jpg", "png", "webp", "gif", "bmp", "tiff", "ppm", "npy")
"""The kinds known; the field that holds an image is named for its kind."""

EXTENSIONS = {
    "jpg": "jpg",
    "jpeg": "jpg",
    "jpe": "jpg",
    "jfif": "jpg",
    "png": "png",
    "apng": "png",
    "webp": "webp",
    "gif": "gif",
    "bmp": "bmp",
    "tif": "tiff",
    "tiff": "tiff",
    "ppm": "ppm",
    "pgm": "ppm",
    "pbm": "ppm",
    "pnm": "ppm",
    "npy": "npy",
}
"""File suffixes, in lower case and without the dot, that make a file an image, and the kind they promise."""

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # classic and BigTIFF, both byte orders
_BMP_HEADERS = (12, 40, 52, 56, 64, 108, 124)
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
# A marker's second byte is not 00 (a stuffed FF), not FF (fill), and not D0-D7 (a restart, which has no length).
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_GIF_BLOCK = re.compile(rb"[,!;]")


def sniff(head: "bytes | memoryview") -> "str | None":
    """The kind of the file that begins with ``head``, of which 16 bytes suffice; None when it is none of ``KINDS``."""
    head = bytes(head[:16])
    if head[:3] == b"\xff\xd8\xff":
        return "jpg"
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if head[:4] == b"RIFF":
        return "webp" if head[8:12] == b"WEBP" else None
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    if head[:4] in _TIFF:
        return "tiff"
    if head[:6] == b"\x93NUMPY":
        return "npy"
    if head[:1] == b"P":
        return "ppm" if head[1:2] in b"123456" and head[2:3] in b" \t\r\n" and len(head) > 2 else None
    # Two letters are too few to tell a bitmap from prose, so the length of its second header is looked at as well.
    if head[:2] == b"BM" and int.from_bytes(head[14:16], "little") in _BMP_HEADERS:
        return "bmp"
    return None


def check(kind: "str | None", data: "bytes | memoryview") -> "str | None":
    """Why ``data``, which ``sniff`` called ``kind``, cannot be a whole image; None when it looks whole."""
    if not data:
        return "empty file"
    if kind == "jpg":
        return None if data[-2:] == b"\xff\xd9" else _check_jpeg(data)
    if kind == "png":
        return None if data[-12:] == _PNG_END else _check_png(data)
    if kind == "webp":
        return _check_webp(data)
    if kind == "gif":
        return None if data[-1:] == b";" else _check_gif(data)
    return None if kind else "not an image of a known kind"


def _check_jpeg(data: "bytes | memoryview") -> "str | None":
    scanned = False
    position = 2
    while marker := _JPEG_MARKER.search(data, position):
        position = marker.end()
        code = data[position - 1]
        if code == 0xD9:
            return None if scanned else "damaged JPEG: it ends before its first scan"
        if code == 0xDA:
            scanned = True
        if code not in (0x01, 0xD8):
            # Over the segment, whose bytes may look like markers; the coded bits after a scan's header never do.
            position += int.from_bytes(data[position : position + 2], "big")
    return "truncated JPEG: no end-of-image marker"


def _check_png(data: "bytes | memoryview") -> "str | None":
    position = 8
    while position + 12 <= len(data):
        length, name = struct.unpack_from(">I4s", data, position)
        if name == b"IEND":
            return None
        position += 12 + length
    return "truncated PNG: no IEND chunk"


def _check_webp(data: "bytes | memoryview") -> "str | None":
    announced = 8 + int.from_bytes(data[4:8], "little")
    return None if announced <= len(data) else f"truncated WebP: {len(data)} of {announced} bytes"


def _check_gif(data: "bytes | memoryview") -> "str | None":
    size = len(data)
    position = 13 + _gif_colours(data[10:11])
    while block := _GIF_BLOCK.search(data, position):
        position = block.end()
        code = data[position - 1]
        if code == 0x3B:
            return None
        if code == 0x2C:
            position += 10 + _gif_colours(data[position + 8 : position + 9])
        else:
            position += 1
        while position < size and (length := data[position]):
            position += 1 + length
        position += 1
    return "truncated GIF: no trailer"


def _gif_colours(flags: "bytes | memoryview") -> int:
    """The size in bytes of the colour table that a descriptor's flags announce."""
    return 3 << (flags[0] & 7) + 1 if flags and flags[0] & 0x80 else 0
