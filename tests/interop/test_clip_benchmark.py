"""CLIP_benchmark's reader finds both splits, class names and every sample through the links beside the shards."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.support import interop, needs
from tests.support.commands import run_python
from tests.support.install_peers import CLIP_BENCHMARK
from wds_tools.tools.sidecars import write_sidecars

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys
import tests.support.torchvision_ops
from clip_benchmark.datasets.builder import build_dataset

found = {}
for split in ("train", "val"):
    rows = build_dataset("wds/any", root=sys.argv[1], split=split, transform=lambda image: image.size)
    found[split] = [rows.classes, rows.templates, sorted(rows)]
print(json.dumps(found))
"""


def test_it_reads_every_sample_with_its_label(tmp_path: Path) -> None:
    needs.folder(CLIP_BENCHMARK / "clip_benchmark")
    needs.package("tests.support.torchvision_ops")
    needs.package("torchvision")
    made = interop.make(tmp_path)
    write_sidecars(made.root, ("clip-benchmark",))
    path = os.pathsep.join((str(CLIP_BENCHMARK), str(ROOT)))
    said = run_python("-c", SCRIPT, made.root / ".clip-benchmark", cwd=tmp_path, env={"PYTHONPATH": path})
    assert said.code == 0, said.err
    found = json.loads(said.out)
    for split, (classes, templates, rows) in found.items():
        assert classes == list(interop.CLASSES)
        assert templates == ["a photo of a {c}."]
        assert rows == sorted([[8, 8], made.label(key)] for key in made.files[split])
