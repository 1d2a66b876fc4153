"""`MixedDataset` and `ShardDataset.balanced` as they are used: with loaders, workers, stores and errors."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import streams
from wds_tools import MixedDataset, ShardDataset, ShardLoader
from wds_tools.errors import OptionError, SampleError, WdsToolsError
from wds_tools.image.presets import Decode, RandomResizedCrop
from wds_tools.store.options import StoreOptions

FAST = StoreOptions(backoff=0, retries=2)
A, B = 24, 10  # samples; those of b have labels from 100 on


def pack(folder: Path, first: int, count: int, **fields: Any) -> Path:
    made = (streams.sample(number, **fields) for number in range(first, first + count))
    return streams.index(streams.pack(folder, made))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    pack(folder / "a", 0, A)
    pack(folder / "b", 100, B)
    return folder


def source(folder: Any, **options: Any) -> ShardDataset:
    return ShardDataset(folder, **{"shuffle": True, "fields": ("png", "cls"), "options": None, **options})


def mixture(place: Path, weights: Any = (3, 1), **options: Any) -> MixedDataset:
    chosen = {name: options.pop(name) for name in ("fields", "transform", "window", "seed") if name in options}
    return MixedDataset([source(place / name, **chosen) for name in "ab"], weights, **options)


def balance(place: Path, **options: Any) -> ShardDataset:
    """Classes of 20, 3 and 1."""
    return source(place / "a", **options).balanced([0] * 20 + [1] * 3 + [2])


MAKERS = [mixture, balance]


def labels(loader: ShardLoader) -> list[list[int]]:
    return streams.labels(loader)


# ── what a loop gets ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("world", "workers"), [(1, 2), (3, 0)])
def test_each_source_comes_once_in_its_own_epochs_evenly_over_ranks(place: Path, world: int, workers: int) -> None:
    made = [ShardLoader(mixture(place), 5, workers, rank=rank, world_size=world) for rank in range(world)]
    got: list[int] = []
    for _ in range(4):  # 136 samples: 102 and 34
        announced = {len(each) for each in made}
        batches = [labels(each) for each in made]
        assert announced == {len(each) for each in batches}
        got += [label for each in batches for batch in each for label in batch]
    ones, others = [label for label in got if label < 100], [label for label in got if label >= 100]
    assert (len(ones), len(others)) == (102, 34)
    assert Counter(Counter(ones).values()) == {4: 18, 5: 6}
    assert Counter(Counter(others).values()) == {3: 6, 4: 4}


def test_an_epoch_goes_on_where_the_last_ended(place: Path) -> None:
    whole = ShardLoader(mixture(place, epoch_size=40), 4)
    halves = ShardLoader(mixture(place, epoch_size=20), 4)
    first = labels(whole)
    parts = labels(halves) + labels(halves)
    assert [sorted(batch) for batch in parts] != [sorted(range(4))] * 10
    assert Counter(streams.flat(parts)) == Counter(streams.flat(first))
    assert mixture(place).epoch_size == len(mixture(place)) == A + B
    assert mixture(place, epoch_size=40).epoch_size == 40


def test_every_batch_has_its_share_of_each_source(place: Path) -> None:
    for batch in labels(ShardLoader(mixture(place, (1, 1), epoch_size=200), 8, 2)):
        assert 3 <= sum(label < 100 for label in batch) <= 5


@pytest.mark.parametrize("workers", [0, 2])
def test_balanced_classes_come_alike_and_small_ones_again(place: Path, workers: int) -> None:
    made = ShardLoader(balance(place), 6, workers)
    got = streams.flat(labels(made) + labels(made) + labels(made))
    classes = Counter(0 if label < 20 else 1 if label < 23 else 2 for label in got)
    assert classes == {0: 24, 1: 24, 2: 24}
    counts = Counter(got)
    assert {counts[label] for label in range(20)} == {1, 2}
    assert [counts[label] for label in range(20, 24)] == [8, 8, 8, 24]
    assert len(made) == 4
    assert (len(balance(place)), balance(place)[23]["cls"]) == (24, b"23")


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("tail", ["even", "drop", "pad"])
def test_the_state_at_every_batch_gives_the_rest_of_the_undisturbed_run(
    place: Path, maker: Any, workers: int, tail: Any
) -> None:
    options = {"tail": tail, "rank": 1, "world_size": 2}
    fields = {"fields": ("cls",)}
    run = ShardLoader(maker(place, **fields), 3, workers, **options)
    labels(run)  # the second epoch begins in the midst of rounds
    states, undisturbed = [run.state_dict()], []
    for batch in run:
        undisturbed += labels([batch])  # type: ignore[arg-type]
        states.append(run.state_dict())
    following = labels(run)
    again = ShardLoader(maker(place, **fields), 3, workers, **options)
    for number, state in enumerate(states):
        text = json.dumps(state)
        assert len(text) < 500
        again.load_state_dict(json.loads(text))
        assert len(again) == len(undisturbed[number:] or following)
        assert labels(again) == (undisturbed[number:] or following)


@pytest.mark.parametrize("maker", MAKERS)
def test_fault_47_another_topology_delivers_exactly_the_rest(place: Path, maker: Any) -> None:
    whole = Counter(streams.flat(labels(ShardLoader(maker(place), 4))))
    state: Any = None
    got: list[int] = []
    for world, workers, batch_size, batches in [(2, 0, 3, 2), (1, 2, 5, 1), (3, 0, 2, None)]:
        for rank in range(world):
            made = ShardLoader(maker(place), batch_size, workers, rank=rank, world_size=world)
            if state is not None:
                made.load_state_dict(state)
            going = iter(made)
            got += streams.flat(labels([next(going) for _ in range(len(made) if batches is None else batches)]))  # type: ignore[arg-type]
            last = made.state_dict()
        state = last
    assert Counter(got) == whole
    assert state["epoch"] == 1


def test_fault_48_states_of_others_are_refused(place: Path) -> None:
    makers = [
        mixture(place),
        mixture(place, (1, 1)),
        MixedDataset([source(place / name) for name in "ba"], [3, 1]),
        MixedDataset([source(place / "a")]),
        source(place / "a"),
        balance(place),
        source(place / "a").balanced("cls"),
    ]
    loaders = [ShardLoader(made, 4) for made in makers]
    for one in loaders:
        for other in loaders:
            if one is not other:
                with pytest.raises(WdsToolsError, match="saved state has"):
                    one.load_state_dict(other.state_dict())


# ── pixels ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("maker", MAKERS)
def test_presets_and_slots_put_every_picture_beside_its_label(place: Path, maker: Any) -> None:
    made = ShardLoader(maker(place, transform=RandomResizedCrop(8)), 5, 2)
    for _ in range(2):
        for pixels, numbers in made:
            assert [streams.number_of(image) for image in pixels] == numbers.tolist()
    assert made.dataset.slots is not None  # type: ignore[attr-defined]


def comings(made: ShardLoader) -> Counter[str]:
    return Counter(
        f"{label} {image.tolist()}" for pixels, numbers in made for label, image in zip(numbers, pixels, strict=True)
    )


@pytest.mark.parametrize("maker", MAKERS)
def test_a_sample_that_comes_again_is_augmented_anew_and_alike_whoever_has_it(place: Path, maker: Any) -> None:
    alone = comings(ShardLoader(maker(place, transform=streams.noisy), 4))
    assert set(alone.values()) == {1}
    assert len({each.split(" ")[0] for each in alone}) < len(alone)
    assert comings(ShardLoader(maker(place, transform=streams.noisy), 7, 2)) == alone


def test_arrays_are_read_straight_into_the_batch(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 100)):
        made = (streams.sample(n, png=None, npy=streams.array(n)) for n in range(first, first + 8))
        streams.index(streams.pack(tmp_path / name, made))
    options = {"transform": Decode(), "fields": ("npy", "cls")}
    for pixels, numbers in ShardLoader(mixture(tmp_path, **options), 4, 2):
        for image, number in zip(pixels, numbers.tolist(), strict=True):
            whole = ShardDataset(tmp_path / ("a" if number < 100 else "b"))[number % 100]["npy"]
            assert whole.endswith(image.permute(1, 2, 0).contiguous().numpy().tobytes())


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("workers", [0, 2])
def test_the_ledger_says_in_which_source_a_bad_sample_lies(tmp_path: Path, workers: int) -> None:
    pack(tmp_path / "a", 0, 20)
    made = (streams.sample(n, **({"png": b"bad"} if n == 103 else {})) for n in range(100, 110))
    streams.index(streams.pack(tmp_path / "b", made))
    sources = [source(tmp_path / name, transform=streams.same) for name in "ab"]
    run = ShardLoader(MixedDataset(sources, epoch_size=40, on_error="skip"), 4, workers, ledger=tmp_path / "ledger")
    got = streams.flat(labels(run))
    assert (len(got), 103 in got) == (38, False)
    lines = [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()]
    assert {(line["shard"], line["key"]) for line in lines} == {(str(tmp_path / "b" / "train-000000.tar"), "k0103")}
    assert len(lines) == len(run.errors) == 2
    with pytest.raises(SampleError, match=r"b/train-000000\.tar, key 'k0103'"):
        labels(ShardLoader(MixedDataset(sources, epoch_size=40), 4, workers))


def test_what_cannot_be_mixed_is_said(place: Path, tmp_path: Path) -> None:
    one, two = source(place / "a"), source(place / "b", fields=("cls",))
    streams.pack(tmp_path / "plain", map(streams.sample, range(3)))
    for call, said in (
        (lambda: MixedDataset([]), "nothing to mix"),
        (lambda: MixedDataset([one, "b"]), "dataset 1 .* is a str"),  # type: ignore[list-item]
        (lambda: MixedDataset([one, two]), r"fields \('cls',\).*give fields"),
        (lambda: MixedDataset([one, source(place / "b", transform=streams.same)]), "give transform"),
        (lambda: MixedDataset([one, source(place / "b", on_error="skip")]), "give on_error"),
        (lambda: MixedDataset([one, source(place / "b", rank=0, world_size=2)]), "give rank and world_size"),
        (lambda: MixedDataset([one, source(place / "b").decode("pil")]), "dataset 1 .* further stages"),
        (lambda: MixedDataset([one], [1, 2]), "for 1 datasets"),
        (lambda: one.balanced("colour"), "labels is 'colour'"),
        (lambda: one.balanced([0]), "1 labels and 24 samples"),
        (lambda: one.balanced([0] * 24).balanced(), "balanced already"),
        (lambda: one.decode("pil").balanced(), "further stages"),
    ):
        with pytest.raises(OptionError, match=said):
            call()
    both = MixedDataset([one, two], fields=("cls", "__key__"), transform=None)
    assert next(iter(ShardLoader(both, 4)))[1][0].startswith("k0")
    with streams.served(tmp_path / "plain") as server:
        with pytest.warns(UserWarning, match="no indexes"):
            unknown = ShardDataset(f"{server.url}/train-{{000000..000000}}.tar")
        with pytest.raises(OptionError, match=r"dataset 0 .* no indexes"):
            MixedDataset([unknown])
        with pytest.raises(TypeError, match="no indexes"):
            unknown.balanced()


# ── classes ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_classes_that_differ_are_matched_by_name_or_refused(tmp_path: Path) -> None:
    from wds_tools import convert_tree

    for name, classes in (("a", ["cat", "dog"]), ("b", ["ant", "dog"])):
        for each in classes:
            (tmp_path / "trees" / name / each).mkdir(parents=True)
            for number in range(4):
                (tmp_path / "trees" / name / each / f"{name}{number}.png").write_bytes(streams.picture(number))
        convert_tree(tmp_path / "trees" / name, tmp_path / name, workers=0)
    sources = [source(tmp_path / name, fields=("__key__", "cls")) for name in "ab"]
    with pytest.raises(OptionError, match=r"different classes \(cat, dog and ant, dog\).*classes="):
        MixedDataset(sources)
    with pytest.raises(OptionError, match=r"classes lacks ant, which .*b has"):
        MixedDataset(sources, classes=["cat", "dog"])
    with pytest.raises(OptionError, match="twice"):
        MixedDataset(sources, classes=["cat", "dog", "cat"])
    names = ["dog", "cat", "ant", "owl"]
    made = MixedDataset(sources, classes=names)
    assert made.classes == names
    assert MixedDataset(sources[:1]).classes == ["cat", "dog"]
    for workers in (0, 2):
        for keys, numbers in ShardLoader(made, 5, workers):
            assert [key.split("/")[0] for key in keys] == [names[number] for number in numbers.tolist()]
    assert {each["__key__"].split("/")[0]: each["cls"] for each in made} == {"dog": b"0", "cat": b"1", "ant": b"2"}
    assert sources[0].balanced("folder").order == sources[0].balanced("cls").order


# ── where labels come from ────────────────────────────────────────────────────────────────────────────────────


def test_labels_come_from_the_field_whatever_else_a_sample_has(tmp_path: Path) -> None:
    made = [streams.sample(n, cls=str(n % 3).encode() + b"\n", **({"txt": b"x"} if n % 2 else {})) for n in range(12)]
    streams.pack(tmp_path / "data", made)  # no index: scanned
    dataset = source(tmp_path / "data").balanced()
    assert dataset.order == source(tmp_path / "data").balanced([n % 3 for n in range(12)]).order
    with streams.served(streams.index(tmp_path / "data")) as server:
        remote = source(server.url, options=FAST)
        assert remote.balanced().order == dataset.order
        server.requests.clear()
        with pytest.raises(SampleError, match="key 'k0000': it has no folder in its key"):
            remote.balanced("folder")
        assert not [path for _, path, _ in server.requests if path.endswith(".tar")]


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "it has no field 'cls' to balance by"), (b"dog", "cls is b'dog'"), (b"9" * 30, "cls is b'9999")],
)
def test_a_sample_without_a_label_is_named(tmp_path: Path, remote: bool, value: bytes | None, said: str) -> None:
    made = [streams.sample(n, cls=value if n == 7 else b"1") for n in range(12)]
    streams.index(streams.pack(tmp_path, made))
    with (
        streams.served(tmp_path) as server,
        pytest.raises(SampleError, match=rf"train-000001.tar, key 'k0007': {said}"),
    ):
        source(server.url if remote else tmp_path, options=FAST if remote else None).balanced()


def test_balanced_datasets_can_be_mixed_and_shuffled(place: Path) -> None:
    both = MixedDataset([balance(place), source(place / "b")], epoch_size=96)
    got = streams.flat(labels(ShardLoader(both, 8, 2)))
    classes = Counter("b" if label >= 100 else 0 if label < 20 else 1 if label < 23 else 2 for label in got)
    assert classes == {"b": 48, 0: 16, 1: 16, 2: 16}
    order = balance(place, shuffle=False).shuffle(7).order
    assert (order.shuffle, order.window) == (True, 7)
    assert order == balance(place, window=7).order
    plain = [each["cls"] for each in balance(place, shuffle=False)][:7]
    assert plain == [b"0", b"20", b"23", b"1", b"21", b"23", b"2"]


# ── as a pipeline, in other processes ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("maker", MAKERS)
def test_a_pipeline_of_samples_like_any_other(place: Path, maker: Any) -> None:
    dataset = maker(place)
    first, second = (Counter(streams.keys(dataset)) for _ in range(2))
    assert sum(first.values()) == sum(second.values()) == len(dataset)
    assert first != second
    dataset.set_epoch(0)
    assert Counter(streams.keys(dataset)) == first
    pairs = list(maker(place).decode("pil").to_tuple("png", "cls"))
    assert len(pairs) == len(dataset)
    assert all(image.getpixel((0, 0))[0] == label % 256 for image, label in pairs)
    halves = [Counter(streams.keys(maker(place, rank=rank, world_size=2))) for rank in range(2)]
    assert halves[0] + halves[1] == first
    assert [dataset[number]["__key__"] for number in (0, -1)] == (
        ["k0000", "k0109"] if maker is mixture else ["k0000", "k0023"]
    )


def test_fault_46_spawned_workers_deliver_the_same(place: Path) -> None:
    def made() -> MixedDataset:
        return MixedDataset([balance(place), source(place / "b")])

    assert pickle.loads(pickle.dumps(made())).order == made().order
    started = ShardLoader(made(), 4, 1, multiprocessing_context=multiprocessing.get_context("spawn"))
    assert labels(started) == labels(ShardLoader(made(), 4, 1))


# ── over a network ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def server(tmp_path: Path) -> Iterator[streams.Server]:
    pack(tmp_path / "a", 0, 60, bin=os.urandom(3000))
    pack(tmp_path / "b", 100, 8, bin=os.urandom(3000))
    with streams.served(tmp_path) as started:
        yield started


def parts(server: streams.Server) -> Counter[tuple[str, str]]:
    found = ((path, headers.get("Range", "")) for _, path, headers in list(server.requests))
    return Counter(each for each in found if each[0].endswith(".tar") and each[1] != "bytes=0-0")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("remote", ["ab", "a", "b"])
def test_sources_may_be_near_and_far(server: streams.Server, tmp_path: Path, remote: str, workers: int) -> None:
    def sources(remote: str) -> list[ShardDataset]:
        places = [(f"{server.url}/{name}" if name in remote else tmp_path / name) for name in "ab"]
        fields = ("bin", "cls")
        return [
            source(each, fields=fields, options=FAST if name in remote else None)
            for each, name in zip(places, "ab", strict=True)
        ]

    far = ShardLoader(MixedDataset(sources(remote), [2, 1]), 7, workers)
    near = ShardLoader(MixedDataset(sources(""), [2, 1]), 7, workers)
    for _ in range(2):
        assert [(raw, numbers.tolist()) for raw, numbers in far] == [(raw, numbers.tolist()) for raw, numbers in near]
    assert {path.split("/")[1] for path, _ in parts(server)} == set(remote)


def test_what_comes_again_soon_is_fetched_once(server: streams.Server, tmp_path: Path) -> None:
    """8 samples come 30 times each, in two shards: not 240 requests."""
    made = MixedDataset([source(f"{server.url}/{name}", options=FAST) for name in "ab"], [1, 4], epoch_size=300)
    got = Counter(each["cls"] for each in made)
    assert {got[b"%d" % number] for number in range(100, 108)} == {30}
    asked = [path for path, _ in parts(server).elements() if path.startswith("/b/")]
    assert len(asked) <= 6


def test_balanced_samples_are_fetched_ahead_too(server: streams.Server, tmp_path: Path) -> None:
    numbers = [0] * 55 + [1] * 5
    made = source(f"{server.url}/a", options=FAST).balanced(numbers)
    assert streams.keys(made) == streams.keys(source(tmp_path / "a").balanced(numbers))
    assert sum(parts(server).values()) <= 40


def test_with_a_cache_whole_shards_are_kept(server: streams.Server, tmp_path: Path) -> None:
    def made(name: str) -> ShardDataset:
        return source(f"{server.url}/{name}", options=FAST, cache=tmp_path / "kept", cache_bytes=1 << 24)

    dataset = MixedDataset([made("a"), source(tmp_path / "b")], epoch_size=120)
    want = Counter(streams.keys(MixedDataset([source(tmp_path / name) for name in "ab"], epoch_size=120)))
    assert Counter(streams.keys(dataset)) == want
    for _ in range(20):  # a pass this short ends before all copies are made
        before = sum(parts(server).values())
        dataset.set_epoch(0)
        assert Counter(streams.keys(dataset)) == want
        if sum(parts(server).values()) == before:
            break
    assert sum(parts(server).values()) == before
    assert not [path for path, _ in parts(server) if re.match("/b/", path)]


def test_a_batch_of_seeds_tells_comings_apart(place: Path) -> None:
    ((numbers, seeds),) = ShardLoader(balance(place, fields=("cls", "__seed__")), 24)
    assert len(set(numbers.tolist())) < 24 == len(set(seeds.tolist()))
    assert seeds.dtype == torch.int64
