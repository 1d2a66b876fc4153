"""A zip archive that holds a tree of class folders: read where it lies, and never unpacked.

The samples, their order and their keys are those that `tree.py` would find after unpacking, so the shards are the same
bytes. Folders that hold everything else are passed through (``imagenet/train/n01440764/…``); ``--images`` names one of
several. Hidden members and ``__MACOSX`` are passed over, links are not followed.

Strategy: the archive's directory says where each member lies and how long it is. What it says is not believed: a name that
leads out, a length that no compression gives, or members that overlap are refused; and of a member no more is
unpacked than was announced, whose checksum must be right. The directory is held in memory while it is scanned, about a
kilobyte a member.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from wds_tools.convert import entries, keys, tree
from wds_tools.convert.entries import Entry, Request, Sibling, Source
from wds_tools.convert.unzip import DEFLATED, STORED
from wds_tools.errors import OptionError, SampleError, SourceError
from wds_tools.image.kinds import EXTENSIONS
from wds_tools.records import Skipped

SUFFIXES = (".zip",)
MAX_MEMBER = 1 << 30
"""The most bytes that a member may have unpacked."""

_WINDOWS, _UNIX = 0, 3  # where an archive was made
_UTF_8 = 0x800  # in a member's flags: its name is UTF-8
_MOST_RATIO = 1040  # deflate's best is 1032


@dataclass(frozen=True)
class _Member:
    """A file in the archive, by its path below the folder that holds the classes."""

    path: str
    info: zipfile.ZipInfo

    @property
    def order(self) -> tuple[tuple[str, ...], str]:
        """A folder's own files come first, then the folders in it: the order of a walk."""
        *folders, name = self.path.split("/")
        return tuple(folders), name

    @property
    def at(self) -> str:
        """Where it lies, and what must come out."""
        info = self.info
        return f"{info.header_offset} {info.compress_size} {info.compress_type} {info.CRC}"


def scan(request: Request) -> Source:
    """Every sample of an archive; `SourceError` says what is wrong with it."""
    path = os.path.abspath(request.path)
    if request.labels is not None:
        raise OptionError(
            f"labels is {request.labels!r}, but the labels of {request.path!r} are the names of its folders"
        )
    mtime_ns, infos = _directory(path)
    members = _members(path, infos)
    folder, members, listed = _below(path, members, request.images)
    found = _Found(request, mtime_ns)
    folders = sorted({name for name in listed if not _hidden(name)})
    flat = request.siblings and not folders
    if not flat:
        _check_layout(path, folders, members)
    labels = {} if flat else tree.label(path, folders, request.classes)
    for member in sorted(members, key=lambda member: member.order):
        found.look_at(member, flat)
    counts = found.write(labels)
    classes = () if flat else request.classes if request.classes is not None else tuple(folders)
    if not len(request.lines):
        first = f": {found.skipped[0].path!r}: {found.skipped[0].reason}" if found.skipped else ""
        raise SourceError(f"{path!r} has no usable image{first}")
    return Source(
        path,
        request.lines,
        classes,
        found.digest.hexdigest(),
        found.skipped,
        dict(found.ignored),
        tuple(name for name in folders if not counts[name]) if not flat else (),
        kind="zip",
        notes=(f"classes are the folders in {folder!r}",) if folder and not flat else (),
    )


def _directory(path: str) -> tuple[int, list[zipfile.ZipInfo]]:
    try:
        status = os.stat(path)
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except OSError as error:
        raise SourceError(f"cannot read {path!r}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OverflowError) as error:
        raise SourceError(f"{path!r} is no whole zip archive ({error}); fetch or make it again") from None
    if any(info.header_offset < 0 for info in infos):
        raise SourceError(f"{path!r} has lost its beginning; fetch or make it again")
    if sum(30 + info.compress_size for info in infos) > status.st_size:
        raise SourceError(f"{path!r} has members that overlap, as archives made to fill disks have; it is not read")
    return status.st_mtime_ns, infos


def _members(path: str, infos: list[zipfile.ZipInfo]) -> list[_Member]:
    """Everything but hidden files, by the names that unpacking would give; no two may be the same."""
    seen: set[str] = set()
    members = []
    for info in infos:
        name = _name(info)
        parts = name.rstrip("/").split("/")
        if name.startswith("/") or ".." in parts or name[1:3] in (":/", ":\\") or not name.strip("/"):
            raise SourceError(f"{path!r}: the name {name!r} leads out of the archive; it was not made by honest means")
        name = "/".join(part for part in parts if part not in ("", ".")) + ("/" if name.endswith("/") else "")
        if name in seen and not name.endswith("/"):
            raise SourceError(f"{path!r} has {name!r} twice; make it anew with one of them")
        seen.add(name)
        members.append(_Member(name, info))
    return members


def _name(info: zipfile.ZipInfo) -> str:
    """A member's name as unpacking would give it."""
    if info.create_system == _WINDOWS:
        return info.filename.replace("\\", "/")
    if info.create_system == _UNIX and not info.flag_bits & _UTF_8 and not info.filename.isascii():
        # The bytes of the name as they were on the disk, which zipfile reads as code page 437.
        with contextlib.suppress(UnicodeEncodeError):
            name = info.orig_filename.partition("\0")[0]
            return name.encode("cp437").decode("utf-8", "surrogateescape")
    return info.filename


def _hidden(path: str) -> bool:
    return path.startswith(("__MACOSX/", ".")) or "/." in path or path == "__MACOSX"


def _below(path: str, members: list[_Member], asked: str | None) -> tuple[str, list[_Member], set[str]]:
    """The folder that holds the classes, what lies below it, and the names of the folders in it."""
    prefix = asked.strip("/") + "/" if asked is not None and asked.strip("/") else ""
    if prefix and not any(member.path.startswith(prefix) for member in members):
        raise SourceError(f"{path!r} has no folder {asked!r} (--images); it has {_some(members)}")
    visible = [] if asked else [member.path for member in members if not _hidden(member.path)]
    while (top := _only_folder(visible)) is not None:
        prefix += top
        visible = [name[len(top) :] for name in visible if name.startswith(top)]
    start = len(prefix)
    cut = [_Member(member.path[start:], member.info) for member in members if member.path.startswith(prefix)]
    cut = [member for member in cut if member.path]
    return prefix.rstrip("/"), cut, {member.path.partition("/")[0] for member in cut if "/" in member.path}


def _check_layout(path: str, folders: list[str], members: list[_Member]) -> None:
    if folders and set(map(str.lower, folders)) <= tree.SPLIT_NAMES:
        example = folders[-1]
        raise SourceError(
            f"{path!r} holds splits ({', '.join(folders)}), not classes; convert them one by one, for example with "
            f"--images {example} --split {example}"
        )
    if not folders:
        found = "has no class folders; images are expected as <class>/<image>" if members else "is empty"
        raise SourceError(f"{path!r} {found} (for unlabelled images use --siblings)")


def _only_folder(names: list[str]) -> str | None:
    """The folder, with its slash, that holds all images among ``names``, in folders of its own."""
    tops = {name.partition("/")[0] + "/" for name in names if "/" in name}
    if len(tops) != 1 or any("/" not in name and _is_image(name) for name in names):
        return None
    [top] = tops
    inner = [name[len(top) :] for name in names if name.startswith(top)]
    if any("/" not in name and _is_image(name) for name in inner) or not any("/" in name for name in inner):
        return None
    return top


def _some(members: list[_Member]) -> str:
    folders = sorted({member.path.partition("/")[0] for member in members if "/" in member.path})
    return ", ".join(folders[:10]) + (", …" if len(folders) > 10 else "") if folders else "no folders"


def _is_image(name: str) -> bool:
    return keys.split_suffix(name)[1][1:].lower() in EXTENSIONS


def _wrong(info: zipfile.ZipInfo) -> str | None:
    """Why a member cannot be read."""
    kind = stat.S_IFMT(info.external_attr >> 16) if info.create_system == _UNIX else 0
    if kind not in (0, stat.S_IFREG, stat.S_IFLNK):
        return "not a regular file"
    if info.flag_bits & 1:
        return "encrypted; unpack it with its password"
    if info.compress_type not in (STORED, DEFLATED):
        return f"compressed by method {info.compress_type}; only stored and deflated members are read"
    if info.file_size > MAX_MEMBER:
        return f"too large: {info.file_size} bytes, and at most {MAX_MEMBER} are unpacked"
    if info.compress_type == STORED and info.file_size != info.compress_size:
        return "its two lengths differ, though it is stored as it is"
    if info.file_size > _MOST_RATIO * (info.compress_size + 1):
        return f"{info.compress_size} bytes that claim to be {info.file_size}: no compression gives that"
    return None


class _Found:
    """What a scan gathers: the samples by their folder, and what was left out."""

    def __init__(self, request: Request, mtime_ns: int) -> None:
        self.skipped: list[Skipped] = []
        self.ignored: Counter[str] = Counter()
        self.digest = hashlib.sha256()
        self._request = request
        self._mtime_ns = mtime_ns
        self._samples: dict[str, list[_Member]] = {}  # by path, or by stem with siblings

    def look_at(self, member: _Member, flat: bool) -> None:
        """Take a member in, or note why not."""
        path, info = member.path, member.info
        if path.endswith("/"):
            return
        if _hidden(path):
            self.ignored["hidden"] += 1
        elif "/" not in path and not flat:
            self.skipped.append(Skipped(path, "not inside a class folder"))
        elif not self._request.siblings and not _is_image(path):
            self.ignored[keys.split_suffix(path)[1].lower()] += 1
        elif info.create_system == _UNIX and stat.S_ISLNK(info.external_attr >> 16):
            self.skipped.append(Skipped(path, "a symbolic link, not followed"))
        elif (reason := _wrong(info)) is not None:
            if self._request.strict:
                raise SampleError(reason, repr(path))
            self.skipped.append(Skipped(path, reason))
        else:
            stem = keys.split_suffix(path)[0] if self._request.siblings else path
            self._samples.setdefault(stem, []).append(member)

    def write(self, labels: dict[str, int]) -> Counter[str]:
        """A line a sample. Answers with the samples of each class folder."""
        counts: Counter[str] = Counter()
        seen: dict[str, str] = {}
        lines = self._request.lines
        for members in self._samples.values():
            image = self._image_of(members)
            if image is None:
                continue
            folder = image.path.partition("/")[0]
            label = labels.get(folder)
            called = _called(image.path)
            key = keys.key_of_member(called)
            other = seen.setdefault(key, image.path)
            if other is not image.path:
                raise SourceError(
                    f"{other!r} and {image.path!r} would both have the key {key!r}; rename one of them"
                    " (files of one stem are one sample only with --siblings)"
                )
            beside = tuple(self._siblings(image, members, label))
            entry = Entry(called, image.info.file_size, self._mtime_ns, label, beside, at=image.at)
            lines.append(entries.dump_line(entry), entry.size + sum(1024 + sibling.size for sibling in beside))
            counts[folder] += 1
            sums = [(m.path, m.info.file_size, m.info.CRC) for m in members]
            self.digest.update(f"{label} {sums}".encode("utf-8", "surrogateescape"))
        return counts

    def _image_of(self, members: list[_Member]) -> _Member | None:
        images = [member for member in members if _is_image(member.path)]
        if len(images) > 1:
            raise SourceError(
                f"{images[0].path!r} and {images[1].path!r} have one stem, and a sample has one image; rename one"
            )
        if not images:
            self.ignored.update(keys.split_suffix(member.path)[1].lower() for member in members)
        return images[0] if images else None

    def _siblings(self, image: _Member, members: list[_Member], label: int | None) -> Iterator[Sibling]:
        taken: dict[str, str] = {}
        for member in members:
            ext = keys.split_suffix(member.path)[1][1:].lower()
            if member is image:
                continue
            if not (ext.isalnum() and ext.isascii() and len(ext) <= keys.MAX_EXT) or (
                ext == "cls" and label is not None
            ):
                self.ignored[f".{ext}"] += 1
                continue
            if ext in taken:
                raise SourceError(
                    f"{taken[ext]!r} and {member.path!r} would both be the field {ext!r} of one sample; rename one"
                )
            taken[ext] = member.path
            yield Sibling(ext, member.path, member.info.file_size, self._mtime_ns, member.at)


def _called(path: str) -> str:
    """What the sample is called: its path, whose key ends at the only dot of the name."""
    folder, slash, base = path.rpartition("/")
    stem, suffix = keys.split_suffix(base)
    return folder + slash + stem.replace(".", "_") + suffix
