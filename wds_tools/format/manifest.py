"""``info.json``: what a dataset consists of. Written last; a dataset without it is not finished.

One JSON object serves three readers. timm looks at ``splits.<name>.{name,num_samples,filenames,shard_lengths}``; wids
at ``wids_version``, ``name`` and ``shardlist[].{url,nsamples,filesize}``; the rest is ours, docs/format.md says what
each key means. Keys that we do not know are kept. There are no times and no paths in it, so that the same source
gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wds_tools.errors import ManifestError
from wds_tools.records import ShardInfo, Skipped, SplitInfo

NAME = "info.json"
FORMAT = "wds_tools"
VERSION = 1
MAX_LISTED_SKIPS = 1000  # how many skipped files are listed one by one; all are counted


@dataclass(frozen=True)
class Manifest:
    """The content of ``info.json``. ``extra`` holds unknown top-level keys, ``split_extra`` those of a split."""

    splits: Mapping[str, SplitInfo] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    split_extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def with_split(self, split: SplitInfo, classes: tuple[str, ...] | None = None) -> Manifest:
        """The same manifest with ``split`` put in, or replaced; ``classes`` replaces the classes if given."""
        splits = {**self.splits, split.name: split}
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
    content: dict[str, Any] = {"url": shard.name, "nsamples": shard.samples}
    if shard.size is not None:
        content["filesize"] = shard.size
    if shard.sha256 is not None:
        content["sha256"] = shard.sha256
    return content


def load(data: bytes, place: str = NAME) -> Manifest:
    """Read ``info.json``; ``place`` is how messages name it. timm's plain ``_info.json`` is read too."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ManifestError(
            f"{place}: not JSON ({error}); restore it, or remove it and make it anew with 'wds-tools index'"
        ) from None
    if not isinstance(content, dict) or not isinstance(content.get("splits", {}), dict):
        raise ManifestError(f"{place}: not a dataset's manifest: it has no 'splits'")
    version = content.get("version", VERSION)
    if content.get("format") == FORMAT and isinstance(version, int) and version > VERSION:
        raise ManifestError(
            f"{place}: its version is {version} and this program reads up to {VERSION}; "
            "upgrade with 'pip install -U wds_tools'"
        )
    try:
        return _load(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ManifestError(
            f"{place}: malformed ({type(error).__name__}: {error}); remove it and make it anew with 'wds-tools index'"
        ) from None


def _load(content: dict[str, Any]) -> Manifest:
    listed = {entry["url"]: entry for entry in content.get("shardlist", ())}
    settings = content.get("settings", {})
    splits = {}
    for name, entry in content.get("splits", {}).items():
        filenames, lengths = list(entry["filenames"]), list(entry["shard_lengths"])
        if len(filenames) != len(lengths):
            raise ValueError(f"split {name!r} has {len(filenames)} file names and {len(lengths)} lengths")
        splits[name] = SplitInfo(
            name=name,
            shards=tuple(
                _load_shard(url, int(n), listed.get(url, {})) for url, n in zip(filenames, lengths, strict=True)
            ),
            fields={str(key): int(count) for key, count in entry.get("fields", {}).items()},
            suffixes=dict(entry.get("suffixes", {})),
            settings=dict(settings.get(name, {})),
            skipped=tuple(Skipped(skip["path"], skip["reason"]) for skip in entry.get("skipped", ())),
            num_skipped=int(entry.get("num_skipped", 0)),
        )
    return Manifest(
        splits=splits,
        classes=tuple(str(name) for name in content.get("classes", ())),
        extra={key: value for key, value in content.items() if key not in _OURS},
        split_extra={
            name: {key: value for key, value in entry.items() if key not in _OURS_IN_SPLIT}
            for name, entry in content.get("splits", {}).items()
        },
    )


def _load_shard(name: str, samples: int, entry: Mapping[str, Any]) -> ShardInfo:
    if not isinstance(name, str) or samples < 0:
        raise ValueError(f"shard {name!r} with {samples} samples")
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"shard {name!r} lies outside of the dataset")
    size = entry.get("filesize")
    return ShardInfo(name, samples, None if size is None else int(size), entry.get("sha256"))
