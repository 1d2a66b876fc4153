"""verify, info, index and extract of datasets on a server and in a bucket."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import buckets, needs, servers, shards, streams, trees
from tests.support.commands import call
from wds_tools.convert.run import convert_tree
from wds_tools.errors import OptionError, StoreError
from wds_tools.store.options import StoreOptions
from wds_tools.store.s3 import S3Store
from wds_tools.stream.dataset import ShardDataset
from wds_tools.tools.extract import extract_dataset
from wds_tools.tools.indexing import index_shards
from wds_tools.tools.verify import verify_dataset

if TYPE_CHECKING:
    from tests.conftest import Bucket

Put = Callable[[Path], str]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.classes(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def dataset(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "out"
    convert_tree(tree, folder, max_count=4, workers=0)
    return folder


@pytest.fixture(params=["nginx", "s3"])
def put(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Put]:
    """Puts the files of a folder somewhere remote, and answers with the address."""
    if request.param == "nginx":
        server: servers.Nginx = request.getfixturevalue("nginx")

        def copy(folder: Path) -> str:
            shutil.copytree(folder, server.root / tmp_path.name)
            return f"{server.url}/{tmp_path.name}"

        yield copy
        return
    bucket: Bucket = request.getfixturevalue("bucket")

    def upload(folder: Path) -> str:
        place = f"{bucket.url}/{tmp_path.name}"
        buckets.fill(S3Store(place), folder)
        return place

    with buckets.configured(bucket):
        yield upload


def test_a_remote_dataset_is_described_as_the_local_one(dataset: Path, put: Put) -> None:
    place = put(dataset)
    words = ("--json", "--world", "2", "--workers", "1", "--batch-size", "2")
    here, there = (json.loads(call("info", where, *words).out) for where in (dataset, place))
    assert here["epoch"]["quality"].pop("neighbours") is not None
    assert there["epoch"]["quality"].pop("neighbours") is None  # labels of a remote dataset are not read for it
    assert there == {**here, "place": place}
    said = call("info", place)
    assert (said.code, said.err) == (0, "")
    assert f"ShardDataset({place!r}, split='train')" in said.out
    for shards_of in (f"{place}/train-{{000000..000003}}.tar", f"{place}/info.json"):
        said = call("info", shards_of)
        assert (said.code, said.err) == (0, "")
        assert "split train: 15 samples in 4 shards" in said.out


def test_a_remote_dataset_verifies_and_a_flipped_byte_is_found(dataset: Path, tmp_path: Path, put: Put) -> None:
    damaged = shutil.copytree(dataset, tmp_path / "damaged")
    streams.rewrite(damaged / "train-000001.tar", lambda data: shards.flipped(data, 700, 3))
    place = put(damaged)
    said = call("verify", place, "--workers", "2")
    assert (said.code, said.err) == (1, "")
    assert said.out.splitlines()[0].startswith("train-000001.tar: its sha256 is not the one in info.json")
    assert said.out.splitlines()[1].endswith("; 1 problem")
    said = call("verify", f"{place}/train-{{000002..000003}}.tar", "--decode")
    assert (said.code, said.err) == (0, "")
    assert "7 samples in 2 shards" in said.out
    missing = call("verify", f"{place}/nothing")
    assert missing.code == 1


@pytest.mark.parametrize("decode", [False, True])
def test_verify_fetches_each_shard_once(dataset: Path, decode: bool) -> None:
    with streams.served(dataset.parent) as server:
        assert verify_dataset(f"{server.url}/{dataset.name}", decode=decode, workers=0).problems == []
        asked = [path.rpartition("/")[2] for _, path, _ in server.requests]
        assert sorted(name for name in asked if name.endswith(".tar")) == [f"train-{n:06d}.tar" for n in range(4)]


def test_verify_finds_bad_labels_and_images_remotely(dataset: Path, tmp_path: Path, put: Put) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    image = trees.picture(1)
    members = [("a/1.jpg", image), ("a/1.cls", b"cat"), ("a/2.jpg", image[:200]), ("a/2.cls", b"1")]
    (folder / "train-000000.tar").write_bytes(shards.ours(members))
    index_shards(folder, workers=0)
    here = verify_dataset(folder, decode=True, workers=0).problems
    assert [(problem.key, problem.message[:11]) for problem in here] == [
        ("a/1", "field 'cls'"),
        ("a/2", "field 'jpg'"),
    ]
    assert verify_dataset(put(folder), decode=True, workers=2).problems == here


def test_a_password_goes_to_the_workers_and_into_no_message(dataset: Path) -> None:
    with streams.served(dataset.parent) as server:
        address = server.url.replace("://", "://me:s3cret@") + f"/{dataset.name}"
        report = verify_dataset(address, workers=2)
        assert report.problems == []
        assert {headers.get("authorization") for _, _, headers in server.requests} == {"Basic bWU6czNjcmV0"}
        server.always = streams.status(403)
        said = call("verify", address)
        assert said.code == 1
        assert "HTTP 403" in said.err
        assert "s3cret" not in said.out + said.err


def test_a_bucket_of_others_shards_is_indexed_and_streams(bucket: Bucket, tmp_path: Path) -> None:
    needs.package("webdataset")
    folder = streams.numbered(tmp_path / "local", indexed=False)
    place = f"{bucket.url}/{tmp_path.name}"
    store = S3Store(place, bucket.options)
    buckets.fill(store, folder)
    with buckets.configured(bucket):
        assert call("info", place).code == 0
        said = call("index", place, "--workers", "2")
        assert (said.code, said.err) == (0, "")
        assert said.out == f"{place}: 23 samples in 5 shards indexed\n"
        streams.index(folder)
        assert buckets.snapshot(store) == trees.snapshot(folder)
        assert verify_dataset(place, workers=0).problems == []
        samples = ShardDataset(place, shuffle=True)
        assert len(samples) == streams.SAMPLES
        assert sorted(int(sample["cls"]) for sample in samples) == list(range(streams.SAMPLES))
        before = store.version("train-000001.idx")
        assert call("index", f"{place}/train-{{000000..000001}}.tar").code == 0
        assert store.version("train-000001.idx").size == before.size


def test_an_index_is_not_written_over_http_nor_where_nothing_may_be_written(
    dataset: Path, bucket: Bucket, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=r"http://h/x can only be read.*run this where the shards lie"):
        index_shards("http://h/x?secret")
    said = call("index", "http://127.0.0.1:9/x")
    assert (said.code, len(said.err.splitlines())) == (2, 1)
    with buckets.configured(bucket, "wrong"), pytest.raises(StoreError, match="HTTP 403 SignatureDoesNotMatch"):
        index_shards(f"{bucket.url}/{tmp_path.name}")
    with streams.served(tmp_path) as server:
        server.always = streams.status(403)
        options = StoreOptions(endpoint_url=server.url, anonymous=True)
        with pytest.raises(StoreError, match="HTTP 403"):
            index_shards("s3://b/x/train-{0..9}.tar", store_options=options)
        assert [method for method, _, _ in server.requests] == ["PUT"]  # before any shard is read


def test_a_remote_dataset_is_extracted(tree: Path, dataset: Path, tmp_path: Path, put: Put) -> None:
    extract_dataset(put(dataset), tmp_path / "images")
    assert trees.snapshot(tmp_path / "images") == trees.snapshot(tree)


def test_fault_20_a_remote_shard_that_is_cut_is_not_extracted(dataset: Path, tmp_path: Path, put: Put) -> None:
    damaged = shutil.copytree(dataset, tmp_path / "damaged")
    streams.rewrite(damaged / "train-000003.tar", lambda data: data[:1500])
    said = call("extract", put(damaged), tmp_path / "images")
    assert said.code == 1
    assert "train-000003.tar: cut short" in said.err
    assert not (tmp_path / "images").exists()
