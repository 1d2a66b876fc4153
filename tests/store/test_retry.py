"""When to try again, as a function of numbers; and the attempts that go by it, with a clock of their own."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import OptionError, StoreError
from wds_tools.store.options import StoreOptions
from wds_tools.store.retry import LONGEST_ASKED, PROGRESS, Attempts, Timing, asked_wait, wait_before

OPTIONS = StoreOptions(retries=5, backoff=0.5, patience=3)


def test_waits_double_up_to_patience_and_then_end() -> None:
    assert [wait_before(n, 1.0, OPTIONS) for n in range(1, 8)] == [0.5, 1, 2, 3, 3, None, None]


def test_jitter_is_full() -> None:
    assert [wait_before(3, draw, OPTIONS) for draw in (0.0, 0.25, 0.5)] == [0, 0.5, 1]


def test_a_server_is_obeyed_and_its_clients_spread() -> None:
    assert wait_before(1, 0.5, OPTIONS, asked=7) == 7.25
    assert wait_before(1, 0.0, OPTIONS, asked=0) == 0
    assert wait_before(1, 0.0, OPTIONS, asked=1e9) == LONGEST_ASKED
    assert wait_before(6, 0.0, OPTIONS, asked=7) is None


@given(st.integers(1, 2000), st.floats(0, 1, exclude_max=True), st.none() | st.floats(0, 1e6))
def test_every_wait_is_bounded(failures: int, draw: float, asked: float | None) -> None:
    options = StoreOptions(retries=1000, patience=20)
    wait = wait_before(failures, draw, options, asked)
    assert (wait is None) == (failures > 1000)
    assert wait is None or ((asked and min(asked, LONGEST_ASKED)) or 0) <= wait <= LONGEST_ASKED + 20


def test_defaults_last_through_a_restart_and_not_much_longer() -> None:
    waits = [wait_before(n, 1.0, StoreOptions()) for n in range(1, 9)]
    assert 55 <= sum(wait or 0 for wait in waits) <= 90


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7), (" 0 ", 0), (None, None), ("", None), ("soon", None), ("-5", None), ("1.5", None), ("٣", None),
        ("Thu, 01 Jan 1970 00:02:00 GMT", 20), ("Thu, 01 Jan 1970 00:00:10 GMT", 0), ("Thu, 99 Foo", None),
        ("9" * 400, 999_999_999),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert asked_wait(header, now=100.0) == seconds


class Clock:
    """Time that passes only by waiting."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def timing(self) -> Timing:
        return Timing(self.waits.append, lambda: math.fsum(self.waits), lambda: 0.5)


def test_attempts_are_summed_up() -> None:
    clock = Clock()
    attempts = Attempts("http://host/a.tar", OPTIONS, clock.timing())
    for asked in (None, None, 10, None, None):
        attempts.failed("HTTP 503", asked)
    assert clock.waits == [0.25, 0.5, 11, 1.5, 1.5]
    with pytest.raises(
        StoreError, match=r"^http://host/a\.tar: HTTP 503; given up after 6 attempts in a row, 14\.8 s in all; check "
    ):
        attempts.failed("HTTP 503")


def test_bytes_begin_a_new_row() -> None:
    clock = Clock()
    attempts = Attempts("x", StoreOptions(retries=1, backoff=1), clock.timing())
    for _ in range(10):
        attempts.failed("broke")
        attempts.progress(PROGRESS - 1)
        attempts.progress(1)
    assert clock.waits == [0.5] * 10
    assert attempts.failures == 10
    attempts.failed("broke")
    attempts.progress(PROGRESS - 1)
    with pytest.raises(StoreError, match="2 attempts in a row"):
        attempts.failed("broke")


BAD = [
    {"timeout": 0}, {"timeout": math.inf}, {"timeout": math.nan}, {"retries": -1}, {"retries": 5000}, {"backoff": -1},
    {"patience": math.nan}, {"chunk_size": 5}, {"chunk_size": 1 << 40}, {"concurrency": 0}, {"ca_file": "/nowhere.pem"},
    {"endpoint_url": "host:9000"}, {"endpoint_url": "ftp://h"},
]  # fmt: skip


@pytest.mark.parametrize("values", BAD, ids=str)
def test_options_say_which_value_is_bad(values: dict[str, object]) -> None:
    ((name, value),) = values.items()
    with pytest.raises(OptionError, match=rf"^{name} is '?{value}"):
        StoreOptions(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["https://me:t0ken@host", "https://host/?sig=t0ken", "https://me:t0ken@/x"])
def test_an_endpoint_with_a_secret_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(OptionError) as caught:
        StoreOptions(endpoint_url=url)
    assert "t0ken" not in str(caught.value)
