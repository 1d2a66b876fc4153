"""`ShardLoader`: whole batches, as many as announced, the same pixels whoever makes them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support import images, streams
from wds_tools.errors import OptionError, WdsToolsError
from wds_tools.stream.batch import Batcher, Fields
from wds_tools.stream.dataset import ShardDataset
from wds_tools.stream.loader import ShardLoader

TAILS = ["even", "drop", "pad"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return streams.numbered(tmp_path_factory.mktemp("numbered") / "data")


def loader(
    folder: Path, batch_size: int = 4, workers: int = 0, *, transform: Any = None, **options: Any
) -> ShardLoader:
    fields = options.pop("fields", ("png", "cls"))
    dataset = ShardDataset(folder, shuffle=True, seed=options.pop("seed", 1), fields=fields, transform=transform)
    return ShardLoader(dataset, batch_size, workers, **options)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("world", [1, 2, 5])
@pytest.mark.parametrize("batch_size", [1, 4, 30])
def test_len_is_exact_and_the_same_on_every_rank_before_the_first_batch(
    folder: Path, tail: Any, world: int, batch_size: int
) -> None:
    made = [loader(folder, batch_size, tail=tail, rank=rank, world_size=world) for rank in range(world)]
    announced = {len(each) for each in made}
    got = [streams.labels(each) for each in made]
    assert announced == {len(batches) for batches in got}
    every = streams.flat(batch for batches in got for batch in batches)
    if tail == "even":
        assert sorted(every) == list(range(streams.SAMPLES))
    elif tail == "drop":
        assert len(every) == len(set(every))
    else:
        assert set(every) == set(range(streams.SAMPLES))
    if tail != "even":
        assert {len(batch) for batches in got for batch in batches} <= {batch_size}


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_batch_is_a_tuple_of_tensors_keys_and_bytes(folder: Path, workers: int) -> None:
    made = loader(folder, 6, workers, transform=streams.same, fields=("jpg;png;webp", "__key__", "cls"))
    for batch in made:
        assert type(batch) is tuple
        pixels, keys, labels = batch
        assert (pixels.dtype, pixels.shape[1:]) == (torch.uint8, (3, 8, 8))
        assert (labels.dtype, labels.shape) == (torch.int64, (len(keys),))
        assert [streams.number_of(image) for image in pixels] == labels.tolist()
        assert keys == [f"k{number:04d}" for number in labels.tolist()]
    raw, labels = next(iter(loader(folder, 6, workers)))
    assert raw == [streams.picture(number) for number in labels.tolist()]


def test_workers_change_nothing_but_the_order_of_batches(folder: Path) -> None:
    alone = [sorted(batch) for batch in streams.labels(loader(folder))]
    one = [sorted(batch) for batch in streams.labels(loader(folder, 4, 1))]
    assert alone == one
    for workers in (2, 3):
        got = streams.labels(loader(folder, 4, workers))
        assert sorted(streams.flat(got)) == list(range(streams.SAMPLES))
        assert got == streams.labels(loader(folder, 4, workers, prefetch_factor=1))


def noise(folder: Path, workers: int, **options: Any) -> dict[int, Any]:
    """By label: what a random transform made of the picture."""
    made = loader(folder, 5, workers, transform=streams.noisy, **options)
    return {
        label: image.tolist() for pixels, labels in made for label, image in zip(labels.tolist(), pixels, strict=True)
    }


def test_a_random_transform_gives_the_same_pixels_whoever_has_the_sample(folder: Path) -> None:
    alone = noise(folder, 0)
    assert len({str(pixels) for pixels in alone.values()}) == streams.SAMPLES
    for workers in (1, 3):
        assert noise(folder, workers) == alone
    halves = [noise(folder, 0, rank=rank, world_size=2) for rank in range(2)]
    assert halves[0] | halves[1] == alone
    assert noise(folder, 0, seed=2) != alone


def test_a_random_transform_gives_other_pixels_in_another_epoch(folder: Path) -> None:
    made = loader(folder, 30, transform=streams.noisy)
    passes = []
    for _ in range(2):
        ((pixels, labels),) = made
        passes.append(pixels[labels.argsort()])
    assert not torch.equal(*passes)


def test_two_pictures_of_a_sample_are_augmented_alike(tmp_path: Path) -> None:
    made = [streams.sample(n, **{"mask.png": streams.picture(n)}) for n in range(4)]
    streams.index(streams.pack(tmp_path / "data", made))
    (batch,) = loader(tmp_path / "data", 9, transform=streams.noisy, fields=("png", "mask.png"))
    assert torch.equal(*batch)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_processs_own_random_state_is_left_alone(folder: Path, workers: int) -> None:
    def state() -> tuple[Any, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[union-attr]

    before = state()
    for _ in loader(folder, 4, workers, transform=streams.noisy):
        assert state() == before
    assert state() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_the_epoch_moves_on_by_itself(folder: Path, workers: int) -> None:
    made = loader(folder, 4, workers)
    passes = []
    for epoch in range(5):
        assert made.epoch == epoch
        passes.append(streams.labels(made))
        assert len(made) == len(passes[-1]) == 6
    assert len({str(each) for each in passes}) == 5
    assert all(sorted(streams.flat(each)) == list(range(streams.SAMPLES)) for each in passes)
    made.set_epoch(1)
    assert streams.labels(made) == passes[1]
    assert made.epoch == 2
    fresh = loader(folder, 4, workers, persistent_workers=False) if workers else loader(folder)
    fresh.set_epoch(3)
    assert [streams.labels(fresh), streams.labels(fresh)] == passes[3:]


@pytest.mark.parametrize("workers", [0, 2])
def test_persistent_workers_are_the_same_processes_over_epochs(folder: Path, workers: int) -> None:
    made = loader(folder, 23, workers, transform=process)
    seen = {int(pixels[0, 0, 0, 0]) for _ in range(5) for pixels, labels in made if len(labels)}
    assert len(seen) <= max(workers, 1)


def process(image: Any) -> Any:
    import os

    return torch.full((1, 1, 1), os.getpid())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_pass_that_is_broken_off_is_followed_by_a_whole_one(folder: Path, workers: int, at: int) -> None:
    made, other = loader(folder, 4, workers), loader(folder, 4, workers)
    undisturbed = [streams.labels(other) for _ in range(3)]
    for number, _ in enumerate(made):
        if number == at:
            break
    assert streams.labels(made) == undisturbed[1]
    iter(made)  # one that delivers nothing is no pass
    assert streams.labels(made) == undisturbed[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_two_loops_over_one_loader_are_an_error_and_never_a_short_epoch(folder: Path, workers: int) -> None:
    made = loader(folder, 4, workers)
    first = iter(made)
    next(first)
    second = iter(made)
    got = streams.labels([next(second)])
    with pytest.raises(WdsToolsError, match="one ShardLoader for each loop"):
        next(first)
    got += streams.labels(second)
    assert sorted(streams.flat(got)) == list(range(streams.SAMPLES))


def test_choosing_an_epoch_in_the_middle_of_a_loop_ends_it_with_an_error(folder: Path) -> None:
    made = loader(folder)
    going = iter(made)
    next(going)
    made.set_epoch(5)
    with pytest.raises(WdsToolsError, match="another place chosen"):
        next(going)
    assert streams.labels(made)
    assert made.epoch == 6


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"sampler": [1]},
        {"batch_sampler": [[1]]},
        {"drop_last": True},
        {"collate_fn": list},
        {"in_order": False},
        {"tail": "short"},
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"workers": -1},
        {"rank": 1},
        {"rank": 3, "world_size": 3},
    ],
)
def test_what_cannot_be_is_refused_when_the_loader_is_made(folder: Path, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        loader(folder, **options)


def test_a_pipeline_with_stages_is_refused_with_help(folder: Path) -> None:
    with pytest.raises(OptionError, match=r"wds\.WebLoader"):
        ShardLoader(ShardDataset(folder).decode("pil"))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_fault_46_every_way_to_start_workers_works(folder: Path, method: str) -> None:
    made = loader(folder, 4, 2, transform=streams.same, multiprocessing_context=method, rank=1, world_size=2)
    alone = loader(folder, 4, 2, rank=1, world_size=2)
    made.dataset._reader.read(0, 0)  # type: ignore[attr-defined]
    for _ in range(2):
        assert streams.labels(made) == streams.labels(alone)


# ── what becomes of a sample ──────────────────────────────────────────────────────────────────────────────────


def batch_of(values: list[bytes], transform: Any, name: str = "png") -> Any:
    batch = Batcher(Fields((name,)), transform).begin(len(values))
    for value in values:
        batch.add({name: value}, 0)
    return batch.done()[0]


@pytest.mark.parametrize(
    ("transform", "shape", "dtype"),
    [
        (streams.same, (3, 30, 40), torch.uint8),
        (lambda image: image.convert("L"), (1, 30, 40), torch.uint8),
        (lambda image: image.resize((5, 7)), (3, 7, 5), torch.uint8),
        (lambda image: np.asarray(image, np.float32), (30, 40, 3), torch.float32),
        (lambda image: torch.zeros(2), (2,), torch.float32),
    ],
)
def test_what_a_transform_gives_becomes_one_tensor(transform: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    got = batch_of([images.png(), images.jpeg()], transform)
    assert (tuple(got.shape), got.dtype) == ((2, *shape), dtype)


def test_pictures_of_different_shapes_stay_apart() -> None:
    got = batch_of([images.png(3, 4), images.png(4, 3)], streams.same)
    assert [tuple(each.shape) for each in got] == [(3, 4, 3), (3, 3, 4)]
    assert batch_of([images.png()], lambda image: "text") == ["text"]


def test_pixels_are_the_pictures() -> None:
    (got,) = batch_of([images.png()], streams.same)
    assert np.array_equal(got.permute(1, 2, 0).numpy(), images.pixels())
    (turned,) = batch_of([images.png()], lambda image: image.transpose(Image.Transpose.ROTATE_90))
    assert tuple(turned.shape) == (3, 40, 30)


@pytest.mark.parametrize(
    ("value", "label"), [(b"7", 7), (b"12\n", 12), (b" 0 ", 0), (b"-1", -1), (b"9" * 18, 10**18 - 1)]
)
def test_labels_are_whole_numbers(value: bytes, label: int) -> None:
    assert batch_of([value], None, "cls").tolist() == [label]


@pytest.mark.parametrize("value", [b"", b"x", b"1.5", b"9" * 19, b"0x10", b"1 2", b"\xb2", b"--1", b"1_000"])
def test_what_is_no_label_is_a_bad_sample(value: bytes) -> None:
    with pytest.raises(WdsToolsError, match="not a class index"):
        batch_of([value], None, "cls")


def test_a_batch_without_samples_has_empty_entries() -> None:
    pixels, labels, keys = Batcher(Fields(("png", "cls", "__key__")), streams.same).begin(4).done()
    assert (len(pixels), labels.dtype, len(labels), keys) == (0, torch.int64, 0, [])


def test_the_first_of_several_fields_is_taken() -> None:
    fields = Fields(("jpg;png", "cls"))
    assert fields.wanted == {"jpg", "png", "cls"}
    assert fields.take({"png": 1, "jpg": 2}, 0) == 2
    assert fields.take({"png": 1}, 0) == 1
    with pytest.raises(WdsToolsError, match=r"no field 'jpg;png'"):
        fields.take({"__key__": "a", "cls": 1}, 0)


def test_over_http_batches_are_the_same(folder: Path) -> None:
    with streams.served(folder) as server:
        remote = loader(server.url, 4, 2, transform=streams.noisy)  # type: ignore[arg-type]
        local = loader(folder, 4, 2, transform=streams.noisy)
        for ours, theirs in zip(remote, local, strict=True):
            assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


@pytest.fixture(autouse=True)
def _few_cores() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield
