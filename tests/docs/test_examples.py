"""The Python of README.md and docs/decoding.md runs as it stands, but for what not every machine has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import trees
from wds_tools import convert_tree

ROOT = Path(__file__).parents[2]
SMALLER = {
    "batch_size=256": "batch_size=32",
    "num_workers=8": "num_workers=2",
    "workers=8": "workers=2",
    '"cuda"': '"cpu"',
}


@pytest.mark.parametrize(("page", "dataset"), [("README.md", "build/shards"), ("docs/decoding.md", "shards")])
def test_every_example_runs(page: str, dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    tree = trees.classes(tmp_path / "imagenet" / "train", count=60)
    convert_tree(tree, tmp_path / dataset, max_count=50, workers=0)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}  # a page's blocks go on from one another
    for block in blocks:
        for what, instead in SMALLER.items():
            block = block.replace(what, instead)
        exec(compile(block, f"<{page}>", "exec"), names)
