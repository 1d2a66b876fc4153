"""Run the notebooks, each in a kernel of its own: NN-name.py into build/notebooks/NN-name.ipynb.

A notebook is written as NN-name.py, in the percent format that jupytext and editors know, and is committed beside it as
NN-name.ipynb with its outputs. ``--write`` makes the latter anew. The first cell that fails, or whose command does,
ends its notebook, and the run fails when all were tried.

Outputs that are kept must not tell whose machine made them, so places of this machine stand there as ``..`` (the
project) and ``$TMPDIR``.

Command: make notebooks [ARGS="--write 02"]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TIMEOUT = 300  # seconds a cell may take: a notebook takes less than 60, on a machine that does nothing else

# IPython goes on when a `!` command fails. Here that fails the cell, unless the cell says `|| …`.
STARTUP = """
def _checked(command, run=get_ipython().system):
    run(command)
    if code := get_ipython().user_ns.get("_exit_code"):
        raise RuntimeError(f"exit code {code}: {command}")

get_ipython().system = _checked
del _checked
"""

Notebook = dict[str, Any]


def sources() -> list[Path]:
    """The notebooks as they are written, in order."""
    return sorted(HERE.glob("[0-9][0-9]-*.py"))


def parse(text: str) -> list[tuple[str, str]]:
    """The cells of a notebook in percent format, as pairs of kind (``code`` or ``markdown``) and source."""
    text = re.sub(r"\A# ---\n.*?^# ---\n", "", text, flags=re.DOTALL | re.MULTILINE)
    before, *parts = re.split(r"^# %%(.*)\n", text, flags=re.MULTILINE)
    if before.strip():
        raise ValueError(f"text before the first cell: {before.strip()[:60]!r}")
    found = []
    for head, body in zip(parts[::2], parts[1::2], strict=True):
        if head.strip() not in ("", "[markdown]"):
            raise ValueError(f"a cell's first line is '# %%{head}'; '# %%' and '# %% [markdown]' are known")
        kind = "markdown" if head.strip() else "code"
        # A comment's mark is before every line of prose, and before the lines that are IPython's and not Python.
        mark = r"^# ?" if kind == "markdown" else r"^# (?=[!%])"
        found.append((kind, re.sub(mark, "", body.strip("\n"), flags=re.MULTILINE)))
    return found


def notebook(cells: list[tuple[str, str]]) -> Notebook:
    """A notebook that has not run."""
    made = []
    for number, (kind, source) in enumerate(cells, start=1):
        cell: Notebook = {"cell_type": kind, "id": f"cell-{number:02d}", "metadata": {}, "source": source}
        made.append(cell | {"execution_count": None, "outputs": []} if kind == "code" else cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"jupytext": {"formats": "ipynb,py:percent"}, "kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def execute(content: Notebook, scratch: str) -> tuple[Notebook, str | None]:
    """The notebook with its outputs, and what went wrong in which cell. ``scratch`` is for the kernel's temporary files."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError
    from traitlets.config import Config

    startup = Path(scratch, "ipython", "profile_default", "startup")
    startup.mkdir(parents=True)
    (startup / "checked.py").write_text(STARTUP)
    environment = os.environ | {
        # `!wds-tools` is the one beside this Python, as it is where Jupyter itself runs the kernel.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "TMPDIR": scratch,
        "IPYTHONDIR": os.path.join(scratch, "ipython"),  # not the profile of whoever runs this
        "COLUMNS": "120",
    }
    config = Config()
    if os.name != "nt":  # sockets that nobody else reaches
        config.KernelManager.transport = "ipc"
        config.KernelManager.ip = os.path.join(scratch, "kernel")
    node = nbformat.from_dict(content)
    begun: list[int] = []
    client = NotebookClient(
        node,
        timeout=TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(HERE)}},
        record_timing=False,
        config=config,
        on_cell_execute=lambda cell, cell_index: begun.append(cell_index + 1),
        coalesce_streams=True,  # progress bars as a terminal would show them: the last state
    )
    wrong = None
    try:
        client.execute(env=environment)
    except (CellExecutionError, CellTimeoutError, RuntimeError) as error:  # the last: a kernel that died
        wrong = f"cell {begun[-1]} failed:\n{error}" if begun else f"no kernel: {error}"
    node["metadata"]["language_info"] = {"name": "python"}  # not which Python of this machine it was
    return without_places(json.loads(nbformat.writes(node)), scratch), wrong


def without_places(value: Any, scratch: str) -> Any:
    """The same outputs, without places of this machine; lines end as everywhere, not as a terminal has it."""
    if isinstance(value, dict):
        return {key: part if key.startswith("image/") else without_places(part, scratch) for key, part in value.items()}
    if isinstance(value, list):
        return [without_places(part, scratch) for part in value]
    if isinstance(value, str):
        names = {os.path.realpath(scratch): "$TMPDIR", scratch: "$TMPDIR", sys.prefix: "../.venv", str(ROOT): ".."}
        for place, name in names.items():
            value = value.replace(place, name)
        return value.replace("\r\n", "\n")
    return value


def save(content: Notebook, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run(source: Path, write: bool) -> bool:
    """Run one notebook; whether every cell passed."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="wds-tools-", ignore_cleanup_errors=True) as scratch:
        done, wrong = execute(notebook(parse(source.read_text(encoding="utf-8"))), scratch)
    target = ROOT / "build" / "notebooks" / f"{source.stem}.ipynb"
    save(done, target)
    if wrong is not None:
        print(f"{source.relative_to(ROOT)}: {wrong}", file=sys.stderr)
        return False
    written = [target]
    if write:
        save(done, source.with_suffix(".ipynb"))
        written.append(source.with_suffix(".ipynb"))
    names = " and ".join(str(path.relative_to(ROOT)) for path in written)
    print(f"{source.relative_to(ROOT)} -> {names} ({time.monotonic() - started:.0f} s)", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="how the names of those to run begin (default: all)")
    parser.add_argument("--write", action="store_true", help="make the committed .ipynb anew, with outputs")
    arguments = parser.parse_args()
    chosen = [path for path in sources() if not arguments.names or path.name.startswith(tuple(arguments.names))]
    if not chosen:
        parser.error(f"no notebook's name begins with {' or '.join(arguments.names)}")
    passed = [run(path, arguments.write) for path in chosen]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
