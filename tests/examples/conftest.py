from __future__ import annotations

from pathlib import Path

import pytest

from wds_tools.convert.run import convert_tree
from wds_tools.tools.demo import make_demo


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards with 60 samples to train on and 12 to evaluate."""
    folder = tmp_path_factory.mktemp("few")
    for split, per_class in ("train", 10), ("val", 2):
        make_demo(folder / split, per_class=per_class, size=32, seed=per_class)
        convert_tree(folder / split, folder / "shards", split=split, max_count=17, workers=0)
    return folder / "shards"
