import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wds_tools.convert.options import ENCODINGS, ConvertOptions, parse_size
from wds_tools.errors import OptionError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500000", 500_000),
        ("500000B", 500_000),
        ("256MB", 256_000_000),
        ("256mb", 256_000_000),
        ("256 MB", 256_000_000),
        (" 256MB ", 256_000_000),
        ("1K", 1000),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("1GiB", 2**30),
        ("1Gi", 2**30),
        ("2T", 2 * 10**12),
        ("1.5MiB", 3 * 2**19),
        ("0.1GB", 100_000_000),
    ],
)
def test_a_size_is_bytes_in_decimal_or_binary_units(text, size):
    assert parse_size(text) == size


@settings(deadline=None)
@given(st.integers(0, 10**15 - 1))
def test_a_plain_number_is_so_many_bytes(size):
    assert parse_size(str(size)) == size
    assert parse_size(f"{size}B") == size


@pytest.mark.parametrize(
    "text", ["", "MB", "-1MB", "1.MB", ".5MB", "1,5MB", "1PB", "1 0MB", "1e6", "12MBps", "0x10", "9" * 400]
)
def test_a_size_that_is_none_is_refused_with_the_text_and_an_example(text):
    with pytest.raises(OptionError) as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)
    assert "256MB" in str(caught.value)


def test_the_defaults_are_the_documented_ones():
    options = ConvertOptions()
    assert options.split == "train"
    assert options.settings() == {
        "max_size": 256_000_000,
        "max_count": None,
        "seed": 0,
        "shuffle": True,
        "image_size": None,
        "quality": None,
        "encode": "keep",
        "metadata": False,
        "siblings": False,
        "on_error": "raise",
    }
    assert not options.transcodes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"split": ""}, "''"),
        ({"split": "a/b"}, "'a/b'"),
        ({"split": "-a"}, "'-a'"),
        ({"split": ".a"}, "'.a'"),
        ({"split": "a.b"}, "'a.b'"),
        ({"split": "é"}, "'é'"),
        ({"split": "a\n"}, r"'a\n'"),
        ({"split": "a" * 65}, "a" * 65),
        ({"max_size": 10_239}, "10239"),
        ({"max_size": -5}, "-5"),
        ({"max_count": 0}, "max_count is 0"),
        ({"max_count": -1}, "max_count is -1"),
        ({"image_size": 0}, "image_size is 0"),
        ({"image_size": 65_536}, "image_size is 65536"),
        ({"quality": 0, "encode": "jpg"}, "quality is 0"),
        ({"quality": 101, "encode": "jpg"}, "quality is 101"),
        ({"encode": "gif"}, "'gif'"),
        ({"on_error": "ignore"}, "'ignore'"),
        ({"quality": 80}, "quality is 80"),
        ({"quality": 80, "encode": "png"}, "png is lossless"),
        ({"quality": 80, "encode": "npy", "image_size": 64}, "npy is lossless"),
        ({"classes": ("a", "b", "a")}, "'a'"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_and_printed(changes, said):
    with pytest.raises(OptionError) as caught:
        ConvertOptions(**changes)
    assert said in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "changes",
    [
        {"split": "a" * 64},
        {"split": "val_2-b"},
        {"max_size": 10_240},
        {"max_count": 1},
        {"image_size": 1},
        {"image_size": 65_535},
        {"quality": 1, "encode": "jpg"},
        {"quality": 100, "encode": "webp"},
        {"quality": 80, "image_size": 64},
        {"classes": ("b", "a")},
        *({"encode": kind} for kind in ENCODINGS),
    ],
)
def test_values_at_their_limits_are_taken(changes):
    options = ConvertOptions(**changes)
    assert {name: getattr(options, name) for name in changes} == changes


@pytest.mark.parametrize(
    ("changes", "transcodes"),
    [
        ({}, False),
        ({"metadata": True}, False),
        ({"image_size": 9}, True),
        *(({"encode": kind}, kind != "keep") for kind in ENCODINGS),
    ],
)
def test_options_tell_whether_image_bytes_may_change(changes, transcodes):
    assert ConvertOptions(**changes).transcodes is transcodes


def test_settings_hold_every_option_but_the_names():
    names = {option.name for option in dataclasses.fields(ConvertOptions)}
    every = ConvertOptions(split="val", classes=("a",), tile=True, images="x", labels="y", first_label=1)
    assert set(every.settings()) == names - {"split", "classes"}
    # As before there were these options.
    assert set(ConvertOptions().settings()) == names - {"split", "classes", "tile", "images", "labels", "first_label"}


def test_options_do_not_change_once_made():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ConvertOptions().seed = 1
