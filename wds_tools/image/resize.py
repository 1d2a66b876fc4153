"""Antialiased bilinear resize of RGB pixels, from rows of triples to three planes.

The filter is that of Pillow's ``BILINEAR`` and torch's ``antialias=True``: a triangle two output pixels wide, or two
source pixels where the picture grows. The C kernel does it in one go into memory that is there already. Without it
torch does, or Pillow where the box lies between pixels; the results differ by the rounding, by less than one grey level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wds_tools.image import tiles

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Box(NamedTuple):
    """Edges in pixels; they may lie between pixels."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.bottom - self.top

    def moved(self, left: float, top: float, factor: float = 1) -> Box:
        """The same box seen from another origin, in pixels ``factor`` times as large."""
        return Box(
            (self.left - left) / factor,
            (self.top - top) / factor,
            (self.right - left) / factor,
            (self.bottom - top) / factor,
        )


def resize(pixels: NDArray[np.uint8], box: Box, out: NDArray[np.uint8], mirrored: bool = False) -> None:
    """Fill ``out``, uint8 (3, height, width), with the box of ``pixels``, uint8 (height, width, 3); mirrored if asked.

    The filter may look past the box, but not past the pixels: give a view to hold it back.
    """
    if pixels.strides[1:] != (3, 1):
        pixels = pixels.copy()
    height, width = pixels.shape[:2]
    # What was computed as the picture's edge may be a hair outside.
    if box.left < 0 or box.top < 0 or box.right > width or box.bottom > height:
        box = Box(max(box.left, 0.0), max(box.top, 0.0), min(box.right, width), min(box.bottom, height))
    if tiles.kernel is not None:
        tiles.kernel.resize(pixels, *box, out, mirrored, False)
        return
    done = _by_torch(pixels, box, out.shape)
    if done is None:
        done = _by_pillow(pixels, box, out.shape)
    out[...] = done[:, :, ::-1] if mirrored else done


def _by_torch(pixels: NDArray[np.uint8], box: Box, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """None where the box is not all there is: torch's filter would not look past it."""
    import torch

    if box != (0, 0, pixels.shape[1], pixels.shape[0]):
        return None
    # A copy, since torch takes no negative strides, which numpy calls contiguous where a side is one pixel.
    planes = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
    done = torch.nn.functional.interpolate(planes, size=shape[1:], mode="bilinear", antialias=True)
    result: NDArray[np.uint8] = done[0].numpy()
    return result


def _by_pillow(pixels: NDArray[np.uint8], box: Box, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    from PIL import Image

    image = Image.fromarray(pixels).resize((shape[2], shape[1]), Image.Resampling.BILINEAR, box)
    return np.moveaxis(np.asarray(image), 2, 0)
