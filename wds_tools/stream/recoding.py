"""Samples of several sources read as one dataset: class indexes of a source become those of the mixture.

Sources number their classes by themselves; a mixture that is told its ``classes`` matches them by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from wds_tools.errors import OptionError, SampleError
from wds_tools.stream.reader import KEEP, Landing, SampleDict, ShardReader
from wds_tools.stream.shards import JointShards, Shards

LABEL = "cls"


def reader_of(shards: Shards | JointShards, wanted: Collection[str] | None = None, keep: int = KEEP) -> ShardReader:
    """A reader of these shards."""
    if isinstance(shards, JointShards) and any(part.classes != shards.classes for part in shards.parts if part.classes):
        return RecodingReader(shards, wanted, keep)
    return ShardReader(shards, wanted, keep)


def joint(parts: Sequence[Shards], classes: Sequence[str] | None) -> JointShards:
    """The shards of several sources. `OptionError` where their classes differ and ``classes`` does not say what they are."""
    named = {part.classes for part in parts if part.classes}
    if classes is None:
        if len(named) > 1:
            first, second = list(dict.fromkeys(part.classes for part in parts if part.classes))[:2]
            raise OptionError(
                f"the datasets have different classes ({_some(first)} and {_some(second)}), so one class index would mean "
                "several; give classes=[…], the names of all, and samples are numbered by them"
            )
        return JointShards(tuple(parts), next(iter(named), ()))
    names = tuple(classes)
    if len(set(names)) != len(names):
        raise OptionError("classes has a name twice; give each class once")
    for part in parts:
        if missing := [name for name in part.classes if name not in set(names)]:
            raise OptionError(f"classes lacks {_some(missing)}, which {part.store.url()} has; give all")
    return JointShards(tuple(parts), names)


class RecodingReader(ShardReader):
    """Gives ``cls`` as the index in the mixture's classes. Sources without class names are left as they are."""

    def __init__(self, shards: JointShards, wanted: Collection[str] | None, keep: int) -> None:
        super().__init__(shards, wanted, keep)
        self._joint = shards
        number = {name: b"%d" % index for index, name in enumerate(shards.classes)}
        self._codes = [[number[name] for name in part.classes] for part in shards.parts]

    def read(self, shard: int, number: int, landings: Mapping[str, Landing] | None = None) -> SampleDict:
        sample = super().read(shard, number, landings)
        codes = self._codes[self._joint.part_of(shard)]
        if codes and LABEL in sample:
            sample[LABEL] = _recoded(sample[LABEL], codes)
        return sample


def _recoded(value: Any, codes: Sequence[bytes]) -> bytes:
    try:
        index = int(value)
    except ValueError:
        return bytes(value)  # whoever needs a class index will say so
    if index < 0:
        return bytes(value)  # no class
    if index >= len(codes):
        raise SampleError(f"cls is {index}, and its dataset has {len(codes)} classes")
    return codes[index]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" … {len(names)} in all" if len(names) > 3 else "")
