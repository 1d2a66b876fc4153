"""One dataset of two splits for every reader that is not ours, and what they should find in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support import images, trees
from wds_tools.convert.run import convert_tree

CLASSES = ("ant", "bee", "cat")


@dataclass(frozen=True)
class Made:
    """A dataset, and for each of its splits the files of the source by key, and their labels."""

    root: Path
    files: dict[str, dict[str, bytes]]

    def label(self, key: str) -> int:
        return CLASSES.index(key.partition("/")[0])

    def shards(self, split: str = "train") -> list[Path]:
        return sorted(self.root.glob(f"{split}-*.tar"))


def make(folder: Path, drawing: bool = True) -> Made:
    """Fifteen samples in three shards to train on, and a PNG ``drawing``, and three in one shard to validate on."""
    train = trees.classes(folder / "train", CLASSES, 5)
    if drawing:
        trees.write(train, "ant/drawing.png", images.png(8, 8))
    val = trees.classes(folder / "val", CLASSES, 1)
    for source, options in ((train, {"max_count": 6, "seed": 3}), (val, {"split": "val"})):
        convert_tree(source, folder / "data", workers=0, **options)
    files = {
        source.name: {str(path.relative_to(source).with_suffix("")): path.read_bytes() for path in source.rglob("*.*")}
        for source in (train, val)
    }
    return Made(folder / "data", files)
