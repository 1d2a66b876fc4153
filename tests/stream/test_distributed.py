"""Two real processes over one dataset whose samples do not share out evenly."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import run_together
from wds_tools.convert.run import convert_tree
from wds_tools.tools.demo import make_demo

SAMPLES, BATCH = 41, 4  # the ranks' shares are 21 and 20: one sample more makes one batch more

# Everything that a rank does, one after another: an epoch for each tail and number of workers. A step of
# all_reduce for each batch hangs, or fails, where one rank makes more steps than the other.
_CODE = """
import json, sys
import torch, webdataset
import torch.distributed as dist
from wds_tools import ShardDataset, ShardLoader

shards, init, rank, start = sys.argv[1:]
if init:
    dist.init_process_group("gloo", init_method=init, rank=int(rank), world_size=2)

def epoch(tail, workers, **options):
    dataset = ShardDataset(shards, shuffle=True, seed=3, fields=("__key__", "cls"))
    if workers:
        options["multiprocessing_context"] = start if tail == "even" else "fork"  # spawning takes seconds
    loader = ShardLoader(dataset, batch_size=4, num_workers=workers, tail=tail, **options)
    promised, batches = len(loader), []
    for keys, labels in loader:
        if init:
            dist.all_reduce(torch.ones(1))
        batches.append(keys)
    return {"promised": promised, "batches": batches, "state": loader.state_dict()}

found = {f"{tail} {workers}": epoch(tail, workers) for tail in ("even", "drop", "pad") for workers in (0, 2)}
found["given"] = epoch("even", 0, rank=0, world_size=1)
pipeline = ShardDataset(shards, shuffle=True).to_tuple("__key__")
plain = webdataset.WebLoader(pipeline, batch_size=None, num_workers=2)
found["WebLoader"] = [key for (key,) in plain]
print(json.dumps(found))
if init:
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uneven")
    make_demo(folder / "images", per_class=7, size=16)
    (folder / "images/cross/cross_0003.jpg").unlink()
    convert_tree(folder / "images", folder / "shards", max_count=11, workers=0)
    return folder / "shards"


@pytest.fixture(scope="module", params=["torch.distributed", "RANK and WORLD_SIZE"])
def both(request: pytest.FixtureRequest, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two ranks found, which learn who they are from what the parameter says."""
    if request.param == "torch.distributed":
        init = f"file://{tmp_path_factory.mktemp('gloo')}/rendezvous"
        lie = {"RANK": "6", "WORLD_SIZE": "7"}  # what is initialised counts, not what the environment says
        return run_together(_CODE, [(lie, [str(shards), init, str(rank), "spawn"]) for rank in range(2)])
    return run_together(
        _CODE, [({"RANK": str(rank), "WORLD_SIZE": "2"}, [str(shards), "", "", "fork"]) for rank in range(2)]
    )


def _keys(shards: Path) -> Counter[str]:
    images = shards.parent / "images"
    return Counter(str(path.relative_to(images).with_suffix("")) for path in images.rglob("*.jpg"))


def _seen(epochs: list[Any]) -> Counter[str]:
    return Counter(key for epoch in epochs for batch in epoch["batches"] for key in batch)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("tail", "steps"), [("even", 6), ("drop", 5), ("pad", 6)])
def test_every_rank_makes_the_promised_number_of_steps(both: list[Any], tail: str, steps: int, workers: int) -> None:
    epochs = [rank[f"{tail} {workers}"] for rank in both]
    assert [epoch["promised"] for epoch in epochs] == [steps, steps]
    assert [len(epoch["batches"]) for epoch in epochs] == [steps, steps]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_even_tail_delivers_each_sample_once_over_ranks_and_workers(
    both: list[Any], shards: Path, workers: int
) -> None:
    assert _seen([rank[f"even {workers}"] for rank in both]) == _keys(shards)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dropped_tail_delivers_full_batches_and_nothing_twice(both: list[Any], workers: int) -> None:
    epochs = [rank[f"drop {workers}"] for rank in both]
    assert {len(batch) for epoch in epochs for batch in epoch["batches"]} == {BATCH}
    assert set(_seen(epochs).values()) == {1}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_padded_tail_delivers_full_batches_and_everything(both: list[Any], shards: Path, workers: int) -> None:
    epochs = [rank[f"pad {workers}"] for rank in both]
    assert {len(batch) for epoch in epochs for batch in epoch["batches"]} == {BATCH}
    assert _seen(epochs).keys() == _keys(shards).keys()


def test_the_state_is_the_same_on_every_rank(both: list[Any]) -> None:
    for name, epoch in both[0].items():
        if name not in ("given", "WebLoader"):
            assert epoch["state"] == both[1][name]["state"]


def test_a_given_rank_and_world_size_count_before_anything_found(both: list[Any], shards: Path) -> None:
    for rank in both:
        assert _seen([rank["given"]]) == _keys(shards)


def test_the_bare_dataset_under_webloader_gives_each_sample_once_over_ranks_and_workers(
    both: list[Any], shards: Path
) -> None:
    assert Counter(both[0]["WebLoader"] + both[1]["WebLoader"]) == _keys(shards)
