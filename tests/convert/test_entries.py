import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wds_tools.convert import entries
from wds_tools.convert.entries import Entry, Sibling

# As a file system hands them over: bytes that are no UTF-8 arrive as U+DC80 to U+DCFF.
paths = st.binary(min_size=1).map(os.fsdecode) | st.text("\t\n\r\\tnr/ .\x0b\x1c\x85\u2028é", min_size=1)
texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers(-(2**63), 2**63 - 1)
sizes = st.integers(0, 2**63 - 1)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
some_entries = st.builds(
    Entry,
    path=paths,
    size=sizes,
    mtime_ns=numbers,
    label=st.none() | sizes,
    siblings=st.lists(st.builds(Sibling, ext=texts, path=paths, size=sizes, mtime_ns=numbers), max_size=3).map(tuple),
    metadata=st.none() | st.dictionaries(texts, jsons, max_size=3),
)


@settings(deadline=None)
@given(some_entries)
@example(Entry("a\tb\nc\rd\\e", 1, 2))
@example(Entry("\\t\\\\n", 1, 2, 0, metadata={}))
@example(Entry("caf\udce9.jpg", 1, -2, 3, (Sibling("txt", "caf\udce9\t.txt", 4, 5),), {"\t": ["\n", 1.5]}))
def test_an_entry_comes_back_from_its_line(entry):
    assert entries.load_line(entries.dump_line(entry)) == entry


@settings(deadline=None)
@given(some_entries)
def test_a_line_is_one_line_and_survives_being_written_down_as_bytes(entry):
    line = entries.dump_line(entry)
    assert "\n" not in line
    assert "\r" not in line
    assert line.count("\t") == 3 + bool(entry.siblings or entry.metadata is not None)
    assert line.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape") == line


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (Entry("cat/a.jpg", 12, 34, 5), "5\t12\t34\tcat/a.jpg"),
        (Entry("a.jpg", 12, 34), "\t12\t34\ta.jpg"),
        (Entry("a\tb.jpg", 0, 0, 0), "0\t0\t0\ta\\tb.jpg"),
        (Entry("a", 1, 2, 0, metadata={"é": 1}), '0\t1\t2\ta\t{"metadata": {"\\u00e9": 1}}'),
        (Entry("a", 1, 2, 0, (Sibling("txt", "b", 3, 4),)), '0\t1\t2\ta\t{"siblings": [["txt", "b", 3, 4]]}'),
    ],
)
def test_a_line_is_what_the_room_says_of_it(entry, line):
    assert entries.dump_line(entry) == line


@settings(deadline=None)
@given(paths)
def test_escaping_keeps_the_path_and_takes_out_what_separates(path):
    escaped = entries.escape(path)
    assert not {"\t", "\n", "\r"} & set(escaped)
    assert entries.unescape(escaped) == path
