"""A folder of class folders, as ImageFolder reads it: the classes are the folders' names, sorted.

Each class folder is scanned by itself (`folder.py`), so that processes can share the work.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from array import array
from collections import Counter

from wds_tools.convert import keys
from wds_tools.convert.entries import Request, Source
from wds_tools.convert.folder import Folder, check_keys, scan_folder
from wds_tools.convert.spool import Spool
from wds_tools.errors import SourceError
from wds_tools.format import manifest
from wds_tools.image.kinds import EXTENSIONS
from wds_tools.records import Skipped

_TRAINING = {"train", "training"}
SPLIT_NAMES = _TRAINING | {"val", "valid", "validation", "test", "testing"}


def scan(request: Request) -> Source:
    """Find every sample below a folder.

    Classes that are fixed are those of the training split, or of a file; a class folder that is not among them is a
    `SourceError`.
    """
    root, lines, classes = os.path.abspath(request.path), request.lines, request.classes
    siblings, strict = request.siblings, request.strict
    folders, files, skipped = _list_root(root)
    flat = siblings and not folders
    if not flat:
        _check_layout(root, folders, files, skipped)
    labels = label(root, folders, classes)
    jobs = [Folder(root, name, labels[name], siblings, strict) for name in folders]
    if flat:
        jobs = [Folder(root, "", None, siblings, strict)]
    else:
        skipped += [Skipped(name, "not inside a class folder") for name in files]

    names = () if flat else classes if classes is not None else tuple(folders)
    source = Source(root, lines, names, "", skipped)
    digest = hashlib.sha256()
    empty = []
    ignored: Counter[str] = Counter()
    for job, found in zip(jobs, request.map_(scan_folder, jobs), strict=True):
        if found.lines:
            sizes = array("q")
            sizes.frombytes(found.sizes)
            lines.extend(found.lines.split("\n"), sizes)
        elif not flat:
            empty.append(job.name)
        digest.update(found.digest)
        source.skipped += found.skipped
        ignored += found.ignored
    source.digest = digest.hexdigest()
    source.empty_classes, source.ignored = tuple(empty), dict(ignored)
    _check_across_folders(folders, lines)
    if not len(lines):
        raise SourceError(_nothing_found(root, source))
    return source


def _list_root(root: str) -> tuple[list[str], list[str], list[Skipped]]:
    """Class folders, other files, and what is passed over, each sorted by name."""
    folders, files, skipped = [], [], []
    try:
        with os.scandir(root) as found:
            for entry in found:
                if entry.is_symlink() and not os.path.isfile(entry.path):
                    what = "a symbolic link to a folder" if os.path.isdir(entry.path) else "a broken symbolic link"
                    skipped.append(Skipped(entry.name, f"{what}, not followed"))
                elif entry.is_dir(follow_symlinks=False):
                    if entry.name.startswith(".") or entry.name == "__MACOSX":
                        skipped.append(Skipped(entry.name, "a hidden folder"))
                    else:
                        folders.append(entry.name)
                elif not entry.name.startswith("."):
                    files.append(entry.name)
    except FileNotFoundError:
        raise SourceError(f"{root!r} does not exist; give the folder that holds the class folders") from None
    except OSError as error:
        raise SourceError(f"cannot list {root!r}: {error.strerror}") from error
    return sorted(folders), sorted(files), sorted(skipped, key=lambda skip: skip.path)


def _check_layout(root: str, folders: list[str], files: list[str], skipped: list[Skipped]) -> None:
    _refuse_splits(root, folders)
    if len(folders) == 1:  # perhaps one level too high
        inner = os.path.join(root, folders[0])
        with contextlib.suppress(OSError):
            _refuse_splits(inner, _list_root(inner)[0])
    if not folders and any(name.endswith(".tar") or name == manifest.NAME for name in files):
        raise SourceError(
            f"{root!r} holds shards already; read them as they are, make other shards of them with 'wds-tools reshard', "
            "or turn them back into images with 'wds-tools extract'"
        )
    if not folders and not files:
        found = f"holds only what is passed over ({skipped[0].path!r}: {skipped[0].reason})" if skipped else "is empty"
        raise SourceError(f"{root!r} {found}; give a folder that holds one folder a class, with images in them")
    if not folders:
        raise SourceError(
            f"{root!r} has no class folders; images are expected as {os.path.join(root, '<class>', '<image>')} "
            "(if this folder is one class, give the folder that it lies in; for unlabelled images use --siblings, for labels "
            "in a table give a CSV, TSV or JSONL file as SRC)"
        )


def _refuse_splits(root: str, folders: list[str]) -> None:
    """Folders that only a dataset of several splits has, though others may lie beside them, such as annotations."""
    lower = set(map(str.lower, folders))
    if folders and (lower <= SPLIT_NAMES or (lower & _TRAINING and lower & (SPLIT_NAMES - _TRAINING))):
        splits = [name for name in folders if name.lower() in SPLIT_NAMES]
        example = splits[-1]
        raise SourceError(
            f"{root!r} holds splits ({', '.join(splits)}), not classes; convert them one by one, for example "
            f"'wds-tools convert {os.path.join(root, example)} OUT --split {example}'"
        )


def label(root: str, folders: list[str], classes: tuple[str, ...] | None) -> dict[str, int]:
    if classes is None:
        return {name: number for number, name in enumerate(folders)}
    known = {name: number for number, name in enumerate(classes)}
    strange = [name for name in folders if name not in known]
    if strange:
        raise SourceError(
            f"class {strange[0]!r} in {root!r} is not among the dataset's {len(classes)} classes"
            + (f" (nor are {len(strange) - 1} others)" if len(strange) > 1 else "")
            + "; rename or remove the folder, or give all classes with --classes"
        )
    return {name: known[name] for name in folders}


def _nothing_found(root: str, source: Source) -> str:
    if source.skipped:
        first = source.skipped[0]
        return (
            f"{root!r} has no usable image: {len(source.skipped)} skipped, the first is {first.path!r}: {first.reason}"
        )
    kinds = ", ".join(f"{count} {suffix or 'without suffix'}" for suffix, count in sorted(source.ignored.items())[:5])
    what = f", only other files ({kinds})" if kinds else ""
    return (
        f"{root!r} has no images in its class folders{what}; images end in {', '.join(f'.{ext}' for ext in EXTENSIONS)}"
    )


def _check_across_folders(folders: list[str], lines: Spool) -> None:
    """Keys begin with the folder's name, so they can only meet across folders whose names clean to the same."""
    cleaned = {keys.clean(name + "/x") for name in folders}
    if len(cleaned) < len(folders) or any(len(name) >= keys.MAX_KEY // 2 for name in folders):
        check_keys(lines)
