"""The usual ways to make one training image of a picture: where the box lies, then only its pixels.

Boxes are drawn as torchvision draws them, from a generator of the sample's own, so that an image is augmented alike
whichever worker has it. Drawing needs no more than the picture's size; decoding then needs no more than the box.
"""

from __future__ import annotations

import math
import os
import random
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wds_tools.errors import OptionError
from wds_tools.image import codec
from wds_tools.image.region import FACTORS, Picture, Pixels, open_picture
from wds_tools.image.resize import Box, resize

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPARE = 1.25
"""How many times the output a box must stay when the decoder scales it. The decoder's own filter is sharper than the
resize after it: of 400 ImageNet photographs cropped to 128 pixels, those that the decoder scaled are 1.5 grey levels
from torchvision's with 1, 1.1 with 1.25 and 0.4 with 2 (means; the worst one 5.1, 3.7 and 0.5). Unscaled ones are 0.15
away, and no pixel by more than one."""
MOST_RATIO = 1e6  # no picture is so wide, and arithmetic with it stays finite
ATTEMPTS = 10  # at a crop of the drawn shape, before the middle is taken; as in torchvision


class Cut(NamedTuple):
    """The box of the upright picture that fills the output, the pixels that its filter may look at, and mirroring."""

    box: Box
    limits: Box
    mirrored: bool = False


class Preset(ABC):
    """An image's bytes → uint8 (3, height, width), at random but reproducibly.

    ``size`` is the output's side in pixels, or (height, width). ``flip`` is the probability of mirroring.
    """

    def __init__(self, size: int | tuple[int, int], flip: float) -> None:
        self.size = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
        if len(self.size) != 2 or not all(type(side) is int and side > 0 for side in self.size):
            raise OptionError(f"size is {size!r}; it must be a number of pixels, 1 or more, or (height, width)")
        if not isinstance(flip, (int, float)) or not 0 <= flip <= 1:
            raise OptionError(f"flip is {flip!r}; it must be a probability from 0 to 1")
        self.flip = flip

    @abstractmethod
    def cut(self, width: int, height: int, rng: random.Random) -> Cut:
        """What to show of a picture of this size."""

    def render(self, data: bytes | memoryview, seed: int, out: NDArray[np.uint8]) -> None:
        """Fill ``out``, uint8 (3, height, width), with the image in these bytes; `DecodeError` if it is bad."""
        self._render(open_picture(data), random.Random(seed), out)

    def __call__(self, image: Any, seed: int | None = None) -> NDArray[np.uint8]:
        """A new uint8 array (3, height, width) from bytes, a PIL image, or uint8 pixels (height, width, 3).

        Bytes are turned as their EXIF orientation says; a PIL image is taken as it is, so turn it first
        (``ImageOps.exif_transpose``). Channels come first: torchvision's ``ToTensor`` after it would swap axes. Without a
        ``seed`` one is drawn from Python's ``random``. `DecodeError` for bad bytes, `OptionError` for anything else.
        """
        _refuse_path(image)
        out = np.empty((3, *self.size), np.uint8)
        rng = random.Random(random.getrandbits(64) if seed is None else seed)
        if isinstance(image, (bytes, bytearray, memoryview)):
            picture = open_picture(bytes(image))
        else:
            pixels = np.asarray(image.convert("RGB") if hasattr(image, "convert") else image)
            if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
                found = f"{pixels.dtype.name} array with shape {pixels.shape}"
                raise OptionError(f"{found} is not an image: uint8 (height, width, 3) is")
            picture = Pixels(pixels)
        self._render(picture, rng, out)
        return out

    def _render(self, picture: Picture, rng: random.Random, out: NDArray[np.uint8]) -> None:
        box, limits, mirrored = self.cut(picture.width, picture.height, rng)
        across, down = box.width / out.shape[2], box.height / out.shape[1]
        shrunk = min(across, down) / SPARE
        factor = 1 if shrunk < 2 else next(factor for factor in FACTORS if factor <= shrunk)
        reach = box if limits is box else _reach(box, limits, max(across, 1.0), max(down, 1.0))
        region = picture.region(reach, factor)
        view, left, top = _held_back(region.pixels, limits.moved(region.left, region.top, region.factor))
        shown = box.moved(region.left + left * region.factor, region.top + top * region.factor, region.factor)
        resize(view, shown, out, mirrored)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"


def _reach(box: Box, limits: Box, across: float, down: float) -> Box:
    """What the filter looks at: one output pixel past the box on each side."""
    return Box(
        max(box.left - across, limits.left),
        max(box.top - down, limits.top),
        min(box.right + across, limits.right),
        min(box.bottom + down, limits.bottom),
    )


def _held_back(pixels: NDArray[np.uint8], limits: Box) -> tuple[NDArray[np.uint8], int, int]:
    """The pixels within the limits, and which one is the first."""
    left, top = max(0, math.floor(limits.left)), max(0, math.floor(limits.top))
    return pixels[top : math.ceil(limits.bottom), left : math.ceil(limits.right)], left, top


class RandomResizedCrop(Preset):
    """A box of random area and shape, resized: torchvision's transform of that name, with mirroring.

    ``scale`` bounds the box's share of the area, ``ratio`` its width over its height (drawn evenly in its logarithm).
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
    ) -> None:
        super().__init__(size, flip)
        self.scale = _range("scale", scale, 1.0)
        self.ratio = _range("ratio", ratio, MOST_RATIO)

    def cut(self, width: int, height: int, rng: random.Random) -> Cut:
        left, top, across, down = self._box(width, height, rng)
        box = Box(left, top, left + across, top + down)
        return Cut(box, box, rng.random() < self.flip)

    def _box(self, width: int, height: int, rng: random.Random) -> tuple[int, int, int, int]:
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(ATTEMPTS):
            area = width * height * rng.uniform(*self.scale)
            ratio = math.exp(rng.uniform(low, high))
            across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < across <= width and 0 < down <= height:
                top = int(rng.random() * (height - down + 1))
                return int(rng.random() * (width - across + 1)), top, across, down
        # The largest box in the middle whose shape is allowed.
        across, down = width, height
        if width / height < self.ratio[0]:
            down = min(height, max(1, round(width / self.ratio[0])))
        elif width / height > self.ratio[1]:
            across = min(width, max(1, round(height * self.ratio[1])))
        return (width - across) // 2, (height - down) // 2, across, down


class ResizeCenterCrop(Preset):
    """The shorter side resized to ``resize``, then the middle: what models are evaluated with."""

    def __init__(self, resize: int, size: int | tuple[int, int], flip: float = 0.0) -> None:
        super().__init__(size, flip)
        _check_resize("resize", resize, max(self.size))
        self.resize = resize

    def cut(self, width: int, height: int, rng: random.Random) -> Cut:
        across, down = _resized(width, height, self.resize)
        left, top = round((across - self.size[1]) / 2), round((down - self.size[0]) / 2)
        return _cut_of_resized(width, height, across, down, left, top, self.size, rng.random() < self.flip)


class ScaleJitterCrop(Preset):
    """The shorter side resized to a random length from ``low`` to ``high``, then a random crop: ResNet's augmentation.

    He et al., Deep Residual Learning for Image Recognition, 2015, section 3.4, with 256, 480 and 224.
    """

    def __init__(self, low: int, high: int, size: int | tuple[int, int], flip: float = 0.5) -> None:
        super().__init__(size, flip)
        _check_resize("low", low, max(self.size))
        _check_resize("high", high, low)
        self.low, self.high = low, high

    def cut(self, width: int, height: int, rng: random.Random) -> Cut:
        across, down = _resized(width, height, self.low + int(rng.random() * (self.high - self.low + 1)))
        top = int(rng.random() * (down - self.size[0] + 1))
        left = int(rng.random() * (across - self.size[1] + 1))
        return _cut_of_resized(width, height, across, down, left, top, self.size, rng.random() < self.flip)


class Decode:
    """The whole picture as it is, neither cut nor resized; uint8 (3, height, width).

    In a `ShardLoader` pictures of one shape make one tensor, whose memory lies as in ``torch.channels_last``, and arrays
    (``npy``) are read straight into it; pictures of several shapes come as a list.
    """

    def __call__(self, image: Any) -> NDArray[np.uint8]:
        """A uint8 array (3, height, width) from bytes or a PIL image; `DecodeError` if they are bad.

        Bytes are turned as their EXIF orientation says; a PIL image is taken as it is.
        """
        _refuse_path(image)
        if isinstance(image, (bytes, bytearray, memoryview)):
            pixels = codec.decode(bytes(image))
        elif not hasattr(image, "convert"):
            raise OptionError(f"{image!r:.40} is no image: bytes are, and PIL images")
        else:
            pixels = np.array(image.convert("RGB"))
        return np.moveaxis(pixels, 2, 0)

    def __repr__(self) -> str:
        return "Decode()"


def _refuse_path(image: Any) -> None:
    if isinstance(image, (str, os.PathLike)):
        raise OptionError(f"{os.fspath(image)!r} is a path and no image: give the file's bytes, or a PIL image")


def _range(name: str, value: tuple[float, float], most: float) -> tuple[float, float]:
    try:
        low, high = value
        good = 0 < low <= high <= most
    except (TypeError, ValueError):  # of no two numbers
        good = False
    if not good:
        raise OptionError(f"{name} is {value!r}; it must be (low, high) above 0, up to {most:g}")
    return low, high


def _check_resize(name: str, value: int, least: int) -> None:
    if type(value) is not int or value < least:
        raise OptionError(f"{name} is {value!r}; it must be a number of pixels, {least} or more")


def _resized(width: int, height: int, short: int) -> tuple[int, int]:
    """Width and height when the shorter side is ``short``; the longer one is rounded down, as in torchvision."""
    if width <= height:
        return short, int(short * height / width)
    return int(short * width / height), short


def _cut_of_resized(
    width: int, height: int, across: int, down: int, left: int, top: int, size: tuple[int, ...], mirrored: bool
) -> Cut:
    """A box of the picture resized to ``across`` x ``down``, in the picture's own pixels."""
    x, y = width / across, height / down
    box = Box(left * x, top * y, (left + size[1]) * x, (top + size[0]) * y)
    return Cut(box, Box(0, 0, width, height), mirrored)
