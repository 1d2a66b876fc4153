"""How well orders are shuffled, in numbers and as the plot of docs/shuffling.md.

Method: 100 shards of 200 tiny samples, sorted by label, which is the worst case: every shard has one label. Two workers
read in batches of 100, as a DataLoader delivers them. ShardDataset's orders are computed; WebDataset's is what
`wds.WebDataset(shards, shardshuffle=100).shuffle(1000)` really delivers from shards on the disk. Every number is the mean
over five epochs or seeds, as is the full permutation's.

Command: python benchmarks/shuffle_quality.py [--plot docs/shuffling.svg] (the plot needs matplotlib: pip install -e '.[explore]')
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import webdataset

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.measure import table
from wds_tools.format import tar
from wds_tools.stream.order import Order, Topology
from wds_tools.stream.quality import ShuffleQuality, shuffle_quality

SHARDS, SAMPLES = 100, 200
LABELS = np.repeat(np.arange(SHARDS), SAMPLES)
TOPOLOGY = Topology(world=1, workers=2, batch_size=100)
REPEATS = 5
WINDOWS = (1, 100, 300, 1000, 2048, 5000, 10_000)
INTERLEAVES = (1, 4, 16, 64)


def ours(window: int, interleave: int, epoch: int) -> Sequence[int]:
    order = Order([SAMPLES] * SHARDS, window=window, interleave=interleave)
    return np.concatenate(list(order.epoch(epoch, TOPOLOGY).batches())).tolist()  # type: ignore[no-any-return]


def permutation(seed: int) -> Sequence[int]:
    return np.random.default_rng(seed).permutation(SHARDS * SAMPLES).tolist()  # type: ignore[no-any-return]


def make_shards(folder: Path) -> list[str]:
    for shard in range(SHARDS):
        members = []
        for number in range(shard * SAMPLES, (shard + 1) * SAMPLES):
            text = b"%d" % number
            members += [tar.header(f"{number:06d}.id", len(text)), text.ljust(tar.BLOCK, b"\0")]
        (folder / f"{shard:06d}.tar").write_bytes(b"".join([*members, bytes(2 * tar.BLOCK)]))
    return sorted(map(str, folder.glob("*.tar")))


def peer(shards: list[str], seed: int) -> Sequence[int]:
    warnings.simplefilter("ignore")
    dataset = webdataset.WebDataset(shards, shardshuffle=100, seed=seed).shuffle(1000, rng=random.Random(seed))
    batches = dataset.map(lambda sample: int(sample["id"])).batched(TOPOLOGY.batch_size, collation_fn=list)
    loader = webdataset.WebLoader(batches, batch_size=None, num_workers=TOPOLOGY.workers)
    return [number for batch in loader for number in batch]


def measure(epoch: Callable[[int], Sequence[int]]) -> ShuffleQuality:
    found = [shuffle_quality(epoch(number), LABELS) for number in range(REPEATS)]
    return ShuffleQuality(
        statistics.mean(one.displacement for one in found), statistics.mean(one.neighbours for one in found)
    )


def plot(path: Path, grid: dict[tuple[int, int], ShuffleQuality], fixed: dict[str, ShuffleQuality]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    # The same bytes for the same numbers, and letters as letters.
    matplotlib.rcParams.update({"svg.hashsalt": "wds_tools", "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6))
    for axis, value, title in (
        (axes[0], lambda quality: quality.neighbours, "labels agree with neighbours\nmore than by chance (0 is best)"),
        (axes[1], lambda quality: quality.displacement, "mean displacement\n(a full permutation has 1)"),
    ):
        for interleave in INTERLEAVES:
            values = [value(grid[window, interleave]) for window in WINDOWS]
            axis.plot(WINDOWS, values, marker=".", label=f"interleave={interleave}")
        for (name, quality), style in zip(fixed.items(), ("--", ":"), strict=True):
            axis.axhline(value(quality), color="black", linestyle=style, linewidth=1, label=name)
        axis.set(xscale="log", xlabel="window, samples", title=title)
        axis.set_ylim(bottom=min(0, axis.get_ylim()[0]))
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, help="write the plot to this file")
    arguments = parser.parse_args()
    grid = {(w, i): measure(lambda n, w=w, i=i: ours(w, i, n)) for w in WINDOWS for i in INTERLEAVES}  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        shards = make_shards(Path(folder))
        fixed = {
            "WebDataset, shardshuffle=100, shuffle(1000)": measure(lambda seed: peer(shards, seed)),
            "a full permutation": measure(permutation),
        }
    rows = [["order", "neighbours", "displacement"]]
    named = {f"window={w}, interleave={i}": quality for (w, i), quality in grid.items()} | fixed
    rows += [[name, f"{quality.neighbours:.4f}", f"{quality.displacement:.3f}"] for name, quality in named.items()]
    print(table(rows))
    if arguments.plot:
        plot(arguments.plot, grid, fixed)


if __name__ == "__main__":
    main()
