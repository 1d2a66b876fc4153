"""torchvision's ImageFolder, with torch's DistributedSampler, and torchdata's StatefulDataLoader where it is asked to resume."""

import tests.support.torchvision_ops  # noqa: F401

# isort: split

from typing import Any

import torch
from common import SEED, Peer, answer
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

try:
    from torchdata.stateful_dataloader import StatefulDataLoader as Loader
except ImportError:
    Loader = DataLoader


class Folder(Peer):
    def loader(self) -> Any:
        torch.manual_seed(SEED)
        transform = transforms.Compose([transforms.RandomResizedCrop(32), transforms.PILToTensor()])
        dataset = ImageFolder(str(self.work / ("damaged-tree" if self.damaged else "tree")), transform)
        if self.world > 1:
            sampler = DistributedSampler(dataset, seed=SEED)
            return Loader(dataset, self.batch, sampler=sampler, num_workers=self.workers)
        return Loader(dataset, self.batch, shuffle=True, num_workers=self.workers)


if __name__ == "__main__":
    answer(Folder)
