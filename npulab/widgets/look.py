"""How the views look: what they share, and what each has of its own."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def styles(name: str) -> str:
    """The style sheet of a view: the shared rules, then its own from the file of that name."""
    return "".join((HERE / file).read_text(encoding="utf-8") for file in ("look.css", name))
