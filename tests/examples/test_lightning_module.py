from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import needs
from tests.support.ranks import ROOT, Command

SCRIPT = ROOT / "examples" / "lightning_module.py"
STEPS = 60 // 4  # of an epoch
EVERY = 4  # steps between checkpoints
_EPOCH = re.compile(r"^epoch (\d+): (\d+) steps, val_accuracy (\S+), loss (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module", autouse=True)
def _lightning() -> None:
    needs.package("tests.support.torchvision_ops")  # torchmetrics imports torchvision where it finds it
    needs.package("lightning")


def _train(shards: Path, folder: Path) -> Command:
    options = {"epochs": 2, "batch-size": 4, "size": 32, "every": EVERY, "checkpoints": folder}
    words = [f"--{name}={value}" for name, value in options.items()]
    return Command("-m", "tests.support.torchvision_ops", SCRIPT, str(shards), *words)


def _saved(folder: Path) -> dict[str, Any]:
    saved: dict[str, Any] = torch.load(folder / "last.ckpt", weights_only=False)
    return saved


def test_a_run_that_goes_on_where_another_was_killed_ends_with_the_same_weights(few: Path, tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    with _train(few, whole) as run:
        run.until((whole / "last.ckpt").exists)
        with run.held():
            shutil.copytree(whole, killed)
        code, out = run.end()
    assert code == 0, out
    step = _saved(killed)["global_step"]
    assert step % EVERY == 0
    assert 0 < step < 2 * STEPS, "it came to its end before it could be held"
    with _train(few, killed) as run:
        code, resumed = run.end()
    assert code == 0, resumed

    (first, second) = _EPOCH.findall(out)
    assert [first[:2], second[:2]] == [("0", str(STEPS)), ("1", str(STEPS))]
    assert all(math.isfinite(float(number)) for number in (*first, *second))
    assert float(second[3]) < float(first[3]), "it learns nothing"
    rest = _EPOCH.findall(resumed)
    assert sum(int(epoch[1]) for epoch in rest) == 2 * STEPS - step
    assert rest[-1][:3] == second[:3], "nor is its accuracy the same"

    ends = _saved(whole), _saved(killed)
    assert [(end["global_step"], end["epoch"]) for end in ends] == [(2 * STEPS, 2)] * 2
    for name, weights in ends[0]["state_dict"].items():
        assert torch.equal(weights, ends[1]["state_dict"][name]), name
