"""Accelerate trains with a `ShardLoader` that it does not prepare, as docs/frameworks.md says."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import needs
from tests.support.ranks import Torchrun
from wds_tools.convert.run import convert_tree
from wds_tools.tools.demo import make_demo

_CODE = """
import json, sys, warnings
warnings.simplefilter("ignore")
import accelerate
import torch
import torch.distributed.nn  # before the group is there, as in examples/train.py
from torch.nn import functional
from wds_tools import ShardDataset, ShardLoader, WdsToolsError

shards, out, stop_after, prepare = json.loads(sys.argv[1])
accelerator = accelerate.Accelerator(cpu=True)
dataset = ShardDataset(shards, shuffle=True, fields=("__key__", "cls"))
loader = ShardLoader(dataset, batch_size=4)
model = torch.nn.Linear(1, 6)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
accelerator.register_for_checkpointing(loader)
if stop_after is None:
    accelerator.load_state(out + "/state")
said = {"type": type(loader).__name__, "steps": 0, "keys": []}
if prepare:
    try:
        next(iter(accelerator.prepare(loader)))
    except WdsToolsError as error:
        said["error"] = str(error)
else:
    for keys, labels in loader:
        labels = labels.to(accelerator.device)
        scores = model(torch.ones(len(labels), 1, device=accelerator.device))
        accelerator.backward(functional.cross_entropy(scores, labels, reduction="sum"))
        optimizer.step()
        optimizer.zero_grad()
        said["steps"] += 1
        said["keys"] += keys
        if said["steps"] == stop_after:
            accelerator.save_state(out + "/state")
            break
accelerator.wait_for_everyone()
with open(f"{out}/{accelerator.num_processes}-{accelerator.process_index}.json", "w") as file:
    json.dump(said, file)
accelerator.end_training()
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs.package("accelerate")
    folder = tmp_path_factory.mktemp("accelerate")
    make_demo(folder / "images", per_class=7, size=16)
    (folder / "images/cross/cross_0003.jpg").unlink()
    convert_tree(folder / "images", folder / "shards", max_count=11, workers=0)
    return folder / "shards"


def _train(ranks: int, shards: Path, folder: Path, *, stop_after: int | None, prepare: bool = False) -> list[Any]:
    script = folder / "script.py"
    script.write_text(_CODE)
    with Torchrun(ranks, script, json.dumps([str(shards), str(folder), stop_after, prepare])) as run:
        code, out = run.end()
    assert code == 0, out
    return [json.loads((folder / f"{ranks}-{rank}.json").read_text()) for rank in range(ranks)]


def _seen(ranks: list[Any]) -> Counter[str]:
    return Counter(key for rank in ranks for key in rank["keys"])


def _keys(shards: Path) -> Counter[str]:
    images = shards.parent / "images"
    return Counter(str(path.relative_to(images).with_suffix("")) for path in images.rglob("*.jpg"))


def test_ranks_take_even_steps_and_each_sample_once(shards: Path, tmp_path: Path) -> None:
    ranks = _train(2, shards, tmp_path, stop_after=-1)
    assert [rank["steps"] for rank in ranks] == [6, 6]
    assert _seen(ranks) == _keys(shards)


def test_a_saved_state_goes_on_within_the_epoch_with_another_number_of_ranks(shards: Path, tmp_path: Path) -> None:
    first = _train(2, shards, tmp_path, stop_after=2)
    assert _seen(first).total() == 16
    second = _train(1, shards, tmp_path, stop_after=None)
    assert _seen(first) + _seen(second) == _keys(shards)


def test_a_prepared_loader_says_what_to_do_instead(shards: Path, tmp_path: Path) -> None:
    (alone,) = _train(1, shards, tmp_path, stop_after=-1, prepare=True)
    assert "prepare" in alone["error"]
