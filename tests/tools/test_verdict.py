"""The verdict is computed from rates, so every case is a handful of numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.tools.pictures import Pictures
from wds_tools.tools.verdict import Decode, Load, Measured, Read, Target, Verdict, judge, rate_text

PHOTOS = Pictures(400, 500, 375, 110e3, {"jpg": 1.0}, 0.0, 0.0)


def measured(
    *,
    reads: tuple[tuple[float, str], ...] = ((5_000, "disk"), (10_000, "page cache")),
    decode: float | None = 500,
    loads: dict[int, float] | None = None,
    main: float = 20_000,
    **others: Any,
) -> Measured:
    """Two cores that decode photographs, unless told otherwise; ``main`` is the rate that the main process allows."""
    given = {
        "cores": 2,
        "batch_size": 64,
        "image_size": 224,
        "cached": 1.0,
        "bad": 0.0,
        "pictures": None if decode is None else PHOTOS,
        **others,
    }
    loads = {0: 450, 1: 450, 2: 900} if loads is None else loads
    return Measured(
        reads=tuple(Read(rate, rate * 110e3, source) for rate, source in reads),  # type: ignore[arg-type]
        decode=None if decode is None else Decode(decode, 520, 1.0),
        loads=tuple(Load(workers, rate, 1 / main) for workers, rate in loads.items()),
        **given,
    )


def advice(found: Verdict) -> str:
    return "\n".join(found.advice)


# -- what limits


def test_decoding_limits_where_reading_is_much_faster_than_loading() -> None:
    found = judge(measured())
    assert (found.bottleneck, found.bound, found.workers, found.rate) == ("decode", "CPU", 2, 900)
    assert found.reason == (
        "one process decodes 500 images/s and reads 10,000 samples/s (page cache); "
        "900 samples/s were loaded with 2 workers"
    )
    assert found.advice == (
        "num_workers=2 keeps all cores of this process busy (2); more cores would help",
        "'wds-tools convert --tile': the JPEGs have no restart tiles, with which a crop decodes only what it shows; "
        "no pixel changes",
    )


def test_a_slow_disk_limits_where_processors_wait_for_it() -> None:
    slow = measured(reads=((100, "disk"), (10_000, "page cache")), cached=0.2, loads={0: 83, 1: 90, 2: 95})
    found = judge(slow)
    assert (found.bottleneck, found.bound) == ("disk", "I/O")
    assert "one process reads 100 samples/s (disk) and decodes 500 images/s" in found.reason
    assert "faster disk" in advice(found)
    assert "--tile" not in advice(found)


def test_a_slow_server_limits_by_the_network_and_more_workers_than_cores_may_help() -> None:
    found = judge(measured(reads=((42, "network"),), cached=None, loads={0: 40, 1: 40, 2: 78}))
    assert (found.bottleneck, found.bound) == ("network", "I/O")
    assert "Try more workers than 2, also more than cores" in advice(found)
    assert "ShardDataset(cache=folder, cache_bytes=N) keeps the shards on a local disk" in advice(found)
    assert "convert --image-size 256" in advice(found)


def test_the_main_process_limits_where_it_can_take_no_more() -> None:
    found = judge(measured(decode=3000, loads={0: 2500, 1: 2900, 2: 3900}, main=4_000))
    assert (found.bottleneck, found.bound) == ("main process", "CPU")
    assert found.reason.startswith("it can take 4,000 samples/s from workers at most; 3,900 samples/s")
    assert "Use larger batches than 64" in advice(found)
    assert "larger batches" not in advice(judge(measured(decode=3000, loads={2: 3900}, main=4_000, batch_size=256)))


def test_without_images_it_is_the_main_process_or_the_reading() -> None:
    fast = judge(measured(decode=None, loads={0: 900, 1: 800, 2: 700}))
    assert (fast.bottleneck, fast.workers) == ("main process", 0)
    assert "has nothing to decode" in fast.reason
    assert "fewer fields" in advice(fast)
    assert judge(measured(decode=None, loads={0: 9_000})).bottleneck == "disk"
    assert judge(measured(decode=None, reads=((1_000, "network"),), loads={0: 900})).bottleneck == "network"


@pytest.mark.parametrize(("cached", "bottleneck"), [(1.0, "decode"), (0.9, "decode"), (0.5, "disk"), (None, "disk")])
def test_the_disks_rate_counts_unless_loaders_read_from_memory(cached: float | None, bottleneck: str) -> None:
    busy = measured(reads=((100, "disk"), (10_000, "page cache")), cached=cached, loads={0: 150, 1: 150, 2: 300})
    assert judge(busy).bottleneck == bottleneck


def test_a_first_epoch_that_will_be_slower_is_told() -> None:
    found = judge(measured(reads=((100, "disk"), (10_000, "page cache"))))
    assert found.bottleneck == "decode"
    assert "From the disk one process reads 100 samples/s: the first epoch" in advice(found)
    assert "first epoch" not in advice(judge(measured()))


def test_busy_processors_are_not_idle_because_reading_is_slow_too() -> None:
    found = judge(measured(reads=((600, "disk"), (600, "page cache")), loads={0: 270, 1: 270, 2: 900}))
    assert found.bottleneck == "decode"


# -- what to change


@pytest.mark.parametrize(
    ("loads", "says"),
    [
        ({0: 450, 1: 450, 2: 900}, "num_workers=2 keeps all cores"),
        ({0: 450, 1: 450, 2: 900, 4: 910}, "num_workers=2 is enough: more are no faster"),
        ({0: 450, 1: 440, 2: 430}, "num_workers=0 is enough: more are no faster"),
        ({0: 450}, "Measure other numbers of workers than 0"),
        ({0: 450, 1: 500}, "Try more workers than 1: this process may use 2 cores"),
        ({0: 450, 1: 460}, "num_workers=0 is enough"),
    ],
)
def test_how_many_workers(loads: dict[int, float], says: str) -> None:
    found = judge(measured(loads=loads))
    assert found.bottleneck == "decode"
    assert found.advice[0].startswith(says)


@pytest.mark.parametrize(
    ("pictures", "says", "not_says"),
    [
        ({}, ["--tile"], ["--image-size", "--encode"]),
        ({"tiled": 1.0}, [], ["--tile", "--image-size", "--encode"]),
        ({"width": 200.0, "height": 210.0}, [], ["--tile", "--image-size", "--encode"]),
        ({"width": 2000.0, "height": 1500.0}, ["--image-size 256", "2,000x1,500 jpg", "--tile"], ["--encode"]),
        ({"width": 2000.0, "height": 400.0}, ["--tile"], ["--image-size"]),
        ({"progressive": 1.0}, ["--encode jpg': progressive"], ["--tile"]),
        ({"width": 32.0, "height": 32.0}, ["--encode npy"], ["--tile", "--image-size"]),
        ({"width": 32.0, "height": 32.0, "kinds": {"npy": 1.0}}, [], ["--encode", "--tile"]),
        ({"kinds": {"png": 0.9, "jpg": 0.1}}, ["--encode jpg': JPEG decodes faster than png"], ["--tile"]),
    ],
)
def test_how_to_convert(pictures: dict[str, Any], says: list[str], not_says: list[str]) -> None:
    told = advice(judge(measured(pictures=replace(PHOTOS, **pictures))))
    assert [words for words in says if words not in told] == []
    assert [words for words in not_says if words in told] == []


def test_a_transform_that_costs_more_than_decoding_is_told() -> None:
    slow = measured(decode=100, loads={0: 99, 2: 190})
    assert "transform takes more time than decoding" in advice(judge(slow))
    assert "transform" not in advice(judge(measured()))


def test_a_busy_machine_and_bad_samples_are_told() -> None:
    assert "Other programs" not in advice(judge(measured()))
    busy = replace(measured(), decode=Decode(500, 520, 0.6), bad=0.0213)
    assert "Other programs took 40% of a core's time" in judge(busy).advice[0]
    assert "2.1% of the samples cannot be used: 'wds-tools verify --decode'" in judge(busy).advice[-1]


# -- what is wanted


@pytest.mark.parametrize(
    ("given", "rate", "expected"),
    [
        ({}, 900, (True, 2, "900 samples/s are reached with 2 workers (900)")),
        ({}, 450, (True, 0, "450 samples/s are reached with 0 workers (450)")),
        ({}, 1500, (False, 4, "it would take about 4 workers with a core each, and this process has 2")),
        ({"cores": 8}, 1500, (False, 4, "it would take about 4 workers, by these figures")),
        ({"main": 1_300}, 1500, (False, None, "the main process takes 1,300 at most")),
        ({"main": 950}, 1500, (False, None, "more workers do not help")),
        ({"cores": 8, "loads": {0: 450, 2: 900, 4: 900}}, 1500, (False, None, "up to 4 were no faster")),
        ({"reads": ((42, "network"),), "loads": {0: 40, 2: 80}}, 200, (False, 5, "if the network gives each of them")),
        (
            {"reads": ((42, "network"),), "loads": {0: 40, 2: 41}},
            200,
            (False, None, "up to 2 were no faster: something else must change first"),
        ),
    ],
)
def test_whether_a_rate_is_reached_and_what_it_would_take(
    given: dict[str, Any], rate: float, expected: tuple[bool, int | None, str]
) -> None:
    found = judge(measured(**given), rate).target
    assert isinstance(found, Target)
    assert (found.rate, found.reached, found.workers) == (rate, *expected[:2])
    assert expected[2] in found.text


def test_without_a_target_nothing_is_said_of_one() -> None:
    assert judge(measured()).target is None


rates = st.floats(0.001, 1e7)


@given(
    reads=st.one_of(
        st.tuples(st.tuples(rates, st.just("network"))),
        st.tuples(st.tuples(rates, st.just("disk")), st.tuples(rates, st.just("page cache"))),
    ),
    decode=st.none() | rates,
    loads=st.dictionaries(st.integers(0, 64), rates, min_size=1),
    main=rates,
    cores=st.integers(1, 64),
    cached=st.none() | st.floats(0, 1),
    target=rates,
)
def test_any_rates_have_a_verdict_that_fits_them(target: float, **given: Any) -> None:
    numbers = measured(**given)
    found = judge(numbers, target)
    assert (found.bound == "I/O") == (found.bottleneck in ("disk", "network"))
    assert (found.bottleneck == "network") <= numbers.remote
    assert (found.bottleneck == "disk") <= (not numbers.remote)
    assert (found.bottleneck == "decode") <= (numbers.decode is not None)
    assert found.workers in given["loads"]
    assert found.rate >= 0.95 * max(given["loads"].values())
    assert found.target is not None
    assert found.target.reached == (max(given["loads"].values()) >= target)
    if not found.target.reached and found.target.workers is not None:
        assert found.target.workers > min(numbers.best.workers, numbers.cores)
    assert all(found.advice)
    # Ten times the reading, all else the same, never makes reading the limit.
    faster = replace(numbers, reads=tuple(replace(read, rate=10 * read.rate) for read in numbers.reads))
    assert found.bound == "I/O" or judge(faster).bound == "CPU"


@pytest.mark.parametrize(
    ("rate", "text"), [(0.04, "0.04"), (9.876, "9.88"), (42.04, "42.0"), (123.4, "123"), (1234567, "1,234,567")]
)
def test_rates_have_as_many_digits_as_mean_something(rate: float, text: str) -> None:
    assert rate_text(rate) == text
