"""``wds-tools info``."""

from __future__ import annotations

import os
import re
from typing import Any

import click

from wds_tools.cli.show import count_text, print_json, size_text
from wds_tools.image.kinds import KINDS
from wds_tools.store.resolve import expand_braces
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
        click.echo(
            "no info.json was read: counts come from indexes, where there are any ('wds-tools index' makes both)"
        )
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
    split = next(iter(found["splits"].values()))
    images = ";".join(field for field in split["fields"] if field in KINDS)
    if images:
        columns = {"key": "__key__", "image": images} | ({"label": "cls"} if "cls" in split["fields"] else {})
        names = ", ".join(columns)
        loop = f"for {names} in dataset.to_tuple({', '.join(map(repr, columns.values()))}): print({names})"
    else:
        loop = "for sample in dataset: print(sample['__key__'], list(sample))"
    urls = _urls(found["place"], split["names"])
    return (
        f"  import {'glob, ' if urls.startswith('sorted') else ''}webdataset\n"
        f"  dataset = webdataset.WebDataset({urls}, shardshuffle=False).decode('pil')\n"
        f"  {loop}"
    )


def _urls(place: str, names: list[str]) -> str:
    """A Python expression for the shards: brace notation where they are numbered through, else a glob."""
    first, last = (re.search(r"\d+(?=\.tar$)", name) for name in (names[0], names[-1]))
    if first and last and 0 < int(last[0]) - int(first[0]) == len(names) - 1:
        braces = f"{names[0][: first.start()]}{{{first[0]}..{last[0]}}}.tar"
        if expand_braces(braces) == names:
            return repr(os.path.join(place, braces))
    if len(names) == 1:
        return repr(os.path.join(place, names[0]))
    common = os.path.commonprefix(names)  # noqa: RUF071 - letters in common are what a glob wants
    return f"sorted(glob.glob({os.path.join(place, common + '*.tar')!r}))"
