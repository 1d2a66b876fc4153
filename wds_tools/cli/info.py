"""``wds-tools info``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import click

from wds_tools.cli.show import brace_notation, count_text, print_json, size_text
from wds_tools.errors import OptionError
from wds_tools.image.kinds import KINDS
from wds_tools.tools.describe import describe_dataset

if TYPE_CHECKING:
    from wds_tools.stream.order import Tail

TAILS = ("even", "drop", "pad")


@click.command("info", epilog="Example: wds-tools info shards --world 8 --workers 4 --batch-size 256")
@click.argument("dataset", nargs=-1, required=True)
@click.option("--world", type=int, help="Preview an epoch: processes that train.")
@click.option("--workers", type=int, help="Preview an epoch: loader workers of each process.")
@click.option("--batch-size", type=int, help="Preview an epoch: samples of a batch.")
@click.option("--tail", type=click.Choice(TAILS), default="even", show_default=True, help="How the epoch ends.")
@click.option("--split", help="Split to preview, where there are several.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(
    dataset: tuple[str, ...],
    world: int | None,
    workers: int | None,
    batch_size: int | None,
    tail: str,
    split: str | None,
    as_json: bool,
) -> None:
    """Show splits, classes, sizes and fields of DATASET, and preview an epoch.

    DATASET is a folder, a glob, shards in brace notation, or several of the last two; local, or at an http://, https:// or
    s3:// address. With --world, --workers or
    --batch-size it shows the steps of an epoch, who reads what, and how well it is shuffled.
    """
    place = dataset[0] if len(dataset) == 1 else dataset
    found = describe_dataset(place)
    if split is not None and split not in found["splits"]:
        raise OptionError(f"{found['place']!r} has no split {split!r}, only {', '.join(found['splits'])}")
    if (world, workers, batch_size) != (None, None, None):
        from wds_tools.tools.preview import preview_epoch  # loads numpy

        found["epoch"] = preview_epoch(
            place,
            split=split,
            world=1 if world is None else world,
            workers=workers or 0,
            batch_size=1 if batch_size is None else batch_size,
            tail=cast("Tail", tail),
        )
    if as_json:
        print_json(found)
        return
    click.echo(found["place"])
    if not found["manifest"]:
        click.echo(
            "no info.json was read: counts come from indexes, where there are any ('wds-tools index' makes both)"
        )
    for name, entry in found["splits"].items():
        samples = (
            count_text(entry["samples"], "sample") if entry["samples"] is not None else "unknown number of samples"
        )
        size = f", {size_text(entry['bytes'])}" if entry["bytes"] is not None else ""
        click.echo(f"split {name}: {samples} in {count_text(entry['shards'], 'shard')}{size}")
        if entry["fields"]:
            click.echo("  fields: " + ", ".join(f"{field} ({count:,})" for field, count in entry["fields"].items()))
        if entry["skipped"]:
            click.echo(f"  skipped when it was made: {count_text(entry['skipped'], 'file')}")
    if found["classes"]:
        names = ", ".join(found["classes"][:8]) + (", …" if len(found["classes"]) > 8 else "")
        click.echo(f"{count_text(len(found['classes']), 'class')}: {names}")
    if "epoch" in found:
        _show_epoch(found["epoch"])
    else:
        click.echo("read it:\n" + _how_to_read(found))


def _show_epoch(epoch: dict[str, Any]) -> None:
    few, many = epoch["samples_by_worker"]
    least, most = epoch["shards_by_worker"]
    click.echo(
        f"an epoch: {count_text(epoch['steps'], 'step')} on every rank, {epoch['short_batches']:,} short batches in all"
    )
    click.echo(
        f"  {count_text(epoch['streams'], 'stream')} of {_range(few, many)} samples from {_range(least, most)} shards"
    )
    quality = epoch["quality"]
    labels = (
        "" if quality["neighbours"] is None else f", neighbours share a label {quality['neighbours']:.1%} more often"
    )
    click.echo(
        f"  shuffled: {quality['displacement']:.0%} of the distance that a true permutation moves samples{labels}"
    )


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _how_to_read(found: dict[str, Any]) -> str:
    """Three lines of Python that read the first split."""
    split = next(iter(found["splits"].values()))
    images = ";".join(field for field in split["fields"] if field in KINDS)
    if images:
        columns = {"key": "__key__", "image": images} | ({"label": "cls"} if "cls" in split["fields"] else {})
        names = ", ".join(columns)
        loop = f"for {names} in dataset.to_tuple({', '.join(map(repr, columns.values()))}): print({names})"
    else:
        loop = "for sample in dataset: print(sample['__key__'], list(sample))"
    if found["manifest"]:
        name = next(iter(found["splits"]))
        where = f"{found['place']!r}, split={name!r}"
    else:
        where = _urls(found["place"], split["names"])
    return (
        f"  {'import glob; ' if where.startswith('sorted') else ''}from wds_tools import ShardDataset\n"
        f"  dataset = ShardDataset({where}).decode('pil')\n"
        f"  {loop}"
    )


def _urls(place: str, names: list[str]) -> str:
    """A Python expression for the shards: brace notation where they are numbered through, else a glob."""
    join = "/".join if "://" in place else os.sep.join
    if (braces := brace_notation(names)) is not None:
        return repr(join((place, braces)))
    if len(names) == 1:
        return repr(join((place, names[0])))
    if "://" in place:
        return repr([join((place, name)) for name in names])
    common = os.path.commonprefix(names)  # noqa: RUF071 - letters in common are what a glob wants
    return f"sorted(glob.glob({os.path.join(place, common + '*.tar')!r}))"
