"""What a report's page holds, read as a browser would."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

TILE = ["key", "shard", "number", "size", "image", "pixels", "shown", "picture", "error", "note", "fields"]


@dataclass
class ReadPage:
    """The page as text, its elements as (name, attributes), its words, and the data of its script."""

    text: str
    elements: list[tuple[str, dict[str, str | None]]]
    words: str
    data: dict[str, Any]

    def classes(self) -> dict[str, list[int]]:
        """Counts by split of each class, by its name."""
        return {name: counts for name, counts, _ in self.data["classes"]}

    def tiles(self) -> list[dict[str, Any]]:
        """Every sample shown, with its class."""
        return [
            {"class": name, **dict(zip(TILE, tile, strict=True))}
            for name, _, tiles in self.data["classes"]
            for tile in tiles
        ]

    def keys(self) -> set[str]:
        return {tile["key"] for tile in self.tiles()}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            (self.scripts if tag == "script" else self.styles).append("")

    def handle_data(self, data: str) -> None:
        last = self.elements[-1][0] if self.elements else ""
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        elif self.cdata_elem == "style":
            self.styles[-1] += data
        elif last:
            self.words.append(data)


def read(path: Path) -> ReadPage:
    text = path.read_text(encoding="utf-8")
    reader = _Reader()
    reader.feed(text)
    data, script = reader.scripts
    (policy,) = (str(each["content"]) for tag, each in reader.elements if each.get("http-equiv"))
    # Only what is part of the page may run; anything that slipped in would not have its digest.
    for kind, code in (("script-src", script), ("style-src", reader.styles[0])):
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; img-src data:; ")
    words = re.sub(r"\s+", " ", "".join(reader.words))
    return ReadPage(text, reader.elements, words, json.loads(data))
