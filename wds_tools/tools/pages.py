"""What a report found → one HTML page that asks for nothing else.

Names of classes, keys and shards are written by strangers: everything goes through the template's escaping, the data of the
scripts too, and the page's own policy lets no script or style run but the two that are part of it, by their digests, and nothing
be fetched. What does not print is shown escaped. Long lists travel as data, and the page's script makes of them what is in view.
"""

from __future__ import annotations

import base64
import hashlib
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import pairwise
from typing import Any

from wds_tools._version import VERSION
from wds_tools.errors import MissingExtraError
from wds_tools.records import Problem
from wds_tools.tools.histograms import Histogram, aspects, histogram
from wds_tools.tools.sampling import Group, Grouping, is_index
from wds_tools.tools.thumbnails import Seen

MARK = b'<meta name="generator" content="wds-tools report'
MAX_LISTED = 200  # problems of each kind
MAX_BARS = 40  # classes that each get a bar with a name
MAX_COLUMNS = 200  # of the curve that more classes get
MAX_TEXT = 300  # characters of a name or a message


@dataclass(frozen=True)
class ShardRow:
    """A shard as the page lists it; ``samples`` and ``size`` are None where nothing tells."""

    split: str
    name: str
    samples: int | None
    size: int | None
    problems: int


@dataclass(frozen=True)
class Content:
    """All that a page tells. ``shown`` are samples by id, ``measured`` those whose sizes are counted."""

    place: str
    splits: tuple[str, ...]
    classes: tuple[str, ...]
    grouping: Grouping
    shown: dict[int, Seen]
    measured: Sequence[Seen]
    fields: tuple[str, ...]
    shards: Sequence[ShardRow]
    verified: bool
    problems: Sequence[Problem]
    broken: Sequence[Problem]
    looked_at: int
    unshown: int = 0
    named_groups: list[tuple[str, Group]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "named_groups", list(_named(self.grouping, self.classes)))

    @property
    def samples(self) -> int:
        return sum(shard.samples or 0 for shard in self.shards)


def _named(grouping: Grouping, classes: Sequence[str]) -> Iterable[tuple[str, Group]]:
    """The labelled groups with their names; classes that no sample has are there too, where that is known."""
    labels = {int(each.label) for each in grouping.groups if each.label is not None and is_index(each.label)}
    absent = sorted(set(range(len(classes))) - labels) if grouping.exact else []
    groups = [*grouping.groups, *(Group(str(number), {}, ()) for number in absent)]
    indexed = {number: each for each in groups if each.label and is_index(each.label) for number in [int(each.label)]}
    for number in sorted(indexed):
        name = classes[number] if number < len(classes) else indexed[number].folder or str(number)
        yield name, indexed[number]
    for each in groups:
        if each.label is not None and not is_index(each.label):
            yield each.label or "(empty label)", each


class Page:
    """The template, ready to be filled; `MissingExtraError` where jinja2 is not installed."""

    def __init__(self) -> None:
        try:
            from jinja2 import Environment, StrictUndefined
        except ImportError as error:
            raise MissingExtraError.of("a report", "jinja2") from error
        folder = resources.files("wds_tools.tools") / "templates"
        self._style, self._script, page = (
            (folder / f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js", "html")
        )
        environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        environment.policies["json.dumps_kwargs"] = {"ensure_ascii": True, "separators": (",", ":")}
        environment.filters |= {"count": "{:,}".format, "bytes": size_text, "shown": shown}
        self._template = environment.from_string(page)

    def render(self, content: Content) -> bytes:
        named = content.named_groups
        counts = [(shown(name), each.count) for name, each in named]
        text = self._template.render(
            version=VERSION,
            title=shown(content.place.rstrip("/").rpartition("/")[2] or content.place),
            place=content.place,
            style=self._style,
            script=self._script,
            style_digest=_digest(self._style),
            script_digest=_digest(self._script),
            content=content,
            sizes=_known(shard.size for shard in content.shards),
            unlabelled=sum(each.count for each in content.grouping.groups if each.label is None),
            balance=_balance(counts) if counts else None,
            charts=_charts(content.measured),
            measured=len(content.measured),
            pictures=sum(each.size is not None for each in content.measured),
            listed=MAX_LISTED,
            data=_data(content),
        )
        return text.encode("utf-8")


def shown(text: str) -> str:
    """``text`` on one line and not too long; what does not print, or turns the writing around, as an escape."""
    if len(text) > MAX_TEXT:
        text = text[: MAX_TEXT - 1] + "…"
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def size_text(size: float) -> str:
    """``44.9 MB``, in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.2f} TB"


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _known(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(value or 0 for value in known)


def _balance(counts: list[tuple[str, int]]) -> dict[str, Any]:
    """Classes from the largest to the smallest: a bar each, or a curve of columns of about equally many."""
    ordered = sorted(counts, key=lambda each: -each[1])
    most = max(ordered[0][1], 1)
    columns = min(len(ordered), MAX_COLUMNS)
    starts = [number * len(ordered) // columns for number in range(columns + 1)]
    return {
        "classes": len(ordered),
        "even": ordered[0][1] == ordered[-1][1],
        "bars": [(name, count, count / most) for name, count in ordered] if len(ordered) <= MAX_BARS else [],
        "columns": [(start + 1, stop, ordered[start][1], ordered[start][1] / most) for start, stop in pairwise(starts)],
        "largest": ordered[:5],
        "smallest": ordered[-5:],
        "median": statistics.median_low(count for _, count in ordered),
        "empty": sum(not count for _, count in ordered),
    }


def _charts(measured: Sequence[Seen]) -> list[tuple[str, str, Histogram]]:
    """What is measured, in what unit, and how it is spread."""
    sizes = [each.size for each in measured if each.size is not None and min(each.size) > 0]
    image = any(each.image for each in measured)
    found = (
        ("Shorter side", "pixels", histogram([min(size) for size in sizes], _pixels)),
        ("Longer side", "pixels", histogram([max(size) for size in sizes], _pixels)),
        ("Width to height", "1 is square", aspects([width / height for width, height in sizes])),
        ("Image file" if image else "Sample", "bytes", histogram([each.nbytes for each in measured], size_text)),
    )
    return [(name, unit, chart) for name, unit, chart in found if chart is not None]


def _pixels(value: float) -> str:
    return f"{value:,.0f}"


def _data(content: Content) -> dict[str, Any]:
    """What the page's script needs: rows without names, because there are many."""
    splits = {name: number for number, name in enumerate(content.splits)}
    shards = {row.name: number for number, row in enumerate(content.shards)}
    groups = content.named_groups + [("No label", each) for each in content.grouping.groups if each.label is None]
    return {
        "splits": [shown(name) for name in content.splits],
        "exact": content.grouping.exact,
        "classes": [
            [
                shown(name),
                [each.counts.get(split, 0) for split in content.splits],
                [_tile(content.shown[number], shards) for number in each.drawn if number in content.shown],
            ]
            for name, each in groups
        ],
        "shards": [[splits[row.split], shown(row.name), row.samples, row.size, row.problems] for row in content.shards],
    }


def _tile(seen: Seen, shards: dict[str, int]) -> list[Any]:
    return [
        shown(seen.key),
        shards[seen.shard],
        seen.number,
        seen.nbytes,
        seen.image,
        seen.size,
        seen.thumbnail_size,
        base64.b64encode(seen.thumbnail).decode("ascii"),
        shown(seen.error) if seen.error is not None else None,
        shown(seen.note) if seen.note is not None else None,
        [shown(name) for name in seen.fields],
    ]
