import os

import pytest

from tests.support import trees
from wds_tools.convert import parts, sources
from wds_tools.errors import SourceError


def is_part(name):
    return name.endswith(".parquet")


def files(root, *names):
    return trees.make(root, dict.fromkeys(names, b"x"))


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["a.parquet"], "parquet"),
        (["data/a.parquet", "README.md"], "parquet"),
        (["default/train/0000.parquet"], "parquet"),
        (["train-00000-of-00002", "train-00001-of-00002"], "tfrecord"),
        (["imagenet-train.tfrecord-00000-of-00010"], "tfrecord"),
        (["a.tfrecords", "labels.txt"], "tfrecord"),
        (["cat/1.jpg"], "tree"),
        (["cat/1.jpg", "labels.parquet"], "tree"),
        (["cat/1.jpg", "cat/a.parquet"], "tree"),
        (["1.jpg", "a.parquet"], "tree"),
        (["a/x.parquet", "b/x.parquet"], "tree"),
        (["a/b/c/d/e/f/x.parquet"], "tree"),
        ([".hidden.parquet"], "tree"),
    ],
)
def test_a_folder_is_told_by_what_it_holds(tmp_path, names, kind):
    assert sources.kind_of(str(files(tmp_path / "x", *names))).name == kind


def test_patterns_stand_for_sorted_files(tmp_path, monkeypatch):
    monkeypatch.chdir(files(tmp_path, "d/b-2.parquet", "d/b-1.parquet", "d/a.parquet", "e/b-3.parquet", "d/c.txt"))
    here = os.getcwd()
    assert parts.find("d/b-*.parquet", is_part, "train") == (f"{here}/d", ["b-1.parquet", "b-2.parquet"])
    assert parts.find("{e,d}/b-[13].parquet", is_part, "train") == (here, ["d/b-1.parquet", "e/b-3.parquet"])
    assert sources.kind_of("d/b-*").name == "parquet"
    for pattern, why in (
        ("d/x-*.parquet", "matches no file"),
        ("d/*", "of another kind"),
        ("d/b-{1..3}.parquet", "b-3.parquet"),
    ):
        with pytest.raises(SourceError, match=why):
            parts.find(pattern, is_part, "train")
    with pytest.raises(SourceError, match="does not exist"):
        parts.find("d/none.parquet", is_part, "train")


@pytest.mark.parametrize(
    ("split", "chosen"),
    [
        ("train", "train-0.parquet"),
        ("val", "validation-0.parquet"),
        ("validation", "validation-0.parquet"),
        ("test", "a_test.parquet"),
    ],
)
def test_of_several_splits_that_is_taken_which_is_made(tmp_path, split, chosen):
    root = files(tmp_path / "data", "train-0.parquet", "validation-0.parquet", "a_test.parquet")
    assert parts.find(str(root), is_part, split) == (str(root), [chosen])


def test_a_split_that_is_not_there_is_not_made_of_others(tmp_path):
    root = files(tmp_path / "data", "test-0.parquet")
    with pytest.raises(SourceError, match="holds files of test, none of 'train'"):
        parts.find(str(root), is_part, "train")
    assert parts.find(str(files(root, "more.parquet")), is_part, "train")[1] == ["more.parquet", "test-0.parquet"]
