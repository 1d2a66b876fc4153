"""docs/concepts.md: short enough to be read first, and its example does what it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import trees
from wds_tools import convert_tree

TEXT = (Path(__file__).parents[2] / "docs" / "concepts.md").read_text(encoding="utf-8")


def test_its_example_delivers_every_sample_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    convert_tree(trees.classes(tmp_path / "images", count=60), "shards", max_count=50, workers=0)
    space: dict[str, list[str]] = {}
    exec(example, space)
    assert sorted(space["seen"]) == [f"{name}/{name}_{n:03d}" for name in ("ant", "bee", "cat") for n in range(60)]


def test_it_is_two_pages_at_most() -> None:
    assert len(TEXT.splitlines()) <= 120
