"""The promises of the order, as properties.

`expected` is the specification written down naively, with lists: the whole epoch laid out, cut, and handed round.
The order must agree with it in every batch; the promises themselves are then tested without it.
"""

from __future__ import annotations

import json
import pickle
import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wds_tools.draws import Purpose, draws, make_key, uniform
from wds_tools.errors import OptionError, WdsToolsError
from wds_tools.stream.order import EpochOrder, Order, Phase, Topology

MANY = settings(max_examples=500, deadline=None)

SIZES = st.lists(st.one_of(st.sampled_from([0, 1]), st.integers(0, 12)), max_size=10)
WORLDS = st.one_of(st.integers(1, 4), st.integers(1, 64))
WORKERS = st.one_of(st.integers(0, 3), st.integers(0, 16))
BATCH_SIZES = st.one_of(st.integers(1, 8), st.integers(1, 1000))
TOPOLOGIES = st.builds(Topology, WORLDS, WORKERS, BATCH_SIZES)
SMALL_TOPOLOGIES = st.builds(Topology, st.integers(1, 4), st.integers(0, 4), st.integers(1, 6))
TAILS = st.sampled_from(["even", "drop", "pad"])


def orders(
    sizes: st.SearchStrategy[list[int]] = SIZES, tails: st.SearchStrategy[str] = TAILS
) -> st.SearchStrategy[Order]:
    return st.builds(
        Order,
        sizes,
        seed=st.integers(0, 2**64 - 1),
        shuffle=st.booleans(),
        window=st.integers(1, 60),
        interleave=st.integers(1, 5),
        tail=tails,
    )


# What a run does: topologies one after the other, each stopped after a share of the batches left.
RUNS = st.lists(st.tuples(SMALL_TOPOLOGIES, st.floats(0, 1)), max_size=4)


def delivered(epoch: EpochOrder, batches: int | None = None) -> list[list[list[int]]]:
    """By rank: its next batches."""
    stop = epoch.num_batches if batches is None else batches
    ranks = [epoch.batches(rank) for rank in range(epoch.partition.topology.world)]
    return [[next(batch).tolist() for _ in range(stop)] for batch in ranks]


def flat(ranks: list[list[list[int]]]) -> list[int]:
    return [sample for batches in ranks for batch in batches for sample in batch]


# ── the specification, naively ────────────────────────────────────────────────────────────────────────────────


def expected_line(order: Order, epoch: int) -> tuple[list[int], list[int]]:
    """The ids of an epoch's samples end to end, and the shard of each."""
    shards = [shard for shard, size in enumerate(order.shard_sizes) if size]
    if order.shuffle:
        shards.sort(key=lambda shard: int(draws(make_key(order.seed, epoch, Purpose.SHARDS), shard)))
    first = np.concatenate([[0], np.cumsum(order.shard_sizes)]).tolist()
    samples = [(first[shard] + i, shard) for shard in shards for i in range(order.shard_sizes[shard])]
    return [sample for sample, _ in samples], [shard for _, shard in samples]


def expected_stream(order: Order, epoch: int, shards: list[int], lo: int, hi: int) -> list[int]:
    """The positions lo to hi as a stream delivers them."""
    if not order.shuffle or lo >= hi:
        return list(range(lo, hi))
    cuts = [lo, *(p for p in range(lo + 1, hi) if shards[p] != shards[p - 1]), hi]
    pieces = list(pairwise(cuts))
    key = make_key(order.seed, epoch, Purpose.WINDOW)
    numbered = []
    for first in range(0, len(pieces), order.interleave):
        group = pieces[first : first + order.interleave]
        begin, length = group[0][0], group[-1][1] - group[0][0]
        for a, b in group:
            for p in range(a, b):
                place = begin + (p - a + 0.5) * (length / (b - a))
                numbered.append((place + order.window * float(uniform(key, p)), p))
    return [p for _, p in sorted(numbered)]


def deal(
    line: list[int], topology: Topology, tail: str, stream: Callable[[int, int], list[int]]
) -> tuple[list[list[list[int]]], Callable[[int], list[int]]]:
    """All batches by rank, and what is left of the line after some of them."""
    world, workers, full = topology.world, max(topology.workers, 1), topology.batch_size
    steps = len(line) // (world * full) if tail == "drop" else -(-len(line) // (world * full))
    ranks: list[list[list[int]]] = []
    kept: list[tuple[list[list[int]], list[int], list[int]]] = []
    lo = 0
    for rank in range(world):
        size = len(line) // world + (rank < len(line) % world)
        lengths = [full] * steps
        if tail == "even" and steps:
            lengths[-1] = size - (steps - 1) * full
            if lengths[-1] == 0 and steps > 1 and full > 1:
                lengths[-2:] = [full - 1, 1]
        streams, at = [], 0
        for worker in range(workers):
            need = sum(lengths[worker::workers])
            streams.append([line[p] for p in stream(lo + min(at, size), lo + min(at + need, size))])
            at += need
        unread = [line[p] for p in stream(lo + min(steps * full, size), lo + size)]
        kept.append(([list(samples) for samples in streams], unread, lengths))
        at = 0
        for worker in range(workers):
            need = sum(lengths[worker::workers])
            start = at + len(streams[worker])
            streams[worker] += [
                line[lo + p % size] if size else line[min(lo, len(line) - 1)] for p in range(start, at + need)
            ]
            at += need
        batches = []
        for batch, length in enumerate(lengths):
            mine = streams[batch % workers]
            batches.append(mine[:length])
            del mine[:length]
        ranks.append(batches)
        lo += size

    def left(done: int) -> list[int]:
        rest = []
        for streams, unread, lengths in kept:
            for worker, samples in enumerate(streams):
                rest += samples[sum(lengths[worker:done:workers]) :]
            rest += unread
        return rest

    return ranks, left


def expected(order: Order, epoch: int, phases: list[Phase], topology: Topology) -> list[list[list[int]]]:
    """All batches by rank after ``phases``, each under another topology than the one before."""
    line, shards = expected_line(order, epoch)

    def shuffled(lo: int, hi: int) -> list[int]:
        return expected_stream(order, epoch, shards, lo, hi)

    def as_it_is(lo: int, hi: int) -> list[int]:
        return list(range(lo, hi))

    stream = shuffled
    for phase in phases:
        _, left = deal(line, phase.topology, order.tail, stream)
        line, stream = left(phase.batches), as_it_is
    return deal(line, topology, order.tail, stream)[0]


def play(order: Order, epoch: int, run: list[tuple[Topology, float]]) -> tuple[tuple[Phase, ...], list[int]]:
    """Deliver a run: its history, and all samples in it."""
    history: tuple[Phase, ...] = ()
    seen: list[int] = []
    for topology, share in run:
        rest = order.epoch(epoch, topology, history)
        batches = int(share * rest.num_batches)
        seen += flat(delivered(rest, batches))
        history = rest.history(batches)
    return history, seen


@MANY
@given(order=orders(), epoch=st.integers(0, 99), topology=TOPOLOGIES)
def test_every_batch_is_the_specified_one(order: Order, epoch: int, topology: Topology) -> None:
    assert delivered(order.epoch(epoch, topology)) == expected(order, epoch, [], topology)


@MANY
@given(order=orders(), epoch=st.integers(0, 99), run=RUNS, topology=TOPOLOGIES, stay=st.booleans())
def test_every_batch_after_a_history_is_the_specified_one(
    order: Order, epoch: int, run: list[tuple[Topology, float]], topology: Topology, stay: bool
) -> None:
    history, _ = play(order, epoch, run)
    if history and stay:
        topology = history[-1].topology
    if history and history[-1].topology.deals_like(topology):
        done = history[-1].batches
        whole = expected(order, epoch, list(history[:-1]), topology)
        assert delivered(order.epoch(epoch, topology, history)) == [batches[done:] for batches in whole]
    else:
        assert delivered(order.epoch(epoch, topology, history)) == expected(order, epoch, list(history), topology)


# ── an undisturbed epoch ──────────────────────────────────────────────────────────────────────────────────────


@MANY
@given(order=orders(tails=st.just("even")), topology=TOPOLOGIES)
def test_even_delivers_every_sample_once(order: Order, topology: Topology) -> None:
    assert sorted(flat(delivered(order.epoch(0, topology)))) == list(range(order.num_samples))


@MANY
@given(order=orders(tails=st.just("even")), topology=TOPOLOGIES)
def test_even_has_short_batches_only_at_the_end(order: Order, topology: Topology) -> None:
    epoch = order.epoch(0, topology)
    full = topology.batch_size
    for rank, batches in enumerate(delivered(epoch)):
        lengths = [len(batch) for batch in batches]
        assert all(length == full for length in lengths[:-2])
        if lengths[-2:-1] == [full - 1]:
            assert lengths[-1] == 1 or full == 1
        else:
            assert lengths[-2:-1] in ([], [full])
        if lengths and lengths[-1] == 0:  # only where there is nothing to borrow
            start, stop = epoch.partition.rank_range(rank)
            assert full == 1 or stop == start


@MANY
@given(order=orders(), topology=TOPOLOGIES)
def test_every_rank_and_worker_has_its_turns(order: Order, topology: Topology) -> None:
    """As DataLoader asks: worker b % W for batch b, to the last one, and not one more."""
    epoch = order.epoch(3, topology)
    workers = max(topology.workers, 1)
    for rank in {0, topology.world // 2, topology.world - 1}:
        made = [[batch.tolist() for batch in epoch.stream(rank, worker)] for worker in range(workers)]
        assert [len(batches) for batches in made] == [len(epoch.stream(rank, worker)) for worker in range(workers)]
        turns = [made[turn % workers].pop(0) for turn in range(epoch.num_batches)]
        assert not any(made)
        assert turns == [batch.tolist() for batch in epoch.batches(rank)]


@MANY
@given(order=orders(), topology=TOPOLOGIES, workers=WORKERS)
def test_the_number_of_batches_does_not_depend_on_workers(order: Order, topology: Topology, workers: int) -> None:
    other = Topology(topology.world, workers, topology.batch_size)
    assert order.epoch(0, topology).num_batches == order.epoch(0, other).num_batches


@MANY
@given(order=orders(), topology=SMALL_TOPOLOGIES)
def test_any_batch_is_found_without_the_others(order: Order, topology: Topology) -> None:
    epoch = order.epoch(1, topology)
    for worker in range(max(topology.workers, 1)):
        stream = epoch.stream(topology.world - 1, worker)
        batches = [batch.tolist() for batch in stream]
        assert [stream.batch(number).tolist() for number in range(len(stream))] == batches
        assert stream.batch_sizes() == [len(batch) for batch in batches]
        assert stream.num_samples == sum(stream.batch_sizes())
        shards = {int(shard) for batch in batches for shard in order.locate(batch)[0]}
        assert stream.shards().tolist() == sorted(shards)


@pytest.mark.parametrize("after", [Topology(2, 2, 4), Topology(3, 1, 5)])
def test_shards_of_a_stream_that_was_begun_are_those_that_are_left(after: Topology) -> None:
    order, topology = Order([5] * 30, window=3, interleave=2), Topology(2, 2, 4)
    epoch = order.epoch(0, after, order.epoch(0, topology).history(15))
    stream = epoch.stream()
    left = {int(shard) for batch in stream for shard in order.locate(batch)[0]}
    assert stream.shards().tolist() == sorted(left)
    assert len(left) < len(order.epoch(0, topology).stream().shards())


@MANY
@given(order=orders(tails=st.just("drop")), topology=TOPOLOGIES)
def test_drop_has_full_batches_and_leaves_less_than_a_step(order: Order, topology: Topology) -> None:
    ranks = delivered(order.epoch(0, topology))
    step = topology.world * topology.batch_size
    assert {len(batch) for batches in ranks for batch in batches} <= {topology.batch_size}
    assert len(set(flat(ranks))) == len(flat(ranks)) == order.num_samples // step * step


@MANY
@given(order=orders(tails=st.just("pad")), topology=TOPOLOGIES)
def test_pad_has_full_batches_and_every_sample(order: Order, topology: Topology) -> None:
    ranks = delivered(order.epoch(0, topology))
    step = topology.world * topology.batch_size
    assert {len(batch) for batches in ranks for batch in batches} <= {topology.batch_size}
    assert len(flat(ranks)) == -(-order.num_samples // step) * step
    assert set(flat(ranks)) == set(range(order.num_samples))
    for batches in ranks:  # repeats are spread: no sample of a rank comes twice more than another
        counts = Counter(sample for batch in batches for sample in batch).values()
        assert not counts or max(counts) - min(counts) <= 1


# ── seeds and epochs ──────────────────────────────────────────────────────────────────────────────────────────


@MANY
@given(order=orders(), epoch=st.integers(0, 2**64 - 1), topology=SMALL_TOPOLOGIES)
def test_the_same_again(order: Order, epoch: int, topology: Topology) -> None:
    again = pickle.loads(pickle.dumps(order))
    assert again == order
    assert delivered(again.epoch(epoch, topology)) == delivered(order.epoch(epoch, topology))


@MANY
@given(
    sizes=st.lists(st.integers(1, 5), min_size=30, max_size=40),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 2**63),
    by=st.integers(1, 1000),
    topology=SMALL_TOPOLOGIES,
)
def test_epochs_and_seeds_differ(sizes: list[int], seed: int, epoch: int, by: int, topology: Topology) -> None:
    one = delivered(Order(sizes, seed=seed).epoch(epoch, topology))
    assert delivered(Order(sizes, seed=seed).epoch(epoch + by, topology)) != one
    assert delivered(Order(sizes, seed=seed + by).epoch(epoch, topology)) != one


@MANY
@given(order=orders())
def test_without_shuffle_the_order_is_the_manifests(order: Order) -> None:
    plain = Order(order.shard_sizes, shuffle=False, window=order.window, interleave=order.interleave)
    assert flat(delivered(plain.epoch(5, Topology(1, 1, 3)))) == list(range(order.num_samples))


def test_every_permutation_of_shards_comes_up() -> None:
    order = Order([1, 1, 1, 1], window=1, interleave=1)
    seen = Counter(tuple(flat(delivered(order.epoch(epoch, Topology(1, 0, 4))))) for epoch in range(2400))
    assert len(seen) == 24
    assert min(seen.values()) > 65  # 100 expected, standard deviation 10
    assert max(seen.values()) < 140


def test_what_is_dropped_differs_by_epoch() -> None:
    order = Order([10] * 10, tail="drop")
    dropped = [set(range(100)) - set(flat(delivered(order.epoch(epoch, Topology(1, 2, 30))))) for epoch in range(20)]
    assert len(set.union(*dropped)) > 70


def test_fixed_values() -> None:
    """A state saved by one version is resumed by the next: if this must change, so must the order's version."""
    order = Order([5, 3, 0, 1, 7], seed=42, window=6, interleave=2)
    assert delivered(order.epoch(1, Topology(2, 2, 3))) == [
        [[5, 8, 6], [2, 3, 1], [0, 7]],
        [[10, 9, 11], [13, 14, 15], [12, 4]],
    ]
    large = Order([997, 1, 0, 1003] * 25, seed=7, window=500, interleave=4)
    ids = np.concatenate([batch for rank in range(3) for batch in large.epoch(9, Topology(3, 2, 64)).batches(rank)])
    assert int((ids * np.arange(1, len(ids) + 1)).sum()) == 29077952624392


# ── resuming ──────────────────────────────────────────────────────────────────────────────────────────────────


@MANY
@given(order=orders(st.lists(st.integers(0, 9), max_size=6)), topology=st.one_of(SMALL_TOPOLOGIES, TOPOLOGIES))
def test_resume_at_every_batch_is_the_tail_of_the_undisturbed_run(order: Order, topology: Topology) -> None:
    epoch = order.epoch(2, topology)
    whole = delivered(epoch)
    for done in range(epoch.num_batches + 1):
        rest = order.epoch(2, topology, epoch.history(done))
        assert rest.num_batches == epoch.num_batches - done
        assert delivered(rest) == [batches[done:] for batches in whole]


@MANY
@given(order=orders(tails=st.just("even")), run=RUNS, topology=TOPOLOGIES)
def test_elastic_resume_delivers_exactly_the_rest(
    order: Order, run: list[tuple[Topology, float]], topology: Topology
) -> None:
    history, seen = play(order, 4, run)
    rest = delivered(order.epoch(4, topology, history))
    assert sorted(seen + flat(rest)) == list(range(order.num_samples))
    lengths = [sum(len(batch) for batch in batches) for batches in rest]
    assert max(lengths) - min(lengths) <= 1


@MANY
@given(order=orders(tails=st.just("drop")), run=RUNS, topology=TOPOLOGIES)
def test_elastic_resume_with_drop_deals_again_what_was_going_to_be_dropped(
    order: Order, run: list[tuple[Topology, float]], topology: Topology
) -> None:
    history, seen = play(order, 4, run)
    rest = flat(delivered(order.epoch(4, topology, history)))
    assert len(set(seen + rest)) == len(seen + rest)
    if not (history and history[-1].topology.deals_like(topology)):
        assert order.num_samples - len(seen + rest) < topology.world * topology.batch_size


@MANY
@given(order=orders(tails=st.just("pad")), run=RUNS, topology=TOPOLOGIES)
def test_elastic_resume_with_pad_delivers_every_sample(
    order: Order, run: list[tuple[Topology, float]], topology: Topology
) -> None:
    history, seen = play(order, 4, run)
    rest = order.epoch(4, topology, history)
    everything = seen + flat(delivered(rest))
    assert set(everything) == set(range(order.num_samples))
    steps = [phase.world * phase.batch_size for phase in rest.history(rest.num_batches)]
    assert len(everything) - order.num_samples <= sum(step - 1 for step in steps)  # repeats: less than a step a phase


@MANY
@given(order=orders(), run=RUNS, topology=SMALL_TOPOLOGIES)
def test_a_history_is_canonical_and_survives_json(
    order: Order, run: list[tuple[Topology, float]], topology: Topology
) -> None:
    history, _ = play(order, 1, run)
    assert all(phase.batches > 0 for phase in history)
    assert not any(a.topology.deals_like(b.topology) for a, b in pairwise(history))
    back = tuple(Phase.from_dict(values) for values in json.loads(json.dumps([phase.to_dict() for phase in history])))
    assert back == history
    halves = [
        Phase(phase.world, phase.workers, phase.batch_size, batches)
        for phase in back
        for batches in (phase.batches // 2, 0, phase.batches - phase.batches // 2)
    ]
    in_parts = order.epoch(1, topology, [Phase(9, 9, 9, 0), *halves])
    at_once = order.epoch(1, topology, history)
    assert in_parts.history(0) == at_once.history(0)
    assert delivered(in_parts) == delivered(at_once)


def test_no_workers_and_one_worker_deal_alike() -> None:
    order = Order([10, 20])
    history = order.epoch(0, Topology(2, 0, 4)).history(2)
    resumed = order.epoch(0, Topology(2, 1, 4), history)
    assert delivered(resumed) == delivered(order.epoch(0, Topology(2, 0, 4), history))
    assert resumed.history(1) == (Phase(2, 1, 4, 3),)


def test_no_samples_make_no_batches() -> None:
    for sizes in ([], [0, 0]):
        epoch = Order(sizes).epoch(0, Topology(3, 2, 4))
        assert epoch.num_batches == 0
        assert delivered(epoch) == [[], [], []]


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────


def peak(shards: int, topology: Topology, history: tuple[Phase, ...] = ()) -> int:
    """Bytes that one worker needs at most to plan its stream and to go through it."""
    order = Order([1000] * shards, window=256)
    order.epoch(0, topology)  # what numpy sets up once
    tracemalloc.start()
    try:
        samples = sum(len(batch) for batch in order.epoch(0, topology, history).stream(topology.world - 1, 0))
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert samples > 0
    return used


@pytest.mark.parametrize("changed", [False, True])
def test_memory_grows_with_the_workers_own_stream_only(changed: bool) -> None:
    def history(world: int) -> tuple[Phase, ...]:
        return (Phase(world, 3, 50, 60),) if changed else ()

    small = peak(40, Topology(2, 4, 64), history(2))
    large = peak(4000, Topology(200, 4, 64), history(200))
    assert large - small < 4000 * 8 * 12  # a few numbers a shard or stream; the samples would be 32 MB
    assert large < 1_500_000


# ── values that cannot be used ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"shard_sizes": [3, -1]}, "-1"),
        ({"shard_sizes": [2.5]}, "2.5"),
        ({"seed": -1}, "-1"),
        ({"seed": 2**64}, str(2**64)),
        ({"window": 0}, "0"),
        ({"interleave": "8"}, "'8'"),
        ({"tail": "short"}, "'short'"),
    ],
)
def test_bad_options_are_printed(options: dict[str, object], value: str) -> None:
    with pytest.raises(OptionError, match="must be") as error:
        Order(**{"shard_sizes": [1], **options})  # type: ignore[arg-type]
    assert f"={value} cannot be used" in str(error.value)


@pytest.mark.parametrize("values", [(0, 0, 1), (1, -1, 1), (1, 0, 0), (1, 0, None)])
def test_bad_topologies_are_refused(values: tuple[int, int, int]) -> None:
    with pytest.raises(OptionError, match="must be a whole number of at least"):
        Topology(*values)


def test_what_is_outside_is_refused() -> None:
    order = Order([4, 4])
    epoch = order.epoch(0, Topology(2, 2, 2))
    for call in (
        lambda: epoch.stream(2, 0),
        lambda: epoch.stream(0, 2),
        lambda: epoch.stream(0, 0).batch(1),
        lambda: epoch.history(3),
        lambda: order.epoch(-1, Topology()),
        lambda: order.locate([0, 8]),
        lambda: order.locate(-1),
    ):
        with pytest.raises(OptionError):
            call()


def test_a_state_of_another_dataset_is_refused() -> None:
    order = Order([4, 4])
    with pytest.raises(WdsToolsError, match="3 batches"):
        order.epoch(0, Topology(2, 2, 2), [Phase(2, 2, 2, 3)])
    with pytest.raises(WdsToolsError, match="3 batches"):
        order.epoch(0, Topology(1, 0, 1), [Phase(2, 2, 2, 3)])
    order.check(json.loads(json.dumps(order.settings)))
    with pytest.raises(WdsToolsError, match="seed=1, this dataset seed=0"):
        order.check(Order([4, 4], seed=1).settings)
    with pytest.raises(WdsToolsError, match="shards="):
        order.check(Order([5, 3]).settings)
    with pytest.raises(WdsToolsError, match="damaged"):
        Phase.from_dict({"world": 1, "batches": 3})


def test_locate_passes_over_empty_shards() -> None:
    shards, index = Order([0, 2, 0, 0, 1, 3, 0]).locate(np.arange(6))
    assert shards.tolist() == [1, 1, 4, 5, 5, 5]
    assert index.tolist() == [0, 1, 0, 0, 1, 2]
