"""What docs/remote.md says is so: its set-up of nginx serves, its numbers are the code's, its messages are those we raise."""

from __future__ import annotations

import ast
import math
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import needs, streams
from tests.support.servers import DEADLINE, Process, free_port
from wds_tools import ShardDataset
from wds_tools.cli.serve import command
from wds_tools.errors import NotFoundError, StoreError
from wds_tools.store.http import HttpStore
from wds_tools.store.options import StoreOptions
from wds_tools.store.retry import LONGEST_ASKED, PROGRESS, TRANSIENT, wait_before
from wds_tools.store.wire import CONNECT_SECONDS, REDIRECTS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "remote.md").read_text()
PROSE = " ".join(TEXT.split())
DEFAULTS = StoreOptions()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def table(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    assert len(rows) > 2, heading
    return rows[2:]


# -- numbers


def test_the_defaults_are_those_of_the_code() -> None:
    units = {"s": 1.0, "MiB": float(1 << 20), "": 1.0}
    stated = {}
    for name, default, _ in table("What is retried, and for how long"):
        number, _, unit = default.partition(" ")
        stated[name.strip("`")] = float(number) * units[unit]
    assert stated == {name: getattr(DEFAULTS, name) for name in stated}
    assert {"timeout", "retries", "backoff", "patience", "chunk_size", "concurrency"} == stated.keys()


def test_how_long_it_is_tried_follows_from_the_rule() -> None:
    longest = [wait_before(failures, 1.0, DEFAULTS) for failures in range(1, DEFAULTS.retries + 2)]
    assert longest.pop() is None
    total = sum(wait for wait in longest if wait is not None)
    assert f"{total:.0f} s at most and {total / 2:.0f} s on average" in PROSE
    assert f"and {(DEFAULTS.retries + 1) * DEFAULTS.timeout / 60:.1f} min more for one that says nothing" in PROSE
    assert f"A connection must stand within {CONNECT_SECONDS:.0f} s" in PROSE
    assert f"`Retry-After` is obeyed, up to {LONGEST_ASKED:.0f} s each time" in PROSE
    assert f"at least {PROGRESS >> 10} KiB begins a new row" in PROSE
    assert f"answers {', '.join(map(str, TRANSIENT))}." in PROSE
    assert f"At most {REDIRECTS} redirects are followed" in PROSE


def test_the_requests_of_a_terabyte_are_counted_right() -> None:
    for chunk, words in ((DEFAULTS.chunk_size, "about {:,} requests"), (64 << 20, "`chunk_size=64 << 20` it is {:,}")):
        assert words.format(round(math.ceil(10**12 / chunk), -3)) in PROSE


# -- messages


def said() -> str:
    """Every text of the package, with … for what is filled in."""
    texts = []
    for path in (ROOT / "wds_tools").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts.append("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts))
    return "\n".join(texts)


def test_the_messages_are_those_that_are_raised() -> None:
    found = said()
    messages = [row[0].strip("`") for row in table("When it does not work")]
    assert len(messages) > 10
    assert [message for message in messages if message not in found] == []


# -- examples


def filled_in(config: str, root: Path, port: int) -> str:
    for what, instead in (("listen 8080;", f"listen 127.0.0.1:{port};"), ("/srv/datasets", str(root))):
        assert what in config
        config = config.replace(what, instead)
    return config


def test_the_nginx_of_the_doc_serves_a_dataset_and_signs_it(tmp_path: Path) -> None:
    program, port, root = needs.tool("nginx"), free_port(), tmp_path / "root"
    streams.numbered(root / "imagenet", 20, per_shard=5)
    (root / "imagenet" / ".wds_tools").mkdir()
    (root / "imagenet" / ".wds_tools" / "plan").write_text("hidden")
    (config,) = blocks("nginx")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; user root; pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}}\n"
        f"http {{ access_log off; {temporary}\n{filled_in(config, root, port)} }}\n"
    )
    words = [program, "-c", str(tmp_path / "nginx.conf"), "-p", str(tmp_path)]
    with Process(words, port, tmp_path / "output.log") as process:
        process.until_it_answers()
        url = f"http://127.0.0.1:{port}/imagenet"
        local = streams.keys(ShardDataset(str(root / "imagenet"), split="train"))
        assert streams.keys(ShardDataset(url, split="train")) == local
        with pytest.raises(NotFoundError):
            HttpStore(url).read(".wds_tools/plan")

        (signing,) = (block for block in blocks("python") if "hashlib" in block)
        space: dict[str, str] = {}
        exec(signing.replace("host:8080", f"127.0.0.1:{port}"), space)
        assert streams.keys(ShardDataset(space["url"], split="train")) == local
        with pytest.raises(StoreError, match="HTTP 403"):
            HttpStore(space["url"].replace("md5=", "md5=x"), replace(DEFAULTS, timeout=DEADLINE)).read("info.json")


def test_the_notebook_of_the_doc_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs.package("aiohttp")
    streams.numbered(tmp_path / "build" / "shards", 20, per_shard=5)
    monkeypatch.chdir(tmp_path)
    (example,) = (block for block in blocks("python") if "serving" in block)
    exec(example, {})
    assert capsys.readouterr().out == "20\n"


def test_the_commands_of_the_doc_exist() -> None:
    lines = re.findall(r"^wds-tools serve (.*)$", TEXT, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        command.make_context("serve", line.partition("#")[0].split())
    assert re.search(r"^serve: ", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_options_of_the_doc_can_be_made() -> None:
    found = re.findall(r"StoreOptions\(.*\)(?=`|$)", TEXT, re.MULTILINE)
    made = [eval(text, {"StoreOptions": StoreOptions}) for text in found if "ca_file" not in text]
    assert len(made) == 2
    assert made[1].anonymous


def test_every_example_is_python() -> None:
    for block in blocks("python"):
        ast.parse(textwrap.dedent(block))
