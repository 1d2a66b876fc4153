import colorsys
import math
import pickle

import numpy as np
import pytest
import torch

from tests.support import images, needs
from wds_tools.errors import OptionError
from wds_tools.image.jitter import ColorJitter

STRONG = ColorJitter(brightness=0.6, contrast=0.6, saturation=0.6, hue=0.3)


def batch(count=5, height=24, width=33):
    photos = [images.photograph(width, height, seed) for seed in range(count)]
    return torch.from_numpy(np.stack(photos)).permute(0, 3, 1, 2).contiguous()


def seeds(count=5):
    return torch.arange(count) * 7919 + 3


def extremes():
    """Grey, white, black, pure and mixed colours."""
    levels = torch.tensor([0, 1, 127, 128, 254, 255], dtype=torch.uint8)
    return torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 12, 18)


def difference(one, other):
    return (one.double() - other.double()).abs().max().item()


@pytest.fixture(scope="module")
def functional():
    needs.package("tests.support.torchvision_ops")
    return needs.package("torchvision.transforms.functional")


STEPS = [(name, factor) for name in ("brightness", "contrast", "saturation") for factor in (0.0, 0.3, 0.9, 1.6, 3.0)]
STEPS += [("hue", shift) for shift in (-0.5, -0.31, -0.02, 0.1, 0.25, 1 / 3, 0.5)]


@pytest.mark.parametrize(("name", "factor"), STEPS)
def test_each_step_is_torchvisions(name, factor, functional):
    """In floating numbers to their precision. Of uint8 torchvision cuts off what is less than a grey level, and does so to
    the grey that contrast and saturation start from as well; we round once."""
    most = math.ceil(1 + abs(1 - factor)) if name in ("contrast", "saturation") else 1
    jitter = ColorJitter(**{name: (factor, factor)})
    adjust = getattr(functional, f"adjust_{name}")
    for x in (batch(), extremes()):
        assert difference(jitter(x), adjust(x, factor)) <= most
        floating = x.float() / 255
        # torchvision's hue breaks at the end of the circle by less than a thousandth.
        assert difference(jitter(floating), adjust(floating, factor)) <= 2e-3


def test_hue_is_what_pythons_own_conversion_makes_of_it():
    x = extremes().double() / 255
    turned = ColorJitter(hue=(0.2, 0.2))(x)
    for pixel, found in zip(x[0].flatten(1).T.tolist(), turned[0].flatten(1).T.tolist(), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        assert found == pytest.approx(colorsys.hsv_to_rgb((hue + 0.2) % 1, saturation, value), abs=1e-5)


def test_steps_follow_each_other_in_one_order(functional):
    factors = {"brightness": 0.7, "contrast": 1.4, "saturation": 0.5, "hue": 0.1}
    expected = batch().float() / 255
    for name, factor in factors.items():
        expected = getattr(functional, f"adjust_{name}")(expected, factor)
    found = ColorJitter(**{name: (factor, factor) for name, factor in factors.items()})(batch().float() / 255)
    assert difference(found, expected) <= 2e-3


def test_whole_grey_levels_are_the_nearest():
    x = torch.tensor([0, 101, 102, 255], dtype=torch.uint8).view(1, 1, 1, 4).expand(1, 3, 1, 4)
    assert ColorJitter(brightness=(0.6, 0.6))(x)[0, 0, 0].tolist() == [0, 61, 61, 153]


def test_the_seeds_decide():
    x = batch()
    first = STRONG(x, seeds())
    assert torch.equal(STRONG(x, seeds()), first)
    assert (STRONG(x, seeds() + 1) != first).flatten(1).any(1).all()
    assert (STRONG(x, seeds().flip(0))[:2] != first[:2]).flatten(1).any(1).all()
    huge = torch.tensor([2**63 - 1, -1, -(2**63), 0, 1])
    assert torch.equal(STRONG(x, huge), STRONG(x, huge))


def test_an_image_does_not_depend_on_its_neighbours():
    x, numbers = batch(), seeds()
    together = STRONG(x, numbers)
    for i in range(len(x)):
        assert torch.equal(STRONG(x[i : i + 1], numbers[i : i + 1])[0], together[i])
    order = torch.tensor([3, 0, 4, 2, 1])
    assert torch.equal(STRONG(x[order], numbers[order]), together[order])


def test_each_image_and_each_step_has_a_factor_of_its_own():
    same = batch(1).expand(6, -1, -1, -1)
    changed = STRONG(same, seeds(6))
    assert len({tuple(image.flatten().tolist()) for image in changed}) == 6
    grey = torch.full((300, 3, 1, 1), 0.5)
    bright = ColorJitter(brightness=0.5)(grey, torch.arange(300))[:, 0, 0, 0] / 0.5
    assert bright.min() >= 0.5
    assert bright.max() <= 1.5
    assert np.quantile(bright.numpy(), [0.1, 0.5, 0.9]).tolist() == pytest.approx([0.6, 1.0, 1.4], abs=0.08)
    pair = torch.tensor([0.4, 0.6]).view(1, 1, 1, 2).expand(300, 3, 1, 2)
    contrast = (ColorJitter(contrast=0.5)(pair, torch.arange(300)) - 0.5)[:, 0, 0, 1] / 0.1
    assert abs(np.corrcoef(bright.numpy(), contrast.numpy())[0, 1]) < 0.2


def test_a_step_draws_the_same_whatever_the_others_do():
    x = batch()
    alone = ColorJitter(saturation=0.5)(x, seeds())
    assert torch.equal(ColorJitter(brightness=(1, 1), contrast=0, saturation=0.5)(x, seeds()), alone)


def test_without_seeds_torchs_generator_gives_them():
    x = batch()
    torch.manual_seed(3)
    first, second = STRONG(x), STRONG(x)
    torch.manual_seed(3)
    assert torch.equal(STRONG(x), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("jitter", [STRONG, ColorJitter(), ColorJitter(brightness=0.4), ColorJitter(hue=0.5)], ids=repr)
def test_new_images_are_like_the_old_ones_which_stay_as_they_were(jitter, dtype):
    x = batch() if dtype == torch.uint8 else (batch() / 255).to(dtype)
    before = x.clone()
    done = jitter(x, seeds())
    assert (done.dtype, done.shape) == (x.dtype, x.shape)
    assert torch.equal(x, before)
    assert done.data_ptr() != x.data_ptr()
    reference = jitter(batch(), seeds()).double() / (1 if dtype == torch.uint8 else 255)
    assert difference(done, reference) <= {torch.bfloat16: 0.05}.get(dtype, 0.01 if dtype != torch.uint8 else 0)


def test_without_options_nothing_changes():
    x = batch()
    assert torch.equal(ColorJitter()(x), x)
    assert torch.equal(ColorJitter(0.0, (1, 1), 0, (0, 0))(x / 255), x / 255)


def test_memory_may_lie_either_way():
    x = batch()
    expected = STRONG(x, seeds())
    assert torch.equal(STRONG(x.contiguous(memory_format=torch.channels_last), seeds()), expected)
    assert torch.equal(STRONG(x.flip(3).flip(3), seeds()), expected)
    wide = torch.zeros(5, 3, 24, 66, dtype=torch.uint8)
    wide[..., ::2] = x
    assert torch.equal(STRONG(wide[..., ::2], seeds()), expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_an_empty_batch_stays_empty(dtype):
    for numbers in (None, torch.empty(0, dtype=torch.int64)):
        assert STRONG(torch.empty(0, 3, 8, 8, dtype=dtype), numbers).shape == (0, 3, 8, 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ColorJitter(brightness=-0.1), "brightness is -0.1"),
        (lambda: ColorJitter(contrast=(-1, 1)), r"contrast is \(-1, 1\)"),
        (lambda: ColorJitter(contrast=(2, 1)), r"contrast is \(2, 1\)"),
        (lambda: ColorJitter(saturation=(1, 2, 3)), r"saturation is \(1, 2, 3\)"),
        (lambda: ColorJitter(saturation=(1,)), r"saturation is \(1,\)"),
        (lambda: ColorJitter(brightness="0.4"), "brightness is '0.4'"),
        (lambda: ColorJitter(brightness=None), "brightness is None"),
        (lambda: ColorJitter(brightness=("a", "b")), r"brightness is \('a', 'b'\)"),
        (lambda: ColorJitter(brightness=float("nan")), "brightness is nan"),
        (lambda: ColorJitter(brightness=float("inf")), "brightness is inf"),
        (lambda: ColorJitter(brightness=(0, float("inf"))), r"brightness is \(0, inf\)"),
        (lambda: ColorJitter(hue=0.6), "hue is 0.6; .* from -0.5 to 0.5"),
        (lambda: ColorJitter(hue=-0.1), "hue is -0.1"),
        (lambda: ColorJitter(hue=(-0.6, 0)), r"hue is \(-0.6, 0\)"),
    ],
)
def test_options_that_cannot_be_used_are_named(make, message):
    with pytest.raises(OptionError, match=f"^{message}"):
        make()


@pytest.mark.parametrize(
    ("x", "numbers", "message"),
    [
        (batch()[0], None, r"images have shape \(3, 24, 33\)"),
        (batch()[:, :1], None, r"images have shape \(5, 1, 24, 33\)"),
        (batch().permute(0, 2, 3, 1), None, r"images have shape \(5, 24, 33, 3\)"),
        (batch().int(), None, "images are torch.int32"),
        (batch() > 5, None, "images are torch.bool"),
        (batch(), seeds(4), r"seeds are torch.int64 of shape \(4,\); 5 images"),
        (batch(), seeds(1), r"seeds are torch.int64 of shape \(1,\)"),
        (batch(), seeds().view(5, 1), r"seeds are torch.int64 of shape \(5, 1\)"),
        (batch(), seeds().float(), "seeds are torch.float32"),
    ],
)
def test_batches_that_cannot_be_changed_are_named(x, numbers, message):
    with pytest.raises(OptionError, match=message):
        STRONG(x, numbers)


def test_it_travels_and_says_what_it_is():
    jitter = ColorJitter(0.4, (0.5, 2), [0.9, 1.1], 0.1)
    assert repr(jitter) == (
        "ColorJitter(brightness=(0.6, 1.4), contrast=(0.5, 2), saturation=(0.9, 1.1), hue=(-0.1, 0.1))"
    )
    assert ColorJitter(brightness=3).brightness == (0.0, 4.0)
    for other in (pickle.loads(pickle.dumps(jitter)), eval(repr(jitter))):
        assert torch.equal(other(batch(), seeds()), jitter(batch(), seeds()))
