"""The promises of mixed and of class-balanced orders, as properties: those of a plain order, and each source's own."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wds_tools.draws import Purpose, make_key
from wds_tools.errors import OptionError, WdsToolsError
from wds_tools.stream.balanced import BalancedOrder, balanced_order
from wds_tools.stream.mixed import MixedOrder, mixed_order
from wds_tools.stream.order import EpochOrder, Order, Phase, Topology
from wds_tools.stream.rounds import RoundsOrder

MANY = settings(max_examples=50, deadline=None)

TOPOLOGIES = st.builds(Topology, st.integers(1, 4), st.integers(0, 4), st.integers(1, 9))
RUNS = st.lists(st.tuples(TOPOLOGIES, st.floats(0, 1)), max_size=4)
SEEDS = st.integers(0, 2**64 - 1)
SOURCES = st.builds(
    Order,
    st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
    seed=SEEDS,
    shuffle=st.booleans(),
    window=st.integers(1, 12),  # smaller and larger than a source
    interleave=st.integers(1, 4),
)
EPOCH_SIZES = st.one_of(st.none(), st.integers(1, 90))


@st.composite
def mixtures(draw: st.DrawFn, sources: st.SearchStrategy[Order] = SOURCES) -> MixedOrder:
    found = draw(st.lists(sources, min_size=1, max_size=4))
    weights = draw(st.lists(st.integers(1, 7), min_size=len(found), max_size=len(found)))
    return mixed_order(found, weights, draw(SEEDS), draw(EPOCH_SIZES))


@st.composite
def balances(draw: st.DrawFn) -> BalancedOrder:
    order = draw(SOURCES)
    count = order.num_samples
    labels = draw(st.lists(st.integers(-1, 4), min_size=count, max_size=count))
    power = draw(st.sampled_from([0, 0.5, 1]))
    return balanced_order(order, labels, power=power, epoch_size=draw(EPOCH_SIZES))


@st.composite
def nested(draw: st.DrawFn) -> MixedOrder:
    return draw(mixtures(st.one_of(SOURCES, balances())))


ORDERS: st.SearchStrategy[RoundsOrder] = st.one_of(mixtures(), balances(), nested())
TAILS = st.sampled_from(["even", "drop", "pad"])


def delivered(epoch: EpochOrder, batches: int | None = None) -> list[list[list[int]]]:
    """By rank: its next batches."""
    stop = epoch.num_batches if batches is None else batches
    ranks = [epoch.batches(rank) for rank in range(epoch.partition.topology.world)]
    return [[next(batch).tolist() for _ in range(stop)] for batch in ranks]


def flat(ranks: list[list[list[int]]]) -> list[int]:
    return [sample for batches in ranks for batch in batches for sample in batch]


def groups(order: RoundsOrder) -> list[set[int]]:
    """The positions of each source, or of each class."""
    if isinstance(order, BalancedOrder):
        found = order.classes
        return [
            set(found.members[start : start + size].tolist())
            for start, size in zip(found.starts, found.sizes, strict=True)
        ]
    assert isinstance(order, MixedOrder)
    sizes = [source.num_samples for source in order.sources]
    return [set(range(first, first + size)) for first, size in zip(order.firsts.tolist(), sizes, strict=True)]


# ── each source exactly once in its own round, and by its weight ──────────────────────────────────────────────


@MANY
@given(order=st.one_of(mixtures(), balances()), topologies=st.lists(TOPOLOGIES, min_size=1, max_size=4))
def test_each_source_comes_exactly_once_in_each_of_its_rounds(order: RoundsOrder, topologies: list[Topology]) -> None:
    """Over several epochs, of which none need end where a round does, each dealt to another topology."""
    ids = [id for epoch, topology in enumerate(topologies) for id in flat(delivered(order.epoch(epoch, topology)))]
    assert len(ids) == order.epoch_size * len(topologies)
    positions, rounds = (part.tolist() for part in order.split(ids))
    for number, members in enumerate(groups(order)):
        own = [(round_, position) for position, round_ in zip(positions, rounds, strict=True) if position in members]
        assert len(own) == len(set(own))
        finished = Counter(round_ for round_, _ in own)
        whole, begun = divmod(len(own), len(members))
        assert finished == {**dict.fromkeys(range(whole), len(members)), **({whole: begun} if begun else {})}
        assert abs(len(own) - Fraction(len(ids) * order.shares[number], sum(order.shares))) < 1
    assert len(positions) == sum(position in members for members in groups(order) for position in positions)


@MANY
@given(order=mixtures(), topology=TOPOLOGIES, epoch=st.integers(0, 10**6))
def test_a_batch_has_each_sources_share_within_two(order: MixedOrder, topology: Topology, epoch: int) -> None:
    owner = np.repeat(np.arange(len(order.sources)), [source.num_samples for source in order.sources])
    for batch in (batch for batches in delivered(order.epoch(epoch, topology)) for batch in batches):
        counts = np.bincount(owner[order.split(batch)[0]], minlength=len(order.sources)) if batch else np.zeros(1)
        assert (np.abs(counts * sum(order.shares) - len(batch) * np.array(order.shares)) < 2 * sum(order.shares)).all()


@MANY
@given(source=SOURCES, topology=TOPOLOGIES, epoch=st.integers(0, 2**40), seed=SEEDS)
def test_a_source_alone_is_shuffled_as_it_would_be_without_a_mixture(
    source: Order, topology: Topology, epoch: int, seed: int
) -> None:
    order = mixed_order([source], None, seed)
    ids = delivered(order.epoch(epoch, topology))
    plain = replace(source, seed=make_key(seed, Purpose.ROUND, 0, source.seed))
    if source.num_samples > source.window or not source.shuffle:
        own = [[order.split(batch)[0].tolist() for batch in batches] for batches in ids]
        assert own == delivered(plain.epoch(epoch, topology))
    assert order.split(flat(ids))[1].tolist() == [epoch] * source.num_samples


@MANY
@given(order=ORDERS, epoch=st.integers(0, 10**9), cuts=st.lists(st.integers(0, 90), max_size=5))
def test_sources_keep_to_the_order_that_a_stream_of_them_alone_would_have(
    order: RoundsOrder, epoch: int, cuts: list[int]
) -> None:
    """A stream is the same in one piece and in any pieces, and no id of it is of another epoch."""
    line = order.line(epoch)
    borders = sorted({0, line.total, *(min(cut, line.total) for cut in cuts)})
    whole = line.delivered(0, line.total, 0, line.total).tolist()
    parts = [line.delivered(0, line.total, a, b).tolist() for a, b in pairwise(borders)]
    assert [id for part in parts for id in part] == whole
    in_line = line.ids(0, line.total).tolist()
    assert [id for a, b in pairwise(borders) for id in line.ids(a, b).tolist()] == in_line
    streams = [line.delivered(a, b, 0, b - a).tolist() for a, b in pairwise(borders)]
    assert sorted(id for part in streams for id in part) == sorted(whole) == sorted(in_line)


# ── what every order promises ─────────────────────────────────────────────────────────────────────────────────


@MANY
@given(order=ORDERS, tail=TAILS, topology=TOPOLOGIES, epoch=st.integers(0, 1000))
def test_ranks_are_even_and_any_batch_is_found_without_the_others(
    order: RoundsOrder, tail: str, topology: Topology, epoch: int
) -> None:
    order = replace(order, tail=tail)
    found = order.epoch(epoch, topology)
    ranks = delivered(found)
    assert {len(batches) for batches in ranks} == {found.num_batches}
    if tail == "even":
        assert max(len(flat([batches])) for batches in ranks) - min(len(flat([batches])) for batches in ranks) <= 1
        assert len(set(flat(ranks))) == len(flat(ranks)) == order.epoch_size
    for worker in range(topology.streams):
        stream = found.stream(topology.world - 1, worker)
        batches = [batch.tolist() for batch in stream]
        assert [stream.batch(number).tolist() for number in range(len(stream))] == batches
        assert batches == ranks[-1][worker :: topology.streams]


@MANY
@given(order=ORDERS, tail=TAILS, topology=TOPOLOGIES, epoch=st.integers(0, 5))
def test_resume_at_every_batch_is_the_tail_of_the_undisturbed_run(
    order: RoundsOrder, tail: str, topology: Topology, epoch: int
) -> None:
    found = replace(order, tail=tail).epoch(epoch, topology)
    whole = delivered(found)
    for done in range(found.num_batches + 1):
        rest = found.order.epoch(epoch, topology, found.history(done))
        assert delivered(rest) == [batches[done:] for batches in whole]


@MANY
@given(order=ORDERS, run=RUNS, topology=TOPOLOGIES, epoch=st.integers(0, 5))
def test_elastic_resume_delivers_exactly_the_rest(
    order: RoundsOrder, run: list[tuple[Topology, float]], topology: Topology, epoch: int
) -> None:
    history: tuple[Phase, ...] = ()
    seen: list[int] = []
    for phase, share in [*run, (topology, 1.0)]:
        rest = order.epoch(epoch, phase, history)
        batches = int(share * rest.num_batches)
        seen += flat(delivered(rest, batches))
        history = rest.history(batches)
    assert sorted(seen) == sorted(order.line(epoch).ids(0, order.epoch_size).tolist())


@MANY
@given(order=ORDERS, topology=TOPOLOGIES, epoch=st.integers(0, 1000))
def test_the_same_again(order: RoundsOrder, topology: Topology, epoch: int) -> None:
    again = pickle.loads(pickle.dumps(order))
    assert again == order
    assert again.settings == order.settings
    assert delivered(again.epoch(epoch, topology)) == delivered(order.epoch(epoch, topology))


def test_seeds_and_rounds_differ() -> None:
    one, two = Order([50] * 4), Order([7] * 2)
    labels = [0] * 180 + [1] * 20
    for make in (
        lambda seed: mixed_order([one, two], seed=seed),
        lambda seed: balanced_order(replace(one, seed=seed), labels),
    ):
        orders = [make(seed) for seed in range(3)]
        epochs = [order.split(flat(delivered(order.epoch(0, Topology()))))[0].tolist() for order in orders]
        assert len({tuple(each) for each in epochs}) == 3
        ids = np.array([id for epoch in range(4) for id in flat(delivered(orders[0].epoch(epoch, Topology())))])
        positions, rounds = orders[0].split(ids)
        few = positions >= (200 if make(0).num_samples > 200 else 180)
        own = [tuple(positions[few & (rounds == number)].tolist()) for number in range(int(rounds[few].max()))]
        assert len(own) == len(set(own)) > 10


def test_sources_of_one_size_and_seed_are_shuffled_apart() -> None:
    order = mixed_order([Order([50] * 40, window=64)] * 2, seed=3)
    positions = order.split(flat(delivered(order.epoch(0, Topology()))))[0]
    first, second = positions[positions < 2000], positions[positions >= 2000] - 2000
    assert sorted(first.tolist()) == sorted(second.tolist())
    assert np.mean(first == second) < 0.05


def test_a_sample_that_comes_again_has_another_seed_whichever_epoch_it_is_met_in() -> None:
    order = balanced_order(Order([10]), [0] * 9 + [1])
    ids = order.line(0).ids(0, 10)
    often = ids[order.split(ids)[0] == 9]
    assert len(often) == 5
    assert len(set(order.seeds(0, ids).tolist())) == 10
    assert order.seeds(0, ids).tolist() == order.seeds(7, ids).tolist()
    assert int(order.seeds(0, np.arange(10_000)).max()) < 2**63
    short = replace(order, epoch_size=2)
    parts = [short.line(epoch).ids(0, 2) for epoch in range(5)]
    assert np.concatenate(parts).tolist() == ids.tolist()


def test_fixed_values() -> None:
    """A state saved by one version is resumed by the next: if this must change, so must the order's version."""
    mixed = mixed_order([Order([5, 3, 0, 4], window=4, interleave=2), Order([2, 1])], [2, 1], seed=42, epoch_size=15)
    assert delivered(mixed.epoch(1, Topology(2, 2, 3))) == FIXED_MIXED
    balanced = balanced_order(Order([5, 3, 0, 20], seed=42), [0] * 20 + [1] * 3 + [4] * 5, epoch_size=12)
    assert delivered(balanced.epoch(2, Topology(2, 2, 3))) == FIXED_BALANCED


FIXED_MIXED = [[[6, 7, 27], [44, 26, 25], [23, 24]], [[43, 16, 15], [17, 18, 58], [42]]]
FIXED_BALANCED = [[[54, 6, 77], [105, 51, 5]], [[80, 13, 106], [104, 81, 4]]]


def test_memory_grows_with_the_streams_block_only() -> None:
    """Far into a training run, of sources too large for lists of their samples."""
    large = mixed_order([Order([1000] * 4000, window=256), Order([1000], window=256)], [3, 1])
    found = large.epoch(10**6, Topology(200, 4, 64))
    next(iter(found.stream(199, 0)))  # what is set up once
    tracemalloc.start()
    try:
        found = large.epoch(10**6 + 1, Topology(200, 4, 64))
        samples = sum(len(batch) for batch in found.stream(199, 0))
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert samples > 4000
    assert used < 1_500_000  # the samples would be 32 MB


# ── values that cannot be used, and states of others ──────────────────────────────────────────────────────────


def test_bad_options_are_printed() -> None:
    one = Order([4])
    for call, said in (
        (lambda: mixed_order([]), "nothing to mix"),
        (lambda: mixed_order([one, one], [1]), r"\[1\] for 2 datasets"),
        (lambda: mixed_order([one, one], [1, 0]), "0; each weight"),
        (lambda: mixed_order([one, Order([0])]), "dataset 1 .* no samples"),
        (lambda: mixed_order([one], epoch_size=0), "epoch_size=0"),
        (lambda: balanced_order(one, [1, 2]), "2 labels and 4 samples"),
        (lambda: balanced_order(one, [1.0, 2, 3, 4]), "float64"),
        (lambda: balanced_order(one, [0, 1, 0, 2], [1, 1]), "2 entries and labels go from 0 to 2"),
        (lambda: balanced_order(one, [0, 1, 0, 1], [0, 0]), "0 for every class"),
        (lambda: balanced_order(one, [0, 1, 0, 1], [1, -1]), "-1; each weight"),
        (lambda: balanced_order(one, [0, 1, 0, 1], power=2), "power is 2"),
        (lambda: balanced_order(one, [0, 1, 0, 1], [1, 1], power=0.5), "one of them"),
        (lambda: balanced_order(Order([]), np.zeros(0, int)), "no samples"),
        (lambda: mixed_order([one]).epoch(2**62, Topology()), "epoch="),
        (lambda: mixed_order([one]).locate(-1), "-1 does not exist"),
    ):
        with pytest.raises(OptionError, match=said):
            call()


def test_classes_without_weight_are_left_out_and_those_without_samples_do_not_matter() -> None:
    order = balanced_order(Order([8]), [0, 0, 1, 1, 1, 3, 3, 3], [2, 0, 5, 1], epoch_size=30)
    positions = order.split(order.line(0).ids(0, 30))[0].tolist()
    assert Counter(np.array([0, 0, 1, 1, 1, 3, 3, 3])[positions].tolist()) == {0: 20, 3: 10}


def test_labels_may_be_any_whole_numbers() -> None:
    labels = np.array([7, -1, 7, 3, -1, 7])
    orders = [balanced_order(Order([6]), labels * times) for times in (1, 10**12)]  # counted, and sorted
    assert [order.classes.labels.tolist() for order in orders] == [[-1, 3, 7], [-(10**12), 3 * 10**12, 7 * 10**12]]
    for order in orders:
        assert order.classes.members.tolist() == [1, 4, 3, 0, 2, 5]
        assert order.line(0).ids(0, 6).tolist() == orders[0].line(0).ids(0, 6).tolist()


def test_power_is_the_exponent_of_a_classs_size() -> None:
    labels = [0] * 16 + [1] * 4
    for power, shares in ((0, (1, 1)), (0.5, (2, 1)), (1, (4, 1))):
        assert balanced_order(Order([20]), labels, power=power).shares == shares


def test_fault_48_a_state_of_another_mixture_is_refused() -> None:
    one, two = Order([4, 4]), Order([6])
    order = mixed_order([one, two], [3, 1])
    stored = json.loads(json.dumps(order.settings))
    order.check(stored)
    many = mixed_order([one] * 40)
    assert len(json.dumps(many.settings)) < 400
    labels = [0] * 5 + [1] * 3
    balanced = balanced_order(one, labels)
    balanced.check(json.loads(json.dumps(balanced.settings)))
    for other, said in (
        (mixed_order([one, two], [1, 1]), "weights="),
        (mixed_order([one, two], [3, 1], seed=1), "seed=0, this dataset seed=1"),
        (mixed_order([one, two], [3, 1], epoch_size=9), "epoch_size="),
        (mixed_order([two, one], [3, 1]), "shards="),
        (mixed_order([replace(one, window=9), two], [3, 1]), "sources="),
        (mixed_order([balanced, two], [3, 1]), "sources="),
        (Order([4, 4, 6]), "window=None"),
        (balanced_order(Order([4, 4, 6]), [0] * 14), "classes=None"),
    ):
        with pytest.raises(WdsToolsError, match="saved state has .*" + said):
            other.check(stored)
    for state in (balanced_order(one, [0] * 4 + [1] * 4), balanced_order(one, labels, power=1), one):
        with pytest.raises(WdsToolsError, match="saved state has"):
            balanced.check(state.settings)
    with pytest.raises(WdsToolsError, match="saved state has"):
        one.check(balanced.settings)
    with pytest.raises(WdsToolsError, match="saved state has"):
        Order([4]).check(mixed_order([Order([4])]).settings)
