import io
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.support import images, needs
from wds_tools.errors import DecodeError, MissingExtraError, OptionError
from wds_tools.image import jpeg, tiles, twin

SAMPLINGS = ("444", "422", "420", "440", "411", "Gray")


@pytest.fixture(autouse=True)
def _kernel():
    needs.kernel()


def encoded(width, height, sampling="420", quality=85, seed=0, **options):
    """A picture by Pillow where it has the option, by libjpeg-turbo's own interface for every sampling."""
    pixels = images.scene(width, height, seed)
    if not options and sampling != "Gray":
        return simplejpeg.encode_jpeg(pixels, quality, "RGB", sampling)
    image = Image.fromarray(pixels)
    if sampling == "Gray":
        return images.saved(image.convert("L"), "jpg", quality=quality, **options)
    # Pillow takes the other samplings over from a file, tables and all.
    if sampling in ("440", "411"):
        image = Image.open(io.BytesIO(encoded(width, height, sampling, quality, seed)))
        return images.saved(image, "jpg", quality="keep", **options)
    return images.saved(
        image, "jpg", quality=quality, subsampling=f"{sampling[0]}:{sampling[1]}:{sampling[2]}", **options
    )


def pixels_by(data):
    """The pixels by both decoders; simplejpeg stumbles over what is only a warning to libjpeg."""
    return simplejpeg.decode_jpeg(data, "RGB"), np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def assert_same(data, tiled):
    for one, other in zip(pixels_by(data), pixels_by(tiled), strict=True):
        np.testing.assert_array_equal(one, other)


def assert_cut(data, box, full=None):
    """The box out of the cut equals the box out of the whole, by both decoders."""
    x, y, w, h = box
    part, dx, dy = tiles.crop(data, *box)
    for whole, cut in zip(full or pixels_by(data), pixels_by(part), strict=True):
        np.testing.assert_array_equal(cut[dy : dy + h, dx : dx + w], whole[y : y + h, x : x + w], str(box))
    return part


def drawn_box(rng, width, height):
    w, h = rng.randint(1, width), rng.randint(1, height)
    return rng.randint(0, width - w), rng.randint(0, height - h), w, h


def assert_all_promises(data, pixels=64, boxes=6, seed=0):
    rng = random.Random(seed)
    header = jpeg.parse(data)
    tiled = tiles.tile(data, pixels)
    full = pixels_by(data)
    assert_same(data, tiled)
    assert tiles.tile(tiled, pixels) is tiled
    for _ in range(boxes):
        box = drawn_box(rng, header.width, header.height)
        assert_cut(data, box, full)
        part = assert_cut(tiled, box, full)
        if has_several_tiles_a_row(tiled):
            assert twin.crop(tiled, *box) == (part, *tiles.crop(tiled, *box)[1:])


def has_several_tiles_a_row(data):
    header = jpeg.parse(data)
    interval, columns = header.restart_interval, header.mcu_columns
    return bool(interval) and interval < columns and columns % interval == 0


# -- pixels stay as they are


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    "options",
    [{}, {"optimize": True}, {"restart_marker_blocks": 1}, {"restart_marker_blocks": 7}, {"restart_marker_rows": 1}],
    ids=str,
)
def test_tiles_and_crops_are_exact_for_every_sampling_and_table(sampling, options):
    for width, height in ((250, 130), (193, 67), (61, 200)):
        assert_all_promises(encoded(width, height, sampling, **options))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_sizes_from_one_pixel_on(sampling):
    for size in range(1, 40):
        assert_all_promises(encoded(size, 41 - size, sampling), pixels=16, boxes=3, seed=size)
        assert_all_promises(encoded(size + 60, 3, sampling), pixels=16, boxes=3, seed=size)


@pytest.mark.parametrize("quality", [1, 5, 30, 75, 95, 100])
def test_every_quality(quality):
    for sampling in ("444", "420"):
        assert_all_promises(encoded(200, 150, sampling, quality, seed=quality))


@settings(deadline=None, max_examples=60)
@given(
    width=st.integers(1, 140),
    height=st.integers(1, 80),
    sampling=st.sampled_from(SAMPLINGS),
    quality=st.integers(1, 100),
    options=st.sampled_from(
        [{}, {"optimize": True}, {"restart_marker_blocks": 3}, {"optimize": True, "restart_marker_rows": 2}]
    ),
    pixels=st.integers(1, 200),
    seed=st.integers(0, 1000),
)
def test_any_small_picture(width, height, sampling, quality, options, pixels, seed):
    assert_all_promises(encoded(width, height, sampling, quality, seed, **options), pixels, boxes=3, seed=seed)


@pytest.mark.parametrize(("width", "height", "sampling"), [(5000, 3000, "420"), (1999, 1201, "444"), (20000, 9, "422")])
def test_large_pictures(width, height, sampling):
    pixels = np.tile(images.scene(500, 300), (height // 300 + 1, width // 500 + 1, 1))[:height, :width]
    data = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), 60, "RGB", sampling)
    tiled, full = tiles.tile(data), simplejpeg.decode_jpeg(data, "RGB")
    assert np.array_equal(simplejpeg.decode_jpeg(tiled, "RGB"), full)
    x, y, w, h = width // 3, height // 4, width // 2, height // 3
    for source in (data, tiled):
        part, dx, dy = tiles.crop(source, x, y, w, h)
        cut = simplejpeg.decode_jpeg(part, "RGB")
        assert np.array_equal(cut[dy : dy + h, dx : dx + w], full[y : y + h, x : x + w])


def test_the_edges_of_boxes_at_every_pixel():
    for sampling in ("422", "420", "440", "411"):
        data = encoded(100, 70, sampling)
        tiled, full = tiles.tile(data, 32), pixels_by(data)
        for start in range(69):
            assert_cut(data, (start, start, 1, 1), full)
            assert_cut(tiled, (start, start, 1, 1), full)
            assert_cut(tiled, (0, 0, start + 1, start + 1), full)
            assert_cut(data, (99 - start, 69 - start, start + 1, start + 1), full)


def refactored(data, *factors):
    data = bytearray(data)
    start = jpeg.parse(data).sof_at + 8
    for i, (h, v) in enumerate(factors):
        data[start + 3 * i + 1] = h << 4 | v
    return bytes(data)


def resized(data, height):
    at = jpeg.parse(data).sof_at + 3
    return data[:at] + height.to_bytes(2, "big") + data[at + 2 :]


@pytest.mark.parametrize(
    ("height", "factors"),
    [
        (64, [(2, 1), (2, 1), (2, 1)]),
        (64, [(1, 2), (1, 2), (1, 2)]),
        (96, [(1, 1), (2, 1), (1, 1)]),  # chroma finer than luma
        (96, [(1, 2), (1, 1), (1, 1)]),
        (96, [(2, 1), (4, 1), (2, 1)]),
        (192, [(2, 2)]),
        (192, [(4, 1)]),
    ],
)
def test_unusual_factors_mean_what_libjpeg_takes_them_for(height, factors):
    # As many blocks as before, in another order; all components share their tables, so the codes stay good ones.
    image = Image.fromarray(images.scene(256, 64 if len(factors) == 3 else 192))
    if len(factors) == 3:
        data = refactored(images.saved(image, "jpg", keep_rgb=True, subsampling=0), *factors)
    else:
        data = refactored(images.saved(image.convert("L"), "jpg"), *factors)
    data = resized(data, height)
    rng = random.Random(1)
    full = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    tiled = tiles.tile(data, 32)
    assert jpeg.parse(tiled).restart_interval
    for source in (data, tiled):
        for _ in range(20):
            x, y, w, h = drawn_box(rng, 256, height)
            part, dx, dy = tiles.crop(source, x, y, w, h)
            cut = np.asarray(Image.open(io.BytesIO(part)).convert("RGB"))
            np.testing.assert_array_equal(cut[dy : dy + h, dx : dx + w], full[y : y + h, x : x + w])


def test_a_dc_difference_that_the_table_lacks_gets_a_code():
    # From left to right in small steps: the only large difference opens the picture, and others open the rows of a cut.
    ramp = np.repeat(np.linspace(130, 255, 512).astype(np.uint8)[None], 64, axis=0)
    data = images.saved(Image.fromarray(ramp), "jpg", quality=90, optimize=True)
    part = assert_cut(data, (250, 20, 100, 20))
    assert part.count(b"\xff\xc4") == data.count(b"\xff\xc4") + 1
    assert_all_promises(data)


# -- what a tiled file looks like


@pytest.mark.parametrize(
    ("width", "sampling", "pixels", "interval"),
    [
        (500, "420", 64, 4),  # 32 MCUs
        (500, "444", 64, 9),  # 63 MCUs: 72 pixels are nearer than 56
        (496, "420", 64, 31),  # 31 MCUs, a prime number: a row is one tile
        (592, "420", 64, 37),
        (350, "420", 64, 2),  # 22 MCUs: 32 pixels, half
        (500, "420", 128, 8),
        (500, "420", 1, 32),  # no divisor gives two pixels
        (500, "420", 16, 1),
        (500, "420", 60000, 32),
    ],
)
def test_the_tile_width_divides_the_row(width, sampling, pixels, interval):
    header = jpeg.parse(tiles.tile(encoded(width, 33, sampling), pixels))
    assert header.restart_interval == interval
    assert header.mcu_columns % interval == 0


def test_a_picture_of_one_tile_is_left_alone():
    data = encoded(60, 15, "420")
    assert tiles.tile(data) is data


def test_metadata_and_what_follows_the_end_are_kept_by_tiling_and_dropped_by_cutting():
    exif = Image.Exif()
    exif[0x0112] = 1
    plain = images.saved(Image.fromarray(images.scene(200, 100)), "jpg", exif=exif, comment=b"hello")
    data = images.with_segments(plain, b"ICC_PROFILE\0\1\1profile", marker=0xE2) + b"behind the end \xff\xd8\xff"
    tiled = tiles.tile(data)
    assert tiled != data
    assert_same(data, tiled)
    for word in (b"Exif\0", b"ICC_PROFILE", b"hello"):
        assert tiled.count(word) == data.count(word) == 1
    assert tiled.endswith(b"\xff\xd9behind the end \xff\xd8\xff")
    for source in (data, tiled):
        part, _, _ = tiles.crop(source, 100, 50, 20, 20)
        assert b"JFIF\0" in part
        assert not any(word in part for word in (b"Exif\0", b"ICC_PROFILE", b"hello", b"behind"))
        assert part.endswith(b"\xff\xd9")


def test_what_tells_the_colours_is_kept():
    rgb = images.saved(Image.fromarray(images.scene(200, 100)), "jpg", keep_rgb=True, subsampling=0)
    assert jpeg.parse(rgb).adobe == 0
    assert_all_promises(rgb)
    assert jpeg.parse(tiles.crop(rgb, 90, 50, 9, 9)[0]).adobe == 0


def test_best_tables_make_a_file_smaller_than_it_was():
    data = encoded(500, 375, quality=90)
    assert len(tiles.tile(data)) < len(data)
    optimised = encoded(500, 375, quality=90, optimize=True)
    assert len(tiles.tile(optimised)) < 1.03 * len(optimised)


def test_fill_bytes_are_allowed_where_the_standard_allows_them():
    data = encoded(200, 100)
    filled = data.replace(b"\xff\xdb", b"\xff\xff\xff\xdb")[:-2] + b"\xff\xff\xff\xd9"
    assert tiles.tile(filled) != filled
    assert_all_promises(filled)


def test_extended_sequential_files_are_taken():
    data = encoded(200, 100).replace(b"\xff\xc0", b"\xff\xc1", 1)
    assert tiles.tile(data) != data
    assert_all_promises(data)


# -- what is left alone and refused


UNTILEABLE = {
    "progressive": images.jpeg(200, 100, progressive=True),
    "CMYK": images.cmyk_jpeg(200, 100),
    "YCCK": images.ycck_jpeg(200, 100),
    "arithmetic": images.ARITHMETIC_JPEG,
    "a third of luma": refactored(encoded(192, 64, "422"), (3, 1), (1, 1), (1, 1)),
    "twelve bits": images.jpeg(200, 100).replace(b"\xff\xc0\0\x11\x08", b"\xff\xc1\0\x11\x0c"),
    "no height": images.jpeg(200, 100).replace(b"\xff\xc0\0\x11\x08\0\x64", b"\xff\xc0\0\x11\x08\0\0"),
    "lossless": images.jpeg(200, 100).replace(b"\xff\xc0", b"\xff\xc3"),
    "png": images.png(),
    "nothing": b"",
    "no tables": images.jpeg(200, 100).replace(b"\xff\xc4", b"\xff\xef"),
    "a table of ones only": images.jpeg(200, 100).replace(
        b"\xff\xc4\0\x1f\0" + bytes([0, 1, 5, 1]), b"\xff\xc4\0\x1f\0" + bytes([2, 0, 4, 1])
    ),
}


@pytest.mark.parametrize("kind", UNTILEABLE)
def test_other_files_are_left_alone_and_refused(kind):
    data = UNTILEABLE[kind]
    assert tiles.tile(data) is data
    with pytest.raises(DecodeError, match="cannot cut a part out of this JPEG: it"):
        tiles.crop(data, 1, 1, 2, 2)


def test_several_scans_are_left_alone():
    data = bytearray(encoded(100, 50, "444"))
    at = jpeg.parse(data).sos_at
    luma = bytes(data[:at]) + b"\0\x08\1\1\0\0\x3f\0" + bytes(data[jpeg.parse(data).scan_at :])
    assert tiles.tile(luma) == luma
    with pytest.raises(DecodeError, match="one scan"):
        tiles.crop(luma, 1, 1, 2, 2)
    twice = bytes(data[:-2] + data[at - 2 :])
    assert tiles.tile(twice) is twice


@pytest.mark.parametrize("change", ["cut", "one more byte", "wrong restart marker", "no end", "another marker"])
def test_suspicious_scans_are_left_alone(change):
    data = encoded(200, 100, restart_marker_blocks=5)
    assert tiles.tile(data) != data
    data = {
        "cut": data[:-40] + data[-2:],
        "one more byte": data[:-2] + b"x" + data[-2:],
        "wrong restart marker": data.replace(b"\xff\xd1", b"\xff\xd2", 1),
        "no end": data[:-2],
        "another marker": data[:-2] + b"\xff\xfe\0\4ab" + data[-2:],
    }[change]
    assert tiles.tile(data) is data


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_scan_that_ends_early_is_cut_as_far_as_it_goes(sampling):
    whole = encoded(200, 100, sampling)
    start = jpeg.parse(whole).scan_at
    short = whole[: start + (len(whole) - start) // 2] + b"\xff\xd9"
    assert tiles.tile(short) is short
    assert tiles.crop(short, 50, 0, 60, 16) == tiles.crop(whole, 50, 0, 60, 16)
    with pytest.raises(DecodeError, match="coded data are damaged or cut short"):
        tiles.crop(short, 50, 80, 60, 16)


def test_missing_markers_are_noticed_while_cutting():
    tiled = tiles.tile(encoded(200, 100))
    first = tiled.index(b"\xff\xd2")
    for damaged in (
        tiled[:first] + b"\xff\xd3" + tiled[first + 2 :],
        tiled[:first] + tiled[first + 2 :],
        tiled[:first],
    ):
        with pytest.raises(DecodeError, match="restart markers"):
            tiles.crop(damaged, 0, 50, 10, 10)
        assert twin.crop(damaged, 0, 50, 10, 10) == "its restart markers are missing or out of order"


@pytest.mark.parametrize(
    "box",
    [
        (-1, 0, 5, 5),
        (0, -1, 5, 5),
        (0, 0, 0, 5),
        (0, 0, 5, 0),
        (0, 0, 101, 5),
        (1, 0, 100, 5),
        (0, 46, 5, 5),
        (10**6, 0, 1, 1),
    ],
)
def test_a_box_outside_the_picture_is_refused(box, monkeypatch):
    data = tiles.tile(encoded(100, 50), 16)
    words = r"does not lie in the picture"
    with pytest.raises(OptionError, match=words):
        tiles.crop(data, *box)
    monkeypatch.setattr(tiles, "kernel", None)
    with pytest.raises(OptionError, match=words):
        tiles.crop(data, *box)


@pytest.mark.parametrize("pixels", [0, -1, 65536, 1.5, "64", None, True])
def test_a_tile_width_that_is_none_is_refused(pixels):
    with pytest.raises(OptionError, match=f"not {pixels!r}"):
        tiles.tile(encoded(100, 50), pixels)


# -- hostile bytes


def decoded(data):
    try:
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).tobytes()
    except (OSError, SyntaxError, ValueError):
        return None


def assert_harmless(data, box=(10, 5, 30, 20)):
    tiled = tiles.tile(data, 16)
    if tiled != data:
        assert decoded(tiled) == decoded(data)  # both None where, say, a quantisation table is missing
    for source in (data, tiled):
        try:
            part, dx, dy = tiles.crop(source, *box)
        except (DecodeError, OptionError):
            continue
        header = jpeg.parse(part)
        assert header.width >= dx + box[2]
        assert header.height >= dy + box[3]


@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"restart_marker_blocks": 3}], ids=str)
def test_a_file_cut_anywhere(options):
    data = encoded(70, 40, quality=50, **options)
    for size in range(len(data)):
        assert tiles.tile(data[:size]) == data[:size]
        assert_harmless(data[:size])
    tiled = tiles.tile(data, 16)
    for size in range(len(tiled)):
        assert_harmless(tiled[:size])


@settings(deadline=None, max_examples=150)
@given(
    sampling=st.sampled_from(SAMPLINGS),
    options=st.sampled_from([{}, {"optimize": True}, {"restart_marker_blocks": 3}]),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), min_size=1, max_size=5),
)
def test_flipped_bits(sampling, options, flips):
    data = bytearray(encoded(60, 40, sampling, 50, **options))
    for place, bit in flips:
        data[int(place * len(data))] ^= 1 << bit
    assert_harmless(bytes(data))


@given(st.binary(max_size=300))
def test_any_bytes(data):
    assert_harmless(data)
    assert_harmless(b"\xff\xd8" + data)
    header = encoded(60, 40)
    assert_harmless(header[: jpeg.parse(header).scan_at] + data)


# -- the kernel and its twin


def test_other_buffers_are_taken_and_whole_pictures_handed_back():
    data = encoded(200, 100)
    tiled = tiles.tile(data)
    for kind in (bytearray, memoryview):
        assert tiles.tile(kind(data)) == tiled
        assert tiles.tile(kind(tiled)) == tiled
        assert type(tiles.tile(kind(tiled))) is bytes
        assert tiles.crop(kind(tiled), 50, 50, 9, 9) == tiles.crop(tiled, 50, 50, 9, 9)
        assert twin.crop(kind(tiled), 50, 50, 9, 9) == tiles.crop(tiled, 50, 50, 9, 9)
    for source in (data, tiled):
        assert tiles.crop(source, 3, 2, 197, 98)[0] is source
        assert tiles.crop(source, 3, 2, 197, 98)[1:] == (3, 2)
    for wrong in (None, "text", 5):
        with pytest.raises(TypeError):
            tiles.kernel.crop(wrong, 0, 0, 1, 1)
        with pytest.raises(TypeError):
            tiles.kernel.tile(wrong, 64)


def test_without_the_kernel_tiled_files_are_cut_alike_and_nothing_is_tiled(monkeypatch):
    data = encoded(320, 200)
    tiled = tiles.tile(data)
    expected = tiles.crop(tiled, 100, 50, 60, 60)
    monkeypatch.setattr(tiles, "kernel", None)
    assert tiles.crop(tiled, 100, 50, 60, 60) == expected
    with pytest.raises(MissingExtraError, match="install a C compiler"):
        tiles.tile(data)
    with pytest.raises(DecodeError, match="no restart tiles"):
        tiles.crop(data, 100, 50, 60, 60)
    one_tile_a_row = images.jpeg(496, 100, restart_marker_rows=1)
    assert_cut(one_tile_a_row, (100, 50, 20, 20))


def test_the_kernel_works_in_many_threads_at_once():
    sources = [encoded(300 + 16 * i, 200, seed=i) for i in range(8)]
    alone = [(tiles.tile(data), tiles.crop(data, 100, 50, 60, 60)) for data in sources]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda data: (tiles.tile(data), tiles.crop(data, 100, 50, 60, 60)), sources * 10))
    assert together == alone * 10
