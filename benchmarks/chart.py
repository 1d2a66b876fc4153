"""Bar charts as SVG: letters as letters, legible on light and dark pages, the same bytes for the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, LABELS, VALUES, BAR, GAP, HEAD = 760, 270, 150, 20, 7, 34
# Each has a contrast of 4 or more with white and with near black.
TEXT, OURS, PEER, BOUND = "#767f89", "#1f7ae0", "#868e97", "#b8761d"
FILLS = {"ours": OURS, "peer": PEER, "bound": BOUND}


@dataclass(frozen=True)
class Bar:
    """``kind`` is ours, peer, or bound: what cannot be exceeded. Without a value there is ``note`` only."""

    label: str
    value: float | None
    kind: str
    note: str


@dataclass(frozen=True)
class Group:
    """Bars that share a scale."""

    title: str
    bars: Sequence[Bar]


def svg(title: str, groups: Sequence[Group]) -> str:
    """The chart. ``title`` is what a screen reader says."""
    rows, top = [], 6
    for group in groups:
        rows.append(_text(0, top + 18, group.title, "font-weight='600'"))
        top += HEAD
        most = max((bar.value for bar in group.bars if bar.value is not None), default=1.0)
        for bar in group.bars:
            rows.append(_text(LABELS - 8, top + 15, bar.label, "text-anchor='end'"))
            length = 0.0 if bar.value is None else (WIDTH - LABELS - VALUES) * bar.value / most
            if bar.value is not None:
                rows.append(
                    f"<rect x='{LABELS}' y='{top}' width='{length:.1f}' height='{BAR}' rx='2' fill='{FILLS[bar.kind]}'/>"
                )
            rows.append(_text(LABELS + length + 6, top + 15, bar.note))
            top += BAR + GAP
        top += 10
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {top}' width='{WIDTH}' height='{top}' role='img' "
        f"font-family='system-ui, sans-serif' font-size='13' fill='{TEXT}'>"
    )
    return "\n".join([head, f"<title>{escape(title)}</title>", *rows, "</svg>\n"])


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}'{' ' + more if more else ''}>{escape(words)}</text>"
