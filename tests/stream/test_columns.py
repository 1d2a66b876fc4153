"""Columns: each field becomes what its kind is made into, straight into the batch's memory, and a bad sample leaves no trace."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import images, streams
from wds_tools.draws import sample_rng_seed
from wds_tools.errors import DecodeError, SampleError, StaleIndexError
from wds_tools.image import codec
from wds_tools.image.arrays import encode_npy
from wds_tools.image.presets import Decode, RandomResizedCrop, ResizeCenterCrop, ScaleJitterCrop
from wds_tools.stream.batch import Batcher, Fields
from wds_tools.stream.dataset import ShardDataset
from wds_tools.stream.loader import ShardLoader
from wds_tools.stream.slots import FREE, Slots

SEED = 3
SAMPLES = 21
SIZE = (20, 28)

PRESETS = {
    "crop": RandomResizedCrop(SIZE),
    "center": ResizeCenterCrop(40, SIZE, flip=0.5),
    "jitter": ScaleJitterCrop(32, 60, SIZE),
}


@pytest.fixture(autouse=True)
def _few_cores() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def packed(folder: Path, field: str, make: Callable[[int], bytes], count: int = SAMPLES, **more: Any) -> Path:
    samples = [streams.sample(number, png=None, **{field: make(number)}, **more) for number in range(count)]
    return streams.index(streams.pack(folder, samples))


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("photographs") / "data", "jpg", streams.photograph)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("arrays") / "data", "npy", streams.array)


def loader(folder: Path | str, workers: int, transform: Any, **options: Any) -> ShardLoader:
    kept = {name: options.pop(name) for name in ("fields", "on_error", "shuffle") if name in options}
    dataset = ShardDataset(
        folder,
        **{"shuffle": True, "seed": SEED, "fields": ("jpg;npy", "__seed__", "cls"), "transform": transform, **kept},
    )
    return ShardLoader(dataset, options.pop("batch_size", 4), workers, **options)


def by_label(batches: Any) -> dict[int, tuple[int, Any]]:
    """Seed and picture of each sample; nothing twice."""
    found = [
        (label, (seed, image.clone()))
        for pixels, seeds, labels in batches
        for label, seed, image in zip(labels.tolist(), seeds.tolist(), pixels, strict=True)
    ]
    assert len(dict(found)) == len(found)
    return dict(found)


# -- presets: the batch is what the preset makes of each sample


def alone(preset: Any, epoch: int, number: int) -> Any:
    seed = int(sample_rng_seed(SEED, epoch, [number])[0])
    return seed, torch.from_numpy(preset(streams.photograph(number), seed))


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_are_what_the_preset_makes_of_each_sample_in_every_epoch(
    photographs: Path, workers: int, preset: Any
) -> None:
    made = loader(photographs, workers, preset)
    for epoch in range(2):
        batches = []
        for pixels, seeds, labels in made:
            assert (pixels.dtype, pixels.shape) == (torch.uint8, (len(labels), 3, *SIZE))
            assert pixels.is_contiguous()
            assert (seeds.dtype, seeds.shape) == (torch.int64, labels.shape)
            batches.append((pixels.clone(), seeds, labels))
        assert min(len(labels) for *_, labels in batches) < 4  # the last ones are short
        found = by_label(batches)
        assert sorted(found) == list(range(SAMPLES))
        for number, (seed, image) in found.items():
            expected_seed, expected = alone(preset, epoch, number)
            assert seed == expected_seed
            assert torch.equal(image, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"multiprocessing_context": "spawn", "workers": 1},
        {"persistent_workers": False, "workers": 2},
        {"workers": 2, "prefetch_factor": 1},
        {"workers": 0, "batch_size": 30},
        {"workers": 3, "batch_size": 1},
    ],
    ids=str,
)
def test_pixels_do_not_depend_on_how_they_are_loaded(photographs: Path, options: dict[str, Any]) -> None:
    preset = PRESETS["crop"]
    made = loader(photographs, options.pop("workers"), preset, **options)
    for epoch in range(2):
        for number, (_, image) in by_label(list(made)).items():
            assert torch.equal(image, alone(preset, epoch, number)[1])


def test_the_rest_of_a_resumed_epoch_has_the_same_pixels_whoever_resumes_it(photographs: Path) -> None:
    preset = PRESETS["crop"]
    made = loader(photographs, 2, preset)
    list(made)
    going = iter(made)
    begun = by_label([next(going), next(going)])
    state = made.state_dict()
    for workers, world in ((0, 1), (2, 1), (1, 2)):
        rest: dict[int, Any] = {}
        for rank in range(world):
            other = loader(photographs, workers, preset, batch_size=3, rank=rank, world_size=world)
            other.load_state_dict(state)
            rest |= by_label(list(other))
        assert sorted([*begun, *rest]) == list(range(SAMPLES))
        for number, (_, image) in (begun | rest).items():
            assert torch.equal(image, alone(preset, 1, number)[1])


def test_ranks_have_their_own_samples_of_the_same_pixels(photographs: Path) -> None:
    preset = PRESETS["jitter"]
    found: dict[int, Any] = {}
    for rank in range(3):
        found |= by_label(list(loader(photographs, 1, preset, rank=rank, world_size=3)))
    assert sorted(found) == list(range(SAMPLES))
    assert all(torch.equal(image, alone(preset, 0, number)[1]) for number, (_, image) in found.items())


def test_seeds_are_numbers_that_a_batched_jitter_takes(photographs: Path) -> None:
    from wds_tools.image.jitter import ColorJitter

    jitter = ColorJitter(0.4, 0.4, 0.4)
    seen: list[dict[int, Any]] = []
    for workers in (0, 2):
        batches = loader(photographs, workers, PRESETS["crop"])
        seen.append(by_label((jitter(pixels, seeds), seeds, labels) for pixels, seeds, labels in batches))
    assert len({seed for seed, _ in seen[0].values()}) == SAMPLES
    assert all(0 <= seed < 2**63 for seed, _ in seen[0].values())
    for number, (seed, image) in seen[0].items():
        assert seen[1][number][0] == seed
        assert torch.equal(seen[1][number][1], image)


# -- a bad sample


def with_bad(folder: Path, field: str, make: Callable[[int], bytes], bad: dict[int, dict[str, bytes]]) -> Path:
    samples = [
        streams.sample(number, png=None, **{field: make(number), **bad.get(number, {})}) for number in range(SAMPLES)
    ]
    return streams.index(streams.pack(folder, samples))


def cut(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


BAD = {
    0: {"jpg": b"no picture"},
    1: {"cls": b"one"},
    7: {"jpg": cut(streams.photograph(7)) + b"\xff\xd9"},  # which only decoding shows
    8: {"jpg": b""},
    20: {"cls": b""},
}


@pytest.mark.parametrize("fields", [("jpg", "__seed__", "cls"), ("cls", "jpg", "__seed__")])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_sample_leaves_no_trace_in_the_memory_of_a_batch(
    tmp_path: Path, workers: int, fields: tuple[str, ...]
) -> None:
    preset = PRESETS["crop"]
    folder = with_bad(tmp_path / "data", "jpg", streams.photograph, BAD)
    made = loader(folder, workers, preset, on_error="skip", fields=fields, shuffle=False)
    order = [fields.index(name) for name in ("jpg", "__seed__", "cls")]
    for epoch in range(2):
        found = by_label([tuple(batch[number] for number in order) for batch in made])
        # Pillow decodes what is there of number 7: that it is cut is not always an error.
        assert set(range(SAMPLES)) - set(found) - {7} == set(BAD) - {7}
        for number, (_, image) in found.items():
            if number not in BAD:
                assert torch.equal(image, alone(preset, epoch, number)[1])
    assert {"k0000", "k0001", "k0008", "k0020"} <= {bad.key for bad in made.errors}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_sample_is_raised_with_its_place(tmp_path: Path, workers: int) -> None:
    folder = with_bad(tmp_path / "data", "jpg", streams.photograph, {7: {"jpg": b"no picture"}})
    with pytest.raises(SampleError, match=r"train-000001\.tar, key 'k0007', offset \d+"):
        list(loader(folder, workers, PRESETS["crop"]))


# -- Decode: pictures as they are


def pixels_of(data: bytes) -> Any:
    return torch.from_numpy(codec.decode(data)).permute(2, 0, 1)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_arrays_of_one_shape_come_as_they_are(arrays: Path, workers: int) -> None:
    made = loader(arrays, workers, Decode(), fields=("npy", "__seed__", "cls"))
    for _ in range(2):
        batches = []
        for pixels, seeds, labels in made:
            assert (pixels.dtype, pixels.shape[1:]) == (torch.uint8, (3, 80, 72))
            assert pixels.is_contiguous(memory_format=torch.channels_last)
            batches.append((pixels.clone(), seeds, labels))
        found = by_label(batches)
        assert sorted(found) == list(range(SAMPLES))
        assert all(torch.equal(image, pixels_of(streams.array(number))) for number, (_, image) in found.items())


def test_arrays_are_read_straight_into_the_batch(arrays: Path) -> None:
    made = loader(arrays, 0, Decode(), fields=("npy", "cls"), batch_size=SAMPLES)
    batch = made.dataset._batcher.begin(3)  # type: ignore[attr-defined]
    reader = made.dataset._reader  # type: ignore[attr-defined]
    reads = [reader.read(0, number, batch.landings) for number in range(1)]
    assert type(reads[0]["npy"]) is bytes  # the first one tells what they look like
    batch.add(reads[0], 0)
    sample = reader.read(0, 1, batch.landings)
    assert isinstance(sample["npy"], list)
    batch.add(sample, 0)
    pixels, labels = batch.done()
    assert torch.equal(pixels, torch.stack([pixels_of(streams.array(number)) for number in range(2)]))
    assert labels.tolist() == [0, 1]


def npy(array: Any, version: tuple[int, int] = (1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    return file.getvalue()


def noise(number: int, shape: tuple[int, ...] = (80, 72, 3), dtype: Any = np.uint8) -> Any:
    return np.random.default_rng(number).integers(0, 100, shape).astype(dtype)


ODD: dict[str, bytes] = {
    "another shape of as many bytes": npy(noise(100, (72, 80, 3))),
    "of as many bytes, and longer": npy(noise(101, (40, 144, 3))),
    "another shape": npy(noise(102, (81, 72, 3))),
    "Fortran order": npy(np.asfortranarray(noise(103))),
    "header of version 2": npy(noise(104), (2, 0)),
    "grey": npy(noise(105, (80, 216))),
    "grey with an axis": npy(noise(106, (80, 216, 1))),
    "grey of the same height and width": npy(noise(107, (80, 72))),
    "a picture of another kind": images.png(72, 80),
    "a large picture of another kind": images.saved(images.picture(500, 400), "png", compress_level=0),
    "bytes behind it": npy(noise(108)) + b"more",
}
WRONG: dict[str, bytes] = {
    "another type": npy(noise(110, (80, 72, 3), np.int8)),
    "a wide type": npy(noise(111, (40, 36, 3), np.uint32)),
    "four channels": npy(noise(112, (80, 54, 4))),
    "channels first": npy(noise(113, (3, 80, 72))),
    "flat": npy(noise(114, (80 * 72 * 3,))),
    "cut": npy(noise(115))[:-1],
    "cut in its header": npy(noise(116))[:60],
    "no array": bytes(17_408),
    "a header without an array": npy(noise(117))[:128],
}
FIELDS = [("npy", "cls"), ("jpg;npy", "cls"), ("cls", "npy"), ("npy", "npy", "cls"), ("npy", "jpg;npy", "cls")]


def read_all(folder: Path | str, count: int, fields: tuple[str, ...], workers: int = 0, **options: Any) -> list[Any]:
    made = loader(folder, workers, Decode(), fields=fields, batch_size=count, shuffle=False, **options)
    (batch,) = made
    return list(batch)


@pytest.mark.parametrize("fields", FIELDS, ids=str)
@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_arrays_that_differ_come_right_wherever_they_are(
    tmp_path: Path, odd: bytes, at: int, fields: tuple[str, ...]
) -> None:
    files = [streams.array(number) for number in range(4)]
    files[at] = odd
    folder = packed(tmp_path / "data", "npy", files.__getitem__, 4)
    batch = read_all(folder, 4, fields)
    for name, value in zip(fields, batch, strict=True):
        if name == "cls":
            assert value.tolist() == [0, 1, 2, 3]
            continue
        expected = [pixels_of(data) for data in files]
        assert isinstance(value, torch.Tensor) == (len({each.shape for each in expected}) == 1)
        assert all(torch.equal(*pair) for pair in zip(value, expected, strict=True))


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("odd", [*ODD.values(), *WRONG.values()], ids=[*ODD, *WRONG])
def test_arrays_that_come_as_bytes_are_the_same(odd: bytes, at: int) -> None:
    files = [streams.array(number) for number in range(5)]
    files[at] = odd
    batch = Batcher(Fields(("npy",)), Decode()).begin(5)
    for number, data in enumerate(files):
        if number == at and odd in WRONG.values():
            with pytest.raises(DecodeError):
                batch.add({"npy": data}, 0)
        else:
            batch.add({"npy": data}, 0)
    expected = [pixels_of(data) for data in files if data not in WRONG.values()]
    (value,) = batch.done()
    assert isinstance(value, torch.Tensor) == (len({each.shape for each in expected}) == 1)
    assert all(torch.equal(*pair) for pair in zip(value, expected, strict=True))


@pytest.mark.skipif(not Slots.possible(), reason="this system has no memory of this kind")
def test_batches_that_are_no_tensor_give_their_slots_back(tmp_path: Path) -> None:
    files = [npy(noise(number, (80 + number % 2, 72, 3))) for number in range(20)]
    folder = packed(tmp_path / "data", "npy", files.__getitem__, len(files))
    made = loader(folder, 1, Decode(), fields=("npy", "cls"), shuffle=False)
    for images_, labels in made:
        assert isinstance(images_, list)
        assert all(torch.equal(i, pixels_of(files[n])) for i, n in zip(images_, labels.tolist(), strict=True))
    assert set(made.dataset.slots._states.tolist()) == {FREE}  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_from_workers_and_batch_after_batch(tmp_path: Path, workers: int) -> None:
    files = [data for odd in ODD.values() for data in (streams.array(1), odd, streams.array(2), odd, odd)]
    folder = packed(tmp_path / "data", "npy", files.__getitem__, len(files))
    made = loader(folder, workers, Decode(), fields=("npy", "__seed__", "cls"), batch_size=5)
    for _ in range(2):
        found = by_label(list(made))
        assert sorted(found) == list(range(len(files)))
        assert all(torch.equal(image, pixels_of(files[number])) for number, (_, image) in found.items())


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_is_no_picture_is_a_bad_sample_wherever_it_is(tmp_path: Path, wrong: bytes, at: int) -> None:
    files = [streams.array(number) for number in range(4)]
    files[at] = wrong
    folder = packed(tmp_path / "data", "npy", files.__getitem__, 4)
    with pytest.raises(DecodeError, match=f"key 'k000{at}'"):
        read_all(folder, 4, ("npy", "cls"))
    pixels, labels = read_all(folder, 4, ("npy", "cls"), on_error="skip")
    others = [number for number in range(4) if number != at]
    assert labels.tolist() == others
    assert torch.equal(pixels, torch.stack([pixels_of(files[number]) for number in others]))


@pytest.mark.parametrize("fields", [("npy", "cls"), ("cls", "npy")])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_shape_of_a_batch_is_decided_by_what_is_kept(tmp_path: Path, workers: int, fields: tuple[str, ...]) -> None:
    files = [npy(noise(0, (50, 200, 3))), *(streams.array(number) for number in range(1, 6))]
    folder = with_bad(tmp_path / "data", "npy", (files * 9).__getitem__, {0: {"cls": b"x"}, 1: {"cls": b"y"}})
    made = loader(folder, workers, Decode(), fields=fields, batch_size=5, shuffle=False, on_error="skip")
    first = next(iter(made))
    pixels, labels = first if fields[0] == "npy" else first[::-1]
    assert labels.tolist() == [2, 3, 4]
    assert isinstance(pixels, torch.Tensor)
    assert torch.equal(pixels, torch.stack([pixels_of(files[number]) for number in (2, 3, 4)]))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_shape_of_one_batch_does_not_bind_the_next(tmp_path: Path, workers: int) -> None:
    files = [npy(noise(number, (80, 72, 3) if number < 4 else (72, 80, 3))) for number in range(8)]
    folder = packed(tmp_path / "data", "npy", files.__getitem__, 8)
    made = loader(folder, workers, Decode(), fields=("npy", "cls"), batch_size=4, shuffle=False)
    first, second = (pixels for pixels, _ in made)
    assert first.shape == (4, 3, 80, 72)
    assert second.shape == (4, 3, 72, 80)
    assert torch.equal(
        torch.cat([first.flatten(), second.flatten()]), torch.cat([pixels_of(f).flatten() for f in files])
    )


def test_a_field_that_others_want_as_bytes_is_read_as_bytes(arrays: Path) -> None:
    made = loader(arrays, 1, Decode(), fields=("npy", "npy;json"), shuffle=False)
    pixels, raw = next(iter(made))
    assert raw == [streams.array(number) for number in range(4)]
    assert torch.equal(pixels, torch.stack([pixels_of(data) for data in raw]))


@pytest.mark.parametrize("workers", [0, 2])
def test_pictures_of_other_kinds_come_whole(photographs: Path, workers: int) -> None:
    for _, (_, image) in by_label(list(loader(photographs, workers, Decode()))).items():
        assert image.shape == (3, 64, 96)
    found = by_label(list(loader(photographs, workers, Decode())))
    assert all(torch.equal(image, pixels_of(streams.photograph(number))) for number, (_, image) in found.items())


@pytest.mark.parametrize("workers", [0, 2])
def test_small_arrays_come_right_as_well(tmp_path: Path, workers: int) -> None:
    folder = packed(tmp_path / "data", "npy", lambda number: streams.array(number, 8, 9))
    found = by_label(list(loader(folder, workers, Decode(), fields=("npy", "__seed__", "cls"))))
    assert all(torch.equal(image, pixels_of(streams.array(n, 8, 9))) for n, (_, image) in found.items())


def test_samples_without_an_array_among_those_with_one(tmp_path: Path) -> None:
    samples = [
        streams.sample(n, png=None, **({"npy": streams.array(n)} if n % 2 else {"jpg": images.jpeg(72, 80)}))
        for n in range(8)
    ]
    folder = streams.index(streams.pack(tmp_path / "data", samples))
    for workers in (0, 1):
        pixels, _ = read_all(folder, 8, ("jpg;npy", "cls"), workers)
        for number, image in enumerate(pixels):
            assert torch.equal(image, pixels_of(streams.array(number) if number % 2 else images.jpeg(72, 80)))


def test_an_empty_first_shard_tells_nothing_about_arrays(tmp_path: Path) -> None:
    folder = packed(tmp_path / "data", "npy", streams.array)
    (folder / "a.tar").write_bytes(bytes(1024))
    (folder / "a.idx").write_text("v1.2 0\n")
    shards = [str(folder / name) for name in ("a.tar", "train-000000.tar")]
    made = loader(shards, 1, Decode(), fields=("npy", "__seed__", "cls"))  # type: ignore[arg-type]
    assert sorted(by_label(list(made))) == list(range(streams.PER_SHARD))
    assert made.dataset.slots is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "header",
    [b"{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776, 1099511627776, 3)}", b"{}"],
)
def test_fault_50_a_first_array_that_lies_about_its_size_is_one_bad_sample(tmp_path: Path, header: bytes) -> None:
    text = header.ljust(117) + b"\n"
    lying = b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text + bytes(17_280)
    files = [lying, *(streams.array(number) for number in range(1, 4))]
    folder = packed(tmp_path / "data", "npy", files.__getitem__, 4)
    for workers in (0, 1):
        with pytest.raises(DecodeError, match="key 'k0000'"):
            read_all(folder, 4, ("npy", "cls"), workers)
        pixels, labels = read_all(folder, 4, ("npy", "cls"), workers, on_error="skip")
        assert labels.tolist() == [1, 2, 3]
        assert torch.equal(pixels, torch.stack([pixels_of(data) for data in files[1:]]))


@pytest.mark.parametrize("workers", [0, 1])
def test_over_http_arrays_are_the_same(arrays: Path, workers: int) -> None:
    with streams.served(arrays) as server:
        found = by_label(list(loader(server.url, workers, Decode(), fields=("npy", "__seed__", "cls"))))
    assert sorted(found) == list(range(SAMPLES))
    assert all(torch.equal(image, pixels_of(streams.array(number))) for number, (_, image) in found.items())


@pytest.mark.parametrize("workers", [0, 1])
def test_fault_28_arrays_cut_while_their_shard_is_open_are_no_pictures(tmp_path: Path, workers: int) -> None:
    folder = packed(tmp_path / "data", "npy", streams.array, 5)
    made = loader(folder, 0, Decode(), fields=("npy", "cls"), batch_size=1, shuffle=False)
    going = iter(made)
    next(going), next(going)
    shard = folder / "train-000000.tar"
    shard.chmod(0o644)
    with open(shard, "r+b") as file:
        file.truncate(3 * 20_000)
    with pytest.raises(StaleIndexError, match="wds-tools index"):
        list(going)


@pytest.mark.skipif(not Slots.possible(), reason="this system has no memory of this kind")
def test_arrays_land_in_slots(arrays: Path) -> None:
    made = loader(arrays, 1, Decode(), fields=("npy", "__seed__", "cls"))
    for pixels, _, _ in made:
        slots = made.dataset.slots  # type: ignore[attr-defined]
        first = slots._memory.ctypes.data
        assert first <= pixels.data_ptr() < first + slots._memory.nbytes


def test_a_layout_is_learned_once_and_again_when_it_changes() -> None:
    batcher = Batcher(Fields(("npy",)), Decode())
    batch = batcher.begin(4)
    (landing,) = batch.landings.values()
    data = streams.array(0)
    assert landing(len(data)) is None
    batch.add({"npy": data}, 0)
    pieces = landing(len(data))
    assert pieces is not None
    assert sum(map(len, pieces)) == len(data)
    assert landing(len(data) + 1) is None
    batch.add({"npy": encode_npy(noise(1, (9, 9, 3)))}, 0)
    assert landing(len(data)) is None  # there are no rows any more
    assert [tuple(image.shape) for image in batch.done()[0]] == [(3, 80, 72), (3, 9, 9)]
