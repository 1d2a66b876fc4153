"""Where ``wds-tools`` begins: before anything that takes long to load."""

from __future__ import annotations

import sys
from typing import NoReturn


def start() -> NoReturn:
    """``wds-tools``, which an interrupt ends without a trace also while it is being loaded."""
    try:
        from wds_tools.cli.main import main
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
    main()
