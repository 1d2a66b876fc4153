"""Energon's files, held against its own rules as its code has them (7.4.1), told by Python's tarfile."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.support import shards, trees
from wds_tools.errors import FormatError
from wds_tools.format import energon, tar
from wds_tools.records import ShardInfo, SplitInfo

TRAIN = SplitInfo("train", (ShardInfo("train-000000.tar", 3), ShardInfo("train-000001.tar", 2)))
VAL = SplitInfo("val", (ShardInfo("val-000000.tar", 1),))


def by_tarfile(data: bytes) -> list[int]:
    """Where the first member of each sample begins, its extended headers with it, and where the last member ends."""
    offsets, last = [], None
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            parts = tar.split_name(member.name) if member.isreg() else None
            if parts is not None and parts[0] != last:
                offsets.append(member.offset)
                last = parts[0]
        return [*offsets, archive.offset]


def by_us(data: bytes) -> list[int]:
    samples = list(tar.samples(tar.members(io.BytesIO(data))))
    index = energon.dump_tar_index(samples, lambda start, length: data[start : start + length])
    assert len(index) == 8 * (len(samples) + 1)
    return list(struct.unpack(f"<{len(index) // 8}Q", index))


LONG = [
    (f"{'x' * 60}/{'y' * 60}/s{number}.{ext}", bytes(700 * number)) for number in range(4) for ext in ("jpg", "cls")
]


@pytest.mark.parametrize(
    "data",
    [
        shards.ours(shards.pairs(5)),
        shards.ours([]),
        shards.python(shards.pairs(5), "pax"),
        shards.python(LONG, "pax"),
        shards.python(LONG, "gnu"),
        shards.python(shards.pairs(3), folders=["a", "b/c"]),
        shards.webdataset({"__key__": f"s{number}", "jpg": b"x" * 600 * number, "cls": 3} for number in range(4)),
    ],
    ids=["ours", "empty", "pax", "pax long", "gnu long", "folders", "webdataset"],
)
def test_a_sample_begins_at_its_first_header(data: bytes) -> None:
    assert by_us(data) == by_tarfile(data)


def test_gnu_tars_folders_between_samples_are_passed_over(tmp_path: Path) -> None:
    shards.files(tmp_path, [(f"{'d' * 110}{number}/s{number}.jpg", trees.picture(number)) for number in range(4)])
    data = shards.gnu(tmp_path)
    assert by_us(data) == by_tarfile(data)


def test_archives_end_to_end_go_on() -> None:
    first, second = shards.ours(shards.pairs(2)), shards.python(LONG, "gnu")
    assert by_us(first + second)[:-1] == [*by_us(first)[:-1], *(len(first) + offset for offset in by_us(second)[:-1])]


def test_the_name_stands_beside_the_shards() -> None:
    assert energon.tar_index_name("a/train-000000.tar") == "a/train-000000.tar.idx"
    with pytest.raises(FormatError, match=r"'a.tgz' does not end in .tar"):
        energon.tar_index_name("a.tgz")


def test_counts_and_splits() -> None:
    splits = {"train": TRAIN, "val": VAL}
    counts = {"train-000000.tar": 3, "train-000001.tar": 2, "val-000000.tar": 1}
    assert json.loads(energon.dump_info(splits)) == {"shard_counts": counts}
    assert yaml.safe_load(energon.dump_splits(splits)) == {
        "split_parts": {"train": ["train-000000.tar", "train-000001.tar"], "val": ["val-000000.tar"]}
    }
    with pytest.raises(FormatError, match="brace"):
        energon.dump_splits({"x": SplitInfo("x", (ShardInfo("x-{0..3}.tar", 1),))})


@pytest.mark.parametrize(
    ("fields", "kind", "mapped"),
    [
        ({"jpg": 4, "cls": 4}, "ImageClassificationSample", {"image": "jpg", "label": "cls"}),
        ({"jpg": 1, "png": 3, "cls": 4, "txt": 4}, "ImageClassificationSample", {"image": "jpg,png", "label": "cls"}),
        ({"png": 4, "txt": 4, "cls": 3}, "CaptioningSample", {"image": "png", "caption": "txt"}),
        ({"webp": 4, "json": 4}, "ImageSample", {"image": "webp"}),
    ],
)
def test_a_sample_is_what_all_have(fields: dict[str, int], kind: str, mapped: dict[str, str]) -> None:
    assert yaml.safe_load(energon.dump_dataset(fields, 4)) == {
        "sample_type": {"__module__": "megatron.energon", "__class__": kind},
        "field_map": mapped,
    }


@pytest.mark.parametrize("fields", [{"npy": 4, "cls": 4}, {"jpg": 3, "cls": 4}, {}])
def test_others_are_handed_on(fields: dict[str, int]) -> None:
    assert yaml.safe_load(energon.dump_dataset(fields, 4))["__class__"] == "CrudeWebdataset"


@pytest.mark.parametrize(
    ("counts", "suits"), [({"val-000000.tar": 1}, True), ({"val-000000.tar": 2}, False), ({"gone.tar": 1}, False)]
)
def test_anothers_counts_suit_or_not(counts: dict[str, int], suits: bool) -> None:
    data = json.dumps({"energon_version": "7.4.1", "shard_counts": counts}).encode()
    assert energon.suits(data, {"train": TRAIN, "val": VAL}) is suits
    for broken in (b"", b"{}", b"[]", b'{"shard_counts": 1}'):
        assert not energon.suits(broken, {"train": TRAIN})
