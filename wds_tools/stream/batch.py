"""Samples → a batch: what `ShardLoader`'s workers do to the bytes that were read.

A batch is a tuple with an entry a name in ``fields``: keys as a list, ``cls`` as int64, images through the transform
as one uint8 or float tensor where their shapes agree, everything else as a list of bytes. Randomness that a transform
draws from Python, numpy or torch is seeded for each sample, so a sample is augmented alike whoever has it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from wds_tools.errors import OptionError, SampleError
from wds_tools.image import codec
from wds_tools.image.kinds import EXTENSIONS

LABEL = "cls"
_INDEX = re.compile(rb"\s*-?[0-9]{1,18}\s*")  # others end it with a line, and write -1 for none


@dataclass(frozen=True)
class BadSample:
    """An entry of the error ledger: a sample that was left out, where it lies, and why."""

    shard: str
    key: str
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.shard}, key {self.key!r}, offset {self.offset}: {self.reason}"


class Fields:
    """The names of what a batch is made of: ``"jpg;png;webp"`` is the first of these that a sample has."""

    def __init__(self, names: Sequence[str]) -> None:
        if isinstance(names, str) or not names:
            raise OptionError(f"fields is {names!r}; give a tuple of names such as ('jpg;png;webp', 'cls')")
        self.names = tuple(names)
        self._choices = tuple(tuple(name.split(";")) for name in self.names)
        self._images = tuple(
            all(choice.rpartition(".")[2] in EXTENSIONS for choice in choices) for choices in self._choices
        )
        if any(not choice for choices in self._choices for choice in choices):
            raise OptionError(f"fields is {names!r}; a name in it is empty")

    @property
    def wanted(self) -> frozenset[str]:
        """Every extension that may be asked for."""
        return frozenset(choice for choices in self._choices for choice in choices if not choice.startswith("__"))

    def is_image(self, number: int) -> bool:
        """Whether the name with this number can only be of images."""
        return self._images[number]

    def take(self, sample: dict[str, Any], number: int) -> Any:
        """The sample's value for the name with this number; `SampleError` if it has none of the choices."""
        for choice in self._choices[number]:
            if choice in sample:
                return sample[choice]
        has = ", ".join(name for name in sample if not name.startswith("__")) or "none of those that are read"
        raise SampleError(f"it has no field {self.names[number]!r} (it has {has}); choose others with fields=")


class Batcher:
    """Makes batches of samples. ``transform`` is any callable on a PIL image, such as torchvision's."""

    def __init__(self, fields: Fields, transform: Callable[[Any], Any] | None) -> None:
        self._fields = fields
        self._transform = transform

    def prepare(self, sample: dict[str, Any], seed: int) -> tuple[Any, ...]:
        """What one sample adds to its batch; `SampleError` if it is bad."""
        return tuple(self._value(sample, number, seed) for number in range(len(self._fields.names)))

    def _value(self, sample: dict[str, Any], number: int, seed: int) -> Any:
        value = self._fields.take(sample, number)
        if self._fields.names[number] == LABEL:
            if not _INDEX.fullmatch(value):
                raise SampleError(f"cls is {value[:20]!r}, not a class index in ASCII digits")
            return int(value)
        if self._transform is not None and self._fields.is_image(number):
            image = codec.decode_pil(value)
            _seed_all(seed)
            return self._transform(image)
        return value

    def collate(self, rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        """The batch of prepared samples. One without samples has empty tensors and lists."""
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(self._fields.names)
        return tuple(self._column(number, list(values)) for number, values in enumerate(columns))

    def _column(self, number: int, values: list[Any]) -> Any:
        if self._fields.names[number] == LABEL:
            return torch.tensor(values, dtype=torch.int64)
        if self._transform is None or not self._fields.is_image(number):
            return values
        if not values:
            return torch.empty(0, dtype=torch.uint8)
        tensors = [_tensor(value) for value in values]
        if all(isinstance(tensor, torch.Tensor) and tensor.shape == tensors[0].shape for tensor in tensors):
            return torch.stack(tensors)
        return tensors


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


@contextmanager
def kept_randomness() -> Iterator[None]:
    """Leave the process's own random states as they were: a loader without workers runs in the user's process."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
