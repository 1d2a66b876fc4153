"""Read remote files one way, and say how long it took.

Usage: streaming.py WAY URL NUMBER NAME…. Prints seconds and bytes, without what imports took.

    stream  HttpStore.stream, in pieces of 1 MiB; NUMBER is chunk_size
    read    HttpStore.read of ranges of NUMBER bytes
    curl    one curl process for all files, into /dev/null; NUMBER is ignored

Shards are read as samples, which are then counted in place of bytes; NUMBER is ignored:

    samples     one shuffled epoch of ShardDataset
    webdataset  the same of wds.WebDataset(shardshuffle=100).shuffle(1000)
"""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Sequence

import webdataset

from wds_tools import ShardDataset
from wds_tools.store.http import HttpStore
from wds_tools.store.options import StoreOptions

STEP = 1 << 20


def stream(url: str, number: int, names: Sequence[str]) -> int:
    store = HttpStore(url, StoreOptions(chunk_size=number))
    total = 0
    for name in names:
        with store.stream(name) as file:
            while part := file.read(STEP):
                total += len(part)
    return total


def read(url: str, number: int, names: Sequence[str]) -> int:
    store = HttpStore(url)
    total = 0
    for name in names:
        version = store.version(name)
        for at in range(0, version.size, number):
            total += len(store.read(name, at, min(number, version.size - at), version))
    return total


def curl(url: str, number: int, names: Sequence[str]) -> int:
    words = ["curl", "-sS", "-w", "%{size_download}\n"]
    for name in names:
        words += ["-o", "/dev/null", f"{url}/{name}"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return sum(map(int, done.stdout.split()))


def samples(url: str, number: int, names: Sequence[str]) -> int:
    return sum(1 for _ in ShardDataset(url, shuffle=True, seed=1))


def peer(url: str, number: int, names: Sequence[str]) -> int:
    warnings.simplefilter("ignore")
    urls = [f"{url}/{name}" for name in names]
    return sum(1 for _ in webdataset.WebDataset(urls, shardshuffle=100).shuffle(1000))


def main() -> None:
    way, url, number, *names = sys.argv[1:]
    ways = {"stream": stream, "read": read, "curl": curl, "samples": samples, "webdataset": peer}
    started = time.perf_counter()
    total = ways[way](url, int(number), names)
    print(time.perf_counter() - started, total)


if __name__ == "__main__":
    main()
