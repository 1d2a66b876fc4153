"""Image bytes to uint8 RGB pixels and back.

Strategy: the magic bytes choose one parser of Pillow's, so no other sees untrusted bytes; the header gives the size,
which is held against the pixel limit before a pixel is decoded; Pillow decodes. For arrays, plain RGB and grey JPEGs go
to simplejpeg, a fifth faster: both are libjpeg-turbo with the same settings, and the tests hold their pixels equal.
Where simplejpeg sees anything odd, Pillow has the last word. Whatever a parser raises leaves as DecodeError.

Pixels are always 8-bit RGB and always upright. There is one conversion for each mode that a file can have:

| file | pixels |
| --- | --- |
| RGB | as they are |
| grey (1, L) | the grey in all three channels; black and white become 0 and 255 |
| palette | its colours |
| alpha (LA, PA, RGBA, a transparent colour) | alpha is dropped, nothing is blended: what ImageFolder's loader does |
| CMYK, YCCK | Pillow's conversion, without colour profile; Adobe's inverted ink is put right |
| YCbCr, HSV | Pillow's conversion |
| 16 bits a channel | the high byte (of 12-bit TIFF the upper eight bits), where Pillow alone would clip grey to white |
| float, 32-bit or signed integer, Lab | DecodeError: what is black and what is white is not written in the file |
| animation, many pages | the first frame |
| EXIF or XMP orientation | applied; metadata that cannot be read counts as upright |
| array (npy) | uint8 of height x width x 3, or grey without the 3; any other is a DecodeError |

Colour profiles are not applied, and metadata never reaches an encoded image. Encoding is a pure function of the pixels
and the options, for given versions of Pillow and its libraries.
"""

import importlib
import io
import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wds_tools.errors import DecodeError, OptionError, SampleError
from wds_tools.image.arrays import MAX_ARRAY_BYTES, decode_npy, encode_npy, npy_shape
from wds_tools.image.kinds import EXTENSIONS, KINDS, check, sniff

# Converters that only copy bytes import this room too, so the heavy packages wait until there is something to decode.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image
    from PIL.ImageFile import ImageFile

__all__ = [
    "ENCODINGS",
    "EXTENSIONS",
    "KINDS",
    "MAX_ARRAY_BYTES",
    "MAX_PIXELS",
    "check",
    "check_quality",
    "check_size",
    "decode",
    "decode_npy",
    "decode_pil",
    "dimensions",
    "encode",
    "shrink",
    "sniff",
    "transcode",
]

MAX_PIXELS = 89_478_485
"""The most pixels that are decoded unless told otherwise: the number at which Pillow begins to warn, 256 MiB of RGB."""

ENCODINGS = ("jpg", "png", "webp", "npy")
"""The kinds that can be written."""

DEFAULT_QUALITY = 90

_PARSERS = {
    "jpg": ("PIL.JpegImagePlugin", "JpegImageFile"),
    "png": ("PIL.PngImagePlugin", "PngImageFile"),
    "webp": ("PIL.WebPImagePlugin", "WebPImageFile"),
    "gif": ("PIL.GifImagePlugin", "GifImageFile"),
    "bmp": ("PIL.BmpImagePlugin", "BmpImageFile"),
    "tiff": ("PIL.TiffImagePlugin", "TiffImageFile"),
    "ppm": ("PIL.PpmImagePlugin", "PpmImageFile"),
}
_CONVERTED_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
_ORIENTATION = 0x0112
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_PNG_ORIENTATIONS = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")
_BITS_PER_SAMPLE = 0x0102
# What Pillow raises on purpose, then what its parsers let slip: whatever a damaged header makes plain code raise;
# and warnings, which are exceptions where the caller's filters say so.
_SPOKEN = (OSError, SyntaxError, ValueError)
_FOREIGN = (
    *_SPOKEN,
    TypeError,
    AttributeError,
    AssertionError,
    LookupError,
    ArithmeticError,
    EOFError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    Warning,
)


def dimensions(data: "bytes | memoryview") -> tuple[int, int]:
    """Width and height as ``decode`` delivers them, so of the upright image; no decoding, no pixel limit.

    The exception is a PNG that may carry its orientation behind the pixels: it is decoded, within ``MAX_PIXELS``.
    """
    data, kind = whole(data)
    if kind == "npy":
        shape = npy_shape(data)
        return (shape[1], shape[0]) if len(shape) > 1 else (math.prod(shape), 1)
    with _mapped(kind):
        image = _open(kind, data)
        if kind == "png":
            if not any(name in data for name in _PNG_ORIENTATIONS):
                return image.size  # asked for an orientation, Pillow would decode the pixels to look behind them
            limit(image.size, MAX_PIXELS)
            image.load()
        width, height = image.size
        if kind == "tiff":
            return width, height  # Pillow has the upright size of these
        return (height, width) if _orientation(image) >= 5 else (width, height)


def decode(data: "bytes | memoryview", max_pixels: int = MAX_PIXELS) -> "NDArray[np.uint8]":
    """The upright RGB pixels of an image: a uint8 array of height x width x 3."""
    import numpy as np

    data, kind = whole(data)
    if kind == "npy":
        return array_pixels(data, max_pixels)
    with _mapped(kind):
        image = _open(kind, data)
        limit(image.size, max_pixels)
        if kind == "jpg" and image.mode in ("RGB", "L") and _orientation(image) == 1:
            pixels = _plain_jpeg_pixels(data, image.size)
            if pixels is not None:
                return pixels
        return np.array(_rgb(image, kind))


def decode_pil(
    data: "bytes | memoryview", max_pixels: int = MAX_PIXELS, at_least: "int | None" = None
) -> "Image.Image":
    """The upright RGB pixels of an image: a Pillow image without metadata.

    With ``at_least``, for thumbnails, a JPEG is decoded at a half, a quarter or an eighth of its size, as long as no side falls
    below so many pixels.
    """
    from PIL import Image

    data, kind = whole(data)
    if kind == "npy":
        return Image.fromarray(array_pixels(data, max_pixels))
    with _mapped(kind):
        image = _open(kind, data)
        limit(image.size, max_pixels)
        if at_least is not None and kind == "jpg":
            image.draft(None, (at_least, at_least))
        return _rgb(image, kind)


def shrink(image: "Image.Image", size: int) -> "Image.Image":
    """The image with its shorter side brought down to ``size``, antialiased (Lanczos); a smaller image is left alone.

    The longer side is rounded to the nearest pixel, halves upwards.
    """
    from PIL import Image

    check_size(size)
    short = min(image.size)
    if short <= size:
        return image
    width, height = ((2 * side * size + short) // (2 * short) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def encode(image: "Image.Image", kind: str, quality: "int | None" = None) -> bytes:
    """The image's RGB pixels as a file of ``kind``: one of ``ENCODINGS``.

    jpg is baseline with 4:2:0 chroma and the standard Huffman tables (optimised ones save 5 % and double the time);
    webp is lossy; ``quality``, 1 to 100, serves these two and is 90 unless given. png and npy keep every pixel.
    """
    check_quality(quality)
    if kind not in ENCODINGS:
        raise OptionError(f"cannot encode to {kind!r}: choose one of {', '.join(ENCODINGS)}")
    image = image.convert("RGB")
    image.info = {}  # Pillow would write the comments and colour profiles that it finds there
    if kind == "npy":
        import numpy as np

        return encode_npy(np.asarray(image))
    file = io.BytesIO()
    lossy = {"quality": quality or DEFAULT_QUALITY}
    try:
        if kind == "jpg":
            image.save(file, "JPEG", subsampling="4:2:0", **lossy)
        elif kind == "webp":
            image.save(file, "WEBP", **lossy)
        else:
            image.save(file, "PNG")
    except (OSError, ValueError, MemoryError) as error:  # more pixels a side than the format can say
        width, height = image.size
        raise SampleError(f"{width}x{height} pixels cannot be encoded as {kind}: {_clause(error)}") from error
    return file.getvalue()


def transcode(
    data: "bytes | memoryview",
    kind: str,
    size: "int | None" = None,
    quality: "int | None" = None,
    max_pixels: int = MAX_PIXELS,
) -> bytes:
    """Image bytes as bytes of another ``kind``, shrunk to ``size`` first when that is given."""
    image = decode_pil(data, max_pixels)
    return encode(image if size is None else shrink(image, size), kind, quality)


def check_quality(quality: "int | None") -> None:
    """Refuse a quality that is no whole number from 1 to 100; None stands for the default."""
    if quality is not None and (type(quality) is not int or not 1 <= quality <= 100):
        raise OptionError(f"quality must be a whole number from 1 to 100, not {quality!r}")


def check_size(size: int) -> None:
    """Refuse an image size that is no whole number of pixels."""
    if type(size) is not int or size < 1:
        raise OptionError(f"the image size must be a whole number of pixels, 1 or more, not {size!r}")


def whole(data: "bytes | memoryview") -> tuple[bytes, str]:
    """The bytes, and the kind of image that they are and hold to the end."""
    kind = sniff(data)
    reason = check(kind, data)
    if kind is None or reason:
        raise DecodeError(reason or "not an image of a known kind")
    return bytes(data), kind


def _open(kind: str, data: bytes) -> "ImageFile":
    # Not Image.open, which tries formats beyond ours, and warns by a limit of its own that holds for the whole process.
    module, parser = _PARSERS[kind]
    image: ImageFile = getattr(importlib.import_module(module), parser)(io.BytesIO(data))
    return image


def limit(size: tuple[int, int], max_pixels: int) -> None:
    """Refuse a picture of more pixels than this."""
    width, height = size
    if width * height > max_pixels:
        raise DecodeError(f"{width}x{height} is {width * height} pixels, above the limit of {max_pixels}")


def jpeg_orientation(data: bytes) -> int:
    """The orientation of a JPEG, 1 to 8; what cannot be read is 1."""
    try:
        return _orientation(_open("jpg", data))
    except _FOREIGN:
        return 1


def _orientation(image: "Image.Image") -> int:
    """The EXIF orientation, 1 to 8; what cannot be read is 1."""
    try:
        value = image.getexif().get(_ORIENTATION)
    except _FOREIGN:
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _plain_jpeg_pixels(data: bytes, size: tuple[int, int]) -> "NDArray[np.uint8] | None":
    """The pixels by simplejpeg, or None when Pillow should judge."""
    import simplejpeg

    try:
        height, width = simplejpeg.decode_jpeg_header(data)[:2]
        # A file with two frame headers could show the limit one size and the decoder another.
        pixels: NDArray[np.uint8] | None = simplejpeg.decode_jpeg(data, "RGB") if (width, height) == size else None
    except ValueError:  # of libjpeg's warnings too, most of which Pillow lets pass, as it does in everyone's loader
        return None
    return pixels


def _rgb(image: "ImageFile", kind: str) -> "Image.Image":
    """The pixels by the table at the head of this file."""
    from PIL import Image

    image.load()
    bits = 12 if kind == "tiff" and getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE) == (12,) else 16
    # A TIFF has been turned by loading it, and says so: its orientation is gone.
    turn = _TURNS.get(_orientation(image))
    upright = image.transpose(Image.Transpose[turn]) if turn else image
    mode = upright.mode
    if mode.startswith("I;16") or (mode == "I" and kind in ("png", "ppm")):
        upright = _high_bytes(upright, bits)
    elif mode not in _CONVERTED_MODES:
        raise DecodeError(f"{kind} pixels of mode {mode} have no conversion to 8-bit RGB")
    upright.info.pop("transparency", None)  # dropped below in any case, but then with a warning
    rgb = upright.convert("RGB")
    rgb.info = {}
    return rgb


def _high_bytes(image: "Image.Image", bits: int) -> "Image.Image":
    """Grey of ``bits`` bits brought down to its upper eight."""
    import numpy as np
    from PIL import Image

    return Image.fromarray((np.asarray(image) >> bits - 8).astype(np.uint8))


def array_pixels(data: bytes, max_pixels: int = MAX_PIXELS) -> "NDArray[np.uint8]":
    """The RGB pixels in an ``.npy`` file."""
    import numpy as np

    array = decode_npy(data)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or array.shape[2:] not in ((), (1,), (3,)) or not array.size:
        found = f"{array.dtype.name} array with shape {array.shape}"
        raise DecodeError(f"{found} is not an image: uint8 (height, width, 3) is")
    limit((array.shape[1], array.shape[0]), max_pixels)
    if array.shape[2:] == (3,):
        return np.ascontiguousarray(array)
    return np.repeat(array.reshape(*array.shape[:2], 1), 3, axis=2)


@contextmanager
def _mapped(kind: str) -> Iterator[None]:
    """Foreign exceptions as DecodeError."""
    from PIL import Image

    try:
        yield
    except MemoryError as error:
        raise DecodeError(f"not enough memory to decode this {kind}") from error
    except (Image.DecompressionBombError, *_FOREIGN) as error:
        raise DecodeError(f"cannot decode this {kind}: {_clause(error)}") from error


def _clause(error: BaseException) -> str:
    """A foreign message as one short printable line; it may quote the file."""
    if isinstance(error, SyntaxError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # how Pillow wraps the slips of its parsers
    if isinstance(error, _FOREIGN) and not isinstance(error, (*_SPOKEN, Warning)):
        return f"its data are damaged ({type(error).__name__})"  # "3", "'NoneType' has no attribute", ... help nobody
    text = " ".join(str(error).split()) or type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:160]
