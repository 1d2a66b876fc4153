"""Shards as a source: what is found in them, what is refused, and that no byte of a field changes on the way."""

from __future__ import annotations

import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support import others, shards, streams, trees
from wds_tools.convert import entries
from wds_tools.convert import shards as kind
from wds_tools.convert.datasets import find_parts
from wds_tools.convert.entries import Request, Source
from wds_tools.convert.reshard import reshard
from wds_tools.convert.run import convert_tree
from wds_tools.convert.selection import Selection, key_hash
from wds_tools.convert.shard_origin import ShardOrigin
from wds_tools.convert.spool import Spool
from wds_tools.errors import (
    FormatError,
    SampleError,
    SourceChangedError,
    SourceError,
    StaleIndexError,
    TarError,
    WdsToolsError,
)
from wds_tools.tools.indexing import index_shards
from wds_tools.tools.verify import verify_dataset

Fields = dict[str, bytes]
Sample = tuple[str, Fields]


def scan(*sources: Path | str, strict: bool = True, **selection: Any) -> Source:
    chosen = Selection(**selection)
    parts = find_parts([str(source) for source in sources], chosen)
    return kind.scan(Request("", Spool(), strict=strict), parts, chosen)


def made(source: Path | str, target: Path, **options: Any) -> list[Sample]:
    """What a reshard without a shuffle makes, all of which is well, but for labels that were none before."""
    reshard(str(source), target, **{"workers": 0, "shuffle": False, **options})
    assert [each for each in verify_dataset(target, workers=0).problems if "'cls'" not in each.message] == []
    return trees.read(target)


# ---------------------------------------------------------------- nothing is lost and nothing changes

KEYS = st.from_regex(r"([a-z0-9]{1,4}/)?[a-z0-9][a-z0-9_-]{0,12}", fullmatch=True)
EXTS = st.sampled_from(
    ["jpg", "jpeg", "png", "cls", "json", "txt", "npy", "seg.png", "a.b.c", "pyd", "x-y_z", "caption.en.txt"]
)
SAMPLES = st.dictionaries(
    KEYS, st.dictionaries(EXTS, st.binary(max_size=1500), min_size=1, max_size=5), min_size=1, max_size=8
)


@settings(
    deadline=None, max_examples=8, phases=(Phase.generate,)
)  # what fails here is small, and each try writes files
@given(SAMPLES, st.integers(1, 4), st.sampled_from(["ustar", "gnu", "pax"]), st.booleans(), st.integers(1, 5))
def test_any_samples_with_any_fields_survive(
    samples: dict[str, Fields], per_shard: int, form: str, indexed: bool, max_count: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        listed = list(samples.items())
        for number in range(0, len(listed), per_shard):
            members = [(f"{k}.{ext}", data) for k, f in listed[number : number + per_shard] for ext, data in f.items()]
            others.tar(folder / "in" / f"x-{number:03d}.tar", members, form)
        if indexed:
            index_shards(folder / "in", workers=0)
        found = made(folder / "in", folder / "out", max_count=max_count)
        assert [(key, list(fields.items())) for key, fields in found] == [(k, list(f.items())) for k, f in listed]
        again = made(folder / "out", folder / "again", shuffle=True)
        assert dict(again) == samples


def test_an_unshuffled_reshard_with_equal_options_gives_the_same_shards(tmp_path: Path) -> None:
    convert_tree(trees.classes(tmp_path / "tree"), tmp_path / "in", max_count=4, workers=0)
    made(tmp_path / "in", tmp_path / "out", max_count=4)
    before, after = trees.snapshot(tmp_path / "in"), trees.snapshot(tmp_path / "out")
    assert {**before, "info.json": b""} == {**after, "info.json": b""}


def test_workers_give_the_same_bytes_and_a_second_run_does_nothing(tmp_path: Path) -> None:
    convert_tree(trees.classes(tmp_path / "tree"), tmp_path / "in", max_count=4, workers=0)
    expected = None
    for workers in (0, 1, 2):
        out = tmp_path / f"out{workers}"
        (result,) = reshard(tmp_path / "in", out, max_count=3, workers=workers)
        assert (result.built, result.samples, result.classes) == (5, 15, 3)
        (again,) = reshard(tmp_path / "in", out, max_count=3, workers=workers)
        assert (again.built, again.samples) == (0, 15)
        expected = expected or trees.snapshot(out)
        assert trees.snapshot(out) == expected
    assert sorted(trees.read(out)) == sorted(trees.read(tmp_path / "in"))
    assert trees.read(out) != trees.read(tmp_path / "in")


# ---------------------------------------------------------------- others' shards


def test_shards_by_webdataset_with_and_without_an_index(tmp_path: Path) -> None:
    samples = [{"__key__": f"s{n:03d}", "jpg": trees.picture(n), "cls": n % 3, "json": {"n": n}} for n in range(10)]
    folder = tmp_path / "in"
    folder.mkdir()
    paths = shards.webdataset_shards(folder, samples, 4)
    expected = [sample for path in paths for sample in trees.read_shard(path)]
    assert made(f"{folder}/train-{{000000..000002}}.tar", tmp_path / "out") == expected
    index_shards([str(path) for path in paths])
    assert made(folder, tmp_path / "out2") == expected


def test_fault_24_long_names_of_gnu_tar_and_pax_are_read_and_shortened(tmp_path: Path) -> None:
    long = "x" * 120
    tree = shards.files(tmp_path / "f", [(f"{long}.jpg", b"a"), (f"{long}.cls", b"1"), ("d/b c.jpg", b"b")])
    for form in ("gnu", "pax"):
        others.gnu_tar(tmp_path / f"{form}.tar", tree, f"--format={form}")
        found = made(tmp_path / f"{form}.tar", tmp_path / form)
        assert [fields for _, fields in found] == [{"jpg": b"b"}, {"cls": b"1", "jpg": b"a"}]
        assert found[0][0] == "d/b_c"
        assert len(found[1][0]) == 90
        assert found[1][0].startswith("xxxxx")


def test_names_that_lead_elsewhere_become_plain_keys(tmp_path: Path) -> None:
    others.tar(tmp_path / "a.tar", [("../../etc/x.jpg", b"1"), ("/abs/y.jpg", b"2"), ("./z.jpg", b"3")])
    assert [key for key, _ in made(tmp_path / "a.tar", tmp_path / "out")] == ["etc/x", "abs/y", "z"]


@pytest.mark.parametrize("ext", ["a b", "ä", "x" * 98, "a\\b"])
def test_a_field_whose_name_cannot_stand_is_told_or_skipped(tmp_path: Path, ext: str) -> None:
    others.tar(tmp_path / "a.tar", [("k/1.jpg", b"1"), (f"k/1.{ext}", b"2"), ("k/2.jpg", b"3")], "pax")
    with pytest.raises(SampleError, match=r"a\.tar, key 'k/1': its field "):
        scan(tmp_path / "a.tar")
    (result,) = reshard(tmp_path / "a.tar", tmp_path / "out", on_error="skip", workers=0)
    assert (result.samples, result.num_skipped) == (1, 1)
    assert result.skipped[0].path == "k/1"


# ---------------------------------------------------------------- damage


@pytest.fixture
def one(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "train-000000.tar"
    path.write_bytes(shards.ours(shards.pairs(6)))
    return path


def test_fault_18_a_flipped_bit_in_a_header_is_found_without_an_index(one: Path) -> None:
    others.flip(one, 1024 + 3)
    with pytest.raises(TarError, match=r"train-000000\.tar: damaged"):
        scan(one)


@pytest.mark.parametrize("indexed", [False, True])
def test_fault_20_a_shard_that_is_cut_is_refused(one: Path, indexed: bool) -> None:
    if indexed:
        index_shards(one.parent, workers=0)
    whole = one.read_bytes()
    for size in (0, 100, 512, 700, len(whole) // 2, len(whole) - 2048):
        others.cut(one, size)
        with pytest.raises(FormatError, match=r"train-000000\.tar"):
            scan(one.parent)
        others.rewrite(one, whole)
    assert len(scan(one.parent).lines) == 6


def test_fault_21_to_26_what_is_no_shard_is_refused(tmp_path: Path) -> None:
    ours = shards.ours(shards.pairs(2))
    bad = {
        "21": (ours[:-1024], "no end-of-archive"),
        "23": (shards.header(b"a.jpg", b"\x80" + b"\xff" * 11), "impossible size"),
        "26": (b"<html>404</html>", "an HTML or XML page"),
        "27": (shards.ours([("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"0")]), "key 'a' comes again"),
        "empty": (b"", "empty"),
        "gzip": (b"\x1f\x8b" + bytes(600), "gzip"),
    }
    for name, (data, said) in bad.items():
        path = tmp_path / f"x{name}.tar"
        path.write_bytes(data)
        with pytest.raises(TarError, match=said) as caught:
            reshard(path, tmp_path / "out", workers=0)
        assert str(path) in str(caught.value)
        assert not (tmp_path / "out").exists()
    both = tmp_path / "both.tar"  # 22: laid end to end
    both.write_bytes(ours + shards.ours(shards.pairs(2, first=2)))
    assert len(scan(both).lines) == 4


@pytest.mark.parametrize("what", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_fault_25_links_and_devices_are_refused(tmp_path: Path, what: bytes) -> None:
    others.linked(tmp_path / "a.tar", what)
    with pytest.raises(TarError, match="only regular files"):
        scan(tmp_path / "a.tar")


def test_fault_27_a_key_in_two_shards_names_both(tmp_path: Path) -> None:
    for name in "ab":
        others.tar(tmp_path / f"x-{name}.tar", [("k/1.jpg", name.encode()), (f"k/{name}.jpg", b"")])
    with pytest.raises(SourceError, match=r"key 'k/1' is in '.*x-a\.tar' and in '.*x-b\.tar'.*--prefix"):
        scan(tmp_path / "x-{a,b}.tar")
    assert len(scan(tmp_path / "x-a.tar").lines) == 2


def test_fault_28_an_index_or_a_manifest_of_another_shard_is_refused(one: Path) -> None:
    index_shards(one.parent, workers=0)
    others.rewrite(one, shards.ours(shards.pairs(7)))
    with pytest.raises(StaleIndexError, match="run 'wds-tools index'"):
        scan(one.parent)
    (one.parent / "info.json").unlink()
    with pytest.raises(StaleIndexError, match="run 'wds-tools index'"):
        scan(one)


def test_a_shard_that_changed_since_the_plan_is_told(one: Path) -> None:
    source = scan(one)
    entry = entries.load_line(next(iter(source.lines)))
    with ShardOrigin(source.root) as origin:
        assert origin.read(entry.path, entry.size, entry.mtime_ns, entry.at) == shards.pairs(1)[0][1]
    os.utime(one, ns=(1, 1))
    with pytest.raises(SourceChangedError, match="run again for a new plan"):
        ShardOrigin(source.root).read(entry.path, entry.size, entry.mtime_ns, entry.at)
    origin = ShardOrigin(scan(one).root)
    origin.read(entry.path, entry.size, entry.mtime_ns, entry.at)
    os.utime(one, ns=(2, 2))  # written over while it is read
    with pytest.raises(SourceChangedError):
        origin.__exit__(None, None, None)
    source = scan(one)
    one.unlink()
    with pytest.raises(SourceChangedError, match="is gone"), ShardOrigin(source.root) as origin:
        origin.read(entry.path, entry.size, entry.mtime_ns, entry.at)


def test_no_shard_stays_whose_source_was_replaced_by_one_of_the_same_sizes(tmp_path: Path, one: Path) -> None:
    out = tmp_path / "out"
    reshard(one, out, max_count=2, workers=0, task=(0, 3))
    assert (out / "train-000000.tar").exists()
    data = one.read_bytes()
    for letter in b"ABCDEF":
        data = data.replace(bytes([letter]) * 400, b"x" * 400)
    others.rewrite(one, data)
    with pytest.raises(SourceChangedError):
        reshard(one, out, max_count=2, workers=0, task=(1, 3))
    reshard(one, out, max_count=2, workers=0)
    assert sorted(trees.read(out)) == sorted(trees.read_shard(one))


def test_other_bytes_of_the_same_sizes_are_another_source(one: Path) -> None:
    digest = scan(one).digest
    os.utime(one, ns=(1, 1))
    assert scan(one).digest == digest
    others.rewrite(one, one.read_bytes().replace(b"AAAA", b"aaaa"))
    assert scan(one).digest != digest


# ---------------------------------------------------------------- the plan's lines


def test_labels_are_read_only_where_they_decide_something(tmp_path: Path) -> None:
    others.tar(tmp_path / "a.tar", [("a.jpg", b"1"), ("a.cls", b"cat"), ("b.cls", b" 7\n"), ("b.jpg", b"2")])
    assert made(tmp_path / "a.tar", tmp_path / "out")[0][1]["cls"] == b"cat"  # nobody asked
    with pytest.raises(SampleError, match=r"a\.tar, key 'a': its cls is b'cat', not a class index"):
        scan(tmp_path / "a.tar", classes=("7",))
    source = scan(tmp_path / "a.tar", classes=("7",), strict=False)
    assert [skip.path for skip in source.skipped] == ["a"]
    assert source.classes == ("7",)
    (line,) = source.lines
    entry = entries.load_line(line)
    assert (entry.path, entry.at, [s.ext for s in entry.siblings]) == ("b.cls", "0=0", ["jpg"])  # where it was


def test_a_share_of_the_keys_does_not_ask_where_they_lie(tmp_path: Path) -> None:
    streams.numbered(tmp_path / "a", 40, 7)
    streams.numbered(tmp_path / "b", 40, 13)
    share = (0.25, 0.6)
    keys = []
    for name in "ab":
        lines = scan(tmp_path / name, share=share).lines
        keys.append({entries.load_line(line).path.partition(".")[0] for line in lines})
    assert keys[0] == keys[1]
    assert 0 < len(keys[0]) < 40
    assert all(0.25 <= key_hash(key) / 2**64 < 0.6 for key in keys[0])


def test_an_empty_selection_says_so(one: Path) -> None:
    with pytest.raises(SourceError, match="no samples of class '99'"):
        scan(one, classes=("99",))
    with pytest.raises(SourceError, match=r"of the 6 samples none one has|none"):
        scan(one, share=(0.0, 1e-9))
    with pytest.raises(WdsToolsError):
        scan(one.parent / "none")
