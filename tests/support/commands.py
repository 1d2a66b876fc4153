"""The command, as a process of its own or, for what it says, inside this one."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from wds_tools.cli import bench, convert, demo, extract, finalize, index, info, report, reshard, serve, sidecars, verify  # noqa: F401 - now, not when a user may not
from wds_tools.cli.main import main

PYTHON = sys.executable
SCRIPT = Path(sys.executable).parent / "wds-tools"


@dataclass(frozen=True)
class Said:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str


def run(*words: str | os.PathLike[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> Said:
    """``wds-tools`` in a process."""
    return run_python("-m", "wds_tools", *words, cwd=cwd, env=env)


def run_python(*words: str | os.PathLike[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> Said:
    """Python in a process."""
    done = subprocess.run(
        [PYTHON, *words], cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )
    return Said(done.returncode, done.stdout, done.stderr)


def call(*words: str | os.PathLike[str]) -> Said:
    """``wds-tools`` in this process: the same code from its first line to its exit, at a tenth of the time."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code: int | str | None = 0
    with (
        mock.patch.object(sys, "argv", ["wds-tools", *map(os.fspath, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    assert isinstance(code, int)
    return Said(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]
