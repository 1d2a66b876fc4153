"""info's facts come from the manifest, or from the indexes where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import images, others, trees
from wds_tools.convert.run import convert_tree
from wds_tools.errors import ManifestError, NotFoundError, TarError
from wds_tools.tools.describe import describe_dataset
from wds_tools.tools.indexing import index_shards


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    convert_tree(trees.classes(tmp_path / "tree"), tmp_path / "data", max_count=6, workers=0)
    return tmp_path / "data"


def test_a_manifest_tells_everything(tmp_path: Path) -> None:
    tree = trees.classes(tmp_path / "tree")
    trees.write(tree, "ant/empty.jpg", b"")
    data = tmp_path / "data"
    convert_tree(tree, data, max_count=6, on_error="skip", workers=0)
    convert_tree(trees.classes(tmp_path / "more", ("bee",), 2), data, split="val", encode="png", workers=0)
    found = describe_dataset(data)
    assert (found["place"], found["manifest"], found["classes"]) == (str(data), True, ["ant", "bee", "cat"])
    train, val = found["splits"]["train"], found["splits"]["val"]
    assert train["bytes"] == sum(path.stat().st_size for path in data.glob("train-*.tar"))
    assert train["names"] == sorted(path.name for path in data.glob("train-*.tar"))
    assert (train["samples"], train["shards"], train["skipped"]) == (15, 3, 1)
    assert sum(train["shard_samples"]) == 15
    assert (train["fields"], val["fields"]) == ({"cls": 15, "jpg": 15}, {"cls": 2, "png": 2})
    assert val["settings"]["encode"] == "png"
    json.dumps(found)


def test_without_a_manifest_the_indexes_count(dataset: Path) -> None:
    (dataset / "info.json").unlink()
    found = describe_dataset(dataset)
    assert not found["manifest"]
    assert (found["splits"]["train"]["samples"], found["splits"]["train"]["shard_samples"]) == (15, [6, 6, 3])
    assert found["splits"]["train"]["bytes"] == sum(path.stat().st_size for path in dataset.glob("*.tar"))


@pytest.mark.parametrize("content", [None, b"", b"garbage", b"v1.2 x\n", b"v1.2", b"\xff" * 200])
def test_a_count_that_nothing_tells_is_none(dataset: Path, content: bytes | None) -> None:
    (dataset / "info.json").unlink()
    (dataset / "train-000001.idx").unlink()
    if content is not None:
        (dataset / "train-000001.idx").write_bytes(content)
    found = describe_dataset(dataset)["splits"]["train"]
    assert (found["samples"], found["shard_samples"]) == (None, [6, None, 3])


def test_some_shards_of_a_dataset_are_described_by_themselves(dataset: Path) -> None:
    found = describe_dataset(f"{dataset}/train-{{000000..000001}}.tar")
    assert not found["manifest"]
    assert found["splits"]["train"]["samples"] == 12


def test_others_shards_are_described_before_and_after_they_are_indexed(tmp_path: Path) -> None:
    others.tar(tmp_path / "x-0.tar", {"a.png": images.png()})
    assert describe_dataset(tmp_path)["splits"]["x"]["samples"] is None
    index_shards(tmp_path, workers=0)
    assert describe_dataset(tmp_path)["splits"]["x"]["fields"] == {"png": 1}


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"<html>", b"\0" * 512 + b"x"])
def test_a_file_that_is_no_shard_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "images.csv").write_bytes(content)
    with pytest.raises(TarError, match=r"images\.csv: "):
        describe_dataset(tmp_path / "images.csv")


def test_what_is_not_there_or_cannot_be_read_is_refused(tmp_path: Path, dataset: Path) -> None:
    for asked in (tmp_path / "no", tmp_path / "tree", f"{tmp_path}/*.tar"):
        with pytest.raises(NotFoundError):
            describe_dataset(asked)
    others.rewrite(dataset / "info.json", b"{")
    with pytest.raises(ManifestError, match="not JSON"):
        describe_dataset(dataset)
