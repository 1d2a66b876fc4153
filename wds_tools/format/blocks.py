"""Blocks of YAML that this program writes into files that people edit.

A block is some lines between two marks, the first of which holds a digest of them. One that nobody touched may be written
anew. What stands around it belongs to the file's owner, and so does a block that was edited.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_BEGIN = "# begin: wds-tools sidecars"
_END = "# end: wds-tools sidecars"
_BLOCK = re.compile(
    rf"^{_BEGIN} \(([0-9a-f]{{16}})[^\n]*\n(.*?)^{_END}[^\n]*(?:\n|\Z)".encode(), re.DOTALL | re.MULTILINE
)

_PLAIN = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}  # which YAML takes for other than text


@dataclass(frozen=True)
class Found:
    """Where a block lies in a file, its marks with it, and whether nobody ``edited`` it since."""

    start: int
    end: int
    edited: bool


def block(lines: list[str]) -> bytes:
    """The lines between their marks."""
    body = "".join(f"{line}\n" for line in lines).encode()
    begin = f"{_BEGIN} ({_digest(body)}; change it, and it is yours)\n"
    return begin.encode() + body + f"{_END}\n".encode()


def find(data: bytes) -> Found | None:
    """The block in a file, if there is one."""
    match = _BLOCK.search(data)
    return None if match is None else Found(match.start(), match.end(), _digest(match[2]).encode() != match[1])


def scalar(text: str) -> str:
    """``text`` as YAML takes it for text and nothing else, on one line. What has no encoding stands as its escape."""
    text = text.encode("utf-8", "backslashreplace").decode()
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return (
        '"'
        + "".join(sign if sign.isprintable() and sign not in '"\\' else f"\\U{ord(sign):08X}" for sign in text)
        + '"'
    )


def _digest(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=8).hexdigest()
