"""How a peer takes its turns: it warms up once, then makes a pass over its data each time it is told to.

A peer's script hands `take_turns` a function that gives the batches of one pass. What it says, a line of JSON each:

    {"images": N, "shape": [3, 224, 224], "dtype": "uint8", "mean": M}   of the pass that warms up: what it delivers
    {"begun": true}                                                     when a pass begins, after a line on its input
    {"images": N, "seconds": S}                                         when the pass is over

Starting, compiling and warming up are in no pass. The batches of a timed pass are taken and dropped. By hand,
``echo | python SCRIPT …`` makes one pass. Needs no more than numpy: it runs in every peer's environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

WORKERS = 2
BATCH = 64
SIZE = 224


def take_turns(one_pass: Callable[[], Iterable[Any]], settle: Callable[[], object] = lambda: None) -> None:
    """Warm up, then a pass for each line on standard input. A batch is whatever numpy takes for ``(B, C, H, W)``.

    ``settle`` is called before each timed pass: to throw away what was made ready between passes.
    """
    # Libraries print to standard output; only this function's lines may go there.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    images, total, shape, dtype = 0, 0.0, (), ""
    for batch in one_pass():
        array = np.asarray(batch)
        images, shape, dtype = images + len(array), array.shape[1:], str(array.dtype)
        total += float(array.mean()) * len(array)
    print(
        json.dumps({"images": images, "shape": shape, "dtype": dtype, "mean": total / images}), file=answers, flush=True
    )
    for _ in sys.stdin:
        settle()
        print(json.dumps({"begun": True}), file=answers, flush=True)
        started = time.perf_counter()
        images = sum(len(batch) for batch in one_pass())
        seconds = time.perf_counter() - started
        print(json.dumps({"images": images, "seconds": seconds}), file=answers, flush=True)
