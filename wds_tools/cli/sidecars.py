"""``wds-tools sidecars``."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from wds_tools.cli.show import count_text, print_json
from wds_tools.tools.sidecars import write_sidecars

READERS = ("energon", "clip-benchmark", "hf")


@click.command("sidecars", epilog="Example: wds-tools sidecars shards --for energon --for hf")
@click.argument("dataset")
@click.option(
    "--for",
    "readers",
    type=click.Choice(READERS),
    multiple=True,
    required=True,
    help="Reader to serve; may be repeated.",
)
@click.option("--overwrite", is_flag=True, help="Replace files that were edited, or that this command did not write.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def command(dataset: str, readers: tuple[str, ...], overwrite: bool, as_json: bool) -> None:
    """Write what other readers look for beside the shards of DATASET, a folder or s3://bucket/prefix.

    \b
    energon         .nv-meta/ and a .tar.idx beside each shard, for Megatron-Energon
    clip-benchmark  .clip-benchmark/, a folder of links to the shards, named as CLIP_benchmark wants them
    hf              README.md, a dataset card for Hugging Face datasets and the Hub

    Shards, indexes and info.json stay as they are. Run it again when the dataset has changed; verify says when.
    """
    report = write_sidecars(dataset, readers, overwrite=overwrite)
    if as_json:
        print_json(asdict(report))
        return
    for name in report.kept:
        click.echo(f"{name}: kept, it is not what would be written; --overwrite replaces it", err=True)
    if report.needs_card:
        click.echo("Hugging Face datasets takes a .tar.idx for a shard unless there is a card; add --for hf", err=True)
    what = [f"{count_text(len(report.written), 'file')} written", f"{len(report.unchanged):,} left as they are"]
    what += [f"{len(report.removed):,} of an earlier dataset removed"] if report.removed else []
    click.echo(f"{report.place}: {', '.join(what)}")
    if "clip-benchmark" in report.readers:
        root = os.path.join(report.place, ".clip-benchmark")
        click.echo(f"read it with: clip_benchmark eval --dataset wds/NAME --dataset_root {root} --split SPLIT")
