"""The house: imports go down its rows, facts stay in their folder, the package starts light."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import density
import pytest

from npulab.captures.registry import targets
from npulab.support.extras import PACKAGES
from npulab.support.files import read_table

PACKAGE = Path(__file__).parents[1] / "npulab"
# from the bottom up; no room imports another one of its row
ROWS = [
    {"support"},
    {"registers", "layout"},
    {"quant"},
    {"models"},
    {"captures"},
    {"analysis", "npus"},
    {"notebook"},
    {"cli"},
    {"npulab"},
]
# what folders of third parties import: loaded when used
KEPT = {"bits", "capture", "target"}
DRAWING = {"matplotlib", "anywidget", "ipywidgets"}
# by ipywidgets, jinja2 and jupyterlab
BROUGHT = {"IPython", "traitlets", "markupsafe", "ipykernel"}
# the compiler of SystemRDL is a program of its own, started after it was asked for; engines are
# measured where they are
OWN = {
    "npulab.registers.formats.rdl_compiling": {"systemrdl"},
    "npulab.cli.bench.emulation": {"ai_edge_litert"},
}
HEAVY = ("numpy", "pandas", "matplotlib", "construct", "anywidget", "ipywidgets")
MODULES = sorted(PACKAGE.rglob("*.py"))
NPUS = {path.parent.name for path in (PACKAGE / "npus").glob("*/__init__.py")}
# rooms of rooms, of which none knows another
SIBLINGS = {"npus": NPUS - {"kit"}}


def name_of(path: Path) -> str:
    """The dotted name of a module."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


NAMES = {name_of(module) for module in MODULES}


def room(name: str) -> str:
    """The room of a module: the part behind the package's own name."""
    return [*name.split("."), "npulab"][1]


def row(name: str) -> int:
    return next(i for i, rooms in enumerate(ROWS) if name in rooms)


@cache
def tree(path: Path) -> ast.Module:
    """A module without what only a type checker reads."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    for node in module.body:
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            node.body = [ast.Pass()]
    return module


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Every node of a module."""
    return density.nodes_of(tree(path))


@cache
def imported(path: Path) -> list[str]:
    """Modules that run when a module is imported, or when something in it is called."""
    names = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names.append(full if full in NAMES else node.module)
    return names


def arrows() -> Iterator[tuple[str, str, str, str]]:
    """(module, its room, module that it imports, its room) of two rooms."""
    for path in MODULES:
        for name in imported(path):
            if name.split(".")[0] == "npulab" and room(name) != room(name_of(path)):
                yield name_of(path), room(name_of(path)), name, room(name)


def test_every_room_is_in_a_row() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms | {"npulab"} == set().union(*ROWS)
    assert {path.stem for path in PACKAGE.glob("*.py")} == {*KEPT, "__init__", "__main__"}


def test_imports_go_down() -> None:
    doors = KEPT | {"__main__", "npulab"}  # open to all rooms, and for nobody inside
    up = [
        f"{importer} imports {name}"
        for importer, mine, name, theirs in arrows()
        if (theirs in doors - {"npulab"} and mine != "npulab")
        or (mine not in doors and row(theirs) >= row(mine))
    ]
    assert not up, "\n".join(up)


def test_siblings_do_not_know_each_other() -> None:
    known = []
    for parent, names in SIBLINGS.items():
        for path in (PACKAGE / parent).rglob("*.py"):
            mine = path.relative_to(PACKAGE / parent).parts[0]
            known += [
                f"{name_of(path)} imports {name}"
                for name in imported(path)
                if name.startswith(f"npulab.{parent}.") and name.split(".")[2] in names - {mine}
            ]
    assert not known, "\n".join(known)


def test_only_the_notebook_draws() -> None:
    drawing = [
        name_of(path)
        for path in MODULES
        if room(name_of(path)) != "notebook"
        and {name.split(".")[0] for name in imported(path)} & DRAWING
    ]
    assert not drawing


def test_no_shifting_by_hand() -> None:
    shifts = {
        name_of(path): [
            node.lineno
            for node in nodes(path)
            if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.LShift)
        ]
        for path in MODULES
    }
    allowed = {
        *(f"npulab.registers.{name}" for name in ("fields", "map", "meaning")),
        "npulab.layout.bitstream",
    }
    assert not {name: lines for name, lines in shifts.items() if lines and name not in allowed}


@pytest.mark.parametrize(
    "path", [path for path in MODULES if room(name_of(path)) != "npus"], ids=name_of
)
def test_no_module_outside_npus_knows_an_npu(path: Path) -> None:
    docs = {
        id(node.body[0].value)
        for node in nodes(path)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    # a rule of rounding is named after who showed it
    words = (
        []
        if name_of(path) in ("npulab.quant.rules", "npulab.quant.requantize")
        else [
            node.value.lower()
            for node in nodes(path)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docs
        ]
    )
    words += [node.id.lower() for node in nodes(path) if isinstance(node, ast.Name)]
    words += [name.lower() for name in imported(path)]
    names = {part for word in words for part in re.split(r"[^a-z0-9]+", word)}
    assert not names & set(targets())


def test_every_module_can_be_imported_by_its_name() -> None:
    """No function hides a module: ``import a.b as c`` gives the module."""
    hidden = []
    for name in map(name_of, MODULES):
        parent, _, leaf = name.rpartition(".")
        if parent and leaf != "__main__":
            module = importlib.import_module(name)
            hidden += [name] * (getattr(importlib.import_module(parent), leaf) is not module)
    assert hidden == ["npulab.target"]  # also the function of daily use


def test_modules_import_what_every_install_has() -> None:
    """What only an extra brings is asked for by ``needed``, which says so where it is missing."""
    have = {row["module"] for row in read_table(PACKAGES) if not row["extra"]}
    have |= {"npulab", *sys.stdlib_module_names, *BROUGHT}
    for path in MODULES:
        names = {name.partition(".")[0] for name in imported(path)}
        assert names <= have | OWN.get(name_of(path), set()), path


def test_target_is_a_function_and_a_module_in_either_order() -> None:
    for first, second in (
        ("import npulab", "from npulab.target import Target"),
        ("from npulab.target import Target", "import npulab"),
    ):
        code = f"{first}; {second}; print(type(npulab.target('vivante')) is Target)"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "True"


@pytest.mark.parametrize(
    "start", ["import npulab", "import npulab.cli; npulab.cli.main(['--version'])"]
)
def test_the_package_starts_light(start: str) -> None:
    code = f"import sys; {start}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_public_names_are_there() -> None:
    import npulab

    for name in npulab.__all__:
        assert getattr(npulab, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = npulab.nonsense


def test_top_level_holds_what_it_should() -> None:
    have = {
        path.name
        for path in PACKAGE.parent.iterdir()
        if not path.name.startswith(".") and path.suffix != ".egg-info"
    }
    assert have - {"build", "dist", "npulab-notebooks"} == {
        "pyproject.toml",
        "notebooks",
        "npulab",
        "captures",
        "tests",
        "README.md",
        "LICENSE",
    }


def test_the_table_of_rooms_is_what_the_code_says() -> None:
    import write_rooms  # which imports this module

    assert write_rooms.stored() == write_rooms.rooms_table(), (
        "renew it: python tests/tools/write_rooms.py"
    )


def test_files_are_found_by_words_of_their_purpose() -> None:
    import write_rooms  # which imports this module

    (found,) = write_rooms.files_about(["draws", "bisect"])
    assert found.startswith("notebook/widgets/bisect_view.js: Draws the bisect view")
    (found,) = write_rooms.files_about(["SVD", "reader"])
    assert found.startswith("registers/formats/svd.py: Reader of CMSIS-SVD")


def test_an_earlier_name_of_a_folders_targets_still_works_and_warns() -> None:
    target = importlib.import_module("npulab.target")
    with pytest.warns(
        DeprecationWarning,
        match=r"^npulab\.target\.Unanswerable is now npulab\.target\.Unsupported$",
    ):
        earlier = target.Unanswerable
    assert earlier is target.Unsupported


FOLDERS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
# Of all rooms together (tests/tools/density.py); a change that needs more raises it, with the
# reason in its commit.
MOST_NODES = 580_400


@pytest.fixture(scope="module")
def counted() -> dict[str, Counter[str]]:
    """What each room holds, counted in the worker that runs this file."""
    return density.rooms_of(PACKAGE)


@pytest.mark.parametrize("room", [".", *FOLDERS, "all"])
def test_no_room_gets_denser(counted: dict[str, Counter[str]], room: str) -> None:
    """The figures of a room are at most the held ones; its comments are at least as many."""
    held = density.held_figures()
    assert set(held) == set(counted)
    assert not density.worse(density.figures_of(counted[room]), held[room])


def test_the_package_does_not_grow_unseen(counted: dict[str, Counter[str]]) -> None:
    assert counted["all"]["nodes"] <= MOST_NODES


def test_the_figures_see_what_they_count(tmp_path: Path) -> None:
    code = '''
    def one(a, b, c, d, e, f, g):
        """A docstring is not counted."""
        # a comment
        # of two lines
        text = " more" * (a > b)
        return [x for y in c for x in (y if d else e)], (n := 3)
    '''
    (tmp_path / "a.py").write_text(textwrap.dedent(code))
    counts = density.counts_of(tmp_path / "a.py")
    assert counts["statements"] == 3
    assert counts["comments"] == counts["times"] == counts["many parameters"] == 1
    assert counts["conditional"] == counts["comprehensions"] == counts["nested"] == 1
    assert counts["walrus"] == 1
    figures = density.figures_of(counts)
    assert density.worse(figures, {**figures, "nodes": 0}) == [
        f"nodes: got {figures['nodes']:g}, allowed is 0"
    ]
    assert density.worse(figures, {**figures, "comments": 1})
    assert not density.worse(figures, figures)
