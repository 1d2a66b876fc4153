"""The report: what it shows of whole, odd, hostile and damaged datasets."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import images, others, pages, streams, trees
from tests.support.pages import ReadPage
from wds_tools.convert.run import convert_tree
from wds_tools.errors import NotFoundError, OptionError, TargetError
from wds_tools.format import index
from wds_tools.tools import report
from wds_tools.tools.report import ReportOptions, ReportSummary, write_report
from wds_tools.tools.verify import verify_dataset

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Three classes of five samples in three shards."""
    convert_tree(trees.classes(tmp_path / "tree"), tmp_path / "data", max_count=5, workers=0)
    return tmp_path / "data"


def made(dataset: Any, **options: Any) -> tuple[ReportSummary, ReadPage]:
    first = dataset if isinstance(dataset, Path) else Path(os.fspath(dataset[0]))
    target = first.parent / "report.html"
    summary = write_report(dataset, target, ReportOptions(**{"workers": 0, **options}))
    assert summary.output == str(target)
    assert summary.size == target.stat().st_size
    return summary, pages.read(target)


def unlabelled(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir()
    others.tar(folder / "x-0.tar", files)
    return folder


# -- what is shown


def test_every_sample_of_a_small_dataset_is_shown_by_class(dataset: Path) -> None:
    summary, page = made(dataset)
    assert (summary.samples, summary.classes, summary.drawn, summary.thumbnails) == (15, 3, 15, 15)
    assert (summary.verified, summary.problems, summary.broken) == (True, 0, 0)
    assert page.classes() == {"ant": [5], "bee": [5], "cat": [5]}
    keys = {key for key, _ in trees.read(dataset)}
    assert page.keys() == keys
    for tile in page.tiles():
        assert tile["key"].startswith(tile["class"] + "/")
        assert (tile["pixels"], tile["image"], tile["fields"], tile["error"]) == ([8, 8], "jpg", ["jpg", "cls"], None)
    assert "15 of 15 samples were drawn" in page.words
    assert "Each of the 3 classes has 5 samples." in page.words
    assert "Verified: every byte was read" in page.words


def test_a_tile_says_where_its_sample_lies(dataset: Path) -> None:
    _, page = made(dataset)
    for tile in page.tiles():
        _, shard, samples, size, problems = page.data["shards"][tile["shard"]]
        found = trees.read_shard(dataset / shard)
        assert found[tile["number"]][0] == tile["key"]
        assert len(found[tile["number"]][1]["jpg"]) == tile["size"]
        assert (samples, size, problems) == (len(found), (dataset / shard).stat().st_size, 0)


def test_the_page_asks_for_nothing_and_is_one_file(dataset: Path, tmp_path: Path) -> None:
    _, page = made(dataset)
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") or name == "style" for name in attributes), tag
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, value)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r'"[A-Za-z0-9+/=]{40,}"|// [^\n]*', "", page.text))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "report.html", "tree"]


def test_a_remote_dataset_has_the_same_page_but_for_its_address(dataset: Path, tmp_path: Path) -> None:
    with streams.Server(dataset) as server:
        summary = write_report(server.url, tmp_path / "remote.html", ReportOptions(workers=2))
        local = write_report(dataset, tmp_path / "local.html", ReportOptions(workers=2))
        assert (summary.samples, summary.thumbnails, summary.problems) == (15, 15, 0)
        assert dataclasses.replace(summary, output="", place="", size=0) == dataclasses.replace(
            local, output="", place="", size=0
        )
        assert pages.read(tmp_path / "remote.html").tiles() == pages.read(tmp_path / "local.html").tiles()
        assert server.url in (tmp_path / "remote.html").read_text()
        # An index of another shard shows there too.
        os.chmod(dataset / "train-000001.idx", 0o644)
        (dataset / "train-000001.idx").write_bytes((dataset / "train-000000.idx").read_bytes())
        damaged = write_report(server.url, tmp_path / "damaged.html", ReportOptions(workers=0, verify=False))
        assert (damaged.problems, damaged.drawn) == (1, 10)


def test_the_same_dataset_gives_the_same_bytes_and_another_seed_other_samples(dataset: Path, tmp_path: Path) -> None:
    def bytes_of(**options: Any) -> bytes:
        made(dataset, samples=6, **options)
        return (tmp_path / "report.html").read_bytes()

    first = bytes_of()
    assert bytes_of() == first
    assert bytes_of(workers=2) == first
    assert bytes_of(seed=1) != first


def test_samples_are_drawn_evenly_and_the_page_says_how_many(tmp_path: Path) -> None:
    tree = trees.classes(tmp_path / "tree", names="abcd", count=20)
    trees.classes(tmp_path / "tree", names=["rare"], count=1)
    convert_tree(tree, tmp_path / "data", max_count=7, workers=0)
    summary, page = made(tmp_path / "data", samples=10)
    *common, rare = (len(tiles) for *_, tiles in page.data["classes"])
    assert (sorted(common), rare) == ([2, 2, 2, 3], 1)
    assert page.classes() == {"a": [20], "b": [20], "c": [20], "d": [20], "rare": [1]}
    assert 10 <= summary.drawn <= 20  # ten by class, and ten at random to be measured
    assert f"{summary.drawn} of 81 samples were drawn" in page.words
    assert "sizes are those of 10 drawn at random" in page.words
    _, page = made(tmp_path / "data", per_class=3)
    assert [len(tiles) for *_, tiles in page.data["classes"]] == [3, 3, 3, 3, 1]


def test_thumbnails_keep_the_page_small_and_the_first_of_each_class_come_first(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(pages.base64.b64decode(made(dataset)[1].tiles()[0]["picture"]))
    monkeypatch.setattr(report, "MAX_THUMBNAILS", 4 * size)
    summary, page = made(dataset)
    assert summary.thumbnails == 4
    assert sorted(len(tiles) for *_, tiles in page.data["classes"]) == [1, 1, 2]
    assert "11 more were drawn and are not shown" in page.words


def test_several_splits_are_counted_apart_and_one_can_be_chosen(dataset: Path, tmp_path: Path) -> None:
    convert_tree(trees.classes(tmp_path / "val", names=["ant", "bee"], count=2), dataset, split="val", workers=0)
    summary, page = made(dataset)
    assert summary.samples == 19
    assert page.data["splits"] == ["train", "val"]
    assert page.classes() == {"ant": [5, 2], "bee": [5, 2], "cat": [5, 0]}
    summary, page = made(dataset, split="val")
    assert summary.samples == 4
    assert page.classes() == {"ant": [2], "bee": [2], "cat": [0]}
    assert "1 class has no sample." in page.words
    with pytest.raises(OptionError, match=r"has no split 'test', only train, val"):
        made(dataset, split="test")


def test_sizes_are_those_of_the_upright_images(tmp_path: Path) -> None:
    files = {f"{n}.jpg": images.jpeg(40, 30) for n in range(4)}
    files |= {f"{n}t.jpg": images.with_exif_orientation(6) for n in range(2)}
    _, page = made(unlabelled(tmp_path / "data", files))
    assert sorted(tile["pixels"] for tile in page.tiles()) == [[30, 40]] * 2 + [[40, 30]] * 4
    labels = [str(each["aria-label"]) for tag, each in page.elements if tag == "svg" and "aria-label" in each]
    assert labels[0].startswith("Shorter side, pixels: half of 6 between 30 and 30, median 30")
    assert labels[1].startswith("Longer side, pixels: half of 6 between 40 and 40, median 40")
    assert labels[2].startswith("Width to height, 1 is square: half of 6 between 0.75 and 1.33")


# -- others' shards, and odd ones


def test_shards_without_manifest_or_index_are_scanned(dataset: Path) -> None:
    with_manifest = made(dataset)[1]
    (dataset / "info.json").unlink()
    for path in dataset.glob("*.idx"):
        path.unlink()
    summary, page = made(dataset)
    assert (summary.samples, summary.problems) == (15, 0)
    assert page.classes() == {"ant": [5], "bee": [5], "cat": [5]}
    assert page.keys() == with_manifest.keys()
    assert not list(dataset.glob("*.idx"))
    summary, page = made([dataset / "train-000000.tar", dataset / "train-000001.tar"])
    assert summary.samples == 10


def test_labels_are_read_where_folders_do_not_tell(tmp_path: Path) -> None:
    files: dict[str, bytes] = {}
    for number in range(30):
        files |= {f"{number:03d}.jpg": trees.picture(number), f"{number:03d}.cls": b"%d\n" % (number % 3)}
    _, page = made(unlabelled(tmp_path / "flat", files))
    assert page.classes() == {"0": [10], "1": [10], "2": [10]}
    _, page = made(unlabelled(tmp_path / "mixed", {f"one/{name}": data for name, data in files.items()}))
    assert page.classes() == {"0": [10], "1": [10], "2": [10]}


def test_samples_without_labels_stand_together(tmp_path: Path) -> None:
    files = {f"{number:03d}.jpg": trees.picture(number) for number in range(30)}
    summary, page = made(unlabelled(tmp_path / "data", files), per_class=2)
    assert (summary.classes, summary.thumbnails) == (0, 20)
    assert page.classes() == {"No label": [30]}
    assert "Class balance" not in page.words


def test_a_dataset_without_images_shows_keys_and_bytes(tmp_path: Path) -> None:
    summary, page = made(unlabelled(tmp_path / "data", {f"{n}.txt": b"words" * n for n in range(9)}))
    assert (summary.drawn, summary.thumbnails, summary.problems) == (9, 0, 0)
    assert page.keys() == {str(n) for n in range(9)}
    assert {tile["image"] for tile in page.tiles()} == {None}
    assert "Shorter side" not in page.words
    assert "Sample bytes" in page.words


def test_an_array_is_shown_when_it_is_a_picture_and_is_not_broken_when_it_is_none(tmp_path: Path) -> None:
    files = {
        "picture.npy": images.npy(images.pixels()),
        "vector.npy": images.npy(np.zeros(512, np.float32)),
        "cut.npy": images.npy(images.pixels())[:-50],
    }
    summary, page = made(unlabelled(tmp_path / "data", files))
    tiles = {tile["key"]: tile for tile in page.tiles()}
    assert tiles["picture"]["picture"]
    assert "float32 array with shape (512,)" in tiles["vector"]["note"]
    assert tiles["vector"]["error"] is None
    assert tiles["cut"]["error"]
    assert summary.broken == 1


def test_a_mask_is_shown_only_where_there_is_no_other_picture(tmp_path: Path) -> None:
    files = {"a.mask.png": images.png(20, 20), "a.jpg": images.jpeg(40, 30), "b.mask.png": images.png(20, 20)}
    _, page = made(unlabelled(tmp_path / "data", files))
    assert {tile["key"]: tile["image"] for tile in page.tiles()} == {"a": "jpg", "b": "mask.png"}


def test_an_empty_dataset_is_a_page_too(tmp_path: Path) -> None:
    summary, page = made(unlabelled(tmp_path / "data", {}))
    assert (summary.samples, summary.drawn) == (0, 0)
    assert page.data["classes"] == []


# -- hostile names


def test_names_in_shards_are_words_wherever_they_stand(tmp_path: Path) -> None:
    key = HOSTILE.replace(".", "")
    names = [key, "{{ 7 * 7 }}", "\u202eevil", "ctrl\x07\u2028"]
    files = {f"{name}.{HOSTILE.replace('/', '').replace('.', '')}": b"x" for name in names[:1]}
    files |= {f"{name}.jpg": b"no picture" for name in names} | {f"{name}.cls": name.encode() for name in names}
    (tmp_path / "<i>data").mkdir()
    others.tar(tmp_path / "<i>data" / "<b>x-0.tar", sorted(files.items()), "pax")
    others.rewrite(others.tar(tmp_path / "<i>data" / "<u>y-0.tar", {}), b"<!DOCTYPE html><p>404")
    summary, page = made(tmp_path / "<i>data")
    assert summary.broken >= 4
    assert page.keys() >= {key, "{{ 7 * 7 }}", "\\u202eevil", "ctrl\\x07\\u2028"}
    assert {tag for tag, _ in page.elements}.isdisjoint({"i", "u"})
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert not any(tag == "img" and attributes.get("src") for tag, attributes in page.elements)
    assert "alert(1)" in page.words
    for raw in ("<script>alert", "\u202e", "\x07", "\u2028"):
        assert raw not in page.text


def test_class_names_are_words_in_the_data_as_well(dataset: Path) -> None:
    content = pages.json.loads((dataset / "info.json").read_bytes())
    content["classes"] = [HOSTILE, "\u202eevil", "ctrl\x07\u2028<!--"]
    others.rewrite(dataset / "info.json", pages.json.dumps(content).encode())
    _, page = made(dataset)
    assert list(page.classes()) == [HOSTILE, "\\u202eevil", "ctrl\\x07\\u2028<!--"]
    assert "<!--" not in page.text
    assert [tag for tag, _ in page.elements].count("script") == 2


def test_keys_that_are_not_utf_8_are_shown_escaped(tmp_path: Path) -> None:
    others.tar(tmp_path / "x.tar", {"caf\udce9.jpg": trees.picture()}, "gnu")
    _, page = made([tmp_path / "x.tar"])
    assert page.keys() == {"caf\\udce9"}


def test_a_long_name_does_not_fill_the_page(tmp_path: Path) -> None:
    others.tar(tmp_path / "x.tar", {"n" * 5000 + ".jpg": trees.picture(), "n" * 5000 + ".cls": b"0"}, "pax")
    _, page = made([tmp_path / "x.tar"])
    assert page.keys() == {"n" * 299 + "…"}


# -- what is wrong


def test_broken_images_are_shown_with_the_reason(tmp_path: Path) -> None:
    files = {
        "good.jpg": images.jpeg(),
        "cut.jpg": images.truncated(images.jpeg(200, 200)),
        "not.jpg": b"<html>404",
        "bomb.png": images.bomb_png(),
        "empty.jpg": b"",
    }
    summary, page = made(unlabelled(tmp_path / "data", files))
    errors = {tile["key"]: tile["error"] for tile in page.tiles()}
    assert errors.pop("good") is None
    assert errors.keys() == {"cut", "not", "bomb", "empty"}
    assert "truncated JPEG" in errors["cut"]
    assert errors["not"] == "not an image of a known kind"
    assert "above the limit" in errors["bomb"]
    assert errors["empty"] == "empty file"
    assert (summary.broken, summary.problems) == (4, 4)
    assert "4 of the 5 samples drawn have images that do not decode." in page.words
    assert page.data["shards"][0][-1] == 4


def test_what_verify_finds_is_listed_or_said_to_be_left_out(dataset: Path) -> None:
    payload = index.load((dataset / "train-000001.idx").read_bytes())[1].fields[0]
    others.flip(dataset / "train-000001.tar", payload.offset + payload.size - 30)
    summary, page = made(dataset)
    assert summary.problems == 1
    assert "its sha256 is not the one in info.json" in page.words
    assert [problems for *_, problems in page.data["shards"]] == [0, 1, 0]
    summary, page = made(dataset, verify=False)
    assert (summary.verified, summary.problems) == (False, 0)
    assert "Not verified." in page.words
    assert "sha256" not in page.words


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("damage", ["gone", "replaced", "index", "page", "cut"])
def test_a_damaged_shard_is_listed_and_the_others_are_shown(dataset: Path, damage: str, verify: bool) -> None:
    shard, idx = dataset / "train-000001.tar", dataset / "train-000001.idx"
    if damage == "gone":
        shard.unlink()
    elif damage == "replaced":
        others.tar(dataset / "new", {"z.jpg": trees.picture(1, 9000), "z.cls": b"0"}).replace(shard)
    elif damage == "index":
        others.rewrite(idx, b"v1.2 5\njpg x y z\n")
    elif damage == "page":
        others.rewrite(shard, b"<!DOCTYPE html><p>404")
    else:
        others.cut(shard, 3000)
    summary, page = made(dataset, verify=verify)
    assert summary.problems > 0
    assert "train-000001" in page.words.partition("Problems")[2]
    if verify:  # what verify says of a shard is not said twice
        assert summary.problems - summary.broken == len(verify_dataset(dataset, workers=0).problems)
    else:
        assert "left out of this report" in page.words
    first, last = ({key for key, _ in trees.read_shard(dataset / f"train-00000{n}.tar")} for n in (0, 2))
    assert page.keys() == first | last
    assert summary.samples == 15  # as the manifest has it


def test_many_problems_are_counted_and_not_all_listed(tmp_path: Path) -> None:
    files = {f"{number:04d}.jpg": b"no picture" for number in range(230)}
    summary, page = made(unlabelled(tmp_path / "data", files))
    assert summary.broken == 230
    assert "30 more are not listed here" in page.words
    assert page.text.count("<td>field &#39;jpg&#39;: ") == 200


# -- the file that is written


def test_only_a_report_is_overwritten(dataset: Path, tmp_path: Path) -> None:
    before = trees.snapshot(dataset)
    for name in ("info.json", "train-000000.tar", "new/report.html"):
        with pytest.raises(TargetError, match=r"is no report|no folder"):
            write_report(dataset, dataset / name)
    with pytest.raises(TargetError, match="is no report"):
        write_report(dataset, tmp_path)
    assert trees.snapshot(dataset) == before
    made(dataset)
    made(dataset)


def test_a_folder_that_cannot_be_written_to_is_said_before_any_work(dataset: Path) -> None:
    with trees.open_to_all() as folder:
        os.chmod(folder, 0o555)

        def write() -> None:
            write_report(folder / "nothing there", folder / "report.html")

        with pytest.raises(TargetError, match="cannot be written to; choose another place with -o"):
            trees.unprivileged(write)


def test_a_report_that_fails_leaves_the_old_one(dataset: Path, tmp_path: Path) -> None:
    made(dataset)
    before = (tmp_path / "report.html").read_bytes()
    with pytest.raises(NotFoundError):
        write_report(tmp_path / "none", tmp_path / "report.html")
    assert (tmp_path / "report.html").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "value"), [("samples", 0), ("samples", 100_001), ("per_class", 0), ("per_class", 1001)]
)
def test_options_say_the_bad_value(name: str, value: int) -> None:
    with pytest.raises(OptionError, match=f"{name} is {value}; it must be between 1 and"):
        ReportOptions(**{name: value})
    assert dataclasses.replace(ReportOptions(), samples=1).samples == 1
