"""Results of notebook cells that need a package which may be missing, as they were when the
notebooks were stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BEGINS = "Stored result, because"  # what is shown of a stored result begins so


def show_stored(name: str, missing: object) -> None:
    """Show what a cell gave where the package was there, below one sentence that says why;
    ``missing`` is the error that names the package.

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
    """The outputs of a cell in the form of notebooks; raises LookupError for a name that has
    none.
    """
    path = HERE / f"{name}.json"
    if not path.is_file():
        names = ", ".join(sorted(path.stem for path in HERE.glob("*.json")))
        raise LookupError(f"stored result: got {name!r}, allowed is one of {names}")
    return list(json.loads(path.read_text(encoding="utf-8")))


def _display(data: dict[str, Any]) -> None:
    """A table or a picture, in the form that the reader's program shows."""
    import IPython.display

    page: Any = IPython.display
    page.publish_display_data(data)
