"""What is asked of every kind of source that is one file: the same bytes whatever the workers, and pixels that come back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support import trees
from tests.support.processes import assert_same
from wds_tools.convert.entries import Entry, Request, Source, load_line
from wds_tools.convert.result import Result
from wds_tools.convert.run import convert_tree
from wds_tools.convert.sources import scan
from wds_tools.convert.spool import Spool
from wds_tools.image.arrays import decode_npy
from wds_tools.tools.verify import verify_dataset


def convert(source: Path, target: Path, **options: Any) -> Result:
    """In this process unless a test says otherwise; what was made must verify."""
    result = convert_tree(source, target, **{"workers": 0, **options})
    assert verify_dataset(target, workers=0).problems == []
    assert not (target / ".wds_tools").exists()
    return result


def found(source: Path, **options: Any) -> tuple[Source, list[Entry]]:
    """What a scan finds, and its entries."""
    scanned = scan(Request(str(source), Spool(), **options))
    return scanned, [load_line(line) for line in scanned.lines]


def is_repeatable(source: Path, folder: Path, **options: Any) -> list[tuple[str, dict[str, bytes]]]:
    """Hold a conversion to what all promise: equal bytes for any workers and place, and nothing to do the second time.

    Answers with the samples.
    """
    for workers in (0, 1, 2):
        assert convert(source, folder / str(workers), workers=workers, **options).built >= 3
    expected = trees.snapshot(folder / "0")
    assert_same(folder / "1", expected)
    assert_same(folder / "2", expected)
    assert convert(source, folder / "0", **options).built == 0
    assert_same(folder / "0", expected)
    for name in os.listdir(source) if source.is_dir() else ():
        os.utime(source / name, (86_400, 86_400))
    os.utime(source, (86_400, 86_400))
    convert(source, folder / "touched", **options)
    assert_same(folder / "touched", expected)
    return trees.read(folder / "0")


def arrays_by_key(samples: list[tuple[str, dict[str, bytes]]]) -> NDArray[Any]:
    """The arrays of all samples in the order of their keys."""
    return np.stack([decode_npy(fields["npy"]) for _, fields in sorted(samples, key=lambda sample: sample[0])])


def labels_by_key(samples: list[tuple[str, dict[str, bytes]]]) -> list[int]:
    return [int(fields["cls"]) for _, fields in sorted(samples, key=lambda sample: sample[0])]


def pictures(count: int = 40, height: int = 7, width: int = 6, channels: int = 3) -> NDArray[np.uint8]:
    """Noise, each picture like no other."""
    return np.random.default_rng(0).integers(0, 256, (count, height, width, channels), np.uint8)


def trained(dataset: Path, field: str = "npy") -> tuple[list[NDArray[np.uint8]], list[int]]:
    """The pixels (H, W, 3) and labels that a training loop sees, in the order of their keys."""
    from wds_tools import ShardDataset, ShardLoader, transforms

    fields = (field, "cls", "__key__")
    shown = ShardDataset(str(dataset), split="train", fields=fields, shuffle=True, transform=transforms.Decode())
    seen = {}
    for images, labels, keys in ShardLoader(shown, batch_size=7, num_workers=0):
        for image, label, key in zip(images, labels.tolist(), keys, strict=True):
            seen[key] = (image.permute(1, 2, 0).numpy().copy(), label)
    return [seen[key][0] for key in sorted(seen)], [seen[key][1] for key in sorted(seen)]
