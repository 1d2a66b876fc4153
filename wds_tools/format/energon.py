"""What Megatron-Energon looks for: the folder ``.nv-meta``, and a ``.tar.idx`` beside each shard.

Written after the reader's own code (7.4). A ``.tar.idx`` is a row of unsigned 64-bit integers, least byte first: where each
sample begins in the shard, in bytes, and where the last one ends. ``index.sqlite`` and ``index.uuid``, which only joined and
auxiliary datasets need, are left to ``energon prepare --tar-index-only``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from wds_tools.errors import FormatError
from wds_tools.format import blocks, tar
from wds_tools.records import Sample, SplitInfo

FOLDER = ".nv-meta"
INFO = f"{FOLDER}/.info.json"
SPLITS = f"{FOLDER}/split.yaml"
DATASET = f"{FOLDER}/dataset.yaml"
SUFFIX = ".tar.idx"

Read: TypeAlias = Callable[[int, int], bytes]

IMAGES = ("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm", "webp", "gif", "bmp", "tiff")
# Kinds of headers: those that belong to the member after them, and a folder's.
_EXTENDED = (b"x", b"L", b"K")
_FOLDER = b"5"


def tar_index_name(shard: str) -> str:
    """``train-000000.tar`` has ``train-000000.tar.idx``; `FormatError` for a shard of another name."""
    if not shard.endswith(".tar"):
        raise FormatError(f"shard {shard!r} does not end in .tar, which Energon needs; rename it")
    return shard[:-4] + SUFFIX


def dump_tar_index(samples: Sequence[Sample], read: Read) -> bytes:
    """The ``.tar.idx`` of a shard that holds ``samples``, and whose bytes ``read`` gives by start and length.

    It is asked only where more than a header lies between two samples.
    """
    offsets = []
    end = 0
    for sample in samples:
        header = sample.fields[0].offset - tar.BLOCK
        offsets.append(header if header == end else _begin(read, end, header))
        last = sample.fields[-1]
        end = last.offset + last.size + tar.padding(last.size)
    return struct.pack(f"<{len(offsets) + 1}Q", *offsets, end)


def _begin(read: Read, position: int, header: int) -> int:
    """Where the member begins whose ``header`` is the first plain one of a sample: at its extended headers, if it has any."""
    begin = position
    while position < header:
        block = read(position, tar.BLOCK)
        kind = block[156:157]
        # Zeros end an archive, after which another one follows here; a folder has no payload, whatever its size.
        size = tar.read_header(block, position)[1] if any(block) and kind != _FOLDER else 0
        position += tar.member_bytes(size)
        if kind not in _EXTENDED:
            begin = position
    return begin


def dump_info(splits: Mapping[str, SplitInfo]) -> bytes:
    """``.info.json``: samples by shard."""
    counts = {shard.name: shard.samples for split in splits.values() for shard in split.shards}
    return json.dumps({"shard_counts": counts}, indent=2).encode() + b"\n"


def suits(data: bytes, splits: Mapping[str, SplitInfo]) -> bool:
    """Whether an ``.info.json``, whoever wrote it, says of each shard that it lists how many samples it has."""
    try:
        counts = dict(json.loads(data)["shard_counts"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return False
    known = {shard.name: shard.samples for split in splits.values() for shard in split.shards}
    return all(known.get(name) == count for name, count in counts.items())


def dump_splits(splits: Mapping[str, SplitInfo]) -> bytes:
    """``split.yaml``: shards by split."""
    lines = ["split_parts:"]
    for split in splits.values():
        lines.append(f"  {blocks.scalar(split.name)}:")
        for shard in split.shards:
            if "{" in shard.name:
                raise FormatError(f"shard {shard.name!r} has a brace in its name, which Energon expands; rename it")
            lines.append(f"  - {blocks.scalar(shard.name)}")
    return blocks.block(lines)


def dump_dataset(fields: Mapping[str, int], samples: int) -> bytes:
    """``dataset.yaml``: what a sample is, by the fields that all ``samples`` have; ``fields`` counts samples by field."""
    images = [name for name in IMAGES if fields.get(name)]
    shown = images and sum(fields[name] for name in images) == samples
    if shown and fields.get("cls") == samples:
        kind, others = "ImageClassificationSample", {"label": "cls"}
    elif shown and fields.get("txt") == samples:
        kind, others = "CaptioningSample", {"caption": "txt"}
    elif shown:
        kind, others = "ImageSample", {}
    else:  # no type has such fields: the reader hands them on as they are
        return blocks.block(["__module__: megatron.energon", "__class__: CrudeWebdataset"])
    mapped = {"image": ",".join(images), **others}
    return blocks.block(
        [
            "sample_type:",
            "  __module__: megatron.energon",
            f"  __class__: {kind}",
            "field_map:",
            *(f"  {name}: {blocks.scalar(field)}" for name, field in mapped.items()),
        ]
    )
