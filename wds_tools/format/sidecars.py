"""Small files that other tools look for beside the shards."""

from __future__ import annotations

import json

from wds_tools.records import SplitInfo

SIZES = "sizes.json"


def dump_sizes(splits: dict[str, SplitInfo]) -> bytes:
    """``sizes.json``: samples by shard name, what open_clip looks for."""
    sizes = {shard.name: shard.samples for split in splits.values() for shard in split.shards}
    return json.dumps(sizes, indent=1).encode() + b"\n"
