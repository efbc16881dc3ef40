"""A release of npulab, tried as people have it who install its wheel and no extra: the sdist, the
wheel made from it, both with every file of the package; an environment of its own; notebooks run to
their end in it.

    python tests/tools/base_install.py FOLDER 10 11 12 13  # in an empty or new folder; without numbers all notebooks

It needs nothing but Python and pip.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COPY = "npulab-notebooks"
# what a release needs beside the package; kinds of files that it has
ALONE = {"pyproject.toml", "README.md", "LICENSE"}
KINDS = {"py", "pyi", "typed", "csv", "js", "css", "json", "jinja", "md", "txt"}
CELL_SECONDS = 300
BEGINS = "Stored result, because"
# by number of a notebook: the extra whose missing package it has to name, and in how many cells
NAMES = {11: ("npulab[maps]", 1), 12: ("npulab[compilers]", 1), 13: ("npulab[farm]", 5)}


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist and the wheel, which is made from the sdist alone."""
    programs, made = folder / "build" / "bin", folder / "dist"
    call(sys.executable, "-m", "venv", folder / "build")
    call(programs / "pip", "install", "-q", "--no-compile", "hatchling")
    call(programs / "python", "-m", "hatchling", "build", "-t", "sdist", "-d", made, folder=ROOT)
    (sdist,) = made.glob("*.tar.gz")
    quick = "-q", "--no-deps", "--no-build-isolation"
    call(programs / "pip", "wheel", *quick, "-w", made, sdist)
    (wheel,) = made.glob("*.whl")
    return sdist, wheel


def files_of(*folders: str) -> set[str]:
    """The files in folders of the project, but those that Python compiled."""
    found = [path for name in folders for path in (ROOT / name).rglob("*") if path.is_file()]
    kept = [path for path in found if "__pycache__" not in path.parts]
    return {path.relative_to(ROOT).as_posix() for path in kept}


def refuse_missing(sdist: Path, wheel: Path) -> None:
    """Raises AssertionError if a file of the package, or what it copies out, is not in both."""
    with tarfile.open(sdist) as file:
        in_sdist = {name.partition("/")[2] for name in file.getnames()}
    with zipfile.ZipFile(wheel) as packed:
        in_wheel = {*packed.namelist()}
    package, share = files_of("npulab"), files_of("notebooks", "captures")
    assert {path.rpartition(".")[2] for path in package} >= KINDS
    missing = sorted((package | share | ALONE) - in_sdist)
    assert not missing, f"{sdist.name}: {missing}"
    missing = sorted((package | {f"npulab/share/{path}" for path in share}) - in_wheel)
    assert not missing, f"{wheel.name}: {missing}"


def install(folder: Path) -> Path:
    """The programs of an environment that pip made from npulab's wheel alone."""
    folder.mkdir(parents=True, exist_ok=True)
    sdist, wheel = build(folder)
    refuse_missing(sdist, wheel)
    programs = folder / "venv" / "bin"
    call(sys.executable, "-m", "venv", folder / "venv")
    call(programs / "pip", "install", "-q", "--no-compile", wheel)
    shown = subprocess.check_output([programs / "npulab", "--version"], text=True)
    assert shown.split()[-1] in wheel.name, f"{wheel.name}: {shown}"
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
    name, count = NAMES.get(number(path), ("", 0))
    assert len(lines) == count, f"{path.name}: {lines}, of {count}"
    assert all(name in line for line in lines), f"{path.name}: {lines}"


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
