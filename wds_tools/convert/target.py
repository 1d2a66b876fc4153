"""The folder or bucket that a dataset is made in: its manifest, its shards, and what an interrupted conversion left there.

Nothing here asks whether somebody else is at work; that is the lock's business.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator

from wds_tools.convert.several import each
from wds_tools.convert.workspace import FOLDER, Workspace
from wds_tools.errors import FormatError, NotFoundError, OptionError, SampleError, SourceError, TargetError
from wds_tools.format import index, manifest, sidecars
from wds_tools.format.manifest import Manifest
from wds_tools.store.addresses import refuse_half_address
from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore
from wds_tools.store.options import StoreOptions
from wds_tools.store.s3 import S3Store

_PROBE = f"{FOLDER}/probe"


@contextlib.contextmanager
def not_left_empty(target: str) -> Iterator[None]:
    """Removes a folder that was made for a source that will not do, unless something lies in it."""
    fresh = "://" not in target and not os.path.lexists(target)
    try:
        yield
    except (SourceError, SampleError, FormatError):
        if fresh:
            with contextlib.suppress(OSError):  # there is something
                os.rmdir(target)
        raise


def open_target(target: str, source: str, options: StoreOptions | None = None) -> Store:
    """The store at ``target``, made and seen to be writable before any work begins."""
    if not target:
        raise OptionError("the target is empty; give a folder or s3://bucket/prefix")
    refuse_half_address(target)
    if target.startswith("s3://"):
        bucket = S3Store(target, options)
        check_writable(bucket)
        return bucket
    if "://" in target:
        shown = re.sub(r"//[^/]*@", "//", target.partition("?")[0])  # neither a signature nor a password
        raise OptionError(f"target {shown!r} is a URL that can only be read; give a folder or s3://bucket/prefix")
    check_apart(target, source)
    there = os.path.realpath(target)
    try:
        os.makedirs(there, exist_ok=True)
        if not os.access(there, os.W_OK | os.X_OK):
            read_only = hasattr(os, "statvfs") and os.statvfs(there).f_flag & os.ST_RDONLY
            raise OSError(None, "the file system is read-only" if read_only else "permission denied")
    except FileExistsError:
        raise TargetError(f"target {target!r} is a file; choose a folder") from None
    except OSError as error:
        raise TargetError(f"cannot write to {target!r}: {error.strerror}; choose another folder") from error
    return LocalStore(there)


def check_apart(target: str, source: str) -> None:
    """`TargetError` for a target inside of its source."""
    here, there = os.path.realpath(source), os.path.realpath(target)
    if here == there or (there.startswith(here + os.sep) and os.path.isdir(here)):
        raise TargetError(f"target {target!r} lies inside the source {source!r}; choose a folder outside of it")


def check_writable(store: Store) -> None:
    """See that a remote store takes, gives back and lets go of an object: the first refusal is the `StoreError`."""
    store.write_atomic(_PROBE, [b"wds_tools"])
    store.list(_PROBE)
    store.delete(_PROBE)


class Target:
    """What a conversion of one split reads and changes in the dataset's folder."""

    def __init__(self, store: Store, split: str) -> None:
        self.store = store
        self.workspace = Workspace(store, split)
        self._split = split

    def read_manifest(self) -> Manifest:
        try:
            return manifest.load(self.store.read(manifest.NAME), self.store.url(manifest.NAME))
        except NotFoundError:
            return Manifest()

    def write_manifest(self, content: Manifest) -> None:
        self.store.write_atomic(sidecars.SIZES, [sidecars.dump_sizes(dict(content.splits))])
        self.store.write_atomic(manifest.NAME, [manifest.dump(content)])

    def forget_split(self, before: Manifest) -> None:
        """Take the split out of the manifest: first of all, so that no reader takes what follows for whole."""
        if self._split in before.splits:
            before = before.without_split(self._split)
            if before.splits:
                self.write_manifest(before)
            else:
                self.store.delete(manifest.NAME)
                self.store.delete(sidecars.SIZES)

    def remove_split(self, before: Manifest, claim: str) -> None:
        """Remove what the manifest listed of a split that it does not list any more, and all work on it but a ``claim``."""
        split = before.splits.get(self._split)
        names = {shard.name for shard in split.shards} if split else set()
        self._remove_shards(names | self._shards_there())
        self.workspace.clear(but=claim)

    def check_strangers(self) -> None:
        """Shards that no receipt of ours accounts for belong to somebody else."""
        strangers = sorted(self._shards_there() - self.workspace.receipts())
        if strangers and not self.workspace.exists():
            raise TargetError(
                f"{self.store.url(strangers[0])!r} is there already and belongs to no finished dataset; "
                "move it away, replace all with --overwrite, or choose another folder"
            )

    def check_space(self, needed: int) -> None:
        if isinstance(self.store, LocalStore):
            there = sum(self.store.size(name) for name in self._shards_there())
            free = shutil.disk_usage(self.store.root).free + there
            if needed > free * 1.02:
                raise TargetError(
                    f"{self.store.url()!r} has {free / 1e6:,.0f} MB free and about {needed / 1e6:,.0f} MB are needed; "
                    "free some space, or choose another disk"
                )

    def remove_shards_but(self, planned: set[str]) -> None:
        """Remove the shards of an earlier, longer plan, whether or not they have a receipt."""
        self._remove_shards((self.workspace.receipts() | self._shards_there()) - planned)

    def sweep(self, *, all_splits: bool) -> None:
        """Remove temporary files: those of this split, or all of them if no task of another split can be at work."""
        if isinstance(self.store, LocalStore):
            self.store.sweep(prefix="" if all_splits else self._split + "-")

    def clear(self) -> None:
        """Remove everything that is not the dataset's; only for who holds it alone."""
        self.sweep(all_splits=True)
        self.workspace.clear()

    def _shards_there(self) -> set[str]:
        prefix = self._split + "-"
        return {
            name
            for name in self.store.list(prefix)
            if name.endswith(".tar") and name[len(prefix) : -len(".tar")].isdigit()
        }

    def _remove_shards(self, names: set[str]) -> None:
        for _ in each(self.store, self._remove_shard, sorted(names)):
            pass

    def _remove_shard(self, name: str) -> None:
        # The shard goes last: by its name a later run finds what an interrupted one left.
        self.store.delete(index.index_name(name))
        self.store.delete(name)
