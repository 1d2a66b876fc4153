"""Engines: every item once, the first error for all, and no process, lock or interrupt left behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support import processes
from wds_tools.convert.engines import Cancelled, Engine, ProcessEngine, SerialEngine, Tick, make_engine
from wds_tools.errors import OptionError, SampleError, WorkerError

WORKERS = [0, 1, 2, 3]


def ignore(samples: int, size: int) -> None:
    """Watches nothing."""


def double(item: int) -> int:
    return 2 * item


def double_and_tick(item: int, tick: Tick) -> int:
    tick(1, item)
    return 2 * item


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


# ---------------------------------------------------------------- which engine


@pytest.mark.parametrize(("workers", "kind"), [(0, SerialEngine), (1, SerialEngine), (2, ProcessEngine)])
def test_one_worker_or_none_is_this_process_and_more_are_a_pool(workers: int, kind: type[Engine]) -> None:
    assert type(make_engine("process", workers)) is kind


def test_by_default_there_are_as_many_workers_as_this_process_may_use_cores() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from wds_tools.convert.engines import make_engine; print(type(make_engine('process', None)).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "SerialEngine\n"


@pytest.mark.parametrize("workers", [-1, 1025, 10**9])
def test_a_silly_number_of_workers_is_refused_and_named(workers: int) -> None:
    with pytest.raises(OptionError, match=f"workers is {workers};"):
        make_engine("process", workers)


def test_an_engine_that_is_not_there_is_refused_and_named() -> None:
    with pytest.raises(OptionError, match="'threads'"):
        make_engine("threads", 2)


# ---------------------------------------------------------------- results


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("count", [0, 1, 5, 1000])
def test_map_gives_the_results_in_the_items_order(workers: int, count: int) -> None:
    with make_engine("process", workers) as engine:
        assert list(engine.map(double, range(count))) == [2 * item for item in range(count)]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("count", [0, 1, 5, 100])
def test_run_gives_each_result_once_and_tells_the_totals(workers: int, count: int) -> None:
    seen = [(0, 0)]
    with make_engine("process", workers) as engine:
        found = list(engine.run(double_and_tick, iter(range(count)), lambda *totals: seen.append(totals)))
    assert sorted(found) == [2 * item for item in range(count)]
    assert seen[-1] == (count, sum(range(count)))
    assert seen == sorted(seen), "totals never go back"


@pytest.mark.parametrize("workers", WORKERS)
def test_an_engine_can_be_entered_again_and_counts_from_nothing(workers: int) -> None:
    engine = make_engine("process", workers)
    seen = []
    for _ in range(2):
        with engine:
            assert list(engine.map(double, range(3))) == [0, 2, 4]
            assert len(list(engine.run(double_and_tick, range(3), lambda *totals: seen.append(totals)))) == 3
        assert seen[-1] == (3, 3)


def test_run_asks_for_items_as_workers_come_free() -> None:
    asked = []

    def items() -> Iterator[int]:
        for item in range(1000):
            asked.append(item)
            yield item

    with make_engine("process", 2) as engine:
        results = engine.run(double_and_tick, items(), ignore)
        next(results)
        assert len(asked) < 20


# ---------------------------------------------------------------- errors and early ends


def fail_at(bad: int, item: int, tick: Tick) -> int:
    tick(1, 0)
    if item == bad:
        raise SampleError("broken", f"item {item}")
    return item


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_comes_out_as_it_was_raised(workers: int) -> None:
    with pytest.raises(SampleError) as caught, make_engine("process", workers) as engine:
        list(engine.run(partial(fail_at, 3), range(50), ignore))
    assert (caught.value.reason, caught.value.place) == ("broken", "item 3")


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_in_a_map_comes_out_as_it_was_raised(workers: int) -> None:
    with pytest.raises(ZeroDivisionError), make_engine("process", workers) as engine:
        list(engine.map((1).__truediv__, [1, 2, 0, 3]))


def fail_or_go_on_for_ever(folder: Path, item: int, tick: Tick) -> int:
    """One item fails once all others have begun; those end only by their ticks."""
    if item == 0:
        while not (folder / "1").exists():
            tick(0, 0)
        raise SampleError("broken")
    (folder / str(item)).touch()
    try:
        while True:
            tick(0, 0)
    except Cancelled:
        (folder / "cancelled").touch()
        raise


def test_the_first_error_ends_tasks_that_run_and_those_that_wait(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="broken"), make_engine("process", 2) as engine:
        list(engine.run(partial(fail_or_go_on_for_ever, tmp_path), range(50), ignore))
    assert (tmp_path / "cancelled").exists(), "a running task was told, not killed"
    assert not (tmp_path / "9").exists(), "a waiting task was begun after the error"


def test_stopping_early_without_an_error_ends_tasks_too(tmp_path: Path) -> None:
    with make_engine("process", 2) as engine:
        results = engine.run(partial(one_result, tmp_path), range(50), ignore)
        assert next(results) == 0
        results.close()
    assert (tmp_path / "cancelled").exists()


def one_result(folder: Path, item: int, tick: Tick) -> int:
    if item:
        return fail_or_go_on_for_ever(folder, item, tick)
    while not (folder / "1").exists():  # another task is in the midst of it when this one is done
        tick(0, 0)
    return 0


def test_an_error_of_the_caller_ends_tasks_too(tmp_path: Path) -> None:
    def refuse(samples: int, size: int) -> None:
        raise KeyError("of the caller")

    with pytest.raises(KeyError), make_engine("process", 2) as engine:
        list(engine.run(partial(one_result, tmp_path), range(50), refuse))
    assert not (tmp_path / "9").exists()


# ---------------------------------------------------------------- workers that die


def kill_at(bad: int, item: int, tick: Tick) -> int:
    tick(1, 0)
    if item == bad:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def kill_in_map(item: int) -> int:
    return kill_at(7, item, ignore)


def in_time(function: Callable[[], object]) -> object:
    """What ``function`` returns or raises, in a process of its own, so that one that hangs can be ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        try:
            outcome: object = function()
        except Exception as error:  # noqa: BLE001 - handed on
            outcome = error
        os.write(writer, pickle.dumps(outcome))
        os._exit(0)
    os.close(writer)
    try:
        assert select.select([reader], [], [], processes.DEADLINE)[0], "it hangs"
        return pickle.loads(os.read(reader, 1 << 16))
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


def run_in_pool(function: Callable[[int, Tick], object]) -> object:
    with make_engine("process", 2) as engine:
        return list(engine.run(function, range(40), ignore))


def map_in_pool(function: Callable[[int], object]) -> object:
    with make_engine("process", 2) as engine:
        return list(engine.map(function, range(40)))


def test_fault_44_a_killed_worker_is_a_worker_error_that_says_what_to_do() -> None:
    error = in_time(lambda: run_in_pool(partial(kill_at, 7)))
    assert isinstance(error, WorkerError)
    assert "run again" in str(error)
    assert "--workers" in str(error)


def test_fault_44_a_worker_killed_in_a_map_is_a_worker_error() -> None:
    assert isinstance(in_time(lambda: map_in_pool(kill_in_map)), WorkerError)


def die_inside(function: str) -> None:
    """Have this process killed as soon as its main thread is inside ``function`` or what that calls."""
    worker = threading.main_thread().ident
    assert worker is not None

    def watch() -> None:
        while function not in [frame.name for frame in traceback.extract_stack(sys._current_frames()[worker])]:
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def die_while_answering(item: int, tick: Tick = ignore) -> bytes:
    if item == 7:
        die_inside("_send")
        return bytes(64 << 20)  # more than the pipe takes at once
    return b""


@pytest.mark.parametrize("call", [run_in_pool, map_in_pool])
def test_fault_44_a_worker_killed_in_the_midst_of_its_answer_is_a_worker_error(
    call: Callable[[Callable[..., object]], object],
) -> None:
    assert isinstance(in_time(lambda: call(die_while_answering)), WorkerError)


def die_while_ticking(item: int, tick: Tick) -> int:
    if item == 7:
        die_inside("tick")
    while item == 7:
        tick(1, 1)
    return item


def test_fault_44_a_worker_killed_while_it_reports_progress_holds_no_lock_that_others_need() -> None:
    for _ in range(6):
        assert isinstance(in_time(lambda: run_in_pool(die_while_ticking)), WorkerError)


# ---------------------------------------------------------------- Ctrl-C

STUCK = """
import os, signal, sys
from wds_tools.convert import engines

def stuck(item, tick):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, b"begun\\n")
    open(sys.argv[1], "rb")  # nobody ever writes to this pipe

engines._GRACE_SECONDS = 0.1
try:
    with engines.make_engine("process", 2) as engine:
        list(engine.run(stuck, range(2), lambda samples, size: None))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_fault_43_ctrl_c_does_not_wait_for_ever_for_a_worker_that_is_stuck(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, tmp_path / "pipe"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert [process.stdout.readline() for _ in range(2)] == ["begun\n", "begun\n"]
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=processes.DEADLINE)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert (out, err) == ("interrupted\n", "")
