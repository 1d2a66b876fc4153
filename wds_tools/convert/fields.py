"""Which column, or feature, of many is the image and which the label, and what a value is as a label or in a ``json`` field."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wds_tools.convert.entries import Request
from wds_tools.errors import SampleError, SourceError

MAX_LIST = 1024  # values of one column that go into a sample's ``json``
_MAX_LABEL = 1 << 63


def choose(
    what: str, asked: str | None, usual: Sequence[str], fit: Sequence[str], there: Mapping[str, str], where: str
) -> str | None:
    """The one of the columns that ``fit`` that is ``asked`` for, or is called as such columns usually are, or is the only one.

    None if nothing fits. ``there`` says of every column what it holds. Raises `SourceError` if it is not clear which.
    """
    listed = ", ".join(f"{name} ({kind})" for name, kind in there.items()) or "nothing"
    if asked is not None:
        if asked in fit:
            return asked
        problem = f"has no {asked!r}" if asked not in there else f"{asked!r} holds {there[asked]}, no {what}"
        raise SourceError(f"{where}: {problem}; it has {listed}")
    known = next((name for name in usual if name in fit), None)
    if known is not None or not fit:
        return known
    if len(fit) > 1:
        raise SourceError(
            f"{where}: {' and '.join(fit[:5])} could each be the {what}; say which with --{what}s; it has {listed}"
        )
    return fit[0]


@dataclass(frozen=True)
class Labelling:
    """How values become labels. ``names`` are what the source calls its classes, ``classes`` the dataset's, which count."""

    first: int = 0
    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, request: Request, names: tuple[str, ...], where: str) -> Labelling:
        """`SourceError` if a class is not among those that the dataset has."""
        if len(set(names)) < len(names):
            raise SourceError(f"{where} lists a class twice; give the names of all with --classes")
        strange = [name for name in names if request.classes is not None and name not in request.classes]
        if strange:
            raise SourceError(
                f"{where}: class {strange[0]!r} is not among the dataset's {len(request.classes or ())} classes"
                + (f" (nor are {len(strange) - 1} others)" if len(strange) > 1 else "")
            )
        return cls(request.first_label, names, request.classes if request.classes is not None else names)

    def index(self, value: Any, place: str) -> int:
        """The label that ``value`` says, a number or a class name; `SampleError` if it says none."""
        if isinstance(value, str) and value in self.names:
            return self.classes.index(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise SampleError(f"label {value!r:.60} is no class index", place)
        label = value - self.first
        if not 0 <= label < _MAX_LABEL:
            counted = f", and labels count from {self.first}" if self.first else ""
            raise SampleError(f"label {value} is {'negative' if value < 0 else 'out of range'}{counted}", place)
        known = self.names or self.classes
        if known and label >= len(known):
            raise SampleError(f"label {value} is beyond the {len(known)} classes", place)
        return self.classes.index(self.names[label]) if self.names and self.names != self.classes else label


def plain(value: Any) -> Any:
    """``value`` as JSON has it; what JSON has no number for is null. Raises `TypeError` for bytes and long lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (datetime.timedelta, decimal.Decimal)):
        return str(value)
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)) and len(value) <= MAX_LIST:
        return [plain(item) for item in value]
    raise TypeError
