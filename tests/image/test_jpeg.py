import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support import images
from wds_tools.errors import DecodeError
from wds_tools.image import jpeg

KINDS = {
    "RGB": images.jpeg(),
    "grey": images.jpeg(mode="L"),
    "one pixel": images.jpeg(1, 1),
    "wide": images.jpeg(3000, 2),
    "optimised": images.jpeg(optimize=True),
    "restarts": images.jpeg(restart_marker_blocks=2),
    "progressive": images.jpeg(progressive=True),
    "CMYK": images.cmyk_jpeg(),
    "arithmetic": images.ARITHMETIC_JPEG,
    "thumbnail": images.with_thumbnail(images.jpeg()),
    "late comment": images.with_segments(images.jpeg(), b"\xff\xd8\xff\xc0\xff\xda" * 9, marker=0xFE),
    "fill bytes": images.jpeg().replace(b"\xff\xdb", b"\xff\xff\xff\xdb"),
    **{sampling: images.sampled_jpeg(sampling) for sampling in ("444", "422", "420", "440", "411")},
}
TILEABLE = {kind: kind not in ("progressive", "CMYK", "arithmetic") for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_the_header_says_what_pillow_reads(kind):
    data = KINDS[kind]
    header = jpeg.parse(data)
    image = Image.open(io.BytesIO(data))
    assert (header.width, header.height) == image.size
    assert [(one.id, one.h, one.v, one.table) for one in header.components] == [tuple(one) for one in image.layer]
    assert header.precision == 8
    assert (header.sof == 0xC2) == bool(image.info.get("progressive"))
    assert header.jfif == ("jfif" in image.info)
    assert header.adobe == image.info.get("adobe_transform")
    assert header.tileable == TILEABLE[kind]
    assert jpeg.parse(memoryview(data)) == header


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_point_at_the_segments(kind):
    data = KINDS[kind]
    header = jpeg.parse(data)
    assert data[header.sof_at - 2 : header.sof_at] == bytes([0xFF, header.sof])
    assert data[header.sos_at - 2 : header.sos_at] == b"\xff\xda"
    assert header.scan_at == header.sos_at + int.from_bytes(data[header.sos_at : header.sos_at + 2], "big")
    if kind == "restarts":
        assert header.restart_interval == 2
        assert data[header.dri_at - 2 : header.dri_at + 4] == b"\xff\xdd\0\4\0\2"
    else:
        assert (header.restart_interval, header.dri_at) == (0, 0)


@pytest.mark.parametrize(
    ("sampling", "size", "columns", "rows"),
    [
        ("444", (8, 8), 5, 4),
        ("422", (16, 8), 3, 4),
        ("420", (16, 16), 3, 2),
        ("440", (8, 16), 5, 2),
        ("411", (32, 8), 2, 4),
    ],
)
def test_mcus_are_as_large_as_the_sampling_makes_them(sampling, size, columns, rows):
    header = jpeg.parse(KINDS[sampling])
    assert (header.mcu_width, header.mcu_height) == size
    assert (header.mcu_columns, header.mcu_rows) == (columns, rows)


def refactored(data, *factors):
    """The sampling factors in the frame header replaced."""
    data = bytearray(data)
    start = jpeg.parse(data).sof_at + 8
    for i, (h, v) in enumerate(factors):
        data[start + 3 * i + 1] = h << 4 | v
    return bytes(data)


def test_the_factors_of_a_single_component_mean_nothing():
    header = jpeg.parse(refactored(KINDS["grey"], (2, 2)))
    assert (header.mcu_width, header.mcu_height, header.mcu_columns, header.mcu_rows) == (8, 8, 5, 4)
    assert header.tileable


@pytest.mark.parametrize("factors", [((3, 1), (1, 1), (1, 1)), ((4, 2), (2, 1), (1, 1)), ((2, 3), (1, 1), (1, 1))])
def test_unusual_sampling_is_not_tileable(factors):
    assert not jpeg.parse(refactored(KINDS["RGB"], *factors)).tileable


def test_metadata_is_found_and_not_looked_into():
    exif = images.with_exif_orientation(6)
    both = images.with_segments(exif, b"http://ns.adobe.com/xap/1.0/\0<x/>", marker=0xE1)
    header = jpeg.parse(images.with_segments(both, b"nothing known", marker=0xE1))
    payloads = [images.with_segments(both, b"nothing known", marker=0xE1)[at : at + size] for at, size in header.exif]
    assert payloads[0] == b"http://ns.adobe.com/xap/1.0/\0<x/>"
    assert payloads[1] == Image.open(io.BytesIO(exif)).info["exif"]
    assert len(payloads) == 2
    assert jpeg.parse(KINDS["RGB"]).exif == ()


def test_adobes_transform_is_read():
    assert jpeg.parse(images.ycck_jpeg()).adobe == 2
    assert jpeg.parse(images.jpeg(keep_rgb=True)).adobe == 0


def test_a_scan_of_fewer_components_is_not_tileable():
    data = bytearray(images.jpeg())
    at = jpeg.parse(data).sos_at
    one = bytes(data[:at]) + b"\0\x08\1\1\0\0\x3f\0" + bytes(data[at + 12 :])
    header = jpeg.parse(one)
    assert header.scan_components == 1
    assert not header.tileable
    data[at + 10] = 62
    assert not jpeg.parse(data).tileable


def test_twelve_bits_and_no_height_are_not_tileable():
    for offset, value in ((2, 12), (3, 0)):
        data = bytearray(images.jpeg(height=100))
        data[jpeg.parse(data).sof_at + offset] = value
        data[jpeg.parse(data).sof_at + 4] *= offset != 3
        assert not jpeg.parse(data).tileable


FRAME = b"\xff\xc0\0\x0b\x08\0\x10\0\x10\1\1\x11\0"
SCAN = b"\xff\xda\0\x08\1\1\0\0\x3f\0"


def test_the_smallest_header():
    header = jpeg.parse(b"\xff\xd8" + FRAME + SCAN)
    assert (header.width, header.height, header.scan_at) == (16, 16, 2 + len(FRAME + SCAN))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a JPEG"),
        (b"\x89PNG\r\n\x1a\n", "not a JPEG"),
        (b"\xff\xd8", "ends before its first scan"),
        (b"\xff\xd8\xff\xd9", "ends before its first scan"),
        (b"\xff\xd8\xff\xd9" + FRAME, "no marker segment at byte 2"),
        (b"\xff\xd8" + FRAME + b"x" + SCAN, "no marker segment at byte 15"),
        (b"\xff\xd8\xff\x01" + FRAME + SCAN, "no marker segment at byte 2"),
        (b"\xff\xd8\xff\xd0" + FRAME + SCAN, "no marker segment at byte 2"),
        (b"\xff\xd8\xff\xe0\0\1" + FRAME + SCAN, "claims 1 bytes"),
        (b"\xff\xd8\xff\xe0\x7f\xff" + FRAME + SCAN, "claims 32767 bytes"),
        (b"\xff\xd8" + SCAN, "a scan before the frame header"),
        (b"\xff\xd8" + FRAME + FRAME + SCAN, "two frame headers"),
        (b"\xff\xd8" + FRAME.replace(b"\xc0", b"\xc8") + FRAME + SCAN, "two frame headers"),
        (b"\xff\xd8" + FRAME.replace(b"\x10\1\1", b"\x10\2\1") + SCAN, "a frame header of 11 bytes for 2 components"),
        (b"\xff\xd8" + FRAME.replace(b"\x10\1\1", b"\x10\0\1") + SCAN, "a frame header of 11 bytes for 0 components"),
        (b"\xff\xd8\xff\xc0\0\2" + SCAN, "a frame header of 2 bytes"),
        (b"\xff\xd8" + FRAME.replace(b"\0\x10\1", b"\0\0\1") + SCAN, "no width"),
        (b"\xff\xd8" + FRAME.replace(b"\x11", b"\x10") + SCAN, "sampling factors"),
        (b"\xff\xd8" + FRAME.replace(b"\x11", b"\x51") + SCAN, "sampling factors"),
        (b"\xff\xd8" + FRAME + SCAN.replace(b"\x08\1", b"\x08\2"), "a scan header of 8 bytes for 2 components"),
        (b"\xff\xd8" + FRAME + b"\xff\xda\0\2", "a scan header of 2 bytes for 0 components"),
        (b"\xff\xd8" + FRAME + b"\xff\xdd\0\5\0\0\0" + SCAN, "a restart interval of 5 bytes"),
    ],
)
def test_what_is_no_header_is_refused(data, words):
    with pytest.raises(DecodeError, match=words):
        jpeg.parse(data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_header_cut_anywhere_is_refused(kind):
    data = KINDS[kind]
    whole = jpeg.parse(data)
    for size in range(whole.scan_at):
        with pytest.raises(DecodeError):
            jpeg.parse(data[:size])
    assert jpeg.parse(data[: whole.scan_at]) == whole


@given(
    kind=st.sampled_from(sorted(KINDS)), flips=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), min_size=1)
)
def test_a_damaged_header_is_read_or_refused(kind, flips):
    data = bytearray(KINDS[kind])
    for at, value in flips:
        data[at % len(data)] = value
    try:
        header = jpeg.parse(data)
    except DecodeError:
        return
    assert header.width > 0
    assert header.sof_at < header.sos_at < header.scan_at <= len(data)
    assert all(at >= 0 and at + size <= header.scan_at for at, size in header.exif)
    assert header.mcu_columns * header.mcu_width >= header.width
