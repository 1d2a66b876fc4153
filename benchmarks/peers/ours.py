"""ShardDataset and ShardLoader: our side of the decoding benchmark.

Usage: ours.py FOLDER PRESET [HIDDEN]. PRESET is one of PRESETS. HIDDEN is a module that cannot be imported in this run:
the C kernel, to measure what is left without a compiler.
"""

import sys

if sys.argv[3:]:
    sys.modules[sys.argv[3]] = None  # type: ignore[assignment]  # what Python itself takes for "not there"

from turn import BATCH, SIZE, WORKERS, take_turns

from wds_tools import ShardDataset, ShardLoader, transforms

folder, preset = sys.argv[1:3]
# name: fields, transform, images of a batch
PRESETS = {
    "crop": (("jpg", "cls"), lambda: transforms.RandomResizedCrop(SIZE), BATCH),
    "whole": (("npy", "cls"), lambda: transforms.Decode(), 2 * BATCH),
}
fields, transform, size = PRESETS[preset]
dataset = ShardDataset(folder, split="train", shuffle=True, fields=fields, transform=transform())
loader = ShardLoader(dataset, batch_size=size, num_workers=WORKERS)

take_turns(lambda: (images for images, _ in loader))
