"""Which process of how many this is.

What is given counts first, then `torch.distributed` if it is initialised, then RANK and WORLD_SIZE as torchrun sets
them. The environment is read when the answer is needed, not when this is imported.
"""

from __future__ import annotations

import os

from wds_tools.errors import OptionError
from wds_tools.stream.partition import whole_number


def find_world(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Rank and world size of this process; ``(0, 1)`` where nothing says otherwise."""
    if (rank is None) != (world_size is None):
        raise OptionError(f"rank is {rank} and world_size is {world_size}; give both, or neither")
    if rank is None or world_size is None:
        rank, world_size = _found()
    world_size = whole_number("world_size", world_size, 1)
    if not 0 <= whole_number("rank", rank, 0) < world_size:
        raise OptionError(f"rank is {rank} where world_size is {world_size}; ranks count from 0 to world_size - 1")
    return rank, world_size


def _found() -> tuple[int, int]:
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or world_size is None:
        return 0, 1
    if not (rank.isdigit() and world_size.isdigit()):
        raise OptionError(f"RANK={rank!r} and WORLD_SIZE={world_size!r} are set and are no numbers; mend or unset them")
    return int(rank), int(world_size)
