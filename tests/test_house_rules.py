"""Rules of the house: who may import what, how long things are, one way to write a docstring.

A limit has exceptions by name, with what they measure now: they may shrink, not grow.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(p for d in ("edge_tr", "bench", "native") for p in (ROOT / d).rglob("*.py"))
PRODUCT = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == "edge_tr"]

FLOORS = (
    ("errors", "kernels", "stats", "target"),
    ("files",),
    ("chat", "constrain", "costs", "gguf_file", "idle", "machine"),
    ("drafts",),
    ("config", "decode"),
    ("measuring",),
    ("drafting",),
    ("llama",),
    ("answer", "models", "needs", "tuning"),
    ("session",),
    ("learning",),
    ("bench", "doctor", "server"),
    ("cli",),
    ("plugin", "_pyinstaller"),
)
"""Rooms, bottom up: a module imports its own room and floors below, inside functions too."""

LLAMA_CPP = {
    "edge_tr/machine/build_child.py": "finds out whether it can be imported",
    "edge_tr/server/requests.py": "its types of requests",
}
"""Modules outside ``edge_tr/llama`` that may import ``llama_cpp``, and what for."""

MAX_LINES = 320
LONG_MODULES = {
    "edge_tr/kernels/candidates.py": 720,  # Numba's cache asks for one call graph in one file
}
MAX_FUNCTION = 60
LONG_FUNCTIONS = {"_gather": 66, "topk_rows": 62}
MAX_PARAMETERS = 10
MANY_PARAMETERS = {"fill_batch": 15}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imports_of(path: Path) -> Iterator[str]:
    """Modules, or names in modules, that a file imports anywhere but for type checkers."""

    def visit(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                yield from (f"{child.module}.{alias.name}" for alias in child.names)
            yield from visit(child)

    return visit(tree_of(path))


def functions() -> Iterator[tuple[str, Function]]:
    for path in SOURCES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, Function):
                yield name_of(path), node


def test_every_room_has_a_floor() -> None:
    rooms = {path.relative_to(ROOT).with_suffix("").parts[1] for path in PRODUCT} - {"__init__"}
    assert rooms <= {room for floor in FLOORS for room in floor}


@pytest.mark.parametrize("path", PRODUCT, ids=name_of)
def test_imports_go_down(path: Path) -> None:
    floor_of = {room: i for i, floor in enumerate(FLOORS) for room in floor}
    own = path.relative_to(ROOT).with_suffix("").parts[1]
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] != "edge_tr" or len(parts) < 2 or parts[1] not in floor_of or own == parts[1]:
            continue  # names of the front door are not imported from inside, but for __version__
        assert own != "__init__", "the front door loads nothing"
        assert floor_of[parts[1]] < floor_of[own], f"{name} is not below {own}"


@pytest.mark.parametrize("path", PRODUCT, ids=name_of)
def test_llama_cpp_is_imported_in_one_room(path: Path) -> None:
    if path.is_relative_to(ROOT / "edge_tr" / "llama") or name_of(path) in LLAMA_CPP:
        return
    assert not [name for name in imports_of(path) if name.split(".")[0] == "llama_cpp"]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_modules_are_short(path: Path) -> None:
    n_lines = len(path.read_text("utf-8").splitlines())
    assert n_lines <= LONG_MODULES.get(name_of(path), MAX_LINES)


def test_functions_are_short_and_take_few_parameters() -> None:
    found = []
    for file, node in functions():
        n_lines = (node.end_lineno or node.lineno) - node.lineno + 1
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        n_given = len([arg for arg in given if arg.arg not in ("self", "cls")])
        if n_lines > LONG_FUNCTIONS.get(node.name, MAX_FUNCTION):
            found.append(f"{file}: {node.name} has {n_lines} lines")
        if n_given > MANY_PARAMETERS.get(node.name, MAX_PARAMETERS):
            found.append(f"{file}: {node.name} has {n_given} parameters")
    assert not found


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_docstrings_are_in_one_dialect(path: Path) -> None:
    """NumPy's headings; no ``Args:``, no fields and roles of Sphinx."""
    others = re.compile(r"^\s*(Args|Arguments|Returns|Raises|Yields):\s*$|:param |:\w+:`", re.M)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, Function | ast.ClassDef | ast.Module):
            assert not others.search(ast.get_docstring(node) or "")


CALLED_FROM_OUTSIDE = {
    "eof_received": "asyncio",
    "capture_signals": "uvicorn",
    "set_row": "programs that bring candidates of their own",
}
"""Definitions that nothing here names, and who calls them."""


def test_every_definition_is_used() -> None:
    """Each function, class, method and constant is named somewhere beside its definition, and
    not in tests alone."""
    words: Counter[str] = Counter()
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "pyproject.toml"]
    for path in [*SOURCES, *texts]:
        words.update(re.findall(r"\w+", path.read_text("utf-8")))
    unused = []
    for path in PRODUCT:
        if path.name.startswith("hook-"):
            continue  # PyInstaller reads the names
        tree = tree_of(path)
        bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for node in [*tree.body, *(node for body in bodies for node in body)]:
            names = []
            if isinstance(node, Function | ast.ClassDef):
                is_ours = all(ast.unparse(d) == "property" for d in node.decorator_list)
                names = [node.name] if is_ours and not node.name.startswith("__") else []
            elif node in tree.body and isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            unused += [
                f"{name_of(path)}: {name}"
                for name in names
                if words[name] < 2 and name not in CALLED_FROM_OUTSIDE
            ]
    assert not unused
