"""Decoding, against what people use today: whole loaders, from files in the page cache to uint8 batches.

Method: every side is a process with two workers (or threads) that starts, compiles and warms up with one pass. Then come
rounds: in each, every side of a case makes one pass while the others wait. Rates are medians of the passes; ratios are of
medians. Processor time is that of all of a side's processes. All sides of a case get the same photographs and do the same
work, which is looked at: number of images, shape, uint8, mean of all pixels. Peers live in virtual environments of their own
(peers/environments.py) and are as fast as we could set them up, each as its script says.

    photos    2,400 photographs of about 110 kB, RandomResizedCrop 224 and a flip, batches of 64
    large     150 photographs of 2,500 x 1,875 and up, the same
    small     the photographs after `convert --image-size 256`, the same
    arrays    12,000 uint8 arrays of 3 x 128 x 128, shuffled, batches of 128

"limit" is libjpeg-turbo alone on streams cropped beforehand, in two processes: nothing is read, cropped, resized or handed over.
Photographs are made up unless --source names a folder of some; they are repeated under other names.

Command: ``make bench``, or ``python benchmarks/decode.py [--source DIR] [--rounds N] [--only NAME …] [--quick]``.
Results: benchmarks/results/decode.md and decode.svg, written when all of it ran.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.chart import Bar, Group, svg  # noqa: E402
from benchmarks.material import ARRAYS, Counts, Material  # noqa: E402
from benchmarks.measure import table  # noqa: E402
from benchmarks.peers.environments import FOLDER, ROOT, PeerError  # noqa: E402
from benchmarks.turns import Peer, Result, take_turns  # noqa: E402

KERNEL = "wds_tools.image._kernel"


@dataclass(frozen=True)
class Side:
    """One bar: who it is, and the command that takes turns. ``kind`` is ours, peer or bound."""

    name: str
    title: str
    kind: str
    command: Callable[[Material], list[str]]


@dataclass(frozen=True)
class Target:
    """A ratio to reach between the rates of two sides; ``moonshot`` is the one to dream of."""

    ours: str
    other: str
    ratio: float
    moonshot: float | None = None


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    sides: Sequence[Side]
    targets: Sequence[Target]


SIZE_256 = ("--image-size", "256")


def _webdataset(case: str, *options: str) -> Side:
    def command(material: Material) -> list[str]:
        return material.peer("wds", "decode_webdataset.py", *material.tars(case, *options))

    return Side("webdataset", "webdataset + torchvision", "peer", command)


def _dali(case: str) -> Side:
    return Side("dali", "DALI, CPU", "peer", lambda m: m.peer("dali", "decode_dali.py", *m.tars(case)))


def _ours(name: str, title: str, preset: str, case: str, *options: str, hidden: str | None = None) -> Side:
    return Side(name, f"wds_tools{title}", "ours", lambda m: m.ours(preset, case, *options, hidden=hidden))


def _limit(case: str) -> Side:
    return Side("limit", "limit: decoding crops alone", "bound", lambda m: m.limit(case))


def _arrays(way: str, title: str) -> Side:
    return Side(way, title, "peer", lambda m: m.peer("h5", "decode_arrays.py", way, m.arrays))


CASES = (
    Case(
        "photos",
        "Photographs of about 110 kB",
        (
            _ours("tiled", ", tiled shards", "crop", "photos", "--tile"),
            _ours("plain", ", shards as converted", "crop", "photos"),
            _ours("no-kernel", ", tiled, without the C kernel", "crop", "photos", "--tile", hidden=KERNEL),
            _webdataset("photos"),
            Side(
                "imagefolder",
                "torchvision ImageFolder",
                "peer",
                lambda m: m.peer("wds", "decode_imagefolder.py", m.tree("photos")),
            ),
            _dali("photos"),
            Side("ffcv", "FFCV", "peer", lambda m: m.peer("ffcv", "decode_ffcv.py", m.tree("photos"), m.beton)),
            _limit("photos"),
        ),
        (
            Target("tiled", "webdataset", 3, 3.5),
            Target("tiled", "dali", 2, 2.5),
            Target("tiled", "ffcv", 1.9, 2.4),
            Target("tiled", "limit", 0.7),
            Target("plain", "webdataset", 1.9),
            Target("plain", "dali", 1.2),
            Target("plain", "ffcv", 1.2),
            Target("no-kernel", "webdataset", 1.7),
        ),
    ),
    Case(
        "large",
        "Photographs of 2,500 x 1,875 and up",
        (
            _ours("tiled", ", tiled shards", "crop", "large", "--tile"),
            _ours("plain", ", shards as converted", "crop", "large"),
            _webdataset("large"),
            _dali("large"),
            _limit("large"),
        ),
        (Target("tiled", "webdataset", 5), Target("plain", "webdataset", 5)),
    ),
    Case(
        "small",
        "Photographs shrunk by convert --image-size 256",
        (
            _ours("plain", "", "crop", "photos", *SIZE_256),
            _ours("tiled", ", converted with --tile too", "crop", "photos", *SIZE_256, "--tile"),
            _webdataset("photos", *SIZE_256),
        ),
        (Target("plain", "webdataset", 4),),
    ),
    Case(
        "arrays",
        "Arrays of 128 x 128, shuffled",
        (
            _ours("ours", ", npy shards", "whole", "arrays", *ARRAYS),
            _arrays("h5", "h5py, DataLoader"),
            _arrays("h5-lzf", "h5py, compressed (lzf)"),
            _arrays("memmap", "memmap, DataLoader"),
            _arrays("ram", "arrays in memory, DataLoader"),
        ),
        (Target("ours", "h5", 8), Target("ours", "memmap", 1.3)),
    ),
)


def measure(case: Case, sides: Sequence[Side], material: Material, rounds: int) -> Mapping[str, Result]:
    peers = []
    for side in sides:
        try:
            command: Sequence[str] | PeerError = side.command(material)
        except PeerError as error:
            command = error
        peers.append(Peer(side.name, command, counts_only=side.kind == "bound"))
    images = material.counts.photos if case.name == "small" else getattr(material.counts, case.name)
    return take_turns(peers, images, rounds)


def rates(case: Case, results: Mapping[str, Result]) -> str:
    """A table: images per second, and how many times as fast each of our sides is."""
    own = [side for side in case.sides if side.kind == "ours" and side.name in results]
    rows = [
        [
            "side",
            "images/s (median)",
            "slowest to fastest",
            "processor ms an image",
            *(f"{side.name} / this" for side in own),
        ]
    ]
    for side in case.sides:
        result = results.get(side.name)
        if result is None:
            continue
        if result.median is None:
            rows.append([side.title, f"could not be run: {result.fault}".replace("|", "/"), "", "", *("" for _ in own)])
            continue
        ratios = (_ratio(results, one.name, side.name) for one in own)
        rows.append(
            [
                f"{side.title} ({side.name})" if side.kind == "ours" else side.title,
                f"{result.median:,.0f}",
                f"{min(result.rates):,.0f} to {max(result.rates):,.0f}",
                f"{statistics.median(result.costs):.2f}" if result.costs else "",
                *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
            ]
        )
    return f"## {case.title}\n\n{table(rows)}"


def verdicts(cases: Sequence[Case], found: Mapping[str, Mapping[str, Result]]) -> str:
    rows = [["case", "rate of", "against", "target", "moonshot", "measured", ""]]
    for case in cases:
        for target in case.targets:
            if not {target.ours, target.other} <= found[case.name].keys():
                continue
            ratio = _ratio(found[case.name], target.ours, target.other)
            reached = "not measured"
            if ratio is not None:
                reached = "met" if ratio >= target.ratio else "missed"
                if target.moonshot is not None and ratio >= target.moonshot:
                    reached = "met, and the moonshot"
            titles = {side.name: side.title for side in case.sides}
            rows.append(
                [
                    case.name,
                    target.ours,
                    titles[target.other],
                    f"{target.ratio:g}",
                    "" if target.moonshot is None else f"{target.moonshot:g}",
                    "" if ratio is None else f"{ratio:.2f}",
                    reached,
                ]
            )
    return f"## Targets\n\n{table(rows)}"


def _ratio(results: Mapping[str, Result], ours: str, other: str) -> float | None:
    above, below = results[ours].median, results[other].median
    return above / below if above is not None and below is not None else None


def chart(cases: Sequence[Case], found: Mapping[str, Mapping[str, Result]]) -> str:
    groups = []
    for case in cases:
        bars = []
        for side in case.sides:
            rate = found[case.name][side.name].median
            note = "could not be run" if rate is None else f"{rate:,.0f} images/s"
            bars.append(Bar(side.title, rate, side.kind, note))
        groups.append(Group(case.title, bars))
    return svg("Images per second that each loader delivers with two workers", groups)


def machine() -> str:
    """Cores and kind of processor: as much as is needed to judge the figures."""
    try:
        names = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        names = []
    return f"{os.cpu_count()} cores ({names[0] if names else platform.machine()}), two workers, warm page cache"


def main() -> None:
    names = sorted({case.name for case in CASES} | {side.name for case in CASES for side in case.sides})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="folder of photographs to repeat, in place of made-up ones")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=names, help="run these cases or sides; nothing is written then")
    parser.add_argument(
        "--quick", action="store_true", help="few images, one round, to see that it runs; nothing is written"
    )
    parser.add_argument(
        "--scratch", type=Path, default=ROOT / "build" / "decode", help="folder for photographs and shards"
    )
    parser.add_argument("--peers", type=Path, default=FOLDER, help="folder of the peers' virtual environments")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    counts = Counts(photos=384, large=16, arrays=1536) if arguments.quick else Counts()
    material = Material(arguments.scratch, arguments.source, arguments.peers, counts)
    found: dict[str, Mapping[str, Result]] = {}
    parts = [f"{machine()}; photographs {'given' if arguments.source else 'made up'}."]
    for case in CASES:
        sides = [s for s in case.sides if not arguments.only or {case.name, s.name} & set(arguments.only)]
        if not sides:
            continue
        found[case.name] = measure(case, sides, material, 1 if arguments.quick else arguments.rounds)
        parts.append(rates(case, found[case.name]))
        print(parts[-1] + "\n", flush=True)
    parts.append(verdicts([case for case in CASES if case.name in found], found))
    print(parts[-1])
    if arguments.only or arguments.quick:
        return
    how = "\n".join((__doc__ or "").split("Command:")[0].splitlines()[2:]).strip()
    text = "\n\n".join(["# Decoding", "![images per second](decode.svg)", how, *parts])
    (arguments.results / "decode.md").write_text(text + "\n")
    (arguments.results / "decode.svg").write_text(chart(CASES, found))


if __name__ == "__main__":
    main()
