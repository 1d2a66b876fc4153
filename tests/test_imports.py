"""What is imported when: a command that does not train never loads torch, and one that copies bytes loads no decoder."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import wds_tools
from tests.support import others, trees
from tests.support.commands import Said, run_python

DECODERS = ("numpy", "PIL", "simplejpeg")
TRAINING = ("torch", "torchvision", "webdataset")

# A package that must not be imported raises what nobody catches, in worker processes too.
GUARD = """
import sys
from importlib.abc import MetaPathFinder

class Guard(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] not in BANNED, name + " is imported"

BANNED = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Guard())
"""
COMMAND = GUARD + "from wds_tools.cli.main import main\nmain()"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tree, a dataset made of it, and somebody's shards."""
    folder = tmp_path_factory.mktemp("imports")
    trees.classes(folder / "tree")
    said = run_python("-m", "wds_tools", "convert", "tree", "data", "--max-count", "4", cwd=folder)
    assert said.code == 0, said.err
    (folder / "theirs").mkdir()
    for number in range(3):
        others.tar(folder / "theirs" / f"x-{number}.tar", {f"{number}.jpg": trees.picture(), f"{number}.cls": b"0"})
    return folder


def guarded(place: Path, command: str, *banned: str) -> Said:
    return run_python("-c", COMMAND, ",".join(banned), *command.split(), cwd=place)


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "--version",
        "convert --help",
        "bench --help",
        "serve --help",
        "convert tree {new}/data --workers 0",
        "convert tree {new}/data --max-count 4 --workers 2",
        "convert tree {new}/data --metadata --siblings",
        "info data",
        "info data --json",
        "verify data --workers 0",
        "verify data --workers 2",
        "index theirs --workers 0",
        "index theirs --workers 2",
        "report --help",
        "sidecars data --for energon --for hf --for clip-benchmark --json",
        "extract data {new}/back",
    ],
)
def test_a_command_that_copies_bytes_loads_neither_torch_nor_decoders(
    place: Path, tmp_path: Path, command: str
) -> None:
    said = guarded(place, command.format(new=tmp_path), "tqdm", *TRAINING, *DECODERS)
    assert (said.code, said.err) == (0, "")


@pytest.mark.parametrize(
    "command",
    [
        "convert tree png --encode png --workers 0",
        "convert tree small --image-size 4 --max-count 4 --workers 2",
        "convert tree npy --encode npy --workers 0",
        "verify data --decode --workers 0",
        "verify data --decode --workers 2",
        "report data -o report.html --workers 2",
        "demo demo --per-class 1",
    ],
)
def test_a_command_that_decodes_loads_no_torch(place: Path, command: str) -> None:
    said = guarded(place, command, *TRAINING)
    assert (said.code, said.err) == (0, "")


def test_the_guard_sees_what_is_imported_in_workers_too(place: Path) -> None:
    for workers in (0, 2):
        said = guarded(place, f"verify data --decode --workers {workers}", "PIL")
        assert said.code == 3
        assert "AssertionError: PIL is imported" in said.err


def test_importing_the_package_loads_nothing_but_itself() -> None:
    code = (
        "import sys; before = set(sys.modules); import wds_tools;"
        "print(sorted({name for name in set(sys.modules) - before if name.startswith(('wds_tools', 'torch', 'numpy'))}))"
    )
    assert run_python("-c", code).out.strip() == "['wds_tools', 'wds_tools._version']"


def test_every_name_but_those_for_training_resolves_without_torch_or_decoders() -> None:
    names = set(wds_tools.__all__) - {"MixedDataset", "ShardDataset", "ShardLoader", "transforms"}
    code = GUARD + f"import wds_tools\nprint(len([getattr(wds_tools, name) for name in {sorted(names)}]))"
    said = run_python("-c", code, ",".join((*TRAINING, *DECODERS)))
    assert (said.out.strip(), said.err) == (str(len(names)), "")


# -- the names that the package hands on


def test_all_dir_and_star_agree() -> None:
    assert dir(wds_tools) == sorted(wds_tools.__all__)
    assert wds_tools.__all__ == sorted(wds_tools.__all__)
    space: dict[str, object] = {}
    exec("from wds_tools import *", space)
    assert set(wds_tools.__all__) <= space.keys()


def test_a_name_is_the_one_of_its_room() -> None:
    from wds_tools.convert.run import convert_tree
    from wds_tools.errors import TarError

    assert wds_tools.convert_tree is convert_tree
    assert wds_tools.TarError is TarError
    assert wds_tools.__version__ == "0.1.0"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'wds_tools' has no attribute 'ShardWriter'"):
        wds_tools.ShardWriter  # noqa: B018
    assert not hasattr(wds_tools, "_secret")
    with pytest.raises(ImportError):
        exec("from wds_tools import nothing_of_this_name")


def test_the_rooms_the_type_checkers_block_and_all_agree() -> None:
    tree = ast.parse(Path(wds_tools.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    typed = {
        alias.name: f"{node.module}".removeprefix("wds_tools.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == wds_tools._ROOMS
    assert {*typed, "__version__"} == set(wds_tools.__all__)


def test_every_error_is_handed_on() -> None:
    from wds_tools import errors

    public = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert public <= set(wds_tools.__all__)
