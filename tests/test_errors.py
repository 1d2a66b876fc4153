import copy
import inspect
import pickle
import re

import pytest

import wds_tools
from wds_tools import errors
from wds_tools.errors import DecodeError, MissingExtraError, OptionError, SampleError, StoreError, WdsToolsError

ALL = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, WdsToolsError)]
MESSAGE = "cannot read '/data/träin {x} %s.tar': it's gone; check the path"


def drawn() -> dict[str, str | None]:
    """Each error's parent as the docstring draws it."""
    parents: dict[str, str | None] = {}
    line: list[str] = []  # from the root to here
    for match in re.finditer(r"^    ((?:[│ ]   )*)((?:[├└]── )?)(\w+)", errors.__doc__ or "", re.MULTILINE):
        depth = (len(match[1]) + len(match[2])) // 4
        line[depth:] = [match[3]]
        parents[match[3]] = line[depth - 1] if depth else None
    return parents


def test_the_tree_in_the_docstring_is_the_real_one():
    real = {each.__name__: next((p.__name__ for p in each.__bases__ if p in ALL), None) for each in ALL}
    assert drawn() == real
    assert list(drawn()) == [name for name, each in vars(errors).items() if each in ALL]  # and in its order


def test_the_tree_says_what_each_means():
    for line in (errors.__doc__ or "").splitlines():
        if "──" in line:
            assert re.search(r"\w+ {2,}\w.*\w", line), line


@pytest.mark.parametrize("kind", ALL)
def test_every_error_pickles_and_keeps_its_message(kind):
    error = kind(MESSAGE)
    assert str(error) == MESSAGE
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == MESSAGE
        assert again.args == error.args


@pytest.mark.parametrize("kind", [each for each in ALL if issubclass(each, SampleError)])
def test_a_bad_sample_keeps_its_reason_and_its_place(kind):
    error = kind("truncated").at("train-000000.tar, key 'a', offset 512")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.reason, again.place) == ("truncated", "train-000000.tar, key 'a', offset 512")
    assert str(again) == str(error) == "train-000000.tar, key 'a', offset 512: truncated"


def test_telling_the_place_leaves_the_first_error_as_it_was():
    error = DecodeError("truncated")
    assert str(error.at("here")) == "here: truncated"
    assert (str(error), error.place) == ("truncated", "")


@pytest.mark.parametrize(
    ("kind", "builtin"), [(OptionError, ValueError), (StoreError, OSError), (MissingExtraError, ImportError)]
)
def test_what_python_has_a_name_for_is_caught_by_it(kind, builtin):
    with pytest.raises(builtin, match="gone"):
        raise kind(MESSAGE)


def test_an_error_without_a_message_prints_nothing():
    assert all(str(kind()) == "" for kind in ALL if not issubclass(kind, SampleError))


def test_every_error_is_a_public_name():
    assert all(getattr(wds_tools, kind.__name__) is kind for kind in ALL)
    assert {kind.__name__ for kind in ALL} <= set(wds_tools.__all__)
