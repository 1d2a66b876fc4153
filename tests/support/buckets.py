"""What lies in a bucket, and how the command gets there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wds_tools.store.base import Store

if TYPE_CHECKING:
    from tests.conftest import Bucket


def names(store: Store, folder: str = "") -> list[str]:
    """All names below ``folder``, hidden ones too."""
    found = []
    for name in store.list(folder):
        below = names(store, f"{name}/")
        found += below or [name]
    return sorted(found)


def snapshot(store: Store) -> dict[str, bytes]:
    """Every object below the store's root, by its name."""
    return {name: store.read(name) for name in names(store)}


def fill(store: Store, folder: Path, only: str = "*") -> None:
    """What lies in a local folder, copied."""
    for path in sorted(folder.glob(only)):
        store.write_atomic(path.name, [path.read_bytes()])


def tags(store: Store, shards: Mapping[str, object] | list[str]) -> dict[str, str]:
    return {name: store.version(name).tag for name in shards}


@contextlib.contextmanager
def configured(bucket: Bucket, profile: str = "good") -> Iterator[None]:
    """The AWS configuration that the command finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_PROFILE", profile)
        patch.setenv("AWS_ENDPOINT_URL", str(bucket.options.endpoint_url))
        patch.setenv("AWS_DEFAULT_REGION", str(bucket.options.region))
        yield
