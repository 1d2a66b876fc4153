import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wds_tools.errors import ManifestError
from wds_tools.format import manifest, sidecars
from wds_tools.format.manifest import Manifest
from wds_tools.records import ShardInfo, Skipped, SplitInfo

TRAIN = SplitInfo(
    "train",
    (ShardInfo("train-000000.tar", 2, 10240, "ab" * 32), ShardInfo("train-000001.tar", 1, 5120, "cd" * 32)),
    fields={"jpg": 3, "cls": 3},
    suffixes={"jpg": ".JPEG"},
    settings={"seed": 0, "encode": "keep"},
    skipped=(Skipped("ant/a\udcff.jpg", "empty file"),),
    num_skipped=1,
)
VAL = SplitInfo("val", (ShardInfo("val-000000.tar", 1),))
SMALL = Manifest({"train": TRAIN, "val": VAL}, ("ant", "bee"))

text = st.text(max_size=8)
scalar = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), text)
anything = st.recursive(
    scalar, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)), max_leaves=6
)
count = st.integers(0, 10**15)
shard_name = st.from_regex(r"[a-z]{1,5}(-[0-9]{1,6})?\.tar", fullmatch=True)
shard = st.builds(
    ShardInfo, shard_name, count, st.none() | count, st.none() | st.from_regex(r"[0-9a-f]{8}", fullmatch=True)
)
unknown = st.dictionaries(
    text.filter(lambda key: key not in manifest._OURS | manifest._OURS_IN_SPLIT), anything, max_size=3
)


@st.composite
def manifests(draw):
    names = draw(st.lists(text, unique=True, max_size=3))
    splits = {}
    for name in names:
        skipped = draw(st.lists(st.builds(Skipped, text, text), max_size=3))
        splits[name] = SplitInfo(
            name,
            tuple(draw(st.lists(shard, max_size=4, unique_by=lambda each: each.name))),
            draw(st.dictionaries(text, count, max_size=3)),
            draw(st.dictionaries(text, text, max_size=3)),
            draw(st.dictionaries(text, anything, max_size=3)),
            tuple(skipped),
            draw(st.integers(len(skipped), 10**6)) if skipped else 0,
        )
    # A shard's size and digest stand once, however many splits list it.
    known: dict[str, ShardInfo] = {}
    for name, split in splits.items():
        shards = tuple(
            ShardInfo(each.name, each.samples, known.setdefault(each.name, each).size, known[each.name].sha256)
            for each in split.shards
        )
        splits[name] = SplitInfo(
            name, shards, split.fields, split.suffixes, split.settings, split.skipped, split.num_skipped
        )
    return Manifest(
        splits,
        tuple(draw(st.lists(text, max_size=3))),
        draw(unknown),
        {name: extra for name in names if (extra := draw(unknown))},
    )


def changed(*path: object, to: object) -> bytes:
    """The small manifest with something else at one place."""
    content = json.loads(manifest.dump(SMALL))
    place = content
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return json.dumps(content).encode()


def refused(data: bytes, match: str | None = None) -> None:
    with pytest.raises(ManifestError, match=match):
        manifest.load(data)


# -- what it is


def test_three_readers_find_what_they_look_for():
    content = json.loads(manifest.dump(SMALL))
    assert content["splits"]["train"] == {  # timm
        "name": "train",
        "num_samples": 3,
        "filenames": ["train-000000.tar", "train-000001.tar"],
        "shard_lengths": [2, 1],
        "fields": {"cls": 3, "jpg": 3},
        "suffixes": {"jpg": ".JPEG"},
        "num_skipped": 1,
        "skipped": [{"path": "ant/a\udcff.jpg", "reason": "empty file"}],
    }
    assert (content["wids_version"], content["name"]) == (1, "train+val")  # wids
    assert content["shardlist"] == [
        {"url": "train-000000.tar", "nsamples": 2, "filesize": 10240, "sha256": "ab" * 32},
        {"url": "train-000001.tar", "nsamples": 1, "filesize": 5120, "sha256": "cd" * 32},
        {"url": "val-000000.tar", "nsamples": 1},
    ]
    assert (content["format"], content["version"]) == ("wds_tools", 1)  # ours
    assert content["classes"] == ["ant", "bee"]
    assert content["fields"] == ["cls", "jpg"]
    assert content["settings"] == {"train": {"seed": 0, "encode": "keep"}, "val": {}}


def test_the_bytes_are_plain_ascii_that_ends_its_line():
    data = manifest.dump(SMALL)
    assert data.isascii()
    assert data.endswith(b"}\n")
    assert manifest.dump(manifest.load(data)) == data


def test_sizes_json_lists_the_samples_of_every_shard():
    assert json.loads(sidecars.dump_sizes(dict(SMALL.splits))) == {
        "train-000000.tar": 2,
        "train-000001.tar": 1,
        "val-000000.tar": 1,
    }


@settings(deadline=None, max_examples=100)
@given(manifests())
def test_a_manifest_comes_back(content):
    assert manifest.load(manifest.dump(content)) == content


def test_unknown_keys_are_kept():
    data = changed("splits", "train", "license", to={"name": "CC0"})
    content = json.loads(data) | {"homepage": "https://example.org", "tags": [1, None]}
    kept = json.loads(manifest.dump(manifest.load(json.dumps(content).encode()).with_split(VAL)))
    assert kept["homepage"] == "https://example.org"
    assert kept["tags"] == [1, None]
    assert kept["splits"]["train"]["license"] == {"name": "CC0"}


def test_unknown_keys_never_replace_ours():
    content = Manifest({"val": VAL}, (), {"version": 9, "note": "x"}, {"val": {"num_samples": 9, "note": "y"}})
    kept = json.loads(manifest.dump(content))
    assert (kept["version"], kept["note"]) == (1, "x")
    assert (kept["splits"]["val"]["num_samples"], kept["splits"]["val"]["note"]) == (1, "y")


def test_the_order_in_which_splits_were_made_does_not_matter():
    one, other = Manifest().with_split(TRAIN).with_split(VAL), Manifest().with_split(VAL).with_split(TRAIN)
    assert manifest.dump(one) == manifest.dump(other)


def test_a_split_is_put_in_replaced_and_taken_out():
    more = SplitInfo("val", (ShardInfo("val-000000.tar", 7),))
    assert SMALL.with_split(more).splits == {"train": TRAIN, "val": more}
    assert SMALL.with_split(more).classes == ("ant", "bee")
    assert SMALL.with_split(more, ("cat",)).classes == ("cat",)
    assert SMALL.without_split("val") == Manifest({"train": TRAIN}, ("ant", "bee"))
    assert SMALL.without_split("val").without_split("train") == Manifest()
    assert SMALL.without_split("test") == SMALL


def test_a_long_list_of_skipped_files_is_cut_and_its_count_kept():
    skipped = tuple(Skipped(f"{number}.jpg", "empty file") for number in range(manifest.MAX_LISTED_SKIPS + 5))
    split = SplitInfo("train", (), skipped=skipped, num_skipped=len(skipped))
    back = manifest.load(manifest.dump(Manifest({"train": split}))).splits["train"]
    assert back.num_skipped == manifest.MAX_LISTED_SKIPS + 5
    assert back.skipped == skipped[: manifest.MAX_LISTED_SKIPS]


def test_the_manifest_of_timm_is_read():
    split = {"name": "train", "num_samples": 3, "filenames": ["a-0.tar", "a-1.tar"], "shard_lengths": [1, 2]}
    content = manifest.load(json.dumps({"splits": {"train": split}}).encode())
    assert content.splits["train"].shards == (ShardInfo("a-0.tar", 1), ShardInfo("a-1.tar", 2))
    assert content.splits["train"].samples == 3


# -- what is refused


@pytest.mark.parametrize("version", [2, 10**30, "1", "2", 1.0, 1e999, None, [1]])
def test_a_newer_version_is_refused(version):
    refused(changed("version", to=version), r"info.json: its version is .* reads up to 1; upgrade wds_tools")


def test_the_version_of_another_format_is_not_ours():
    content = {"format": "other", "version": 9, "splits": {}}
    assert manifest.load(json.dumps(content).encode()) == Manifest()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"{]",
        b"\xff\xfe",
        b"<html>",
        b"\x00\x00\x00{",
        b"[" * 100_000,
        b'{"splits": ' + b"1" * 5000 + b"}",
        b"'a'",
    ],
)
def test_what_is_no_json_is_refused(data):
    refused(data, r"info.json: not JSON \(.*\); restore it")


@pytest.mark.parametrize("content", [[], {}, None, 1, "splits", {"splits": []}, {"splits": None}, {"shardlist": []}])
def test_what_lists_no_splits_is_refused(content):
    refused(json.dumps(content).encode(), "it has no 'splits'; move it away and .* 'wds-tools index'")


VALUES = [None, True, -1, 1.5, 1e999, "x", [[]], [None], [-1], ["x", "y"], {"x": None}, {"x": -1}]
FITTING = {  # which of the values may stand where
    ("splits", "train"): [],
    ("splits", "train", "filenames"): [["x", "y"]],
    ("splits", "train", "filenames", 0): ["x"],
    ("splits", "train", "shard_lengths"): [],
    ("splits", "train", "shard_lengths", 0): [],
    ("splits", "train", "fields"): [],
    ("splits", "train", "fields", "jpg"): [],
    ("splits", "train", "suffixes"): [],
    ("splits", "train", "suffixes", "jpg"): ["x"],
    ("splits", "train", "skipped"): [],
    ("splits", "train", "skipped", 0): [],
    ("splits", "train", "num_skipped"): [],
    ("shardlist",): [],
    ("shardlist", 0): [],
    ("shardlist", 0, "url"): ["x"],
    ("shardlist", 0, "filesize"): [None],
    ("shardlist", 0, "sha256"): [None, "x"],
    ("settings",): [{"x": None}, {"x": -1}],
    ("settings", "train"): [{"x": None}, {"x": -1}],
    ("classes",): [["x", "y"]],
    ("classes", 0): ["x"],
}


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("path", FITTING, ids=lambda path: ".".join(map(str, path)))
def test_a_value_of_a_wrong_type_is_refused(path, value):
    data = changed(*path, to=value)
    if any(value is fitting or (value == fitting and value is not True) for fitting in FITTING[path]):
        manifest.load(data)
    else:
        refused(data, r"info.json: malformed \(.*\); .*'wds-tools index'")


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("splits", "train"), {}),
        (("splits", "train"), {"filenames": ["a.tar"]}),
        (("splits", "train", "shard_lengths"), [1]),
        (("splits", "train", "shard_lengths"), {"0": 1, "1": 1}),
        (("splits", "train", "filenames"), "ab"),
        (("classes",), "ant"),
        (("splits", "train", "skipped", 0), {"path": "a"}),
        (("shardlist", 0), {}),
    ],
)
def test_a_wrong_shape_is_refused(path, wrong):
    refused(changed(*path, to=wrong), "malformed")


def test_as_many_lengths_as_names_are_needed():
    refused(changed("splits", "train", "shard_lengths", to=[1]), "split 'train' has 2 file names and 1 lengths")


@settings(deadline=None, max_examples=300)
@given(anything, st.sampled_from(["splits", "shardlist", "settings", "classes", "version", "format", "train", "entry"]))
def test_hostile_json_raises_nothing_but_a_manifest_error(value, where):
    content = json.loads(manifest.dump(SMALL))
    if where == "train":
        content["splits"]["train"] = value
    elif where == "entry":
        content["splits"]["train"] = {"filenames": value, "shard_lengths": value, "fields": value}
    else:
        content[where] = value
    try:
        loaded = manifest.load(json.dumps(content).encode())
    except ManifestError:
        return
    assert manifest.load(manifest.dump(loaded)) == loaded


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damaged_json_raises_nothing_but_a_manifest_error(data):
    whole = manifest.dump(SMALL)
    position = data.draw(st.integers(0, len(whole)))
    damaged = whole[:position] + data.draw(st.binary(max_size=3)) + whole[position + data.draw(st.integers(0, 9)) :]
    try:
        loaded = manifest.load(damaged)
    except ManifestError:
        return
    manifest.dump(loaded)


def test_fault_20_a_manifest_that_is_cut_anywhere_is_refused():
    data = manifest.dump(SMALL).rstrip()
    for at in range(len(data)):
        refused(data[:at], "not JSON")


OUTSIDE = [
    "../train-000000.tar",
    "..",
    "a/../../b.tar",
    "a/..",
    "/etc/passwd",
    "//host/a.tar",
    "",
    ".",
    "./a.tar",
    "a//b.tar",
    "a/./b.tar",
    "a/",
    "..\\a.tar",
    "a\\..\\b.tar",
    "C:\\a.tar",
    "C:a.tar",
    "a\0.tar",
    "http://host/a.tar",
    "https:a.tar",
    "s3://bucket/a.tar",
    "file:///etc/passwd",
    "pipe:cat a.tar",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_fault_49_a_shard_outside_of_the_dataset_is_refused(name):
    refused(changed("splits", "train", "filenames", 0, to=name), r"malformed .*lies outside of the dataset")


@pytest.mark.parametrize("name", OUTSIDE)
def test_fault_49_a_shard_outside_of_the_dataset_is_not_listed(name):
    with pytest.raises(ManifestError, match=r"cannot be listed in info\.json"):
        manifest.dump(Manifest({"train": SplitInfo("train", (ShardInfo(name, 1),))}))


@pytest.mark.parametrize(
    "name",
    [
        "a.tar",
        "train/a.tar",
        "...tar",
        "..a.tar",
        "a..tar",
        ".hidden.tar",
        "ü b.tar",
        "a/b:c.tar",
        "%2e%2e.tar",
        "0:1.tar",
    ],
)
def test_any_other_name_of_a_shard_is_fine(name):
    content = Manifest({"train": SplitInfo("train", (ShardInfo(name, 1),))})
    assert manifest.load(manifest.dump(content)) == content


def test_loading_changes_nothing_that_it_was_given():
    content = Manifest({"train": TRAIN}, extra={"a": [1]})
    before = copy.deepcopy(content)
    manifest.dump(content.with_split(VAL))
    assert content == before
