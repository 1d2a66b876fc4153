"""A small labelled image tree, made on the spot: coloured shapes on noise, learnable by a small network.

Every pixel follows from the seed, and the drawing is plain integer arithmetic, so the tree is the same everywhere.
"""

from __future__ import annotations

import io
import os
import random
from os import PathLike

from PIL import Image, ImageDraw

from wds_tools.errors import OptionError
from wds_tools.store.local import store_error
from wds_tools.tools.folder import new_folder

CLASSES = ("circle", "cross", "diamond", "ring", "square", "triangle")


def make_demo(target: str | PathLike[str], *, per_class: int = 100, size: int = 128, seed: int = 0) -> int:
    """Write ``per_class`` JPEG images of about ``size`` pixels a side for each of six classes; answers how many.

    ``target`` must be empty or not there, else `TargetError`; it stays so when anything goes wrong.
    """
    if not 1 <= per_class <= 100_000:
        raise OptionError(f"per_class is {per_class}; it must be between 1 and 100000")
    if not 16 <= size <= 4096:
        raise OptionError(f"size is {size}; it must be between 16 and 4096")
    target = os.path.expanduser(os.fspath(target))
    with new_folder(target) as folder:
        try:
            for name in CLASSES:
                os.mkdir(os.path.join(folder, name))
                for number in range(per_class):
                    draw = random.Random(f"{seed}/{name}/{number}")
                    with open(os.path.join(folder, name, f"{name}_{number:04d}.jpg"), "xb") as file:
                        file.write(_image(name, size, draw))
        except OSError as error:
            raise store_error(error, target, "write") from error
    return len(CLASSES) * per_class


def _image(name: str, size: int, draw: random.Random) -> bytes:
    width, height = (size + draw.randrange(size // 4) for _ in range(2))
    dark = [draw.randrange(0, 90) for _ in range(3)]
    light = [draw.randrange(150, 256) for _ in range(3)]
    if draw.random() < 0.5:
        dark, light = light, dark
    # Noise at a quarter of the size, enlarged: it looks like texture, and JPEG can afford it.
    coarse = Image.frombytes("RGB", (width // 4, height // 4), draw.randbytes(width // 4 * (height // 4) * 3))
    ground = Image.new("RGB", (width, height), tuple(dark))
    image = Image.blend(ground, coarse.resize((width, height)), 0.25)
    pen = ImageDraw.Draw(image)
    radius = draw.randrange(size // 5, size // 3)
    x, y = draw.randrange(radius, width - radius), draw.randrange(radius, height - radius)
    _shape(pen, name, x, y, radius, tuple(light))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def _shape(pen: ImageDraw.ImageDraw, name: str, x: int, y: int, r: int, fill: tuple[int, ...]) -> None:
    box = (x - r, y - r, x + r, y + r)
    third = r // 3
    if name == "circle":
        pen.ellipse(box, fill)
    elif name == "cross":
        pen.rectangle((x - r, y - third, x + r, y + third), fill)
        pen.rectangle((x - third, y - r, x + third, y + r), fill)
    elif name == "diamond":
        pen.polygon([(x, y - r), (x + r, y), (x, y + r), (x - r, y)], fill)
    elif name == "ring":
        pen.ellipse(box, outline=fill, width=max(r // 4, 2))
    elif name == "square":
        pen.rectangle(box, fill)
    else:
        pen.polygon([(x, y - r), (x + r, y + r), (x - r, y + r)], fill)
