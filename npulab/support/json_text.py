"""JSON written by people or programs, read so that each error has a line and a column."""

from __future__ import annotations

import json
import json.scanner
import re
import sys
from typing import Any

STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
BRACKET = re.compile(r"[][{}]")
NUMBER = re.compile(r"-?[0-9]+")
# These words are in Python's message about a number with more digits than Python converts.
DIGITS = "integer string conversion"
END = "the end of the text"
MOST_DEEP = 100  # lists and objects in a file are nested at most this deep

# By Python's message about a text that is not JSON: what JSON allows at the place of the error.
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
    """The value in a JSON text, whose first line has the number ``first`` in error texts.

    ``hooks`` are passed to ``json.loads``. Raises ValueError with ``where``, line, column, and the
    error at that place: for a text that is not JSON, for an object in which a name occurs twice
    (unless a hook replaces that check), for values nested more than ``most_deep`` deep (0: any
    depth that Python reads), and for an error that a hook raises.

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
    except ValueError as error:  # raised by a hook, or for a number with too many digits
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
    """True if lists and dicts are nested more than ``most`` deep in a value."""
    # values are looked at level by level, because a recursion could reach Python's own limit
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
    """The pairs of a JSON object as a dict; raises ValueError for a name that occurs twice.

    >>> once([("a", 1), ("b", 2)])
    {'a': 1, 'b': 2}
    """
    out: dict[str, Any] = {}
    for name, value in pairs:
        if name in out:
            raise ValueError(f"got name {name!r:.80} twice in one object, allowed is once")
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
    """Return the number of the first character (from 0) at which a text is not JSON, and the error
    at that character in words."""
    at = error.pos
    # an error in the blanks and empty lines at the end is an error at the end of the text
    if not text[at:].strip():
        at = len(text.rstrip())
    got = END
    if at < len(text.rstrip()):
        got = repr(text[at])
    if error.msg in ALLOWED:
        return at, f"got {got}, allowed {ALLOWED[error.msg]}"
    return at, f"got {got}, {error.msg.removesuffix(' at').strip(': ')}"


def _deepest(text: str) -> tuple[int, int]:
    """Return (place, depth) of the deepest bracket of a JSON text, the first of several; the place
    counts characters from 0."""
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
    """As many blanks as the match has characters: with a string of JSON replaced by them, all other
    characters keep their places."""
    return " " * len(found[0])


def _refused_place(text: str, hooks: dict[str, Any]) -> int:
    """Read a text again until a hook raises its error, or until a number is refused, and return the
    place of the innermost object that was being read: its first character, counted from 0. Return 0
    if the second reading has no error.
    """
    decoder: Any = json.JSONDecoder(**hooks)
    plain, begun = decoder.parse_object, [0]

    def parse_object(inside: tuple[str, int], *rest: Any) -> Any:
        begun.append(inside[1] - 1)
        value = plain(inside, *rest)
        begun.pop()
        return value

    decoder.parse_object = parse_object
    # the scanner in C would not call the replaced parse_object, the scanner in Python calls it
    decoder.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    try:
        decoder.decode(text)
    except (ValueError, RecursionError):
        return begun[-1]
    return 0


def _line_and_column(text: str, at: int, first: int) -> str:
    """The words "line L, column C" for character ``at`` (from 0) of a text; columns are counted
    from 1, lines from ``first``."""
    line = text.count("\n", 0, at) + first
    return f"line {line}, column {at - text.rfind(chr(10), 0, at)}"
