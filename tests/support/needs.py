"""What a test needs that not every machine has.

A missing need skips the test and says why; where ``WDS_TOOLS_NO_SKIP`` is set, as in CI, it fails instead.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wds_tools.image import tiles


def _missing(reason: str) -> None:
    if os.environ.get("WDS_TOOLS_NO_SKIP"):
        pytest.fail(f"{reason}, and nothing may be skipped here")
    pytest.skip(reason)


def tool(name: str) -> str:
    """The path of an installed program."""
    path = shutil.which(name)
    if path is None:
        _missing(f"{name} is not installed")
    return str(path)


def kernel() -> None:
    """The C kernel, which is built where there is a compiler."""
    if tiles.kernel is None:
        _missing("the C kernel was not built")


def strace() -> str:
    """The path of an strace that is allowed to trace here."""
    path = tool("strace")
    if subprocess.run([path, "-o", os.devnull, "true"], capture_output=True, check=False).returncode:
        _missing("strace is not allowed to trace here")
    return path


def root() -> None:
    if sys.platform == "win32" or os.geteuid() != 0:
        _missing("only root can do this")


def folder(path: Path) -> Path:
    """A folder that something was installed into."""
    if not path.is_dir():
        _missing(f"there is no {path}")
    return path


def package(name: str) -> object:
    """An installed package, imported."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        _missing(f"{name} does not import ({error})")
        raise


def chromium() -> str:
    """The path of a Chromium, under the names that distributions give it."""
    for name in ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome"):
        if path := shutil.which(name):
            return path
    return tool("chromium")
