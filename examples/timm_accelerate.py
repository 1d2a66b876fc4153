"""Train a model of timm's with Accelerate on shards; run again after a crash, it goes on within the epoch, to the sample.

    wds-tools demo images && wds-tools convert images shards                        # or your own images
    wds-tools demo others --seed 1 && wds-tools convert others shards --split val
    python examples/timm_accelerate.py shards --model resnet18
    accelerate launch --num_processes 2 examples/timm_accelerate.py shards --model resnet18   # may come after that one

* timm's data config says how large the model's images are and how they are normalised; presets and `normalize` do it.
* Accelerate prepares model and optimizer, not the loaders: those have dealt the samples to the processes already.
* `register_for_checkpointing(loader)` puts the place in the epoch into Accelerate's checkpoints.

Training uses ``tail="drop"``: all batches are full, as BatchNorm and the mean over processes want them.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import timm
import torch
import torch.distributed.nn  # before the group is there: see examples/train.py
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn import functional

from wds_tools import ShardDataset, ShardLoader, transforms


def make_loaders(arguments: argparse.Namespace, config: dict[str, Any]) -> tuple[ShardLoader, ShardLoader]:
    """To train and to evaluate, with images as large as the model wants them."""
    _, height, width = config["input_size"]
    train = ShardDataset(
        arguments.shards,
        split="train",
        shuffle=True,
        seed=arguments.seed,
        fields=("jpg;png;webp", "cls", "__seed__"),
        transform=transforms.RandomResizedCrop((height, width)),
    )
    crop = transforms.ResizeCenterCrop(int(min(height, width) / config["crop_pct"]), (height, width))
    val = ShardDataset(arguments.shards, split="val", transform=crop)
    return (
        ShardLoader(train, arguments.batch_size, arguments.workers, tail="drop"),
        ShardLoader(val, arguments.batch_size, arguments.workers, tail="even"),
    )


def load_newest(accelerator: Accelerator, folder: Path) -> int:
    """Continue from the newest checkpoint; answers how many steps there have been."""
    steps = [int(path.name.removeprefix("step")) for path in folder.glob("step*")]
    if not steps:
        return 0
    accelerator.load_state(str(folder / f"step{max(steps)}"))
    return max(steps)


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """Written under another name and then renamed: a checkpoint is whole, or it is not there."""
    part, whole = folder / "part", folder / f"step{step}"
    accelerator.save_state(str(part))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        older = list(folder.glob("step*"))
        part.rename(whole)
        for path in older:
            shutil.rmtree(path)
    accelerator.wait_for_everyone()


@torch.inference_mode()
def evaluate(accelerator: Accelerator, model: torch.nn.Module, loader: ShardLoader, config: dict[str, Any]) -> float:
    """The accuracy over the samples of all processes, each counted once."""
    model.eval()
    counts = torch.zeros(2, device=accelerator.device)
    for images, labels in loader:
        scores = model(transforms.normalize(images.to(accelerator.device), config["mean"], config["std"]))
        counts[0] += (scores.argmax(1) == labels.to(accelerator.device)).sum()
        counts[1] += len(labels)
    model.train()
    right, seen = accelerator.reduce(counts).tolist()
    return right / seen


def train(accelerator: Accelerator, arguments: argparse.Namespace) -> None:
    set_seed(arguments.seed)
    classes = len(ShardDataset(arguments.shards, split="train").classes)
    model = timm.create_model(arguments.model, pretrained=arguments.pretrained, num_classes=classes)
    config = timm.data.resolve_model_data_config(model)
    loader, val_loader = make_loaders(arguments, config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    model, optimizer = accelerator.prepare(model, optimizer)  # not the loaders
    accelerator.register_for_checkpointing(loader)
    step = load_newest(accelerator, arguments.checkpoints)
    jitter = transforms.ColorJitter(0.4, 0.4, 0.4)

    while loader.epoch < arguments.epochs:
        epoch, steps = loader.epoch, len(loader)
        losses = torch.zeros((), device=accelerator.device)
        for number, (images, labels, seeds) in enumerate(loader, 1):
            images, labels = images.to(accelerator.device), labels.to(accelerator.device)
            scores = model(transforms.normalize(jitter(images, seeds), config["mean"], config["std"]))
            loss = functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses += loss.detach()
            step += 1
            if number % arguments.every == 0 or number == steps:
                save(accelerator, arguments.checkpoints, step)
        loss = accelerator.reduce(losses, "mean") / steps
        accuracy = evaluate(accelerator, model, val_loader, config)
        accelerator.print(f"epoch {epoch}: {steps} steps, loss {loss:.3f}, on val {accuracy:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", help="a dataset with the splits train and val: its folder or address")
    parser.add_argument("--model", default="resnet50", help="a name that timm.list_models() has")
    parser.add_argument("--pretrained", action="store_true", help="begin with timm's weights")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--workers", type=int, default=0, help="of each process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="folder to go on from")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    arguments = parser.parse_args()

    # Without an accelerator it must be told: it would take each process for the only one.
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    train(accelerator, arguments)
    # The model goes before the processes part: DistributedDataParallel must not be the last to let go of their group,
    # which with gloo waits for a thread that waits for this one (torch 2.13).
    accelerator.free_memory()
    accelerator.end_training()


if __name__ == "__main__":
    main()
