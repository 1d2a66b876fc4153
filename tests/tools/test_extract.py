"""extract gives back what was converted, and nothing in a shard can make it write anywhere else."""

from __future__ import annotations

import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands, images, others, shards, trees
from wds_tools.convert.run import convert_tree
from wds_tools.errors import (
    FormatError,
    ManifestError,
    NotFoundError,
    OptionError,
    StaleIndexError,
    StoreError,
    TarError,
    TargetError,
    WdsToolsError,
)
from wds_tools.tools.demo import make_demo
from wds_tools.tools.extract import extract_dataset
from wds_tools.tools.indexing import index_shards


def round_trip(source: Path, tmp_path: Path, **options: Any) -> dict[str, bytes]:
    convert_tree(source, tmp_path / "data", workers=0, **options)
    extract_dataset(tmp_path / "data", tmp_path / "back")
    return trees.snapshot(tmp_path / "back")


def comes_back(source: Path, tmp_path: Path, **options: Any) -> None:
    assert round_trip(source, tmp_path, **options) == trees.snapshot(source)


# -- the same files, byte for byte


def test_the_demo_tree_comes_back(tmp_path: Path) -> None:
    make_demo(tmp_path / "demo", per_class=5)
    comes_back(tmp_path / "demo", tmp_path, max_count=7)


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG", ".jpeg", ".Jpg", ".jfif", ".jpe"])
def test_a_tree_with_one_suffix_comes_back(tmp_path: Path, suffix: str) -> None:
    comes_back(trees.make(tmp_path / "tree", [f"n{n}/n{n}_{i}{suffix}" for n in range(2) for i in range(3)]), tmp_path)


def test_a_tree_of_several_kinds_comes_back(tmp_path: Path) -> None:
    files = {"a/1.jpg": images.jpeg(), "a/2.png": images.png(), "b/3.webp": images.saved(images.picture(), "webp")}
    comes_back(trees.make(tmp_path / "tree", files), tmp_path)


def test_nested_folders_come_back(tmp_path: Path) -> None:
    comes_back(trees.make(tmp_path / "tree", ["a/b/c/d/1.jpg", "a/b/1.jpg", "a/1.jpg", "e/f/1.jpg"]), tmp_path)


ODD = [
    "a/two words.jpg",
    "a/v1.2.final.jpg",
    "a/...dots.jpg",
    "a/tab\there.jpg",
    "a/new\nline.jpg",
    "a/back\\slash.jpg",
    "a/100%.jpg",
    "a/{brace}.jpg",
    "a/MIXED.JPEG",
    "a/other.Jpg",
    "a/odd.jfif",
    "a/" + "long" * 40 + ".jpg",
    "b c/x y.jpg",
    "ü/Straße 猫.jpg",
    b"\xff\xfe/\xe4.jpg",
    "__meta__/__x.jpg",
]


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes are a matter of Linux")
def test_fault_4_names_of_all_sorts_come_back_with_metadata(tmp_path: Path) -> None:
    odd = [name for name in ODD if name != "a/...dots.jpg"]  # hidden, and so passed over
    comes_back(trees.make(tmp_path / "tree", odd), tmp_path, metadata=True)


def test_fault_13_a_wrong_suffix_comes_back_with_metadata_and_is_put_right_without(tmp_path: Path) -> None:
    files = {"a/1.jpg": images.png(), "a/2.jpg": images.jpeg(), "a/3.png": images.jpeg(), "a/4.png": images.png()}
    tree = trees.make(tmp_path / "tree", files)
    comes_back(tree, tmp_path / "with", metadata=True)
    assert sorted(round_trip(tree, tmp_path / "without")) == ["a/1.png", "a/2.jpg", "a/3.jpg", "a/4.png"]


def test_images_that_were_encoded_anew_keep_their_names_but_not_their_suffixes(tmp_path: Path) -> None:
    tree = trees.make(tmp_path / "tree", {"a/1 x.JPG": None, "a/2.png": images.png(), "b/3.webp.jpeg": None})
    found = round_trip(tree, tmp_path, metadata=True, encode="webp")
    assert sorted(found) == ["a/1 x.webp", "a/2.webp", "b/3.webp.webp"]
    found = round_trip(tree, tmp_path / "smaller", metadata=True, image_size=4)
    assert sorted(found) == ["a/1 x.JPG", "a/2.png", "b/3.webp.jpeg"]


def test_siblings_come_back(tmp_path: Path) -> None:
    files = {"a/1.jpg": None, "a/1.txt": b"one", "a/1.json": b'{"n": 1}', "b/2.png": images.png(), "b/2.txt": b""}
    comes_back(trees.make(tmp_path / "tree", files), tmp_path, siblings=True)


def test_siblings_without_classes_come_back_with_their_labels(tmp_path: Path) -> None:
    files = {"1.jpg": None, "1.cls": b"3", "1.txt": b"one", "2.jpg": None, "2.cls": b"4", "2.txt": b"two"}
    comes_back(trees.make(tmp_path / "tree", files), tmp_path, siblings=True)


@pytest.mark.parametrize("metadata", [False, True])
def test_a_table_comes_back_as_its_files(tmp_path: Path, metadata: bool) -> None:
    tree = trees.make(tmp_path / "tree", ["pictures/1.jpg", "pictures/2.jpg"])
    table = tmp_path / "table.csv"
    table.write_text("path,class,note\ntree/pictures/1.jpg,dog,x\ntree/pictures/2.jpg,cat,y\n")
    found = round_trip(table, tmp_path, metadata=metadata)
    pictures = {f"tree/{name}": data for name, data in trees.snapshot(tree).items()}
    assert {name: data for name, data in found.items() if not name.endswith(".json")} == pictures
    assert len(found) == 2 if metadata else 4
    if not metadata:
        assert json.loads(found["tree/pictures/1.json"]) == {"note": "x"}


def test_absolute_and_upward_paths_of_a_table_come_back_inside(tmp_path: Path) -> None:
    trees.make(tmp_path, ["up/1.jpg", "abs/2.jpg"])
    (tmp_path / "tables").mkdir()
    table = tmp_path / "tables" / "t.csv"
    table.write_text(f"path,class\n../up/1.jpg,dog\n{tmp_path}/abs/2.jpg,cat\n")
    found = round_trip(table, tmp_path, metadata=True)
    assert sorted(found) == sorted(["up/1.jpg", f"{tmp_path}/abs/2.jpg".lstrip("/")])


def test_it_reports_what_it_wrote(tmp_path: Path) -> None:
    tree = trees.classes(tmp_path / "tree")
    convert_tree(tree, tmp_path / "data", split="val", max_count=4, workers=0)
    told: list[tuple[int, int]] = []
    report = extract_dataset(tmp_path / "data", tmp_path / "back", watch=lambda *done: told.append(done))
    size = sum(len(data) for data in trees.snapshot(tree).values())
    assert (report.split, report.samples, report.files, report.size) == ("val", 15, 15, size)
    assert report.target == str(tmp_path / "back")
    assert told[-1] == (15, size)


def test_several_splits_are_extracted_one_at_a_time(tmp_path: Path) -> None:
    tree = trees.classes(tmp_path / "tree")
    for split in ("train", "val"):
        convert_tree(tree, tmp_path / "data", split=split, workers=0)
    with pytest.raises(OptionError, match="has the splits train, val; choose one with split='train'"):
        extract_dataset(tmp_path / "data", tmp_path / "back")
    with pytest.raises(OptionError, match="no split 'test', only train, val"):
        extract_dataset(tmp_path / "data", tmp_path / "back", split="test")
    extract_dataset(tmp_path / "data", tmp_path / "back", split="val")
    assert trees.snapshot(tmp_path / "back") == trees.snapshot(tree)


# -- others' shards


def test_keys_without_a_folder_go_into_one_folder_a_class(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    shards.webdataset_shards(tmp_path / "x", [{"__key__": f"{n}", "jpg": b"%d" % n, "cls": n} for n in range(3)], 2)
    extract_dataset(tmp_path / "x", tmp_path / "back")
    assert trees.snapshot(tmp_path / "back") == {"0/0.jpg": b"0", "1/1.jpg": b"1", "2/2.jpg": b"2"}


def test_a_manifest_names_the_class_folders(tmp_path: Path) -> None:
    hostile(tmp_path / "x", {"k.cls": b"1", "k.jpg": b"x", "l.cls": b"7", "l.jpg": b"y"}, classes=["cat", "dog"])
    extract_dataset(tmp_path / "x", tmp_path / "back")
    assert trees.snapshot(tmp_path / "back") == {"dog/k.jpg": b"x", "7/l.jpg": b"y"}


def test_all_fields_but_the_label_are_files(tmp_path: Path) -> None:
    members = {"d/k.seg.png": b"1", "d/k.jpg": b"2", "d/k.json": b"{}", "d/k.cls": b"0", "d/k.pyd": b"3"}
    hostile(tmp_path / "x", members)
    extract_dataset(tmp_path / "x", tmp_path / "back")
    del members["d/k.cls"]
    assert trees.snapshot(tmp_path / "back") == members


def test_others_metadata_is_a_file_like_any_other_and_names_none(tmp_path: Path) -> None:
    members = {"a/1.jpg": b"1", "a/1.json": b'{"path": "b/2.jpg"}'}
    extract_dataset(hostile(tmp_path / "x", members), tmp_path / "back")
    assert trees.snapshot(tmp_path / "back") == members


@pytest.mark.parametrize("indexed", [False, True])
def test_gnu_tars_with_a_leading_dot_folder_come_back(tmp_path: Path, indexed: bool) -> None:
    tree = trees.make(tmp_path / "tree", ["a/1.jpg", "b c/d/2.jpg", "ü.jpg"])
    (tmp_path / "data").mkdir()
    others.gnu_tar(tmp_path / "data" / "x.tar", tree)
    if indexed:
        index_shards(tmp_path / "data", workers=0)
    extract_dataset(tmp_path / "data", tmp_path / "back")
    assert trees.snapshot(tmp_path / "back") == trees.snapshot(tree)


@pytest.mark.parametrize("label", [b"", b"cat", b"-1", b"9" * 10, b"\xb2"])
def test_a_label_that_is_no_number_makes_no_folder(tmp_path: Path, label: bytes) -> None:
    hostile(tmp_path / "x", {"k.cls": label, "k.jpg": b"x"})
    extract_dataset(tmp_path / "x", tmp_path / "back")
    assert list(trees.snapshot(tmp_path / "back")) == ["k.jpg"]


# -- fault 49: nothing leads out of the target


def hostile(folder: Path, members: others.Members, **content: Any) -> Path:
    """A dataset of one shard as Python's tarfile writes it, which writes any name, with an index and a manifest."""
    folder.mkdir(parents=True)
    others.tar(folder / "train-0.tar", members, "pax")
    index_shards(folder, workers=0)
    manifest = json.loads((folder / "info.json").read_bytes())
    others.rewrite(folder / "info.json", json.dumps(manifest | content).encode())
    return folder


def stays_inside(tmp_path: Path, dataset: Any, error: type[Exception] = FormatError, words: str = "lead out") -> None:
    """It is refused, nothing new lies anywhere, and no target is left."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    before = trees.snapshot(tmp_path)
    with pytest.raises(error, match=words):
        extract_dataset(dataset, tmp_path / "deep" / "er" / "back")
    assert trees.snapshot(tmp_path) == before
    assert not (tmp_path / "deep" / "er" / "back").exists()


OUTWARD = [
    "../x",
    "../../x",
    "/tmp/x",
    "a/../../x",
    "a/../x",
    "a//x",
    "./../x",
    "..//x",
    "a/./x",
    "./a/./x",
    "//x",
    "../",
]


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("stem", [*OUTWARD[:-1], "nul\0" + "long" * 30])
def test_fault_49_a_name_that_leads_out_is_refused(tmp_path: Path, stem: str, indexed: bool) -> None:
    folder = hostile(tmp_path / "x", {"good/1.jpg": b"1", f"{stem}.jpg": b"2"})
    if not indexed:
        (folder / "train-0.idx").unlink()
        (folder / "info.json").unlink()
    stays_inside(tmp_path, folder)


@pytest.mark.parametrize("name", [*OUTWARD, "..", ".", "", "a/..", "a\0b", "/"])
def test_fault_49_a_class_name_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    folder = hostile(tmp_path / "x", {"k.cls": b"0", "k.jpg": b"1"}, classes=[name])
    if name == ".":  # the target itself
        extract_dataset(folder, tmp_path / "back")
        assert list(trees.snapshot(tmp_path / "back")) == ["k.jpg"]
        return
    stays_inside(tmp_path, folder)


@pytest.mark.parametrize(
    "path", ["a/../../x.jpg", "..//x.jpg", "a/./x.jpg", "a//x.jpg", "a\0/x.jpg", "\ud800.jpg", "..", "a/..", "."]
)
def test_fault_49_a_path_in_the_metadata_that_leads_out_is_refused(tmp_path: Path, path: str) -> None:
    members = {"k/1.jpg": b"1", "k/1.cls": b"0", "k/1.json": json.dumps({"path": path}).encode()}
    folder = hostile(
        tmp_path / "x", members, settings={"train": {"metadata": True, "encode": "keep", "image_size": None}}
    )
    stays_inside(tmp_path, folder)


@pytest.mark.parametrize("path", ["/etc/x.jpg", "../../x.jpg", "///../x.jpg"])
def test_fault_49_absolute_and_upward_paths_in_the_metadata_become_relative(tmp_path: Path, path: str) -> None:
    members = {"k/1.jpg": b"1", "k/1.json": json.dumps({"path": path}).encode()}
    folder = hostile(
        tmp_path / "x", members, settings={"train": {"metadata": True, "encode": "keep", "image_size": None}}
    )
    extract_dataset(folder, tmp_path / "deep" / "back")
    assert list(trees.snapshot(tmp_path / "deep")) == [f"back/{path.lstrip('/').replace('../', '')}"]


@pytest.mark.parametrize(
    "data",
    [b"not json", b"[]", b"{}", b'{"path": 3}', b"[" * 100_000, b"\xff", b'{"path": "' + b"a" * (1 << 20) + b'"}'],
)
def test_metadata_that_says_nothing_leaves_the_key(tmp_path: Path, data: bytes) -> None:
    folder = hostile(tmp_path / "x", {"k/1.jpg": b"1", "k/1.json": data}, settings={"train": {"metadata": True}})
    extract_dataset(folder, tmp_path / "back")
    assert list(trees.snapshot(tmp_path / "back")) == ["k/1.jpg"]


@pytest.mark.parametrize("suffix", ["/../../../x", "../x", "", "/x", "\0"])
def test_fault_49_a_suffix_in_the_manifest_that_leads_out_is_refused(tmp_path: Path, suffix: str) -> None:
    folder = hostile(tmp_path / "x", {"k/1.jpg": b"1"})
    manifest = json.loads((folder / "info.json").read_bytes())
    manifest["splits"]["train"]["suffixes"] = {"jpg": suffix}
    others.rewrite(folder / "info.json", json.dumps(manifest).encode())
    if suffix in ("", "/x", "../x"):  # odd, but inside
        extract_dataset(folder, tmp_path / "back")
        assert list(trees.snapshot(tmp_path / "back")) == [f"k/1{suffix}"]
        return
    stays_inside(tmp_path, folder)


@pytest.mark.skipif(sys.platform == "win32", reason="a backslash is a separator there")
def test_fault_49_backslashes_are_letters_of_a_name(tmp_path: Path) -> None:
    extract_dataset(hostile(tmp_path / "x", {"a\\..\\x.jpg": b"1"}), tmp_path / "back")
    assert os.listdir(tmp_path / "back") == ["a\\..\\x.jpg"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_fault_49_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    (tmp_path / "x").mkdir()
    others.linked(tmp_path / "x" / "x.tar", kind)
    stays_inside(tmp_path, tmp_path / "x", TarError, "only regular files")


@pytest.mark.parametrize(
    "row",
    [
        "jpg 512 99999999999999999999 a.jpg",
        "jpg 512 1000000000000000000 a.jpg jpg 512 1 a.jpg",
        "jpg -512 1 a.jpg",
        "jpg 512 -1 a.jpg",
        "jpg 1152921504606846976 1 a.jpg",
        "jpg 0 512 a.jpg",
        "/../../x 512 1 a.jpg",
        "jpg 512 1 ../a.jpg",
    ],
)
def test_fault_49_an_index_that_lies_leads_nowhere(tmp_path: Path, row: str) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    others.tar(folder / "x.tar", {"a.jpg": b"1"})
    (folder / "x.idx").write_text(f"v1.2 1\n{row}\n")
    stays_inside(tmp_path, folder, FormatError, "idx|index")


@pytest.mark.parametrize("name", ["/dev/zero", "../../x.tar"])
def test_fault_49_a_manifest_that_names_shards_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    folder = hostile(tmp_path / "x", {"a.jpg": b"1"})
    manifest = json.loads((folder / "info.json").read_bytes())
    manifest["splits"]["train"]["filenames"] = [name]
    others.rewrite(folder / "info.json", json.dumps(manifest).encode())
    stays_inside(tmp_path, folder, ManifestError, "outside")


def test_fault_49_a_pickle_is_a_file_like_any_other(tmp_path: Path) -> None:
    bomb = b"cposix\nsystem\n(S'touch /tmp/ran'\ntR."
    extract_dataset(hostile(tmp_path / "x", {"a/1.pkl": bomb, "a/1.pyd": bomb}), tmp_path / "back")
    assert set(trees.snapshot(tmp_path / "back").values()) == {bomb}


# -- the target


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    convert_tree(trees.classes(tmp_path / "tree"), tmp_path / "data", workers=0)
    trees.make(tmp_path / "back", {"mine.txt": b"1"})
    for target in (tmp_path / "back", tmp_path / "back" / "mine.txt", tmp_path / "back" / "mine.txt" / "x"):
        with pytest.raises(TargetError):
            extract_dataset(tmp_path / "data", target)
    assert trees.snapshot(tmp_path / "back") == {"mine.txt": b"1"}


def test_an_empty_folder_will_do_and_so_will_a_link_to_one(tmp_path: Path) -> None:
    tree = trees.classes(tmp_path / "tree")
    convert_tree(tree, tmp_path / "data", workers=0)
    for name in ("empty", "real"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("real")
    for target in ("empty", "link"):
        extract_dataset(tmp_path / "data", tmp_path / target)
        assert trees.snapshot(tmp_path / target) == trees.snapshot(tree)


@pytest.mark.parametrize("members", [{"a/1.jpg": b"1", "./a/1.jpg": b"2"}, {"a/1.jpg": b"1", "a/1.jpg/2.jpg": b"2"}])
def test_two_samples_of_one_name_are_refused(tmp_path: Path, members: dict[str, bytes]) -> None:
    stays_inside(tmp_path, hostile(tmp_path / "x", members), StoreError, "two samples would be")


def test_fault_20_a_cut_shard_leaves_nothing_half_made(tmp_path: Path) -> None:
    convert_tree(trees.classes(tmp_path / "tree"), tmp_path / "data", max_count=5, workers=0)
    others.cut(tmp_path / "data" / "train-000002.tar", 2048)
    stays_inside(tmp_path, tmp_path / "data", StaleIndexError, "fetch the shard again")
    (tmp_path / "data" / "train-000002.idx").unlink()
    (tmp_path / "deep" / "er").rmdir()
    (tmp_path / "deep").rmdir()
    stays_inside(tmp_path, tmp_path / "data", TarError, "train-000002.tar: cut short")


def test_fault_28_a_shard_replaced_under_its_index_is_refused(tmp_path: Path) -> None:
    convert_tree(trees.classes(tmp_path / "tree"), tmp_path / "data", max_count=5, workers=0)
    others.rewrite(tmp_path / "data" / "train-000000.tar", (tmp_path / "data" / "train-000002.tar").read_bytes())
    stays_inside(tmp_path, tmp_path / "data", StaleIndexError, "run 'wds-tools index'")


def test_a_disk_that_takes_no_more_leaves_nothing_half_made(tmp_path: Path) -> None:
    trees.make(tmp_path / "tree", {"a/1.jpg": trees.picture(1), "a/2.jpg": trees.picture(2, 60_000)})
    convert_tree(tmp_path / "tree", tmp_path / "data", shuffle=False, workers=0)
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000));"
        "from wds_tools.cli.main import main; main()"
    )
    said = commands.run_python("-c", code, "extract", "data", "back", cwd=tmp_path)
    assert said.code == 1
    assert said.err.startswith("Error: cannot write 'back/a/2.jpg': ")
    assert said.err.count("\n") == 1
    assert not (tmp_path / "back").exists()


def test_a_target_without_permission_is_refused(tmp_path: Path) -> None:
    with trees.open_to_all() as place:
        convert_tree(trees.classes(place / "tree"), place / "data", workers=0)
        (place / "locked").mkdir(mode=0o555)
        for target in (place / "locked", place / "locked" / "back"):
            with pytest.raises(TargetError, match="Permission denied; choose another folder"):
                trees.unprivileged(lambda target=target: extract_dataset(place / "data", target))


def test_a_dataset_that_is_not_there_makes_no_target(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        extract_dataset(tmp_path / "no", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_what_goes_wrong_is_an_expected_error() -> None:
    assert issubclass(StaleIndexError, FormatError)
    assert issubclass(TargetError, WdsToolsError)
