"""index makes shards that others wrote first-class: an index each, and a manifest that keeps what it finds."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import others, shards, trees
from wds_tools.convert.run import convert_tree
from wds_tools.errors import FormatError, ManifestError, NotFoundError, OptionError, TarError
from wds_tools.format import index
from wds_tools.tools.describe import describe_dataset
from wds_tools.tools.indexing import IndexReport, index_shards
from wds_tools.tools.verify import verify_dataset

SAMPLES = [{"__key__": f"s{n:03d}", "jpg": trees.picture(n), "cls": n % 3, "json": {"n": n}} for n in range(10)]


def make(given: Any, **options: Any) -> IndexReport:
    return index_shards(given, **{"workers": 0, **options})


def info(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "info.json").read_bytes())
    return content


def payloads(shard: Path) -> list[dict[str, bytes]]:
    """What the index says each sample's fields are, cut out of the shard."""
    data = shard.read_bytes()
    return [
        {field.ext: data[field.offset : field.offset + field.size] for field in sample.fields}
        for sample in index.load((shard.with_suffix(".idx")).read_bytes())
    ]


def is_clean(folder: Path) -> None:
    report = verify_dataset(folder, workers=0, decode=True)
    assert report.ok, report.problems


def split(folder: Path, *names: str, keys: str = "k") -> Path:
    """One small shard for each of ``names``, no key in two of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        others.tar(folder / name, {f"{keys}{number}{n}.txt": b"t" for n in range(2)})
    return folder


# -- whose shards are read


def test_shards_of_webdatasets_writer(tmp_path: Path) -> None:
    written = shards.webdataset_shards(tmp_path, SAMPLES, 4)
    report = make(tmp_path)
    assert [(shard.name, shard.samples) for shard in report.shards] == [
        ("train-000000.tar", 4),
        ("train-000001.tar", 4),
        ("train-000002.tar", 2),
    ]
    assert [sample["jpg"] for shard in written for sample in payloads(shard)] == [s["jpg"] for s in SAMPLES]
    assert [sample["cls"] for shard in written for sample in payloads(shard)] == [b"%d" % s["cls"] for s in SAMPLES]
    is_clean(tmp_path)


@pytest.mark.parametrize("form", ["gnu", "posix", "ustar", "v7", "oldgnu"])
def test_shards_of_gnu_tar_with_folders_in_the_keys(tmp_path: Path, form: str) -> None:
    tree = trees.classes(tmp_path / "tree")
    (tmp_path / "data").mkdir()
    shard = others.gnu_tar(tmp_path / "data" / "train-000.tar", tree, f"--format={form}")
    assert make(tmp_path / "data").samples == 15
    assert [sample.key for sample in index.load((tmp_path / "data" / "train-000.idx").read_bytes())] == [
        f"./{name}/{name}_{number:03d}" for name in ("ant", "bee", "cat") for number in range(5)
    ]
    files = [path.read_bytes() for path in sorted(tree.rglob("*.jpg"))]
    assert [sample["jpg"] for sample in payloads(shard)] == files
    is_clean(tmp_path / "data")


@pytest.mark.parametrize("form", ["pax", "gnu"])
def test_fault_24_long_and_odd_names_in_extended_headers_are_read(tmp_path: Path, form: str) -> None:
    names = ["a b/ü ö.jpg", "long/" * 60 + "x.jpg", "back\\slash.jpg", "tab\there.jpg", "new\nline.jpg", "\udcff.jpg"]
    others.tar(tmp_path / "x.tar", {name: trees.picture(name) for name in names}, form)
    make(tmp_path)
    assert [sample.fields[0].name for sample in index.load((tmp_path / "x.idx").read_bytes())] == names
    assert [sample["jpg"] for sample in payloads(tmp_path / "x.tar")] == [trees.picture(name) for name in names]
    is_clean(tmp_path)


def test_folders_hidden_files_and_metadata_in_a_shard_are_no_samples(tmp_path: Path) -> None:
    others.tar(tmp_path / "x.tar", {"README": b"", ".hidden.jpg": b"1", "__meta__/x.json": b"{}", "a.jpg": b"2"})
    assert make(tmp_path).samples == 1


def test_fault_22_two_archives_laid_end_to_end_are_read_on(tmp_path: Path) -> None:
    first = others.tar(tmp_path / "1", {"a.txt": b"1"}).read_bytes()
    second = others.tar(tmp_path / "2", {"b.txt": b"2"}).read_bytes()
    (tmp_path / "x.tar").write_bytes(first + second)
    assert make([tmp_path / "x.tar"]).samples == 2
    assert payloads(tmp_path / "x.tar") == [{"txt": b"1"}, {"txt": b"2"}]


# -- how they are given, and what is made


@pytest.mark.parametrize("how", ["{}", "{}/*.tar", "{}/train-{{00..02}}.tar"])
def test_a_folder_a_glob_and_braces_make_the_same(tmp_path: Path, how: str) -> None:
    folder = split(tmp_path / "data", "train-00.tar", "train-01.tar", "train-02.tar")
    report = make(how.format(folder))
    assert (report.place, report.samples, report.manifest) == (str(folder), 6, True)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["info.json", "sizes.json", *(f"train-0{n}.{ext}" for n in range(3) for ext in ("tar", "idx"))]
    )
    content = info(folder)
    assert content["splits"]["train"]["filenames"] == ["train-00.tar", "train-01.tar", "train-02.tar"]
    assert content["splits"]["train"]["shard_lengths"] == [2, 2, 2]
    assert content["splits"]["train"]["fields"] == {"txt": 6}
    data = (folder / "train-01.tar").read_bytes()
    assert content["shardlist"][1] == {
        "url": "train-01.tar",
        "nsamples": 2,
        "filesize": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    assert json.loads((folder / "sizes.json").read_bytes()) == {f"train-0{n}.tar": 2 for n in range(3)}


def test_any_number_of_workers_makes_the_same_bytes(tmp_path: Path) -> None:
    folder = split(tmp_path / "data", *(f"train-{n}.tar" for n in range(6)))
    make(folder)
    first = trees.snapshot(folder)
    make(folder, workers=2)
    assert trees.snapshot(folder) == first


def test_shards_of_several_folders_get_indexes_and_no_manifest(tmp_path: Path) -> None:
    split(tmp_path / "a", "train-0.tar", keys="a")
    split(tmp_path / "b", "train-0.tar", keys="b")
    report = make(f"{tmp_path}/*/train-*.tar")
    assert (report.manifest, report.samples) == (False, 4)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")) == [
        "a/train-0.idx",
        "a/train-0.tar",
        "b/train-0.idx",
        "b/train-0.tar",
    ]


def test_a_shard_that_is_given_twice_is_listed_once(tmp_path: Path) -> None:
    split(tmp_path, "x.tar")
    assert make([tmp_path / "x.tar", f"{tmp_path}/*.tar"]).samples == 2
    assert info(tmp_path)["splits"]["train"]["filenames"] == ["x.tar"]


def test_splits_are_told_from_the_names(tmp_path: Path) -> None:
    split(tmp_path, "cars-train-000.tar", "cars-train-001.tar", "val_0.tar", "0003.tar", "plain.tar")
    make(tmp_path)
    assert {name: found["filenames"] for name, found in info(tmp_path)["splits"].items()} == {
        "cars-train": ["cars-train-000.tar", "cars-train-001.tar"],
        "val": ["val_0.tar"],
        "train": ["0003.tar", "plain.tar"],
    }


def test_a_split_can_be_named_for_all(tmp_path: Path) -> None:
    split(tmp_path, "a-0.tar", "b-0.tar")
    make(tmp_path, split="test")
    assert {name: found["filenames"] for name, found in info(tmp_path)["splits"].items()} == {
        "test": ["a-0.tar", "b-0.tar"]
    }


def test_a_shard_that_is_named_for_another_split_leaves_its_old_one(tmp_path: Path) -> None:
    split(tmp_path, "x-0.tar", "x-1.tar", "x-2.tar")
    make(tmp_path)
    make(tmp_path / "x-2.tar", split="val")
    assert {name: found["filenames"] for name, found in info(tmp_path)["splits"].items()} == {
        "x": ["x-0.tar", "x-1.tar"],
        "val": ["x-2.tar"],
    }
    make(f"{tmp_path}/x-[01].tar", split="val")
    assert list(info(tmp_path)["splits"]) == ["val"]
    is_clean(tmp_path)


def test_one_more_shard_joins_the_others_of_its_split(tmp_path: Path) -> None:
    split(tmp_path, "x-0.tar", "x-2.tar")
    make(tmp_path)
    split(tmp_path, "x-1.tar", keys="new")
    make(tmp_path / "x-1.tar")
    assert info(tmp_path)["splits"]["x"]["filenames"] == ["x-0.tar", "x-1.tar", "x-2.tar"]
    assert info(tmp_path)["splits"]["x"]["num_samples"] == 6
    is_clean(tmp_path)


def test_splits_whose_shards_are_gone_leave_the_manifest_with_the_whole_folder(tmp_path: Path) -> None:
    split(tmp_path, "x-0.tar", "x-1.tar", "y-0.tar")
    make(tmp_path)
    (tmp_path / "y-0.tar").unlink()
    (tmp_path / "x-0.tar").unlink()
    make(tmp_path)
    assert {name: found["filenames"] for name, found in info(tmp_path)["splits"].items()} == {"x": ["x-1.tar"]}
    is_clean(tmp_path)


# -- what a manifest has to say is kept


def test_what_a_manifest_says_beside_the_shards_is_kept(tmp_path: Path) -> None:
    split(tmp_path, "in12k-0.tar", "in12k-1.tar")
    timm = {
        "name": "mine",
        "classes": ["cat", "dog"],
        "license": {"of": ["whom"]},
        "splits": {
            "train": {
                "name": "train",
                "num_samples": 9,
                "filenames": ["in12k-0.tar"],
                "shard_lengths": [9],
                "alt_label": "label",
            },
            "validation": {
                "name": "validation",
                "num_samples": 9,
                "filenames": ["in12k-1.tar"],
                "shard_lengths": [9],
            },
        },
    }
    (tmp_path / "info.json").write_text(json.dumps(timm))
    make(tmp_path)
    content = info(tmp_path)
    assert content["classes"] == ["cat", "dog"]
    assert content["license"] == {"of": ["whom"]}
    assert content["splits"]["train"]["alt_label"] == "label"
    assert {name: (found["filenames"], found["num_samples"]) for name, found in content["splits"].items()} == {
        "train": (["in12k-0.tar"], 2),
        "validation": (["in12k-1.tar"], 2),
    }
    is_clean(tmp_path)
    make(tmp_path, split="all")
    assert info(tmp_path)["classes"] == ["cat", "dog"]
    assert list(info(tmp_path)["splits"]) == ["all"]


def test_fault_28_a_dataset_whose_shard_was_replaced_is_clean_once_indexed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    convert_tree(trees.classes(tmp_path / "tree"), data, max_count=5, workers=0)
    before = info(data)
    (data / "train-000001.tar").unlink()
    others.tar(data / "train-000001.tar", {"new/a.jpg": trees.picture(1), "new/a.cls": b"2"})
    assert not verify_dataset(data, workers=0).ok
    make(data / "train-000001.tar")
    is_clean(data)
    make(data)
    is_clean(data)
    after = info(data)
    assert after["splits"]["train"]["shard_lengths"] == [5, 1, 5]
    assert after["splits"]["train"]["fields"] == {"cls": 11, "jpg": 11}
    for key in ("settings", "classes", "format", "version"):
        assert after[key] == before[key]


def test_indexing_what_convert_made_changes_nothing(tmp_path: Path) -> None:
    tree = trees.classes(tmp_path / "tree")
    for name in ("train", "val"):
        convert_tree(tree, tmp_path / "data", split=name, max_count=4, metadata=True, workers=0)
    before = trees.snapshot(tmp_path / "data")
    make(tmp_path / "data")
    assert trees.snapshot(tmp_path / "data") == before


def test_what_was_indexed_is_described(tmp_path: Path) -> None:
    split(tmp_path, "x-0.tar", "x-1.tar")
    make(tmp_path)
    found = describe_dataset(tmp_path)
    assert found["manifest"]
    assert found["splits"]["x"]["samples"] == 4


# -- what is refused


def refused(folder: Path, error: type[Exception], words: str, **options: Any) -> None:
    """No manifest and no index is made, and what was there before stays."""
    before = trees.snapshot(folder)
    with pytest.raises(error, match=words):
        make(folder, **options)
    assert trees.snapshot(folder) == before


@pytest.mark.parametrize("size", [1536, 1700, 0])
def test_fault_20_a_cut_shard_is_refused_by_name(tmp_path: Path, size: int) -> None:
    others.cut(others.tar(tmp_path / "x.tar", {"a.jpg": b"1", "a.cls": b"0"}), size)
    refused(tmp_path, TarError, f"{tmp_path}/x.tar: ")


def test_a_damaged_shard_among_good_ones_means_no_manifest(tmp_path: Path) -> None:
    split(tmp_path, "x-0.tar", "x-1.tar", "x-2.tar")
    others.flip(tmp_path / "x-1.tar", 3)
    with pytest.raises(TarError, match=r"x-1\.tar: damaged: the header at offset 0"):
        make(tmp_path)
    assert not (tmp_path / "info.json").exists()
    assert not (tmp_path / "sizes.json").exists()
    assert not (tmp_path / "x-1.idx").exists()


def test_fault_21_a_missing_end_mark_is_refused_unless_lenient(tmp_path: Path) -> None:
    others.cut(others.tar(tmp_path / "x.tar", {"a.jpg": b"1"}), 1024)
    refused(tmp_path, TarError, "--lenient")
    assert make(tmp_path, lenient=True).samples == 1
    assert payloads(tmp_path / "x.tar") == [{"jpg": b"1"}]
    assert verify_dataset(tmp_path, workers=0, lenient=True).ok


@pytest.mark.parametrize(
    ("body", "words"), [(b"", "empty"), (b"<html>404</html>", "HTML"), (b"\x1f\x8b" + bytes(600), "gunzip")]
)
def test_fault_26_a_body_that_is_no_tar_is_refused_for_what_it_is(tmp_path: Path, body: bytes, words: str) -> None:
    (tmp_path / "x.tar").write_bytes(body)
    refused(tmp_path, TarError, rf"{tmp_path}/x\.tar: .*{words}")


@pytest.mark.parametrize(
    "members",
    [
        [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.jpg", b"3")],
        [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"0")],
        [("d/a.jpg", b"1"), ("e/a.jpg", b"2"), ("d/a.cls", b"0")],
    ],
)
def test_fault_27_repeated_keys_and_scattered_members_are_refused(
    tmp_path: Path, members: list[tuple[str, bytes]]
) -> None:
    others.tar(tmp_path / "x.tar", members)
    refused(tmp_path, TarError, f"x.tar: key '{members[0][0][:-4]}' comes again at offset 2560")


def test_fault_27_a_key_in_two_shards_is_refused_naming_both(tmp_path: Path) -> None:
    for name in ("x-0.tar", "x-1.tar"):
        others.tar(tmp_path / name, {"a.txt": b"t"})
    with pytest.raises(FormatError, match=r"key 'a' is in x-0\.tar and in x-1\.tar"):
        make(tmp_path)
    assert not (tmp_path / "info.json").exists()
    make(tmp_path / "x-0.tar", split="one")
    make(tmp_path / "x-1.tar", split="two")
    is_clean(tmp_path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_fault_25_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    others.linked(tmp_path / "x.tar", kind)
    refused(tmp_path, TarError, "only regular files belong in a shard")


def test_a_broken_manifest_is_refused_before_any_work_and_says_what_helps(tmp_path: Path) -> None:
    split(tmp_path, "x.tar")
    (tmp_path / "info.json").write_text("{")
    refused(tmp_path, ManifestError, "remove it and make it anew with 'wds-tools index'")
    (tmp_path / "info.json").unlink()
    assert make(tmp_path).samples == 2


def test_a_newer_manifest_is_refused(tmp_path: Path) -> None:
    split(tmp_path, "x.tar")
    (tmp_path / "info.json").write_text(json.dumps({"format": "wds_tools", "version": 2, "splits": {}}))
    refused(tmp_path, ManifestError, "upgrade")


def test_a_folder_without_shards_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, NotFoundError, "holds no shards")
    with pytest.raises(OptionError):
        make([])
