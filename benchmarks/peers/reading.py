"""Read shards one way, and say how long it took and how much memory this process came to hold.

Usage: reading.py WAY SHARDS [NUMBER …]. Prints numbers, without what imports took.

    ours FOLDER                    one shuffled epoch of ShardDataset: seconds, samples
    webdataset FOLDER              wds.WebDataset(shardshuffle=100).shuffle(1000): seconds, samples
    memory FOLDER WINDOW EPOCHS    a ShardLoader with two persistent workers: for each epoch the MB that the larger
                                   worker holds of its own (not shared with others) at its end
    resume FOLDER SAMPLES          from a loaded state with that many samples delivered to the first batch of 256: seconds
    start FOLDER                   from nothing to the first batch of 256: seconds, samples
"""

from __future__ import annotations

import glob
import json
import multiprocessing
import os
import re
import sys
import time
import warnings
from collections.abc import Sequence

import webdataset

from wds_tools import ShardDataset, ShardLoader

BATCH = 256


def ours(folder: str) -> Sequence[float]:
    started = time.perf_counter()
    count = sum(1 for _ in ShardDataset(folder, shuffle=True, seed=1))
    return time.perf_counter() - started, count


def peer(folder: str) -> Sequence[float]:
    warnings.simplefilter("ignore")
    started = time.perf_counter()
    dataset = webdataset.WebDataset(sorted(glob.glob(os.path.join(folder, "*.tar"))), shardshuffle=100).shuffle(1000)
    count = sum(1 for _ in dataset)
    return time.perf_counter() - started, count


def memory(folder: str, window: str, epochs: str) -> Sequence[float]:
    dataset = ShardDataset(folder, shuffle=True, window=int(window), fields=("jpg", "cls"))
    loader = ShardLoader(dataset, batch_size=BATCH, num_workers=2)
    peaks = []
    for _ in range(int(epochs)):
        batches = len(loader)
        for number, _ in enumerate(loader, 1):
            if number == batches:
                workers = [child.pid for child in multiprocessing.active_children()]
        peaks.append(max(_own_megabytes(pid) for pid in workers if pid is not None))
    return peaks


def _own_megabytes(pid: int) -> float:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(kb) for kb in re.findall(r"Private_\w+: +(\d+)", file.read())) / 1000


def resume(folder: str, samples: str) -> Sequence[float]:
    state = ShardLoader(ShardDataset(folder, shuffle=True), batch_size=BATCH).state_dict()
    phase = {"world": 1, "workers": 0, "batch_size": BATCH, "batches": int(samples) // BATCH}
    state = json.loads(json.dumps({**state, "history": [phase]}))
    started = time.perf_counter()
    loader = ShardLoader(ShardDataset(folder, shuffle=True, fields=("jpg", "cls")), batch_size=BATCH)
    loader.load_state_dict(state)
    next(iter(loader))
    return (time.perf_counter() - started,)


def start(folder: str) -> Sequence[float]:
    started = time.perf_counter()
    dataset = ShardDataset(folder, shuffle=True, fields=("jpg", "cls"))
    next(iter(ShardLoader(dataset, batch_size=BATCH)))
    return time.perf_counter() - started, len(dataset)


if __name__ == "__main__":
    ways = {"ours": ours, "webdataset": peer, "memory": memory, "resume": resume, "start": start}
    print(*(f"{number:.4f}" for number in ways[sys.argv[1]](*sys.argv[2:])))
