import json
import os
from contextlib import ExitStack
from itertools import permutations

import pytest

from tests.support import images, needs, trees
from tests.support.processes import Command, assert_same
from wds_tools.convert.run import convert_tree
from wds_tools.errors import MissingExtraError, OptionError, SampleError, SourceChangedError, SourceError, TargetError
from wds_tools.image import codec, tiles
from wds_tools.tools.verify import verify_dataset


def convert(source, target, **options):
    """In this process unless a test says otherwise; what was made must verify."""
    result = convert_tree(source, target, **{"workers": 0, **options})
    if result.complete:
        assert verify_dataset(target, workers=0).problems == []
        assert not (target / ".wds_tools").exists()
    return result


def info(target):
    return json.loads((target / "info.json").read_text("ascii"))


def shards(target, split="train"):
    return sorted(target.glob(f"{split}-*.tar"))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def source(tmp_path):
    """Twenty pictures of four classes, a nested folder, an odd name, a PNG that says it is a JPEG."""
    root = trees.classes(tmp_path / "in", ["ant", "bee", "cat", "dog"], count=4, padding=100)
    trees.make(root, ["dog/deep/er.jpg", "dog/sp ace é.jpg", b"dog/caf\xe9.jpg"])
    trees.write(root, "ant/png.jpg", images.png())
    return root


# ---------------------------------------------------------------- the dataset as a whole


def test_a_dataset_is_its_shards_indexes_manifest_and_sizes_and_nothing_else(source, tmp_path):
    result = convert(source, tmp_path / "out", max_count=9)
    assert names(tmp_path / "out") == [
        "info.json",
        "sizes.json",
        *(f"train-00000{number}.{ext}" for number in range(3) for ext in ("idx", "tar")),
    ]
    assert (result.samples, result.shards, result.built, result.classes) == (20, 3, 3, 4)
    assert result.complete
    assert result.size == sum(path.stat().st_size for path in shards(tmp_path / "out"))
    assert result.source_bytes == sum(map(len, trees.snapshot(source).values()))
    assert all(path.stat().st_mode & 0o777 == 0o444 for path in (tmp_path / "out").iterdir())


def test_every_image_is_there_once_with_the_index_of_its_class(source, tmp_path):
    convert(source, tmp_path / "out", max_count=9, metadata=True)
    classes = info(tmp_path / "out")["classes"]
    assert classes == ["ant", "bee", "cat", "dog"]
    found = {}
    for key, fields in trees.read(tmp_path / "out"):
        content = json.loads(fields["json"])
        assert key.startswith(content["class"] + "/")
        assert classes[int(fields["cls"])] == content["class"] == content["path"].partition("/")[0]
        found[content["path"]] = fields.get("jpg") or fields["png"]
    assert found == trees.snapshot(source)


def test_the_manifest_says_what_there_is(source, tmp_path):
    convert(source, tmp_path / "out", max_count=9, seed=3)
    content = info(tmp_path / "out")
    assert (content["format"], content["version"], content["wids_version"]) == ("wds_tools", 1, 1)
    assert content["fields"] == ["cls", "jpg", "png"]
    files = shards(tmp_path / "out")
    split = content["splits"]["train"]
    assert split["num_samples"] == 20
    assert split["filenames"] == [path.name for path in files]
    assert split["shard_lengths"] == [len(trees.read_shard(path)) for path in files] == [9, 9, 2]
    assert split["fields"] == {"cls": 20, "jpg": 19, "png": 1}
    assert "skipped" not in split
    assert [(s["url"], s["nsamples"], s["filesize"]) for s in content["shardlist"]] == [
        (path.name, length, path.stat().st_size) for path, length in zip(files, [9, 9, 2], strict=True)
    ]
    assert (content["settings"]["train"]["seed"], content["settings"]["train"]["max_count"]) == (3, 9)
    assert json.loads((tmp_path / "out/sizes.json").read_text()) == dict(
        zip(split["filenames"], [9, 9, 2], strict=True)
    )
    assert str(tmp_path) not in (tmp_path / "out/info.json").read_text()


@pytest.mark.parametrize(
    ("files", "suffixes"),
    [
        (["a/1.JPEG", "a/2.JPEG"], {"jpg": ".JPEG"}),
        (["a/1.JPEG", "a/2.jpg"], None),
        (["a/1.jpg", "a/2.jpg"], None),
    ],
)
def test_the_manifest_says_the_suffix_that_all_files_of_a_field_had(tmp_path, files, suffixes):
    convert(trees.make(tmp_path / "in", files), tmp_path / "out", max_count=1)
    assert info(tmp_path / "out")["splits"]["train"].get("suffixes") == suffixes


def test_the_order_is_shuffled_by_the_seed_or_that_of_the_names(source, tmp_path):
    for name, options in {"0": {}, "1": {"seed": 1}, "names": {"shuffle": False}}.items():
        convert(source, tmp_path / name, **options)
    orders = {name: [key for key, _ in trees.read(tmp_path / name)] for name in ("0", "1", "names")}
    assert len({tuple(order) for order in orders.values()}) == 3
    assert sorted(orders["0"]) == sorted(orders["1"]) == sorted(orders["names"])
    assert orders["names"][:6] == ["ant/ant_000", "ant/ant_001", "ant/ant_002", "ant/ant_003", "ant/png", "bee/bee_000"]


# ---------------------------------------------------------------- the same bytes

OPTIONS = {
    "untouched": {"max_count": 3},
    "metadata": {"max_count": 3, "metadata": True},
    "encoded": {"max_count": 6, "encode": "webp", "image_size": 6},
    "bad images skipped": {"max_count": 3, "on_error": "skip"},
    "tiled": {"max_count": 3, "tile": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_file_has_the_same_bytes_whatever_the_workers_place_and_times(source, tmp_path, options):
    if options.get("tile"):
        needs.kernel()
        trees.write(source, "ant/large.jpg", images.jpeg(300, 200))
    if options.get("on_error") == "skip":
        trees.make(source, {"ant/empty.jpg": b"", "cat/text.jpg": b"no image", "bee/cut.png": images.png()[:-20]})
        os.mkfifo(source / "bee/fifo.jpg")
    source.rename(tmp_path / "one")
    convert(tmp_path / "one", tmp_path / "0", **options)
    expected = trees.snapshot(tmp_path / "0")
    assert len([name for name in expected if name.endswith(".tar")]) >= 4
    for workers in (1, 2, 4):
        convert(tmp_path / "one", tmp_path / f"{workers}", workers=workers, **options)
        assert_same(tmp_path / f"{workers}", expected)
    (tmp_path / "one").rename(tmp_path / "elsewhere")
    for folder, _, files in os.walk(tmp_path / "elsewhere"):
        for name in files:
            os.utime(os.path.join(folder, name), (86_400, 86_400))
    convert(tmp_path / "elsewhere", tmp_path / "again", **options)
    assert_same(tmp_path / "again", expected)


def test_running_again_makes_only_what_has_no_receipt_and_the_same_bytes(source, tmp_path):
    convert(source, tmp_path / "whole", max_count=3)
    expected = trees.snapshot(tmp_path / "whole")
    last = trees.read_shard(shards(tmp_path / "whole")[-1])[-1][0]
    good = (source / f"{last}.jpg").read_bytes()
    (source / f"{last}.jpg").write_bytes(bytes(len(good)))
    with pytest.raises(SampleError, match=last):
        convert(source, tmp_path / "out", max_count=3)
    assert len(shards(tmp_path / "out")) == 6
    assert not (tmp_path / "out/info.json").exists()
    (source / f"{last}.jpg").write_bytes(good)
    (tmp_path / "out/.wds_tools/train/train-000001.receipt").unlink()
    (tmp_path / "out/train-000003.tar").unlink()
    before = {path.name: path.stat().st_ino for path in shards(tmp_path / "out")}
    result = convert(source, tmp_path / "out", max_count=3)
    assert result.built == 3
    assert_same(tmp_path / "out", expected)
    kept = {path.name for path in shards(tmp_path / "out") if path.stat().st_ino == before.get(path.name)}
    assert {f"train-00000{number}.tar" for number in (0, 2, 4, 5)} <= kept


def test_a_tiled_run_goes_on_with_what_an_earlier_one_counted(source, tmp_path):
    needs.kernel()
    for number in range(6):
        trees.write(source, f"cat/large{number}.jpg", images.jpeg(200 + number, 150))
    whole = convert(source, tmp_path / "whole", max_count=3, tile=True)
    expected = trees.snapshot(tmp_path / "whole")
    assert (whole.samples, whole.jpegs, whole.tiled) == (26, 25, 6)  # a PNG, and small pictures that one tile holds
    last = trees.read_shard(shards(tmp_path / "whole")[-1])[-1][0]
    [path] = source.glob(f"{last}.*")
    good = path.read_bytes()
    path.write_bytes(bytes(len(good)))
    with pytest.raises(SampleError, match=last):
        convert(source, tmp_path / "out", max_count=3, tile=True)
    path.write_bytes(good)
    result = convert(source, tmp_path / "out", max_count=3, tile=True)
    assert 0 < result.built < whole.built
    assert (result.tiled, result.tiled_from, result.tiled_to) == (whole.tiled, whole.tiled_from, whole.tiled_to)
    assert_same(tmp_path / "out", expected)


def test_a_receipt_from_before_there_were_tiles_stands(source, tmp_path):
    options = {"max_count": 3, "task": (0, 2)}
    convert(source, tmp_path / "out", **options)
    for path in (tmp_path / "out/.wds_tools/train").glob("*.receipt"):
        content = {name: value for name, value in json.loads(path.read_text()).items() if not name.startswith("tiled")}
        path.write_text(json.dumps(content))
    result = convert(source, tmp_path / "out", max_count=3, task=(1, 2))
    assert (result.complete, result.tiled, result.tiled_from) == (True, 0, 0)


def test_tiled_shards_hold_the_same_samples_and_pixels(source, tmp_path):
    needs.kernel()
    trees.write(source, "ant/large.jpg", images.jpeg(300, 200))
    trees.write(source, "bee/progressive.jpg", images.jpeg(300, 200, progressive=True))
    plain, result = convert(source, tmp_path / "plain"), convert(source, tmp_path / "tiled", tile=True)
    assert (plain.tiled, plain.tiled_from, plain.tiled_to) == (0, 0, 0)
    assert (result.samples, result.jpegs, result.tiled) == (plain.samples, plain.jpegs, 1)
    for (key, fields), (other, tiled) in zip(
        trees.read(tmp_path / "plain"), trees.read(tmp_path / "tiled"), strict=True
    ):
        assert (key, list(fields), fields["cls"]) == (other, list(tiled), tiled["cls"])
        for kind in set(fields) - {"cls"}:
            assert (codec.decode(fields[kind]) == codec.decode(tiled[kind])).all()
    assert verify_dataset(tmp_path / "tiled", decode=True, workers=0).problems == []


def test_the_manifest_speaks_of_tiles_only_where_they_were_asked_for(source, tmp_path):
    needs.kernel()
    convert(source, tmp_path / "plain")
    assert "tile" not in info(tmp_path / "plain")["settings"]["train"]
    assert convert(source, tmp_path / "plain").built == 0
    with pytest.raises(TargetError, match="with other options"):
        convert(source, tmp_path / "plain", tile=True)
    convert(source, tmp_path / "tiled", tile=True)
    assert info(tmp_path / "tiled")["settings"]["train"]["tile"] is True
    assert convert(source, tmp_path / "tiled", tile=True).built == 0
    with pytest.raises(TargetError, match="with other options"):
        convert(source, tmp_path / "tiled")


def test_tasks_of_an_array_agree_on_tiles(source, tmp_path):
    needs.kernel()
    for first, second in ((True, False), (False, True)):
        target = tmp_path / f"out-{first}"
        convert(source, target, max_count=3, task=(0, 2), tile=first)
        before = names(target)
        with pytest.raises(TargetError, match="unfinished conversion with other options"):
            convert(source, target, max_count=3, task=(1, 2), tile=second)
        assert names(target) == before
        assert convert(source, target, max_count=3, task=(1, 2), tile=first).complete


def test_without_the_kernel_nothing_is_begun(source, tmp_path, monkeypatch):
    monkeypatch.setattr(tiles, "kernel", None)
    with pytest.raises(MissingExtraError, match="C compiler"):
        convert(source, tmp_path / "out", tile=True)
    assert not (tmp_path / "out").exists()
    assert convert(source, tmp_path / "out").built


def test_what_an_unfinished_run_with_other_options_left_does_not_stay(source, tmp_path):
    last = trees.write(source, "zzz/bad.jpg", b"no image")
    with pytest.raises(SampleError):
        convert(source, tmp_path / "out", max_count=1, shuffle=False)
    assert len(shards(tmp_path / "out")) == 20
    (tmp_path / "out/.wds_tools/train/train-000019.receipt").unlink()
    last.unlink()
    last.parent.rmdir()
    convert(source, tmp_path / "out", max_count=10, shuffle=False)
    convert(source, tmp_path / "fresh", max_count=10, shuffle=False)
    assert_same(tmp_path / "out", trees.snapshot(tmp_path / "fresh"))


def test_progress_is_told_the_whole_and_comes_to_it(source, tmp_path):
    class Bar:
        def begin(self, samples, size):
            self.whole = self.done = (samples, size)

        def update(self, samples, size):
            self.done = samples, size

    for workers in (0, 2):
        bar = Bar()
        convert(source, tmp_path / str(workers), max_count=5, workers=workers, progress=bar)
        assert bar.whole == (20, sum(map(len, trees.snapshot(source).values())))
        assert bar.done[0] <= 20 if workers else bar.done == bar.whole


# ---------------------------------------------------------------- limits


def assert_full(files, max_size):
    sizes = [path.stat().st_size for path in files]
    assert len(sizes) > 3
    assert max(sizes) <= max_size
    assert all(size > max_size / 2 for size in sizes[:-1])


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("metadata", [True, False])
def test_no_shard_is_larger_than_max_size(tmp_path, metadata, shuffle):
    source = trees.make(
        tmp_path / "in", {f"{number % 3}/{number:03d}.jpg": trees.picture(number, 31 * number) for number in range(90)}
    )
    convert(source, tmp_path / "out", max_size=20_000, shuffle=shuffle, metadata=metadata)
    assert_full(shards(tmp_path / "out"), 20_000)


@pytest.mark.parametrize("metadata", [True, False])
@pytest.mark.parametrize("options", [{"encode": "npy"}, {"encode": "png"}, {"image_size": 16, "quality": 30}], ids=str)
def test_images_encoded_anew_are_counted_as_what_they_become(tmp_path, options, metadata):
    source = trees.make(tmp_path / "in", {f"{n % 3}/{n:03d}.jpg": images.jpeg(32, 24) for n in range(60)})
    convert(source, tmp_path / "out", max_size=20_000, metadata=metadata, **options)
    assert_full(shards(tmp_path / "out"), 20_000)


def test_long_names_siblings_and_columns_count_for_max_size_too(tmp_path):
    deep = "/".join(["日本語" * 20] * 3)
    source = trees.make(tmp_path / "in", [f"{deep}/{number}.jpg" for number in range(30)])
    for number in range(30):
        trees.write(source, f"{deep}/{number}.txt", b"x" * (37 * number))
    convert(source, tmp_path / "out", max_size=30_000, siblings=True, metadata=True)
    rows = [{"path": f"in/{deep}/{number}.jpg", "class": "é" * 300, "text": "x" * 90 * number} for number in range(30)]
    (tmp_path / "l.jsonl").write_text("\n".join(map(json.dumps, rows)))
    convert(tmp_path / "l.jsonl", tmp_path / "listed", max_size=30_000)
    for target in ("out", "listed"):
        assert_full(shards(tmp_path / target), 30_000)


def test_a_sample_larger_than_max_size_has_a_shard_of_its_own(tmp_path):
    source = trees.make(
        tmp_path / "in", {"a/1.jpg": None, "a/2.jpg": trees.picture(2, padding=30_000), "a/3.jpg": None}
    )
    convert(source, tmp_path / "out", max_size=10_240, shuffle=False)
    assert [len(trees.read_shard(path)) for path in shards(tmp_path / "out")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("max_count", "lengths"), [(1, [1] * 20), (7, [7, 7, 6]), (10, [10, 10]), (20, [20]), (21, [20])]
)
def test_no_shard_has_more_samples_than_max_count(source, tmp_path, max_count, lengths):
    convert(source, tmp_path / "out", max_count=max_count)
    assert [len(trees.read_shard(path)) for path in shards(tmp_path / "out")] == lengths


# ---------------------------------------------------------------- options in the whole


def test_images_are_shrunk_and_encoded(source, tmp_path):
    trees.write(source, "cat/large.png", images.png(60, 40))
    convert(source, tmp_path / "out", image_size=20, encode="png")
    stored = dict(trees.read(tmp_path / "out"))
    assert {ext for fields in stored.values() for ext in fields} == {"png", "cls"}
    assert codec.dimensions(stored["cat/large"]["png"]) == (30, 20)
    assert codec.dimensions(stored["ant/ant_000"]["png"]) == (8, 8)
    assert codec.dimensions(stored["ant/png"]["png"]) == (27, 20)
    assert info(tmp_path / "out")["fields"] == ["cls", "png"]


def test_siblings_of_a_flat_folder_are_a_dataset_without_classes(tmp_path):
    source = trees.make(tmp_path / "in", {"1.jpg": None, "1.txt": b"one", "2.jpg": None, "2.txt": b"two", "3.md": b""})
    result = convert(source, tmp_path / "out", siblings=True, shuffle=False)
    assert [(key, sorted(fields), fields["txt"]) for key, fields in trees.read(tmp_path / "out")] == [
        ("1", ["jpg", "txt"], b"one"),
        ("2", ["jpg", "txt"], b"two"),
    ]
    assert info(tmp_path / "out")["classes"] == []
    assert result.ignored == {".md": 1}


def test_given_classes_decide_the_labels(source, tmp_path):
    order = ("dog", "eel", "cat", "bee", "ant")
    result = convert(source, tmp_path / "out", classes=order)
    assert info(tmp_path / "out")["classes"] == list(order)
    assert all(order[int(fields["cls"])] == key.partition("/")[0] for key, fields in trees.read(tmp_path / "out"))
    assert result.classes == 5


def test_a_table_is_converted_with_its_columns(source, tmp_path):
    (source / "l.csv").write_text(
        "path,class,caption\nant/ant_000.jpg,x,an ant\nant/png.jpg,w,\n./bee/bee_001.jpg,x,é\n"
    )
    convert(source / "l.csv", tmp_path / "out", shuffle=False)
    assert [(key, fields["cls"], json.loads(fields["json"])) for key, fields in trees.read(tmp_path / "out")] == [
        ("ant/ant_000", b"1", {"caption": "an ant"}),
        ("ant/png", b"0", {"caption": ""}),
        ("bee/bee_001", b"1", {"caption": "é"}),
    ]
    assert info(tmp_path / "out")["classes"] == ["w", "x"]


def test_a_table_in_one_place_and_its_copy_in_another_give_the_same_bytes(source, tmp_path):
    (source / "l.csv").write_text("path,class\n" + "".join(f"bee/bee_00{n}.jpg,x\n" for n in range(4)))
    convert(source / "l.csv", tmp_path / "one", max_count=2)
    trees.copy(source, tmp_path / "copy", mtime=99)
    convert(tmp_path / "copy/l.csv", tmp_path / "two", max_count=2)
    assert_same(tmp_path / "two", trees.snapshot(tmp_path / "one"))


def test_a_table_s_absolute_paths_and_paths_above_it_are_read(source, tmp_path):
    far = trees.write(tmp_path / "far away", "x.jpg")
    trees.make(tmp_path / "lists", {"l.csv": f"path\n{far}\n../in/ant/png.jpg\n".encode()})
    convert(tmp_path / "lists/l.csv", tmp_path / "out", shuffle=False, metadata=True)
    (one, first), (two, second) = trees.read(tmp_path / "out")
    assert one == str(far)[1:-4].replace(" ", "_")
    assert (first["jpg"], json.loads(first["json"])) == (far.read_bytes(), {"path": str(far)})
    assert (two, second["png"]) == ("in/ant/png", images.png())


def test_siblings_of_a_table_are_refused_because_its_columns_say_what_belongs_together(source, tmp_path):
    (source / "l.csv").write_text("path\nbee/bee_000.jpg\n")
    with pytest.raises(OptionError, match="siblings"):
        convert(source / "l.csv", tmp_path / "out", siblings=True)


# ---------------------------------------------------------------- a dataset that is there already


def identity(folder):
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_the_same_call_on_a_finished_dataset_does_nothing(source, tmp_path):
    convert(source, tmp_path / "out", max_count=9)
    before = identity(tmp_path / "out")
    result = convert(source, tmp_path / "out", max_count=9)
    assert result.built == 0
    assert (result.samples, result.shards, result.classes, result.complete) == (20, 3, 4, True)
    assert identity(tmp_path / "out") == before


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"shuffle": False},
        {"max_count": 8},
        {"max_size": 20_000},
        {"encode": "png"},
        {"image_size": 5},
        {"metadata": True},
        {"classes": ("dog", "cat", "bee", "ant")},
        {"classes": ("ant", "bee", "cat", "dog", "eel")},
        None,
    ],
    ids=str,
)
def test_other_options_or_another_source_are_refused_without_overwrite(source, tmp_path, change):
    convert(source, tmp_path / "out", max_count=9)
    before = identity(tmp_path / "out")
    if change is None:
        trees.write(source, "ant/new.jpg")
    options = {"max_count": 9, **(change or {})}
    with pytest.raises(TargetError, match=r"'train' already.*--overwrite"):
        convert(source, tmp_path / "out", **options)
    assert identity(tmp_path / "out") == before
    assert not (tmp_path / "out/.wds_tools").exists()
    convert(source, tmp_path / "fresh", **options)
    convert(source, tmp_path / "out", overwrite=True, **options)
    assert_same(tmp_path / "out", trees.snapshot(tmp_path / "fresh"))


@pytest.fixture
def val(tmp_path):
    return trees.classes(tmp_path / "val-in", ["dog", "bee"], count=3)


def test_a_second_split_keeps_the_first_its_classes_and_unknown_keys(source, val, tmp_path):
    out = tmp_path / "out"
    convert(source, out, max_count=9)
    content = info(out)
    content["licence"] = {"by": "me"}
    content["splits"]["train"]["note"] = "ours"
    (out / "info.json").chmod(0o644)
    (out / "info.json").write_text(json.dumps(content))
    before = {name: data for name, data in trees.snapshot(out).items() if name.startswith("train")}
    result = convert(val, out, split="val", max_count=4)
    assert (result.samples, result.split) == (6, "val")
    assert {name: data for name, data in trees.snapshot(out).items() if name.startswith("train")} == before
    after = info(out)
    assert after["licence"] == {"by": "me"}
    assert after["classes"] == ["ant", "bee", "cat", "dog"]
    assert after["splits"]["train"] == content["splits"]["train"]
    assert after["shardlist"][:3] == content["shardlist"]
    assert after["splits"]["val"]["shard_lengths"] == [4, 2]
    assert {fields["cls"] for key, fields in trees.read(out, "val") if key.startswith("dog/")} == {b"3"}
    assert json.loads((out / "sizes.json").read_text()) == {
        **{f"train-00000{number}.tar": length for number, length in enumerate([9, 9, 2])},
        **{f"val-00000{number}.tar": length for number, length in enumerate([4, 2])},
    }


def test_a_second_split_without_classes_keeps_those_of_the_first(source, tmp_path):
    convert(source, tmp_path / "out")
    convert(trees.make(tmp_path / "flat", ["1.jpg", "2.jpg"]), tmp_path / "out", split="extra", siblings=True)
    assert info(tmp_path / "out")["classes"] == ["ant", "bee", "cat", "dog"]
    assert convert(tmp_path / "flat", tmp_path / "out", split="extra", siblings=True).built == 0


def test_fault_09_a_class_that_the_first_split_lacks_is_refused(source, val, tmp_path):
    convert(source, tmp_path / "out")
    before = identity(tmp_path / "out")
    trees.write(val, "wolf/1.jpg")
    with pytest.raises(SourceError, match=r"'wolf'.*4 classes.*--classes"):
        convert(val, tmp_path / "out", split="val")
    with pytest.raises(TargetError, match=r"4 classes already and --classes lists others"):
        convert(val, tmp_path / "out", split="val", classes=("bee", "dog", "wolf"))
    assert identity(tmp_path / "out") == before


def test_overwrite_replaces_one_split_and_leaves_the_other_alone(source, val, tmp_path):
    out = tmp_path / "out"
    convert(source, out, max_count=9)
    convert(val, out, split="val", max_count=2)
    before = identity(out)
    convert(source, tmp_path / "fresh", max_count=15, seed=5)
    result = convert(source, out, max_count=15, seed=5, overwrite=True)
    assert result.built == 2
    assert {name: at for name, at in identity(out).items() if name.startswith("val")} == {
        name: at for name, at in before.items() if name.startswith("val")
    }
    assert {name: data for name, data in trees.snapshot(out).items() if name.startswith("train")} == {
        name: data for name, data in trees.snapshot(tmp_path / "fresh").items() if name.startswith("train")
    }
    assert set(info(out)["splits"]) == {"train", "val"}
    assert len(shards(out)) == 2


def test_overwriting_the_only_split_frees_the_classes(source, val, tmp_path):
    convert(source, tmp_path / "out", max_count=3)
    convert(val, tmp_path / "out", overwrite=True)
    convert(val, tmp_path / "fresh")
    assert_same(tmp_path / "out", trees.snapshot(tmp_path / "fresh"))


def test_overwriting_with_a_bad_source_leaves_what_is_there(source, tmp_path):
    convert(source, tmp_path / "out")
    before = identity(tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="is empty"):
        convert(tmp_path / "empty", tmp_path / "out", overwrite=True)
    assert identity(tmp_path / "out") == before


def test_a_split_whose_name_begins_another_s_is_left_alone(source, val, tmp_path):
    convert(source, tmp_path / "out")
    convert(val, tmp_path / "out", split="train-2")
    convert(val, tmp_path / "out", split="train2")
    before = identity(tmp_path / "out")
    convert(source, tmp_path / "out", max_count=4, overwrite=True)
    after = identity(tmp_path / "out")
    others = [name for name in before if name.startswith(("train-2", "train2"))]
    assert len(others) == 4
    assert all(before[name] == after[name] for name in others)


# ---------------------------------------------------------------- places that cannot be written to


def test_shards_of_a_stranger_are_refused_and_left_alone(source, tmp_path):
    trees.make(tmp_path / "out", {"train-000000.tar": b"a stranger's", "train-000000.idx": b"too"})
    before = identity(tmp_path / "out")
    with pytest.raises(TargetError, match=r"train-000000\.tar' is there already.*move it away.*--overwrite"):
        convert(source, tmp_path / "out")
    assert identity(tmp_path / "out") == before
    convert(source, tmp_path / "out", overwrite=True)


def test_other_files_in_the_target_are_left_alone(source, tmp_path):
    others = {
        "README.md": b"mine",
        "val-000000.tar": b"of another split",
        "training-000000.tar": b"x",
        "train-x.tar": b"y",
    }
    trees.make(tmp_path / "out", others)
    convert_tree(source, tmp_path / "out", workers=0)
    assert {name: data for name, data in trees.snapshot(tmp_path / "out").items() if name in others} == others


def test_a_target_inside_the_source_is_refused(source):
    before = trees.snapshot(source)
    for target in (source, source / "out", source / "ant", source / "x/../out"):
        with pytest.raises(TargetError, match=r"inside the source.*choose a folder outside"):
            convert(source, target)
    assert trees.snapshot(source) == before
    assert not (source / "out").exists()


def test_a_target_inside_the_source_by_a_link_is_refused(source, tmp_path):
    (tmp_path / "link").symlink_to(source)
    with pytest.raises(TargetError, match="inside the source"):
        convert(source, tmp_path / "link/out")
    with pytest.raises(TargetError, match="inside the source"):
        convert(tmp_path / "link", source / "out")


def test_a_target_beside_the_source_may_begin_like_it(source, tmp_path):
    convert(source, tmp_path / "in-shards")


@pytest.mark.parametrize("name", ["none", "none.csv", "file.txt"])
def test_a_source_that_is_not_there_is_refused_and_nothing_made(tmp_path, name):
    (tmp_path / "file.txt").touch()
    with pytest.raises(SourceError):
        convert(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists() or names(tmp_path / "out") == []


# ---------------------------------------------------------------- bad samples

BAD = {"ant/a.jpg": b"", "bee/b.jpg": b"no image", "cat/c.png": images.png()[:-20], "dog/d.jpg": images.jpeg()[:-2]}


def test_a_bad_image_ends_the_run_and_the_next_one_may_skip_it(source, tmp_path):
    convert(source, tmp_path / "good", on_error="skip", max_count=3)
    trees.make(source, BAD)
    with pytest.raises(SampleError) as caught:
        convert(source, tmp_path / "out", max_count=3)
    assert caught.value.place.strip("'") in BAD
    assert not (tmp_path / "out/info.json").exists()
    result = convert(source, tmp_path / "out", max_count=3, on_error="skip")
    assert (result.samples, result.num_skipped) == (20, 4)
    assert {key for key, _ in trees.read(tmp_path / "out")} == {key for key, _ in trees.read(tmp_path / "good")}


def test_what_was_skipped_is_counted_and_listed(source, tmp_path):
    trees.make(source, BAD)
    os.mkfifo(source / "bee/fifo.jpg")
    (source / "cat/out.jpg").symlink_to("/etc/passwd")
    (source / "link").symlink_to("cat")
    trees.write(source, "loose.jpg")
    trees.write(source, "ant/.hidden.jpg")
    trees.write(source, "ant/notes.txt")
    (source / "empty").mkdir()
    result = convert(source, tmp_path / "out", max_count=3, on_error="skip")
    split = info(tmp_path / "out")["splits"]["train"]
    listed = {skip["path"]: skip["reason"] for skip in split["skipped"]}
    assert set(listed) == {*BAD, "bee/fifo.jpg", "cat/out.jpg", "link", "loose.jpg"}
    assert split["num_skipped"] == result.num_skipped == 8
    assert listed == {skip.path: skip.reason for skip in result.skipped}
    assert listed["ant/a.jpg"] == "empty file"
    assert result.ignored == {"hidden": 1, ".txt": 1}
    assert result.empty_classes == ("empty",)
    assert info(tmp_path / "out")["classes"] == ["ant", "bee", "cat", "dog", "empty"]


def test_a_thousand_skips_are_listed_and_all_are_counted(source, tmp_path):
    for number in range(1100):
        (source / f"bee/{number:04d}.jpg").symlink_to("nowhere")
    trees.make(source, BAD)
    result = convert(source, tmp_path / "out", on_error="skip")
    split = info(tmp_path / "out")["splits"]["train"]
    assert (split["num_skipped"], len(split["skipped"])) == (1104, 1000)
    assert (result.num_skipped, result.samples) == (1104, 20)


def test_a_source_of_nothing_but_bad_images_is_an_error_and_no_dataset(tmp_path):
    source = trees.make(tmp_path / "in", BAD)
    with pytest.raises(SourceError, match=r"no usable image: 4 skipped, the first is '.*': "):
        convert(source, tmp_path / "out", on_error="skip")
    assert not (tmp_path / "out/info.json").exists()
    trees.write(source, "ant/good.jpg")
    assert convert(source, tmp_path / "out", on_error="skip").samples == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_fault_08_an_unreadable_image_is_raised_or_skipped_and_listed(workers):
    with trees.open_to_all() as folder:
        source = trees.classes(folder / "in")
        (source / "bee/bee_002.jpg").chmod(0)
        with pytest.raises(SampleError, match=r"'bee/bee_002.jpg': unreadable: Permission denied"):
            trees.unprivileged(lambda: convert(source, folder / "one", workers=workers))
        assert not (folder / "one/info.json").exists()
        result = trees.unprivileged(lambda: convert(source, folder / "two", workers=workers, on_error="skip"))
        assert result.num_skipped == 1
        assert info(folder / "two")["splits"]["train"]["skipped"] == [
            {"path": "bee/bee_002.jpg", "reason": "unreadable: Permission denied"}
        ]


# ---------------------------------------------------------------- job arrays


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_the_parts_of_an_array_give_the_bytes_of_one_run_in_any_order(source, tmp_path, order):
    trees.make(source, BAD)
    options = {"max_count": 3, "on_error": "skip"}
    convert(source, tmp_path / "whole", **options)
    results = [convert(source, tmp_path / "out", task=(part, 3), **options) for part in order]
    assert [result.complete for result in results] == [False, False, True]
    assert sum(result.built for result in results) == 8
    assert_same(tmp_path / "out", trees.snapshot(tmp_path / "whole"))
    again = convert(source, tmp_path / "out", task=(0, 3), **options)
    assert (again.built, again.complete, again.samples) == (0, True, 20)
    assert_same(tmp_path / "out", trees.snapshot(tmp_path / "whole"))


def test_more_parts_than_shards_are_no_error(source, tmp_path):
    convert(source, tmp_path / "whole", max_count=10)
    for part in range(5):
        result = convert(source, tmp_path / "out", task=(part, 5), max_count=10)
    assert result.complete
    assert_same(tmp_path / "out", trees.snapshot(tmp_path / "whole"))


def test_the_parts_of_an_array_run_side_by_side_and_give_the_bytes_of_one_run(source, tmp_path):
    convert(source, tmp_path / "whole", max_count=2)
    with ExitStack() as stack:
        commands = [
            stack.enter_context(
                Command(
                    "convert", source, tmp_path / "out", "--max-count", "2", "--workers", "1", "--task", f"{part}/4"
                )
            )
            for part in range(4)
        ]
        ended = [command.finish() for command in commands]
    assert [said.code for said in ended] == [0] * 4, ended
    assert_same(tmp_path / "out", trees.snapshot(tmp_path / "whole"))


def test_a_part_with_other_options_than_the_plan_s_is_refused(source, tmp_path):
    convert(source, tmp_path / "out", task=(0, 2), max_count=3)
    with pytest.raises(TargetError, match="unfinished conversion with other options"):
        convert(source, tmp_path / "out", task=(1, 2), max_count=4)
    assert not (tmp_path / "out/info.json").exists()
    convert(source, tmp_path / "whole", max_count=3)
    convert(source, tmp_path / "out", task=(1, 2), max_count=3)
    assert_same(tmp_path / "out", trees.snapshot(tmp_path / "whole"))


def test_fault_07_a_file_changed_between_two_parts_fails_its_part_and_a_run_of_the_whole_mends_it(source, tmp_path):
    options = {"max_count": 3, "shuffle": False}
    convert(source, tmp_path / "out", task=(0, 2), **options)
    trees.write(source, "ant/ant_003.jpg", trees.picture("another", 500))
    with pytest.raises(SourceChangedError, match=r"'ant/ant_003.jpg' changed since the plan was made"):
        convert(source, tmp_path / "out", task=(1, 2), **options)
    assert not (tmp_path / "out/info.json").exists()
    result = convert(source, tmp_path / "out", **options)
    assert result.built < result.shards
    convert(source, tmp_path / "fresh", **options)
    assert_same(tmp_path / "out", trees.snapshot(tmp_path / "fresh"))


def test_fault_07_running_the_changed_part_again_goes_by_a_new_plan(source, tmp_path):
    options = {"max_count": 3, "shuffle": False}
    convert(source, tmp_path / "out", task=(0, 2), **options)
    (source / "ant/ant_003.jpg").unlink()
    with pytest.raises(SourceChangedError, match=r"'ant/ant_003.jpg' is gone"):
        convert(source, tmp_path / "out", task=(1, 2), **options)
    convert(source, tmp_path / "out", task=(1, 2), **options)
    convert(source, tmp_path / "out", task=(0, 2), **options)
    convert(source, tmp_path / "fresh", **options)
    assert_same(tmp_path / "out", trees.snapshot(tmp_path / "fresh"))


@pytest.mark.parametrize("task", [(2, 2), (-1, 2), (0, 0)])
def test_a_part_that_is_none_is_refused(source, tmp_path, task):
    with pytest.raises(OptionError, match=f"{task[0]}/{task[1]}"):
        convert(source, tmp_path / "out", task=task)


def test_overwriting_in_parts_is_refused(source, tmp_path):
    with pytest.raises(OptionError, match="overwrite"):
        convert(source, tmp_path / "out", task=(0, 2), overwrite=True)


def test_options_are_checked_before_anything_is_made(source, tmp_path):
    for options in ({"workers": -1}, {"engine": "ray"}, {"max_count": 0}, {"split": "a/b"}):
        with pytest.raises(OptionError):
            convert(source, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()
