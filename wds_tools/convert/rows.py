"""The rows of one large array as samples: each becomes the bytes of an ``.npy`` file.

| array | sample |
| --- | --- |
| uint8 (N, H, W), (N, H, W, 1), (N, H, W, 3) | a picture, as it is |
| uint8 (N, 1, H, W), (N, 3, H, W) | a picture, turned to height x width x channels |
| other numbers and shapes | the array as it is, which is no picture |
| Python objects, text, times, records | refused |

Where both the second and the last side could be channels, the last one is.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wds_tools.convert import keys
from wds_tools.errors import SourceError
from wds_tools.image.arrays import MAX_ARRAY_BYTES

if TYPE_CHECKING:
    import numpy as np

_DIGITS = 8
_ODD = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_PREFIX = keys.MAX_KEY - 30


@dataclass(frozen=True)
class Rows:
    """``count`` rows of ``shape`` and ``dtype``; ``where`` is what messages call the array. Raises `SourceError`."""

    where: str
    count: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __post_init__(self) -> None:
        found = f"{self.where} is an array of {self.dtype} with shape {(self.count, *self.shape)}"
        if self.dtype.hasobject:
            raise SourceError(
                f"{self.where} holds objects (of Python, or of variable length), and rows are numbers of one shape"
            )
        if self.dtype.kind not in "biufc":
            raise SourceError(f"{found}; images are numbers, such as uint8 (N, height, width, 3)")
        if not self.shape:
            raise SourceError(f"{found}: one number a sample, so these may be labels; images have more")
        if not self.row_bytes:
            raise SourceError(f"{found}, so its rows are empty")
        if self.row_bytes > MAX_ARRAY_BYTES:
            raise SourceError(f"{found}: one row has {self.row_bytes} bytes, and at most {MAX_ARRAY_BYTES} are read")
        if not self.count:
            raise SourceError(f"{found}: there are no samples in it")

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def turned(self) -> bool:
        """Whether rows come with their channels first, and become pictures with the channels last."""
        shape = self.shape
        return self.dtype == "u1" and len(shape) == 3 and shape[0] in (1, 3) and shape[2] not in (1, 3)

    @property
    def note(self) -> str:
        """What the user should know of how the rows are taken."""
        text = " x ".join(map(str, self.shape))
        if self.turned:
            return (
                f"{self.where}: rows of {text} have their channels first; they are turned to height x width x channels"
            )
        picture = self.dtype == "u1" and (len(self.shape) == 2 or (len(self.shape) == 3 and self.shape[2] in (1, 3)))
        if picture:
            return f"{self.where}: pictures of {text}"
        return (
            f"{self.where}: rows of {text} ({self.dtype}) are no pictures (uint8, height x width x 3); kept as they are"
        )

    def header(self) -> bytes:
        """What every row's ``.npy`` file begins with."""
        import numpy as np

        file = io.BytesIO()
        shape = (*self.shape[1:], self.shape[0]) if self.turned else self.shape
        descr = np.lib.format.dtype_to_descr(self.dtype)
        np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
        return file.getvalue()

    def body(self, row: bytes) -> bytes:
        """A row's numbers as they follow the header."""
        if not self.turned:
            return row
        import numpy as np

        return bytes(np.frombuffer(row, np.uint8).reshape(self.shape).transpose(1, 2, 0).tobytes())


def key_prefix(stem: str) -> str:
    """What the names of the samples in a file begin with, from the file's name without suffix."""
    if len(keys.clean(f"{stem}/x")) <= _LONGEST_PREFIX:
        return stem
    digest = hashlib.blake2b(stem.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    return f"{_ODD.sub('_', stem)[: _LONGEST_PREFIX - 17]}_{digest}"


def numbered(prefix: str, number: int) -> str:
    """What the row with this number is called, such as ``images/00000012``: keys sort as the rows do."""
    return f"{prefix}/{number:0{_DIGITS}d}"
