"""Turn image trees into verified WebDataset shards.

The public names are handed on from the rooms that define them, when they are first asked for, so that
``import wds_tools`` costs nothing and loads no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from wds_tools._version import VERSION as __version__

if TYPE_CHECKING:
    from wds_tools.convert.options import ConvertOptions
    from wds_tools.convert.reshard import reshard
    from wds_tools.convert.run import convert_tree
    from wds_tools.convert.selection import Selection
    from wds_tools.errors import (
        ChangedError,
        DecodeError,
        FormatError,
        IndexFileError,
        ManifestError,
        MissingExtraError,
        NotFoundError,
        OptionError,
        SampleError,
        SourceChangedError,
        SourceError,
        StaleIndexError,
        StoreError,
        TarError,
        TargetBusyError,
        TargetError,
        TooManyErrors,
        WdsToolsError,
        WorkerError,
    )
    from wds_tools.image import transforms
    from wds_tools.store.options import StoreOptions
    from wds_tools.stream.dataset import ShardDataset
    from wds_tools.stream.loader import ShardLoader
    from wds_tools.stream.mixture import MixedDataset
    from wds_tools.tools.indexing import index_shards
    from wds_tools.tools.verify import verify_dataset

_ROOMS = {
    "ConvertOptions": "convert.options",
    "Selection": "convert.selection",
    "MixedDataset": "stream.mixture",
    "ShardDataset": "stream.dataset",
    "ShardLoader": "stream.loader",
    "StoreOptions": "store.options",
    "convert_tree": "convert.run",
    "index_shards": "tools.indexing",
    "reshard": "convert.reshard",
    "transforms": "image",
    "verify_dataset": "tools.verify",
    **dict.fromkeys(
        (
            "DecodeError",
            "FormatError",
            "IndexFileError",
            "ManifestError",
            "MissingExtraError",
            "ChangedError",
            "NotFoundError",
            "OptionError",
            "SampleError",
            "SourceChangedError",
            "SourceError",
            "StaleIndexError",
            "StoreError",
            "TarError",
            "TargetBusyError",
            "TargetError",
            "TooManyErrors",
            "WdsToolsError",
            "WorkerError",
        ),
        "errors",
    ),
}

__all__ = [
    "ChangedError",
    "ConvertOptions",
    "DecodeError",
    "FormatError",
    "IndexFileError",
    "ManifestError",
    "MissingExtraError",
    "MixedDataset",
    "NotFoundError",
    "OptionError",
    "SampleError",
    "Selection",
    "ShardDataset",
    "ShardLoader",
    "SourceChangedError",
    "SourceError",
    "StaleIndexError",
    "StoreError",
    "StoreOptions",
    "TarError",
    "TargetBusyError",
    "TargetError",
    "TooManyErrors",
    "WdsToolsError",
    "WorkerError",
    "__version__",
    "convert_tree",
    "index_shards",
    "reshard",
    "transforms",
    "verify_dataset",
]


def __getattr__(name: str) -> Any:
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module 'wds_tools' has no attribute {name!r}")
    if name == "transforms":  # a room itself
        return importlib.import_module(f"wds_tools.{room}.{name}")
    return getattr(importlib.import_module(f"wds_tools.{room}"), name)


def __dir__() -> list[str]:
    return __all__
