import os
from pathlib import Path

import pytest
from braceexpand import braceexpand
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wds_tools.errors import NotFoundError, OptionError
from wds_tools.store import resolve
from wds_tools.store.local import LocalStore
from wds_tools.store.resolve import MAX_DEPTH, MAX_NAMES, _count, expand_braces, locate
from wds_tools.store.s3 import S3Store

number = st.integers(-12, 12).map(str) | st.sampled_from(["00", "007", "-01", "10"])
step = st.sampled_from(["", "..1", "..2", "..-3", "..0"])
letter = st.sampled_from("aczABZ")
notation = st.recursive(
    st.sampled_from(["", "a", "train-", ".", "\\{", "\\,", "0..3"])
    | st.builds("{{{}..{}{}}}".format, number, number, step)
    | st.builds("{{{}..{}{}}}".format, letter, letter, step),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: "{" + ",".join(parts) + "}")
    ),
    max_leaves=5,
)


# -- brace notation


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("plain.tar", ["plain.tar"]),
        ("a,b.tar", ["a,b.tar"]),
        ("t-{0..3}.tar", ["t-0.tar", "t-1.tar", "t-2.tar", "t-3.tar"]),
        ("t-{000..002}.tar", ["t-000.tar", "t-001.tar", "t-002.tar"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{9..011}", ["009", "010", "011"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{00..20..10}", ["00", "10", "20"]),
        ("{0..9..4}", ["0", "4", "8"]),
        ("{a..e..2}", ["a", "c", "e"]),
        ("{c..a}", ["c", "b", "a"]),
        ("{Y..b}", ["Y", "Z", "a", "b"]),
        ("{a,b}{1..2}", ["a1", "a2", "b1", "b2"]),
        ("{train-{0..1},val-{0,2}}.tar", ["train-0.tar", "train-1.tar", "val-0.tar", "val-2.tar"]),
        ("{a,}b", ["ab", "b"]),
        ("{a}", ["{a}"]),
        ("{}", ["{}"]),
        ("{1..a}", ["{1..a}"]),
        ("\\{0..3\\}", ["{0..3}"]),
        ("{a\\,b,c}", ["a,b", "c"]),
        ("/data/{a..b}/s-{0..1}.tar", ["/data/a/s-0.tar", "/data/a/s-1.tar", "/data/b/s-0.tar", "/data/b/s-1.tar"]),
    ],
)
def test_brace_notation_stands_for_names(text, names):
    assert expand_braces(text) == names


@settings(deadline=None, max_examples=300)
@given(notation)
@example("{A..z}{z..A..7}{A..A}")
@example("{{0..3}}{{a,b},c}")
@example("{0..3\n}{a..c\n}")
def test_names_are_counted_exactly_before_one_is_made(text):
    if "{" in text.replace("\\{", ""):
        assert _count(text) == len(list(braceexpand(text)))
    assert expand_braces(text) == (list(braceexpand(text)) if "{" in text else [text])


@settings(deadline=None, max_examples=500)
@given(st.text("{{}},.09a\\-\n", max_size=14))
@example("}{{0..9}")
@example("}a{")
def test_any_text_stands_for_names_or_is_refused(text):
    try:
        found = expand_braces(text)
    except OptionError:
        return
    assert found == (list(braceexpand(text)) if "{" in text else [text])


@pytest.mark.parametrize("text", ["{0..3", "t-{a,b.tar", "{{a,b}", "{a,b}}", "}{", "{a,b}{"])
def test_braces_that_do_not_match_are_refused(text):
    with pytest.raises(OptionError, match=r"is no brace notation: a brace is .*; write for example train-\{000000"):
        expand_braces(text)


def test_as_many_names_as_are_allowed_are_made(monkeypatch):
    monkeypatch.setattr(resolve, "MAX_NAMES", 11_000)
    assert len(expand_braces("{1..11000}")) == 11_000
    with pytest.raises(OptionError, match="more than 11,000 names"):
        expand_braces("{0..11000}")
    assert len(expand_braces("{train-{0000..9999},val-{000..999}}.tar")) == 11_000
    assert len(expand_braces("{" + ",".join(map(str, range(5000))) + "}")) == 5000
    assert len(expand_braces("{" * MAX_DEPTH + "a,b" + "}" * MAX_DEPTH)) == 2


BILLIONS = {
    "one too many": f"{{0..{MAX_NAMES}}}",
    "billions": "train-{0..9999999999}.tar",
    "padded": "train-{000000000000..999999999999}.tar",
    "backwards": "{9999999999..0}",
    "below zero": "{-9999999999..0}",
    "with a step": "{0..9999999999..2}",
    "with a step of zero": "{0..9999999999..0}",
    "side by side": "{0..9999}{0..9999}{0..9999}",
    "letters": "{a..z}" * 6,
    "letters of both cases": "{A..z}" * 4,
    "commas": "{a,b}" * 30,
    "nothing but commas": "{,}" * 40,
    "nested": "{{0..9999999999}}",
    "nested in a list": "{a,{0..9999999999}}",
    "deeply nested": "{a," * 50 + "{0..9999999}" + "}" * 50,
    "lists of ranges": "{{0..999999},{0..999999}}",
    "nested side by side": "{{a,b},{a..z}}" * 8,
    "with an escaped brace": "\\{" + "{0..9999999999}",
    "with a line's end": "{0..9999999999\n}",
    "a million braces": "{a,b}" * 200_000,
}


@pytest.mark.parametrize("text", BILLIONS.values(), ids=BILLIONS.keys())
def test_fault_51_notation_that_stands_for_billions_is_refused(text):
    with pytest.raises(OptionError, match=r"more than 1,000,000 names; give the shards as a folder or a glob"):
        expand_braces(text)


@pytest.mark.parametrize(
    "text",
    ["{0.." + "9" * 5000 + "}", "{0..1.." + "9" * 5000 + "}", "{" + "0" * 30 + "1..2}", "{" * 5000 + "a,b" + "}" * 5000,
     "}{{0..9999999999}", "}{0..9999999999}", "{0..9999999999}{"],
    ids=["digits", "digits of a step", "padding", "depth", "turned round", "closed first", "left open"],
)  # fmt: skip
def test_fault_51_notation_that_would_break_the_reader_is_refused(text):
    with pytest.raises(OptionError, match="is no brace notation"):
        expand_braces(text)


def test_fault_51_a_command_refuses_it_before_it_looks_at_a_file():
    with pytest.raises(OptionError, match="more than 1,000,000 names"):
        locate("/missing/{0..9999999999}.tar")
    with pytest.raises(OptionError, match="more than 1,000,000 names"):
        locate(["/missing/a.tar", "/missing/{0..9999999999}.tar"])


# -- where a dataset is


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("train-0.tar", "train-1.tar", "val-0.tar", "sub/x-0.tar", "odd[1].tar", "info.json"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


@pytest.mark.parametrize(
    "given_as", ["data", "data/", "./data", "data/info.json", Path("data"), Path("data/info.json")]
)
def test_a_folder_is_a_dataset_as_a_whole(folder, given_as):
    place = locate(given_as)
    assert place.store == LocalStore(folder)
    assert place.names is None


def test_a_manifest_in_the_working_folder_is_found(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for given_as in ("info.json", "."):
        assert locate(given_as).store == LocalStore(folder)


@pytest.mark.parametrize(
    ("given_as", "names"),
    [
        ("data/train-0.tar", ("train-0.tar",)),
        (Path("data/train-0.tar"), ("train-0.tar",)),
        ("data/train-{0..1}.tar", ("train-0.tar", "train-1.tar")),
        ("data/train-{1..0}.tar", ("train-1.tar", "train-0.tar")),
        ("data/{train-{0..1},val-0}.tar", ("train-0.tar", "train-1.tar", "val-0.tar")),
        ("data/train-*.tar", ("train-0.tar", "train-1.tar")),
        ("data/{val,train}-?.tar", ("val-0.tar", "train-0.tar", "train-1.tar")),
        ("data/odd[1].tar", ("odd[1].tar",)),
        (["data/val-0.tar", Path("data/train-0.tar")], ("val-0.tar", "train-0.tar")),
        (["data/val-0.tar", "data/train-*.tar"], ("val-0.tar", "train-0.tar", "train-1.tar")),
        (["data/sub/x-0.tar", "data/val-0.tar"], ("sub/x-0.tar", "val-0.tar")),
        ("data/*/x-0.tar", ("x-0.tar",)),
        (("data/sub/../val-0.tar",), ("val-0.tar",)),
    ],
)
def test_shards_are_found_in_the_order_in_which_they_are_given(folder, given_as, names):
    place = locate(given_as)
    assert place.names == names
    assert all(os.path.isfile(place.store.url(name)) for name in names)
    if given_as != "data/*/x-0.tar":
        assert place.store == LocalStore(folder)


def test_what_a_glob_finds_is_in_the_order_of_the_names(tmp_path):
    names = [f"x-{number * 7919 % 1000:03d}.tar" for number in range(40)]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    assert locate(str(tmp_path / "x-*.tar")).names == tuple(sorted(names))


def test_shards_of_several_folders_have_their_parent_in_common(folder, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more/a.tar").write_bytes(b"")
    place = locate([str(folder / "sub/x-0.tar"), "more/a.tar"])
    assert place.store == LocalStore(tmp_path)
    assert place.names == ("data/sub/x-0.tar", "more/a.tar")


@pytest.mark.parametrize(
    ("given_as", "missing"),
    [
        ("nowhere", "nowhere"),
        ("data/train-{0..2}.tar", "data/train-2.tar"),
        (["data/train-0.tar", "data/none.tar"], "data/none.tar"),
        ("data/none-*.tar", "data/none-*.tar"),
        ("data/sub*", "data/sub"),
        ("", ""),
        ("nowhere/info.json", "nowhere/info.json"),
    ],
)
def test_what_is_not_there_is_named(folder, given_as, missing):
    with pytest.raises(NotFoundError, match=r"check the (path|numbers|variable)|did you mean") as caught:
        locate(given_as)
    assert f"{missing!r}" in str(caught.value)


def test_a_folder_among_shards_is_refused(folder):
    for given_as in (["data", "data/train-0.tar"], "{data,more}", ["data"]):
        with pytest.raises(OptionError, match="'data' is a folder; give either one folder or a list of shards"):
            locate(given_as)


def test_nothing_is_no_dataset():
    with pytest.raises(OptionError, match="no shards are given"):
        locate([])


@pytest.mark.parametrize("url", ["http://host/a.tar", "s3://bucket/a-{0..9}.tar", "file:///etc/passwd", "gs://b"])
def test_a_url_is_refused_by_commands_that_read_here(url):
    for given_as in (url, [url]):
        with pytest.raises(OptionError, match="is a URL; this command reads local datasets"):
            locate(given_as)


def test_what_a_url_holds_secret_is_not_shown():
    for url in ("https://me:pa55word@host/a.tar", "https://host/a.tar?sig=pa55word", "https://pa55word@host/a?x@y"):
        with pytest.raises(OptionError) as caught:
            locate(url)
        assert "pa55word" not in str(caught.value)
        assert "https://host/a" in str(caught.value)


# -- where a remote one is


def found(dataset, options=None):
    place = locate(dataset, remote=True, options=options)
    return type(place.store).__name__, place.store.url(), place.names


@pytest.mark.parametrize(
    ("given_as", "store", "names"),
    [
        ("https://host/data", "https://host/data", None),
        ("https://host/data/?sig=x", "https://host/data", None),
        ("http://host:8000/data/info.json?sig=x", "http://host:8000/data", None),
        ("https://me:x@host/data", "https://host/data", None),
        ("https://host", "https://host", None),
        ("https://host/a.tar", "https://host", ("a.tar",)),
        ("https://host/d/t-{0..1}.tar?sig=x", "https://host/d", ("t-0.tar", "t-1.tar")),
        (["https://host/d/x/a.tar", "https://host/d/y/b.tar"], "https://host/d", ("x/a.tar", "y/b.tar")),
        (["https://host/da/a.tar", "https://host/d/b.tar"], "https://host", ("da/a.tar", "d/b.tar")),
        ("https://host/d%20e/a%20%25b.tar", "https://host/d%20e", ("a %b.tar",)),
        ("s3://bucket", "s3://bucket", None),
        ("s3://bucket/d/info.json", "s3://bucket/d", None),
        ("s3://bucket/t-{0..1}.tar", "s3://bucket", ("t-0.tar", "t-1.tar")),
        (["s3://bucket/d/x/a.tar", "s3://bucket/d/b.tar"], "s3://bucket/d", ("x/a.tar", "b.tar")),
    ],
)  # fmt: skip
def test_remote_addresses_name_a_store_and_shards(given_as, store, names):
    assert found(given_as) == ("S3Store" if "s3:" in str(given_as) else "HttpStore", store, names)


def test_a_query_and_a_login_go_along():
    store = locate("https://me:pw@host/data/t-{0..1}.tar?sig=x", remote=True).store
    url, headers = store._wire.access.sign(store.request("t-0.idx"))
    assert url == "https://host/data/t-0.idx?sig=x"
    assert headers["authorization"].startswith("Basic ")


def test_each_shard_may_be_signed_by_itself_and_its_index_too():
    place = locate(
        [f"https://host/d/a.{ext}?sig={ext}" for ext in ("tar", "idx")] + ["https://host/d/b.tar?s=2"], remote=True
    )
    assert place.names == ("a.tar", "b.tar")
    asked = [place.store.request(name).target for name in ("a.tar", "a.idx", "b.tar")]
    assert asked == ["https://host/d/a.tar?sig=tar", "https://host/d/a.idx?sig=idx", "https://host/d/b.tar?s=2"]
    with pytest.raises(NotFoundError):
        place.store.request("b.idx")


@pytest.mark.parametrize(
    ("given_as", "words"),
    [
        (["https://host/a.tar", "b.tar"], "some shards are local"),
        (["https://host/a.tar", "s3://bucket/b.tar"], "some shards are in S3"),
        (["https://host/a.tar", "https://other/b.tar"], "several servers"),
        (["s3://bucket/a.tar", "s3://other/b.tar"], "several buckets"),
        ("gs://bucket/a.tar", "http, https and s3 addresses are read"),
        ("ftp://me:pa55@host/a.tar", "'ftp://host/a.tar' is a URL; http, https and s3"),
        ("s3://", "is no address in S3"),
        ("http://[pa55/x", "not well formed"),
        ("http://me:pa55/x", "not well formed"),
        ("https://host/{0..9999999999}.tar", "more than 1,000,000"),
    ],
)
def test_remote_addresses_that_do_not_go_together_are_refused(given_as, words):
    with pytest.raises(OptionError, match=words) as caught:
        locate(given_as, remote=True)
    assert "pa55" not in str(caught.value)


def test_a_glob_in_a_bucket_is_looked_up(bucket, tmp_path):
    root = f"{bucket.url}/{tmp_path.name}"
    store = S3Store(root, bucket.options)
    for name in ("d/t-0.tar", "d/t-1.tar", "d/t-1.idx", "d/u.tar"):
        store.write_atomic(name, [b"x"])
    assert found(f"{root}/d/t-*.tar", bucket.options) == ("S3Store", f"{root}/d", ("t-0.tar", "t-1.tar"))
    assert found([f"{root}/d/u.tar", f"{root}/d/t-?.tar"], bucket.options)[2] == ("u.tar", "t-0.tar", "t-1.tar")
    with pytest.raises(NotFoundError, match=r"nothing matches 's3://.*/d/v-\*\.tar'"):
        found(f"{root}/d/v-*.tar", bucket.options)
    with pytest.raises(OptionError, match="wildcard in a folder's name"):
        found(f"{root}/*/t-0.tar", bucket.options)


@pytest.mark.parametrize("text", ["pipe:touch {}", "pipe:cat a.tar; touch {}"])
def test_fault_49_a_shell_command_is_never_run(tmp_path, text):
    mark = tmp_path / "mark"
    for given_as in (text.format(mark), [text.format(mark)]):
        with pytest.raises(OptionError, match="asks for a shell command, which is never run"):
            locate(given_as)
    assert not mark.exists()
