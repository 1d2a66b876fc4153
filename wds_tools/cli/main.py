"""The group of commands, and the one place where errors become messages and exit codes.

0 done, 1 expected failure, 2 usage, 130 interrupted, 3 a bug.
"""

from __future__ import annotations

import difflib
import importlib
import io
import os
import signal
import sys
import traceback
from typing import NoReturn

import click

from wds_tools._version import VERSION
from wds_tools.errors import OptionError, SampleError, WdsToolsError

REPORT = "the project's issue tracker"

# Name: what it does, as the list of commands says it. Each lives in the file of its name, loaded when it is called.
COMMANDS = {
    "convert": "Turn a folder of images, or a table of them, into shards.",
    "finalize": "Complete what an array of tasks has made.",
    "reshard": "Turn shards into others: filtered, divided, merged, shuffled.",
    "index": "Make indexes and a manifest for shards made by others.",
    "verify": "Check every byte of a dataset.",
    "info": "Show what a dataset consists of.",
    "bench": "Measure how fast a dataset loads here, and what limits it.",
    "report": "Write a page to look at a dataset with.",
    "extract": "Turn a dataset back into a folder of images.",
    "sidecars": "Write what other readers look for beside the shards.",
    "serve": "Serve a dataset over HTTP with ranges, for trying things out.",
    "demo": "Make a small labelled image tree to try things on.",
}


ADVICE_AFTER_INTERRUPT = {
    **dict.fromkeys(("convert", "reshard"), " Run the same command again; it goes on where it was."),
    **dict.fromkeys(("index", "extract", "report", "demo"), " Run the same command again; it starts anew."),
}


class _Commands(click.Group):
    """Loads a command's file only when that command is called, so that each starts quickly."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"wds_tools.cli.{name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            alike = difflib.get_close_matches(name.lower(), COMMANDS, 1)
            advice = f"Did you mean {alike[0]!r}?" if alike else f"There are {', '.join(COMMANDS)}."
            ctx.fail(f"No such command {name!r}. {advice}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with: wds-tools convert path/to/images path/to/dataset",
)
@click.version_option(VERSION, prog_name="wds-tools")
def group() -> None:
    """Turn image trees into verified WebDataset shards."""


def main() -> NoReturn:
    """The ``wds-tools`` command."""
    if sys.stdout is None:  # closed by who called us: there is nobody to answer
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that the terminal cannot show is shown escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # click hands its errors on to us, and answers with the code where a command asked for one; when whoever
        # read our output has gone, it exits by itself, quietly, with 1.
        code = group.main(prog_name="wds-tools", standalone_mode=False) or 0
    except (click.exceptions.Abort, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another one would only clutter the exit
        command = next((word for word in sys.argv[1:] if word in COMMANDS), "")
        click.echo("Interrupted." + ADVICE_AFTER_INTERRUPT.get(command, ""), err=True)
        code = 130
    except click.ClickException as error:
        error.show()
        code = 2
    except OptionError as error:
        click.echo(f"Error: {error}", err=True)
        code = 2
    except SampleError as error:
        click.echo(f"Error: {error}; mend or remove it, or leave such files out with --on-error skip", err=True)
        code = 1
    except WdsToolsError as error:
        click.echo(f"Error: {error}", err=True)
        code = 1
    except Exception as error:  # noqa: BLE001 - the last boundary: anything that arrives here is a bug
        if isinstance(error, OSError) and _came_from_writing(error):
            _cannot_write(error)
            sys.exit(1)
        traceback.print_exc()
        click.echo(
            f"\nThis is a bug in wds-tools {VERSION}. Please report it in {REPORT} with the lines above and the command.",
            err=True,
        )
        code = 3
    try:
        sys.stdout.flush()
    except OSError as error:
        _cannot_write(error)
        code = code or 1
    sys.exit(code)


def _came_from_writing(error: OSError) -> bool:
    """Whether click raised it, who writes all that we say; our own files have errors of ours."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__")).startswith("click.")


def _cannot_write(error: OSError) -> None:
    # What is left would be tried once more when Python ends, with a complaint.
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if not isinstance(error, BrokenPipeError):  # a reader that has gone wants no more
        click.echo(f"Error: cannot write the answer: {error.strerror}; all but the answer is done", err=True)
