import shutil

import pytest

from tests.fuzz import run
from tests.support import needs
from wds_tools.image import tiles

RUNS = 5_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if shutil.which("clang") is None:
        needs.tool("gcc")
    return tmp_path_factory.mktemp("fuzz")


def test_a_short_run_of_the_fuzzer_finds_nothing(folder):
    done = run.fuzz(folder, RUNS)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {RUNS} runs" in done.stderr


def test_seeds_reach_the_kernel_as_they_should(folder):
    """Most seeds can be tiled and cut: a fuzzer fed with refused files would find nothing for ever."""
    needs.kernel()
    files = [path.read_bytes()[:-8] for path in run.seeds(folder / "seeds")]
    assert sum(tiles.tile(data, 16) != data for data in files) >= len(files) - 4
    assert all(len(data) < run.LONGEST for data in files)
