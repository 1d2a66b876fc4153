"""The house stands as it was drawn: who may import whom, who may speak, and how long a room may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

import wds_tools
from tests.support import architecture
from tests.support.architecture import House

Rule = Callable[[House], list[str]]


@pytest.fixture(scope="module")
def house() -> House:
    return architecture.read(Path(wds_tools.__file__).parent)


@pytest.mark.parametrize("rule", architecture.RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(house: House, rule: Rule) -> None:
    assert rule(house) == []


def test_the_whole_package_is_looked_at(house: House) -> None:
    assert house.rooms.keys() >= {"wds_tools", "errors", "convert.run", "tools.verify", "cli.main", "__main__"}
    imports = {(found.room, found.target) for found in architecture.imports(house) if found.ours}
    assert ("convert.conversion", "convert.plan") in imports
    assert ("cli.verify", "tools.verify") in imports
    assert ("tools.verify", "image.codec") in imports, "imports in functions count"


# -- each rule bites


SOUND = {
    "__init__": (
        '"""Roof."""\nfrom typing import TYPE_CHECKING\nfrom wds_tools._version import V\n'
        "if TYPE_CHECKING:\n    from wds_tools.tools.verify import x\n"
    ),
    "_version": "V = 1\n",
    "__main__": '"""Run."""\nfrom wds_tools.cli.main import main\n',
    "errors": '"""Errors."""\n',
    "store/__init__": '"""Places."""\n',
    "store/base": '"""Base."""\nimport os\nfrom wds_tools.errors import E\n',
    "image/__init__": '"""Pictures."""\n',
    "image/codec": '"""Codec."""\ndef _open():\n    import numpy\n    importlib.import_module("PIL")\n',
    "format/__init__": '"""Format."""\n',
    "format/tar": '"""Tar."""\nfrom wds_tools.store import base\nfrom . import index\n',
    "format/index": '"""Index."""\nfrom ..errors import E\n',
    "convert/__init__": '"""Convert."""\n',
    "convert/engines": (
        '"""Engines."""\nimport signal\nfrom wds_tools.format import tar\n'
        "def _start_worker():\n    signal.signal(2, 1)\ndef _exit_with_driver():\n    os._exit(1)\n"
    ),
    "stream/__init__": '"""Stream."""\n',
    "stream/line": '"""Line."""\n',
    "stream/order": '"""Order."""\nfrom wds_tools.stream import line\n',
    "stream/world": '"""World."""\nimport os\ndef _found():\n    return os.environ\n',
    "tools/__init__": '"""Tools."""\n',
    "tools/verify": '"""Verify."""\ndef look():\n    from wds_tools.image import codec\n    from PIL import Image\n',
    "cli/__init__": '"""Commands."""\n',
    "cli/main": (
        '"""Main."""\nimport sys\nfrom wds_tools.tools.verify import x\n'
        "def get_command():\n    importlib.import_module(x)\ndef main():\n    print(sys.argv)\n    sys.exit(1)\n"
    ),
}


def built(folder: Path, changes: Mapping[str, str] = MappingProxyType({})) -> House:
    """The sound package with rooms added or replaced."""
    rooms = {**SOUND, **changes}
    for name, text in rooms.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # The roof's own function, which the allow-list speaks of.
    (folder / "__init__.py").write_text(rooms["__init__"] + "def __getattr__(name):\n    return import_module(name)\n")
    return architecture.read(folder)


def test_a_sound_package_breaks_no_rule(tmp_path: Path) -> None:
    house = built(tmp_path)
    assert [problem for rule in architecture.RULES for problem in rule(house)] == []


@pytest.mark.parametrize(
    ("rule", "room", "code", "words"),
    [
        ("floors", "errors", "import wds_tools.records", "errors imports records"),
        ("floors", "errors", "from wds_tools.store import base", "errors imports store.base"),
        ("floors", "errors", "from .store import base", "errors imports store.base"),
        ("floors", "store/base", "from wds_tools.image.codec import x", "store.base imports image.codec"),
        ("floors", "store/base", "def f():\n    import wds_tools.format.tar", "store.base imports format.tar"),
        ("floors", "format/tar", "from ..convert.engines import x", "format.tar imports convert.engines"),
        ("floors", "stream/order", "from wds_tools.convert import engines", "stream.order imports convert.engines"),
        ("floors", "convert/plan", "from wds_tools.stream.order import x", "convert.plan imports stream.order"),
        ("floors", "tools/verify", "from wds_tools.cli.main import main", "tools.verify imports cli.main"),
        (
            "floors",
            "tools/verify",
            "if TYPE_CHECKING:\n    from wds_tools.cli.main import main",
            "tools.verify imports cli.main",
        ),
        ("floors", "attic/junk", "", "attic.junk is on no floor"),
        ("floors", "helpers", "", "helpers is on no floor"),
        ("floors", "__init__", "from wds_tools.errors import E", "the roof imports errors"),
        ("from_the_roof", "cli/main", "from wds_tools import verify_dataset", "cli.main imports from the roof"),
        ("from_the_roof", "tools/verify", "import wds_tools", "tools.verify imports from the roof"),
        ("from_the_roof", "tools/verify", "from .. import E", "tools.verify imports from the roof"),
        ("cycles", "format/index", "from wds_tools.format import tar", "format.tar -> format.index -> format.tar"),
        ("cycles", "format/index", "def f():\n    from .tar import x", "format.tar -> format.index -> format.tar"),
        ("cycles", "errors", "from wds_tools.errors import E", "errors -> errors"),
        ("late_imports", "tools/verify", "def f():\n    import json", "tools.verify.f imports json"),
        ("late_imports", "tools/verify", "def f():\n    from wds_tools.format import tar", "imports format.tar"),
        ("late_imports", "tools/verify", "class A:\n    def f(self):\n        import re", "tools.verify.f imports re"),
        (
            "late_imports",
            "tools/verify",
            "def f():\n    importlib.import_module('json')",
            "calls importlib.import_module",
        ),
        ("late_imports", "tools/verify", "x = __import__('json')", "calls __import__"),
        ("talk", "tools/verify", "print(1)", "tools.verify uses print"),
        ("talk", "tools/verify", "def f():\n    sys.exit(1)", "tools.verify uses sys.exit"),
        ("talk", "tools/verify", "x = os.environ['A']", "tools.verify uses os.environ"),
        ("talk", "tools/verify", "x = os.getenv('A')", "tools.verify uses os.getenv"),
        ("talk", "tools/verify", "from os import environ", "tools.verify uses from os import"),
        ("talk", "tools/verify", "raise SystemExit(1)", "tools.verify uses SystemExit"),
        ("talk", "tools/verify", "print(1, file=sys.stderr)", "tools.verify uses sys.stderr"),
        ("talk", "tools/verify", "def f():\n    os._exit(1)", "tools.verify uses os._exit"),
        ("signal_handlers", "convert/plan", "signal.signal(2, f)", "convert.plan.None calls signal.signal"),
        ("signal_handlers", "convert/plan", "from signal import signal", "imports names from signal"),
        ("signal_handlers", "convert/plan", "atexit.register(f)", "calls atexit.register"),
        (
            "doorways",
            "store/__init__",
            '"""Places."""\nfrom wds_tools.errors import E',
            "store/__init__.py holds more",
        ),
        ("headers", "store/base", "import os", "store.base has no docstring"),
        ("sizes", "store/base", '"""Base."""\n' + "x = 1\n" * 400, "store.base has 402 lines"),
        ("stale_allowances", "convert/engines", '"""Engines."""', "convert.engines._start_worker is allowed"),
    ],
)
def test_the_rule_bites(tmp_path: Path, rule: str, room: str, code: str, words: str) -> None:
    header = "" if rule in ("headers", "doorways", "sizes", "stale_allowances") else '"""Header."""\n'
    problems = getattr(architecture, rule)(built(tmp_path, {room: f"{header}{code}\n"}))
    assert any(words in problem for problem in problems), problems


def test_a_long_median_is_noticed(tmp_path: Path) -> None:
    long = '"""Long."""\n' + "x = 1\n" * 200
    rooms = {name: long for name in SOUND if "__init__" not in name}
    assert "the median room has 201 lines" in architecture.sizes(built(tmp_path, rooms))
