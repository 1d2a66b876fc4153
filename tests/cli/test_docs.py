"""docs/cli.md is what the commands say of themselves, and the commands that other pages show exist."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import click
import pytest

from tests.support import commands
from wds_tools.cli.main import COMMANDS, group

ROOT = Path(__file__).parents[2]
GENERATOR = ROOT / "docs" / "generate_cli.py"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def without_layout(text: str) -> str:
    return "".join(text.split())


def section(name: str) -> str:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^## wds-tools {name}\n\n```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(found)


def shown(page: Path) -> list[list[str]]:
    """The words of every ``wds-tools`` line in the page's blocks of commands, up to a comment or another command."""
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S):
        if language in ("", "sh"):
            for line in re.findall(r"^wds-tools +(.*)$", block, re.MULTILINE):
                found.append(shlex.split(re.split(r" && | \| ", line)[0], comments=True))
    return found


def test_the_page_is_what_would_be_generated_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "55")  # no terminal has a say in it
    page = runpy.run_path(str(GENERATOR))["page"]()
    current = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert current == page, "docs/cli.md is not what the commands say; 'make docs' writes it anew"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_with_its_help_as_it_prints_it(name: str) -> None:
    printed = commands.call(name, "--help")
    assert printed.code == 0
    assert without_layout(section(name)) == without_layout(printed.out)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does_and_every_command_has_an_example(name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    assert [option.name for option in options if not option.help] == []
    assert section(name).rstrip().splitlines()[-1].strip().startswith(f"Example: wds-tools {name} ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_that_pages_show_can_be_given(page: Path) -> None:
    for name, *words in shown(page):
        command = group.get_command(click.Context(group), name)
        assert command is not None, f"{page.name}: there is no 'wds-tools {name}'"
        command.make_context(name, words)


def test_make_docs_writes_the_page() -> None:
    rule = re.search(r"^docs:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert rule is not None
    assert GENERATOR.relative_to(ROOT).as_posix() in rule[1]
