"""How dense and how large the code of a Python tree is, room by room.

    python tests/tools/density.py [FOLDER] [--depth N]    a row for each room and a sum
    python tests/tools/density.py --store                 lower the figures that tests hold

The figures are counted over the syntax tree, so that line breaks and formatters change nothing.
Nodes are what a reader has to take in: statements, expressions, parts of f-strings, arguments and
keywords, without docstrings.  Conditional expressions, comprehensions (nested: inside another one,
or with two loops) and assignment expressions fold several steps into one statement; they are
counted for 1,000 statements.  A text or list times a truth value, functions over 60 lines and
functions of 7 parameters are counted as they are.  A comment block is one or more comment lines in
a row.

``tests/tools/density.csv`` holds the figures that no room may exceed (``tests/test_house.py``).
"""

from __future__ import annotations

import argparse
import ast
import csv
import io
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "npulab"
HELD = Path(__file__).with_suffix(".csv")
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
COUNTED = (
    ast.stmt,
    ast.expr,
    ast.arg,
    ast.keyword,
    ast.comprehension,
    ast.ExceptHandler,
    ast.withitem,
    ast.alias,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MOST_LINES, MOST_PARAMETERS = 60, 6
# Counted for 1,000 statements; then for one statement; then as they are.
OFTEN = ("conditional", "comprehensions", "nested", "walrus")
EACH = ("nodes", "comments")
COUNTS = ("times", "long functions", "many parameters")


def rooms_of(folder: Path, depth: int = 1) -> dict[str, Counter[str]]:
    """The counts of each room, and of all of them under "all"."""
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(folder.rglob("*.py")):
        if "template/files" in path.as_posix():
            continue
        room = "/".join(path.relative_to(folder).parts[:-1][:depth]) or "."
        rooms[room] += counts_of(path)
    return {**rooms, "all": sum(rooms.values(), Counter())}


def figures_of(counts: Counter[str]) -> dict[str, float]:
    """The figures by name; ``nodes`` and ``comments`` for a statement, rounded to 3 decimals."""
    statements = max(counts["statements"], 1)
    figures = {name: round(1000 * counts[name] / statements, 1) for name in OFTEN}
    figures |= {name: round(counts[name] / statements, 3) for name in EACH}
    return figures | {name: counts[name] for name in COUNTS}


def worse(figures: dict[str, float], held: dict[str, float]) -> list[str]:
    """The figures that are worse than the held ones: more of all, but fewer comments."""
    found = []
    for name, limit in held.items():
        got = figures[name]
        if got < limit if name == "comments" else got > limit:
            found.append(f"{name}: got {got:g}, allowed is {limit:g}")
    return found


def held_figures() -> dict[str, dict[str, float]]:
    """The figures in ``density.csv``, by room."""
    with HELD.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {row.pop("room"): {name: float(text) for name, text in row.items()} for row in rows}


def counts_of(path: Path) -> Counter[str]:
    """Count what one file holds."""
    text = path.read_text(encoding="utf-8")
    nodes = nodes_of(ast.parse(text))
    functions = [node for node in nodes if isinstance(node, FUNCTIONS)]
    every = [node for node in nodes if isinstance(node, COMPREHENSIONS)]
    kinds = Counter(map(type, nodes))
    counts: Counter[str] = Counter(files=1, comments=_comment_blocks(text))
    docstrings = sum(map(_has_docstring, nodes))
    # A docstring is a statement and the constant in it.
    counts["statements"] = _of_kinds(kinds, ast.stmt) - docstrings
    counts["nodes"] = _of_kinds(kinds, COUNTED) - 2 * docstrings
    counts["conditional"] = kinds[ast.IfExp]
    counts["walrus"] = kinds[ast.NamedExpr]
    counts["times"] = sum(map(_is_text_times_flag, nodes))
    counts["long functions"] = sum(_lines(node) > MOST_LINES for node in functions)
    counts["many parameters"] = sum(len(_parameters(node)) > MOST_PARAMETERS for node in functions)
    counts["comprehensions"] = len(every)
    counts["nested"] = len(_nested(every))
    return counts


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """Every node of a tree, as ``ast.walk`` gives them, in 60 % of the time."""
    found = [tree]
    for node in found:  # which grows on the way
        for name in node._fields:
            value = getattr(node, name)
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [each for each in value if isinstance(each, ast.AST)]
    return found


def _of_kinds(kinds: Counter[type], counted: type | tuple[type, ...]) -> int:
    return sum(count for kind, count in kinds.items() if issubclass(kind, counted))


def _has_docstring(node: ast.AST) -> bool:
    if not isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
        return False
    return ast.get_docstring(node, clean=False) is not None


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _nested(comprehensions: list[ast.AST]) -> set[ast.AST]:
    """The comprehensions that have two loops or lie inside another comprehension."""
    nested = {node for node in comprehensions if len(node.generators) > 1}
    for outer in comprehensions:
        inner = (node for node in nodes_of(outer) if isinstance(node, COMPREHENSIONS))
        nested |= set(inner) - {outer}
    return nested


def _comment_blocks(text: str) -> int:
    blocks, last = 0, -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            blocks += token.start[0] != last + 1
            last = token.start[0]
    return blocks


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [arg.arg for arg in every if arg.arg not in ("self", "cls")]


def _is_text_times_flag(node: ast.AST) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    left, right = node.left, node.right
    return (_is_text(left) and _is_flag(right)) or (_is_text(right) and _is_flag(left))


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes))
    return isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple))


def _is_flag(node: ast.AST) -> bool:
    """True for a truth value by its form: a comparison, not, and, or, or ``bool(...)``."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "bool"
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, (ast.Compare, ast.BoolOp))


def store(rooms: dict[str, Counter[str]]) -> None:
    """Write the figures into ``density.csv``; a figure that is held already is only improved."""
    held = held_figures() if HELD.exists() else {}
    names = [*OFTEN, *EACH, *COUNTS]
    with HELD.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["room", *names], lineterminator="\n")
        writer.writeheader()
        for room, counts in rooms.items():
            figures = figures_of(counts)
            for name, limit in held.get(room, {}).items():
                better = max if name == "comments" else min
                figures[name] = better(figures[name], limit)
            writer.writerow({"room": room} | {name: f"{figures[name]:g}" for name in names})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", default=PACKAGE, type=Path)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--store", action="store_true")
    options = parser.parse_args()
    if options.store:
        store(rooms_of(PACKAGE))
        return
    names = [*EACH, *OFTEN, *COUNTS]
    print(f"{'room':22s} {'statements':>10s} {'nodes':>8s} ", *(f"{name:>14s}" for name in names))
    for room, counts in rooms_of(options.folder, options.depth).items():
        figures = figures_of(counts)
        columns = [f"{figures[name]:14g}" for name in names]
        print(f"{room:22s} {counts['statements']:10d} {counts['nodes']:8d} ", *columns)


if __name__ == "__main__":
    main()
