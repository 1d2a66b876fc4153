"""Converting on a cluster: what it costs to have tasks run by somebody else. One function a claim; others may be added.

Method: conversions of the same source in one process, in turn, after one warm-up each, with a warm page cache; medians
of the clock, and ratios of medians. All have two workers. The cluster is of this machine, is started once before
anything is timed and stays for all turns; what that took is quoted by itself.

    overhead    10,000 files of 0.7 to 2.5 kB in 100 classes, and in 10, 100 and 1,000 shards: Ray against the pool of processes

Command: ``python benchmarks/scale_convert.py [CASE …] [--runs N] [--scratch DIR] [--save FILE]``. It needs the extra ``ray``.
Results: benchmarks/results/scale_convert.md.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.measure import table  # noqa: E402
from wds_tools.convert.run import convert_tree  # noqa: E402

WORKERS = 2
FILES = 10_000
SHARDS = (10, 100, 1000)


def make_tree(tree: Path) -> None:
    draw = random.Random(0)
    for number in range(FILES):
        folder = tree / f"class{number % 100:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        body = draw.randbytes(draw.randint(695, 2495))
        (folder / f"image_{number:05d}.jpg").write_bytes(b"\xff\xd8\xff" + body + b"\xff\xd9")


def start_cluster() -> float:
    """Connect this process to a Ray cluster of its own, which conversions then use; seconds until a first task was done."""
    import ray

    started = time.perf_counter()
    ray.init(
        "local",
        num_cpus=WORKERS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.CRITICAL,
        object_store_memory=160 << 20,
    )
    ray.get(ray.remote(lambda: None).remote())
    return time.perf_counter() - started


def convert(engine: str, tree: Path, out: Path, count: int) -> float:
    """Seconds of one conversion."""
    shutil.rmtree(out, ignore_errors=True)
    started = time.perf_counter()
    result = convert_tree(tree, out, max_count=count, workers=WORKERS, engine=engine)
    seconds = time.perf_counter() - started
    if result.samples != FILES:
        raise RuntimeError(f"{engine} made {result.samples} samples of {FILES}")
    return seconds


def case_overhead(scratch: Path, runs: int) -> str:
    tree = scratch / "tree"
    make_tree(tree)
    starting = start_cluster()
    rows = [["shards", "process pool, s", "Ray, s", "Ray / pool", "Ray's more, ms a shard"]]
    for shards in SHARDS:
        times: dict[str, list[float]] = {"process": [], "ray": []}
        for number in range(runs + 1):
            for engine in times if number % 2 else reversed(times):
                seconds = convert(engine, tree, scratch / engine, FILES // shards)
                if number:
                    times[engine].append(seconds)
        pool, ray = (statistics.median(times[engine]) for engine in times)
        more = 1000 * (ray - pool) / shards
        rows.append([f"{shards:,}", f"{pool:.2f}", f"{ray:.2f}", f"{ray / pool:.2f}", f"{more:.1f}"])
    head = f"{FILES:,} files of 0.7 to 2.5 kB, {WORKERS} workers; starting the cluster took {starting:.1f} s"
    return f"{head}\n\n{table(rows)}"


CASES = {"overhead": case_overhead}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], default=[], metavar="CASE")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="folder for trees and shards, on the disk to measure")
    parser.add_argument("--save", type=Path, help="write the tables to this file as well")
    arguments = parser.parse_args()
    tables = []
    for name in arguments.cases or CASES:
        with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="wds-bench-") as scratch:
            tables.append(CASES[name](Path(scratch), arguments.runs))
        print(tables[-1] + "\n", flush=True)
    if arguments.save:
        arguments.save.write_text("# Converting on a cluster\n\n" + "\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main()
