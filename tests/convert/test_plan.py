import zlib
from collections import Counter
from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wds_tools.convert.entries import Entry, Sibling, dump_line
from wds_tools.convert.options import ConvertOptions
from wds_tools.convert.plan import cut, draws, make_plan, permutation, pool, running_totals, tar_bytes
from wds_tools.convert.spool import Spool

END = 1024  # the two blocks that end an archive

# ---------------------------------------------------------------- the order


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(0, 2**80))
def test_a_permutation_holds_every_number_once(count, seed):
    assert sorted(permutation(count, draws(seed))) == list(range(count))


def test_the_permutation_of_a_seed_is_fixed_for_ever():
    assert permutation(12, draws(0)) == [3, 7, 5, 2, 8, 11, 4, 9, 1, 6, 0, 10]
    assert permutation(12, draws(1)) == [9, 8, 0, 3, 11, 5, 4, 6, 2, 7, 10, 1]
    assert permutation(5, draws(2**70)) == [2, 0, 1, 4, 3]
    assert zlib.crc32(repr(permutation(100_000, draws(7))).encode()) == 3_723_932_090


def test_every_order_is_as_likely_as_any_other():
    counts = Counter(tuple(permutation(4, draws(seed))) for seed in range(24 * 200))
    assert len(counts) == 24
    expected = 200
    chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_squared < 49.7  # 23 degrees of freedom: exceeded by chance once in a thousand, and the seeds are fixed


def test_large_plans_are_computed_as_small_ones_are():
    count = 100_000
    draw = Random(3).random
    drawn = [draw() for _ in range(count)]
    order = permutation(count, draws(3))
    assert list(order) == sorted(range(count), key=drawn.__getitem__)
    sizes = [number * number % 100_003 for number in range(count)]
    for scale in (1.0, 2.7):
        weights = list(tar_bytes(sizes, scale, 1024))
        assert weights == [tar_bytes([size], scale, 1024)[0] for size in sizes]
    assert list(running_totals(weights)) == list(accumulate(weights))


# ---------------------------------------------------------------- the cut

weights = st.lists(st.integers(0, 3000), max_size=60)
limits = st.integers(1024, 12_000)
counts = st.none() | st.integers(1, 9)


@st.composite
def blocks_of(draw, weights=weights):
    """Numbered items with their weights, in blocks with borders anywhere."""
    chosen = draw(weights)
    borders = sorted(draw(st.lists(st.integers(0, len(chosen)), max_size=4)))
    pairs = pairwise([0, *borders, len(chosen)])
    return chosen, [(list(range(start, stop)), chosen[start:stop]) for start, stop in pairs]


@settings(deadline=None)
@given(blocks_of(), limits, counts)
@example(([5000], [([0], [5000])]), 1024, None)
@example(([], []), 10_240, 1)
def test_a_cut_keeps_order_and_samples_and_both_limits(items, max_size, max_count):
    weights, blocks = items
    runs = list(cut(blocks, max_size, max_count))
    assert [number for run in runs for number in run] == list(range(len(weights)))
    for run in runs:
        assert len(run) >= 1
        assert len(run) <= (max_count or len(run))
        assert len(run) == 1 or END + sum(weights[number] for number in run) <= max_size


@settings(deadline=None)
@given(blocks_of(), limits, counts)
def test_a_shard_is_closed_only_when_the_next_sample_does_not_fit(items, max_size, max_count):
    weights, blocks = items
    runs = list(cut(blocks, max_size, max_count))
    for run, after in pairwise(runs):
        assert len(run) == max_count or END + sum(weights[n] for n in run) + weights[after[0]] > max_size


def test_a_shard_may_be_exactly_as_large_as_allowed():
    assert [list(run) for run in cut([(range(3), [500, 524, 1])], 1024 + END, None)] == [[0, 1], [2]]


# ---------------------------------------------------------------- blocks and pools


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 120), st.integers(0, 9))
def test_pools_are_filled_with_whole_blocks_and_no_further_than_told(blocks, most, seed):
    pools = pool(blocks, most, seed)
    assert [length for length, _ in pools] == blocks
    filled = Counter()
    for length, number in pools:
        filled[number] += length
    assert set(filled) == set(range(len(filled)))
    assert all(count <= most or sum(n == number for _, n in pools) == 1 for number, count in filled.items())
    borders = sorted(filled)
    for number, after in pairwise(borders):  # no pool is closed before it is full
        smallest = min(length for length, n in pools if n == after)
        assert filled[number] + max(length for length, n in pools if n == after) > most or smallest <= most


def test_entries_are_shuffled_within_their_pool_only():
    order = permutation(60, draws(5, [(20, 1), (20, 0), (20, 1)]))
    assert sorted(order[:20]) == list(range(20, 40)) != list(order[:20])
    assert sorted(order[20:]) == [*range(20), *range(40, 60)]
    assert any(number >= 40 for number in order[20:40])  # the two blocks of a pool are mixed


def test_each_shard_of_blocks_needs_few_of_them():
    entries = [Entry(f"{number}.jpg", 5000, 0) for number in range(400)]
    made = plan(entries, ConvertOptions(max_size=60_000), blocks=[4] * 100)
    together = [{int(line.split("\t")[3][:-4]) // 4 for line in blob.decode().split("\n")} for _, blob in made]
    assert sum(map(len, together)) <= 2.5 * 100
    assert together != sorted(together, key=min)


# ---------------------------------------------------------------- the plan

ENTRIES = [Entry(f"cat/{number}.jpg", 700 + 97 * number, 10**18 + number, number % 2) for number in range(20)]
OPTIONS = ConvertOptions(max_size=10_240)


def plan(entries=ENTRIES, options=OPTIONS, **more):
    lines = Spool()
    for entry in entries:
        lines.append(dump_line(entry), entry.size)
    return list(make_plan(lines, options, **more))


def test_shards_are_numbered_and_hold_every_line_once():
    made = plan()
    assert [shard.name for shard, _ in made] == [f"train-{number:06d}.tar" for number in range(len(made))]
    lines = [blob.decode().split("\n") for _, blob in made]
    assert [shard.samples for shard, _ in made] == [len(part) for part in lines]
    assert sorted(line for part in lines for line in part) == sorted(map(dump_line, ENTRIES))
    assert len(made) > 3


def test_without_shuffling_the_order_is_the_source_s():
    made = plan(options=replace(OPTIONS, shuffle=False))
    assert b"\n".join(blob for _, blob in made).decode().split("\n") == [dump_line(entry) for entry in ENTRIES]


def test_the_same_entries_and_options_give_the_same_plan():
    assert plan() == plan(entries=list(ENTRIES), options=replace(OPTIONS))


def test_names_that_are_not_utf_8_pass_through_the_plan():
    made = plan(entries=[Entry("caf\udce9.jpg", 1, 2, 0)])
    assert made[0][1] == b"0\t1\t2\tcaf\xe9.jpg"


def test_shards_are_counted_in_output_bytes_where_images_are_encoded_anew():
    sizes = [shard.samples for shard, _ in plan()]
    assert max(shard.samples for shard, _ in plan(scale=2.0)) < max(sizes)
    assert max(shard.samples for shard, _ in plan(scale=0.1)) > max(sizes)


@pytest.mark.parametrize("metadata", [False, True])
@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 6000), min_size=1, max_size=40))
def test_no_shard_of_untouched_images_is_planned_above_the_limit(metadata, sizes):
    entries = [Entry(f"{number}", size, 0, 0) for number, size in enumerate(sizes)]
    options = ConvertOptions(max_size=10_240, metadata=metadata, shuffle=False)
    for shard, blob in plan(entries, options):
        # header and padded payload of the image, the label and its header, and as much for the metadata
        size = END + sum(
            512 + -(-int(line.split("\t")[1]) // 512) * 512 + 1024 * (1 + metadata)
            for line in blob.decode().split("\n")
        )
        assert size <= 10_240 or shard.samples == 1


CHANGES = {
    "label": {"label": 1},
    "no label": {"label": None},
    "path": {"path": "cat/x.jpg"},
    "size": {"size": 701},
    "time": {"mtime_ns": 10**18 + 9},
    "metadata": {"metadata": {"a": 1}},
    "no metadata": {"metadata": None},
    "siblings": {"siblings": (Sibling("txt", "cat/0.txt", 1, 3),)},
    "sibling's time": {"siblings": (Sibling("txt", "cat/0.txt", 1, 4),)},
    "no siblings": {"siblings": ()},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_shard_s_digest_changes_with_everything_about_an_entry(change):
    base = Entry("cat/0.jpg", 700, 10**18, 0, (Sibling("txt", "cat/0.txt", 1, 2),), {"a": 0})
    entries = [replace(ENTRIES[1]), base]
    options = replace(OPTIONS, max_count=1, shuffle=False)
    before = [shard.digest for shard, _ in plan(entries, options)]
    after = [shard.digest for shard, _ in plan([entries[0], replace(base, **change)], options)]
    assert before[0] == after[0]
    assert before[1] != after[1]


@pytest.mark.parametrize(
    "change",
    [
        {"split": "val"},
        {"seed": 1},
        {"shuffle": False},
        {"max_size": 20_480},
        {"max_count": 3},
        {"image_size": 64},
        {"quality": 80, "encode": "jpg"},
        {"encode": "png"},
        {"metadata": True},
        {"siblings": True},
    ],
)
def test_every_shard_s_digest_changes_with_every_option(change):
    before, after = (
        {shard.digest for shard, _ in plan(options=options)} for options in (OPTIONS, replace(OPTIONS, **change))
    )
    assert not before & after


def test_all_shards_of_a_plan_have_digests_of_their_own():
    made = plan(entries=[ENTRIES[0]] * 8, options=replace(OPTIONS, max_count=1))
    assert len({shard.digest for shard, _ in made}) == 8
