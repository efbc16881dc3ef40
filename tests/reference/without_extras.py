"""npulab as the base install has it: no program of a run can import what an extra brings.

environment = without_extras(folder)         # of programs that cannot
python tests/reference/without_extras.py     # in such an environment: commands and calls from standard input, as JSON
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

# what only extras bring, test included
MODULES = (
    "clang",
    "systemrdl",
    "numba",
    "llvmlite",
    "ethosu",
    "ai_edge_litert",
    "onnx",
    "onnxruntime",
    "tflite_micro",
    "bitstruct",
    "cantools",
    "cmsis_svd",
    "nbval",
    "hypothesis",
    "playwright",
)
BLOCKER = """import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Blocker())
"""


def without_extras(folder: Path, *more: str) -> dict[str, str]:
    """The environment of programs that have no package of an extra, nor ``more``; children have
    it too.
    """
    (folder / "sitecustomize.py").write_text(BLOCKER.format(modules=(*MODULES, *more)))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))),
    }


def command(arguments: list[str]) -> dict[str, Any]:
    """What a command prints, and its exit status; the traceback of what it raises."""
    from npulab import cli

    out, err = io.StringIO(), io.StringIO()
    status: Any = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(arguments)
        except SystemExit as error:  # JupyterLab's own
            status = error.code or 0
        except BaseException:
            traceback.print_exc()
    return {"status": status, "out": out.getvalue(), "err": err.getvalue()}


def call(code: str) -> dict[str, Any]:
    """What a line of Python raises."""
    try:
        exec(code, {})
    except Exception as error:
        return {
            "kinds": [kind.__name__ for kind in type(error).__mro__],
            "text": str(error),
            "before": repr(
                error.__cause__ or (None if error.__suppress_context__ else error.__context__)
            ),
        }
    return {"kinds": [], "text": "", "before": "None"}


def modules() -> dict[str, Any]:
    """What importing each module of npulab raises, where it raises."""
    import npulab

    root = Path(npulab.__file__).parent
    found = {}
    for path in sorted(root.rglob("*.py")):
        name = ".".join(("npulab", *path.relative_to(root).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        if path.name == "__main__.py" or "jupyter" in path.parts:
            continue
        try:
            importlib.import_module(name)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    answers = {
        "commands": {name: command(arguments) for name, arguments in asked["commands"].items()},
        "calls": {name: call(code) for name, code in asked["calls"].items()},
        "modules": modules() if asked["modules"] else {},
    }
    json.dump(answers, sys.stdout)
