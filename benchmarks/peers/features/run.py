"""What wds_tools and its peers do, tried on 403 small images in four shards: the experiments behind docs/comparison.md.

Every peer runs in its own environment (see ../environments.py), which is made when it is missing; one that cannot be made is
said so. Nothing here measures speed.

Usage: run.py [NAME …] [--peers DIR] [--work DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]

from common import DAMAGED, SAMPLES, SHARDS  # noqa: E402
from environments import FOLDER, PeerError, python_of  # noqa: E402

SECONDS = 240  # what an answer may take; one that takes longer hangs
# name: script, environment; None is the interpreter that runs this
PEERS = {
    "wds_tools": ("ours.py", None),
    "imagefolder": ("imagefolder.py", "folder"),
    "webdataset": ("wds.py", "wds"),
    "dali": ("dali.py", "dali"),
    "ffcv": ("ffcv_.py", "ffcv"),
    "mosaic": ("mosaic.py", "mosaic"),
    "litdata": ("litdata_.py", "litdata"),
}
Answer = dict[str, Any]


def make_material(work: Path) -> None:
    """A tree with one image a class, shards of it with our indexes, and both again with one image's bytes zeroed."""
    from wds_tools import convert_tree

    draw = np.random.default_rng(0)
    for label in range(SAMPLES):
        folder = work / "tree" / f"c{label:03d}"
        folder.mkdir(parents=True)
        coarse = draw.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((80, 60), Image.Resampling.BICUBIC).save(folder / "image.jpg", quality=90)
    convert_tree(str(work / "tree"), str(work / "shards"), split="train", max_count=-(-SAMPLES // SHARDS))
    shutil.copytree(work / "tree", work / "damaged-tree")
    shutil.copytree(work / "shards", work / "damaged-shards")
    wrong = work / "damaged-tree" / f"c{DAMAGED:03d}" / "image.jpg"
    size = wrong.stat().st_size
    wrong.write_bytes(b"\0" * size)
    for shard in (work / "damaged-shards").glob("*.tar"):
        with tarfile.open(shard) as tar:
            places = [m.offset_data for m in tar if m.name.startswith(f"c{DAMAGED:03d}/") and m.name.endswith(".jpg")]
        shard.chmod(0o644)
        with shard.open("r+b") as file:
            for place in places:
                file.seek(place)
                file.write(b"\0" * size)


class Asked:
    """A peer's script, and how it is asked."""

    def __init__(self, script: str, python: str, work: Path) -> None:
        self.script, self.python, self.work = script, python, work

    def __call__(self, question: str, *words: str, world: int = 1) -> list[Answer]:
        """The answer of each rank."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        running = [self._start(question, words, rank, world, port) for rank in range(world)]
        answers = []
        for process in running:
            try:
                out, said = process.communicate(timeout=SECONDS)
                answers.append(
                    json.loads(out) if out else {"error": (said.strip().splitlines() or ["silence"])[-1][:200]}
                )
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                answers.append({"error": f"no answer in {SECONDS} seconds"})
        return answers

    def _start(self, question: str, words: Sequence[str], rank: int, world: int, port: int) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "PYTHONWARNINGS": "ignore",
        }
        if world > 1:
            environment |= {name: str(rank) for name in ("RANK", "LOCAL_RANK", "GLOBAL_RANK")}
            environment |= {name: str(world) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [self.python, str(HERE / self.script), question, str(self.work), *words]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def flat(answers: Sequence[Answer]) -> list[int]:
    return [label for answer in answers for batch in answer.get("batches", []) for label in batch]


def told(answers: Sequence[Answer], before: Sequence[int] = ()) -> str:
    """What an epoch delivered, in a line; ``before`` is what had been delivered already."""
    labels = [*before, *flat(answers)]
    distinct = len(set(labels))
    parts = [f"{SAMPLES - distinct} missing, {len(labels) - distinct} repeated"]
    parts += [f"batches {[len(a.get('batches', [])) for a in answers]}, len said {[a.get('len') for a in answers]}"]
    parts += [f"samples {[len(flat([a])) for a in answers]}"]
    return "; ".join(parts + [a["error"] for a in answers if "error" in a])


def study(ask: Asked) -> dict[str, str]:
    """All findings about one peer."""
    found: dict[str, str] = {}
    made = ask("make")[0]
    if "error" in made:
        return {"make": made["error"]}
    whole = ask("epoch")
    found["1 rank x 2 workers"] = told(whole)
    again = ask("epoch")
    found["the same again"] = "same order" if flat(again) == flat(whole) else "another order"
    found["1 rank x 6 workers, 4 shards"] = told(ask("epoch", "--workers", "6"))
    found["2 ranks x 3 workers, 4 shards"] = told(ask("epoch", "--workers", "3", world=2))
    found.update(_resumes(ask, whole))
    found.update(_augments(ask))
    damaged = ask("damaged")
    found["damaged image"] = told(damaged)
    found["damaged image, skipping"] = told(ask("damaged", "--skip"))
    item = ask("item")[0]
    found["dataset[5]"] = item.get("error") or f"label {item.get('label')}"
    found["extra"] = json.dumps(ask("extra")[0])
    return found


def _resumes(ask: Asked, whole: list[Answer]) -> dict[str, str]:
    state = ask.work / f"{ask.script}.json"
    state.unlink(missing_ok=True)
    first = ask("epoch", "--stop", "9", "--save", str(state))
    if not state.exists():
        return {"resume": first[0].get("error", "no state")}
    before, found = flat(first), {}
    rest = ask("epoch", "--load", str(state))
    as_before = before + flat(rest) == flat(whole)
    found["resume, same numbers"] = (
        f"{told(rest, before)}; {'same' if as_before else 'another'} order as without a break"
    )
    for title, words, world in (
        ("resume, 3 workers", ["--workers", "3"], 1),
        ("resume, batches of 10", ["--batch", "10"], 1),
        ("resume, 2 ranks", [], 2),
    ):
        found[title] = told(ask("epoch", "--load", str(state), *words, world=world), before)
    return found


def _augments(ask: Asked) -> dict[str, str]:
    """How many samples look alike when an epoch is made again, also with other numbers."""
    base: Mapping[str, str] = ask("augment", "--workers", "1")[0].get("digests", {})
    found = {}
    for title, words in (
        ("again", ["--workers", "1"]),
        ("3 workers", ["--workers", "3"]),
        ("batches of 10", ["--workers", "1", "--batch", "10"]),
    ):
        other = ask("augment", *words)[0]
        alike = sum(base.get(label) == digest for label, digest in other.get("digests", {}).items())
        found[f"augmented alike, {title}"] = f"{alike} of {SAMPLES}" + (
            f"; {other['error']}" if "error" in other else ""
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *PEERS], default=[], metavar="NAME")
    parser.add_argument("--peers", type=Path, default=FOLDER)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        work = arguments.work or Path(scratch) / "work"
        if not (work / "damaged-shards").exists():
            make_material(work)
        for name in arguments.names or PEERS:
            script, environment = PEERS[name]
            try:
                python = python_of(environment, arguments.peers) if environment else sys.executable
            except PeerError as error:
                results[name] = {"environment": str(error)}
            else:
                results[name] = study(Asked(script, python, work))
            print(f"\n{name}")
            for title, finding in results[name].items():
                print(f"  {title}: {finding}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
