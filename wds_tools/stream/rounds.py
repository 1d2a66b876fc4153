"""Orders whose epochs are parts of one endless line, on which a source is begun anew when it is finished.

Whoever draws from a source without end goes through it in *rounds*: draw number n is sample ``n % size`` of round
``n // size``, each round has every sample once, and its shuffle is addressed by the round as an epoch's is by the epoch. An
epoch of such an order is a stretch of draws, of any length. The next one goes on where it ended, in every source.

A sample that comes again is augmented anew, so its coming has an id that tells the round as well:
``round * samples + position``. These ids are unique, as those of a plain epoch are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from wds_tools.draws import Purpose, draws, keyed_draws, make_key
from wds_tools.errors import OptionError
from wds_tools.stream.line import Ids, Line
from wds_tools.stream.order import Order
from wds_tools.stream.partition import whole_number
from wds_tools.stream.permutation import permuted
from wds_tools.stream.schedule import Schedule

_END = 2**62  # of draws, and of ids
_KEPT = 2  # rounds: a stream ends one and begins the next


@dataclass(frozen=True)
class RoundsOrder(Order):
    """What all such orders have: sources that take turns by their ``shares``, and epochs of ``epoch_size`` draws."""

    shares: tuple[int, ...] = field(default=(1,), repr=False)
    epoch_size: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "epoch_size", whole_number("epoch_size", self.epoch_size, 1))

    @property
    def epoch_samples(self) -> int:
        return self.epoch_size

    def start(self, epoch: int) -> int:
        """How many draws come before an epoch."""
        return whole_number("epoch", epoch, 0, _END // self.epoch_size - 1) * self.epoch_size

    def name(self, positions: Ids, rounds: Ids) -> Ids:
        """The ids of samples in these rounds. Beyond 2**62 they begin again, after millions of rounds."""
        ids: Ids = positions + self.num_samples * (rounds % (_END // self.num_samples))
        return ids

    def split(self, ids: npt.ArrayLike) -> tuple[Ids, Ids]:
        """The position in the manifests, and the round, of each id."""
        ids = np.asarray(ids, np.int64)
        if (ids < 0).any():
            raise OptionError(f"sample id {ids.min()} does not exist: ids begin at 0.")
        return ids % self.num_samples, ids // self.num_samples

    def locate(self, ids: npt.ArrayLike) -> tuple[Ids, Ids]:
        return super().locate(self.split(ids)[0])

    def seeds(self, epoch: int, ids: Ids) -> npt.NDArray[np.uint64]:
        """A coming's seed: from its own round, whichever epoch that is met in."""
        positions, rounds = self.split(ids)
        found = keyed_draws(draws(make_key(self.seed, Purpose.SAMPLE, Purpose.ROUND), rounds), positions)
        return np.asarray(found >> np.uint64(1))  # as `sample_rng_seed`: below 2**63, to fit into an int64

    @cached_property
    def schedule(self) -> Schedule:
        """Whose turn it is."""
        return Schedule(self.shares, make_key(self.seed, Purpose.TURNS) if self.shuffle else None)

    def settings_of(self, **others: Any) -> dict[str, Any]:
        """`settings`, with what such an order has beside them."""
        settings = {name: value for name, value in super().settings.items() if name not in ("window", "interleave")}
        return {**settings, "epoch_size": self.epoch_size, **others}


class Draws(Protocol):
    """The draws from one source, without end; answers are positions and rounds."""

    def ids(self, start: int, stop: int) -> tuple[Ids, Ids]:
        """The draws in line order."""

    def delivered(self, first: int, last: int, start: int, stop: int) -> tuple[Ids, Ids]:
        """What a stream over draws ``first`` to ``last`` delivers as its samples ``start`` to ``stop``."""


class LargeSource:
    """A source that is gone through as an epoch of it is: shards in turn, samples moved within a window."""

    def __init__(self, order: Order, seed: int) -> None:
        self._order = replace(order, seed=seed)
        self._size = order.num_samples
        self._lines: dict[int, Line] = {}

    def ids(self, start: int, stop: int) -> tuple[Ids, Ids]:
        return self._over_rounds(start, stop, lambda line, begin, since, until: line.ids(since - begin, until - begin))

    def delivered(self, first: int, last: int, start: int, stop: int) -> tuple[Ids, Ids]:
        def part(line: Line, begin: int, since: int, until: int) -> Ids:
            low, high = max(first, begin), min(last, begin + self._size)
            return line.delivered(low - begin, high - begin, since - low, until - low)

        return self._over_rounds(first + start, first + stop, part)

    def _over_rounds(self, start: int, stop: int, part: Callable[[Line, int, int, int], Ids]) -> tuple[Ids, Ids]:
        """``part`` of each round's line: given the draw that the round begins with, and from where to where it reaches."""
        positions, rounds = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        while start < stop:
            number = start // self._size
            until = min(stop, (number + 1) * self._size)
            positions.append(part(self._line(number), number * self._size, start, until))
            rounds.append(np.full(until - start, number, np.int64))
            start = until
        return np.concatenate(positions), np.concatenate(rounds)

    def _line(self, number: int) -> Line:
        line = self._lines.get(number)
        if line is None:
            line = self._lines[number] = self._order.line(number)
            while len(self._lines) > _KEPT:
                del self._lines[next(iter(self._lines))]
        return line


class SmallSource:
    """A source that fits into a window: each round is a permutation of it, whatever stream delivers a part of it.

    Many rounds cost no more than one; nor does a source that is not shuffled, of any size.
    """

    def __init__(self, order: Order, seed: int) -> None:
        self._size = order.num_samples
        self._key = make_key(seed, Purpose.ROUND) if order.shuffle else None

    def ids(self, start: int, stop: int) -> tuple[Ids, Ids]:
        number = np.arange(start, stop, dtype=np.int64)
        rounds, positions = number // self._size, number % self._size
        if self._key is not None:
            positions = permuted(positions, np.full_like(positions, self._size), draws(self._key, rounds))
        return positions, rounds

    def delivered(self, first: int, last: int, start: int, stop: int) -> tuple[Ids, Ids]:
        return self.ids(first + start, first + stop)
