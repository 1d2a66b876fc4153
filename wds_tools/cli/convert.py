"""``wds-tools convert``."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import asdict

import click

from wds_tools.cli.show import count_text, print_json, progress, size_text
from wds_tools.convert.options import ENCODINGS, ON_ERROR, ConvertOptions, parse_size
from wds_tools.convert.result import Result
from wds_tools.convert.run import convert_tree
from wds_tools.errors import OptionError

SHOWN = 10  # skipped files that are named in the summary


def _size(ctx: click.Context, parameter: click.Parameter, value: str) -> int:
    try:
        return parse_size(value)
    except OptionError as error:
        raise click.BadParameter(str(error)) from error


def _task(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    part, slash, parts = value.partition("/")
    if not (slash and part.isdigit() and parts.isdigit() and int(part) < int(parts)):
        raise click.BadParameter(f"{value!r} is no part; the first of four is 0/4, the last 3/4")
    return int(part), int(parts)


def read_classes(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    try:
        with open(value, encoding="utf-8") as file:
            names = tuple(line.strip() for line in file if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise click.BadParameter(f"cannot read {value!r}: {why}; it holds one class name a line") from error
    if not names:
        raise click.BadParameter(f"{value!r} is empty; it holds one class name a line, in the order of the indexes")
    return names


def _close_to_strangers() -> None:
    """Ray listens on the network and runs what it is sent: one that is started for this run asks for a token of this run."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@click.command(
    "convert",
    epilog="Example: wds-tools convert imagenet/train shards --split train --workers 8",
)
@click.argument("src")
@click.argument("out")
@click.option("--split", default="train", show_default=True, help="Name of the split, which begins the shards' names.")
@click.option(
    "--max-size",
    default="256MB",
    metavar="SIZE",
    show_default=True,
    callback=_size,
    help="Most bytes of a shard (about, where images are encoded anew), such as 1GB or 512MiB.",
)
@click.option("--max-count", type=int, help="Most samples of a shard.")
@click.option("--seed", default=0, show_default=True, help="Seed of the shuffle.")
@click.option(
    "--shuffle/--no-shuffle", default=True, show_default=True, help="Shuffle, or keep the order of the source."
)
@click.option(
    "--workers", type=int, help="Processes that share the work, or Ray tasks at a time.  [default: one a core]"
)
@click.option("--image-size", type=int, help="Shrink images to this shorter side in pixels; none is enlarged.")
@click.option("--quality", type=int, help="Quality (1-100) of images that are encoded anew.  [default: 90]")
@click.option(
    "--encode", type=click.Choice(ENCODINGS), default="keep", show_default=True, help="What images are stored as."
)
@click.option("--tile", is_flag=True, help="Give JPEGs restart tiles, without loss: crops then decode twice as fast.")
@click.option(
    "--classes", callback=read_classes, metavar="FILE", help="Class names, one a line, in the order of indexes."
)
@click.option("--metadata", is_flag=True, help="Add a json field with the source path and a table's other columns.")
@click.option("--siblings", is_flag=True, help="Files of one stem (a.jpg a.txt a.json) become fields of one sample.")
@click.option(
    "--images",
    metavar="NAME",
    help="Which dataset, column or feature of SRC holds the images; in a zip archive, which folder.",
)
@click.option(
    "--labels", metavar="NAME", help="Which of them holds the labels, or which .npy file; 'none' for no labels."
)
@click.option(
    "--first-label",
    default=0,
    show_default=True,
    help="What labels of TFRecords and parquet count from, such as 1 in ImageNet's.",
)
@click.option(
    "--on-error",
    type=click.Choice(ON_ERROR),
    default="raise",
    show_default=True,
    help="Stop at a bad image, or skip it and list it at the end.",
)
@click.option(
    "--engine",
    type=click.Choice(["process", "ray"]),
    default="process",
    show_default=True,
    help="Where tasks run: in processes of this machine, or on a Ray cluster.",
)
@click.option(
    "--ray-address",
    metavar="HOST:PORT",
    help="The Ray cluster, 'auto' for this machine's.  [default: RAY_ADDRESS, else one started for this run]",
)
@click.option("--task", callback=_task, metavar="I/N", help="Make only part I of N, counted from 0 (job arrays).")
@click.option("--overwrite", is_flag=True, help="Replace the split if OUT has it already.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(
    src: str,
    out: str,
    workers: int | None,
    engine: str,
    ray_address: str | None,
    task: tuple[int, int] | None,
    overwrite: bool,
    as_json: bool,
    **options: object,
) -> None:
    """Turn SRC into shards in OUT.

    SRC is a folder of class folders (SRC/cat/001.jpg), a zip archive of one, a table (.csv, .tsv, .jsonl) with the columns
    path and label or class, an array (.npy) with its labels in another, HDF5 (.h5, .hdf5), TFRecords, or parquet as Hugging
    Face publishes it; of the last three also a folder of files, of the last two a quoted pattern ('train-*.parquet').
    OUT is a folder, or s3://bucket/prefix: server, region and credentials come from the AWS configuration (such as
    AWS_PROFILE and AWS_ENDPOINT_URL). Run the same command again after an interruption: only what is missing is made.
    """
    ray_address = find_ray(engine, ray_address)
    started = time.monotonic()
    with progress("converting", quiet=as_json) as bar:
        result = convert_tree(
            src,
            out,
            ConvertOptions(**options),  # type: ignore[arg-type]
            workers=workers,
            engine=engine,
            ray_address=ray_address,
            task=task,
            overwrite=overwrite,
            progress=bar,
        )
    if as_json:
        print_json(as_answer(result, engine))
    else:
        summarise(result, time.monotonic() - started)
        if options["tile"] and result.built and not result.tiled:
            click.echo("no image was tiled: tiles are for JPEGs larger than one, and not for progressive ones")


def find_ray(engine: str, address: str | None) -> str | None:
    """The address of the cluster, where the engine is Ray's; None for one that is to be started."""
    if engine != "ray":
        return address
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address is None:
        _close_to_strangers()
    return address


def as_answer(result: Result, engine: str) -> dict[str, object]:
    """What ``--json`` prints."""
    answer = asdict(result)
    if engine != "ray":
        del answer["nodes"]
    return answer


def summarise(result: Result, seconds: float) -> None:
    shards = f"{count_text(result.samples, 'sample')} in {count_text(result.shards, 'shard')}, {size_text(result.size)}"
    if not result.complete:
        click.echo(f"{result.target}: this part is done; so far split {result.split!r} has {shards}")
    elif not result.built:
        click.echo(f"{result.target}: nothing to do, split {result.split!r} is there: {shards}")
    else:
        classes = f", {count_text(result.classes, 'class')}" if result.classes else ""
        rate = f"{result.samples / seconds:,.0f} images/s, {result.source_bytes / seconds / 1e6:,.0f} MB/s"
        click.echo(f"{result.target}: split {result.split!r} has {shards}{classes} ({seconds:.1f} s, {rate})")
    if result.tiled:
        growth = result.tiled_to / result.tiled_from - 1
        click.echo(f"{result.tiled:,} of {count_text(result.jpegs, 'JPEG')} tiled; their size changed by {growth:+.1%}")
    for note in result.notes[:SHOWN]:
        click.echo(note, err=True)
    for node in result.nodes:
        work = f"{count_text(node.tasks, 'shard')}, {count_text(node.samples, 'sample')}, {size_text(node.source_bytes)} read"
        click.echo(f"node {node.host} ({node.address}): {work}")
    for name in result.empty_classes[:SHOWN]:
        click.echo(f"class {name!r} has no images", err=True)
    if len(result.empty_classes) > SHOWN:
        click.echo(f"… and {len(result.empty_classes) - SHOWN:,} more classes without images", err=True)
    if result.num_skipped:
        click.echo(f"{count_text(result.num_skipped, 'file')} skipped:", err=True)
        for skip in result.skipped[:SHOWN]:
            click.echo(f"  {skip.path!r}: {skip.reason}", err=True)
        if result.num_skipped > SHOWN:
            click.echo(f"  … and {result.num_skipped - SHOWN:,} more; 'skipped' in info.json lists them", err=True)
    if result.ignored:
        kinds = ", ".join(f"{count:,} {kind or 'without suffix'}" for kind, count in sorted(result.ignored.items()))
        click.echo(f"not images by name, left out: {kinds}", err=True)
