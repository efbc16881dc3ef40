"""Readers and type checkers see the public names of npulab in its stub, ``__init__.pyi``."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import npulab

STUB = Path(npulab.__file__).with_suffix(".pyi")
MYPY = """[mypy]
ignore_missing_imports = True
[mypy-numpy.*,pandas.*,matplotlib.*,anywidget.*,ipywidgets.*,traitlets.*,construct.*,IPython.*]
follow_imports = skip
follow_imports_for_stubs = True
[mypy-npulab.*]
ignore_errors = True
"""


def stated() -> dict[str, str]:
    """The public names in the stub with the modules that define them."""
    imports = [
        node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ImportFrom)
    ]
    return {alias.name: f"npulab.{node.module}" for node in imports for alias in node.names}


def test_each_name_is_what_its_module_defines() -> None:
    for name, module in stated().items():
        assert getattr(npulab, name) is getattr(importlib.import_module(module), name)
    assert npulab.__all__ == sorted([*stated(), "target"])
    assert set(npulab.__all__) <= set(dir(npulab))


def test_a_type_checker_sees_every_public_name_from_outside(tmp_path: Path) -> None:
    names = [*npulab.__all__, "__version__"]
    lines = [f"reveal_type(npulab.{name})" for name in names]
    # a name that is not public is an error, so that the check itself can fail
    lines += ["npulab.nonsense", "npulab.emulate(layer=1)"]
    (tmp_path / "user.py").write_text("\n".join(["import npulab", *lines]))
    # numpy's own types take most of the time, and no public name is one of them
    (tmp_path / "mypy.ini").write_text(MYPY)
    # Kept from run to run: without it each run would read the types of every module again (4 s).
    cache = f"--cache-dir={STUB.parents[1] / '.mypy_cache' / 'user'}"
    command = [sys.executable, "-m", "mypy", cache, "user.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    revealed = dict(
        re.findall(r'^user.py:(\d+): note: Revealed type is "(.*)"$', done.stdout, re.M)
    )
    assert len(revealed) == len(names), done.stdout + done.stderr
    assert "Any" not in revealed.values()
    errors = re.findall(r"^user.py:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.M)
    last = len(names) + 2
    assert {(str(last), "attr-defined"), (str(last + 1), "call-arg")} <= set(errors)
    assert {line for line, _ in errors} == {str(last), str(last + 1)}
