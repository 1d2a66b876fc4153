"""That no key comes twice, seen with eight bytes a key.

A set of a hundred million keys takes ten gigabytes. Their hashes take 0.8, sorted in place; only where two are equal
is it looked up which keys they were.
"""

from __future__ import annotations

from array import array


class Keys:
    """The keys of a split, to be asked once all are there."""

    def __init__(self) -> None:
        self._hashes = array("q")

    def add(self, key: str) -> None:
        self._hashes.append(hash(key))

    def extend(self, hashes: array[int]) -> None:
        """Add many keys by hashes of the caller's, all of one kind."""
        self._hashes.extend(hashes)

    def doubtful(self) -> set[int]:
        """The hashes that came more than once: those of keys that did and, once in an age, of others."""
        import numpy as np

        hashes = np.frombuffer(self._hashes, np.int64)
        hashes.sort()
        return set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
