"""Colour jitter of a whole batch at once, on the device that the batch is on.

Brightness, contrast, saturation and hue change as in torchvision's ``ColorJitter``, one factor each for every image, but
always in this order, so that what happens to an image does not depend on its neighbours. Between the steps numbers stay
floating, where torchvision rounds to whole grey levels each time.
"""

from __future__ import annotations

import numpy as np
import torch

from wds_tools.draws import Purpose, make_key, uniform
from wds_tools.errors import OptionError

GREY = (0.2989, 0.587, 0.114)  # the weights that torchvision uses, of ITU-R BT.601

Range = tuple[float, float]


class ColorJitter:
    """Random changes of brightness, contrast, saturation and hue.

    Each of the first three is a number ``x >= 0``, for factors drawn evenly from ``1 - x`` (but not below 0) to ``1 + x``, or
    (low, high); ``hue`` is a number up to 0.5, a part of the colour circle, for shifts from ``-x`` to ``x``, or (low, high).
    """

    def __init__(
        self,
        brightness: float | Range = 0.0,
        contrast: float | Range = 0.0,
        saturation: float | Range = 0.0,
        hue: float | Range = 0.0,
    ) -> None:
        self.brightness = _range("brightness", brightness, 1.0, 0.0, np.inf)
        self.contrast = _range("contrast", contrast, 1.0, 0.0, np.inf)
        self.saturation = _range("saturation", saturation, 1.0, 0.0, np.inf)
        self.hue = _range("hue", hue, 0.0, -0.5, 0.5)

    def __call__(self, images: torch.Tensor, seeds: torch.Tensor | None = None) -> torch.Tensor:
        """New images like ``images``: uint8, or floating from 0 to 1, of shape (B, 3, H, W).

        ``seeds``, int64 (B,), are those of the samples: the loader's field ``"__seed__"``. Without them they are drawn from
        torch's generator.
        """
        if images.ndim != 4 or images.shape[1] != 3:
            raise OptionError(f"images have shape {tuple(images.shape)}; ColorJitter takes (B, 3, H, W)")
        if seeds is None:
            seeds = torch.randint(2**63 - 1, (len(images),))
        if seeds.shape != images.shape[:1] or seeds.is_floating_point():
            found = f"{seeds.dtype} of shape {tuple(seeds.shape)}"
            raise OptionError(f"seeds are {found}; {len(images)} images take int64 of shape ({len(images)},)")
        one = white(images)
        x = images.to(torch.float32, copy=True)
        factors = self._factors(seeds, x.device)
        if "brightness" in factors:
            x = (x * factors["brightness"]).clamp_(0, one)
        if "contrast" in factors:
            mean = _grey(x).mean((1, 2, 3), keepdim=True)
            x = torch.lerp(mean, x, factors["contrast"]).clamp_(0, one)
        if "saturation" in factors:
            x = torch.lerp(_grey(x), x, factors["saturation"]).clamp_(0, one)
        if "hue" in factors:
            x = _turned(x / one, factors["hue"]) * one
        return x.round_().to(torch.uint8) if images.dtype == torch.uint8 else x.to(images.dtype)

    def _factors(self, seeds: torch.Tensor, device: torch.device) -> dict[str, torch.Tensor]:
        """For what changes at all, a factor an image, of shape (B, 1, 1, 1)."""
        numbers = seeds.cpu().numpy().astype(np.uint64)
        factors = {}
        for step, (name, (low, high)) in enumerate(vars(self).items()):
            if (low, high) == ((0, 0) if name == "hue" else (1, 1)):
                continue
            drawn = low + (high - low) * uniform(make_key(Purpose.JITTER, step), numbers)
            factors[name] = torch.from_numpy(drawn).to(device, torch.float32).view(-1, 1, 1, 1)
        return factors

    def __repr__(self) -> str:
        return f"ColorJitter({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def white(images: torch.Tensor) -> float:
    """The number that stands for white: 255 of uint8, 1 of floating images; `OptionError` for others."""
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise OptionError(f"images are {images.dtype}; uint8, or floating from 0 to 1, is what can be changed")
    return 255.0 if images.dtype == torch.uint8 else 1.0


def _range(name: str, value: float | Range, centre: float, least: float, most: float) -> Range:
    try:
        low, high = value if isinstance(value, (tuple, list)) else (max(centre - value, least), centre + value)
        good = least <= low <= high <= most and high < np.inf
    except (TypeError, ValueError):  # of no numbers
        good = False
    if not good:
        raise OptionError(f"{name} is {value!r}; it must be a number, or (low, high) from {least:g} to {most:g}")
    return low, high


def _grey(x: torch.Tensor) -> torch.Tensor:
    red, green, blue = x.unbind(1)
    return (GREY[0] * red + GREY[1] * green + GREY[2] * blue).unsqueeze(1)


def _turned(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Colours from 0 to 1 with their hue shifted by a part of the circle; value and saturation stay.

    Smith, Color gamut transform pairs, SIGGRAPH 1978; the way back is its closed form, channel by channel.
    """
    value, _ = x.max(1, keepdim=True)
    chroma = value - x.amin(1, keepdim=True)
    red, green, blue = (part.unsqueeze(1) for part in x.unbind(1))
    scale = 1 / chroma.clamp_min(1e-8)
    hue = torch.where(
        value == red,
        (green - blue) * scale,
        torch.where(value == green, 2 + (blue - red) * scale, 4 + (red - green) * scale),
    )
    hue = hue + 6 * shift  # sixths of the circle
    parts = []
    for offset in (5, 3, 1):
        k = torch.remainder(hue + offset, 6)
        parts.append(value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1))
    return torch.cat(parts, 1)
