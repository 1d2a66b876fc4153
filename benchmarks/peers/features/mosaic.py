"""MosaicML Streaming."""

import tests.support.torchvision_ops  # noqa: F401

# isort: split

import io
import json
from typing import Any

import torch
from common import DAMAGED, SEED, SHARDS, Peer, answer
from PIL import Image
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from torchvision import transforms


class Pictures(StreamingDataset):
    """As its documentation decodes and augments: in ``__getitem__``."""

    pictures = False
    augment = transforms.Compose([transforms.RandomResizedCrop(32), transforms.PILToTensor()])

    def __getitem__(self, at: int) -> Any:
        sample = super().__getitem__(at)
        if not self.pictures:
            return 0, sample["cls"]
        return self.augment(Image.open(io.BytesIO(sample["jpg"])).convert("RGB")), sample["cls"]


class Mosaic(Peer):
    def make(self) -> None:
        files = sorted((self.work / "tree").glob("*/*.jpg"))
        size = sum(file.stat().st_size + 30 for file in files) // SHARDS + 2000
        for name in ("mds", "damaged-mds"):
            out = str(self.work / name)
            with MDSWriter(out=out, columns={"jpg": "bytes", "cls": "int"}, hashes=["sha1"], size_limit=size) as writer:
                for label, file in enumerate(files):
                    writer.write({"jpg": file.read_bytes(), "cls": label})
        wrong = files[DAMAGED].read_bytes()
        for shard in (self.work / "damaged-mds").glob("*.mds"):
            shard.write_bytes(shard.read_bytes().replace(wrong, b"\0" * len(wrong)))

    def loader(self) -> Any:
        torch.manual_seed(SEED)
        local = str(self.work / ("damaged-mds" if self.damaged else "mds"))
        dataset = Pictures(local=local, shuffle=True, shuffle_seed=SEED, batch_size=self.batch)
        dataset.pictures = self.pictures
        return StreamingDataLoader(dataset, batch_size=self.batch, num_workers=self.workers)

    def extra(self) -> dict[str, Any]:
        """What lies in the cache after one sample; what validate_hash makes of a damaged shard."""
        far, near = self.work / "mds", self.work / "mds-cache"
        dataset = StreamingDataset(remote=str(far), local=str(near), batch_size=1)
        dataset[0]
        shards = json.loads((far / "index.json").read_text())["shards"]
        found: dict[str, Any] = {
            "shards": len(shards),
            "whole shards kept locally after one sample": sum(
                path.stat().st_size == (far / path.name).stat().st_size for path in near.glob("*.mds")
            ),
        }
        for algorithm in (None, "sha1"):
            checked = StreamingDataset(
                remote=str(self.work / "damaged-mds"),
                local=str(self.work / f"hash-{algorithm}"),
                batch_size=1,
                validate_hash=algorithm,
            )
            try:
                found[f"validate_hash={algorithm}"] = (
                    f"{sum(1 for at in range(len(checked)) if checked[at])} samples read"
                )
            except Exception as error:  # noqa: BLE001
                found[f"validate_hash={algorithm}"] = f"{type(error).__name__}: {str(error)[:120]}"
        return found


if __name__ == "__main__":
    answer(Mosaic)
