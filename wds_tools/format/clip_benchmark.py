"""What CLIP_benchmark looks for: ``<split>/nshards.txt``, ``<split>/0.tar`` and on, ``classnames.txt``, and templates.

Its names are fixed and ours are others, so its layout is a folder of its own, of links to the shards. That folder is hidden,
because whoever looks for ``**/*.tar`` would find each shard twice.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from wds_tools.errors import FormatError
from wds_tools.records import SplitInfo

FOLDER = ".clip-benchmark"
CLASSES = f"{FOLDER}/classnames.txt"
TEMPLATES = f"{FOLDER}/zeroshot_classification_templates.txt"
KIND = f"{FOLDER}/dataset_type.txt"
COUNT = "nshards.txt"
IMAGES = ("webp", "png", "jpg", "jpeg")

PLAIN_TEMPLATE = b"a photo of a {c}.\n"
"""What makes a caption of a class name, without which nothing is read; better ones are made for a data set."""

_SPLIT = re.compile(r"\w[\w.-]*")  # is to be a folder's name


def links(split: SplitInfo) -> dict[str, str]:
    """Where each numbered name leads, relative to its own folder. `FormatError` for a split that no folder can be named for."""
    if not _SPLIT.fullmatch(split.name):
        raise FormatError(f"split {split.name!r} cannot be a folder's name, as CLIP_benchmark needs; rename it")
    folder = f"{FOLDER}/{split.name}"
    return {
        f"{folder}/{number}.tar": posixpath.relpath(shard.name, folder) for number, shard in enumerate(split.shards)
    }


def count_name(split: str) -> str:
    return f"{FOLDER}/{split}/{COUNT}"


def dump_count(split: SplitInfo) -> bytes:
    """``nshards.txt``."""
    return b"%d\n" % len(split.shards)


def dump_classes(classes: tuple[str, ...]) -> bytes:
    """``classnames.txt``: a line a class. `FormatError` for a name that is no line."""
    for name in classes:
        if name.strip().splitlines() != [name]:
            raise FormatError(f"class {name!r} cannot be a line of classnames.txt, as CLIP_benchmark needs; rename it")
    return "".join(f"{name}\n" for name in classes).encode("utf-8", "backslashreplace")


def suits(data: bytes, classes: tuple[str, ...]) -> bool:
    """Whether a ``classnames.txt``, whoever wrote or edited it, has a line a class."""
    return len(data.splitlines()) == len(classes)


def kind(fields: Mapping[str, int], samples: int) -> str:
    """What can be evaluated: ``classification`` or ``retrieval``; `FormatError` if all samples have fields for neither."""
    images = sum(fields.get(name, 0) for name in IMAGES)
    if images == samples and fields.get("cls") == samples:
        return "classification"
    if images == samples and fields.get("txt") == samples:
        return "retrieval"
    raise FormatError(
        f"CLIP_benchmark wants a webp, png or jpg and a cls or txt in each of {samples} samples, and the fields are "
        f"{dict(fields)}; convert again with --encode jpg, or with labels"
    )
