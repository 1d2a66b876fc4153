"""The group of commands, and the one place where errors become messages and exit codes.

0 done, 1 expected failure, 2 usage, 130 interrupted, 3 a bug.
"""

from __future__ import annotations

import importlib
import io
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
    "reshard": "Turn shards into other shards: filtered, divided, merged, shuffled anew.",
    "index": "Make indexes and a manifest for shards made by others.",
    "verify": "Check every byte of a dataset.",
    "info": "Show what a dataset consists of.",
    "bench": "Measure how fast a dataset loads here, and what limits it.",
    "report": "Write a page to look at a dataset with.",
    "extract": "Turn a dataset back into a folder of images.",
    "serve": "Serve a dataset over HTTP with ranges, for trying things out.",
    "demo": "Make a small labelled image tree to try things on.",
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
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that the terminal cannot show is shown escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # click hands its errors on to us, and answers with the code where a command asked for one; when whoever
        # read our output has gone, it exits by itself, quietly, with 1.
        code = group.main(prog_name="wds-tools", standalone_mode=False) or 0
    except (click.exceptions.Abort, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another one would only clutter the exit
        click.echo("Interrupted. Run the same command again; convert goes on where it was.", err=True)
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
    except Exception:  # noqa: BLE001 - the last boundary: anything that arrives here is a bug
        traceback.print_exc()
        click.echo(
            f"\nThis is a bug in wds-tools {VERSION}. Please report it in {REPORT} with the lines above and the command.",
            err=True,
        )
        code = 3
    sys.stdout.flush()
    sys.exit(code)
