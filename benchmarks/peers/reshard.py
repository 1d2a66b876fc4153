"""What people write to reshard with webdataset: read raw samples, shuffle in a buffer, write with ShardWriter."""

from __future__ import annotations

import os
import sys

import webdataset as wds


def main(source: str, target: str, count: str) -> None:
    os.makedirs(target)
    shards = sorted(os.path.join(source, name) for name in os.listdir(source) if name.endswith(".tar"))
    dataset = wds.WebDataset(shards, shardshuffle=False, empty_check=False).shuffle(5000)
    with wds.ShardWriter(
        os.path.join(target, "train-%06d.tar"), maxcount=int(count), maxsize=1e12, verbose=0
    ) as writer:
        for sample in dataset:
            writer.write({key: value for key, value in sample.items() if key == "__key__" or not key.startswith("__")})


if __name__ == "__main__":
    main(*sys.argv[1:])
