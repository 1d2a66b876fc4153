"""GNU tar lists, checks and unpacks what we write, and what it packs we read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import interop, needs, others, trees
from wds_tools.tools.extract import extract_dataset
from wds_tools.tools.indexing import index_shards
from wds_tools.tools.verify import verify_dataset


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> interop.Made:
    return interop.make(tmp_path_factory.mktemp("gnu"))


def tar(*words: object) -> str:
    done = subprocess.run([needs.tool("tar"), *map(str, words)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), "not even a warning"
    return done.stdout


def test_it_lists_every_member_of_every_sample_in_order(made: interop.Made) -> None:
    names = [name for path in made.shards() for name in tar("tf", path).split()]
    assert len(names) == 2 * len(made.files["train"])
    images, labels = names[::2], names[1::2]
    assert [name.rpartition(".")[0] for name in images] == [name.removesuffix(".cls") for name in labels]
    assert sorted(name.removesuffix(".cls") for name in labels) == sorted(made.files["train"])


def test_members_say_the_same_whoever_made_them(made: interop.Made) -> None:
    for path in made.shards():
        for line in tar("--numeric-owner", "--utc", "-tvf", path).splitlines():
            mode, owner, _, date, clock, _ = line.split()
            assert (mode, owner, date, clock) == ("-r--r--r--", "0/0", "1970-01-01", "00:00")


def test_it_unpacks_the_source_files(made: interop.Made, tmp_path: Path) -> None:
    for path in made.shards():
        tar("-xf", path, "-C", tmp_path)
    found = trees.snapshot(tmp_path)
    labels = {name.removesuffix(".cls"): int(data) for name, data in found.items() if name.endswith(".cls")}
    assert {name.rpartition(".")[0]: data for name, data in found.items() if not name.endswith(".cls")} == made.files[
        "train"
    ]
    assert labels == {key: made.label(key) for key in made.files["train"]}


@pytest.mark.parametrize("form", ["ustar", "gnu", "posix", "v7"])
def test_what_it_packs_by_name_is_indexed_verified_and_extracted(tmp_path: Path, form: str) -> None:
    tree = trees.classes(tmp_path / "tree")
    trees.write(tree, "ant/a name.txt", b"with a blank")
    (tmp_path / "data").mkdir()
    others.gnu_tar(tmp_path / "data" / "train-000000.tar", tree, f"--format={form}")
    assert index_shards(tmp_path / "data", workers=0).samples == 16
    report = verify_dataset(tmp_path / "data", decode=True, workers=0)
    assert report.ok, report.problems
    extract_dataset(tmp_path / "data", tmp_path / "back")
    assert trees.snapshot(tmp_path / "back") == trees.snapshot(tree)


def test_what_it_packs_out_of_order_is_refused(tmp_path: Path) -> None:
    trees.make(tmp_path / "tree", {"a.jpg": None, "a.txt": b"", "b.jpg": None, "b.txt": b""})
    shard = tmp_path / "x.tar"
    tar("-C", tmp_path / "tree", "-cf", shard, "a.jpg", "b.jpg", "a.txt", "b.txt")
    (problem,) = verify_dataset([shard], workers=0).problems
    assert "key 'a' comes again" in problem.message
    assert "tar --sort=name" in problem.message
