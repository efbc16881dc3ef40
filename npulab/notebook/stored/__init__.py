"""Stored results of notebook cells that need a package which may be missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BEGINS = "Stored result, because"  # the first words above each stored result


def show_stored(name: str, missing: object) -> None:
    """Show the result of a cell from a machine that had the package, below a sentence that says
    why; ``missing`` is the error that names the package.

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
    """Return the outputs of a cell in the form of notebooks; raises LookupError for a name without
    stored outputs."""
    path = HERE / f"{name}.json"
    if not path.is_file():
        names = ", ".join(sorted(path.stem for path in HERE.glob("*.json")))
        raise LookupError(f"stored result: got {name!r}, allowed is one of {names}")
    return list(json.loads(path.read_text(encoding="utf-8")))


def _display(data: dict[str, Any]) -> None:
    """Show a table or a picture in the form that the reader's program can show."""
    import IPython.display

    page: Any = IPython.display
    page.publish_display_data(data)
