"""Files of an NPU that are no captures, as programs and compiled networks: listed and checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npulab.captures.registry import working_targets
from npulab.support.text import Row, in_columns, plural


@dataclass(frozen=True)
class Finding:
    """What was found in a document: the ``line`` (0 if it has none), what it is ``about``, the
    ``text``, its ``source``, and whether the document is ``wrong`` by it."""

    line: int
    about: str
    text: str
    source: str = ""
    wrong: bool = False


@dataclass(frozen=True)
class Document:
    """What a file says: a ``title`` line, named tables of rows, and what was found in it."""

    name: str
    title: str
    tables: Mapping[str, Sequence[Row]]
    findings: Sequence[Finding] = ()

    def records(self) -> list[Row]:
        return [{"table": name, **row} for name, rows in self.tables.items() for row in rows] + [
            {"table": "findings", **row} for row in self.checked().rows
        ]

    def __str__(self) -> str:
        lines = [self.title]
        for name, rows in self.tables.items():
            if rows:
                lines += [f"{name}:", *in_columns(rows, [*rows[0]])]
        return "\n".join([*lines, str(self.checked())])

    def checked(self) -> Findings:
        """What was found in it, as a result of its own."""
        return Findings(self.name, self.findings)


@dataclass(frozen=True)
class Findings:
    """What was found in a document: rows of finding, line, about, text and source."""

    name: str
    findings: Sequence[Finding]

    @property
    def ok(self) -> bool:
        """Whether no finding says that the document is wrong."""
        return not any(finding.wrong for finding in self.findings)

    @property
    def rows(self) -> list[Row]:
        return [
            {
                "finding": "wrong" if finding.wrong else "note",
                "line": finding.line or None,
                "about": finding.about,
                "text": finding.text,
                "source": finding.source,
            }
            for finding in self.findings
        ]

    def records(self) -> list[Row]:
        return [
            {
                "case": self.name,
                "verdict": "right" if self.ok else "wrong",
                "findings": len(self.findings),
            },
            *({"case": self.name, **row} for row in self.rows),
        ]

    def __str__(self) -> str:
        wrong = sum(finding.wrong for finding in self.findings)
        verdict = "no error"
        if wrong:
            verdict = f"{plural(wrong, 'error')}"
        head = f"{self.name}: {verdict}, {plural(len(self.findings) - wrong, 'note')}"
        return "\n".join(
            [head, *in_columns(self.rows, ["finding", "line", "about", "text", "source"])]
        )


def document(path: str | os.PathLike[str]) -> Document | None:
    """What a file says that a target lists and that is no capture; None for others.

    Raises ValueError with file and place for one that is broken.
    """
    path = Path(path)
    if not path.is_file():
        return None
    for of in working_targets():
        for kind in of.documents:
            if kind.recognises(path):
                found: Document = kind.read(path)
                return found
    return None
