"""Random crops of Pillow images, as training makes them: the usual work that a decoder's speed is measured with."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wds_tools.errors import OptionError

if TYPE_CHECKING:
    from PIL import Image

_SCALE = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)
_ATTEMPTS = 10


@dataclass(frozen=True)
class RandomResizedCrop:
    """A box of random area and shape, resized to ``size`` pixels a side (bilinear, antialiased), flipped half the time.

    The box is drawn by the rule that Inception was trained with (Szegedy et al., 2015): 8 to 100 % of the area, sides
    in a ratio of 3:4 to 4:3; where ten draws do not fit into the image, the middle of it.
    """

    size: int

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 65535:
            raise OptionError(f"image_size is {self.size}; it must be between 1 and 65535")

    def __call__(self, image: Image.Image) -> Image.Image:
        from PIL import Image

        cut = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=_box(*image.size))
        return cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else cut


def _box(width: int, height: int) -> tuple[int, int, int, int]:
    for _ in range(_ATTEMPTS):
        area = width * height * random.uniform(*_SCALE)
        ratio = math.exp(random.uniform(*map(math.log, _RATIO)))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, top = random.randint(0, width - across), random.randint(0, height - down)
            return left, top, left + across, top + down
    across, down = min(width, round(height * _RATIO[1])), min(height, round(width / _RATIO[0]))
    left, top = (width - across) // 2, (height - down) // 2
    return left, top, left + across, top + down
