import io
import os
import random
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support import shards
from wds_tools.errors import IndexFileError, StaleIndexError
from wds_tools.format import index, tar
from wds_tools.records import Field, Sample

PAIRS = shards.pairs(4)
SHARD = shards.ours(PAIRS)
SAMPLES = shards.samples(SHARD)
INDEX = index.dump_samples(SAMPLES)

any_name = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=30)
byte_name = st.binary(min_size=1, max_size=30).map(os.fsdecode)  # with bytes that are no UTF-8


def dali(data: bytes) -> list[list[tuple[str, int, int, str]]]:
    """An index as NVIDIA DALI 1.x reads it: ``readers.webdataset`` splits a line at white space, four columns a field."""
    lines = data.split(b"\n")
    version, count = lines[0].split()
    assert version == b"v1.2"
    rows = [line.split() for line in lines[1 : 1 + int(count)]]
    assert all(len(row) % 4 == 0 and row for row in rows)
    return [
        [
            (row[at].decode(), int(row[at + 1]), int(row[at + 2]), row[at + 3].decode())
            for at in range(0, len(row), 4)
        ]
        for row in rows
    ]  # fmt: skip


def fits(data: bytes, shard: bytes) -> list[Sample]:
    samples = index.load(data)
    index.check_fits(samples, io.BytesIO(shard), len(shard), "train-000000.tar")
    return samples


def refused(data: bytes, match: str | None = None) -> None:
    with pytest.raises(IndexFileError, match=match):
        index.load(data)


def stale(shard: bytes, data: bytes = INDEX) -> None:
    with pytest.raises(StaleIndexError, match=r"train-000000.tar: .*another shard; run 'wds-tools index'"):
        fits(data, shard)


# -- the file


def test_the_bytes_are_those_that_the_format_shows():
    samples = shards.samples(shards.ours([("n1/a.jpg", b"x" * 8917), ("n1/a.cls", b"3"), ("n1/b.jpg", b"x" * 73)]))
    assert index.dump_samples(samples) == (
        b"v1.2 2\njpg 512 8917 n1/a.jpg cls 10240 1 n1/a.cls\njpg 11264 73 n1/b.jpg\n"
    )
    assert index.dump([]) == b"v1.2 0\n"


def test_dali_finds_every_payload_with_it():
    payloads = [[SHARD[offset : offset + size] for _, offset, size, _ in sample] for sample in dali(INDEX)]
    assert payloads == [[image, label] for (_, image), (_, label) in zip(PAIRS[::2], PAIRS[1::2], strict=True)]
    assert [[ext for ext, *_ in sample] for sample in dali(INDEX)] == [["jpg", "cls"]] * 4


def test_the_index_of_a_shard_lies_beside_it():
    assert index.index_name("train-000000.tar") == "train-000000.idx"
    assert index.index_name("a/b.tar.tar") == "a/b.tar.idx"
    assert index.index_name("odd") == "odd.idx"


@settings(deadline=None)
@given(st.lists(st.tuples(st.one_of(any_name, byte_name), st.binary(max_size=600)), max_size=6))
def test_any_names_come_back_from_the_index(members):
    try:
        samples = shards.samples(
            shards.python([(f"{number}{name}", data) for number, (name, data) in enumerate(members)], "gnu")
        )
    except UnicodeEncodeError:  # a lone surrogate
        assume(False)
    data = index.dump_samples(samples)
    assert index.load(data) == samples
    assert all(len(line.split()) % 4 == 0 for line in data.splitlines()[1:])
    assert index.dump_samples(index.load(data)) == data


@pytest.mark.parametrize(
    "name", ["a b.x y", "a\tb.jpg", "a\nb.j\ng", "a\\b.jpg", "a\\040b.jpg", " .jpg", "a\r.jp\\g", "a.\v\f"]
)
def test_fault_24_white_space_and_backslashes_in_names_are_escaped(name):
    samples = shards.samples(shards.python([(name, b"1"), (name + "2", b"2")], "pax"))
    assert samples[0].fields[0].name == name
    data = index.dump_samples(samples)
    assert data.count(b"\n") == 2
    assert len(data.splitlines()[1].split()) == 8
    assert index.load(data) == samples


def test_fault_24_names_that_are_no_utf_8_come_back():
    samples = shards.samples(shards.member(b"caf\xe9/\xff.jpg", b"1") + tar.END)
    assert b"caf\xe9/\xff.jpg" in index.dump_samples(samples)
    assert index.load(index.dump_samples(samples)) == samples


def test_extensions_of_other_writers_are_read_in_lower_case():
    assert index.load(b"v1.2 1\nJPG 512 3 a/b.JPG Seg.PNG 1536 1 a/b.Seg.PNG\n") == [
        Sample("a/b", (Field("jpg", 512, 3, "a/b.JPG"), Field("seg.png", 1536, 1, "a/b.Seg.PNG")))
    ]


def test_an_index_without_names_is_read():
    assert index.load(b"v1.1 2\njpg 512 3 cls 1536 1\njpg 2560 4\n") == [
        Sample("000000000", (Field("jpg", 512, 3, ""), Field("cls", 1536, 1, ""))),
        Sample("000000001", (Field("jpg", 2560, 4, ""),)),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"v1.2",
        b"v1.2\n",
        b"v1.2 \n",
        b"v1.3 0\n",
        b"v1 0\n",
        b"1\njpg 512 1 a.jpg\n",
        b"v1.2 -1\n",
        b"v1.2 x\n",
        "v1.2 ²\n".encode(),
        "v1.2 \uff10\n".encode(),
        b"v1.2 " + b"9" * 5000 + b"\n",
        b"<html>not found</html>",
        b"\xff\xfe\x00",
        b"\x89PNG\r\n\x1a\n" + bytes(600),
    ],
)
def test_what_is_no_index_is_refused(data):
    refused(data, r"index: (not an index|cut short).*wds-tools index")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"jpg 512 1", "3 columns"),
        (b"jpg 512 1 a.jpg cls 1536 1", "7 columns"),
        (b"jpg  512 1 a.jpg", "5 columns"),
        (b"jpg 512 1 a.jpg ", "5 columns"),
        (b"jpg x 1 a.jpg", "'x' is not a number"),
        (b"jpg 512 -1 a.jpg", "'-1' is not a number"),
        (b"jpg -512 1 a.jpg", "'-512' is not a number"),
        (b"jpg +512 1 a.jpg", "not a number"),
        (b"jpg 5_12 1 a.jpg", "not a number"),
        (b"jpg 512 1.0 a.jpg", "not a number"),
        (b"jpg 512 " + "²".encode() + b" a.jpg", "²"),
        (b"jpg 512 " + b"1" * 5000 + b" a.jpg", "integer string conversion"),
        (b"jpg 0 1 a.jpg", "offset 0 can be no payload's"),
        (b"jpg 513 1 a.jpg", "offset 513 can be no payload's"),
        (b"jpg 1024 1 a.jpg cls 512 1 a.cls", "offset 512 can be no payload's"),
        (b"jpg 512 600 a.jpg cls 1536 1 a.cls", "offset 1536 can be no payload's, after one that ends at 1112"),
        (b"jpg 512 1 a.jpg cls 512 1 a.cls", "offset 512"),
        (b"jpg 512 1 a.jpg cls 1024 1 a.cls", "offset 1024 can be no payload's, after one that ends at 513"),
        (b"jpg 512 1 a", "'a' names no sample"),
        (b"jpg 512 1 .jpg", "names no sample"),
        (b"png 512 1 a.jpg", "'a.jpg' is not the field 'png' of 'a'"),
        (b"jpg 512 1 a.jpg cls 1536 1 b.cls", "'b.cls' is not the field 'cls' of 'a'"),
        (b"jpg 512 1 a.jpg\r", "is not the field"),
    ],
)
def test_a_malformed_line_is_refused_by_its_number(row, reason):
    data = b"v1.2 1\n" + row + b"\n"
    refused(data, rf"index: line 2 is malformed: .*{re.escape(reason)}.*wds-tools index")


def test_lines_of_an_index_without_names_are_held_to_the_same():
    for row in (b"jpg 512", b"jpg 512 -1", b"jpg 100 1", b"jpg 512 1 cls 1000 1", b"jpg 1024 1 cls 512 1"):
        refused(b"v1.1 1\n" + row + b"\n", "line 2 is malformed")


def test_fault_20_an_index_that_is_cut_anywhere_is_refused():
    for at in range(len(INDEX)):
        refused(INDEX[:at])


def test_the_count_must_be_that_of_the_lines():
    refused(INDEX.replace(b"v1.2 4", b"v1.2 3"), "3 samples are promised and 4 whole lines")
    refused(INDEX.replace(b"v1.2 4", b"v1.2 5"), "5 samples are promised and 4 whole lines")
    refused(INDEX + b"jpg", "cut short")


@settings(deadline=None, max_examples=500)
@given(
    st.lists(st.tuples(st.integers(0, 1000), st.binary(max_size=20), st.integers(0, 40)), min_size=1, max_size=4),
    st.booleans(),
)
def test_no_damage_to_an_index_raises_anything_but_its_error(damages, at_digits):
    data = INDEX
    for position, new, gone in damages:
        if at_digits:
            new, gone = bytes(48 + byte % 10 for byte in new[:gone]), min(len(new), gone)
        position %= len(data) + 1
        data = data[:position] + new + data[position + gone :]
    try:
        samples = fits(data, SHARD)
    except IndexFileError:
        return
    end = 0
    for field in (field for sample in samples for field in sample.fields):
        assert end + tar.BLOCK <= field.offset <= field.offset + field.size <= len(SHARD)
        end = field.offset + field.size


def test_no_changed_byte_of_an_index_moves_a_payload():
    """A size that stays in its blocks, or another name of the same extension, is for `verify` to find."""
    for position in range(len(INDEX)):
        for new in b"0123456789 \n\\ajx\xff":
            try:
                samples = fits(shards.replaced(INDEX, position, bytes([new])), SHARD)
            except IndexFileError:
                continue
            assert [[(f.ext, f.offset) for f in sample.fields] for sample in samples] == [
                [(f.ext, f.offset) for f in sample.fields] for sample in SAMPLES
            ]


# -- whether it fits the shard


@pytest.mark.parametrize("form", sorted(shards.FORMATS))
@pytest.mark.parametrize("stem", ["a", "d" * 90 + "/" + "n" * 60, "ünï 字", "with space"])
@pytest.mark.parametrize("end", [b"", bytes(512), tar.END, bytes(10240)])
def test_the_index_of_a_shard_fits_it(form, stem, end):
    data = shards.python([(f"{stem}{n}.{ext}", b"x" * 700 * n) for n in range(3) for ext in ("jpg", "txt")], form)
    found = shards.members(data)
    data = data[: found[-1].offset + found[-1].size + tar.padding(found[-1].size)] + end
    samples = shards.samples(data, lenient=True)
    assert fits(index.dump_samples(samples), data) == samples


def test_an_index_without_names_fits_its_shard():
    data = b"v1.1 4\n" + b"".join(
        b" ".join(b"%s %d %d" % (f.ext.encode(), f.offset, f.size) for f in sample.fields) + b"\n" for sample in SAMPLES
    )
    assert len(fits(data, SHARD)) == 4


def test_members_that_belong_to_no_sample_may_follow():
    data = shards.ours([*PAIRS, ("README", b"x" * 1000), ("__meta__/a.json", b"{}")])
    assert fits(index.dump_samples(shards.samples(data)), data) == SAMPLES


def test_an_index_of_nothing_fits_a_shard_of_nothing():
    empty = index.dump_samples([])
    for end in (tar.END, bytes(10240), bytes(512 * 512)):
        assert fits(empty, end) == []
        assert fits(empty, shards.ours([("README", b"x" * 30_000)], end=end)) == []


def test_fault_20_a_shard_that_is_cut_does_not_fit_its_index():
    last = SAMPLES[-1].fields[-1]
    end = last.offset + tar.BLOCK
    for at in [*range(0, end, 37), *shards.header_starts(SHARD), end - 1, end + 1]:
        stale(SHARD[:at])
    assert fits(INDEX, SHARD[:end]) == SAMPLES  # every payload is there


def _sized(*sizes: int, stem: str = "c/s00") -> bytes:
    return shards.ours([(f"{stem}{n}.jpg", b"x" * size) for n, size in enumerate(sizes)])


OTHERS = {
    "empty": b"",
    "shorter": shards.ours(PAIRS[:-2]),
    "longer": shards.ours(shards.pairs(5)),
    "longer by another archive": SHARD + shards.ours(shards.pairs(1, first=9)),
    "without samples": tar.END,
    "of the same length with other names at the front": shards.ours([("c/t000.jpg", PAIRS[0][1]), *PAIRS[1:]]),
    "of the same length with other names at the end": shards.ours([*PAIRS[:-1], ("c/t003.cls", PAIRS[-1][1])]),
    "of the same length in another order": shards.ours([*PAIRS[2:4], *PAIRS[:2], *PAIRS[4:]]),
    "of the same length with other sizes": shards.ours([(PAIRS[0][0], PAIRS[0][1][:-1]), *PAIRS[1:]]),
    "a page": b"<html>busy</html>" * 1000,
    "noise": random.Random(0).randbytes(len(SHARD)),
    "zeros": bytes(len(SHARD)),
    "compressed": b"\x1f\x8b" + bytes(len(SHARD)),
    "damaged at the front": shards.flipped(SHARD, 3, 0),
    "damaged at the end": shards.flipped(SHARD, len(SHARD) - 1, 0),
}


@pytest.mark.parametrize("shard", OTHERS.values(), ids=OTHERS.keys())
def test_fault_28_a_shard_that_was_replaced_does_not_fit_its_index(shard):
    stale(shard)


def test_fault_28_an_index_of_nothing_does_not_fit_a_shard_with_samples():
    for shard in (SHARD, _sized(3), _sized(30_000)):
        stale(shard, index.dump_samples([]))


def test_fault_28_a_shard_with_the_same_places_but_other_content_fits():
    other = shards.ours([(name, bytes(len(data))) for name, data in PAIRS])
    assert fits(INDEX, other) == SAMPLES


@pytest.mark.parametrize("offset", [1 << 40, (1 << 63) - 512, 1 << 63, 1 << 64, 512 * 10**30])
def test_an_offset_beyond_any_file_is_refused(offset):
    row = b"jpg 512 500 c/s000.jpg cls %d 1 c/s000.cls\n" % offset
    stale(SHARD, b"v1.2 1\n" + row)
    stale(SHARD, b"v1.2 1\n" + row.partition(b" cls")[0].replace(b" 512 ", b" %d " % offset) + b"\n")
    stale(SHARD, b"v1.2 1\njpg 512 %d c/s000.jpg\n" % offset)


def test_an_index_of_a_large_member_fits(tmp_path):
    """Sizes that no USTAR header holds stand elsewhere in the archive."""
    size = 8**11
    path = tmp_path / "train-000000.tar"
    with open(path, "wb") as file:  # the payload is a hole
        file.write(shards.pax([("size", str(size))]) + shards.header(b"a.bin", 0))
        file.seek(size, 1)
        file.write(tar.END)
    samples = [Sample("a", (Field("bin", 3 * 512, size, "a.bin"),))]
    with open(path, "rb") as file:
        index.check_fits(samples, file, path.stat().st_size, str(path))
