"""Turns in proportion to weights: within one turn of the share over any beginning, by looking up alone."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import factorial, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wds_tools.errors import OptionError
from wds_tools.stream.permutation import permuted
from wds_tools.stream.schedule import PARTS, Schedule, whole_shares

SHARES = st.lists(st.one_of(st.integers(1, 4), st.integers(1, 60)), min_size=1, max_size=9).map(whole_shares)
KEYS = st.one_of(st.none(), st.integers(0, 2**64 - 1))


@settings(max_examples=200, deadline=None)
@given(shares=SHARES, key=KEYS)
def test_every_beginning_has_each_sources_share_within_one_turn(shares: tuple[int, ...], key: int | None) -> None:
    schedule = Schedule(shares, key)
    turns, period = 3 * schedule.period + 7, sum(shares)
    sources, numbers = schedule.turns(0, turns)
    had = np.cumsum(sources[:, None] == np.arange(len(shares)), axis=0)
    assert (np.abs(had * period - np.arange(1, turns + 1)[:, None] * np.array(shares)) < period).all()
    assert (numbers == had[np.arange(turns), sources] - 1).all()


@settings(max_examples=200, deadline=None)
@given(shares=SHARES, key=KEYS, start=st.one_of(st.integers(0, 300), st.integers(0, 2**61)), more=st.integers(0, 200))
def test_turns_are_found_without_those_before(shares: tuple[int, ...], key: int | None, start: int, more: int) -> None:
    schedule = Schedule(shares, key)
    sources, numbers = schedule.turns(start, start + more)
    before, after = schedule.counts(start), schedule.counts(start + more)
    assert int(before.sum()) == start
    for source in range(len(shares)):
        assert numbers[sources == source].tolist() == list(range(int(before[source]), int(after[source])))
        assert abs(int(before[source]) - Fraction(start * shares[source], sum(shares))) < 1
    if start < 10**6:
        assert schedule.turns(0, start + more)[0][start:].tolist() == sources.tolist()


def test_sources_of_equal_shares_trade_places() -> None:
    alike = Schedule((1,) * 4, key=5).turns(0, 4 * 2400)[0].reshape(-1, 4)
    seen = Counter(map(tuple, alike.tolist()))
    assert len(seen) == 24
    assert min(seen.values()) > 65  # 100 expected, standard deviation 10
    assert max(seen.values()) < 140
    assert Schedule((1,) * 4).turns(0, 12)[0].tolist() == [0, 1, 2, 3] * 3
    assert alike.tolist() != Schedule((1,) * 4, key=6).turns(0, 4 * 2400)[0].reshape(-1, 4).tolist()


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([3, 1], (3, 1)),
        ([30, 10], (3, 1)),
        ([0.7, 0.3], (7, 3)),
        ([1 / 3, 2 / 3], (1, 2)),
        ([0.1, 0.25, 0.65], (2, 5, 13)),
        ([np.float64(0.5), np.float32(0.5)], (1, 1)),
        ([Fraction(1, 7), 1], (1, 7)),
        ([65_535, 1], (65_535, 1)),
    ],
)
def test_weights_that_whole_numbers_can_say_are_kept(weights: list[float], shares: tuple[int, ...]) -> None:
    assert whole_shares(weights) == shares


@pytest.mark.parametrize("weights", [[1_281_167, 50_000], [2**0.5, 1, 3**0.5], [10**30, 1], [1e-300, 1e300, 1.5]])
def test_other_weights_are_rounded_to_parts(weights: list[float]) -> None:
    shares, total = whole_shares(weights), sum(map(Fraction, weights))
    assert sum(shares) <= PARTS
    assert min(shares) >= 1
    for weight, share in zip(weights, shares, strict=True):
        assert abs(Fraction(share, sum(shares)) - Fraction(weight) / total) <= Fraction(len(weights), PARTS)


def test_many_uneven_weights_are_laid_out() -> None:
    shares = whole_shares([1 + 0.37 * number**0.5 for number in range(2000)])
    assert len(shares) == 2000
    assert Schedule(shares, 1).counts(sum(shares)).tolist() == list(shares)


@pytest.mark.parametrize("weight", [0, -1, nan, float("inf"), "x", None])
def test_weights_that_are_none_are_printed(weight: object) -> None:
    with pytest.raises(OptionError, match="above 0"):
        whole_shares([1, weight])


# ── permutations ──────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.one_of(st.integers(1, 40), st.integers(1, 5000)), min_size=1, max_size=5), seed=st.integers(0))
def test_numbers_of_several_sizes_and_keys_are_permuted_at_once(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 2**63, len(sizes)).astype(np.uint64)
    row, number = np.repeat(np.arange(len(sizes)), sizes), np.concatenate([np.arange(size) for size in sizes])
    mixed = rng.permutation(len(row))
    places = permuted(number[mixed], np.array(sizes)[row[mixed]], keys[row[mixed]])
    for each, size in enumerate(sizes):
        assert sorted(places[row[mixed] == each].tolist()) == list(range(size))


@pytest.mark.parametrize("size", [2, 3, 5, 16, 17, 31, 40])
def test_orders_come_up_as_chance_has_them(size: int) -> None:
    """Pairs of places against a uniform draw, by chi-square: within five standard deviations."""
    times = 20_000
    keys = np.random.default_rng(size).integers(0, 2**63, times).astype(np.uint64)
    numbers = np.tile(np.arange(size), times)
    rows = permuted(numbers, np.full(len(numbers), size), np.repeat(keys, size)).reshape(times, size)
    firsts = np.bincount(rows[:, 0] * size + rows[:, -1], minlength=size * size).reshape(size, size)
    assert not firsts.diagonal().any()
    _held(firsts[~np.eye(size, dtype=bool)])
    if size <= 5:
        orders = Counter(map(tuple, rows.tolist()))
        assert len(orders) == factorial(size)
        _held(np.array(list(orders.values())))


def _held(counts: np.ndarray) -> None:
    expected, free = counts.mean(), len(counts) - 1
    assert ((counts - expected) ** 2 / expected).sum() < free + 5 * (2 * free) ** 0.5
