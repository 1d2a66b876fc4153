"""Resharding, against reading with webdataset and writing with its ShardWriter.

Method: whole commands, in turn, after one warm-up each, with a warm page cache; medians of the clock. The same shards go in and
the same samples come out, in shards of the same number of samples, which is checked once. ``wds-tools reshard`` shuffles all of
them, or keeps the order, writes indexes and a manifest, flushes to the disk, reads back and hashes; the peer shuffles in a
buffer, and only writes.

    small     30,000 samples of 0.7 to 2.5 kB, a jpg and a cls each
    photos    2,000 samples of about 110 kB

Command: ``python benchmarks/reshard.py [CASE …] [--runs N]``.
"""

from __future__ import annotations

import argparse
import random
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.measure import Side, rates, side_by_side, table  # noqa: E402
from wds_tools import index_shards  # noqa: E402
from wds_tools.format import tar  # noqa: E402

CASES = {"small": (30_000, 695, 2_495), "photos": (2_000, 60_000, 160_000)}
IN, OUT = 5_000, 3_000  # samples of a shard
COMMAND = [sys.executable, "-m", "wds_tools"]


def make(folder: Path, samples: int, low: int, high: int) -> None:
    """Shards as anybody has them, with indexes."""
    draw = random.Random(0)
    folder.mkdir()
    for first in range(0, samples, IN):
        with open(folder / f"train-{first // IN:06d}.tar", "wb") as file:
            for number in range(first, min(first + IN, samples)):
                key = f"class{number % 100:03d}/{number:06d}"
                image = b"\xff\xd8\xff" + draw.randbytes(draw.randint(low, high)) + b"\xff\xd9"
                for name, data in ((f"{key}.jpg", image), (f"{key}.cls", b"%d" % (number % 100))):
                    file.write(tar.header(name, len(data)) + data + bytes(tar.padding(len(data))))
            file.write(tar.END)
    index_shards(folder)


def count(folder: Path) -> int:
    """Members of all shards."""
    found = 0
    for path in folder.glob("*.tar"):
        with tarfile.open(path) as shard:
            found += sum(1 for _ in shard)
    return found


def compare(case: str, scratch: Path, runs: int) -> str:
    samples, low, high = CASES[case]
    source = scratch / case
    make(source, samples, low, high)
    ours = [*COMMAND, "reshard", str(source), "--max-count", str(OUT)]
    sides = [
        Side("wds-tools reshard", [*ours, str(scratch / "a"), "--workers", "2"], scratch / "a"),
        Side("wds-tools reshard, 1 worker", [*ours, str(scratch / "b"), "--workers", "1"], scratch / "b"),
        Side("the same, --no-shuffle", [*ours, str(scratch / "c"), "--workers", "1", "--no-shuffle"], scratch / "c"),
        Side(
            "WebDataset, shuffle, ShardWriter",
            [sys.executable, str(HERE / "peers" / "reshard.py"), str(source), str(scratch / "d"), str(OUT)],
            scratch / "d",
        ),
    ]

    def check(side: Side) -> None:
        assert side.output is not None
        if count(side.output) != 2 * samples:
            raise RuntimeError(f"{side.name} lost samples")

    found = side_by_side(sides, runs, check)
    return f"{samples:,} samples of {low:,} to {high:,} bytes\n\n" + table(rates(found, samples, [sides[-1].name]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=[])
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    for case in options.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            print(compare(case, Path(folder), options.runs), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
