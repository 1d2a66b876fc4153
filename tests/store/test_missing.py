"""What is said of a path where nothing is."""

import os

import pytest

from tests.support import trees
from wds_tools.store.missing import why_missing


@pytest.fixture
def folder(tmp_path, monkeypatch):
    trees.make(tmp_path, {"data/train-000000.tar": b"", "notes.txt": b""})
    (tmp_path / "link").symlink_to("gone")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("dta", "'dta' does not exist in '{}'; did you mean 'data'?"),
        ("nothing like it", "'nothing like it' does not exist in '{}'; check the path"),
        ("data/", "'data/' does not exist; check the path"),  # it came meanwhile
        ("data/val", "'data/val' does not exist: there is no 'val' in '{}/data'; check the path"),
        ("dta/x.tar", "'dta/x.tar' does not exist: there is no 'dta' in '{}'; did you mean 'data'?"),
        ("dta/../data", "'dta/../data' does not exist: there is no 'dta' in '{}'; did you mean 'data'?"),
        ("notes.txt/x", "'notes.txt/x' does not exist: '{}/notes.txt' is a file, not a folder; check the path"),
        ("link", "'link' does not exist: '{}/link' is a broken symbolic link; check the path"),
        ("{}/dta", "'{}/dta' does not exist: there is no 'dta' in '{}'; did you mean 'data'?"),
        ("", "'' does not exist: the path is empty; check the variable that it comes from"),
    ],
)
def test_it_says_what_is_missing_where(folder, path, says):
    assert why_missing(path.replace("{}", str(folder))) == says.replace("{}", str(folder))


def test_a_folder_that_may_not_be_entered_is_told_from_one_without_it():
    with trees.open_to_all() as place:
        (place / "locked").mkdir(mode=0o000)
        said = trees.unprivileged(lambda: why_missing(str(place / "locked" / "data")))
        assert said.endswith(f"in {str(place / 'locked')!r}: permission denied; check the owner and the mode")


def test_a_working_folder_that_is_gone_is_no_trouble(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    assert why_missing("data") == "'data' does not exist; check the path"
