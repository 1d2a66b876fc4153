"""ShardDataset and ShardLoader on an address: our side of the remote benchmark.

Usage: streamed.py ADDRESS [CACHE]. CACHE is a folder to keep the shards in.
"""

import sys

from turn import BATCH, SIZE, WORKERS, take_turns

from wds_tools import ShardDataset, ShardLoader, transforms

cache = {"cache": sys.argv[2], "cache_bytes": 1 << 40} if sys.argv[2:] else {}
dataset = ShardDataset(
    sys.argv[1],
    split="train",
    shuffle=True,
    fields=("jpg", "cls"),
    transform=transforms.RandomResizedCrop(SIZE),
    **cache,
)
loader = ShardLoader(dataset, batch_size=BATCH, num_workers=WORKERS)

take_turns(lambda: (images for images, _ in loader))
