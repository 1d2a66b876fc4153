"""``wds-tools report``: what it says and how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support import others, pages, trees
from tests.support.commands import PYTHON, call, run_python
from wds_tools.convert.run import convert_tree


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    convert_tree(trees.classes(tmp_path / "tree"), tmp_path / "data", workers=0)
    return tmp_path / "data"


def test_it_writes_a_page_and_says_so_in_a_line(dataset: Path, tmp_path: Path) -> None:
    said = call("report", dataset, "-o", tmp_path / "r.html", "--workers", "0")
    assert (said.code, said.err) == (0, "")
    start = re.escape(f"{tmp_path}/r.html: 15 of 15 samples of 3 classes looked at, no problems found; ")
    assert re.fullmatch(start + r"[\d.]+ kB\n", said.out)
    assert len(pages.read(tmp_path / "r.html").tiles()) == 15


def test_it_ends_well_whatever_it_finds(dataset: Path, tmp_path: Path) -> None:
    (dataset / "sizes.json").unlink()
    said = call("report", dataset, "-o", tmp_path / "r.html", "--workers", "0")
    assert (said.code, said.err) == (0, "")
    assert ", 1 problem found; " in said.out
    said = call("report", dataset, "-o", tmp_path / "r.html", "--workers", "0", "--no-verify")
    assert ", no problems found without verifying; " in said.out


def test_json_is_the_summary(dataset: Path, tmp_path: Path) -> None:
    said = call(
        "report", dataset, "-o", tmp_path / "r.html", "--json", "--samples", "6", "--per-class", "1", "--seed", "3"
    )
    answer = json.loads(said.out)
    assert answer["output"] == str(tmp_path / "r.html")
    assert answer["size"] == (tmp_path / "r.html").stat().st_size
    assert (answer["samples"], answer["classes"], answer["thumbnails"], answer["problems"]) == (15, 3, 3, 0)


def test_shards_may_be_named(dataset: Path, tmp_path: Path) -> None:
    others.tar(tmp_path / "x-0.tar", {"a.jpg": trees.picture()})
    others.tar(tmp_path / "x-1.tar", {"b.jpg": trees.picture()})
    said = call("report", tmp_path / "x-0.tar", tmp_path / "x-1.tar", "-o", tmp_path / "r.html", "--workers", "0")
    assert "2 of 2 samples looked at" in said.out


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ("{}/none -o {}/r.html", 1, "check the path"),
        ("{}/tree -o {}/r.html", 1, "holds no dataset"),
        ("{}/data -o {}/data/info.json", 1, "is there and is no report, so it is not overwritten"),
        ("{}/data -o {}/no/r.html", 1, "there is no folder"),
        ("{}/data -o {}/r.html --samples 0", 2, "samples is 0; it must be between 1 and 100000"),
        ("{}/data -o {}/r.html --per-class x", 2, "'x' is not a valid integer"),
        ("{}/data -o {}/r.html --split test", 2, "has no split 'test', only train"),
        ("ftp://host/data -o {}/r.html", 2, "is a URL; http, https and s3 addresses are read"),
        ("", 2, "Missing argument 'DATASET...'"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    dataset: Path, tmp_path: Path, words: str, code: int, sentence: str
) -> None:
    said = call("report", *words.replace("{}", str(tmp_path)).split())
    assert said.code == code
    assert sentence in said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "r.html").exists()


def test_without_jinja2_it_says_what_to_install_before_any_work(tmp_path: Path) -> None:
    code = "import sys; sys.modules['jinja2'] = None; from wds_tools.cli.main import main; main()"
    said = run_python("-c", code, "report", tmp_path / "nothing", "-o", tmp_path / "r.html")
    assert said.code == 1
    assert said.err == f"Error: a report needs jinja2, which is not installed; run: {PYTHON} -m pip install jinja2\n"


def test_the_template_is_part_of_the_package(tmp_path: Path) -> None:
    """What setup.cfg says goes into a wheel: without the template there is no report."""
    code = "import sys; sys.argv = ['setup.py', '-q', 'build_py', '-d', sys.argv[1]]; exec(open('setup.py').read())"
    root = Path(__file__).parents[2]
    said = run_python("-c", code, tmp_path / "built", cwd=root)
    assert said.code == 0, said.err
    built = tmp_path / "built" / "wds_tools" / "tools" / "templates"
    assert sorted(path.name for path in built.iterdir()) == ["report.css", "report.html", "report.js"]
