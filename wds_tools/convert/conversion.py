"""The steps of a conversion: scan, plan, make what is missing, and write the manifest when every receipt stands.

Every step may be the last one before a power cut. What makes running again safe: the source is scanned and planned anew,
a shard counts as made only with a receipt that carries the digest of the same plan, and nothing is a dataset before
``info.json`` says so.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from wds_tools.convert.claim import Claim, digest_of
from wds_tools.convert.engines import Engine
from wds_tools.convert.entries import Request, Search, Source
from wds_tools.convert.lock import manifest_lock
from wds_tools.convert.options import ConvertOptions
from wds_tools.convert.plan import make_plan
from wds_tools.convert.result import Progress, Result, split_info
from wds_tools.convert.several import each
from wds_tools.convert.shard import Job, build_shard, output_scale
from wds_tools.convert.spool import Spool
from wds_tools.convert.target import Target
from wds_tools.convert.workspace import Plan
from wds_tools.errors import NotFoundError, SourceError, TargetError
from wds_tools.format import manifest
from wds_tools.format.manifest import Manifest
from wds_tools.records import Receipt, ShardPlan, SplitInfo
from wds_tools.store.base import Store
from wds_tools.store.local import LocalStore

_FOUND = ("source", "earlier")  # settings that come from the source, not from whoever asks


class Conversion:
    """One call of `run.convert_tree`, step by step."""

    def __init__(
        self,
        search: Search,
        store: Store,
        options: ConvertOptions,
        engine: Engine,
        progress: Progress,
        holder: str,
    ) -> None:
        self._search = search
        self._store = store
        self._options = options
        self._engine = engine
        self._progress = progress
        self._holder = holder  # of the manifest's lock
        self._local = isinstance(store, LocalStore)
        self._target = Target(store, options.split)
        self._workspace = self._target.workspace
        self._found: Source | None = None
        self._built = 0

    def run(self, overwrite: bool) -> Result:
        """All of it, under the exclusive lock."""
        before = self._target.read_manifest()
        with self._engine:
            plan = self._new_plan(before, overwrite)
            if isinstance(plan, Result):
                return plan
            try:
                receipts = self._build(plan, None)
                self._finish(plan, receipts, before if self._local else None)
            except (NotFoundError, TargetError):
                done = self._made_by_another(plan)
                if done is None:
                    raise
                return done
        return self._result(plan, receipts, complete=True)

    def _made_by_another(self, plan: Plan) -> Result | None:
        """What the same conversion, at work in the same bucket at the same time, has finished before us."""
        if self._local:
            return None
        content = self._target.read_manifest()
        done = content.splits.get(self._options.split)
        if done is None or done.settings != plan.settings or content.classes != plan.classes:
            return None
        return self._summary(done, len(plan.classes), self._built, plan.source_bytes)

    def plan_only(self) -> Result | None:
        """Write the plan down for an array of tasks; a result if there is nothing left to do."""
        if self._written_plan() is not None:
            return None
        with self._engine:
            plan = self._new_plan(self._target.read_manifest())
        return plan if isinstance(plan, Result) else None

    def run_planned(self, task: tuple[int, int]) -> Result | None:
        """One task's part of the written plan, None if there is no plan."""
        plan = self._written_plan()
        if plan is None:
            return None
        try:
            with self._engine:
                receipts = self._build(plan, task)
            complete = len(receipts) == len(plan.shards)
            if complete:
                self._finish(plan, receipts)
        except (NotFoundError, TargetError):
            if self._written_plan() is not None:
                raise
            return None  # another task has made everything meanwhile, and tidied up
        return self._result(plan, receipts, complete)

    def finalize(self) -> tuple[Result, tuple[str, ...]] | None:
        """Write the manifest if every shard of the written plan stands; what is missing. None where there is no plan.

        Under the exclusive lock, in a folder: nobody is at work. Nothing is made, and the source is not looked at.
        """
        plan = self._workspace.read_plan()
        if plan is None:
            return None
        if plan.kind != "shards":  # whose root is a list of them
            self._search = replace(self._search, source=plan.root)
        standing = self._receipts(list(plan.shards), plan)
        missing = tuple(name for name, receipt in standing.items() if receipt is None)
        receipts = [receipt for receipt in standing.values() if receipt is not None]
        if not missing:
            self._finish(plan, receipts)
        return self._result(plan, receipts, complete=not missing), missing

    def drop_plan(self) -> None:
        self._workspace.drop_plan()

    def tidy(self) -> None:
        """Remove what a task that ran twice, or was killed, left behind when the split was finished already."""
        if self._options.split in self._target.read_manifest().splits:
            self._target.clear()

    def _new_plan(self, before: Manifest, overwrite: bool = False) -> Plan | Result:
        """A plan made from the source as it is now, or the result if the split is there already."""
        self._found = self._scan(before.without_split(self._options.split))
        claim = self._claim(self._settings(self._found), self._found.classes)
        if overwrite:
            if not self._local:
                self._workspace.clear()  # the claims of others
            claim.take()
            return self._plan(self._found, before)
        done = before.splits.get(self._options.split)
        if done is not None:
            return self._already_there(done, before)
        self._target.check_strangers()
        claim.take()
        return self._plan(self._found, None)

    # -- before anything is made

    def _scan(self, before: Manifest) -> Source:
        options = self._options
        classes = options.classes or before.classes or None  # those of the other splits
        if options.classes and before.classes and options.classes != before.classes:
            raise TargetError(
                f"{self._store.url()!r} has {len(before.classes)} classes already and --classes lists others; "
                "leave --classes out, or convert to another folder"
            )
        request = Request(
            path=self._search.source,
            # What does not fit in memory goes to the disk that the dataset will fill.
            lines=Spool(self._store.root if isinstance(self._store, LocalStore) else None),
            classes=classes,
            strict=options.on_error == "raise",
            siblings=options.siblings,
            images=options.images,
            labels=options.labels,
            first_label=options.first_label,
            split=options.split,
            map_=self._engine.map,
        )
        return self._search.scan(request)

    def _settings(self, found: Source) -> dict[str, Any]:
        earlier = {"earlier": found.earlier} if found.earlier else {}
        return {**self._asked(), "source": found.digest, **earlier}

    def _asked(self) -> dict[str, Any]:
        return {**self._options.settings(), **self._search.settings}

    def _written_plan(self) -> Plan | None:
        """The plan of an earlier task of the same array; what it says of the options must be what we are asked."""
        plan = self._workspace.read_plan()
        if plan is None:
            return None
        if {key: value for key, value in plan.settings.items() if key not in _FOUND} != self._asked():
            raise TargetError(
                f"{self._store.url()!r} holds an unfinished conversion with other options; "
                "run that one to its end, or start afresh with --overwrite"
            )
        return plan

    def _already_there(self, done: SplitInfo, before: Manifest) -> Result:
        assert self._found is not None
        classes = self._found.classes or before.classes
        if done.settings != self._settings(self._found) or classes != before.classes:
            raise TargetError(
                f"{self._store.url()!r} holds a split {done.name!r} already, made from another source or with other options; "
                "replace it with --overwrite, or choose another folder or --split"
            )
        self._target.clear()
        return self._summary(done, len(before.classes), built=0, source_bytes=self._found.lines.total)

    # -- plan and shards

    def _claim(self, settings: dict[str, Any], classes: tuple[str, ...]) -> Claim:
        return Claim(self._store, self._options.split, digest_of(settings, classes))

    def _job(self, made_from: Source | Plan, settings: dict[str, Any]) -> Job:
        classes = made_from.classes
        return Job(made_from.root, made_from.kind, self._store, self._options, classes, self._claim(settings, classes))

    def _plan(self, found: Source, replaced: Manifest | None) -> Plan:
        """Cut the source into shards, and write that down. The split is taken out of a manifest that is ``replaced``."""
        settings = self._settings(found)
        scale = output_scale(self._job(found, settings), found.lines)
        source_bytes = found.lines.total
        self._target.check_space(int(source_bytes * scale) + len(found.lines) * 2048)
        if replaced is not None:  # now that nothing speaks against making it anew
            self._forget(replaced)
            self._target.remove_split(replaced, self._claim(settings, found.classes).name)
        self._target.sweep(all_splits=True)
        self._workspace.drop_plan()
        planned = make_plan(found.lines, self._options, scale=scale, blocks=found.blocks)
        shards = list(each(self._store, self._write_entries, planned))
        self._target.remove_shards_but({shard.name for shard in shards})
        plan = Plan(
            root=found.root,
            kind=found.kind,
            settings=settings,
            classes=found.classes,
            shards=tuple(shards),
            source_bytes=source_bytes,
            skipped=tuple(found.skipped[: manifest.MAX_LISTED_SKIPS]),
            num_skipped=len(found.skipped),
            suffixes={} if self._options.encodes else found.suffixes,
        )
        self._workspace.write_plan(plan)
        found.lines.clear()  # they are written down; a million of them need not be kept
        return plan

    def _write_entries(self, planned: tuple[ShardPlan, bytes]) -> ShardPlan:
        shard, lines = planned
        self._workspace.write_entries(shard.name, lines)
        return shard

    def _forget(self, before: Manifest) -> None:
        """Take the split out of the manifest, which other splits' conversions may be at in a bucket."""
        if self._local:
            self._target.forget_split(before)
            return
        with manifest_lock(self._store, self._holder):
            self._target.forget_split(self._target.read_manifest())

    def _build(self, plan: Plan, task: tuple[int, int] | None) -> list[Receipt]:
        """Make this task's missing shards. Answers with all receipts that stand, in the shards' order."""
        written = self._workspace.receipts()
        standing = self._receipts([shard for shard in plan.shards if shard.name in written], plan)
        mine = [
            shard
            for number, shard in enumerate(plan.shards)
            if standing[shard.name] is None and (task is None or number % task[1] == task[0])
        ]
        # In a bucket each is a request, so only what was listed is asked for.
        dropped = [shard.name for shard in mine if self._local or shard.name in written]
        for _ in each(self._store, self._workspace.drop_receipt, dropped):
            pass
        done = [receipt for receipt in standing.values() if receipt is not None]
        samples, size = sum(r.samples + len(r.skipped) for r in done), sum(r.source_bytes for r in done)
        self._progress.begin(plan.samples, plan.source_bytes)
        self._progress.update(samples, size)
        function = partial(build_shard, self._job(plan, plan.settings))
        for receipt in self._engine.run(function, mine, lambda n, b: self._progress.update(samples + n, size + b)):
            standing[receipt.name] = receipt
            self._built += 1
        if task is not None:  # other tasks have been at work meanwhile
            missing = [shard for shard in plan.shards if standing[shard.name] is None]
            standing |= {
                name: receipt for name, receipt in self._receipts(missing, plan).items() if receipt is not None
            }
        return [receipt for receipt in standing.values() if receipt is not None]

    def _receipts(self, shards: list[ShardPlan], plan: Plan) -> dict[str, Receipt | None]:
        """The receipts of these shards that stand, by the names of all in the plan's order."""
        found = dict(
            zip([s.name for s in shards], each(self._store, self._workspace.read_receipt, shards), strict=True)
        )
        return {shard.name: found.get(shard.name) for shard in plan.shards}

    # -- after everything is made

    def _finish(self, plan: Plan, receipts: list[Receipt], before: Manifest | None = None) -> None:
        """Write the manifest; ``before`` is what it was, where no other task can have changed it."""
        split = split_info(self._options.split, plan, receipts)
        if not split.samples:
            first = split.skipped[0]
            raise SourceError(
                f"{self._search.source!r} has no usable image: {split.num_skipped} skipped, "
                f"the first is {first.path!r}: {first.reason}"
            )
        self._claim(plan.settings, plan.classes).check()
        for _ in each(self._store, self._workspace.check_stamp, receipts):
            pass
        with manifest_lock(self._store, self._holder):
            if before is None:
                before = self._target.read_manifest()
            others = before.without_split(self._options.split)
            if others.classes and plan.classes and others.classes != plan.classes:
                raise TargetError(
                    f"{self._store.url()!r} has got other classes while split {split.name!r} was made; "
                    "run again without --task, which labels it anew"
                )
            self._target.write_manifest(others.with_split(split, others.classes or plan.classes))
        self._target.sweep(all_splits=False)
        self._workspace.clear()

    def _result(self, plan: Plan, receipts: list[Receipt], complete: bool) -> Result:
        split = split_info(self._options.split, plan, receipts)
        result = self._summary(split, len(plan.classes), self._built, plan.source_bytes, complete)
        return replace(
            result,
            tiled=sum(receipt.tiled for receipt in receipts),
            tiled_from=sum(receipt.tiled_from for receipt in receipts),
            tiled_to=sum(receipt.tiled_to for receipt in receipts),
            nodes=self._engine.nodes,
        )

    def _summary(self, split: SplitInfo, classes: int, built: int, source_bytes: int, complete: bool = True) -> Result:
        found = self._found
        return Result(
            target=self._store.url(),
            split=split.name,
            samples=split.samples,
            shards=len(split.shards),
            size=sum(shard.size or 0 for shard in split.shards),
            source_bytes=source_bytes,
            classes=classes,
            built=built,
            complete=complete,
            skipped=split.skipped,
            num_skipped=split.num_skipped,
            ignored=dict(found.ignored) if found else {},
            empty_classes=found.empty_classes if found else (),
            jpegs=split.fields.get("jpg", 0),
            notes=found.notes if found else (),
        )
