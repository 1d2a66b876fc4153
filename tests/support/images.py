"""Image files for tests, of every kind and mode and with every ailment: each function returns a file's bytes.

The picture is the same everywhere (``pixels``): smooth, coloured, and different in each corner, so that a turned,
mirrored or clipped one shows.
"""

import base64
import io
import struct
import zlib
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

# 24x16 pixels, made once with jpegtran -arithmetic.
ARITHMETIC_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxO"
    "UlNSMj5aYVpQYEpRUk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09P"
    "T09PT09PT0//yQARCAAQABgDASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/AKV/fu0sn0KLx8lbUUgu4MCyJA9i"
    "99Oqa8BT7VBvA2a5HqQcCBSv/wD3nUp5IPserirf18I26pO3EKDg2Bs7XED/2Q=="
)


def pixels(width: int = 40, height: int = 30) -> NDArray[np.uint8]:
    y, x = np.mgrid[:height, :width]
    red = 255 * x // max(width - 1, 1)
    green = 255 * y // max(height - 1, 1)
    return np.stack([red, green, (red * green // 255 + 64) % 256], -1).astype(np.uint8)


def scene(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """Something like a photograph: light from one side, round things with sharp edges, and noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width].astype(np.float32)
    scene = rng.uniform(0, 180, 3) + (x / width)[..., None] * rng.uniform(-80, 80, 3)
    for _ in range(6):
        centre, radius = rng.uniform(0, (height, width)), rng.uniform(0.05, 0.4) * max(width, height)
        inside = (y - centre[0]) ** 2 + (x - centre[1]) ** 2 < radius**2
        scene[inside] = scene[inside] / 2 + rng.uniform(0, 140, 3)
    noise = rng.normal(0, rng.uniform(0, 25), (height, width, 1))
    return np.asarray(np.clip(scene + noise, 0, 255), np.uint8)


def picture(width: int = 40, height: int = 30, mode: str = "RGB") -> Image.Image:
    image = Image.fromarray(pixels(width, height))
    if mode in ("LA", "RGBA", "PA"):
        alpha = Image.fromarray(np.ascontiguousarray(pixels(width, height)[:, ::-1, 0]))
        image = image.quantize(16).convert("PA") if mode == "PA" else image.convert(mode)
        image.putalpha(alpha)
        return image
    return image.quantize(16) if mode == "P" else image.convert(mode)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, {"jpg": "JPEG"}.get(kind, kind.upper()), **options)
    return file.getvalue()


def jpeg(width: int = 40, height: int = 30, mode: str = "RGB", **options: Any) -> bytes:
    return saved(picture(width, height, mode), "jpg", **options)


def png(width: int = 40, height: int = 30, mode: str = "RGB", **options: Any) -> bytes:
    return saved(picture(width, height, mode), "png", **options)


def sampled_jpeg(sampling: str, width: int = 40, height: int = 30) -> bytes:
    """A JPEG with chroma sampled as 444, 422, 420, 440 or 411."""
    data: bytes = simplejpeg.encode_jpeg(pixels(width, height), 85, "RGB", sampling)
    return data


def cmyk_jpeg(width: int = 40, height: int = 30) -> bytes:
    """Adobe's kind: the ink values are inverted."""
    return jpeg(width, height, "CMYK", quality=95)


def ycck_jpeg(width: int = 40, height: int = 30) -> bytes:
    data = bytearray(cmyk_jpeg(width, height))
    data[data.index(b"Adobe") + 11] = 2
    return bytes(data)


def sixteen_bits(width: int = 40, height: int = 30) -> NDArray[np.uint16]:
    return (pixels(width, height)[..., 2].astype(np.uint16) << 8) + 0x7F


def sixteen_bit_png(width: int = 40, height: int = 30) -> bytes:
    return saved(Image.fromarray(sixteen_bits(width, height)), "png")


def sixteen_bit_pgm(width: int = 40, height: int = 30) -> bytes:
    return b"P5 %d %d 65535\n" % (width, height) + sixteen_bits(width, height).astype(">u2").tobytes()


def tiff(samples: bytes, width: int, height: int, bits: int) -> bytes:
    """One uncompressed strip of unsigned grey."""
    tags = [(256, 3, width), (257, 3, height), (258, 3, bits), (259, 3, 1), (262, 3, 1)]
    tags += [(273, 4, 8), (277, 3, 1), (278, 4, height), (279, 4, len(samples))]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    return struct.pack("<4sI", b"II*\0", 8 + len(samples)) + samples + directory


def twelve_bit_tiff(grey: NDArray[np.uint8]) -> bytes:
    """``grey`` (of an even width) as the upper eight of twelve bits."""
    wide = (grey.astype(np.uint16) << 4 | 0xF).reshape(-1, 2)
    first, second = wide[:, 0], wide[:, 1]
    packed = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], -1).astype(np.uint8)
    return tiff(packed.tobytes(), grey.shape[1], grey.shape[0], 12)


def animation(kind: str) -> bytes:
    """The picture, then two frames that are not it."""
    others = [picture().transpose(Image.Transpose.ROTATE_180), Image.new("RGB", (40, 30), "white")]
    options = {"lossless": True} if kind == "webp" else {}
    return saved(picture(), kind, save_all=True, append_images=others, duration=100, **options)


def with_exif_orientation(orientation: int, kind: str = "jpg", width: int = 40, height: int = 30) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(picture(width, height), kind, exif=exif)


def with_late_exif(orientation: int) -> bytes:
    """A PNG that gives its orientation behind the pixels, as ImageMagick writes it."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = png()
    return data[:-12] + chunk(b"eXIf", exif.tobytes()[6:]) + data[-12:]


def with_segments(data: bytes, payload: bytes, count: int = 1, marker: int = 0xE4) -> bytes:
    """A JPEG with segments put in front of all others."""
    segment = struct.pack(">BBH", 0xFF, marker, 2 + len(payload)) + payload
    return data[:2] + segment * count + data[2:]


def with_thumbnail(data: bytes) -> bytes:
    """A JPEG with another, whole, in its APP1 segment."""
    return with_segments(data, b"Exif\0\0" + jpeg(16, 12), marker=0xE1)


def truncated(data: bytes, part: float = 0.7) -> bytes:
    return data[: int(len(data) * part)]


def chunk(name: bytes, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", zlib.crc32(name + payload))


def bomb_png(width: int = 50_000, height: int = 50_000) -> bytes:
    """Claims a huge picture, brings one row's worth of nothing."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def text_bomb_png(megabytes: int = 80) -> bytes:
    """A small picture with a compressed text that unpacks to a great length."""
    text = b"Comment\0\0" + zlib.compress(bytes(megabytes << 20), 9)
    data = png()
    return data[:33] + chunk(b"zTXt", text) + data[33:]


def npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npy_claiming(header: str, payload: bytes = b"") -> bytes:
    """An npy file whose header says what it likes."""
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + payload


def photograph(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """Pixels with what a photograph has: large shapes, edges, and detail that grows finer and fainter."""
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width, 3))
    coarse, strength = 3, 60.0
    while coarse < 2 * max(width, height):
        grid = rng.uniform(-1, 1, (min(coarse, height), min(coarse, width), 3))
        grid = grid * 0.4 + grid.mean(axis=2, keepdims=True) * 0.6
        bands = [Image.fromarray(grid[..., c].astype(np.float32)).resize((width, height), 3) for c in range(3)]
        total += strength * np.stack([np.asarray(band) for band in bands], -1)
        coarse, strength = coarse * 2, strength * 0.9
    y, x = np.mgrid[:height, :width]
    for _ in range(6):  # discs with sharp edges
        centre, radius = rng.uniform(0, 1, 2) * (height, width), rng.uniform(0.05, 0.25) * min(width, height)
        total[(y - centre[0]) ** 2 + (x - centre[1]) ** 2 < radius**2] += rng.uniform(-90, 90, 3)
    return np.clip(total + 128, 0, 255).astype(np.uint8)


def encoded(pixels: NDArray[np.uint8], kind: str = "jpg", **options: Any) -> bytes:
    """These pixels as a file."""
    return saved(Image.fromarray(pixels), kind, **options)


def turned(data: bytes, orientation: int) -> bytes:
    """This JPEG with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return with_segments(data, exif.tobytes(), marker=0xE1)
