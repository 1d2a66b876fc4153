"""Conversions into a bucket: the bytes of a local one, whole or not there, resumed, and never two of them mixed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import buckets, processes, streams, trees
from tests.support.commands import call, run_python
from wds_tools.convert.claim import Claim, manifest_turn
from wds_tools.convert.options import ConvertOptions
from wds_tools.convert.run import convert_tree
from wds_tools.errors import OptionError, StoreError, TargetBusyError, TargetError
from wds_tools.store.options import StoreOptions
from wds_tools.store.s3 import S3Store
from wds_tools.stream.dataset import ShardDataset
from wds_tools.tools.verify import verify_dataset

if TYPE_CHECKING:
    from tests.conftest import Bucket

COUNT = 4  # samples a shard


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.classes(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def made(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a local conversion makes."""
    folder = tmp_path_factory.mktemp("made") / "out"
    convert_tree(tree, folder, max_count=COUNT, workers=0)
    return trees.snapshot(folder)


@pytest.fixture
def place(bucket: Bucket, tmp_path: Path) -> Iterator[str]:
    """A prefix of its own, in a bucket that the AWS configuration leads to."""
    with buckets.configured(bucket):
        yield f"{bucket.url}/{tmp_path.name}"


def make(tree: Path, place: str | Path, **changes: object) -> object:
    return convert_tree(tree, place, ConvertOptions(max_count=COUNT), **{"workers": 0, **changes})  # type: ignore[arg-type]


def test_a_conversion_to_a_bucket_has_the_bytes_of_a_local_one(tree: Path, made: dict[str, bytes], place: str) -> None:
    said = call("convert", tree, place, "--max-count", str(COUNT), "--workers", "2")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"{place}: split 'train' has 15 samples in 4 shards")
    store = S3Store(place)
    assert buckets.snapshot(store) == made
    before = buckets.tags(store, made)
    said = call("convert", tree, place, "--max-count", str(COUNT))
    assert (said.code, said.err) == (0, "")
    assert "nothing to do" in said.out
    assert buckets.tags(store, made) == before
    said = call("convert", tree, place, "--max-count", "5")
    assert said.code == 1
    assert "holds a split 'train' already" in said.err
    assert buckets.snapshot(store) == made


def test_what_was_made_in_a_bucket_streams_and_verifies(tree: Path, place: str) -> None:
    make(tree, place)
    assert verify_dataset(place, decode=True).problems == []
    dataset = ShardDataset(place, shuffle=True, seed=3)
    assert len(dataset) == 15
    assert len({sample["__key__"] for sample in dataset}) == 15


def test_shards_of_several_parts_have_the_bytes_of_local_ones(tmp_path: Path, place: str) -> None:
    tree = trees.make(tmp_path / "tree", {f"a/{n}.jpg": trees.picture(n) + bytes(5_000_000) for n in range(4)})
    convert_tree(tree, tmp_path / "out", workers=0)
    convert_tree(tree, place, workers=0)
    store = S3Store(place)
    assert buckets.snapshot(store) == trees.snapshot(tmp_path / "out")
    assert store.version("train-000000.tar").tag.endswith('-3"')


def test_a_second_split_goes_beside_the_first_and_overwrite_replaces_one(
    tree: Path, tmp_path: Path, place: str
) -> None:
    for out in (place, str(tmp_path / "out")):
        make(tree, out)
        convert_tree(tree, out, split="val", max_count=7, workers=0)
        convert_tree(tree, out, split="val", max_count=9, workers=0, overwrite=True)
    assert buckets.snapshot(S3Store(place)) == trees.snapshot(tmp_path / "out")


def test_tasks_of_an_array_share_a_bucket(tree: Path, made: dict[str, bytes], place: str) -> None:
    results = [make(tree, place, task=(number, 3)) for number in (2, 0, 1)]
    assert [result.complete for result in results] == [False, False, True]  # type: ignore[attr-defined]
    assert buckets.snapshot(S3Store(place)) == made


def test_tasks_at_the_same_time_share_a_bucket(tree: Path, made: dict[str, bytes], place: str) -> None:
    words = [
        ("convert", tree, place, "--max-count", str(COUNT), "--workers", "0", "--task", f"{n}/3") for n in range(3)
    ]
    commands = [processes.Command(*each) for each in words]
    assert [command.finish().code for command in commands] == [0, 0, 0]
    assert buckets.snapshot(S3Store(place)) == made


# ---------------------------------------------------------------- killed


DIES = """
import itertools, os, signal, sys
from wds_tools.cli import main
from wds_tools.store import wire
left = int(os.environ["DIES_AT"])
call = wire.Wire.call
def counting(self, request, attempts):
    global left
    if request.method != "GET":
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
    return call(self, request, attempts)
wire.Wire.call = counting
main.main()
"""


def test_fault_42_killed_before_any_write_a_second_run_makes_the_same_bytes(
    tree: Path, made: dict[str, bytes], place: str
) -> None:
    words = ("convert", os.fspath(tree), None, "--max-count", "8", "--workers", "0")
    number, code = 1, -signal.SIGKILL
    while code == -signal.SIGKILL:
        here = f"{place}/{number}"
        said = run_python("-c", DIES, *[word or here for word in words], env={"DIES_AT": str(number)})
        code = said.code
        store = S3Store(here)
        there = buckets.names(store)
        if "info.json" in there:
            assert verify_dataset(here, workers=0).problems == []
        receipts = [f"{n.rpartition('/')[2][:-8]}.tar" for n in there if n.endswith(".receipt")]
        result = convert_tree(tree, here, max_count=8, workers=0)
        assert result.built == (0 if "info.json" in there else 2 - len(receipts))
        made = buckets.snapshot(store) if number == 1 else made
        assert buckets.snapshot(store) == made
        number += 5
    assert code == 0, said
    assert number > 20
    assert verify_dataset(f"{place}/1").ok


# ---------------------------------------------------------------- refused before any work


def refused(tree: Path, place: str, code: int, message: str) -> None:
    said = call("convert", tree, place)
    assert (said.code, said.out) == (code, "")
    assert said.err.startswith("Error: ")
    assert len(said.err.splitlines()) == 1
    assert message in said.err
    assert "SECRET" not in said.err


def test_fault_40_what_cannot_be_written_to_is_refused_before_any_work(
    bucket: Bucket, tmp_path: Path, place: str
) -> None:
    nothing = tmp_path / "nothing"  # an empty source is refused too, but later
    nothing.mkdir()
    refused(nothing, "http://me:secret@host/x?key=secret", 2, "target 'http://host/x' is a URL that can only be read")
    refused(nothing, "gs://bucket/x", 2, "is a URL that can only be read; give a folder or s3://bucket/prefix")
    refused(nothing, "s3://nowhere/x", 1, "s3://nowhere/x/.wds_tools/probe does not exist (HTTP 404 NoSuchBucket)")
    with buckets.configured(bucket, "wrong"):
        refused(nothing, place, 1, "(HTTP 403 SignatureDoesNotMatch); check the credentials")
    with buckets.configured(bucket, "nobody"):
        refused(nothing, place, 1, "check the AWS configuration")


def test_fault_40_a_bucket_that_may_only_be_read_is_refused_before_any_work(tmp_path: Path) -> None:
    def denied(handler: streams._Handler, path: Path) -> None:
        handler.reply(200 if handler.command == "GET" else 403, b"<Error><Code>AccessDenied</Code></Error>")

    with streams.served(tmp_path) as server:
        server.always = denied
        options = StoreOptions(endpoint_url=server.url, backoff=0, anonymous=True)
        with pytest.raises(StoreError, match=r"s3://b/x/\.wds_tools/probe: the server refuses \(HTTP 403 AccessDenied"):
            convert_tree(tmp_path, "s3://b/x", store_options=options)
        assert [method for method, _, _ in server.requests] == ["PUT"]


def test_without_botocore_it_is_said_what_to_install(tree: Path) -> None:
    code = "import sys; sys.modules['botocore'] = None; from wds_tools.cli.main import main; main()"
    said = run_python("-c", code, "convert", tree, "s3://bucket/x")
    assert (said.code, said.out) == (1, "")
    assert (
        said.err
        == f"Error: s3://bucket needs botocore, which is not installed; run: {sys.executable} -m pip install botocore\n"
    )


# ---------------------------------------------------------------- fault 45: two of them


def test_fault_45_one_with_other_options_is_refused_while_another_is_unfinished(tree: Path, place: str) -> None:
    make(tree, place, task=(0, 2))
    store = S3Store(place)
    before = buckets.snapshot(store)
    with pytest.raises(TargetError, match=r"with other options or of a source that has changed.*--overwrite"):
        convert_tree(tree, place, max_count=9, workers=0)
    assert buckets.snapshot(store) == before
    convert_tree(tree, place, max_count=9, workers=0, overwrite=True)
    assert verify_dataset(place).problems == []


def test_fault_45_two_alike_make_the_same_bytes(tree: Path, made: dict[str, bytes], place: str) -> None:
    words = ("convert", tree, place, "--max-count", str(COUNT), "--workers", "0")
    with processes.Command(*words) as one, processes.Command(*words) as two:
        said = [one.finish(), two.finish()]
    assert 0 in [each.code for each in said], said
    make(tree, place)
    assert buckets.snapshot(S3Store(place)) == made


class Meanwhile:
    """Progress during which something is done once: when more samples than these are packed, and not yet named."""

    def __init__(self, does: object, after: int = 0) -> None:
        self._does = does
        self._after = after

    def begin(self, samples: int, size: int) -> None: ...

    def update(self, samples: int, size: int) -> None:
        if samples > self._after and self._does is not None:
            does, self._does = self._does, None
            does()  # type: ignore[operator]


def test_a_split_that_is_replaced_is_out_of_the_manifest_before_its_shards_go(tree: Path, place: str) -> None:
    def look() -> None:
        assert not {"info.json", "train-000003.tar"} & set(S3Store(place).list())

    make(tree, place)
    make(tree, place, overwrite=True, progress=Meanwhile(look))
    assert verify_dataset(place).problems == []


@pytest.mark.parametrize("after", [0, COUNT])
def test_fault_45_one_whose_claim_is_taken_away_gives_up(tree: Path, place: str, after: int) -> None:
    def replace_it() -> None:
        convert_tree(tree, place, max_count=9, workers=0, overwrite=True)

    with pytest.raises(TargetError, match="is not this conversion's any more"):
        make(tree, place, progress=Meanwhile(replace_it, after))
    assert verify_dataset(place).problems == []


def test_a_split_that_was_finished_while_another_was_made_is_kept(tree: Path, tmp_path: Path, place: str) -> None:
    make(tree, tmp_path / "out")
    convert_tree(tree, tmp_path / "out", split="val", workers=0)

    def make_the_other() -> None:
        convert_tree(tree, place, split="val", workers=0)

    make(tree, place, progress=Meanwhile(make_the_other))
    assert buckets.snapshot(S3Store(place)) == trees.snapshot(tmp_path / "out")


def test_fault_45_a_shard_that_another_one_replaced_is_seen_before_the_manifest(tree: Path, place: str) -> None:
    store = S3Store(place)

    def spoil() -> None:
        store.write_atomic("train-000000.tar", [bytes(10240)])

    with pytest.raises(TargetError, match=r"train-000000\.tar' has been replaced while the others were made"):
        make(tree, place, progress=Meanwhile(spoil, COUNT))
    assert "info.json" not in store.list()
    make(tree, place)
    assert verify_dataset(place).problems == []


def test_two_claims_at_once_are_both_given_up_and_leave_nothing(bucket: Bucket, place: str) -> None:
    store = S3Store(place)
    one, two = (Claim(store, "train", digest) for digest in "ab")

    class Late(S3Store):
        """Somebody who looks before the other writes, and writes after the other has looked."""

        def write_atomic(self, name: str, chunks: object, **options: object) -> None:
            two.take()
            super().write_atomic(name, chunks)  # type: ignore[arg-type]

    with pytest.raises(TargetError):
        Claim(Late(place), "train", "a").take()
    with pytest.raises(TargetError):
        one.take()
    two.take()
    two.check()
    assert buckets.names(store) == [two.name]


def test_who_was_killed_in_his_turn_at_the_manifest_keeps_others_out_until_he_runs_again(place: str) -> None:
    store = S3Store(place)
    store.write_atomic(".wds_tools/manifest-train", [b"turn"])
    for holder in ("a", "val"):
        waits = pytest.raises(TargetBusyError, match=r"manifest-train' says that another.*run that one again or remove")
        with waits, manifest_turn(store, holder, patience=0.0):
            raise AssertionError("nobody's turn")
    with manifest_turn(store, "train"):
        assert store.list(".wds_tools/") == [".wds_tools/manifest-train"]
    assert buckets.names(store) == []


def test_a_target_that_is_no_bucket_is_refused(tree: Path) -> None:
    with pytest.raises(OptionError, match="is no address in S3"):
        convert_tree(tree, "s3://")
