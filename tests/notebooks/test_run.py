"""The script behind `make notebooks`, with real kernels, on notebooks of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from notebooks import run
from tests.support import needs

GOOD = """\
# %% [markdown]
# # Title

# %%
import os
import tempfile

print(os.getcwd(), tempfile.mkdtemp(prefix="of-this-test-"))

# %%
# !python -c "import sys; print(sys.prefix, end=''); sys.exit(3)" || echo " $?"
"""
BAD = {
    "cell 3 failed:": "# %% [markdown]\n# Title\n\n# %%\n1\n\n# %%\nraise ValueError('on purpose')\n\n# %%\n1\n",
    "cell 1 failed:": "# %%\n# !echo on purpose; exit 3\n",
    "cell 2 failed:": "# %%\n1\n\n# %%\nimport os\n\nos._exit(1)\n",
}


def _start(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    for package in ("nbclient", "ipykernel"):
        needs.package(package)
    shutil.copy(run.__file__, folder / "notebooks")
    command = [sys.executable, str(folder / "notebooks" / "run.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notebooks").mkdir()
    return tmp_path


def test_a_notebook_runs_in_its_folder_with_this_python_and_tells_no_places(folder: Path) -> None:
    (folder / "notebooks" / "01-good.py").write_text(GOOD)
    done = _start(folder, "--write", "01")
    assert (done.returncode, done.stderr) == (0, "")
    kept = (folder / "notebooks" / "01-good.ipynb").read_text()
    assert kept == (folder / "build" / "notebooks" / "01-good.ipynb").read_text()
    cells = json.loads(kept)["cells"]
    (places,) = cells[1]["outputs"][0]["text"]
    assert places.startswith(f"..{os.sep}notebooks $TMPDIR{os.sep}of-this-test-")
    assert cells[2]["outputs"][0]["text"] == ["../.venv 3\n"]
    assert [cell.get("execution_count") for cell in cells] == [None, 1, 2]


def test_a_notebook_that_fails_is_named_with_the_cell_and_keeps_its_last_outputs(folder: Path) -> None:
    for number, text in enumerate(BAD.values(), start=1):
        (folder / "notebooks" / f"{number:02d}-bad.py").write_text(text)
        (folder / "notebooks" / f"{number:02d}-bad.ipynb").write_text("kept")
    done = _start(folder, "--write")
    assert done.returncode == 1
    for number, where in enumerate(BAD, start=1):
        assert f"{number:02d}-bad.py: {where}" in done.stderr
        assert (folder / "notebooks" / f"{number:02d}-bad.ipynb").read_text() == "kept"
    assert "on purpose" in done.stderr


def test_a_name_that_no_notebook_has_is_refused(folder: Path) -> None:
    done = _start(folder, "07")
    assert done.returncode == 2
    assert "07" in done.stderr
