"""Which samples of a dataset are taken, and how a key decides.

A key's share is a number from 0 up to 1 that its digest gives, the same wherever the sample lies: in other shards, in
another order, beside other samples. So what was drawn for validation once is drawn again.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

from wds_tools.errors import OptionError

_ONE = 1 << 64


def key_hash(key: str) -> int:
    """64 bits of a key's digest, which stay the same in every process and version."""
    return int.from_bytes(hashlib.blake2b(key.encode("ascii"), digest_size=8).digest(), "big")


@dataclass(frozen=True)
class Selection:
    """What is taken of the sources, and how it is called.

    ``splits`` are the sources' splits; none stands for the only one that there is. ``classes`` are the names that are kept, none
    for all. ``share`` is an interval [low, high) within [0, 1]: samples whose keys' shares lie there are taken. ``prefix``
    puts each source's name before its keys. With ``divides``, no sample outside of the share is an error too: somebody else
    is to take them.
    """

    splits: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    share: tuple[float, float] = (0.0, 1.0)
    prefix: bool = False
    divides: bool = False

    def __post_init__(self) -> None:
        low, high = self.share
        if not (math.isfinite(low) and math.isfinite(high) and 0 <= low < high <= 1):
            raise OptionError(f"share is {low}:{high}; it must be two numbers from 0 to 1, the smaller one first")
        for what, names in (("split", self.splits), ("class", self.classes)):
            if len(set(names)) < len(names):
                twice = next(name for number, name in enumerate(names) if name in names[:number])
                raise OptionError(f"{what} {twice!r} is listed twice")

    @property
    def everyone(self) -> bool:
        """Whether every share is taken."""
        return self.share == (0.0, 1.0)

    def has(self, hashed: int) -> bool:
        """Whether a key with this `key_hash` is taken. Intervals that meet share no key, and leave none out."""
        low, high = self.share
        return int(low * _ONE) <= hashed < int(high * _ONE)

    def settings(self) -> dict[str, Any]:
        """What decides which samples are taken, as the manifest lists it."""
        return {
            "classes": list(self.classes),
            "prefix": self.prefix,
            "share": list(self.share),
            "splits": list(self.splits),
        }
