import numpy as np
import pytest
import torch

import wds_tools
from tests.support import images
from wds_tools.errors import OptionError
from wds_tools.image import jitter, presets, transforms
from wds_tools.image.transforms import IMAGENET_MEAN, IMAGENET_STD, normalize


def batch():
    photos = [images.photograph(33, 24, seed) for seed in range(4)]
    return torch.from_numpy(np.stack(photos)).permute(0, 3, 1, 2).contiguous()


def exactly(x, mean, std, white=255):
    shape = (-1, 1, 1)
    return (x.double() / white - torch.tensor(mean).double().view(shape)) / torch.tensor(std).double().view(shape)


def test_users_name_them_all_here():
    assert wds_tools.transforms is transforms
    assert transforms.RandomResizedCrop is presets.RandomResizedCrop
    assert transforms.ColorJitter is jitter.ColorJitter
    for name in transforms.__all__:
        assert getattr(transforms, name) is not None


@pytest.mark.parametrize("x", [batch(), batch()[0], batch()[:0], batch()[:, :, :1, :1]], ids=lambda x: str(x.shape))
@pytest.mark.parametrize(("mean", "std"), [(IMAGENET_MEAN, IMAGENET_STD), ([0, 0.5, -1], [1, 2, 0.1])])
def test_it_is_the_mean_taken_off_and_the_deviation_divided_by(x, mean, std):
    done = normalize(x, mean, std)
    assert (done.dtype, done.shape) == (torch.float32, x.shape)
    torch.testing.assert_close(done.double(), exactly(x, mean, std), rtol=0, atol=2e-5)


def test_imagenets_numbers_are_the_default():
    torch.testing.assert_close(normalize(batch()), normalize(batch(), IMAGENET_MEAN, IMAGENET_STD), rtol=0, atol=0)
    grey = torch.full((1, 3, 2, 2), 0.45)
    expected = [(0.45 - 0.485) / 0.229, (0.45 - 0.456) / 0.224, (0.45 - 0.406) / 0.225]
    assert normalize(grey)[0, :, 0, 0].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_images_go_from_0_to_1_and_stay_as_they_were(source):
    x = (batch() / 255).to(source)
    before = x.clone()
    done = normalize(x)
    assert torch.equal(x, before)
    torch.testing.assert_close(done.double(), exactly(x, IMAGENET_MEAN, IMAGENET_STD, 1), rtol=0, atol=2e-5)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 2e-3), (torch.bfloat16, 1e-2), (torch.float64, 2e-5)])
def test_the_result_has_the_type_that_is_asked_for(dtype, most):
    done = normalize(batch(), dtype=dtype)
    assert done.dtype == dtype
    torch.testing.assert_close(done.double(), exactly(batch(), IMAGENET_MEAN, IMAGENET_STD), rtol=0, atol=most)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_memory_lies_as_it_did(dtype):
    x = batch().contiguous(memory_format=torch.channels_last)
    done = normalize(x, dtype=dtype)
    assert done.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(done, normalize(batch(), dtype=dtype))
    assert normalize(batch(), dtype=dtype).is_contiguous()
    shown = torch.from_numpy(np.ascontiguousarray(images.photograph(33, 24))).permute(2, 0, 1)  # as Decode gives it
    torch.testing.assert_close(normalize(shown), normalize(shown.contiguous()), rtol=0, atol=0)


def test_other_numbers_of_channels_will_do():
    grey = batch()[:, :1]
    torch.testing.assert_close(normalize(grey, [0.5], [0.25]).double(), exactly(grey, [0.5], [0.25]), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("x", "mean", "std", "message"),
    [
        (batch(), (0.5,), (0.5,), r"mean=\(0.5,\) and std=\(0.5,\) do not fit images of shape \(4, 3, 24, 33\)"),
        (batch(), (0.5,) * 3, (0.5,) * 2, "do not fit"),
        (batch(), (0.5,) * 3, (0.5, 0, 0.5), "none of std's may be 0"),
        (batch()[:, :1], IMAGENET_MEAN, IMAGENET_STD, "do not fit"),
        (batch()[0, 0], IMAGENET_MEAN, IMAGENET_STD, r"images of shape \(24, 33\)"),
        (batch().permute(0, 2, 3, 1), IMAGENET_MEAN, IMAGENET_STD, "do not fit"),
        (batch().int(), IMAGENET_MEAN, IMAGENET_STD, "images are torch.int32"),
        (batch() > 9, IMAGENET_MEAN, IMAGENET_STD, "images are torch.bool"),
    ],
)
def test_what_does_not_fit_is_named(x, mean, std, message):
    with pytest.raises(OptionError, match=message):
        normalize(x, mean, std)


def test_it_works_where_the_batch_is():
    """The meta device has no memory; that other devices never meet tensors of the CPU is for a machine with one to show."""
    done = normalize(batch().to("meta"))
    assert (done.device.type, done.dtype, done.shape) == ("meta", torch.float32, (4, 3, 24, 33))
    changed = jitter.ColorJitter(0.4, 0.4, 0.4, 0.1)(batch().to("meta"), torch.arange(4))
    assert (changed.device.type, changed.dtype, changed.shape) == ("meta", torch.uint8, (4, 3, 24, 33))
