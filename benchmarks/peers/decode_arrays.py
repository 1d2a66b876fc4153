"""Arrays of one size in a shuffled DataLoader: what people keep in HDF5, in a memmap, or in memory.

Usage: decode_arrays.py h5|h5-lzf|memmap|ram ARRAYS.npy; the array is uint8 (N, 3, H, W). An HDF5 file is made beside it if it
is not there: h5 is one contiguous piece, which is read the fastest, h5-lzf a compressed chunk an image, as many are. Each
worker opens it once; opening it for each image is five times slower.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from turn import BATCH, WORKERS, take_turns


class Memmap(Dataset):
    def __init__(self, path: str) -> None:
        self._arrays = np.load(path, mmap_mode="c")  # torch warns of memory that cannot be written to

    def __len__(self) -> int:
        return len(self._arrays)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self._arrays[number]), 0


class InMemory(Dataset):
    def __init__(self, path: str) -> None:
        self._images: Sequence[torch.Tensor] = list(torch.from_numpy(np.load(path)))

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return self._images[number], 0


class Hdf5(Dataset):
    def __init__(self, path: str, compression: str | None = None) -> None:
        self._path, self._images = f"{path}.{compression}.h5", None
        arrays = np.load(path, mmap_mode="r")
        self._length = len(arrays)
        if not os.path.exists(self._path):
            layout = {"chunks": (1, *arrays.shape[1:]), "compression": compression} if compression else {}
            with h5py.File(self._path + ".part", "w") as file:
                file.create_dataset("images", data=arrays, **layout)
            os.replace(self._path + ".part", self._path)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        if self._images is None:  # in the worker: HDF5 files do not survive a fork
            self._images = h5py.File(self._path, "r")["images"]
        return torch.from_numpy(self._images[number]), 0


way, path = sys.argv[1:]
WAYS = {"h5": Hdf5, "h5-lzf": partial(Hdf5, compression="lzf"), "memmap": Memmap, "ram": InMemory}
dataset = WAYS[way](path)
loader = DataLoader(dataset, 2 * BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)

take_turns(lambda: (images for images, _ in loader))
