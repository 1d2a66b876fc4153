import json
import os

import pytest

from tests.support import trees
from wds_tools.convert import entries, table
from wds_tools.convert.entries import Request
from wds_tools.convert.spool import Spool
from wds_tools.errors import SampleError, SourceError


@pytest.fixture
def root(tmp_path):
    return trees.make(tmp_path, {"a.jpg": b"x" * 10, "b.jpg": b"y" * 20, "sub/c.png": b"z" * 30})


def write_list(root, name, content):
    path = root / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def read(root, name, content, classes=None, strict=True):
    source = table.scan(Request(write_list(root, name, content), Spool(), classes, strict))
    return source, [entries.load_line(line) for line in source.lines]


def refused(root, name, content, classes=None):
    with pytest.raises(SourceError) as caught:
        read(root, name, content, classes)
    said = str(caught.value)
    assert str(root / name) in said
    return said


def jsonl(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


SAME = {
    "l.csv": "path,label\na.jpg,1\nb.jpg,0\nsub/c.png,1\n",
    "l.CSV": "label,path\n1,a.jpg\n0,b.jpg\n1,sub/c.png\n",
    "bom.csv": "\ufeffpath,label\na.jpg,1\nb.jpg,0\nsub/c.png,1\n",
    "crlf.csv": "path,label\r\na.jpg,1\r\n\r\nb.jpg,0\r\nsub/c.png,1\r\n",
    "quoted.csv": '"path","label"\n"a.jpg","1"\n"b.jpg","0"\n"sub/c.png","1"',
    "spaced.csv": "path , label\na.jpg, 1\nb.jpg,0 \nsub/c.png,1\n",
    "dots.csv": "path,label\n./a.jpg,1\nsub/../b.jpg,0\nsub//c.png,1\n",
    "l.tsv": "path\tlabel\na.jpg\t1\nb.jpg\t0\nsub/c.png\t1\n",
    "l.jsonl": jsonl({"path": "a.jpg", "label": 1}, {"path": "b.jpg", "label": 0}, {"label": "1", "path": "sub/c.png"}),
    "gaps.jsonl": '\n{"path": "a.jpg", "label": 1}\n\n \n{"path": "b.jpg", "label": 0}\r\n{"path": "sub/c.png", "label": 1}',
    "bom.jsonl": "\ufeff"
    + jsonl({"path": "a.jpg", "label": 1}, {"path": "b.jpg", "label": 0}, {"path": "sub/c.png", "label": 1}),
    "names.csv": "path,class\na.jpg,dog\nb.jpg,cat\nsub/c.png,dog\n",
    "names.jsonl": jsonl(
        {"path": "a.jpg", "class": "dog"}, {"path": "b.jpg", "class": "cat"}, {"path": "sub/c.png", "class": "dog"}
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_every_kind_of_table_names_the_same_samples(root, name):
    source, found = read(root, name, SAME[name])
    assert [(e.path, e.size, e.label) for e in found] == [("a.jpg", 10, 1), ("b.jpg", 20, 0), ("sub/c.png", 30, 1)]
    assert [e.mtime_ns for e in found] == [os.stat(root / e.path).st_mtime_ns for e in found]
    assert all(e.metadata is None for e in found)
    assert source.root == str(root)
    assert source.classes == (("cat", "dog") if "names" in name else ())


@pytest.mark.parametrize(
    ("name", "is_list"),
    [
        ("a.csv", True),
        ("a.TSV", True),
        ("a.jsonl", True),
        ("none.csv", True),
        ("a.json", False),
        ("a.txt", False),
        ("d.csv", False),
    ],
)
def test_a_table_is_known_by_its_suffix(tmp_path, name, is_list):
    (tmp_path / "d.csv").mkdir()
    assert table.is_list(str(tmp_path / name)) is is_list


# ---------------------------------------------------------------- labels, classes, more columns


def test_classes_are_the_names_sorted(root):
    source, found = read(root, "l.csv", "path,class\na.jpg,b\nb.jpg,B\nsub/c.png,10\n")
    assert source.classes == ("10", "B", "b")
    assert [e.label for e in found] == [2, 1, 0]


def test_given_classes_fix_the_labels(root):
    source, found = read(root, "l.csv", "path,class\na.jpg,dog\nb.jpg,cat\n", classes=("eel", "dog", "cat"))
    assert source.classes == ("eel", "dog", "cat")
    assert [e.label for e in found] == [1, 2]
    source, found = read(root, "i.csv", "path,label\na.jpg,2\n", classes=("eel", "dog", "cat"))
    assert source.classes == ("eel", "dog", "cat")
    assert [e.label for e in found] == [2]


def test_fault_09_a_class_or_label_beyond_the_given_classes_names_the_line(root):
    said = refused(root, "l.csv", "path,class\na.jpg,cat\nb.jpg,cow\n", classes=("cat", "dog"))
    assert "line 3" in said
    assert "'cow'" in said
    assert "2 classes" in said
    said = refused(root, "i.csv", "path,label\na.jpg,1\nb.jpg,2\n", classes=("cat", "dog"))
    assert "line 3" in said
    assert "label 2" in said


def test_a_table_without_labels_has_none(root):
    source, found = read(root, "l.csv", "path\na.jpg\nb.jpg\n")
    assert [e.label for e in found] == [None, None]
    assert source.classes == ()


def test_more_columns_are_metadata(root):
    _, found = read(root, "l.csv", 'path,label,caption,who\na.jpg,0,"a ""big"", red\nbus",me\nb.jpg,1,,é\n')
    assert [e.metadata for e in found] == [{"caption": 'a "big", red\nbus', "who": "me"}, {"caption": "", "who": "é"}]
    _, found = read(
        root, "l.jsonl", jsonl({"path": "a.jpg", "label": 0, "box": [1, {"x": None}]}, {"path": "b.jpg", "label": 1})
    )
    assert [e.metadata for e in found] == [{"box": [1, {"x": None}]}, None]


def test_a_class_beside_a_label_is_not_lost(root):
    source, found = read(root, "l.csv", "path,label,class\na.jpg,7,dog\n")
    assert (found[0].label, found[0].metadata) == (7, {"class": "dog"})
    assert source.classes == ()


# ---------------------------------------------------------------- paths


def test_paths_may_be_absolute_or_lead_out_of_the_folder(tmp_path):
    far = trees.write(tmp_path / "far", "x.jpg")
    trees.make(tmp_path, ["up/y.jpg", "lists/z.jpg"])
    source, found = read(tmp_path / "lists", "l.csv", f"path,label\n{far},0\n../up/y.jpg,1\nz.jpg,2\n")
    assert [e.path for e in found] == [str(far), "../up/y.jpg", "z.jpg"]
    assert source.root == str(tmp_path / "lists")


def test_links_in_a_table_are_followed_because_it_asks_for_them(root, tmp_path):
    (root / "link.jpg").symlink_to(trees.write(tmp_path / "elsewhere", "x.jpg", b"12345"))
    _, found = read(root, "l.csv", "path,label\nlink.jpg,0\n")
    assert found[0].size == 5


@pytest.mark.parametrize(
    "pair",
    [
        ("a.jpg", "a.jpg"),
        ("a.jpg", "./a.jpg"),
        ("a.jpg", "a.png"),
        ("a.jpg", "../a.jpg"),
    ],
)
def test_fault_05_two_rows_with_one_key_are_refused_naming_both_lines(root, pair):
    one, other = pair
    said = refused(root, "l.csv", f"path,label\n{one},0\nb.jpg,1\n{other},0\n")
    assert repr(one) in said
    assert repr(os.path.normpath(other)) in said
    assert "line 2" in said
    assert "line 4" in said


def test_fault_03_names_that_no_utf_8_text_can_hold_are_refused_naming_the_line(root):
    assert "UTF-8" in refused(root, "l.csv", b"path,label\ncaf\xe9.jpg,0\n")
    for path in ("a\0b.jpg", "\ud800.jpg"):
        assert "line 2" in refused(root, "l.jsonl", jsonl({"path": "a.jpg", "label": 0}, {"path": path, "label": 0}))


def test_fault_03_names_that_are_not_utf_8_can_be_given_in_json(root):
    trees.write(root, b"caf\xe9.jpg", b"1")
    _, found = read(root, "l.jsonl", '{"path": "caf\\udce9.jpg", "label": 0}')
    assert os.fsencode(found[0].path) == b"caf\xe9.jpg"


def test_fault_03_names_with_tabs_and_line_ends_are_found(root):
    trees.write(root, "t\tn\n\\.jpg", b"1")
    _, found = read(root, "l.jsonl", jsonl({"path": "t\tn\n\\.jpg", "label": 0}))
    assert found[0].path == "t\tn\n\\.jpg"


# ---------------------------------------------------------------- files that are not there


@pytest.mark.parametrize("row", ["none.jpg", "sub", "a.jpg/x.jpg", "f" * 300, "fifo.jpg"])
def test_a_file_that_is_missing_or_no_file_is_raised_with_its_line_or_skipped(root, row):
    os.mkfifo(root / "fifo.jpg")
    content = f"path,label\na.jpg,0\n{row},1\n"
    with pytest.raises(SampleError) as caught:
        read(root, "l.csv", content)
    assert caught.value.place == repr(row)
    assert "line 3" in caught.value.reason
    source, found = read(root, "l.csv", content, strict=False)
    assert [e.path for e in found] == ["a.jpg"]
    assert [skip.path for skip in source.skipped] == [row]


def test_a_table_of_nothing_but_missing_files_is_refused(root):
    with pytest.raises(SourceError, match=r"no usable image: the first is 'x.jpg': No such file"):
        read(root, "l.csv", "path\nx.jpg\ny.jpg\n", strict=False)


# ---------------------------------------------------------------- tables that are wrong


WRONG = {
    "nothing": ("l.csv", "", "no rows"),
    "only line ends": ("l.csv", "\n\n", "no rows"),
    "only a header": ("l.csv", "path,label\n", "no rows"),
    "no rows of JSON": ("l.jsonl", "\n \n", "no rows"),
    "no header": ("l.csv", "a.jpg,0\nb.jpg,1\n", "line 1", "'path'"),
    "another header": ("l.csv", "file,label\na.jpg,0\n", "line 1", "file, label"),
    "commas in a TSV": ("l.tsv", "path,label\na.jpg,0\n", "line 1", "'path'"),
    "too few columns": ("l.csv", "path,label\na.jpg,0\nb.jpg\n", "line 3", "1 columns"),
    "too many columns": ("l.csv", "path,label\na.jpg,0,x\n", "line 2", "3 columns"),
    "one column twice": ("l.csv", "path,label,x,x\na.jpg,0,1,2\n", "line 1", "'x'"),
    "an open quote": ("l.csv", 'path,label\n"a.jpg,0\nb.jpg,1\n', "line 3"),
    "text behind a quote": ("l.csv", 'path,label\n"a".jpg,0\n', "line 2"),
    "an empty path": ("l.csv", "path,label\n,0\n", "line 2", "'path'"),
    "a word for a label": ("l.csv", "path,label\na.jpg,0\nb.jpg,dog\n", "line 3", "'dog'", "'class'"),
    "no label": ("l.csv", "path,label\na.jpg,\n", "line 2", "''"),
    "a negative label": ("l.csv", "path,label\na.jpg,-1\n", "line 2", "'-1'"),
    "a broken label": ("l.csv", "path,label\na.jpg,1.0\n", "line 2", "'1.0'"),
    "another script's digits": ("l.csv", "path,label\na.jpg,²\n", "line 2"),
    "a label beyond 64 bits": ("l.csv", f"path,label\na.jpg,{2**63}\n", "line 2"),
    "a label of 5,000 digits": ("l.csv", f"path,label\na.jpg,{'9' * 5000}\n", "line 2"),
    "no class": ("l.csv", "path,class\na.jpg,x\nb.jpg,\n", "line 3", "'class'"),
    "a field of megabytes": ("l.csv", f"path,x\na.jpg,{'x' * 200_000}\n", "line 2", "field larger"),
    "bytes that are no text": ("l.csv", b"path,label\n\xff\xfe.jpg,0\n", "UTF-8"),
    "UTF-16": ("l.csv", "path,label\na.jpg,0\n".encode("utf-16"), "UTF-8"),
    "no JSON": ("l.jsonl", '{"path": "a.jpg"}\n{"path": "b.jpg"\n', "line 2", "not JSON"),
    "a list": ("l.jsonl", '["a.jpg"]\n', "line 1", "JSON object"),
    "one array of all": ("l.jsonl", '[{"path": "a.jpg", "label": 0}]\n', "line 1", "JSON object"),
    "a number": ("l.jsonl", "3\n", "line 1", "JSON object"),
    "JSON too deep": ("l.jsonl", "[" * 100_000 + "\n", "line 1", "not JSON"),
    "a number of 5,000 digits": ("l.jsonl", '{"path": "a.jpg", "x": ' + "9" * 5000 + "}\n", "line 1", "not JSON"),
    "JSON without a path": ("l.jsonl", jsonl({"path": "a.jpg"}, {"file": "b.jpg"}), "line 2", "file"),
    "a path that is no text": ("l.jsonl", jsonl({"path": 3}), "line 1", "'path'"),
    "a path of null": ("l.jsonl", jsonl({"path": None}), "line 1", "'path'"),
    "true for a label": ("l.jsonl", jsonl({"path": "a.jpg", "label": True}), "line 1"),
    "null for a label": ("l.jsonl", jsonl({"path": "a.jpg", "label": None}), "line 1"),
    "a list for a label": ("l.jsonl", jsonl({"path": "a.jpg", "label": [1]}), "line 1"),
    "a label missing in a later row": ("l.jsonl", jsonl({"path": "a.jpg", "label": 0}, {"path": "b.jpg"}), "line 2"),
    "a label missing in the first row": ("l.jsonl", jsonl({"path": "a.jpg"}, {"path": "b.jpg", "label": 0}), "line 1"),
    "a class missing in the first row": (
        "l.jsonl",
        jsonl({"path": "a.jpg"}, {"path": "b.jpg", "class": "x"}),
        "line 1",
    ),
    "a class that is no text": ("l.jsonl", jsonl({"path": "a.jpg", "class": 3}), "line 1", "class"),
}


@pytest.mark.parametrize(("name", "content", "said"), [(n, c, s) for n, c, *s in WRONG.values()], ids=WRONG)
def test_a_table_that_is_wrong_is_refused_with_the_place(root, name, content, said):
    message = refused(root, name, content)
    assert all(part in message for part in said), message
    assert len(message) < 500


def test_a_table_that_is_not_there_or_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"cannot read '.*none.csv': No such file"):
        table.scan(Request(str(tmp_path / "none.csv"), Spool()))


# ---------------------------------------------------------------- the digest of a table


@pytest.mark.parametrize(
    "content",
    [
        "path,label,x\na.jpg,1,1\nb.jpg,1,2\n",
        "path,label,x\na.jpg,0,1\nb.jpg,1,3\n",
        "path,label,y\na.jpg,0,1\nb.jpg,1,2\n",
        "path,label,x\nb.jpg,1,2\na.jpg,0,1\n",
        "path,label,x\na.jpg,0,1\n",
    ],
)
def test_the_digest_changes_with_every_value(root, content):
    before, _ = read(root, "l.csv", "path,label,x\na.jpg,0,1\nb.jpg,1,2\n")
    after, _ = read(root, "l.csv", content)
    assert after.digest != before.digest


def test_the_digest_changes_with_a_file_s_size_and_not_with_its_time(root):
    before, _ = read(root, "l.csv", SAME["l.csv"])
    os.utime(root / "a.jpg", (1, 1))
    touched, _ = read(root, "other.csv", SAME["l.csv"])
    assert touched.digest == before.digest
    trees.write(root, "a.jpg", b"longer than it was")
    assert read(root, "l.csv", SAME["l.csv"])[0].digest != before.digest
