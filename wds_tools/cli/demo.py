"""``wds-tools demo``."""

from __future__ import annotations

import click

from wds_tools.cli.show import count_text
from wds_tools.tools.demo import CLASSES, make_demo


@click.command("demo", epilog="Example: wds-tools demo images && wds-tools convert images shards")
@click.argument("folder", metavar="DIR")
@click.option("--per-class", default=100, show_default=True, help="Images of each of the six classes.")
@click.option("--size", default=128, show_default=True, help="Pixels of a side, about.")
@click.option("--seed", default=0, show_default=True, help="Seed of the pictures.")
def command(folder: str, per_class: int, size: int, seed: int) -> None:
    """Make a small labelled image tree in DIR, which must be new or empty: coloured shapes on noise."""
    count = make_demo(folder, per_class=per_class, size=size, seed=seed)
    click.echo(f"{folder}: {count_text(count, 'image')} in {count_text(len(CLASSES), 'class')}")
