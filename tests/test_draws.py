from __future__ import annotations

import numpy as np

from wds_tools.draws import draws, make_key, sample_rng_seed, uniform


def test_draws_are_splitmix64() -> None:
    # The published test vector of the generator, seed 1234567.
    assert draws(1234567, np.arange(5)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_a_draw_depends_on_its_index_alone() -> None:
    whole = draws(99, np.arange(1000))
    assert np.array_equal(draws(99, np.arange(400, 500)), whole[400:500])
    assert draws(99, 7) == whole[7]


def test_keys_differ_by_every_word_and_their_sequence() -> None:
    words = [(0,), (0, 0), (0, 1), (1, 0), (1, 1), (2**64 - 1, 0), (0, 2**64 - 1), (0, 0, 0)]
    assert len({make_key(*word) for word in words}) == len(words)


def test_uniform_is_in_range_and_level() -> None:
    numbers = uniform(make_key(0, 0, 0), np.arange(100_000))
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 160  # chi-square with 99 degrees of freedom, p about 1e-4


def test_sample_seeds_are_fixed() -> None:
    assert sample_rng_seed(0, 0, [0, 1, 2**40]).tolist() == [
        3642692381809929460,
        2623767839764568181,
        4137401467232900365,
    ]
    assert sample_rng_seed(0, 0, 1) == 2623767839764568181


def test_sample_seeds_differ_by_seed_epoch_and_sample() -> None:
    seeds = [sample_rng_seed(seed, epoch, np.arange(1000)) for seed in range(4) for epoch in range(4)]
    assert len(np.unique(np.concatenate(seeds))) == 16_000
