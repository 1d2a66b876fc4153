"""What a conversion is asked to do. Values are checked when the options are made."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from typing import Any

from wds_tools.errors import OptionError

ENCODINGS = ("keep", "jpg", "png", "webp", "npy")
ON_ERROR = ("raise", "skip")
_SPLIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes from ``256MB`` (10^6), ``1GiB`` (2^30), ``500000``."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise OptionError(f"size {text!r} is not understood; write for example 256MB, 1GiB or 500000")
    number, unit, binary = match.groups()
    power = " KMGT".index(unit.upper() or " ")
    return int(float(number) * (1024 if binary else 1000) ** power)


@dataclass(frozen=True)
class ConvertOptions:
    """How a tree becomes shards.

    ``max_size`` bounds a shard's bytes, ``max_count`` its samples; where images are encoded anew, what they become is
    estimated from some of them, and a shard may come out larger. ``seed`` decides the order unless ``shuffle`` is off.
    ``image_size`` shrinks images to that shorter side in pixels and never enlarges; ``encode`` is ``keep`` or the field
    that images become; ``quality`` (1 to 100) applies to what is encoded anew. ``tile`` gives JPEGs restart tiles, without
    loss, so that a reader can cut a crop out before it decodes. ``classes`` fixes the class names and
    their indexes. ``metadata`` adds a ``json`` field with the source path and a list's further columns. ``siblings``
    makes files of the same stem fields of one sample. ``images`` and ``labels`` name the columns of a source that has
    several (a dataset in HDF5, a column of a parquet file, a feature of TFRecords), the folder in a zip archive, or the file with
    the labels of an ``.npy``; labels of ``none`` leave them out. ``first_label`` is what labels of TFRecords and parquet count
    from. ``on_error`` is ``raise`` or ``skip``.
    """

    split: str = "train"
    max_size: int = 256_000_000
    max_count: int | None = None
    seed: int = 0
    shuffle: bool = True
    image_size: int | None = None
    quality: int | None = None
    encode: str = "keep"
    tile: bool = False
    classes: tuple[str, ...] | None = None
    metadata: bool = False
    siblings: bool = False
    images: str | None = None
    labels: str | None = None
    first_label: int = 0
    on_error: str = "raise"

    def __post_init__(self) -> None:
        self._check_kinds()
        if not _SPLIT.fullmatch(self.split):
            raise OptionError(f"split {self.split!r} cannot name shards; use letters, digits, '-' and '_'")
        if self.max_size < 10_240:
            raise OptionError(f"max_size is {self.max_size} bytes; a shard needs at least 10240")
        for name, value, low, high in (
            ("max_count", self.max_count, 1, None),
            ("seed", self.seed, 0, None),
            ("image_size", self.image_size, 1, 65_535),
            ("quality", self.quality, 1, 100),
            ("first_label", self.first_label, 0, None),
        ):
            if value is not None and (value < low or (high is not None and value > high)):
                limits = f"at least {low}" if high is None else f"between {low} and {high}"
                raise OptionError(f"{name} is {value}; it must be {limits}")
        if self.encode not in ENCODINGS:
            raise OptionError(f"encode is {self.encode!r}; it must be one of {', '.join(ENCODINGS)}")
        if self.on_error not in ON_ERROR:
            raise OptionError(f"on_error is {self.on_error!r}; it must be one of {', '.join(ON_ERROR)}")
        if self.quality is not None and self.encode == "keep" and self.image_size is None:
            raise OptionError(
                f"quality is {self.quality}, but no image is encoded anew; add encode='jpg' or an image_size"
            )
        if self.quality is not None and self.encode in ("png", "npy"):
            raise OptionError(f"quality is {self.quality}, but {self.encode} is lossless; leave quality out")
        if self.tile and self.encode not in ("keep", "jpg"):
            raise OptionError(f"tile is for JPEGs, and encode is {self.encode!r}; leave one of them out")
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            twice = next(name for number, name in enumerate(self.classes) if name in self.classes[:number])
            raise OptionError(f"class {twice!r} is listed twice")

    def _check_kinds(self) -> None:
        """Text where a number or a list is meant, as from a file of settings, is a mistake that could go far."""
        if isinstance(self.classes, list):
            object.__setattr__(self, "classes", tuple(self.classes))
        for name, kind, wanted in (
            ("split", str, "a name"),
            ("max_size", int, "a number of bytes, such as 256_000_000"),
            ("max_count", int, "a whole number"),
            ("seed", int, "a whole number"),
            ("image_size", int, "a number of pixels"),
            ("quality", int, "a whole number"),
            ("first_label", int, "a whole number"),
            ("classes", tuple, "a tuple of names"),
            *((name, bool, "True or False") for name in ("shuffle", "tile", "metadata", "siblings")),
        ):
            value = getattr(self, name)
            optional = name in ("max_count", "image_size", "quality", "classes")
            if not (isinstance(value, kind) or (value is None and optional)):
                raise OptionError(f"{name} is {value!r}; it must be {wanted}")

    @property
    def encodes(self) -> bool:
        """Whether any image may be encoded anew."""
        return self.encode != "keep" or self.image_size is not None

    @property
    def transcodes(self) -> bool:
        """Whether any image's bytes may change."""
        return self.encodes or self.tile

    def settings(self) -> dict[str, Any]:
        """What decides the shards' bytes, as the manifest lists it. Class names stand in the manifest itself."""
        values = asdict(self)
        del values["split"], values["classes"]
        # So that datasets made before there were these options are still seen to be what is asked for.
        for name, default in (("tile", False), ("images", None), ("labels", None), ("first_label", 0)):
            if values[name] == default:
                del values[name]
        if self.labels is not None and self.labels.lower().endswith(".npy"):
            values["labels"] = os.path.basename(
                self.labels
            )  # where a file lies decides nothing; its content is in the source's digest
        return values
