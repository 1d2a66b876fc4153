"""``wds-tools serve``."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from wds_tools.cli.show import brace_notation
from wds_tools.format.dataset import open_dataset
from wds_tools.store.local import LocalStore
from wds_tools.tools.serve import LOOPBACK, ServeOptions, listen

if TYPE_CHECKING:
    from wds_tools.tools.ranged import RangedServer


@click.command("serve", epilog="Example: wds-tools serve shards --latency 50")
@click.argument("folder", metavar="DIR")
@click.option("--port", default=0, help="Port to listen at.  [default: a free one]")
@click.option("--host", default=LOOPBACK, show_default=True, help="Address to listen at; 0.0.0.0 lets everybody in.")
@click.option("--latency", default=0.0, metavar="MS", help="Milliseconds added to every request.")
@click.option("--rate", type=float, metavar="MB/S", help="Megabytes a second of each connection at most.")
def command(folder: str, port: int, host: str, latency: float, rate: float | None) -> None:
    """Serve the dataset in DIR over HTTP with ranges, for trying things out, until interrupted.

    It answers this machine only, unless --host says otherwise, and shows only shards, their indexes, info.json and
    sizes.json. --latency and --rate play a slow network.
    """
    server = listen(folder, ServeOptions(host, port, latency / 1e3, None if rate is None else rate * 1e6))
    with _signals(server) as caught:
        click.echo(f"{server.url} serves {server.root}; Ctrl-C ends it. Read it:")
        click.echo(f"  from wds_tools import ShardDataset; dataset = ShardDataset({_arguments(server)})")
        server.run()
    if signal.SIGINT in caught:
        raise click.exceptions.Exit(130)


def _arguments(server: RangedServer) -> str:
    """Of what reads the first split: over HTTP only a manifest tells which shards there are."""
    found = open_dataset(LocalStore(server.root), None)
    split, shards = next(iter(found.splits.items()))
    if found.manifest is not None:
        return f"{server.url!r}, split={split!r}"
    braces = brace_notation(shards)
    return repr([f"{server.url}/{name}" for name in shards] if braces is None else f"{server.url}/{braces}")


@contextlib.contextmanager
def _signals(server: RangedServer) -> Iterator[list[int]]:
    """Both end the server as it likes to end; those that came."""
    caught: list[int] = []

    def stop(number: int, frame: Any) -> None:
        caught.append(number)
        server.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
