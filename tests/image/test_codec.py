import io
import struct
import warnings
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageOps, JpegImagePlugin, PngImagePlugin

from tests.support import images
from wds_tools.errors import DecodeError, OptionError, SampleError
from wds_tools.image import codec

# ---------------------------------------------------------------- decoding: one conversion for each mode


def as_pillow(data):
    """What ImageFolder's default loader gives, turned upright."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


def assert_pixels(data, expected):
    array = codec.decode(data)
    assert array.dtype == np.uint8
    assert array.flags.c_contiguous
    assert array.flags.writeable
    np.testing.assert_array_equal(array, expected)
    image = codec.decode_pil(memoryview(data))
    assert (image.mode, image.info) == ("RGB", {})
    np.testing.assert_array_equal(np.asarray(image), expected)
    assert codec.dimensions(data) == image.size


AS_PILLOW = {
    **{f"jpg {mode}": images.jpeg(mode=mode) for mode in ("RGB", "L", "CMYK")},
    **{f"jpg {sampling}": images.sampled_jpeg(sampling) for sampling in ("444", "422", "420", "440", "411")},
    "jpg YCCK": images.ycck_jpeg(),
    "jpg RGB not YCC": images.jpeg(keep_rgb=True, subsampling=0),
    "jpg progressive": images.jpeg(progressive=True),
    "jpg progressive grey": images.jpeg(mode="L", progressive=True),
    "jpg progressive CMYK": images.jpeg(mode="CMYK", progressive=True),
    "jpg restarts": images.jpeg(restart_marker_blocks=2),
    "jpg arithmetic": images.ARITHMETIC_JPEG,
    "jpg trailing garbage": images.jpeg() + b"garbage" * 50,
    "jpg thumbnail": images.with_thumbnail(images.jpeg()),
    "jpg 5 MB of APP4": images.with_segments(images.jpeg(), bytes(65_000), 80),
    "jpg 5 MB of comments": images.with_segments(images.jpeg(), bytes(65_000), 80, marker=0xFE),
    "jpg one pixel": images.jpeg(1, 1),
    "jpg fill bytes": images.jpeg().replace(b"\xff\xdb", b"\xff\xff\xff\xdb"),
    **{f"png {mode}": images.png(mode=mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA")},
    "png P with a transparent colour": images.png(mode="P", transparency=3),
    "png P with alphas": images.png(mode="P", transparency=bytes(range(0, 256, 16))),
    "png RGB with a transparent colour": images.png(transparency=(0, 0, 64)),
    "png L with a transparent grey": images.png(mode="L", transparency=60),
    "png interlaced animation": images.animation("png"),
    **{
        f"tiff {mode}": images.saved(images.picture(mode=mode), "tiff") for mode in ("1", "L", "LA", "P", "RGB", "RGBA")
    },
    "tiff PA": images.saved(images.picture(mode="PA"), "tiff"),
    "tiff CMYK": images.saved(images.picture(mode="CMYK"), "tiff"),
    "tiff YCbCr": images.saved(images.picture(mode="YCbCr"), "tiff"),
    "tiff lzw": images.saved(images.picture(), "tiff", compression="tiff_lzw"),
    "tiff jpeg": images.saved(images.picture(), "tiff", compression="jpeg"),
    "tiff pages": images.animation("tiff"),
    **{f"webp {mode}": images.saved(images.picture(mode=mode), "webp") for mode in ("RGB", "RGBA")},
    "webp lossless": images.saved(images.picture(), "webp", lossless=True),
    "webp animation": images.animation("webp"),
    **{f"gif {mode}": images.saved(images.picture(mode=mode), "gif") for mode in ("L", "P", "RGB")},
    "gif with a transparent colour": images.saved(images.picture(mode="P"), "gif", transparency=3),
    "gif animation": images.animation("gif"),
    **{f"bmp {mode}": images.saved(images.picture(mode=mode), "bmp") for mode in ("1", "L", "P", "RGB", "RGBA")},
    **{f"ppm {mode}": images.saved(images.picture(mode=mode), "ppm") for mode in ("1", "L", "RGB")},
    "ppm plain": b"P3 2 1 255\n1 2 3 4 5 6\n",
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("data", AS_PILLOW.values(), ids=AS_PILLOW.keys())
def test_a_file_becomes_the_pixels_that_pillow_makes_of_it(data):
    assert_pixels(data, as_pillow(data))


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("quality", [10, 75, 100])
def test_the_fast_path_gives_pillows_pixels_bit_for_bit(subsampling, progressive, quality):
    for width, height in [(97, 61), (8, 8), (17, 1)]:
        data = images.jpeg(width, height, subsampling=subsampling, progressive=progressive, quality=quality)
        np.testing.assert_array_equal(codec.decode(data), as_pillow(data))


def test_plain_jpegs_take_the_fast_path_and_no_others(monkeypatch):
    class Reached(Exception):
        pass

    def reached(*_):
        raise Reached

    monkeypatch.setattr("simplejpeg.decode_jpeg", reached)
    for data in (images.jpeg(), images.jpeg(mode="L"), images.jpeg(progressive=True), images.with_exif_orientation(1)):
        with pytest.raises(Reached):
            codec.decode(data)
    for data in (images.cmyk_jpeg(), images.ycck_jpeg(), images.with_exif_orientation(6), images.png()):
        codec.decode(data)


def test_adobes_inverted_ink_is_put_right():
    difference = codec.decode(images.cmyk_jpeg()).astype(int) - images.pixels()
    assert np.abs(difference).mean() < 8


SIXTEEN_BITS = {
    "png": images.sixteen_bit_png(),
    "pgm": images.sixteen_bit_pgm(),
    "tiff": images.saved(Image.fromarray(images.sixteen_bits()), "tiff"),
    "tiff big-endian": images.saved(Image.frombytes("I;16B", (40, 30), images.sixteen_bits().astype(">u2")), "tiff"),
    "tiff 12 bits": images.twelve_bit_tiff(images.pixels()[..., 2]),
}


@pytest.mark.parametrize("data", SIXTEEN_BITS.values(), ids=SIXTEEN_BITS.keys())
def test_of_16_bit_grey_the_high_byte_is_taken(data):
    assert_pixels(data, np.repeat(images.pixels()[..., 2:], 3, axis=2))


def test_of_16_bit_colour_the_high_byte_is_taken():
    wide = (images.pixels().astype(np.uint16) << 8) + 0x7F
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in wide)
    header = struct.pack(">IIBBBBB", 40, 30, 16, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    assert_pixels(b"\x89PNG\r\n\x1a\n" + b"".join(images.chunk(*part) for part in parts), images.pixels())


@pytest.mark.parametrize("mode", ["F", "I", "LAB"])
def test_pixels_without_a_certain_white_are_refused(mode):
    image = Image.new("LAB", (4, 3)) if mode == "LAB" else images.picture(mode=mode)
    with pytest.raises(DecodeError, match=f"tiff pixels of mode {mode} have no conversion"):
        codec.decode(images.saved(image, "tiff"))


@pytest.mark.parametrize("kind", ["png", "webp", "gif"])
def test_of_an_animation_the_first_frame_is_taken(kind):
    difference = codec.decode(images.animation(kind)).astype(int) - images.pixels()
    assert np.abs(difference).mean() < 8


# ---------------------------------------------------------------- orientation


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "tiff"])
def test_the_exif_orientation_is_applied(kind, orientation):
    data = images.with_exif_orientation(orientation, kind)
    assert_pixels(data, as_pillow(data))
    assert codec.dimensions(data) == ((30, 40) if orientation >= 5 else (40, 30))


def test_orientation_6_turns_the_left_side_up():
    data = images.with_exif_orientation(6, "png")
    np.testing.assert_array_equal(codec.decode(data), np.rot90(images.pixels(), -1))


@pytest.mark.parametrize("orientation", [1, 3, 8])
def test_an_orientation_behind_the_pixels_of_a_png_counts_too(orientation):
    assert_pixels(images.with_late_exif(orientation), as_pillow(images.with_late_exif(orientation)))


def test_an_orientation_in_xmp_counts_too():
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    data = images.jpeg(xmp=xmp)
    assert_pixels(data, as_pillow(data))
    assert codec.dimensions(data) == (30, 40)


@pytest.mark.parametrize(
    "exif",
    [
        b"Exif\0\0",
        b"Exif\0\0garbage garbage",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x12\x01\x03\0\xff\xff\xff\xff" * 20,
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x02\0\0\0a\0\0\0\0\0\0\0",
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x63\0\0\0\0\0\0\0",
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_metadata_that_cannot_be_read_counts_as_upright(exif):
    plain = images.jpeg()
    assert_pixels(images.with_segments(plain, exif, marker=0xE1), as_pillow(plain))


# ---------------------------------------------------------------- bad files


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "gif", "bmp", "tiff", "ppm"])
@pytest.mark.parametrize("part", [0.02, 0.3, 0.7, 0.95])
def test_a_cut_file_is_a_decode_error(kind, part):
    whole = images.saved(images.picture(), kind)
    for function in (codec.decode, codec.decode_pil):
        with pytest.raises(DecodeError):
            function(images.truncated(whole, part))


@pytest.mark.parametrize("data", [images.jpeg(200, 150), images.jpeg(200, 150, progressive=True), images.cmyk_jpeg()])
def test_a_jpeg_with_a_hole_behind_which_it_ends_well(data):
    """Pillow's verify() passes such files, and libjpeg only warns where bits were left to fill the picture."""
    start = data.index(b"\xff\xda") + 14
    for function in (codec.decode, codec.decode_pil):
        with pytest.raises(DecodeError, match="truncated"):
            function(data[: start + 40])
        with pytest.raises(DecodeError, match="truncated"):
            function(data[:-2])


BAD = {
    "empty": (b"", "empty file"),
    "text": (b"<html>404</html>", "not an image of a known kind"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image of a known kind"),
    "jpg of nothing": (b"\xff\xd8\xff\xd9", "cannot decode this jpg"),
    "jpg 12 bits": (images.jpeg().replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"), "12-bit"),
    "jpg no pixels": (images.jpeg().replace(b"\0\x1e\0\x28", b"\0\0\0\0"), "cannot decode this jpg"),
    "png no pixels": (images.bomb_png(0, 5), "cannot decode this png"),
    "png few pixels": (images.bomb_png(500, 500), "cannot decode this png"),
    "png text bomb": (images.text_bomb_png(), "cannot decode this png: .*too large"),
    "png checksum": (images.png().replace(b"IHDR", b"IHDX"), "cannot decode this png"),
    "gif no frame": (b"GIF89a\1\0\1\0\0\0\0;", "cannot decode this gif"),
    "webp nonsense": (b"RIFF\x10\0\0\0WEBPVP8 nonsense", "cannot decode this webp"),
    "bmp nonsense": (b"BM" + bytes(12) + b"\x28\0\0\0" + bytes(36), "cannot decode this bmp"),
    "tiff nonsense": (b"II*\0\x08\0\0\0" + bytes(40), "cannot decode this tiff"),
    "ppm nonsense": (b"P6 a b c\n", "cannot decode this ppm"),
    "npy float": (images.npy(np.zeros((3, 4, 3))), "float64 array with shape .* is not an image"),
    "npy flat": (images.npy(np.zeros(12, np.uint8)), "is not an image"),
    "npy empty": (images.npy(np.zeros((0, 3, 3), np.uint8)), "is not an image"),
}


@pytest.mark.parametrize(("data", "reason"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_says_what_is_wrong(data, reason):
    for function in (codec.decode, codec.decode_pil):
        with pytest.raises(DecodeError, match=reason) as caught:
            function(data)
        assert str(caught.value).isprintable()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "data",
    [
        images.bomb_png(),
        images.jpeg().replace(b"\0\x1e\0\x28", b"\xff\xdc\xff\xdc"),
        images.saved(Image.new("1", (1, 1)), "bmp").replace(
            struct.pack("<II", 1, 1), struct.pack("<II", 60_000, 60_000)
        ),
        b"P6 60000 60000 255\n",
        images.tiff(b"", 60_000, 60_000, 8),
    ],
    ids=["png", "jpg", "bmp", "ppm", "tiff"],
)
def test_a_bomb_is_refused_before_it_is_decoded(data, monkeypatch):
    def load(image):
        pytest.fail(f"{image} was decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", load)
    width, height = codec.dimensions(data)
    for function in (codec.decode, codec.decode_pil):
        with pytest.raises(
            DecodeError, match=f"{width}x{height} is {width * height} pixels, above the limit of 89478485"
        ):
            function(data)


def test_a_gif_or_webp_bomb_is_refused():
    gif = images.saved(images.picture(), "gif")
    with pytest.raises(DecodeError, match="pixels"):
        codec.decode(gif[:6] + struct.pack("<HH", 60_000, 60_000) + gif[10:])
    canvas = (59_999).to_bytes(3, "little") * 2
    webp = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + canvas
    with pytest.raises(DecodeError):
        codec.decode(b"RIFF" + struct.pack("<I", len(webp)) + webp)


def test_the_pixel_limit_is_the_callers():
    for data in (images.jpeg(), images.png(), images.npy(images.pixels())):
        for function in (codec.decode, codec.decode_pil):
            function(data, 1200)
            with pytest.raises(DecodeError, match="40x30 is 1200 pixels, above the limit of 1199"):
                function(data, 1199)
        assert codec.dimensions(data) == (40, 30)


def test_pillows_own_limit_does_not_bind_ours(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert codec.decode(images.png()).shape == codec.decode(images.jpeg()).shape == (30, 40, 3)


@pytest.mark.parametrize(
    "foreign",
    [
        OSError("image file is truncated\x1b[31m\n\u202eat"),
        SyntaxError("broken PNG file"),
        ValueError("Decompressed data too large"),
        struct.error("unpack requires a buffer"),
        EOFError(),
        ZeroDivisionError(),
        OverflowError(),
        MemoryError(),
        IndexError(),
        KeyError(3),
        TypeError(),
        AttributeError("tell me"),
        AssertionError(),
        NotImplementedError(),
        RecursionError(),
        zlib.error("incorrect header check"),
        Image.DecompressionBombError("Image size exceeds limit"),
        Image.DecompressionBombWarning("Image size exceeds limit"),
        UserWarning("Corrupt EXIF data"),
    ],
    ids=repr,
)
def test_every_foreign_exception_is_mapped(foreign, monkeypatch):
    def fail(*_):
        raise foreign

    for place in ("_open", "load_prepare"):
        with monkeypatch.context() as patch:
            patch.setattr(PngImagePlugin.PngImageFile, place, fail)
            with pytest.raises(DecodeError) as caught:
                codec.decode(images.png())
            assert foreign in (caught.value.__cause__, caught.value.__cause__.__cause__)
            assert str(caught.value).isprintable()
            if place == "_open":
                with pytest.raises(DecodeError):
                    codec.dimensions(images.png())


def test_a_bug_is_not_called_a_bad_image(monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "_open", fail)
    with pytest.raises(KeyboardInterrupt):
        codec.decode(images.jpeg())


def test_two_frame_headers_cannot_show_the_limit_one_size_and_the_decoder_another():
    data = images.jpeg(400, 300)
    frame = data.index(b"\xff\xc0")
    small = data[frame : frame + 5] + struct.pack(">HH", 3, 4) + data[frame + 9 : frame + 19]
    try:
        shape = codec.decode(data[:frame] + data[frame : frame + 19] + small + data[frame + 19 :], 100).shape
    except DecodeError:
        return
    assert shape == (3, 4, 3)


def test_where_the_fast_path_sees_another_size_pillow_decodes(monkeypatch):
    monkeypatch.setattr("simplejpeg.decode_jpeg_header", lambda _: (3000, 4000, "YCbCr", "420"))
    monkeypatch.setattr("simplejpeg.decode_jpeg", lambda *_: pytest.fail("decoded beyond the limit"))
    np.testing.assert_array_equal(codec.decode(images.jpeg(), 1200), as_pillow(images.jpeg()))


WHOLE = [
    *(images.saved(images.picture(), kind) for kind in ("jpg", "png", "webp", "gif", "bmp", "tiff", "ppm")),
    images.jpeg(progressive=True),
    images.cmyk_jpeg(),
    images.with_exif_orientation(6, "jpg"),
    images.with_exif_orientation(6, "png"),
    images.with_exif_orientation(6, "tiff"),
    images.with_late_exif(6),
    images.ARITHMETIC_JPEG,
    images.sixteen_bit_png(),
    images.sixteen_bit_pgm(),
    images.animation("gif"),
    images.animation("webp"),
    images.saved(images.picture(), "tiff", compression="tiff_lzw"),
    images.npy(images.pixels()),
]


@st.composite
def mutated(draw):
    """A whole file with a few bytes changed, most of them in its headers, and a piece cut out or put in."""
    data = bytearray(draw(st.sampled_from(WHOLE)))
    for place, value in draw(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=8)):
        data[place % len(data)] = value
    if draw(st.booleans()):
        start = draw(st.integers(0, len(data)))
        data[start : start + draw(st.integers(0, 30))] = draw(st.binary(max_size=30))
    return bytes(data)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
@example(b"P6 9999999999 9999999999 255\n")
@example(b"\x89PNG\r\n\x1a\n")
def test_from_a_mutated_file_only_a_decode_error_escapes_and_both_decoders_agree(data):
    with suppress(DecodeError):
        codec.dimensions(data)
    try:
        array = codec.decode(data, 1_000_000)
    except DecodeError:
        with pytest.raises(DecodeError):
            codec.decode_pil(data, 1_000_000)
    else:
        np.testing.assert_array_equal(array, np.asarray(codec.decode_pil(data, 1_000_000)))


# ---------------------------------------------------------------- arrays as images


@pytest.mark.parametrize("kept", [np.s_[:], np.s_[..., :1], np.s_[..., 0]], ids=["RGB", "one channel", "grey"])
def test_an_array_is_an_image(kept):
    array = images.pixels()[kept]
    grey = array.reshape(30, 40, -1)
    assert_pixels(images.npy(array), np.broadcast_to(grey, (30, 40, 3)))
    assert_pixels(images.npy(np.asfortranarray(array)), np.broadcast_to(grey, (30, 40, 3)))


# ---------------------------------------------------------------- shrinking


@pytest.mark.parametrize(
    ("before", "size", "after"),
    [
        ((500, 375), 256, (341, 256)),
        ((375, 500), 256, (256, 341)),
        ((640, 480), 240, (320, 240)),
        ((501, 2), 1, (251, 1)),
        ((300, 300), 256, (256, 256)),
        ((256, 999), 256, (256, 999)),
        ((100, 999), 256, (100, 999)),
    ],
)
def test_the_shorter_side_is_brought_down_and_never_up(before, size, after):
    assert codec.shrink(Image.new("RGB", before), size).size == after


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000))
@settings(max_examples=60)
def test_the_aspect_is_kept_to_half_a_pixel(width, height, size):
    short = min(width, height)
    got = codec.shrink(Image.new("1", (width, height)), size).size
    assert min(got) == min(short, size)
    if size < short:
        assert all(abs(side - was * size / short) <= 0.5 for side, was in zip(got, (width, height), strict=True))


def test_shrinking_is_antialiased():
    checkers = Image.fromarray((np.indices((256, 256)).sum(0) % 2 * 255).astype(np.uint8))
    shrunk = np.asarray(codec.shrink(checkers, 32))
    assert 100 < shrunk.min() <= shrunk.max() < 155


@pytest.mark.parametrize("size", [0, -1, 2.5, "256", True])
def test_a_bad_size_is_printed(size):
    with pytest.raises(OptionError, match=f"image size .* not {size!r}"):
        codec.shrink(images.picture(), size)


# ---------------------------------------------------------------- encoding


def with_metadata():
    image = images.picture()
    exif = Image.Exif()
    exif[0x010E] = "a secret"
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return Image.open(
        io.BytesIO(
            images.saved(image, "jpg", quality=100, exif=exif, comment=b"a secret", icc_profile=srgb, dpi=(300, 300))
        )
    )


@pytest.mark.parametrize("kind", codec.ENCODINGS)
def test_encoding_is_repeatable_and_writes_no_metadata(kind):
    image = with_metadata()
    data = codec.encode(image, kind)
    assert codec.sniff(data) == kind
    assert codec.check(kind, data) is None
    plain = Image.fromarray(np.asarray(image))
    assert data == codec.encode(image, kind) == codec.encode(plain, kind)
    assert b"secret" not in data
    assert b"ICC" not in data
    assert image.info["comment"] == b"a secret"  # what was handed in is left as it was


@pytest.mark.parametrize(("kind", "tolerance"), [("jpg", 6), ("webp", 6), ("png", 0), ("npy", 0)])
def test_encoded_pixels_come_back(kind, tolerance):
    again = codec.decode(codec.encode(images.picture(), kind))
    assert np.abs(again.astype(int) - images.pixels()).mean() <= tolerance


def test_jpegs_are_baseline_420_at_quality_90():
    data = codec.encode(images.picture(), "jpg")
    with Image.open(io.BytesIO(data)) as image:
        assert JpegImagePlugin.get_sampling(image) == 2
        assert "progressive" not in image.info
    assert data == codec.encode(images.picture(), "jpg", 90) == images.jpeg(quality=90, subsampling=2)
    assert codec.encode(images.picture(), "webp") == codec.encode(images.picture(), "webp", 90)


@pytest.mark.parametrize("kind", ["jpg", "webp"])
def test_quality_counts(kind):
    sizes = [len(codec.encode(images.picture(200, 150), kind, quality)) for quality in (1, 50, 90, 100)]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("kind", codec.ENCODINGS)
@pytest.mark.parametrize("quality", [0, 101, -1, 90.0, "90", True])
def test_a_bad_quality_is_printed(kind, quality):
    with pytest.raises(OptionError, match=f"quality .* not {quality!r}"):
        codec.encode(images.picture(), kind, quality)


@pytest.mark.parametrize("kind", ["gif", "jpeg", "", "tiff"])
def test_a_kind_that_is_not_written_is_printed(kind):
    with pytest.raises(OptionError, match=f"cannot encode to {kind!r}: choose one of jpg, png, webp, npy"):
        codec.encode(images.picture(), kind)


@pytest.mark.parametrize("kind", ["jpg", "webp"])
def test_a_picture_too_long_for_its_format_is_that_samples_error(kind):
    with pytest.raises(SampleError, match=f"70000x1 pixels cannot be encoded as {kind}"):
        codec.encode(Image.new("RGB", (70_000, 1)), kind)


# ---------------------------------------------------------------- the whole way


@pytest.mark.parametrize("kind", codec.ENCODINGS)
@pytest.mark.parametrize(
    "source", [images.jpeg(400, 300), images.cmyk_jpeg(400, 300), images.sixteen_bit_png(400, 300)]
)
def test_transcoding_is_decoding_shrinking_and_encoding(kind, source):
    image = codec.shrink(codec.decode_pil(source), 64)
    assert image.size == (85, 64)
    assert codec.transcode(source, kind, 64, 80) == codec.encode(image, kind, 80)
    assert codec.transcode(source, kind) == codec.encode(codec.decode_pil(source), kind)


def test_transcoding_delivers_upright_pixels_without_the_tag():
    data = codec.transcode(images.with_exif_orientation(6), "jpg")
    assert codec.dimensions(data) == (30, 40)
    assert b"Exif" not in data


def test_transcoding_keeps_the_limit():
    with pytest.raises(DecodeError, match="above the limit of 10"):
        codec.transcode(images.png(), "png", max_pixels=10)


# ---------------------------------------------------------------- what other rooms borrow


def test_whole_bytes_come_with_their_kind():
    for kind in ("jpg", "png", "webp", "gif", "bmp", "tiff", "ppm"):
        data = images.saved(images.picture(), kind)
        assert codec.whole(data) == (data, kind)
        assert codec.whole(memoryview(data)) == (data, kind)
        assert type(codec.whole(memoryview(data))[0]) is bytes
    assert codec.whole(images.npy(images.pixels()))[1] == "npy"
    for data in (b"", b"text", images.truncated(images.jpeg()), images.truncated(images.png())):
        with pytest.raises(DecodeError):
            codec.whole(data)


def test_the_limit_names_the_size():
    codec.limit((40, 30), 1200)
    with pytest.raises(DecodeError, match=r"^40x30 is 1200 pixels, above the limit of 1199$"):
        codec.limit((40, 30), 1199)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_jpegs_orientation_is_read(orientation):
    assert codec.jpeg_orientation(images.with_exif_orientation(orientation)) == orientation
    assert codec.jpeg_orientation(images.turned(images.jpeg(), orientation)) == orientation


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "data",
    [
        images.jpeg(),
        images.turned(images.jpeg(), 0),
        images.turned(images.jpeg(), 9),
        images.with_segments(images.jpeg(), b"Exif\0\0garbage", marker=0xE1),
        images.with_segments(images.jpeg(), b"Exif\0\0II*\0\xff\xff\xff\xff", marker=0xE1),
        images.with_thumbnail(images.jpeg()),
        images.jpeg()[:30],
        b"\xff\xd8\xff\xd9",
        b"text",
        b"",
    ],
)
def test_an_orientation_that_cannot_be_read_is_upright(data):
    assert codec.jpeg_orientation(data) == 1


def test_array_pixels_are_rgb_rows_of_their_own():
    for array in (
        images.pixels(),
        np.asfortranarray(images.pixels()),
        images.pixels()[..., 0],
        images.pixels()[..., :1],
    ):
        pixels = codec.array_pixels(images.npy(array), 1200)
        assert (pixels.dtype, pixels.shape) == (np.uint8, (30, 40, 3))
        assert pixels.flags.c_contiguous
        assert pixels.flags.writeable
        np.testing.assert_array_equal(pixels, np.broadcast_to(array.reshape(30, 40, -1), (30, 40, 3)))
        with pytest.raises(DecodeError, match="above the limit of 1199"):
            codec.array_pixels(images.npy(array), 1199)
    for array in (
        np.zeros(5, np.uint8),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((4, 4, 3)),
        np.zeros((0, 4), np.uint8),
    ):
        with pytest.raises(DecodeError, match="is not an image"):
            codec.array_pixels(images.npy(array), 1200)


@pytest.mark.parametrize(
    ("at_least", "size"), [(None, (800, 480)), (481, (800, 480)), (240, (400, 240)), (100, (200, 120)), (1, (100, 60))]
)
def test_a_thumbnail_of_a_jpeg_is_decoded_smaller_but_never_too_small(
    at_least: int | None, size: tuple[int, int]
) -> None:
    data = images.jpeg(800, 480)
    small = codec.decode_pil(data, at_least=at_least)
    assert small.size == size
    whole = codec.decode_pil(data).resize(size)
    assert np.abs(np.asarray(small, np.int16) - np.asarray(whole, np.int16)).mean() < 3
    assert codec.decode_pil(images.png(800, 480), at_least=at_least).size == (800, 480)
