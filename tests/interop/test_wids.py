"""wids indexes the dataset by info.json: the real reader, and its rules read by the letter."""

from __future__ import annotations

import json

import pytest

from tests.support import interop, needs, trees
from tests.support.commands import run_python
from tests.support.install_peers import WIDS

SCRIPT = """
import json, sys
import wids

dataset = wids.ShardListDataset(sys.argv[1] + "/info.json", cache_dir=sys.argv[2], keep=True, transformations=[])
rows = [dataset[number] for number in range(len(dataset))]
print(json.dumps([
    [row["__key__"], int(row[".cls"].read()), (row.get(".jpg") or row[".png"]).read().hex(), row["__shard__"]] for row in rows
]))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> interop.Made:
    return interop.make(tmp_path_factory.mktemp("wids"))


def test_wids_reads_every_sample_by_its_number(made: interop.Made, tmp_path_factory: pytest.TempPathFactory) -> None:
    needs.folder(WIDS / "wids")
    cache = tmp_path_factory.mktemp("cache")
    said = run_python("-c", SCRIPT, made.root, cache, cwd=cache, env={"PYTHONPATH": str(WIDS)})
    assert said.code == 0, said.err
    rows = json.loads(said.out)
    assert {key: bytes.fromhex(data) for key, _, data, _ in rows} == made.files["train"] | made.files["val"]
    assert all(label == made.label(key) for key, label, _, _ in rows)
    assert [(key, shard.rpartition("/")[2]) for key, _, _, shard in rows] == [
        (key, path.name)
        for split in ("train", "val")
        for path in made.shards(split)
        for key, _ in trees.read_shard(path)
    ]


def test_the_rules_by_the_letter(made: interop.Made) -> None:
    """``wids_version`` 1; a ``shardlist`` of ``url``, relative to the file, ``nsamples`` and ``filesize``; a name."""
    content = json.loads((made.root / "info.json").read_bytes())
    assert content["wids_version"] == 1
    assert isinstance(content["name"], str)
    ends = []
    for shard in content["shardlist"]:
        path = made.root / shard["url"]
        assert path.parent == made.root
        assert path.stat().st_size == shard["filesize"]
        assert len(trees.read_shard(path)) == shard["nsamples"]
        ends.append((ends[-1] if ends else 0) + shard["nsamples"])
    assert ends == [6, 12, 16, 19]
