from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.convert.classes import merge
from wds_tools.errors import OptionError, SourceError

NAMES = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=5, unique=True).map(tuple)


def test_equal_lists_and_no_lists_leave_labels_unread() -> None:
    assert merge([("x", ("a", "b")), ("y", ("a", "b"))]).labels == (None, None)
    assert merge([("x", ("a", "b"))], fixed=("a", "b")) == merge([("x", ("a", "b"))])
    assert merge([("x", ()), ("y", ())]).labels == (None, None)
    assert merge([("x", ())]).names == ()


def test_the_first_ones_classes_keep_their_places() -> None:
    merged = merge([("x", ("m", "a")), ("y", ("z", "a", "b"))])
    assert merged.names == ("m", "a", "z", "b")
    first, second = merged.labels
    assert first is not None
    assert second is not None
    assert [first.of(label) for label in (0, 1)] == [0, 1]
    assert [second.of(label) for label in (0, 1, 2)] == [2, 1, 3]
    with pytest.raises(KeyError):
        first.of(2)  # what the other one calls 'z'


@given(st.lists(NAMES, min_size=1, max_size=4), st.data())
def test_every_label_means_the_same_name_before_and_after(lists: list[tuple[str, ...]], data: st.DataObject) -> None:
    there = sorted({name for names in lists for name in names})
    chosen = data.draw(st.lists(st.sampled_from(there), unique=True))
    merged = merge([(str(number), names) for number, names in enumerate(lists)], chosen)
    assert set(merged.names) == set(chosen or there)
    assert len(set(merged.names)) == len(merged.names)
    for names, labels in zip(lists, merged.labels, strict=True):
        for label, name in enumerate(names):
            new = label if labels is None else labels.of(label)
            assert (name in merged.names) == (new is not None)
            if new is not None:
                assert merged.names[new] == name


def test_a_fixed_list_stays_whole_and_chosen_classes_keep_their_places_in_it() -> None:
    merged = merge([("x", ("a", "b", "c"))], ["c"], fixed=("c", "b", "a"))
    assert merged.names == ("c", "b", "a")
    (labels,) = merged.labels
    assert labels is not None
    assert [labels.of(label) for label in range(3)] == [None, None, 0]
    with pytest.raises(SourceError, match="'b' of 'x' is not among"):
        merge([("x", ("a", "b"))], fixed=("a",))
    assert merge([("x", ("a", "b"))], ["a"], fixed=("a",)).names == ("a",)


def test_classes_without_names_are_chosen_by_their_numbers() -> None:
    merged = merge([("x", ()), ("y", ())], ["12", "3"])
    assert merged.names == ("3", "12")
    for labels in merged.labels:
        assert labels is not None
        assert [labels.of(label) for label in (3, 12, 4, 10**17)] == [0, 1, None, None]
    assert merge([("x", ())], ["12", "3"], fixed=("3", "12")) == merge(
        [("x", ())], ["3", "12"]
    )  # as for a second split
    with pytest.raises(OptionError, match="'cat' is not there: 'x' names no classes"):
        merge([("x", ())], ["cat"])
    with pytest.raises(OptionError, match="'03'"):
        merge([("x", ())], ["03"])


def test_a_list_without_names_goes_with_a_fixed_one_only() -> None:
    with pytest.raises(SourceError, match=r"'y' names no classes and 'x' has 2.*--classes"):
        merge([("x", ("a", "b")), ("y", ())])
    merged = merge([("x", ("b", "a")), ("y", ())], fixed=("a", "b"))
    first, second = merged.labels
    assert first is not None
    assert second is not None
    assert [first.of(0), first.of(1), second.of(0), second.of(1)] == [1, 0, 0, 1]
    with pytest.raises(KeyError):
        second.of(2)


def test_a_chosen_class_must_be_there() -> None:
    with pytest.raises(OptionError, match="'cow' is not among the 2 classes that are there"):
        merge([("x", ("ant", "bee"))], ["ant", "cow"])
