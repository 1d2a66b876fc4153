"""Train an image classifier on shards: alone or with torchrun, killed and resumed to the sample.

    wds-tools demo images && wds-tools convert images shards                        # or your own images
    wds-tools demo others --seed 1 && wds-tools convert others shards --split val   # evaluated after each epoch, if there
    python examples/train.py shards                                                 # one process
    torchrun --standalone --nproc-per-node 2 examples/train.py shards --checkpoint run.pt
    torchrun --standalone --nproc-per-node 3 examples/train.py shards --checkpoint run.pt   # goes on where that one was

The last line may come after a crash, and with another number of processes: what is left of the epoch is dealt anew, and
every sample is trained on once. Four things make that so:

* `loader.state_dict()` goes into the checkpoint with model and optimizer, so that all three are of one moment.
* Every rank makes the same number of steps; rank 0 writes for all, because the loader's state is alike on all of them.
* With ``tail="even"`` nothing is dropped or repeated, so the last batches may be short, and a rank's very last one may
  be empty. `mean_loss` weighs by samples, not by ranks, and the step is taken by all.
* Crop, flip and jitter are drawn from the sample's seed, so it looks alike whoever has it, before a crash and after.

Images travel as bytes; jitter and `normalize` work on whole batches, on the model's device.
``--ledger DIR`` writes down the keys of the samples behind each checkpoint, which proves all this; training needs no such thing.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the group is there: this module keeps the one it finds, past its end, until torch aborts
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from wds_tools import OptionError, ShardDataset, ShardLoader, transforms


def make_model(classes: int) -> nn.Module:
    """A small stand-in for yours."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        # Not BatchNorm, which an empty batch has no statistics for.
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(128, classes))


def find_val(arguments: argparse.Namespace) -> ShardLoader | None:
    """The split ``val``, if the dataset has one."""
    crop = transforms.ResizeCenterCrop(arguments.size * 8 // 7, arguments.size)
    try:
        dataset = ShardDataset(arguments.shards, split="val", transform=crop)
    except OptionError:  # no such split
        return None
    return ShardLoader(dataset, arguments.batch_size, arguments.workers, tail="even")


def mean_loss(scores: torch.Tensor, labels: torch.Tensor, world: int) -> torch.Tensor:
    """The mean over the samples of all ranks, times ``world`` because DistributedDataParallel divides by that."""
    samples = sum_over_ranks(torch.tensor(len(labels), device=labels.device))
    return functional.cross_entropy(scores, labels, reduction="sum") * world / samples


def sum_over_ranks(numbers: torch.Tensor) -> torch.Tensor:
    if dist.is_initialized():
        dist.all_reduce(numbers)
    return numbers


@torch.inference_mode()
def evaluate(model: nn.Module, loader: ShardLoader, device: torch.device) -> float:
    """The accuracy over the samples of all ranks, each counted once."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    for images, labels in loader:
        scores = model(transforms.normalize(images.to(device)))
        counts[0] += (scores.argmax(1) == labels.to(device)).sum()
        counts[1] += len(labels)
    model.train()
    right, seen = sum_over_ranks(counts).tolist()
    return right / seen


class Run:
    """What a checkpoint holds, and how it is written: whole or not at all."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loader: ShardLoader, ledger: Path | None):
        self.model, self.optimizer, self.loader, self.ledger = model, optimizer, loader, ledger
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.step = 0
        self.keys: list[str] = []  # seen by this rank since the last checkpoint

    def load(self, path: Path) -> None:
        if path.exists():
            saved = torch.load(path, map_location="cpu")
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


def train(arguments: argparse.Namespace, device: torch.device) -> None:
    dataset = ShardDataset(
        arguments.shards,
        split="train",
        shuffle=True,
        seed=arguments.seed,
        fields=("jpg;png;webp", "cls", "__seed__", "__key__"),
        transform=transforms.RandomResizedCrop(arguments.size, scale=(0.35, 1.0)),  # (0.08, 1.0) for ninety epochs
    )
    # Rank and world size come from torch.distributed. Nothing is sharded again: no sampler, no wrapper.
    loader = ShardLoader(dataset, arguments.batch_size, arguments.workers, tail="even")
    val_loader = find_val(arguments)
    torch.manual_seed(arguments.seed)
    model = make_model(len(dataset.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    jitter = transforms.ColorJitter(0.4, 0.4, 0.4)
    run = Run(model, optimizer, loader, arguments.ledger)
    run.load(arguments.checkpoint)
    world = dist.get_world_size() if dist.is_initialized() else 1
    parallel = DistributedDataParallel(model) if world > 1 else model

    while loader.epoch < arguments.epochs:
        epoch, steps = loader.epoch, len(loader)
        counts = torch.zeros(2, dtype=torch.int64, device=device)
        for number, (images, labels, seeds, keys) in enumerate(loader, 1):
            images, labels = images.to(device), labels.to(device)
            scores = parallel(transforms.normalize(jitter(images, seeds)))
            optimizer.zero_grad()
            mean_loss(scores, labels, world).backward()
            optimizer.step()
            counts[0] += (scores.argmax(1) == labels).sum()
            counts[1] += len(labels)
            run.step += 1
            run.keys += keys
            if number % arguments.every == 0 or number == steps:
                run.save(arguments.checkpoint)
        right, seen = sum_over_ranks(counts).tolist()
        said = f"epoch {epoch}: {steps} steps, {seen} samples, accuracy {right / seen:.3f}"
        if val_loader is not None:
            said += f", on val {evaluate(model, val_loader, device):.3f}"
        if run.rank == 0:
            print(said, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", help="a dataset: its folder or address")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--size", type=int, default=64, help="of the images, in pixels")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--workers", type=int, default=0, help="of each process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"), help="written, and resumed from")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--ledger", type=Path, help="folder to write the keys of the samples seen to")
    arguments = parser.parse_args()

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if "WORLD_SIZE" in os.environ:  # torchrun started this process
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(arguments, device)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
