"""webdataset reads what we write, whole and decoded, and what it writes we read and hand back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from PIL import Image

from tests.support import images, interop, needs, shards, trees
from tests.support.interop import Made
from wds_tools.convert.run import convert_tree
from wds_tools.tools.extract import extract_dataset
from wds_tools.tools.indexing import index_shards
from wds_tools.tools.verify import verify_dataset


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return interop.make(tmp_path_factory.mktemp("webdataset"))


def read(urls: Any) -> webdataset.WebDataset:
    return webdataset.WebDataset(urls, shardshuffle=False)


@pytest.mark.parametrize("split", ["train", "val"])
def test_every_sample_is_there_once_byte_for_byte_and_labelled_by_its_folder(made: Made, split: str) -> None:
    samples = list(read([str(path) for path in made.shards(split)]))
    assert len(samples) == len(made.files[split])
    found = {sample["__key__"]: sample.get("jpg") or sample.get("png") for sample in samples}
    assert found == made.files[split]
    assert all(int(sample["cls"]) == made.label(sample["__key__"]) for sample in samples)


def test_brace_notation_and_decoding_give_images_and_numbers(made: Made) -> None:
    dataset = read(f"{made.root}/train-{{000000..000002}}.tar").decode("pil").to_tuple("__key__", "jpg;png", "cls")
    rows = list(dataset)
    assert len(rows) == 16
    for key, image, label in rows:
        assert image.size == (8, 8)
        assert label == made.label(key)


@pytest.mark.parametrize("kind", ["png", "webp", "npy"])
def test_other_fields_decode_too(made: Made, tmp_path: Path, kind: str) -> None:
    convert_tree(trees.classes(tmp_path / "tree", count=2), tmp_path / "data", encode=kind, workers=0)
    for sample in read(f"{tmp_path}/data/train-000000.tar").decode("rgb8"):
        assert (sample[kind].shape, sample[kind].dtype) == ((8, 8, 3), np.uint8)


def test_tiled_images_decode_to_the_pixels_that_they_had(tmp_path: Path) -> None:
    needs.kernel()
    files = {
        f"cat/{number}.jpg": images.sampled_jpeg(kind, 301, 203) for number, kind in enumerate(("444", "422", "420"))
    }
    tree = trees.make(tmp_path / "tree", files | {"cat/3.jpg": images.jpeg(301, 203, "L")})
    result = convert_tree(tree, tmp_path / "data", tile=True, workers=0)
    assert result.tiled == 4
    for sample in read(f"{tmp_path}/data/train-000000.tar").decode("pil"):
        with Image.open(tree / f"{sample['__key__']}.jpg") as original:
            assert np.array_equal(np.asarray(sample["jpg"]), np.asarray(original.convert("RGB")))


def test_siblings_and_metadata_decode_too(tmp_path: Path) -> None:
    tree = trees.make(tmp_path / "tree", {"cat/a b.jpg": None, "cat/a b.txt": "grüß".encode()})
    convert_tree(tree, tmp_path / "data", siblings=True, metadata=True, workers=0)
    (sample,) = read(f"{tmp_path}/data/train-000000.tar").decode("pil")
    assert (sample["__key__"], sample["txt"], sample["cls"]) == ("cat/a_b", "grüß", 0)
    assert sample["json"] == {"path": "cat/a b.jpg", "class": "cat"}


def test_what_its_writer_writes_is_indexed_verified_and_extracted(tmp_path: Path) -> None:
    written = [
        {"__key__": f"{number:02d}", "png": images.png(6, 4), "cls": number % 2, "json": {"n": number}, "txt": "ü"}
        for number in range(7)
    ]
    (tmp_path / "data").mkdir()
    shards.webdataset_shards(tmp_path / "data", written, 3)
    assert index_shards(tmp_path / "data", workers=0).samples == 7
    report = verify_dataset(tmp_path / "data", decode=True, workers=0)
    assert report.ok, report.problems
    extract_dataset(tmp_path / "data", tmp_path / "back")
    back = trees.snapshot(tmp_path / "back")
    assert len(back) == 7 * 3
    for sample in written:
        stem = f"{sample['cls']}/{sample['__key__']}"
        assert back[f"{stem}.png"] == sample["png"]
        assert json.loads(back[f"{stem}.json"]) == sample["json"]
        assert back[f"{stem}.txt"] == "ü".encode()
