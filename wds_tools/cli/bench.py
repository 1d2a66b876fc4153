"""``wds-tools bench``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from wds_tools.cli.show import count_text, print_json, progress, size_text
from wds_tools.tools.verdict import rate_text, workers_text

if TYPE_CHECKING:
    from wds_tools.tools.bench import BenchReport


def _numbers(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    words = [word.strip() for word in value.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise click.BadParameter(f"{value!r} is no list of numbers; write for example 0,1,2,4")
    return tuple(map(int, words))


@click.command("bench", epilog="Example: wds-tools bench shards --workers 0,2 --seconds 1 --target 1500")
@click.argument("dataset", nargs=-1, required=True)
@click.option("--split", help="Split to measure, where there are several.")
@click.option(
    "--workers",
    callback=_numbers,
    metavar="N,N…",
    help="Numbers of loader workers to try.  [default: 0, 1, 2, 4 … up to the cores]",
)
@click.option("--batch-size", default=64, show_default=True, help="Samples of a batch.")
@click.option("--image-size", default=224, show_default=True, help="Side in pixels of the random crops.")
@click.option("--seconds", default=2.0, show_default=True, help="Time of each measurement.")
@click.option("--target", type=float, metavar="RATE", help="Images per second that are wanted, such as a GPU's rate.")
@click.option(
    "--cold/--no-cold",
    default=True,
    show_default=True,
    help="Drop a few local shards from the page cache, to read from the disk.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(dataset: tuple[str, ...], as_json: bool, **options: object) -> None:
    """Measure how fast DATASET is read, decoded and loaded here, and say what limits it and what to change.

    DATASET is a folder, a glob, shards in brace notation, several of the last two, or the http address of a folder or of
    shards. Images are decoded, cropped at random (RandomResizedCrop) and put into batches, as for training.
    """
    with progress("measuring", quiet=as_json) as bar:
        report = measure(dataset[0] if len(dataset) == 1 else dataset, options, bar.update)
    if as_json:
        print_json(asdict(report))
    else:
        _show(report)


def measure(
    dataset: str | tuple[str, ...], options: dict[str, object], watch: Callable[[int, int], None]
) -> BenchReport:
    """`bench_dataset`; the room that it is in loads torch, and this one must not."""
    from wds_tools.tools.bench import BenchOptions, bench_dataset

    return bench_dataset(dataset, BenchOptions(**options), watch=watch)  # type: ignore[arg-type]


def _show(report: BenchReport) -> None:
    measured, verdict, options = report.measured, report.verdict, report.options
    click.echo(
        f"{report.place}: {count_text(report.samples, 'sample')} in {count_text(report.shards, 'shard')}, "
        f"{count_text(measured.cores, 'core')} to use"
    )
    click.echo(_images(report))
    click.echo(
        f"batches of {options.batch_size} from {', '.join(report.fields)}; {options.seconds:g} s a measurement\n"
    )
    unit = "samples/s" if measured.decode is None else "images/s"
    rows = [("", unit, "")]
    for number, read in enumerate(measured.reads):
        what = "read again, one process" if number else "read, one process"
        rows.append((what, rate_text(read.rate), f"{size_text(read.bytes_rate)}/s from {_from(read.source)}"))
    if measured.decode is not None:
        rows.append(("decode whole images, one process", rate_text(measured.decode.whole), ""))
        crop = f"RandomResizedCrop({options.image_size})"
        rows.append(("decode, crop, batch, one process", rate_text(measured.decode.rate), crop))
    for load in measured.loads:
        rows.append((f"load with {workers_text(load.workers)}", rate_text(load.rate), ""))
    if measured.main_limit is not None:
        batch = f"{1e3 * options.batch_size / measured.main_limit:.2f} ms a batch to take it from workers"
        rows.append(("main process, at most", rate_text(measured.main_limit), batch))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, rate, comment in rows:
        click.echo(f"{name:{widths[0]}}  {rate:>{widths[1]}}  {comment}".rstrip())
    click.echo(f"\n{verdict.bound}-bound: the bottleneck is {_named(verdict.bottleneck)}; {verdict.reason}.")
    if verdict.target is not None:
        click.echo(f"{verdict.target.text}.")
    for advice in verdict.advice:
        click.echo(f"- {advice}.")


def _images(report: BenchReport) -> str:
    pictures = report.measured.pictures
    bad = f"; {report.measured.bad:.1%} of the samples are bad and left out" if report.measured.bad else ""
    if pictures is None:
        return f"no image field, so nothing to decode{bad}"
    kinds = " and ".join(kind if share == 1 else f"{share:.0%} {kind}" for kind, share in pictures.kinds.items())
    tiles = ""
    if "jpg" in pictures.kinds:
        tiles = f", {pictures.tiled:.0%} with restart tiles" if pictures.tiled else ", without restart tiles"
    return (
        f"{kinds}, {pictures.width:,.0f}x{pictures.height:,.0f} pixels and {size_text(pictures.size)} on average "
        f"of {pictures.count:,}{tiles}{bad}"
    )


def _from(source: str) -> str:
    return f"the {source}" + (" (cold)" if source == "disk" else " (warm)" if source == "page cache" else "")


def _named(bottleneck: str) -> str:
    return "decoding" if bottleneck == "decode" else f"the {bottleneck}"
