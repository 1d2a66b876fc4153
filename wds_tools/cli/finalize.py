"""``wds-tools finalize``."""

from __future__ import annotations

from dataclasses import asdict

import click

from wds_tools.cli.show import count_text, print_json
from wds_tools.convert.finalize import Finalized, finalize_split

SHOWN = 20  # missing shards, and tasks to run again, that are named


@click.command("finalize", epilog="Example: wds-tools finalize shards --split train --tasks 64")
@click.argument("out")
@click.option("--split", default="train", show_default=True, help="Name of the split.")
@click.option(
    "--tasks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of tasks of the array, as in --task I/N: tells which of them to run again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(out: str, split: str, tasks: int | None, as_json: bool) -> int:
    """Complete a split whose shards were made by 'convert --task I/N', or say what is missing.

    The task that finishes last does that by itself; this is for a job after all of them, which ends with 1 while shards are
    missing. The source is not needed.
    """
    found = finalize_split(out, split)
    again = sorted({number % tasks for number in found.numbers}) if tasks else None
    if as_json:
        print_json({**asdict(found), **({} if again is None else {"run_again": again})})
    else:
        _say(found, tasks, again)
    return 1 if found.missing else 0


def _say(found: Finalized, tasks: int | None, again: list[int] | None) -> None:
    there = f"{count_text(found.samples, 'sample')} in {count_text(found.shards, 'shard')}"
    if not found.missing:
        begun = "nothing to do, split" if found.done else "split"
        verb = "is there:" if found.done else "is complete:"
        click.echo(f"{found.target}: {begun} {found.split!r} {verb} {there}")
        return
    click.echo(
        f"{found.target}: {len(found.missing):,} of {count_text(found.shards + len(found.missing), 'shard')} of split "
        f"{found.split!r} are missing: {_some(found.missing)}",
        err=True,
    )
    if again is None:
        click.echo("run the tasks again that did not end well: what stands is kept", err=True)
    else:
        click.echo(f"run again: --task {_some([f'{number}/{tasks}' for number in again])}", err=True)


def _some(names: tuple[str, ...] | list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" … and {more:,} more" if more > 0 else "")
