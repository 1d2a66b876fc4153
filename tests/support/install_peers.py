"""Install the peers that interop tests read our shards with, and that plain requirements would drag gigabytes in for.

timm wants torchvision, of which there is no small build: both come without their requirements, and
tests/support/torchvision_ops.py defines the operators that torchvision misses. A peer that cannot be installed is no
error here; its tests skip and say so, except in CI.
"""

from __future__ import annotations

import subprocess
import sys

PEERS = ["timm", "torchvision==0.28.0"]


def main() -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    done = subprocess.run([*pip, "--no-deps", *PEERS], check=False)
    if done.returncode:
        print(f"could not install {', '.join(PEERS)}; tests that need them will skip", file=sys.stderr)


if __name__ == "__main__":
    main()
