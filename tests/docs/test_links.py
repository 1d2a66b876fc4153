"""Links of README.md and docs/ lead somewhere, and the pages lead a reader from the first to the last."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
ORDER = [
    "concepts",
    "format",
    "shuffling",
    "decoding",
    "remote",
    "frameworks",
    "migrating",
    "comparison",
    "sidecars",
    "cli",
    "architecture",
    "performance",
    "scale",
]

FENCES = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINKS = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)|<(?:img|a)\b[^>]*(?:src|href)=\"([^\"]+)\"")


def prose(page: Path) -> str:
    """The page without blocks and spans of code."""
    return re.sub(r"`[^`\n]*`", lambda span: re.sub(r"[\[\]()]", " ", span[0]), text_of(page))


def text_of(page: Path) -> str:
    return FENCES.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    return [one or other for one, other in LINKS.findall(prose(page))]


def anchors(page: Path) -> set[str]:
    """What the page's headings are called in addresses, by GitHub's rules."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *$", text_of(page), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        again = sum(other == name or re.fullmatch(rf"{re.escape(name)}-\d+", other) is not None for other in found)
        found.add(f"{name}-{again}" if again else name)
    return found


def broken(page: Path) -> list[str]:
    bad = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and (target.suffix != ".md" or anchor not in anchors(target))):
            bad.append(link)
    return bad


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_image_and_heading_that_a_page_links_to_is_there(page: Path) -> None:
    assert links(page), "the links of a page are not found"
    assert broken(page) == []


def test_a_link_to_nowhere_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b`, c: d\n# A `b`, c: d\n[1](#a-b-c-d) [2](#a-b-c-d-1) [3](#a-b) [4](none.md) ![5](none.svg)\n"
        "[`6`](page.md#a-b-c-d) [7](page.md#e) [8](https://host/none) `[9](none)`\n```\n# e\n[10](none)\n```\n"
    )
    assert broken(page) == ["#a-b", "none.md", "none.svg", "page.md#e"]


def test_every_page_ends_with_a_link_to_the_next() -> None:
    assert {page.stem for page in DOCS.glob("*.md")} == {*ORDER, "README"}
    for name, following in zip(ORDER, [*ORDER[1:], "README"], strict=True):
        last = (DOCS / f"{name}.md").read_text(encoding="utf-8").rstrip().splitlines()[-1]
        assert re.fullmatch(rf"(Next|Back): \[.+\]\({following}\.md\)\.", last), f"{name}.md ends with {last!r}"


def test_the_index_lists_the_pages_in_reading_order() -> None:
    listed = [link for link in links(DOCS / "README.md") if link != "../README.md"]
    assert listed == [f"{name}.md" for name in ORDER]
