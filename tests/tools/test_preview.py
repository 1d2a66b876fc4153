"""The preview of an epoch says what a loader then does."""

import json
import tracemalloc

import pytest

from tests.support import trees
from tests.support.commands import call
from wds_tools import ShardDataset, ShardLoader, convert_tree
from wds_tools.errors import OptionError
from wds_tools.format import manifest
from wds_tools.records import ShardInfo, SplitInfo
from wds_tools.tools.preview import preview_epoch


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preview")
    for label, count in enumerate((17, 9, 15)):
        trees.make(folder / "tree", {f"c{label}/{number}.jpg": None for number in range(count)})
    convert_tree(folder / "tree", folder / "data", max_count=7, workers=0)
    return folder / "data"


@pytest.mark.parametrize("tail", ["even", "drop", "pad"])
@pytest.mark.parametrize(("world", "workers", "batch_size"), [(1, 0, 1), (1, 0, 4), (2, 2, 4), (3, 1, 5), (4, 3, 10)])
def test_it_says_what_loaders_deliver(shards, world, workers, batch_size, tail):
    told = preview_epoch(shards, world=world, workers=workers, batch_size=batch_size, tail=tail)
    dataset = ShardDataset(shards, fields=("__key__",))
    sizes, steps, by_stream = [], set(), []
    for rank in range(world):
        loader = ShardLoader(dataset, batch_size, 0, tail=tail, rank=rank, world_size=world)
        batches = [len(keys) for (keys,) in loader]
        steps.add(len(batches))
        sizes += batches
        streams = max(workers, 1)
        by_stream += [sum(batches[worker::streams]) for worker in range(streams)]
    assert steps == {told["steps"]}
    assert told["short_batches"] == sum(size < batch_size for size in sizes)
    assert told["samples_by_worker"] == [min(by_stream), max(by_stream)]
    assert told["streams"] == world * max(workers, 1)
    assert 0 <= told["shards_by_worker"][0] <= told["shards_by_worker"][1] <= 6


def test_quality_is_a_number_and_labels_are_counted(shards):
    quality = preview_epoch(shards)["quality"]
    assert 0.3 < quality["displacement"] < 1.7
    assert -0.2 < quality["neighbours"] < 0.5


def test_unshuffled_labels_agree_with_their_neighbours(shards, tmp_path):
    convert_tree(shards.parent / "tree", tmp_path / "sorted", shuffle=False, workers=0)
    # One shard, no window: the order is that of the names, and the labels come in runs.
    assert preview_epoch(tmp_path / "sorted", window=1, interleave=1)["quality"] == {
        "displacement": 0.0,
        "neighbours": pytest.approx(preview_epoch(tmp_path / "sorted", window=1)["quality"]["neighbours"]),
    }


def test_a_large_dataset_is_previewed_in_little_memory(tmp_path):
    listed = tuple(ShardInfo(f"train-{number:06d}.tar", 50_000) for number in range(1000))
    (tmp_path / "info.json").write_bytes(manifest.dump(manifest.Manifest({"train": SplitInfo("train", listed)})))
    tracemalloc.start()
    try:
        told = preview_epoch(tmp_path, world=4, workers=2, batch_size=64)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert told["samples"] == 50_000_000
    assert told["samples_by_worker"] == [6_249_984, 6_250_016]
    assert 125 <= told["shards_by_worker"][0] <= told["shards_by_worker"][1] <= 127
    assert 0.9 < told["quality"]["displacement"] < 1.1
    assert told["quality"]["neighbours"] is None
    assert peak < 2 * 50_000_000  # two bytes a sample: they are never all put in order


def test_labels_that_are_not_there_are_not_made_up(tmp_path):
    trees.make(tmp_path / "flat", {f"{number}.jpg": None for number in range(6)})
    convert_tree(tmp_path / "flat", tmp_path / "data", siblings=True, workers=0)
    assert preview_epoch(tmp_path / "data")["quality"]["neighbours"] is None


def test_a_split_must_be_one_that_is_there(shards):
    with pytest.raises(OptionError, match="nope"):
        preview_epoch(shards, split="nope")


def test_info_shows_the_preview(shards):
    said = call("info", shards, "--world", "2", "--workers", "2", "--batch-size", "4")
    assert said.code == 0
    assert "an epoch: 6 steps on every rank" in said.out
    assert "4 streams of " in said.out
    told = json.loads(call("info", shards, "--world", "2", "--workers", "2", "--batch-size", "4", "--json").out)
    assert told["epoch"]["steps"] == 6
    assert call("info", shards, "--world", "0").code == 2
