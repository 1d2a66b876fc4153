"""Samples → a batch: what `ShardLoader`'s workers do to the bytes that were read.

A batch is a tuple with an entry a name in ``fields``, each made by a column of its own kind (`columns.py`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from wds_tools.errors import OptionError, SampleError, WdsToolsError
from wds_tools.image import codec
from wds_tools.image.jitter import ColorJitter
from wds_tools.image.kinds import EXTENSIONS
from wds_tools.image.presets import Decode, Preset
from wds_tools.image.transforms import normalize
from wds_tools.stream.columns import Column, Labels, Layout, Memory, Pictures, Results, Seeds, Values, Wholes
from wds_tools.stream.slots import Slots

LABEL = "cls"
SEED = "__seed__"


@dataclass(frozen=True)
class BadSample:
    """An entry of the error ledger: a sample that was left out, where it lies, and why."""

    shard: str
    key: str
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.shard}, key {self.key!r}, offset {self.offset}: {self.reason}"


class MissingField(SampleError):
    """A sample has no field of a name that is wanted."""

    def among(self, sample: Mapping[str, Any]) -> SampleError:
        """The same, with the fields that the whole sample has."""
        has = ", ".join(name for name in sample if not name.startswith("__")) or "none"
        return SampleError(f"{self.reason} (it has {has}); choose others with fields=")


def check_transform(transform: Any) -> None:
    """`OptionError` for what `ShardDataset` takes as ``transform`` and cannot be one."""
    name = getattr(transform, "__name__", type(transform).__name__)
    if isinstance(transform, type) and any("__call__" in vars(parent) for parent in transform.__mro__[:-1]):
        raise OptionError(f"transform is the class {name}; give one that is made of it, {name}(…)")
    if transform is normalize or isinstance(transform, ColorJitter):
        raise OptionError(
            f"transform is {name}, which is for whole batches; call it in the loop, on the loader's images"
        )
    if transform is not None and not callable(transform):
        raise OptionError(
            f"transform is {transform!r:.100}; give a preset such as transforms.RandomResizedCrop(224), or any callable on "
            "a PIL image"
        )


class Fields:
    """The names of what a batch is made of: ``"jpg;png;webp"`` is the first of these that a sample has."""

    def __init__(self, names: Sequence[str]) -> None:
        if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
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

    def sole(self, choice: str) -> bool:
        """Whether only one of the names can be of this field."""
        return sum(choice in choices for choices in self._choices) == 1

    def take(self, sample: dict[str, Any], number: int) -> Any:
        """The sample's value for the name with this number; `SampleError` if it has none of the choices."""
        if self.names[number] == SEED:
            return None  # it is not the sample's
        for choice in self._choices[number]:
            if choice in sample:
                return sample[choice]
        raise MissingField(f"it has no field {self.names[number]!r}")

    def check(self, there: Sequence[str]) -> None:
        """`OptionError` for a name that no sample of a dataset can have which has only the fields ``there``."""
        for name, choices in zip(self.names, self._choices, strict=True):
            if not any(choice in there or choice.startswith("__") for choice in choices):
                raise OptionError(
                    f"fields has {name!r}, and the dataset has no such field, only {', '.join(there)}; "
                    "choose with ShardDataset(fields=…)"
                )


class Batcher:
    """Makes batches of samples. ``transform`` is a preset or any callable on a PIL image, such as torchvision's."""

    def __init__(self, fields: Fields, transform: Callable[[Any], Any] | None) -> None:
        self._fields = fields
        self._transform = transform
        self._layout = Layout()

    def row_bytes(self, read_one: Callable[[], dict[str, Any]]) -> int:
        """Bytes of one sample's picture in a batch; 0 where that is not known. May look at one sample."""
        if isinstance(self._transform, Preset):
            return 3 * math.prod(self._transform.size)
        if isinstance(self._transform, Decode) and "npy" in self._fields.wanted:
            try:
                return codec.decode(read_one().get("npy", b"")).nbytes
            except WdsToolsError:
                return 0  # whoever is to have this sample will say so
        return 0

    @property
    def pictures(self) -> int:
        """How many entries of a batch are images."""
        return sum(map(self._fields.is_image, range(len(self._fields.names))))

    def begin(self, size: int, slots: Slots | None = None, worker: int | None = None) -> Batch:
        """A batch without samples, which will have ``size`` of them at most."""
        columns = [self._column(number, size, Memory(slots, worker)) for number in range(len(self._fields.names))]
        return Batch(self._fields, columns)

    def _column(self, number: int, size: int, memory: Memory) -> Column:
        if self._fields.names[number] == LABEL:
            return Labels()
        if self._fields.names[number] == SEED:
            return Seeds()
        if self._transform is None or not self._fields.is_image(number):
            return Values()
        if isinstance(self._transform, Preset):
            return Pictures(self._transform, size, memory)
        if isinstance(self._transform, Decode):
            return Wholes(size, self._layout, memory)
        return Results(self._transform)


class Batch:
    """Samples side by side, a column a field. A bad sample leaves nothing behind."""

    def __init__(self, fields: Fields, columns: Sequence[Column]) -> None:
        self._fields = fields
        self._columns = columns
        self.landings = {
            name: column.landing
            for name, column in zip(fields.names, columns, strict=True)
            if isinstance(column, Wholes) and name == "npy" and fields.sole(name)
        }
        """For a reader: by field, where its bytes may go."""

    def add(self, sample: dict[str, Any], seed: int) -> None:
        """Append a sample; `SampleError` if it is bad."""
        for number, column in enumerate(self._columns):
            column.put(self._fields.take(sample, number), seed)
        for column in self._columns:
            column.keep()

    def done(self) -> tuple[Any, ...]:
        """What the loop is given. A batch without samples has empty tensors and lists."""
        return tuple(column.done() for column in self._columns)


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
