import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from tests.support import images
from wds_tools.image.kinds import EXTENSIONS, KINDS, check, sniff

WHOLE = {
    "jpg": images.jpeg(),
    "png": images.png(),
    "webp": images.saved(images.picture(), "webp"),
    "gif": images.saved(images.picture(), "gif"),
    "bmp": images.saved(images.picture(), "bmp"),
    "tiff": images.saved(images.picture(), "tiff"),
    "ppm": images.saved(images.picture(), "ppm"),
    "npy": images.npy(images.pixels()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_magic_bytes_decide(kind):
    data = WHOLE[kind]
    assert sniff(data) == sniff(data[:16]) == sniff(memoryview(data)) == kind
    assert check(kind, data) is None
    assert check(kind, memoryview(data)) is None


def test_the_variants_of_a_kind():
    assert sniff(images.saved(images.picture(), "tiff", big_tiff=True)) == "tiff"
    assert sniff(b"MM\0*" + bytes(12)) == "tiff"
    assert [sniff(b"P%d\n1 1\n" % n) for n in range(8)] == [None, *["ppm"] * 6, None]
    assert sniff(b"GIF87a" + bytes(10)) == "gif"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"P",
        b"P6",
        b"BM",
        b"BMW is a maker of cars",
        b"RIFF\x24\0\0\0WAVEfmt ",
        b"Pictures of cats",
        b"II",
        b"\xff\xd8",
        b"%!PS-Adobe-3.0",
        b"PK\x03\x04",
        b"<html>",
        b"\0\0\0\x20ftypavif",
    ],
)
def test_other_files_are_of_no_kind(data):
    assert sniff(data) is None
    assert check(sniff(data), data) == ("not an image of a known kind" if data else "empty file")


def test_every_suffix_promises_a_known_kind_and_every_kind_is_a_suffix():
    assert set(EXTENSIONS.values()) == set(KINDS)
    assert all(EXTENSIONS[kind] == kind for kind in KINDS)
    assert all(suffix == suffix.lower() and "." not in suffix for suffix in EXTENSIONS)
    assert EXTENSIONS["jpeg"] == "jpg"


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_file_is_not_whole(kind):
    assert check(kind, b"") == "empty file"
    assert check(kind, memoryview(b"")) == "empty file"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("jpg", "truncated JPEG: no end-of-image marker"),
        ("png", "truncated PNG: no IEND chunk"),
        ("webp", "truncated WebP: {} of {} bytes"),
        ("gif", "truncated GIF: no trailer"),
    ],
)
def test_a_cut_file_is_not_whole_wherever_it_is_cut(kind, reason):
    data = WHOLE[kind]
    endings = {"jpg": b"\xff\xd9", "gif": b";"}.get(kind)
    for size in range(16, len(data)):
        if endings and data[:size].endswith(endings):
            continue  # by chance the bytes that end such a file: only decoding can tell
        assert check(kind, data[:size]) == reason.format(size, len(data))


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "gif"])
@pytest.mark.parametrize("tail", [b"\0", b"\0" * 500, b"<!-- tail -->\n", b"\xff\xd8\xff"])
def test_bytes_after_the_end_are_allowed(kind, tail):
    assert check(kind, WHOLE[kind] + tail) is None
    assert check(kind, memoryview(WHOLE[kind] + tail)) is None


@pytest.mark.parametrize(
    "data",
    [
        images.jpeg(progressive=True),
        images.jpeg(mode="L"),
        images.jpeg(restart_marker_blocks=1),
        images.jpeg(200, 150, quality=100),
        images.with_thumbnail(images.jpeg()),
        images.with_segments(images.jpeg(), b"\xff\xd9\xff\xda" * 1000),
        images.ARITHMETIC_JPEG,
    ],
)
def test_the_markers_of_a_jpeg_are_walked(data):
    assert check("jpg", data + b"tail") is None
    assert check("jpg", data[:-2]) == "truncated JPEG: no end-of-image marker"
    assert check("jpg", data[:-2] + b"tail") == "truncated JPEG: no end-of-image marker"


def test_the_end_of_a_thumbnail_is_not_the_end_of_the_image():
    data = images.with_thumbnail(images.jpeg())
    after_thumbnail = data.index(b"\xff\xd9") + 2
    assert check("jpg", data[: after_thumbnail + 100]) == "truncated JPEG: no end-of-image marker"
    assert check("jpg", b"\xff\xd8\xff\xd9tail") == "damaged JPEG: it ends before its first scan"


def test_a_gif_is_walked_through_local_colour_tables_and_extensions():
    data = images.animation("gif")
    assert check("gif", data + b"tail") is None
    assert check("gif", data[:-1] + b"tail") == "truncated GIF: no trailer"
    colours = Image.frombytes("P", (2, 2), bytes(4))
    colours.putpalette(b";,!" * 256)
    data = images.saved(colours, "gif", optimize=False)
    assert check("gif", data + b"tail") is None
    assert check("gif", data[:-1] + b"tail") == "truncated GIF: no trailer"


MUTATIONS = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=12)


@st.composite
def hostile(draw):
    """Whole files with bytes changed, cut out, or added, and bytes that never were a file."""
    data = bytearray(draw(st.sampled_from(sorted(WHOLE.values()))))
    for place, value in draw(MUTATIONS):
        data[place % len(data)] = value
    start = draw(st.integers(0, len(data)))
    data[start : start + draw(st.integers(0, 40))] = draw(st.binary(max_size=40))
    return bytes(data)


@given(st.one_of(hostile(), st.binary(max_size=300)))
@example(b"\xff" * 100)
@example(b"\xff\x01" * 1000)
@example(b"GIF89a" + b"," * 1000)
@example(b"\x89PNG\r\n\x1a\n" + bytes(1000))
def test_hostile_bytes_neither_raise_nor_loop(data):
    assert sniff(data) in (None, *KINDS)
    for kind in (None, *KINDS):
        assert isinstance(check(kind, data), str | None)
        assert check(kind, memoryview(data)) == check(kind, data)


def test_asking_imports_nothing_heavy():
    code = "import sys, wds_tools.image.codec; print({'PIL', 'numpy', 'simplejpeg', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
