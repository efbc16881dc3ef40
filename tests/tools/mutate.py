"""Which small changes of the package no test sees: ``python tests/tools/mutate.py [--count N] [--seed S] [GROUP ...]``.

A mutant has one comparison, operator, number, condition, call of min or max, or raise changed.  It is
killed by the first test of its group that fails, or that takes far longer than without it.  The
package is copied, the checkout stays as it is; tests run in a forked process that has imported the
libraries before.  Printed are the mutants that survive and a table.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
# the files of a group, and its tests, those first that are quick and see most
GROUPS: dict[str, tuple[str, list[str]]] = {
    "registers": ("npulab/registers/*.py", ["tests/registers/test_bits.py", "tests/registers/test_bits_fast.py",
                                            "tests/registers/test_expansion.py", "tests/registers/test_commands.py", "tests/registers/test_shown.py",
                                            "npulab/registers"]),
    "layout": ("npulab/layout/*.py", ["npulab/layout", "tests/layout/test_streams.py", "tests/layout/test_layout.py"]),
    "quant": ("npulab/quant/*.py", ["npulab/quant", "tests/quant/test_quant.py", "tests/quant/test_ulps.py", "tests/quant/test_rounding.py",
                                    "tests/quant/test_hybrid.py", "tests/quant/test_operations.py"]),
    "captures": ("npulab/captures/*.py", ["npulab/captures", "tests/captures", "tests/cli/test_hostile.py", "tests/contract/test_golden_files.py"]),
}
COMPARE: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
OPERATE: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr, ast.Pow: ast.Mult}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
PATIENCE = 4.0  # a mutant may take that many times the seconds of the tests without it, and 20 more


class Site(NamedTuple):
    """A place that can be changed: the number of its node in ``ast.walk``, its line, what is changed there."""

    node: int
    line: int
    kind: str


def sites(tree: ast.Module) -> list[Site]:
    """Every place of a module; texts of errors, annotations and formats of text are left out."""
    skipped = {id(inner) for node in ast.walk(tree) for outer in _untouched(node) for inner in ast.walk(outer)}
    return [Site(number, node.lineno, kind) for number, node in enumerate(ast.walk(tree))
            if id(node) not in skipped for kind in _kinds(node)]


def _untouched(node: ast.AST) -> list[ast.AST]:
    parts = [getattr(node, name, None) for name in ("annotation", "returns")]
    parts += [node] if isinstance(node, ast.JoinedStr) else []
    parts += [node.exc] if isinstance(node, ast.Raise) else []
    parts += [node.value] if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else []
    return [one for one in parts if isinstance(one, ast.AST)]


def _kinds(node: ast.AST) -> Sequence[str]:
    match node:
        case ast.Compare():
            return ["compare"]
        case ast.BinOp(left=left, op=op) if type(op) in OPERATE and not (isinstance(left, ast.Constant) and isinstance(left.value, str)):
            return ["operator"]
        case ast.AugAssign(op=op) if type(op) in OPERATE:
            return ["operator"]
        case ast.BoolOp():
            return ["and or"]
        case ast.Constant(value=bool()):
            return ["truth"]
        case ast.Constant(value=int()):
            return ["number"]
        case ast.If() | ast.IfExp():
            return ["always", "never"]
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return ["sign"]
        case ast.Raise():
            return ["raise"]
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            return ["call"]
    return []


def mutated(source: str, site: Site) -> tuple[str, str, str]:
    """The source of a mutant, and what stood and stands there."""
    tree = ast.parse(source)
    node: Any = [*ast.walk(tree)][site.node]
    shown = node.test if site.kind in ("always", "never") else node
    before, after = ast.unparse(shown), ""
    match site.kind:
        case "compare":
            node.ops[0] = COMPARE[type(node.ops[0])]()
        case "operator":
            node.op = OPERATE[type(node.op)]()
        case "and or":
            node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        case "truth":
            node.value = not node.value
        case "number":
            node.value += 1
        case "always" | "never":
            node.test = ast.Constant(site.kind == "always")
            after = str(node.test.value)
        case "call":
            node.func.id = CALLS[node.func.id]
        case _:
            class Replace(ast.NodeTransformer):
                def visit(self, one: ast.AST) -> Any:
                    if one is not node:
                        return self.generic_visit(one)
                    return ast.copy_location(ast.Pass(), one) if isinstance(one, ast.Raise) else one.operand  # type: ignore[attr-defined]

            tree, after = Replace().visit(tree), "nothing" if site.kind == "raise" else ast.unparse(node.operand)
    return ast.unparse(ast.fix_missing_locations(tree)), before, after or ast.unparse(node)


def tested(tests: Sequence[str], limit: float) -> tuple[str, float]:
    """What the tests say, in a forked process: "passed", "failed" or "no end"; and their seconds."""
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        status = 9
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 1)
            os.dup2(null, 2)
            import pytest

            status = int(pytest.main(["-x", "-q", "-o", "addopts=", "-m", "not long and not fuzz", "--doctest-modules", "-p", "no:cacheprovider",
                                      "-p", "no:nbval", "-p", "no:xdist", "-p", "no:benchmark",
                                      "-W", "ignore::pytest.PytestAssertRewriteWarning", *tests]))
        finally:
            os._exit(status)
    while time.monotonic() - begun < limit:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return "passed" if status == 0 else "failed", time.monotonic() - begun
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "no end", limit


def copied(folder: Path) -> Path:
    """The package and its tests; captures and public data are linked."""
    root = folder / "checkout"
    for name in ("npulab", "tests"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for name in ("captures", "notebooks", "README.md"):
        (root / name).symlink_to(ROOT / name)
    if (ROOT.parent / "shared").exists():
        (folder / "shared").symlink_to(ROOT.parent / "shared")
    return root


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="mutants of each group")
    parser.add_argument("--skip", type=int, default=0, help="so many of the first ones")
    parser.add_argument("--seconds", type=float, default=600.0, help="of each group, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="mutants whose file and line match, as found.py:30")
    parser.add_argument("groups", nargs="*", default=[*GROUPS])
    given = parser.parse_args()
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"
    sys.dont_write_bytecode = True
    import hypothesis  # noqa: F401
    import matplotlib  # noqa: F401
    import pandas  # noqa: F401
    import pytest  # noqa: F401

    table = ["| group | places | mutants | killed | |", "| --- | --- | --- | --- | --- |"]
    with tempfile.TemporaryDirectory(prefix="npulab-mutate-") as folder:
        root = copied(Path(folder))
        os.chdir(root)
        sys.path.insert(0, str(root))
        for name in given.groups:
            pattern, tests = GROUPS[name]
            pool = [(path, site) for path in sorted(root.glob(pattern)) for site in sites(ast.parse(path.read_text(encoding="utf-8")))]
            drawn = random.Random(given.seed).sample(pool, min(given.skip + given.count, len(pool)))[given.skip:]
            drawn = [one for one in drawn if re.search(given.only, f"{one[0].name}:{one[1].line}")]
            said, whole = tested(tests, 3600.0)
            if said != "passed":
                print(f"{name}: the tests do not pass without a change", flush=True)
                return 2
            print(f"{name}: the tests take {whole:.0f} seconds", flush=True)
            killed, done, end = 0, 0, time.monotonic() + given.seconds
            for path, site in drawn:
                if time.monotonic() > end:
                    break
                source = path.read_text(encoding="utf-8")
                text, before, after = mutated(source, site)
                path.write_text(text, encoding="utf-8")
                said, _ = tested(tests, PATIENCE * whole + 20)
                path.write_text(source, encoding="utf-8")
                done, killed = done + 1, killed + (said != "passed")
                if said == "passed":
                    print(f"  survives: {path.relative_to(root)}:{site.line} {site.kind}: {before[:90]!r} -> {after[:90]!r}", flush=True)
            table.append(f"| {name} | {len(pool)} | {done} | {killed} | {100 * killed / max(done, 1):.0f} % |")
    print("\n".join(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
