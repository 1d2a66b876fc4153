"""The label of every sample, for an order that goes by classes: read once, through the indexes.

From ``cls`` it costs a small read a sample; several shards are read at a time, because such reads wait for the disk. Remote
samples are read as a stream is: ranges of what lies close together. From the folder in the key it costs the
indexes only.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from wds_tools.errors import OptionError, SampleError
from wds_tools.format import index
from wds_tools.store.local import LocalStore
from wds_tools.stream.line import Ids
from wds_tools.stream.opened import LocalShard, open_shard
from wds_tools.stream.order import Order, Topology
from wds_tools.stream.reader import ShardReader
from wds_tools.stream.shards import Shards, find_lines

LABEL = "cls"
_AT_ONCE = 8
_WANTED = frozenset({LABEL})


def read_labels(shards: Shards, source: str) -> Ids:
    """A label for each sample in the manifest's order, from ``"cls"`` or ``"folder"``."""
    if source == "folder":
        return _folders(shards)
    if source != LABEL:
        raise OptionError(f"labels is {source!r}; it must be 'cls', 'folder', or a whole number for each sample")
    if not isinstance(shards.store, LocalStore):
        return _fetched(shards)
    return _together(shards, partial(_local, shards))


def _together(shards: Shards, read: Callable[[int], Ids]) -> Ids:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return np.concatenate([np.zeros(0, np.int64), *pool.map(read, range(len(shards.shards)))])


def _local(shards: Shards, number: int) -> Ids:
    opened = open_shard(shards, number, _WANTED)
    assert isinstance(opened, LocalShard)
    opened.read_little()
    try:
        table = opened.table
        if table.mixed is None and table.fields:
            ((_, offsets, sizes),) = table.fields
            values = list(map(opened.pread, sizes, offsets))
        else:
            values = []
            for each in range(shards.shards[number].samples):
                fields = table.mixed_fields(each) if table.mixed is not None else []
                if not fields:
                    raise _unlabelled(opened.url, table.key(each))
                values.append(opened.pread(fields[0].size, fields[0].offset))
        return _numbers(values, lambda each: (opened.url, table.key(each)))
    finally:
        opened.close()


def _fetched(shards: Shards) -> Ids:
    order = Order(shards.sizes, shuffle=False)
    reader = ShardReader(shards, _WANTED)
    values, places = [], []
    for ids in reader.following(order.epoch(0, Topology()).stream().blocks(), order):
        for shard, number in zip(*(part.tolist() for part in order.locate(ids)), strict=True):
            sample = reader.read(shard, number)
            if LABEL not in sample:
                raise _unlabelled(sample["__url__"], sample["__key__"])
            values.append(sample[LABEL])
            places.append((shard, number))
    return _numbers(values, lambda each: reader.place(*places[each])[:2])


def _folders(shards: Shards) -> Ids:
    """By the folders' names, as class folders are numbered."""
    numbers: dict[bytes, int] = {}

    def read(shard: int) -> list[bytes]:
        name = shards.shards[shard].name
        lines = shards.lines.get(shard) or find_lines(shards.store, name)
        folders = [_folder(line) for line in lines]
        if not all(folders):
            key = index.parse_line(lines[folders.index(b"")]).key
            raise SampleError("it has no folder in its key; use labels='cls', or give labels").at(
                f"{shards.store.url(name)}, key {key!r}"
            )
        return folders

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        folders = [folder for found in pool.map(read, range(len(shards.shards))) for folder in found]
    numbers = {folder: number for number, folder in enumerate(sorted(set(folders)))}
    return np.fromiter(map(numbers.__getitem__, folders), np.int64, len(folders))


def _folder(line: bytes) -> bytes:
    """What stands before the first slash of the first member's name, empty where there is none."""
    columns = line.split(b" ", 4)
    folder, slash, _ = columns[3].partition(b"/") if len(columns) > 3 else (b"", b"", b"")
    return folder if slash else b""


def _numbers(values: list[bytes], place: Callable[[int], tuple[str, str]]) -> Ids:
    try:
        return np.array(list(map(int, values)), np.int64)
    except (ValueError, OverflowError):
        for number, value in enumerate(values):
            if not value.strip().removeprefix(b"-").isdigit() or len(value) > 18:
                url, key = place(number)
                raise SampleError(f"cls is {value[:20]!r}, not a class index in ASCII digits").at(
                    f"{url}, key {key!r}"
                ) from None
        raise


def _unlabelled(url: str, key: str) -> SampleError:
    return SampleError("it has no field 'cls' to balance by; give labels").at(f"{url}, key {key!r}")
