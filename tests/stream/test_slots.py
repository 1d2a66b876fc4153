"""Slots of shared memory: used again and again, and never while anybody looks at them."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import streams
from wds_tools.errors import SampleError, WorkerError
from wds_tools.image.presets import RandomResizedCrop
from wds_tools.stream import slots as room
from wds_tools.stream.dataset import ShardDataset
from wds_tools.stream.loader import ShardLoader
from wds_tools.stream.slots import FREE, SENT, SPARE, TAKEN, Parcel, Slots

pytestmark = pytest.mark.skipif(not Slots.possible(), reason="this system has no memory of this kind")

SIDE = 16
ROW = 3 * SIDE * SIDE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return streams.numbered(tmp_path_factory.mktemp("numbered") / "data", 40, 9)


@pytest.fixture(autouse=True)
def _few_cores() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield
    gc.collect()


def loader(folder: Path, batch_size: int = 4, workers: int = 2, **options: Any) -> ShardLoader:
    transform = options.pop("transform", RandomResizedCrop(SIDE))
    fields, on_error = options.pop("fields", ("png", "cls")), options.pop("on_error", "raise")
    dataset = ShardDataset(folder, shuffle=True, seed=1, fields=fields, transform=transform, on_error=on_error)
    return ShardLoader(dataset, batch_size, workers, **options)


def slots_of(made: ShardLoader) -> Slots:
    slots = made.dataset.slots  # type: ignore[attr-defined]
    assert isinstance(slots, Slots)
    return slots


def states(made: ShardLoader) -> list[int]:
    return slots_of(made)._states.tolist()


def assert_right(batch: Any) -> None:
    """Each picture has its label's colour, to the last pixel."""
    pixels, labels = batch[0], batch[-1]
    assert pixels.shape == (len(labels), 3, SIDE, SIDE)
    for image, number in zip(pixels, labels.tolist(), strict=True):
        colour = torch.tensor([number % 256, number // 256, 255 - number % 256], dtype=torch.uint8)
        assert torch.equal(image, colour.view(3, 1, 1).expand(3, SIDE, SIDE))


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:wds_tools")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells")


# -- one process in both roles


def sent(slots: Slots, value: int, worker: int = 0, rows: int = 2) -> Parcel:
    claimed = slots.claim(worker, (rows, 3, 4, 5))
    assert claimed is not None
    claimed[1][...] = value
    return Parcel(claimed[0], claimed[1].shape, False)


def test_a_slot_is_free_claimed_taken_and_free_again() -> None:
    slots = Slots(2, 3, 1000)
    parcel = sent(slots, 7, worker=1)
    assert slots._states.tolist() == [FREE] * 3 + [SENT, FREE, FREE]
    tensor = slots.take(parcel)
    assert slots._states.tolist() == [FREE] * 3 + [TAKEN, FREE, FREE]
    assert (tensor.dtype, tensor.shape, tensor.unique().tolist()) == (torch.uint8, (2, 3, 4, 5), [7])
    del tensor
    assert slots._states.tolist() == [FREE] * 6


@pytest.mark.parametrize(
    "view",
    [
        lambda tensor: tensor[0],
        lambda tensor: tensor[:, 1:2, ::2],
        lambda tensor: tensor.numpy(),
        lambda tensor: np.asarray(tensor)[1, 2],
        lambda tensor: tensor.permute(0, 2, 3, 1),
        lambda tensor: memoryview(tensor.numpy()),
        lambda tensor: tensor.detach().view(-1),
        lambda tensor: torch.utils.dlpack.from_dlpack(tensor),
        lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    ],
)
def test_whatever_looks_at_the_memory_keeps_it(view: Any) -> None:
    slots = Slots(1, 1, 1000)
    kept = view(slots.take(sent(slots, 7)))
    gc.collect()
    assert slots._states.tolist() == [TAKEN]
    assert slots.claim(0, (1,)) is None
    del kept
    gc.collect()
    assert slots._states.tolist() == [FREE]


def test_a_batch_that_is_shared_with_other_processes_moves_out_of_its_slot() -> None:
    slots = Slots(1, 1, 1000)
    tensor = slots.take(sent(slots, 7)).share_memory_()
    assert slots._states.tolist() == [FREE]
    sent(slots, 8)
    assert tensor.unique().tolist() == [7]


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_loop_that_fetches_ahead_does_not_run_out(folder: Path, ahead: int) -> None:
    made = loader(folder, 2, 1)
    held: list[Any] = []
    for batch in made:
        slots = slots_of(made)
        first = slots._memory.ctypes.data
        assert first <= batch[0].data_ptr() < first + slots._memory.nbytes
        held = [*held[-ahead:], batch]
        for each in held:
            assert_right(each)


def test_slots_are_whole_and_apart() -> None:
    slots = Slots(2, 2, 5000)
    size = slots._size
    assert size >= 5000
    claimed = [slots.claim(worker, (size,)) for worker in (0, 0, 1, 1)]
    for number, each in enumerate(claimed):
        assert each is not None
        each[1][:] = number + 1
    taken = [slots.take(Parcel(each[0], (size,), False)) for each in claimed if each is not None]
    assert [tensor.unique().tolist() for tensor in taken] == [[1], [2], [3], [4]]
    assert slots._states.tolist() == [TAKEN] * 4


def test_without_a_free_slot_or_with_one_too_small_there_is_none() -> None:
    slots = Slots(2, 2, 1000)
    assert slots.claim(0, (slots._size + 1,)) is None
    assert slots._states.tolist() == [FREE] * 4
    first, second = slots.claim(0, (9,)), slots.claim(0, (9,))
    assert first is not None
    assert second is not None
    assert first[0] != second[0]
    assert slots.claim(0, (9,)) is None
    assert slots.claim(1, (9,)) is not None
    slots.give_back(first[0])
    again = slots.claim(0, (9,))
    assert again is not None
    assert again[0] == first[0]


def test_a_new_pass_has_what_was_sent_in_vain_and_not_what_is_taken() -> None:
    slots = Slots(2, 3, 1000)
    kept = slots.take(sent(slots, 1))
    sent(slots, 2)
    sent(slots, 3, worker=1)
    slots.reclaim(0)
    assert slots._states.tolist() == [TAKEN, FREE, FREE, SENT, FREE, FREE]
    assert kept.unique().tolist() == [1]


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_channels_may_come_last_in_memory(rows: int) -> None:
    slots = Slots(1, 1, 1000)
    claimed = slots.claim(0, (3, 4, 5, 3))
    assert claimed is not None
    claimed[1][...] = np.arange(180).reshape(3, 4, 5, 3)
    tensor = slots.take(Parcel(claimed[0], (rows, 4, 5, 3), True))
    assert tensor.shape == (rows, 3, 4, 5)
    assert rows == 0 or tensor.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(tensor, torch.arange(180, dtype=torch.uint8).view(3, 4, 5, 3).permute(0, 3, 1, 2)[:rows])
    del tensor
    assert slots._states.tolist() == [FREE]


def test_a_forked_process_that_lets_go_frees_nothing_of_ours() -> None:
    slots = Slots(1, 1, 1000)
    held = [slots.take(sent(slots, 7))]
    child = os.fork()
    if not child:
        held.clear()
        os._exit(0)
    os.waitpid(child, 0)
    assert slots._states.tolist() == [TAKEN]
    held.clear()
    assert slots._states.tolist() == [FREE]


@linux
def test_memory_lives_as_long_as_a_tensor_in_it_and_no_longer() -> None:
    before = descriptors(), mappings()
    slots = Slots(2, 4, 100_000)
    assert mappings() == before[1] + 1
    tensor = slots.take(sent(slots, 9))
    del slots
    gc.collect()
    assert tensor.unique().tolist() == [9]
    del tensor
    assert (descriptors(), mappings()) == before


# -- a loader


@pytest.mark.parametrize("persistent", [True, False])
def test_batches_that_are_kept_never_change(folder: Path, persistent: bool) -> None:
    made = loader(folder, persistent_workers=persistent)
    kept = [batch for _ in range(4) for batch in made]
    assert len(kept) == 4 * len(made)
    copies = [batch[0].clone() for batch in kept]
    for _ in range(2):
        for batch in made:
            batch[0].fill_(255)  # what is done to one is done to no other
    for batch, copy in zip(kept, copies, strict=True):
        assert_right(batch)
        assert torch.equal(batch[0], copy)


def test_a_loop_that_keeps_its_batches_gets_the_same_pixels_as_one_that_lets_go(folder: Path) -> None:
    passing = [pixels.clone() for pixels, _ in loader(folder)]
    kept = [pixels for pixels, _ in list(loader(folder))]
    assert all(torch.equal(*pair) for pair in zip(kept, passing, strict=True))


@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_a_loop_that_lets_go_lives_on_the_same_few_slots(folder: Path, prefetch: int) -> None:
    made = loader(folder, 2, prefetch_factor=prefetch)
    places = set()
    for _ in range(3):
        for pixels, labels in made:
            assert_right((pixels, labels))
            places.add(pixels.data_ptr())
    del pixels
    slots = slots_of(made)
    first = slots._memory.ctypes.data
    assert places <= {first + slots._size * number for number in range(slots._count)}
    assert slots._count == 2 * (prefetch + SPARE)
    gc.collect()
    assert TAKEN not in states(made)


def test_every_picture_of_a_batch_has_slots(tmp_path: Path) -> None:
    samples = [streams.sample(n, **{"mask.png": streams.picture(n)}) for n in range(30)]
    streams.index(streams.pack(tmp_path / "data", samples))
    made = loader(tmp_path / "data", 2, 1, fields=("png", "mask.png", "cls"))
    slots: Slots | None = None
    for images, masks, labels in made:
        slots = slots or slots_of(made)
        first, end = slots._memory.ctypes.data, slots._memory.ctypes.data + slots._memory.nbytes
        assert first <= images.data_ptr() < end
        assert first <= masks.data_ptr() < end
        assert torch.equal(images, masks)
        assert_right((images, labels))


def test_where_nothing_is_a_picture_there_are_no_slots(folder: Path) -> None:
    made = loader(folder, fields=("__key__", "cls"))
    assert len(list(made)) == len(made)
    assert made.dataset.slots is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("at", [0, 2, 7])
@pytest.mark.parametrize("keep", [False, True])
def test_a_pass_that_is_broken_off_loses_no_slot(folder: Path, at: int, keep: bool) -> None:
    made = loader(folder)
    undisturbed = loader(folder)
    held = []
    for _ in range(6):
        for number, batch in enumerate(made):
            assert_right(batch)
            held += [batch] * keep
            if number == at:
                break
    for _ in range(6):
        list(undisturbed)
    for ours, theirs in zip(made, undisturbed, strict=True):
        assert_right(ours)
        assert torch.equal(ours[0], theirs[0])
    for batch in held:
        assert_right(batch)
    held.clear()
    del batch, ours
    gc.collect()
    assert set(states(made)) == {FREE}


def test_a_pass_that_ends_with_an_error_loses_no_slot(tmp_path: Path) -> None:
    samples = [streams.sample(n, **({"png": b"no picture"} if n == 21 else {})) for n in range(30)]
    streams.index(streams.pack(tmp_path / "data", samples))
    made = loader(tmp_path / "data", 3, 1)
    for _ in range(2 * (2 + SPARE)):
        got: list[Any] = []
        with pytest.raises(SampleError, match="k0021"):
            got.extend(made)
        for batch in got:
            assert_right(batch)
    del batch, got
    gc.collect()
    assert TAKEN not in states(made)
    assert states(made).count(SENT) <= 1  # the one that was being filled, until the next pass


@linux
def test_epochs_take_no_more_memory(folder: Path) -> None:
    for persistent in (True, False):
        made = loader(folder, persistent_workers=persistent)
        seen = []
        for _ in range(5):
            for batch in made:
                assert_right(batch)
            del batch
            gc.collect()
            seen.append((mappings(), descriptors()))
        assert len(set(seen[1:])) == 1, seen
        assert seen[-1][0] == 1
        del made
        gc.collect()


@linux
def test_loaders_that_are_gone_leave_nothing_open(folder: Path) -> None:
    list(loader(folder, 8, 1))
    gc.collect()
    before = descriptors(), mappings()
    for _ in range(8):
        made = loader(folder, 8, 1)
        next(iter(made))
        del made
        gc.collect()
    assert (descriptors(), mappings()) == before


def test_a_batch_outlives_its_loader(folder: Path) -> None:
    made = loader(folder)
    batch = next(iter(made))
    whole = list(made)
    del made
    gc.collect()
    assert_right(batch)
    for each in whole:
        assert_right(each)


@pytest.mark.parametrize("how", ["no memfd", "no room", "pinned"])
def test_without_slots_everything_works(folder: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if how == "no memfd":
        monkeypatch.setattr(Slots, "possible", staticmethod(lambda: False))
    elif how == "pinned":
        options["pin_memory"] = True
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * 4 * room.PAGE, limits[1]))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*pin_memory.*")
            made = loader(folder, **options)
            for _ in range(2):
                batches = list(made)
                assert sum(len(batch[-1]) for batch in batches) == 40
                for batch in batches:
                    assert_right(batch)
            assert made.dataset.slots is None  # type: ignore[attr-defined]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("possible", [True, False])
def test_batches_without_samples_arrive(folder: Path, possible: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not possible:
        monkeypatch.setattr(Slots, "possible", staticmethod(lambda: False))
    got = [batch for rank in range(3) for batch in loader(folder, 9, 2, rank=rank, world_size=3)]
    assert min(len(batch[-1]) for batch in got) < 9
    for batch in got:
        assert_right(batch)
    many = [list(loader(folder, 1, 2, rank=rank, world_size=7)) for rank in range(7)]
    assert len({len(batches) for batches in many}) == 1
    every = [batch for batches in many for batch in batches]
    assert 0 in {len(batch[-1]) for batch in every}
    assert sorted(label for batch in every for label in batch[-1].tolist()) == list(range(40))
    for batch in every:
        assert_right(batch)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_fault_46_slots_are_shared_with_workers_however_they_start(folder: Path, method: str) -> None:
    made = loader(folder, 4, 2, multiprocessing_context=method)
    alone = loader(folder, 4, 2)
    places = set()
    for _ in range(2):
        for ours, theirs in zip(made, alone, strict=True):
            assert_right(ours)
            assert torch.equal(ours[0], theirs[0])
            places.add(ours[0].data_ptr())
    assert len(places) <= slots_of(made)._count


def test_a_copy_of_the_dataset_has_no_part_in_the_slots(folder: Path) -> None:
    made = loader(folder)
    next(iter(made))
    assert slots_of(made)
    assert pickle.loads(pickle.dumps(made.dataset)).slots is None


def test_fault_44_a_worker_that_is_killed_in_a_slot_is_an_error(folder: Path) -> None:
    made = loader(folder, transform=streams.DeadlyCrop(SIDE, 17))
    kept = []
    with pytest.raises(WorkerError, match="worker process died"):
        kept += made
    for batch in kept:
        assert_right(batch)
