"""The end of an array of tasks: the manifest when all shards stand, else what is missing, and nothing is made."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import buckets, needs, trees
from tests.support.commands import SCRIPT, call
from tests.support.processes import assert_same
from wds_tools.convert.conversion import Conversion
from wds_tools.convert.finalize import finalize_split
from wds_tools.convert.lock import target_lock
from wds_tools.convert.run import convert_tree
from wds_tools.errors import TargetBusyError, TargetError
from wds_tools.store.local import LocalStore
from wds_tools.store.s3 import S3Store

if TYPE_CHECKING:
    from tests.conftest import Bucket

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return trees.classes(tmp_path / "tree")


def make(tree: Path, out: str | Path, *tasks: int) -> None:
    """These of three tasks, which have five shards of three samples."""
    for task in tasks:
        convert_tree(tree, out, max_count=3, task=(task, 3), workers=0)


def make_but_the_manifest(tree: Path, out: str | Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All three tasks, the last of which is killed before the manifest."""

    class Killed(BaseException):
        pass

    def killed(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Conversion, "_finish", killed)
        with pytest.raises(Killed):
            make(tree, out, 0, 1, 2)


def test_what_is_missing_is_said_with_the_tasks_to_run_again_and_nothing_is_made(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(tree, out, 0)
    before = trees.snapshot(out)
    said = call("finalize", out, "--tasks", "3")
    assert (said.code, said.out) == (1, "")
    assert said.err == (
        f"{out}: 3 of 5 shards of split 'train' are missing: train-000001.tar, train-000002.tar, train-000004.tar\n"
        "run again: --task 1/3, 2/3\n"
    )
    assert call("finalize", out).err.endswith("run the tasks again that did not end well: what stands is kept\n")
    answer = call("finalize", out, "--tasks", "3", "--json")
    assert answer.code == 1
    assert json.loads(answer.out)["run_again"] == [1, 2]
    assert trees.snapshot(out) == before
    make(tree, out, 1, 2)
    said = call("finalize", out)
    assert (said.code, said.out) == (0, f"{out}: nothing to do, split 'train' is there: 15 samples in 5 shards\n")


def test_a_shard_that_is_gone_though_its_receipt_is_there_is_missing(tree: Path, tmp_path: Path) -> None:
    make(tree, tmp_path / "out", 0)
    (tmp_path / "out" / "train-000003.tar").unlink()
    assert "train-000003.tar" in finalize_split(tmp_path / "out").missing


def test_all_shards_stand_and_the_manifest_is_written_without_the_source(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    convert_tree(tree, tmp_path / "whole", max_count=3, workers=0)
    make_but_the_manifest(tree, out, monkeypatch)
    assert not (out / "info.json").exists()
    shutil.rmtree(tree)
    said = call("finalize", out)
    assert (said.code, said.err) == (0, "")
    assert said.out == f"{out}: split 'train' is complete: 15 samples in 5 shards\n"
    assert_same(out, trees.snapshot(tmp_path / "whole"))


def test_the_same_in_a_bucket(tree: Path, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    convert_tree(tree, tmp_path / "whole", max_count=3, workers=0)
    with buckets.configured(bucket):
        place = f"{bucket.url}/{tmp_path.name}"
        make_but_the_manifest(tree, place, monkeypatch)
        assert call("finalize", place).code == 0
        assert buckets.snapshot(S3Store(place)) == trees.snapshot(tmp_path / "whole")


def test_where_nothing_was_begun_it_is_said_and_nothing_is_left(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="is no folder"):
        finalize_split(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    convert_tree(tree, tmp_path / "out", max_count=3, workers=0)
    before = trees.snapshot(tmp_path / "out")
    with pytest.raises(TargetError, match="neither a split 'val' nor a conversion to one"):
        finalize_split(tmp_path / "out", "val")
    assert_same(tmp_path / "out", before)


def test_while_a_task_is_at_work_it_is_refused(tree: Path, tmp_path: Path) -> None:
    make(tree, tmp_path / "out", 0)
    with target_lock(LocalStore(tmp_path / "out"), shared=True), pytest.raises(TargetBusyError):
        finalize_split(tmp_path / "out")


def test_the_script_of_the_page_is_an_array_of_tasks(tree: Path, tmp_path: Path) -> None:
    """As SLURM runs it: the body of the script, once for each task, with the number in its environment."""
    bash = needs.tool("bash")
    (script,) = re.findall(r"^```bash\n(#!/bin/bash\n#SBATCH.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "shards.sh").write_text(script)
    out = tmp_path / "out"
    path = f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "SRC": str(tree), "OUT": str(out), "TASKS": "2"}
    for task in "01":
        subprocess.run(
            [bash, tmp_path / "shards.sh"],
            env={**environment, "SLURM_ARRAY_TASK_ID": task},
            check=True,
            stdout=subprocess.DEVNULL,
        )
    assert call("finalize", out, "--split", "train", "--tasks", "2").code == 0
    convert_tree(tree, tmp_path / "whole", workers=0)
    assert_same(out, trees.snapshot(tmp_path / "whole"))
