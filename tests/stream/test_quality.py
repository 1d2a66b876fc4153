from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from wds_tools.errors import OptionError
from wds_tools.stream.order import Order, Topology
from wds_tools.stream.quality import mean_displacement, neighbour_excess, shuffle_quality


def test_the_manifests_order_has_the_worst_values() -> None:
    quality = shuffle_quality(np.arange(10_000), np.arange(10_000) // 1000, reach=1)
    assert quality.displacement == 0.0
    assert quality.neighbours == pytest.approx(1.0, abs=0.01)


def test_a_true_permutation_has_the_best_values() -> None:
    ids = np.random.Generator(np.random.PCG64(0)).permutation(10_000)
    quality = shuffle_quality(ids, np.arange(10_000) // 100)
    assert quality.displacement == pytest.approx(1.0, abs=0.03)
    assert quality.neighbours == pytest.approx(0.0, abs=0.002)


def test_displacement_is_exact() -> None:
    assert mean_displacement([2, 1, 0]) == pytest.approx((2 + 0 + 2) / 3 / (8 / 9))
    assert mean_displacement([20, 10, 0]) == mean_displacement([2, 1, 0])
    assert mean_displacement([5]) == 0.0


def test_displacement_of_all_permutations_is_one_on_average() -> None:
    assert np.mean([mean_displacement(ids) for ids in permutations(range(5))]) == pytest.approx(1.0)


def test_neighbours_look_further_than_one() -> None:
    in_turn = np.tile(np.arange(4), 1000)
    assert neighbour_excess(in_turn, reach=1) < -0.3
    assert neighbour_excess(in_turn, reach=4) == pytest.approx(0.0, abs=0.001)
    assert neighbour_excess(np.repeat(np.arange(4), 1000), reach=4) > 0.99


def test_neighbours_of_all_orders_are_at_chance_on_average() -> None:
    orders = [neighbour_excess(labels, reach=2) for labels in permutations("aabcc")]
    assert np.mean(orders) == pytest.approx(0.0)


def test_few_samples_and_one_label_say_nothing() -> None:
    assert neighbour_excess([]) == neighbour_excess(["a"]) == neighbour_excess(["a", "a", "a"]) == 0.0
    assert shuffle_quality([], []).displacement == 0.0


def test_bad_reach_is_refused() -> None:
    with pytest.raises(OptionError, match="reach=0"):
        neighbour_excess([1, 2], reach=0)


def test_a_larger_window_mixes_better() -> None:
    sizes, labels = [100] * 100, np.arange(10_000) // 100
    excess = []
    for window in (1, 100, 1000, 10_000):
        epoch = Order(sizes, window=window, interleave=1).epoch(0, Topology(1, 2, 50))
        excess.append(shuffle_quality(np.concatenate(list(epoch.batches())), labels).neighbours)
    assert excess == sorted(excess, reverse=True)
    assert excess[0] > 0.3
    assert excess[-1] < 0.02
