"""Bad samples, bad shards and dead workers, as the loop sees them: told with their place, and never a short epoch."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import multiprocessing
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import images, streams
from wds_tools.errors import (
    DecodeError,
    NotFoundError,
    SampleError,
    StaleIndexError,
    StoreError,
    TooManyErrors,
    WorkerError,
)
from wds_tools.stream import reader
from wds_tools.stream.dataset import ShardDataset
from wds_tools.stream.loader import ShardLoader

BAD = {3: b"", 4: images.truncated(streams.picture(4)), 11: b"no picture", 12: images.bomb_png()}
GOOD = [number for number in range(streams.SAMPLES) if number not in BAD]
WORKERS = pytest.mark.parametrize("workers", [0, 2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards with bad pictures: two in the first, two in the third."""
    made = (streams.sample(n, **({"png": BAD[n]} if n in BAD else {})) for n in range(streams.SAMPLES))
    return streams.index(streams.pack(tmp_path_factory.mktemp("bad") / "data", made))


def loader(
    folder: Path | str, workers: int = 0, batch_size: int = 4, *, ledger: Any = None, **options: Any
) -> ShardLoader:
    options.setdefault("transform", streams.same)
    options.setdefault("fields", ("png", "cls"))
    return ShardLoader(ShardDataset(folder, **options), batch_size, workers, ledger=ledger)


@WORKERS
def test_a_bad_sample_is_told_with_its_place_and_its_reason(folder: Path, workers: int) -> None:
    made = loader(folder, workers, 1)
    with pytest.raises(DecodeError) as caught:
        list(made)
    text = str(caught.value)
    if not workers:
        offset = int((folder / "train-000000.idx").read_text().split("\n")[4].split(" ")[1])
        assert text == f"{folder}/train-000000.tar, key 'k0003', offset {offset}: empty file"
    assert re.match(rf"{folder}/train-00000[02]\.tar, key 'k00(03|12)', offset \d+: ", text)
    assert "\n" not in text


@WORKERS
def test_after_an_error_the_state_stands_where_the_loop_was(folder: Path, workers: int) -> None:
    made = loader(folder, workers, 1)
    with pytest.raises(DecodeError):
        list(made)
    state = made.state_dict()
    delivered = state["history"][0]["batches"] if state["history"] else 0
    again = loader(folder, workers, 1, on_error="skip")
    again.load_state_dict(state)
    assert len(again) == len(list(again)) == streams.SAMPLES - delivered
    assert any(each.key == "k0003" for each in again.errors)


def test_after_an_error_workers_end_with_their_loader(folder: Path) -> None:
    # DataLoader cannot tell workers to end once the garbage collector has them, and waits five seconds for each.
    gc.collect()
    before = multiprocessing.active_children()
    gc.disable()
    try:
        made = loader(folder, 2, 1)
        with contextlib.suppress(DecodeError):
            list(made)
        assert len(multiprocessing.active_children()) == len(before) + 2
        del made
        assert multiprocessing.active_children() == before
    finally:
        gc.enable()


@WORKERS
def test_skipped_samples_leave_their_batch_and_are_counted(folder: Path, tmp_path: Path, workers: int) -> None:
    made = loader(folder, workers, on_error="skip", ledger=tmp_path / "ledger.jsonl")
    announced = len(made)
    batches = list(made)
    assert len(batches) == announced == 6
    assert sorted(streams.flat(streams.labels(batches))) == GOOD
    assert sum(4 - len(labels) for _, labels in batches[:5]) + 3 - len(batches[5][1]) == len(BAD)
    assert sorted(each.key for each in made.errors) == [f"k{number:04d}" for number in BAD]
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert {line["key"]: line["reason"].split(" ")[0] for line in lines} == {
        "k0003": "empty",
        "k0004": "truncated",
        "k0011": "not",
        "k0012": "50000x50000",
    }
    first = next(line for line in lines if line["key"] == "k0003")
    assert set(first) == {"shard", "key", "offset", "reason"}
    assert first["shard"] == str(folder / "train-000000.tar")
    data = (folder / "train-000000.tar").read_bytes()
    assert b"k0003.cls" in data[first["offset"] - 512 : first["offset"]]


def test_the_ledger_grows_over_epochs_and_loaders(folder: Path, tmp_path: Path) -> None:
    for _ in range(2):
        made = loader(folder, on_error="skip", ledger=tmp_path / "ledger")
        for _ in range(2):
            list(made)
        assert len(made.errors) == 2 * len(BAD)
    assert len((tmp_path / "ledger").read_text().splitlines()) == 4 * len(BAD)


def test_a_ledger_that_cannot_be_written_is_an_error_that_says_so(folder: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    made = loader(folder, on_error="skip", ledger=nowhere / "ledger")
    nowhere.rmdir()  # after it was seen to be there, and before it is needed
    with pytest.raises(StoreError, match=r"cannot write .*nowhere/ledger"):
        list(made)


@WORKERS
@pytest.mark.parametrize("budget", [0, 2, 3])
def test_too_many_bad_samples_end_the_run_with_a_summary(folder: Path, workers: int, budget: int) -> None:
    made = loader(folder, workers, on_error="skip", max_errors=budget)
    with pytest.raises(
        TooManyErrors, match=rf"bad samples where max_errors is {budget} \(.*times .*\); the last: .*, key 'k00"
    ):
        list(made)
    assert len(made.errors) > budget


@WORKERS
def test_a_budget_that_is_just_enough_ends_nothing(folder: Path, workers: int) -> None:
    made = loader(folder, workers, on_error="skip", max_errors=len(BAD))
    assert len(list(made)) == len(made)


@WORKERS
def test_a_batch_in_which_all_are_bad_is_empty_and_still_a_batch(tmp_path: Path, workers: int) -> None:
    made = (streams.sample(n, **({} if n % 4 == 0 else {"cls": "x"}), png=b"bad") for n in range(8))
    streams.index(streams.pack(tmp_path / "data", made))
    run = loader(tmp_path / "data", workers, on_error="skip")
    batches = list(run)
    assert [(len(pixels), labels.tolist()) for pixels, labels in batches] == [(0, []), (0, [])]
    assert len(run.errors) == 8


@pytest.mark.parametrize(
    ("fields", "reason"),
    [(("__nothing__",), "no field"), (("cls", "__nothing__"), "no field")],
)
def test_a_field_that_is_not_there_is_a_bad_sample(folder: Path, fields: Any, reason: str) -> None:
    with pytest.raises(SampleError, match=rf"key 'k0000'.*{reason}"):
        list(loader(folder, fields=fields))
    made = loader(folder, fields=fields, on_error="skip")
    assert len(list(made)) == 6
    assert len(made.errors) == streams.SAMPLES


@WORKERS
@pytest.mark.parametrize(
    "error", [RuntimeError("size mismatch"), FileNotFoundError("my mask"), KeyError("x")], ids=repr
)
def test_a_mistake_in_a_transform_stays_what_it_is(folder: Path, workers: int, error: Exception) -> None:
    """Neither skipped as a bad sample nor taken for a dead worker."""
    made = loader(folder, workers, transform=streams.Exploder(error), on_error="skip")
    with pytest.raises(type(error), match=str(error).strip("'")) as caught:
        list(made)
    assert type(caught.value) is type(error)


@WORKERS
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_fault_28_a_shard_replaced_or_cut_ends_the_loop_under_skip_too(
    tmp_path: Path, workers: int, on_error: str
) -> None:
    folder = streams.numbered(tmp_path / "data")
    made = loader(folder, workers, on_error=on_error)
    streams.rewrite(folder / "train-000004.tar", lambda data: data[:-512])
    got: list[Any] = []
    with pytest.raises(StaleIndexError, match=r"train-000004\.tar") as caught:
        got.extend(made)
    assert "Traceback" not in str(caught.value)
    assert len(got) < len(made)


@WORKERS
def test_fault_20_a_missing_shard_ends_the_loop(tmp_path: Path, workers: int) -> None:
    folder = streams.numbered(tmp_path / "data")
    made = loader(folder, workers, on_error="skip")
    (folder / "train-000002.tar").unlink()
    with pytest.raises(NotFoundError, match=r"train-000002\.tar"):
        list(made)


@WORKERS
def test_a_loop_can_go_on_once_the_shard_is_back(tmp_path: Path, workers: int) -> None:
    folder = streams.numbered(tmp_path / "data")
    made = loader(folder, workers, 2)
    whole = (folder / "train-000003.tar").read_bytes()
    (folder / "train-000003.tar").unlink()
    got: list[Any] = []
    with pytest.raises(NotFoundError):
        got.extend(batch[-1].tolist() for batch in made)
    (folder / "train-000003.tar").write_bytes(whole)
    made.load_state_dict(made.state_dict())
    got.extend(streams.labels(made))
    assert sorted(streams.flat(got)) == list(range(streams.SAMPLES))


def test_fault_50_a_field_of_gigabytes_is_a_bad_sample(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SMALL", 0)
    monkeypatch.setattr("wds_tools.stream.opened.MAX_FIELD", 76)
    made = loader(folder, on_error="skip", transform=None)
    assert len(list(made)) == 6
    assert all("at most 76 are read" in each.reason for each in made.errors)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_fault_44_a_killed_worker_is_an_error_and_never_a_hang(folder: Path, method: str, on_error: str) -> None:
    dataset = ShardDataset(folder, fields=("png", "cls"), transform=streams.Killer(0), on_error=on_error)
    made = ShardLoader(dataset, 2, 2, multiprocessing_context=method)
    with pytest.raises(WorkerError, match=r"a worker process died.*fewer workers or smaller batches") as caught:
        list(made)
    assert "Traceback" not in str(caught.value)


@pytest.fixture(autouse=True)
def _at_most(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hang is an error here. And DataLoader waits 5 s for each worker that has raised, before it ends it: not here."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.3)
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
