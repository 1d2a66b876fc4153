"""What keeps two conversions apart in a bucket, which has no locks and may know no conditional writes.

A *claim* is an object in the workspace named for what is being made: a digest of options, source and classes. Whoever begins
writes its own claim and then lists them all. Two that begin at once both see both, since a listing shows what was
written before it (so it is in S3, MinIO, Ceph and Google's; in Swift as long as its container server keeps up), and both give
up. Conversions with the same claim write the same bytes and need not be kept apart. There is nothing to expire: the claim
of a conversion that was killed is taken up by the same command, and refuses every other until ``--overwrite``.

That option takes the claims of others away. A conversion under way looks for its claim before each shard, when all of the
shard but its name is there, after that, and before the manifest; it gives up when the claim is gone. In the moment between
looking and naming, its shard may still come to lie over a new one, which the other conversion sees by the versions of its
shards before it writes the manifest, and `verify` any time.

`manifest_turn` is the same by Burns' algorithm (Burns and Lynch, 1980) for a moment rather than a conversion: of two who
want to change ``info.json``, the later name steps back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wds_tools.convert.workspace import FOLDER
from wds_tools.errors import NotFoundError, TargetBusyError, TargetError
from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore

_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 30.0
_TURN = f"{FOLDER}/manifest-"


def digest_of(settings: dict[str, Any], classes: Sequence[str]) -> str:
    """What tells conversions apart: their settings, with the source's digest among them, and their classes."""
    return hashlib.sha256(json.dumps([settings, list(classes)], sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Claim:
    """That one split is being made in one way. In a local folder, which has locks, it does nothing."""

    store: Store
    split: str
    digest: str

    @property
    def name(self) -> str:
        return f"{FOLDER}/{self.split}/claim-{self.digest}"

    def take(self) -> None:
        """Claim the split, or `TargetError` where a conversion that makes something else has."""
        if isinstance(self.store, LocalStore):
            return
        there = self._all()
        others = there - {self.name}
        if not others:
            self.store.write_atomic(self.name, [self.digest.encode()])
            others = self._all() - {self.name}
            if others and self.name not in there:
                self.store.delete(self.name)
        if others:
            raise TargetError(
                f"{self.store.url()!r} holds a conversion of split {self.split!r} that is under way or was interrupted, "
                "with other options or of a source that has changed since; run that one to its end, or replace it with "
                "--overwrite once it does not run any more"
            )

    def check(self) -> None:
        """`TargetError` if somebody has taken the claim away."""
        if isinstance(self.store, LocalStore):
            return
        try:
            self.store.size(self.name)
        except NotFoundError:
            raise TargetError(
                f"{self.store.url()!r} is not this conversion's any more: another one has replaced or finished split "
                f"{self.split!r} meanwhile; look at it with 'wds-tools verify', and let only one of them run"
            ) from None

    def _all(self) -> set[str]:
        return set(self.store.list(f"{FOLDER}/{self.split}/claim-"))


@contextlib.contextmanager
def manifest_turn(store: Store, holder: str, patience: float = _PATIENCE_SECONDS) -> Iterator[None]:
    """Be the only one to change the manifest of a bucket's dataset; `TargetBusyError` after ``patience`` seconds.

    ``holder`` names who asks, alike in every run, so that one who was killed in his turn ends it by running again.
    """
    name = _TURN + holder
    started = time.monotonic()
    try:
        while not _has_turn(store, name, started + patience):
            pass
        yield
    finally:
        store.delete(name)


def _has_turn(store: Store, name: str, deadline: float) -> bool:
    """Whether it is our turn; False to ask again, after an earlier name was let pass."""
    while earlier := [other for other in store.list(_TURN) if other < name]:
        _wait(store, earlier[0], deadline)
    store.write_atomic(name, [b"turn"])
    if any(other < name for other in store.list(_TURN)):
        store.delete(name)
        return False
    while later := [other for other in store.list(_TURN) if other > name]:
        _wait(store, later[0], deadline)
    return True


def _wait(store: Store, other: str, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TargetBusyError(
            f"{store.url(other)!r} says that another conversion is changing info.json; wait for it, or, if it was killed, "
            "run that one again or remove this object"
        )
    time.sleep(_POLL_SECONDS)
