"""Reading over HTTP from nginx on loopback.

Method: whole processes, in turn, after one warm-up each; nginx serves files of random bytes from a warm page cache; each process
tells the time that its work took, without imports (curl's is that of its whole process); medians.

    raw       1 GB in four files: HttpStore.stream and HttpStore.read at several request sizes, against curl -o /dev/null

Command: ``python benchmarks/remote.py [CASE …] [--runs N] [--scratch DIR]``. Needs nginx and curl.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.measure import table  # noqa: E402
from benchmarks.read import in_turn  # noqa: E402
from tests.support.servers import nginx  # noqa: E402

FILES, SIZE = 4, 256_000_000
REQUESTS = (1 << 20, 4 << 20, 8 << 20, 16 << 20, 64 << 20)


def case_raw(scratch: Path, runs: int) -> str:
    with nginx(scratch) as server:
        noise = random.Random(0).randbytes(1 << 20)
        names = [f"train-{number:06d}.tar" for number in range(FILES)]
        for name in names:
            with (server.root / name).open("wb") as file:
                for _ in range(0, SIZE, len(noise)):
                    file.write(noise)
        sides = {"curl": ("streaming.py", "curl", server.url, 0, *names)}
        for way in ("stream", "read"):
            for size in REQUESTS:
                sides[f"{way} {size >> 20} MiB"] = ("streaming.py", way, server.url, size, *names)
        found = in_turn(runs, **sides)
    curl = statistics.median(seconds for seconds, _ in found["curl"])
    rows = [["way", "MB/s (median)", "slowest to fastest", "rate / curl"]]
    for name, measured in found.items():
        rates = sorted(count / seconds / 1e6 for seconds, count in measured)
        ratio = curl / statistics.median(seconds for seconds, _ in measured)
        rows.append([name, f"{statistics.median(rates):,.0f}", f"{rates[0]:,.0f} to {rates[-1]:,.0f}", f"{ratio:.2f}"])
    return f"{FILES} files of {SIZE // 1_000_000} MB, one process\n\n" + table(rows)


CASES = {"raw": case_raw}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], default=[], metavar="CASE")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="folder for the files, on a disk with room in the page cache")
    parser.add_argument("--save", type=Path, help="write the tables to this file as well")
    arguments = parser.parse_args()
    tables = []
    for name in arguments.cases or CASES:
        with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="wds-bench-") as scratch:
            tables.append(CASES[name](Path(scratch), arguments.runs))
        print(tables[-1] + "\n", flush=True)
    if arguments.save:
        arguments.save.write_text("# Reading over HTTP\n\n" + "\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main()
