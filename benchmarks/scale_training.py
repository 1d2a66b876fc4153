"""Training at scale, simulated: 1,024 ranks with 8 workers each, over 100,000 shards of uneven size, about 128 million samples.

Nothing is trained and no pictures exist. What is real is everything that decides and counts: the order, the reader, what it
asks of a store, the cache, the manifest's parser, ShardLoader with its processes.

    dealt       every stream of every rank is worked through, so 128 M ids: batches and samples by rank, shards by stream, and
                that each sample comes exactly once; then an epoch is broken off and goes on with a quarter of the ranks fewer
                and larger batches, and is counted again
    planning    one worker in a fresh process, from known shard sizes to its first batch, its whole stream, and resuming:
                processor time, and growth of peak resident memory (VmHWM)
    opening     ShardDataset of a folder with nothing but info.json, in a fresh process; what a spawned worker is sent
    loader      ShardLoader as one rank of them all has it, with eight processes, on files of 1 kB samples, where no other
                shard is
    requests    some streams, spread over all ranks, read to their end from a server that computes what it is asked for at once
                and counts: index, version and ranges as HttpStore and S3Store would send them. What they ask on average is taken
                for all of them, but for the openings of shards, which are counted exactly. Requests a second follow from a rate
                of 2,500 images/s on each rank, about a ResNet-50 in mixed precision on one large GPU. Reading ahead depends on
                which answer comes first, so counts before the first batch vary by a few per cent from run to run
    paper       the formulae of benchmarks/simulated/paper.py

Command: ``python benchmarks/scale_training.py [--small] [--scratch DIR]``, on Linux. It takes 1 GB of memory, 3 GB of disk and
some minutes of two cores; ``--small`` has 64 ranks and 3,000 shards. The result is printed and, of the whole, written to
benchmarks/results/scale_training.md. Machine of that file: 2 cores of an AMD EPYC that had other work to do, ext4,
Python 3.11. docs/scale.md says what follows from it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.measure import table  # noqa: E402
from benchmarks.simulated import coverage, paper  # noqa: E402
from benchmarks.simulated.server import Server  # noqa: E402
from benchmarks.simulated.setting import Samples, Setting, manifest, name  # noqa: E402
from benchmarks.simulated.worker import CHANGES, other  # noqa: E402
from wds_tools.stream.order import Order  # noqa: E402

RESULT = HERE / "results" / "scale_training.md"
LARGE, SMALL = Samples(110_000), Samples(1_000)
NODE = 8  # ranks of a machine
BILLIONS = 10_000_000_000
PAPER = (
    (LARGE, 256_000_000),
    (LARGE, 1_000_000_000),
    (LARGE, 4_000_000_000),
    (SMALL, 256_000_000),
    (SMALL, 1_000_000_000),
)


def in_process(*words: object) -> Any:
    """What `benchmarks.simulated.worker` finds in a fresh process."""
    command = [sys.executable, str(HERE / "simulated" / "worker.py"), *map(str, words)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {process.stderr[-2000:]}")
    return json.loads(process.stdout.splitlines()[-1])


def span(values: tuple[int, int], unit: str = "") -> str:
    low, high = (f"{value:,}" for value in values)
    return (low if low == high else f"{low} to {high}") + unit


# -- who gets what


def dealt(setting: Setting, order: Order) -> tuple[list[list[str]], coverage.Dealt]:
    """Rows of a table, and what the undisturbed epoch was."""
    epoch = order.epoch(0, setting.topology)
    half = epoch.num_batches // 2
    after = other(setting.topology)
    sides = [coverage.whole(order, setting.topology), coverage.resumed(order, setting.topology, after, half)]
    heads = [
        "",
        "a whole epoch",
        f"the rest after {half} batches, with {after.world:,} ranks, batches of {after.batch_size}",
    ]
    rows: list[tuple[str, Callable[[coverage.Dealt], str]]] = [
        ("batches of a rank", lambda found: span(found.batches)),
        ("samples of a rank", lambda found: span(found.samples)),
        ("samples of a worker", lambda found: span(found.by_stream)),
        ("batches that are not full, of all ranks", lambda found: f"{found.short:,}"),
        ("shards that a worker reads", lambda found: span(found.shards)),
        ("shards in its first batch", lambda found: span(found.at_first)),
        ("indexes read in all", lambda found: f"{found.opened:,}"),
    ]
    body = [[what, *(figure(found) for found, _ in sides)] for what, figure in rows]
    body.append(["samples delivered once, of all", *(f"{seen.once:,} of {seen.total:,}" for _, seen in sides)])
    body.append(["deliveries in all", *(f"{seen.deliveries:,}" for _, seen in sides)])
    body.append(["exactly once", *("yes" if seen.exact else "NO" for _, seen in sides)])
    return [heads, *body], sides[0][0]


def kept_by_a_node(setting: Setting, order: Order) -> float:
    """The share of a machine's shards in one epoch that it had in the epoch before."""
    shares = []
    for first in range(0, setting.world, max(setting.world // 8, NODE)):
        before, now = (
            {
                int(shard)
                for rank in range(first, min(first + NODE, setting.world))
                for worker in range(setting.topology.streams)
                for shard in epoch.stream(rank, worker).shards()
            }
            for epoch in (order.epoch(number, setting.topology) for number in (0, 1))
        )
        shares.append(len(before & now) / len(now))
    return statistics.mean(shares)


# -- one process


def planning(found: Mapping[str, float]) -> list[list[str]]:
    rows = [["one worker", "ms of processor time", "peak memory, MB more"]]
    rows.append(["from shard sizes to the first batch", f"{found['first'] * 1e3:.0f}", f"{found['first_peak']:.1f}"])
    whole = f"the ids of its whole stream, {found['samples']:,} samples"
    rows.append([whole, f"{found['whole'] * 1e3:.0f}", f"{found['whole_peak']:.1f}"])
    resumed = (
        ("resume in mid-epoch, to the first batch", "resume"),
        ("resume with a quarter of the ranks fewer and larger batches", "resume_other"),
        (f"resume after {CHANGES} changes of the world in one epoch", "resume_many"),
    )
    return rows + [[what, f"{found[key] * 1e3:.0f}", f"{found['resume_peak']:.1f}"] for what, key in resumed]


def opening(found: Mapping[str, float], size: int, world: int) -> list[list[str]]:
    return [
        ["each rank", ""],
        ["info.json", f"{size / 1e6:.1f} MB; {world:,} ranks: {size * world / 1e9:.1f} GB"],
        ["ShardDataset(folder), after imports", f"{found['open']:.2f} s"],
        ["peak memory while it is opened", f"{found['peak']:.0f} MB"],
        ["memory kept", f"{found['kept']:.0f} MB"],
        [
            "what a spawned worker is sent",
            f"{found['sent']:.1f} MB, {found['pickle']:.2f} s + {found['unpickle']:.2f} s",
        ],
    ]


def make_rank(folder: Path, order: Order, setting: Setting, rank: int) -> int:
    """A dataset's folder with the shards of one rank only; how many they are."""
    epoch = order.epoch(0, setting.topology)
    streams = [epoch.stream(rank, worker) for worker in range(setting.topology.streams)]
    shards = sorted({int(shard) for stream in streams for shard in stream.shards()})
    server = Server(order.shard_sizes, SMALL)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "info.json").write_bytes(manifest(list(order.shard_sizes), SMALL))
    for shard in shards:
        count = order.shard_sizes[shard]
        (folder / name(shard)).write_bytes(server.content(shard, 0, SMALL.size(count)))
        (folder / name(shard).replace(".tar", ".idx")).write_bytes(SMALL.index(shard, count))
    return len(shards)


def started(found: Mapping[str, float], rank: int, shards: int) -> list[list[str]]:
    return [
        [f"rank {rank:,}", ""],
        ["shards of its workers together", f"{shards:,}"],
        ["ShardDataset and ShardLoader made", f"{found['made']:.1f} s"],
        ["from the beginning to the first batch", f"{found['first']:.1f} s"],
        ["its epoch", f"{found['batches']:,} batches, {found['samples']:,} samples, {found['whole']:.1f} s in all"],
        ["memory of a worker that no other process shares", f"{found['private']:.0f} MB"],
        ["state_dict()", f"{found['state'] * 1e3:.1f} ms of processor time"],
    ]


# -- the server's side

KINDS = ("indexes", "versions", "ranges", "copies")


def asked(setting: Setting, samples: Samples, streams: int, cache: str = "-") -> list[dict[str, Any]]:
    """What some streams, spread over all ranks, ask of a server."""
    places = [number * setting.streams // streams + number % setting.topology.streams for number in range(streams)]
    return in_process("requests", json.dumps(setting.to_dict()), samples.payload, cache, *places)  # type: ignore[no-any-return]


def mean(found: Sequence[Mapping[str, Any]], when: str, *kinds: str) -> float:
    return statistics.mean(sum(entry[when][kind] for kind in kinds) for entry in found)


def load(
    setting: Setting, total: int, opened: int, cases: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[list[str]]:
    """Rows of what all workers together ask for."""
    seconds = setting.seconds(total)
    head = ["all workers together", *cases]
    rows: list[tuple[str, Callable[[Sequence[Mapping[str, Any]]], str]]] = []

    def every(found: Sequence[Mapping[str, Any]]) -> float:
        return 2 * opened + setting.streams * mean(found, "all", "ranges", "copies")

    def first(found: Sequence[Mapping[str, Any]]) -> float:
        return setting.streams * mean(found, "first", *KINDS)

    rows.append(("requests of an epoch", lambda found: f"{every(found):,.0f}"))
    rows.append(("… index and version of shards", lambda found: f"{2 * opened:,}"))
    rows.append(("… ranges", lambda found: f"{setting.streams * mean(found, 'all', 'ranges'):,.0f}"))
    rows.append(("… of whole copies", lambda found: f"{setting.streams * mean(found, 'all', 'copies'):,.0f}"))
    rows.append(("TB of an epoch", lambda found: f"{setting.streams * mean(found, 'all', 'bytes') / 1e12:,.2f}"))
    rows.append((f"requests/s over an epoch of {seconds:.0f} s", lambda found: f"{every(found) / seconds:,.0f}"))
    rows.append(("GB/s", lambda found: f"{setting.streams * mean(found, 'all', 'bytes') / seconds / 1e9:,.1f}"))
    rows.append(("requests before the first batch", lambda found: f"{first(found):,.0f}"))
    rows.append(
        ("TB before the first batch", lambda found: f"{setting.streams * mean(found, 'first', 'bytes') / 1e12:,.2f}")
    )
    rows.append(("… MB of one worker", lambda found: f"{mean(found, 'first', 'bytes') / 1e6:,.0f}"))
    rows.append(("memory of one worker's reader, MB", lambda found: f"{max(entry['memory'] for entry in found):,.0f}"))
    rows.append(("streams looked at", lambda found: f"{len(found)}"))
    return [head, *([what, *(figure(found) for found in cases.values())] for what, figure in rows)]


# -- on paper


def on_paper(setting: Setting, total: int, rates: paper.Rates) -> list[list[str]]:
    cases = [(LARGE, LARGE.size(setting.mean), total), *((samples, size, BILLIONS) for samples, size in PAPER)]
    found = [(samples, size, paper.figures(setting, samples, count, size, rates)) for samples, size, count in cases]
    head = [
        "",
        *(
            f"{f.samples / 1e6:,.0f} M of {s.payload / 1000:g} kB, shards of {size / 1e6:,.0f} MB"
            for s, size, f in found
        ),
    ]
    rows: list[tuple[str, Callable[[paper.Figures], str]]] = [
        ("samples of a shard", lambda f: f"{f.per_shard:,}"),
        ("shards", lambda f: f"{f.shards:,}"),
        ("data, TB", lambda f: f"{f.data / 1e12:,.1f}"),
        ("info.json, MB", lambda f: f"{f.manifest / 1e6:,.0f}"),
        ("… read by all ranks, GB", lambda f: f"{f.manifest * setting.world / 1e9:,.0f}"),
        ("… opened by a rank in, s", lambda f: f"{f.opening:,.1f}"),
        ("… with peak memory of, MB", lambda f: f"{f.opening_peak / 1e6:,.0f}"),
        ("an index, MB", lambda f: f"{f.index / 1e6:,.1f}"),
        ("all indexes, GB", lambda f: f"{f.index * f.shards / 1e9:,.0f}"),
        ("order, MB in each worker", lambda f: f"{f.order / 1e6:,.1f}"),
        ("shards of a worker's stream", lambda f: f"{f.by_stream:,}"),
        ("open indexes, MB in each worker at most", lambda f: f"{f.open_indexes / 1e6:,.0f}"),
        ("requests of an epoch, M", lambda f: f"{f.requests / 1e6:,.1f}"),
        ("epoch, minutes", lambda f: f"{f.epoch / 60:,.1f}"),
        ("requests/s", lambda f: f"{f.requests / f.epoch:,.0f}"),
    ]
    return [head, *([what, *(figure(f) for _, _, f in found)] for what, figure in rows)]


def report(setting: Setting, scratch: Path, say: Callable[[str], None]) -> str:
    """All tables, as one page."""
    order = setting.order()
    total, rank = order.num_samples, setting.world // 2
    told = json.dumps(setting.to_dict())
    parts = [
        "# Training at scale, simulated",
        f"{setting.world:,} ranks x {setting.workers} workers, batches of {setting.batch_size}, {setting.shards:,} shards of "
        f"{min(order.shard_sizes):,} to {max(order.shard_sizes):,} samples, {total:,} samples; {setting.rate:,.0f} samples/s "
        "on each rank. See benchmarks/scale_training.py for the method and the machine.",
    ]
    say("planning")
    planned = in_process("order", told)
    parts.append(table(planning(planned)))
    say("opening and loading")
    shards = make_rank(scratch / "rank", order, setting, rank)
    size = (scratch / "rank" / "info.json").stat().st_size
    opened = in_process("open", scratch / "rank")
    parts.append(table(opening(opened, size, setting.world)))
    parts.append(table(started(in_process("loader", scratch / "rank", told, rank), rank, shards)))
    say("every stream of every rank")
    rows, whole = dealt(setting, order)
    parts.append(table(rows))
    say("requests")
    cases = {}
    for title, samples, streams in (("110 kB", LARGE, 4), ("1 kB", SMALL, 12)):
        cases[title] = asked(setting, samples, streams)
        with tempfile.TemporaryDirectory(dir=scratch) as cache:
            cases[f"{title}, first epoch with `cache=`"] = asked(setting, samples, 1, cache)
            cases[f"{title}, all copies there"] = asked(setting, samples, 1, cache)
    parts.append(table(load(setting, total, whole.opened, cases)))
    share = kept_by_a_node(setting, order)
    by_formula = {
        kind: paper.expected_requests(setting.shards, setting.streams, total * kind.stride) for kind in (LARGE, SMALL)
    }
    parts.append(
        f"Of the shards that a machine of {NODE} ranks reads in an epoch it had {share:.1%} in the epoch before. The formula of "
        f"docs/remote.md says {by_formula[LARGE]:,.0f} and {by_formula[SMALL]:,.0f} requests of an epoch (110 kB, 1 kB)."
    )
    rates = paper.Rates(
        listed=size / setting.shards,
        opening=opened["open"] / setting.shards,
        opening_peak=opened["peak"] * 1e6 / setting.shards,
        planning=planned["first_peak"] * 1e6 / setting.shards,
        indexed=paper.table_bytes(LARGE),
    )
    parts.append(
        f"On paper, by the formulae of benchmarks/simulated/paper.py; measured were {rates.listed:.0f} bytes of info.json, "
        f"{rates.opening * 1e6:.1f} µs and {rates.opening_peak:,.0f} bytes of opening it and {rates.planning:.0f} bytes of "
        f"planning for each shard, {rates.indexed:.0f} bytes of memory for each sample of an open index:"
    )
    parts.append(table(on_paper(setting, total, rates)))
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="64 ranks, 3,000 shards; the result is printed only")
    parser.add_argument("--scratch", type=Path, help="a folder for what is made meanwhile; default: a temporary one")
    arguments = parser.parse_args()
    setting = Setting(shards=3000, world=64) if arguments.small else Setting()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        text = report(setting, Path(scratch), lambda what: print(f"{what} …", file=sys.stderr, flush=True))
    print(text)
    if not arguments.small:
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
