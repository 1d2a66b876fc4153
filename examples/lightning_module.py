"""Train with Lightning on shards; run again after a crash, it goes on within the epoch, to the sample.

    wds-tools demo images && wds-tools convert images shards                        # or your own images
    wds-tools demo others --seed 1 && wds-tools convert others shards --split val
    python examples/lightning_module.py shards
    python examples/lightning_module.py shards --devices 2                          # may come after a crash of that one

Lightning takes a `ShardLoader` as it is, and saves and loads its state with each checkpoint. Two things it must be told:

* `Shards` chooses the loader's epoch, and the trainer asks it for the loader anew each epoch.
* `ResumeWithinEpoch`: after a crash the loader gives what is left of the epoch, so Lightning must not leave that out again.

Training uses ``tail="drop"``: all batches are full, so that Lightning's mean over ranks is the mean over samples.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.distributed.nn  # before the group is there: see examples/train.py
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy

from wds_tools import ShardDataset, ShardLoader, transforms


class Shards(lightning.LightningDataModule):
    """Two loaders, made before there are ranks: they look their rank up when a pass begins."""

    def __init__(self, train: ShardLoader, val: ShardLoader | None = None) -> None:
        super().__init__()
        self.train, self.val = train, val

    def train_dataloader(self) -> ShardLoader:
        self.train.set_epoch(self.trainer.current_epoch)  # leaves an epoch that was resumed where it is
        return self.train

    def val_dataloader(self) -> ShardLoader | list[ShardLoader]:
        return [] if self.val is None else self.val


class ResumeWithinEpoch(lightning.Callback):
    """The loader gives what is left of the epoch; Lightning must count what is left, too."""

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        progress["current"] = dict.fromkeys(progress["current"], 0)
        progress["total"] = dict.fromkeys(progress["total"], progress["total"]["ready"])


class Classifier(lightning.LightningModule):
    """A small stand-in for yours."""

    def __init__(self, classes: int, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.jitter = transforms.ColorJitter(0.4, 0.4, 0.4)
        self.accuracy = MulticlassAccuracy(classes, average="micro")  # counts the samples of all ranks
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]
        self.model = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(128, classes))

    def training_step(self, batch: tuple[torch.Tensor, ...], number: int) -> torch.Tensor:
        images, labels, seeds = batch  # bytes, on the device by now
        loss = functional.cross_entropy(self.model(transforms.normalize(self.jitter(images, seeds))), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, batch_size=len(labels), sync_dist=True)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, ...], number: int) -> None:
        images, labels = batch
        self.accuracy.update(self.model(transforms.normalize(images)), labels)
        self.log("val_accuracy", self.accuracy, on_epoch=True, batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Say(lightning.Callback):
    """A line an epoch, in place of the progress bar."""

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        numbers = ", ".join(f"{name} {float(value):.3f}" for name, value in trainer.callback_metrics.items())
        if trainer.is_global_zero:
            print(f"epoch {trainer.current_epoch}: {trainer.num_training_batches} steps, {numbers}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", help="a dataset with the splits train and val: its folder or address")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--size", type=int, default=64, help="of the images, in pixels")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--workers", type=int, default=0, help="of each process")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="folder to go on from")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    arguments = parser.parse_args()

    lightning.seed_everything(arguments.seed)
    train = ShardDataset(
        arguments.shards,
        split="train",
        shuffle=True,
        seed=arguments.seed,
        fields=("jpg;png;webp", "cls", "__seed__"),
        transform=transforms.RandomResizedCrop(arguments.size),
    )
    crop = transforms.ResizeCenterCrop(arguments.size * 8 // 7, arguments.size)
    val = ShardDataset(arguments.shards, split="val", transform=crop)
    shards = Shards(
        ShardLoader(train, arguments.batch_size, arguments.workers, tail="drop"),
        ShardLoader(val, arguments.batch_size, arguments.workers, tail="even"),
    )
    checkpoints = ModelCheckpoint(
        arguments.checkpoints, every_n_train_steps=arguments.every, save_top_k=0, save_last=True
    )
    trainer = lightning.Trainer(
        max_epochs=arguments.epochs,
        devices=arguments.devices,
        callbacks=[checkpoints, ResumeWithinEpoch(), Say()],
        reload_dataloaders_every_n_epochs=1,
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(len(train.classes), arguments.lr), shards, ckpt_path="last")
    trainer.save_checkpoint(arguments.checkpoints / "last.ckpt")


if __name__ == "__main__":
    main()
