"""What every store promises, run against each of them.

To add a store: write a builder that answers with a `Place`, and put it into ``STORES``. Every store is also run through a
cache, and one with its calls counted and slowed down.
"""

import itertools
import os
import pickle
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.watched import Watched
from wds_tools.errors import ChangedError, NotFoundError, StoreError
from wds_tools.store.base import Store
from wds_tools.store.cache import CacheStore
from wds_tools.store.http import HttpStore
from wds_tools.store.local import LocalStore
from wds_tools.store.options import StoreOptions
from wds_tools.store.s3 import S3Store

DATA = random.Random(0).randbytes(1_280_007)  # longer than any buffer in between
NAMES = [
    "a.tar",
    "sub/folder/a.tar",
    "with space.tar",
    "ünï 字.tar",
    "100%25.tar",
    "a#b?c=d&e+f.tar",
    "a;b,c'd!.tar",
    "~a@b=.tar",
]


@dataclass
class Place:
    """A store, and how bytes come to lie in it behind its back."""

    store: Store
    put: Callable[[str, bytes], None]


_SECONDS = itertools.count(1_700_000_000)

Make = Callable[[pytest.FixtureRequest, Path], Place]


def _into(folder: Path) -> Callable[[str, bytes], None]:
    def put(name: str, data: bytes) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name("new").write_bytes(data)
        # nginx makes its ETag of seconds and size.
        os.utime(path.with_name("new"), (next(_SECONDS),) * 2)
        path.with_name("new").replace(path)

    return put


def local(request: pytest.FixtureRequest, folder: Path) -> Place:
    return Place(LocalStore(folder / "far"), _into(folder / "far"))


def http(request: pytest.FixtureRequest, folder: Path) -> Place:
    nginx = request.getfixturevalue("nginx")
    return Place(
        HttpStore(f"{nginx.url}/{folder.name}", StoreOptions(chunk_size=1 << 19)), _into(nginx.root / folder.name)
    )


def s3(request: pytest.FixtureRequest, folder: Path) -> Place:
    bucket = request.getfixturevalue("bucket")
    root = f"{bucket.url}/{folder.name}"
    behind = S3Store(root, bucket.options)
    return Place(S3Store(root, bucket.options), lambda name, data: behind.write_atomic(name, [data]))


def cached(make: Make) -> Make:
    def through(request: pytest.FixtureRequest, folder: Path) -> Place:
        place = make(request, folder)
        return Place(CacheStore(place.store, folder / "near", 50_000_000), place.put)

    return through


def watched(make: Make) -> Make:
    def through(request: pytest.FixtureRequest, folder: Path) -> Place:
        place = make(request, folder)
        return Place(Watched(place.store, delay=0.001), place.put)

    return through


STORES: dict[str, Make] = {"local": local, "http": http, "s3": s3}
STORES |= {f"cache over {name}": cached(make) for name, make in STORES.items()}
STORES |= {"watched": watched(local)}
WRITABLE = [name for name in STORES if not name.endswith("http")]


def _place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return STORES[request.param](request, tmp_path)


place = pytest.fixture(_place, params=STORES, name="place")
writable = pytest.fixture(_place, params=WRITABLE, name="writable")


# -- reading


@pytest.mark.parametrize("name", NAMES)
def test_what_lies_there_is_read(place, name):
    place.put(name, DATA)
    assert place.store.size(name) == len(DATA)
    assert place.store.read(name) == DATA
    with place.store.stream(name) as file:
        assert file.read() == DATA


RANGES = [(0, 0), (0, 1), (0, len(DATA)), (1, 999), (512, 512), (70_000, 1 << 20), (len(DATA) - 1, 1), (len(DATA), 0)]


@pytest.mark.parametrize(("start", "length"), RANGES)
def test_a_range_is_read_exactly(place, start, length):
    place.put("a.tar", DATA)
    assert place.store.read("a.tar", start, length) == DATA[start : start + length]


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(DATA)), st.integers(0, len(DATA)))
def test_any_range_is_read_exactly(place, one, other):
    start, end = sorted((one, other))
    place.put("a.tar", DATA)
    assert place.store.read("a.tar", start, end - start) == DATA[start:end]


@pytest.mark.parametrize("start", [0, 1, 100_000, len(DATA) - 1, len(DATA)])
def test_reading_goes_to_the_end_without_a_length(place, start):
    place.put("a.tar", DATA)
    assert place.store.read("a.tar", start) == DATA[start:]


@pytest.mark.parametrize(
    ("start", "length"),
    [(0, len(DATA) + 1), (len(DATA) - 1, 2), (len(DATA), 1), (len(DATA) + 1, 1), (1 << 40, 1), (0, 1 << 50)],
)
def test_an_answer_is_never_short(place, start, length):
    place.put("a.tar", DATA)
    with pytest.raises(StoreError, match=r"a\.tar") as caught:
        place.store.read("a.tar", start, length)
    assert not isinstance(caught.value, NotFoundError)


def test_an_empty_file_is_read(place):
    place.put("empty", b"")
    assert place.store.size("empty") == 0
    assert place.store.read("empty") == place.store.read("empty", 0, 0) == b""
    with place.store.stream("empty") as file:
        assert file.read() == b""


@pytest.mark.parametrize("start", [0, 1, 100_000, len(DATA)])
def test_a_stream_goes_from_its_start_to_the_end(place, start):
    place.put("a.tar", DATA)
    with place.store.stream("a.tar", start) as file:
        parts = list(iter(lambda: file.read(99_991), b""))
    assert b"".join(parts) == DATA[start:]


def test_streams_of_one_file_do_not_disturb_each_other(place):
    place.put("a.tar", DATA)
    with place.store.stream("a.tar") as one, place.store.stream("a.tar", 1000) as other:
        assert one.read(10) == DATA[:10]
        assert other.read(10) == DATA[1000:1010]
        assert place.store.read("a.tar", 500, 10) == DATA[500:510]
        assert one.read(10) == DATA[10:20]


@pytest.mark.parametrize("name", ["missing.tar", "missing/folder/a.tar"])
@pytest.mark.parametrize("ask", ["size", "read", "stream"])
def test_a_missing_name_is_told_in_full(place, ask, name):
    with pytest.raises(NotFoundError) as caught:
        getattr(place.store, ask)(name)
    assert place.store.url(name) in str(caught.value)


def test_a_version_says_the_size_and_whether_a_name_was_replaced(place):
    place.put("a.tar", DATA)
    version = place.store.version("a.tar")
    assert version.size == len(DATA)
    assert place.store.version("a.tar") == version
    place.put("a.tar", DATA[::-1])
    assert place.store.version("a.tar") != version


def test_fault_33_bytes_of_two_versions_are_never_mixed(place):
    place.put("a.tar", DATA)
    version = place.store.version("a.tar")
    got = [place.store.read("a.tar", 5, 1000, version)]
    place.put("a.tar", DATA[::-1])
    for ask in (
        lambda: place.store.read("a.tar", 5, 1000, version),
        lambda: place.store.read("a.tar", 5, version=version)[:1000],
        lambda: place.store.stream("a.tar", 5, version).read(1000),
    ):
        if isinstance(place.store, CacheStore):
            got.append(ask())  # its copy has the old bytes
        else:
            with pytest.raises(ChangedError, match=re.escape(place.store.url("a.tar"))):
                ask()
    assert set(got) == {DATA[5:1005]}
    assert place.store.read("a.tar", 5, 1000) == DATA[::-1][5:1005]


def test_a_missing_name_has_no_version(place):
    with pytest.raises(NotFoundError):
        place.store.version("missing.tar")


def test_urls_tell_names_apart(place):
    urls = [place.store.url(name) for name in NAMES]
    assert len({*urls, place.store.url()}) == len(NAMES) + 1


def test_a_store_pickles(place):
    place.put("a.tar", DATA)
    assert place.store.read("a.tar", 0, 5) == DATA[:5]  # pickled after use, as a loader does
    again = pickle.loads(pickle.dumps(place.store))
    assert again.url("a.tar") == place.store.url("a.tar")
    assert again.read("a.tar") == DATA


def test_a_store_crosses_a_fork(place):
    place.put("a.tar", DATA)
    assert place.store.read("a.tar", 0, 5) == DATA[:5]
    child = os.fork()
    if not child:
        right = False
        try:
            right = place.store.read("a.tar") == DATA
        finally:
            os._exit(0 if right else 1)
    assert place.store.read("a.tar") == DATA
    assert os.waitpid(child, 0)[1] == 0


# -- listing


def test_names_are_listed_in_order_by_their_beginning(writable):
    for name in ("b.tar", "a-2.tar", "a-10.tar", "sub/a-1.tar", "sub/b.tar"):
        writable.put(name, b"x")
    many = [f"many/{number * 7919 % 1000:03d}" for number in range(40)]
    for name in many:
        writable.put(name, b"x")
    assert writable.store.list("many/") == sorted(many)
    assert [name for name in writable.store.list() if name.endswith(".tar")] == ["a-10.tar", "a-2.tar", "b.tar"]
    assert writable.store.list("a-") == ["a-10.tar", "a-2.tar"]
    assert writable.store.list("sub/") == ["sub/a-1.tar", "sub/b.tar"]
    assert writable.store.list("sub/b") == ["sub/b.tar"]
    assert writable.store.list("c") == []


# -- writing


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("durable", [True, False])
def test_what_is_written_is_read_back(writable, name, durable):
    writable.store.write_atomic(name, [DATA[:1000], DATA[1000:]], durable=durable)
    assert writable.store.read(name) == DATA
    assert writable.store.size(name) == len(DATA)


@pytest.mark.parametrize(
    "chunks", [[], [b""], [b"", b"a", b"", b"b"], [bytearray(b"ab")], [memoryview(b"xabx")[1:3], b""]]
)
def test_chunks_of_any_kind_are_joined(writable, chunks):
    expected = b"".join(bytes(chunk) for chunk in chunks)
    writable.store.write_atomic("a", chunks)
    assert writable.store.read("a") == expected


def test_a_chunk_may_be_used_again_once_the_next_is_asked_for(writable):
    def chunks() -> Iterator[memoryview]:
        buffer = bytearray(100_000)
        for number in range(20):
            buffer[:] = bytes([number]) * len(buffer)
            yield memoryview(buffer)[: 1000 * (number + 1)]

    writable.store.write_atomic("a", chunks())
    assert writable.store.read("a") == b"".join(bytes([n]) * 1000 * (n + 1) for n in range(20))


def test_a_name_is_written_anew_longer_or_shorter(writable):
    for data in (b"first", b"second, longer", b"3rd", b""):
        writable.store.write_atomic("a", [data])
        assert writable.store.read("a") == data
    assert writable.store.list("a") == ["a"]


def test_readers_see_the_old_bytes_until_all_new_ones_are_there(writable):
    store, seen = writable.store, []

    def chunks() -> Iterator[bytes]:
        yield DATA
        seen.append(store.read("a"))
        seen.append(store.list("a"))
        with pytest.raises(NotFoundError):
            store.read("b")
        yield DATA

    store.write_atomic("a", [b"old"])
    store.write_atomic("a", chunks())
    assert seen == [b"old", ["a"]]
    with pytest.raises(NotFoundError):
        store.read("b")


class _Stopped(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [ValueError("bad sample"), OSError(5, "the source broke"), _Stopped(), KeyboardInterrupt()]
)
def test_a_maker_that_fails_changes_nothing_and_is_heard(writable, error):
    """Its error comes out as it is: it may be about the source, which this store knows nothing of."""

    def chunks() -> Iterable[bytes]:
        yield DATA
        raise error

    store = writable.store
    store.write_atomic("there", [b"old"])
    before = store.list()
    for name in ("there", "new"):
        with pytest.raises(type(error)) as caught:
            store.write_atomic(name, chunks())
        assert caught.value is error
    assert store.list() == before
    assert store.read("there") == b"old"


def test_a_deleted_name_is_gone_and_a_missing_one_no_error(writable):
    writable.store.write_atomic("sub/a", [b"x"])
    writable.store.delete("sub/a")
    writable.store.delete("sub/a")
    writable.store.delete("never/was")
    with pytest.raises(NotFoundError):
        writable.store.size("sub/a")
    assert writable.store.list("sub/") == []
