"""``wds-tools info``."""

from __future__ import annotations

import os
import re
from typing import Any

import click

from wds_tools.cli.show import count_text, print_json, size_text
from wds_tools.tools.describe import describe_dataset


@click.command("info", epilog="Example: wds-tools info shards --json")
@click.argument("dataset", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(dataset: tuple[str, ...], as_json: bool) -> None:
    """Show splits, classes, sizes and fields of DATASET.

    DATASET is a folder, a glob, shards in brace notation, or several of the last two.
    """
    found = describe_dataset(dataset[0] if len(dataset) == 1 else dataset)
    if as_json:
        print_json(found)
        return
    click.echo(found["place"])
    if not found["manifest"]:
        click.echo("no info.json: counts come from indexes, where there are any ('wds-tools index' makes both)")
    for name, split in found["splits"].items():
        samples = (
            count_text(split["samples"], "sample") if split["samples"] is not None else "unknown number of samples"
        )
        size = f", {size_text(split['bytes'])}" if split["bytes"] is not None else ""
        click.echo(f"split {name}: {samples} in {count_text(split['shards'], 'shard')}{size}")
        if split["fields"]:
            click.echo("  fields: " + ", ".join(f"{field} ({count:,})" for field, count in split["fields"].items()))
        if split["skipped"]:
            click.echo(f"  skipped when it was made: {count_text(split['skipped'], 'file')}")
    if found["classes"]:
        names = ", ".join(found["classes"][:8]) + (", …" if len(found["classes"]) > 8 else "")
        click.echo(f"{count_text(len(found['classes']), 'class')}: {names}")
    click.echo("read it:\n" + _how_to_read(found))


def _how_to_read(found: dict[str, Any]) -> str:
    """Three lines of Python that read the first split with nothing but webdataset."""
    shards = [name for split in found["splits"].values() for name in split["names"]]
    first, last = os.path.join(found["place"], shards[0]), shards[-1]
    numbers = [re.search(r"\d+(?=\.tar$)", name) for name in (first, last)]
    if len(shards) > 1 and numbers[0] and numbers[1]:
        first = f"{first[: numbers[0].start()]}{{{numbers[0][0]}..{numbers[1][0]}}}.tar"
    return (
        "  import webdataset\n"
        f"  dataset = webdataset.WebDataset({first!r}, shardshuffle=False).decode('pil')\n"
        "  for sample in dataset: print(sample['__key__'], sample['jpg'].size, sample['cls'])"
    )
