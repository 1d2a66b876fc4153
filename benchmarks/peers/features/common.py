"""What every peer is asked, in its own environment: `answer` runs one question and prints one line of JSON.

Questions, each in a fresh process, so that nothing is remembered but what a peer saves:

    make                                  write the peer's format from the tree
    epoch [--stop N --save F] [--load F]  the labels of an epoch's batches, as this rank gets them
    augment                               a digest of each sample's augmented pixels
    damaged [--skip]                      an epoch over data with one damaged image
    item                                  is there dataset[5], and is it the right sample
    extra                                 whatever else one peer is asked

A label is the number of the sample: the tree has one image a class. Rank and world size come from the environment, as from
torchrun; ranks of torch meet over gloo. Needs no more than numpy where a peer has no torch.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES, SHARDS, DAMAGED, SEED = 403, 4, 200, 0


class Peer:
    """One library. A loader is anything with batches; `labels` and `pixels` take a batch apart."""

    def __init__(self, work: Path, arguments: argparse.Namespace) -> None:
        self.work, self.batch, self.workers, self.skip = work, arguments.batch, arguments.workers, arguments.skip
        self.rank, self.world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.damaged, self.pictures = arguments.question == "damaged", arguments.question in ("augment", "damaged")

    def make(self) -> None:
        """Nothing to be made."""

    def loader(self) -> Any:
        raise NotImplementedError

    def labels(self, batch: Any) -> list[int]:
        return [int(label) for label in batch[1]]

    def pixels(self, batch: Any) -> Iterable[Any]:
        return batch[0]

    def save(self, loader: Any) -> Any:
        return loader.state_dict()

    def load(self, loader: Any, state: Any) -> None:
        loader.load_state_dict(state)

    def item(self) -> int:
        """The label of ``dataset[5]`` or of what comes nearest."""
        return self.labels([[None], [self.loader().dataset[5][1]]])[0]

    def extra(self) -> dict[str, Any]:
        return {}


def answer(peer: Callable[[Path, argparse.Namespace], Peer]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("question", choices=["make", "epoch", "augment", "damaged", "item", "extra"])
    parser.add_argument("work", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--stop", type=int)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--load", type=Path)
    parser.add_argument("--skip", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    said, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no answer
    found: dict[str, Any] = {}
    try:
        _join()
        _ask(peer(arguments.work, arguments), arguments, found)
    except Exception as error:  # noqa: BLE001  # a finding like any other
        found["error"] = f"{type(error).__name__}: {_gist(error)}"
    print(json.dumps(found), file=said, flush=True)
    os._exit(0)  # threads and processes of a broken loader keep nobody waiting


def _ask(peer: Peer, arguments: argparse.Namespace, found: dict[str, Any]) -> None:
    if arguments.question in ("make", "item", "extra"):
        answered = getattr(peer, arguments.question)()
        found.update(answered if isinstance(answered, dict) else {"label": answered})
        return
    loader = peer.loader()
    if arguments.load:
        peer.load(loader, pickle.loads(arguments.load.read_bytes()))
    try:
        found["len"] = len(loader)
    except (TypeError, NotImplementedError) as error:
        found["len"] = f"{type(error).__name__}"
    batches = found.setdefault("batches", [])
    digests = found.setdefault("digests", {})
    for batch in loader:
        labels = peer.labels(batch)
        batches.append(labels)
        if peer.pictures:
            pixels = peer.pixels(batch)
            digests.update(
                {
                    label: hashlib.sha256(np.asarray(p).tobytes()).hexdigest()[:12]
                    for label, p in zip(labels, pixels, strict=True)
                }
            )
        if len(batches) == arguments.stop:
            arguments.save.write_bytes(pickle.dumps(peer.save(loader)))
            break


def _join() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and importlib.util.find_spec("torch"):
        import torch.distributed

        torch.distributed.init_process_group("gloo")


def _gist(error: BaseException) -> str:
    """The line of an error that names it: of a worker's error the last, of others the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return (lines[-1] if "Traceback" in str(error) else lines[0])[:200]
