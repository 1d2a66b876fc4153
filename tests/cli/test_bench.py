"""``wds-tools bench``: what it prints, how it ends, and what it leaves running."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.support import images, streams
from tests.support.commands import call, run, run_python
from tests.support.processes import Command

QUICK = ("--seconds", "0.05", "--batch-size", "4", "--image-size", "16")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos") / "data"
    made = [streams.sample(n, png=None, jpg=images.jpeg(64, 48)) for n in range(40)]
    return streams.index(streams.pack(folder, made, per_shard=10))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples without images, so that a long benchmark is soon at its loaders."""
    made = [streams.sample(n, png=None, txt=b"x" * 1000) for n in range(200)]
    return streams.index(streams.pack(tmp_path_factory.mktemp("texts") / "data", made, per_shard=50))


def test_a_table_a_verdict_and_advice(photos: Path) -> None:
    said = run("bench", photos, *QUICK, "--workers", "0,2", "--target", "0.5")
    assert (said.code, said.err) == (0, "")
    first, second, third, *table, verdict, target, advice = [line for line in said.out.splitlines() if line][:14]
    assert re.fullmatch(rf"{photos}: 40 samples in 4 shards, \d+ cores? to use", first)
    assert re.fullmatch(r"jpg, 64x48 pixels and [\d.]+ k?B on average of 40, without restart tiles", second)
    assert third == "batches of 4 from jpg, cls; 0.05 s a measurement"
    assert table[0].strip() == "images/s"
    assert [line.split("  ")[0] for line in table[1:]] == [
        "read, one process",
        "read again, one process",
        "decode whole images, one process",
        "decode, crop, batch, one process",
        "load with 0 workers",
        "load with 2 workers",
        "main process, at most",
    ]
    assert all(re.search(r"  [\d,.]+(  |$)", line) for line in table[1:])
    assert re.match(r"(CPU|I/O)-bound: the bottleneck is (decoding|the disk|the main process); ", verdict)
    assert target.startswith("0.50 samples/s are reached with 0 workers (")
    assert advice.startswith("- ")
    assert "\x1b" not in said.out


def test_json_is_all_that_is_printed(photos: Path) -> None:
    said = call("bench", photos, *QUICK, "--workers", "0", "--json", "--no-cold")
    assert (said.code, said.err) == (0, "")
    value = json.loads(said.out)
    assert value["samples"] == 40
    assert value["measured"]["loads"][0]["workers"] == 0
    assert value["verdict"]["bottleneck"] in ("decode", "disk", "main process")
    assert value["options"]["cold"] is False


def test_without_images_there_is_nothing_to_decode(texts: Path) -> None:
    said = call("bench", texts, *QUICK, "--workers", "0")
    assert said.code == 0
    assert "no image field, so nothing to decode" in said.out
    assert "samples/s" in said.out.splitlines()[4]
    assert "RandomResizedCrop" not in said.out


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="there is no affinity here")
def test_more_workers_than_cores_are_tried_without_a_word(photos: Path) -> None:
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);from wds_tools.cli.main import main; main()"
    )
    said = run_python("-c", code, "bench", photos, *QUICK, "--workers", "2")
    assert (said.code, said.err) == (0, "")
    assert "1 core to use" in said.out


def test_several_shards_and_a_server_may_be_named(photos: Path) -> None:
    names = sorted(photos.glob("*.tar"))[:2]
    assert "20 samples in 2 shards" in call("bench", *names, *QUICK, "--workers", "0").out
    with streams.served(photos) as server:
        said = call("bench", server.url, *QUICK, "--workers", "0")
    assert said.code == 0
    assert "from the network" in said.out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("nope", 1, "'nope' does not exist in "),
        ("data --split val", 2, "has no split 'val', only train"),
        ("data --workers -1", 2, "'-1' is no list of numbers; write for example 0,1,2,4"),
        ("data --workers 0,x", 2, "'0,x' is no list of numbers"),
        ("data --workers 2000", 2, "workers is 2000; it must be between 0 (no processes) and 1024"),
        ("data --batch-size 0", 2, "batch_size is 0; it must be between 1 and"),
        ("data --image-size 0", 2, "image_size is 0; it must be between 1 and 65535"),
        ("data --seconds 0", 2, "seconds is 0.0; it must be between 0.01 and 3600"),
        ("data --target 0", 2, "target is 0.0; it must be a rate above 0"),
        ("pipe:cat", 2, "asks for a shell command, which is never run; give a path"),
        ("http://127.0.0.1:1/x:y@/", 1, "given up after 9 attempts in a row"),
        ("", 2, "Missing argument 'DATASET...'"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_sentence(
    photos: Path, monkeypatch: pytest.MonkeyPatch, words: str, code: int, says: str
) -> None:
    from wds_tools.store.remote import RemoteStore
    from wds_tools.store.retry import Timing

    monkeypatch.setattr(RemoteStore, "timing", Timing(sleep=lambda seconds: None))
    monkeypatch.chdir(photos.parent)
    said = call("bench", *words.split())
    assert (said.code, said.out) == (code, "")
    assert "Traceback" not in said.err
    assert [line for line in said.err.splitlines() if line.startswith("Error: ")] == said.err.splitlines()[-1:]
    assert says in said.err


def test_fault_43_an_interrupt_ends_workers_with_130_and_no_trace(texts: Path) -> None:
    with Command("bench", texts, "--seconds", "60", "--workers", "2") as command:
        assert command.until(lambda: len(command.workers()) == 2)
        for worker in command.workers():  # else one that has just begun would print a trace, now and then
            blocked = re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{worker}/status").read_text())
            assert blocked
            assert int(blocked[1], 16) >> (signal.SIGINT - 1) & 1
        command.signal(signal.SIGINT, everyone=True)
        said = command.finish()
    assert (said.code, said.out) == (130, "")
    assert said.err.strip() == "Interrupted."


def test_fault_44_a_worker_that_is_killed_is_an_error_and_no_hang(texts: Path) -> None:
    with Command("bench", texts, "--seconds", "60", "--workers", "2") as command:
        assert command.until(lambda: len(command.workers()) == 2)
        os.kill(max(command.workers()), signal.SIGKILL)
        said = command.finish()
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("Error: a worker process died")
