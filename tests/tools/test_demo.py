"""demo makes a small tree that converts, that any machine makes alike, and that a small network learns."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from tests.support import commands, trees
from wds_tools.convert.run import convert_tree
from wds_tools.errors import OptionError, TargetError
from wds_tools.tools import demo
from wds_tools.tools.demo import CLASSES, make_demo
from wds_tools.tools.verify import verify_dataset


def test_it_is_six_class_folders_of_whole_images(tmp_path: Path) -> None:
    assert make_demo(tmp_path / "demo", per_class=3, size=64) == 18
    found = trees.snapshot(tmp_path / "demo")
    assert list(found) == [f"{name}/{name}_{number:04d}.jpg" for name in CLASSES for number in range(3)]
    for data in found.values():
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            assert all(64 <= side < 80 for side in image.size)
    assert len(set(found.values())) == 18


def test_the_seed_decides_every_byte(tmp_path: Path) -> None:
    for name, options in (("a", {}), ("b", {}), ("c", {"seed": 1}), ("d", {"size": 100})):
        make_demo(tmp_path / name, per_class=2, **options)
    a, b, c, d = (trees.snapshot(tmp_path / name) for name in "abcd")
    assert a == b
    assert not set(a.values()) & (set(c.values()) | set(d.values()))


def test_more_images_begin_with_the_same_ones(tmp_path: Path) -> None:
    make_demo(tmp_path / "few", per_class=2)
    make_demo(tmp_path / "more", per_class=3)
    assert trees.snapshot(tmp_path / "few").items() <= trees.snapshot(tmp_path / "more").items()


@pytest.mark.parametrize("size", [16, 17, 50, 400])
def test_any_size_it_takes_works(tmp_path: Path, size: int) -> None:
    assert make_demo(tmp_path / "demo", per_class=1, size=size) == 6


def test_it_converts_and_verifies(tmp_path: Path) -> None:
    make_demo(tmp_path / "demo", per_class=2)
    result = convert_tree(tmp_path / "demo", tmp_path / "data", workers=0)
    assert (result.samples, result.classes, result.num_skipped) == (12, 6, 0)
    assert verify_dataset(tmp_path / "data", decode=True, workers=0).ok


def test_the_shapes_differ_and_only_the_ring_is_hollow() -> None:
    drawn = {}
    for name in CLASSES:
        image = Image.new("L", (100, 100))
        demo._shape(ImageDraw.Draw(image), name, 50, 50, 40, (255,))
        drawn[name] = image.tobytes()
        assert image.getpixel((50, 50)) == (0 if name == "ring" else 255)
    assert len(set(drawn.values())) == len(CLASSES)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, which get in the way of whatever else runs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_a_small_network_learns_it(tmp_path: Path) -> None:
    def batch(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
        paths = sorted(folder.rglob("*.jpg"))
        arrays = [np.asarray(Image.open(path).convert("L").resize((24, 24)), np.float32) for path in paths]
        pixels = torch.from_numpy(np.stack(arrays))[:, None]
        pixels = (pixels - pixels.mean((2, 3), keepdim=True)) / pixels.std((2, 3), keepdim=True)
        return pixels, torch.tensor([CLASSES.index(path.parent.name) for path in paths])

    make_demo(tmp_path / "train", per_class=100, size=48)
    make_demo(tmp_path / "val", per_class=15, size=48, seed=1)
    (seen, labels), (unseen, truth) = batch(tmp_path / "train"), batch(tmp_path / "val")
    torch.manual_seed(0)
    convolutions = [torch.nn.Conv2d(ins, outs, 3, 2, 1) for ins, outs in ((1, 16), (16, 32), (32, 48))]
    layers = [layer for convolution in convolutions for layer in (convolution, torch.nn.ReLU())]
    network = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(48 * 9, 6))
    optimizer = torch.optim.AdamW(network.parameters(), 4e-3)
    for _ in range(12):
        for part in torch.randperm(len(seen)).split(50):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(seen[part]), labels[part]).backward()
            optimizer.step()
    right = (network(unseen).argmax(1) == truth).float().mean()
    assert right > 0.5, "one in six would be chance"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"per_class": 0}, "per_class is 0"),
        ({"per_class": 100_001}, "per_class is 100001"),
        ({"size": 15}, "size is 15"),
        ({"size": 4097}, "size is 4097"),
    ],
)
def test_values_out_of_range_are_refused_before_anything_is_made(
    tmp_path: Path, options: dict[str, int], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        make_demo(tmp_path / "demo", **options)
    assert not (tmp_path / "demo").exists()


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    trees.make(tmp_path / "mine", {"file": b"1"})
    for target in (tmp_path / "mine", tmp_path / "mine" / "file", tmp_path / "mine" / "file" / "x"):
        with pytest.raises(TargetError):
            make_demo(target, per_class=1)
    assert trees.snapshot(tmp_path) == {"mine/file": b"1"}


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    assert make_demo(tmp_path, per_class=1) == 6
    assert sorted(os.listdir(tmp_path)) == sorted(CLASSES)


def test_a_disk_that_takes_no_more_leaves_nothing_half_made(tmp_path: Path) -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000));"
        "from wds_tools.cli.main import main; main()"
    )
    said = commands.run_python("-c", code, "demo", "demo", cwd=tmp_path)
    assert said.code == 1
    assert said.err.startswith("Error: cannot write 'demo': ")
    assert said.err.count("\n") == 1
    assert not os.listdir(tmp_path)


def test_a_target_without_permission_is_refused() -> None:
    with trees.open_to_all() as place:
        (place / "locked").mkdir(mode=0o555)
        with pytest.raises(TargetError, match="Permission denied; choose another folder"):
            trees.unprivileged(lambda: make_demo(place / "locked" / "demo", per_class=1))
