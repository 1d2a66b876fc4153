"""Going on where a loop was: at every batch, whatever is prefetched, with any other topology."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import streams
from wds_tools.errors import WdsToolsError
from wds_tools.stream.dataset import ShardDataset
from wds_tools.stream.loader import ShardLoader


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return streams.numbered(tmp_path_factory.mktemp("numbered") / "data")


def loader(folder: Path, batch_size: int = 4, workers: int = 0, **options: Any) -> ShardLoader:
    fields = ("cls",) if "transform" not in options else ("png", "cls")
    chosen = {name: options.pop(name) for name in ("seed", "window", "transform") if name in options}
    return ShardLoader(ShardDataset(folder, shuffle=True, fields=fields, **chosen), batch_size, workers, **options)


def take(made: ShardLoader, batches: int) -> list[list[int]]:
    """The labels of the next batches, and the loop is left."""
    going = iter(made)
    return streams.labels(next(going) for _ in range(batches))


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint has it."""
    text = json.dumps(state)
    assert len(text) < 500
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("tail", ["even", "drop", "pad"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_at_every_batch_gives_the_rest_of_the_undisturbed_run(folder: Path, workers: int, tail: Any) -> None:
    options = {"workers": workers, "tail": tail, "rank": 1, "world_size": 2}
    if workers:
        options["prefetch_factor"] = 3
    run = loader(folder, 2, **options)
    states = [stored(run.state_dict())]
    undisturbed = []
    for batch in run:
        undisturbed += streams.labels([batch])
        states.append(stored(run.state_dict()))
    following = streams.labels(run)
    assert len(states) == len(undisturbed) + 1
    again = loader(folder, 2, **options)
    for number, state in enumerate(states):
        again.load_state_dict(state)
        rest = undisturbed[number:] or following
        assert len(again) == len(rest)
        assert streams.labels(again) == rest
        if number in (0, 3):  # and then the epoch that follows
            assert streams.labels(again) == following


def test_pixels_are_augmented_alike_after_a_resume(folder: Path) -> None:
    run = loader(folder, 4, 2, transform=streams.noisy)
    going = iter(run)
    next(going)
    state = run.state_dict()
    rest = list(going)
    again = loader(folder, 4, 2, transform=streams.noisy)
    again.load_state_dict(state)
    for before, after in zip(rest, again, strict=True):
        assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


def test_a_state_counts_what_was_delivered_and_not_what_was_prefetched(folder: Path) -> None:
    run = loader(folder, 1, 2, prefetch_factor=8)
    take(run, 3)
    assert run.state_dict()["history"] == [{"world": 1, "workers": 2, "batch_size": 1, "batches": 3}]


def test_a_state_is_the_same_on_every_rank(folder: Path) -> None:
    ranks = [loader(folder, 2, rank=rank, world_size=3) for rank in range(3)]
    for made in ranks:
        take(made, 2)
    assert len({json.dumps(made.state_dict()) for made in ranks}) == 1


def test_a_state_that_was_loaded_is_saved_again_as_it_is(folder: Path) -> None:
    run = loader(folder)
    take(run, 2)
    again = loader(folder)
    again.load_state_dict(stored(run.state_dict()))
    assert again.state_dict() == run.state_dict()
    assert again.epoch == 0


def test_states_of_the_end_and_the_beginning_are_of_whole_epochs(folder: Path) -> None:
    run = loader(folder)
    assert (run.state_dict()["epoch"], run.state_dict()["history"]) == (0, [])
    take(run, len(run))
    assert (run.state_dict()["epoch"], run.state_dict()["history"]) == (1, [])
    streams.labels(run)
    assert run.state_dict()["epoch"] == 2


RUNS = [
    [(1, 0, 4, 2), (2, 1, 3, None)],
    [(4, 2, 1, 3), (1, 3, 5, None)],
    [(2, 2, 2, 2), (3, 0, 1, 1), (1, 2, 7, 1), (5, 1, 2, None)],
    [(3, 1, 2, 1), (3, 0, 2, 1), (2, 0, 2, 1), (3, 1, 2, None)],
    [(2, 0, 4, 0), (1, 2, 4, None)],
]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("run", RUNS)
def test_fault_47_another_topology_delivers_exactly_the_rest(folder: Path, run: list[Any]) -> None:
    """Phases of (world, workers, batch size, batches); None for all that are left."""
    state: dict[str, Any] | None = None
    got: list[int] = []
    for world, workers, batch_size, batches in run:
        lengths, states = set(), set()
        for rank in range(world):
            made = loader(folder, batch_size, workers, rank=rank, world_size=world)
            if state is not None:
                made.load_state_dict(state)
            lengths.add(len(made))
            got += streams.flat(take(made, len(made) if batches is None else batches))
            states.add(json.dumps(made.state_dict()))
        assert len(lengths) == len(states) == 1
        state = json.loads(states.pop())
    assert sorted(got) == list(range(streams.SAMPLES))
    assert state is not None
    assert (state["epoch"], state["history"]) == (1, [])


@pytest.mark.parametrize("seed", range(8))
def test_fault_47_any_changes_of_topology_in_one_loop_deliver_every_sample_once(folder: Path, seed: int) -> None:
    draw = random.Random(seed)
    state: dict[str, Any] | None = None
    got: list[int] = []
    while state is None or state["epoch"] == 0:
        world, batch_size = draw.randint(1, 4), draw.randint(1, 4)
        states = []
        batches = draw.randint(1, 3)
        for rank in range(world):
            made = loader(folder, batch_size, rank=rank, world_size=world)
            if state is not None:
                made.load_state_dict(state)
            got += streams.flat(take(made, min(batches, len(made))))
            states.append(made.state_dict())
        state = states[draw.randrange(world)]
    assert sorted(got) == list(range(streams.SAMPLES))


def test_set_epoch_after_a_state_keeps_its_place_in_its_own_epoch_only(folder: Path) -> None:
    run = loader(folder)
    run.set_epoch(3)
    undisturbed = streams.labels(run)
    run.set_epoch(3)
    take(run, 2)
    state = run.state_dict()
    again = loader(folder)
    again.load_state_dict(state)
    again.set_epoch(3)
    assert streams.labels(again) == undisturbed[2:]
    again.load_state_dict(state)
    again.set_epoch(4)
    whole = streams.labels(again)
    assert len(whole) == len(undisturbed)
    assert whole != undisturbed
    run.set_epoch(3)  # in the process itself, this begins the epoch anew
    assert streams.labels(run) == undisturbed


def test_a_state_may_be_loaded_in_the_middle_of_a_pass(folder: Path) -> None:
    run = loader(folder, 4, 2)
    undisturbed = streams.labels(run)
    run.set_epoch(0)
    take(run, 2)
    state = run.state_dict()
    take(run, 1)
    run.load_state_dict(state)
    assert streams.labels(run) == undisturbed[2:]


@pytest.fixture
def state(folder: Path) -> dict[str, Any]:
    run = loader(folder)
    take(run, 2)
    return stored(run.state_dict())


@pytest.mark.parametrize("options", [{"seed": 9}, {"window": 7}, {"tail": "drop"}])
def test_fault_48_a_state_of_other_options_is_refused(folder: Path, state: dict[str, Any], options: Any) -> None:
    with pytest.raises(WdsToolsError, match=next(iter(options))):
        loader(folder, **options).load_state_dict(state)


@pytest.mark.parametrize(("count", "per_shard"), [(22, 5), (23, 4)])
def test_fault_48_a_state_of_another_dataset_is_refused(
    tmp_path: Path, state: dict[str, Any], count: int, per_shard: int
) -> None:
    other = loader(streams.numbered(tmp_path / "other", count, per_shard))
    with pytest.raises(WdsToolsError, match="same dataset"):
        other.load_state_dict(state)
    assert len(streams.flat(streams.labels(other))) == count


@pytest.mark.parametrize("version", [0, 2, "1", None, {"x": [1] * 99}])
def test_fault_48_a_state_of_another_version_is_refused(folder: Path, state: dict[str, Any], version: Any) -> None:
    with pytest.raises(WdsToolsError, match="version"):
        loader(folder).load_state_dict({"version": version})
    state["order"]["version"] = version
    with pytest.raises(WdsToolsError, match="version"):
        loader(folder).load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": None},
        {"epoch": -1},
        {"epoch": 1.5},
        {"history": None},
        {"history": 7},
        {"history": "x"},
        {"history": [7]},
        {"history": [{}]},
        {"history": [{"world": 0, "workers": 0, "batch_size": 1, "batches": 1}]},
        {"history": [{"world": 1, "workers": 0, "batch_size": 1, "batches": 10**6}]},
        {"history": [{"world": 1, "workers": 0, "batch_size": 4, "batches": 2, "more": 1}]},
        {"order": None},
        {"order": {}},
        {"order": "xy"},
    ],
)
def test_fault_48_garbage_is_refused_and_changes_nothing(folder: Path, state: dict[str, Any], change: Any) -> None:
    made = loader(folder)
    with pytest.raises(WdsToolsError):
        made.load_state_dict({**state, **change})
    assert (made.epoch, len(made)) == (0, 6)


@pytest.mark.parametrize("garbage", [{}, None, [], "state", {"epoch": 1}])
def test_fault_48_what_is_no_state_is_refused(folder: Path, garbage: Any) -> None:
    with pytest.raises(WdsToolsError, match="state_dict"):
        loader(folder).load_state_dict(garbage)


def test_more_batches_than_there_are_are_refused(folder: Path, state: dict[str, Any]) -> None:
    phase = {"world": 1, "workers": 0, "batch_size": 1, "batches": 0}
    made = loader(folder)
    made.load_state_dict({**state, "history": [phase] * 1000})  # phases without batches say nothing
    assert len(made) == 6
    many = [{**phase, "world": 1 + n % 2, "batches": 1} for n in range(99)]
    with pytest.raises(WdsToolsError, match="batches"):
        made.load_state_dict({**state, "history": many})
