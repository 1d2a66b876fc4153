import hashlib
import io

import pytest

from tests.support import shards
from wds_tools.errors import IndexFileError, ManifestError, NotFoundError, StaleIndexError, StoreError
from wds_tools.format import index, manifest
from wds_tools.format.dataset import open_dataset, read_index, split_of
from wds_tools.format.digest import DigestReader
from wds_tools.format.manifest import Manifest
from wds_tools.records import ShardInfo, SplitInfo
from wds_tools.store.local import LocalStore


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path)


def put(store: LocalStore, name: str, pairs: shards.Pairs) -> None:
    """A shard with its index."""
    data = shards.ours(pairs)
    store.write_atomic(name, [data])
    store.write_atomic(index.index_name(name), [index.dump_samples(shards.samples(data))])


@pytest.mark.parametrize(
    ("shard", "split"),
    [
        ("train-000000.tar", "train"),
        ("imagenet-val-000003.tar", "imagenet-val"),
        ("folder/val_17.tar", "val"),
        ("val.0001.tar", "val"),
        ("val0001.tar", "val"),
        ("train-00000-of-00100.tar", "train"),
        ("of-1.tar", "of"),
        ("000000.tar", "train"),
        ("-000000.tar", "train"),
        ("shards.tar", "train"),
        ("train-000000.tgz", "train"),
        ("v2-train-1.tar", "v2-train"),
    ],
)
def test_the_name_of_a_shard_tells_its_split(shard, split):
    assert split_of(shard) == split


def test_the_manifest_decides_what_a_dataset_is(store):
    content = Manifest(
        {"val": SplitInfo("val", (ShardInfo("b.tar", 1),)), "train": SplitInfo("train", (ShardInfo("sub/a.tar", 2),))}
    )
    store.write_atomic(manifest.NAME, [manifest.dump(content)])
    put(store, "train-000007.tar", shards.pairs(1))
    found = open_dataset(store, None)
    assert found.splits == {"val": ("b.tar",), "train": ("sub/a.tar",)}
    assert found.manifest == content


def test_without_a_manifest_the_names_of_the_shards_decide(store):
    for name in ("val-1.tar", "train-1.tar", "train-0.tar", ".train-2.tar", "train-0.idx", "notes.txt"):
        store.write_atomic(name, [b""])
    found = open_dataset(store, None)
    assert found.splits == {"train": ("train-0.tar", "train-1.tar"), "val": ("val-1.tar",)}
    assert found.manifest is None


def test_names_are_taken_as_they_are_given(store):
    store.write_atomic(manifest.NAME, [b"not looked at"])
    found = open_dataset(store, ("b-1.tar", "a-1.tar", "b-0.tar"))
    assert found.splits == {"b": ("b-1.tar", "b-0.tar"), "a": ("a-1.tar",)}


def test_a_folder_without_shards_is_no_dataset(store):
    store.write_atomic("notes.txt", [b""])
    with pytest.raises(NotFoundError, match=rf"{store.root}.* neither info.json nor shards .*'wds-tools convert'"):
        open_dataset(store, None)
    with pytest.raises(NotFoundError):
        open_dataset(LocalStore(store.url("missing")), None)


def test_a_manifest_that_cannot_be_read_is_not_passed_over(store):
    put(store, "train-000000.tar", shards.pairs(1))
    store.write_atomic(manifest.NAME, [b"{"])
    with pytest.raises(ManifestError, match=store.url(manifest.NAME)):
        open_dataset(store, None)


def test_fault_49_a_manifest_never_leads_out_of_its_folder(store):
    outside = manifest.dump(Manifest({"train": SplitInfo("train", (ShardInfo("a.tar", 1),))})).replace(
        b"a.tar", b"../a.tar"
    )
    store.write_atomic(manifest.NAME, [outside])
    with pytest.raises(ManifestError, match=r"'\.\./a\.tar' lies outside"):
        open_dataset(store, None)


def test_an_index_is_read_and_held_against_its_shard(store):
    put(store, "train-000000.tar", shards.pairs(3))
    samples = read_index(store, "train-000000.tar")
    assert [sample.key for sample in samples] == ["c/s000", "c/s001", "c/s002"]
    part = samples[1].fields[0]
    assert store.read("train-000000.tar", part.offset, part.size) == shards.pairs(3)[2][1]


def test_a_missing_index_or_shard_is_told(store):
    put(store, "a-0.tar", shards.pairs(1))
    store.delete("a-0.idx")
    with pytest.raises(NotFoundError, match=r"a-0\.idx"):
        read_index(store, "a-0.tar")
    put(store, "a-0.tar", shards.pairs(1))
    store.delete("a-0.tar")
    with pytest.raises(NotFoundError, match=r"a-0\.tar"):
        read_index(store, "a-0.tar")


def test_fault_28_a_shard_replaced_under_its_index_says_what_to_run(store):
    put(store, "train-000000.tar", shards.pairs(3))
    store.write_atomic("train-000000.tar", [shards.ours(shards.pairs(3, first=1))])
    with pytest.raises(StaleIndexError, match=rf"{store.url('train-000000.tar')}: .*run 'wds-tools index'"):
        read_index(store, "train-000000.tar")


def test_a_damaged_index_is_named(store):
    put(store, "train-000000.tar", shards.pairs(3))
    store.write_atomic("train-000000.idx", [b"v1.2 1\n"])
    with pytest.raises(IndexFileError, match=rf"{store.url('train-000000.idx')}: cut short"):
        read_index(store, "train-000000.tar")


def test_what_no_index_can_place_no_store_reads(store):
    """A size that makes no sense costs no memory."""
    put(store, "train-000000.tar", shards.pairs(1))
    with pytest.raises(StoreError, match=r"it ends at byte \d+, 4611686018427388416 were expected"):
        store.read("train-000000.tar", 512, 1 << 62)


def test_a_digest_reader_sees_every_byte_once():
    data = shards.ours(shards.pairs(5)) + bytes(100)
    reader = DigestReader(io.BytesIO(data))
    assert not reader.seekable()
    assert reader.read(1000) == data[:1000]
    assert reader.size == 1000
    assert reader.finish() == hashlib.sha256(data).hexdigest()
    assert reader.size == len(data)
