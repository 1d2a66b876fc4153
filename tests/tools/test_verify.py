"""verify finds what is wrong with a dataset and says where it is."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import images, others, trees
from wds_tools.convert.run import convert_tree
from wds_tools.errors import ManifestError, NotFoundError, OptionError
from wds_tools.format import index
from wds_tools.records import Problem, Sample
from wds_tools.tools.indexing import index_shards
from wds_tools.tools.verify import MAX_PROBLEMS, VerifyReport, verify_dataset

FIRST, SECOND, THIRD = (f"train-{number:06d}.tar" for number in range(3))


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Three shards of five samples, in order."""
    tree = trees.classes(tmp_path / "tree")
    convert_tree(tree, tmp_path / "data", max_count=5, shuffle=False, workers=0)
    return tmp_path / "data"


def check(dataset: Any, **options: Any) -> VerifyReport:
    return verify_dataset(dataset, **{"workers": 0, **options})


def found(dataset: Any, **options: Any) -> list[Problem]:
    return check(dataset, **options).problems


def only(problems: list[Problem], shard: str, words: str, **place: Any) -> None:
    """There is one problem and it is this one."""
    assert [problem.shard for problem in problems] == [shard], problems
    assert words in problems[0].message
    for name, value in place.items():
        assert getattr(problems[0], name) == value


def samples(dataset: Path, shard: str) -> list[Sample]:
    return index.load((dataset / index.index_name(shard)).read_bytes())


def without_manifest(dataset: Path) -> Path:
    """The same shards as somebody else would hand them over."""
    for path in dataset.iterdir():
        if path.suffix != ".tar":
            path.unlink()
    return dataset


def edit_manifest(dataset: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = dataset / "info.json"
    content = json.loads(path.read_bytes())
    change(content)
    others.rewrite(path, json.dumps(content).encode())


def reindexed(dataset: Path, members: others.Members, shard: str = FIRST) -> Path:
    """The dataset with one shard's content replaced and everything that speaks of it brought up to date."""
    (dataset / shard).unlink()
    others.tar(dataset / shard, members, "gnu")
    index_shards(dataset, workers=0)
    return dataset


# -- what is clean


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"metadata": True},
        {"encode": "png"},
        {"encode": "npy"},
        {"image_size": 6},
        {"split": "val", "max_size": 12_000},
    ],
    ids=str,
)
def test_what_convert_makes_is_clean_decoded_or_not(tmp_path: Path, options: dict[str, Any]) -> None:
    convert_tree(trees.classes(tmp_path / "tree"), tmp_path / "data", workers=0, **options)
    for decode in (False, True):
        report = check(tmp_path / "data", decode=decode)
        assert report.ok, report.problems
        assert (report.samples, report.decoded) == (15, decode)
        assert report.size == sum(path.stat().st_size for path in (tmp_path / "data").glob("*.tar"))


def test_two_splits_may_hold_the_same_keys(tmp_path: Path) -> None:
    tree = trees.classes(tmp_path / "tree")
    for split in ("train", "val"):
        convert_tree(tree, tmp_path / "data", split=split, workers=0)
    report = check(tmp_path / "data")
    assert report.ok
    assert (report.shards, report.samples) == (2, 30)


@pytest.mark.parametrize("how", ["folder", "info.json", "glob", "braces", "list"])
def test_a_dataset_is_given_in_any_of_the_ways(dataset: Path, how: str) -> None:
    asked: Any = {
        "folder": dataset,
        "info.json": dataset / "info.json",
        "glob": f"{dataset}/train-*.tar",
        "braces": f"{dataset}/train-{{000000..000002}}.tar",
        "list": [dataset / FIRST, str(dataset / SECOND), f"{dataset}/*2.tar"],
    }[how]
    report = check(asked)
    assert report.ok
    assert (report.shards, report.samples, report.place) == (3, 15, str(dataset))


@pytest.mark.parametrize("how", ["{}", "{}/*.tar", "{}/train-{{000000..000002}}.tar"])
def test_others_shards_need_neither_manifest_nor_index(dataset: Path, how: str) -> None:
    without_manifest(dataset)
    report = check(how.format(dataset))
    assert report.ok
    assert report.samples == 15


def test_keys_that_only_our_rules_forbid_are_fine_in_others_shards(tmp_path: Path) -> None:
    others.tar(tmp_path / "x.tar", [("a b/ü.jpg", b"x"), ("a.b/c.jpg", b"x"), ("n" * 99 + ".jpg", b"x")], "pax")
    assert check(tmp_path).ok


# -- damaged shards


@pytest.mark.parametrize("offset", range(0, 512, 17))
def test_fault_18_a_flipped_bit_anywhere_in_a_header_is_found(dataset: Path, offset: int) -> None:
    header = samples(dataset, SECOND)[2].fields[0].offset - 512
    others.flip(dataset / SECOND, header + offset, bit=offset % 7)
    problems = found(dataset)
    assert {problem.shard for problem in problems} == {SECOND}
    assert f"header at offset {header}" in problems[0].message or "impossible size" in problems[0].message
    without_manifest(dataset)
    assert [problem.message for problem in found(dataset)] == [problems[0].message]


@pytest.mark.parametrize("part", ["payload", "padding", "end mark"])
def test_fault_19_a_flipped_bit_in_a_payload_is_found_by_sha256(dataset: Path, part: str) -> None:
    field = samples(dataset, SECOND)[2].fields[0]
    offset = {
        "payload": field.offset + field.size // 2,
        "padding": field.offset + field.size,
        "end mark": (dataset / SECOND).stat().st_size - 1,
    }[part]
    others.flip(dataset / SECOND, offset)
    problems = found(dataset)
    assert any("sha256" in problem.message and "info.json" in problem.message for problem in problems)
    assert {problem.shard for problem in problems} == {SECOND}


def test_fault_20_a_shard_cut_at_any_block_is_found_even_without_a_manifest(tmp_path: Path) -> None:
    whole = others.tar(tmp_path / "whole.tar", {f"{n}.{ext}": b"7" for n in range(3) for ext in ("jpg", "cls")})
    data = whole.read_bytes()[: 6 * 1024 + 1024]
    cut = tmp_path / "cut.tar"
    for size in [*range(0, len(data), 512), *range(100, len(data), 512), len(data) - 1]:
        cut.write_bytes(data[:size])
        problems = found([cut])
        assert len(problems) == 1, size
        words = "empty" if not size else "not a tar" if size < 512 else "cut short"
        assert words in problems[0].message
    cut.write_bytes(data)
    assert not found([cut])


def test_fault_20_a_cut_shard_is_named_with_its_sizes(dataset: Path) -> None:
    size = (dataset / THIRD).stat().st_size
    others.cut(dataset / THIRD, size - 2048)
    problems = found(dataset)
    assert {problem.shard for problem in problems} == {THIRD}
    assert f"{size - 2048} bytes where info.json says {size}" in problems[-1].message


def test_fault_21_no_end_of_archive_mark_is_found_unless_lenient(dataset: Path) -> None:
    without_manifest(dataset)
    others.cut(dataset / FIRST, (dataset / FIRST).stat().st_size - 1024)
    only(found(dataset), FIRST, "no end-of-archive mark")
    report = check(dataset, lenient=True)
    assert report.ok
    assert report.samples == 15


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"", "empty: 0 bytes"), (b"<!DOCTYPE html>\n<title>404</title>", "HTML"), (b"\x1f\x8b\x08" + b"z" * 600, "gzip")],
)
def test_fault_26_a_body_that_is_no_tar_is_named_for_what_it_is(dataset: Path, body: bytes, words: str) -> None:
    others.rewrite(dataset / SECOND, body)
    problems = found(dataset)
    assert {problem.shard for problem in problems} == {SECOND}
    assert words in problems[0].message


def test_fault_27_a_key_that_comes_twice_is_found(tmp_path: Path) -> None:
    others.tar(tmp_path / "x.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.jpg", b"3")])
    only(found(tmp_path), "x.tar", "key 'a' comes again at offset 2560")


def test_fault_27_members_that_are_not_adjacent_are_found(tmp_path: Path) -> None:
    others.tar(tmp_path / "x.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"0")])
    only(found(tmp_path), "x.tar", "must lie side by side")


def test_fault_27_a_field_that_comes_twice_is_found(tmp_path: Path) -> None:
    others.tar(tmp_path / "x.tar", [("a.jpg", b"1"), ("a.JPG", b"2")])
    only(found(tmp_path), "x.tar", "two fields 'jpg'")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_fault_25_links_and_devices_are_found(tmp_path: Path, kind: bytes) -> None:
    others.linked(tmp_path / "x.tar", kind)
    only(found(tmp_path), "x.tar", "only regular files belong in a shard")


# -- indexes


def test_fault_28_a_shard_replaced_under_its_index_is_found(dataset: Path) -> None:
    shutil.copyfile(dataset / FIRST, dataset / "new")
    others.rewrite(dataset / SECOND, (dataset / "new").read_bytes())
    problems = found(dataset)
    (stale,) = (problem for problem in problems if problem.shard == index.index_name(SECOND))
    assert "sample 0" in stale.message
    assert "run 'wds-tools index'" in stale.message
    assert stale.key == "ant/ant_000"
    assert any("sha256" in problem.message or "bytes where" in problem.message for problem in problems)


def test_a_missing_index_is_found(dataset: Path) -> None:
    (dataset / index.index_name(SECOND)).unlink()
    only(found(dataset), index.index_name(SECOND), "missing; make it with 'wds-tools index'")


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"\xff\xfe garbage", "not an index"), (b"v1.2 5\njpg 512", "cut short"), (b"v1.2 1\na b c d\n", "malformed")],
)
def test_an_index_of_garbage_is_found(dataset: Path, content: bytes, words: str) -> None:
    name = index.index_name(THIRD)
    others.rewrite(dataset / name, content)
    only(found(dataset), name, words)


def test_an_index_with_too_few_samples_is_found(dataset: Path) -> None:
    name = index.index_name(THIRD)
    others.rewrite(dataset / name, index.dump_samples(samples(dataset, THIRD)[:-1]))
    only(found(dataset), name, "lists 4 samples and the shard holds 5")


def test_an_index_with_one_wrong_size_is_found(dataset: Path) -> None:
    name = index.index_name(THIRD)
    lines = (dataset / name).read_bytes().split(b"\n")
    lines[4] = lines[4].replace(b" 1 cat/", b" 2 cat/", 1)
    others.rewrite(dataset / name, b"\n".join(lines))
    only(found(dataset), name, "sample 3 is not what the shard holds", key="cat/cat_003")


# -- the dataset as a whole


def test_a_shard_that_is_not_there_is_found(dataset: Path) -> None:
    (dataset / SECOND).unlink()
    only(found(dataset), SECOND, "no such file")


def test_a_shard_that_nothing_lists_is_found(dataset: Path) -> None:
    others.tar(dataset / "train-000003.tar", {"x/y.jpg": b"1"})
    only(found(dataset), "train-000003.tar", "no split in info.json lists this shard")


def test_a_shard_that_is_listed_twice_is_found(dataset: Path) -> None:
    def twice(content: dict[str, Any]) -> None:
        for values in (content["splits"]["train"]["filenames"], content["splits"]["train"]["shard_lengths"]):
            values.append(values[0])

    edit_manifest(dataset, twice)
    (dataset / "sizes.json").unlink()
    assert any("lists train-000000.tar 2 times" in problem.message for problem in found(dataset))


def test_a_wrong_number_of_samples_in_the_manifest_is_found(dataset: Path) -> None:
    def wrong(content: dict[str, Any]) -> None:
        content["splits"]["train"]["shard_lengths"][1] = 6

    edit_manifest(dataset, wrong)
    problem = found(dataset)[0]
    assert (problem.shard, problem.message) == (SECOND, "5 samples where info.json says 6")


def test_wrong_counts_of_fields_in_the_manifest_are_found(dataset: Path) -> None:
    edit_manifest(dataset, lambda content: content["splits"]["train"]["fields"].update(txt=15))
    only(found(dataset), "info.json", "has the fields {'jpg': 15, 'cls': 15} where it says")


@pytest.mark.parametrize("content", [b"{}", b"not json", b'{"train-000000.tar": 5}'])
def test_a_wrong_sizes_json_is_found(dataset: Path, content: bytes) -> None:
    others.rewrite(dataset / "sizes.json", content)
    only(found(dataset), "sizes.json", "not what info.json says; run 'wds-tools index'")


def test_a_missing_sizes_json_is_found(dataset: Path) -> None:
    (dataset / "sizes.json").unlink()
    only(found(dataset), "sizes.json", "missing")


def test_a_key_in_two_shards_of_a_split_is_found(dataset: Path) -> None:
    others.rewrite(dataset / SECOND, (dataset / FIRST).read_bytes())
    others.rewrite(dataset / index.index_name(SECOND), (dataset / index.index_name(FIRST)).read_bytes())

    def agree(content: dict[str, Any]) -> None:
        content["shardlist"][1] = content["shardlist"][0] | {"url": SECOND}

    edit_manifest(dataset, agree)
    problems = found(dataset)
    assert [problem.key for problem in problems] == [f"ant/ant_{number:03d}" for number in range(5)]
    assert {(problem.shard, problem.message) for problem in problems} == {(SECOND, f"the key is in {FIRST} too")}


# -- what a shard holds


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (b"3", "class index 3 where the dataset has 3 classes"),
        (b"9" * 20, "where the dataset has 3 classes"),
        (b"-1", "not a class index"),
        (b"ant", "not a class index"),
        (b"1\n", "not a class index"),
        (b"", "not a class index"),
        (b"1" * 21, "no class index"),
        ("\N{ARABIC-INDIC DIGIT ONE}".encode(), "not a class index"),
    ],
)
def test_a_label_that_is_no_class_is_found(dataset: Path, label: bytes, words: str) -> None:
    picture = trees.picture()
    reindexed(dataset, [("a/1.jpg", picture), ("a/1.cls", b"0"), ("a/2.jpg", picture), ("a/2.cls", label)])
    only(found(dataset), FIRST, words, key="a/2", offset=samples(dataset, FIRST)[1].fields[1].offset)


@pytest.mark.parametrize("key", [".a/1", "__a/1", "a b", "tab\t", "ü", "n" * 97])
def test_a_key_that_breaks_our_rules_is_found(dataset: Path, key: str) -> None:
    reindexed(dataset, [(f"{key}.jpg", trees.picture()), (f"{key}.cls", b"0")])
    only(found(dataset), FIRST, "breaks the format's rules", key=key)


@pytest.mark.parametrize("key", ["a.b/1", "a__b/1", "x/__y", "!", "n" * 96, "a/b/c"])
def test_a_key_within_our_rules_is_clean(dataset: Path, key: str) -> None:
    reindexed(dataset, [(f"{key}.jpg", trees.picture()), (f"{key}.cls", b"0")])
    assert not found(dataset)


def test_a_shard_full_of_garbage_does_not_fill_the_list(tmp_path: Path) -> None:
    others.tar(tmp_path / "x.tar", [(f"{number}.cls", b"?") for number in range(MAX_PROBLEMS + 50)])
    problems = found(tmp_path)
    assert len(problems) == MAX_PROBLEMS + 1
    assert "the others are not listed" in problems[-1].message


def damaged_table(data: bytes) -> bytes:
    """A Huffman table that promises more codes than there can be."""
    at = data.index(b"\xff\xc4") + 5
    return data[:at] + b"\xff" * 8 + data[at + 8 :]


@pytest.mark.parametrize(
    ("field", "data"),
    [
        ("jpg", damaged_table(images.jpeg())),
        ("jpeg", damaged_table(images.jpeg())),
        ("left.jpg", damaged_table(images.jpeg())),
        ("jpg", images.truncated(images.jpeg(80, 80))),
        ("jpg", b""),
        ("jpg", b"a text"),
        ("png", images.truncated(images.png())),
        ("npy", images.truncated(images.npy(images.pixels()))),
        ("jpg", images.bomb_png()),
    ],
)
def test_fault_11_decode_finds_an_image_that_does_not_and_nothing_else_does(
    tmp_path: Path, field: str, data: bytes
) -> None:
    good = images.png(4, 4)
    assert len(good) <= 512
    others.tar(tmp_path / "x.tar", [("a.jpg", good), (f"b.{field}", data), ("c.jpg", good)])
    assert not found(tmp_path)
    only(found(tmp_path, decode=True), "x.tar", f"field {field!r}: ", key="b", offset=1536)


def test_decode_finds_every_bad_image_and_goes_on(dataset: Path) -> None:
    bad = damaged_table(images.jpeg())
    reindexed(dataset, [(f"a/{n}.{ext}", bad if ext == "jpg" else b"0") for n in range(4) for ext in ("jpg", "cls")])
    assert not found(dataset)
    assert [problem.key for problem in found(dataset, decode=True)] == [f"a/{number}" for number in range(4)]


def test_decode_leaves_alone_what_is_no_image(tmp_path: Path) -> None:
    others.tar(
        tmp_path / "x.tar", {"a.txt": b"?", "a.json": b"{", "a.pyd": b"cos\nsystem\n(S'false'\ntR.", "a.mp4": b""}
    )
    assert not found(tmp_path, decode=True)


# -- how it is done


def test_any_number_of_workers_reports_the_same(dataset: Path) -> None:
    others.flip(dataset / FIRST, 700)
    others.cut(dataset / SECOND, 1000)
    others.rewrite(dataset / index.index_name(THIRD), b"v1.2 0\n")
    serial, pool = check(dataset, decode=True), check(dataset, decode=True, workers=2)
    assert serial == pool
    assert {problem.shard for problem in serial.problems} == {FIRST, SECOND, index.index_name(THIRD)}


@pytest.mark.parametrize("workers", [0, 2])
def test_progress_ends_at_all_samples_and_all_bytes(dataset: Path, workers: int) -> None:
    told: list[tuple[int, int]] = []
    report = check(dataset, workers=workers, watch=lambda samples, size: told.append((samples, size)))
    assert told == sorted(told)
    if workers == 0:  # a pool tells what it has in hand when it looks
        assert told[-1] == (report.samples, report.size)


def test_a_dataset_that_is_not_there_is_an_error_and_no_report(tmp_path: Path) -> None:
    for asked in (tmp_path / "no", tmp_path, f"{tmp_path}/*.tar", []):
        with pytest.raises((NotFoundError, OptionError)):
            check(asked)


def test_a_newer_manifest_is_refused(dataset: Path) -> None:
    edit_manifest(dataset, lambda content: content.update(version=2))
    with pytest.raises(ManifestError, match="upgrade"):
        check(dataset)


@pytest.mark.parametrize("name", ["/dev/zero", "../other/x.tar", "a/../../x.tar"])
def test_a_manifest_that_names_files_outside_of_the_dataset_is_refused(dataset: Path, name: str) -> None:
    def outside(content: dict[str, Any]) -> None:
        content["splits"]["train"]["filenames"][0] = name

    edit_manifest(dataset, outside)
    with pytest.raises(ManifestError, match="outside of the dataset"):
        check(dataset)


def test_nothing_is_written(dataset: Path) -> None:
    before = trees.snapshot(dataset)
    check(dataset, decode=True)
    assert trees.snapshot(dataset) == before
    assert not [name for name in os.listdir(dataset) if name.startswith(".")]
