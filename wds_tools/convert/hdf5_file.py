"""HDF5 files as strangers made them: opened, listed, and read a row at a time.

Strategy: only what the file itself holds is looked at. Links to other files or by name are not followed, and datasets
whose bytes lie in other files (external storage, virtual datasets) are refused. So are those that promise what was
never written, which HDF5 would make up from nothing at any size. An array that is neither chunked nor compressed is read
from its place in the file, without the library; of any other, blocks of rows are decompressed together and kept
(`origin.Recent`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

from wds_tools.convert.origin import Recent, open_unchanged, pread
from wds_tools.convert.rows import Rows
from wds_tools.errors import MissingExtraError, SampleError, SourceChangedError, SourceError

MAX_OBJECTS = 10_000
MAX_CHUNK = 1 << 30  # decompressed bytes
_BLOCK = 64 << 20  # bytes of rows that are decompressed together, at most
_FOREIGN = (OSError, RuntimeError, ValueError, KeyError, TypeError, NotImplementedError)  # what h5py makes of damage


def open_file(path: str) -> Any:
    """The open file, an ``h5py.File``."""
    try:
        import h5py
    except ImportError:
        raise MissingExtraError(f"{path!r} needs h5py; install it with: pip install 'wds_tools[sources]'") from None
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        reason = error.strerror or clause(error)
        raise SourceError(f"cannot read {path!r} as HDF5: {reason}") from error


def clause(error: BaseException) -> str:
    """What HDF5 says, in one printable line."""
    return "".join(letter if letter.isprintable() else " " for letter in str(error))[:200]


def datasets(file: Any, where: str) -> dict[str, Any]:
    """Every dataset that the file itself holds, of a type that numpy has, by its path; sorted."""
    import h5py

    found: dict[str, Any] = {}
    seen: set[int] = set()
    waiting = [("", file["/"])]
    try:
        while waiting:
            prefix, group = waiting.pop()
            for name in group:
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    continue
                item = group[name]
                address = h5py.h5o.get_info(item.id).addr
                if isinstance(item, h5py.Group) and address not in seen:
                    waiting.append((f"{prefix}{name}/", item))
                elif isinstance(item, h5py.Dataset) and item.shape is not None and _has_type(item):
                    found[prefix + name] = item
                seen.add(address)
                if len(found) + len(seen) > 2 * MAX_OBJECTS:
                    raise SourceError(
                        f"{where!r} has more than {MAX_OBJECTS:,} datasets and groups; it seems to hold "
                        "one a sample, and all images must be rows of one dataset"
                    )
    except _FOREIGN as error:
        raise SourceError(f"{where!r} is damaged: {clause(error)}") from error
    return dict(sorted(found.items()))


def _has_type(dataset: Any) -> bool:
    try:
        return dataset.dtype is not None
    except TypeError:  # such as integers of 24 bits
        return False


def refuse(dataset: Any, where: str) -> Any:
    """The dataset, if all of it lies in this file and can be read: else a `SourceError`."""
    import h5py

    name = f"{dataset.name!r} in {where!r}"
    plist = dataset.id.get_create_plist()
    if dataset.is_virtual or plist.get_external_count():
        raise SourceError(f"{name} takes its bytes from other files; copy it into one file with h5repack")
    for number in range(plist.get_nfilters()):
        code, _, _, text = plist.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            called = text.decode("ascii", "replace") or code
            raise SourceError(
                f"{name} is compressed with {called}, which this h5py cannot read; use h5repack -f GZIP=4"
            )
    if not math.prod(dataset.shape):
        raise SourceError(f"{name} is empty ({shape_text(dataset)})")
    if dataset.chunks:
        chunk = math.prod(dataset.chunks) * dataset.dtype.itemsize
        if chunk > MAX_CHUNK:
            raise SourceError(
                f"{name} has chunks of {chunk} bytes, and at most {MAX_CHUNK} are read at once; h5repack it"
            )
        all_of_it = math.prod(-(-side // part) for side, part in zip(dataset.shape, dataset.chunks, strict=True))
        there = dataset.id.get_num_chunks()
        unit = "chunks"
    else:
        all_of_it, there = math.prod(dataset.shape) * dataset.dtype.itemsize, dataset.id.get_storage_size()
        unit = "bytes"
        if h5py.check_vlen_dtype(dataset.dtype) or h5py.check_string_dtype(dataset.dtype) or there > all_of_it:
            all_of_it = min(all_of_it, there) or 1  # in the file an element is a reference, of another size
    if there < all_of_it:
        raise SourceError(
            f"{name} was not written to its end: {there} of {all_of_it} {unit} are there; cut it with resize, or write it again"
        )
    return dataset


def shape_text(dataset: Any) -> str:
    return f"{dataset.dtype} {'x'.join(map(str, dataset.shape)) or 'scalar'}"


def read_part(dataset: Any, first: int, stop: int, place: str) -> Any:
    """Rows from ``first`` to before ``stop``, as numpy has them."""
    import numpy as np

    try:
        return np.asarray(dataset[first:stop] if dataset.shape else dataset[()])
    except _FOREIGN as error:
        raise SourceError(f"{place}: rows from {first} on cannot be read: {clause(error)}") from error


class Images:
    """The dataset with the images: ``rows`` of an array, or encoded images where that is None."""

    def __init__(self, dataset: Any, where: str) -> None:
        self.where = where
        self.dataset = refuse(dataset, where)
        self.count: int = dataset.shape[0] if dataset.shape else 0
        place = f"{dataset.name[1:]!r} in {where!r}"
        self._place = place
        self.rows = None
        if not self.is_encoded(dataset):
            self.rows = Rows(place, self.count, tuple(dataset.shape[1:]), dataset.dtype)
        self.step = 1  # rows that are decompressed together
        if self.rows is not None and dataset.chunks:
            self.step = max(1, min(dataset.chunks[0], _BLOCK // self.rows.row_bytes))

    @staticmethod
    def is_encoded(dataset: Any) -> bool:
        """Whether its elements are the bytes of a file each, of variable or of one length."""
        import h5py

        kind = h5py.check_vlen_dtype(dataset.dtype)
        one_each = len(dataset.shape) == 1
        return one_each and (
            kind in ("u1", "i1") if kind is not None else dataset.dtype.kind == "V" and not dataset.dtype.names
        )

    @property
    def note(self) -> str:
        return self.rows.note if self.rows is not None else f"{self.dataset.name[1:]!r}: encoded images"

    def blocks(self) -> Iterator[int]:
        """The lengths of runs of rows that are decompressed together."""
        step = self.step
        for first in range(0, self.count, step):
            yield min(step, self.count - first)

    def encoded(self, first: int, stop: int) -> list[bytes]:
        """The encoded images from ``first`` to before ``stop``."""
        return [value.tobytes() for value in read_part(self.dataset, first, stop, self._place)]


class Hdf5Origin:
    """The rows of one dataset in one or several files, which are opened in the process that reads them."""

    images = True

    def __init__(self, root: str) -> None:
        self._folder, self._name = json.loads(root)
        self._recent: Recent[Any] = Recent()
        self._open: dict[str, _OpenImages] = {}

    def __enter__(self) -> Hdf5Origin:
        return self

    def __exit__(self, *error: object) -> None:
        for one in self._open.values():
            one.close()
        self._open.clear()

    def read(self, path: str, size: int, mtime_ns: int, at: str) -> bytes:
        """A row as an ``.npy`` file, or an encoded image; ``at`` is its number and the file's name."""
        number, _, name = at.partition(" ")
        images = self._open.get(name)
        if images is None or images.mtime_ns != mtime_ns:
            if images is not None:
                images.close()
            images = self._open[name] = _OpenImages(os.path.join(self._folder, name), self._name, mtime_ns)
        try:
            data = images.read(int(number), self._recent)
        except _FOREIGN as error:
            raise SampleError(f"unreadable: {clause(error)}", repr(path)) from error
        if len(data) != size:
            raise SourceChangedError(f"{name!r} changed since the plan was made; run again for a new plan")
        return data


class _OpenImages:
    """One file of the source, open, if it is still the one that the plan was made from."""

    def __init__(self, path: str, name: str, mtime_ns: int) -> None:
        import h5py

        self._path, self.mtime_ns = path, mtime_ns
        self._plain: BinaryIO = open_unchanged(path, mtime_ns)
        self._file = open_file(path)
        try:
            self._images = Images(self._file[name], os.path.basename(path))
        except KeyError as error:
            self.close()
            raise SourceChangedError(f"{path!r} has no {name!r} any more; run again for a new plan") from error
        rows = self._images.rows
        self._header = rows.header() if rows is not None else b""
        dataset = self._images.dataset
        # Where the numbers lie when they lie in the file as they are, in a type that numpy has.
        plain = rows is not None and dataset.chunks is None and dataset.id.get_type() == h5py.h5t.py_create(rows.dtype)
        self._offset = dataset.id.get_offset() if plain else None

    def close(self) -> None:
        self._plain.close()
        self._file.close()

    def read(self, number: int, recent: Recent[Any]) -> bytes:
        images, rows = self._images, self._images.rows
        if rows is None:
            return bytes(images.dataset[number].tobytes())
        if self._offset is not None:
            data = pread(self._plain, rows.row_bytes, self._offset + number * rows.row_bytes)
            if len(data) < rows.row_bytes:
                raise OSError("the file ends within the row")
        elif images.step == 1:
            data = images.dataset[number].tobytes()
        else:
            first = number // images.step * images.step

            def load() -> tuple[Any, int]:
                block = images.dataset[first : first + images.step]
                return block, block.nbytes

            data = recent.get((self._path, first), load)[number - first].tobytes()
        return self._header + rows.body(data)
