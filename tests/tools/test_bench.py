"""Benchmarks of real datasets: what is measured and counted, never how fast it was."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import random
import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import images, streams
from wds_tools.errors import FormatError, NotFoundError, OptionError, StaleIndexError
from wds_tools.records import ShardInfo
from wds_tools.store.local import LocalStore
from wds_tools.stream.order import Order
from wds_tools.stream.reader import ShardReader
from wds_tools.stream.shards import Shards, find_shards
from wds_tools.tools import page_cache
from wds_tools.tools.bench import BenchOptions, BenchReport, _numbers, bench_dataset
from wds_tools.tools.decoding import find_content
from wds_tools.tools.reading import _read, _some, _source, measure_reading

QUICK = BenchOptions(workers=(0,), batch_size=4, image_size=16, seconds=0.05)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty JPEGs of 64x48 pixels in four shards."""
    folder = tmp_path_factory.mktemp("photos") / "data"
    made = [streams.sample(n, png=None, jpg=images.jpeg(64, 48)) for n in range(40)]
    return streams.index(streams.pack(folder, made, per_shard=10))


def bench(dataset: Any, **changes: Any) -> BenchReport:
    return bench_dataset(dataset, replace(QUICK, **changes))


def assert_rates(report: BenchReport) -> None:
    measured = report.measured
    assert all(read.rate > 0 and read.bytes_rate > 0 for read in measured.reads)
    assert all(load.rate > 0 and load.main_seconds > 0 for load in measured.loads)
    assert (measured.decode is None) == (measured.pictures is None)
    if measured.decode is not None:
        assert measured.decode.rate > 0
        assert measured.decode.whole > 0
        assert 0 < measured.decode.cpu <= 1


def test_everything_is_measured_and_reported(photos: Path) -> None:
    seen: list[tuple[int, int]] = []
    options = replace(QUICK, workers=(2, 0, 1, 1), target=1e9)
    report = bench_dataset(photos, options, watch=lambda *sums: seen.append(sums))
    assert_rates(report)
    measured = report.measured
    assert (report.place, report.samples, report.shards) == (str(photos), 40, 4)
    assert report.fields == ("jpg", "cls")
    assert [load.workers for load in measured.loads] == [0, 1, 2]
    assert len(measured.reads) == 2
    assert measured.reads[1].source == "page cache"
    assert measured.pictures is not None
    assert (measured.pictures.width, measured.pictures.height, measured.pictures.kinds) == (64, 48, {"jpg": 1.0})
    assert (measured.bad, measured.batch_size, measured.image_size) == (0, 4, 16)
    assert report.verdict.target is not None
    assert not report.verdict.target.reached
    assert seen == sorted(seen)
    assert seen[-1][0] > 40
    assert json.loads(json.dumps(asdict(report)))["options"]["workers"] == [2, 0, 1, 1]


def test_nothing_stays_behind(photos: Path) -> None:
    before = torch.get_num_threads(), random.getstate(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    bench(photos, workers=(2,))
    assert multiprocessing.active_children() == []
    assert (torch.get_num_threads(), random.getstate(), signal.pthread_sigmask(signal.SIG_BLOCK, ())) == before
    with pytest.raises(OptionError):
        bench(photos, split="nope")
    assert torch.get_num_threads() == before[0]


def test_the_first_pass_is_cold_where_the_kernel_lets_go_and_warm_where_it_must_not(photos: Path) -> None:
    shards = find_shards(photos, None)
    paths = [str(path) for path in photos.glob("*.tar")]
    for path in photos.glob("*.tar"):
        path.read_bytes()
    if page_cache.cached_share(paths) != 1:
        pytest.skip("the file system of the temporary folder does not say what is cached")
    asked: list[tuple[int, int]] = []
    warm = measure_reading(shards, 0.5, lambda *sums: asked.append(sums), cold=False)
    assert [read.source for read in warm.reads] == ["page cache", "page cache"]
    cold = measure_reading(shards, 0.5, lambda *sums: None)
    assert cold.reads[0].source in ("disk", "disk and page cache", "page cache")  # the kernel's to decide
    # Both passes meet every sample, whatever the clock says in between; the second not one more.
    assert sorted(sample["__key__"] for sample in warm.samples) == [f"k{number:04d}" for number in range(40)]
    assert sum(samples for samples, _ in asked) == 80
    assert sum(size for _, size in asked) == 2 * sum(
        len(value) for sample in warm.samples for name, value in sample.items() if not name.startswith("__")
    )


@pytest.mark.parametrize(
    ("cached", "source"),
    [
        (None, "disk or page cache"),
        (0.0, "disk"),
        (0.1, "disk"),
        (0.5, "disk and page cache"),
        (0.9, "page cache"),
        (1.0, "page cache"),
    ],
)
def test_where_bytes_come_from_is_said_as_far_as_it_is_known(cached: float | None, source: str) -> None:
    assert _source(cached) == source


def test_a_second_pass_ends_where_the_first_one_did(photos: Path) -> None:
    with contextlib.closing(ShardReader(find_shards(photos, None))) as reader:
        order = Order((10, 10, 10, 10))
        first, kept, count = _read(reader, order, 60, 7, "disk", lambda *sums: None)
        assert (count, len(kept), first.source) == (7, 7, "disk")
        assert _read(reader, order, 60, 7, "disk", lambda *sums: None)[1] == kept
        assert _read(reader, order, 60, None, "disk", lambda *sums: None)[2] == 40
        assert _read(reader, order, 0, None, "disk", lambda *sums: None)[2] == 1


def test_what_was_in_memory_is_put_back(photos: Path) -> None:
    paths = [str(path) for path in photos.glob("*.tar")]
    for path in photos.glob("*.tar"):
        path.read_bytes()
    measure_reading(find_shards(photos, None), 1e-6, lambda *sums: None)
    for path in photos.glob("*.tar"):
        path.read_bytes()  # waits for what is under way
    assert page_cache.cached_share(paths) in (None, 1)


@pytest.mark.parametrize(("count", "expected"), [(1, [1]), (2, [1, 4]), (3, [1, 2, 4]), (9, [1, 2, 4, 5])])
def test_a_few_shards_are_spread_over_all_and_have_samples(tmp_path: Path, count: int, expected: list[int]) -> None:
    made = Shards(
        LocalStore(tmp_path),
        tuple(ShardInfo(str(number), number % 3) for number in range(6)),
        (),
        lines={number: [b"%d" % number] for number in range(6)},
    )
    some = _some(made, count)
    assert [int(shard.name) for shard in some.shards] == expected
    assert some.lines == {place: [b"%d" % number] for place, number in enumerate(expected)}


# -- any dataset


def test_over_http_it_is_the_network(photos: Path) -> None:
    with streams.served(photos) as server:
        for place in (server.url, f"{server.url}/train-{{000000..000001}}.tar"):
            report = bench(place, workers=(0, 1))
            assert_rates(report)
            assert [read.source for read in report.measured.reads] == ["network"]
            assert report.measured.cached is None
            assert report.verdict.bottleneck in ("network", "decode", "main process")
    assert report.samples == 20


def test_a_list_and_shards_without_indexes_will_do(photos: Path, tmp_path: Path) -> None:
    names = sorted(map(str, photos.glob("*.tar")))
    assert bench(names[1:3]).samples == 20
    streams.pack(tmp_path / "bare", map(streams.sample, range(12)))
    report = bench(tmp_path / "bare")
    assert_rates(report)
    assert (report.samples, report.shards, report.fields) == (12, 3, ("png", "cls"))


def test_samples_without_images_are_read_and_loaded(tmp_path: Path) -> None:
    made = [streams.sample(n, png=None, txt=b"x" * 1000) for n in range(50)]
    streams.index(streams.pack(tmp_path / "data", made))
    report = bench(tmp_path / "data", workers=(0, 2))
    assert_rates(report)
    assert report.fields == ("txt", "cls")
    assert report.measured.decode is None
    assert report.verdict.bottleneck in ("main process", "disk")


def samples(*each: dict[str, bytes]) -> list[dict[str, Any]]:
    return [{"__key__": "k", "__url__": "x.tar", **fields} for fields in each]


PNG, ARRAY = images.png(), images.npy(images.pixels())
EMBEDDING = images.npy(images.pixels().astype("float32"))


@pytest.mark.parametrize(
    ("given", "fields", "image"),
    [
        (samples({"jpg": b"", "cls": b"1"}), ("jpg", "cls"), ("jpg",)),
        (samples({"jpg": b"", "cls": b"1"}, {"jpg": b""}), ("jpg",), ("jpg",)),
        (samples({"png": PNG}, {"jpg": b""}, {"jpg": b""}), ("jpg;png",), ("jpg", "png")),
        (samples({"jpg": b"", "seg.png": PNG, "json": b"{}"}), ("jpg",), ("jpg",)),
        (samples({"npy": ARRAY, "cls": b"1"}), ("npy", "cls"), ("npy",)),
        (samples({"npy": EMBEDDING, "cls": b"1"}), ("npy", "cls"), ()),
        (samples({"npy": EMBEDDING, "jpg": b""}), ("jpg",), ("jpg",)),
        (samples({"txt": b"", "json": b""}, {"txt": b""}), ("txt",), ()),
        (samples({"txt": b""}, {"json": b""}), ("__key__",), ()),
    ],
)
def test_a_batch_is_made_of_images_and_labels_or_of_what_there_is(
    given: list[dict[str, Any]], fields: tuple[str, ...], image: tuple[str, ...]
) -> None:
    found = find_content(given)
    assert (found.fields, found.images) == (fields, image)


def test_bad_samples_are_left_out_and_counted(tmp_path: Path) -> None:
    made = [streams.sample(n, **({"png": b"damaged"} if n % 4 == 1 else {})) for n in range(40)]
    streams.index(streams.pack(tmp_path / "data", made))
    report = bench(tmp_path / "data")
    assert_rates(report)
    assert 0.2 < report.measured.bad < 0.3
    assert "of the samples cannot be used" in report.verdict.advice[-1]


def test_an_epoch_of_one_sample_is_enough(tmp_path: Path) -> None:
    streams.index(streams.pack(tmp_path / "data", [streams.sample(1)]))
    report = bench(tmp_path / "data", workers=(0, 2))
    assert_rates(report)


# -- what cannot be measured


def test_where_no_sample_can_be_used_the_first_is_told(tmp_path: Path) -> None:
    streams.index(streams.pack(tmp_path / "data", [streams.sample(n, png=b"damaged") for n in range(7)]))
    with pytest.raises(FormatError, match=r"none of the 7 samples that were tried can be used; .*\.tar, key 'k000\d'"):
        bench(tmp_path / "data")
    assert torch.get_num_threads() > 0


def test_labels_that_are_none_end_it_too(tmp_path: Path) -> None:
    made = [streams.sample(n, png=None, txt=b"x", cls=b"?") for n in range(7)]
    streams.pack(tmp_path / "data", made)
    with pytest.raises(FormatError, match=r"no sample could be loaded; the first: .*not a class index"):
        bench(tmp_path / "data")


def test_what_is_not_there_or_has_no_index_is_told(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        bench(tmp_path / "nope")
    with pytest.raises(NotFoundError, match="holds no dataset"):
        bench(tmp_path)
    streams.pack(tmp_path / "bare", map(streams.sample, range(3)))
    with streams.served(tmp_path / "bare") as server, pytest.raises(NotFoundError, match="have no indexes"):
        bench(f"{server.url}/train-000000.tar")
    assert [str(warning.message) for warning in recwarn] == []
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "x.tar").write_bytes(bytes(1024))
    with pytest.raises(FormatError, match="no samples in its shards"):
        bench(tmp_path / "empty")


def test_a_shard_that_was_cut_is_an_error_of_reading(photos: Path, tmp_path: Path) -> None:
    data = streams.numbered(tmp_path / "data")
    for path in data.glob("*.tar"):
        streams.rewrite(path, lambda content: content[:2000])
    with pytest.raises(StaleIndexError, match="bytes where"):
        bench(data)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"workers": ()}, "workers is empty"),
        ({"workers": (0, -1)}, "workers is -1"),
        ({"workers": (1025,)}, "workers is 1025"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"image_size": 0}, "image_size is 0"),
        ({"seconds": 0.0}, "seconds is 0.0"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"target": 0.0}, "target is 0.0"),
        ({"target": float("inf")}, "target is inf"),
    ],
)
def test_options_that_cannot_be_are_refused_with_their_value(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        replace(QUICK, **changes)


@pytest.mark.parametrize(
    ("cores", "numbers"), [(1, [0, 1]), (2, [0, 1, 2]), (6, [0, 1, 2, 4, 6]), (64, [0, 1, 2, 4, 8, 16, 32, 64])]
)
def test_workers_are_tried_up_to_the_cores(cores: int, numbers: list[int]) -> None:
    assert _numbers(None, cores) == numbers
    assert _numbers((4, 0, 4), cores) == [0, 4]
