"""The columns of a batch: what becomes of one field's values.

| field | column |
| --- | --- |
| ``cls`` | `Labels`: int64 (B,) |
| an image, with a preset | `Pictures`: rendered straight into the batch's memory, uint8 (B, 3, height, width) |
| an image, with ``Decode`` | `Wholes`: the same, of pictures as they are; arrays are read straight into the batch's memory |
| an image, with any other callable | `Results`: what it makes of a PIL image, as one tensor where shapes agree |
| ``__seed__`` | `Seeds`: int64 (B,), the number that the sample's augmentation is drawn from |
| anything else | `Values`: a list of bytes, or of str for the key |

A column is given its memory (`Memory`): in a worker it is shared with the loop from the start, so that nothing is copied
on the way there.
Randomness is the sample's own: presets are given a seed, and for other callables Python's, numpy's and torch's
generators are seeded, so a sample is augmented alike whoever has it.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from wds_tools.errors import OptionError, SampleError
from wds_tools.image import codec
from wds_tools.image.arrays import npy_header
from wds_tools.image.presets import Preset
from wds_tools.stream.slots import Parcel, Slots

_INDEX = re.compile(rb"\s*-?[0-9]{1,18}\s*")  # others end it with a line, and write -1 for none


class Memory:
    """Where the images of one batch are put: fresh memory in the loop's own process, else shared, in a slot if one is free."""

    def __init__(self, slots: Slots | None = None, worker: int | None = None) -> None:
        self._slots = slots
        self._worker = worker
        self._tensor: torch.Tensor | None = None
        self._slot: int | None = None

    def rows(self, shape: tuple[int, ...]) -> Any:
        """An uninitialised uint8 array of this shape."""
        if self._worker is None:
            self._tensor = torch.empty(shape, dtype=torch.uint8)
        elif self._slots is not None and (claimed := self._slots.claim(self._worker, shape)) is not None:
            self._slot, array = claimed
            return array
        else:
            # Made as DataLoader's own collation makes it.
            empty = torch.empty(0, dtype=torch.uint8)
            storage = empty.untyped_storage()._new_shared(math.prod(shape), device="cpu")  # type: ignore[no-untyped-call]
            self._tensor = empty.new(storage).view(shape)
        return self._tensor.numpy()

    def send(self, rows: Any, channels_last: bool = False) -> torch.Tensor | Parcel:
        """The first of the rows, as what travels to the loop."""
        if self._slot is not None:
            return Parcel(self._slot, rows.shape, channels_last)
        assert self._tensor is not None
        tensor = self._tensor[: len(rows)]
        return tensor.permute(0, 3, 1, 2) if channels_last else tensor

    def drop(self) -> None:
        """The rows are not sent."""
        if self._slots is not None and self._slot is not None:
            self._slots.give_back(self._slot)
        self._slot = self._tensor = None


class Column(Protocol):
    """One entry of a batch while it is made."""

    def landing(self, size: int) -> list[memoryview] | None:
        """Pieces of memory that the next value's bytes may be read into, if there are so many; None for none."""

    def put(self, value: Any, seed: int) -> None:
        """Make the next value of a field's bytes, or of the pieces of memory that they are in; it is nothing until it is kept."""

    def keep(self) -> None:
        """Keep the value that was put last."""

    def done(self) -> Any:
        """The kept values."""


class Values:
    """Values as they are."""

    def __init__(self) -> None:
        self._next: Any = None
        self._values: list[Any] = []

    def landing(self, size: int) -> list[memoryview] | None:
        return None

    def put(self, value: Any, seed: int) -> None:
        self._next = value

    def keep(self) -> None:
        self._values.append(self._next)

    def done(self) -> Any:
        return self._values


class Labels(Values):
    """Class indices as one int64 tensor."""

    def put(self, value: Any, seed: int) -> None:
        if not _INDEX.fullmatch(value):
            raise SampleError(f"cls is {value[:20]!r}, not a class index in ASCII digits")
        self._next = int(value)

    def done(self) -> torch.Tensor:
        return torch.tensor(self._values, dtype=torch.int64)


class Seeds(Values):
    """The samples' seeds as one int64 tensor: what random operations on whole batches are to draw from."""

    def put(self, value: Any, seed: int) -> None:
        self._next = seed

    def done(self) -> torch.Tensor:
        return torch.tensor(self._values, dtype=torch.int64)


class Results(Values):
    """What a callable makes of PIL images: one tensor where their shapes agree."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        super().__init__()
        self._transform = transform

    def put(self, value: Any, seed: int) -> None:
        image = codec.decode_pil(value)
        _seed_all(seed)
        self._next = self._transform(image)
        if self._next is None:
            raise OptionError("transform returned None; it must return what it makes of the image")

    def done(self) -> Any:
        if not self._values:
            return torch.empty(0, dtype=torch.uint8)
        return _together([_tensor(value) for value in self._values])


class Pictures:
    """Images as a preset renders them."""

    def __init__(self, preset: Preset, size: int, memory: Memory) -> None:
        self._preset = preset
        self._memory = memory
        self._rows = memory.rows((size, 3, *preset.size))
        self._count = 0

    def landing(self, size: int) -> list[memoryview] | None:
        return None

    def put(self, value: Any, seed: int) -> None:
        self._preset.render(value, seed, self._rows[self._count])

    def keep(self) -> None:
        self._count += 1

    def done(self) -> Any:
        return self._memory.send(self._rows[: self._count])


class Layout:
    """What the arrays of a dataset look like: the header that the last one had, and its shape."""

    def __init__(self) -> None:
        self.header = b""
        self.shape: tuple[int, ...] = ()


class Wholes:
    """Pictures as they are, rows of pixels in memory: a tensor of strides as in ``torch.channels_last``."""

    def __init__(self, size: int, layout: Layout, memory: Memory) -> None:
        self._size = size
        self._layout = layout
        self._memory = memory
        self._rows: Any = None
        self._header = bytearray(len(layout.header))
        self._next: Any = None
        self._apart: list[Any] | None = None  # once shapes differ
        self._count = 0

    def landing(self, size: int) -> list[memoryview] | None:
        layout = self._layout
        if self._apart is not None or not layout.header or size != len(layout.header) + math.prod(layout.shape):
            return None
        if not self._open(layout.shape):
            return None
        if len(self._header) != len(layout.header):
            self._header = bytearray(len(layout.header))
        return [memoryview(self._header), memoryview(self._rows[self._count]).cast("B")]

    def put(self, value: Any, seed: int) -> None:
        if isinstance(value, list):
            if self._header == self._layout.header:
                self._next = None  # it is in its place
                return
            value = b"".join(value)
        elif value.startswith(self._layout.header) and (pieces := self.landing(len(value))) is not None:
            pieces[1][:] = memoryview(value)[len(pieces[0]) :]  # what came with others: no header is parsed twice
            self._next = None
            return
        self._next = codec.decode(value)
        if self._apart is None and self._open(self._next.shape):
            self._rows[self._count], self._next = self._next, None
            self._layout.header, self._layout.shape = npy_header(value), self._rows.shape[1:]

    def _open(self, shape: tuple[int, ...]) -> bool:
        """Whether the batch's rows have this shape; the first one that is kept decides."""
        if self._rows is None or (not self._count and self._rows.shape[1:] != shape):
            self._memory.drop()
            self._rows = self._memory.rows((self._size, *shape))
        return bool(self._rows.shape[1:] == shape)

    def keep(self) -> None:
        if self._next is not None and self._apart is None:
            self._apart = list(self._rows[: self._count].copy())
        if self._apart is not None:
            self._apart.append(self._next)
        self._count += 1

    def done(self) -> Any:
        if self._apart is not None:
            self._memory.drop()
            return [torch.from_numpy(pixels).permute(2, 0, 1) for pixels in self._apart]
        if self._rows is None:
            return torch.empty((0, 3, 0, 0), dtype=torch.uint8)
        return self._memory.send(self._rows[: self._count], channels_last=True)


def _together(tensors: list[Any]) -> Any:
    if not all(isinstance(tensor, torch.Tensor) and tensor.shape == tensors[0].shape for tensor in tensors):
        return tensors
    return torch.stack(tensors)


def _tensor(value: Any) -> Any:
    """An image as a tensor, channels first; what is no image as it is."""
    if hasattr(value, "getbands"):  # a PIL image
        array = np.asarray(value)
        return torch.from_numpy(array[:, :, None].copy() if array.ndim == 2 else array.copy()).permute(2, 0, 1)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    return value


def _seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which seeds the model's devices too
