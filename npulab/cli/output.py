"""The output of a command: a result on stdout, or a refusal in one sentence on stderr."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from npulab.support.answers import Answer
from npulab.support.extras import MissingPackage
from npulab.support.refuse import reason
from npulab.support.text import one_line, visible

Add = Callable[..., Any]  # the method add_argument of argparse
REFUSED = (ValueError, LookupError, OSError, MissingPackage)


class Result(Protocol):
    """Protocol of results: ``records`` are the objects for ``--json``, ``str`` is the text for
    people.
    """

    def records(self) -> list[dict[str, Any]]: ...


@dataclass(frozen=True)
class Done:
    """The result of a command that has a single record."""

    record: dict[str, Any]
    text: str

    def records(self) -> list[dict[str, Any]]:
        return [self.record]

    def __str__(self) -> str:
        return self.text


def show(options: argparse.Namespace, result: Result) -> None:
    """Print a result: with ``--json`` its records, one object a line, else its text, fitted to a
    terminal's width and coloured if stdout is a terminal.
    """
    if options.json:
        for row in result.records():
            print(visible(json.dumps(_finite(row), ensure_ascii=False)))
    elif sys.stdout.isatty():
        from npulab.cli.terminal import print_parts

        print_parts(result.parts if isinstance(result, Answer) else [str(result)])
    elif text := str(result):
        print(visible(text))


def tell_stopped(journal: object, holds: str) -> None:
    """Say on stderr that a search was stopped; if it has a journal in a file, say also what the
    journal ``holds``.
    """
    kept = ""
    if journal:
        kept = f", {journal} has every {holds} so far"
    tell(f"stopped{kept}")


def tell(what: object) -> None:
    """Print an error, a warning or a text on stderr, as one line after "npulab: "."""
    print(f"npulab: {sentence(what)}", file=sys.stderr)


def sentence(what: object) -> str:
    """Return the reason of an error, or the text of a warning or other value, as one line."""
    if isinstance(what, BaseException):
        return one_line(reason(what))
    return one_line(str(what))


def each(call: Callable[[Any], Any], things: Iterable[Any]) -> tuple[list[Any], int]:
    """Return the results of ``call`` on each thing, and the number of things that it refused; each
    refusal is printed on stderr.
    """
    got, refused = [], 0
    for thing in things:
        try:
            got.append(call(thing))
        except REFUSED as error:
            tell(error)
            refused += 1
    return got, refused


def _finite(value: Any) -> Any:
    """Return a JSON value with infinities and NaN as texts, because JSON has no such numbers."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
