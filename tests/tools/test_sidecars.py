"""sidecars writes what readers look for, writes it anew after a change, and leaves alone what is not its own."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import buckets, others, trees
from tests.support.commands import call
from wds_tools.convert.run import convert_tree
from wds_tools.errors import FormatError, ManifestError, NotFoundError, OptionError, StaleIndexError, TargetError
from wds_tools.store.s3 import S3Store
from wds_tools.tools.indexing import index_shards
from wds_tools.tools.sidecars import SidecarReport, write_sidecars
from wds_tools.tools.verify import verify_dataset

if TYPE_CHECKING:
    from tests.conftest import Bucket

ALL = ("energon", "clip-benchmark", "hf")
CARD, SPLITS, DATASET = "README.md", ".nv-meta/split.yaml", ".nv-meta/dataset.yaml"
INFO, INDEX = ".nv-meta/.info.json", "train-000000.tar.idx"
CLASSES, COUNT, LINK = (f".clip-benchmark/{name}" for name in ("classnames.txt", "train/nshards.txt", "train/0.tar"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two splits: three shards of five samples, and one of three."""
    folder = tmp_path_factory.mktemp("sidecars")
    convert_tree(trees.classes(folder / "tree"), folder / "data", max_count=5, workers=0)
    convert_tree(trees.classes(folder / "val", count=1), folder / "data", split="val", workers=0)
    return folder


@pytest.fixture
def dataset(made: Path, tmp_path: Path) -> Path:
    return trees.copy(made / "data", tmp_path / "data")


def shards(dataset: Path) -> dict[str, bytes]:
    return {name: data for name, data in trees.snapshot(dataset).items() if "/" not in name and name != CARD}


def problems(dataset: object) -> list[str]:
    return [problem.shard for problem in verify_dataset(str(dataset), workers=0).problems]


def write(dataset: object, *readers: str, overwrite: bool = False) -> SidecarReport:
    return write_sidecars(str(dataset), readers or ALL, overwrite=overwrite)


def again(made: Path, dataset: Path, count: int) -> None:
    """Convert the same folder's train split anew, into shards of another size."""
    convert_tree(made / "tree", dataset, max_count=count, workers=0, overwrite=True)


def test_the_dataset_stays_as_it_is_and_verify_is_content(dataset: Path) -> None:
    before = trees.snapshot(dataset)
    report = write(dataset)
    after = trees.snapshot(dataset)
    assert before.items() <= after.items()
    assert {*report.written} == after.keys() - before.keys()
    assert (report.unchanged, report.kept, report.removed, report.needs_card) == ([], [], [], False)
    assert problems(dataset) == []
    assert call("info", dataset).code == 0


def test_the_same_dataset_gives_the_same_bytes_and_nothing_is_written_twice(dataset: Path, tmp_path: Path) -> None:
    other = trees.copy(dataset, tmp_path / "elsewhere")
    for place in (dataset, other):
        write(place)
    assert trees.snapshot(dataset) == trees.snapshot(other)
    times = {path: path.lstat().st_mtime_ns for path in dataset.rglob("*")}
    report = write(dataset)
    assert (report.written, report.kept, report.removed) == ([], [], [])
    assert times == {path: path.lstat().st_mtime_ns for path in dataset.rglob("*")}


def test_links_lead_to_the_shards_wherever_the_folder_goes(dataset: Path, tmp_path: Path) -> None:
    write(dataset, "clip-benchmark")
    moved = dataset.rename(tmp_path / "moved")
    for number in range(3):
        link = moved / f".clip-benchmark/train/{number}.tar"
        assert link.is_symlink()
        assert link.samefile(moved / f"train-{number:06d}.tar")
    assert (moved / COUNT).read_text() == "3\n"
    assert (moved / CLASSES).read_text() == "ant\nbee\ncat\n"


@pytest.mark.parametrize("count", [8, 2], ids=["fewer", "more"])
def test_verify_tells_what_a_new_conversion_left_behind_and_a_new_run_mends_it(
    made: Path, dataset: Path, count: int
) -> None:
    write(dataset)
    again(made, dataset, count)
    assert {INFO, SPLITS, INDEX, COUNT, CARD} <= set(problems(dataset))
    report = write(dataset)
    assert problems(dataset) == []
    assert sorted(report.removed) == ([".clip-benchmark/train/2.tar", "train-000002.tar.idx"] if count == 8 else [])
    fresh = trees.copy(dataset, dataset.parent / "fresh")
    for path in [fresh / CARD, *fresh.glob("*.tar.idx")]:
        path.unlink()
    for folder in (".nv-meta", ".clip-benchmark"):
        shutil.rmtree(fresh / folder)
    write(fresh)
    assert trees.snapshot(fresh) == trees.snapshot(dataset)


def test_a_split_that_is_gone_goes(dataset: Path) -> None:
    write(dataset)
    for name in ("val-000000.tar", "val-000000.idx"):
        (dataset / name).unlink()
    index_shards(dataset, workers=0)
    report = write(dataset)
    assert sorted(report.removed) == [
        ".clip-benchmark/val/0.tar",
        ".clip-benchmark/val/nshards.txt",
        "val-000000.tar.idx",
    ]
    assert not (dataset / ".clip-benchmark/val").exists()
    assert problems(dataset) == []


def test_verify_tells_when_a_reader_can_be_served_no_more(made: Path, dataset: Path) -> None:
    write(dataset, "clip-benchmark")
    convert_tree(made / "tree", dataset, encode="npy", workers=0, overwrite=True)
    assert problems(dataset) == [".clip-benchmark"]


def test_a_block_is_replaced_and_what_people_wrote_around_it_stays(made: Path, dataset: Path) -> None:
    write(dataset)
    (dataset / CARD).write_text((dataset / CARD).read_text().replace("---\n", "---\nlicense: mit\n", 1) + "\nMine.\n")
    again(made, dataset, 15)
    (dataset / "info.json").write_text((dataset / "info.json").read_text().replace('"ant"', '"wasp"'))
    assert CARD in problems(dataset)
    write(dataset, "hf")
    text = (dataset / CARD).read_text()
    assert text.startswith("---\nlicense: mit\n# begin")
    assert text.endswith("\nMine.\n")
    assert "'0': wasp" in text


@pytest.mark.parametrize("name", [CARD, SPLITS])
@pytest.mark.parametrize("edit", [lambda old: old.replace(b"train", b"trian"), lambda old: b"# all mine\n"])
def test_what_is_not_ours_any_more_is_refused_before_anything_is_written(
    dataset: Path, name: str, edit: Callable[[bytes], bytes]
) -> None:
    write(dataset, "energon", "hf")
    ours = (dataset / name).read_bytes()
    (dataset / name).write_bytes(edit(ours))
    (dataset / INDEX).unlink()
    before = trees.snapshot(dataset)
    with pytest.raises(TargetError, match=r"is not what this command wrote.*--overwrite"):
        write(dataset)
    assert trees.snapshot(dataset) == before
    assert problems(dataset) == [], "edited files are their owner's"
    assert write(dataset, overwrite=True).written[:1] == [INDEX]
    assert (dataset / name).read_bytes() == ours


def test_what_is_meant_to_be_edited_is_kept(dataset: Path) -> None:
    write(dataset)
    (dataset / DATASET).write_text("__class__: CrudeWebdataset\n")
    (dataset / CLASSES).write_text("an ant\na bee\na cat\n")
    report = write(dataset)
    assert (report.kept, report.written) == ([DATASET, CLASSES], [])
    assert problems(dataset) == []
    (dataset / CLASSES).write_text("an ant\na bee\n")
    assert problems(dataset) == [CLASSES]
    with pytest.raises(TargetError, match=r"classnames\.txt"):
        write(dataset)
    assert write(dataset, overwrite=True).written == [DATASET, CLASSES]


def test_a_file_where_a_link_belongs_is_somebodys(dataset: Path) -> None:
    (dataset / LINK).parent.mkdir(parents=True)
    (dataset / LINK).write_bytes(b"mine")
    with pytest.raises(TargetError, match="where a link to a shard belongs"):
        write(dataset)
    assert (dataset / LINK).read_bytes() == b"mine"
    write(dataset, overwrite=True)
    assert (dataset / LINK).samefile(dataset / "train-000000.tar")


def test_files_can_be_edited_and_shards_can_not(dataset: Path) -> None:
    write(dataset)
    assert all((dataset / name).stat().st_mode & 0o200 for name in (CARD, SPLITS, DATASET, CLASSES, INFO, INDEX))
    assert not (dataset / "train-000000.tar").stat().st_mode & 0o200


def test_a_missing_or_stale_index_ends_it_with_nothing_written(dataset: Path) -> None:
    before = shards(dataset)
    index = dataset / "val-000000.idx"
    text = index.read_bytes()
    index.unlink()
    with pytest.raises(NotFoundError, match=r"val-000000\.idx.*wds-tools index"):
        write(dataset)
    shutil.copy(dataset / "train-000000.idx", index)
    with pytest.raises(StaleIndexError):
        write(dataset)
    index.write_bytes(text)
    assert trees.snapshot(dataset) == before


def test_shards_of_others_are_served_once_they_are_indexed(tmp_path: Path) -> None:
    for number in range(2):
        others.tar(tmp_path / f"x-{number}.tar", {f"{number}.jpg": trees.picture(), f"{number}.txt": b"a thing"})
    with pytest.raises(ManifestError, match="wds-tools index"):
        write(tmp_path)
    index_shards(tmp_path, workers=0)
    write(tmp_path)
    assert struct.unpack("<2Q", (tmp_path / "x-0.tar.idx").read_bytes())[0] == 0
    assert "CaptioningSample" in (tmp_path / DATASET).read_text()
    assert (tmp_path / ".clip-benchmark/dataset_type.txt").read_text() == "retrieval\n"
    assert problems(tmp_path) == []


def test_names_that_lead_out_are_refused(dataset: Path) -> None:
    path = dataset / "info.json"
    path.write_text(path.read_text().replace('"val": {', '"../../val": {', 1))
    with pytest.raises(FormatError, match="cannot be a folder's name"):
        write(dataset)
    assert not (dataset.parent / "val").exists()


def test_only_a_whole_dataset_where_something_can_be_written(dataset: Path) -> None:
    for place, words in (("http://localhost:1/data", "can only be read"), (dataset / "*.tar", "give its folder")):
        with pytest.raises(OptionError, match=words):
            write(place)
    with pytest.raises(OptionError, match="'dali'"):
        write(dataset, "dali")


def test_a_bucket_takes_files_and_no_links(dataset: Path, bucket: Bucket, tmp_path: Path) -> None:
    place = f"{bucket.url}/{tmp_path.name}"
    with buckets.configured(bucket):
        buckets.fill(S3Store(place), dataset)
        write(place, "energon", "hf")
        write(dataset, "energon", "hf")
        assert buckets.snapshot(S3Store(place)) == trees.snapshot(dataset)
        assert write(place, "energon", "hf").written == []
        assert problems(place) == []
        S3Store(place).write_atomic(INDEX, [b"x" * 16])
        assert problems(place) == [INDEX]
        with pytest.raises(OptionError, match="has no links"):
            write(place)


# -- the command


def test_the_command_says_what_it_did(dataset: Path) -> None:
    said = call("sidecars", dataset, "--for", "energon")
    assert said.code == 0
    assert "7 files written, 0 left as they are" in said.out
    assert "add --for hf" in said.err
    (dataset / DATASET).write_text("mine: 1\n")
    said = call("sidecars", dataset, "--for", "energon", "--for", "clip-benchmark", "--for", "hf")
    assert said.err == f"{DATASET}: kept, it is not what would be written; --overwrite replaces it\n"
    assert "--dataset_root " + os.path.join(dataset, ".clip-benchmark") in said.out
    said = call("sidecars", dataset, "--for", "hf", "--json")
    assert (said.code, said.err) == (0, "")
    assert f'"unchanged": [\n  "{CARD}"\n ]' in said.out
    (dataset / CARD).write_text("mine")
    said = call("sidecars", dataset, "--for", "hf")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("Error: ")
    assert call("sidecars", dataset).code == 2
