"""What can be converted: every kind of source, how it is told by its name, and the two things it has to know.

A kind scans: it finds the samples and puts a line for each into a spool (`entries.py`). And it has an origin, which
later reads their bytes in the workers (`origin.py`). A new kind is one file with these two, and one row here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from wds_tools.convert import hdf5, npy, parquet, parts, table, tfrecord, tree, zipped
from wds_tools.convert.entries import Request, Source
from wds_tools.convert.files import FileOrigin
from wds_tools.convert.hdf5_file import Hdf5Origin
from wds_tools.convert.origin import Origin
from wds_tools.convert.parquet import ParquetOrigin
from wds_tools.convert.shard_origin import ShardOrigin
from wds_tools.convert.tfrecord import TFRecordOrigin
from wds_tools.convert.unzip import ZipOrigin
from wds_tools.errors import OptionError, SourceError
from wds_tools.store.missing import why_missing

_PACKED = (".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")


@dataclass(frozen=True)
class Kind:
    """A kind of source. ``suffixes`` tell it; a folder has none.

    ``columns`` tells whether images and labels have names, ``siblings`` whether it holds files of one stem, ``several``
    whether a folder that holds only such files is one source. Where a pattern can be given as well, and a folder as
    datasets are published in (`parts.py`), ``is_part`` tells the files by their names.
    """

    name: str
    noun: str
    suffixes: tuple[str, ...]
    scan: Callable[[Request], Source]
    columns: bool = False
    siblings: bool = False
    several: bool = False
    is_part: Callable[[str], bool] | None = None

    def tells(self, name: str) -> bool:
        """Whether a file of this name is of this kind."""
        return name.lower().endswith(self.suffixes) or (self.is_part is not None and self.is_part(name))


TREE = Kind("tree", "a folder of class folders", (), tree.scan, siblings=True)
_KINDS = (
    Kind("table", "a table", table.SUFFIXES, table.scan),
    Kind("npy", "an array", npy.SUFFIXES, npy.scan, columns=True),
    Kind("hdf5", "HDF5", hdf5.SUFFIXES, hdf5.scan, columns=True, several=True),
    Kind("zip", "a zip archive", zipped.SUFFIXES, zipped.scan, columns=True, siblings=True),
    Kind("tfrecord", "TFRecords", tfrecord.SUFFIXES, tfrecord.scan, columns=True, is_part=tfrecord.is_part),
    Kind("parquet", "parquet", parquet.SUFFIXES, parquet.scan, columns=True, is_part=parquet.is_part),
)

_ORIGINS: dict[str, Callable[[str], Origin]] = {
    "files": FileOrigin,
    "tfrecord": TFRecordOrigin,
    "parquet": ParquetOrigin,
    "npy": npy.NpyOrigin,
    "hdf5": Hdf5Origin,
    "zip": ZipOrigin,
    "shards": ShardOrigin,
}


def kind_of(source: str) -> Kind:
    """The kind of ``source``, which must be there; `SourceError` says what could be."""
    if os.path.isdir(source):
        published = (kind for kind in _KINDS if kind.is_part and parts.folder_of(source, kind.is_part) is not None)
        return _kind_within(source) or next(published, TREE)
    known = ", ".join(suffix for kind in _KINDS for suffix in kind.suffixes)
    wanted = f"give a folder of class folders, or a file that ends in {known}"
    if "://" in source:
        shown = re.sub(r"//[^/]*@", "//", source.partition("?")[0])  # neither a signature nor a password
        raise SourceError(
            f"source {shown!r} is a URL, and only what lies on this machine is converted; {wanted}, "
            "or make other shards of remote ones with 'wds-tools reshard'"
        )
    named = parts.expand(source)[0] if parts.is_pattern(source) else source
    kind = next((kind for kind in _KINDS if kind.tells(os.path.basename(named))), None)
    if kind is not None:
        return kind
    if not os.path.exists(source):
        raise SourceError(f"source {why_missing(source)}")
    shards = ", or, if it is a shard, make others with 'wds-tools reshard'" if source.endswith(".tar") else ""
    packed = source.lower().endswith(_PACKED)
    raise SourceError(f"source {source!r} is a file, not a folder; {'unpack it first, and ' * packed}{wanted}{shards}")


def _kind_within(folder: str) -> Kind | None:
    """The kind of all files in a folder that holds nothing else; a look at the first few tells a tree."""
    found: Kind | None = None
    try:
        with os.scandir(folder) as listing:
            for entry in listing:
                if entry.name.startswith("."):
                    continue
                name = entry.name.lower()
                kind = next((kind for kind in _KINDS if kind.several and name.endswith(kind.suffixes)), None)
                if kind is None or kind is not (found or kind) or not entry.is_file():
                    return None
                found = kind
    except OSError:
        return None  # the scan says what is wrong
    return found


def check(
    source: str,
    *,
    siblings: bool = False,
    images: str | None = None,
    labels: str | None = None,
    first_label: int = 0,
) -> None:
    """Refuse a source that is not there, and options that say nothing to its kind."""
    kind = kind_of(source)
    if siblings and not kind.siblings:
        raise OptionError(
            f"siblings are for folders and archives, and {source!r} is {kind.noun}; give what belongs to an image in its columns"
        )
    for name, value in (("images", images), ("labels", labels)):
        if value is not None and not kind.columns:
            raise OptionError(f"{name} is {value!r}, but {source!r} is {kind.noun}, where nothing has such a name")
    if first_label and kind.is_part is None:
        raise OptionError(
            f"first_label is {first_label}, but {source!r} is {kind.noun}; it is for the labels of TFRecords and parquet"
        )


def scan(request: Request) -> Source:
    """Find every sample of a source."""
    return kind_of(request.path).scan(request)


def open_origin(kind: str, root: str) -> Origin:
    """What reads the entries of a `Source` with this kind and root."""
    return _ORIGINS[kind](root)
