"""datasets.load_dataset reads the folder as it is, without a network.

It wants every sample to have the same fields, and calls the split of ``val-…`` shards ``validation``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import interop, needs
from tests.support.commands import run_python
from wds_tools.tools.sidecars import write_sidecars

SCRIPT = """
import io, json, sys
import datasets

found = {}
for split, rows in datasets.load_dataset(sys.argv[1]).items():
    rows = rows.cast_column("jpg", datasets.Image(decode=False))
    found[split] = [[row["__key__"], row["cls"], row["jpg"]["bytes"].hex()] for row in rows]
first = datasets.load_dataset(sys.argv[1], split="validation", streaming=True)
print(json.dumps([found, [[row["__key__"], row["jpg"].size] for row in first]]))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> interop.Made:
    return interop.make(tmp_path_factory.mktemp("huggingface"), drawing=False)


def test_load_dataset_finds_the_splits_and_every_sample(made: interop.Made, tmp_path: Path) -> None:
    needs.package("datasets")
    offline = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    said = run_python("-c", SCRIPT, made.root, cwd=tmp_path, env=offline)
    assert said.code == 0, said.err
    found, first = json.loads(said.out)
    assert list(found) == ["train", "validation"]
    for split, rows in (("train", found["train"]), ("val", found["validation"])):
        assert {key: bytes.fromhex(data) for key, _, data in rows} == made.files[split]
        assert len(rows) == len(made.files[split])
        assert all(label == made.label(key) for key, label, _ in rows)
    assert sorted(first) == [[key, [8, 8]] for key in sorted(made.files["val"])]


FEATURES = """
import json, sys
import datasets

found = datasets.load_dataset(sys.argv[1])
print(json.dumps({
    split: [sorted(map(str, rows.features)), rows.features["cls"].names,
            [[row["__key__"], row["cls"], row["png"] is None] for row in rows]]
    for split, rows in found.items()
}))
"""


def test_a_card_gives_class_names_and_fields_that_not_all_samples_have(tmp_path: Path) -> None:
    """Without one, a PNG among JPEGs is an error, and so is Energon's ``.tar.idx``, which is taken for a shard."""
    needs.package("datasets")
    mixed = interop.make(tmp_path)
    write_sidecars(mixed.root, ("energon", "clip-benchmark", "hf"))
    offline = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    said = run_python("-c", FEATURES, mixed.root, cwd=tmp_path, env=offline)
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert list(found) == ["train", "validation"]
    for split, (columns, names, rows) in zip(("train", "val"), found.values(), strict=True):
        assert columns == ["__key__", "__url__", "cls", "jpg", "png"]
        assert names == list(interop.CLASSES)
        assert sorted(rows) == [[key, mixed.label(key), key != "ant/drawing"] for key in sorted(mixed.files[split])]
