"""JSON that people and programs write, read with the line and the column of each error."""

from __future__ import annotations

import json
import json.scanner
import re
import sys
from typing import Any

STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
BRACKET = re.compile(r"[][{}]")
NUMBER = re.compile(r"-?[0-9]+")
DIGITS = "integer string conversion"  # in Python's message on a number with too many digits
END = "the end of the text"
MOST_DEEP = 100  # values in a description, one within the other
# Python's messages on a text that is not JSON, and what JSON allows there
ALLOWED = {
    "Expecting value": "is a value",
    "Expecting ',' delimiter": "is a comma or a closing bracket",
    "Expecting ':' delimiter": "is a colon behind the name",
    "Expecting property name enclosed in double quotes": "is a name in double quotes",
    "Illegal trailing comma before end of object": "is no comma before the closing bracket",
    "Illegal trailing comma before end of array": "is no comma before the closing bracket",
    "Extra data": "is nothing behind the value",
    "Unterminated string starting at": "is a text that ends in a double quote",
}


def json_of(
    data: bytes | str, where: object, first: int = 1, most_deep: int = 0, **hooks: Any
) -> Any:
    """The value in a text of JSON, whose first line has the number ``first``.

    ``hooks`` are those of ``json.loads``.  An object with a name twice is refused, and with
    ``most_deep`` a value in more brackets than that.  Raises ValueError with ``where``, line,
    column, and the error there.

    >>> json_of('{"npu": zeta}', "job.json")
    Traceback (most recent call last):
    ValueError: job.json, line 1, column 9: is not JSON: got 'z', allowed is a value
    """
    hooks = {"object_pairs_hook": once} | hooks
    text = data
    if isinstance(text, bytes):
        text = _decoded(text, where, first)
    try:
        value = json.loads(text, **hooks)
        if not most_deep or not _deeper(value, most_deep):
            return value
        at, depth = _deepest(text)
        wrong = f"got values {depth} deep, allowed are {most_deep}"
    except json.JSONDecodeError as error:
        at, wrong = _syntax(text, error)
    except RecursionError:
        at, depth = _deepest(text)
        wrong = f"got values {depth} deep, allowed are {most_deep or 'fewer'}"
    except ValueError as error:  # of a hook, or a number with too many digits
        at, wrong = _refused_place(text, hooks), str(error)
        if DIGITS in wrong:
            numbers = NUMBER.finditer(STRING.sub(_blank, text))
            number = max(numbers, key=lambda found: len(found[0]))
            at, digits = number.start(), len(number[0].lstrip("-"))
            wrong = f"got a number of {digits} digits, allowed are {sys.get_int_max_str_digits()}"
    raise ValueError(
        f"{where}, {_line_and_column(text, at, first)}: is not JSON: {wrong}"
    ) from None


def _deeper(value: Any, most: int) -> bool:
    """True if a value has more than ``most`` values within each other."""
    level = [value]
    for _ in range(most + 1):
        inner: list[Any] = []
        for holder in level:
            if isinstance(holder, dict):
                inner += holder.values()
            elif isinstance(holder, list):
                inner += holder
        level = inner
    return bool(level)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of names and values; raises ValueError for a name that occurs twice.

    >>> once([("a", 1), ("b", 2)])
    {'a': 1, 'b': 2}
    """
    out: dict[str, Any] = {}
    for name, value in pairs:
        if name in out:
            raise ValueError(f"got {name!r:.80} twice in one object, allowed is once")
        out[name] = value
    return out


def _decoded(data: bytes, where: object, first: int) -> str:
    encoding = json.detect_encoding(data)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        before = data[: error.start].decode(encoding, "replace")
        raise ValueError(
            f"{where}, {_line_and_column(before, len(before), first)}: is not JSON: got byte "
            f"{data[error.start]:#04x} at byte {error.start}, allowed is UTF-8"
        ) from None


def _syntax(text: str, error: json.JSONDecodeError) -> tuple[int, str]:
    """The place where a text stops being JSON, and the error there."""
    at = error.pos
    if not text[at:].strip():  # the error is at the end of the text, not after its last line
        at = len(text.rstrip())
    got = END
    if at < len(text.rstrip()):
        got = repr(text[at])
    if error.msg in ALLOWED:
        return at, f"got {got}, allowed {ALLOWED[error.msg]}"
    return at, f"got {got}, {error.msg.removesuffix(' at').strip(': ')}"


def _deepest(text: str) -> tuple[int, int]:
    """The place of the innermost bracket, and its depth."""
    deepest, place, depth = 0, 0, 0
    bare = STRING.sub(_blank, text)
    for found in BRACKET.finditer(bare):
        if found[0] in "[{":
            depth += 1
        else:
            depth -= 1
        if depth > deepest:
            deepest, place = depth, found.start()
    return place, deepest


def _blank(found: re.Match[str]) -> str:
    """Blanks in place of a text in quotes, so that places stay the same."""
    return " " * len(found[0])


def _refused_place(text: str, hooks: dict[str, Any]) -> int:
    """The place of the object in which a hook or a number is refused; the text's start if there is
    none."""
    decoder: Any = json.JSONDecoder(**hooks)
    plain, begun = decoder.parse_object, [0]

    def parse_object(inside: tuple[str, int], *rest: Any) -> Any:
        begun.append(inside[1] - 1)
        value = plain(inside, *rest)
        begun.pop()
        return value

    decoder.parse_object = parse_object
    decoder.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    try:
        decoder.decode(text)
    except (ValueError, RecursionError):
        return begun[-1]
    return 0


def _line_and_column(text: str, at: int, first: int) -> str:
    """Line and column, from 1, of a place in a text."""
    line = text.count("\n", 0, at) + first
    return f"line {line}, column {at - text.rfind(chr(10), 0, at)}"
