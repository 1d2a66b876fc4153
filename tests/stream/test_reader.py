"""Samples by arithmetic: what an index says is held against the shard before a byte of it is believed."""

from __future__ import annotations

import os
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import streams
from wds_tools.errors import IndexFileError, NotFoundError, OptionError, SampleError, StaleIndexError, TarError
from wds_tools.records import ShardInfo
from wds_tools.store.local import LocalStore
from wds_tools.store.options import StoreOptions
from wds_tools.stream import reader, sequential, shards
from wds_tools.stream.dataset import ShardDataset
from wds_tools.stream.order import Order, Topology
from wds_tools.stream.reader import ShardReader
from wds_tools.stream.shards import Shards, find_shards

SHARD, INDEX = "train-000000.tar", "train-000000.idx"


def contents(folder: Path | str) -> list[dict[str, object]]:
    """Every sample of the split, in the manifest's order, without where it was read."""
    found = find_shards(folder, None)
    opened = ShardReader(found)
    places = [(shard, number) for shard, info in enumerate(found.shards) for number in range(info.samples)]
    return [{k: v for k, v in opened.read(*place).items() if k != "__url__"} for place in places]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards of three samples, indexed, without a manifest that would know more."""
    streams.numbered(tmp_path / "data", 6, 3)
    for name in ("info.json", "sizes.json"):
        (tmp_path / "data" / name).unlink()
    return tmp_path / "data"


def test_a_sample_has_its_key_its_shard_and_every_field_as_bytes(folder: Path) -> None:
    found = find_shards(folder, None)
    assert ShardReader(found).read(1, 2) == {
        "__key__": "k0005",
        "__url__": str(folder / "train-000001.tar"),
        "png": streams.picture(5),
        "cls": b"5",
    }


def test_only_wanted_fields_are_read(folder: Path) -> None:
    found = find_shards(folder, None)
    assert set(ShardReader(found, {"cls"}).read(0, 0)) == {"__key__", "__url__", "cls"}
    assert set(ShardReader(found, ()).read(0, 0)) == {"__key__", "__url__"}


@pytest.mark.parametrize("size", [10, reader.SMALL + 1], ids=["small", "large"])
def test_fields_of_any_size_come_whole(tmp_path: Path, size: int) -> None:
    bodies = [bytes([65 + number]) * (size + number) for number in range(4)]
    streams.pack(tmp_path / "data", (streams.sample(n, bin=body) for n, body in enumerate(bodies)))
    streams.index(tmp_path / "data")
    assert [sample["bin"] for sample in contents(tmp_path / "data")] == bodies


def large(folder: Path, count: int = 4, **more: object) -> list[bytes]:
    """Shards of fields that are read one by one; what is in them."""
    bodies = [bytes([65 + number]) * (reader.SMALL + 100 * number) for number in range(count)]
    streams.index(streams.pack(folder, (streams.sample(n, bin=body, **more) for n, body in enumerate(bodies))))
    return bodies


class Ground:
    """Memory that fields may be read into, in two pieces; it is asked for with these lengths."""

    def __init__(self, takes: bool = True) -> None:
        self.takes = takes
        self.asked: list[int] = []
        self.memory = bytearray()

    def __call__(self, size: int) -> list[memoryview] | None:
        self.asked.append(size)
        if not self.takes:
            return None
        self.memory = bytearray(size)
        return [memoryview(self.memory)[:100], memoryview(self.memory)[100:]]


def test_large_fields_land_where_they_are_wanted(tmp_path: Path) -> None:
    bodies = large(tmp_path / "data")
    opened = ShardReader(find_shards(tmp_path / "data", None))
    for number, body in enumerate(bodies):
        ground = Ground()
        sample = opened.read(0, number, {"bin": ground})
        assert b"".join(sample["bin"]) == bytes(ground.memory) == body
        assert ground.asked == [len(body)]
        assert (sample["png"], sample["cls"]) == (streams.picture(number), str(number).encode())


def test_what_has_nowhere_to_land_comes_as_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = large(tmp_path / "data")
    opened = ShardReader(find_shards(tmp_path / "data", None))
    assert opened.read(0, 1, {"bin": Ground(takes=False)})["bin"] == bodies[1]
    assert opened.read(0, 1, {"txt": Ground()})["bin"] == bodies[1]
    assert opened.read(0, 1, {})["bin"] == bodies[1]
    with streams.served(tmp_path / "data") as server:
        landed = ShardReader(find_shards(server.url, None)).read(0, 1, {"bin": Ground()})["bin"]
        assert b"".join(landed) == bodies[1]  # copied there from what the request brought
    monkeypatch.delattr(os, "preadv", raising=False)  # as on Windows
    assert opened.read(0, 1, {"bin": Ground()})["bin"] == bodies[1]
    small = streams.numbered(tmp_path / "small", 2)
    ground = Ground()
    assert ShardReader(find_shards(small, None)).read(0, 1, {"png": ground})["png"] == streams.picture(1)
    assert ground.asked == []


def test_fields_that_land_are_refused_for_the_same_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = large(tmp_path / "data")
    opened = ShardReader(find_shards(tmp_path / "data", None), {"bin"})
    offset = opened.place(0, 3)[2]
    shard = tmp_path / "data" / SHARD
    shard.chmod(0o644)
    for length in (len(bodies[3]) - 1, 50, 0, -1000):
        with open(shard, "r+b") as file:
            file.truncate(offset + length)
        with pytest.raises(StaleIndexError, match="ends at byte"):
            opened.read(0, 3, {"bin": Ground()})
    monkeypatch.setattr("wds_tools.stream.opened.MAX_FIELD", 5000)
    with pytest.raises(SampleError, match="at most 5000 are read"):
        opened.read(0, 0, {"bin": Ground()})


def test_samples_of_one_shard_may_have_different_fields(tmp_path: Path) -> None:
    made = [
        streams.sample(0),
        streams.sample(1, png=None),
        streams.sample(2, txt="two"),
        streams.sample(3, cls=None, **{"seg.png": b"x"}),
    ]
    streams.index(streams.pack(tmp_path / "data", made))
    found = contents(tmp_path / "data")
    assert [set(sample) - {"__key__"} for sample in found] == [
        {"png", "cls"},
        {"cls"},
        {"png", "cls", "txt"},
        {"png", "seg.png"},
    ]
    assert found[2]["txt"] == b"two"


def test_strange_names_survive_the_index(tmp_path: Path) -> None:
    members = [("b c/ä ö.PNG", b"1"), ("b c/ä ö.CLS", b"0"), ("b c/d\\e.PNG", b"22"), ("b c/d\\e.CLS", b"1")]
    (tmp_path / SHARD).write_bytes(streams.tarred(members))
    streams.index(tmp_path)
    (tmp_path / "info.json").unlink()
    assert contents(tmp_path) == [
        {"__key__": "b c/ä ö", "png": b"1", "cls": b"0"},
        {"__key__": "b c/d\\e", "png": b"22", "cls": b"1"},
    ]


def test_without_an_index_a_local_shard_is_scanned(folder: Path) -> None:
    before = contents(folder)
    (folder / INDEX).unlink()
    assert contents(folder) == before


def test_a_manifest_without_indexes_is_enough_locally(tmp_path: Path) -> None:
    before = contents(streams.numbered(tmp_path / "data"))
    for path in (tmp_path / "data").glob("*.idx"):
        path.unlink()
    assert contents(tmp_path / "data") == before


def test_an_index_without_names_is_as_none(folder: Path) -> None:
    before = contents(folder)
    lines = (folder / INDEX).read_text().split("\n")[1:-1]
    bare = ["v1.1 3", *(" ".join(x for n, x in enumerate(line.split(" ")) if n % 4 < 3) for line in lines), ""]
    streams.rewrite(folder / INDEX, lambda data: "\n".join(bare).encode())
    assert contents(folder) == before


def test_an_empty_shard_is_no_error(folder: Path) -> None:
    (folder / "train-000002.tar").write_bytes(streams.tarred([]))
    assert find_shards(folder, None).sizes == (3, 3, 0)
    assert len(contents(folder)) == 6


def test_a_reader_pickles_without_what_it_has_open_and_reads_on(folder: Path) -> None:
    first = ShardReader(find_shards(folder, None))
    sample = first.read(1, 1)
    second = pickle.loads(pickle.dumps(first))
    second.after_fork()
    assert second.read(1, 1) == sample == first.read(1, 1)


@pytest.mark.parametrize("count", [0, 3])
def test_shards_pickle_as_what_they_are(count: int) -> None:
    infos = (ShardInfo("a.tar", 3, 2048, "00"), ShardInfo("b.tar", 0), ShardInfo("c.tar", 7, 512))[:count]
    made = Shards(LocalStore("data"), infos, ("cat", "dog"), lines={1: [b"jpg 512 1 x.jpg"]}, options=StoreOptions())
    again = pickle.loads(pickle.dumps(made))
    assert (again.shards, again.sizes, again.classes) == (infos, made.sizes, ("cat", "dog"))
    assert (again.counted, again.lines, again.options) == (True, made.lines, made.options)
    assert again.store.url("x") == made.store.url("x")


def test_no_more_shards_stay_open_than_agreed(tmp_path: Path) -> None:
    streams.numbered(tmp_path / "data", 20, 1)
    opened = ShardReader(find_shards(tmp_path / "data", None), keep=3)
    got = [opened.read(shard, 0)["cls"] for _ in range(2) for shard in range(20)]
    assert got == [b"%d" % shard for shard in range(20)] * 2
    assert len(opened._open) == 3
    opened.close()
    assert opened.read(0, 0)["cls"] == b"0"


@pytest.mark.parametrize(
    ("sizes", "interleave", "window"), [([50] * 60, 8, 400), ([3] * 200, 4, 60), ([1000] * 9, 4, 1)]
)
def test_a_stream_opens_each_shard_about_once(sizes: list[int], interleave: int, window: int) -> None:
    """What `shards_at_once` says is enough, or whoever streams would read indexes all day."""
    order = Order(sizes, interleave=interleave, window=window)
    keep = reader.shards_at_once(order)
    opened: OrderedDict[int, None] = OrderedDict()
    openings = 0
    for ids in order.epoch(0, Topology()).stream().blocks():
        for shard in order.locate(ids)[0].tolist():
            if shard not in opened:
                openings += 1
                opened[shard] = None
                if len(opened) > keep:
                    opened.popitem(last=False)
    assert openings <= 1.5 * len(sizes)


# ── damage ────────────────────────────────────────────────────────────────────────────────────────────────────


def flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_fault_18_a_flipped_bit_in_a_header_is_refused_when_scanned(folder: Path) -> None:
    (folder / INDEX).unlink()
    streams.rewrite(folder / SHARD, flipped(3))
    with pytest.raises(TarError, match=rf"{SHARD}.*checksum"):
        find_shards(folder, None)


@pytest.mark.parametrize("place", ["first", "last"])
def test_fault_18_a_flipped_bit_in_a_header_is_refused_with_an_index(folder: Path, place: str) -> None:
    lines = (folder / INDEX).read_text().split("\n")
    offset = int(lines[1].split(" ")[1] if place == "first" else lines[3].split(" ")[5])
    streams.rewrite(folder / SHARD, flipped(offset - 512 + 3))
    with pytest.raises(StaleIndexError, match=SHARD):
        contents(folder)


@pytest.mark.parametrize("indexed", [True, False])
def test_fault_20_a_cut_shard_is_refused_wherever_it_is_cut(folder: Path, indexed: bool) -> None:
    whole = (folder / SHARD).read_bytes()
    if not indexed:
        (folder / INDEX).unlink()
    last = whole.rstrip(b"\0").rfind(b"k000") // 512 * 512  # the last member's header
    for end in (0, 1, 511, 512, 1024, last, last + 512, last + 513, *(() if indexed else (last + 1024,))):
        streams.rewrite(folder / SHARD, lambda data, end=end: whole[:end])
        with pytest.raises((TarError, StaleIndexError), match=SHARD):
            contents(folder)


def test_fault_20_a_shard_cut_at_its_end_is_refused_by_the_manifest(tmp_path: Path) -> None:
    streams.numbered(tmp_path / "data")
    streams.rewrite(tmp_path / "data" / SHARD, lambda data: data[:-1024])
    with pytest.raises(StaleIndexError, match=r"the manifest says"):
        contents(tmp_path / "data")


def test_fault_21_a_shard_without_an_end_is_refused_when_scanned(tmp_path: Path) -> None:
    (tmp_path / SHARD).write_bytes(streams.tarred([("a.png", b"x")], end=b""))
    with pytest.raises(TarError, match="end-of-archive"):
        find_shards(tmp_path, None)


def test_fault_22_archives_laid_end_to_end_are_read_on(tmp_path: Path) -> None:
    parts = [streams.tarred([(f"k{n}.png", b"x"), (f"k{n}.cls", b"%d" % n)]) for n in range(3)]
    (tmp_path / SHARD).write_bytes(b"".join(parts))
    assert [sample["cls"] for sample in contents(tmp_path)] == [b"0", b"1", b"2"]
    streams.index(tmp_path)
    assert [sample["cls"] for sample in contents(tmp_path)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("size", [b"-0000000001\0", b"\x80" + bytes(3) + b"\xff" * 8, b"\xff" * 12])
def test_fault_23_impossible_sizes_are_refused_when_scanned(tmp_path: Path, size: bytes) -> None:
    data = bytearray(streams.tarred([("a.png", b"x")]))
    data[124:136] = size
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    (tmp_path / SHARD).write_bytes(data)
    with pytest.raises(TarError, match="impossible size"):
        find_shards(tmp_path, None)


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_fault_24_long_names_are_read(tmp_path: Path, form: str) -> None:
    name = "folder/" * 30 + "ä" * 60
    (tmp_path / SHARD).write_bytes(streams.tarred([(f"{name}.png", b"x"), (f"{name}.cls", b"7")], form))
    scanned = contents(tmp_path)
    assert scanned == [{"__key__": name, "png": b"x", "cls": b"7"}]
    streams.index(tmp_path)
    assert contents(tmp_path) == scanned


def test_fault_25_links_are_refused_when_scanned(tmp_path: Path) -> None:
    data = bytearray(streams.tarred([("a.png", b"")]))
    data[156:157] = b"2"
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    (tmp_path / SHARD).write_bytes(data)
    with pytest.raises(TarError, match="symbolic link"):
        find_shards(tmp_path, None)


@pytest.mark.parametrize(
    ("body", "what"), [(b"<!DOCTYPE html><html>", "HTML"), (b"", "empty"), (b"\x1f\x8b" * 300, "gzip")]
)
def test_fault_26_what_is_no_tar_is_named_for_what_it_is(tmp_path: Path, body: bytes, what: str) -> None:
    (tmp_path / SHARD).write_bytes(body)
    with pytest.raises(TarError, match=rf"{SHARD}.*{what}"):
        find_shards(tmp_path, None)


def test_fault_27_a_key_that_comes_twice_is_refused_when_scanned(tmp_path: Path) -> None:
    (tmp_path / SHARD).write_bytes(streams.tarred([("a.png", b"x"), ("b.png", b"x"), ("a.cls", b"1")]))
    with pytest.raises(TarError, match="comes again"):
        find_shards(tmp_path, None)


def others(folder: Path, count: int = 3) -> bytes:
    """A shard of other samples."""
    extra = {"txt": "not what it was before" * 40}
    streams.pack(folder / "other", (streams.sample(50 + n, **extra) for n in range(count)), 99)
    return (folder / "other" / SHARD).read_bytes()


@pytest.mark.parametrize("count", [1, 3, 9])
def test_fault_28_a_shard_replaced_under_its_index_is_refused(folder: Path, tmp_path: Path, count: int) -> None:
    streams.rewrite(folder / SHARD, lambda data: others(tmp_path, count))
    with pytest.raises(StaleIndexError, match=rf"{SHARD}.*wds-tools index"):
        contents(folder)


def test_fault_28_a_shard_replaced_under_its_manifest_is_refused(tmp_path: Path) -> None:
    streams.numbered(tmp_path / "data")
    streams.rewrite(tmp_path / "data" / SHARD, lambda data: others(tmp_path, 5))
    with pytest.raises(StaleIndexError, match=r"wds-tools index"):
        contents(tmp_path / "data")


def test_fault_28_a_shard_cut_while_it_is_open_is_refused(folder: Path) -> None:
    opened = ShardReader(find_shards(folder, None))
    opened.read(0, 0)
    (folder / SHARD).chmod(0o644)
    with open(folder / SHARD, "r+b") as file:
        file.truncate(1024)
    with pytest.raises(StaleIndexError, match=r"ends at byte"):
        opened.read(0, 2)


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / SHARD).unlink()
    with pytest.raises(NotFoundError, match=SHARD):
        ShardReader(find_shards([folder / "train-000001.tar"], None))._shards.store.size(SHARD)
    (folder / INDEX).unlink()
    streams.numbered(folder.parent / "listed")
    (folder.parent / "listed" / SHARD).unlink()
    with pytest.raises(NotFoundError, match=rf"listed/{SHARD}"):
        contents(folder.parent / "listed")


# ── hostile indexes ───────────────────────────────────────────────────────────────────────────────────────────


def edited(folder: Path, line: int, column: int, value: str) -> None:
    """Put a value into a line of the index, counted from 0."""

    def change(data: bytes) -> bytes:
        lines = data.decode().split("\n")
        columns = lines[1 + line].split(" ")
        columns[column] = value
        lines[1 + line] = " ".join(columns)
        return "\n".join(lines).encode()

    streams.rewrite(folder / INDEX, change)


HUGE = [str(2**62), str(2**63 - 1), str(2**63), str(10**30), "9" * 5000]


@pytest.mark.parametrize("line", [0, 1, 2])
@pytest.mark.parametrize("column", [1, 2, 5, 6])
@pytest.mark.parametrize("value", ["-512", "-1", "x", "", "1.5", *HUGE], ids=lambda value: value[:9])
def test_fault_50_absurd_numbers_in_an_index_are_refused(folder: Path, line: int, column: int, value: str) -> None:
    edited(folder, line, column, value)
    with pytest.raises(IndexFileError):
        contents(folder)


@pytest.mark.parametrize("mixed", [False, True])
def test_fault_50_fields_that_overlap_or_go_back_are_refused(tmp_path: Path, mixed: bool) -> None:
    made = [streams.sample(0), streams.sample(1), streams.sample(2, **({"txt": "x"} if mixed else {}))]
    streams.index(streams.pack(tmp_path / "data", made))
    lines = (tmp_path / "data" / INDEX).read_text().split("\n")
    for bad in (
        [lines[0], lines[1], lines[1], lines[3], ""],
        [lines[0], lines[2], lines[1], lines[3], ""],
        [lines[0], lines[1], " ".join(lines[2].split(" ")[4:] + lines[2].split(" ")[:4]), lines[3], ""],
    ):
        streams.rewrite(tmp_path / "data" / INDEX, lambda data, bad=bad: "\n".join(bad).encode())
        with pytest.raises(IndexFileError):
            contents(tmp_path / "data")


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: b"\0" * 500,
        lambda data: b"<!DOCTYPE html>",
        lambda data: data[:-1],
        lambda data: data[:-9],
        lambda data: data.replace(b"v1.2 3", b"v1.2 2"),
        lambda data: data.replace(b"v1.2 3", b"v1.2 -3"),
        lambda data: data.replace(b"v1.2 3", b"v1.2 99999999999999999999"),
        lambda data: data.replace(b"v1.2", b"v9.9"),
        lambda data: data.replace(b" png ", b" "),
        lambda data: data.replace(b"cls ", b"txt "),
        lambda data: data.replace(b"k0001.png", b"other.png"),
        lambda data: data.replace(b"k0000.png", b"../../etc/passwd.png"),
        lambda data: data + b"\xff" * 100_000,
    ],
)
def test_fault_50_garbage_in_an_index_is_refused(folder: Path, change: Callable[[bytes], bytes]) -> None:
    streams.rewrite(folder / INDEX, change)
    with pytest.raises(IndexFileError):
        contents(folder)


def test_an_index_of_another_length_than_the_manifest_says_is_stale(tmp_path: Path) -> None:
    streams.numbered(tmp_path / "data")
    lines = (tmp_path / "data" / INDEX).read_text().split("\n")
    short = "\n".join(["v1.2 4", *lines[1:5], ""]).encode()
    streams.rewrite(tmp_path / "data" / INDEX, lambda data: short)
    with pytest.raises(StaleIndexError, match=r"4 samples where 5 are expected"):
        contents(tmp_path / "data")


def test_fault_50_a_field_of_gigabytes_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wds_tools.stream.opened.MAX_FIELD", 50)
    with pytest.raises(SampleError, match=r"at most 50 are read"):
        contents(folder)


def test_fault_50_a_member_that_claims_gigabytes_is_refused_unread(tmp_path: Path) -> None:
    """Locally it is cut short; streamed, nothing is read of it."""
    whole = streams.tarred([("a.png", b"x" * 512), ("a.cls", b"1")])
    claims = bytearray(whole)
    claims[124:136] = b"%011o\0" % (2 << 30)
    claims[148:156] = b" " * 8
    claims[148:156] = b"%06o\0 " % sum(claims[:512])
    (tmp_path / SHARD).write_bytes(claims)
    with pytest.raises(TarError, match="cut short"):
        find_shards(tmp_path, None)
    with streams.served(tmp_path) as server:
        found = find_shards(f"{server.url}/{SHARD}", None)
        with pytest.raises(TarError, match=rf"{SHARD}.*at most {shards.MAX_FIELD} are read"):
            list(sequential.read(found, [0]))


def test_fault_50_huge_extended_headers_are_refused(tmp_path: Path) -> None:
    (tmp_path / SHARD).write_bytes(streams.tarred([("a" * (2 << 20) + ".png", b"x")], "gnu"))
    with pytest.raises(TarError, match="extended header"):
        find_shards(tmp_path, None)


# ── what a user may name ──────────────────────────────────────────────────────────────────────────────────────


def test_a_folder_brace_notation_a_glob_and_a_list_mean_the_same_shards(folder: Path) -> None:
    whole = contents(folder)
    assert contents(f"{folder}/train-{{000000..000001}}.tar") == whole
    assert contents(f"{folder}/*.tar") == whole
    assert contents([str(folder / SHARD), folder / "train-000001.tar"]) == whole  # type: ignore[arg-type]
    assert contents(folder / SHARD) == whole[:3]


def test_a_split_must_be_chosen_where_there_are_several(tmp_path: Path) -> None:
    folder = streams.convert(tmp_path / "data")
    streams.convert(folder, 6, 3, "val")
    assert [len(ShardDataset(folder, split=name)) for name in ("train", "val")] == [streams.SAMPLES, 6]
    for split in (None, "test"):
        with pytest.raises(OptionError, match=r"train, val"):
            ShardDataset(folder, split=split)


def test_fault_51_brace_notation_for_billions_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, "http://127.0.0.1:1"):
        with pytest.raises(OptionError, match="more than"):
            find_shards(f"{place}/{{0..9999999999}}.tar", None)


@pytest.mark.skipif(sys.platform == "win32", reason="names are bytes elsewhere")
def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", tmp_path, f"{tmp_path}/*.tar", [tmp_path / SHARD]):
        with pytest.raises((NotFoundError, OptionError), match=r"nowhere|no dataset|nothing matches|does not exist"):
            find_shards(place, None)  # type: ignore[arg-type]
