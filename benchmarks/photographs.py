"""Photographs for benchmarks: trees of JPEG files made of some that are given, or of some made up.

A made-up photograph has the spectrum of natural images (amplitudes fall with the frequency), soft-edged shapes, 500 x 375
pixels and about 110 kB, so that decoding it costs what decoding a photograph of ImageNet costs. Trees are kept and found
again under names that say what is in them; one that is there is whole.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 100
MADE_UP = 100


def photograph(number: int) -> bytes:
    """The made-up photograph with this number."""
    draw = np.random.default_rng(number)
    height, width = 375, 500
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1
    planes = []
    for strength in (46.0, 14.0, 14.0):  # brightness varies more than colour
        phases = np.exp(2j * np.pi * draw.random(frequency.shape))
        plane = np.fft.irfft2(phases / frequency**1.2, (height, width))
        planes.append(strength * plane / plane.std())
    y, x = np.mgrid[:height, :width]
    for _ in range(6):
        centre, radius = draw.random(2) * (height, width), draw.uniform(25, 110)
        inside = 1 / (1 + np.exp(np.hypot(y - centre[0], x - centre[1]) - radius))
        planes = [plane + inside * draw.normal(0, 35) for plane in planes]
    bright, red, blue = planes
    pixels = 112 + np.stack([bright + red, bright - (red + blue) / 2, bright + blue], axis=-1)
    pixels += draw.normal(0, 4, pixels.shape)  # a sensor's
    return _jpeg(Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)), 93)


def as_it_is(data: bytes, number: int) -> bytes:
    """A photograph unchanged, whatever the number of its copy."""
    return data


def square(data: bytes, number: int, *, size: int) -> bytes:
    """The largest square of a photograph, at ``size`` pixels; each copy of another place."""
    with Image.open(io.BytesIO(data)) as image:
        side = min(image.size)
        left, top = ((length - side) * (number % 7) // 6 for length in image.size)
        return _jpeg(image.convert("RGB").resize((size, size), box=(left, top, left + side, top + side)), 90)


def large(data: bytes, number: int) -> bytes:
    """A photograph enlarged to 2,500 x 1,875 or more, with a sensor's noise: about a megabyte, as cameras make them."""
    with Image.open(io.BytesIO(data)) as image:
        scale = max(2500 / max(image.size), 1875 / min(image.size))
        pixels = image.convert("RGB").resize([round(length * scale) for length in image.size], Image.Resampling.LANCZOS)
    noise = np.random.default_rng(number).normal(0, 3, (*pixels.size[::-1], 1))
    return _jpeg(Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8)), 85)


def tree(folder: Path, source: Path | None, count: int, change: Callable[[bytes, int], bytes] = as_it_is) -> Path:
    """A tree of ``count`` files in ``folder``, of the photographs below ``source`` or of made-up ones, each changed."""
    if folder.exists():
        return folder
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    for label in range(CLASSES):
        (part / f"class{label:03d}").mkdir(parents=True)
    with ProcessPoolExecutor() as pool:
        files = _files(source) if source else list(pool.map(photograph, range(MADE_UP)))
        list(pool.map(partial(_write, part, files, change), range(count), chunksize=20))
    os.replace(part, folder)
    return folder


def _files(source: Path) -> Sequence[Path]:
    files = sorted(path for path in source.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not files:
        raise SystemExit(f"no JPEG files below {source}; name another folder with --source")
    return files


def _write(folder: Path, files: Sequence[Path | bytes], change: Callable[[bytes, int], bytes], number: int) -> None:
    file = files[number % len(files)]
    data = change(file.read_bytes() if isinstance(file, Path) else file, number)
    (folder / f"class{number % CLASSES:03d}" / f"{number:06d}.jpg").write_bytes(data)


def _jpeg(image: Image.Image, quality: int) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()
