import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.support import images, needs
from wds_tools.image import tiles
from wds_tools.image.resize import Box, resize

SIDES = st.integers(1, 80)
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(params=["kernel", "no kernel"])
def either_way(request, monkeypatch):
    if request.param == "no kernel":
        monkeypatch.setattr(tiles, "kernel", None)
    else:
        tiles.require_kernel()


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def resized(pixels, box, height, width, mirrored=False):
    out = np.full((3, height, width), 77, np.uint8)
    resize(pixels, Box(*box), out, mirrored)
    return out


def by_pillow(pixels, box, height, width):
    image = Image.fromarray(np.ascontiguousarray(pixels)).resize((width, height), Image.Resampling.BILINEAR, box)
    return np.moveaxis(np.asarray(image), 2, 0)


def difference(one, other):
    return np.abs(one.astype(int) - other.astype(int))


def whole(pixels):
    return (0, 0, pixels.shape[1], pixels.shape[0])


@st.composite
def edges(draw, length):
    """Two edges within a length, on pixels or between them."""
    if draw(st.booleans()):
        low = draw(st.integers(0, length - 1))
        return low, draw(st.integers(low + 1, length))
    low = draw(st.floats(0, length - 0.01))
    return low, draw(st.floats(low + 0.005, length))


@st.composite
def jobs(draw):
    pixels = noise(draw(SIDES), draw(SIDES), draw(st.integers(0, 99)))
    (top, bottom), (left, right) = draw(edges(pixels.shape[0])), draw(edges(pixels.shape[1]))
    return pixels, (left, top, right, bottom), draw(SIDES), draw(SIDES)


# ---------------------------------------------------------------- what the filter is


@settings(max_examples=300, deadline=None)
@given(jobs())
def test_of_any_box_it_is_pillows_bilinear_to_one_grey_level(job):
    assert difference(resized(*job), by_pillow(*job)).max() <= 1


LARGE = [
    ((375, 500), (224, 224)),
    ((1200, 900), (64, 96)),
    ((100, 60), (224, 224)),
    ((900, 1500), (7, 5)),
    ((1, 500), (224, 224)),
    ((500, 1), (3, 224)),
]


@pytest.mark.parametrize(("size", "out"), LARGE, ids=str)
def test_of_large_pictures_as_well(size, out, either_way):
    pixels = images.photograph(size[1], size[0])
    found = difference(resized(pixels, whole(pixels), *out), by_pillow(pixels, whole(pixels), *out))
    assert found.max() <= 1
    assert found.mean() <= 0.2


@pytest.mark.parametrize(("size", "out"), LARGE, ids=str)
def test_the_kernel_gives_the_grey_level_that_is_nearest(size, out):
    """Pillow rounds between its two passes and so is further from what the filter gives in floating numbers."""
    pixels = images.photograph(size[1], size[0])
    bands = [Image.fromarray(pixels[..., c].astype(np.float32)) for c in range(3)]
    exact = np.stack([np.asarray(band.resize(out[::-1], Image.Resampling.BILINEAR)) for band in bands])
    assert np.abs(resized(pixels, whole(pixels), *out) - exact).max() < 0.51


@settings(max_examples=100, deadline=None)
@given(SIDES, SIDES, SIDES, SIDES)
def test_of_whole_pictures_it_is_torchs_antialiased_one(height, width, out_height, out_width):
    pixels = noise(height, width)
    planes = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    done = torch.nn.functional.interpolate(planes, size=(out_height, out_width), mode="bilinear", antialias=True)
    assert difference(resized(pixels, whole(pixels), out_height, out_width), done[0].numpy()).max() <= 1


@pytest.mark.parametrize(("length", "count"), [(300, 1), (65_000, 1), (65_000, 2), (40_000, 3), (1 << 20, 2)])
def test_a_mean_of_very_many_pixels_is_their_mean(length, count):
    """A weight may then be less than the smallest number of the fixed point."""
    ramp = np.repeat(np.linspace(0, 255, length).astype(np.uint8)[None, :, None], 3, axis=2)
    for pixels in (ramp, np.ascontiguousarray(ramp.transpose(1, 0, 2))):
        out = (1, count) if pixels is ramp else (count, 1)
        expected = [255 * (2 * i + 1) / (2 * count) for i in range(count)] if count < 3 else None
        found = resized(pixels, whole(pixels), *out)
        assert difference(found, by_pillow(pixels, whole(pixels), *out)).max() <= 1
        if count == 1:
            assert difference(found, np.array(expected)).max() <= 1


def test_where_nothing_changes_the_pixels_are_the_same(either_way):
    pixels = noise(50, 70)
    np.testing.assert_array_equal(resized(pixels, whole(pixels), 50, 70), pixels.transpose(2, 0, 1))
    np.testing.assert_array_equal(resized(pixels, (9, 4, 29, 19), 15, 20), pixels[4:19, 9:29].transpose(2, 0, 1))


@settings(deadline=None)
@given(jobs(), st.integers(0, 255))
def test_a_flat_picture_stays_exactly_flat(job, grey):
    pixels, *rest = job
    assert np.all(resized(np.full_like(pixels, grey), *rest) == grey)


def test_the_filter_looks_past_the_box_but_not_past_the_pixels(either_way):
    pixels = np.zeros((60, 60, 3), np.uint8)
    pixels[20:40, 20:40] = 200
    box = (20, 20, 40, 40)
    seen = resized(pixels, box, 5, 5)
    assert (seen[:, 2, 2] == 200).all()
    assert (seen[:, 0] < 200).all(), "black from outside"
    held_back = resized(pixels[20:40, 20:40], (0, 0, 20, 20), 5, 5)
    assert (held_back == 200).all()


@pytest.mark.parametrize("box", [(-1e-9, 0, 20, 10), (0, -1e-9, 20 + 1e-9, 10 + 1e-9)])
def test_edges_a_hair_outside_are_the_edges(box, either_way):
    pixels = noise(10, 20)
    np.testing.assert_array_equal(resized(pixels, box, 5, 6), resized(pixels, (0, 0, 20, 10), 5, 6))


# ---------------------------------------------------------------- the same, however it is done


@settings(max_examples=200, deadline=None)
@given(jobs(), st.booleans())
def test_with_and_without_avx2_it_is_the_same_to_the_bit(job, mirrored):
    pixels, box, height, width = job
    out = np.empty((2, 3, height, width), np.uint8)
    for portable in (False, True):
        tiles.kernel.resize(pixels, *box, out[int(portable)], mirrored, portable)
    np.testing.assert_array_equal(out[0], out[1])


@settings(deadline=None)
@given(jobs())
def test_mirrored_is_flipped(job):
    np.testing.assert_array_equal(resized(*job, mirrored=True), resized(*job)[:, :, ::-1])


def test_mirrored_is_flipped_without_the_kernel(monkeypatch):
    monkeypatch.setattr(tiles, "kernel", None)
    pixels = noise(40, 50)
    for box in (whole(pixels), (3.5, 2, 41.25, 38)):
        np.testing.assert_array_equal(resized(pixels, box, 20, 30, True), resized(pixels, box, 20, 30)[:, :, ::-1])


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_without_the_kernel_it_differs_by_the_rounding(job):
    pixels, _, height, width = job
    with_kernel = resized(*job), resized(pixels, whole(pixels), height, width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "kernel", None)
        without = resized(*job), resized(pixels, whole(pixels), height, width)
    for one, other in zip(with_kernel, without, strict=True):
        assert difference(one, other).max() <= 1


VIEWS = {
    "cut": lambda pixels: pixels[5:35, 7:47],
    "upside down": lambda pixels: pixels[::-1],
    "mirrored": lambda pixels: pixels[:, ::-1],
    "turned": lambda pixels: pixels.transpose(1, 0, 2)[::-1],
    "every other": lambda pixels: pixels[::2, ::3],
    "blue first": lambda pixels: pixels[..., ::-1],
    "one column": lambda pixels: pixels[:, 3:4],
    "one row, turned": lambda pixels: pixels[4:5].transpose(1, 0, 2),
    "one pixel, mirrored": lambda pixels: pixels[:, ::-1][:1, 2:3],
    "one row repeated": lambda pixels: np.broadcast_to(pixels[:1], pixels.shape),
    "read-only": lambda pixels: np.frombuffer(pixels.tobytes(), np.uint8).reshape(pixels.shape),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_any_view_of_pixels_will_do(view, either_way):
    pixels = view(noise(40, 50))
    box = (0, 0, pixels.shape[1], pixels.shape[0] / 1.5)
    for area in (box, whole(pixels)):
        found = resized(pixels, area, 20, 30)
        np.testing.assert_array_equal(found, resized(np.array(pixels, order="C"), area, 20, 30))


def test_the_output_may_lie_in_a_batch(either_way):
    pixels = noise(30, 40)
    batch = np.zeros((3, 3, 20, 20), np.uint8)
    resize(pixels, Box(0, 0, 40, 30), batch[1])
    np.testing.assert_array_equal(batch[1], resized(pixels, (0, 0, 40, 30), 20, 20))
    assert not batch[[0, 2]].any()


# ---------------------------------------------------------------- what the kernel refuses


def picture(height=10, width=12):
    return np.zeros((height, width, 3), np.uint8)


def planes(height=5, width=6):
    return np.zeros((3, height, width), np.uint8)


def read_only(array):
    array.flags.writeable = False
    return array


BAD_BUFFERS = {
    "grey": (picture()[..., 0], planes()),
    "two channels": (picture()[..., :2].copy(), planes()),
    "four channels": (np.zeros((10, 12, 4), np.uint8), planes()),
    "a batch": (picture()[None], planes()),
    "no rows": (picture(0), planes()),
    "no columns": (picture(10, 0), planes()),
    "signed": (picture().astype(np.int8), planes()),
    "true and false": (picture().astype(bool), planes()),
    "wide": (picture().astype(np.uint16), planes()),
    "floating": (picture().astype(np.float32), planes()),
    "mirrored": (picture()[:, ::-1], planes()),
    "turned": (picture().transpose(1, 0, 2), planes()),
    "blue first": (picture()[..., ::-1], planes()),
    "every other": (picture()[:, ::2], planes()),
    "flat bytes": (bytes(360), planes()),
    "too many rows": (np.broadcast_to(picture(1, 1), ((1 << 24) + 1, 1, 3)), planes()),
    "out grey": (picture(), planes()[0]),
    "out of two planes": (picture(), np.zeros((2, 5, 6), np.uint8)),
    "out a batch": (picture(), planes()[None]),
    "out interleaved": (picture(), np.zeros((5, 6, 3), np.uint8)),
    "out without rows": (picture(), planes(0)),
    "out without columns": (picture(), planes(5, 0)),
    "out signed": (picture(), planes().astype(np.int8)),
    "out floating": (picture(), planes().astype(np.float32)),
    "out upside down": (picture(), planes()[:, ::-1]),
    "out cut": (picture(), planes()[:, :, :4]),
    "out transposed": (picture(), np.zeros((5, 6, 3), np.uint8).transpose(2, 0, 1)),
    "out read-only": (picture(), read_only(planes())),
    "out flat": (picture(), bytearray(90)),
    "out too wide": (picture(), planes(1, (1 << 24) + 1)),
}


@pytest.mark.parametrize(("pixels", "out"), BAD_BUFFERS.values(), ids=BAD_BUFFERS.keys())
def test_the_kernel_refuses_other_buffers(pixels, out):
    with pytest.raises(ValueError, match=r"resize takes uint8|read-only|contiguous"):
        tiles.kernel.resize(pixels, 0.0, 0.0, 1.0, 1.0, out, False, False)


@pytest.mark.parametrize(("pixels", "out"), [("text", planes()), (None, planes()), (picture(), bytes(90))])
def test_the_kernel_refuses_what_is_no_buffer(pixels, out):
    with pytest.raises((TypeError, BufferError)):
        tiles.kernel.resize(pixels, 0.0, 0.0, 1.0, 1.0, out, False, False)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "box",
    [
        (-0.001, 0, 5, 5),
        (0, -1, 5, 5),
        (0, 0, 12.001, 5),
        (0, 0, 5, 11),
        (5, 0, 5, 5),
        (6, 0, 5, 5),
        (0, 7, 5, 7),
        (12, 10, 12, 10),
        (NAN, 0, 5, 5),
        (0, NAN, 5, 5),
        (0, 0, NAN, 5),
        (0, 0, 5, NAN),
        (-INF, 0, 5, 5),
        (0, 0, INF, 5),
        (0, 0, 1e300, 5),
    ],
    ids=str,
)
def test_the_kernel_refuses_boxes_that_are_not_in_the_picture(box):
    with pytest.raises(ValueError, match="a box inside of it"):
        tiles.kernel.resize(picture(), *box, planes(), False, False)


def test_the_kernel_takes_the_smallest_box_there_is():
    pixels = noise(10, 12)
    for left, right in [(0, 5e-324), (np.nextafter(12, 0), 12), (3, np.nextafter(3, 4))]:
        out = planes()
        tiles.kernel.resize(pixels, left, 0, right, 10, out, False, False)
        assert (out[:, :, :1] == out).all()


# ---------------------------------------------------------------- memory


def test_sanitizers_see_nothing_in_random_resizes(tmp_path):
    gcc = needs.tool("gcc")
    program = tmp_path / "resizes"
    kernel = ROOT / "wds_tools" / "image" / "kernel"
    sources = [str(ROOT / "tests" / "fuzz" / "resize.c"), str(kernel / "resize.c")]
    flags = ["-std=c11", "-g", "-O2", "-fno-sanitize-recover=all", "-fsanitize=address,undefined", f"-I{kernel}"]
    subprocess.run([gcc, *flags, *sources, "-lm", "-o", str(program)], check=True, timeout=120)
    done = subprocess.run([str(program), "5000"], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "5000 resizes\n"), done.stderr[-3000:]
