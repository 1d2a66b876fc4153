"""``wds-tools reshard``: what it says, and that every option arrives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import trees
from tests.support.commands import call
from wds_tools.convert.run import convert_tree


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    convert_tree(trees.classes(folder / "tree"), folder / "in", max_count=4, workers=0)
    return folder / "in"


def test_it_says_what_it_made_and_that_there_is_nothing_to_do(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = call("reshard", dataset, out, "--max-count", "5", "--workers", "0")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"{out}: split 'train' has 15 samples in 3 shards, ")
    assert "3 classes" in said.out
    said = call("reshard", dataset, out, "--max-count", "5", "--workers", "0")
    assert (said.code, said.err) == (0, "")
    assert "nothing to do" in said.out


def test_val_and_classes(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "keep.txt").write_text("bee\n")
    words = ("--class", "cat", "--class-file", tmp_path / "keep.txt", "--val", "0.4", "--workers", "0", "--json")
    said = call("reshard", f"{dataset}/train-{{000000..000003}}.tar", tmp_path / "out", *words)
    assert (said.code, said.err) == (0, "")
    train, val = json.loads(said.out)
    assert (train["split"], val["split"], train["classes"]) == ("train", "val", 2)
    assert train["samples"] + val["samples"] == 10
    said = call("reshard", dataset, tmp_path / "part", "--share", "0:0.4", "--class", "cat", "--class", "bee", "--json")
    assert json.loads(said.out)[0]["samples"] == val["samples"]


def test_several_sources_as_a_shell_gives_them(dataset: Path, tmp_path: Path) -> None:
    shards = sorted(dataset.glob("*.tar"))
    said = call("reshard", *shards[:2], tmp_path / "out", "--workers", "0")
    assert (said.code, said.err) == (0, "")
    assert "8 samples in 1 shard" in said.out
    assert "3 classes" in said.out
    said = call("reshard", dataset, dataset / "info.json", tmp_path / "two", "--workers", "0")
    assert said.code == 1
    assert "--prefix" in said.err
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--share", "0.5"), "'0.5' is no share"),
        (("--share", "1:0"), "share is 1.0:0.0"),
        (("--val", "2"), "val is 2.0"),
        (("--val", "0.1", "--split", "val"), "leave one of them out"),
        (("--val", "0.1", "--share", "0:0.5"), "val and share both divide"),
        (("--from-split", "test"), "has no split 'test', only train"),
        (("--class", "cow"), "class 'cow' is not among the 3 classes"),
        (("--metadata",), "No such option"),
    ],
)
def test_a_wrong_option_is_a_usage_error(dataset: Path, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    answer = call("reshard", dataset, tmp_path / "out", *words)
    assert answer.code == 2
    assert said in answer.err


def test_convert_and_reshard_point_to_each_other(dataset: Path, tmp_path: Path) -> None:
    for source in (dataset, dataset / "train-000000.tar", "s3://bucket/shards"):
        said = call("convert", source, tmp_path / "out")
        assert said.code == 1
        assert "'wds-tools reshard" in said.err
    said = call("reshard", dataset.parent / "tree", tmp_path / "out")
    assert said.code == 1
    assert "'wds-tools convert'" in said.err
