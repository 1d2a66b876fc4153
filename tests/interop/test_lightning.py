"""Lightning's Trainer takes a `ShardLoader` as it is, and goes on within an epoch as examples/lightning_module.py does."""

from __future__ import annotations

import json
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import needs, torchvision_ops
from tests.support.ranks import run_together
from wds_tools.convert.run import convert_tree
from wds_tools.tools.demo import make_demo

SAMPLES = 41  # shared out among two ranks in batches of 4: 6 steps, the last of 1 sample and of none

_CODE = """
import json, logging, os, sys, warnings
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
import tests.support.torchvision_ops  # for torchmetrics, which imports torchvision where it finds it
import lightning
import torch
import torch.distributed.nn  # before the group is there, as in examples/train.py
from torch.nn import functional
from examples.lightning_module import ResumeWithinEpoch, Shards
from wds_tools import ShardDataset, ShardLoader


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 6)
        self.seen = {}

    def training_step(self, batch, number):
        keys, labels = batch
        self.seen.setdefault(self.current_epoch, []).extend(keys)
        scores = self.linear(torch.ones(len(labels), 1))
        return functional.cross_entropy(scores, labels, reduction="sum")

    def on_train_batch_end(self, *_):
        if self.global_step == stop_at:
            self.trainer.save_checkpoint(checkpoint)
            raise SystemExit  # as if it were killed here

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


shards, stop_at, checkpoint, resume, workers = json.loads(sys.argv[1])
dataset = ShardDataset(shards, shuffle=True, fields=("__key__", "cls"))
ranks = int(os.environ["WORLD_SIZE"]) if "WORLD_SIZE" in os.environ else 1
module = Module()
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto",
    callbacks=[ResumeWithinEpoch()], reload_dataloaders_every_n_epochs=1,
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
loader = ShardLoader(dataset, batch_size=4, num_workers=workers)
try:
    trainer.fit(module, Shards(loader), ckpt_path=checkpoint if resume else None, weights_only=False)
except SystemExit:
    pass
print(json.dumps({"seen": module.seen, "steps": trainer.global_step, "epoch": loader.state_dict()["epoch"]}))
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert torchvision_ops  # torchmetrics imports torchvision where it finds it
    needs.package("lightning")
    folder = tmp_path_factory.mktemp("lightning")
    make_demo(folder / "images", per_class=7, size=16)
    (folder / "images/cross/cross_0003.jpg").unlink()
    convert_tree(folder / "images", folder / "shards", max_count=11, workers=0)
    return folder / "shards"


def _fit(
    ranks: int,
    shards: Path,
    *,
    stop_at: int = -1,
    checkpoint: Path | None = None,
    resume: bool = False,
    workers: int = 0,
) -> list[Any]:
    words = [json.dumps([str(shards), stop_at, str(checkpoint), resume, workers])]
    if ranks == 1:
        return run_together(_CODE, [({}, words)])
    port = str(_free_port())
    world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return run_together(
        _CODE,
        [({**world, "RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0"}, words) for rank in range(ranks)],
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _seen(ranks: list[Any], epoch: int) -> Counter[str]:
    return Counter(key for rank in ranks for key in rank["seen"].get(str(epoch), []))


def _keys(shards: Path) -> Counter[str]:
    images = shards.parent / "images"
    return Counter(str(path.relative_to(images).with_suffix("")) for path in images.rglob("*.jpg"))


def test_the_trainer_does_not_shard_the_loader_again(shards: Path) -> None:
    ranks = _fit(2, shards, workers=1)
    assert [rank["steps"] for rank in ranks] == [12, 12]
    assert _seen(ranks, 0) == _seen(ranks, 1) == _keys(shards)
    assert [rank["seen"]["0"] == rank["seen"]["1"] for rank in ranks] == [False, False]


def test_a_run_that_was_ended_within_an_epoch_goes_on_with_another_number_of_ranks(
    shards: Path, tmp_path: Path
) -> None:
    first = _fit(1, shards, stop_at=3, checkpoint=tmp_path / "run.ckpt")
    assert _seen(first, 0).total() == 12
    second = _fit(2, shards, checkpoint=tmp_path / "run.ckpt", resume=True)
    assert _seen(first, 0) + _seen(second, 0) == _keys(shards)
    assert _seen(second, 1) == _keys(shards)
    assert [rank["epoch"] for rank in second] == [2, 2]
