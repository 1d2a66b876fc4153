from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.convert.selection import Selection, key_hash
from wds_tools.errors import OptionError

SHARES = st.floats(0, 1, exclude_min=True, exclude_max=True)


def test_the_share_of_a_key_is_the_same_for_ever() -> None:
    assert [key_hash(key) for key in ("a", "cat/0001")] == [0x40F89E395B66422F, 0x8F3B2AC7DF26A140]


@given(SHARES, st.integers(0, (1 << 64) - 1))
def test_parts_that_meet_take_every_key_once(cut: float, hashed: int) -> None:
    parts = [Selection(share=(0.0, cut)), Selection(share=(cut, 1.0))]
    assert sum(part.has(hashed) for part in parts) == 1


def test_about_the_fraction_is_taken() -> None:
    taken = sum(Selection(share=(0.0, 0.1)).has(key_hash(f"c/{number}")) for number in range(10_000))
    assert 900 < taken < 1100


@pytest.mark.parametrize("share", [(0.5, 0.5), (0.6, 0.5), (-0.1, 0.5), (0.0, 1.1), (float("nan"), 1.0)])
def test_a_share_that_is_none_is_refused(share: tuple[float, float]) -> None:
    with pytest.raises(OptionError, match="share is"):
        Selection(share=share)


def test_what_is_listed_twice_is_refused() -> None:
    with pytest.raises(OptionError, match="class 'cat' is listed twice"):
        Selection(classes=("cat", "dog", "cat"))
    with pytest.raises(OptionError, match="split 'train' is listed twice"):
        Selection(splits=("train", "train"))
