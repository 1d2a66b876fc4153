"""Sorting entries by what they have drawn, when they do not fit in memory.

One pass deals the entries, block by block, to buckets by their draws: the lowest draws to the first bucket, and so on.
A second one sorts bucket after bucket, each of which fits in memory. Both write and read one file; of what lies in it
only the places are kept, 24 bytes for each piece that a block gave to a bucket. With entries that draw the same, the
earlier one comes first, as in a sort in memory. (Distribution sort; Knuth, The Art of Computer Programming, 5.2.5.)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from wds_tools.convert.spool import Frames


def scattered(
    blocks: Iterable[tuple[list[str], Sequence[int]]],
    draws: Iterator[float],
    count: int,
    highest: int,
    bucket: int,
    folder: str | None,
) -> Iterator[tuple[list[str], Sequence[int]]]:
    """Lines and weights of the ``blocks``, sorted by ``draws``, which are at least 0 and below ``highest``.

    There are ``count`` of them. About ``bucket`` at a time are in memory, and come as one block.
    """
    import numpy as np

    pair = np.dtype([("draw", "f8"), ("weight", "i8")])
    buckets = max(1, count // bucket)
    frames = Frames(folder)
    places = [array("q") for _ in range(buckets)]
    for lines, weights in blocks:
        drawn = np.fromiter(islice(draws, len(lines)), np.float64, len(lines))
        numbers = np.minimum((drawn * (buckets / highest)).astype(np.int64), buckets - 1)
        order = np.argsort(numbers, kind="stable")
        borders = np.searchsorted(numbers[order], np.arange(buckets + 1))
        sorted_lines = [lines[number] for number in order.tolist()]
        beside = np.empty(len(lines), pair)
        beside["draw"], beside["weight"] = drawn[order], np.asarray(weights, np.int64)[order]
        for number in np.flatnonzero(np.diff(borders)).tolist():
            start, stop = borders[number], borders[number + 1]
            places[number].extend(frames.write(sorted_lines[start:stop], beside[start:stop].tobytes()))
    for pieces in places:
        found: list[str] = []
        pairs = bytearray()
        for piece in range(0, len(pieces), 3):
            some, beside_bytes = frames.read(pieces[piece : piece + 3])
            found += some
            pairs += beside_bytes
        beside = np.frombuffer(pairs, pair)
        order = np.argsort(beside["draw"], kind="stable")
        if found:
            yield [found[number] for number in order.tolist()], array("q", beside["weight"][order].tobytes())
    frames.close()
