"""CLIP_benchmark's layout."""

from __future__ import annotations

import pytest

from wds_tools.errors import FormatError
from wds_tools.format import clip_benchmark
from wds_tools.records import ShardInfo, SplitInfo


def test_links_are_numbered_and_relative() -> None:
    split = SplitInfo("val", (ShardInfo("val-000000.tar", 1), ShardInfo("more/val-000001.tar", 1)))
    assert clip_benchmark.links(split) == {
        ".clip-benchmark/val/0.tar": "../../val-000000.tar",
        ".clip-benchmark/val/1.tar": "../../more/val-000001.tar",
    }
    assert clip_benchmark.dump_count(split) == b"2\n"


@pytest.mark.parametrize("name", ["../out", "a/b", "", ".", "..", ".hidden"])
def test_a_split_must_be_a_folder(name: str) -> None:
    with pytest.raises(FormatError, match="cannot be a folder's name"):
        clip_benchmark.links(SplitInfo(name, ()))


def test_class_names_are_lines() -> None:
    assert clip_benchmark.dump_classes(("ant", "große Biene")) == "ant\ngroße Biene\n".encode()
    for name in ("a\nb", " a", "a\u2028b", ""):
        with pytest.raises(FormatError, match="cannot be a line"):
            clip_benchmark.dump_classes((name,))


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"jpg": 3, "png": 1, "cls": 4, "txt": 4}, "classification"),
        ({"webp": 4, "txt": 4}, "retrieval"),
    ],
)
def test_fields_tell_what_can_be_evaluated(fields: dict[str, int], kind: str) -> None:
    assert clip_benchmark.kind(fields, 4) == kind


@pytest.mark.parametrize(
    "fields", [{"gif": 4, "cls": 4}, {"jpg": 3, "gif": 1, "cls": 4}, {"jpg": 4}, {"jpg": 4, "cls": 3}]
)
def test_or_that_nothing_can(fields: dict[str, int]) -> None:
    with pytest.raises(FormatError, match="in each of 4 samples"):
        clip_benchmark.kind(fields, 4)
