"""``info.json``: what a dataset consists of. Written last; a dataset without it is not finished.

One JSON object serves three readers. timm looks at ``splits.<name>.{name,num_samples,filenames,shard_lengths}``; wids
at ``wids_version``, ``name`` and ``shardlist[].{url,nsamples,filesize}``; the rest is ours, docs/format.md says what
each key means. Keys that we do not know are kept. There are no times and no paths in it, so that the same source
gives the same bytes. Reading trusts nothing in it: every value has the type that it should have, and every shard lies
below the manifest's own folder, or it is a `ManifestError`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from wds_tools.errors import ManifestError
from wds_tools.records import ShardInfo, Skipped, SplitInfo

NAME = "info.json"
FORMAT = "wds_tools"
VERSION = 1
MAX_LISTED_SKIPS = 1000  # how many skipped files are listed one by one; all are counted

_T = TypeVar("_T")
# What makes a path or a URL of a name lead elsewhere: a scheme or a drive, a backslash or a NUL anywhere.
_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|.*[\\\0]", re.DOTALL)


@dataclass(frozen=True)
class Manifest:
    """The content of ``info.json``. ``extra`` holds unknown top-level keys, ``split_extra`` those of a split."""

    splits: Mapping[str, SplitInfo] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    split_extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def with_split(self, split: SplitInfo, classes: tuple[str, ...] | None = None) -> Manifest:
        """The same manifest with ``split`` put in, or replaced; ``classes`` replaces the classes if given.

        Splits are in the order of their names, so that it does not matter which was made first.
        """
        splits = dict(sorted({**self.splits, split.name: split}.items()))
        return Manifest(splits, self.classes if classes is None else classes, self.extra, self.split_extra)

    def without_split(self, name: str) -> Manifest:
        splits = {key: split for key, split in self.splits.items() if key != name}
        return Manifest(splits, self.classes if splits else (), self.extra, self.split_extra)


_OURS = {"format", "version", "wids_version", "name", "classes", "fields", "splits", "shardlist", "settings"}
_OURS_IN_SPLIT = {"name", "num_samples", "filenames", "shard_lengths", "fields", "suffixes", "skipped", "num_skipped"}


def dump(manifest: Manifest) -> bytes:
    """The bytes of ``info.json``; `load` gives the manifest back."""
    splits = manifest.splits
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "wids_version": 1,
        "name": "+".join(splits),
        "classes": list(manifest.classes),
        "fields": sorted({name for split in splits.values() for name in split.fields}),
        "splits": {name: _dump_split(split, manifest.split_extra.get(name, {})) for name, split in splits.items()},
        "shardlist": [_dump_shard(shard) for split in splits.values() for shard in split.shards],
        "settings": {name: split.settings for name, split in splits.items()},
        **{key: value for key, value in manifest.extra.items() if key not in _OURS},
    }
    return json.dumps(content, indent=1, ensure_ascii=True).encode("ascii") + b"\n"


def _dump_split(split: SplitInfo, extra: Mapping[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {
        "name": split.name,
        "num_samples": split.samples,
        "filenames": [shard.name for shard in split.shards],
        "shard_lengths": [shard.samples for shard in split.shards],
        "fields": dict(sorted(split.fields.items())),
    }
    if split.suffixes:
        content["suffixes"] = dict(sorted(split.suffixes.items()))
    if split.num_skipped:
        content["num_skipped"] = split.num_skipped
        content["skipped"] = [{"path": skip.path, "reason": skip.reason} for skip in split.skipped[:MAX_LISTED_SKIPS]]
    return content | {key: value for key, value in extra.items() if key not in _OURS_IN_SPLIT}


def _dump_shard(shard: ShardInfo) -> dict[str, Any]:
    if _leads_out(shard.name):
        raise ManifestError(
            f"shard {shard.name!r} cannot be listed in {NAME}, because others would not find it; rename it"
        )
    content: dict[str, Any] = {"url": shard.name, "nsamples": shard.samples}
    if shard.size is not None:
        content["filesize"] = shard.size
    if shard.sha256 is not None:
        content["sha256"] = shard.sha256
    return content


def _leads_out(name: str) -> bool:
    return bool(_ELSEWHERE.match(name)) or not {"", ".", ".."}.isdisjoint(name.split("/"))


def load(data: bytes, place: str = NAME) -> Manifest:
    """Read ``info.json``; ``place`` is how messages name it. timm's plain ``_info.json`` is read too."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ManifestError(
            f"{place}: not JSON ({error}); restore it, or remove it and make it anew with 'wds-tools index'"
        ) from None
    if not isinstance(content, dict) or not isinstance(content.get("splits"), dict):
        raise ManifestError(
            f"{place}: not a dataset's manifest: it has no 'splits'; "
            "move it away and make a manifest of the shards with 'wds-tools index'"
        )
    version = content.get("version", VERSION)
    if content.get("format") == FORMAT and not (isinstance(version, int) and version <= VERSION):
        raise ManifestError(
            f"{place}: its version is {version!r:.40} and this program reads up to {VERSION}; upgrade wds_tools"
        )
    try:
        return _load(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ManifestError(
            f"{place}: malformed ({type(error).__name__}: {error}); remove it and make it anew with 'wds-tools index'"
        ) from None


def _load(content: dict[str, Any]) -> Manifest:
    listed = {_typed(str, entry["url"]): entry for entry in _typed(list, content.get("shardlist", []))}
    settings = _typed(dict, content.get("settings", {}))
    splits = {}
    for name, entry in content["splits"].items():
        filenames, lengths = _typed(list, entry["filenames"]), _typed(list, entry["shard_lengths"])
        if len(filenames) != len(lengths):
            raise ValueError(f"split {name!r} has {len(filenames)} file names and {len(lengths)} lengths")
        splits[name] = SplitInfo(
            name=name,
            shards=tuple(
                _load_shard(_typed(str, url), _typed(int, n), listed.get(url, {}))
                for url, n in zip(filenames, lengths, strict=True)
            ),
            fields={key: _typed(int, count) for key, count in entry.get("fields", {}).items()},
            suffixes={key: _typed(str, suffix) for key, suffix in entry.get("suffixes", {}).items()},
            settings=_typed(dict, settings.get(name, {})),
            skipped=tuple(
                Skipped(_typed(str, skip["path"]), _typed(str, skip["reason"]))
                for skip in _typed(list, entry.get("skipped", []))
            ),
            num_skipped=_typed(int, entry.get("num_skipped", 0)),
        )
    return Manifest(
        splits=splits,
        classes=tuple(_typed(str, name) for name in _typed(list, content.get("classes", []))),
        extra={key: value for key, value in content.items() if key not in _OURS},
        split_extra={
            name: extra
            for name, entry in content["splits"].items()
            if (extra := {key: value for key, value in entry.items() if key not in _OURS_IN_SPLIT})
        },
    )


def _load_shard(name: str, samples: int, entry: Mapping[str, Any]) -> ShardInfo:
    if _leads_out(name):
        raise ValueError(f"shard {name!r} lies outside of the dataset")
    size, sha256 = entry.get("filesize"), entry.get("sha256")
    return ShardInfo(
        name, samples, None if size is None else _typed(int, size), None if sha256 is None else _typed(str, sha256)
    )


def _typed(kind: type[_T], value: Any) -> _T:
    """``value``, which must be of this kind; a number counts something, so it is whole and not below zero."""
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        raise TypeError(f"{value!r:.40} where a {kind.__name__} belongs")
    return value
