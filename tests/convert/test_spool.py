"""A spool and what is sorted through one: the same as in memory, wherever blocks and buckets end."""

from __future__ import annotations

import os
from array import array
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from wds_tools.convert.entries import Entry, dump_line
from wds_tools.convert.options import ConvertOptions
from wds_tools.convert.plan import make_plan
from wds_tools.convert.spool import Spool

LINES = st.lists(st.tuples(st.text(st.characters(exclude_characters="\n"), max_size=8), st.integers(0, 2**40)))
SMALL = {"keep": 7, "block": 3}


def filled(lines: list[tuple[str, int]], step: int, **limits: int) -> Spool:
    """A spool of these lines, added ``step`` at a time, or one by one."""
    spool = Spool(**limits)  # type: ignore[arg-type]
    if step == 1:
        for line, size in lines:
            spool.append(line, size)
    else:
        for start in range(0, len(lines), step):
            part = lines[start : start + step]
            spool.extend([line for line, _ in part], array("q", [size for _, size in part]))
    return spool


def held(spool: Spool) -> list[tuple[str, int]]:
    return [pair for lines, sizes in spool.blocks() for pair in zip(lines, sizes, strict=True)]


@settings(deadline=None)
@given(LINES, st.integers(1, 20), st.integers(0, 9))
def test_everything_comes_out_as_it_went_in(lines, step, probes):
    spool = filled(lines, step, **SMALL)
    assert held(spool) == lines
    assert held(spool) == lines  # and once more
    assert list(spool) == [line for line, _ in lines]
    assert len(spool) == len(lines)
    assert spool.total == sum(size for _, size in lines)
    assert spool.in_memory == (len(lines) <= 7)
    assert spool.pick(probes) == filled(lines, 1).pick(probes)
    assert len(spool.pick(probes)) == min(probes, len(lines))


def test_names_that_are_not_utf_8_pass_through_the_disk():
    lines = [(os.fsdecode(b"caf\xe9%d" % number), number) for number in range(20)]
    assert held(filled(lines, 4, **SMALL)) == lines


def test_a_spool_leaves_no_file_behind(tmp_path):
    spool = Spool(str(tmp_path), **SMALL)
    for number in range(50):
        spool.append("x", number)
    assert not spool.in_memory
    assert list(tmp_path.iterdir()) == []
    spool.clear()
    assert (len(spool), spool.total, held(spool)) == (0, 0, [])


@settings(deadline=None, max_examples=200)
@given(
    count=st.integers(1, 300),
    block=st.integers(1, 60),
    seed=st.integers(0, 5),
    shuffle=st.booleans(),
    metadata=st.booleans(),
    blocks=st.integers(0, 40),
)
def test_a_plan_made_on_the_disk_is_the_one_made_in_memory(count, block, seed, shuffle, metadata, blocks):
    options = ConvertOptions(max_size=20_000, seed=seed, shuffle=shuffle, metadata=metadata)
    lines = [
        (dump_line(Entry(f"c/{number}.jpg", number * 37 % 5000, number)), number * 37 % 5000) for number in range(count)
    ]
    lengths = [blocks] * (count // blocks) + [count % blocks] if blocks else []
    lengths = [length for length in lengths if length]
    on_disk = make_plan(filled(lines, 5, keep=0, block=block), options, blocks=lengths)
    assert list(on_disk) == list(make_plan(filled(lines, 5), options, blocks=lengths))
    other = make_plan(filled(lines, 5), replace(options, seed=seed + 1), blocks=lengths)
    assert not shuffle or count < 50 or list(other) != list(make_plan(filled(lines, 5), options, blocks=lengths))
