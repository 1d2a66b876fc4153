import functools
import io
import math
import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from tests.support import images, needs
from wds_tools.errors import DecodeError, OptionError
from wds_tools.image import codec, tiles
from wds_tools.image.presets import Decode, RandomResizedCrop, ResizeCenterCrop, ScaleJitterCrop
from wds_tools.image.region import Region

PRESETS = [
    RandomResizedCrop(32),
    RandomResizedCrop((24, 40), scale=(0.3, 0.6), ratio=(0.5, 2), flip=0.25),
    ResizeCenterCrop(40, 32),
    ResizeCenterCrop(51, (33, 47), flip=0.5),
    ScaleJitterCrop(40, 60, 32),
    ScaleJitterCrop(47, 63, (31, 45), flip=0),
]
PHOTO = images.photograph(500, 375)


@pytest.fixture(scope="module")
def torchvision():
    needs.package("tests.support.torchvision_ops")
    return needs.package("torchvision.transforms")


@functools.cache
def jpeg(width=500, height=375, **options):
    return images.encoded(PHOTO[:height, :width], quality=92, **options)


def difference(one, other):
    return np.abs(one.astype(int) - other.astype(int))


# ---------------------------------------------------------------- boxes: as torchvision draws them


class Told(random.Random):
    """Gives the numbers that it was told, from 0 to 1."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers = list(numbers)

    def random(self):
        return self.numbers.pop(0)


def torchvisions_box(width, height, scale, ratio, uniform):
    """The rule of torchvision's ``RandomResizedCrop.get_params``, with the uniform numbers given."""
    numbers = iter(uniform)
    for _ in range(10):
        area = width * height * (scale[0] + (scale[1] - scale[0]) * next(numbers))
        low, high = math.log(ratio[0]), math.log(ratio[1])
        shape = math.exp(low + (high - low) * next(numbers))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            i = math.floor(next(numbers) * (height - h + 1))
            return math.floor(next(numbers) * (width - w + 1)), i, w, h
    if width / height < ratio[0]:
        w, h = width, round(width / ratio[0])
    elif width / height > ratio[1]:
        w, h = round(height * ratio[1]), height
    else:
        w, h = width, height
    return (width - w) // 2, (height - h) // 2, w, h


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.sampled_from([((0.08, 1.0), (3 / 4, 4 / 3)), ((0.5, 0.9), (1.0, 1.0)), ((0.9, 1.0), (0.2, 0.3))]),
    st.integers(0, 2**32),
)
def test_the_box_is_torchvisions_when_the_numbers_are(width, height, ranges, seed):
    rng = random.Random(seed)
    numbers = [rng.random() for _ in range(23)]
    left, top, across, down = torchvisions_box(width, height, *ranges, numbers)
    cut = RandomResizedCrop(8, *ranges).cut(width, height, Told(numbers))
    if across and down:  # torchvision's fallback may be a box of nothing, ours has a pixel
        assert cut.box == (left, top, left + across, top + down)
    assert cut.limits == cut.box
    assert 0 <= cut.box.left < cut.box.right <= width
    assert 0 <= cut.box.top < cut.box.bottom <= height


SCALES = [((500, 375), (0.08, 1.0), (3 / 4, 4 / 3)), ((300, 700), (0.3, 0.9), (0.5, 2.0))]


@pytest.mark.parametrize(("size", "scale", "ratio"), SCALES)
def test_boxes_are_distributed_as_torchvisions_are(size, scale, ratio, torchvision):
    """Quantiles of each number, of 8000 draws: their own spread is a fifth of what is allowed."""
    width, height = size
    picture = torch.empty(3, height, width)
    torch.manual_seed(1)
    theirs = [torchvision.RandomResizedCrop.get_params(picture, scale, ratio) for _ in range(8000)]
    preset, rng = RandomResizedCrop(8, scale, ratio), random.Random(1)
    cuts = [preset.cut(width, height, rng) for _ in range(8000)]
    ours = [(cut.box.top, cut.box.left, cut.box.height, cut.box.width) for cut in cuts]
    for_each = []
    for boxes in (theirs, ours):
        top, left, down, across = np.array(boxes, float).T
        numbers = [across * down / (width * height), np.log(across / down), top / height, left / width]
        numbers += [top / np.maximum(height - down, 1), left / np.maximum(width - across, 1)]
        for_each.append(np.quantile(numbers, np.linspace(0.05, 0.95, 19), axis=1))
    assert np.abs(for_each[0] - for_each[1]).max() < 0.05
    assert np.mean([cut.mirrored for cut in cuts]) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("size", [(1000, 20), (20, 1000), (5000, 1), (1, 5000), (1, 1), (2, 3)])
def test_of_extreme_shapes_the_middle_is_taken_as_torchvision_takes_it(size, torchvision):
    width, height = size
    picture = torch.empty(3, height, width)
    scale, ratio = (0.9, 1.0), (3 / 4, 4 / 3)
    top, left, down, across = torchvision.RandomResizedCrop.get_params(picture, scale, ratio)
    cut = RandomResizedCrop(8, scale, ratio).cut(width, height, random.Random(0))
    assert cut.box == (left, top, left + across, top + down)


def test_all_of_the_picture_when_nothing_is_left_to_chance():
    cut = RandomResizedCrop(8, scale=(1, 1), ratio=(1, 1)).cut(64, 64, random.Random(0))
    assert cut.box == (0, 0, 64, 64)
    cut = RandomResizedCrop(8, scale=(1, 1), ratio=(1, 1)).cut(64, 40, random.Random(0))
    assert cut.box == (12, 0, 52, 40)


@pytest.mark.parametrize(("flip", "share"), [(0, 0), (0.0, 0), (0.2, 0.2), (1, 1)])
def test_flip_is_the_share_that_is_mirrored(flip, share):
    for preset in (RandomResizedCrop(8, flip=flip), ResizeCenterCrop(9, 8, flip), ScaleJitterCrop(9, 11, 8, flip)):
        rng = random.Random(3)
        mirrored = np.mean([preset.cut(40, 30, rng).mirrored for _ in range(2000)])
        assert mirrored == share if share in (0, 1) else mirrored == pytest.approx(share, abs=0.04)


def test_scale_jitter_takes_each_length_and_each_place_alike():
    preset, rng = ScaleJitterCrop(20, 24, 16), random.Random(5)
    cuts = [preset.cut(40, 40, rng) for _ in range(5000)]
    lengths = np.array([16 * 40 / cut.box.width for cut in cuts]).round().astype(int)
    assert np.bincount(lengths)[20:].tolist() == pytest.approx([1000] * 5, abs=120)
    lefts = np.array([cut.box.left / 40 * 20 for cut, length in zip(cuts, lengths, strict=True) if length == 20])
    assert np.bincount(lefts.round().astype(int)).tolist() == pytest.approx([len(lefts) / 5] * 5, abs=70)
    assert all(cut.limits == (0, 0, 40, 40) for cut in cuts)


@pytest.mark.parametrize(("resize", "first"), [(32, 0), (33, 0), (34, 1), (35, 2), (36, 2), (37, 2), (39, 4)])
def test_the_middle_is_torchvisions_which_rounds_halves_to_even(resize, first):
    cut = ResizeCenterCrop(resize, 32).cut(resize, resize, random.Random(0))
    assert cut.box == (first, first, first + 32, first + 32)


class Sparing:
    """A picture that gives no pixel more than it was asked for."""

    def __init__(self, pixels):
        self.pixels = pixels
        self.height, self.width = pixels.shape[:2]

    def region(self, box, factor=1):
        left, top = math.floor(box.left), math.floor(box.top)
        return Region(self.pixels[top : math.ceil(box.bottom), left : math.ceil(box.right)], left, top, 1)


@pytest.mark.parametrize("preset", PRESETS, ids=repr)
def test_all_pixels_are_asked_for_that_the_filter_looks_at(preset):
    for pixels in (PHOTO, PHOTO[:50, :43]):
        for seed in range(20):
            out = np.empty((3, *preset.size), np.uint8)
            preset._render(Sparing(pixels), random.Random(seed), out)
            assert difference(out, preset(pixels, seed)).max() <= 1


# ---------------------------------------------------------------- pixels: torchvision's on the same boxes


def upright(data):
    return ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")


def on_the_same_box(torchvision, preset, data, seed):
    """What torchvision makes of a picture, in the box that the preset has drawn, and what the preset makes."""
    image, functional = upright(data), torchvision.functional
    cut = preset.cut(*image.size, random.Random(seed))
    if isinstance(preset, RandomResizedCrop):
        box = [int(edge) for edge in (cut.box.top, cut.box.left, cut.box.height, cut.box.width)]
        theirs = functional.resized_crop(image, *box, list(preset.size))
    elif isinstance(preset, ResizeCenterCrop):
        theirs = functional.center_crop(functional.resize(image, preset.resize), list(preset.size))
    else:
        across, down = cut.box.width / preset.size[1], cut.box.height / preset.size[0]
        short = round(image.height / down if image.width > image.height else image.width / across)
        whole = functional.resize(image, short)
        top, left = (
            round(edge * new / old)
            for edge, new, old in zip((cut.box.top, cut.box.left), whole.size[::-1], image.size[::-1], strict=True)
        )
        theirs = functional.crop(whole, top, left, *preset.size)
    theirs = np.moveaxis(np.asarray(functional.hflip(theirs) if cut.mirrored else theirs), 2, 0)
    return difference(preset(data, seed), theirs), min(cut.box.width / preset.size[1], cut.box.height / preset.size[0])


LARGE = images.encoded(images.photograph(1500, 1100, 4), quality=92)
UNSCALED = [
    RandomResizedCrop(224, scale=(0.08, 0.5)),
    RandomResizedCrop((96, 160), scale=(0.02, 0.1)),
    ResizeCenterCrop(256, 224),
    ResizeCenterCrop(203, (201, 177)),
    ScaleJitterCrop(256, 480, 224),
    ScaleJitterCrop(211, 317, (199, 171)),
]


@pytest.mark.parametrize("preset", UNSCALED, ids=repr)
def test_where_nothing_was_scaled_pixels_are_torchvisions_but_for_rounding(preset, torchvision, either_way):
    for seed, data in enumerate(
        [jpeg(), images.encoded(images.photograph(333, 457), quality=92), images.encoded(PHOTO, "png")]
    ):
        found, _ = on_the_same_box(torchvision, preset, data, seed)
        assert found.max() <= 2
        assert found.mean() <= 0.3


def test_where_the_decoder_scaled_pixels_are_torchvisions_to_a_grey_level_or_two(torchvision, either_way):
    means = []
    for preset in (RandomResizedCrop(96), ResizeCenterCrop(160, 144), ScaleJitterCrop(128, 240, 112)):
        for seed in range(8):
            found, shrinks = on_the_same_box(torchvision, preset, LARGE, seed)
            assert found.mean() <= (2 if shrinks >= 2.5 else 0.3)
            means.extend([found.mean()] * (shrinks >= 2.5))
    assert len(means) >= 12
    assert 0.3 < np.mean(means) <= 1.1


# ---------------------------------------------------------------- seeds


@pytest.mark.parametrize("preset", PRESETS, ids=repr)
def test_the_seed_decides(preset, either_way):
    data = jpeg()
    first, again, other = preset(data, 1), preset(data, 1), [preset(data, seed) for seed in range(2, 8)]
    assert first.shape == (3, *preset.size)
    assert (first.dtype, first.flags.c_contiguous) == (np.uint8, True)
    np.testing.assert_array_equal(first, again)
    if preset is not PRESETS[2]:
        assert any((first != one).any() for one in other)
    else:
        assert all((first == one).all() for one in other), "nothing is left to chance"
    out = np.full((3, *preset.size), 9, np.uint8)
    preset.render(data, 1, out)
    np.testing.assert_array_equal(out, first)
    np.testing.assert_array_equal(preset(data, 2**64 - 1), preset(data, 2**64 - 1))


def test_without_a_seed_pythons_random_gives_one():
    preset, data = RandomResizedCrop(16), jpeg()
    random.seed(4)
    first, second = preset(data), preset(data)
    random.seed(4)
    np.testing.assert_array_equal(preset(data), first)
    assert (first != second).any()


def test_a_seed_leaves_pythons_random_alone():
    random.seed(4)
    expected = random.random()
    random.seed(4)
    RandomResizedCrop(16)(jpeg(), 1)
    assert random.random() == expected


# ---------------------------------------------------------------- pictures of every shape and kind


@pytest.mark.parametrize("preset", PRESETS, ids=repr)
@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (2, 3), (31, 7), (33, 400)], ids=str)
def test_any_shape_will_do(size, preset, either_way):
    pixels = np.full((size[1], size[0], 3), (200, 100, 50), np.uint8)
    for data in (images.encoded(pixels, "png"), images.npy(pixels), images.encoded(pixels, quality=100)):
        for orientation in (1, 6) if data[:2] == b"\xff\xd8" else (1,):
            made = preset(images.turned(data, orientation) if orientation > 1 else data, 3)
            assert difference(made, np.array([200, 100, 50])[:, None, None]).max() <= 2


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 30), st.integers(1, 30), st.integers(0, 99))
def test_any_sizes_will_do(width, height, across, down, seed):
    pixels = images.pixels(width, height)
    data = images.encoded(pixels, quality=95)
    for preset in (
        RandomResizedCrop((down, across), scale=(0.01, 1)),
        ResizeCenterCrop(31, (down, across)),
        ScaleJitterCrop(30, 40, (down, across)),
    ):
        with pytest.MonkeyPatch.context() as patch:
            made = preset(data, seed)
            patch.setattr(tiles, "kernel", None)
            assert difference(made, preset(data, seed)).max() <= 1


@pytest.mark.parametrize("preset", PRESETS, ids=repr)
def test_bytes_pictures_and_arrays_are_taken(preset, either_way):
    expected = preset(images.encoded(PHOTO, "png"), 5)
    for form in (
        memoryview(images.encoded(PHOTO, "png")),
        bytearray(images.encoded(PHOTO, "png")),
        images.npy(PHOTO),
        images.npy(np.asfortranarray(PHOTO)),
        Image.fromarray(PHOTO),
        PHOTO,
        torch.from_numpy(PHOTO),
        PHOTO[:, ::-1].copy()[:, ::-1],
    ):
        np.testing.assert_array_equal(preset(form, 5), expected)
    grey = Image.fromarray(PHOTO).convert("L")
    np.testing.assert_array_equal(preset(grey, 5), preset(images.saved(grey, "png"), 5))


@pytest.mark.parametrize(
    ("image", "found"),
    [
        (PHOTO.astype(np.float32), "float32"),
        (PHOTO.astype(np.int8), "int8"),
        (PHOTO > 100, "bool"),
        (PHOTO[..., 0], r"uint8 array with shape \(375, 500\)"),
        (PHOTO.transpose(2, 0, 1), r"\(3, 375, 500\)"),
        (PHOTO[:0], r"\(0, 500, 3\)"),
        (PHOTO[:, :0], r"\(375, 0, 3\)"),
        (None, "object array"),
        (Image.new("RGB", (0, 5)), "with shape"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("preset", PRESETS[::2], ids=repr)
def test_other_arrays_are_refused(preset, image, found, either_way):
    with pytest.raises(OptionError, match=f"{found}.* is not an image"):
        preset(image, 1)


@pytest.mark.parametrize(
    "data",
    [b"", b"text", images.truncated(images.jpeg()), images.bomb_png(), images.npy(np.zeros((4, 4)))],
    ids=["empty", "text", "truncated", "bomb", "floats"],
)
@pytest.mark.parametrize("preset", PRESETS[::2], ids=repr)
def test_bad_bytes_are_decode_errors(preset, data):
    with pytest.raises(DecodeError):
        preset(data, 1)
    with pytest.raises(DecodeError):
        preset.render(data, 1, np.empty((3, *preset.size), np.uint8))


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("preset", PRESETS, ids=repr)
def test_a_turned_photograph_gives_what_the_upright_one_gives(preset, orientation, either_way):
    """To the pixel, where nothing is scaled; the arithmetic of fractional edges may move a level by one."""
    data = images.turned(jpeg(131, 150), orientation)
    as_png = images.saved(codec.decode_pil(data), "png")
    for seed in range(3):
        found = difference(preset(data, seed), preset(as_png, seed))
        shrinks = min(preset.cut(*codec.dimensions(data), random.Random(seed)).box[2:]) / 24 > 2.4
        assert found.max() <= (30 if shrinks else 1)


@pytest.mark.parametrize("preset", PRESETS, ids=repr)
def test_tiled_bytes_give_the_same_pixels(preset):
    for options in ({}, {"subsampling": 0}, {"subsampling": 1}):
        data = jpeg(**options)
        tiled = tiles.tile(data)
        assert tiles.is_tiled(tiled)
        for seed in range(6):
            np.testing.assert_array_equal(preset(tiled, seed), preset(data, seed))


@pytest.mark.parametrize("preset", PRESETS, ids=repr)
def test_without_the_kernel_pixels_differ_by_rounding(preset, monkeypatch):
    files = [jpeg(), tiles.tile(jpeg()), images.turned(jpeg(), 6), images.encoded(PHOTO, "png")]
    expected = [preset(data, seed) for data in files for seed in range(4)]
    monkeypatch.setattr(tiles, "kernel", None)
    made = [preset(data, seed) for data in files for seed in range(4)]
    assert max(difference(*both).max() for both in zip(made, expected, strict=True)) <= 1


# ---------------------------------------------------------------- whole pictures


def test_decode_gives_all_of_it():
    decode = Decode()
    for data in (jpeg(), images.turned(jpeg(), 6), images.npy(PHOTO), images.encoded(PHOTO, "png")):
        np.testing.assert_array_equal(decode(data), codec.decode(data).transpose(2, 0, 1))
        np.testing.assert_array_equal(decode(memoryview(data)), decode(data))
    np.testing.assert_array_equal(decode(Image.fromarray(PHOTO)), PHOTO.transpose(2, 0, 1))
    assert repr(decode) == "Decode()"
    with pytest.raises(DecodeError):
        decode(b"text")


# ---------------------------------------------------------------- options


WRONG = [
    (lambda: RandomResizedCrop(0), "size is 0"),
    (lambda: RandomResizedCrop(-3), "size is -3"),
    (lambda: RandomResizedCrop(2.5), "size is 2.5"),
    (lambda: RandomResizedCrop(True), "size is True"),
    (lambda: RandomResizedCrop("224"), "size is '224'"),
    (lambda: RandomResizedCrop(None), "size is None"),
    (lambda: RandomResizedCrop((224,)), r"size is \(224,\)"),
    (lambda: RandomResizedCrop((8, 8, 3)), r"size is \(8, 8, 3\)"),
    (lambda: RandomResizedCrop((8, 8.0)), r"size is \(8, 8.0\)"),
    (lambda: RandomResizedCrop((8, True)), r"size is \(8, True\)"),
    (lambda: RandomResizedCrop(8, scale=0.5), "scale is 0.5"),
    (lambda: RandomResizedCrop(8, scale=(0.5,)), r"scale is \(0.5,\)"),
    (lambda: RandomResizedCrop(8, scale=(0, 1)), r"scale is \(0, 1\)"),
    (lambda: RandomResizedCrop(8, scale=(0.5, 1.5)), r"scale is \(0.5, 1.5\); .* up to 1$"),
    (lambda: RandomResizedCrop(8, scale=(0.5, 0.4)), r"scale is \(0.5, 0.4\)"),
    (lambda: RandomResizedCrop(8, scale=("a", "b")), r"scale is \('a', 'b'\)"),
    (lambda: RandomResizedCrop(8, scale=(0.1, math.nan)), r"scale is \(0.1, nan\)"),
    (lambda: RandomResizedCrop(8, ratio=1), "ratio is 1"),
    (lambda: RandomResizedCrop(8, ratio=(1, 2, 3)), r"ratio is \(1, 2, 3\)"),
    (lambda: RandomResizedCrop(8, ratio=(-1, 2)), r"ratio is \(-1, 2\)"),
    (lambda: RandomResizedCrop(8, ratio=(1, math.inf)), r"ratio is \(1, inf\)"),
    (lambda: RandomResizedCrop(8, ratio="ab"), "ratio is 'ab'"),
    (lambda: RandomResizedCrop(8, flip=1.1), "flip is 1.1"),
    (lambda: RandomResizedCrop(8, flip=-0.1), "flip is -0.1"),
    (lambda: RandomResizedCrop(8, flip=math.nan), "flip is nan"),
    (lambda: RandomResizedCrop(8, flip="0.5"), "flip is '0.5'"),
    (lambda: RandomResizedCrop(8, flip=None), "flip is None"),
    (lambda: ResizeCenterCrop(223, 224), "resize is 223; .* 224 or more"),
    (lambda: ResizeCenterCrop(250, (200, 300)), "resize is 250; .* 300 or more"),
    (lambda: ResizeCenterCrop(256.0, 224), "resize is 256.0"),
    (lambda: ResizeCenterCrop("256", 224), "resize is '256'"),
    (lambda: ResizeCenterCrop((256, 256), 224), r"resize is \(256, 256\)"),
    (lambda: ResizeCenterCrop(True, 1), "resize is True"),
    (lambda: ResizeCenterCrop(256, 2.0), "size is 2.0"),
    (lambda: ScaleJitterCrop(200, 300, 224), "low is 200; .* 224 or more"),
    (lambda: ScaleJitterCrop(256, 255, 224), "high is 255; .* 256 or more"),
    (lambda: ScaleJitterCrop(256, None, 224), "high is None"),
    (lambda: ScaleJitterCrop(256.5, 300, 224), "low is 256.5"),
    (lambda: ScaleJitterCrop(256, 300, 224, flip=2), "flip is 2"),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message for _, message in WRONG])
def test_options_that_cannot_be_used_are_named(make, message):
    with pytest.raises(OptionError, match=f"^{message}"):
        make()


@pytest.mark.parametrize("preset", [*PRESETS, RandomResizedCrop([20, 30]), RandomResizedCrop(9, [0.1, 1])], ids=repr)
def test_a_preset_travels_and_says_what_it_is(preset):
    there = pickle.loads(pickle.dumps(preset))
    assert repr(there) == repr(preset)
    names = {"RandomResizedCrop", "ResizeCenterCrop", "ScaleJitterCrop"}
    told = eval(repr(preset), {name: globals()[name] for name in names})
    assert repr(told) == repr(preset)
    for other in (there, told):
        np.testing.assert_array_equal(other(jpeg(), 11), preset(jpeg(), 11))


def test_the_repr_names_every_option():
    assert repr(RandomResizedCrop(224, flip=0)) == (
        "RandomResizedCrop(size=(224, 224), flip=0, scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333))"
    )
    assert (
        repr(ScaleJitterCrop(256, 480, (224, 200))) == "ScaleJitterCrop(size=(224, 200), flip=0.5, low=256, high=480)"
    )
