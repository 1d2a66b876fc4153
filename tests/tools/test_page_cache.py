"""What the kernel holds of a file, as far as it tells."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import needs
from wds_tools.tools import page_cache

TRIES = 100  # pages that something else looks at just now stay


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file that is on the disk, so that its pages may be dropped; skips where the kernel does not do it, or not tell."""
    made = os.fspath(tmp_path / "file")
    with open(made, "w+b") as file:
        file.write(os.urandom(4 << 20))
        file.flush()
        os.fsync(file.fileno())
        for _ in range(TRIES):
            try:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                os.preadv(file.fileno(), [bytearray(1)], 3 << 20, os.RWF_NOWAIT)
            except BlockingIOError:
                return made
            except (AttributeError, OSError) as error:
                needs._missing(f"what is cached cannot be told here ({error})")
    needs._missing("the file system of the temporary folder keeps all in memory")
    raise AssertionError


def test_a_file_that_was_read_is_cached_and_one_that_was_dropped_is_not(path: str) -> None:
    Path(path).read_bytes()
    assert page_cache.cached_share([path]) == 1
    for _ in range(TRIES):
        page_cache.drop([path])
        left = page_cache.cached_share([path])
        if left == 0:
            break
    assert left == 0
    Path(path).read_bytes()
    assert page_cache.cached_share([path]) == 1


def test_a_file_that_is_asked_for_is_fetched(path: str) -> None:
    page_cache.drop([path])
    page_cache.fetch([path])
    Path(path).read_bytes()  # waits for it
    assert page_cache.cached_share([path]) == 1


def test_what_cannot_be_told_is_none_and_no_error(tmp_path: Path) -> None:
    missing, empty = os.fspath(tmp_path / "missing"), tmp_path / "empty"
    empty.write_bytes(b"")
    assert page_cache.cached_share([missing]) is None
    assert page_cache.cached_share([os.fspath(empty)]) is None
    assert page_cache.cached_share([]) is None
    page_cache.drop([missing])
    page_cache.fetch([missing])
