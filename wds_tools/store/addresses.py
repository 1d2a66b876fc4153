"""From remote addresses to a store and names in it.

Addresses are those of a folder (or of its ``info.json``), or of shards: brace notation, and in S3 a glob. Shards lie in one
folder of one server, or below it. Each may be signed by a query of its own.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
from collections.abc import Sequence
from glob import has_magic
from urllib.parse import SplitResult, unquote, urlunsplit

from wds_tools.errors import NotFoundError, OptionError
from wds_tools.store.base import Store
from wds_tools.store.http import HttpStore, split_address
from wds_tools.store.options import StoreOptions
from wds_tools.store.s3 import S3Store

SCHEMES = ("http://", "https://", "s3://")

_HALF = re.compile(r"(https?|s3):(?!//)")
_MANIFEST = "info.json"
_SHARD = ".tar"


def find_remote(addresses: Sequence[str], options: StoreOptions | None = None) -> tuple[Store, tuple[str, ...] | None]:
    """The store, and the names of the shards in it; None for those where a folder as a whole is meant."""
    kinds = {address.startswith("s3://") for address in addresses}
    if len(kinds) > 1:
        raise OptionError("some shards are in S3 and others are not; give those of one place")
    return _in_s3(addresses, options) if kinds == {True} else _on_a_server(addresses, options)


def refuse_half_address(text: str) -> None:
    """`OptionError` for ``s3:bucket`` or ``https:/host``, which nobody means as a path, unless there is such a file."""
    half = _HALF.match(text)
    if half and not os.path.exists(text):
        example = "s3://bucket/prefix" if half[1] == "s3" else f"{half[1]}://host/folder"
        raise OptionError(f"{text.partition('?')[0]!r} is neither a path nor an address; write {example}")


def _on_a_server(addresses: Sequence[str], options: StoreOptions | None) -> tuple[Store, tuple[str, ...] | None]:
    split = [split_address(address) for address in addresses]
    if len(split) == 1 and not split[0].path.endswith(_SHARD):
        path = split[0].path.removesuffix(f"/{_MANIFEST}")
        return HttpStore(urlunsplit(split[0]._replace(path=path)), options), None
    if len({(each.scheme, each.netloc) for each in split}) > 1:
        raise OptionError("the shards lie on several servers; give those of one server")
    folder = _common([each.path for each in split])
    names = [unquote(each.path[len(folder) + 1 :], errors="surrogateescape") for each in split]
    root = SplitResult(split[0].scheme, split[0].netloc, folder, "", "")
    if len({each.query for each in split}) == 1:
        root = root._replace(query=split[0].query)
        return HttpStore(urlunsplit(root), options), tuple(names)
    queries = {name: each.query for name, each in zip(names, split, strict=True)}
    shards = tuple(name for name in names if name.endswith(_SHARD))  # others are their indexes, which need no naming
    return HttpStore(urlunsplit(root), options, queries), shards


def _in_s3(addresses: Sequence[str], options: StoreOptions | None) -> tuple[Store, tuple[str, ...] | None]:
    if len(addresses) == 1 and not addresses[0].endswith(_SHARD):
        return S3Store(addresses[0].removesuffix(f"/{_MANIFEST}"), options), None
    if len({address.split("/")[2] for address in addresses}) > 1:
        raise OptionError("the shards lie in several buckets; give those of one bucket")
    folder = _common(addresses)
    store = S3Store(folder, options)
    names: list[str] = []
    for address in addresses:
        name = address[len(folder) + 1 :]
        names += _matching(store, name) if has_magic(name) else [name]
    return store, tuple(names)


def _common(paths: Sequence[str]) -> str:
    """The deepest folder that all lie in; a glob is a name."""
    folder = paths[0].rpartition("/")[0]
    while folder and (has_magic(folder) or not all(path.startswith(f"{folder}/") for path in paths)):
        folder = folder.rpartition("/")[0]
    return folder


def _matching(store: Store, pattern: str) -> list[str]:
    """The names that a glob means; a ``*`` in folders' names is not looked through."""
    folder, base = posixpath.split(pattern)
    if has_magic(folder):
        raise OptionError(f"{store.url(pattern)!r} has a wildcard in a folder's name; give one folder")
    prefix = f"{folder}/" if folder else ""
    found = [name for name in store.list(prefix) if fnmatch.fnmatchcase(name[len(prefix) :], base)]
    if not found:
        raise NotFoundError(f"nothing matches {store.url(pattern)!r}; check the address")
    return found
