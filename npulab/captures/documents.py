"""Files of an NPU that are not captures, such as programs and compiled networks: their contents as
tables, and the errors found in them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npulab.captures.registry import working_targets
from npulab.support.text import Row, in_columns, plural


@dataclass(frozen=True)
class Finding:
    """One finding in a document: its ``line`` (0 if it has none), ``about`` (its subject),
    ``text``, ``source``, and ``wrong``, which is True if the finding makes the document wrong."""

    line: int
    about: str
    text: str
    source: str = ""
    wrong: bool = False


@dataclass(frozen=True)
class Document:
    """The contents of a file: a ``title`` line, named tables of rows, and the findings in it."""

    name: str
    title: str
    tables: Mapping[str, Sequence[Row]]
    findings: Sequence[Finding] = ()

    def records(self) -> list[Row]:
        records: list[Row] = []
        for name, rows in {**self.tables, "findings": self.checked().rows}.items():
            records += [{"table": name, **row} for row in rows]
        return records

    def __str__(self) -> str:
        lines = [self.title]
        for name, rows in self.tables.items():
            if rows:
                lines += [f"{name}:", *in_columns(rows, [*rows[0]])]
        return "\n".join([*lines, str(self.checked())])

    def checked(self) -> Findings:
        """The findings in the document, to be printed without its tables."""
        return Findings(self.name, self.findings)


@dataclass(frozen=True)
class Findings:
    """The findings in a document: rows of finding ("wrong" or "note"), line, about, text and
    source."""

    name: str
    findings: Sequence[Finding]

    @property
    def ok(self) -> bool:
        """True if no finding makes the document wrong."""
        return not any(finding.wrong for finding in self.findings)

    @property
    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for finding in self.findings:
            kind = "note"
            if finding.wrong:
                kind = "wrong"
            line = finding.line or None
            row = {"finding": kind, "line": line, "about": finding.about}
            rows.append(row | {"text": finding.text, "source": finding.source})
        return rows

    def records(self) -> list[Row]:
        verdict = "wrong"
        if self.ok:
            verdict = "right"
        head = {"case": self.name, "verdict": verdict, "findings": len(self.findings)}
        return [head, *({"case": self.name, **row} for row in self.rows)]

    def __str__(self) -> str:
        wrong = sum(finding.wrong for finding in self.findings)
        verdict = "no error"
        if wrong:
            verdict = plural(wrong, "error")
        head = f"{self.name}: {verdict}, {plural(len(self.findings) - wrong, 'note')}"
        columns = ["finding", "line", "about", "text", "source"]
        return "\n".join([head, *in_columns(self.rows, columns)])


def document(path: str | os.PathLike[str]) -> Document | None:
    """Read a file that is not a capture, such as a program, with the target that recognises it;
    None if no target does.

    Raises ValueError with file and place for a broken file.
    """
    path = Path(path)
    if not path.is_file():
        return None
    for known in working_targets():
        for kind in known.documents:
            if kind.recognises(path):
                found: Document = kind.read(path)
                return found
    return None
