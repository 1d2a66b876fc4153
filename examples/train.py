"""Train a small network on shards: alone or with torchrun, killed and resumed to the sample.

    wds-tools demo images && wds-tools convert images shards        # or your own images
    python examples/train.py shards                                 # one process
    torchrun --standalone --nproc-per-node 2 examples/train.py shards --checkpoint run.pt
    torchrun --standalone --nproc-per-node 3 examples/train.py shards --checkpoint run.pt   # goes on where that one was

The last line may come after a crash, and with another number of processes: what is left of the epoch is dealt anew, and
every sample is trained on once. Three things make that so:

* `loader.state_dict()` goes into the checkpoint with model and optimiser, so that all three are of one moment.
* Every rank makes the same number of steps; rank 0 writes for all, because the loader's state is alike on all of them.
* With ``tail="even"`` nothing is dropped or repeated, so the last batches may be short, and a rank's very last one may
  be empty. `mean_loss` weighs by samples, not by ranks, and the step is taken by all.

``--ledger DIR`` writes down the keys of the samples behind each checkpoint, which proves all this; training needs no such thing.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn  # before the group is there: this module keeps the one it finds, past its end, until torch aborts
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from wds_tools import ShardDataset, ShardLoader

SIZE = 64


def augment(image: Image.Image) -> torch.Tensor:
    """A random crop, flipped half of the time. What torch draws here follows from (seed, epoch, sample) alone."""
    pixels = torch.from_numpy(np.array(image.resize((SIZE + 8, SIZE + 8)))).permute(2, 0, 1)
    top, left = torch.randint(0, 9, (2,)).tolist()
    pixels = pixels[:, top : top + SIZE, left : left + SIZE]
    return pixels.flip(-1) if torch.rand(()) < 0.5 else pixels


def make_model(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        # Not BatchNorm, which an empty batch has no statistics for.
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(128, classes))


def mean_loss(scores: torch.Tensor, labels: torch.Tensor, world: int) -> torch.Tensor:
    """The mean over the samples of all ranks, times ``world`` because DistributedDataParallel divides by that."""
    return functional.cross_entropy(scores, labels, reduction="sum") * world / sum_over_ranks(len(labels))


def sum_over_ranks(number: int) -> int:
    total = torch.tensor(number)
    if dist.is_initialized():
        dist.all_reduce(total)
    return int(total)


class Run:
    """What a checkpoint holds, and how it is written: whole or not at all."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loader: ShardLoader, ledger: Path | None):
        self.model, self.optimizer, self.loader, self.ledger = model, optimizer, loader, ledger
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.step = 0
        self.keys: list[str] = []  # seen by this rank since the last checkpoint

    def load(self, path: Path) -> None:
        if path.exists():
            saved = torch.load(path, weights_only=True)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.loader.load_state_dict(saved["loader"])
            self.step = saved["step"]
        if self.ledger is not None:
            self._forget_what_was_lost(self.ledger)

    def save(self, path: Path) -> None:
        if self.ledger is not None:
            write_whole(self.ledger / f"step{self.step:06d}-rank{self.rank}.txt", "".join(f"{k}\n" for k in self.keys))
            self.keys.clear()
        if dist.is_initialized():
            dist.barrier()  # every rank's ledger is there before the checkpoint that vouches for it
        if self.rank == 0:
            parts = {"model": self.model, "optimizer": self.optimizer, "loader": self.loader}
            saved = {name: part.state_dict() for name, part in parts.items()}
            write_whole(path, saved | {"step": self.step})

    def _forget_what_was_lost(self, ledger: Path) -> None:
        """Steps after the checkpoint are trained again: their samples have not been seen."""
        ledger.mkdir(parents=True, exist_ok=True)
        if self.rank == 0:
            for file in ledger.glob("step*.txt"):
                if int(file.name[4:10]) > self.step:
                    file.unlink()
        if dist.is_initialized():
            dist.barrier()


def write_whole(path: Path, content: object) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(content) if isinstance(content, str) else torch.save(content, part)
    os.replace(part, path)


def train(arguments: argparse.Namespace) -> None:
    dataset = ShardDataset(
        arguments.shards,
        shuffle=True,
        seed=arguments.seed,
        fields=("jpg;png;webp", "cls", "__key__"),
        transform=augment,
    )
    # Rank and world size come from torch.distributed. Nothing is sharded again: no sampler, no wrapper.
    loader = ShardLoader(dataset, batch_size=arguments.batch_size, num_workers=arguments.workers, tail="even")
    torch.manual_seed(arguments.seed)
    model = make_model(len(dataset.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    run = Run(model, optimizer, loader, arguments.ledger)
    run.load(arguments.checkpoint)
    world = dist.get_world_size() if dist.is_initialized() else 1
    parallel = DistributedDataParallel(model) if world > 1 else model

    while loader.epoch < arguments.epochs:
        epoch, steps, seen, right = loader.epoch, len(loader), 0, 0
        for number, (images, labels, keys) in enumerate(loader, 1):
            # An empty batch has lost its shape, and gets it back here.
            scores = parallel(images.view(-1, 3, SIZE, SIZE).float() / 255 - 0.5)
            optimizer.zero_grad()
            mean_loss(scores, labels, world).backward()
            optimizer.step()
            run.step += 1
            run.keys += keys
            seen, right = seen + len(labels), right + int((scores.argmax(1) == labels).sum())
            if number % arguments.every == 0 or number == steps:
                run.save(arguments.checkpoint)
        seen, right = sum_over_ranks(seen), sum_over_ranks(right)
        if run.rank == 0:
            print(f"epoch {epoch}: {steps} steps, {seen} samples, accuracy {right / seen:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", help="a dataset: folder, glob or brace notation")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--workers", type=int, default=0, help="of each process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"), help="written, and resumed from")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--ledger", type=Path, help="folder to write the keys of the samples seen to")
    arguments = parser.parse_args()
    if "WORLD_SIZE" in os.environ:  # torchrun started this process
        dist.init_process_group("gloo")
    train(arguments)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
