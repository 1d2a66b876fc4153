"""Which samples of a dataset to look at: drawn by class and by a seed, never all loaded.

Which class a sample is of, its ``cls`` says; reading millions of labels takes long, and the keys usually tell the same: what
stands before the first slash is the class folder. So a few labels of every folder are read, and when folders and labels
agree one to one, the classes are counted by folder, exactly. Otherwise the labels of at most `MAX_LABELS` samples, drawn at
random, are read, and beyond that number counts are estimates.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from wds_tools.errors import StoreError
from wds_tools.records import Problem
from wds_tools.tools.survey import Survey

MAX_LABELS = 100_000
MAX_FOLDERS = 50_000
CHECKED = 3  # labels of each folder
MAX_LABEL = 200  # bytes of a label that are looked at


@dataclass(frozen=True)
class Group:
    """The samples of one class. ``counts`` are by split; ``drawn`` are ids to look at, in a random order.

    ``folder`` is what all their keys begin with, where that tells the class.
    """

    label: str | None
    counts: dict[str, int]
    drawn: tuple[int, ...]
    folder: str = ""

    @property
    def count(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True)
class Grouping:
    """The classes. ``exact`` is False where counts are estimates, from ``labels`` labels that were read."""

    groups: tuple[Group, ...]
    exact: bool
    labels: int


def draw(population: int, count: int, seed: str) -> list[int]:
    """``count`` different numbers below ``population``, all if there are fewer, in a random order that ``seed`` decides."""
    return random.Random(seed).sample(range(population), min(count, population))


def group(found: Survey, per_class: int, total: int, seed: int = 0) -> Grouping:
    """The classes, and at most ``per_class`` samples of each, at most ``total`` in all, as evenly as that allows.

    Unlabelled samples count as one class, of which ten times as many are drawn.
    """
    labels: dict[int, str | None] = {}
    if 0 < len(found.folders) <= MAX_FOLDERS and "" not in found.folders:
        sizes = Counter(found.codes)
        labels = _read_labels(found, _draw_by_folder(found, sizes, dict.fromkeys(sizes, CHECKED), seed))
        by_code = _one_to_one(found, labels)
        if by_code is not None and len(by_code) == len(sizes):
            share = _shares(sizes, dict.fromkeys(sizes, per_class), total, seed)
            drawn: dict[int, list[int]] = {code: [] for code in sizes}
            for number in _draw_by_folder(found, sizes, share, seed):
                drawn[found.codes[number]].append(number)
            counts = _count_by_split(found, dict(enumerate(_codes_by_shard(found))))
            groups = (
                Group(by_code[code], counts[code], tuple(_shuffled(ids, f"{seed}/{code}")), found.folders[code])
                for code, ids in drawn.items()
            )
            return Grouping(_in_order(groups), True, len(labels))
    return _group_by_labels(found, per_class, total, seed)


def _group_by_labels(found: Survey, per_class: int, total: int, seed: int) -> Grouping:
    drawn = draw(len(found), MAX_LABELS, f"{seed}/labels")
    labels = _read_labels(found, drawn)
    members: dict[str | None, list[int]] = {}
    for number in drawn:
        if number in labels:
            members.setdefault(labels[number], []).append(number)
    wanted = {label: per_class if label is not None else 10 * per_class for label in members}
    share = _shares({label: len(ids) for label, ids in members.items()}, wanted, total, seed)
    places = found.by_shard(labels)
    counts = _count_by_split(found, {n: [labels[found.starts[n] + each] for each in ids] for n, ids in places.items()})
    exact = len(labels) == len(found)
    scale = 1.0 if exact else len(found) / max(len(labels), 1)
    groups = [
        Group(
            label,
            {split: round(count * scale) for split, count in counts[label].items()},
            tuple(ids[: share[label]]),
        )
        for label, ids in members.items()
    ]
    return Grouping(_in_order(groups), exact, sum(label is not None for label in labels.values()))


def _in_order(groups: Iterable[Group]) -> tuple[Group, ...]:
    """By class index, then by text, the unlabelled last."""

    def place(each: Group) -> tuple[int, int, str]:
        if each.label is None:
            return 2, 0, ""
        return (0, int(each.label), each.label) if is_index(each.label) else (1, 0, each.label)

    return tuple(sorted(groups, key=place))


def is_index(label: str) -> bool:
    """Whether a label is a class index: ASCII digits, not too many."""
    return label.isascii() and label.isdigit() and len(label) <= 18


def _read_labels(found: Survey, ids: Iterable[int]) -> dict[int, str | None]:
    labels: dict[int, str | None] = {}
    for number, _, shard, sample in found.samples(ids):
        part = next((part for part in sample.fields if part.ext == "cls"), None)
        try:
            data = None if part is None else found.store.read(shard.name, part.offset, min(part.size, MAX_LABEL))
        except StoreError as error:
            found.problems.append(Problem(shard.name, str(error), key=sample.key))
            continue
        labels[number] = None if data is None else _label(data)
    return labels


def _label(data: bytes) -> str:
    """The label in words; a class index always in the same ones, whatever stands around it."""
    text = data.decode("utf-8", "replace").strip()
    return str(int(text)) if is_index(text) else text


def _one_to_one(found: Survey, labels: dict[int, str | None]) -> dict[int, str] | None:
    """The label of every folder, None unless each folder read has one and no two have the same."""
    by_code: dict[int, str] = {}
    for number, label in labels.items():
        if label is None or by_code.setdefault(found.codes[number], label) != label:
            return None
    return by_code if len(set(by_code.values())) == len(by_code) else None


def _draw_by_folder(found: Survey, sizes: dict[int, int], counts: dict[int, int], seed: int) -> list[int]:
    """The ids of ``counts[code]`` samples of each folder, in order."""
    ranks = {code: set(draw(size, counts[code], f"{seed}/{code}")) for code, size in sizes.items()}
    seen: Counter[int] = Counter()
    ids = []
    for number, code in enumerate(found.codes):
        if seen[code] in ranks[code]:
            ids.append(number)
        seen[code] += 1
    return ids


def _shuffled(ids: list[int], seed: str) -> list[int]:
    return [ids[number] for number in draw(len(ids), len(ids), seed)]


def _shares(sizes: dict[Any, int], wanted: dict[Any, int], total: int, seed: int) -> dict[Any, int]:
    """How many to draw of each class: what is wanted, or, where that is more than ``total``, the same number of all that have it.

    With more classes than ``total`` it is one each of classes drawn at random.
    """
    wanted = {name: min(size, wanted[name]) for name, size in sizes.items()}
    low, high = 0, max(wanted.values(), default=0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(min(n, middle) for n in wanted.values()) <= total else (low, middle - 1)
    shares = {name: min(count, low) for name, count in wanted.items()}
    names = [name for name, count in wanted.items() if count > low]
    for number in draw(len(names), total - sum(shares.values()), f"{seed}/classes"):
        shares[names[number]] += 1
    return shares


def _codes_by_shard(found: Survey) -> Iterable[Iterable[int]]:
    for start, shard in zip(found.starts, found.shards, strict=True):
        yield found.codes[start : start + shard.samples]


def _count_by_split(found: Survey, names: Mapping[int, Iterable[Any]]) -> dict[Any, dict[str, int]]:
    """How often each name comes in each split; ``names`` are those of samples, by shard number."""
    counts: dict[Any, dict[str, int]] = {}
    for number, each in names.items():
        split = found.shards[number].split
        for name, count in Counter(each).items():
            here = counts.setdefault(name, {})
            here[split] = here.get(split, 0) + count
    return counts
