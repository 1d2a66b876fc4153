"""NVIDIA DALI: a pipeline on the CPU over readers.webdataset, with our index files. Workers are its threads."""

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
from common import SEED, Peer, answer
from nvidia.dali import fn, pipeline_def, types


class Batches:
    """One epoch of a pipeline, as many batches as the reader's shard has, the last one cut."""

    def __init__(self, pipe: Any, batch: int) -> None:
        self.pipe, self.batch = pipe, batch
        meta = pipe.reader_meta("reader")
        shard, shards, size = meta["shard_id"], meta["number_of_shards"], meta["epoch_size"]
        self.count = size * (shard + 1) // shards - size * shard // shards
        self.done = 0

    def __len__(self) -> int:
        return -(-self.count // self.batch)

    def __iter__(self) -> Iterator[Any]:
        while self.done < len(self):
            outputs = [[np.array(value) for value in output] for output in self.pipe.run()]
            left = min(self.batch, self.count - self.done * self.batch)
            self.done += 1
            yield [output[:left] for output in outputs]


class Dali(Peer):
    def loader(self, checkpoint: str | None = None) -> Any:
        shards = sorted((self.work / ("damaged-shards" if self.damaged else "shards")).glob("*.tar"))

        @pipeline_def(
            batch_size=self.batch,
            num_threads=self.workers,
            device_id=None,
            seed=SEED,
            prefetch_queue_depth=1,
            enable_checkpointing=True,
            checkpoint=checkpoint,
        )
        def pipeline() -> Any:
            image, label = fn.readers.webdataset(
                paths=[str(path) for path in shards],
                index_paths=[str(path.with_suffix(".idx")) for path in shards],
                ext=["jpg", "cls"],
                dtypes=[types.UINT8, types.UINT8],
                shard_id=self.rank,
                num_shards=self.world,
                random_shuffle=True,
                initial_fill=1000,
                name="reader",
            )
            if self.pictures:
                image = fn.decoders.image_random_crop(image, device="cpu")
                image = fn.resize(image, size=(32, 32))
            return image, label

        pipe = pipeline()
        pipe.build()
        return Batches(pipe, self.batch)

    def labels(self, batch: Any) -> list[int]:
        return [int(bytes(label)) for label in batch[1]]

    def save(self, loader: Any) -> Any:
        return {"pipe": base64.b64encode(loader.pipe.checkpoint()).decode(), "done": loader.done}

    def load(self, loader: Any, state: Any) -> None:
        loader.pipe = self.loader(base64.b64decode(state["pipe"])).pipe
        loader.done = state["done"]

    def item(self) -> int:
        return int(self.loader()[5])

    def extra(self) -> dict[str, Any]:
        return {"decoders.image_random_crop says": (fn.decoders.image_random_crop.__doc__ or "").strip()[:400]}


if __name__ == "__main__":
    answer(Dali)
