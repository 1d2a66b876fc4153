"""The notebooks as they are committed: source and notebook agree, everything ran, and no machine shows."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from notebooks import run

FOLDER = run.HERE
MAX_BYTES = 500_000
# A path from a root, as a machine has them. Not an address, a closing tag, "images/s", or what Linux gives every process.
MACHINE = re.compile(r"(?<![\w:/.~$}<*)\]-])/(?!proc/self/)[A-Za-z_.][\w.+-]*/|[A-Za-z]:\\\\?Users")

Notebook = dict[str, Any]


def names() -> list[str]:
    return [path.stem for path in run.sources()]


def load(name: str) -> Notebook:
    loaded: Notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return loaded


def joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def texts(value: Any) -> Iterator[str]:
    """Every text in the outputs of a notebook, pictures left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        if value and all(isinstance(part, str) for part in value):
            yield joined(value)
        else:
            for part in value:
                yield from texts(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            if not key.startswith("image/") or key == "image/svg+xml":
                yield from texts(part)


def differences(source: str, notebook: Notebook) -> list[str]:
    """What is wrong with a notebook that was made of ``source``."""
    found = []
    cells = [(cell["cell_type"], joined(cell["source"])) for cell in notebook["cells"]]
    if cells != run.parse(source):
        found.append("the cells are not those of the .py beside it")
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    if [cell["execution_count"] for cell in code] != list(range(1, len(code) + 1)):
        found.append("not every cell ran once, in order")
    outputs = [output for cell in code for output in cell["outputs"]]
    found += [f"an error is kept: {output['ename']}" for output in outputs if output["output_type"] == "error"]
    for text in texts([*outputs, notebook["metadata"], source]):
        found += [f"a machine's path is kept: {text[match.start() :][:60]!r}" for match in MACHINE.finditer(text)]
    return found


def test_there_are_pairs_and_nothing_else() -> None:
    made = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    assert names() == made
    assert made
    assert {path.name for path in FOLDER.glob("*.py")} == {f"{name}.py" for name in made} | {"run.py"}


@pytest.mark.parametrize("name", names())
def test_a_committed_notebook_is_its_source_run_whole(name: str) -> None:
    assert differences((FOLDER / f"{name}.py").read_text(encoding="utf-8"), load(name)) == [], (
        "'make notebooks ARGS=--write' makes it anew"
    )


@pytest.mark.parametrize("name", names())
def test_a_committed_notebook_is_small(name: str) -> None:
    assert (FOLDER / f"{name}.ipynb").stat().st_size <= MAX_BYTES


SOURCE = """\
# ---
# jupyter:
#   kernelspec: {}
# ---

# %% [markdown]
# # Title
#
# Prose with a `/proc/self/io`, https://host/a/b and 3 images/s.

# %%
folder = "here"
# a comment
# !wds-tools info {folder}
# %matplotlib inline
"""


def _ran() -> Notebook:
    notebook = run.notebook(run.parse(SOURCE))
    output = {
        "output_type": "stream",
        "name": "stdout",
        "text": ["../build/shards: 3 images, ", "1/2 of $TMPDIR/a/b\n"],
    }
    notebook["cells"][1] |= {"execution_count": 1, "outputs": [output]}
    return notebook


def test_cells_are_read_as_jupytext_has_them() -> None:
    assert run.parse(SOURCE) == [
        ("markdown", "# Title\n\nProse with a `/proc/self/io`, https://host/a/b and 3 images/s."),
        ("code", 'folder = "here"\n# a comment\n!wds-tools info {folder}\n%matplotlib inline'),
    ]
    assert differences(SOURCE, _ran()) == []


@pytest.mark.parametrize("text", ["lost = 1\n# %%\n", "# %% [raw]\nx\n", "# %%bash\nls\n"])
def test_cells_of_no_known_kind_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cell"):
        run.parse(text)


def _output(output: dict[str, Any]) -> Callable[[Notebook], None]:
    return lambda notebook: notebook["cells"][1]["outputs"].append(output)


def _text(text: str) -> Callable[[Notebook], None]:
    return _output({"output_type": "stream", "name": "stderr", "text": [text]})


DAMAGE: dict[str, Callable[[Notebook], None]] = {
    "source": lambda notebook: notebook["cells"][1].update(source="folder = 'there'"),
    "missing cell": lambda notebook: notebook["cells"].pop(0),
    "not run": lambda notebook: notebook["cells"][1].update(execution_count=None),
    "run twice": lambda notebook: notebook["cells"][1].update(execution_count=2),
    "error": _output({"output_type": "error", "ename": "ValueError", "evalue": "", "traceback": []}),
    "home": _text("in /home/somebody/shards"),
    "file": _text("File '/mnt/x/y.py'"),
    "temporary": _text("/tmp/tmp12345/shards: 3 samples"),
    "split text": _output({"output_type": "execute_result", "data": {"text/plain": ["PosixPath('/me", "dia/disk')"]}}),
    "html": _output({"output_type": "display_data", "data": {"text/html": "<b>/usr/lib</b>"}}),
    "kernel": lambda notebook: notebook["metadata"].update(argv="/opt/python/bin/python"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_whatever_may_be_wrong_with_a_notebook_is_found(damage: Callable[[Notebook], None]) -> None:
    notebook = copy.deepcopy(_ran())
    damage(notebook)
    assert len(differences(SOURCE, notebook)) == 1


def test_places_of_this_machine_are_taken_out_of_outputs(tmp_path: Path) -> None:
    text = [f"{tmp_path}/tmp1/shards", f"in {run.ROOT}/build/demo"]
    picture = {"image/png": str(run.ROOT)}
    found = run.without_places({"text": text, "data": picture}, str(tmp_path))
    assert found == {"text": ["$TMPDIR/tmp1/shards", "in ../build/demo"], "data": picture}
