"""``wds-tools verify``."""

from __future__ import annotations

from dataclasses import asdict

import click

from wds_tools.cli.show import count_text, print_json, progress, size_text
from wds_tools.tools.verify import verify_dataset

SHOWN = 100


@click.command("verify", epilog="Example: wds-tools verify shards --decode")
@click.argument("dataset", nargs=-1, required=True)
@click.option("--decode", is_flag=True, help="Decode every image as well.")
@click.option("--lenient", is_flag=True, help="Accept shards without an end-of-archive mark.")
@click.option("--workers", type=int, help="Processes that share the work.  [default: one a core]")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(dataset: tuple[str, ...], decode: bool, lenient: bool, workers: int | None, as_json: bool) -> None:
    """Check structure, keys, labels, sizes, digests and indexes of DATASET.

    DATASET is a folder, a glob, shards in brace notation, or several of the last two; local, or at an http://, https:// or
    s3:// address, from where each shard is fetched once. Exit code 1 and a list when
    anything is wrong.
    """
    with progress("verifying", quiet=as_json) as bar:
        report = verify_dataset(
            dataset[0] if len(dataset) == 1 else dataset,
            decode=decode,
            lenient=lenient,
            workers=workers,
            watch=bar.update,
        )
    if as_json:
        print_json({"ok": report.ok, **asdict(report)})
    else:
        for problem in report.problems[:SHOWN]:
            click.echo(str(problem))
        if len(report.problems) > SHOWN:
            click.echo(f"… and {len(report.problems) - SHOWN:,} more (--json lists them all)")
        what = (
            f"{count_text(report.samples, 'sample')} in {count_text(report.shards, 'shard')}, {size_text(report.size)}"
        )
        how = "every image decoded" if decode else "images not decoded (--decode does)"
        verdict = "all is well" if report.ok else count_text(len(report.problems), "problem")
        click.echo(f"{report.place}: {what}; {how}; {verdict}")
    if not report.ok:
        raise click.exceptions.Exit(1)
