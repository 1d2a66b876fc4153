"""Datasets as a source: shards with or without indexes and manifests, here or on a server, of ours or of others.

Each shard is one task: its index is read and held against the shard, or its headers are where there is no index. Labels are
read only where they decide something: classes are chosen, or change their numbers. What remains of a sample is the line of its
fields' places; the bytes stay where they are until a shard is made (`shard_origin.py`).
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Sequence

from wds_tools.convert import entries, keys
from wds_tools.convert.classes import merge
from wds_tools.convert.datasets import Part, common
from wds_tools.convert.entries import Request, Source
from wds_tools.convert.selection import Selection, key_hash
from wds_tools.convert.shard_origin import Pinned, dump_root
from wds_tools.convert.shard_scan import ShardJob, scan_shard, signed
from wds_tools.convert.spool import Spool
from wds_tools.convert.unique import Keys
from wds_tools.errors import SourceError
from wds_tools.store.local import LocalStore
from wds_tools.store.options import StoreOptions


def scan(request: Request, parts: Sequence[Part], selection: Selection, options: StoreOptions | None = None) -> Source:
    """Find every sample of the selection in ``parts``, in their order and the shards'.

    Raises `SourceError` where classes do not go together, keys meet, or nothing is left; `FormatError` for a damaged shard or an
    index of another one; `SampleError`, when ``strict``, for a sample whose label or fields cannot be taken.
    """
    lines = request.lines
    merged = merge([(part.place, part.classes) for part in parts], selection.classes, request.classes)
    remote = not all(isinstance(part.store, LocalStore) for part in parts)
    jobs: list[ShardJob] = []
    for part, labels in zip(parts, merged.labels, strict=True):
        for info in part.shards:
            jobs.append(
                ShardJob(part.store, len(jobs), info, part.prefix, labels, selection, request.strict, blocks=remote)
            )
    digest = hashlib.sha256()
    source = Source("", lines, merged.names, "", kind="shards")
    pinned, seen, blocks, passed = [], Keys(), array("q"), 0
    for job, found in zip(jobs, request.map_(scan_shard, jobs), strict=True):
        lines.extend(found.lines, found.sizes)
        seen.extend(found.hashes)
        blocks.extend(found.blocks)
        digest.update(found.digest)
        source.skipped += found.skipped
        passed += found.passed
        pinned.append(Pinned(job.store, job.info.name, found.version))
    _check_keys(lines, seen, pinned)
    _check_count(parts, source, selection, passed)
    source.root, source.blocks, source.digest = dump_root(pinned, options), blocks, digest.hexdigest()
    source.suffixes = common([part.suffixes for part in parts])
    source.earlier = {} if selection.prefix else common([part.earlier for part in parts])
    return source


def _check_keys(lines: Spool, seen: Keys, pinned: Sequence[Pinned]) -> None:
    """Refuse two samples with one key."""
    doubtful = seen.doubtful()
    if not doubtful:
        return
    known: dict[str, str] = {}
    for line in lines:
        entry = entries.load_line(line)
        key = keys.stem_of_member(entry.path)
        if signed(key_hash(key)) in doubtful:
            shard = pinned[int(re.split("[:=]", entry.at, maxsplit=1)[0])]
            url = shard.store.url(shard.name)
            if key in known:
                raise SourceError(
                    f"key {key!r} is in {known[key]!r} and in {url!r}, and a key is there once in a split; "
                    "--prefix puts each source's name before its keys"
                )
            known[key] = url


def _check_count(parts: Sequence[Part], source: Source, selection: Selection, passed: int) -> None:
    where = ", ".join(repr(part.place) for part in parts[:3]) + (", …" if len(parts) > 3 else "")
    there, low, high = len(source.lines), *selection.share
    if there and (passed or not selection.divides):
        return
    if there or passed:
        which = "every" if there else "none"
        raise SourceError(
            f"{where}: of the {there + passed} samples {which} one has a key whose share lies in {low:g}:{high:g}; "
            "choose another share, or take more samples"
        )
    if source.skipped:
        first = source.skipped[0]
        raise SourceError(
            f"{where} has no usable sample: {len(source.skipped)} skipped, the first is {first.path!r}: {first.reason}"
        )
    what = f" of class {' or '.join(map(repr, selection.classes[:5]))}" if selection.classes else ""
    raise SourceError(f"{where} has no samples{what}")
