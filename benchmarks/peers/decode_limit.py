"""The limit: libjpeg-turbo alone, on streams that are cropped already, in as many processes as the others have workers.

Nothing is read, cropped, resized or handed over while the clock runs. Boxes are drawn as for RandomResizedCrop, and
decoded at half, a quarter or an eighth where at least SIZE pixels remain. Usage: decode_limit.py FOLDER
"""

import math
import multiprocessing
import random
import sys
from collections.abc import Iterator

import numpy as np
import simplejpeg
from turn import BATCH, SIZE, WORKERS, take_turns

from wds_tools import ShardDataset
from wds_tools.errors import WdsToolsError
from wds_tools.image import tiles


def box(width: int, height: int, draw: random.Random) -> tuple[int, int, int, int]:
    """x, y, width, height, drawn as torchvision's RandomResizedCrop.get_params does; the fallback is the whole image."""
    for _ in range(10):
        area = width * height * draw.uniform(0.08, 1)
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return draw.randint(0, width - w), draw.randint(0, height - h), w, h
    return 0, 0, width, height


def cropped(folder: str) -> Iterator[tuple[bytes, int]]:
    """Streams, and by how much each is decoded smaller."""
    draw = random.Random(0)
    for sample in ShardDataset(folder, split="train"):
        height, width, *_ = simplejpeg.decode_jpeg_header(sample["jpg"])
        x, y, w, h = box(width, height, draw)
        scale = max(scale for scale in (1, 2, 4, 8) if scale == 1 or min(w, h) >= scale * SIZE)
        try:
            yield tiles.crop(sample["jpg"], x, y, w, h)[0], scale
        except WdsToolsError:  # no baseline JPEG: there is no less to decode
            yield sample["jpg"], scale


streams = list(cropped(sys.argv[1]))


def decode(begin: int) -> tuple[int, float]:
    """Decode one batch; how many, and their mean."""
    total = 0.0
    for data, scale in streams[begin : begin + BATCH]:
        height, width, *_ = simplejpeg.decode_jpeg_header(data)
        # simplejpeg takes the smallest size that is no smaller than this.
        least = (-(-height // scale), -(-width // scale)) if scale > 1 else (0, 0)
        total += float(simplejpeg.decode_jpeg(data, min_height=least[0], min_width=least[1], min_factor=scale)[0, 0, 0])
    return len(streams[begin : begin + BATCH]), total


def one_pass() -> Iterator[np.ndarray]:
    """Stand-ins for batches: as long as one, and without pixels."""
    for count, _ in pool.imap_unordered(decode, range(0, len(streams), BATCH)):
        yield np.broadcast_to(np.uint8(0), (count, 3, SIZE, SIZE))


with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
    take_turns(one_pass)
