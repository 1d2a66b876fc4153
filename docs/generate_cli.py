"""Write docs/cli.md: every command and what its ``--help`` says. `make docs` runs this; a test holds the page to it.

The width is fixed and no terminal is asked, so the page is the same wherever it is made.
"""

from __future__ import annotations

from pathlib import Path

import click

from wds_tools.cli.main import COMMANDS, group

PAGE = Path(__file__).with_name("cli.md")
WIDTH = 100  # characters of a line of help

HEAD = """\
# The command line

Every command and what its `--help` says. `python -m wds_tools` is the same program.

* Exit codes: 0 done, 1 expected failure (one sentence says what and where), 2 usage, 3 a bug in wds-tools, 130 interrupted.
* Answers go to the standard output, progress and errors to the standard error. `--json` prints the answer as JSON, for scripts.
* Progress is shown where the standard error is a terminal, and only there.

`make docs` writes this page.

| command | what it does |
| --- | --- |
"""

TAIL = """
Next: [the architecture](architecture.md).
"""


def page() -> str:
    """The whole page."""
    top = click.Context(group, info_name="wds-tools", terminal_width=WIDTH, **group.context_settings)
    rows = [f"| [`{name}`](#wds-tools-{name}) | {what} |\n" for name, what in COMMANDS.items()]
    sections = [_section("wds-tools", top)]
    for name in COMMANDS:
        command = group.get_command(top, name)
        assert command is not None
        sections.append(_section(f"wds-tools {name}", click.Context(command, top, name)))
    return HEAD + "".join(rows) + "".join(sections) + TAIL


def _section(title: str, context: click.Context) -> str:
    return f"\n## {title}\n\n```text\n{context.command.get_help(context)}\n```\n"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
