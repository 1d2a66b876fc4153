from wds_tools.convert import plan
from wds_tools.convert.options import ConvertOptions
from wds_tools.convert.origin import Recent, fingerprint
from wds_tools.convert.spool import Spool


def test_blocks_are_kept_while_they_fit_and_the_least_recently_used_goes_first():
    recent, loads = Recent(most=30), []

    def get(key, size=10):
        def load():
            loads.append(key)
            return key, size

        assert recent.get(key, load) == key

    for key in "abcabca":
        get(key)
    assert loads == list("abc")
    get("d")  # b goes
    for key in "acd":
        get(key)
    assert loads == list("abcd")
    get("b")  # a goes
    get("c")
    get("a")
    assert loads == list("abcdba")
    get("huge", 1000)  # alone, and kept all the same
    get("huge", 1000)
    get("c")
    assert loads == [*"abcdba", "huge", "c"]


def test_a_pool_is_no_larger_than_what_is_kept_whatever_the_shard(monkeypatch):
    lines = Spool()
    for number in range(100):
        lines.append(str(number), 1000)
    options = ConvertOptions(max_size=10**9)

    def neighbours():
        [(_, blob)] = plan.make_plan(lines, options, blocks=[5] * 20)
        order = [int(line) for line in blob.decode().split("\n")]
        return [len({number // 5 for number in order[start : start + 10]}) for start in range(0, 100, 10)]

    assert max(neighbours()) > 2
    monkeypatch.setattr(plan, "POOL_BYTES", 10_000)
    assert neighbours() == [2] * 10


def test_a_fingerprint_tells_length_and_content(tmp_path):
    path, seen = tmp_path / "file", set()
    large = 1 << 25
    contents = [b"", b"a", b"b", bytes(10**6), bytes(10**6 - 1) + b"x", bytes(large), bytes(large - 1), b"x" * large]
    contents += [bytes(large - 1) + b"x", b"x" + bytes(large - 1)]
    for content in contents:
        path.write_bytes(content)
        seen.add(fingerprint(str(path)))
        assert fingerprint(str(path)) in seen
    assert len(seen) == len(contents)
