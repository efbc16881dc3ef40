"""npulab as people have it who install its wheel and no extra: an environment of its own, and
notebooks run to their end in it.

    python tests/tools/base_install.py FOLDER 10 11 12     # in an empty or new folder; without numbers all notebooks

It needs nothing but Python and pip.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COPY = "npulab-notebooks"
CELL_SECONDS = 300
BEGINS = "Stored result, because"
# by number of a notebook: the extra whose missing package it has to name
NAMES = {11: "npulab[maps]", 12: "npulab[compilers]"}


def install(folder: Path) -> Path:
    """The programs of an environment that pip made from npulab's wheel alone, which it builds."""
    folder.mkdir(parents=True, exist_ok=True)
    programs = folder / "venv" / "bin"
    call(sys.executable, "-m", "venv", folder / "venv")
    call(programs / "pip", "install", "-q", "--no-compile", ROOT)
    return programs


def copy_out(programs: Path, folder: Path) -> list[Path]:
    """The notebooks as ``npulab lab`` copies them out of the wheel, in their order."""
    call(programs / "npulab", "lab", "--version", folder=folder)
    return sorted((folder / COPY / "notebooks").glob("*.ipynb"), key=number)


def number(path: Path) -> int:
    return int(path.name.split("-")[0])


def ran(programs: Path, path: Path, folder: Path) -> Any:
    """A notebook with the outputs of a run; ends the program where a cell ends in an error."""
    call(
        programs / "jupyter",
        "nbconvert",
        "--log-level=WARN",
        "--to=notebook",
        "--execute",
        f"--output-dir={folder}",
        f"--ExecutePreprocessor.timeout={CELL_SECONDS}",
        path,
    )
    return json.loads((folder / path.name).read_text(encoding="utf-8"))


def refuse(path: Path, cells: list[Any]) -> None:
    """Raises AssertionError for a cell that ended in an error, and where a missing package is
    not named.
    """
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    said = "".join("".join(output.get("text", "")) for output in outputs)
    errors = [output.get("evalue") for output in outputs if output["output_type"] == "error"]
    assert not errors, f"{path.name}: {errors}"
    lines = [line for line in said.splitlines() if line.startswith(BEGINS)]
    wanted = [NAMES[number(path)]] if number(path) in NAMES else []
    assert len(lines) == len(wanted), f"{path.name}: {lines}, of {wanted}"
    assert all(name in line for name, line in zip(wanted, lines, strict=True)), (
        f"{path.name}: {lines}"
    )


def call(*arguments: object, folder: Path | None = None) -> None:
    subprocess.run(
        [str(one) for one in arguments], check=True, cwd=folder, stdin=subprocess.DEVNULL
    )


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0]).absolute()
    numbers = {int(one) for one in arguments[1:]}
    start = time.monotonic()
    programs = install(folder)
    chosen = [path for path in copy_out(programs, folder) if not numbers or number(path) in numbers]
    print(f"base install: {time.monotonic() - start:.0f} s", flush=True)
    for path in chosen:
        start = time.monotonic()
        refuse(path, ran(programs, path, folder / "ran")["cells"])
        print(
            f"base install: {path.name} runs to its end, {time.monotonic() - start:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
