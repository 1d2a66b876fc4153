"""Killed or interrupted at any moment and run again, a conversion ends with the bytes of an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import images, needs, processes, trees
from tests.support.processes import Command, Traced, assert_nothing_looks_whole, assert_same, run, traced
from wds_tools.convert.run import convert_tree

WRITING = "write,pwrite64,fsync,rename,unlink,rmdir"
SMALL = ("--max-count", "14")  # three shards
SLOW = ("--max-count", "4", "--image-size", "24", "--workers", "2")  # thirty shards with work in them


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.classes(tmp_path_factory.mktemp("small"), "abcd", 10)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images that take about a millisecond each."""
    picture = images.jpeg(400, 300)
    files = {f"{name}/{number:02d}.jpg": picture + bytes(number) for name in "abcd" for number in range(30)}
    return trees.make(tmp_path_factory.mktemp("slow"), files)


def made(folder: Path, source: Path, *options: str) -> dict[str, bytes]:
    """The files of an undisturbed run of the command."""
    said = run("convert", source, folder, *options)
    assert (said.code, said.err) == (0, "")
    return trees.snapshot(folder)


@pytest.fixture(scope="module")
def small_made(small: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return made(tmp_path_factory.mktemp("made") / "small", small, *SMALL)


@pytest.fixture(scope="module")
def slow_made(slow: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return made(tmp_path_factory.mktemp("made") / "slow", slow, *SLOW)


def killed(log: Path, when: str, *words: str | os.PathLike[str]) -> Traced:
    """Run the command and kill it before a system call, as in ``rename:signal=KILL:when=3``."""
    return traced(log, WRITING, *words, inject=when)


# ---------------------------------------------------------------- killed before each call that changes a file


def calls_of(folder: Path, log: Path, *words: str | os.PathLike[str]) -> dict[str, list[int]]:
    undisturbed = traced(log, WRITING, *words)
    assert undisturbed.said.code == 0, undisturbed
    return processes.steps(undisturbed, folder)


@pytest.mark.parametrize("call", WRITING.split(","))
def test_fault_42_killed_before_any_write_flush_rename_or_removal_a_second_run_makes_the_same_bytes(
    call: str, small: Path, small_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    log, out = tmp_path / "log", tmp_path / "first"
    numbers = calls_of(out, log, "convert", small, out, *SMALL, "--workers", "0")[call]
    assert len(numbers) >= (1 if call in ("rmdir", "pwrite64") else 12)
    for number in numbers:
        out = tmp_path / f"killed-{number}"
        trace = killed(log, f"{call}:signal=KILL:when={number}", "convert", small, out, *SMALL, "--workers", "0")
        assert trace.said.code == -signal.SIGKILL, trace
        assert_nothing_looks_whole(out)
        standing = processes.standing(out)
        convert_tree(small, out, max_count=14, workers=0)
        assert_same(out, small_made)
        assert processes.identities(out, set(standing)) == standing, f"{trace}: shards were made that stood"


def test_fault_42_killed_again_and_again_every_run_goes_on_where_the_last_one_stopped(
    small: Path, small_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    stood: dict[str, tuple[int, int]] = {}
    for shards in (1, 2, 3, 3):  # three entries, the plan, and one shard's three files; then not even the sizes
        trace = killed(tmp_path / "log", "rename:signal=KILL:when=8", "convert", small, out, *SMALL, "--workers", "0")
        assert trace.said.code == (-signal.SIGKILL if len(stood) < 3 else 0), trace
        standing = processes.standing(out)
        assert len(standing) == shards
        assert stood.items() <= standing.items()
        stood = standing
    assert_same(out, small_made)


def test_fault_42_killed_while_it_tiles_a_second_run_makes_the_same_bytes(tmp_path: Path) -> None:
    needs.kernel()
    files = {f"a/{number:02d}.jpg": images.jpeg(200 + number, 150) for number in range(12)}
    source = trees.make(tmp_path / "tree", files)
    words = ("--max-count", "4", "--tile", "--workers", "0")
    expected = made(tmp_path / "undisturbed", source, *words)
    for number in (5, 8, 11):  # in the first shard, in the second, in the third
        out = tmp_path / f"killed-{number}"
        trace = killed(tmp_path / "log", f"rename:signal=KILL:when={number}", "convert", source, out, *words)
        assert trace.said.code == -signal.SIGKILL, trace
        assert_nothing_looks_whole(out)
        said = run("convert", source, out, *words)
        assert "12 of 12 JPEGs tiled" in said.out, said
        assert_same(out, expected)


@pytest.mark.parametrize("call", ["rename", "fsync", "write"])
def test_fault_42_killed_with_workers_a_second_run_makes_the_same_bytes(
    call: str, small: Path, small_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    for number in range(1, 8):  # each process counts for itself: whoever comes to it first is killed
        out = tmp_path / f"killed-{number}"
        trace = killed(
            tmp_path / "log", f"{call}:signal=KILL:when={number}", "convert", small, out, *SMALL, "--workers", "2"
        )
        assert trace.said.code in (-signal.SIGKILL, 1, 0), trace
        assert "Traceback" not in trace.said.err, trace
        assert_nothing_looks_whole(out)
        standing = processes.standing(out)
        assert run("convert", small, out, *SMALL, "--workers", "2").code == 0
        assert_same(out, small_made)
        assert processes.identities(out, set(standing)) == standing


# ---------------------------------------------------------------- killed where something was already


@pytest.mark.parametrize("call", ["rename", "unlink"])
def test_fault_42_a_split_stays_whole_while_another_one_is_killed(call: str, small: Path, tmp_path: Path) -> None:
    val = trees.classes(tmp_path / "val", "abcd", 3)
    before = made(tmp_path / "out", small, *SMALL)
    words = ("--split", "val", "--max-count", "6", "--workers", "0")
    trees.copy(tmp_path / "out", tmp_path / "both")
    numbers = calls_of(tmp_path / "both", tmp_path / "log", "convert", val, tmp_path / "both", *words)[call]
    expected = trees.snapshot(tmp_path / "both")
    for number in {*numbers[1::4], numbers[-1]}:
        out = trees.copy(tmp_path / "out", tmp_path / f"killed-{number}")
        trace = killed(tmp_path / "log", f"{call}:signal=KILL:when={number}", "convert", val, out, *words)
        assert trace.said.code == -signal.SIGKILL, trace
        assert_nothing_looks_whole(out, others=True)
        now = trees.snapshot(out)
        assert all(now[name] == before[name] for name in before if name.startswith("train"))
        convert_tree(val, out, split="val", max_count=6, workers=0)
        assert_same(out, expected)


@pytest.mark.parametrize("call", ["rename", "unlink"])
def test_fault_42_killed_while_a_split_is_replaced_the_same_call_replaces_it_and_leaves_nothing_of_the_old_one(
    call: str, small: Path, small_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    old = tmp_path / "old"
    made(old, small, "--max-count", "9", "--seed", "1")  # five shards
    made(old, small, "--max-count", "30", "--split", "val")
    trees.copy(old, tmp_path / "new")
    words = (*SMALL, "--workers", "0", "--overwrite")
    numbers = calls_of(tmp_path / "new", tmp_path / "log", "convert", small, tmp_path / "new", *words)[call]
    expected = trees.snapshot(tmp_path / "new")
    assert expected.items() >= {name: data for name, data in small_made.items() if "train" in name}.items()
    for number in {*numbers[1::4], numbers[-1]}:
        out = trees.copy(old, tmp_path / f"killed-{number}")
        trace = killed(tmp_path / "log", f"{call}:signal=KILL:when={number}", "convert", small, out, *words)
        assert trace.said.code == -signal.SIGKILL, trace
        assert_nothing_looks_whole(out, others=True)
        convert_tree(small, out, max_count=14, workers=0, overwrite=True)
        assert_same(out, expected)


def test_fault_42_shards_of_a_killed_run_with_other_options_are_no_part_of_the_dataset(
    small: Path, small_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    words = ("--max-count", "5", "--workers", "0")  # eight shards
    undisturbed = traced(tmp_path / "log", "rename", "convert", small, tmp_path / "eight", *words)
    numbers = [number for number, line in enumerate(undisturbed.calls, start=1) if "train-000007" in line]
    assert len(numbers) == 4  # entries, shard, index, receipt
    for number in numbers:
        out = tmp_path / f"killed-{number}"
        trace = killed(tmp_path / "log", f"rename:signal=KILL:when={number}", "convert", small, out, *words)
        assert trace.said.code == -signal.SIGKILL, trace
        convert_tree(small, out, max_count=14, workers=0)
        assert_same(out, small_made)


def test_fault_42_a_receipt_of_an_earlier_plan_does_not_speak_for_the_shard_of_a_later_one(tmp_path: Path) -> None:
    names = [f"{name}/{number}.jpg" for name in "ab" for number in range(20)]
    size = max(len(trees.picture(name)) for name in names)
    source = trees.make(
        tmp_path / "source", {name: trees.picture(name, size - len(trees.picture(name))) for name in names}
    )
    words = ("--max-count", "14", "--workers", "0")  # all shards of two plans have the same sizes
    expected = made(tmp_path / "undisturbed", source, *words)
    out = tmp_path / "out"
    # Everything but sizes and manifest stands; then a shard of another order takes the first one's place.
    killed(tmp_path / "log", "rename:signal=KILL:when=14", "convert", source, out, *words)
    assert len(processes.standing(out)) == 3
    killed(tmp_path / "log", "rename:signal=KILL:when=7", "convert", source, out, *words, "--seed", "1")
    assert (out / "train-000000.tar").read_bytes() != expected["train-000000.tar"]
    convert_tree(source, out, max_count=14, workers=0)
    assert_same(out, expected)


def test_fault_42_temporary_files_of_a_killed_run_go_and_those_of_the_user_stay(
    small: Path, small_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for _ in range(2):  # while shards are made, and when they are all there
        left = [".train-000000.tar.0123abcd.tmp", ".info.json.00000000.tmp", ".val-000007.idx.ffffffff.tmp"]
        trees.make(out, dict.fromkeys([*left, ".mine.tmp", "train.tmp"], b"x"))
        convert_tree(small, out, max_count=14, workers=0)
        assert_same(out, {**small_made, ".mine.tmp": b"x", "train.tmp": b"x"})


def test_fault_42_nothing_takes_its_name_before_it_would_survive_a_power_cut(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    trace = traced(tmp_path / "log", "fsync,rename", "convert", small, out, *SMALL, "--workers", "0")
    lines = [line.replace(str(out), "") for line in trace.calls]
    names = ["/.wds_tools/train/plan.json"]
    names += [f"/train-{number:06d}.{ext}" for number in range(3) for ext in ("tar", "idx")]
    names += ["/sizes.json", "/info.json"]
    for name in names:
        rename = next(number for number, line in enumerate(lines) if line.endswith(f'"{name}") = 0'))
        temporary = lines[rename].split('"')[1]
        folder = os.path.dirname(temporary).rstrip("/")
        assert lines[rename - 1].startswith("fsync(")
        assert f"<{temporary}>" in lines[rename - 1]
        assert lines[rename + 1].startswith("fsync(")
        assert f"<{folder}>" in lines[rename + 1]
    assert '"/info.json"' in lines[-2]


# ---------------------------------------------------------------- killed at moments of their own


def files_in(out: Path) -> int:
    return sum(len(os.listdir(folder)) for folder in (out, out / ".wds_tools" / "train") if folder.exists())


@pytest.mark.parametrize("everyone", [False, True], ids=["driver", "group"])
@pytest.mark.parametrize("seed", range(3))
def test_fault_42_random_kills_of_the_command_and_its_workers(
    seed: int, everyone: bool, slow: Path, slow_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    draw = random.Random(f"{seed} {everyone}")
    out = tmp_path / "out"
    out.mkdir()
    for _ in range(3):
        goal = files_in(out) + draw.randrange(1, 50)
        with Command("convert", slow, out, *SLOW) as command:
            if command.until(lambda goal=goal: files_in(out) >= goal):
                command.signal(signal.SIGKILL, everyone=everyone)
            command.finish()
        assert_nothing_looks_whole(out)
    standing = processes.standing(out)
    said = run("convert", slow, out, *SLOW)
    assert (said.code, said.err) == (0, "")
    assert_same(out, slow_made)
    assert processes.identities(out, set(standing)) == standing


def test_fault_42_workers_whose_driver_was_killed_end_by_themselves(
    slow: Path, slow_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with Command("convert", slow, out, *SLOW) as command:
        assert command.until(lambda: processes.standing(out))
        assert len(command.workers()) == 2
        command.signal(signal.SIGKILL)
        said = command.finish()
        assert (said.code, said.err) == (-signal.SIGKILL, "")
    assert not (out / "info.json").exists()


def test_fault_42_a_run_right_after_a_kill_waits_for_the_workers_that_are_left(
    slow: Path, slow_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    with Command("convert", slow, out, *SLOW) as command:
        assert command.until(lambda: processes.standing(out))
        worker = min(command.workers())
        os.kill(worker, signal.SIGSTOP)  # it cannot end, and so holds the lock
        command.signal(signal.SIGKILL)
        command.until(lambda: False)
        with (
            Command("convert", slow, out, *SLOW, held=True) as second,
            processes.tracing(second, log, "flock"),
        ):
            assert second.until(lambda: "EAGAIN" in log.read_text())
            os.kill(worker, signal.SIGCONT)
            said = second.finish()
        assert (said.code, said.err) == (0, "")
    assert_same(out, slow_made)


# ---------------------------------------------------------------- Ctrl-C


def temporary_files(out: Path) -> list[Path]:
    return list(out.rglob("*.tmp"))


@pytest.mark.parametrize("everyone", [False, True], ids=["driver", "group"])
@pytest.mark.parametrize("workers", ["0", "2"])
def test_fault_43_ctrl_c_ends_workers_quietly_with_130_and_running_again_goes_on(
    workers: str, everyone: bool, slow: Path, slow_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("convert", slow, out, *SLOW, "--workers", workers)
    with Command(*words) as command:
        assert command.until(lambda: processes.standing(out))
        command.signal(signal.SIGINT, everyone=everyone)
        said = command.finish()
    assert said.code == 130
    assert said.err.strip() == "Interrupted. Run the same command again; it goes on where it was."
    assert temporary_files(out) == []
    assert not (out / "info.json").exists()
    standing = processes.standing(out)
    assert standing
    assert run(*words).code == 0
    assert_same(out, slow_made)
    assert processes.identities(out, set(standing)) == standing


def test_fault_43_ctrl_c_before_any_rename_leaves_no_temporary_file(
    small: Path, small_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    log, out = tmp_path / "log", tmp_path / "first"
    words = (*SMALL, "--workers", "0")
    for number in calls_of(out, log, "convert", small, out, *words)["rename"][::2]:
        out = tmp_path / f"interrupted-{number}"
        trace = traced(log, "rename", "convert", small, out, *words, inject=f"rename:signal=INT:when={number}")
        assert trace.said.code == 130, trace
        assert "Traceback" not in trace.said.err, trace
        assert temporary_files(out) == [], trace
        assert_nothing_looks_whole(out)
        convert_tree(small, out, max_count=14, workers=0)
        assert_same(out, small_made)


def test_fault_43_ctrl_c_means_nothing_to_a_worker_that_has_just_begun(
    small: Path, small_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    words = ("convert", small, tmp_path / "out", *SMALL, "--workers", "2")
    # The first thing that Python does in a new process is to open this in the place of standard input.
    trace = traced(tmp_path / "log", "openat", *words, inject="openat:signal=INT:when=1", path=os.devnull)
    assert len(trace.calls) == 2, trace
    assert (trace.said.code, trace.said.err) == (0, "")
    assert_same(tmp_path / "out", small_made)


# ---------------------------------------------------------------- a worker dies


def test_fault_44_a_killed_worker_is_an_error_at_once_and_running_again_goes_on(
    slow: Path, slow_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with Command("convert", slow, out, *SLOW) as command:
        assert command.until(lambda: processes.standing(out))
        os.kill(max(command.workers()), signal.SIGKILL)
        said = command.finish()
    assert said.code == 1
    assert said.err.startswith("Error: a worker process was killed")
    assert "--workers" in said.err
    assert len(said.err.splitlines()) == 1
    assert_nothing_looks_whole(out)
    standing = processes.standing(out)
    assert run("convert", slow, out, *SLOW).code == 0
    assert_same(out, slow_made)
    assert processes.identities(out, set(standing)) == standing
