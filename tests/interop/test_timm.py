"""timm's reader takes info.json for its own, and the shards with it."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.support import interop, needs
from wds_tools.tools.indexing import index_shards


@pytest.fixture(scope="module")
def reader() -> ModuleType:
    """timm's reader module; its package imports torchvision, whose operators may have to be defined first."""
    needs.package("tests.support.torchvision_ops")
    for name in ("torchvision", "timm"):
        needs.package(name)
    import timm.data.readers.reader_wds

    module: ModuleType = timm.data.readers.reader_wds
    return module


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> interop.Made:
    return interop.make(tmp_path_factory.mktemp("timm"))


def test_it_finds_the_splits_in_info_json(reader: ModuleType, made: interop.Made) -> None:
    info = reader._load_info(str(made.root))
    train, val = (reader._parse_split_info(split, info) for split in ("train", "val"))
    assert (train.name, train.num_samples, train.shard_lengths) == ("train", 16, (6, 6, 4))
    assert train.filenames == tuple(path.name for path in made.shards())
    assert (val.name, val.num_samples, val.filenames) == ("val", 3, ("val-000000.tar",))


def test_it_finds_them_by_brace_notation_too(reader: ModuleType, made: interop.Made) -> None:
    info = reader._load_info(str(made.root))
    assert reader._parse_split_info("train-{000000..000002}.tar|16", info).num_samples == 16


@pytest.mark.parametrize("split", ["train", "val"])
def test_it_reads_every_sample_with_its_label(reader: ModuleType, made: interop.Made, split: str) -> None:
    found = reader.ReaderWds(str(made.root), split=split)
    assert len(found) == len(made.files[split])
    rows = list(found)
    assert all(image.mode == "RGB" and image.size == (8, 8) for image, _ in rows)
    names = reader.ReaderWds(str(made.root), split=split).filenames()
    keys = [name.removesuffix(".JPEG") for name in names]
    assert sorted(keys) == sorted(made.files[split])
    assert [label for _, label in rows] == [made.label(key) for key in keys]


def test_it_trains_on_them(reader: ModuleType, made: interop.Made) -> None:
    found = reader.ReaderWds(str(made.root), split="train", is_training=True, batch_size=4, seed=1)
    assert len(list(found)) == 16


def test_it_reads_others_shards_once_they_are_indexed(reader: ModuleType, made: interop.Made) -> None:
    (made.root / "info.json").unlink()
    index_shards(made.root, workers=0)
    assert len(list(reader.ReaderWds(str(made.root), split="train"))) == 16
