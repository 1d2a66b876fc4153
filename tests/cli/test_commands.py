"""The command line: what it says, how it ends, and that it says it in one sentence."""

from __future__ import annotations

import json
import os
import re
import shlex
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import images, needs, others, trees
from tests.support.commands import PYTHON, SCRIPT, Said, call, run, run_python
from wds_tools._version import VERSION
from wds_tools.cli.main import COMMANDS

EXAMPLE = re.compile(r"Example: (wds-tools .*)\s*\Z")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a user might point the command at, rightly or wrongly."""
    folder = tmp_path_factory.mktemp("place")
    tree = trees.classes(folder / "tree")
    for words in (("tree", "data", "--max-count", "6"), ("tree", "both"), ("tree", "both", "--split", "val")):
        assert call("convert", folder / words[0], folder / words[1], *words[2:], "--workers", "0").code == 0
    for name in ("empty", "hollow/cat", "flat", "splits/train", "splits/val", "bad/cat", "theirs", "newer", "broken"):
        (folder / name).mkdir(parents=True)
    trees.write(folder, "splits/train/cat/1.jpg")
    trees.write(folder, "flat/1.jpg")
    trees.write(folder, "bad/cat/1.jpg", b"not a picture")
    (folder / "a file").write_bytes(b"text")
    (folder / "page.tar").write_bytes(b"<!DOCTYPE html><p>404")
    (folder / "cut.tar").write_bytes((folder / "data" / "train-000000.tar").read_bytes()[:-700])
    (folder / "table.csv").write_text("file,label\ntree/ant/ant_000.jpg,1\n")
    (folder / "labels.csv").write_text("path,label\ntree/ant/ant_000.jpg,one\n")
    (folder / "classes").write_text("ant\nbee\n")
    (folder / "none").write_text("\n")
    (folder / "newer" / "info.json").write_text('{"format": "wds_tools", "version": 99, "splits": {}}')
    (folder / "broken" / "info.json").write_text("{")
    others.tar(folder / "theirs" / "x-0.tar", {"a.jpg": trees.picture(), "a.cls": b"0"})
    others.tar(folder / "theirs" / "x-1.tar", {"a.jpg": trees.picture(), "a.cls": b"0"})
    trees.write(folder, "high/imagenet/train/cat/1.jpg")
    trees.write(folder, "high/imagenet/val/cat/1.jpg")
    trees.write(folder, "beside/train/cat/1.jpg")
    trees.write(folder, "beside/val/cat/1.jpg")
    trees.write(folder, "beside/annotations/1.jpg")
    trees.copy(folder / "data", folder / "half")
    (folder / "half" / "info.json").unlink()
    (folder / "half" / ".wds_tools").mkdir()
    (folder / "over").mkdir()
    trees.copy(folder / "data", folder / "over" / "data")
    (folder / "texts").mkdir()
    for number in (0, 99_999_999):
        others.tar(folder / "texts" / f"{number}.tar", {f"{number}.txt": b"text"})
    assert tree.is_dir()
    return folder


# -- help


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command_and_where_to_start(flag: str) -> None:
    said = call(flag)
    assert said.code == 0
    for name, what in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(what)}$", said.out, re.MULTILINE)
    assert "Start with: wds-tools convert path/to/images path/to/dataset" in said.out


def test_every_command_has_a_file_and_every_file_a_command() -> None:
    import wds_tools.cli

    files = {path.stem for path in Path(wds_tools.cli.__file__).parent.glob("*.py")}
    assert files - {"__init__", "main", "show", "start"} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    said = call(command, "--help")
    assert (said.code, said.err) == (0, "")
    found = EXAMPLE.search(said.out)
    assert found
    assert f"wds-tools {command} " in found[1]
    options = re.findall(r"^  (?:-\w, )?--[\w-]+.*?(?=\n  -|\n\n)", said.out, re.MULTILINE | re.DOTALL)
    assert options
    assert all(option.endswith((".", "]")) for option in options), "each option is explained in a sentence"


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"serve"}))  # it does not end: test_serve.py
def test_the_example_runs(tmp_path: Path, command: str) -> None:
    trees.classes(tmp_path / "imagenet" / "train", count=2)
    (tmp_path / "laion").mkdir()
    for number in range(147):
        others.tar(tmp_path / "laion" / f"{number:05d}.tar", {f"{number}.txt": b"x"})
    if command in ("verify", "info", "report", "extract", "bench", "sidecars", "reshard", "finalize"):
        assert call("convert", tmp_path / "imagenet" / "train", tmp_path / "shards", "--workers", "0").code == 0
    found = EXAMPLE.search(call(command, "--help").out)
    assert found
    path = f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", found[1]], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_convert_has_every_option_it_is_described_with() -> None:
    wanted = (
        "--split --max-size --max-count --seed --no-shuffle --workers --image-size --quality --encode --classes --metadata "
        "--on-error --engine --task --overwrite --siblings --tile"
    )
    helps = call("convert", "--help").out
    assert [name for name in wanted.split() if name not in helps] == []
    assert "[keep|jpg|png|webp|npy]" in helps


def test_both_ways_to_start_it_are_the_same() -> None:
    script = subprocess.run([SCRIPT, "--version"], capture_output=True, text=True, check=True)
    module = run("--version")
    assert script.stdout == module.out == f"wds-tools, version {VERSION}\n"
    assert run("bogus").err == run_python(SCRIPT, "bogus").err
    assert "Usage: wds-tools " in run("bogus").err


# -- what it answers


def test_a_first_session(tmp_path: Path) -> None:
    def step(*words: str) -> str:
        said = run(*words, cwd=tmp_path)
        assert (said.code, said.err) == (0, "")
        return said.out

    data = tmp_path / "shards"
    assert step("demo", "images", "--per-class", "4") == "images: 24 images in 6 classes\n"
    made = step("convert", "images", "shards", "--max-count", "10")
    assert re.fullmatch(
        rf"{data}: split 'train' has 24 samples in 3 shards, [\d.]+ kB, 6 classes \(\d+\.\d s, [\d,]+ images/s, \d+ MB/s\)\n",
        made,
    )
    assert step("convert", "images", "shards", "--max-count", "10").startswith(
        f"{data}: nothing to do, split 'train' is there: 24 samples in 3 shards, "
    )
    assert re.fullmatch(
        rf"{data}: 24 samples in 3 shards, [\d.]+ kB; images not decoded \(--decode does\); all is well\n",
        step("verify", "shards"),
    )
    assert "; every image decoded; all is well\n" in step("verify", "shards", "--decode")
    assert re.fullmatch(
        rf"{tmp_path}/back: 24 samples, 24 files, [\d.]+ kB of split 'train'\n", step("extract", "shards", "back")
    )
    assert trees.snapshot(tmp_path / "back") == trees.snapshot(tmp_path / "images")
    assert step("index", "shards") == f"{data}: 24 samples in 3 shards indexed\n"
    shown = step("info", "shards").splitlines()
    assert shown[0] == str(data)
    assert re.fullmatch(r"split train: 24 samples in 3 shards, [\d.]+ kB", shown[1])
    assert shown[2:4] == [
        "  fields: cls (24), jpg (24)",
        "6 classes: circle, cross, diamond, ring, square, triangle",
    ]


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ("data", 15),
        ("both", 15),
        ("data/train-000000.tar", 6),
        ("data/train-000000.tar data/train-000002.tar", 15),  # a glob is as near as one line comes
        ("data/train-{000000..000001}.tar", 12),
        ("theirs/x-0.tar", 1),
        ("texts", 2),
    ],
)
def test_the_lines_of_python_that_info_shows_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, rows: int
) -> None:
    monkeypatch.chdir(place)
    lines = call("info", *words.split()).out.partition("read it:\n")[2].splitlines()
    assert len(lines) == 3
    exec("\n".join(line.strip() for line in lines), {})
    assert len(capsys.readouterr().out.splitlines()) == rows


def test_the_lines_of_python_fit_other_fields(place: Path, tmp_path: Path) -> None:
    assert call("convert", place / "tree", tmp_path / "png", "--encode", "png", "--workers", "0").code == 0
    assert "to_tuple('__key__', 'png', 'cls')" in call("info", tmp_path / "png").out
    assert call("convert", place / "flat", tmp_path / "flat", "--siblings", "--workers", "0").code == 0
    assert "for key, image in dataset.to_tuple('__key__', 'jpg')" in call("info", tmp_path / "flat").out


def test_what_was_left_out_is_told_apart_from_the_answer(tmp_path: Path) -> None:
    files = {f"cat/{number}.jpg": b"" for number in range(12)} | {
        "cat/x.jpg": None,
        "cat/notes.txt": b"",
        "dog/a.md": b"",
    }
    trees.make(tmp_path / "tree", files)
    said = run("convert", "tree", "data", "--on-error", "skip", "--no-shuffle", cwd=tmp_path)
    assert said.code == 0
    assert said.out.count("\n") == 1
    assert said.err.splitlines() == [
        "class 'dog' has no images",
        "12 files skipped:",
        *(f"  'cat/{number}.jpg': empty file" for number in sorted(map(str, range(12)))[:10]),
        "  … and 2 more; 'skipped' in info.json lists them",
        "not images by name, left out: 1 .md, 1 .txt",
    ]


def test_tiling_tells_how_many_and_what_it_cost(tmp_path: Path) -> None:
    needs.kernel()
    large = images.jpeg(300, 200)
    files = {f"cat/{number}.jpg": large + bytes(number) for number in range(3)}
    trees.make(tmp_path / "tree", files | {"cat/p.jpg": images.jpeg(progressive=True), "cat/q.png": images.png()})
    words = ("convert", tmp_path / "tree", tmp_path / "data", "--tile", "--workers", "0")
    made = json.loads(call(*words, "--json").out)
    assert (made["jpegs"], made["tiled"]) == (4, 3)
    assert made["tiled_from"] == 3 * len(large) + 3
    assert made["tiled_to"] == sum(
        len(fields["jpg"]) for key, fields in trees.read(tmp_path / "data") if key in ("cat/0", "cat/1", "cat/2")
    )
    lines = call(*words, "--overwrite").out.splitlines()
    growth = made["tiled_to"] / made["tiled_from"] - 1
    assert lines[1:] == [f"3 of 4 JPEGs tiled; their size changed by {growth:+.1%}"]
    again = call(*words)
    assert "nothing to do" in again.out
    assert again.out.count("\n") == 1
    for path in (tmp_path / "tree").glob("cat/[0-9].jpg"):
        path.unlink()
    assert call(*words, "--overwrite").out.splitlines()[1:] == [
        "no image was tiled: tiles are for JPEGs larger than one, and not for progressive ones"
    ]


WITHOUT_KERNEL = """
import sys
sys.modules["wds_tools.image._kernel"] = None
from wds_tools.cli.main import main
main()
"""


def test_without_the_kernel_tiling_is_refused_before_anything_is_made(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "data"
    said = run_python("-c", WITHOUT_KERNEL, "convert", place / "tree", out, "--tile", "--workers", "2")
    assert one_sentence(said, 1).startswith("tiling needs the C kernel, which was not built")
    assert not out.exists()
    said = run_python("-c", WITHOUT_KERNEL, "convert", place / "tree", out, "--workers", "0")
    assert (said.code, said.err) == (0, "")


def test_verify_lists_a_hundred_problems_and_counts_the_others(tmp_path: Path) -> None:
    others.tar(tmp_path / "x.tar", [(f"{number}.cls", b"?") for number in range(130)])
    said = call("verify", tmp_path, "--workers", "0")
    assert said.code == 1
    lines = said.out.splitlines()
    assert lines[0] == "x.tar, key '0', offset 512: field 'cls': b'?' is not a class index in ASCII digits"
    assert lines[100] == "… and 30 more (--json lists them all)"
    assert lines[101].endswith("; 130 problems")
    assert len(json.loads(call("verify", tmp_path, "--workers", "0", "--json").out)["problems"]) == 130


def test_json_is_all_that_is_printed(place: Path, tmp_path: Path) -> None:
    def answer(*words: Any, code: int = 0) -> dict[str, Any]:
        said = call(*words, "--json")
        assert (said.code, said.err) == (code, "")
        value: dict[str, Any] = json.loads(said.out)
        return value

    data = tmp_path / "data"
    trees.make(tmp_path / "tree", {"cat/1.jpg": None, "cat/2.jpg": b"", "dog/3.jpg": None, "dog/x.txt": b""})
    made = answer("convert", tmp_path / "tree", data, "--on-error", "skip", "--workers", "0")
    assert (made["samples"], made["shards"], made["complete"], made["classes"]) == (2, 1, True, 2)
    assert made["skipped"] == [{"path": "cat/2.jpg", "reason": "empty file"}]
    assert answer("verify", data, "--workers", "0")["ok"] is True
    assert answer("info", data)["splits"]["train"]["samples"] == 2
    assert answer("extract", data, tmp_path / "back")["files"] == 2
    assert answer("index", data, "--workers", "0")["shards"][0]["samples"] == 2
    (data / "train-000000.idx").unlink()
    found = answer("verify", data, "--workers", "0", code=1)
    assert found["ok"] is False
    assert found["problems"][0]["shard"] == "train-000000.idx"


def test_an_array_of_tasks_says_how_far_it_is(place: Path, tmp_path: Path) -> None:
    words = ("convert", place / "tree", tmp_path / "data", "--max-count", "5", "--workers", "0", "--task")
    assert "this part is done; so far split 'train' has 10 samples in 2 shards" in call(*words, "0/2").out
    assert "split 'train' has 15 samples in 3 shards" in call(*words, "1/2").out


# -- how it ends


def one_sentence(said: Said, code: int) -> str:
    """It ended with ``code`` and one line that begins with Error; the line."""
    assert said.code == code, said
    assert said.out == ""
    assert "Traceback" not in said.err
    lines = [line for line in said.err.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1
    assert said.err.endswith(lines[0] + "\n")
    if code == 1:
        assert said.err == lines[0] + "\n"
    return lines[0].removeprefix("Error: ")


FAILURES = [
    # a path that is wrong
    ("info nope", "'nope' does not exist in "),
    ("verify nope", "'nope' does not exist in "),
    ("index nope", "'nope' does not exist in "),
    ("extract nope {new}", "'nope' does not exist in "),
    (
        "convert nope {new}",
        "source 'nope' does not exist in ",
    ),
    ("verify data/*.zip", "nothing matches 'data/*.zip', seen from "),
    (
        "verify data/train-{000000..000009}.tar",
        "stands for do not exist, the first is 'data/train-000003.tar'; check the numbers",
    ),
    ("info dta", "; did you mean 'data'?"),
    ("info data/train-000000", "; did you mean 'train-000000.tar'?"),
    ("info 'dta/*.tar'", "nothing matches 'dta/*.tar': 'dta' does not exist in "),
    ("info a\\ file/x", "a file' is a file, not a folder; check the path"),
    (
        "convert https://me:secret@host/tree?secret {new}",
        "source 'https://host/tree' is a URL, and only what lies on this",
    ),
    ("convert page.tar {new}", "source 'page.tar' is a file, not a folder; unpack it first, and give a folder"),
    # a folder without what is wanted
    ("info over", "; there is one in '"),
    ("info half", "is not finished: info.json, which a conversion writes last, is not there"),
    ("verify half", "is not finished: info.json"),
    ("index half", "is not finished: info.json"),
    (
        "convert data {new}",
        "holds shards already; read them as they are, make other shards of them with 'wds-tools reshard'",
    ),
    ("convert high {new}", "holds splits (train, val), not classes; convert them one by one"),
    ("convert beside {new}", "holds splits (train, val), not classes; convert them one by one"),
    ("info empty", "holds no dataset: neither info.json nor shards (*.tar); make one with 'wds-tools convert'"),
    ("verify tree", "holds no dataset: neither info.json nor shards (*.tar); make one with 'wds-tools convert'"),
    ("index empty", "holds no shards (*.tar); give the folder that holds them"),
    (
        "extract empty {new}",
        "holds no dataset: neither info.json nor shards (*.tar); make one with 'wds-tools convert'",
    ),
    ("convert empty {new}", "is empty; give a folder that holds one folder a class, with images in them"),
    ("convert hollow {new}", "has no images in its class folders"),
    ("convert flat {new}", "has no class folders; images are expected as"),
    ("convert splits {new}", "holds splits (train, val), not classes; convert them one by one"),
    (
        "convert bad {new}",
        "'cat/1.jpg': not an image of a known kind; mend or remove it, or leave such files out with --on-error skip",
    ),
    ("convert table.csv {new}", "the first row must name the columns, 'path' among them; it says file, label"),
    ("convert labels.csv {new}", "label 'one' is not a class index; give class names in a column named 'class'"),
    ("convert tree {new} --classes classes", "class 'cat' in"),
    ("serve empty", "holds no dataset: neither info.json nor shards (*.tar); make one with 'wds-tools convert'"),
    ("serve nope", "'nope' does not exist in "),
    # bytes that are not what they should be
    ("info page.tar", "page.tar: an HTML or XML page, not a tar"),
    ("info newer", "its version is 99 and this program reads up to 1; upgrade wds_tools"),
    ("verify broken", "info.json: not JSON"),
    ("index cut.tar", "cut.tar: cut short"),
    ("index theirs", "key 'a' is in x-0.tar and in x-1.tar"),
    ("extract cut.tar {new}", "cut.tar: cut short"),
    # a target that will not do
    ("convert tree tree/new", "target 'tree/new' lies inside the source 'tree'; choose a folder outside of it"),
    ("convert tree data --seed 1", "replace it with --overwrite, or choose another folder or --split"),
    ("extract data tree", "'tree' is not empty; give a new folder"),
    ("extract data page.tar", "'page.tar' is a file, or lies below one; give a new folder"),
    ("extract data page.tar/new", "'page.tar/new' is a file, or lies below one; give a new folder"),
    ("demo tree", "'tree' is not empty; give a new folder"),
    ("demo /proc/new", "cannot write to '/proc/new'"),
]


@pytest.mark.parametrize(("words", "says"), FAILURES)
def test_what_may_go_wrong_ends_with_1_and_one_sentence(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, says: str
) -> None:
    monkeypatch.chdir(place)
    command = shlex.split(words.replace("{new}", str(tmp_path / "new")))
    workers = () if command[0] in ("info", "extract", "demo", "serve") else ("--workers", "0")
    assert says in one_sentence(call(*command, *workers), 1)
    assert not (tmp_path / "new" / "info.json").exists()


USAGE = [
    ("bogus", "No such command 'bogus'. There are convert, finalize, reshard, index, verify, "),
    ("convrt tree {new}", "No such command 'convrt'. Did you mean 'convert'?"),
    ("Info data", "No such command 'Info'. Did you mean 'info'?"),
    ("convert tree s3:bucket", "'s3:bucket' is neither a path nor an address; write s3://bucket/prefix"),
    (
        "info https:/host/data?signature=secret",
        "'https:/host/data' is neither a path nor an address; write https://host/",
    ),
    ("info data --split val", "has no split 'val', only train"),
    ("convert tree {new} --classes tree", "cannot read 'tree': Is a directory; it holds one class name a line"),
    ("convert", "Missing argument 'SRC'"),
    ("convert tree", "Missing argument 'OUT'"),
    ("extract data", "Missing argument 'DIR'"),
    ("serve", "Missing argument 'DIR'"),
    ("verify", "Missing argument 'DATASET...'"),
    ("convert tree {new} --sede 1", "No such option '--sede'"),
    ("convert tree {new} --max-size lots", "size 'lots' is not understood; write for example 256MB, 1GiB or 500000"),
    *(
        (f"convert tree {{new}} --tile --encode {kind}", f"tile is for JPEGs, and encode is '{kind}'")
        for kind in ("npy", "png", "webp")
    ),
    ("convert tree {new} --max-size 10", "max_size is 10 bytes; a shard needs at least 10240"),
    ("convert tree {new} --max-count 0", "max_count is 0; it must be at least 1"),
    ("convert tree {new} --max-count many", "'many' is not a valid integer"),
    ("convert tree {new} --split a/b", "split 'a/b' cannot name shards; use letters, digits, '-' and '_'"),
    ("convert tree {new} --image-size 0", "image_size is 0; it must be between 1 and 65535"),
    ("convert tree {new} --quality 101 --encode jpg", "quality is 101; it must be between 1 and 100"),
    ("convert tree {new} --quality 80", "no image is encoded anew"),
    ("convert tree {new} --quality 80 --encode png", "png is lossless; leave quality out"),
    ("convert tree {new} --encode tiff", "'tiff' is not one of 'keep', 'jpg', 'png', 'webp', 'npy'"),
    ("convert tree {new} --on-error ignore", "'ignore' is not one of 'raise', 'skip'"),
    ("convert tree {new} --workers -1", "workers is -1; it must be between 0 (no processes) and 1024"),
    ("verify data --workers 9999", "workers is 9999; it must be between 0 (no processes) and 1024"),
    ("convert tree {new} --task 4/4", "'4/4' is no part; the first of four is 0/4, the last 3/4"),
    ("convert tree {new} --task one", "'one' is no part; the first of four is 0/4, the last 3/4"),
    ("convert tree {new} --task 0/2 --overwrite", "overwrite cannot go with task"),
    ("convert tree {new} --classes missing", "cannot read 'missing'"),
    ("convert tree {new} --classes none", "'none' is empty; it holds one class name a line"),
    (
        "convert tree https://host/new",
        "'https://host/new' is a URL that can only be read; give a folder or s3://bucket",
    ),
    ("convert tree https://me:secret@host/new?signature=secret", "'https://host/new' is a URL that can only be read"),
    ("verify gs://host/data?signature=secret", "'gs://host/data' is a URL; http, https and s3 addresses are read"),
    ("index https://host/data?signature=secret", "https://host/data can only be read"),
    ("verify pipe:touch${IFS}x", "asks for a shell command, which is never run; give a path"),
    ("verify data both", "'data' is a folder; give either one folder or a list of shards"),
    ("verify data/{0..9999999999}.tar", "stands for more than 1,000,000 names; give the shards as a folder or a glob"),
    ("extract both {new}", "has the splits train, val; choose one with split='train' (--split train)"),
    ("extract data {new} --split val", "has no split 'val', only train"),
    ("serve page.tar", "'page.tar' is no folder; give the one that holds info.json or the shards"),
    ("serve https://host/data", "'https://host/data' is a URL; this command reads local datasets"),
    ("serve data --port 70000", "port is 70000; it must be between 1 and 65535, or 0 for a free one"),
    ("serve data --port x", "'x' is not a valid integer"),
    ("serve data --host no.such.host.invalid", "host is 'no.such.host.invalid', which is no name or address of this"),
    ("serve data --latency -1", "latency is -0.001 s; it must be between 0 and 60 s"),
    ("serve data --latency nan", "latency is nan s; it must be between 0 and 60 s"),
    ("serve data --rate 0", "rate is 0.0 bytes a second; it must be at least 1000"),
    ("demo {new} --per-class 0", "per_class is 0; it must be between 1 and 100000"),
    ("demo {new} --size 5000", "size is 5000; it must be between 16 and 4096"),
]


@pytest.mark.parametrize(("words", "says"), USAGE)
def test_what_cannot_be_meant_ends_with_2_and_one_sentence(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, says: str
) -> None:
    monkeypatch.chdir(place)
    before = os.listdir(place)
    assert says in one_sentence(call(*words.replace("{new}", str(tmp_path / "new")).split()), 2)
    assert not (tmp_path / "new").exists()
    assert os.listdir(place) == before


def test_no_command_at_all_shows_the_help_and_ends_with_2() -> None:
    said = call()
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("Usage: wds-tools ")
    assert "convert" in said.err


def test_verify_ends_with_1_when_anything_is_wrong_and_0_when_not(place: Path, tmp_path: Path) -> None:
    assert run("verify", place / "data").code == 0
    data = trees.copy(place / "data", tmp_path / "data")
    others.flip(data / "train-000001.tar", 600)
    for words in ([], ["--json"], ["--workers", "0"]):
        said = run("verify", data, *words)
        assert (said.code, said.err) == (1, "")
        assert "sha256" in said.out


@pytest.mark.parametrize(
    "words",
    [
        "convert {tree} {locked}",
        "convert {tree} {locked}/new",
        "extract {data} {locked}/new",
        "demo {locked}/new",
        "index {data}",
    ],
)
def test_a_place_without_permission_ends_with_1_and_one_sentence(words: str) -> None:
    with trees.open_to_all() as place:
        names = {"tree": trees.classes(place / "tree"), "data": place / "data", "locked": place / "locked"}
        assert call("convert", names["tree"], names["data"], "--workers", "0").code == 0
        names["locked"].mkdir()
        for name in ("data", "locked"):
            names[name].chmod(0o555)
        command = words.format(**names).split()
        workers = ["--workers", "0"] if command[0] in ("convert", "index") else []
        sentence = one_sentence(trees.unprivileged(lambda: call(*command, *workers)), 1)
        assert re.search(r"[Pp]ermission denied", sentence)
        assert re.search(r"choose another (folder|place)", sentence)
        names["data"].chmod(0o755)


@pytest.mark.parametrize("words", ["info {}", "verify {}", "extract {} new", "convert {} new --workers 0"])
def test_a_folder_that_may_not_be_read_ends_with_1_and_one_sentence(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trees.open_to_all() as place:
        monkeypatch.chdir(place)
        (place / "secret").mkdir(mode=0o000)
        command = words.format("secret").split()
        sentence = one_sentence(trees.unprivileged(lambda: call(*command)), 1)
        assert "secret" in sentence
        assert re.search("[Pp]ermission denied", sentence)


PATCHED = """
import sys
import wds_tools.cli.{command}
from wds_tools.cli.main import main

def instead(*args, **options):
    {body}

wds_tools.cli.{command}.{function} = instead
main()
"""
FUNCTIONS = {
    "convert": ("convert_tree", "a b"),
    "finalize": ("finalize_split", "a"),
    "reshard": ("reshard", "a b"),
    "index": ("index_shards", "a"),
    "verify": ("verify_dataset", "a"),
    "info": ("describe_dataset", "a"),
    "report": ("write_report", "a"),
    "extract": ("extract_dataset", "a b"),
    "bench": ("measure", "a"),
    "demo": ("make_demo", "a"),
    "sidecars": ("write_sidecars", "a --for hf"),
    "serve": ("listen", "a"),
}


def patched(command: str, body: str, cwd: Path) -> Said:
    """The command, with the tool that it calls doing something else."""
    function, words = FUNCTIONS[command]
    code = PATCHED.format(command=command, function=function, body=body)
    return run_python("-c", code, command, *words.split(), cwd=cwd)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bug_ends_with_3_its_trace_and_where_to_report_it(tmp_path: Path, command: str) -> None:
    said = patched(command, "1 / 0", tmp_path)
    assert (said.code, said.out) == (3, "")
    assert "Traceback" in said.err
    assert "ZeroDivisionError: division by zero" in said.err
    assert f"This is a bug in wds-tools {VERSION}. Please report it in " in said.err.splitlines()[-1]


@pytest.mark.parametrize("command", COMMANDS)
def test_fault_43_an_interrupt_ends_with_130_and_no_trace(tmp_path: Path, command: str) -> None:
    said = patched(command, "import signal; signal.raise_signal(signal.SIGINT)", tmp_path)
    assert (said.code, said.out) == (130, "")
    again = " Run the same command again; it goes on where it was."
    anew = " Run the same command again; it starts anew."
    advice = {"convert": again, "reshard": again, **dict.fromkeys(("index", "extract", "report", "demo"), anew)}
    assert said.err.strip() == "Interrupted." + advice.get(command, "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("WdsToolsError", 1),
        ("OptionError", 2),
        ("StoreError", 1),
        ("WorkerError", 1),
        ("MissingExtraError", 1),
    ],
)
def test_every_expected_error_is_its_message_and_no_more(tmp_path: Path, error: str, code: int) -> None:
    said = patched("info", f"from wds_tools import {error}; raise {error}('what, where and what to do')", tmp_path)
    assert said == Said(code, "", "Error: what, where and what to do\n")


@pytest.mark.parametrize(
    "words", ["--help", "convert --help", "info data", "info data --json", "verify cut.tar page.tar"]
)
def test_a_reader_that_has_gone_is_no_reason_to_complain(place: Path, words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [PYTHON, "-m", "wds_tools", *words.split()], cwd=place, stdout=writer, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
@pytest.mark.parametrize("words", ["--help", "info data", "info data --json", "verify data --workers 0"])
def test_an_answer_that_cannot_be_written_is_one_sentence(place: Path, words: str) -> None:
    with open("/dev/full", "wb") as full:
        command = [PYTHON, "-m", "wds_tools", *words.split()]
        done = subprocess.run(command, cwd=place, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"Error: cannot write the answer: No space left on device\b.*\n", done.stderr)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
@pytest.mark.parametrize(("words", "code"), [("info data", 0), ("info nope", 1), ("bogus", 2)])
def test_without_an_output_a_command_ends_as_ever(place: Path, words: str, code: int) -> None:
    command = ["bash", "-c", f'exec "$0" -m wds_tools {words} >&-', PYTHON]
    done = subprocess.run(command, cwd=place, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_an_interrupt_while_it_is_loaded_leaves_no_trace() -> None:
    code = """
import signal, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "click":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
from wds_tools.cli.start import start
start()
"""
    assert run_python("-c", code, "info", "data") == Said(130, "", "Interrupted.\n")


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes are a matter of Linux")
@pytest.mark.parametrize("environment", [{}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_names_that_the_terminal_cannot_show_are_shown_escaped(
    place: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    name = os.fsdecode(b"data \xff \xc3\xbc")
    trees.copy(place / "data", tmp_path / name)
    others.tar(tmp_path / name / "ü.tar", [(f"{number}.cls", b"?") for number in range(130)])
    for words, code in (("info", 0), ("verify", 1), ("verify --json", 1)):
        said = run(*words.split(), name, cwd=tmp_path, env=environment)
        assert (said.code, said.err) == (code, "")
        assert re.search(r"data (\\+udcff|\?) ", said.out)


# -- colours, bars and columns stay out of pipes


def test_nothing_but_text_goes_into_a_pipe(place: Path, tmp_path: Path) -> None:
    for words in (("convert", place / "tree", tmp_path / "new"), ("verify", place / "data"), ("--help",)):
        said = run(*words)
        assert said.err == ""
        assert "\x1b" not in said.out
        assert "\r" not in said.out


def in_a_terminal(command: Callable[[int], subprocess.Popen[bytes]]) -> str:
    """What a command writes to a terminal."""
    import fcntl
    import pty
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = command(theirs)
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not part:
            break
        written += part
    os.close(ours)
    assert process.wait() == 0
    return written.decode()


@pytest.mark.skipif(sys.platform == "win32", reason="terminals are different there")
def test_a_terminal_gets_a_bar_that_leaves_no_trace(place: Path, tmp_path: Path) -> None:
    def command(terminal: int) -> subprocess.Popen[bytes]:
        words = [PYTHON, "-m", "wds_tools", "convert", str(place / "tree"), str(tmp_path / "new")]
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=terminal)

    shown = in_a_terminal(command)
    assert "converting" in shown
    assert "images" in shown
    assert shown.split("\r")[-1].strip() == ""
