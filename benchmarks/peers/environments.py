"""Virtual environments for the peers, one each, so that none of them ever becomes a dependency.

An environment is made when it is first needed, under build/peers, and is good when what a peer needs can be imported.
torch is the version of constraints.txt everywhere. torchvision comes without its requirements, and FFCV without most of
its own; FFCV is compiled and wants OpenCV and libjpeg-turbo (Debian: libopencv-dev libturbojpeg0-dev pkg-config g++).

Usage: environments.py [NAME …] [--peers DIR] makes them ahead of time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "peers"
INSTALL_SECONDS, IMPORT_SECONDS = 1800, 120
# Before torchvision: its compiled part does not load everywhere, see there.
OPERATORS = "import tests.support.torchvision_ops"


class PeerError(Exception):
    """A peer cannot be run; the message says why, in a line."""


@dataclass(frozen=True)
class Recipe:
    """What is installed, a call of pip each, and the statement that works when all is there."""

    installs: tuple[tuple[str, ...], ...]
    check: str


_TORCH = ("torch==2.13.0", "numpy", "pillow")
_TORCHVISION = ("--no-deps", "torchvision==0.28.0")
_FFCV_NEEDS = (
    "setuptools",
    "numba",
    "opencv-python",
    "tqdm",
    "psutil",
    "pytorch-pfn-extras",
    "fastargs",
    "terminaltables",
)
RECIPES = {
    "wds": Recipe(((*_TORCH, "webdataset"), _TORCHVISION), f"{OPERATORS}, torchvision, webdataset"),
    "dali": Recipe((("numpy", "nvidia-dali-cuda120"),), "import nvidia.dali.fn"),
    "ffcv": Recipe(((*_TORCH, *_FFCV_NEEDS), _TORCHVISION, ("--no-deps", "ffcv")), f"{OPERATORS}, ffcv.loader"),
    "folder": Recipe(
        (_TORCH, _TORCHVISION, ("--no-deps", "torchdata"), ("requests",)), f"{OPERATORS}, torchvision, torchdata"
    ),
    "mosaic": Recipe(((*_TORCH, "mosaicml-streaming"),), f"{OPERATORS}, streaming"),
    "litdata": Recipe(((*_TORCH, "litdata"),), f"{OPERATORS}, litdata"),
    "h5": Recipe(((*_TORCH, "h5py"),), "import torch, h5py"),
}


def python_of(name: str, folder: Path = FOLDER) -> str:
    """The interpreter of an environment, which is made if it is not there or does not work; `PeerError` if it cannot be."""
    recipe, home = RECIPES[name], folder / name
    python = home / "bin" / "python"
    if python.exists() and not _run([str(python), "-c", recipe.check], IMPORT_SECONDS):
        return str(python)
    print(f"making the environment of {name} in {home}", file=sys.stderr, flush=True)
    pip = [
        str(python),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "-c",
        str(ROOT / "constraints.txt"),
    ]
    for command in ([sys.executable, "-m", "venv", str(home)], *([*pip, *words] for words in recipe.installs)):
        fault = _run(command, INSTALL_SECONDS)
        if fault:
            raise PeerError(f"cannot be installed: {fault}")
    fault = _run([str(python), "-c", recipe.check], IMPORT_SECONDS)
    if fault:
        raise PeerError(f"is installed but does not load: {fault}")
    return str(python)


def last_line(text: str) -> str:
    """The line that a failed program said last, which names its error; cut to what fits a table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return ((errors or lines or ["it says nothing"])[-1])[:200]


def _run(command: list[str], seconds: int) -> str | None:
    """Nothing, or why the command failed."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"it took longer than {seconds} seconds"
    return last_line(done.stderr + done.stdout) if done.returncode else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *RECIPES], default=[], metavar="NAME")
    parser.add_argument("--peers", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    for name in arguments.names or RECIPES:
        try:
            print(python_of(name, arguments.peers))
        except PeerError as error:
            print(f"{name} {error}")


if __name__ == "__main__":
    main()
