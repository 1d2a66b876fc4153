"""Labels that lie beside the images as one array: a number or a class name a sample.

They are taken a part at a time and kept as eight bytes a sample. Names are indexed sorted, as class folders are.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from wds_tools.errors import SourceError

NO_LABELS = "none"
"""What a user says for the labels where there are to be none."""


class Labels:
    """The labels of all samples, in their order. ``classes`` fix names and indexes."""

    def __init__(self, classes: tuple[str, ...] | None) -> None:
        self._fixed = classes
        self._codes: dict[str, int] = {}  # of names, by when they first came
        self._first: list[str] = []  # where each did
        self._kind = ""
        self._named: tuple[str, ...] = ()  # what the source calls its indexes
        self.numbers = array("q")

    def name(self, names: Sequence[str], where: str) -> None:
        """The source says what its indexes are called; all files must say the same."""
        found = tuple(names)
        if len(set(found)) < len(found):
            raise SourceError(f"{where} lists a class twice; mend it, or give all classes with --classes")
        if self._named and found != self._named:
            raise SourceError(f"{where} lists other classes than the file before it; convert one of them by itself")
        self._named = found
        strange = next((name for name in found if self._fixed is not None and name not in self._fixed), None)
        if strange is not None:
            raise SourceError(f"{where}: class {strange!r} is not among the dataset's {len(self._fixed or ())} classes")

    def add(self, values: Any, where: str, first: int) -> None:
        """Take labels, an array of them from row ``first`` on; `SourceError` names the row that is wrong."""
        import numpy as np

        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 1:
            raise SourceError(
                f"{where} has {'x'.join(map(str, values.shape[1:])) or 'no'} numbers a sample, and a label is one; "
                "of one-hot rows save labels.argmax(1)"
            )
        kind = "text" if values.dtype.kind in "SUO" else "number"
        if self._kind and kind != self._kind:
            raise SourceError(f"{where} has labels of another kind ({kind}) than the file before it")
        self._kind = kind
        if kind == "text":
            self._add_names(values.tolist(), where, first)
            return
        if values.dtype.kind not in "biu":
            raise SourceError(
                f"{where} holds {values.dtype}, and a label is a whole number or a name; save labels.astype('int64')"
            )
        classes = self._named or self._fixed
        for bad, why in (
            (values < 0, "negative"),
            (values >> np.uint64(63) if values.dtype == "u8" else [], "too large"),
            (values >= len(classes) if classes else [], f"beyond the {len(classes or ())} classes"),
        ):
            if np.any(bad):
                row = int(np.argmax(bad))
                raise SourceError(f"{where}, row {first + row}: label {values[row]} is {why}")
        self.numbers.frombytes(values.astype(np.int64).tobytes())

    def _add_names(self, values: list[Any], where: str, first: int) -> None:
        codes = self._codes
        for row, value in enumerate(values, start=first):
            try:
                name = value.decode() if isinstance(value, bytes) else value
            except UnicodeDecodeError:
                name = None
            if not isinstance(name, str) or not name:
                raise SourceError(f"{where}, row {row}: {value!r:.80} is no class name")
            if name not in codes:
                codes[name] = len(codes)
                self._first.append(f"{where}, row {row}")
            self.numbers.append(codes[name])

    def finish(self) -> tuple[str, ...]:
        """The class names, none if nothing names them; from now on ``numbers`` are their indexes."""
        import numpy as np

        if self._kind == "text":
            classes = self._fixed if self._fixed is not None else tuple(sorted(self._codes))
            came = tuple(self._codes)
        elif self._named and self._fixed is not None:
            classes, came = self._fixed, self._named
        else:
            return self._fixed or self._named
        index = {name: number for number, name in enumerate(classes)}
        for name in came:
            if name not in index:
                place = self._first[self._codes[name]]
                raise SourceError(f"{place}: class {name!r} is not among the dataset's {len(classes)} classes")
        indexes = np.array([index[name] for name in came], np.int64)
        self.numbers = array("q", indexes[np.frombuffer(self.numbers, np.int64)].tobytes())
        return classes
