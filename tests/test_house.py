"""The house: imports go down, facts stay in their folder, the package starts light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from npulab.targets import targets

PACKAGE = Path(__file__).parents[1] / "npulab"
ROWS = [{"bits", "files", "floats", "layout", "processes", "streams", "quant"},
        {"capture", "journal", "layers", "target"},
        {"emulate", "folders", "training"},
        {"targets", "devices", "models", "interop"},
        {"drafts", "store", "template"},
        {"sweeps"},
        {"compare", "correlation", "codes", "mismatches", "neighbours", "scan", "probe", "rounding", "speed"},
        {"bisection", "laws", "runs"},
        {"view", "widgets"},
        {"sessions"},
        {"cli", "npulab"},
        {"__main__"}]
DRAWING = {"matplotlib", "anywidget", "ipywidgets"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    """The room of a module: its name at the top of the package, or its folder there."""
    part = path.relative_to(PACKAGE).parts[0]
    return "npulab" if part == "__init__.py" else part.removesuffix(".py")


def row(name: str) -> int:
    return next(i for i, rooms in enumerate(ROWS) if name in rooms)


def imported(tree: ast.Module) -> list[str]:
    """Modules that run at import or call time; a TYPE_CHECKING block does not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "relative import"
            names += [f"npulab.{alias.name}" for alias in node.names] if node.module == "npulab" \
                else [node.module]
    return names


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_go_down(path: Path) -> None:
    mine = room(path)
    for name in imported(tree(path)):
        if name.split(".")[0] == "npulab":
            theirs = name.split(".")[1] if "." in name else "npulab"
            inside = theirs == mine and mine in ("bisection", "drafts", "emulate", "interop", "laws", "layers", "layout",
                                                "models", "scan", "sessions", "speed", "targets", "training", "view",
                                                "widgets")
            # a device runs a capture on a target's simulator, so it may look targets up
            beside = (mine, theirs) == ("devices", "targets")
            assert inside or beside or row(theirs) < row(mine), f"{mine} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_only_row_4_draws(path: Path) -> None:
    if row(room(path)) != row("view"):
        assert not {name.split(".")[0] for name in imported(tree(path))} & DRAWING


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_shifting_by_hand(path: Path) -> None:
    shifts = [node.lineno for node in ast.walk(tree(path))
              if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.LShift)]
    assert not shifts or room(path) in ("bits", "streams"), f"<< at lines {shifts}"


@pytest.mark.parametrize("path", [path for path in MODULES if room(path) != "targets"],
                         ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_module_outside_targets_knows_an_npu(path: Path) -> None:
    module = tree(path)
    docs = {id(node.body[0].value) for node in ast.walk(module)
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and node.body
            and isinstance(node.body[0], ast.Expr)}
    # a rule of rounding is named after who showed it
    words = [] if room(path) == "quant" else [node.value.lower() for node in ast.walk(module)
             if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs]
    words += [node.id.lower() for node in ast.walk(module) if isinstance(node, ast.Name)]
    words += [name.lower() for name in imported(module)]
    names = {part for word in words for part in re.split(r"[^a-z0-9]+", word)}
    assert not names & set(targets())


def test_import_loads_neither_pandas_nor_pyplot() -> None:
    code = "import npulab, sys; print([m for m in ('pandas', 'matplotlib.pyplot', 'anywidget') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_top_level_holds_what_it_should() -> None:
    have = {path.name for path in PACKAGE.parent.iterdir()
            if not path.name.startswith(".") and path.suffix != ".egg-info"}
    assert have - {"build", "dist", "npulab-notebooks"} == {
        "pyproject.toml", "notebooks", "npulab", "captures", "tests", "README.md", "LICENSE"}
