"""Which small changes of the package no test sees: ``python tests/tools/mutate.py [--count N]
[--seed S] [GROUP ...]``.

A mutant has one comparison, operator, number, condition, call of min or max, or raise changed.  It
is killed by a test of the normal run that fails, or that takes far longer than without it, and that
passes where the same is done without the change.

Which test runs which line is recorded first (``--record FOLDER`` keeps it for the next call; this
needs the package ``coverage``), each file of tests in a process of its own.  Then a mutant is shown
only to the tests that run its line: those of its room first, the quick ones first, up to
``--patience`` seconds. The tests are collected once.  A fork of that process gets the changed code
of the functions and forgets what functions have cached; changes of what runs while modules are
imported are shown to a new process. The package is copied, the checkout stays as it is.  Printed
are the mutants that survive and a table.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
GROUPS = {name: f"npulab/{name}/*.py" for name in ("registers", "layout", "quant", "captures")}
# tests of the source text, of the browser and of notebooks see no mutant or see it late
LEFT_OUT = ["tests/test_house.py", "tests/browser", "tests/notebook", "tests/tools", "notebooks"]
VALUES = "tests/support/test_values.py"
OPTIONS = [
    "-q",
    "-o",
    "addopts=",
    "-m",
    "not long and not fuzz",
    "--doctest-modules",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:nbval",
    "-p",
    "no:xdist",
    "-p",
    "no:benchmark",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
]
COMPARE: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATE: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.Pow: ast.Mult,
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Site(NamedTuple):
    """A place that can be changed: the number of its node in ``ast.walk``, its lines, what is
    changed there.
    """

    node: int
    line: int
    end: int
    kind: str


def sites(tree: ast.Module) -> list[Site]:
    """Every place of a module; texts of errors, annotations and formats of text are left out."""
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        for outer in _untouched(node)
        for inner in ast.walk(outer)
    }
    return [
        Site(number, *_lines(node), kind)
        for number, node in enumerate(ast.walk(tree))
        if id(node) not in skipped
        for kind in _kinds(node)
    ]


def _lines(node: Any) -> tuple[int, int]:
    inner = node.test if isinstance(node, ast.If | ast.IfExp) else node
    return inner.lineno, inner.end_lineno


def _untouched(node: ast.AST) -> list[ast.AST]:
    parts = [getattr(node, name, None) for name in ("annotation", "returns")]
    parts += [node] if isinstance(node, ast.JoinedStr) else []
    parts += [node.exc] if isinstance(node, ast.Raise) else []
    parts += (
        [node.value] if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else []
    )
    return [one for one in parts if isinstance(one, ast.AST)]


def _kinds(node: ast.AST) -> Sequence[str]:
    match node:
        case ast.Compare():
            return ["compare"]
        case ast.BinOp(left=left, op=op) if type(op) in OPERATE and not (
            isinstance(left, ast.Constant) and isinstance(left.value, str)
        ):
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


def mutated(source: str, site: Site) -> tuple[ast.Module, str, str]:
    """The tree of a mutant with the lines of the source, and what stood and stands there."""
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
            node.test = ast.copy_location(ast.Constant(site.kind == "always"), node.test)
            after = str(node.test.value)
        case "call":
            node.func.id = CALLS[node.func.id]
        case _:

            class Replace(ast.NodeTransformer):
                def visit(self, one: ast.AST) -> Any:
                    if one is not node:
                        return self.generic_visit(one)
                    return (
                        ast.copy_location(ast.Pass(), one)
                        if isinstance(one, ast.Raise)
                        else one.operand
                    )  # type: ignore[attr-defined]

            tree, after = (
                Replace().visit(tree),
                "nothing" if site.kind == "raise" else ast.unparse(node.operand),
            )
    return ast.fix_missing_locations(tree), before, after or ast.unparse(node)


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


def digest(*paths: Path) -> str:
    """A sum over files; a change of any of them changes it."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


class Test(NamedTuple):
    """What is recorded of a test: its seconds, and the lines that it runs, by the file's name in
    the checkout.
    """

    seconds: float
    lines: dict[str, set[int]]


class Mutants:
    """A plugin of pytest: where tests would be run, mutants are."""

    def __init__(self, root: Path, given: argparse.Namespace) -> None:
        self.root, self.given = root, given
        self.tests: dict[str, Test] = {}
        self.sound: dict[tuple[str, ...], bool] = {}

    def pytest_runtestloop(self, session: Any) -> bool:
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        gc.unfreeze()
        self.items = {item.nodeid: item for item in session.items}
        if len(self.items) < len(session.items):
            raise ValueError("two tests of one name")
        self.record()
        self.read()
        self.functions: dict[str, list[FunctionType]] = defaultdict(list)
        for one in gc.get_objects():
            if isinstance(one, FunctionType) and one.__code__.co_filename.startswith(
                str(self.root / "npulab")
            ):
                self.functions[one.__code__.co_filename].append(one)
        self.caches = [
            one
            for one in gc.get_objects()
            if isinstance(one, functools._lru_cache_wrapper)
            and str(one.__module__).startswith("npulab")
        ]
        gc.collect()
        gc.freeze()
        if not self.given.record_only:
            self.judge()
        return True

    # what runs what

    def record(self) -> None:
        """The lines and seconds of each test, a file of tests at a time, each in a fork; those
        that are recorded already stay.
        """
        index = self.given.record / "files.json"
        known = json.loads(index.read_text()) if index.exists() else {}
        files: dict[str, list[str]] = defaultdict(list)
        for name in self.items:
            files[name.partition("::")[0]].append(name)
        new = {
            file: names
            for file, names in sorted(files.items())
            if known.get(file, {}).get("sum") != digest(self.root / file)
        }
        for n, (file, names) in enumerate(new.items(), 1):
            number = known.get(file, {}).get(
                "number", 1 + max((one["number"] for one in known.values()), default=-1)
            )
            said, seconds, _ = self.forked(
                lambda names=names, number=number: self.recorded(names, number), 3600.0
            )  # type: ignore[misc]
            print(
                f"\n{n} of {len(new)}: {file}, {len(names)} tests, {seconds:.0f} seconds, status {said}",
                flush=True,
            )
            known[file] = {"number": number, "sum": digest(self.root / file)}
            index.write_text(json.dumps(known))

    def recorded(self, names: list[str], n: int) -> int:
        import coverage

        cov = coverage.Coverage(
            data_file=str(self.given.record / f"lines.{n}"),
            branch=True,
            source=[str(self.root / "npulab")],
        )
        seconds = {}
        cov.start()
        for name, following in zip(names, [*names[1:], None], strict=True):
            cov.switch_context(name)
            begun = time.monotonic()
            failed = self.one(name, following)
            seconds[name] = -1.0 if failed else time.monotonic() - begun
        cov.stop()
        with warnings.catch_warnings(action="ignore"):  # tests that run no line of the package
            cov.save()
        (self.given.record / f"seconds.{n}.json").write_text(json.dumps(seconds))
        return 0

    def read(self) -> None:
        import coverage

        seconds: dict[str, float] = {}
        lines: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for path in self.given.record.glob("seconds.*.json"):
            seconds |= json.loads(path.read_text())
            data = coverage.CoverageData(str(path.with_name(f"lines.{path.name.split('.')[1]}")))
            if not Path(data.data_filename()).exists():
                continue  # no line was run
            data.read()
            for file in data.measured_files():
                name = file.rpartition("/checkout/")[2]
                for line, contexts in data.contexts_by_lineno(file).items():
                    for context in contexts:
                        lines[context][name].add(line)
        known = {
            name: value for name, value in seconds.items() if value >= 0 and name in self.items
        }
        print(
            f"{len(known)} tests, {sum(known.values()):.0f} seconds; fail where they are recorded: "
            f"{[name for name, value in seconds.items() if value < 0]}",
            flush=True,
        )
        self.tests = {name: Test(value, lines.get(name, {})) for name, value in known.items()}

    def chosen(self, path: str, wanted: set[int] | None) -> list[str]:
        """Tests that run one of the lines, or any of the file's: those of its room first, the
        quick ones first.
        """
        room = path.split("/")[1]
        found = [
            (name, one)
            for name, one in self.tests.items()
            if path in one.lines and (wanted is None or one.lines[path] & wanted)
        ]
        found.sort(
            key=lambda pair: (pair[1].seconds > 0.5, f"/{room}/" not in pair[0], pair[1].seconds)
        )
        kept, whole = [], 0.0
        for name, one in found:
            whole += one.seconds
            if whole > self.given.patience and kept:
                break
            kept.append(name)
        return kept

    # processes

    def one(self, name: str, following: str | None) -> bool:
        """Whether a test fails."""
        session = self.items[name].session
        before = session.testsfailed
        self.items[name].config.hook.pytest_runtest_protocol(
            item=self.items[name], nextitem=following and self.items[following]
        )
        return session.testsfailed > before

    def forked(
        self, work: Callable[[], int], limit: float, heard: bool = False
    ) -> tuple[int, float, str]:
        """What a function says in a forked process (-1: no end), its seconds, and its last line."""
        begun = time.monotonic()
        told = self.root.parent / "told"
        told.write_text("")
        child = os.fork()
        if child == 0:
            status = 9
            try:
                os.setsid()
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, 1)
                os.dup2(null, 2)
                status = work()
            finally:
                os._exit(status)
        status = -1
        while time.monotonic() - begun < limit:
            ended, code = os.waitpid(child, os.WNOHANG)
            if ended:
                status = os.waitstatus_to_exitcode(code) or 0
                break
            time.sleep(0.01)
        else:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return status, time.monotonic() - begun, told.read_text()

    def changed(self, path: Path, tree: ast.Module) -> bool:
        """Gives the functions of a module the code of a changed one; False if it does not fit."""
        found: dict[tuple[str, int], list[CodeType]] = defaultdict(list)
        for code in _codes(compile(tree, str(path), "exec", dont_inherit=True)):
            found[code.co_qualname, code.co_firstlineno].append(code)
        for function in self.functions[str(path)]:
            codes = found[function.__code__.co_qualname, function.__code__.co_firstlineno]
            if len(codes) > 1:
                codes = [one for one in codes if _begin(one) == _begin(function.__code__)]
            if not codes:
                continue  # it stood in a branch that is never taken
            if len(codes) > 1 or len(codes[0].co_freevars) != len(function.__code__.co_freevars):
                return False
            function.__code__ = codes[0]
        for cache in self.caches:
            cache.cache_clear()
        return True

    def shown(self, path: Path, tree: ast.Module, names: Sequence[str]) -> tuple[str, str]:
        """What the tests say of a changed module, in a fork: "passed", "failed", "no end" or
        "unfit"; and the test that did.
        """

        def work() -> int:
            if not self.changed(path, tree):
                return 7
            for n, name in enumerate(names):
                (self.root.parent / "told").write_text(name)
                if self.one(name, names[n + 1] if n + 1 < len(names) else None):
                    return 1
            return 0

        status, _, last = self.forked(
            work, 4 * sum(self.tests[name].seconds for name in names) + 20
        )
        return {0: "passed", 7: "unfit", -1: "no end"}.get(status, "failed"), last

    def anew(self, names: Sequence[str]) -> tuple[str, str]:
        """The same of the files as they stand, in a new process."""
        listed = self.root.parent / "names"
        listed.write_text("\n".join(names))
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "pytest", "-x", *OPTIONS, f"@{listed}"],
                cwd=self.root,
                capture_output=True,
                timeout=4 * sum(self.tests[name].seconds for name in names) + 60,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "no end", names[-1]
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+::\S+)", ended.stdout, re.MULTILINE)
        return "passed" if ended.returncode == 0 else "failed", failed[0] if failed and failed[
            0
        ] in names else names[-1]

    # mutants

    def killed(self, path: Path, site: Site) -> tuple[bool, str]:
        """Whether a test sees a mutant, and how it was looked at."""
        source = path.read_text(encoding="utf-8")
        name = str(path.relative_to(self.root))
        tree, _, _ = mutated(source, site)
        same = ast.parse(source)
        lines = set(range(site.line, site.end + 1))
        within = _within(same, site)
        how = "no test runs it"
        try:
            if within is not None:
                names = self.chosen(name, lines) or self.chosen(name, within)
                if names:
                    how = f"{len(names)} tests"
                    path.write_text(ast.unparse(tree), encoding="utf-8")
                    said, last = self.shown(path, tree, names)
                    if said in ("failed", "no end"):
                        until = names[: names.index(last) + 1] if last in names else names
                        path.write_text(ast.unparse(same), encoding="utf-8")
                        if self.holds(
                            (name, "fork", *until), lambda: self.shown(path, same, until)[0]
                        ):
                            return True, how
                        how += f", {last} fails without the change too"
                        print(f"\n  unsound: {last} for {name}", flush=True)
                        self.tests.pop(last, None)
                        path.write_text(source, encoding="utf-8")
                        return self.killed(path, site)
                    if said == "passed" and site.line not in self.imported.get(name, set()):
                        return False, how
            names = (self.chosen(name, self.users(same, site, name)) or self.chosen(name, None))[
                :400
            ]
            if within is None:  # these look at what is defined and run no line of it
                names = [one for one in self.tests if one.startswith(VALUES)] + [
                    one for one in names if not one.startswith(VALUES)
                ]
            if names:
                how = f"{len(names)} tests anew"
                path.write_text(ast.unparse(tree), encoding="utf-8")
                said, last = self.anew(names)
                if said != "passed":
                    path.write_text(ast.unparse(same), encoding="utf-8")
                    return self.holds((name, "anew", *names), lambda: self.anew(names)[0]), how
            return False, how
        finally:
            path.write_text(source, encoding="utf-8")

    def holds(self, key: tuple[str, ...], run: Callable[[], str]) -> bool:
        """Whether the tests pass without the change; asked once."""
        if key not in self.sound:
            self.sound[key] = run() == "passed"
        return self.sound[key]

    def users(self, tree: ast.Module, site: Site, name: str) -> set[int] | None:
        """The lines that use what a line outside of functions defines; None: any of the file."""
        for node in tree.body:
            if node.lineno <= site.line <= (node.end_lineno or 0):
                if isinstance(node, ast.Assign | ast.AnnAssign):
                    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                    called = {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}
                    used = {
                        one.lineno
                        for one in ast.walk(tree)
                        if isinstance(one, ast.Name)
                        and one.id in called
                        and isinstance(one.ctx, ast.Load)
                    }
                    found = used - self.imported.get(name, set())
                    return found or None
                found = set(range(node.lineno, (node.end_lineno or 0) + 1)) - self.imported.get(
                    name, set()
                )
                return found or None
        return None

    @functools.cached_property
    def imported(self) -> dict[str, set[int]]:
        return {
            name: set(lines)
            for name, lines in json.loads((self.given.record / "imported.json").read_text()).items()
        }

    def judge(self) -> None:
        given = self.given
        table = ["| group | places | mutants | killed | |", "| --- | --- | --- | --- | --- |"]
        for group in given.groups:
            pool = [
                (path, site)
                for path in sorted(self.root.glob(GROUPS[group]))
                for site in sites(ast.parse(path.read_text(encoding="utf-8")))
            ]
            drawn = random.Random(given.seed).sample(
                pool, min(given.skip + given.count, len(pool))
            )[given.skip :]
            drawn = [one for one in drawn if re.search(given.only, f"{one[0].name}:{one[1].line}")]
            killed, done, begun = 0, 0, time.monotonic()
            for path, site in drawn:
                if time.monotonic() > begun + given.seconds:
                    break
                yes, how = self.killed(path, site)
                done, killed = done + 1, killed + yes
                if not yes:
                    _, before, after = mutated(path.read_text(encoding="utf-8"), site)
                    print(
                        f"\n  survives: {path.relative_to(self.root)}:{site.line} {site.kind}: {before[:90]!r} -> {after[:90]!r} ({how})",
                        flush=True,
                    )
            table.append(
                f"| {group} | {len(pool)} | {done} | {killed} | {100 * killed / max(done, 1):.0f} % |"
            )
            print(table[-1], f"{time.monotonic() - begun:.0f} seconds", flush=True)
        print("\n".join(table))


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def _begin(code: CodeType) -> tuple[int, int]:
    return min(
        (line, column)
        for line, _, column, end in code.co_positions()
        if line and column is not None and end
    )


def _within(tree: ast.Module, site: Site) -> set[int] | None:
    """The lines of the body of the function that a place stands in, None outside of all."""
    found = None
    place = [*ast.walk(tree)][site.node]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
            inner is place for part in node.body for inner in ast.walk(part)
        ):
            found = set(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="mutants of each group")
    parser.add_argument("--skip", type=int, default=0, help="so many of the first ones")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of each group, at most")
    parser.add_argument(
        "--patience",
        type=float,
        default=60.0,
        help="seconds of the tests that a mutant is shown to",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", default="", help="mutants whose file and line match, as found.py:30"
    )
    parser.add_argument(
        "--record", type=Path, help="a folder that keeps which test runs which line"
    )
    parser.add_argument("--record-only", action="store_true")
    parser.add_argument("groups", nargs="*", default=[*GROUPS])
    given = parser.parse_args()
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"
    import coverage
    import pytest

    with tempfile.TemporaryDirectory(prefix="npulab-mutate-") as folder:
        given.record = (given.record or Path(folder) / "record").absolute()
        given.record.mkdir(parents=True, exist_ok=True)
        root = copied(Path(folder))
        package = given.record / "package"
        given.known = package.exists() and package.read_text() == digest(
            *sorted(root.glob("npulab/**/*.py"))
        )
        if not given.known:
            for one in given.record.iterdir():
                one.unlink()
        os.chdir(root)
        sys.path.insert(0, str(root))
        os.environ["PYTHONPATH"] = str(root)
        os.environ["TMPDIR"] = tempfile.tempdir = str(Path(folder) / "files")
        Path(tempfile.tempdir).mkdir()
        cov = coverage.Coverage(
            data_file=str(given.record / "lines.imports"),
            branch=True,
            source=[str(root / "npulab")],
        )
        mutants = Mutants(root, given)

        class Collected:
            def pytest_collection_finish(self) -> None:
                if not given.known:
                    cov.stop()
                    cov.save()
                    data = cov.get_data()
                    lines = {
                        str(Path(file).relative_to(root)): data.lines(file)
                        for file in data.measured_files()
                    }
                    (given.record / "imported.json").write_text(json.dumps(lines))
                    package.write_text(digest(*sorted(root.glob("npulab/**/*.py"))))

        if not given.known:
            cov.start()
        return int(
            pytest.main(
                [*OPTIONS, *(f"--ignore={name}" for name in LEFT_OUT), "npulab", "tests"],
                plugins=[mutants, Collected()],
            )
        )


if __name__ == "__main__":
    sys.exit(main())
