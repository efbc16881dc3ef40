"""Stored results of notebook cells, shown where the package that a cell needs is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BEGINS = "Stored result, because"  # the first words of the line above a stored result


def show_stored(name: str, missing: object) -> None:
    """Show the stored result of a notebook cell, below a sentence that says why it is shown:
    ``missing``, the error that names the missing package.

    The result was stored on a machine that had the package.

    >>> show_stored("ask-vela", "this needs Vela")
    Stored result, because this needs Vela
    captured 97 words
    """
    print(f"{BEGINS} {missing}")
    for output in outputs(name):
        if output["output_type"] == "stream":
            print("".join(output["text"]), end="")
        else:
            _display(output["data"])


def outputs(name: str) -> list[dict[str, Any]]:
    """Return the stored outputs of a cell, in the form that a notebook file has; raises LookupError
    if nothing is stored under ``name``.
    """
    path = HERE / f"{name}.json"
    if not path.is_file():
        names = ", ".join(sorted(path.stem for path in HERE.glob("*.json")))
        raise LookupError(f"stored result: got {name!r}, allowed is one of {names}")
    return list(json.loads(path.read_text(encoding="utf-8")))


def _display(data: dict[str, Any]) -> None:
    """Display a table or a picture in all its stored formats; the notebook program
    chooses the format that it shows.
    """
    import IPython.display

    page: Any = IPython.display
    page.publish_display_data(data)
