"""Draws: by class, evenly, by the seed, and counts that are exact or said to be estimates."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import others, trees
from wds_tools.convert.run import convert_tree
from wds_tools.format.dataset import open_dataset
from wds_tools.store.resolve import locate
from wds_tools.tools import sampling
from wds_tools.tools.sampling import draw, group
from wds_tools.tools.survey import Survey, survey_shards


def surveyed(place: Path) -> Survey:
    found = locate(place)
    dataset = open_dataset(found.store, found.names)
    return survey_shards(dataset, list(dataset.splits))


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    folder = tmp_path_factory.mktemp("survey")
    tree = trees.classes(folder / "tree", names=[f"c{number:02d}" for number in range(10)], count=9)
    trees.classes(folder / "tree", names=["rare"], count=2)
    convert_tree(tree, folder / "data", max_count=13, workers=0)
    return surveyed(folder / "data")


def test_a_draw_has_no_repeats_and_follows_from_the_seed() -> None:
    assert sorted(draw(5, 9, "x")) == [0, 1, 2, 3, 4]
    assert len(set(draw(1000, 100, "x"))) == 100
    assert draw(1000, 100, "x") == draw(1000, 100, "x") != draw(1000, 100, "y")


def test_ids_are_places_in_the_line_of_shards(survey: Survey) -> None:
    assert len(survey) == 92
    listed = [(each, number, shard.name, sample.key) for each, number, shard, sample in survey.samples(range(92))]
    assert [each for each, *_ in listed] == list(range(92))
    assert all(each == 13 * int(shard[6:12]) + number for each, number, shard, _ in listed)
    assert all(survey.folders[survey.codes[each]] == key.split("/")[0] for each, _, _, key in listed)


@pytest.mark.parametrize(
    ("per_class", "total", "sizes"), [(4, 1000, {4, 2}), (100, 1000, {9, 2}), (100, 50, {4, 5, 2})]
)
def test_classes_are_drawn_from_evenly(survey: Survey, per_class: int, total: int, sizes: set[int]) -> None:
    found = group(survey, per_class, total)
    assert {len(each.drawn) for each in found.groups} == sizes
    assert sum(len(each.drawn) for each in found.groups) <= total
    assert found.exact
    assert [each.count for each in found.groups] == [9] * 10 + [2]
    for each in found.groups:
        assert len(set(each.drawn)) == len(each.drawn)
        assert len({survey.codes[number] for number in each.drawn}) == 1


def test_with_more_classes_than_samples_it_is_one_each_of_some(survey: Survey) -> None:
    sizes = [len(each.drawn) for each in group(survey, 5, 4).groups]
    assert sorted(sizes) == [0] * 7 + [1] * 4


def test_few_labels_are_read_where_folders_tell(survey: Survey) -> None:
    assert group(survey, 5, 1000).labels == 10 * sampling.CHECKED + 2


def test_beyond_the_limit_counts_are_estimates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, bytes] = {}
    for number in range(400):
        files |= {f"{number:03d}.jpg": b"x", f"{number:03d}.cls": b"%d" % (number % 4 == 0)}
    others.tar(tmp_path / "x.tar", files)
    flat = surveyed(tmp_path / "x.tar")
    exact = group(flat, 5, 100)
    assert (exact.exact, exact.labels, [each.count for each in exact.groups]) == (True, 400, [300, 100])
    monkeypatch.setattr(sampling, "MAX_LABELS", 200)
    about = group(flat, 5, 100)
    assert (about.exact, about.labels) == (False, 200)
    assert sum(each.count for each in about.groups) == 400
    assert [each.count for each in about.groups] != [300, 100]  # the draw is not that even


def test_a_folder_of_two_classes_makes_labels_decide(tmp_path: Path) -> None:
    files: dict[str, bytes] = {}
    for number in range(40):
        files |= {f"f{number // 20}/{number:03d}.jpg": b"x", f"f{number // 20}/{number:03d}.cls": b"%d" % (number % 2)}
    others.tar(tmp_path / "x.tar", files)
    assert [each.count for each in group(surveyed(tmp_path / "x.tar"), 5, 100).groups] == [20, 20]


def test_two_folders_of_one_class_are_one_class(tmp_path: Path) -> None:
    files: dict[str, bytes] = {}
    for number in range(40):
        files |= {
            f"f{number // 10}/{number:03d}.jpg": b"x",
            f"f{number // 10}/{number:03d}.cls": b"%d" % (number // 20),
        }
    others.tar(tmp_path / "x.tar", files)
    found = group(surveyed(tmp_path / "x.tar"), 5, 100)
    assert [(each.label, each.count) for each in found.groups] == [("0", 20), ("1", 20)]


def test_text_labels_come_after_indexes_and_one_written_two_ways_is_one(tmp_path: Path) -> None:
    labels = [b"cat", b"10", b"9", b"09", b"9\n", b"9" * 30]
    files = {f"{n}.{ext}": data for n, label in enumerate(labels) for ext, data in (("jpg", b"x"), ("cls", label))}
    others.tar(tmp_path / "x.tar", files)
    found = group(surveyed(tmp_path / "x.tar"), 5, 100)
    assert [(each.label, each.count) for each in found.groups] == [("9", 3), ("10", 1), ("9" * 30, 1), ("cat", 1)]
