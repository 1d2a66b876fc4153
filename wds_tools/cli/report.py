"""``wds-tools report``."""

from __future__ import annotations

from dataclasses import asdict

import click

from wds_tools.cli.show import count_text, print_json, progress, size_text
from wds_tools.tools.report import ReportOptions, write_report


@click.command("report", epilog="Example: wds-tools report shards -o report.html")
@click.argument("dataset", nargs=-1, required=True)
@click.option("-o", "--output", default="report.html", show_default=True, help="File to write the page to.")
@click.option("--samples", type=int, default=2000, show_default=True, help="Samples to draw, at most.")
@click.option("--per-class", type=int, default=12, show_default=True, help="Thumbnails of a class, at most.")
@click.option("--split", help="Split to report.  [default: all]")
@click.option("--no-verify", is_flag=True, help="Do not read every byte to list what is wrong.")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides which samples are drawn.")
@click.option("--workers", type=int, help="Processes that share the work.  [default: one a core]")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(
    dataset: tuple[str, ...],
    output: str,
    samples: int,
    per_class: int,
    split: str | None,
    no_verify: bool,
    seed: int,
    workers: int | None,
    as_json: bool,
) -> None:
    """Write a page to look at DATASET with: images by class, balance, sizes, shards, problems.

    DATASET is a folder or its address, a glob, shards in brace notation, or several of the last two. The page is one
    file that needs no network. Samples are drawn, never all loaded. Exit code 0 when the page is written, whatever it
    found; 'wds-tools verify' is the one that fails.
    """
    options = ReportOptions(
        samples=samples, per_class=per_class, verify=not no_verify, split=split, seed=seed, workers=workers
    )
    with progress("verifying", quiet=as_json or no_verify) as bar:
        summary = write_report(dataset[0] if len(dataset) == 1 else dataset, output, options, watch=bar.update)
    if as_json:
        print_json(asdict(summary))
        return
    classes = f" of {count_text(summary.classes, 'class')}" if summary.classes else ""
    what = f"{summary.drawn:,} of {count_text(summary.samples, 'sample')}{classes} looked at"
    wrong = count_text(summary.problems, "problem") if summary.problems else "no problems"
    how = "found" if summary.verified else "found without verifying"
    click.echo(f"{summary.output}: {what}, {wrong} {how}; {size_text(summary.size)}")
