import os
import re
import string
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from wds_tools.convert import keys
from wds_tools.format import tar

LEGAL = "".join(char for char in string.printable if not char.isspace())  # ASCII without white space

# Whatever a file system may hold but for NUL and the slash: bytes that are no UTF-8 arrive as U+DC80 to U+DCFF.
odd = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1)
names = odd | st.binary(min_size=1).filter(lambda name: not {0, 0x2F} & set(name)).map(os.fsdecode)
names |= st.text(" ._%~-aB\t\n\u00a0\u3000é", min_size=1, max_size=12)
names |= st.text("日本語", min_size=8, max_size=40)
stems = st.lists(names, min_size=1, max_size=4).map("/".join)

plain = st.text(LEGAL.replace("/", "").replace("%", ""), min_size=1)
legal_stems = (
    st.tuples(st.lists(plain, max_size=3), plain)
    .map(lambda parts: "/".join([*parts[0], parts[1].replace(".", "-")]))
    .filter(lambda stem: not stem.startswith((".", "__")) and len(stem) <= 90)
)


def assert_legal(key):
    """Section by section what docs/format.md says of a key."""
    base = key.rpartition("/")[2]
    assert 1 <= len(key) <= 90
    assert set(key) <= set(LEGAL)
    assert base
    assert "." not in base
    assert not key.startswith((".", "__"))
    assert tar.split_name(f"{key}.jpg") == (key, "jpg")


@settings(deadline=None, max_examples=300)
@given(stems)
@example("__a")
@example("/a")
@example("a/.b")
@example(" _a/b")
@example(".")
@example("..")
@example("a.b/c")
@example("a/" + "b.c" * 40 + "/d")
@example("x" * 72 + "/.y/" + "z" * 20)
def test_every_cleaned_key_is_legal(stem):
    assert_legal(keys.clean(stem))


@settings(deadline=None, max_examples=300)
@given(legal_stems)
@example("n01440764/n01440764_10026")
@example("a.b/c")
@example("_a")
@example("a/__b")
@example("~!#$&'()*+,-:;<=>?@[\\]^_`{|}")
def test_a_legal_key_without_a_percent_sign_is_left_alone(stem):
    assert keys.is_clean(stem)
    assert keys.clean(stem) == stem


@settings(deadline=None, max_examples=300)
@given(stems)
@example("100%")
def test_a_key_is_clean_exactly_if_cleaning_leaves_it_alone(stem):
    assert keys.is_clean(stem) == (keys.clean(stem) == stem)


@settings(deadline=None, max_examples=300)
@given(stems, stems)
def test_two_stems_that_differ_in_more_than_white_space_and_dots_have_two_keys(one, other):
    assume(_apart(one, other))
    assert keys.clean(one) != keys.clean(other)


@settings(deadline=None, max_examples=300)
@given(stems, st.data())
@example("日本語" * 20, None)
def test_stems_that_differ_in_one_character_have_two_keys(stem, data):
    place = len(stem) - 1 if data is None else data.draw(st.integers(0, len(stem) - 1))
    char = "x" if data is None else data.draw(names)[0]
    other = stem[:place] + char + stem[place + 1 :]
    assume(_apart(stem, other))
    assert keys.clean(stem) != keys.clean(other)


def _apart(one, other):
    return _blank(one) != _blank(other)


def _blank(stem):
    return re.sub(r"[\s._]", "_", stem)


@settings(deadline=None, max_examples=300)
@given(names)
@example("caf\udce9")
@example("Käfer%20und_\udcff")
def test_fault_03_what_cleaning_escaped_can_be_read_back_to_the_very_bytes(name):
    assume(not re.search(r"[\s.]", name) and not name.startswith("__"))
    key = keys.clean(name)
    assume(not key.startswith(".") and len(os.fsencode(name)) <= 30)
    assert unquote_to_bytes(key) == os.fsencode(name)


@pytest.mark.parametrize(
    ("stem", "key"),
    [
        ("caf\udce9", "caf%E9"),
        ("caf\udcc3", "caf%C3"),
        ("\udcff\udcfe", "%FF%FE"),
        ("a/\udc80/b", "a/%80/b"),
    ],
)
def test_fault_03_a_name_that_is_not_utf_8_is_escaped(stem, key):
    assert keys.clean(stem) == key


@pytest.mark.parametrize(
    ("stem", "key"),
    [
        ("a.b", "a_b"),
        ("a.b/c.d", "a.b/c_d"),
        ("a b", "a_b"),
        ("a b/c\td\u3000e", "a_b/c_d_e"),
        ("été", "%C3%A9t%C3%A9"),
        ("日", "%E6%97%A5"),
        ("100%", "100%25"),
        ("a\x7fb\x1bc", "a%7Fb%1Bc"),
        (".hidden", "_hidden"),
        (".dir/a", "%2Edir/a"),
        ("__a", "%5F_a"),
        ("  a", "%5F_a"),
        ("__pycache__/a", "%5F_pycache__/a"),
        ("..", "%5F_"),
    ],
)
def test_fault_04_dots_spaces_and_letters_beyond_ascii_are_cleaned(stem, key):
    assert keys.clean(stem) == key


def test_a_long_key_is_cut_and_closed_with_a_digest_of_the_whole():
    one, other = (keys.clean("n01440764/" + "x" * 200 + end) for end in "ab")
    assert len(one) == len(other) == 90
    assert one.startswith("n01440764/xxxx")
    assert one != other
    assert keys.clean("x" * 90) == "x" * 90
    assert keys.clean("x" * 91) == "x" * 73 + "_93a130063471a708"


simple = st.text("aZ0_-.%é \n", min_size=1, max_size=6)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(simple, min_size=1, max_size=3).map(lambda folders: "".join(f"{folder}/" for folder in folders)),
    st.lists(simple.map(lambda stem: f"{stem}.jpg") | simple, min_size=1, max_size=4).filter(
        lambda names: not any(name.startswith(".") for name in names)  # hidden files are no samples
    ),
)
@example("a/", ["1.jpg", "2.jpg"])
@example("a/", ["1.jpg", "2.JPG"])
@example("a/", ["1.jpg.jpg"])
@example("a/", ["1.jpg", "x"])
@example("a/", ["1%.jpg"])
@example("a/", ["é.jpg"])
@example("a/", ["1 2.jpg"])
@example("a/", ["1\n2.jpg"])
@example("__a/", ["1.jpg"])
@example("a/", ["x" * 88 + ".jpg"])
@example("a/", ["x" * 89 + ".jpg"])
@example("a" * 95 + "/", ["1.jpg"])
def test_many_names_are_clean_together_exactly_if_each_one_is(prefix, names):
    each = all(keys.split_suffix(name)[1] == ".jpg" and keys.is_clean(prefix + name[:-4]) for name in names)
    assert keys.all_clean(prefix, names, "jpg") == each


@pytest.mark.parametrize(
    ("path", "stem", "suffix"),
    [
        ("a/b.jpg", "a/b", ".jpg"),
        ("a/b.c.JPEG", "a/b.c", ".JPEG"),
        ("a.b/c", "a.b/c", ""),
        ("a.b/c.d", "a.b/c", ".d"),
        ("b", "b", ""),
        ("a/.jpg", "a/.jpg", ""),
        (".jpg", ".jpg", ""),
        ("a/..jpg", "a/.", ".jpg"),
        ("a/b.", "a/b", "."),
    ],
)
def test_a_path_is_split_at_the_last_dot_of_its_name(path, stem, suffix):
    assert keys.split_suffix(path) == (stem, suffix)


@settings(deadline=None, max_examples=300)
@given(stems)
def test_splitting_a_path_loses_nothing(path):
    stem, suffix = keys.split_suffix(path)
    assert stem + suffix == path
    assert "/" not in suffix


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("n01440764/n01440764_10026.JPEG", "n01440764/n01440764_10026"),
        ("/data/set/a.jpg", "data/set/a"),
        ("../other/a.jpg", "other/a"),
        ("../../a.jpg", "a"),
        ("..a/b.jpg", "%2E.a/b"),
        ("a/no_suffix", "a/no_suffix"),
        ("a/.jpg", "a/_jpg"),
    ],
)
def test_the_key_of_a_path_is_its_stem_from_the_source_down(path, key):
    assert keys.key_of(path) == key


@settings(deadline=None, max_examples=300)
@given(stems, st.sampled_from(["", ".jpg", ".JPEG", "."]), st.sampled_from(["", "/", "../", "../../"]))
def test_every_path_has_a_legal_key(stem, suffix, above):
    assert_legal(keys.key_of(above + stem + suffix))


def test_a_member_s_key_ends_at_its_first_dot():
    assert keys.key_of_member("a.b/c.seg.png") == "a.b/c"
    assert keys.key_of_member("plain.jpg") == "plain"
    assert keys.key_of_member("with space/c.jpg") == "with_space/c"
