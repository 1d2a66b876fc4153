"""What the sides of the decoding benchmark need: trees, shards, arrays, environments, and the commands that take turns.

Everything is made when it is first asked for. Trees are kept between runs, as they only cost time; shards are made anew,
as what makes them is under test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np

from benchmarks import photographs
from benchmarks.peers.environments import ROOT, PeerError, last_line, python_of
from wds_tools import ShardDataset
from wds_tools.image.arrays import decode_npy

HERE = Path(__file__).parent
CONVERT_SECONDS = 600
ARRAYS = ("--encode", "npy", "--image-size", "128")


@dataclass(frozen=True)
class Counts:
    """How many images each case has."""

    photos: int = 2400
    large: int = 150
    arrays: int = 12_000


class Material:
    """All of it, in the folder ``scratch`` but for the environments."""

    def __init__(self, scratch: Path, source: Path | None, peers: Path, counts: Counts) -> None:
        self.counts = counts
        self._scratch, self._source, self._peers = scratch, source, peers
        scratch.mkdir(parents=True, exist_ok=True)

    @lru_cache  # noqa: B019  # there is one
    def tree(self, case: str) -> Path:
        count = getattr(self.counts, case)
        changes: dict[str, Callable[[bytes, int], bytes]] = {
            "photos": photographs.as_it_is,
            "large": photographs.large,
            "arrays": partial(photographs.square, size=128),
        }
        name = f"{case}-{count}-{self._source.name if self._source else 'made-up'}"
        return photographs.tree(self._scratch / name, self._source, count, changes[case])

    @lru_cache  # noqa: B019
    def shards(self, case: str, *options: str) -> Path:
        """What `convert` makes of a case's tree: eight shards, so that workers share them evenly."""
        tree = self.tree(case)
        out = self._scratch / "-".join(["shards", case, *(word.lstrip("-") for word in options)])
        shutil.rmtree(out, ignore_errors=True)
        each = -(-getattr(self.counts, case) // 8)
        command = [
            sys.executable,
            "-m",
            "wds_tools",
            "convert",
            str(tree),
            str(out),
            "--max-count",
            str(each),
            *options,
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        try:
            subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True, timeout=CONVERT_SECONDS
            )
        except subprocess.CalledProcessError as error:
            raise PeerError(f"convert {' '.join(options)}: {last_line(error.stderr)}") from error
        except subprocess.TimeoutExpired as error:
            raise PeerError(f"convert {' '.join(options)}: not done after {CONVERT_SECONDS} seconds") from error
        return out

    def tars(self, case: str, *options: str) -> list[str]:
        return sorted(map(str, self.shards(case, *options).glob("*.tar")))

    @cached_property
    def arrays(self) -> Path:
        """The arrays of the npy shards once more, in one file, channels first."""
        dataset = ShardDataset(str(self.shards("arrays", *ARRAYS)), split="train")
        path = self._scratch / "arrays.npy"
        for old in self._scratch.glob("arrays.npy*"):
            old.unlink()
        out = np.lib.format.open_memmap(path, "w+", np.uint8, (len(dataset), 3, 128, 128))
        for number, sample in enumerate(dataset):
            out[number] = decode_npy(sample["npy"]).transpose(2, 0, 1)
        out.flush()
        return path

    @cached_property
    def beton(self) -> Path:
        """Where FFCV's dataset goes; it makes it."""
        path = self._scratch / f"{self.tree('photos').name}.beton"
        path.unlink(missing_ok=True)
        return path

    def ours(self, preset: str, case: str, *options: str, hidden: str | None = None) -> list[str]:
        return _script(sys.executable, "ours.py", self.shards(case, *options), preset, *([hidden] if hidden else []))

    def limit(self, case: str) -> list[str]:
        return _script(sys.executable, "decode_limit.py", self.shards(case, "--tile"))

    def peer(self, environment: str, script: str, *words: object) -> list[str]:
        return _script(python_of(environment, self._peers), script, *words)


def _script(python: str, script: str, *words: object) -> list[str]:
    return [python, str(HERE / "peers" / script), *map(str, words)]
