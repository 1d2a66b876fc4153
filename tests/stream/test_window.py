from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from wds_tools.stream.window import window_order

MANY = settings(max_examples=500, deadline=None)
LENGTHS = st.lists(st.one_of(st.just(1), st.integers(1, 6), st.integers(1, 60)), min_size=1, max_size=12)


def borders_of(lengths: list[int], origin: int) -> npt.NDArray[np.int64]:
    return np.concatenate([[origin], origin + np.cumsum(lengths)]).astype(np.int64)


def merged(borders: npt.NDArray[np.int64], interleave: int) -> list[int]:
    """The positions in the order of their places, with exact fractions."""
    pieces = list(pairwise(borders.tolist()))
    order = []
    for first in range(0, len(pieces), interleave):
        group = pieces[first : first + interleave]
        places = [(Fraction(2 * t + 1, 2 * (hi - lo)), lo + t) for lo, hi in group for t in range(hi - lo)]
        order += [position for _, position in sorted(places)]
    return order


@MANY
@given(
    lengths=LENGTHS,
    origin=st.integers(0, 10**9),
    interleave=st.integers(1, 14),
    window=st.integers(1, 300),
    key=st.integers(0, 2**64 - 1),
    cut=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_any_part_is_that_part_of_the_whole(
    lengths: list[int], origin: int, interleave: int, window: int, key: int, cut: tuple[float, float]
) -> None:
    borders = borders_of(lengths, origin)
    total = sum(lengths)
    start, stop = sorted(int(share * total) for share in cut)
    whole = window_order(borders, 0, total, interleave=interleave, window=window, key=key)
    part = window_order(borders, start, stop, interleave=interleave, window=window, key=key)
    assert sorted(whole.tolist()) == list(range(origin, origin + total))
    assert part.tolist() == whole[start:stop].tolist()


@MANY
@given(lengths=LENGTHS, interleave=st.integers(1, 14), window=st.integers(1, 80), key=st.integers(0, 2**64 - 1))
def test_no_sample_moves_further_than_the_window(lengths: list[int], interleave: int, window: int, key: int) -> None:
    borders = borders_of(lengths, 0)
    total = sum(lengths)
    rank = {position: k for k, position in enumerate(merged(borders, interleave))}
    moved = window_order(borders, 0, total, interleave=interleave, window=window, key=key).tolist()
    bound = window if interleave == 1 else window + interleave
    assert max(abs(k - rank[position]) for k, position in enumerate(moved)) < bound


def test_the_window_is_used_to_its_width() -> None:
    moved = window_order(borders_of([10_000], 0), 0, 10_000, interleave=1, window=1000, key=5)
    distance = np.abs(moved - np.arange(10_000))
    # The draws push all samples on by half a window on average, so what differs is half a window either way.
    assert 450 < distance.max() < 600
    assert 225 < distance[1000:-1000].mean() < 275


@MANY
@given(lengths=LENGTHS, key=st.integers(0, 2**64 - 1))
def test_one_means_none(lengths: list[int], key: int) -> None:
    total = sum(lengths)
    assert window_order(borders_of(lengths, 0), 0, total, interleave=1, window=1, key=key).tolist() == list(
        range(total)
    )


def test_pieces_are_merged_in_proportion() -> None:
    borders = borders_of([100, 300, 200, 50, 50], 0)
    moved = window_order(borders, 0, 700, interleave=3, window=1, key=0)
    piece = np.searchsorted(borders, moved, side="right") - 1
    for part in range(6):  # the first group is 600 long: any sixth of it has a sixth of each piece
        counts = np.bincount(piece[part * 100 : part * 100 + 100], minlength=5)
        assert np.abs(counts[:3] - [100 / 6, 50, 200 / 6]).max() <= 2
    assert set(piece[600:].tolist()) == {3, 4}
