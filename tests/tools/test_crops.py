"""Random crops: of the right size, inside the image, by the generator that samples seed."""

from __future__ import annotations

import random

import pytest

from tests.support import images
from wds_tools.errors import OptionError
from wds_tools.tools.crops import RandomResizedCrop, _box


@pytest.mark.parametrize(("width", "height"), [(1, 1), (40, 30), (1000, 3), (3, 1000), (224, 224)])
def test_a_crop_has_its_size_whatever_the_image(width: int, height: int) -> None:
    assert RandomResizedCrop(17)(images.picture(width, height)).size == (17, 17)
    for _ in range(50):
        left, top, right, bottom = _box(width, height)
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height


def test_boxes_have_the_area_and_shape_that_they_should() -> None:
    random.seed(0)
    boxes = [_box(1000, 1000) for _ in range(2000)]
    areas = [(right - left) * (bottom - top) / 1e6 for left, top, right, bottom in boxes]
    ratios = [(right - left) / (bottom - top) for left, top, right, bottom in boxes]
    assert 0.079 < min(areas) < 0.1
    assert 0.9 < max(areas) <= 1
    assert 0.74 < min(ratios) < 0.76
    assert 1.32 < max(ratios) < 1.345


def test_the_same_seed_gives_the_same_crop_and_another_another() -> None:
    made = []
    for seed in (1, 1, 2):
        random.seed(seed)
        made.append(RandomResizedCrop(8)(images.picture(100, 80)).tobytes())
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize("size", [0, -1, 65536])
def test_a_size_that_cannot_be_is_refused(size: int) -> None:
    with pytest.raises(OptionError, match=f"image_size is {size}"):
        RandomResizedCrop(size)
