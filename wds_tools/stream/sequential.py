"""Remote shards without indexes: each is read from its first header to its last, whole shards to a stream.

What is then not promised: a length, even ranks, random access, resume. What still is: every sample exactly once,
in an order that seed and epoch decide, and an error where a shard is cut or damaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from wds_tools.draws import Purpose, draws, make_key
from wds_tools.errors import TarError
from wds_tools.format import tar
from wds_tools.records import Member
from wds_tools.stream.reader import SampleDict
from wds_tools.stream.shards import MAX_FIELD, Shards


def deal(seed: int, epoch: int, shuffle: bool, shards: int, streams: int) -> list[list[int]]:
    """The shards of each stream, whole ones, in turn."""
    order = np.arange(shards)
    if shuffle:
        order = np.argsort(draws(make_key(seed, epoch, Purpose.SHARDS), order), kind="stable")
    return [order[first::streams].tolist() for first in range(streams)]


def read(shards: Shards, numbers: Sequence[int]) -> Iterator[SampleDict]:
    """The samples of these shards, as WebDataset has them."""
    for number in numbers:
        name = shards.shards[number].name
        url = shards.store.url(name)
        with shards.store.stream(name) as file:
            try:
                yield from _samples(file, url)
            except TarError as error:
                raise TarError(f"{url}: {error}") from error


def _samples(file: BinaryIO, url: str) -> Iterator[SampleDict]:
    payloads: dict[int, bytes] = {}  # by offset: of the sample that is being gathered, and the first of the next

    def noted() -> Iterator[Member]:
        for member, data in tar.payloads(file, max_size=MAX_FIELD):
            if tar.split_name(member.name) is not None:  # else it belongs to no sample, and nobody would ask for it
                payloads[member.offset] = data
            yield member

    for sample in tar.samples(noted()):
        fields = {field.ext: payloads.pop(field.offset) for field in sample.fields}
        yield {"__key__": sample.key, "__url__": url, **fields}
