"""What headers tell of images."""

from __future__ import annotations

import pytest

from tests.support import images
from wds_tools.tools.pictures import JpegLayout, jpeg_layout, look_at


def test_means_and_shares_are_of_all_that_can_be_read() -> None:
    found = look_at([images.jpeg(40, 30), images.jpeg(80, 50), images.png(60, 40), b"", b"text", images.jpeg()[:5]])
    assert found is not None
    assert (found.count, found.width, found.height, found.short_side) == (3, 60, 40, 40)
    assert found.kinds == {"jpg": 2 / 3, "png": 1 / 3}
    assert next(iter(found.kinds)) == "jpg"
    assert (found.tiled, found.progressive) == (0, 0)
    assert found.size == sum(map(len, (images.jpeg(40, 30), images.jpeg(80, 50), images.png(60, 40)))) / 3


def test_nothing_that_can_be_read_is_nothing() -> None:
    assert look_at([]) is None
    assert look_at([b"text"]) is None


def test_turned_images_count_as_they_are_seen() -> None:
    found = look_at([images.with_exif_orientation(6, width=40, height=30)])
    assert found is not None
    assert (found.width, found.height) == (30, 40)


@pytest.mark.parametrize(
    ("options", "tiled"),
    [
        ({}, False),
        ({"restart_marker_blocks": 4}, True),  # 640 pixels of 4:2:0 are 40 blocks
        ({"restart_marker_blocks": 8}, True),
        ({"restart_marker_blocks": 7}, False),
        ({"restart_marker_blocks": 40}, False),  # one restart a row of blocks lets nobody skip inside it
        ({"restart_marker_rows": 1}, False),
        ({"restart_marker_blocks": 8, "subsampling": "4:4:4"}, True),
        ({"restart_marker_blocks": 80, "subsampling": "4:4:4"}, False),
        ({"restart_marker_blocks": 16, "subsampling": "4:4:4"}, True),
        ({"restart_marker_blocks": 8, "mode": "L"}, True),
    ],
)
def test_restart_tiles_divide_a_row(options: dict[str, object], tiled: bool) -> None:
    data = images.jpeg(640, 48, **{"subsampling": "4:2:0", **options})  # type: ignore[arg-type]
    assert jpeg_layout(data) == JpegLayout(False, tiled)


def test_a_narrow_image_is_one_tile() -> None:
    assert jpeg_layout(images.jpeg(64, 48, restart_marker_rows=1)) == JpegLayout(False, True)
    assert jpeg_layout(images.jpeg(64, 48)) == JpegLayout(False, False)


def test_progressive_ones_are_told_and_never_tiled() -> None:
    data = images.jpeg(640, 48, progressive=True, restart_marker_blocks=8)
    assert jpeg_layout(data) == JpegLayout(True, False)


@pytest.mark.parametrize("data", [b"", b"\xff\xd8", images.png(), b"\xff\xd8\xff\xd9", b"\xff\xd8" + bytes(99)])
def test_what_has_no_frame_has_no_layout(data: bytes) -> None:
    assert jpeg_layout(data) is None


def test_damaged_headers_neither_raise_nor_loop() -> None:
    data = images.jpeg(640, 48, restart_marker_blocks=8)
    end = data.index(b"\xff\xda") + 4
    for length in range(end):
        jpeg_layout(data[:length])
    for place in range(2, end):
        for value in (0, 1, 255):
            jpeg_layout(data[:place] + bytes([value]) + data[place + 1 :])
    assert jpeg_layout(images.with_segments(data, b"\xff\xc2\0\0", count=3)) == JpegLayout(False, True)
