"""Reading, against what people use today.

Method: whole processes, in turn, after one warm-up each, with a warm page cache; each tells the time that its work took,
without imports; medians. One process reads unless it says otherwise. Shards are made up: random bytes named .jpg, with a .cls.

    small     100,000 samples of about 1 kB: ShardDataset(shuffle=True) against WebDataset(shardshuffle=100).shuffle(1000)
    photos    5,000 samples of about 110 kB: the same two
    memory    what a worker holds: windows of 512 to 65,536 samples, and 20 epochs with persistent workers
    resume    1,280,000 tiny samples: to the first batch from 90 % of an epoch, against from its start
    start     1,000,000 tiny samples: to the first batch, against ImageFolder's index of the same files in a tree

Command: ``make bench``, or ``python benchmarks/read.py [CASE …] [--runs N] [--scratch DIR]``.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.convert import make_million  # noqa: E402
from benchmarks.measure import table  # noqa: E402
from wds_tools.format import index, manifest, tar  # noqa: E402
from wds_tools.records import Field, Sample, ShardInfo, SplitInfo  # noqa: E402

WINDOWS = (512, 2048, 8192, 32768, 65536)
EPOCHS = 20


def make_shards(folder: Path, shards: int, samples: int, size: int) -> Path:
    """Shards with indexes and a manifest; payloads of ``size`` bytes, give or take a third, and a label by position."""
    folder.mkdir()
    draw = random.Random(0)
    noise = draw.randbytes(2 * size)
    infos = []
    for shard in range(shards):
        parts: list[bytes] = []
        lines = []
        offset = 0
        for number in range(samples):
            key = f"{shard:05d}/{number:06d}"
            fields = []
            begin = draw.randrange(size)
            for ext, payload in (
                ("jpg", noise[begin : begin + size + draw.randint(-(size // 3), size // 3)]),
                ("cls", b"%d" % (shard % 1000)),
            ):
                parts += [tar.header(f"{key}.{ext}", len(payload)), payload, bytes(tar.padding(len(payload)))]
                fields.append(Field(ext, offset + tar.BLOCK, len(payload), f"{key}.{ext}"))
                offset += tar.member_bytes(len(payload))
            lines.append(index.line(Sample(key, tuple(fields))))
        body = b"".join([*parts, bytes(2 * tar.BLOCK)])
        name = f"train-{shard:06d}.tar"
        (folder / name).write_bytes(body)
        (folder / index.index_name(name)).write_bytes(index.dump(lines))
        infos.append(ShardInfo(name, samples, len(body)))
    count = shards * samples
    split = SplitInfo("train", tuple(infos), {"jpg": count, "cls": count})
    (folder / manifest.NAME).write_bytes(manifest.dump(manifest.Manifest(splits={"train": split})))
    return folder


def in_turn(runs: int, warm_up: int = 1, **commands: Sequence[object]) -> dict[str, list[list[float]]]:
    """The numbers that each command prints: every one ``warm_up`` times unheard, then ``runs`` times in turn."""
    found: dict[str, list[list[float]]] = {name: [] for name in commands}
    for number in range(warm_up + runs):
        for name, (script, *words) in commands.items():
            command = [sys.executable, str(HERE / "peers" / str(script)), *map(str, words)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            if number >= warm_up:
                found[name].append([float(word) for word in done.stdout.split()])
    return found


def _median(runs: Sequence[Sequence[float]]) -> float:
    return statistics.median(run[0] for run in runs)


def _against_webdataset(shards: Path, runs: int) -> str:
    found = in_turn(runs, ours=("reading.py", "ours", shards), webdataset=("reading.py", "webdataset", shards))
    rows = [["side", "samples/s (median)", "slowest to fastest", "rate / WebDataset"]]
    for name, title in (("ours", "ShardDataset"), ("webdataset", "WebDataset")):
        rates = sorted(count / seconds for seconds, count in found[name])
        ratio = _median(found["webdataset"]) / _median(found[name])
        rows.append([title, f"{statistics.median(rates):,.0f}", f"{rates[0]:,.0f} to {rates[-1]:,.0f}", f"{ratio:.1f}"])
    return table(rows)


def case_small(scratch: Path, runs: int) -> str:
    shards = make_shards(scratch / "small", 100, 1000, 1000)
    return "100,000 samples of about 1 kB, one process, shuffled\n\n" + _against_webdataset(shards, runs)


def case_photos(scratch: Path, runs: int) -> str:
    shards = make_shards(scratch / "photos", 10, 500, 110_000)
    return "5,000 samples of about 110 kB, one process, shuffled\n\n" + _against_webdataset(shards, runs)


def case_memory(scratch: Path, runs: int) -> str:
    shards = make_shards(scratch / "memory", 150, 1000, 1000)
    rows = [["window", "a worker's own memory after an epoch, MB (median)"]]
    sides = {str(window): ("reading.py", "memory", shards, window, 1) for window in WINDOWS}
    for window, found in in_turn(runs, **sides).items():
        rows.append([f"{int(window):,}", f"{_median(found):.0f}"])
    few = make_shards(scratch / "few", 20, 1000, 1000)
    (epochs,) = in_turn(1, warm_up=0, long=("reading.py", "memory", few, 2048, EPOCHS))["long"]
    long = [["epoch", "a worker's own memory, MB"]]
    long += [[str(epoch), f"{epochs[epoch - 1]:.0f}"] for epoch in (1, 2, 5, 10, 15, 20)]
    return (
        f"150,000 samples of about 1 kB, two workers\n\n{table(rows)}\n\n"
        f"20,000 samples, {EPOCHS} epochs with the same two workers\n\n{table(long)}"
    )


def case_resume(scratch: Path, runs: int) -> str:
    shards = make_shards(scratch / "resume", 1280, 1000, 64)
    # 90 % is where one group of merged shards ends and the next begins: the first batch opens shards of both.
    sides = {str(samples): ("reading.py", "resume", shards, samples) for samples in (0, 1_152_000, 1_160_000)}
    begin, border, within = map(_median, in_turn(runs, **sides).values())
    return "1,280,000 tiny samples, from a loaded state to the first batch of 256\n\n" + table(
        [
            ["from", "seconds (median)", "against the start"],
            ["the start of the epoch", f"{begin:.3f}", "1"],
            ["90 % of it, a border between groups of shards", f"{border:.3f}", f"{border / begin:.2f}"],
            ["90.6 %, within a group", f"{within:.3f}", f"{within / begin:.2f}"],
        ]
    )


def case_start(scratch: Path, runs: int) -> str:
    shards, tree = make_shards(scratch / "start", 1000, 1000, 64), scratch / "tree"
    make_million(tree)
    found = in_turn(runs, ours=("reading.py", "start", shards), folder=("imagefolder.py", tree))
    ours, folder = _median(found["ours"]), _median(found["folder"])
    return "1,000,000 tiny samples\n\n" + table(
        [
            ["what", "seconds (median)", "against ImageFolder"],
            ["ShardLoader: from nothing to the first batch of 256", f"{ours:.3f}", f"{ours / folder:.3f}"],
            ["ImageFolder: its index alone", f"{folder:.2f}", "1"],
        ]
    )


CASES = {"small": case_small, "photos": case_photos, "memory": case_memory, "resume": case_resume, "start": case_start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], default=[], metavar="CASE")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="folder for the shards, on the disk to measure")
    parser.add_argument("--save", type=Path, help="write the tables to this file as well")
    arguments = parser.parse_args()
    tables = []
    for name in arguments.cases or CASES:
        with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="wds-bench-") as scratch:
            tables.append(CASES[name](Path(scratch), arguments.runs))
        print(tables[-1] + "\n", flush=True)
    if arguments.save:
        arguments.save.write_text("# Reading\n\n" + "\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main()
