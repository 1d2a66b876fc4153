"""``wds-tools index``."""

from __future__ import annotations

from dataclasses import asdict

import click

from wds_tools.cli.show import count_text, print_json, progress
from wds_tools.tools.indexing import index_shards


@click.command("index", epilog="Example: wds-tools index 'laion/{00000..00146}.tar' --split train")
@click.argument("shards", nargs=-1, required=True)
@click.option("--split", help="Split of all these shards.  [default: what their names begin with]")
@click.option("--lenient", is_flag=True, help="Accept shards without an end-of-archive mark.")
@click.option("--workers", type=int, help="Processes that share the work.  [default: one a core]")
@click.option("--json", "as_json", is_flag=True, help="Print what was indexed as JSON.")
def command(shards: tuple[str, ...], split: str | None, lenient: bool, workers: int | None, as_json: bool) -> None:
    """Write an .idx beside each of SHARDS, and info.json into their folder.

    SHARDS is a folder, a glob, brace notation, or several of the last two: shards that webdataset, tar or other tools
    wrote, or a dataset of which a shard was replaced. They may lie in a bucket (s3://bucket/prefix).
    """
    with progress("indexing", quiet=as_json) as bar:
        report = index_shards(
            shards[0] if len(shards) == 1 else shards,
            split=split,
            lenient=lenient,
            workers=workers,
            watch=bar.update,
        )
    if as_json:
        print_json(asdict(report))
        return
    click.echo(
        f"{report.place}: {count_text(report.samples, 'sample')} in {count_text(len(report.shards), 'shard')} indexed"
    )
    if not report.manifest:
        click.echo("the shards lie in several folders, so no info.json was written", err=True)
