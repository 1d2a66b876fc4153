"""Converting, against what people use today.

Method: whole commands, in turn, after one warm-up each, with a warm page cache and two workers; medians of the clock.
``wds-tools convert`` plans, writes, flushes to the disk, reads back and hashes twice; ``tar cf`` and ShardWriter only write.

    small     30,000 files of 0.7 to 2.5 kB in 100 classes: convert, tar cf, webdataset.ShardWriter
    photos    5,000 photographs of about 110 kB (--photos names a folder of some; made up otherwise): the same three
    million   1,000,000 tiny files in 1,000 classes: the plan phase against ImageFolder's index; all of it, with memory
    start     processor time of --help and info

Command: ``make bench``, or ``python benchmarks/convert.py [CASE …] [--runs N] [--photos DIR]``.
Results of 2026-11: benchmarks/results/convert.md.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.measure import Side, median, rates, run_once, side_by_side, table  # noqa: E402

WORKERS = "2"
WDS_TOOLS = [str(Path(sys.executable).with_name("wds-tools"))]


def make_small(tree: Path) -> None:
    draw = random.Random(0)
    for label in range(100):
        folder = tree / f"class{label:03d}"
        folder.mkdir(parents=True)
        for number in range(300):
            body = draw.randbytes(draw.randint(695, 2495))
            (folder / f"image_{number:05d}.jpg").write_bytes(b"\xff\xd8\xff" + body + b"\xff\xd9")


def make_photos(tree: Path, photos: Path | None, count: int = 5000) -> None:
    if photos is not None:
        files = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
        sources = [path.read_bytes() for path in files]
    else:
        sources = [_made_up_photo(number) for number in range(100)]
    for number in range(count):
        folder = tree / f"class{number % 100:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:06d}.jpg").write_bytes(sources[number % len(sources)])


def _made_up_photo(number: int) -> bytes:
    """About 110 kB of JPEG: noise of two sizes, as detailed as a photograph of 500 x 375 pixels."""
    from PIL import Image

    draw = random.Random(number)
    coarse = Image.frombytes("RGB", (50, 38), draw.randbytes(50 * 38 * 3)).resize((500, 375))
    fine = Image.frombytes("RGB", (500, 375), draw.randbytes(500 * 375 * 3))
    file = io.BytesIO()
    Image.blend(coarse, fine, 0.3).save(file, "JPEG", quality=90)
    return file.getvalue()


def make_million(tree: Path) -> None:
    pixel = bytes.fromhex("47494638396101000100800000000000ffffff21f90401000000002c00000000010001000002024401003b")
    for label in range(1000):
        folder = tree / f"class{label:04d}"
        folder.mkdir(parents=True)
        for number in range(1000):
            fd = os.open(folder / f"{number:06d}.gif", os.O_CREAT | os.O_WRONLY, 0o644)
            if number % 20:
                os.write(fd, pixel)
            os.close(fd)


def three_sides(tree: Path, scratch: Path, runs: int, count: int, *options: str) -> str:
    convert, tar, writer = scratch / "convert", scratch / "tree.tar", scratch / "writer"
    sides = [
        Side(
            "wds-tools convert",
            [*WDS_TOOLS, "convert", str(tree), str(convert), "--workers", WORKERS, *options],
            convert,
        ),
        Side("tar cf", ["tar", "cf", str(tar), "-C", str(tree), "."], tar),
        Side(
            "webdataset.ShardWriter",
            [sys.executable, str(HERE / "peers/shardwriter.py"), str(tree), str(writer)],
            writer,
        ),
    ]
    found = side_by_side(sides, runs)
    for path in (convert, writer):
        shutil.rmtree(path)
    tar.unlink()
    return table(rates(found, count, ["tar cf", "webdataset.ShardWriter"]))


def case_small(scratch: Path, runs: int, photos: Path | None) -> str:
    tree = scratch / "small"
    make_small(tree)
    return "30,000 files of 0.7 to 2.5 kB\n\n" + three_sides(tree, scratch, runs, 30_000, "--max-size", "30MB")


def case_photos(scratch: Path, runs: int, photos: Path | None) -> str:
    tree = scratch / "photos"
    make_photos(tree, photos)
    of = "photographs" if photos else "made-up photographs"
    return f"5,000 {of} of about 110 kB\n\n" + three_sides(tree, scratch, runs, 5_000)


def case_million(scratch: Path, runs: int, photos: Path | None) -> str:
    tree, out = scratch / "million", scratch / "out"
    make_million(tree)
    index, plan, memory = [], [], []
    for number in range(runs + 1):
        shutil.rmtree(out, ignore_errors=True)
        os.sync()
        seconds, count = _answer("imagefolder.py", str(tree))
        planned, peak = _answer("plan_only.py", str(tree), str(out), WORKERS)
        if number:
            index.append(seconds)
            plan.append(planned)
            memory.append(peak)
    whole = run_once(
        Side("convert", [*WDS_TOOLS, "convert", str(tree), str(out), "--workers", WORKERS, "--on-error", "skip"], out)
    )
    ratio = statistics.median(plan) / statistics.median(index)
    return "1,000,000 tiny files in 1,000 classes, 5 % of them empty\n\n" + table(
        [
            ["what", "median"],
            ["ImageFolder's index", f"{statistics.median(index):.2f} s for {count:,.0f} files"],
            ["plan phase", f"{statistics.median(plan):.2f} s, {ratio:.2f} times ImageFolder's"],
            ["driver's peak memory, plan phase", f"{max(memory):.0f} MB"],
            ["all of the conversion, one run", f"{whole.wall:.1f} s"],
            ["peak memory of its largest process", f"{whole.peak_kb / 1000:.0f} MB"],
        ]
    )


def _answer(script: str, *arguments: str) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, str(HERE / "peers" / script), *arguments], check=True, capture_output=True, text=True
    )
    first, second = map(float, done.stdout.split())
    return first, second


def case_start(scratch: Path, runs: int, photos: Path | None) -> str:
    tree, out = scratch / "start", scratch / "start-out"
    make_photos(tree, photos, 200)
    run_once(Side("convert", [*WDS_TOOLS, "convert", str(tree), str(out)], out))
    sides = [
        Side("wds-tools --help", [*WDS_TOOLS, "--help"]),
        Side("wds-tools info", [*WDS_TOOLS, "info", str(out)]),
        Side("python -c pass", [sys.executable, "-c", "pass"]),
    ]
    found = side_by_side(sides, max(runs, 5))
    rows = [["command", "processor time, median"]]
    rows += [[name, f"{median(times, 'cpu'):.2f} s"] for name, times in found.items()]
    return "starting\n\n" + table(rows)


CASES = {"small": case_small, "photos": case_photos, "million": case_million, "start": case_start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], default=[], metavar="CASE")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--scratch", type=Path, help="folder for trees and shards, on the disk to measure")
    parser.add_argument("--save", type=Path, help="write the tables to this file as well")
    arguments = parser.parse_args()
    tables = []
    for name in arguments.cases or CASES:
        with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="wds-bench-") as scratch:
            tables.append(CASES[name](Path(scratch), arguments.runs, arguments.photos))
        print(tables[-1] + "\n", flush=True)
    if arguments.save:
        arguments.save.write_text("# Converting\n\n" + "\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main()
