import bz2
import contextlib
import gzip
import io
import lzma
import os
import socket
import subprocess
import tarfile

import pytest
from hypothesis import assume, example, given, reject, settings
from hypothesis import strategies as st

from tests.support import needs, shards
from wds_tools.errors import TarError
from wds_tools.format import tar
from wds_tools.records import Field, Sample

BLOCK = tar.BLOCK
PAIRS = shards.pairs(3)
SHARD = shards.ours(PAIRS)
STRANGE = [
    b"with space.jpg",
    b"tab\there.jpg",
    b"line\nbreak.jpg",
    b"latin \xe9\xff.jpg",
    "ünï 字.jpg".encode(),
    b"back\\040slash.jpg",
]
WRITERS = {
    "ours": SHARD,
    **{form: shards.python(PAIRS, form) for form in shards.FORMATS},
    "gnu with long names": shards.python([("d" * 150 + "/" + name, data) for name, data in PAIRS], "gnu"),
    "pax with long names": shards.python([("d" * 150 + "/ü" + name, data) for name, data in PAIRS], "pax"),
}

# Names as tarfile can write and read them back: it strips slashes at the end.
any_name = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=40).filter(
    lambda name: not name.endswith("/")
)
long_name = st.tuples(any_name, st.integers(1, 12)).map(lambda pair: "/".join([pair[0]] * pair[1]))
payload = st.binary(max_size=1500)
dotted_name = st.lists(st.text("aB._é -", min_size=1, max_size=8), min_size=1, max_size=3).map("/".join)


def refused(data: bytes, match: str | None = None, *, lenient: bool = False) -> None:
    for file in (io.BytesIO(data), shards.OneWay(data)):
        with pytest.raises(TarError, match=match):
            list(tar.samples(tar.members(file, lenient=lenient)))


# -- writing


@settings(deadline=None)
@given(st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=100), st.integers(0, 8**11 - 1))
def test_our_headers_are_read_back_by_python_and_by_us(name, size):
    block = tar.header(name, size)
    info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
    assert (info.name, info.size, info.mode, info.type) == (name, size, 0o444, tarfile.REGTYPE)
    assert (info.uid, info.gid, info.mtime, info.uname, info.gname) == (0, 0, 0, "", "")
    assert block[257:265] == b"ustar\x0000"
    assert tar.read_header(block, 0) == (name, size)


@pytest.mark.parametrize(
    ("name", "size"),
    [("", 0), ("a" * 101, 0), ("é.jpg", 0), ("\udce9.jpg", 0), ("a\0.jpg", 0), ("a.jpg", -1), ("a.jpg", 8**11)],
)
def test_a_header_that_cannot_say_it_is_not_made(name, size):
    with pytest.raises(TarError, match="member"):
        tar.header(name, size)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 1024])
def test_a_member_takes_whole_blocks(size):
    data = shards.ours([("a.jpg", b"x" * size)], end=b"")
    assert len(data) == tar.member_bytes(size) == BLOCK + size + tar.padding(size)
    assert len(data) % BLOCK == 0


def test_gnu_tar_lists_and_unpacks_what_we_write(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(SHARD)
    listed = subprocess.run([needs.tool("tar"), "-tf", path], check=True, capture_output=True, text=True).stdout
    assert listed.split() == [name for name, _ in PAIRS]
    subprocess.run([needs.tool("tar"), "-xf", path, "-C", tmp_path], check=True)
    assert [(tmp_path / name).read_bytes() for name, _ in PAIRS] == [data for _, data in PAIRS]


# -- reading


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(long_name, payload), max_size=6), st.sampled_from(sorted(shards.FORMATS)), st.booleans())
def test_whatever_tarfile_writes_is_listed_alike(members, form, folders):
    try:
        data = shards.python(members, form, folders=["folder", "other/folder"] if folders else [])
    except (ValueError, UnicodeEncodeError):  # USTAR cannot hold every long name
        reject()
    found = shards.members(data)
    assert found == list(shards.by_python(data))
    assert shards.contents(data) == members


@settings(deadline=None, max_examples=300)
@given(st.lists(dotted_name, max_size=8))
@example(["__a__b.jpg"])
@example(["__meta__/a.jpg", "__meta__", "__a__.jpg", "__.jpg"])
@example(["a/b.c/d.JPG", "a/b.c/d.Cls", "a/b.c", "a/b.d"])
def test_samples_are_grouped_as_webdataset_does(names):
    from webdataset.tariterators import group_by_keys, tar_file_expander

    # Webdataset takes hidden files of a folder, and names that end in a dot, for samples with odd keys.
    hidden = [name for name in names if name.rpartition("/")[2].startswith(".") or name.endswith(".")]
    assume(not hidden)
    data = shards.python([(name, name.encode()) for name in names], "pax")
    theirs = tar_file_expander([{"url": "-", "stream": io.BytesIO(data)}])
    try:
        expected = [
            (sample["__key__"], [(ext, value) for ext, value in sample.items() if ext not in ("__key__", "__url__")])
            for sample in group_by_keys(theirs)
        ]
    except ValueError:  # a field that comes twice
        expected = None
    if expected is None or len({key for key, _ in expected}) < len(expected):
        refused(data, "comes again|two fields")
        return
    found = shards.samples(data)
    assert [
        (sample.key, [(field.ext, data[field.offset : field.offset + field.size]) for field in sample.fields])
        for sample in found
    ] == expected


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.jpg", ("a", "jpg")),
        ("a.b/c.d/e.Seg.PNG", ("a.b/c.d/e", "seg.png")),
        ("./a.jpg", ("./a", "jpg")),
        ("/a.jpg", ("/a", "jpg")),
        ("__a__b.jpg", ("__a__b", "jpg")),
        ("__a__.jpg", ("__a__", "jpg")),
        ("a/__b__/c.jpg", ("a/__b__/c", "jpg")),
        ("__meta__/a.jpg", None),
        ("____/a.jpg", None),
        ("__a.b__", None),
        ("___/a.jpg", ("___/a", "jpg")),
        ("a", None),
        ("a.", None),
        (".a", None),
        ("b/.a.jpg", None),
        ("a.b/c", None),
        ("", None),
    ],
)
def test_a_name_is_cut_at_the_first_dot_of_its_last_part(name, parts):
    assert tar.split_name(name) == parts


def test_offsets_are_those_of_the_payloads():
    for found, (name, data) in zip(shards.members(SHARD), PAIRS, strict=True):
        assert (found.name, found.size) == (name, len(data))
        assert found.offset % BLOCK == 0
        assert SHARD[found.offset : found.offset + found.size] == data


def test_a_pipe_is_read_as_it_comes():
    here, there = socket.socketpair()
    with here, there:
        there.sendall(SHARD)
        there.shutdown(socket.SHUT_WR)
        with here.makefile("rb", buffering=0) as file:
            assert [found.name for found in tar.members(file)] == [name for name, _ in PAIRS]


def test_reading_begins_where_the_file_stands():
    file = io.BytesIO(b"before" + SHARD)
    file.seek(6)
    assert [found.offset - 6 for found in tar.members(file)] == [found.offset for found in shards.members(SHARD)]


def test_webdataset_reads_ours_and_we_read_webdatasets():
    import webdataset

    samples = [{"__key__": f"a/{n}", "jpg": b"\xff\xd8" + bytes(n), "cls": n} for n in range(3)]
    theirs = shards.webdataset(samples)
    assert [sample.key for sample in shards.samples(theirs)] == ["a/0", "a/1", "a/2"]
    assert [field.ext for field in shards.samples(theirs)[0].fields] == ["cls", "jpg"]
    read = webdataset.tariterators.tar_file_iterator(io.BytesIO(SHARD))
    assert [(each["fname"], each["data"]) for each in read] == PAIRS


def test_webdatasets_shards_are_read(tmp_path):
    samples = [{"__key__": f"{n:04d}", "png": b"x" * n, "txt": f"text {n}"} for n in range(5)]
    paths = shards.webdataset_shards(tmp_path, samples, count=2)
    assert [len(shards.samples(path.read_bytes())) for path in paths] == [2, 2, 1]


@pytest.mark.parametrize("form", ["gnu", "oldgnu", "pax", "posix", "ustar", "v7"])
@pytest.mark.parametrize("blocks", ["1", "20", "512"])
def test_gnu_tars_formats_are_read(tmp_path, form, blocks):
    data = shards.gnu(shards.files(tmp_path, PAIRS), f"--format={form}", f"--blocking-factor={blocks}")
    expected = sorted((f"./{name}", content) for name, content in PAIRS)
    assert shards.contents(data) == expected
    assert [sample.key for sample in shards.samples(data)] == ["./c/s000", "./c/s001", "./c/s002"]


def test_a_header_with_a_signed_checksum_is_read():
    block = shards.header("é.jpg".encode("latin-1"), 0)
    signed = sum(byte - 256 * (byte > 127) for byte in block[:148] + b" " * 8 + block[156:])
    block = shards.replaced(block, 148, b"%06o\0 " % signed)
    assert [found.name for found in shards.members(block + tar.END)] == ["\udce9.jpg"]


def test_ustar_prefixes_count_in_ustar_only():
    long = shards.member(b"a.jpg", b"1", prefix=b"some/folder")
    old = shards.member(b"b.jpg", b"2", prefix=b"some/folder", magic=b"ustar  \0")
    assert [found.name for found in shards.members(long + old + tar.END)] == ["some/folder/a.jpg", "b.jpg"]


def test_what_is_no_file_is_passed_over():
    parts = [
        shards.header(b"folder/", 0, b"5"),
        shards.header(b"old folder/", 0, b"\0"),
        shards.header(b"volume", 0, b"V"),
        shards.member(b"listing/", b"Ya.jpg\0\0", b"D"),
        shards.pax([("comment", "made by hand")], b"g"),
        shards.pax([("mtime", "1.5"), ("comment", "a=b\nc")]),
        shards.member(b"a.jpg", b"1"),
        shards.member(b"b.jpg", b"2", b"\0"),
        shards.member(b"c.jpg", b"3", b"7"),
    ]
    assert [found.name for found in shards.members(b"".join(parts) + tar.END)] == ["a.jpg", "b.jpg", "c.jpg"]


def test_members_that_belong_to_no_sample_part_no_sample():
    members = [("a.jpg", b"1"), ("README", b"2"), ("c/.DS_Store", b"3"), ("__meta__/x.json", b"4"), ("a.cls", b"5")]
    assert [len(sample.fields) for sample in shards.samples(shards.python(members))] == [2]


def test_an_archive_of_nothing_is_a_shard_of_nothing():
    assert shards.members(tar.END) == []
    assert shards.members(shards.python([])) == []


# -- faults


@pytest.mark.parametrize("writer", WRITERS)
def test_fault_18_a_flipped_bit_in_a_header_is_refused(writer):
    data = WRITERS[writer]
    expected = list(tar.members(io.BytesIO(data)))
    starts = shards.header_starts(data)
    for start in {starts[0], starts[1], starts[-1]}:
        for position in range(start, start + BLOCK):
            for bit in range(8):
                damaged = shards.flipped(data, position, bit)
                if 148 <= position - start < 156:
                    # Of the checksum itself, some bits say nothing: a leading zero, the NUL and the space behind it.
                    with contextlib.suppress(TarError):
                        assert list(tar.members(io.BytesIO(damaged))) == expected
                    continue
                with pytest.raises(TarError):
                    list(tar.members(io.BytesIO(damaged)))


def test_fault_18_the_message_tells_the_place():
    refused(
        shards.flipped(SHARD, 1024 + 3, 0),
        "header at offset 1024 does not have the checksum.*; copy or fetch the shard again",
    )
    refused(shards.flipped(SHARD, len(SHARD) - 1, 0), f"header at offset {len(SHARD) - BLOCK}")


@settings(deadline=None, max_examples=500)
@given(st.sampled_from(sorted(WRITERS)), st.data())
def test_fault_18_a_changed_byte_never_changes_the_samples(writer, data):
    shard = WRITERS[writer]
    position = data.draw(st.integers(0, len(shard) - 1))
    # What an extended header holds has no checksum.
    assume(not any(position in place for place in shards.extended_payloads(shard)))
    damaged = shards.replaced(shard, position, bytes([data.draw(st.integers(0, 255))]))
    try:
        found = shards.samples(damaged)
    except TarError:
        return
    assert found == shards.samples(shard)


@settings(deadline=None, max_examples=500)
@given(
    st.sampled_from(sorted(WRITERS)),
    st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=40), st.integers(0, 600)), max_size=5),
    st.booleans(),
)
def test_fault_18_no_damage_raises_anything_but_a_tar_error(writer, damages, lenient):
    shard = WRITERS[writer]
    for position, new, gone in damages:
        shard = shard[: position % len(shard)] + new + shard[position % len(shard) + gone :] or b"x"
    try:
        found = shards.samples(shard, lenient=lenient)
    except TarError:
        return
    for field in (field for sample in found for field in sample.fields):
        assert BLOCK <= field.offset <= field.offset + field.size <= len(shard)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=2000))
def test_fault_18_noise_raises_nothing_but_a_tar_error(data):
    try:
        found = shards.members(data)
    except TarError:
        return
    assert found == []
    assert not data.strip(b"\0")


def _cuts() -> dict[str, range]:
    """Every offset at which our shard can be cut, by what is cut."""
    kinds: dict[str, list[int]] = {"header": [], "payload": [], "padding": [], "border": [], "end mark": []}
    starts = shards.header_starts(SHARD)
    for start, (_, data) in zip(starts, PAIRS, strict=True):
        end = start + BLOCK + len(data)
        kinds["border"] += [start] if start else []
        kinds["header"] += range(start + 1, start + BLOCK)
        kinds["payload"] += range(start + BLOCK, end)
        kinds["padding"] += range(end, end + tar.padding(len(data)))
    kinds["border"] += [len(SHARD) - 2 * BLOCK]
    kinds["end mark"] += range(len(SHARD) - 2 * BLOCK + 1, len(SHARD))
    assert sum(map(len, kinds.values())) == len(SHARD) - 1
    return kinds


@pytest.mark.parametrize("what", _cuts())
def test_fault_20_a_shard_that_is_cut_anywhere_is_refused(what):
    for at in _cuts()[what]:
        with pytest.raises(TarError, match=r"cut short|not a tar"):
            list(tar.members(io.BytesIO(SHARD[:at])))
    for at in _cuts()[what][::101]:
        refused(SHARD[:at])


def test_fault_20_the_message_tells_what_is_missing():
    starts = shards.header_starts(SHARD)
    refused(SHARD[: starts[1] + 100], f"a header at offset {starts[1]} has 100 of 512 bytes")
    refused(SHARD[: starts[2] + BLOCK + 9], r"member 'c/s001.jpg' at offset \d+ has 9 of its 537 bytes")
    refused(SHARD[: starts[1] + BLOCK + 2], "padding after member 'c/s000.cls'")
    refused(SHARD[: starts[2]], "no end-of-archive mark.*copy the shard again")


def test_fault_20_a_cut_extended_header_is_refused():
    for data in (WRITERS["gnu with long names"], WRITERS["pax with long names"]):
        for at in range(1, 4 * BLOCK):
            refused(data[:at], r"cut short|not a tar", lenient=True)


def test_fault_20_a_file_that_was_given_its_size_and_never_filled_is_refused():
    cut = SHARD[: shards.header_starts(SHARD)[4]]
    refused(cut + bytes(tar.MAX_ZEROS + BLOCK), "given its full size and never filled")
    refused(bytes(tar.MAX_ZEROS + BLOCK), "never filled", lenient=True)
    assert len(shards.members(SHARD[: -len(tar.END)] + bytes(tar.MAX_ZEROS))) == len(PAIRS)


def test_fault_21_a_missing_end_is_refused():
    for end in (b"", bytes(BLOCK)):
        data = shards.ours(PAIRS, end=end)
        refused(data, "no end-of-archive mark .*'index --lenient' accepts it")


def test_fault_21_lenient_accepts_a_missing_end():
    for end in (b"", bytes(BLOCK)):
        assert shards.members(shards.ours(PAIRS, end=end), lenient=True) == shards.members(SHARD)


@pytest.mark.parametrize("what", ["header", "payload", "padding"])
def test_fault_21_lenient_accepts_no_other_cut(what):
    for at in _cuts()[what][::7]:
        refused(SHARD[:at], lenient=True)


def test_fault_21_lenient_accepts_no_empty_body():
    refused(b"", "empty", lenient=True)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("other", WRITERS)
def test_fault_22_archives_laid_end_to_end_are_read_on(writer, other):
    members = [("z/" + name, data) for name, data in PAIRS]
    data = WRITERS[writer] + shards.python(members, "gnu") + WRITERS[other]
    expected = shards.contents(WRITERS[writer]) + members + shards.contents(WRITERS[other])
    assert shards.contents(data) == expected


def test_fault_22_the_second_of_two_archives_may_not_be_cut():
    second = shards.ours(shards.pairs(2, first=3))
    refused(SHARD + second[: shards.header_starts(second)[2]], "no end-of-archive mark")


def test_fault_22_a_key_of_both_archives_is_refused():
    refused(SHARD + SHARD, "key 'c/s000' comes again")


def test_fault_22_other_bytes_after_the_end_are_refused():
    refused(SHARD + b"<!-- served in 3 ms -->", "cut short: a header")
    refused(SHARD + b"x" * BLOCK, "does not have the checksum")


SIZES = {
    "minus one in base 256": b"\xff" * 12,
    "the smallest in base 256": b"\xc0" + bytes(11),
    "2^63": b"\x80" + bytes(3) + (1 << 63).to_bytes(8, "big"),
    "2^64 and more": b"\x80\x7f" + b"\xff" * 10,
    "minus in octal": b"-0000000001\0",
    "plus in octal": b"+0000000001\0",
    "a digit that is not octal": b"00000000008\0",
    "letters": b"0000000000x\0",
    "a gap": b"0000 0000 1\0",
    "hexadecimal": b"0x000000001\0",
    "underscores": b"0_000_001\0\0\0",
}


@pytest.mark.parametrize("field", SIZES.values(), ids=SIZES.keys())
def test_fault_23_an_impossible_size_is_refused(field):
    data = shards.ours(PAIRS[:1], end=b"") + shards.header(b"b.jpg", field) + tar.END
    refused(data, r"header at offset 1024 \('b.jpg'\) states an impossible size")


@pytest.mark.parametrize("value", ["-1", str(1 << 63), "1" * 30, "1e3", "0x10", "", " 1", "1_0", "\uff11"])
def test_fault_23_an_impossible_size_in_an_extended_header_is_refused(value):
    refused(shards.pax([("size", value)]) + shards.member(b"a.jpg", b"1") + tar.END, "impossible size")


def test_fault_23_a_size_beyond_the_end_is_refused():
    refused(shards.header(b"a.jpg", b"\x80" + bytes(3) + ((1 << 63) - 1).to_bytes(8, "big")) + tar.END, "cut short")
    refused(shards.pax([("size", str((1 << 63) - 1))]) + shards.member(b"a.jpg", b"1") + tar.END, "cut short")


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_fault_23_a_member_beyond_8_gib_is_read(tmp_path, form):
    path = tmp_path / "large.tar"
    size = 8**11 + 5
    large, small = tarfile.TarInfo("large.bin"), tarfile.TarInfo("small.cls")
    large.size, small.size = size, 1
    with open(path, "wb") as file:  # the payload is a hole
        file.write(large.tobuf(shards.FORMATS[form]))
        file.seek(size + tar.padding(size), 1)
        file.write(small.tobuf(shards.FORMATS[form]) + shards.padded(b"7") + tar.END)
    with open(path, "rb") as file:
        found = list(tar.members(file))
        assert [(each.name, each.size) for each in found] == [("large.bin", size), ("small.cls", 1)]
        file.seek(found[1].offset)
        assert file.read(1) == b"7"


@pytest.mark.parametrize("form", ["gnu", "pax"])
@pytest.mark.parametrize("length", [99, 100, 101, 155, 255, 256, 257, 300, 2000])
def test_fault_24_long_names_are_read(form, length):
    names = ["d/" * 10 + "x" * (length - 24) + end for end in (".jpg", ".cls")]
    data = shards.python([(name, name.encode()) for name in names], form)
    assert shards.contents(data) == [(name, name.encode()) for name in names]
    assert [len(sample.fields) for sample in shards.samples(data)] == [2]


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_fault_24_names_that_gnu_tar_writes_are_read(tmp_path, form):
    long = "/".join(["d" * 90] * 4).encode() + b"/" + b"n" * 200 + b".jpg"
    names = sorted([*STRANGE, long, b"short.jpg"])
    data = shards.gnu(
        shards.files(tmp_path, [(name, name) for name in names]), f"--format={form}", "--no-unquote", names=names
    )
    assert [(os.fsencode(name), content) for name, content in shards.contents(data)] == [(name, name) for name in names]
    assert shards.members(data) == list(shards.by_python(data))


def test_fault_24_a_size_of_an_extended_header_counts():
    parts = [
        shards.pax([("path", "dir/nämé.jpg"), ("size", "700")]),
        shards.header(b"wrong.jpg", 0) + shards.padded(b"7" * 700),
        shards.member(b"next.jpg", b"8"),
    ]
    assert shards.contents(b"".join(parts) + tar.END) == [("dir/nämé.jpg", b"7" * 700), ("next.jpg", b"8")]


@pytest.mark.parametrize(
    "records",
    [b"7 path\n", b"13 path=a.jpg", b"99 path=a.jpg\n", b"path=a.jpg\n", b" 14 path=a.jpg\n", b"0 path=a.jpg\n",
     b"-14 path=a.jpg\n", b"14 path=a.jpg\n\0\0", b"9" * 30 + b" path=a.jpg\n", b"13path=a.jpg\n", b"\xb2 path=a.jpg\n"],
)  # fmt: skip
def test_fault_24_a_malformed_extended_header_is_refused(records):
    refused(shards.member(b"x", records, b"x") + shards.member(b"a.jpg", b"1") + tar.END, "extended header at offset 0")


def test_fault_24_extended_headers_that_readers_disagree_about_are_refused():
    file = shards.member(b"a.jpg", b"1") + tar.END
    twice = shards.pax([("path", "b.jpg")]) + shards.pax([("path", "c.jpg")]) + file
    refused(twice, "second for one member")
    refused(shards.gnu_long(b"b.jpg") + shards.pax([("size", "1")]) + file, "second for one member")
    refused(shards.pax([("path", "b.jpg")], b"g") + file, "names no member, or all")
    refused(shards.pax([("size", "1")], b"g") + file, "names no member, or all")
    refused(shards.pax([("path", "")]) + file, "names no member")
    refused(shards.gnu_long(b"") + file, "names no member")


def test_fault_24_an_extended_header_without_a_member_is_refused():
    for extended in (shards.pax([("path", "b.jpg")]), shards.pax([("size", "0")]), shards.gnu_long(b"b.jpg")):
        refused(extended + tar.END, "extended header is the last thing")
        refused(extended + tar.END + SHARD, "extended header is the last thing")
        refused(extended, "extended header is the last thing", lenient=True)


def test_fault_24_a_long_name_ends_at_its_first_nul():
    data = shards.gnu_long(b"a.jpg\0b.jpg") + shards.member(b"x", b"1") + tar.END
    assert [found.name for found in shards.members(data)] == ["a.jpg"]
    assert shards.members(data) == list(shards.by_python(data))


@pytest.mark.parametrize(
    ("kind", "what"),
    [(b"1", "a hard link"), (b"2", "a symbolic link"), (b"3", "a character device"), (b"4", "a block device"),
     (b"6", "a FIFO"), (b"S", "a sparse file"), (b"M", "a part of a file"), (b"A", "unknown type"), (b"\xff", "unknown")],
)  # fmt: skip
def test_fault_25_what_is_no_regular_file_is_refused(kind, what):
    data = shards.ours(PAIRS[:1], end=b"") + shards.header(b"bad.jpg", 0, kind) + shards.member(b"c.jpg", b"") + tar.END
    refused(data, rf"member 'bad.jpg' at offset 1024 (is|has the) {what}")


@pytest.mark.parametrize("version", ["gnu", "0.0", "0.1", "1.0"])
def test_fault_25_sparse_files_by_gnu_tar_are_refused(tmp_path, version):
    with open(tmp_path / "a.jpg", "wb") as file:
        file.write(b"x" * 4096)
        file.truncate(1 << 20)
        file.seek(1 << 20)
        file.write(b"x" * 4096)
    options = ["--format=gnu"] if version == "gnu" else ["--format=pax", f"--sparse-version={version}"]
    refused(shards.gnu(tmp_path, "-S", *options), "a sparse file")


def test_fault_25_links_and_fifos_by_gnu_tar_are_refused(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"x")
    (tmp_path / "z.jpg").symlink_to("/etc/passwd")
    refused(shards.gnu(tmp_path), "'./z.jpg' at offset .* is a symbolic link")
    (tmp_path / "z.jpg").unlink()
    os.link(tmp_path / "a.jpg", tmp_path / "z.jpg")
    refused(shards.gnu(tmp_path), "'./z.jpg' at offset .* is a hard link")
    (tmp_path / "z.jpg").unlink()
    os.mkfifo(tmp_path / "z.jpg")
    refused(shards.gnu(tmp_path), "'./z.jpg' at offset .* is a FIFO")


PAGES = {
    "a short page": (b"<html><body>404 not found</body></html>", "an HTML or XML page.*instead of the shard"),
    "a long page": (b"\n <!DOCTYPE html><html>" + b"<p>busy</p>" * 99, "an HTML or XML page"),
    "an error of S3": (b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code></Error>', "an HTML or XML page"),
    "JSON": (b'{"error": "rate limit"}', "not a tar"),
    "long JSON": (b'{"error": "%s"}' % (b"x" * 600), "not a tar"),
    "an empty body": (b"", "empty: 0 bytes"),
    "gzip": (gzip.compress(SHARD), "compressed with gzip.*gunzip"),
    "bzip2": (bz2.compress(SHARD), "compressed;.*unpack it"),
    "xz": (lzma.compress(SHARD), "compressed;.*unpack it"),
    "zstandard": (b"\x28\xb5\x2f\xfd" + bytes(range(256)) * 3, "compressed;.*unpack it"),
    "a picture": (b"\xff\xd8\xff\xe0" + b"x" * 2000, "not a tar"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "message"), PAGES.values(), ids=PAGES.keys())
@pytest.mark.parametrize("lenient", [False, True])
def test_fault_26_what_is_no_tar_is_named(body, message, lenient):
    refused(body, message, lenient=lenient)


@pytest.mark.parametrize("writer", sorted(shards.FORMATS))
def test_fault_27_a_key_that_comes_twice_is_refused(writer):
    refused(shards.python([*PAIRS, *PAIRS[:2]], writer), "key 'c/s000' comes again at offset .*--sort=name")


def test_fault_27_members_that_are_not_side_by_side_are_refused():
    apart = [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"3"), ("b.cls", b"4")]
    refused(shards.ours(apart), "key 'a' comes again at offset 2560")


@pytest.mark.parametrize("second", ["a.jpg", "a.JPG"])
def test_fault_27_a_field_that_comes_twice_is_refused(second):
    refused(
        shards.ours([("a.jpg", b"1"), ("a.cls", b"2"), (second, b"3")]), "key 'a' has two fields 'jpg', the second at"
    )


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_fault_50_a_huge_extended_header_is_refused_unread(kind):
    class Watched(io.BytesIO):
        most = 0

        def read(self, size=-1):
            self.most = max(self.most, size)
            return super().read(size)

    for size in (tar.MAX_EXTENDED + 1, 1 << 33, 1 << 62):
        file = Watched(shards.header(b"x", b"\x80" + size.to_bytes(11, "big"), kind) + tar.END)
        with pytest.raises(TarError, match=f"extended header at offset 0 has {size} bytes"):
            list(tar.members(file))
        assert file.most == BLOCK


def test_fault_50_an_extended_header_up_to_the_limit_is_read():
    name = "d/" * 50_000 + "a.jpg"
    for form in ("gnu", "pax"):
        assert [found.name for found in shards.members(shards.python([(name, b"")], form))] == [name]


def test_fault_50_too_many_members_are_refused(monkeypatch):
    monkeypatch.setattr(tar, "MAX_MEMBERS", len(PAIRS))
    assert len(shards.members(SHARD)) == len(PAIRS)
    monkeypatch.setattr(tar, "MAX_MEMBERS", len(PAIRS) - 1)
    refused(SHARD, "more than 5 members")


def test_members_of_one_sample_keep_their_order():
    members = [("a.jpg", b"1"), ("a.seg.png", b"2"), ("a.CLS", b"3")]
    assert shards.samples(shards.ours(members)) == [
        Sample(
            "a", (Field("jpg", 512, 1, "a.jpg"), Field("seg.png", 1536, 1, "a.seg.png"), Field("cls", 2560, 1, "a.CLS"))
        )
    ]
