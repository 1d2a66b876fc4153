import errno
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import needs
from wds_tools.errors import NotFoundError, StoreError
from wds_tools.store import local
from wds_tools.store.local import LocalStore, store_error, write_all


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path)


@pytest.fixture
def limit():
    """Sets a limit of this process, and puts back what was."""
    before = {}

    def set_(kind: int, value: int) -> None:
        before[kind] = resource.getrlimit(kind)
        resource.setrlimit(kind, (value, before[kind][1]))

    yield set_
    for kind, value in before.items():
        resource.setrlimit(kind, value)


@pytest.fixture
def mask():
    """Sets the umask, and puts back what was."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def everything(store: LocalStore) -> list[str]:
    return sorted(
        os.path.relpath(os.path.join(at, name), store.root) for at, _, names in os.walk(store.root) for name in names
    )


# -- what an error says


@pytest.mark.parametrize("number", sorted(local._REMEDIES))
def test_an_error_of_the_system_says_what_to_do(number):
    error = store_error(OSError(number, "as the system puts it"), "/some/path", "write")
    assert type(error) is (NotFoundError if number == errno.ENOENT else StoreError)
    assert re.fullmatch(r"cannot write '/some/path': [^:]+: .+", str(error))
    assert "as the system puts it" not in str(error)


def test_an_error_without_a_remedy_says_what_the_system_says():
    assert str(store_error(OSError(errno.ENODEV, "No such device"), "/p", "read")) == "cannot read '/p': No such device"
    assert str(store_error(OSError("odd"), "/p", "read")) == "cannot read '/p': odd"
    assert str(store_error(TimeoutError(), "/p", "read")).startswith("cannot read '/p'")


def _broken(store: LocalStore) -> Iterator[tuple[str, int]]:
    """Names that cannot be used, and why."""
    store.write_atomic("file", [b"x"])
    os.mkdir(store.url("folder"))
    os.symlink("loop", store.url("loop"))
    os.symlink("nowhere", store.url("dangling"))
    yield "file/below", errno.ENOTDIR
    yield "folder", errno.EISDIR
    yield "loop", errno.ELOOP
    yield "x" * 300, errno.ENAMETOOLONG
    yield "dangling", errno.ENOENT


def test_reading_what_cannot_be_read_says_why(store):
    for name, number in _broken(store):
        for ask in (store.read, store.stream):
            with pytest.raises(StoreError) as caught:
                ask(name)
            assert str(caught.value) == f"cannot read {store.url(name)!r}: {local._REMEDIES[number]}"
            assert isinstance(caught.value.__cause__, OSError)
            assert caught.value.__cause__.errno == number
    with pytest.raises(StoreError, match=r"cannot list .*a part of this path is a file"):
        store.list("file/")
    with pytest.raises(NotFoundError, match="cannot list"):
        store.list("missing/")


def test_writing_where_nothing_can_be_written_says_why(store):
    list(_broken(store))
    before = everything(store)
    for name, number in [
        ("file/below", errno.EEXIST),
        ("file/far/below", errno.ENOTDIR),
        ("folder", errno.EISDIR),
        ("x" * 300, errno.ENAMETOOLONG),
        ("loop/a", errno.EEXIST),
    ]:
        with pytest.raises(StoreError) as caught:
            store.write_atomic(name, [b"x"])
        assert str(caught.value) == f"cannot write {store.url(name)!r}: {local._REMEDIES[number]}"
        assert caught.value.__cause__.errno == number
    assert everything(store) == before


def test_too_many_open_files_say_so(store, limit):
    store.write_atomic("a", [b"x"])
    limit(resource.RLIMIT_NOFILE, 3)
    with pytest.raises(StoreError, match=r"cannot read .*too many open files: raise the limit"):
        store.read("a")
    with pytest.raises(StoreError, match=r"cannot write .*too many open files: raise the limit"):
        store.write_atomic("b", [b"x"])


def test_deleting_a_folder_says_why(store):
    os.mkdir(store.url("folder"))
    with pytest.raises(StoreError, match="cannot delete"):
        store.delete("folder")


# -- writing


def test_a_file_that_cannot_grow_leaves_nothing_behind(store, limit):
    """The kernel takes a part of the chunk first, and refuses the rest."""
    store.write_atomic("old", [b"old"])
    limit(resource.RLIMIT_FSIZE, 100_000)
    for name in ("old", "new"):
        with pytest.raises(StoreError, match=r"cannot write .*does not allow files of this size: use smaller shards"):
            store.write_atomic(name, [bytes(70_000), bytes(70_000)])
    assert everything(store) == ["old"]
    assert store.read("old") == b"old"


def test_a_chunk_that_the_kernel_takes_in_parts_is_written_whole():
    """A signal interrupts a write to a full pipe, which then has taken a part only."""
    data = os.urandom(3 << 20)
    reading, writing = os.pipe()
    interrupted = threading.Event()
    received = bytearray()

    def drain() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        interrupted.wait(30)
        while part := os.read(reading, 1 << 16):
            received.extend(part)

    thread = threading.Thread(target=drain)
    thread.start()
    before = signal.signal(signal.SIGALRM, lambda *_: interrupted.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        write_all(writing, data)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.close(writing)
        thread.join()
        os.close(reading)
    assert interrupted.is_set()
    assert received == data


def test_new_bytes_go_to_a_hidden_file_beside_the_target_first(store):
    seen = []

    def chunks() -> Iterator[bytes]:
        yield b"x"
        seen.extend(os.listdir(store.url("sub")))

    store.write_atomic("sub/a.tar", chunks())
    assert len(seen) == 1
    assert re.fullmatch(r"\.a\.tar\.[0-9a-f]{8}\.tmp", seen[0])
    assert everything(store) == ["sub/a.tar"]


def test_two_writers_of_one_name_do_not_mix(store):
    def inner() -> Iterator[bytes]:
        yield b"in"
        yield b"ner"

    def outer() -> Iterator[bytes]:
        yield b"out"
        store.write_atomic("a", inner())
        assert store.read("a") == b"inner"
        yield b"er"

    store.write_atomic("a", outer())
    assert store.read("a") == b"outer"
    assert everything(store) == ["a"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o444), (0o077, 0o400), (0, 0o444)])
def test_files_are_read_only_for_whom_the_umask_lets_in(store, mask, umask, mode):
    mask(umask)
    store.write_atomic("a", [b"x"])
    assert os.stat(store.url("a")).st_mode & 0o7777 == mode
    store.write_atomic("a", [b"y"])
    assert store.read("a") == b"y"


def test_a_link_at_the_target_is_replaced_and_not_followed(store, tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"precious")
    (tmp_path / "a").symlink_to("elsewhere")
    store.write_atomic("a", [b"new"])
    assert not (tmp_path / "a").is_symlink()
    assert store.read("a") == b"new"
    assert store.read("elsewhere") == b"precious"


def test_a_root_that_is_a_link_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    LocalStore(tmp_path / "link").write_atomic("sub/a", [b"x"])
    assert (tmp_path / "real/sub/a").read_bytes() == b"x"


def test_the_root_need_not_exist_before_the_first_write(tmp_path):
    store = LocalStore(tmp_path / "new/root")
    with pytest.raises(NotFoundError):
        store.list()
    store.delete("a")
    store.write_atomic("a", [b"x"])
    assert store.list() == ["a"]


SCRIPT = """
import sys
from wds_tools.store.local import LocalStore
LocalStore(sys.argv[1]).write_atomic("a.tar", [b"x" * 1000] * 2, durable=sys.argv[2] == "durable")
"""
CALLS = "openat,write,fsync,close,rename,renameat,renameat2,unlink"


def traced(folder: Path, *options: str, durable: str = "durable") -> tuple[list[str], str]:
    """A write to ``folder``: the system calls of its process in order, with file descriptors spelt out, and its complaint."""
    with tempfile.NamedTemporaryFile("r") as trace:
        command = [needs.strace(), "-o", trace.name, "-y", "-s", "0", "-e", f"trace={CALLS}", *options]
        done = subprocess.run(
            [*command, sys.executable, "-c", SCRIPT, folder, durable], capture_output=True, text=True, check=False
        )
        return [re.sub(r"^(open|rename)at2?", r"\1", line) for line in trace], done.stderr


def names(lines: list[str], folder: Path) -> list[str]:
    return [line.partition("(")[0] for line in lines if str(folder) in line and "(" in line]


def test_bytes_are_flushed_before_they_get_their_name_and_the_name_after(tmp_path):
    lines, _ = traced(tmp_path)
    assert names(lines, tmp_path) == ["open", "write", "write", "fsync", "close", "rename", "open", "fsync", "close"]
    flushed = [line for line in lines if line.startswith("fsync")]
    assert [".tmp>" in line for line in flushed] == [True, False]


def test_without_durable_nothing_is_waited_for(tmp_path):
    assert names(traced(tmp_path, durable="quick")[0], tmp_path) == ["open", "write", "write", "close", "rename"]


@pytest.mark.parametrize(
    ("call", "which", "fault", "message"),
    [
        ("open", 0, "EROFS", "the file system is read-only"),
        ("write", 0, "EIO", "input/output error"),
        ("write", 1, "ENOSPC", "the disk is full"),
        ("fsync", 0, "EIO", "input/output error"),
        ("close", 0, "EDQUOT", "the disk quota is used up"),
        ("rename", 0, "EACCES", "permission denied"),
    ],
)
def test_fault_39_a_call_that_fails_leaves_nothing_behind(tmp_path, call, which, fault, message):
    number = which_call(tmp_path, call, which)
    before = tmp_path / "before"
    before.mkdir()
    LocalStore(before).write_atomic("a.tar", [b"old"])
    calls = ",".join(name for name in CALLS.split(",") if name.startswith(call))
    for folder, left in ((before, ["a.tar"]), (tmp_path / "after!", [])):
        folder.mkdir(exist_ok=True)
        lines, complaint = traced(folder, "-e", f"inject={calls}:error={fault}:when={number}")
        assert any("(INJECTED)" in line and str(folder) in line for line in lines)
        assert re.search(rf"StoreError: cannot write '{folder}/a.tar': .*{message}", complaint)
        assert os.listdir(folder) == left
    assert (before / "a.tar").read_bytes() == b"old"


def which_call(folder: Path, call: str, which: int) -> int:
    """The how manieth call of its kind it is in the whole process."""
    folder = folder / "trial!"
    folder.mkdir()
    same = [line for line in traced(folder)[0] if line.startswith(f"{call}(")]
    return [number for number, line in enumerate(same, start=1) if str(folder) in line][which]


def test_fault_39_a_folder_that_cannot_be_flushed_is_told(tmp_path):
    _, complaint = traced(tmp_path, "-e", "inject=fsync:error=EIO:when=2")
    assert re.search(r"StoreError: cannot write .*/a.tar': .*input/output error", complaint)
    assert os.listdir(tmp_path) == ["a.tar"]


@pytest.mark.parametrize("fault", ["EINVAL", "EOPNOTSUPP"])
def test_a_file_system_that_cannot_flush_folders_is_none_the_worse(tmp_path, fault):
    lines, complaint = traced(tmp_path, "-e", f"inject=fsync:error={fault}:when=2")
    assert any("(INJECTED)" in line for line in lines)
    assert complaint == ""
    assert os.listdir(tmp_path) == ["a.tar"]


# -- what killed writers left


def test_what_killed_writers_left_is_swept_up_and_nothing_else(store):
    left = [".train-000000.tar.0123abcd.tmp", ".val-000000.tar.ffffffff.tmp", ".info.json.00000000.tmp"]
    others = [
        ".train-notes.tmp",
        ".train-000000.tar.0123abc.tmp",
        ".hidden",
        "train-000000.tar.0123abcd.tmp",
        "train.tmp",
    ]
    for name in (*left, *others):
        store.write_atomic(name, [b"x"])
    store.sweep(prefix="train")
    assert everything(store) == sorted([*left[1:], *others])
    store.sweep()
    assert everything(store) == sorted(others)
    store.write_atomic("sub/.a.0123abcd.tmp", [b"x"])
    store.sweep("sub")
    assert everything(store) == sorted(others)
    store.sweep("missing", "folder")


def test_a_killed_writer_leaves_what_the_sweep_takes(store):
    script = """
import os, sys
from wds_tools.store.local import LocalStore
def chunks():
    yield b"x"
    os.kill(os.getpid(), 9)
LocalStore(sys.argv[1]).write_atomic("train-000000.tar", chunks())
"""
    assert subprocess.run([sys.executable, "-c", script, store.root], check=False).returncode == -signal.SIGKILL
    assert len(everything(store)) == 1
    store.sweep(prefix="train")
    assert everything(store) == []


def test_only_an_empty_folder_is_removed(store):
    store.write_atomic("full/a", [b"x"])
    os.mkdir(store.url("empty"))
    for name in ("full", "empty", "missing", "full/a"):
        store.remove_folder(name)
    assert store.list() == ["full"]
    assert store.list("full/") == ["full/a"]


# -- as a value


def test_stores_of_one_folder_are_equal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, other = LocalStore("a"), LocalStore(tmp_path / "b/../a")
    assert one == other
    assert len({one, other}) == 1
    assert one != LocalStore("b")
    assert one != str(tmp_path / "a")
    assert pickle.loads(pickle.dumps(one)) == one
    assert repr(one) == f"LocalStore({str(tmp_path / 'a')!r})"
    monkeypatch.chdir("/")
    assert one.url("x") == str(tmp_path / "a/x")
