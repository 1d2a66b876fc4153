from __future__ import annotations

import math
import re
import shutil
from pathlib import Path

import pytest
import torch

from tests.support import needs
from tests.support.ranks import ROOT, Command, Torchrun

SCRIPT = ROOT / "examples" / "timm_accelerate.py"
STEPS = 60 // 4  # of an epoch
EVERY = 4  # steps between checkpoints
_EPOCH = re.compile(r"^epoch (\d+): (\d+) steps, loss (\S+), on val (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module", autouse=True)
def _peers() -> None:
    needs.package("tests.support.torchvision_ops")
    for name in ("torchvision", "timm", "accelerate"):
        needs.package(name)


def _train(shards: Path, folder: Path, epochs: int = 2, ranks: int = 1) -> Command:
    options = {"model": "test_resnet", "epochs": epochs, "batch-size": 4, "every": EVERY, "checkpoints": folder}
    words = [SCRIPT, str(shards), *(f"--{name}={value}" for name, value in options.items())]
    operators = ROOT / "tests" / "support" / "torchvision_ops.py"
    return Command(operators, *words) if ranks == 1 else Torchrun(ranks, operators, *words)


def _steps(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step")) for path in folder.glob("step*")]


def test_a_run_that_goes_on_where_another_was_killed_ends_with_the_same_weights(few: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    killed, whole = tmp_path / "killed", tmp_path / "whole"
    with _train(few, whole) as run:
        run.until(lambda: _steps(whole))
        with run.held():
            shutil.copytree(whole, killed)
        code, out = run.end()
    assert code == 0, out
    step = max(_steps(killed))
    assert 0 < step < 2 * STEPS, "it came to its end before it could be held"
    # As if the next one had been under way: what is there of it must not be taken for a checkpoint.
    (killed / "part").mkdir(exist_ok=True)
    (killed / "part" / "model.safetensors").write_bytes(b"half")
    with _train(few, killed) as run:
        code, resumed = run.end()
    assert code == 0, resumed

    (first, second) = _EPOCH.findall(out)
    assert [first[:2], second[:2]] == [("0", str(STEPS)), ("1", str(STEPS))]
    assert all(math.isfinite(float(number)) for number in (*first, *second))
    assert float(second[2]) < float(first[2]), "it learns nothing"
    rest = _EPOCH.findall(resumed)
    assert sum(int(epoch[1]) for epoch in rest) == 2 * STEPS - step
    assert rest[-1][3] == second[3], "nor is its accuracy the same"

    assert _steps(whole) == _steps(killed) == [2 * STEPS], "older checkpoints are taken away"
    weights, again = (load_file(folder / f"step{2 * STEPS}" / "model.safetensors") for folder in (whole, killed))
    for name in weights:
        assert torch.equal(weights[name], again[name]), name


def test_two_processes_share_the_epoch_and_write_one_checkpoint(few: Path, tmp_path: Path) -> None:
    with _train(few, tmp_path, epochs=1, ranks=2) as run:
        code, out = run.end()
    assert code == 0, out
    assert [epoch[:2] for epoch in _EPOCH.findall(out)] == [("0", str(60 // (2 * 4)))]
    assert _steps(tmp_path) == [60 // (2 * 4)]
    assert len(list(tmp_path.glob("step*/random_states_*"))) == 2
