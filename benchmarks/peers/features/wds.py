"""webdataset, shuffled with a seed; ranks and workers are dealt whole shards."""

import tests.support.torchvision_ops  # noqa: F401

# isort: split

from typing import Any

import torch
import webdataset
from common import SEED, Peer, answer
from torchvision import transforms


class Wds(Peer):
    def loader(self) -> Any:
        torch.manual_seed(SEED)
        folder = self.work / ("damaged-shards" if self.damaged else "shards")
        augment = transforms.Compose([transforms.RandomResizedCrop(32), transforms.PILToTensor()])
        splitter = {"nodesplitter": webdataset.split_by_node} if self.world > 1 else {}
        dataset = webdataset.WebDataset(
            [str(path) for path in sorted(folder.glob("*.tar"))], shardshuffle=100, seed=SEED, **splitter
        ).shuffle(1000, seed=SEED)
        handler = webdataset.warn_and_continue if self.skip else webdataset.reraise_exception
        dataset = (
            dataset.decode("pil", handler=handler).to_tuple("jpg", "cls").map_tuple(augment, int).batched(self.batch)
        )
        return webdataset.WebLoader(dataset, batch_size=None, num_workers=self.workers)

    def extra(self) -> dict[str, Any]:
        """Two ranks without a nodesplitter."""
        import os

        os.environ.update(RANK="0", WORLD_SIZE="2")
        urls = [str(path) for path in sorted((self.work / "shards").glob("*.tar"))]
        try:
            return {"two ranks without a nodesplitter": sum(1 for _ in webdataset.WebDataset(urls, shardshuffle=False))}
        except ValueError as error:
            return {"two ranks without a nodesplitter": str(error)}


if __name__ == "__main__":
    answer(Wds)
