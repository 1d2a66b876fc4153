"""Reading ahead of a stream: what is asked of the server, what comes of it, and what is left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support import faults, servers, streams
from wds_tools import ShardDataset, ShardLoader
from wds_tools.errors import ChangedError, OptionError, StaleIndexError, StoreError
from wds_tools.store.options import StoreOptions
from wds_tools.stream import ahead
from wds_tools.stream.ahead import Plan
from wds_tools.stream.order import Order
from wds_tools.stream.reader import ShardReader

if TYPE_CHECKING:
    from tests.conftest import Bucket

SHARDS, PER_SHARD, SIZE = 6, 40, 3000
FAST = StoreOptions(backoff=0, retries=2)
DEADLINE = 30.0


def made(folder: Path, size: int = SIZE, shards: int = SHARDS) -> Path:
    """Shards with a field of noise, so that a sample has ``size`` bytes or so."""
    count = shards * PER_SHARD
    streams.pack(folder, (streams.sample(n, bin=os.urandom(size)) for n in range(count)), PER_SHARD)
    return streams.index(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path / "data")


@pytest.fixture
def server(folder: Path) -> Iterator[streams.Server]:
    with streams.served(folder) as started:
        yield started


def asked(server: streams.Server) -> dict[str, list[tuple[int, int]]]:
    """The ranges asked of each shard, without the byte that tells its version."""
    found: dict[str, list[tuple[int, int]]] = {}
    for _, path, headers in list(server.requests):
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("Range", ""))
        if path.endswith(".tar") and match and match[0] != "bytes=0-0":
            found.setdefault(path, []).append((int(match[1]), int(match[2])))
    return found


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def fetchers() -> int:
    return sum(thread.name.startswith("wds_tools-") for thread in threading.enumerate())


# ── what is asked for ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_byte_is_asked_for_once_and_an_epoch_takes_few_requests(server: streams.Server, shuffle: bool) -> None:
    samples = list(ShardDataset(server.url, shuffle=shuffle, options=FAST))
    assert sorted(streams.keys(samples)) == [f"k{number:04d}" for number in range(SHARDS * PER_SHARD)]
    found = asked(server)
    assert len(found) == SHARDS
    for ranges in found.values():
        assert all(stop < start for (_, stop), (start, _) in zip(sorted(ranges), sorted(ranges)[1:], strict=False))
        assert len(ranges) <= 3
    whole = Counter((path, headers.get("Range")) for _, path, headers in server.requests)
    assert set(whole.values()) == {1}


def test_nothing_is_read_beyond_a_stream_of_its_own(server: streams.Server, folder: Path) -> None:
    list(ShardDataset(server.url, shuffle=True, rank=0, world_size=6, options=FAST))
    read = sum(stop + 1 - start for ranges in asked(server).values() for start, stop in ranges)
    whole = sum(path.stat().st_size for path in folder.glob("*.tar"))
    assert read < whole / 4


def test_parts_are_no_larger_than_the_options_say(tmp_path: Path) -> None:
    with streams.served(made(tmp_path / "data", 60_000, 2)) as server:
        options = StoreOptions(backoff=0, chunk_size=1 << 19)
        assert len(list(ShardDataset(server.url, shuffle=True, options=options))) == 2 * PER_SHARD
        ranges = [each for found in asked(server).values() for each in found]
        assert max(stop + 1 - start for start, stop in ranges) <= (1 << 19) + 512
        assert len(ranges) > 8


def test_several_requests_are_under_way_before_the_first_is_answered(server: streams.Server) -> None:
    """The server answers nobody before four requests for parts have come: whoever asks one by one would wait for ever."""
    waiting, gate, late = threading.Semaphore(3), threading.Event(), []

    def together(handler: streams._Handler, path: Path) -> None:
        if handler.headers.get("Range", "bytes=0-0") != "bytes=0-0" and path.suffix == ".tar":
            if not waiting.acquire(blocking=False):
                gate.set()
            if not gate.wait(DEADLINE / 3):
                late.append(path)
        streams.honest(handler, path)

    dataset = ShardDataset(server.url, shuffle=True, options=FAST)
    server.always = together
    assert len(list(dataset)) == SHARDS * PER_SHARD
    assert not late


def test_a_sample_at_random_is_one_ranged_request(server: streams.Server) -> None:
    dataset = ShardDataset(server.url, options=FAST)
    dataset[50]
    server.requests.clear()
    assert dataset[51]["cls"] == b"51"
    assert len(server.requests) == 1
    (start, stop) = asked(server)["/train-000001.tar"][0]
    assert SIZE < stop - start < 2 * SIZE + 4096


# ── what comes of it ──────────────────────────────────────────────────────────────────────────────────────────


def batches(loader: Any) -> list[Any]:
    return [[value.tolist() if isinstance(value, torch.Tensor) else value for value in batch] for batch in loader]


def loader(place: object, batch: int = 16, workers: int = 0, tail: str = "even", **options: Any) -> ShardLoader:
    dataset = ShardDataset(place, shuffle=True, window=50, interleave=3, fields=("bin", "cls"), **options)  # type: ignore[arg-type]
    return ShardLoader(dataset, batch, workers, tail=tail, rank=0, world_size=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("tail", ["even", "drop", "pad"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_the_disk_in_every_epoch(
    server: streams.Server, folder: Path, tail: str, workers: int
) -> None:
    remote, local = (loader(place, 17, workers, tail) for place in (server.url, folder))
    for _ in range(2):
        assert batches(remote) == batches(local)
    assert len(remote) == len(local)


def test_from_nginx_and_from_a_bucket_batches_are_those_of_the_disk(
    folder: Path, nginx: servers.Nginx, bucket: Bucket, tmp_path: Path
) -> None:
    from wds_tools.store.s3 import S3Store

    (nginx.root / tmp_path.name).symlink_to(folder)
    store = S3Store(f"{bucket.url}/{tmp_path.name}", bucket.options)
    for path in folder.iterdir():
        store.write_atomic(path.name, [path.read_bytes()])
    local = batches(loader(folder))
    assert batches(loader(f"{nginx.url}/{tmp_path.name}")) == local
    assert batches(loader(f"{bucket.url}/{tmp_path.name}", options=bucket.options)) == local


def test_a_pass_goes_on_where_it_was_with_other_workers(server: streams.Server, folder: Path) -> None:
    first = loader(server.url, 16, 2)
    passing = iter(first)
    seen = [next(passing) for _ in range(5)]
    state = first.state_dict()
    second = loader(server.url, 10, 0)
    second.load_state_dict(state)
    numbers = streams.flat(streams.labels(seen)) + streams.flat(streams.labels(second))
    assert sorted(numbers) == list(range(SHARDS * PER_SHARD))


def test_eight_workers_at_once_read_everything_once(server: streams.Server) -> None:
    numbers = streams.flat(streams.labels(loader(server.url, 8, 8)))
    assert sorted(numbers) == list(range(SHARDS * PER_SHARD))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_fault_46_workers_of_every_kind_read_after_the_parent_did(server: streams.Server, method: str) -> None:
    dataset = ShardDataset(server.url, shuffle=True, options=FAST)
    passing = iter(dataset)
    next(passing)  # threads and connections of the parent are in the midst of it
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert len(pool.apply(streams.read_all, (dataset,))) == 2 * SHARDS * PER_SHARD
    assert len(list(passing)) == SHARDS * PER_SHARD - 1


# ── when it breaks ────────────────────────────────────────────────────────────────────────────────────────────


def test_fault_29_whatever_breaks_on_the_way_no_sample_is_lost_or_repeated(server: streams.Server) -> None:
    dataset = ShardDataset(server.url, shuffle=True, options=StoreOptions(backoff=0))
    server.script.extend([streams.cut(700), streams.status(503), faults.reset(900), streams.no_answer] * 6)
    assert sorted(streams.keys(dataset)) == [f"k{number:04d}" for number in range(SHARDS * PER_SHARD)]
    assert not server.script


def test_a_server_that_dies_and_comes_back_loses_nothing(folder: Path) -> None:
    port, back = servers.free_port(), []
    first = streams.Server(folder, port=port)
    first.always = lambda handler, path: (
        streams.honest(handler, path) if len(first.requests) < 10 else streams.no_answer(handler, path)
    )

    def restart() -> None:
        until(lambda: len(first.requests) > 14)
        first.__exit__()
        back.append(streams.Server(folder, port=port).__enter__())

    first.__enter__()
    dataset = ShardDataset(first.url, shuffle=True, options=StoreOptions(backoff=0.05, patience=0.2, retries=500))
    restarting = threading.Thread(target=restart)
    restarting.start()
    try:
        got = [sample["cls"] for sample in dataset]
    finally:
        restarting.join()
        back[0].__exit__()
    assert sorted(map(int, got)) == list(range(SHARDS * PER_SHARD))
    assert back[0].requests


def test_a_server_that_stays_dead_is_one_clear_error(server: streams.Server) -> None:
    for workers in (0, 2):
        remote = loader(server.url, 16, workers, options=FAST)
        server.always = lambda handler, path: (
            streams.status(503)(handler, path) if path.suffix == ".tar" else streams.honest(handler, path)
        )
        with pytest.raises(StoreError, match=r"train-00000\d\.tar.*HTTP 503.*given up after 3 attempts"):
            batches(remote)
        server.always = None
        assert len(batches(remote)) == len(remote)  # and the next pass is whole


def test_a_sample_whose_part_failed_can_be_asked_for_again(server: streams.Server) -> None:
    dataset = ShardDataset(server.url, shuffle=False, options=FAST)
    reader = ShardReader(dataset.shards)
    order = dataset.order.epoch(0, dataset_topology())
    server.always = lambda handler, path: (
        streams.status(503)(handler, path)
        if path.suffix == ".tar" and handler.headers.get("Range") != "bytes=0-0"
        else streams.honest(handler, path)
    )
    ids = next(blocks := reader.following(order.stream().blocks(), dataset.order))
    with pytest.raises(StoreError, match="503"):
        reader.read(0, 0)
    server.always = None
    shards, numbers = (part.tolist() for part in dataset.order.locate(ids))
    found = []
    for place in zip(shards, numbers, strict=True):
        try:
            sample = reader.read(*place)
        except StoreError:  # its part had failed already
            sample = reader.read(*place)
        found.append(sample["cls"])
    assert found == [b"%d" % number for number in range(SHARDS * PER_SHARD)]
    blocks.close()


def dataset_topology() -> Any:
    from wds_tools.stream.order import Topology

    return Topology()


def test_fault_33_a_shard_replaced_in_mid_epoch_is_never_mixed(server: streams.Server, folder: Path) -> None:
    options = StoreOptions(backoff=0, concurrency=1)
    dataset = ShardDataset(server.url, shuffle=False, options=options)
    whole = dict.fromkeys(folder.glob("*.tar"))

    def replaced(handler: streams._Handler, path: Path) -> None:
        if path in whole and handler.headers.get("Range") == "bytes=0-0":
            streams.honest(handler, path)
            streams.rewrite(path, lambda data: data)  # the same bytes in another file: a new ETag
            return
        streams.honest(handler, path)

    server.always = replaced
    with pytest.raises(ChangedError, match=r"train-00000\d\.tar"):
        list(dataset)


def test_fault_28_a_part_that_is_another_shards_is_refused(server: streams.Server, folder: Path) -> None:
    """Same size, same end, other places: seen at the headers around each part."""
    path = folder / "train-000003.tar"
    streams.rewrite(path, lambda data: data[512:-1024] + data[:512] + data[-1024:])
    with pytest.raises(StaleIndexError, match=r"train-000003\.tar.*wds-tools index"):
        list(ShardDataset(server.url, shuffle=True, options=FAST))


# ── what is left behind ───────────────────────────────────────────────────────────────────────────────────────


def test_twenty_epochs_leave_no_thread_and_no_descriptor(server: streams.Server) -> None:
    dataset = ShardDataset(server.url, shuffle=True, options=FAST)
    counts = []
    for epoch in range(20):
        passing = iter(dataset)
        for _ in range(SHARDS * PER_SHARD if epoch % 2 else 30):  # every second pass is broken off
            next(passing)
        passing.close()  # type: ignore[attr-defined]
        until(lambda: fetchers() == 0)
        gc.collect()
        counts.append(len(os.listdir("/proc/self/fd")))
    # The server is in this process, too, and closes its ends of connections when it gets to it.
    until(lambda: len(os.listdir("/proc/self/fd")) <= counts[1] + 2)


def test_a_pass_that_is_dropped_ends_its_threads(server: streams.Server) -> None:
    passing = iter(ShardDataset(server.url, shuffle=True, options=FAST))
    next(passing)
    assert fetchers() > 0
    del passing
    gc.collect()
    until(lambda: fetchers() == 0)


# ── how far ahead ─────────────────────────────────────────────────────────────────────────────────────────────


def test_memory_bounds_what_is_known_and_asked_for() -> None:
    sizes = [1000] * 100
    for mean in (1_000, 110_000, 150_000, 400_000, 50_000_000):
        order = Order(sizes)
        plan = Plan.of(order, [mean * 1000] * 100, 8 << 20, cached=False)
        spread = order.window * mean + order.interleave * plan.chunk
        assert spread <= ahead.MEMORY or plan.known * mean <= ahead.MEMORY * 2
        assert plan.distance >= 16
        assert plan.known > plan.distance or mean > 10_000_000
    assert Plan.of(Order(sizes), [None] * 100, 8 << 20, cached=False).chunk <= 8 << 20


# ── the cache ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_second_epoch_comes_from_the_cache(server: streams.Server, folder: Path, tmp_path: Path) -> None:
    cached = {"cache": tmp_path / "cache", "cache_bytes": 1 << 30}
    first = loader(server.url, 16, 2, options=FAST, **cached)
    local = loader(folder, 16, 2)
    assert batches(first) == batches(local)
    until(lambda: len(list((tmp_path / "cache").glob("*.tar"))) == SHARDS)
    server.requests.clear()
    again = loader(server.url, 16, 2, options=FAST, **cached)
    assert batches(again) == batches(loader(folder, 16, 2))
    assert asked(server) == {}


def test_many_workers_fetch_each_shard_about_once(server: streams.Server, folder: Path, tmp_path: Path) -> None:
    batches(loader(server.url, 8, 8, options=FAST, cache=tmp_path / "cache", cache_bytes=1 << 30))
    until(lambda: len(list((tmp_path / "cache").glob("*.tar"))) == SHARDS)
    sizes = {f"/{path.name}": path.stat().st_size for path in folder.glob("*.tar")}
    copies = Counter(path for path, ranges in asked(server).items() for start, _ in ranges if start == 0)
    assert set(copies.values()) == {1}
    assert copies.keys() == sizes.keys()


def test_fault_41_what_the_cache_cannot_keep_is_read_past_it(server: streams.Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for path, size in ((tmp_path / "small", 10), (tmp_path / "file" / "x", 1 << 30)):
        numbers = streams.flat(streams.labels(loader(server.url, 16, 0, options=FAST, cache=path, cache_bytes=size)))
        assert sorted(numbers) == list(range(SHARDS * PER_SHARD))


def test_a_cache_is_for_what_is_remote_and_has_a_size(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is local"):
        ShardDataset(folder, cache=tmp_path / "cache", cache_bytes=1 << 20)
    with pytest.raises(OptionError, match="give both"):
        ShardDataset("http://127.0.0.1:1/x", cache=tmp_path / "cache")
    with pytest.raises(OptionError, match="cache_bytes is 0"):
        ShardDataset("http://127.0.0.1:1/x", cache=tmp_path / "cache", cache_bytes=0)
