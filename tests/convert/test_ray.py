"""The conversion on a Ray cluster: the bytes of the process pool's, whatever is lost on the way.

One cluster of two nodes on this machine serves all; tests that kill a node take a new one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import buckets, images, needs, processes, ray_tasks, rays, trees
from tests.support.commands import Said, call, run_python
from tests.support.processes import Command, assert_same
from tests.support.servers import free_port
from wds_tools.convert import ray_engine, ray_task, sources
from wds_tools.convert.conversion import Conversion
from wds_tools.convert.engines import SerialEngine, Tick, Watch
from wds_tools.convert.entries import Search
from wds_tools.convert.lock import target_lock
from wds_tools.convert.options import ConvertOptions
from wds_tools.convert.ray_engine import RayEngine
from wds_tools.convert.result import Quiet
from wds_tools.convert.run import convert_tree
from wds_tools.errors import (
    ChangedError,
    MissingExtraError,
    NotFoundError,
    OptionError,
    SampleError,
    SourceChangedError,
    StoreError,
    TargetError,
    WdsToolsError,
)
from wds_tools.records import ShardPlan
from wds_tools.store.local import LocalStore
from wds_tools.store.s3 import S3Store

if TYPE_CHECKING:
    from tests.conftest import Bucket

SLOW = ("--max-count", "4", "--image-size", "24")  # thirty shards with work in them


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The AWS configuration that the nodes have: a file of their own, which a test may write."""
    return tmp_path_factory.mktemp("aws") / "config"


@pytest.fixture(scope="module")
def house(aws: Path) -> Iterator[rays.Rays]:
    environment = {"AWS_CONFIG_FILE": str(aws), "AWS_SHARED_CREDENTIALS_FILE": str(aws), "AWS_PROFILE": "default"}
    with rays.cluster({**environment, "AWS_EC2_METADATA_DISABLED": "true"}) as found:
        yield found


@pytest.fixture
def ray(house: rays.Rays) -> rays.Rays:
    return house.of(2)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    picture = images.jpeg(800, 600)
    files = {f"{name}/{number:02d}.jpg": picture + bytes(number) for name in "abcd" for number in range(30)}
    return trees.make(tmp_path_factory.mktemp("slow"), files)


@pytest.fixture(scope="module")
def slow_made(slow: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the process pool makes."""
    folder = tmp_path_factory.mktemp("made") / "out"
    said = call("convert", slow, folder, *SLOW, "--workers", "2")
    assert (said.code, said.err) == (0, "")
    return trees.snapshot(folder)


def on(ray: rays.Rays) -> tuple[str, ...]:
    return ("--engine", "ray", "--ray-address", ray.address)


def refused(said: Said, code: int, message: str) -> None:
    assert (said.code, said.out) == (code, "")
    assert re.fullmatch(f"Error: {message}\n", said.err), said.err


# ---------------------------------------------------------------- which cluster


@pytest.mark.parametrize("address", ["ray://head:10001", "http://head:8265", "head", "head:port", "", "a b:1"])
def test_an_address_that_is_none_is_refused_and_named(address: str) -> None:
    with pytest.raises(OptionError, match=re.escape(f"ray_address is {address!r}; run on a machine of the cluster")):
        RayEngine(address, None)


def test_what_says_nothing_to_an_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="workers is 0; on Ray it must be between 1 and 100000"):
        convert_tree(tmp_path, tmp_path / "out", engine="ray", workers=0)
    with pytest.raises(OptionError, match="it says something to 'ray' only"):
        convert_tree(tmp_path, tmp_path / "out", ray_address="auto")
    with pytest.raises(OptionError, match="engine is 'dask'; it can be 'process' or 'ray'"):
        convert_tree(tmp_path, tmp_path / "out", engine="dask")


def test_without_ray_it_is_said_what_to_install_and_nothing_is_made(tmp_path: Path) -> None:
    tree = trees.classes(tmp_path / "tree")
    code = "import sys; sys.modules['ray'] = None; from wds_tools.cli.main import main; main()"
    said = run_python("-c", code, "convert", tree, tmp_path / "out", "--engine", "ray")
    refused(said, 1, "engine 'ray' needs ray, which is not installed; run: .* -m pip install ray")
    assert not any(path.is_file() for path in tmp_path.glob("out/**/*"))


def test_the_process_pool_loads_no_ray(tmp_path: Path) -> None:
    tree = trees.classes(tmp_path / "tree")
    code = "import sys; from wds_tools import convert_tree; convert_tree(*sys.argv[1:], workers=2); print('ray' in sys.modules)"
    assert run_python("-c", code, tree, tmp_path / "out").out == "False\n"


@pytest.mark.parametrize("how", ["option", "environment"])
def test_a_cluster_that_nobody_answers_for_is_one_sentence(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs.package("ray")
    address = f"127.0.0.1:{free_port()}"
    words = ["convert", trees.classes(tmp_path / "tree"), tmp_path / "out", "--engine", "ray"]
    if how == "option":
        words += ["--ray-address", address]
    else:
        monkeypatch.setenv("RAY_ADDRESS", address)
    said = run_python("-m", "wds_tools", *words)
    refused(said, 1, rf"nobody answers at the Ray address '{address}' \(Connection refused\); check it with .*--head'")


# ---------------------------------------------------------------- the whole of it


def test_a_conversion_on_ray_has_the_bytes_of_the_process_pools_and_says_who_did_what(
    ray: rays.Rays, slow: Path, slow_made: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    said = processes.run("convert", slow, out, *SLOW, *on(ray), "--json")
    assert (said.code, said.err) == (0, "")
    assert_same(out, slow_made)
    answer = json.loads(said.out)
    assert (answer["shards"], answer["built"]) == (30, 30)
    assert {node["node"] for node in answer["nodes"]} == ray.nodes
    assert sum(node["tasks"] for node in answer["nodes"]) == 30
    assert sum(node["samples"] for node in answer["nodes"]) == 120
    assert sum(node["source_bytes"] for node in answer["nodes"]) == answer["source_bytes"]
    assert all(node["host"] and node["address"] for node in answer["nodes"])


def test_the_process_pools_answer_is_as_it_was(tmp_path: Path) -> None:
    said = call("convert", trees.classes(tmp_path / "tree"), tmp_path / "out", "--workers", "0", "--json")
    assert "nodes" not in json.loads(said.out)


def test_bad_images_are_skipped_and_listed_as_in_the_process_pool(
    ray: rays.Rays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = trees.classes(tmp_path / "tree")
    trees.write(tree, "ant/bad.jpg", b"no image")
    words = ("--max-count", "4", "--on-error", "skip")
    pool = call("convert", tree, tmp_path / "pool", *words, "--workers", "2")
    monkeypatch.setenv("RAY_ADDRESS", ray.address)
    said = processes.run("convert", tree, tmp_path / "ray", *words, "--engine", "ray", "--workers", "1")
    assert (said.code, said.err) == (0, pool.err)
    assert_same(tmp_path / "ray", trees.snapshot(tmp_path / "pool"))
    node = r"node \S+ \([\d.]+\): \d shards?, \d+ samples, [\d.]+ k?B read\n"
    assert re.search(rf"split 'train' has 15 samples in 4 shards.*\n({node}){{1,2}}\Z", said.out), said.out


def test_a_bad_image_ends_it_with_the_sentence_of_the_process_pool(ray: rays.Rays, tmp_path: Path) -> None:
    tree = trees.classes(tmp_path / "tree")
    trees.write(tree, "ant/bad.jpg", b"no image")
    pool = call("convert", tree, tmp_path / "pool", "--workers", "2")
    said = processes.run("convert", tree, tmp_path / "ray", "--max-count", "4", *on(ray))
    assert (said.code, said.out) == (1, "")
    assert said.err == pool.err
    assert said.err.startswith("Error: 'ant/bad.jpg': ")
    assert not list((tmp_path / "ray").glob("**/*.tmp"))


def test_a_bucket_gets_the_bytes_of_a_folder_with_the_nodes_own_credentials(
    ray: rays.Rays, aws: Path, bucket: Bucket, tmp_path: Path
) -> None:
    tree = trees.classes(tmp_path / "tree")
    convert_tree(tree, tmp_path / "out", max_count=4, workers=0)
    place = f"{bucket.url}/{tmp_path.name}"
    known = Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"]).read_text().partition("[wrong]")[0]
    server = f"endpoint_url = {bucket.options.endpoint_url}\nregion = {bucket.options.region}\n"
    aws.write_text(known.replace("[good]", "[default]") + server)
    with buckets.configured(bucket):
        said = processes.run("convert", tree, place, "--max-count", "4", *on(ray))
        assert (said.code, said.err) == (0, "")
        assert buckets.snapshot(S3Store(place)) == trees.snapshot(tmp_path / "out")


def test_no_secret_is_in_what_goes_to_a_node(bucket: Bucket, tmp_path: Path) -> None:
    store = S3Store(bucket.url, bucket.options)
    store.write_atomic("secrets/probe", [b"x"])  # now it holds credentials
    credentials = Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"]).read_text()
    secrets = re.findall(r"= (\S+)", credentials)
    assert len(secrets) == 4
    packed = ray_task.pack(partial(_with, store), True, b"")
    for secret in secrets:
        assert secret.encode() not in packed


def _with(store: S3Store, item: int, tick: Tick) -> None:
    """What a task holds on to."""


# ---------------------------------------------------------------- what is lost on the way


def test_fault_44_a_node_is_lost_and_the_driver_killed_and_the_next_run_has_all_of_it_once(
    ray: rays.Rays, slow: Path, slow_made: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    doomed = min(ray.nodes)
    with Command("convert", slow, out, *SLOW, *on(ray)) as command:
        assert command.until(lambda: len(processes.standing(out)) >= 2)
        ray.kill(doomed)
        stood = len(processes.standing(out))
        assert stood < 30, "it was done before the node was lost"
        assert command.until(lambda: len(processes.standing(out)) > stood + 2), "it does not go on without the node"
        command.signal(signal.SIGKILL)
        assert command.finish().code == -signal.SIGKILL
    assert not (out / "info.json").exists()
    standing = processes.standing(out)
    said = processes.run("convert", slow, out, *SLOW, *on(ray))
    assert (said.code, said.err) == (0, "")
    assert_same(out, slow_made)
    names = [shard["url"] for shard in json.loads((out / "info.json").read_text())["shardlist"]]
    assert names == [f"train-{number:06d}.tar" for number in range(30)]
    assert len(standing) >= 4
    # What stood was not made again, but for what a task of the killed driver may just have been at.
    again = processes.identities(out, set(standing))
    assert sum(again[name] != standing[name] for name in standing) <= 2


def test_fault_44_a_task_is_made_again_when_its_node_is_lost(ray: rays.Rays, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    run = ray.begin(ray_tasks.run_with, partial(ray_tasks.wait_once, str(tmp_path)), range(12))
    processes_until(lambda: (tmp_path / "begun").exists() or run.done())
    doomed = (tmp_path / "begun").read_text()
    ray.kill(doomed)
    found, seen, nodes = run.result(processes.DEADLINE)
    assert sorted(found) == list(range(12))
    assert seen[-1] == (12, 120), "what was lost is not counted"
    assert sum(node.tasks for node in nodes) == 12
    assert ray.nodes <= {node.node for node in nodes}


def processes_until(condition: Callable[[], object]) -> None:
    """Wait in the way of `processes.Command.until`, for what is no command."""
    waiter = threading.Event()
    for _ in range(int(processes.DEADLINE / 0.01)):
        if condition():
            return
        waiter.wait(0.01)
    raise AssertionError("it does not come about")


@pytest.mark.parametrize(("kind", "times"), [("kill", 1), ("kill", 3), ("stale", 3)])
def test_fault_44_what_passes_is_tried_again(ray: rays.Rays, kind: str, times: int, tmp_path: Path) -> None:
    function = partial(ray_tasks.fail_first, str(tmp_path), times, kind)
    found, seen, _ = ray.call(ray_tasks.run_with, function, range(6))
    assert sorted(found) == list(range(6))
    assert seen[-1] == (6, 6)
    assert len(list(tmp_path.glob("3-*"))) == times + 1


@pytest.mark.parametrize(
    ("kind", "attempts", "error"),
    [
        ("kill", ray_engine.ATTEMPTS, ("WorkerError", r"'3' was given up: 4 workers were lost over it .*--workers")),
        ("stale", ray_engine.ATTEMPTS, ("StoreError", "the mount is away")),
        ("missing", 1, ("NotFoundError", "gone")),
    ],
)
def test_fault_44_what_does_not_pass_is_an_error_after_so_many_attempts(
    ray: rays.Rays, kind: str, attempts: int, error: tuple[str, str], tmp_path: Path
) -> None:
    function = partial(ray_tasks.fail_first, str(tmp_path), 99, kind)
    found = ray.call(ray_tasks.error_of, function, range(6))
    assert found[0] == error[0]
    assert re.match(error[1], found[1]), found[1]
    assert len(list(tmp_path.glob("3-*"))) == attempts


def test_which_errors_may_pass() -> None:
    def told(error: WdsToolsError, code: int) -> WdsToolsError:
        error.__cause__ = OSError(code, "")
        return error

    away = 116  # ESTALE
    assert ray_task.is_passing(told(StoreError("x"), away))
    assert not ray_task.is_passing(told(StoreError("x"), 28)), "a full disk"
    assert not ray_task.is_passing(StoreError("x"))
    for kind in (NotFoundError, ChangedError, SourceChangedError, TargetError, SampleError):
        assert not ray_task.is_passing(told(kind("x"), away))


def test_a_store_error_of_the_system_keeps_its_cause() -> None:
    with pytest.raises(StoreError) as caught:
        LocalStore("/proc/self").read("mem")  # whose first page is not there
    assert ray_task.is_passing(caught.value)


def test_a_cluster_that_has_no_cpu_for_long_is_an_error(ray: rays.Rays, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found = ray.call(ray_tasks.error_without_a_cpu, str(tmp_path / "pipe"))
    assert found[0] == "WorkerError"
    assert "has had no CPU" in found[1]


# ---------------------------------------------------------------- attempts that overlap


class Twice(SerialEngine):
    """Every task twice: a first attempt is held in the midst of its shard while a second one makes all of it."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.first: list[threading.Thread] = []
        self.ended: list[object] = []

    def run(self, function: Callable[[Any, Tick], Any], items: Any, watch: Watch) -> Iterator[Any]:
        for item in items:
            begun = threading.Event()

            def held(samples: int, size: int, begun: threading.Event = begun) -> None:
                begun.set()
                self.go_on.wait(processes.DEADLINE)

            thread = threading.Thread(target=self._first, args=(function, item, held, begun))
            self.first.append(thread)
            thread.start()
            assert begun.wait(processes.DEADLINE)
            yield function(item, lambda samples, size: None)

    def _first(self, function: Callable[[Any, Tick], Any], item: ShardPlan, held: Tick, begun: threading.Event) -> None:
        try:
            self.ended.append(function(item, held))
        except WdsToolsError as error:
            self.ended.append(error)
        finally:
            begun.set()


class TwiceToTheEnd(Twice):
    """The first attempts end after the second ones, and before the manifest."""

    def run(self, function: Callable[[Any, Tick], Any], items: Any, watch: Watch) -> Iterator[Any]:
        yield from super().run(function, items, watch)
        self.go_on.set()
        for thread in self.first:
            thread.join()


@pytest.mark.parametrize("engine", [Twice, TwiceToTheEnd])
def test_fault_45_attempts_at_one_shard_that_overlap_leave_what_one_leaves(engine: type[Twice], tmp_path: Path) -> None:
    tree, out = trees.classes(tmp_path / "tree"), tmp_path / "out"
    convert_tree(tree, tmp_path / "once", max_count=4, workers=0)
    out.mkdir()
    both = engine()
    options = ConvertOptions(max_count=4)
    with target_lock(LocalStore(out)):
        Conversion(Search(str(tree), sources.scan), LocalStore(out), options, both, Quiet(), "train").run(
            overwrite=False
        )
    both.go_on.set()
    for thread in both.first:
        thread.join()
    if engine is Twice:  # all was over: what was swept away cannot take a name
        assert [type(each) for each in both.ended] == [NotFoundError] * 4
    else:
        receipts = {each.name: each for each in both.ended}  # type: ignore[attr-defined]
        assert len(receipts) == 4
    assert_same(out, trees.snapshot(tmp_path / "once"))


# ---------------------------------------------------------------- the engine by itself


@pytest.mark.parametrize("count", [0, 1, 5, 500])
def test_map_gives_the_results_in_the_items_order(ray: rays.Rays, count: int) -> None:
    assert ray.call(ray_tasks.map_with, ray_tasks.double, range(count)) == [2 * item for item in range(count)]


@pytest.mark.parametrize(("count", "workers"), [(0, None), (1, None), (60, None), (60, 1)])
def test_run_gives_each_result_once_and_tells_the_totals(ray: rays.Rays, count: int, workers: int | None) -> None:
    found, seen, nodes = ray.call(ray_tasks.run_with, ray_tasks.double_and_tick, range(count), workers)
    assert sorted(found) == [2 * item for item in range(count)]
    assert seen == sorted(seen)
    assert seen[-1:] == [(count, sum(range(count)))] * bool(count)
    assert sum(node.tasks for node in nodes) == count
    assert sum(node.source_bytes for node in nodes) == sum(range(count))


def test_no_more_tasks_are_submitted_than_keep_all_workers_busy(ray: rays.Rays) -> None:
    assert ray.call(ray_tasks.items_asked_for, 3) == 3
    assert ray.call(ray_tasks.items_asked_for_in_map) <= 6


def test_an_error_in_a_map_comes_out_as_it_was_raised(ray: rays.Rays) -> None:
    assert ray.call(ray_tasks.error_of_map, ray_tasks.divide, [1, 2, 0, 3]) == "ZeroDivisionError"


def test_the_first_error_ends_tasks_that_run_and_those_that_wait(ray: rays.Rays, tmp_path: Path) -> None:
    function = partial(ray_tasks.fail_once_others_wait, str(tmp_path))
    assert ray.call(ray_tasks.error_of, function, range(50)) == ("SampleError", "item 0: broken")
    assert (tmp_path / "told").exists(), "a running task was told, not killed"
    assert not (tmp_path / "9").exists(), "a waiting task was begun after the error"


def test_a_node_with_another_version_is_one_sentence(ray: rays.Rays) -> None:
    kind, message = ray.call(ray_tasks.error_of_another_version)
    assert kind == "WorkerError"
    expected = (
        r"node '.*' cannot run wds_tools .*, which this machine has \(its version is .*\); install it on every node"
    )
    assert re.match(expected, message), message


@pytest.mark.parametrize("missing", ["wds_tools", "wds_tools.convert.ray_task"])
def test_a_node_without_wds_tools_says_so_before_anything_of_it_is_loaded(missing: str, tmp_path: Path) -> None:
    needs.package("ray")
    carry = (
        "import sys; from ray import cloudpickle; from wds_tools.convert import ray_task\n"
        "stub, packed = ray_task.make_stub(), ray_task.pack(print, True, b'')\n"
        "sys.stdout.buffer.write(cloudpickle.dumps((stub, packed)))"
    )
    carried = subprocess.run([sys.executable, "-c", carry], capture_output=True, check=True).stdout
    (tmp_path / "carried").write_bytes(carried)
    node = (
        f"import pickle, sys; sys.modules[{missing!r}] = None\n"
        f"stub, packed = pickle.load(open({str(tmp_path / 'carried')!r}, 'rb')); print(stub(packed, b'')[1])"
    )
    said = run_python("-c", node, cwd=tmp_path)
    assert re.fullmatch(r"(import of|No module named) '?wds_tools.*\n", said.out), said


def test_errors_of_a_node_say_which_node_lacks_something() -> None:
    engine = RayEngine(None, None)
    there = ray_task.Answer("id", "gpu-7", "10.0.0.7")
    for error in (SourceChangedError("a"), StoreError("a"), NotFoundError("a"), MissingExtraError("a")):
        told = engine._told(there, error)
        assert type(told) is type(error)
        assert str(told).startswith("a (on node 'gpu-7', 10.0.0.7; every node needs the same source and target")
        assert pickle.loads(pickle.dumps(told)).args == told.args
    bad = SampleError("broken", "x")
    assert engine._told(there, bad) is bad
    here = dataclasses.replace(there, host=os.uname().nodename)
    assert str(engine._told(here, StoreError("a"))) == "a"


# ---------------------------------------------------------------- Ctrl-C, and a cluster for one run


def test_fault_43_ctrl_c_ends_the_tasks_on_the_cluster_with_130(
    ray: rays.Rays, slow: Path, slow_made: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with Command("convert", slow, out, *SLOW, *on(ray)) as command:
        assert command.until(lambda: processes.standing(out))
        command.signal(signal.SIGINT, everyone=True)
        said = command.finish()
    assert (said.code, said.out) == (130, "")
    assert said.err.strip() == "Interrupted. Run the same command again; it goes on where it was."
    assert not list(out.rglob("*.tmp")), "its tasks were not ended, or not in peace"
    assert not (out / "info.json").exists()
    standing = processes.standing(out)
    assert 0 < len(standing) < 30
    convert_tree(slow, out, max_count=4, image_size=24, workers=0)
    assert_same(out, slow_made)
    assert processes.identities(out, set(standing)) == standing, "the engines do not go on where the other stopped"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_fault_43_a_cluster_for_one_run_is_gone_with_it(number: signal.Signals, slow: Path, tmp_path: Path) -> None:
    needs.package("ray")
    out = tmp_path / "out"
    with Command("convert", slow, out, *SLOW, "--engine", "ray", "--workers", "2") as command:
        assert command.until(lambda: processes.standing(out))
        assert working(command)
        command.signal(number, everyone=number == signal.SIGINT)
        if number == signal.SIGINT:
            said = command.finish()  # when all of its processes are gone
            assert (said.code, said.out) == (130, "")
            assert said.err.strip() == "Interrupted. Run the same command again; it goes on where it was."
        else:  # two helpers of Ray's take a minute to see that they are alone
            command.until(lambda: False)
            processes_until(lambda: not working(command))
    assert not (out / "info.json").exists()


def working(command: Command) -> list[str]:
    """What lives of a command but the helpers beside a node."""
    found = []
    for pid in command.processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
            found += [] if re.match(r"ray::\w*Agent", words) else [words]
    return found
