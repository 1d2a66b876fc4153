"""FFCV, its images stored as JPEGs. Workers are its threads."""

import tests.support.torchvision_ops  # noqa: F401

# isort: split

from pathlib import Path
from typing import Any

from common import SEED, Peer, answer
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import ToTensor
from ffcv.writer import DatasetWriter
from torchvision.datasets import ImageFolder


class Ffcv(Peer):
    @property
    def file(self) -> Path:
        return self.work / ("damaged.beton" if self.damaged else "train.beton")

    def make(self) -> None:
        fields = {"image": RGBImageField(write_mode="jpg"), "label": IntField()}
        DatasetWriter(str(self.file), fields, num_workers=1).from_indexed_dataset(ImageFolder(str(self.work / "tree")))
        data = bytearray(self.file.read_bytes())
        starts = [at for at in range(len(data) - 3) if data[at : at + 3] == b"\xff\xd8\xff"]
        begin = starts[DAMAGED_PICTURE]
        data[begin : begin + 200] = b"\0" * 200
        (self.work / "damaged.beton").write_bytes(bytes(data))

    def loader(self) -> Any:
        return Loader(
            str(self.file),
            batch_size=self.batch,
            num_workers=self.workers,
            order=OrderOption.RANDOM,
            seed=SEED,
            distributed=self.world > 1,
            drop_last=False,
            pipelines={
                "image": [RandomResizedCropRGBImageDecoder((32, 32)), ToTensor()] if self.pictures else None,
                "label": [IntDecoder(), ToTensor()],
            },
        )

    def labels(self, batch: Any) -> list[int]:
        return [int(label) for label in batch[-1].flatten()]

    def item(self) -> int:
        return int(self.loader()[5])


DAMAGED_PICTURE = 200

if __name__ == "__main__":
    answer(Ffcv)
