"""Disks that are full, broken, or not ours to write to: a clear sentence, nothing half-made, and going on afterwards."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import needs, processes, trees
from tests.support.processes import Command, Said, assert_nothing_looks_whole, assert_same, mounted, run, traced
from wds_tools.convert.run import Quiet, convert_tree
from wds_tools.errors import StoreError, TargetError, WdsToolsError

WORDS = ("--max-count", "14")
ALONE = (*WORDS, "--workers", "0")
REMEDIES = {
    "ENOSPC": "the disk is full: free some space and run again, what is complete is kept",
    "EDQUOT": "the disk quota is used up: free some space and run again, what is complete is kept",
    "EIO": "the disk reported an input/output error: check its health, then run again",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.classes(tmp_path_factory.mktemp("source"), "abcd", 10)


@pytest.fixture(scope="module")
def made(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("made")
    convert_tree(source, folder, max_count=14, workers=0)
    return trees.snapshot(folder)


def assert_clear(said: Said, path: Path, remedy: str = "") -> None:
    """One sentence that names the path, and no more."""
    assert said.code == 1, said
    assert said.out == ""
    assert said.err.startswith("Error: ")
    assert len(said.err.splitlines()) == 1, said.err
    assert str(path) in said.err
    assert remedy in said.err


def assert_nothing_half_made(out: Path) -> None:
    assert list(out.rglob("*.tmp")) == []
    assert_nothing_looks_whole(out)


# ---------------------------------------------------------------- every call fails once


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("write", "ENOSPC"),
        ("write", "EDQUOT"),
        ("fsync", "EIO"),
        ("fsync", "EDQUOT"),  # a network file system may tell only here
        ("close", "EIO"),  # or only here
        ("rename", "ENOSPC"),
        ("mkdir", "EDQUOT"),
        ("openat", "ENOSPC"),
        ("unlink", "EIO"),
        ("read", "EIO"),
    ],
)
def test_fault_39_a_call_that_fails_is_told_with_path_and_remedy_and_running_again_goes_on(
    call: str, error: str, source: Path, made: Mapping[str, bytes], tmp_path: Path
) -> None:
    log, out = tmp_path / "log", tmp_path / "undisturbed"
    undisturbed = traced(log, call, "convert", source, out, *ALONE)
    assert undisturbed.said.code == 0
    numbers = processes.steps(undisturbed, out)[call]
    told = 0
    for number in numbers[:: max(1, len(numbers) // 5)]:
        out = tmp_path / f"failed-{number}"
        trace = traced(log, call, "convert", source, out, *ALONE, inject=f"{call}:error={error}:when={number}")
        assert "INJECTED" in log.read_text()
        if trace.said.code:
            assert_clear(trace.said, out, REMEDIES[error] if out.exists() else os.strerror(getattr(errno, error)))
            told += 1
        else:  # nothing that matters: giving the lock back, making a folder that is there
            assert (out / "info.json").exists()
        if out.exists():
            assert_nothing_half_made(out)
        standing = processes.standing(out)
        convert_tree(source, out, max_count=14, workers=0)
        assert_same(out, made)
        assert processes.identities(out, set(standing)) == standing
    assert told >= (1 if call == "mkdir" else 3)


@pytest.mark.parametrize("error", REMEDIES)
def test_fault_39_a_call_that_fails_in_a_worker_is_told_once_and_ends_the_others(
    error: str, source: Path, made: Mapping[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ("convert", source, out, *WORDS, "--workers", "2")
    # Each process counts for itself; the driver's first two are the plan and its folder, the others come at the end.
    trace = traced(tmp_path / "log", "fsync", *words, inject=f"fsync:error={error}:when=3")
    assert "INJECTED" in (tmp_path / "log").read_text()
    assert_clear(trace.said, out, REMEDIES[error])
    assert_nothing_half_made(out)
    assert run(*words).code == 0
    assert_same(out, made)


# ---------------------------------------------------------------- disks that really are full


def test_fault_39_a_disk_that_is_full_amid_the_conversion(tmp_path: Path) -> None:
    # Files of one byte more than a block: what is expected is just above what they take, and their indexes
    # come on top of that, within the leeway of the check before.
    size = 513 + 512
    files = {f"{name}/{number:03d}.jpg": b"" for name in "abcd" for number in range(250)}
    for name in files:
        plain = trees.picture(name)
        files[name] = plain + bytes(size - len(plain))
    source = trees.make(tmp_path / "source", files)
    expected = len(files) * (size + 2048)
    convert_tree(source, tmp_path / "made", max_count=100, workers=0)
    with mounted(tmp_path / "disk", "size=4m") as disk:
        status = os.statvfs(disk)
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(status.f_bavail * status.f_frsize - int(expected / 1.01)))
        out = disk / "out"
        said = run("convert", source, out, "--max-count", "100", "--workers", "2")
        assert_clear(said, out, REMEDIES["ENOSPC"])
        assert_nothing_half_made(out)
        standing = processes.standing(out)
        assert standing
        ballast.unlink()
        assert run("convert", source, out, "--max-count", "100", "--workers", "2").code == 0
        assert_same(out, trees.snapshot(tmp_path / "made"))
        assert processes.identities(out, set(standing)) == standing


def test_fault_39_a_disk_that_others_fill_up_meanwhile(source: Path, made: Mapping[str, bytes], tmp_path: Path) -> None:
    class Others(Quiet):
        def begin(self, samples: int, size: int) -> None:
            with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))

    with mounted(tmp_path / "disk", "size=1m") as disk:
        out = disk / "out"
        with pytest.raises(StoreError, match=REMEDIES["ENOSPC"]):
            convert_tree(source, out, max_count=14, workers=0, progress=Others())
        assert_nothing_half_made(out)
        (disk / "ballast").unlink()
        convert_tree(source, out, max_count=14, workers=0)
        assert_same(out, made)


def test_fault_39_a_file_system_without_room_for_more_files(
    source: Path, made: Mapping[str, bytes], tmp_path: Path
) -> None:
    with mounted(tmp_path / "disk", "size=4m", "nr_inodes=14") as disk:
        out = disk / "out"
        said = run("convert", source, out, *WORDS, "--workers", "2")
        assert_clear(said, out, REMEDIES["ENOSPC"])
        assert_nothing_half_made(out)
        remount = [needs.tool("mount"), "-o", "remount,nr_inodes=100", os.fspath(disk)]
        subprocess.run(remount, check=True)
        assert run("convert", source, out, *WORDS, "--workers", "2").code == 0
        assert_same(out, made)


def test_fault_39_a_limit_on_the_size_of_files(source: Path, made: Mapping[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Command("convert", source, out, *WORDS, "--workers", "2", held=True) as command:
        os.waitid(os.P_PID, command.pid, os.WSTOPPED)
        resource.prlimit(command.pid, resource.RLIMIT_FSIZE, (20_000, 20_000))
        command.signal(signal.SIGCONT)
        said = command.finish()
    assert_clear(said, out, "--max-size")
    assert_nothing_half_made(out)
    assert run("convert", source, out, *WORDS).code == 0
    assert_same(out, made)


def test_fault_39_a_disk_that_is_too_small_is_seen_before_any_work(source: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=64k") as disk:
        said = run("convert", source, disk / "out", *WORDS)
        assert_clear(said, disk / "out", "MB are needed; free some space, or choose another disk")
        assert trees.snapshot(disk) == {}


def test_fault_39_a_split_is_not_removed_for_one_that_there_is_no_room_for(source: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=64k") as disk:
        convert_tree(trees.classes(tmp_path / "little", "ab", 2), disk / "out", workers=0)
        before = trees.snapshot(disk)
        with pytest.raises(TargetError, match="are needed"):
            convert_tree(source, disk / "out", workers=0, overwrite=True)
        assert trees.snapshot(disk) == before


# ---------------------------------------------------------------- targets that cannot be written to


def test_fault_40_a_read_only_file_system_is_refused_before_any_work(tmp_path: Path) -> None:
    nothing = trees.make(tmp_path / "empty", [])  # would be refused as soon as it is looked at
    with mounted(tmp_path / "disk", "size=1m") as disk:
        (disk / "there").mkdir()
        subprocess.run([needs.tool("mount"), "-o", "remount,ro", os.fspath(disk)], check=True)
        for out in (disk / "there", disk / "not" / "there", disk):
            said = run("convert", nothing, out)
            assert_clear(said, out, "choose another folder")
            assert "read-only" in said.err.lower()
        assert list(disk.rglob("*")) == [disk / "there"]


@pytest.mark.parametrize(
    ("mode", "path"),
    [(0o555, ""), (0o555, "new"), (0o555, "new/er"), (0o444, "new"), (0o666, ""), (0o000, "")],
)
def test_fault_40_a_folder_without_permission_is_refused_before_any_work(mode: int, path: str) -> None:
    with trees.open_to_all() as folder:
        nothing = trees.make(folder / "empty", [])
        closed = folder / "closed"
        closed.mkdir(mode=0o777)
        if os.geteuid() == 0:
            os.chown(closed, trees.NOBODY, trees.NOBODY)
        closed.chmod(mode)
        try:
            said = f"cannot write to '{closed / path}': [Pp]ermission denied; choose another folder"
            with pytest.raises(TargetError, match=said):
                trees.unprivileged(lambda: convert_tree(nothing, closed / path, workers=0))
        finally:
            closed.chmod(0o755)
        assert list(closed.iterdir()) == []


def test_fault_40_a_workspace_of_somebody_else_is_refused_before_any_work(source: Path) -> None:
    needs.root()
    with trees.open_to_all() as folder:
        copy = trees.copy(source, folder / "source")
        (folder / "out" / ".wds_tools").mkdir(parents=True)
        (folder / "out").chmod(0o777)
        with pytest.raises(StoreError, match=r"\.wds_tools/lock': permission denied: check the owner"):
            trees.unprivileged(lambda: convert_tree(copy, folder / "out", workers=0))
        assert trees.snapshot(folder / "out") == {}


@pytest.mark.parametrize("out", ["file", "file/below", "loop", "loop/below"])
def test_fault_40_a_target_that_is_no_folder_is_refused_before_any_work(out: str, tmp_path: Path) -> None:
    nothing = trees.make(tmp_path / "empty", [])
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.rglob("*"))
    said = run("convert", nothing, tmp_path / out)
    assert_clear(said, tmp_path / out, "choose a")
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_fault_40_missing_folders_above_the_target_are_made(
    source: Path, made: Mapping[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("not/yet")
    for out in (tmp_path / "a" / "b" / "c", tmp_path / "link"):
        convert_tree(source, out, max_count=14, workers=0)
        assert_same(out, made)


def test_fault_40_a_target_in_the_source_is_refused_before_any_work(source: Path, tmp_path: Path) -> None:
    copy = trees.copy(source, tmp_path / "source")
    (tmp_path / "link").symlink_to(copy)
    for out in (copy, copy / "a" / "out", tmp_path / "link" / "out"):
        with pytest.raises(TargetError, match="lies inside the source"):
            convert_tree(copy, out, workers=0)
    assert trees.snapshot(copy) == trees.snapshot(source)


def test_fault_40_shards_of_somebody_else_are_not_overwritten(source: Path, tmp_path: Path) -> None:
    theirs = trees.make(tmp_path / "out", {"train-000001.tar": b"theirs"})
    with pytest.raises(TargetError, match=r"train-000001\.tar' is there already and belongs to no finished dataset"):
        convert_tree(source, theirs, workers=0)
    assert trees.snapshot(theirs) == {"train-000001.tar": b"theirs"}


# ---------------------------------------------------------------- and a source that is not what it should be


def test_a_source_that_is_not_there_leaves_no_folder_behind(tmp_path: Path) -> None:
    said = run("convert", tmp_path / "tpyo", tmp_path / "out")
    assert_clear(said, tmp_path / "tpyo", "does not exist")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("files", [[], ["a/1.jpg", "a/1.png"]], ids=["empty", "two of one key"])
def test_a_split_is_not_removed_for_a_source_that_cannot_be_converted(
    files: list[str], source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    convert_tree(source, out, workers=0)
    before = trees.snapshot(out)
    with pytest.raises(WdsToolsError):
        convert_tree(trees.make(tmp_path / "bad", files), out, workers=0, overwrite=True)
    assert trees.snapshot(out) == before
