"""``python -m wds_tools`` is ``wds-tools``."""

from wds_tools.cli.start import start

if __name__ == "__main__":
    start()
