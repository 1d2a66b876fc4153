"""The cache of whole shards: what it keeps, what it lets go, and that nobody needs it."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.support import needs
from tests.support.processes import mounted
from tests.support.watched import Watched
from wds_tools.errors import ChangedError, NotFoundError, OptionError, StoreError
from wds_tools.store.cache import CacheStore
from wds_tools.store.local import LocalStore

SIZE = 100_000


class Counting(LocalStore):
    """A store that notes each whole transfer in a file, so that processes can be counted together."""

    def stream(self, name, start=0, version=None):
        with open(self.url(".transfers"), "a") as log:
            log.write(f"{name}\n")
        return super().stream(name, start, version)

    def transfers(self) -> list[str]:
        path = Path(self.url(".transfers"))
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def far(tmp_path: Path) -> Counting:
    store = Counting(tmp_path / "far")
    for name in "abcd":
        store.write_atomic(f"{name}.tar", [name.encode() * SIZE])
    return store


def copies(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def test_a_shard_is_fetched_once_and_then_read_from_the_folder(far, tmp_path):
    cache = CacheStore(far, tmp_path / "near", 10 * SIZE)
    for _ in range(3):
        assert cache.read("a.tar", 5, 10) == b"a" * 10
        with cache.stream("a.tar", SIZE - 3) as file:
            assert file.read() == b"aaa"
    assert far.transfers() == ["a.tar"]


def test_what_is_no_shard_is_not_kept(far, tmp_path):
    far.write_atomic("info.json", [b"{}"])
    cache = CacheStore(far, tmp_path / "near", 10 * SIZE)
    assert cache.read("info.json") == b"{}"
    far.write_atomic("info.json", [b"[]"])
    assert cache.read("info.json") == b"[]"


def test_fault_41_the_least_recently_used_make_room(far, tmp_path):
    cache = CacheStore(far, tmp_path / "near", 2 * SIZE)
    cache.read("a.tar")
    cache.read("b.tar")
    for path, age in zip(copies(tmp_path / "near"), (10, 20), strict=True):
        os.utime(path, ns=(age, age))
    cache.read("a.tar")  # used again, so b is the older one
    cache.read("c.tar")
    assert len(copies(tmp_path / "near")) == 2
    assert {path.read_bytes()[:1] for path in copies(tmp_path / "near")} == {b"a", b"c"}
    cache.read("a.tar")
    assert far.transfers() == ["a.tar", "b.tar", "c.tar"]


def test_fault_41_a_shard_larger_than_the_cache_is_read_past_it(far, tmp_path):
    cache = CacheStore(far, tmp_path / "near", SIZE - 1)
    assert cache.read("a.tar") == b"a" * SIZE
    assert not (tmp_path / "near").exists() or copies(tmp_path / "near") == []


def test_fault_41_a_full_disk_is_read_past(far, tmp_path):
    needs.root()
    (tmp_path / "near").mkdir()
    with mounted(tmp_path / "near", "size=60k") as near:
        cache = CacheStore(far, near, 10 * SIZE)
        assert cache.read("a.tar") == b"a" * SIZE
        with cache.stream("b.tar") as file:
            assert file.read() == b"b" * SIZE
        assert copies(near) == []
        assert [name for name in os.listdir(near) if name.endswith(".tmp")] == []


def test_fault_41_a_disk_smaller_than_the_cache_may_be_still_keeps_what_fits(far, tmp_path):
    needs.root()
    (tmp_path / "near").mkdir()
    with mounted(tmp_path / "near", "size=160k") as near:
        cache = CacheStore(far, near, 10 * SIZE)
        cache.read("a.tar")
        assert cache.read("b.tar") == b"b" * SIZE
        assert [path.read_bytes()[:1] for path in copies(near)] == [b"b"]


def test_a_cache_that_cannot_be_made_is_read_past(far, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    cache = CacheStore(far, tmp_path / "file" / "near", 10 * SIZE)
    assert cache.read("a.tar") == b"a" * SIZE


def test_a_replaced_shard_of_another_size_is_fetched_anew(far, tmp_path):
    cache = CacheStore(far, tmp_path / "near", 10 * SIZE)
    cache.read("a.tar")
    far.write_atomic("a.tar", [b"new"])
    assert cache.read("a.tar") == b"new"


def test_a_missing_shard_is_said_to_be_missing(far, tmp_path):
    with pytest.raises(NotFoundError, match=r"z\.tar"):
        CacheStore(far, tmp_path / "near", SIZE).read("z.tar")


def test_an_error_of_the_other_store_is_an_error_and_leaves_nothing(far, tmp_path):
    class Breaking(Counting):
        def stream(self, name, start=0, version=None):
            raise StoreError("broken")

    with pytest.raises(StoreError, match="broken"):
        CacheStore(Breaking(far.root), tmp_path / "near", 10 * SIZE).read("a.tar")
    assert copies(tmp_path / "near") == []


def test_what_a_killed_process_began_is_swept_away(far, tmp_path):
    cache = CacheStore(far, tmp_path / "near", 10 * SIZE)
    cache.read("a.tar")
    (copy,) = copies(tmp_path / "near")
    left = copy.with_name(f".{copy.name}.0123abcd.tmp")
    copy.rename(left)
    assert cache.read("a.tar") == b"a" * SIZE
    assert not left.exists()


def read_all(cache: CacheStore, meeting: Path) -> list[bytes]:
    """Wait until four processes are here, so that all of them want the same shard at once."""
    (meeting / str(os.getpid())).touch()
    while len(os.listdir(meeting)) < 4:
        pass
    return [cache.read(f"{name}.tar", 0, 1) for name in "abcd"]


def test_processes_share_one_download(far, tmp_path):
    cache = CacheStore(far, tmp_path / "near", 10 * SIZE)
    (tmp_path / "meeting").mkdir()
    with ProcessPoolExecutor(4, get_context("spawn")) as pool:
        results = list(pool.map(read_all, [cache] * 4, [tmp_path / "meeting"] * 4))
    assert results == [[b"a", b"b", b"c", b"d"]] * 4
    assert sorted(far.transfers()) == ["a.tar", "b.tar", "c.tar", "d.tar"]


def test_a_cache_without_room_for_a_byte_is_refused(far, tmp_path):
    with pytest.raises(OptionError, match="cache_bytes is 0"):
        CacheStore(far, tmp_path, 0)


def test_with_a_version_in_hand_the_other_store_is_asked_once_for_the_shard(far, tmp_path):
    watched = Watched(far)
    cache = CacheStore(watched, tmp_path / "near", 10 * SIZE)
    version = cache.version("a.tar")
    for at in range(0, SIZE, 1000):
        assert cache.read("a.tar", at, 10, version) == b"a" * 10
    assert watched.calls == [("version", "a.tar"), ("stream", "a.tar", 0)]
    path = cache.local_path("a.tar", version)
    assert path is not None
    assert Path(path).read_bytes() == b"a" * SIZE
    assert cache.local_path("info.json") is None
    assert len(watched.calls) == 2


def test_fault_33_a_shard_that_changes_before_it_is_fetched_is_not_kept(far, tmp_path):
    cache = CacheStore(far, tmp_path / "near", 10 * SIZE)
    version = cache.version("a.tar")
    far.write_atomic("a.tar", [b"z" * SIZE])
    with pytest.raises(ChangedError):
        cache.read("a.tar", 0, 10, version)
    assert copies(tmp_path / "near") == []
    assert cache.read("a.tar", 0, 10) == b"z" * 10
