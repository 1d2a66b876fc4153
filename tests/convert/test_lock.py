"""One conversion at a time in one place, or several tasks of one array; whoever loses says who won."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support import images, processes, trees
from tests.support.processes import Command, assert_nothing_looks_whole, assert_same, run, traced
from wds_tools.convert.lock import target_lock
from wds_tools.convert.run import convert_tree
from wds_tools.errors import OptionError, TargetBusyError, TargetError
from wds_tools.store.local import LocalStore

OPTIONS = {"max_count": 4}
WORDS = ("--max-count", "4")
SLOW = (*WORDS, "--image-size", "24")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.classes(tmp_path_factory.mktemp("source"), "abcd", 8)


@pytest.fixture(scope="module")
def made(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("made")
    convert_tree(source, folder, workers=0, **OPTIONS)
    return trees.snapshot(folder)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images that take some milliseconds each."""
    picture = images.jpeg(800, 600)
    files = {f"{name}/{number:02d}.jpg": picture + bytes(number) for name in "abcd" for number in range(16)}
    return trees.make(tmp_path_factory.mktemp("slow"), files)


@pytest.fixture(scope="module")
def slow_made(slow: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("slow_made")
    convert_tree(slow, folder, image_size=24, workers=2, **OPTIONS)
    return trees.snapshot(folder)


@contextlib.contextmanager
def flocked(path: Path, content: str = "") -> Iterator[None]:
    """Hold the kernel's lock on a file, as another process would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        file.write(content)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


# ---------------------------------------------------------------- the lock itself


def test_the_lock_names_its_holder_and_leaves_nothing(tmp_path: Path) -> None:
    with target_lock(LocalStore(tmp_path)):
        assert (tmp_path / ".wds_tools" / "lock").read_text().split() == [str(os.getpid()), socket.gethostname()]
    assert list(tmp_path.iterdir()) == []


def test_it_is_left_when_the_work_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError), target_lock(LocalStore(tmp_path)):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shared", [False, True])
def test_nobody_gets_what_another_one_holds_alone(shared: bool, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with target_lock(store, shared=shared), pytest.raises(TargetBusyError) as caught, target_lock(store, patience=0):
        pass
    assert str(tmp_path) in str(caught.value)
    assert f"(process {os.getpid()} on {socket.gethostname()})" in str(caught.value)
    with target_lock(store):
        pass


def test_those_who_share_it_hold_it_together(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with target_lock(store, shared=True), target_lock(store, shared=True):
        pass
    with target_lock(store):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "nonsense", "12 other-host more", "\0" * 300, "é 7"])
def test_a_lock_file_that_nobody_holds_is_no_lock(content: str, tmp_path: Path) -> None:
    (tmp_path / ".wds_tools").mkdir()
    (tmp_path / ".wds_tools" / "lock").write_text(content)
    with target_lock(LocalStore(tmp_path)):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_dead_holder_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / ".wds_tools").mkdir()
    (tmp_path / ".wds_tools" / "lock").write_text(f"{dead_process()} {socket.gethostname()}\n")
    with target_lock(LocalStore(tmp_path)):
        pass


def test_a_holder_on_another_machine_is_believed_to_live(tmp_path: Path) -> None:
    lock = tmp_path / ".wds_tools" / "lock"
    with (
        flocked(lock, f"{dead_process()} another-machine\n"),
        pytest.raises(TargetBusyError, match="on another-machine"),
        target_lock(LocalStore(tmp_path)),
    ):
        pass


def test_what_a_dead_holder_left_is_waited_for_and_not_called_by_its_name(tmp_path: Path) -> None:
    pid = dead_process()
    with (
        flocked(tmp_path / ".wds_tools" / "lock", f"{pid} {socket.gethostname()}\n"),
        pytest.raises(TargetBusyError) as caught,
        target_lock(LocalStore(tmp_path), patience=0.2),
    ):
        pass
    assert str(pid) not in str(caught.value).replace(str(tmp_path), "")


@pytest.mark.parametrize("error", ["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
def test_where_the_file_system_has_no_locks_a_conversion_goes_without(
    error: str, source: Path, made: Mapping[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    trace = traced(tmp_path / "log", "flock", "convert", source, out, *WORDS, inject=f"flock:error={error}")
    assert (trace.said.code, trace.said.err) == (0, "")
    assert any(error in line or "INJECTED" in line for line in trace.calls)
    assert_same(out, made)


def test_a_lock_that_fails_is_an_error_before_any_work(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    trace = traced(tmp_path / "log", "flock", "convert", source, out, *WORDS, inject="flock:error=EIO")
    assert trace.said.code == 1
    assert trace.said.err.startswith(f"Error: cannot write '{out}/.wds_tools/lock'")
    assert list(out.glob("*.tar")) == []


def test_a_lock_whose_folder_its_last_holder_removes_is_made_again(
    source: Path, made: Mapping[str, bytes], tmp_path: Path
) -> None:
    lock = tmp_path / "out" / ".wds_tools" / "lock"
    trace = traced(
        *(tmp_path / "log", "openat", "convert", source, tmp_path / "out", *WORDS),
        inject="openat:error=ENOENT:when=1..3",
        path=str(lock),
    )
    assert len(trace.calls) >= 4, trace
    assert (trace.said.code, trace.said.err) == (0, "")
    assert_same(tmp_path / "out", made)


def test_a_lock_on_a_file_that_its_last_holder_removed_is_no_lock(tmp_path: Path) -> None:
    lock = tmp_path / ".wds_tools" / "lock"
    found = []

    def share() -> None:
        with target_lock(LocalStore(tmp_path), shared=True):
            found.append(lock.exists())

    with flocked(lock):
        thread = threading.Thread(target=share)
        thread.start()
        while not processes.waits_for_a_lock(os.getpid()):
            assert thread.is_alive()
        lock.unlink()
    thread.join()
    assert found == [True]


# ---------------------------------------------------------------- two conversions


def test_fault_45_the_second_converter_fails_at_once_and_names_the_first(
    slow: Path, slow_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with Command("convert", slow, out, *SLOW, "--workers", "2") as first:
        assert first.until(lambda: (out / "train-000000.tar").exists())
        second = run("convert", slow, out, *SLOW, "--workers", "0")
        assert second.code == 1
        assert second.err == (
            f"Error: another conversion is writing to '{out}' (process {first.pid} on {socket.gethostname()}); "
            "wait for it, or stop it and run again\n"
        )
        assert first.finish().code == 0
    assert_same(out, slow_made)


def test_fault_45_of_converters_that_begin_together_one_wins_and_all_others_say_so(
    slow: Path, slow_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with contextlib.ExitStack() as stack:
        commands = [stack.enter_context(Command("convert", slow, out, *SLOW, "--workers", "0")) for _ in range(3)]
        said = [command.finish() for command in commands]
    assert {each.code for each in said} <= {0, 1}
    assert any(each.code == 0 for each in said)
    assert all("another conversion is writing" in each.err for each in said if each.code)
    assert_same(out, slow_made)


def test_fault_45_converters_that_disagree_leave_the_dataset_of_one_of_them(source: Path, tmp_path: Path) -> None:
    expected = {}
    for seed in ("0", "1"):
        convert_tree(source, tmp_path / seed, seed=int(seed), workers=0, **OPTIONS)
        expected[seed] = trees.snapshot(tmp_path / seed)
    out = tmp_path / "out"
    with contextlib.ExitStack() as stack:
        commands = {
            seed: stack.enter_context(Command("convert", source, out, *WORDS, "--workers", "2", "--seed", seed))
            for seed in expected
        }
        codes = {seed: command.finish().code for seed, command in commands.items()}
    assert sorted(codes.values()) == [0, 1]
    assert_same(out, next(expected[seed] for seed, code in codes.items() if code == 0))


# ---------------------------------------------------------------- tasks of an array


def test_tasks_one_after_the_other_make_the_dataset_and_the_last_one_completes_it(
    source: Path, made: Mapping[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for number in (2, 0, 1):
        assert not (out / "info.json").exists()
        result = convert_tree(source, out, task=(number, 3), workers=0, **OPTIONS)
        assert result.complete is (number == 1)
    assert_same(out, made)
    assert convert_tree(source, out, task=(0, 3), workers=0, **OPTIONS).built == 0
    assert_same(out, made)


def test_tasks_that_begin_together_make_the_dataset(slow: Path, slow_made: Mapping[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with contextlib.ExitStack() as stack:
        commands = [
            stack.enter_context(Command("convert", slow, out, *SLOW, "--workers", "0", "--task", f"{part}/4"))
            for part in (0, 1, 2, 3, 3)  # a cluster may start one twice
        ]
        said = [command.finish() for command in commands]
    assert [(each.code, each.err) for each in said] == [(0, "")] * 5
    assert_same(out, slow_made)


def test_fault_42_a_task_that_was_killed_is_run_again(
    slow: Path, slow_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = [("convert", slow, out, *SLOW, "--workers", "2", "--task", f"{part}/2") for part in (0, 1)]
    with Command(*words[0]) as command:
        assert command.until(lambda: processes.standing(out))
        command.signal(signal.SIGKILL)
        command.finish()
    assert_nothing_looks_whole(out)
    standing = processes.standing(out)
    assert standing
    assert [run(*each).code for each in (words[1], words[0])] == [0, 0]
    assert_same(out, slow_made)
    assert processes.identities(out, set(standing)) == standing


# The plan's name comes before those of ``train`` and after those of ``dev``, should files go in order.
@pytest.mark.parametrize(("call", "split"), [("unlink", "dev"), ("unlink", "train"), ("rename", "train")])
def test_fault_42_a_last_task_killed_before_any_call_can_be_run_again(
    call: str, split: str, source: Path, tmp_path: Path
) -> None:
    base, log = tmp_path / "base", tmp_path / "log"
    convert_tree(source, base, task=(0, 2), split=split, workers=0, **OPTIONS)
    words = (*WORDS, "--workers", "0", "--split", split, "--task", "1/2")
    first = trees.copy(base, tmp_path / "first")
    undisturbed = traced(log, call, "convert", source, first, *words)
    assert undisturbed.said.code == 0
    made = trees.snapshot(first)
    assert len(made) == 18
    numbers = processes.steps(undisturbed, first)[call]
    for number in numbers[:: max(1, len(numbers) // 8)]:
        out = trees.copy(base, tmp_path / f"killed-{number}")
        trace = traced(log, call, "convert", source, out, *words, inject=f"{call}:signal=KILL:when={number}")
        assert trace.said.code == -signal.SIGKILL, trace
        assert_nothing_looks_whole(out)
        for part in (1, 0):
            convert_tree(source, out, task=(part, 2), split=split, workers=0, **OPTIONS)
        assert_same(out, made)


def test_fault_42_tasks_go_on_with_their_plan_or_a_new_one_when_a_run_with_another_was_killed_amid_it(
    source: Path, made: Mapping[str, bytes], tmp_path: Path
) -> None:
    base = tmp_path / "base"
    convert_tree(source, base, task=(0, 2), workers=0, **OPTIONS)
    words = (*WORDS, "--workers", "0", "--seed", "1")
    for number in (1, 3, 8, 9, 10):  # entries, the plan, and the first shard
        out = trees.copy(base, tmp_path / f"killed-{number}")
        when = f"rename:signal=KILL:when={number}"
        assert traced(tmp_path / "log", "rename", "convert", source, out, *words, inject=when).said.code < 0
        if number < 10:
            for part in (1, 0):
                convert_tree(source, out, task=(part, 2), workers=0, **OPTIONS)
            assert_same(out, made)
        else:
            with pytest.raises(TargetError, match="unfinished conversion with other options"):
                convert_tree(source, out, task=(1, 2), workers=0, **OPTIONS)


@pytest.mark.parametrize(
    ("count", "begun"), [(4, "train-000000.tar"), (32, ".train-000001.tar.*.tmp"), (32, "train-000001.tar")]
)
def test_a_task_that_ran_twice_and_comes_late_finds_all_done_and_leaves_nothing(
    count: int, begun: str, slow: Path, tmp_path: Path
) -> None:
    """With shards still to make, amid its last one, and with but the receipt to write."""
    out = tmp_path / "out"
    words = ("convert", slow, out, "--max-count", str(count), "--image-size", "24", "--workers", "0")
    with Command(*words, "--task", "1/2" if count == 32 else "0/1") as late:
        assert late.until(lambda: list(out.glob(begun)))
        late.signal(signal.SIGSTOP)
        assert not (out / "info.json").exists()
        assert run(*words, "--task", "0/1").code == 0
        late.signal(signal.SIGCONT)
        said = late.finish()
    assert (said.code, said.err) == (0, "")
    convert_tree(slow, tmp_path / "undisturbed", max_count=count, image_size=24, workers=2)
    assert_same(out, trees.snapshot(tmp_path / "undisturbed"))


def test_fault_45_a_whole_conversion_fails_at_once_while_a_task_works_and_names_it(
    slow: Path, slow_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with Command("convert", slow, out, *SLOW, "--workers", "2", "--task", "0/1") as task:
        assert task.until(lambda: (out / "train-000000.tar").exists())
        other = run("convert", slow, out, *SLOW)
        assert other.code == 1
        assert f"(process {task.pid} on " in other.err
        assert task.finish().code == 0
    assert_same(out, slow_made)


def test_a_task_waits_for_a_whole_conversion_and_finds_all_done(
    slow: Path, slow_made: Mapping[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with (
        Command("convert", slow, out, *SLOW, "--workers", "2") as whole,
        Command("convert", slow, out, *SLOW, "--workers", "0", "--task", "0/2", held=True) as task,
    ):
        assert whole.until(lambda: (out / "train-000000.tar").exists())
        os.kill(whole.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, task.pid, os.WSTOPPED)
        task.signal(signal.SIGCONT)
        assert task.until(lambda: processes.waits_for_a_lock(task.pid))
        os.kill(whole.pid, signal.SIGCONT)
        assert whole.finish().code == 0
        said = task.finish()
    assert said.code == 0
    assert "nothing to do" in said.out
    assert_same(out, slow_made)


def test_a_task_with_other_options_than_the_plan_is_refused(source: Path, tmp_path: Path) -> None:
    convert_tree(source, tmp_path / "out", task=(0, 2), workers=0, **OPTIONS)
    with pytest.raises(TargetError, match="other options"):
        convert_tree(source, tmp_path / "out", task=(1, 2), workers=0, max_count=5)


@pytest.mark.parametrize("damage", [b"", b"0\t1", None])
def test_a_task_refuses_entries_that_are_not_those_of_its_plan(
    damage: bytes | None, source: Path, made: Mapping[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    convert_tree(source, out, task=(0, 2), workers=0, **OPTIONS)
    entries = out / ".wds_tools" / "train" / "train-000001.entries"
    swapped = (out / ".wds_tools" / "train" / "train-000003.entries").read_bytes()
    entries.unlink()
    entries.write_bytes(swapped if damage is None else damage)
    with pytest.raises(TargetError, match=r"train-000001.entries' is not as it was planned; run once without --task"):
        convert_tree(source, out, task=(1, 2), workers=0, **OPTIONS)
    convert_tree(source, out, workers=0, **OPTIONS)
    assert_same(out, made)


def test_overwrite_and_parts_that_are_none_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="overwrite cannot go with task"):
        convert_tree(source, tmp_path / "out", task=(0, 2), overwrite=True)
    for task in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(OptionError, match=f"task {task[0]}/{task[1]} is none"):
            convert_tree(source, tmp_path / "out", task=task)
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- tasks of two arrays


def test_fault_45_arrays_of_two_splits_at_once_both_get_into_the_manifest(source: Path, tmp_path: Path) -> None:
    one_by_one, out = tmp_path / "one_by_one", tmp_path / "out"
    for split in ("val", "train"):
        convert_tree(source, one_by_one, split=split, workers=0, **OPTIONS)
    with contextlib.ExitStack() as stack:
        commands = [
            stack.enter_context(
                Command("convert", source, out, *WORDS, "--workers", "0", "--split", split, "--task", f"{part}/2")
            )
            for split in ("train", "val")
            for part in (0, 1)
        ]
        said = [command.finish() for command in commands]
    assert [(each.code, each.err) for each in said] == [(0, "")] * 4
    assert_same(out, trees.snapshot(one_by_one))


def finish_beside(other: Path, source: Path, out: Path) -> processes.Said:
    """Let the last task of ``val`` finish just after somebody put the dataset ``other`` into the same folder."""
    convert_tree(source, out, split="val", task=(0, 2), workers=0, **OPTIONS)
    with contextlib.ExitStack() as held:
        held.enter_context(flocked(out / ".wds_tools" / "manifest.lock"))
        words = ("convert", source, out, *WORDS, "--workers", "0", "--split", "val", "--task", "1/2")
        with Command(*words) as command:
            assert command.until(lambda: processes.waits_for_a_lock(command.pid))
            shutil.copytree(other, out, dirs_exist_ok=True)
            held.close()
            return command.finish()


def test_fault_45_a_split_that_came_into_the_manifest_meanwhile_stays_there(
    source: Path, made: Mapping[str, bytes], tmp_path: Path
) -> None:
    one_by_one, out = tmp_path / "one_by_one", tmp_path / "out"
    convert_tree(source, one_by_one, workers=0, **OPTIONS)
    train = trees.copy(one_by_one, tmp_path / "train")
    convert_tree(source, one_by_one, split="val", workers=0, **OPTIONS)
    said = finish_beside(train, source, out)
    assert (said.code, said.err) == (0, "")
    assert_same(out, trees.snapshot(one_by_one))


def test_a_split_of_other_classes_that_came_meanwhile_is_not_mixed_with(source: Path, tmp_path: Path) -> None:
    other, out = tmp_path / "other", tmp_path / "out"
    convert_tree(trees.classes(tmp_path / "wxyz", "wxyz"), other, workers=0, **OPTIONS)
    said = finish_beside(other, source, out)
    assert said.code == 1
    assert "has got other classes" in said.err
    assert list(json.loads((out / "info.json").read_text())["splits"]) == ["train"]
    assert_nothing_looks_whole(out, others=True)
