"""What a session's file holds: one JSON object, read strictly, written so that git can merge it.

::

    {
     "npulab": "session",
     "version": 1,
     "title": "Which bits are the stride?",
     "bookmarks": {...}, "captures": {...}, "figures": {...}, "journals": {...}, "laws": {...},
     "notes": {
      "0": "",
      "1": "",
      "1c40f5e1a9b2": {
       "anchor": {"field": "stride"},
       "author": "ada",
       "text": ["one line", "each"]
      },
      "2": "",
      ...
     },
     "views": {...}
    }

Notes, bookmarks, laws and figures go by an id, captures and journals by their path beside the file, views by name.
The blank lines of the notes are a ruler: notes that two people add come between different lines of it.  What a newer
version keeps beside all this stays where it is.
"""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from npulab.support.files import text_of

VERSION = 1
HEAD = ("npulab", "version", "title", "view", "map")
SECTIONS = ("bookmarks", "captures", "conflicts", "figures", "journals", "laws", "notes", "views")
BY_ID = ("bookmarks", "figures", "laws", "notes")
BY_PATH = ("captures", "journals")
MARKS = "conflict"  # in an item: ids of what it is at odds with
RULER = tuple("0123456789abcdef~")
MOST_BYTES = 2 ** 22
MOST_PARTS = 2 ** 17  # values of the JSON, so that a small file never takes much memory
DEEPEST = 24
WIDTH = 110
MOST_LINES = 500  # of a text that is kept a line each
ID = re.compile(r"[0-9a-f]{8,64}")
SHA256 = re.compile(r"[0-9a-f]{64}")
STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}
GIT = re.compile(rb"^(<<<<<<<|=======|>>>>>>>)", re.MULTILINE)

Document = dict[str, Any]
Check = Callable[[Any, str, str], None]


def empty() -> Document:
    """A session with nothing in it."""
    return {"npulab": "session", "version": VERSION, "title": "", **{name: {} for name in SECTIONS}}


def read_session(data: bytes, where: str) -> Document:
    """The session in a file's bytes; raises ValueError with file and place for what is none.

    >>> read_session(session_text(empty()).encode(), "x.json") == empty()
    True
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"{where}: got {len(data)} bytes, allowed are {MOST_BYTES}")
    if marks := GIT.search(data):
        line = data.count(b"\n", 0, marks.start()) + 1
        raise ValueError(f"{where}, line {line}: got git's mark of a conflict, allowed is a session; "
                         "npulab session merge BASE OURS THEIRS merges the three it came from")
    bare = STRINGS.sub(b"", data)
    if (parts := sum(bare.count(sign) for sign in (b",", b"[", b"{"))) > MOST_PARTS:
        raise ValueError(f"{where}: got {parts} values, allowed are {MOST_PARTS}")
    text = text_of(data, where)
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}, line {error.lineno}: is not JSON that can be read: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: is not JSON that can be read: {error}") from None
    return checked(document, where)


def checked(document: Any, where: str) -> Document:
    """A document with every section, without the ruler; raises as ``read_session``."""
    d = _need(document, dict, where, "the file")
    if d.get("npulab") != "session":
        raise ValueError(f'{where}: got no "npulab": "session", allowed is a session of npulab')
    if type(d.get("version")) is not int or d["version"] < 1:
        raise ValueError(f"{where}, version: got {d.get('version')!r:.40}, allowed is a whole number from 1 on")
    _plain(d, where, "the file", 0)
    out = {**empty(), **d}
    for name in ("title", "view"):
        _text(out.get(name, ""), where, name)
    if "map" in out:
        _item(out["map"], "map", where, "map")
    for name in SECTIONS:
        section = _need(out[name], dict, where, name)
        out[name] = {key: item for key, item in section.items() if not (key in RULER and item == "")}
        for key, item in out[name].items():
            place = f"{name} {key!r:.80}"
            if name in BY_ID and not ID.fullmatch(key):
                raise ValueError(f"{where}, {place}: got that as an id, allowed are 8 to 64 digits of 0-9a-f")
            if name in BY_PATH:
                _path(key, where, place)
            if name == "conflicts":
                _need(item, list, where, place)
            else:
                _item(item, name, where, place)
    return out


def unknown(document: Mapping[str, Any]) -> list[str]:
    """The names in a document that this version of npulab does not know."""
    out = [name for name in document if name not in (*HEAD, *SECTIONS)]
    items = [("map", document.get("map", {})), *((name, item) for name in ITEMS if name in SECTIONS and name != "views"
                                                for item in document[name].values())]
    out += [f"{kind}: {name}" for kind, item in items for name in item if name not in ITEMS[kind]]
    return sorted({*out})


def session_text(document: Mapping[str, Any]) -> str:
    """The file's text: the same document gives the same text; every section is there, with or without items."""
    lines = []
    for name in (*HEAD, *sorted(name for name in document if name not in HEAD)):
        if name in ("npulab", "version", "title") or document.get(name):
            value = document[name]
        elif name in SECTIONS:
            value = {}
        else:
            continue
        if name == "notes":
            value = {**dict.fromkeys(RULER, ""), **value}
        broken = 2 if name == "notes" else 1 if name in SECTIONS or name == "map" else 0
        lines.append(f" {_json(name)}: {_layout(value, 1, broken)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def as_kept(text: str) -> str | list[str]:
    """A text as the file has it, a line each where there are a few."""
    lines = text.split("\n")
    return lines if 1 < len(lines) <= MOST_LINES else text


def as_text(kept: str | list[str]) -> str:
    """What ``as_kept`` was given."""
    return kept if isinstance(kept, str) else "\n".join(kept)


def canonical(value: Any) -> str:
    """One text for equal values."""
    return _json(value)


def id_of(*parts: Any) -> str:
    """Twelve hexadecimal digits that follow from the content, so that what is noted twice is one note."""
    return hashlib.sha256(_json(parts).encode()).hexdigest()[:12]


def _layout(value: Any, indent: int, broken: int) -> str:
    """JSON in which what fits on a line is one; the outer ``broken`` levels and lists of lines never are."""
    text = _json(value)
    lines = isinstance(value, list) and len(value) > 1 and all(isinstance(one, str) for one in value)
    if not isinstance(value, dict | list) or not (value or broken) \
            or (not broken and not lines and indent + len(text) <= WIDTH):
        return text
    if isinstance(value, list) and not any(isinstance(one, str | dict | list) for one in value):
        pad = " " * (indent + 1)
        return f"[\n{textwrap.fill(text[1:-1], WIDTH, initial_indent=pad, subsequent_indent=pad)}\n{' ' * indent}]"
    deep = max(broken - 1, 0)
    if isinstance(value, dict):
        ends, rows = "{}", [f"{_json(key)}: {_layout(value[key], indent + 1, deep)}" for key in sorted(value)]
    else:
        ends, rows = "[]", [_layout(one, indent + 1, deep) for one in value]
    body = ",\n".join(" " * (indent + 1) + row for row in rows)
    return f"{ends[0]}\n{body}{chr(10) * bool(body)}{' ' * indent}{ends[1]}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"got {next(key for key in out if keys.count(key) > 1)!r:.80} twice in one object, allowed is "
                         "once")
    return out


def _no_number(name: str) -> Any:
    raise ValueError(f"got {name}, allowed are finite numbers")


# What the items are made of


def _need(value: Any, kind: type, where: str, place: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{where}, {place}: got {value!r:.80}, allowed is {KINDS[kind]}")
    return value


def _text(value: Any, where: str, place: str) -> None:
    _need(value, str, where, place)


def _lines(value: Any, where: str, place: str) -> None:
    if not isinstance(value, str) and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        raise ValueError(f"{where}, {place}: got {value!r:.80}, allowed is a text or a list of its lines")


def _count(value: Any, where: str, place: str) -> None:
    if type(value) is not int or not 0 <= value <= 2 ** 63:
        raise ValueError(f"{where}, {place}: got {value!r:.40}, allowed is a whole number from 0 on")


def _yes(value: Any, where: str, place: str) -> None:
    if type(value) is not bool:
        raise ValueError(f"{where}, {place}: got {value!r:.40}, allowed is true or false")


def _sum(value: Any, where: str, place: str) -> None:
    if not isinstance(value, str) or not SHA256.fullmatch(value):
        raise ValueError(f"{where}, {place}: got {value!r:.80}, allowed are the 64 digits of a sha256")


def _path(value: Any, where: str, place: str) -> None:
    fits = isinstance(value, str) and value and "\\" not in value and value.isprintable() \
        and PurePosixPath(value).as_posix() == value and not PurePosixPath(value).is_absolute() \
        and not re.match(r"[A-Za-z]:", value) and not {".", ".."} & {*PurePosixPath(value).parts, value}
    if not fits:
        raise ValueError(f"{where}, {place}: got {value!r:.80}, allowed is a path inside the session's folder, its "
                         "parts joined by /")


def _names(value: Any, where: str, place: str) -> None:
    for one in _need(value, list, where, place):
        _text(one, where, place)


def _list(value: Any, where: str, place: str) -> None:
    _need(value, list, where, place)


def _anchor(value: Any, where: str, place: str) -> None:
    _item(value, "anchor", where, place)
    if ("offset" in value) != ("size" in value) or ("offset" in value and "buffer" not in value):
        raise ValueError(f"{where}, {place}: got {sorted(value)}, allowed are buffer, offset and size together")
    if value.get("size") == 0:
        raise ValueError(f"{where}, {place}, size: got 0, allowed is a whole number from 1 on")
    if ("buffer" in value or "task" in value) and "capture" not in value:
        raise ValueError(f"{where}, {place}: got {sorted(value)}, allowed is a buffer or a task with its capture")


ITEMS: dict[str, dict[str, Check]] = {
    "anchor": {"block": _text, "register": _text, "field": _text, "capture": _path, "task": _count, "buffer": _text,
               "offset": _count, "size": _count},
    "bookmarks": {"label": _text, "anchor": _anchor, "author": _text, "date": _text, MARKS: _names},
    "captures": {"sha256": _sum},
    "figures": {"path": _path, "sha256": _sum, "caption": _text, "code": _lines, MARKS: _names},
    "journals": {"result": _text, "good": _path, "bad": _path, "device": _text, "simulated": _yes},
    "laws": {"field": _text, "law": _text, "support": _count, "rivals": _count, "by": _text, "date": _text,
             "sweep": _path, "simulated": _yes, MARKS: _names},
    "map": {"path": _path, "sha256": _sum, "steps": _list, "features": _names},
    "notes": {"text": _lines, "anchor": _anchor, "author": _text, "date": _text, MARKS: _names},
    "views": {"kind": _text, "capture": _path, "task": _count},
}
NEEDED = {"figures": ("path", "sha256", "caption"), "laws": ("field", "law"), "map": ("path", "sha256"),
          "notes": ("text",), "captures": ("sha256",), "views": ("kind",)}


def _item(value: Any, kind: str, where: str, place: str) -> None:
    item = _need(value, dict, where, place)
    for name in NEEDED.get(kind, ()):
        if name not in item:
            raise ValueError(f"{where}, {place}: got no {name}, allowed is one")
    for name, check in ITEMS[kind].items():
        if name in item:
            check(item[name], where, f"{place}, {name}")


def _plain(value: Any, where: str, place: str, depth: int) -> None:
    """Refuse what is nested too deep, and texts that no file can hold."""
    if depth > DEEPEST:
        raise ValueError(f"{where}, {place}: got values {depth} deep, allowed are {DEEPEST}")
    if isinstance(value, str):
        _encodable(value, where, place)
    for name, one in _inner(value):
        _encodable(name, where, place)
        _plain(one, where, name if not depth else place, depth + 1)


def _inner(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        yield from (("", one) for one in value)


def _encodable(text: str, where: str, place: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}, {place}: got a half of a surrogate pair at {error.start}, allowed is Unicode text"
                         ) from None
