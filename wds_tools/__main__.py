"""``python -m wds_tools`` is ``wds-tools``."""

from wds_tools.cli.main import main

if __name__ == "__main__":
    main()
