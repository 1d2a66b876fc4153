"""Install the peers that interop tests read our shards with, and that plain requirements would drag gigabytes in for.

timm wants torchvision, of which there is no small build: both come without their requirements, and
tests/support/torchvision_ops.py defines the operators that torchvision misses. wids is no longer in webdataset: it comes
from the last release that had it, into a folder of its own (`WIDS`), out of the way of the webdataset that is
installed. So does CLIP_benchmark, with no more of what it asks for than its
reader needs.
A peer that cannot be installed is no error here; its tests skip and say so, except in CI.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PEERS = ["timm", "torchvision==0.28.0"]
WIDS = Path(sys.prefix) / "peers" / "wids"
CLIP_BENCHMARK = Path(sys.prefix) / "peers" / "clip_benchmark"
FOR_CLIP_BENCHMARK = ["clip-benchmark==1.6.2", "requests", "charset-normalizer", "certifi", "idna"]


def main() -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    for words in (
        PEERS,
        ["--upgrade", "--target", str(WIDS), "webdataset==0.2.111"],
        ["--upgrade", "--target", str(CLIP_BENCHMARK), *FOR_CLIP_BENCHMARK],
    ):
        if subprocess.run([*pip, *words], check=False).returncode:
            print(f"could not install {' '.join(words)}; tests that need it will skip", file=sys.stderr)


if __name__ == "__main__":
    main()
