"""The dataset card's block, read as YAML."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from wds_tools.errors import FormatError
from wds_tools.format import card
from wds_tools.records import ShardInfo, SplitInfo


def split(name: str, *shards: str, samples: int = 1) -> SplitInfo:
    return SplitInfo(name, tuple(ShardInfo(shard, samples, 1000) for shard in shards))


def read(*splits: SplitInfo, classes: tuple[str, ...] = (), fields: dict[str, int] | None = None) -> dict[str, Any]:
    data = card.dump_block({each.name: each for each in splits}, classes, fields or {"jpg": 1})
    found: dict[str, Any] = yaml.safe_load(card.new_card(data).split(b"---\n")[1])
    return found


def test_splits_patterns_counts_and_size() -> None:
    found = read(split("train", "train-000000.tar", "train-000001.tar", samples=700), split("val", "val-000000.tar"))
    assert found["configs"] == [
        {
            "config_name": "default",
            "data_files": [
                {"split": "train", "path": "train-*.tar"},
                {"split": "validation", "path": "val-*.tar"},
            ],
        }
    ]
    assert found["dataset_info"]["splits"] == [
        {"name": "train", "num_bytes": 2000, "num_examples": 1400},
        {"name": "validation", "num_bytes": 1000, "num_examples": 1},
    ]
    assert found["size_categories"] == ["1K<n<10K"]


def test_a_pattern_means_one_split_only() -> None:
    one, other = split("train", "train-000000.tar"), split("train-more", "train-more-000000.tar")
    files = read(one, other)["configs"][0]["data_files"]
    assert files[0] == {"split": "train", "path": "train-[0-9][0-9][0-9][0-9][0-9][0-9].tar"}
    assert files[1] == {"split": "train_more", "path": "train-more-*.tar"}
    assert read(split("train", "a[0].tar", "b.tar"))["configs"][0]["data_files"][0]["path"] == ["a[[]0].tar", "b.tar"]


def test_columns() -> None:
    fields = {"cls": 2, "jpg": 1, "png": 1, "txt": 2}
    features = read(split("a", "a.tar"), classes=("no", "1"), fields=fields)["dataset_info"]["features"]
    assert [each["name"] for each in features] == ["jpg", "png", "txt", "cls", "__key__", "__url__"]
    assert [each["dtype"] for each in features][:3] == ["image", "image", "string"]
    assert features[3]["dtype"] == {"class_label": {"names": {"0": "no", "1": "1"}}}
    assert {"name": "cls", "dtype": "int64"} in read(split("a", "a.tar"), fields=fields)["dataset_info"]["features"]


@pytest.mark.parametrize("field", ["json", "npy", "mask.png"])
def test_no_columns_are_told_where_one_is_not_known(field: str) -> None:
    assert "features" not in read(split("a", "a.tar"), fields={"jpg": 1, field: 1})["dataset_info"]


def test_splits_keep_apart() -> None:
    assert card.split_names(["val", "validation"]) == {"val": "val", "validation": "validation"}
    assert card.split_names(["a-b", "dev"]) == {"a-b": "a_b", "dev": "validation"}
    with pytest.raises(FormatError, match="tell them apart"):
        card.split_names(["a-b", "a_b"])


@pytest.mark.parametrize(
    ("samples", "name"), [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (1_281_167, "1M<n<10M"), (10**12, "n>1T")]
)
def test_size_categories_are_the_hubs(samples: int, name: str) -> None:
    assert read(split("a", "a.tar", samples=samples))["size_categories"] == [name]
