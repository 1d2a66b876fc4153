"""A dataset as one page to look at: drawn samples by class, balance, sizes, shards, and what is wrong.

The page is one file that asks for nothing else: it opens from a disk, a mail or a server, without a network. The same dataset
and options give the same bytes. `tools.sampling` says which samples are drawn, `tools.thumbnails` looks at them, `tools.pages`
writes the page; here they are led together. Whatever a damaged dataset lacks is left out and listed: a report is most
wanted where something is wrong.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from os import PathLike

from wds_tools.convert.engines import Watch, make_engine
from wds_tools.errors import OptionError, StoreError, TargetError
from wds_tools.format.dataset import Dataset, choose_split, open_dataset
from wds_tools.format.index import index_name
from wds_tools.records import Problem
from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore
from wds_tools.store.resolve import locate
from wds_tools.tools import pages, sampling
from wds_tools.tools.pages import Content, ShardRow
from wds_tools.tools.sampling import Group, Grouping
from wds_tools.tools.survey import Survey, survey_shards
from wds_tools.tools.thumbnails import Chosen, Seen, look
from wds_tools.tools.verify import verify_dataset

MAX_THUMBNAILS = 6_000_000  # bytes of all of them, which makes 8 MB of page


@dataclass(frozen=True)
class ReportOptions:
    """What a report shows. ``samples`` is how many are drawn at most, to be measured, and once more to be shown by class.

    ``per_class`` limits the thumbnails of a class; ``split`` None means all; ``workers`` None means one a core.
    """

    samples: int = 2000
    per_class: int = 12
    verify: bool = True
    split: str | None = None
    seed: int = 0
    workers: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.samples <= 100_000:
            raise OptionError(f"samples is {self.samples}; it must be between 1 and 100000")
        if not 1 <= self.per_class <= 1000:
            raise OptionError(f"per_class is {self.per_class}; it must be between 1 and 1000")


@dataclass(frozen=True)
class ReportSummary:
    """What a report came to. ``problems`` are those listed in it, and ``broken`` the drawn images among them."""

    output: str
    place: str
    size: int
    samples: int
    classes: int
    drawn: int
    thumbnails: int
    verified: bool
    problems: int
    broken: int


def write_report(
    dataset: str | PathLike[str] | Sequence[str | PathLike[str]],
    output: str | PathLike[str],
    options: ReportOptions | None = None,
    *,
    watch: Watch = lambda samples, size: None,
) -> ReportSummary:
    """Write the report of ``dataset`` (a folder or address, a glob, brace notation, or a list of shards) to the file ``output``.

    ``watch`` is told samples and bytes verified so far. Raises `MissingExtraError` without jinja2 and `TargetError` when
    ``output`` cannot be written or is something else than a report, both before any work; what is wrong with the
    dataset is written in the report, and only one that cannot be found, or whose manifest cannot be read, raises.
    """
    options = options or ReportOptions()
    page = pages.Page()
    output = os.path.abspath(os.path.expanduser(os.fspath(output)))
    _check_output(output)
    place = locate(dataset, remote=True)
    found = open_dataset(place.store, place.names)
    splits = _splits(found, options.split)
    problems: list[Problem] = []
    if options.verify:
        problems = verify_dataset(dataset, workers=options.workers, watch=watch).problems
    survey = survey_shards(found, splits)
    grouping = sampling.group(survey, options.per_class, options.samples, options.seed)
    measured = set(sampling.draw(len(survey), options.samples, f"{options.seed}/measured"))
    seen = _look(survey, grouping, measured, options.workers)
    verified = {problem.shard for problem in problems}
    problems += [
        each for each in dict.fromkeys(survey.problems) if verified.isdisjoint({each.shard, index_name(each.shard)})
    ]
    shown = _within(MAX_THUMBNAILS, grouping.groups, seen)
    broken = [_broken(each) for each in seen.values() if each.error is not None]
    content = Content(
        place=place.store.url(),
        splits=splits,
        classes=found.manifest.classes if found.manifest is not None else (),
        grouping=grouping,
        shown=shown,
        measured=[seen[number] for number in sorted(measured & seen.keys())],
        fields=_fields(found, splits, seen.values()),
        shards=_shard_rows(found, splits, survey, [*problems, *broken]),
        verified=options.verify,
        problems=problems,
        broken=broken,
        looked_at=len(seen),
        unshown=sum(len(each.drawn) for each in grouping.groups) - len(shown),
    )
    data = page.render(content)
    LocalStore(os.path.dirname(output)).write_atomic(os.path.basename(output), [data])
    return ReportSummary(
        output=output,
        place=content.place,
        size=len(data),
        samples=content.samples,
        classes=len(content.named_groups),
        drawn=len(seen),
        thumbnails=sum(bool(each.thumbnail) for each in shown.values()),
        verified=options.verify,
        problems=len(problems) + len(broken),
        broken=len(broken),
    )


def _check_output(output: str) -> None:
    folder = os.path.dirname(output)
    if not os.path.isdir(folder):
        raise TargetError(f"there is no folder {folder!r} to write the report to; make it, or choose another place")
    if not os.access(folder, os.W_OK):
        raise TargetError(f"{folder!r} cannot be written to; choose another place with -o")
    if not os.path.lexists(output):
        return
    try:
        with open(output, "rb") as file:
            ours = pages.MARK in file.read(1000)
    except OSError:
        ours = False
    if not ours:
        raise TargetError(
            f"{output!r} is there and is no report, so it is not overwritten; choose another name with -o"
        )


def _splits(found: Dataset, split: str | None) -> tuple[str, ...]:
    if split is None:
        return tuple(found.splits)
    return (choose_split(found, split),)


def _look(survey: Survey, grouping: Grouping, measured: set[int], workers: int | None) -> dict[int, Seen]:
    """What was drawn, each looked at once, by id."""
    shown = {number for group in grouping.groups for number in group.drawn}
    tasks: dict[str, list[Chosen]] = {}
    for each, number, shard, sample in survey.samples(shown | measured):
        tasks.setdefault(shard.name, []).append(Chosen(each, number, sample, each in shown))
    looking = partial(look, survey.store)
    with make_engine("process", workers, looking) as engine:
        results = engine.run(looking, tasks.items(), lambda samples, size: None)
        return {each.id: each for result in results for each in result}


def _within(budget: int, groups: Iterable[Group], seen: dict[int, Seen]) -> dict[int, Seen]:
    """What is shown of what was drawn: one of each class, then a second of each, as long as there is room for thumbnails."""
    shown: dict[int, Seen] = {}
    for row in zip_longest(*(group.drawn for group in groups)):
        for number in row:
            each = seen.get(number) if number is not None else None
            if each is None:
                continue
            budget -= len(each.thumbnail)
            if budget < 0:
                return shown
            shown[each.id] = each
    return shown


def _broken(seen: Seen) -> Problem:
    return Problem(seen.shard, f"field {seen.image!r}: {seen.error}", key=seen.key, offset=seen.offset)


def _fields(found: Dataset, splits: Iterable[str], seen: Iterable[Seen]) -> tuple[str, ...]:
    """The fields' names: what the manifest says, else those of the samples that were looked at."""
    stated = {field for split in splits for field in (found.manifest.splits[split].fields if found.manifest else ())}
    return tuple(sorted(stated or {field for each in seen for field in each.fields}))


def _shard_rows(found: Dataset, splits: Iterable[str], survey: Survey, problems: Iterable[Problem]) -> list[ShardRow]:
    wrong = Counter(problem.shard for problem in problems)
    rows = []
    surveyed = {(shard.split, shard.name): shard.samples for shard in survey.shards}
    for split in splits:
        listed = {shard.name: shard for shard in found.manifest.splits[split].shards} if found.manifest else {}
        for name in found.splits[split]:
            info = listed.get(name)
            samples = info.samples if info is not None else surveyed.get((split, name))
            size = info.size if info is not None and info.size is not None else _size(found.store, name)
            rows.append(ShardRow(split, name, samples, size, wrong[name] + wrong[index_name(name)]))
    return rows


def _size(store: Store, name: str) -> int | None:
    try:
        return store.size(name)
    except StoreError:
        return None
