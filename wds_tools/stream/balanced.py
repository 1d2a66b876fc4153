"""Class-balanced order: classes take turns, and each is gone through in rounds of its own.

The turns are a `schedule`'s: of any beginning of the line every class has its share, within one sample. A class of ten samples
has been through ten times when one of a hundred is through once, each time in another order (`permutation`). All of it is
looked up: a batch costs the same whatever came before it, and nothing grows with the samples but the list of them by
class, which is made once.

A window has no meaning here, and neither have neighbouring shards: samples of a class may lie anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from wds_tools.draws import Purpose, draws, keyed_draws, make_key
from wds_tools.errors import OptionError
from wds_tools.stream.line import Ids, Line
from wds_tools.stream.order import Order
from wds_tools.stream.permutation import permuted
from wds_tools.stream.rounds import RoundsOrder
from wds_tools.stream.schedule import whole_shares

_FEW = 1 << 16


@dataclass(frozen=True)
class Classes:
    """The samples by class. ``members`` are positions, class after class; class c has ``sizes[c]`` from ``starts[c]``."""

    digest: str
    labels: Ids = field(compare=False, repr=False)
    sizes: Ids = field(compare=False, repr=False)
    starts: Ids = field(compare=False, repr=False)
    members: npt.NDArray[Any] = field(compare=False, repr=False)

    @classmethod
    def of(cls, labels: npt.ArrayLike) -> Classes:
        """From the label of every sample; four bytes are kept of each (eight beyond 2**31 samples)."""
        labels = np.asarray(labels)
        if labels.ndim != 1 or labels.dtype.kind not in "iub":
            raise OptionError(
                f"labels are of shape {labels.shape} and {labels.dtype}; give a whole number for each sample"
            )
        labels = labels.astype(np.int64)
        least = int(labels.min()) if len(labels) else 0
        span = int(labels.max()) - least + 1 if len(labels) else 0
        if span <= _FEW:  # counted and sorted by radix, a tenth of the time
            counts = np.bincount(labels - least, minlength=span)
            values, sizes = np.flatnonzero(counts) + least, counts[counts > 0]
            members = np.argsort((labels - least).astype(np.uint16), kind="stable")
        else:
            values, sizes = np.unique(labels, return_counts=True)
            members = np.argsort(labels, kind="stable")
        members = members.astype(np.int32 if len(labels) < 2**31 else np.int64)
        digest = hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()[:16]
        return cls(digest, values, sizes, np.cumsum(sizes) - sizes, members)

    def only(self, kept: npt.NDArray[np.bool_]) -> Classes:
        """Some of the classes."""
        return Classes(self.digest, self.labels[kept], self.sizes[kept], self.starts[kept], self.members)


@dataclass(frozen=True)
class BalancedOrder(RoundsOrder):
    """The order of a dataset whose classes take turns. Made by `balanced_order`."""

    classes: Classes = field(default_factory=lambda: Classes.of(np.zeros(1, np.int64)), repr=False)

    @property
    def settings(self) -> dict[str, Any]:
        shares = hashlib.sha256(np.array(self.shares, "<i8").tobytes()).hexdigest()[:16]
        return self.settings_of(classes=self.classes.digest, class_weights=shares)

    @property
    def spread(self) -> tuple[int, int]:
        return max(len(self.shard_sizes), 1), 1

    def line(self, epoch: int) -> Line:
        return BalancedLine(self, self.start(epoch))


class BalancedLine:
    """An epoch of it, from draw ``start`` on."""

    def __init__(self, order: BalancedOrder, start: int) -> None:
        self._order = order
        self._start = start
        self._keys = draws(make_key(order.seed, Purpose.ROUND), np.arange(len(order.shares)))

    @property
    def total(self) -> int:
        return self._order.epoch_size

    def ids(self, start: int, stop: int) -> Ids:
        return self._order.name(*self.drawn(self._start + start, self._start + stop))

    def delivered(self, first: int, last: int, start: int, stop: int) -> Ids:
        return self.ids(first + start, first + stop)

    def drawn(self, start: int, stop: int) -> tuple[Ids, Ids]:
        """Positions and rounds of these draws, counted from the first epoch's first."""
        table = self._order.classes
        numbers, draw = self._order.schedule.turns(start, stop)
        sizes = table.sizes[numbers]
        rounds, places = draw // sizes, draw % sizes
        if self._order.shuffle:
            places = permuted(places, sizes, keyed_draws(self._keys[numbers], rounds))
        return table.members[table.starts[numbers] + places].astype(np.int64), rounds


def balanced_order(
    order: Order,
    labels: npt.ArrayLike,
    weights: Sequence[float] | None = None,
    power: float = 0.0,
    epoch_size: int | None = None,
) -> BalancedOrder:
    """``order`` with classes in turn. ``weights`` has an entry for each label; else classes count by ``size ** power``."""
    classes = Classes.of(labels)
    if len(classes.members) != order.num_samples:
        raise OptionError(f"there are {len(classes.members)} labels and {order.num_samples} samples; give one for each")
    if not order.num_samples:
        raise OptionError("there are no samples, so no classes to balance")
    if weights is not None and power != 0.0:
        raise OptionError(f"weights are given and power is {power!r}; give one of them")
    if weights is None:
        if not isinstance(power, (int, float)) or not 0 <= power <= 1:
            raise OptionError(
                f"power is {power!r}; it must be a number from 0 (classes alike) to 1 (as many as there are)"
            )
        # As whole numbers where they are ones: their proportion is then kept exactly.
        shares = classes.sizes.tolist() if power == 1 else (classes.sizes.astype(np.float64) ** power).tolist()
    else:
        least, most = int(classes.labels[0]), int(classes.labels[-1])
        if least < 0 or most >= len(weights):
            raise OptionError(
                f"weights has {len(weights)} entries and labels go from {least} to {most}; give an entry for each label"
            )
        chosen = [weights[label] for label in classes.labels.tolist()]
        kept = np.array([weight != 0 for weight in chosen])
        if not kept.any():
            raise OptionError("weights are 0 for every class that has samples; one at least must be above it")
        classes = classes.only(kept)
        shares = [weight for weight in chosen if weight != 0]
    values = {each.name: getattr(order, each.name) for each in fields(Order)}
    return BalancedOrder(
        **values,
        shares=whole_shares(shares),
        epoch_size=order.num_samples if epoch_size is None else epoch_size,
        classes=classes,
    )
