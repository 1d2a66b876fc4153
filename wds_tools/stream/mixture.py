"""`MixedDataset`: several datasets as one, drawn in proportion to weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from wds_tools.errors import OptionError
from wds_tools.stream.dataset import ShardDataset
from wds_tools.stream.mixed import mixed_order
from wds_tools.stream.pipeline import ShardPipeline
from wds_tools.stream.recoding import joint

_AGREED: Final[Any] = object()  # what None cannot say: None is a transform, and a budget


class MixedDataset(ShardPipeline):
    """The samples of several datasets, in turn: of any stretch each has its share by ``weights``, within two samples.

    ``sources`` are `ShardDataset`; each keeps its place, its shuffle, window and interleave, and is read in rounds of
    its own, each sample once in a round. Without ``weights`` all sources have the same share. Weights are kept exactly
    where whole numbers that sum up to 65,536 or less say them, as 3 and 1 or 0.7 and 0.3; others are rounded to that.

    An epoch has as many samples as the sources together, or ``epoch_size``. The next one goes on in each source where it
    ended. ``seed`` decides, with the sources' own seeds, how everything is shuffled.

    Batches are made in one way: ``fields``, ``transform``, ``on_error``, ``max_errors``, ``rank`` and ``world_size`` are what
    the sources agree on, unless they are given here. Where class names differ, ``classes`` names all of them, and ``cls``
    becomes the index in it.

    It iterates, and `ShardLoader` takes it, as a `ShardDataset`. Raises `OptionError`.
    """

    def __init__(
        self,
        sources: Sequence[ShardDataset],
        weights: Sequence[float] | None = None,
        *,
        epoch_size: int | None = None,
        seed: int = 0,
        classes: Sequence[str] | None = None,
        fields: Sequence[str] | None = None,
        transform: Callable[[Any], Any] | None = _AGREED,
        on_error: str | None = None,
        max_errors: int | None = _AGREED,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        sources = list(sources)
        for number, source in enumerate(sources):
            _check(number, source)
        if rank is None and world_size is None:
            rank, world_size = _agreed("rank and world_size", [source.given_world for source in sources], (None, None))
        super().__init__(
            fields=fields or _agreed("fields", [source.fields.names for source in sources], ("cls",)),
            transform=_given("transform", transform, [source.transform for source in sources]),
            on_error=on_error or _agreed("on_error", [source.on_error for source in sources], "raise"),
            max_errors=_given("max_errors", max_errors, [source.max_errors for source in sources]),
            rank=rank,
            world_size=world_size,
        )
        self.order = mixed_order([source.order for source in sources], weights, seed, epoch_size)
        self.shards = joint([source.shards for source in sources], classes)


def _check(number: int, source: Any) -> None:
    where = f"dataset {number} (counted from 0)"
    if not isinstance(source, ShardDataset):
        raise OptionError(f"{where} is a {type(source).__name__}; MixedDataset takes ShardDatasets")
    if not source.shards.counted:
        raise OptionError(f"{where} has no indexes, so nothing to count by; make them with 'wds-tools index'")
    if len(source.pipeline) > 1:
        raise OptionError(f"{where} has further stages; add them to the MixedDataset instead")


def _given(name: str, value: Any, values: Sequence[Any]) -> Any:
    return _agreed(name, values, None) if value is _AGREED else value


def _agreed(name: str, values: Sequence[Any], default: Any) -> Any:
    first = values[0] if values else default
    for number, value in enumerate(values):
        if value is not first and value != first:
            raise OptionError(
                f"dataset {number} has {name} {value!r}, dataset 0 {first!r}; give {name} to MixedDataset"
            )
    return first
