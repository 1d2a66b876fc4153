"""What a dataset holds, as numbers: every index is read once, and of each sample four bytes are kept.

A sample's id is its place in the line of all shards. What is wanted of a sample later, its fields and where they lie, is read
from the index again, for the few that are asked for. A damaged shard is left out and listed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from wds_tools.errors import FormatError, NotFoundError, StaleIndexError, StoreError, TarError
from wds_tools.format import index, manifest, tar
from wds_tools.format.dataset import Dataset
from wds_tools.records import Problem, Sample
from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore
from wds_tools.stream.shards import load_lines, scan_lines


@dataclass(frozen=True)
class SurveyedShard:
    """A shard whose index was read. ``lines`` are kept only where there is no index file to read them from again."""

    split: str
    name: str
    samples: int
    lines: list[bytes] | None = field(default=None, repr=False)


@dataclass
class Survey:
    """All samples as numbers: ``folders[codes[id]]`` is the folder in the key of sample ``id``."""

    store: Store
    shards: list[SurveyedShard] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    codes: array[int] = field(default_factory=lambda: array("i"))
    problems: list[Problem] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.codes)

    def by_shard(self, ids: Iterable[int]) -> dict[int, list[int]]:
        """Sample numbers in their shards, by shard number, both in order."""
        found: dict[int, list[int]] = {}
        for number in sorted(ids):
            shard = bisect_right(self.starts, number) - 1
            found.setdefault(shard, []).append(number - self.starts[shard])
        return found

    def samples(self, ids: Iterable[int]) -> Iterator[tuple[int, int, SurveyedShard, Sample]]:
        """Id, number in its shard, shard and fields of each of ``ids``, in order; what a damaged index hides is left out."""
        for number, chosen in self.by_shard(ids).items():
            shard = self.shards[number]
            try:
                lines = shard.lines or load_lines(self.store, shard.name)
                for each in chosen:
                    yield self.starts[number] + each, each, shard, index.parse_line(lines[each])
            except (FormatError, StoreError, IndexError) as error:
                self.problems.append(Problem(index.index_name(shard.name), f"cannot be read: {error}"))


def survey_shards(found: Dataset, splits: Sequence[str]) -> Survey:
    """Read every index of these ``splits``; a shard that cannot be read becomes a problem, not an error."""
    result = Survey(found.store)
    codes: dict[bytes, int] = {}
    stated = found.manifest.splits if found.manifest is not None else {}
    for split in splits:
        counts = {shard.name: shard.samples for shard in stated[split].shards} if split in stated else {}
        for name in found.splits[split]:
            try:
                lines, kept = _lines(found.store, name)
            except (FormatError, StoreError) as error:
                result.problems.append(Problem(name, f"left out of this report: {error}"))
                continue
            if counts.get(name, len(lines)) != len(lines):
                message = f"its index lists {len(lines)} samples where {manifest.NAME} says {counts[name]}"
                result.problems.append(Problem(name, f"{message}; run 'wds-tools index'"))
            result.starts.append(len(result.codes))
            result.shards.append(SurveyedShard(split, name, len(lines), kept))
            result.codes.extend(codes.setdefault(_folder(line), len(codes)) for line in lines)
    result.folders = [folder.decode("utf-8", "replace") for folder in codes]
    return result


def _lines(store: Store, name: str) -> tuple[list[bytes], list[bytes] | None]:
    """The index lines of a shard that they fit, and the same once more if no index file has them."""
    try:
        lines = load_lines(store, name)
    except NotFoundError:
        lines = scan_lines(store, name)
        return lines, lines
    ends = [index.parse_line(line) for line in lines[:1] + lines[-1:]]
    if isinstance(store, LocalStore):
        with store.stream(name) as file:
            index.check_fits(ends, file, store.size(name), store.url(name))
    else:
        _check_remote(store, name, ends)
    return lines, None


def _check_remote(store: Store, name: str, ends: Sequence[Sample]) -> None:
    """The same, as far as two small requests tell: the headers of the first and the last field."""
    for end in {ends[0].fields[0], ends[-1].fields[-1]} if ends else ():
        block = store.read(name, end.offset - tar.BLOCK, tar.BLOCK)
        try:
            fits = index.is_header_of(end, block)
        except TarError:
            fits = False
        if not fits:
            raise StaleIndexError(f"{store.url(name)}: its index speaks of another shard; run 'wds-tools index'")


def _folder(line: bytes) -> bytes:
    """What stands before the first slash of the first member's name, empty where there is none."""
    folder, slash, _ = line.split(b" ", 4)[3].partition(b"/") if line.count(b" ") >= 3 else (b"", b"", b"")
    return folder if slash else b""
