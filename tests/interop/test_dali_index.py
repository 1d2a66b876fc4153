"""Our .idx files by DALI's rules, as its documentation and its loader state them, read by a parser of its own.

The first line is ``v1.2`` and the number of samples. Then a line a sample, of components; a component is extension,
offset, size and file name. An offset is that of the payload, a multiple of the tar block of 512 bytes, and the block
before it is the header of the file with that name and that size.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import interop, others, shards, trees
from wds_tools.convert.run import convert_tree
from wds_tools.tools.indexing import index_shards

Component = tuple[str, int, int, str]


def parse(path: Path) -> Iterator[list[Component]]:
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    version, count = header.split(" ")
    assert version == "v1.2"
    assert len(lines) == int(count)
    for line in lines:
        columns = line.split()
        assert columns
        assert len(columns) % 4 == 0
        yield [
            (columns[at], int(columns[at + 1]), int(columns[at + 2]), columns[at + 3])
            for at in range(0, len(columns), 4)
        ]


def samples(shard: Path, escaped: bool = False) -> list[dict[str, bytes]]:
    """What DALI would read, every offset checked against the shard."""
    data = shard.read_bytes()
    found = []
    for components in parse(shard.with_suffix(".idx")):
        for ext, offset, size, name in components:
            assert offset % 512 == 0
            assert offset + size <= len(data)
            header = data[offset - 512 : offset]
            assert int(header[124:135], 8) == size
            if not escaped:
                assert header[:100].rstrip(b"\0") == name.encode()
                assert name.endswith("." + ext) or name.lower().endswith("." + ext)
        assert len({name.rpartition("/")[2].partition(".")[0] for _, _, _, name in components}) == 1
        found.append({ext: data[offset : offset + size] for ext, offset, size, _ in components})
    return found


@pytest.mark.parametrize(
    "options", [{}, {"metadata": True}, {"encode": "npy"}, {"image_size": 4}, {"max_count": 1}], ids=str
)
def test_what_convert_writes(tmp_path: Path, options: dict[str, Any]) -> None:
    convert_tree(trees.classes(tmp_path / "tree"), tmp_path / "data", workers=0, **options)
    written = sorted((tmp_path / "data").glob("*.tar"))
    assert [sample for path in written for sample in samples(path)] == [
        fields for path in written for _, fields in trees.read_shard(path)
    ]


def test_both_splits_of_the_common_dataset(tmp_path: Path) -> None:
    made = interop.make(tmp_path)
    assert [len(samples(path)) for split in ("train", "val") for path in made.shards(split)] == [6, 6, 4, 3]


def test_what_index_writes_for_webdatasets_shards(tmp_path: Path) -> None:
    written = [{"__key__": f"{n}", "jpg": trees.picture(n), "cls": n, "a.b.txt": "x"} for n in range(5)]
    shards.webdataset_shards(tmp_path, written, 3)
    index_shards(tmp_path, workers=0)
    found = [sample for path in sorted(tmp_path.glob("*.tar")) for sample in samples(path)]
    assert [(sample["jpg"], int(sample["cls"]), sample["a.b.txt"]) for sample in found] == [
        (row["jpg"], row["cls"], b"x") for row in written
    ]


@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_what_index_writes_for_gnu_tars_with_odd_names(tmp_path: Path, form: str) -> None:
    tree = trees.make(tmp_path / "tree", ["two words/a b.jpg", "ü/ö.JPG", "deep/" * 30 + "x.jpg"])
    (tmp_path / "data").mkdir()
    others.gnu_tar(tmp_path / "data" / "x.tar", tree, f"--format={form}")
    index_shards(tmp_path / "data", workers=0)
    found = samples(tmp_path / "data" / "x.tar", escaped=True)
    assert sorted(sample["jpg"] for sample in found) == sorted(trees.snapshot(tree).values())
