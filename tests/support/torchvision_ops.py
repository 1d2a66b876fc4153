"""Import this before ``import torchvision`` where torchvision's C library may not load.

The wheel on the package index is built for GPUs, and its library does not load without theirs. Everything in Python
works without it but for one thing: importing torchvision describes two operators that only the library defines. They
are defined here, without an implementation, if the library cannot.

``python -m tests.support.torchvision_ops SCRIPT WORDS…`` does that first, and then runs a script that imports torchvision.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def _library_loads(folder: str) -> bool:
    try:
        torch.ops.load_library(os.path.join(folder, "_C.so"))
    except OSError:
        return False
    return True


_spec = importlib.util.find_spec("torchvision")
if _spec is not None and _spec.origin is not None and not _library_loads(os.path.dirname(_spec.origin)):
    _definitions = torch.library.Library("torchvision", "DEF")  # they last as long as this object
    for _schema in _SCHEMAS:
        _definitions.define(_schema)

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
