"""The samples in one folder and the folders below it.

A scan answers with text and arrays, not with an object a file. Links are followed only to regular files inside the
tree; hidden files and folders, and files that are no images by name, are passed over and counted.
"""

from __future__ import annotations

import hashlib
import os
import stat
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from wds_tools.convert import entries, keys
from wds_tools.convert.entries import Entry, Sibling
from wds_tools.errors import SampleError, SourceError
from wds_tools.image.kinds import EXTENSIONS
from wds_tools.records import Skipped

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


@dataclass(frozen=True)
class Folder:
    """One folder to scan: ``name`` below ``root`` (empty for the root itself), labelled ``label``."""

    root: str
    name: str
    label: int | None
    siblings: bool
    strict: bool


@dataclass
class Found:
    """What a folder holds. ``lines`` are joined by line ends, ``sizes`` are an array of int64 as bytes."""

    lines: str = ""
    sizes: bytes = b""
    digest: bytes = b""
    skipped: list[Skipped] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)


def check_keys(lines: Iterable[str]) -> None:
    """Refuse two entries with one key."""
    seen: dict[str, str] = {}
    for line in lines:
        path = entries.load_line(line).path
        _claim(seen, keys.clean(keys.split_suffix(path)[0]), path)


def _claim(seen: dict[str, str], key: str, path: str) -> None:
    other = seen.setdefault(key, path)
    if other is not path:
        raise SourceError(
            f"{other!r} and {path!r} would both have the key {key!r}; rename one of them"
            " (files of one stem are one sample only with --siblings)"
        )


class _Lines:
    """What a scan gathers: the entries' lines, their sizes, and what the digest is over (all but the times)."""

    def __init__(self, folder: Folder) -> None:
        self.label = "" if folder.label is None else folder.label
        self.lines: list[str] = []
        self.sizes = array("q")
        self.listing = [f"{folder.name}\t{folder.label}"]
        self.seen: dict[str, str] = {}  # path by key


def scan_folder(folder: Folder) -> Found:
    """Scan one class folder, and the folders in it."""
    found = Found()
    gathered = _Lines(folder)
    plain = unclean = False
    for place in _walk(folder, found):
        unclean = unclean or not keys.is_clean(place.prefix + "x")
        if folder.siblings:
            _scan_siblings(place, folder, gathered)
        elif _scan_plain(place, gathered):
            plain = True
        else:
            _scan_files(place, gathered)
    if plain and unclean:  # a folder's cleaned name may be that of a plain one, whose keys are not in ``seen``
        check_keys(gathered.lines)
    found.lines = "\n".join(gathered.lines)
    found.sizes = gathered.sizes.tobytes()
    if gathered.lines:
        listing = "\n".join(gathered.listing).encode("utf-8", "surrogateescape")
        found.digest = hashlib.sha256(listing + found.sizes).digest()
    return found


def _scan_plain(place: _Place, gathered: _Lines) -> bool:
    """Scan a folder in which every file is regular and has a clean name with the same suffix; False if it is not so.

    Most folders of large trees are, and then keys cannot meet and there is nothing to look at but sizes and times. A
    million files go through this loop; `_scan_files` gives the same lines.
    """
    names, prefix = place.names, place.prefix
    suffix = names[0].rpartition(".")[2] if names else ""
    if suffix.lower() not in EXTENSIONS or not keys.all_clean(prefix, names, suffix):
        return False
    label, fd, status_of, is_regular = gathered.label, place.fd, os.stat, stat.S_ISREG
    lines: list[str] = []
    sizes: list[int] = []
    try:
        for name in names:
            status = status_of(name, dir_fd=fd, follow_symlinks=False)
            if not is_regular(status.st_mode):
                return False
            size = status.st_size
            lines.append(f"{label}\t{size}\t{status.st_mtime_ns}\t{prefix}{name}")
            sizes.append(size)
    except OSError:
        return False  # the careful scan says what is wrong
    gathered.lines += lines
    gathered.sizes.extend(sizes)
    gathered.listing += [prefix + name for name in names]
    return True


def _scan_files(place: _Place, gathered: _Lines) -> None:
    """Scan a folder file by file, ready for anything."""
    prefix = place.prefix
    for name in place.names:
        stem, dot, suffix = name.rpartition(".")
        if not dot or suffix.lower() not in EXTENSIONS:
            place.found.ignored[dot + suffix.lower() if dot else ""] += 1
            continue
        status = place.look_at(name)
        if status is None:
            continue
        path = prefix + name
        _claim(gathered.seen, keys.clean(prefix + stem), path)
        escaped = entries.escape(path)
        gathered.lines.append(f"{gathered.label}\t{status.st_size}\t{status.st_mtime_ns}\t{escaped}")
        gathered.sizes.append(status.st_size)
        gathered.listing.append(path)


def _scan_siblings(place: _Place, folder: Folder, gathered: _Lines) -> None:
    """Scan a folder whose files of one stem are one sample."""
    for entry in _group(place, folder):
        _claim(gathered.seen, keys.key_of(entry.path), entry.path)
        gathered.lines.append(entries.dump_line(entry))
        gathered.sizes.append(entry.size + sum(1024 + sibling.size for sibling in entry.siblings))
        gathered.listing.append(f"{entry.path}\t{entry.size}\t{[(s.path, s.size) for s in entry.siblings]}")


@dataclass
class _Place:
    """A folder that is open: its files by name, and how to look at one of them."""

    fd: int
    prefix: str
    names: list[str]
    real_root: str
    strict: bool
    found: Found

    def look_at(self, name: str) -> os.stat_result | None:
        """The status of a regular file, links followed inside the tree; None when it is passed over."""
        path = self.prefix + name
        try:
            status = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except OSError as error:
            raise _cannot_look(path, error) from error
        if stat.S_ISREG(status.st_mode):
            return status
        if stat.S_ISLNK(status.st_mode):
            return self._look_through(path)
        reason = f"{_KINDS.get(stat.S_IFMT(status.st_mode), 'not a regular file')}, not an image"
        if self.strict:
            raise SampleError(reason, repr(path))
        self.found.skipped.append(Skipped(path, reason))
        return None

    def _look_through(self, path: str) -> os.stat_result | None:
        try:
            target = os.path.realpath(os.path.join(self.real_root, path), strict=True)
            status = os.stat(target)
        except OSError as error:
            reason = f"a broken symbolic link ({error.strerror}), not followed"
        else:
            if not target.startswith(self.real_root + os.sep):
                reason = "a symbolic link out of the tree, not followed"
            elif stat.S_ISREG(status.st_mode):
                return status
            else:
                reason = "a symbolic link to no regular file, not followed"
        self.found.skipped.append(Skipped(path, reason))
        return None


def _walk(folder: Folder, found: Found) -> Iterator[_Place]:
    """Every folder from ``folder`` down, sorted."""
    real_root = os.path.realpath(folder.root)
    waiting = [folder.name]
    while waiting:
        name = waiting.pop()
        prefix = f"{name}/" if name else ""
        path = os.path.join(folder.root, name)
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise SourceError(
                f"cannot list {path!r}: {error.strerror}; mend its permissions or move it away"
            ) from error
        try:
            names, inner = _list(fd, prefix, found)
            yield _Place(fd, prefix, names, real_root, folder.strict, found)
        finally:
            os.close(fd)
        waiting += reversed(inner)


def _list(fd: int, prefix: str, found: Found) -> tuple[list[str], list[str]]:
    names, inner = [], []
    with os.scandir(fd) as listing:
        for entry in listing:
            name = entry.name
            if name[0] == ".":
                found.ignored["hidden"] += 1
            elif entry.is_dir(follow_symlinks=False):
                inner.append(prefix + name)
            else:
                names.append(name)
    names.sort()
    inner.sort()
    return names, inner


def _cannot_look(path: str, error: OSError) -> SourceError:
    return SourceError(f"cannot look at {path!r}: {error.strerror}; run again if the tree was being changed")


def _group(place: _Place, folder: Folder) -> Iterator[Entry]:
    """Files of one stem as one entry: the image, and its siblings by extension."""
    prefix, look_at, found = place.prefix, place.look_at, place.found
    stems: dict[str, list[str]] = {}
    for name in place.names:
        stems.setdefault(keys.split_suffix(name)[0], []).append(name)
    for group in stems.values():
        images = [name for name in group if keys.split_suffix(name)[1][1:].lower() in EXTENSIONS]
        if len(images) != 1:
            if images:
                raise SourceError(
                    f"{prefix + images[0]!r} and {prefix + images[1]!r} have one stem, and a sample has one image; rename one"
                )
            for name in group:
                found.ignored[keys.split_suffix(name)[1].lower()] += 1
            continue
        status = look_at(images[0])
        if status is None:
            continue
        siblings: list[Sibling] = []
        for name in group:
            ext = keys.split_suffix(name)[1][1:].lower()
            if name == images[0]:
                continue
            if not (ext.isalnum() and ext.isascii() and len(ext) <= keys.MAX_EXT) or (
                ext == "cls" and folder.label is not None
            ):
                found.ignored[f".{ext}"] += 1
                continue
            sibling = look_at(name)
            if sibling is not None:
                twin = next((other.path for other in siblings if other.ext == ext), None)
                if twin is not None:
                    raise SourceError(
                        f"{twin!r} and {prefix + name!r} would both be the field {ext!r} of one sample; rename one"
                    )
                siblings.append(Sibling(ext, prefix + name, sibling.st_size, sibling.st_mtime_ns))
        yield Entry(prefix + images[0], status.st_size, status.st_mtime_ns, folder.label, tuple(siblings))
