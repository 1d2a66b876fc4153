"""Shards made of shards: divided, filtered, merged, encoded anew, from servers, and killed on the way."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import buckets, images, needs, others, processes, servers, streams, trees
from wds_tools.convert import entries, shard_origin, shard_scan
from wds_tools.convert import shards as kind
from wds_tools.convert.datasets import find_parts
from wds_tools.convert.entries import Request
from wds_tools.convert.reshard import reshard
from wds_tools.convert.run import convert_tree
from wds_tools.convert.selection import Selection
from wds_tools.convert.shard_origin import ShardOrigin
from wds_tools.convert.spool import Spool
from wds_tools.errors import OptionError, SampleError, SourceChangedError, SourceError, TargetError
from wds_tools.format import manifest
from wds_tools.image import codec, tiles
from wds_tools.store.options import StoreOptions
from wds_tools.store.s3 import S3Store
from wds_tools.tools.extract import extract_dataset
from wds_tools.tools.indexing import index_shards
from wds_tools.tools.verify import verify_dataset

if TYPE_CHECKING:
    from tests.conftest import Bucket

NAMES = ("ant", "bee", "cat", "dog")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.classes(tmp_path_factory.mktemp("tree"), NAMES, 6)


@pytest.fixture(scope="module")
def dataset(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "in"
    convert_tree(tree, folder, max_count=5, workers=0)
    return folder


def made(source: Any, target: Path, **options: Any) -> dict[str, dict[str, bytes]]:
    """The samples that a reshard makes, all of which is well."""
    results = reshard(source, target, **{"workers": 0, **options})
    assert verify_dataset(target, workers=0).problems == []
    found = [sample for result in results for sample in trees.read(target, result.split)]
    assert len(found) == len(dict(found))
    return dict(found)


def names(target: Path) -> tuple[str, ...]:
    return manifest.load((target / "info.json").read_bytes()).classes


def by_name(target: Path, split: str = "train") -> Counter[str]:
    """Samples by the name that their label has, which is the folder in their key too."""
    counts: Counter[str] = Counter()
    for key, fields in trees.read(target, split):
        name = names(target)[int(fields["cls"])]
        assert key.split("/")[-2] == name
        counts[name] += 1
    return counts


# ---------------------------------------------------------------- dividing


def test_val_is_disjoint_complete_and_the_same_under_other_shards_and_merging(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    others.tar(tmp_path / "more" / "train-000000.tar", [(f"x/{n}.jpg", trees.picture(n)) for n in range(30)])
    everything = dict(trees.read(dataset))
    drawn = []
    for number, (sources, options) in enumerate(
        [(dataset, {}), (dataset, {"seed": 3, "max_count": 1}), ([dataset, tmp_path / "more"], {"prefix": True})]
    ):
        out = tmp_path / f"out{number}"
        if options.pop("prefix", False):
            options["selection"] = Selection(prefix=True)
            options["classes"] = NAMES  # for shards that name none
        assert len(made(sources, out, val=0.3, **options)) in (24, 54)
        train, val = ({key.removeprefix("in/"): fields for key, fields in trees.read(out, s)} for s in ("train", "val"))
        assert not train.keys() & val.keys()
        ours = {key: fields for key, fields in (train | val).items() if "more/" not in key}
        assert ours == everything
        drawn.append({key for key in val if "more/" not in key})
        assert names(out) == NAMES
    assert drawn[0] == drawn[1] == drawn[2]
    assert 0 < len(drawn[0]) < 24
    shared = made(dataset, tmp_path / "shared", selection=Selection(share=(0.0, 0.3)))
    assert shared.keys() == drawn[0]


def test_running_val_again_does_nothing_and_other_options_are_refused(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert [result.built > 0 for result in reshard(dataset, out, val=0.3, workers=0)] == [True, True]
    before = trees.snapshot(out)
    assert [result.built for result in reshard(dataset, out, val=0.3, workers=0)] == [0, 0]
    with pytest.raises(TargetError, match="--overwrite"):
        reshard(dataset, out, val=0.4, workers=0)
    assert trees.snapshot(out) == before
    reshard(dataset, out, val=0.4, workers=0, overwrite=True)
    assert trees.snapshot(out) != before


def test_a_part_without_samples_is_refused_before_anything_is_made(dataset: Path, tmp_path: Path) -> None:
    for val in (1e-9, 1 - 1e-9):
        with pytest.raises(SourceError, match="choose another share"):
            reshard(dataset, tmp_path / "out", val=val, workers=0)
    assert trees.snapshot(tmp_path / "out") == {}


def test_tasks_of_an_array_make_the_same_and_refuse_another_selection(dataset: Path, tmp_path: Path) -> None:
    reshard(dataset, tmp_path / "one", val=0.3, max_count=4, workers=0)
    for part in (0, 1):
        if part:
            with pytest.raises(TargetError, match="with other options"):
                reshard(dataset, tmp_path / "two", val=0.2, max_count=4, workers=0, task=(part, 2))
        results = reshard(dataset, tmp_path / "two", val=0.3, max_count=4, workers=0, task=(part, 2))
        assert [result.complete for result in results] == [bool(part)] * 2
    assert trees.snapshot(tmp_path / "one") == trees.snapshot(tmp_path / "two")


# ---------------------------------------------------------------- classes and merging


def test_chosen_classes_count_from_0_again_and_keep_their_places_in_a_list(dataset: Path, tmp_path: Path) -> None:
    made(dataset, tmp_path / "a", selection=Selection(classes=("dog", "bee")), val=0.3)
    assert names(tmp_path / "a") == ("bee", "dog")
    assert by_name(tmp_path / "a") + by_name(tmp_path / "a", "val") == {"bee": 6, "dog": 6}
    made(dataset, tmp_path / "b", selection=Selection(classes=("dog", "bee")), classes=NAMES)
    assert names(tmp_path / "b") == NAMES
    assert by_name(tmp_path / "b") == {"bee": 6, "dog": 6}
    with pytest.raises(OptionError, match="'cow' is not among the 4 classes"):
        reshard(dataset, tmp_path / "c", selection=Selection(classes=("cow",)), workers=0)


def test_chosen_labels_of_shards_without_names_divide_too(dataset: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in dataset.glob("*.tar"):
        shutil.copy(path, bare)
    found = made(bare, tmp_path / "out", selection=Selection(classes=("3", "1")), val=0.3)
    assert names(tmp_path / "out") == ("1", "3")
    assert {key.split("/")[0] + fields["cls"].decode() for key, fields in found.items()} == {"bee0", "dog1"}


def test_datasets_are_merged_by_name(tmp_path: Path) -> None:
    for number, its in enumerate((("cat", "ant"), ("bee", "cat"))):
        tree = trees.make(tmp_path / f"t{number}", [f"{name}/{number}{n}.jpg" for name in its for n in range(3)])
        convert_tree(tree, tmp_path / f"d{number}", workers=0)
    found = made([tmp_path / "d0", tmp_path / "d1"], tmp_path / "out")
    assert names(tmp_path / "out") == ("ant", "cat", "bee")
    assert by_name(tmp_path / "out") == {"ant": 3, "cat": 6, "bee": 3}
    assert found.keys() == {key for n in (0, 1) for key, _ in trees.read(tmp_path / f"d{n}")}


def test_keys_that_meet_need_a_prefix(dataset: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "in"
    shutil.copytree(dataset, other)
    with pytest.raises(SourceError, match=rf"is in '{dataset}.*' and in '{other}.*--prefix"):
        reshard([dataset, other], tmp_path / "out", workers=0)
    found = made([dataset, other], tmp_path / "out", selection=Selection(prefix=True))
    folders = {key.rpartition("/")[0].rpartition("/")[0] for key in found}
    assert folders == {f"{dataset.parent.name}/in", "other/in"}  # as much of the path as tells them apart
    assert len(found) == 48
    assert by_name(tmp_path / "out") == dict.fromkeys(NAMES, 12)


def test_splits_are_chosen(dataset: Path, tree: Path, tmp_path: Path) -> None:
    both = shutil.copytree(dataset, tmp_path / "both")
    convert_tree(trees.make(tmp_path / "t", ["bee/v.jpg", "cat/v.jpg"]), both, split="val", workers=0)
    with pytest.raises(OptionError, match="has the splits train, val; choose with --from-split"):
        reshard(both, tmp_path / "out", workers=0)
    with pytest.raises(OptionError, match="no split 'test', only train, val"):
        reshard(both, tmp_path / "out", selection=Selection(splits=("test",)), workers=0)
    assert len(made(both, tmp_path / "val", selection=Selection(splits=("val",)))) == 2
    assert by_name(tmp_path / "val") == {"bee": 1, "cat": 1}
    assert len(made(both, tmp_path / "all", selection=Selection(splits=("train", "val")))) == 26
    assert len(made(f"{both}/train-00000[01].tar", tmp_path / "some")) == 10  # by name: with the manifest's classes
    assert names(tmp_path / "some") == NAMES


def test_where_sources_lie_nothing_is_written(dataset: Path, tmp_path: Path) -> None:
    for target in (dataset, dataset / "below"):
        with pytest.raises(TargetError, match="choose"):
            reshard(dataset, target, workers=0)
    with pytest.raises(TargetError, match="is where a source lies"):
        reshard(f"{dataset}/train-000000.tar", dataset, workers=0, split="more")
    with pytest.raises(OptionError, match="given twice"):
        reshard([f"{dataset}/train-000000.tar"] * 2, tmp_path / "out", workers=0)
    with pytest.raises(OptionError, match="metadata"):
        reshard(dataset, tmp_path / "out", workers=0, metadata=True)
    with pytest.raises(SourceError, match="'wds-tools reshard"):
        convert_tree(dataset, tmp_path / "out")


# ---------------------------------------------------------------- images


def test_the_image_is_encoded_anew_and_no_other_field(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    mask, photo = images.png(80, 60), images.jpeg(80, 60)
    members = [("a.cls", b"0"), ("a.jpeg", photo), ("a.seg.png", mask), ("b.jpeg", photo[:90]), ("c.txt", b"no image")]
    others.tar(tmp_path / "in" / "x.tar", members)
    with pytest.raises(SampleError, match=r"'b\.jpeg'"):
        reshard(tmp_path / "in", tmp_path / "out", image_size=30, workers=0)
    (result,) = reshard(tmp_path / "in", tmp_path / "out", image_size=30, on_error="skip", workers=0)
    assert (result.samples, result.num_skipped) == (2, 1)
    found = dict(trees.read(tmp_path / "out"))
    assert list(found["a"]) == ["cls", "jpeg", "seg.png"]
    assert codec.dimensions(found["a"]["jpeg"]) == (40, 30)
    assert (found["a"]["seg.png"], found["c"]) == (mask, {"txt": b"no image"})
    reshard(tmp_path / "in", tmp_path / "png", encode="png", on_error="skip", workers=0)
    found = dict(trees.read(tmp_path / "png"))
    assert list(found["a"]) == ["cls", "png", "seg.png"]


def test_images_are_tiled(tmp_path: Path) -> None:
    needs.kernel()
    source = trees.make(tmp_path / "tree", {f"a/{n}.jpg": images.jpeg(200, 150) for n in range(3)})
    convert_tree(source, tmp_path / "in", workers=0)
    (result,) = reshard(tmp_path / "in", tmp_path / "out", tile=True, workers=0)
    assert (result.tiled, result.jpegs) == (3, 3)
    assert all(tiles.is_tiled(fields["jpg"]) for _, fields in trees.read(tmp_path / "out"))


@pytest.mark.parametrize("options", [{}, {"metadata": True}, {"siblings": True}])
def test_extract_gives_the_tree_that_was_converted(tmp_path: Path, options: dict[str, Any]) -> None:
    tree = trees.make(tmp_path / "tree", [f"{name}/d{n}.x.JPEG" for name in ("ä b", "c") for n in range(4)])
    if "siblings" in options:
        trees.make(tree, {f"c/d{n}.x.txt": b"%d" % n for n in range(4)})
    convert_tree(tree, tmp_path / "in", workers=0, **options)
    reshard(tmp_path / "in", tmp_path / "out", max_count=3, workers=0)
    reshard(tmp_path / "out", tmp_path / "again", seed=1, workers=0)
    for name in ("in", "again"):
        extract_dataset(tmp_path / name, tmp_path / f"x-{name}")
    assert trees.snapshot(tmp_path / "x-again") == trees.snapshot(tmp_path / "x-in")
    if "metadata" in options:
        assert trees.snapshot(tmp_path / "x-again") == trees.snapshot(tree)


# ---------------------------------------------------------------- from servers


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of three samples or so."""
    monkeypatch.setattr(shard_scan, "BLOCK", 6_000)


@pytest.fixture(params=["nginx", "s3"])
def address(request: pytest.FixtureRequest, dataset: Path, tmp_path: Path) -> Iterator[str]:
    if request.param == "nginx":
        server: servers.Nginx = request.getfixturevalue("nginx")
        shutil.copytree(dataset, server.root / tmp_path.name)
        yield f"{server.url}/{tmp_path.name}"
        return
    bucket: Bucket = request.getfixturevalue("bucket")
    place = f"{bucket.url}/{tmp_path.name}"
    with buckets.configured(bucket):
        buckets.fill(S3Store(place), dataset)
        yield place


@pytest.mark.usefixtures("blocks")
def test_a_remote_source_gives_the_same_samples(address: str, dataset: Path, tmp_path: Path) -> None:
    ordered = made(address, tmp_path / "ordered", shuffle=False, max_count=5)
    assert list(ordered.items()) == trees.read(dataset)
    assert (tmp_path / "ordered" / "train-000001.tar").read_bytes() == (dataset / "train-000001.tar").read_bytes()
    chosen = Selection(classes=("bee", "dog"))
    expected = made(dataset, tmp_path / "local", selection=chosen)
    assert made(f"{address}/train-{{000000..000004}}.tar", tmp_path / "far", selection=chosen, workers=2) == expected
    both = made([address, dataset], tmp_path / "both", selection=Selection(prefix=True))
    assert len(both) == 48


def test_what_a_remote_source_costs(tmp_path: Path) -> None:
    """A request for the version, the index and each end; then one a block where the order is kept, and two at most where not."""
    convert_tree(trees.classes(tmp_path / "tree", NAMES, 6, padding=20_000), tmp_path / "in", max_count=5, workers=0)
    with streams.served(tmp_path / "in") as server:
        reshard(server.url, tmp_path / "ordered", shuffle=False, workers=0)
        asked = Counter(path.rpartition(".")[2] for _, path, _ in server.requests)
        assert asked == {"json": 1, "idx": 5, "tar": 5 * 4}
        count = len(server.requests)
        reshard(server.url, tmp_path / "shuffled", workers=0, max_size=170_000)
        asked = Counter(
            (path, headers["Range"]) for _, path, headers in server.requests[count:] if path.endswith(".tar")
        )
        blocks = {each: times for each, times in asked.items() if width(each[1]) > 512}
        assert len(blocks) == 5  # each shard is one
        assert max(blocks.values()) <= 2  # two of the new shards may need one, where they meet in its pool


def width(bytes_range: str) -> int:
    first, last = map(int, bytes_range.removeprefix("bytes=").split("-"))
    return last - first + 1


def test_a_remote_shard_without_an_index_is_streamed_and_a_replaced_one_told(dataset: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(dataset, tmp_path / "copy")
    for path in copy.glob("*.idx"):
        path.unlink()
    with streams.served(copy) as server:
        assert made(server.url, tmp_path / "out", shuffle=False) == dict(trees.read(dataset))
        asked = Counter(path for _, path, _ in server.requests if path.endswith(".tar"))
        assert list(asked.values()) == [3] * 5  # the version, and all of it twice: to scan it, and to read it

        parts = find_parts([server.url], Selection())
        source = kind.scan(Request("", Spool()), parts, Selection())
        entry = entries.load_line(next(iter(source.lines)))
        streams.rewrite(copy / "train-000000.tar", lambda data: data.replace(b"JFIF", b"JFIX"))
        with ShardOrigin(source.root) as origin, pytest.raises(SourceChangedError, match="run again for a new plan"):
            origin.read(entry.path, entry.size, entry.mtime_ns, entry.at)


def test_an_address_with_a_secret_is_refused_without_showing_it(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"https://host/a is given with a password or a query") as caught:
        reshard("https://me:secret@host/a?token=secret", tmp_path / "x", workers=0)
    assert "secret@" not in str(caught.value)
    assert "token" not in str(caught.value)


def test_the_plan_keeps_how_to_reach_a_server() -> None:
    options = StoreOptions(retries=3, endpoint_url="http://localhost:1", ca_file=None)
    pinned = shard_origin.Pinned(S3Store("s3://b/p", options), "a.tar", shard_origin.Version(3, '"x"'))
    root = shard_origin.dump_root([pinned], options)
    (loaded,) = shard_origin._load_root(root)
    assert (loaded.store.url("a.tar"), loaded.version) == ("s3://b/p/a.tar", pinned.version)
    assert json.loads(root)["options"] == {"retries": 3, "endpoint_url": "http://localhost:1"}


# ---------------------------------------------------------------- killed


def test_fault_42_killed_and_run_again_it_ends_with_the_same_bytes(dataset: Path, tmp_path: Path) -> None:
    words = ("--max-count", "4", "--class", "ant", "--class", "cat", "--val", "0.3", "--workers", "0")
    expected = tmp_path / "undisturbed"
    said = processes.run("reshard", dataset, expected, *words)
    assert said.code == 0, said
    for number in (4, 13):
        out = tmp_path / f"killed-{number}"
        inject = f"rename:signal=KILL:when={number}"
        trace = processes.traced(tmp_path / "log", "rename", "reshard", dataset, out, *words, inject=inject)
        assert trace.said.code == -signal.SIGKILL, trace
        said = processes.run("reshard", dataset, out, *words)
        assert said.code == 0, said
        processes.assert_same(out, trees.snapshot(expected))


def test_others_indexes_without_names_are_as_if_there_were_none(dataset: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    shard = shutil.copy(dataset / "train-000000.tar", copy)
    (copy / "train-000000.idx").write_text("v1.1 1\njpg 512 10\n")
    assert dict(trees.read_shard(Path(shard))) == made(copy, tmp_path / "out")
    index_shards(copy, workers=0)
    assert dict(trees.read(copy)) == dict(trees.read(tmp_path / "out"))
