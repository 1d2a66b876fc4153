"""Reading over HTTP from nginx on loopback.

Method: whole processes, in turn, after one warm-up each; nginx serves files of random bytes from a warm page cache; each process
tells the time that its work took, without imports (curl's is that of its whole process); medians.

    raw       1 GB in four files: HttpStore.stream and HttpStore.read at several request sizes, against curl -o /dev/null
    small     100,000 samples of about 1 kB, one process, shuffled: ShardDataset against wds.WebDataset on the same addresses
    decode    photographs in tiled shards, RandomResizedCrop 224 and a flip, two workers; the sides take turns, a pass each:
              from nginx, from the disk, from a cache that has them, wds.WebDataset with torchvision on the same addresses; and
              from nginx through a proxy that hands requests on at once, or after 50 ms

The proxy moves answers from socket to socket without looking at them; its two sides differ in nothing but the delay.

Command: ``python benchmarks/remote.py [CASE …] [--runs N] [--scratch DIR] [--peers DIR]``. Needs nginx and curl.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.material import Counts, Material  # noqa: E402
from benchmarks.measure import table  # noqa: E402
from benchmarks.peers.environments import FOLDER, PeerError  # noqa: E402
from benchmarks.read import in_turn, make_shards  # noqa: E402
from benchmarks.turns import Peer, Result, take_turns  # noqa: E402
from tests.support.latency import distant  # noqa: E402
from tests.support.servers import nginx  # noqa: E402

FILES, SIZE = 4, 256_000_000
PHOTOS = 3600
DELAY = 0.05
TARGETS = (("nginx", "webdataset", 2.5), ("nginx", "disk", 0.85), ("far", "proxy", 0.85), ("cache", "disk", 0.95))
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


def case_small(scratch: Path, runs: int) -> str:
    with nginx(scratch) as server:
        make_shards(server.root / "small", 100, 1000, 1000)
        names = [f"train-{number:06d}.tar" for number in range(100)]
        sides = {way: ("streaming.py", way, f"{server.url}/small", 0, *names) for way in ("samples", "webdataset")}
        found = in_turn(runs, **sides)
    slow = statistics.median(seconds for seconds, _ in found["webdataset"])
    rows = [["side", "samples/s (median)", "slowest to fastest", "rate / WebDataset"]]
    for name, title in (("samples", "ShardDataset"), ("webdataset", "WebDataset")):
        rates = sorted(count / seconds for seconds, count in found[name])
        ratio = slow / statistics.median(seconds for seconds, _ in found[name])
        rows.append([title, f"{statistics.median(rates):,.0f}", f"{rates[0]:,.0f} to {rates[-1]:,.0f}", f"{ratio:.1f}"])
    return "100,000 samples of about 1 kB, one process, shuffled\n\n" + table(rows)


def case_decode(scratch: Path, runs: int, peers_at: Path) -> str:
    material = Material(scratch / "material", None, peers_at, Counts(photos=PHOTOS))
    shards = material.shards("photos", "--tile")
    with nginx(scratch) as server, ExitStack() as stack:
        (server.root / "tiled").symlink_to(shards)
        url = f"{server.url}/tiled"
        near, far = (
            stack.enter_context(distant(server.url, seconds, scratch / "proxy.log")) for seconds in (0.0, DELAY)
        )
        ours = [sys.executable, str(HERE / "peers" / "streamed.py")]
        addresses = [f"{url}/{path.name}" for path in sorted(shards.glob("*.tar"))]
        peers = [
            Peer("nginx", [*ours, url]),
            Peer("disk", [*ours, str(shards)]),
            Peer("cache", [*ours, url, str(scratch / "cache")]),
            Peer("webdataset", _webdataset(material, addresses)),
            Peer("proxy", [*ours, f"{near}/tiled"]),
            Peer("far", [*ours, f"{far}/tiled"]),
        ]
        found = take_turns(peers, PHOTOS, runs)
    titles = {
        "nginx": "from nginx",
        "disk": "from the disk",
        "cache": "from a cache, every epoch but the first",
        "webdataset": "webdataset + torchvision, from nginx",
        "proxy": "through the proxy",
        "far": f"through the proxy, {DELAY * 1000:.0f} ms later",
    }
    rows = [["side", "images/s (median)", "slowest to fastest", "processor ms an image"]]
    for name, title in titles.items():
        result = found[name]
        if result.median is None:
            rows.append([title, f"could not be run: {result.fault}".replace("|", "/"), "", ""])
            continue
        spread = f"{min(result.rates):,.0f} to {max(result.rates):,.0f}"
        rows.append([title, f"{result.median:,.0f}", spread, f"{statistics.median(result.costs):.2f}"])
    return f"{PHOTOS:,} photographs in tiled shards, two workers\n\n{table(rows)}\n\n{_ratios(found)}"


def _webdataset(material: Material, addresses: list[str]) -> list[str] | PeerError:
    try:
        return material.peer("wds", "decode_webdataset.py", *addresses)
    except PeerError as error:
        return error


def _ratios(found: Mapping[str, Result]) -> str:
    rows = [["rate", "against", "target", "measured", ""]]
    for ours, other, target in TARGETS:
        above, below = found[ours].median, found[other].median
        if above is None or below is None:
            rows.append([ours, other, f"{target:g}", "", "not measured"])
        else:
            rows.append(
                [ours, other, f"{target:g}", f"{above / below:.2f}", "met" if above >= target * below else "missed"]
            )
    return table(rows)


CASES = ("raw", "small", "decode")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], default=[], metavar="CASE")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="folder for the files, on a disk with room in the page cache")
    parser.add_argument("--peers", type=Path, default=FOLDER, help="folder of the peers' virtual environments")
    parser.add_argument("--save", type=Path, help="write the tables to this file as well")
    arguments = parser.parse_args()
    cases = {"raw": case_raw, "small": case_small, "decode": partial(case_decode, peers_at=arguments.peers)}
    tables = []
    for name in arguments.cases or CASES:
        with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="wds-bench-") as scratch:
            tables.append(cases[name](Path(scratch), arguments.runs))
        print(tables[-1] + "\n", flush=True)
    if arguments.save:
        arguments.save.write_text("# Reading over HTTP\n\n" + "\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main()
