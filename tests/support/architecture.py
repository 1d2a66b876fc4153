"""The rules that a package's rooms are held to, as functions from its sources to what breaks them.

Each answers with sentences, none when all is well, so that a made-up package can show that a rule bites.
"""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "wds_tools"
FLOORS = {"_version": 0, "errors": 0, "draws": 0, "records": 1, "store": 1, "image": 1, "format": 2}
FLOORS |= {"convert": 3, "stream": 3, "tools": 4, "cli": 5, "__main__": 6}
ROOF = PACKAGE  # the package itself hands names on, and imports them only for type checkers
# What takes long to import, or may be missing, and so is imported where it is used.
HEAVY = {
    "PIL",
    "aiohttp",
    "botocore",
    "google",
    "google_crc32c",
    "h5py",
    "jinja2",
    "numpy",
    "pyarrow",
    "ray",
    "simplejpeg",
    "torch",
    "tqdm",
    "webdataset",
}
LATE = {
    f"{PACKAGE}.{room}" for room in ("cli.main", "image.codec", "tools.bench", "tools.preview", "tools.ranged")
}  # rooms that load them
TALKERS = {"cli"}  # may print, exit and read the environment
MAX_LINES, MEDIAN_LINES = 400, 150

# Room and function, and why it may.
ENVIRONMENT = {
    (
        "stream.world",
        "_found",
    ): "torchrun tells a process its rank by RANK and WORLD_SIZE; read when the answer is needed",
}
DYNAMIC_IMPORTS = {
    (ROOF, "__getattr__"): "hands names on when they are first asked for",
    ("cli.main", "get_command"): "loads a command when it is called",
    ("image.codec", "_open"): "loads one of Pillow's parsers",
}
SIGNAL_HANDLERS = {("convert.engines", "_start_worker"): "a worker process is the engine's own"}
EXITS = {("convert.engines", "_exit_with_driver"): "ends a worker process whose driver is gone"}


@dataclass(frozen=True)
class Import:
    """``room`` imports ``target``: a room of the package by its short name, or another package."""

    room: str
    target: str
    ours: bool
    function: str | None
    for_types: bool
    line: int


@dataclass(frozen=True)
class House:
    """The rooms of a package by their names without the package's, which itself is the roof."""

    rooms: dict[str, ast.Module]
    lines: dict[str, int]
    inits: frozenset[str]


def read(folder: Path) -> House:
    rooms, lines, inits = {}, {}, set()
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
            inits.add(".".join(parts) or ROOF)
        name = ".".join(parts) or ROOF
        text = path.read_text()
        rooms[name], lines[name] = ast.parse(text, str(path)), text.count("\n")
    return House(rooms, lines, frozenset(inits))


def wing(room: str) -> str:
    return room.partition(".")[0]


def _walk(
    node: ast.AST, function: str | None = None, types: bool = False
) -> Iterator[tuple[ast.AST, str | None, bool]]:
    """Every node, with the function that it is in, and whether only type checkers see it."""
    for child in ast.iter_child_nodes(node):
        inside, only = function, types
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inside = child.name
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            only = True
        yield child, inside, only
        yield from _walk(child, inside, only)


def imports(house: House) -> list[Import]:
    found = []
    for room, tree in house.rooms.items():
        for node, function, types in _walk(tree):
            for name in _imported(node, room, house):
                ours = name == PACKAGE or name.startswith(PACKAGE + ".")
                target = (name[len(PACKAGE) + 1 :] or ROOF) if ours else name
                found.append(Import(room, target, ours, function, types, getattr(node, "lineno", 0)))
    return found


def _imported(node: ast.AST, room: str, house: House) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = [] if room == ROOF else room.split(".")
            up = node.level - (room in house.inits)
            folder = parts[: len(parts) - up] if up else parts
            base = ".".join([PACKAGE, *folder, *([base] if base else [])])
        for alias in node.names:
            room_of = f"{base}.{alias.name}"[len(PACKAGE) + 1 :]
            yield f"{base}.{alias.name}" if base.startswith(PACKAGE) and room_of in house.rooms else base


def floors(house: House) -> list[str]:
    """A room imports only from lower floors or from its own wing: so `convert` and `stream` never from each other."""
    problems = [f"{room} is on no floor" for room in house.rooms if room != ROOF and wing(room) not in FLOORS]
    for found in imports(house):
        here, there = wing(found.room), wing(found.target)
        if not found.ours or found.target == ROOF or {here, there} - FLOORS.keys() - {ROOF}:
            continue
        if found.room == ROOF:
            if there != "_version" and not found.for_types:
                problems.append(f"the roof imports {found.target} when it is loaded (line {found.line})")
        elif here != there and FLOORS[there] >= FLOORS[here]:
            problems.append(f"{found.room} imports {found.target}, which is no lower (line {found.line})")
    return problems


def from_the_roof(house: House) -> list[str]:
    """Nobody inside imports the names that the package hands on."""
    return [
        f"{found.room} imports from the roof (line {found.line})"
        for found in imports(house)
        if found.ours and found.target == ROOF
    ]


def cycles(house: House) -> list[str]:
    """Circles of rooms that import each other, inside a wing too; type checkers' imports count."""
    graph: dict[str, set[str]] = {room: set() for room in house.rooms if room != ROOF}
    for found in imports(house):
        if found.room in graph and found.target in graph:
            graph[found.room].add(found.target)
    problems: list[str] = []
    done: set[str] = set()

    def visit(room: str, path: list[str]) -> None:
        if room in path:
            problems.append(" -> ".join([*path[path.index(room) :], room]))
        elif room not in done:
            for target in sorted(graph[room]):
                visit(target, [*path, room])
            done.add(room)

    for room in graph:
        visit(room, [])
    return problems


def late_imports(house: House) -> list[str]:
    """In functions only what is heavy or optional is imported, and by name."""
    problems = [
        f"{found.room}.{found.function} imports {found.target}; import it above (line {found.line})"
        for found in imports(house)
        if found.function is not None
        and (f"{PACKAGE}.{found.target}" not in LATE if found.ours else wing(found.target) not in HEAVY)
    ]
    for room, tree in house.rooms.items():
        for node, function, _ in _walk(tree):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in ("importlib.import_module", "import_module", "__import__") and (
                (room, function) not in DYNAMIC_IMPORTS
            ):
                problems.append(f"{room}.{function} calls {called}")
    return problems


def talk(house: House) -> list[str]:
    """Only the command line prints, exits, reads the environment or touches the standard streams' buffers."""
    calls = {"print", "input", "exit", "quit", "sys.exit", "os._exit", "os.abort", "click.echo"}
    reads = {
        "os.environ",
        "os.getenv",
        "os.environb",
        "sys.argv",
        "sys.stdin",
        "sys.stdout",
        "sys.stderr",
        "SystemExit",
    }
    names = {"os": {"environ", "getenv", "environb", "_exit"}, "sys": {"exit", "argv", "stdin", "stdout", "stderr"}}
    problems = []
    for room, tree in house.rooms.items():
        if wing(room) in TALKERS:
            continue
        for node, function, _ in _walk(tree):
            said = None
            if isinstance(node, ast.Call) and ast.unparse(node.func) in calls:
                said = ast.unparse(node.func)
            elif isinstance(node, (ast.Attribute, ast.Name)) and ast.unparse(node) in reads:
                said = ast.unparse(node)
            elif isinstance(node, ast.ImportFrom) and {alias.name for alias in node.names} & names.get(
                node.module or "", set()
            ):
                said = f"from {node.module} import …"
            if said is not None and (room, function) not in EXITS | ENVIRONMENT:
                problems.append(f"{room} uses {said} (line {getattr(node, 'lineno', 0)})")
    return problems


def signal_handlers(house: House) -> list[str]:
    """Libraries install no signal handlers, but in processes of their own."""
    problems = []
    for room, tree in house.rooms.items():
        if wing(room) in TALKERS:
            continue
        for node, function, _ in _walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "signal.signal",
                "signal.set_wakeup_fd",
                "signal.setitimer",
                "signal.alarm",
                "faulthandler.register",
                "atexit.register",
            ):
                if (room, function) not in SIGNAL_HANDLERS:
                    problems.append(f"{room}.{function} calls {ast.unparse(node.func)} (line {node.lineno})")
            elif isinstance(node, ast.ImportFrom) and node.module == "signal":
                problems.append(f"{room} imports names from signal; write signal.… (line {node.lineno})")
    return problems


def doorways(house: House) -> list[str]:
    """The ``__init__`` of a wing says what the wing is for and does nothing."""
    return [
        f"{room}/__init__.py holds more than its docstring"
        for room in house.inits
        if room != ROOF and (len(house.rooms[room].body) != 1 or ast.get_docstring(house.rooms[room]) is None)
    ]


def headers(house: House) -> list[str]:
    """Every room says in its header what it is for."""
    return [
        f"{room} has no docstring"
        for room in house.rooms
        if room != "_version" and not ast.get_docstring(house.rooms[room])
    ]


def sizes(house: House) -> list[str]:
    """A room fits a reader's head."""
    rooms = {room: count for room, count in house.lines.items() if room not in house.inits}
    problems = [f"{room} has {count} lines" for room, count in rooms.items() if count > MAX_LINES]
    if (median := statistics.median(rooms.values())) > MEDIAN_LINES:
        problems.append(f"the median room has {median} lines")
    return problems


def stale_allowances(house: House) -> list[str]:
    """What is allowed by name exists: room and function."""
    functions = {(room, function) for room, tree in house.rooms.items() for _, function, _ in _walk(tree)}
    allowed = {**DYNAMIC_IMPORTS, **SIGNAL_HANDLERS, **EXITS, **ENVIRONMENT}
    return [
        f"{room}.{function} is allowed something and does not exist" for room, function in allowed.keys() - functions
    ]


RULES = (floors, from_the_roof, cycles, late_imports, talk, signal_handlers, doorways, headers, sizes, stale_allowances)
