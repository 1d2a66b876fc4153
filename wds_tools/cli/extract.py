"""``wds-tools extract``."""

from __future__ import annotations

from dataclasses import asdict

import click

from wds_tools.cli.show import count_text, print_json, progress, size_text
from wds_tools.tools.extract import extract_dataset


@click.command("extract", epilog="Example: wds-tools extract shards images --split train")
@click.argument("dataset")
@click.argument("folder", metavar="DIR")
@click.option("--split", help="Split to extract, where there are several.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(dataset: str, folder: str, split: str | None, as_json: bool) -> None:
    """Write the files of DATASET below DIR, which must be new or empty.

    DATASET is a folder, shards, or an http://, https:// or s3:// address. A tree that was converted comes back byte for
    byte. Names in shards are not trusted: none leads out of DIR.
    """
    with progress("extracting", quiet=as_json) as bar:
        report = extract_dataset(dataset, folder, split=split, watch=bar.update)
    if as_json:
        print_json(asdict(report))
        return
    what = f"{count_text(report.samples, 'sample')}, {count_text(report.files, 'file')}, {size_text(report.size)}"
    click.echo(f"{report.target}: {what} of split {report.split!r}")
