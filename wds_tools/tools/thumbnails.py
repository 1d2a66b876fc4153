"""Drawn samples → what a report shows of each: its sizes, a thumbnail, or why there is none.

One task is one shard, so that a pool of processes can share the work; of a remote one several samples are asked for at
once. Bytes are untrusted: an image that does not decode is shown as broken with the reason, and what is too large to be
looked at is not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from wds_tools.convert.engines import Tick
from wds_tools.convert.several import each
from wds_tools.errors import SampleError, StoreError
from wds_tools.image.kinds import EXTENSIONS
from wds_tools.records import Field, Sample
from wds_tools.store.base import Store

HEIGHT, WIDTH = 120, 240  # pixels that a thumbnail has at most
QUALITY = 60
MAX_BYTES = 256 << 20  # of an image that is looked at


@dataclass(frozen=True)
class Chosen:
    """A sample to look at: all of it, or its size only."""

    id: int
    number: int
    sample: Sample
    thumbnail: bool


@dataclass(frozen=True)
class Seen:
    """What a sample was found to be. ``size`` is width and height of the upright image, None where there is none.

    ``nbytes`` are those of the image, or of all fields where there is no image. ``error`` says why an image is broken,
    ``note`` what an array is that is no picture.
    """

    id: int
    number: int
    shard: str
    key: str
    offset: int
    fields: tuple[str, ...]
    nbytes: int
    image: str | None = None
    size: tuple[int, int] | None = None
    thumbnail: bytes = b""
    thumbnail_size: tuple[int, int] = (0, 0)
    error: str | None = None
    note: str | None = None


def look(store: Store, task: tuple[str, list[Chosen]], tick: Tick) -> list[Seen]:
    """Look at the chosen samples of one shard. Never raises for what the shard holds."""
    shard, chosen = task
    seen = []
    for found in each(store, partial(_look, store, shard), chosen):
        seen.append(found)
        tick(1, found.nbytes)
    return seen


def image_field(sample: Sample) -> Field | None:
    """The first field that is an image by its extension: ``jpg``, and ``mask.png`` only where there is no other."""
    images = [part for part in sample.fields if part.ext.rpartition(".")[2] in EXTENSIONS]
    return min(images, key=lambda part: "." in part.ext, default=None)


def _look(store: Store, shard: str, chosen: Chosen) -> Seen:
    from wds_tools.image import codec  # loads Pillow and numpy when it decodes

    part = image_field(chosen.sample)
    fields = chosen.sample.fields
    exts = tuple(field.ext for field in fields)
    place = (chosen.id, chosen.number, shard, chosen.sample.key, (part or fields[0]).offset, exts)
    if part is None:
        return Seen(*place, sum(field.size for field in fields))
    if part.size > MAX_BYTES:
        return Seen(*place, part.size, part.ext, note=f"{part.size} bytes, too large to be looked at here")
    size = None
    try:
        data = store.read(shard, part.offset, part.size)
        kind = codec.sniff(data)
        size = codec.dimensions(data)
        if not chosen.thumbnail:
            return Seen(*place, part.size, part.ext, size)
        image = codec.decode_pil(data, at_least=3 * HEIGHT // 2)
        image.thumbnail((WIDTH, HEIGHT), reducing_gap=2.0)
        return Seen(*place, part.size, part.ext, size, codec.encode(image, "webp", QUALITY), image.size)
    except StoreError as error:
        return Seen(*place, part.size, part.ext, error=str(error))
    except SampleError as error:
        if kind == "npy" and _is_array(data):
            return Seen(*place, part.size, part.ext, note=error.reason)
        return Seen(*place, part.size, part.ext, size, error=error.reason)


def _is_array(data: bytes) -> bool:
    """Whether this is a whole array, which need not be a picture: an embedding is none, and is not broken."""
    from wds_tools.image import codec

    try:
        codec.decode_npy(data)
    except SampleError:
        return False
    return True
