"""Bins: all values are counted, edges are round, an odd one out squeezes nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wds_tools.tools.histograms import BINS, aspects, histogram, quantile


def text(value: float) -> str:
    return f"{value:g}"


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300))
def test_every_value_is_counted_in_few_bins_and_the_fullest_is_the_highest(values: list[int]) -> None:
    chart = histogram(values, text)
    assert chart is not None
    assert sum(bin.count for bin in chart.bins) == chart.count == len(values)
    assert 1 <= len(chart.bins) <= BINS
    assert max(bin.height for bin in chart.bins) == 1
    assert chart.peak == max(bin.count for bin in chart.bins)
    assert all(0 <= tick.position <= 1 for tick in chart.ticks)
    assert (chart.least, chart.most) == (text(min(values)), text(max(values)))


@given(st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=100))
def test_every_aspect_is_counted(values: list[float]) -> None:
    chart = aspects(values)
    assert chart is not None
    assert sum(bin.count for bin in chart.bins) == len(values)
    assert "1:1" in {tick.text for tick in chart.ticks}


def test_no_values_make_no_chart() -> None:
    assert histogram([], text) is None
    assert aspects([]) is None


def test_one_value_makes_one_bar() -> None:
    chart = histogram([256] * 9, text)
    assert chart is not None
    assert [(bin.text, bin.count) for bin in chart.bins if bin.count] == [("256 to 257", 9)]


def test_edges_are_round_and_an_odd_one_out_is_in_an_open_bin() -> None:
    chart = histogram([*range(100, 600), 50_000], text)
    assert chart is not None
    assert chart.bins[1].text == "120 to 140"
    assert chart.bins[-1].text == "580 or more"
    assert chart.bins[-1].count == 21
    assert [tick.text for tick in chart.ticks] == ["200", "400", "600"]


def test_a_square_lies_in_the_middle_of_a_bin_and_extremes_in_open_ones() -> None:
    chart = aspects([1.0] * 500 + [1.01] * 500 + [100.0, 0.01])
    assert chart is not None
    middle = len(chart.bins) // 2
    assert [bin.count for bin in chart.bins if bin.count] == [1, 1000, 1]
    assert chart.bins[middle].count == 1000
    assert chart.bins[0].text.startswith("below ")
    assert chart.bins[-1].text.endswith(" or more")


def test_a_quantile_is_one_of_the_values() -> None:
    assert [quantile([1, 2, 3, 4], share) for share in (0, 0.25, 0.5, 1)] == [1, 2, 3, 4]
