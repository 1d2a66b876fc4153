"""Blocks in files that people edit: found, told from edited ones, replaced with nothing else touched."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.format import blocks

OLD, NEW = blocks.block(["a: 1", "b: 2"]), blocks.block(["a: 3"])


def test_a_block_is_replaced_and_what_is_around_it_stays() -> None:
    found = blocks.find(b"---\nmine: x\n" + OLD + b"---\nmine too")
    assert found is not None
    assert not found.edited
    assert (found.start, found.end) == (12, 12 + len(OLD))


@pytest.mark.parametrize(
    "edit",
    [
        lambda old: old.replace(b"b: 2", b"b: 4"),
        lambda old: old.replace(b"b: 2\n", b""),
        lambda old: old.replace(b"a: 1", b"A: 1"),
    ],
)
def test_an_edited_block_is_told(edit: object) -> None:
    found = blocks.find(edit(OLD))  # type: ignore[operator]
    assert found is None or found.edited


def test_one_without_an_end_is_none() -> None:
    assert blocks.find(OLD.replace(b"# end", b"# e n d")) is None
    assert blocks.find(b"") is None


def test_the_last_mark_needs_no_line_end() -> None:
    found = blocks.find(OLD.rstrip(b"\n"))
    assert found is not None
    assert not found.edited


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_scalar_is_its_text_for_yaml(text: str) -> None:
    assert yaml.safe_load(f"- {blocks.scalar(text)}\n") == [text]


@pytest.mark.parametrize(
    "text",
    ["true", "No", "null", "1e5", "0x1F", "1:20", "2026-11-21", "", "~", "- a", "a: b", "#a", "it's", "a\nb", "{x}"],
)
def test_nor_is_it_anything_else(text: str) -> None:
    assert yaml.safe_load(f"{blocks.scalar(text)}: {blocks.scalar(text)}") == {text: text}


def test_what_no_encoding_has_is_escaped() -> None:
    assert b"\\udcff" in blocks.block([blocks.scalar("\udcff")])
