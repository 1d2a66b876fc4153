"""``wds-tools reshard``."""

from __future__ import annotations

import time

import click

from wds_tools.cli import convert
from wds_tools.cli.show import print_json, progress
from wds_tools.convert.options import ConvertOptions
from wds_tools.convert.reshard import reshard
from wds_tools.convert.selection import Selection

# What means the same here, said in the same words.
_SHARED = ("split", "max_size", "max_count", "seed", "shuffle", "workers", "image_size", "quality", "encode", "tile")
_SHARED_LAST = ("on_error", "engine", "ray_address", "task", "overwrite", "as_json")


def _of_convert(names: tuple[str, ...]) -> list[click.Parameter]:
    return [parameter for parameter in convert.command.params if parameter.name in names]


def _share(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, float]:
    if value is None:
        return 0.0, 1.0
    low, colon, high = value.partition(":")
    try:
        if not colon:
            raise ValueError
        return float(low), float(high)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no share; the first tenth is 0:0.1, the rest 0.1:1") from None


@click.command(
    "reshard",
    epilog="Example: wds-tools reshard shards few --class cat --class bee",
    params=[
        click.Argument(["sources"], nargs=-1, required=True, metavar="SRC..."),
        click.Argument(["out"]),
        *_of_convert(_SHARED),
        click.Option(["--from-split", "splits"], multiple=True, metavar="NAME", help="Take this split; repeatable."),
        click.Option(
            ["--class", "chosen"],
            multiple=True,
            metavar="NAME",
            help="Keep this class, and the others so named; labels count from 0 again.  [repeatable]",
        ),
        click.Option(
            ["--class-file"], callback=convert.read_classes, metavar="FILE", help="Keep these classes, one a line."
        ),
        click.Option(
            ["--classes"],
            callback=convert.read_classes,
            metavar="FILE",
            help="Names and order of all classes, one a line; with --class, labels keep their places in it.",
        ),
        click.Option(
            ["--val"], type=float, metavar="FRACTION", help="Divide off a split val: the same keys every time."
        ),
        click.Option(
            ["--share"],
            callback=_share,
            metavar="LOW:HIGH",
            help="Take the part of the keys from LOW to HIGH (0 to 1).",
        ),
        click.Option(["--prefix"], is_flag=True, help="Put each source's name before its keys."),
        *_of_convert(_SHARED_LAST),
    ],
)
def command(
    sources: tuple[str, ...],
    out: str,
    splits: tuple[str, ...],
    chosen: tuple[str, ...],
    class_file: tuple[str, ...] | None,
    val: float | None,
    share: tuple[float, float],
    prefix: bool,
    workers: int | None,
    engine: str,
    ray_address: str | None,
    task: tuple[int, int] | None,
    overwrite: bool,
    as_json: bool,
    **options: object,
) -> None:
    """Turn the shards of one or more SRC into new shards in OUT.

    SRC is a folder of shards, a glob, brace notation, or an http://, https:// or s3:// address; with or without indexes and
    info.json. OUT is a folder, or s3://bucket/prefix. Every field is kept as it is, unless images are encoded anew.
    Several SRC become one dataset: their classes are brought together by name. Run the same command again after an
    interruption: only what is missing is made.
    """
    started = time.monotonic()
    with progress("resharding", quiet=as_json) as bar:
        results = reshard(
            sources,
            out,
            ConvertOptions(**options),  # type: ignore[arg-type]
            Selection(splits, (*chosen, *(class_file or ())), share, prefix),
            val=val,
            workers=workers,
            engine=engine,
            ray_address=convert.find_ray(engine, ray_address),
            task=task,
            overwrite=overwrite,
            progress=bar,
        )
    if as_json:
        print_json([convert.as_answer(result, engine) for result in results])
        return
    seconds = time.monotonic() - started
    for result in results:
        convert.summarise(result, seconds * result.samples / sum(each.samples for each in results))
