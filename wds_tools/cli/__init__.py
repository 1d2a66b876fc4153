"""The command line: the only place that prints, reads the environment or exits."""

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
