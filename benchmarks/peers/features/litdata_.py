"""LitData."""

import tests.support.torchvision_ops  # noqa: F401

# isort: split

import io
from pathlib import Path
from typing import Any

import torch
from common import DAMAGED, SAMPLES, SEED, SHARDS, Peer, answer
from litdata import StreamingDataLoader, StreamingDataset, optimize
from PIL import Image
from torchvision import transforms


def entry(job: tuple[str, int]) -> dict[str, Any]:
    return {"jpg": Path(job[0]).read_bytes(), "cls": job[1]}


class Pictures(StreamingDataset):
    """As its documentation decodes and augments: in ``__getitem__``."""

    pictures = False
    augment = transforms.Compose([transforms.RandomResizedCrop(32), transforms.PILToTensor()])

    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        if not self.pictures:
            return 0, sample["cls"]
        return self.augment(Image.open(io.BytesIO(sample["jpg"])).convert("RGB")), sample["cls"]


class Lit(Peer):
    def make(self) -> None:
        files = sorted((self.work / "tree").glob("*/*.jpg"))
        jobs = [(str(file), label) for label, file in enumerate(files)]
        for name in ("lit", "damaged-lit"):
            optimize(
                fn=entry,
                inputs=jobs,
                output_dir=str(self.work / name),
                chunk_size=-(-SAMPLES // SHARDS),
                num_workers=1,
                keep_data_ordered=True,
            )
        wrong = files[DAMAGED].read_bytes()
        for chunk in (self.work / "damaged-lit").glob("*.bin"):
            chunk.write_bytes(chunk.read_bytes().replace(wrong, b"\0" * len(wrong)))

    def loader(self) -> Any:
        torch.manual_seed(SEED)
        dataset = Pictures(str(self.work / ("damaged-lit" if self.damaged else "lit")), shuffle=True, seed=SEED)
        dataset.pictures = self.pictures
        return StreamingDataLoader(dataset, batch_size=self.batch, num_workers=self.workers)

    def extra(self) -> dict[str, Any]:
        """Ranks that keep all samples, when they are told to."""
        dataset = StreamingDataset(str(self.work / "lit"), drop_last=False)
        return {"drop_last": dataset.drop_last, "len": len(dataset)}


if __name__ == "__main__":
    answer(Lit)
