from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.ranks import DEADLINE, ROOT, Torchrun, environment
from wds_tools.convert.run import convert_tree
from wds_tools.tools.demo import make_demo

TRAIN = ROOT / "examples" / "train.py"
SAMPLES = 599  # not a multiple of anything that is tried
EVERY = 5


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    make_demo(folder / "images", size=32)
    (folder / "images/ring/ring_0007.jpg").unlink()
    convert_tree(folder / "images", folder / "shards", max_count=47, workers=0)
    return folder / "shards"


def _keys() -> Counter[str]:
    names = ("circle", "cross", "diamond", "ring", "square", "triangle")
    return Counter(f"{name}/{name}_{n:04d}" for name in names for n in range(100) if (name, n) != ("ring", 7))


def _words(shards: Path, folder: Path) -> list[str]:
    options = {"epochs": 1, "batch-size": 4, "every": EVERY, "checkpoint": folder / "run.pt", "ledger": folder / "keys"}
    return [str(shards), *(f"--{name}={value}" for name, value in options.items())]


def _ledger(folder: Path) -> dict[str, list[str]]:
    return {file.name: file.read_text().split() for file in sorted((folder / "keys").glob("step*.txt"))}


def _power_cut(run: Torchrun) -> None:
    run.kill()


def _one_rank_dies(run: Torchrun) -> None:
    os.kill(run.ranks()[-1], signal.SIGKILL)


@pytest.mark.parametrize(
    ("disaster", "ranks", "workers"), [(_power_cut, 3, 0), (_one_rank_dies, 1, 2)], ids=["2 to 3 ranks", "2 to 1 rank"]
)
def test_a_killed_epoch_goes_on_with_another_number_of_processes_and_sees_each_sample_once(
    shards: Path, tmp_path: Path, disaster: Callable[[Torchrun], None], ranks: int, workers: int
) -> None:
    checkpoint = tmp_path / "run.pt"
    with Torchrun(2, TRAIN, *_words(shards, tmp_path)) as run:
        run.until(checkpoint.exists)
        disaster(run)
        code, out = run.end()
    assert code != 0
    assert "epoch 0" not in out, "it came to its end before it could be killed"

    # What counts as seen is what the last checkpoint vouches for, and no more.
    saved = torch.load(checkpoint, weights_only=True)
    step = saved["step"]
    assert step >= EVERY
    assert step % EVERY == 0
    assert saved["loader"]["epoch"] == 0
    assert saved["loader"]["history"] == [{"world": 2, "workers": 0, "batch_size": 4, "batches": step}]
    before = {name: keys for name, keys in _ledger(tmp_path).items() if int(name[4:10]) <= step}
    assert len(before) == 2 * step // EVERY
    seen_before = Counter(key for keys in before.values() for key in keys)
    assert seen_before.total() == len(seen_before) == 2 * 4 * step

    # As if the kill had fallen between a rank's ledger and the checkpoint: samples that will come again.
    lost = tmp_path / "keys" / f"step{step + 5 * EVERY:06d}-rank9.txt"
    lost.write_text("ring/ring_0001\n")

    with Torchrun(ranks, TRAIN, *_words(shards, tmp_path), f"--workers={workers}") as run:
        code, out = run.end()
    assert code == 0, out
    rest = SAMPLES - seen_before.total()
    assert f"epoch 0: {-(-rest // (4 * ranks))} steps, {rest} samples" in out

    after = _ledger(tmp_path)
    assert {name: after[name] for name in before} == before
    assert not lost.exists()
    seen_after = Counter(key for name in after.keys() - before.keys() for key in after[name])
    assert not seen_before & seen_after
    assert seen_before + seen_after == _keys()
    assert torch.load(checkpoint, weights_only=True)["loader"]["epoch"] == 1


def test_it_learns_in_a_single_process_without_torchrun(shards: Path, tmp_path: Path) -> None:
    both = shutil.copytree(shards, tmp_path / "shards")
    make_demo(tmp_path / "val", per_class=20, size=32, seed=1)
    convert_tree(tmp_path / "val", both, split="val", workers=0)
    words = [str(both), "--epochs=6", "--batch-size=8", f"--checkpoint={tmp_path / 'run.pt'}"]
    done = subprocess.run(
        [sys.executable, str(TRAIN), *words], capture_output=True, text=True, env=environment(), timeout=DEADLINE
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"epoch (\d): 75 steps, 599 samples, accuracy (\S+), on val (\S+)", done.stdout)
    assert [epoch for epoch, _, _ in found] == list("012345")
    assert min(map(float, found[-1][1:])) > 4 / 6, done.stdout


def test_a_finished_run_started_again_has_nothing_to_do(shards: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(TRAIN), *_words(shards, tmp_path)]
    for said in ("epoch 0: 150 steps", ""):
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=DEADLINE)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(said)
        assert bool(done.stdout) == bool(said)
        assert "val" not in done.stdout
