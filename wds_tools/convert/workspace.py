"""The hidden folder of an unfinished conversion: ``.wds_tools/<split>/`` in the dataset's root.

    plan.json                  settings, classes, source and the shards with their digests; written after the entries
    train-000000.entries       the lines of one shard's entries
    train-000000.receipt       proof that this shard stands
    claim-<digest>             in a bucket: who makes this split, see `convert.claim`

A task needs nothing but this folder and the source, so any process on any machine that sees both can do it.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from wds_tools.convert.plan import shard_digest
from wds_tools.convert.several import each
from wds_tools.errors import NotFoundError, StoreError, TargetError
from wds_tools.format import index
from wds_tools.format.dataset import WORKSPACE
from wds_tools.records import Receipt, ShardPlan, Skipped
from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore

FOLDER = WORKSPACE
_PLAN = "plan.json"


@dataclass(frozen=True)
class Plan:
    """What a conversion of one split will make, as written down. ``settings`` decide the shards' bytes."""

    root: str
    settings: dict[str, Any]
    classes: tuple[str, ...]
    shards: tuple[ShardPlan, ...]
    source_bytes: int
    skipped: tuple[Skipped, ...] = ()
    num_skipped: int = 0
    kind: str = "files"
    suffixes: dict[str, str] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)


class Workspace:
    """Plan, entries and receipts of one split's conversion, in the target store."""

    def __init__(self, store: Store, split: str) -> None:
        self._store = store
        self._folder = f"{FOLDER}/{split}"

    def _name(self, base: str) -> str:
        return f"{self._folder}/{base}"

    def write_entries(self, shard: str, lines: bytes) -> None:
        self._store.write_atomic(self._name(_stem(shard) + ".entries"), [lines], durable=False)

    def read_entries(self, shard: ShardPlan, settings: str) -> list[str]:
        """The lines of a shard's entries, if they are those that the plan is about: a power cut may have cut them."""
        name = self._name(_stem(shard.name) + ".entries")
        data = self._store.read(name)
        if shard_digest(settings, shard.name, data) != shard.digest:
            raise TargetError(
                f"{self._store.url(name)!r} is not as it was planned; run once without --task, which makes a new plan"
            )
        return data.decode("utf-8", "surrogateescape").split("\n")

    def write_plan(self, plan: Plan) -> None:
        self._store.write_atomic(self._name(_PLAN), [json.dumps(asdict(plan)).encode()])

    def read_plan(self) -> Plan | None:
        """The plan that an earlier run wrote down, None if there is none or it is not whole."""
        try:
            content = json.loads(self._store.read(self._name(_PLAN)))
            content["shards"] = tuple(ShardPlan(**shard) for shard in content["shards"])
            content["skipped"] = tuple(Skipped(**skip) for skip in content["skipped"])
            return Plan(**{**content, "classes": tuple(content["classes"])})
        except NotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return None

    def stamp(self, shard: str) -> str:
        """What tells these bytes of a shard from others of its name; empty in a local folder, which has locks."""
        return "" if isinstance(self._store, LocalStore) else self._store.version(shard).tag

    def check_stamp(self, receipt: Receipt) -> None:
        """`TargetError` if a shard is not the one that its receipt was written for."""
        if receipt.stamp and self.stamp(receipt.name) != receipt.stamp:
            raise TargetError(
                f"{self._store.url(receipt.name)!r} has been replaced while the others were made: another conversion is "
                "writing there; stop it, and run this one again"
            )

    def write_receipt(self, receipt: Receipt) -> None:
        # Not flushed: a receipt that a power cut loses costs a rebuilt shard, and its shard was flushed before.
        self._store.write_atomic(
            self._receipt_name(receipt.name), [json.dumps(asdict(receipt)).encode()], durable=False
        )

    def read_receipt(self, shard: ShardPlan) -> Receipt | None:
        """The receipt for ``shard``, if it was planned alike and shard and index are there, in the size that was written."""
        try:
            content = json.loads(self._store.read(self._receipt_name(shard.name)))
            content["skipped"] = tuple(Skipped(**skip) for skip in content["skipped"])
            receipt = Receipt(**content)
            self._store.size(index.index_name(shard.name))
            there = self._store.version(shard.name)
            stands = receipt.digest == shard.digest and there.size == receipt.size
            stands = stands and receipt.stamp in ("", there.tag)
        except NotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return None
        return receipt if stands else None

    def _receipt_name(self, shard: str) -> str:
        return self._name(_stem(shard) + ".receipt")

    def receipts(self) -> set[str]:
        """Names of the shards that have a receipt, of this plan or an earlier one."""
        suffix = ".receipt"
        with contextlib.suppress(NotFoundError):
            found = self._store.list(self._folder + "/")
            return {name[len(self._folder) + 1 : -len(suffix)] + ".tar" for name in found if name.endswith(suffix)}
        return set()

    def drop_plan(self) -> None:
        """Take the plan back before the entries that it speaks of change or go."""
        self._store.delete(self._name(_PLAN))

    def drop_receipt(self, shard: str) -> None:
        """A receipt that does not stand must not stand again, should its plan come back."""
        self._store.delete(self._receipt_name(shard))

    def clear(self, but: str = "") -> None:
        """Remove everything of this split ``but`` one name; others that are at it too are no error."""
        self.drop_plan()
        with contextlib.suppress(NotFoundError):
            found = [name for name in self._store.list(self._folder + "/") if name != but]
            for _ in each(self._store, self._store.delete, found):
                pass
        if isinstance(self._store, LocalStore):  # other stores have no folders
            self._store.remove_folder(self._folder)

    def exists(self) -> bool:
        try:
            return bool(self._store.list(self._folder + "/"))
        except NotFoundError:
            return False
        except StoreError as error:
            raise TargetError(str(error)) from error


def _stem(shard: str) -> str:
    return shard[: -len(".tar")]
