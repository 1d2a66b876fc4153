"""DALI's CPU pipeline: it decodes the crop's region, resizes with antialiasing, flips and lays out channels first.

It reads the same shards by the indexes that we wrote. Batches are handed out as views of DALI's own memory, which
spares it the copy that its iterator for PyTorch makes. DALI works on between passes, so what it has made
ready by then is thrown away before the clock starts. Usage: decode_dali.py SHARDS…
"""

import sys
from collections.abc import Iterator

import numpy as np
from nvidia.dali import fn, pipeline_def, types
from turn import BATCH, SIZE, WORKERS, take_turns

AHEAD = 2
shards = sys.argv[1:]


@pipeline_def(batch_size=BATCH, num_threads=WORKERS, device_id=None, prefetch_queue_depth=AHEAD, seed=1)
def crops() -> object:
    data, _ = fn.readers.webdataset(
        paths=shards,
        index_paths=[shard.removesuffix("tar") + "idx" for shard in shards],
        ext=["jpg", "cls"],
        random_shuffle=True,
        initial_fill=1000,
        name="reader",
    )
    images = fn.decoders.image_random_crop(
        data, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
    )
    images = fn.resize(
        images, device="cpu", resize_x=SIZE, resize_y=SIZE, interp_type=types.INTERP_LINEAR, antialias=True
    )
    flip = fn.random.coin_flip(probability=0.5)
    return fn.crop_mirror_normalize(images, device="cpu", mirror=flip, dtype=types.UINT8, output_layout="CHW")


pipeline = crops()
pipeline.build()
batches = -(-pipeline.epoch_size("reader") // BATCH)


def batch() -> np.ndarray:
    return np.asarray(pipeline.run()[0].as_tensor())


def one_pass() -> Iterator[np.ndarray]:
    return (batch() for _ in range(batches))


def settle() -> None:
    for _ in range(AHEAD + 1):
        batch()


take_turns(one_pass, settle)
