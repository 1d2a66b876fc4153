"""The simulation of training at scale counts what a real server sees, and its arithmetic is that of the page."""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from benchmarks import scale_training
from benchmarks.simulated import coverage, paper, worker
from benchmarks.simulated.server import CHUNK, Server
from benchmarks.simulated.setting import Samples, Setting, infos, manifest, name
from tests.support import streams
from wds_tools.format import index
from wds_tools.format import manifest as manifests
from wds_tools.store.cache import CacheStore
from wds_tools.store.http import HttpStore
from wds_tools.store.local import LocalStore
from wds_tools.stream.order import Topology
from wds_tools.stream.reader import ShardReader
from wds_tools.stream.shards import Shards, find_shards

TINY = Setting(shards=60, mean=20, world=6, workers=3, batch_size=8)


def test_shards_are_uneven_and_the_same_every_time() -> None:
    sizes = Setting(shards=10_000).sizes()
    assert sizes == Setting(shards=10_000).sizes()
    assert (min(sizes), max(sizes)) == (640, 1920)
    assert abs(sum(sizes) / len(sizes) - 1280) < 10


# -- shards that nobody wrote


@pytest.mark.parametrize("payload", [1000, 512, 1])
def test_a_computed_shard_is_a_tar_and_its_index_is_right(payload: int) -> None:
    samples = Samples(payload)
    data = Server([3, 7], samples).content(1, 0, samples.size(7))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = [(member.name, member.offset_data, member.size) for member in archive]
    listed = index.load(samples.index(1, 7))
    assert [(field.name, field.offset, field.size) for sample in listed for field in sample.fields] == members
    assert len(members) == 14
    assert len(data) == samples.size(7)
    for start, stop in ((512, 2048), (samples.stride, 3 * samples.stride)):
        assert Server([3, 7], samples).content(1, start, stop) == data[start:stop]


def test_the_manifest_lists_them() -> None:
    found = manifests.load(manifest([5, 9], Samples(100))).splits["train"]
    assert found.shards == infos([5, 9], Samples(100))
    assert found.samples == 14


# -- requests


def read(shards: Shards, setting: Setting, number: int) -> int:
    """Bytes of pictures of one stream."""
    order = setting.order()
    rank, worker = divmod(number, setting.topology.streams)
    stream = order.epoch(0, setting.topology).stream(rank, worker)
    reader, count = ShardReader(shards, {"jpg", "cls"}), 0
    with closing(reader.following(iter(stream), order)) as batches:
        for ids in batches:
            for shard, at in zip(*(part.tolist() for part in order.locate(ids)), strict=True):
                count += len(reader.read(shard, at)["jpg"])
    return count


def test_what_is_counted_is_what_a_real_server_is_asked(tmp_path: Path) -> None:
    setting, samples = Setting(shards=12, mean=40, world=2, workers=2, batch_size=8), Samples(20_000)
    sizes = setting.sizes()
    counted = Server(sizes, samples)
    for shard, count in enumerate(sizes):
        (tmp_path / name(shard)).write_bytes(counted.content(shard, 0, samples.size(count)))
        (tmp_path / index.index_name(name(shard))).write_bytes(samples.index(shard, count))
    with streams.served(tmp_path) as server:
        for number in range(4):
            real = read(Shards(HttpStore(server.url), infos(sizes, samples), ()), setting, number)
            assert real == read(Shards(counted, infos(sizes, samples), ()), setting, number) > 0
    seen = Counter(_kind(path, headers.get("Range", "")) for _, path, headers in server.requests)
    told = counted.counts.to_dict()
    assert seen == {"indexes": told["indexes"], "versions": told["versions"], "ranges": told["ranges"]}
    ends = [headers["Range"][len("bytes=") :].split("-") for _, path, headers in server.requests if ".tar" in path]
    assert sum(int(stop) - int(start) + 1 for start, stop in ends) == sum(
        counted.counts.ranges + counted.counts.versions
    )


def _kind(path: str, ranged: str) -> str:
    if path.endswith(".idx"):
        return "indexes"
    return "versions" if ranged == "bytes=0-0" else "ranges"


def test_with_a_cache_there_are_copies_and_then_nothing_but_openings(tmp_path: Path) -> None:
    setting, samples = Setting(shards=8, mean=40, world=1, workers=2, batch_size=8), Samples(110_000)
    plain = worker.requests(setting, samples.payload, "-", [0, 1])
    cold = worker.requests(setting, samples.payload, str(tmp_path / "cold"), [0, 1])
    server = Server(setting.sizes(), samples)
    for shard in range(setting.shards):
        CacheStore(server, tmp_path / "warm", 1 << 30).local_path(name(shard))
    warm = worker.requests(setting, samples.payload, str(tmp_path / "warm"), [0, 1])
    for entry, copied, kept in zip(plain, cold, warm, strict=True):
        assert entry["shards"] == entry["all"]["indexes"] == entry["all"]["versions"]
        assert entry["all"]["ranges"] >= entry["shards"]
        assert entry["all"]["copies"] == 0 < copied["all"]["copies"]
        assert {kind for kind, count in kept["all"].items() if count} == {"indexes", "versions", "bytes"}
    rows = scale_training.load(setting, 320, 77, {"plain": plain, "warm": warm})
    assert rows[1] == ["requests of an epoch", f"{154 + sum(entry['all']['ranges'] for entry in plain):,}", "154"]
    assert rows[2] == ["… index and version of shards", "154", "154"]


# -- who gets what


def test_a_whole_epoch_is_counted_stream_by_stream() -> None:
    order = TINY.order()
    found, seen = coverage.whole(order, TINY.topology)
    assert seen.exact
    assert seen.total == order.num_samples
    epoch = order.epoch(0, TINY.topology)
    batches = [list(epoch.batches(rank)) for rank in range(TINY.world)]
    by_rank = [sum(map(len, rank)) for rank in batches]
    assert found.batches == (epoch.num_batches, epoch.num_batches)
    assert found.samples == (min(by_rank), max(by_rank))
    assert found.short == sum(len(batch) < TINY.batch_size for rank in batches for batch in rank)
    mine = [set(order.locate(np.concatenate(rank[worker::3]))[0].tolist()) for rank in batches for worker in range(3)]
    assert found.opened == sum(map(len, mine))
    assert found.shards == (min(map(len, mine)), max(map(len, mine)))


@pytest.mark.parametrize("after", [Topology(4, 3, 10), Topology(7, 0, 3), TINY.topology])
def test_an_epoch_that_goes_on_elsewhere_is_exact(after: Topology) -> None:
    found, seen = coverage.resumed(TINY.order(), TINY.topology, after, 4)
    assert seen.exact
    assert found.batches[0] == found.batches[1] > 0


@pytest.mark.parametrize("ids", [[0, 1, 2], [0, 1, 2, 3, 3], [0, 1, 2, 2], [0, 1, 2, 3, 0]])
def test_a_sample_left_out_or_repeated_is_noticed(ids: list[int]) -> None:
    for pieces in ([ids], [ids[:2], ids[2:]]):
        seen = coverage.Seen(4)
        for piece in pieces:
            seen.add(np.array(piece))
        assert not seen.coverage().exact


def test_one_rank_finds_all_that_it_needs_in_a_folder_without_the_rest(tmp_path: Path) -> None:
    order, rank = TINY.order(), 2
    count = scale_training.make_rank(tmp_path, order, TINY, rank)
    assert len(list(tmp_path.glob("*.tar"))) == len(list(tmp_path.glob("*.idx"))) == count < TINY.shards
    shards = find_shards(tmp_path, "train")
    assert isinstance(shards.store, LocalStore)
    total = sum(read(shards, TINY, rank * 3 + worker) for worker in range(3))
    start, stop = order.epoch(0, TINY.topology).partition.rank_range(rank)
    assert total == 1000 * (stop - start)


def test_how_much_a_machine_reads_again() -> None:
    assert scale_training.kept_by_a_node(Setting(shards=60, world=8), Setting(shards=60).order()) == 1
    share = scale_training.kept_by_a_node(Setting(shards=4000, world=64), Setting(shards=4000).order())
    assert 0.08 < share < 0.18  # one machine of eight


def test_a_planner_in_a_fresh_process_tells_times_and_memory() -> None:
    found = scale_training.in_process("order", json.dumps(TINY.to_dict()))
    assert found["samples"] == len(np.concatenate(list(TINY.order().epoch(0, TINY.topology).stream(3))))
    assert all(found[key] >= 0 for key in ("first", "whole", "resume", "resume_other", "resume_many", "first_peak"))
    rows = scale_training.planning(found)
    assert {len(row) for row in rows} == {3}
    assert len(rows) == 6


# -- on paper


def test_figures_of_a_dataset_are_what_its_files_are() -> None:
    setting = Setting(world=2, workers=2, rate=100.0)
    samples, total = Samples(1000), 39 * 50
    rates = paper.Rates(listed=200, opening=1e-5, opening_peak=1000, planning=40, indexed=100)
    found = paper.figures(setting, samples, total, 100_000, rates)
    assert samples.stride == 2560
    assert (found.per_shard, found.shards) == (38, 52)
    assert found.data == total * 2560 + 52 * 1024
    assert (found.manifest, found.order, found.opening_peak) == (10_400, 2080, 52_000)
    assert found.opening == pytest.approx(52e-5)
    assert found.by_stream == 14  # 1,950 samples in four streams are 12.8 shards, which begin and end anywhere
    assert found.open_indexes == 14 * 38 * 100
    assert found.epoch == total / 200
    assert found.requests == 2 * (52 + 4) + found.data / CHUNK + 96 * 4
    lines = index.split_lines(samples.index(50_000, 38))
    assert found.index == pytest.approx(sum(len(line) + 1 for line in lines), rel=0.05)  # offsets grow longer


def test_an_open_index_takes_some_bytes_for_each_sample() -> None:
    assert 50 < paper.table_bytes(Samples(1000), 500) < 500
