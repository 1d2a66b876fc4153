"""Which process of how many: what is given, then torch.distributed, then the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import streams
from wds_tools.errors import OptionError
from wds_tools.stream.dataset import ShardDataset
from wds_tools.stream.loader import ShardLoader
from wds_tools.stream.world import find_world

PROCESS = """
import json, sys
import torch.distributed as dist
from wds_tools.stream.dataset import ShardDataset
from wds_tools.stream.loader import ShardLoader
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=int(sys.argv[3]), world_size=2)
if __name__ == "__main__":
    made = ShardLoader(ShardDataset(sys.argv[1], fields=("cls",), shuffle=True), 3, int(sys.argv[4]))
    got = []
    for (labels,) in made:
        got.append(labels.tolist())
        dist.barrier()  # a rank with a batch more would wait for ever
    print(json.dumps([len(got), sum(got, []), made.state_dict()]))
    dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_a_process_alone_is_the_first_of_one() -> None:
    assert find_world() == (0, 1)


def test_the_environment_is_asked_when_the_answer_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = streams.numbered(tmp_path / "data")
    made, dataset = ShardLoader(ShardDataset(folder), 4), ShardDataset(folder)
    assert len(made) == 6
    monkeypatch.setenv("RANK", "1")
    assert find_world() == (0, 1)  # half of it says nothing
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert find_world() == (1, 2)
    assert len(made) == 3
    assert len(list(dataset)) == 11
    # What is given counts first.
    assert find_world(2, 5) == (2, 5)
    assert len(ShardLoader(ShardDataset(folder), 4, rank=0, world_size=1)) == 6
    assert len(ShardLoader(ShardDataset(folder, rank=0, world_size=1), 4)) == 6
    assert len(ShardLoader(ShardDataset(folder, rank=0, world_size=1), 4, rank=0, world_size=6)) == 1


@pytest.mark.parametrize(("rank", "world_size"), [("x", "2"), ("-1", "2"), ("2", "2"), ("0", "0"), ("", "1")])
def test_an_environment_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, rank: str, world_size: str) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)
    with pytest.raises(OptionError):
        find_world()


@pytest.mark.parametrize(("rank", "world_size"), [(0, None), (None, 2), (2, 2), (-1, 2), (0, 0)])
def test_what_is_given_and_cannot_be_is_refused(rank: int | None, world_size: int | None) -> None:
    with pytest.raises(OptionError):
        find_world(rank, world_size)


@pytest.mark.parametrize("workers", [0, 1])
def test_two_processes_of_torch_distributed_share_an_epoch_evenly(tmp_path: Path, workers: int) -> None:
    folder = streams.numbered(tmp_path / "data", 13)
    script = tmp_path / "process.py"
    script.write_text(PROCESS)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, script, folder, tmp_path / "meet", str(rank), str(workers)],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [json.loads(process.communicate(timeout=60)[0]) for process in started]
    assert [batches for batches, _, _ in said] == [3, 3]
    assert sorted(said[0][1] + said[1][1]) == list(range(13))
    assert said[0][2] == said[1][2]
