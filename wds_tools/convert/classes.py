"""The classes of several datasets together: by name, with the indexes that they then have.

The first dataset's classes keep their places and the others' new ones follow. Of classes that are chosen, only those make the
list, in the same order, so that labels begin at 0 again. Where the list is fixed, it stays whole. Datasets that name no classes
go together with each other, and with a fixed list; their classes are called by their numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from wds_tools.errors import OptionError, SourceError

_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class Relabelling:
    """What becomes of one dataset's labels: ``new`` by the old ones. ``count`` of them are known, None if nobody knows."""

    new: dict[int, int]
    count: int | None

    def of(self, label: int) -> int | None:
        """The new label, None where the class is not chosen. ``KeyError`` for a label beyond the classes."""
        if label in self.new:
            return self.new[label]
        if self.count is not None and label >= self.count:
            raise KeyError(label)
        return None


@dataclass(frozen=True)
class Merged:
    """The ``names`` of all classes and, for each dataset, what becomes of its labels: None where they stay unread."""

    names: tuple[str, ...]
    labels: tuple[Relabelling | None, ...]


def merge(
    sources: Sequence[tuple[str, tuple[str, ...]]], chosen: Sequence[str] = (), fixed: tuple[str, ...] | None = None
) -> Merged:
    """The classes of ``sources``, each a place and its class names, of which only the ``chosen`` are taken, if any.

    ``fixed`` names and indexes are kept. Raises `SourceError` for datasets that do not go together and `OptionError` for
    a chosen class that is not there.
    """
    named = [(place, names) for place, names in sources if names]
    nameless = [place for place, names in sources if not names]
    if fixed is None and named and nameless:
        raise SourceError(
            f"{nameless[0]!r} names no classes and {named[0][0]!r} has {len(named[0][1])}, so their labels cannot be brought "
            "together; give the names of all classes with --classes, in the order of the indexes"
        )
    every = fixed if fixed is not None else tuple(dict.fromkeys(name for _, names in named for name in names))
    if nameless and chosen and not named and (fixed is None or fixed == _in_order(chosen)):
        return _numbers(nameless[0], chosen, len(sources))
    _check_chosen(chosen, every if fixed is not None or not named else tuple(n for _, names in named for n in names))
    kept = set(chosen or every)
    names = every if fixed is not None else tuple(name for name in every if name in kept)
    index = {name: number for number, name in enumerate(names)}
    labels: list[Relabelling | None] = []
    for place, its in sources:
        if not its and not names:
            labels.append(None)
            continue
        old = its or names  # one without names counts as the fixed list does
        strange = [name for name in old if name in kept and name not in index]
        strange += [] if chosen else [name for name in old if name not in index]
        if strange:
            raise SourceError(
                f"class {strange[0]!r} of {place!r} is not among the dataset's {len(names)} classes; "
                "leave it out with --class, which names those to keep, or write to another folder"
            )
        if its == names and not chosen:
            labels.append(None)
        else:
            labels.append(Relabelling({n: index[name] for n, name in enumerate(old) if name in kept}, len(old)))
    return Merged(names, tuple(labels))


def _numbers(place: str, chosen: Sequence[str], count: int) -> Merged:
    """Classes without names are chosen by their numbers, which become their names."""
    strange = [name for name in chosen if not _NUMBER.fullmatch(name)]
    if strange:
        raise OptionError(
            f"class {strange[0]!r} is not there: {place!r} names no classes; choose them by their numbers"
        )
    names = _in_order(chosen)
    relabelling = Relabelling({int(label): number for number, label in enumerate(names)}, None)
    return Merged(names, (relabelling,) * count)


def _in_order(chosen: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(chosen, key=lambda name: (len(name), name)))  # numbers by their size


def _check_chosen(chosen: Sequence[str], there: Sequence[str]) -> None:
    known = set(there)
    strange = [name for name in chosen if name not in known]
    if strange:
        some = ", ".join(map(repr, list(dict.fromkeys(there))[:5])) + (", …" if len(known) > 5 else "")
        raise OptionError(f"class {strange[0]!r} is not among the {len(known)} classes that are there ({some})")
