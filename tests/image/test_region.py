import functools
import io
from contextlib import suppress

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from tests.support import images
from wds_tools.errors import DecodeError, OptionError
from wds_tools.image import codec, region, tiles
from wds_tools.image.region import Jpeg, Pixels, open_picture
from wds_tools.image.resize import Box

SAMPLINGS = ("444", "422", "420", "440", "411")
ORIENTATIONS = range(1, 9)
PHOTO = images.photograph(256, 256)


@functools.cache
def sampled(sampling, width, height):
    """A JPEG of a photograph, so that chroma has edges to be smoothed; grey where the sampling is None."""
    pixels = np.ascontiguousarray(PHOTO[:height, :width])
    if sampling is None:
        return images.saved(Image.fromarray(pixels).convert("L"), "jpg")
    return simplejpeg.encode_jpeg(pixels, 90, "RGB", sampling)


def boxes_of(width, height):
    """Corners, edges, middles, single pixels, all of it, and edges between pixels."""
    right, bottom = width - 1, height - 1
    yield from [Box(0, 0, width, height), Box(0, 0, 1, 1), Box(right, bottom, width, height), Box(right, 0, width, 1)]
    yield from [Box(width // 3, height // 4, width // 3 + 1, height // 4 + 1), Box(0, bottom, width, height)]
    yield from [Box(width * 0.31, height * 0.27, width * 0.66, height * 0.71), Box(width * 0.6, 0, width, height * 0.4)]


def cut(pixels, box):
    top, left = int(np.floor(box.top)), int(np.floor(box.left))
    return pixels[top : int(np.ceil(box.bottom)), left : int(np.ceil(box.right))]


def assert_holds(found, box, expected, offset=(0, 0)):
    """The region has every pixel of the box that the whole has; ``offset`` is where the whole one's first pixel lies."""
    pixels, left, top, factor = found
    mine = box.moved(left, top, factor)
    theirs = box.moved(*offset, factor)
    assert min(mine[:2]) >= 0
    assert mine.right <= pixels.shape[1]
    assert mine.bottom <= pixels.shape[0]
    shift = np.subtract(mine[:2], theirs[:2])
    assert np.allclose(shift, shift.round()), "both count whole pixels of this size"
    np.testing.assert_array_equal(cut(pixels, mine), cut(expected, theirs))


# ---------------------------------------------------------------- at full scale: the pixels of codec.decode


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("tiled", [False, True], ids=["untiled", "tiled"])
@pytest.mark.parametrize("sampling", [*SAMPLINGS, None])
def test_a_jpegs_region_has_the_pixels_of_the_whole(sampling, tiled, orientation, either_way, monkeypatch):
    for width, height in [(97, 75), (64, 48), (33, 130)]:
        data = sampled(sampling, width, height)
        if tiled:
            with monkeypatch.context() as patch:
                patch.setattr(tiles, "kernel", tiles._kernel)
                data = tiles.tile(data, 16)
            assert tiles.is_tiled(data)
        if orientation > 1:
            data = images.turned(data, orientation)
        expected = codec.decode(data)
        picture = open_picture(data)
        assert isinstance(picture, Jpeg)
        assert (picture.height, picture.width) == expected.shape[:2] == codec.dimensions(data)[::-1]
        for box in boxes_of(picture.width, picture.height):
            assert_holds(picture.region(box), box, expected)


OTHERS = {
    "png": images.png(),
    "png grey": images.png(mode="L"),
    "png alpha": images.png(mode="RGBA"),
    "png palette": images.png(mode="P", transparency=3),
    "png 16 bits": images.sixteen_bit_png(),
    "png turned": images.with_exif_orientation(6, "png"),
    "webp": images.saved(images.picture(), "webp"),
    "webp turned": images.with_exif_orientation(8, "webp"),
    "gif": images.animation("gif"),
    "bmp": images.saved(images.picture(), "bmp"),
    "tiff": images.saved(images.picture(), "tiff"),
    "ppm": images.saved(images.picture(), "ppm"),
    "npy": images.npy(images.pixels()),
    "npy grey": images.npy(images.pixels()[..., 0]),
    "npy grey with an axis": images.npy(images.pixels()[..., :1]),
    "npy fortran": images.npy(np.asfortranarray(images.pixels())),
    "jpg CMYK": images.cmyk_jpeg(),
    "jpg YCCK": images.ycck_jpeg(),
    "jpg progressive": images.jpeg(progressive=True),
    "jpg progressive grey, turned": images.turned(images.jpeg(mode="L", progressive=True), 7),
    "jpg arithmetic": images.ARITHMETIC_JPEG,
    "jpg arithmetic, turned": images.turned(images.ARITHMETIC_JPEG, 5),
    "jpg RGB not YCC": images.jpeg(keep_rgb=True, subsampling=0),
    "jpg thumbnail": images.with_thumbnail(images.jpeg()),
    "jpg trailing garbage": images.jpeg() + b"garbage" * 50,
    "jpg 5 MB of APP4": images.with_segments(images.jpeg(), bytes(65_000), 80),
    "jpg 5 MB of APP1": images.with_segments(images.jpeg(), b"Exif\0\0" + bytes(65_000), 80, marker=0xE1),
    "jpg 5 MB of comments": images.with_segments(images.jpeg(), bytes(65_000), 80, marker=0xFE),
    "jpg restarts": images.jpeg(restart_marker_blocks=2),
    "jpg restarts that make no tiles": images.jpeg(200, 30, restart_marker_blocks=5),
    "jpg optimised": images.jpeg(optimize=True),
    "jpg fill bytes": images.jpeg().replace(b"\xff\xdb", b"\xff\xff\xff\xdb"),
    "jpg junk between segments": images.jpeg().replace(b"\xff\xdb", b"junk\xff\xdb", 1),
    "jpg one pixel": images.jpeg(1, 1),
    "jpg one pixel, turned": images.turned(images.jpeg(1, 1), 6),
    "jpg one row": images.jpeg(300, 1),
    "jpg one column, turned": images.turned(images.jpeg(1, 300), 5),
    "jpg a bad orientation": images.turned(images.jpeg(), 9),
}


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS.keys())
def test_so_has_that_of_every_other_file(data, either_way):
    expected = codec.decode(data)
    picture = open_picture(data)
    assert (picture.height, picture.width) == expected.shape[:2]
    for box in boxes_of(picture.width, picture.height):
        assert_holds(picture.region(box), box, expected)
        assert_holds(open_picture(memoryview(data)).region(box), box, expected)


def test_upright_is_what_pillow_takes_for_it():
    for orientation in ORIENTATIONS:
        data = images.turned(sampled("420", 97, 75), orientation)
        expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
        picture = open_picture(data)
        box = Box(10, 5, 40, 60)
        assert_holds(picture.region(box), box, expected)


def test_xmp_turns_a_picture_as_well():
    payload = (
        b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta xmlns:x="adobe:ns:meta/"><tiff:Orientation>6</tiff:Orientation>'
    )
    data = images.with_segments(sampled("420", 97, 75), payload, marker=0xE1)
    picture = open_picture(data)
    assert (picture.width, picture.height) == (75, 97)
    assert_holds(picture.region(Box(3, 50, 60, 97)), Box(3, 50, 60, 97), codec.decode(data))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([*SAMPLINGS, None]),
    st.integers(1, 90),
    st.integers(1, 90),
    st.sampled_from(ORIENTATIONS),
    st.booleans(),
    st.data(),
)
def test_so_has_any_box_of_any_size(sampling, width, height, orientation, tiled, data):
    file = images.turned(sampled(sampling, width, height), orientation)
    file = tiles.tile(file, 16) if tiled else file
    picture = open_picture(file)
    left, top = data.draw(st.integers(0, picture.width - 1)), data.draw(st.integers(0, picture.height - 1))
    box = Box(
        left, top, data.draw(st.integers(left + 1, picture.width)), data.draw(st.integers(top + 1, picture.height))
    )
    assert_holds(picture.region(box), box, codec.decode(file))


def test_what_is_decoded_is_no_more_than_the_box_needs(monkeypatch):
    decoded = []
    decode_jpeg = simplejpeg.decode_jpeg

    def noted(data, *words, **options):
        pixels = decode_jpeg(data, *words, **options)
        decoded.append(pixels.shape[:2])
        return pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", noted)
    whole = images.encoded(images.photograph(640, 480))
    for data in (whole, tiles.tile(whole, 64)):
        open_picture(data).region(Box(300, 200, 340, 240))
        open_picture(data).region(Box(0, 0, 640, 480), 4)
    (height, width), scaled, (tiled_height, tiled_width), tiled_scaled = decoded
    assert (height, width) <= (72, 72)
    assert (tiled_height, tiled_width) <= (72, 192)
    assert scaled == tiled_scaled == (120, 160)


def test_pixels_are_given_as_they_are():
    pixels = images.pixels()
    found = Pixels(pixels).region(Box(3, 3, 5, 5), 4)
    assert (found.left, found.top, found.factor) == (0, 0, 1)
    assert found.pixels is pixels


def test_a_box_outside_is_the_callers_fault():
    with pytest.raises(OptionError, match="does not lie in the picture"):
        open_picture(images.jpeg()).region(Box(50, 0, 60, 10))


# ---------------------------------------------------------------- scaled: the whole one decoded at that scale, cut


def whole_scaled(data, factor):
    """By libjpeg-turbo, of the pixels as they are stored."""
    height, width = simplejpeg.decode_jpeg_header(data)[:2]
    sizes = {"min_height": -(-height // factor), "min_width": -(-width // factor)}
    pixels = simplejpeg.decode_jpeg(data, "RGB", min_factor=factor, **sizes)
    assert pixels.shape[:2] == tuple(sizes.values())
    return pixels


TURNS = {
    1: lambda pixels: pixels,
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.transpose(1, 0, 2),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: pixels.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda pixels: np.rot90(pixels),
}


def scaled_origin(picture, pixels, orientation, factor):
    """Where the first pixel of the upright scaled picture lies: outside, where the last stored one stands over."""
    height, width = pixels.shape[:2]
    left = picture.width - width * factor if orientation in (2, 3, 6, 7) else 0
    top = picture.height - height * factor if orientation in (3, 4, 7, 8) else 0
    return left, top


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("sampling", [*SAMPLINGS, None])
def test_a_scaled_region_is_cut_from_the_scaled_whole(sampling, factor, orientation, either_way):
    for width, height in [(203, 177), (160, 240)]:
        data = sampled(sampling, width, height)
        expected = TURNS[orientation](whole_scaled(data, factor))
        picture = open_picture(images.turned(data, orientation))
        origin = scaled_origin(picture, expected, orientation, factor)
        for box in boxes_of(picture.width, picture.height):
            found = picture.region(box, factor)
            assert found.factor == factor
            assert_holds(found, box, expected, origin)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([*SAMPLINGS, None]),
    st.integers(1, 150),
    st.integers(1, 150),
    st.sampled_from(ORIENTATIONS),
    st.sampled_from([2, 4, 8]),
    st.booleans(),
    st.data(),
)
def test_so_is_any_box_of_any_size(sampling, width, height, orientation, factor, tiled, data):
    file = sampled(sampling, width, height)
    expected = TURNS[orientation](whole_scaled(file, factor))
    file = images.turned(file, orientation)
    picture = open_picture(tiles.tile(file, 16) if tiled else file)
    left, top = data.draw(st.integers(0, picture.width - 1)), data.draw(st.integers(0, picture.height - 1))
    box = Box(
        left, top, data.draw(st.integers(left + 1, picture.width)), data.draw(st.integers(top + 1, picture.height))
    )
    assert_holds(picture.region(box, factor), box, expected, scaled_origin(picture, expected, orientation, factor))


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_narrow_cut_at_any_edge_is_smoothed_as_the_whole_is(sampling, factor):
    data = sampled(sampling, 107, 107)
    expected, picture = whole_scaled(data, factor), open_picture(data)
    for low in [*range(12), *range(95, 107)]:
        for box in (Box(low, 50, low + 1, 51), Box(50, low, 51, low + 1)):
            assert_holds(picture.region(box, factor), box, expected)


def test_progressive_files_are_scaled_as_well():
    data = images.encoded(images.photograph(203, 177), progressive=True)
    found = open_picture(data).region(Box(50, 40, 150, 140), 4)
    assert_holds(found, Box(50, 40, 150, 140), whole_scaled(data, 4))


# ---------------------------------------------------------------- what is damaged, and what is too large


def read(data, box=None, factor=1):
    picture = open_picture(data)
    return picture.region(box or Box(0, 0, picture.width, picture.height), factor)


def patched(data, at, value):
    return data[:at] + bytes(value) + data[at + len(value) :]


FRAME = images.jpeg().index(b"\xff\xc0")
BAD = {
    "nothing": (b"", "empty file"),
    "text": (b"just text", "not an image"),
    "truncated": (images.truncated(images.jpeg()), "truncated JPEG"),
    "truncated png": (images.truncated(images.png()), "truncated PNG"),
    "end after the start": (b"\xff\xd8\xff\xd9", "cannot decode|before its first scan"),
    "no height": (patched(images.jpeg(), FRAME + 5, b"\0\0"), "cannot decode"),
    "no width": (patched(images.jpeg(), FRAME + 7, b"\0\0"), "cannot decode"),
    "twelve bits": (patched(images.jpeg(), FRAME + 4, b"\x0c"), "cannot decode"),
    "a bomb": (images.bomb_png(), "above the limit"),
    "a jpeg bomb": (patched(images.jpeg(), FRAME + 5, b"\xff\xff\xff\xff"), "65535x65535 is 4294836225 pixels, above"),
    "floats": (images.npy(np.zeros((4, 4, 3))), "is not an image"),
    "an empty array": (images.npy(np.zeros((0, 4, 3), np.uint8)), "is not an image"),
    "a truncated array": (images.npy(images.pixels())[:-1], "truncated array"),
}


@pytest.mark.parametrize(("data", "reason"), BAD.values(), ids=BAD.keys())
def test_bad_files_are_decode_errors(data, reason, either_way):
    with pytest.raises(DecodeError, match=reason):
        read(data)


def test_without_a_height_nothing_is_opened():
    with pytest.raises(DecodeError, match="cannot decode"):
        open_picture(BAD["no height"][0])


LIMITED = {
    "jpg": images.jpeg(),
    "jpg tiled": images.jpeg(restart_marker_blocks=1),
    "jpg progressive": images.jpeg(progressive=True),
    "jpg turned": images.turned(images.jpeg(), 6),
    "jpg CMYK": images.cmyk_jpeg(),
    "png": images.png(),
    "npy": images.npy(images.pixels()),
}


@pytest.mark.parametrize("data", LIMITED.values(), ids=LIMITED.keys())
def test_the_pixel_limit_is_held_before_decoding(data, monkeypatch):
    open_picture(data, max_pixels=1200)

    def reached(*_, **__):
        pytest.fail("it was decoded")

    monkeypatch.setattr("simplejpeg.decode_jpeg", reached)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", reached)
    with pytest.raises(DecodeError, match="1200 pixels, above the limit of 1199"):
        open_picture(data, max_pixels=1199)


def test_the_limit_holds_where_the_whole_is_decoded_after_all(monkeypatch):
    seen = []
    monkeypatch.setattr(codec, "decode", lambda data, max_pixels: seen.append(max_pixels) or images.pixels())
    monkeypatch.setattr(region, "_decode", lambda *_: (_ for _ in ()).throw(ValueError))
    open_picture(images.jpeg(), max_pixels=1300).region(Box(0, 0, 5, 5))
    assert seen == [1300]


def test_damage_that_pillow_lets_pass_does_not_stop_the_region(either_way):
    data = bytearray(sampled("420", 97, 75))
    at = len(data) // 2
    data[at : at + 40] = bytes(40)
    box = Box(0, 50, 97, 75)
    assert_holds(read(bytes(data), box), box, codec.decode(bytes(data)))


SOUND = {
    "420": sampled("420", 60, 44),
    "tiled": tiles.tile(sampled("422", 60, 44), 16) if tiles.HAS_KERNEL else images.jpeg(restart_marker_blocks=1),
    "grey": sampled(None, 60, 44),
    "turned": images.turned(sampled("444", 60, 44), 6),
    "progressive": images.jpeg(progressive=True),
    "arithmetic": images.ARITHMETIC_JPEG,
    "png": images.png(),
    "npy": images.npy(images.pixels()),
    "webp": images.saved(images.picture(), "webp"),
}


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(sorted(SOUND)),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    st.booleans(),
    st.floats(0.02, 1),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
    st.floats(0, 0.9),
    st.floats(0, 0.9),
)
def test_a_mutated_file_is_read_or_is_a_decode_error(name, changes, early, part, factor, kernel, left, top):
    data = bytearray(SOUND[name])
    reach = 700 if early else len(data)  # most headers end there
    for place, value in changes:
        data[int(place * min(reach, len(data)))] = value
    data = bytes(data[: int(len(data) * part)]) + b"\xff\xd9" * (part < 1)
    with pytest.MonkeyPatch.context() as patch:
        if not kernel:
            patch.setattr(tiles, "kernel", None)
        with suppress(DecodeError):
            picture = open_picture(data, 10**6)
            across, down = max(1, picture.width // 10), max(1, picture.height // 10)
            x, y = int(left * picture.width), int(top * picture.height)
            box = Box(x, y, min(x + across, picture.width), min(y + down, picture.height))
            found = picture.region(box, factor)
            mine = box.moved(found.left, found.top, found.factor)
            assert found.pixels.dtype == np.uint8
            assert min(mine[:2]) >= 0
            assert mine.right <= found.pixels.shape[1]
            assert mine.bottom <= found.pixels.shape[0]
            if factor == 1:
                with suppress(DecodeError):
                    np.testing.assert_array_equal(cut(found.pixels, mine), cut(codec.decode(data, 10**6), box))
