"""Past one machine: what a cluster's engine costs, what resharding takes, and how planning grows with the entries.

Method: sides take turns in one run, after one warm-up each, with a warm page cache; medians of the clock, and ratios of
medians.

    overhead    Ray against the pool of processes, in this process: 10,000 files of 0.7 to 2.5 kB in 100 classes, and in 10,
                100 and 1,000 shards. Both have two workers. The cluster is of this machine, is started once before anything
                is timed and stays for all turns; what that took is quoted by itself
    reshard     see benchmarks/reshard.py: ``wds-tools reshard`` against reading through WebDataset and writing with ShardWriter
    plan        lines of 1e5 to 1e8 generated entries, as a tree of photographs gives them, put into a spool and planned in a
                fresh process for each: how the rate and the process's peak memory grow. No file is looked at, and the
                entries of each shard are made but not written down. 1e8 takes seven minutes and about 15 GB of disk

Command: ``python benchmarks/scale.py [CASE …] [--runs N] [--most ENTRIES] [--scratch DIR] [--save FILE]``. Ray's part needs
the extra ``ray``. Results: benchmarks/results/scale.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks import reshard  # noqa: E402
from benchmarks.measure import table  # noqa: E402
from wds_tools.convert.options import ConvertOptions  # noqa: E402
from wds_tools.convert.plan import make_plan  # noqa: E402
from wds_tools.convert.run import convert_tree  # noqa: E402
from wds_tools.convert.spool import Spool  # noqa: E402

WORKERS = 2
FILES = 10_000
SHARDS = (10, 100, 1000)

ENTRIES = (10**5, 10**6, 10**7, 10**8)
A_CLASS = 1300  # entries of one generated class


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


def case_overhead(scratch: Path, runs: int, most: int) -> str:
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


def case_reshard(scratch: Path, runs: int, most: int) -> str:
    return "\n\n".join(reshard.compare(name, scratch, runs) for name in reshard.CASES)


def case_plan(scratch: Path, runs: int, most: int) -> str:
    rows = [["entries", "shards", "scanned into the spool, s", "planned, s", "planned, entries/s", "peak memory, MB"]]
    for entries in ENTRIES:
        if entries > most:
            continue
        found = []
        for _ in range(runs if entries <= 10**6 else 1):
            command = [sys.executable, __file__, "--plan", str(entries), "--scratch", str(scratch)]
            found.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
        filled, planned = (statistics.median(one[name] for one in found) for name in ("filled", "planned"))
        peak = max(one["peak"] for one in found)
        rows.append(
            [
                f"{entries:,}",
                f"{found[0]['shards']:,}",
                f"{filled:.2f}",
                f"{planned:.2f}",
                f"{entries / planned:,.0f}",
                f"{peak / 1e6:,.0f}",
            ]
        )
    return f"Plans of generated entries, 100 to 120 kB each, shards of 256 MB; at most {most:,}\n\n{table(rows)}"


def plan(entries: int, scratch: Path) -> dict[str, float]:
    """Plan so many entries in this process: seconds, shards, and the peak of its memory in bytes."""
    spool = Spool(str(scratch))
    started = time.perf_counter()
    for first in range(0, entries, A_CLASS):
        numbers = range(first, min(first + A_CLASS, entries))
        sizes = array("q", (100_000 + number * 7919 % 20_000 for number in numbers))
        label = first // A_CLASS
        start, middle = f"{label}\t", f"\t1700000000000000000\tn{label:08d}/n{label:08d}_"
        spool.extend(
            (f"{start}{size}{middle}{number}.JPEG" for number, size in zip(numbers, sizes, strict=True)), sizes
        )
    filled = time.perf_counter()
    shards = sum(1 for _ in make_plan(spool, ConvertOptions()))
    return {
        "filled": filled - started,
        "planned": time.perf_counter() - filled,
        "shards": shards,
        "peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


CASES = {"overhead": case_overhead, "reshard": case_reshard, "plan": case_plan}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], default=[], metavar="CASE")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--most", type=int, default=ENTRIES[-1], help="entries of the largest plan")
    parser.add_argument("--scratch", type=Path, help="folder for trees and shards, on the disk to measure")
    parser.add_argument("--save", type=Path, help="write the tables to this file as well")
    parser.add_argument("--plan", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plan:
        print(json.dumps(plan(arguments.plan, arguments.scratch)))
        return
    tables = []
    for name in arguments.cases or CASES:
        with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="wds-bench-") as scratch:
            tables.append(CASES[name](Path(scratch), arguments.runs, arguments.most))
        print(tables[-1] + "\n", flush=True)
    if arguments.save:
        arguments.save.write_text("# Past one machine\n\n" + "\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main()
