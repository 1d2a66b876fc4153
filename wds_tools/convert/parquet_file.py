"""Parquet files with images in them: opening one, and which of its columns are what.

An image column holds bytes, or is what Hugging Face's ``datasets`` writes: a struct of ``bytes`` and ``path``. The schema's
metadata then says, under ``huggingface``, which columns are images and what the classes of a label are called.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from wds_tools.convert import fields
from wds_tools.convert.entries import Request
from wds_tools.convert.labels import NO_LABELS
from wds_tools.errors import MissingExtraError, SourceError

MAX_GROUP = 2 << 30
"""The most bytes of images in a row group, which is decoded as a whole."""

_IMAGES = ("image", "img", "images", "jpg", "jpeg", "png", "webp", "picture", "photo", "image_bytes", "bytes", "data")
_LABELS = ("label", "labels", "class", "target", "cls", "class_id", "class_name", "y")
_NAMES = ("__key__", "file_name", "filename", "image_path", "path")


@dataclass(frozen=True)
class Layout:
    """Which column is what. ``classes`` are the label's names, ``texts`` if labels are names themselves."""

    images: str
    struct: bool
    path: bool
    labels: str | None
    texts: bool
    classes: tuple[str, ...]
    names: str | None
    others: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def bytes_column(self) -> str:
        return f"{self.images}.bytes" if self.struct else self.images

    @property
    def cheap_columns(self) -> list[str]:
        """What is read beside the images."""
        columns = [name for name in (self.labels, self.names, *self.others) if name is not None]
        return [f"{self.images}.path", *columns] if self.path else columns


@contextlib.contextmanager
def readable(where: str) -> Iterator[Any]:
    """pyarrow, whose complaints become a `SourceError` that begins with ``where``."""
    pyarrow = _pyarrow()
    try:
        yield pyarrow
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(
            f"{where} cannot be read: {' '.join(str(error).split())[:300] or type(error).__name__}"
        ) from error


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtraError.of("reading parquet", "pyarrow") from error
    return pyarrow


def open_parquet(file: BinaryIO, name: str) -> Any:
    """The ``pyarrow.parquet.ParquetFile`` in an open file; checksums are checked where pages have them."""
    with readable(repr(name)):
        import pyarrow.parquet

        # Nothing runs ahead in threads: this happens in workers, which are the parallelism.
        return pyarrow.parquet.ParquetFile(file, pre_buffer=False, page_checksum_verification=True)


def group_bytes(parquet: Any, group: int, column: str, name: str) -> int:
    """Bytes that the images of a row group take decoded, as the file says; `SourceError` beyond `MAX_GROUP`."""
    found = parquet.metadata.row_group(group)
    columns = (found.column(number) for number in range(found.num_columns))
    size = next(int(chunk.total_uncompressed_size) for chunk in columns if chunk.path_in_schema == column)
    if not 0 <= size <= MAX_GROUP:
        raise SourceError(
            f"{name!r}, row group {group}: {size} bytes of images, and at most {MAX_GROUP} are decoded at a time; "
            "write it with smaller row groups, such as row_group_size=1000"
        )
    return size


def layout(parquet: Any, name: str, request: Request) -> Layout:
    """Which column is what, by ``request``, by what Hugging Face's metadata say, or by their names."""
    pyarrow = _pyarrow()
    is_ = pyarrow.types
    schema = parquet.schema_arrow
    where = repr(name)
    there = {field.name: str(field.type)[:80] for field in schema}
    if len(there) < len(schema):
        raise SourceError(f"{where}: two columns have the same name; rename one")
    features = _features(schema.metadata or {}, where)
    of_type = {field.name: field.type for field in schema}

    def holds_bytes(kind: Any) -> bool:
        return bool(is_.is_binary(kind) or is_.is_large_binary(kind))

    def of_images(kind: Any) -> bool:
        names = [field.name for field in kind] if is_.is_struct(kind) else []
        return holds_bytes(kind) or ("bytes" in names and holds_bytes(kind.field("bytes").type))

    fit = [column for column, kind in of_type.items() if of_images(kind)]
    told = [column for column in fit if request.images is None and features.get(column, {}).get("_type") == "Image"]
    images = fields.choose("image", request.images, _IMAGES, told or fit, there, where)
    if images is None:
        listed = ", ".join(f"{column} ({kind})" for column, kind in there.items()) or "no columns"
        raise SourceError(
            f"{where}: no column holds one image a row, which is bytes, or a struct of bytes and path; it has {listed}"
        )
    labels = None
    texts = [column for column, kind in of_type.items() if _is_text(is_, kind)]
    if request.labels != NO_LABELS:
        fit = [column for column, kind in of_type.items() if is_.is_integer(kind) or column in texts]
        if request.labels is None:
            told = [column for column in fit if features.get(column, {}).get("_type") == "ClassLabel"]
            fit = told or [column for column in fit if column in _LABELS]
        labels = fields.choose("label", request.labels, _LABELS, fit, there, where)
    struct = is_.is_struct(of_type[images])
    path = struct and any(field.name == "path" and _is_text(is_, field.type) for field in of_type[images])
    names = None if path else next((column for column in _NAMES if column in texts and column != labels), None)
    others = [column for column in there if column not in (images, labels, names)]
    left_out = [column for column in others if not _is_plain(is_, of_type[column])]
    return Layout(
        images=images,
        struct=struct,
        path=path,
        labels=labels,
        texts=labels in texts,
        classes=_class_names(features.get(labels, {}), where) if labels is not None else (),
        names=names,
        others=tuple(column for column in others if column not in left_out),
        left_out=tuple(left_out),
    )


def _features(metadata: Any, where: str) -> dict[str, Any]:
    """What Hugging Face's metadata say of each column; nothing if there are none."""
    text = metadata.get(b"huggingface")
    if text is None:
        return {}
    try:
        found = json.loads(text)["info"]["features"]
        return {name: feature for name, feature in found.items() if isinstance(feature, dict)}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SourceError(f"{where}: its huggingface metadata cannot be read ({error}); write it anew") from error


def _class_names(feature: dict[str, Any], where: str) -> tuple[str, ...]:
    names = feature.get("names") or []
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise SourceError(f"{where}: the class names in its metadata are no list of names")
    return tuple(names)


def _is_text(is_: Any, kind: Any) -> bool:
    return bool(
        is_.is_string(kind) or is_.is_large_string(kind) or (is_.is_dictionary(kind) and _is_text(is_, kind.value_type))
    )


def _is_plain(is_: Any, kind: Any) -> bool:
    """Whether values of this type can stand in a ``json`` field: numbers, text, times, and structs and lists of them."""
    if is_.is_struct(kind):
        return all(_is_plain(is_, field.type) for field in kind)
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return _is_plain(is_, kind.value_type)
    return bool(is_.is_boolean(kind) or is_.is_integer(kind) or is_.is_floating(kind) or is_.is_temporal(kind)) or bool(
        is_.is_decimal(kind) or is_.is_null(kind) or _is_text(is_, kind)
    )
