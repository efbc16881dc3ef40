"""Run the notebooks and store their outputs, the same bytes on every run.

    python tests/tools/store_notebooks.py             # every notebook, in place
    python tests/tools/store_notebooks.py --check     # exit 1 where a run would store something else

What the last cell prints is the answer of a notebook; it is written into the first cell too.

This is the only writer of stored outputs, and of ``npulab/notebook/stored``: what the cells that call
``show_stored`` give where no package is missing.  Text that could not be the same again (an
address, a path, a time) is refused.  Pictures are stored, but a check does not compare their
pixels.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from npulab.notebook import stored

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
WIDGET = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
VOLATILE = {
    r"0x7[0-9a-f]{10,}": "a memory address",
    r"ipykernel_\d+": "a kernel's number",
    r"\d(\.\d+)?\s?it/s": "a rate",
    r"#T_[0-9a-f]{5}": "a random style name",
    r"/(home|root|tmp|work|Users)/\w": "a path of this machine",
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d": "a time stamp",
    stored.BEGINS: "a result of another run, for a package is missing",
}
METADATA_KEPT = ("tags", "jupyter")  # of a cell; jupyter says that its source is folded
ANSWER = re.compile(r"^\*\*Answer\.\*\* .*$", re.MULTILINE)
KEPT = re.compile(r'show_stored\("([a-z0-9-]+)"')


def run(path: Path) -> Any:
    """The notebook with the outputs of a fresh run, normalised."""
    notebook = nbformat.read(path, 4)
    client = NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute(
        stderr=subprocess.DEVNULL
    )  # the kernel's own warnings say nothing of the notebook
    notebook.metadata = nbformat.from_dict(METADATA)
    count = 0
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict(
            {name: value for name, value in cell.metadata.items() if name in METADATA_KEPT}
        )
        if cell.cell_type == "code":
            count += 1
            cell.execution_count = count
            for output in cell.outputs:
                normalise(output, count)
    first = notebook.cells[0]
    first.source = ANSWER.sub(lambda _: f"**Answer.** {printed_last(notebook)}", first.source)
    nbformat.validate(notebook)
    return notebook


def printed_last(notebook: Any) -> str:
    """What the last cell prints, on one line."""
    return " ".join(
        "".join(output.get("text", "") for output in notebook.cells[-1].outputs).split()
    )


def normalise(output: Any, count: int) -> None:
    if output.output_type == "execute_result":
        output.execution_count = count
    if "data" in output:
        output.data.pop(WIDGET, None)
        if "image/png" in output.data:  # a lab has the picture once more, for its dark theme
            output.data.pop("text/html", None)
        output.metadata = {}


def volatile(notebook: Any) -> list[str]:
    """What in the outputs could not be the same on another run or machine."""
    found = []
    for n, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            for kind, text in [("stream", output.get("text", "")), *output.get("data", {}).items()]:
                if not kind.startswith("image/"):
                    found += [
                        f"cell {n}, {kind}: {what}: {match.group(0)!r}"
                        for pattern, what in VOLATILE.items()
                        if (match := re.search(pattern, str(text)))
                    ]
    return found


def text_of(notebook: Any) -> str:
    """The file's text, with a last newline."""
    return nbformat.writes(notebook, 4).rstrip("\n") + "\n"


def kept(notebook: Any) -> dict[Path, str]:
    """The files of stored results that a notebook makes, and their text."""
    files = {}
    for cell in notebook.cells:
        for name in KEPT.findall(cell.source) if cell.cell_type == "code" else ():
            # without numbers that count cells
            outputs = [
                {part: output[part] for part in ("output_type", "text", "data") if part in output}
                for output in cell.outputs
            ]
            files[stored.HERE / f"{name}.json"] = (
                json.dumps(outputs, indent=1, ensure_ascii=False) + "\n"
            )
    return files


def text_in(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def without_pixels(text: str) -> list[str]:
    return re.sub(r'"image/png": "[^"]*"', '"image/png": ""', text).splitlines()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    bad = 0
    for path in options.notebooks or sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = run(path)
        files = {path: text_of(notebook), **kept(notebook)}
        problems = volatile(notebook)
        changed = [file for file, new in files.items() if text_in(file) != new]
        for file in changed:
            if options.check:
                problems += difflib.unified_diff(
                    without_pixels(text_in(file)),
                    without_pixels(files[file]),
                    "stored",
                    "run",
                    lineterm="",
                    n=1,
                )
        for file in () if problems or options.check else changed:
            file.write_text(files[file], encoding="utf-8", newline="\n")
        print(f"{'differs' if problems else 'stored' if changed else 'same'}  {path.name}")
        print("".join(f"    {problem}\n" for problem in problems), end="")
        bad += bool(problems)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
