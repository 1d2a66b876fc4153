"""From a source path to a sample's key.

A key is ASCII without white space, with no dot in its basename, and does not begin with ``.`` or ``__``. White space
and dots become ``_``; every other character that may not stand becomes ``%XX`` of its bytes, so that distinct
names in any script keep distinct keys. A key that would not leave room for an extension is cut and closed with a digest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

MAX_KEY = 90  # leaves room for a dot and nine letters in a 100-byte member name
MAX_EXT = 9

# Printable ASCII without '%' and space, no dot after the last slash, no '.' or '__' in front.
CLEAN = r"(?!\.|__)(?:[!-$&-~]+/)?[!-$&-\-/-~]+"
_KEY = re.compile(r"(?!\.|__)(?:[!-~]+/)?[!-\-/-~]+")
_GOOD = re.compile(CLEAN)
_CLEAN_NAMES = re.compile(r"[!-$&-.0-~\n]+")  # names, one a line
_SPACE = re.compile(r"\s")
_BAD = re.compile(rb"[^!-$&-~]")


def is_clean(stem: str) -> bool:
    """Whether a path without its suffix can be a key as it is."""
    return len(stem) <= MAX_KEY and _GOOD.fullmatch(stem) is not None


def all_clean(prefix: str, names: Sequence[str], suffix: str) -> bool:
    """Whether ``prefix`` (closed by a slash) and every one of ``names`` without its ``suffix`` make a clean stem.

    One look at all names together, at a small part of the cost of one at a time.
    """
    longest = max(map(len, names), default=0) - len(suffix) - 1
    if len(prefix) + longest > MAX_KEY or not is_clean(prefix[:MAX_KEY] + "x"):
        return False
    text = "\n".join(names) + "\n"
    # Each name has one dot, the one before its suffix; so lines, dots and suffixes are equally many.
    return (
        text.count(".") == text.count(f".{suffix}\n") == len(names) == text.count("\n")
        and _CLEAN_NAMES.fullmatch(text) is not None
    )


def is_key(text: str) -> bool:
    """Whether ``text`` is a key: one of ours may hold what cleaning made of a name, such as ``%20``, and others' may as well."""
    return _KEY.fullmatch(text) is not None


def clean(stem: str) -> str:
    """The key for a path without its suffix; ``/`` separates. Pure: the same path always has the same key."""
    if is_clean(stem):
        return stem
    folder, slash, base = stem.rpartition("/")
    spaced = _SPACE.sub("_", folder) + slash + _SPACE.sub("_", base).replace(".", "_")
    escaped = _BAD.sub(lambda match: b"%%%02X" % match[0][0], spaced.encode("utf-8", "surrogateescape")).decode("ascii")
    if escaped.startswith((".", "__")):
        escaped = f"%{ord(escaped[0]):02X}" + escaped[1:]
    if len(escaped) > MAX_KEY:
        digest = hashlib.blake2b(stem.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
        folder, slash, base = escaped[: MAX_KEY - 17].rpartition("/")
        escaped = f"{folder}{slash}{base.replace('.', '_')}_{digest}"  # the cut may have made a basename of a folder
    return escaped


def split_suffix(path: str) -> tuple[str, str]:
    """Path without suffix, and the suffix with its dot (empty if there is none). Dots that lead a name are no suffix."""
    base = path.rfind("/") + 1
    dot = path.rfind(".")
    if dot <= base:
        return path, ""
    return path[:dot], path[dot:]


def key_of(path: str) -> str:
    """The key of the sample whose image lies at ``path``; where the path leads out of or above the source does not count."""
    stem = split_suffix(path)[0].lstrip("/")
    while stem.startswith("../"):
        stem = stem[3:]
    return clean(stem)


def key_of_member(name: str) -> str:
    """The key of a sample that its source calls ``<key>.<ext>``: up to the first dot of the basename, as tar readers have it."""
    return clean(stem_of_member(name))


def stem_of_member(name: str) -> str:
    """What comes before the first dot of the basename, as it is."""
    folder, slash, base = name.rpartition("/")
    return folder + slash + base.partition(".")[0]


def ext_of_member(name: str) -> str:
    """What follows the first dot of the basename: the field that a source calls ``<key>.<ext>``."""
    return name[name.rfind("/") + 1 :].partition(".")[2]
