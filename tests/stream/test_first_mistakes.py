"""What someone who begins gets wrong in Python, and that the answer says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import images, others, trees
from wds_tools import ShardDataset, ShardLoader, convert_tree, transforms, verify_dataset
from wds_tools.errors import NotFoundError, OptionError, SampleError

CROP = transforms.RandomResizedCrop(8)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    convert_tree(trees.classes(folder / "tree"), folder / "data", workers=0)
    (folder / "theirs").mkdir()
    others.tar(folder / "theirs" / "x-0.tar", {"a.jpg": images.jpeg(), "a.txt": b"a cat"})
    return folder


def forgetful(image: Any) -> None:
    """A transform without its return."""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"split": "val"}, "has no split 'val', only train"),
        ({"fields": (1, 2)}, r"fields is \(1, 2\); give a tuple of names"),
        ({"max_errors": "3"}, "max_errors='3' cannot be used"),
        ({"rank": "0", "world_size": "2"}, "world_size='2' cannot be used: it must be a whole number"),
        ({"batch_size": 3}, "batch_size cannot be given to ShardDataset; give it to ShardLoader"),
        ({"shufle": True}, "shufle cannot be given to ShardDataset; did you mean shuffle"),
        ({"zzz": 1}, "zzz cannot be given to ShardDataset; what can is urls, split, shuffle"),
        ({"transform": transforms.RandomResizedCrop}, r"transform is the class RandomResizedCrop; give one .*\(…\)"),
        ({"transform": torch.nn.Identity}, "transform is the class Identity"),
        ({"transform": 224}, r"transform is 224; give a preset such as transforms.RandomResizedCrop\(224\)"),
        ({"transform": [CROP]}, "or any callable on a PIL image"),
        (
            {"transform": transforms.ColorJitter()},
            "transform is ColorJitter, which is for whole batches; call it in the",
        ),
        ({"transform": transforms.normalize}, "transform is normalize, which is for whole batches"),
    ],
)
def test_what_a_dataset_cannot_take(place: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        ShardDataset(place / "data", **options)


@pytest.mark.parametrize("transform", [CROP, np.asarray, torch.nn.Identity(), lambda image: image, type("Box", (), {})])
def test_any_callable_may_be_a_transform(place: Path, transform: Any) -> None:
    assert ShardDataset(place / "data", transform=transform).transform is transform


@pytest.mark.parametrize("dataset", [None, 5, [None]])
def test_no_place_at_all_is_said_to_be_none(dataset: Any) -> None:
    for function in (ShardDataset, verify_dataset):
        with pytest.raises(OptionError, match=r"(None|5) is no place of a dataset; give a path"):
            function(dataset)


def test_shards_that_are_named_keep_to_the_split_that_is_asked_for(place: Path) -> None:
    shards = str(place / "data" / "*.tar")
    assert len(ShardDataset(shards)) == len(ShardDataset(shards, split="train")) == 15
    with pytest.raises(OptionError, match=r"split is 'val', and by their names the given shards are of train; leave"):
        ShardDataset(shards, split="val")


def test_a_conversion_that_is_not_finished_is_no_dataset(place: Path, tmp_path: Path) -> None:
    data = trees.copy(place / "data", tmp_path / "data")
    (data / "info.json").unlink()
    assert len(ShardDataset(data)) == 15, "shards by somebody else"
    (data / ".wds_tools").mkdir()
    with pytest.raises(
        NotFoundError, match=r"is not finished: info.json, which a conversion writes last, is not there"
    ):
        ShardDataset(data)
    assert len(ShardDataset(str(data / "*.tar"))) == 15


def test_a_tilde_is_the_home_folder(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.chdir(tmp_path)
    assert len(ShardDataset("~/data")) == 15
    assert convert_tree("~/tree", "~/again", workers=0).target == str(place / "again")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["jpeg", "JPG", ".jpg", "image"])
def test_a_field_that_is_not_there_is_refused_before_anything_is_read(place: Path, name: str) -> None:
    for on_error in ("raise", "skip"):
        dataset = ShardDataset(place / "data", fields=(name, "cls", "__key__"), on_error=on_error)
        with pytest.raises(
            OptionError, match=rf"fields has '{name}', and the dataset has no such field, only cls, jpg;"
        ):
            ShardLoader(dataset, 4)


@pytest.mark.parametrize("workers", [0, 1])
def test_without_a_manifest_the_first_sample_tells_all_of_its_fields(place: Path, workers: int) -> None:
    loader = ShardLoader(ShardDataset(place / "theirs"), 4, workers)
    with pytest.raises(SampleError, match=r"it has no field 'cls' \(it has jpg, txt\); choose others with fields="):
        list(loader)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_workers": -1}, "num_workers=-1 cannot be used"),
        ({"num_workers": None}, "num_workers=None cannot be used"),
        ({"transform": CROP}, "transform cannot be given to ShardLoader; give it to ShardDataset"),
        ({"ledger": "no/bad.jsonl"}, "ledger is 'no/bad.jsonl', and there is no such folder; make it first"),
    ],
)
def test_what_a_loader_cannot_take(place: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        ShardLoader(ShardDataset(place / "data"), 4, **options)


def test_a_loader_is_of_a_dataset_and_its_epochs_are_numbers(place: Path) -> None:
    with pytest.raises(OptionError, match=r"dataset is 'data'; give a ShardDataset"):
        ShardLoader("data", 4)  # type: ignore[arg-type]
    for epoch in (-1, "x"):
        with pytest.raises(OptionError, match=r"epoch="):
            ShardLoader(ShardDataset(place / "data"), 4).set_epoch(epoch)  # type: ignore[arg-type]


def test_a_transform_that_returns_nothing_is_said_to(place: Path) -> None:
    with pytest.raises(OptionError, match=r"transform returned None; it must return what it makes of the image"):
        next(iter(ShardLoader(ShardDataset(place / "data", transform=forgetful), 4)))


def test_what_cannot_be_sent_to_workers_is_said_with_the_way_out(place: Path) -> None:
    loader = ShardLoader(
        ShardDataset(place / "data", transform=lambda image: image), 4, 1, multiprocessing_context="spawn"
    )
    with pytest.raises(
        OptionError, match=r"cannot be sent to worker processes \(.*lambda.*so no lambda and no function"
    ):
        iter(loader)


def test_an_epoch_without_a_batch_is_warned_of(place: Path) -> None:
    loader = ShardLoader(ShardDataset(place / "data"), 100, tail="drop")
    with pytest.warns(
        UserWarning, match=r"tail='drop' leaves no batch at all: 15 samples do not make a full one of 100"
    ):
        assert list(loader) == []


def test_samples_are_numbered(place: Path) -> None:
    dataset = ShardDataset(place / "data")
    assert dataset[np.int64(3)]["__key__"] == dataset[3]["__key__"]
    for number in ("x", slice(1, 3)):
        with pytest.raises(TypeError, match=r"cannot be interpreted as an integer"):
            dataset[number]  # type: ignore[index]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_size": "10MB"}, "max_size is '10MB'; it must be a number of bytes, such as 256_000_000"),
        ({"image_size": "224"}, "image_size is '224'; it must be a number of pixels"),
        ({"seed": None}, "seed is None; it must be a whole number"),
        ({"shuffle": "no"}, "shuffle is 'no'; it must be True or False"),
        ({"classes": "ant"}, "classes is 'ant'; it must be a tuple of names"),
        ({"workers": "2"}, "workers is '2'; it must be between 0"),
        ({"target": ""}, "the target is empty; give a folder or s3://bucket/prefix"),
    ],
)
def test_what_a_conversion_cannot_take(place: Path, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        convert_tree(place / "tree", **{"target": tmp_path / "new", **changes})
    assert not (tmp_path / "new").exists()


def test_a_source_that_will_not_do_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "tree" / "cat").mkdir(parents=True)
    with pytest.raises(Exception, match=r"has no images in its class folders; images end in \.jpg, "):
        convert_tree(tmp_path / "tree", tmp_path / "new", workers=0)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("transform", [CROP, transforms.Decode()])
def test_a_path_is_no_image(transform: Any) -> None:
    with pytest.raises(OptionError, match=r"'cat.jpg' is a path and no image: give the file's bytes, or a PIL image"):
        transform("cat.jpg")


def test_a_transform_that_is_not_there_is_said_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match=r"transforms has no 'Resize', only .*ResizeCenterCrop.*torchvision's"):
        transforms.Resize  # noqa: B018


def test_a_list_of_images_is_no_batch() -> None:
    with pytest.raises(OptionError, match=r"a list is no batch of images: one tensor is"):
        transforms.normalize([torch.zeros(3, 8, 8)])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"give a number for each, such as"):
        transforms.normalize(torch.zeros(1, 3, 8, 8), 0.5, 0.5)  # type: ignore[arg-type]
