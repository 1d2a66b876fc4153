"""What is done to images on their way to the model, in two places.

Presets make one training image of a file's bytes, in a worker, as uint8: they are what ``ShardDataset`` takes as
``transform``. Whole batches are then changed on the model's device, where arithmetic is cheap: `ColorJitter` and
`normalize`. Bytes travel, and floats are made where they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from wds_tools.errors import OptionError
from wds_tools.image.jitter import ColorJitter, white
from wds_tools.image.presets import Decode, RandomResizedCrop, ResizeCenterCrop, ScaleJitterCrop

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "ColorJitter",
    "Decode",
    "RandomResizedCrop",
    "ResizeCenterCrop",
    "ScaleJitterCrop",
    "normalize",
]


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"transforms has no {name!r}, only {', '.join(__all__)}; torchvision's transforms work as transform= too"
    )


IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Of red, green and blue over ImageNet's training images, where white is 1."""
IMAGENET_STD = (0.229, 0.224, 0.225)


def normalize(
    batch: torch.Tensor,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """``(batch / 255 - mean) / std`` for uint8 images (B, C, H, W), or (C, H, W), as a new tensor of ``dtype``.

    Floating images are taken to be from 0 to 1. The result is on the batch's device and lies in memory as the batch does.
    """
    if not isinstance(batch, torch.Tensor):
        raise OptionError(
            f"a {type(batch).__name__} is no batch of images: one tensor is; images of several shapes come as a list, so choose "
            "a transform of a fixed size"
        )
    if isinstance(mean, (int, float)) or isinstance(std, (int, float)):
        raise OptionError(
            f"mean={mean!r} and std={std!r} are for one channel; give a number for each, such as (0.5, 0.5, 0.5)"
        )
    channels = batch.shape[-3] if batch.ndim >= 3 else 0
    if len(mean) != channels or len(std) != channels or not all(std):
        raise OptionError(
            f"mean={tuple(mean)!r} and std={tuple(std)!r} do not fit images of shape {tuple(batch.shape)}: "
            "give a number for each channel, and none of std's may be 0"
        )
    one = white(batch)
    scale = torch.tensor([1 / (one * s) for s in std], device=batch.device).view(-1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=batch.device).view(-1, 1, 1)
    return batch.to(torch.float32, copy=True).mul_(scale).add_(shift).to(dtype)
