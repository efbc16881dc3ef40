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

Notes, bookmarks, laws and figures go by an id, captures and journals by their path beside the file,
views by name. The blank lines of the notes are a ruler: notes that two people add come between
different lines of it.  What a newer version keeps beside all this stays where it is.

What is added to a large session is appended: a line behind the object for each thing, as
``{"notes": {"1c40f5e1a9b2": {...}}}``, until the file is written anew with all of it inside.  A
last line without its end is what a crash left of it, and is no part of the session.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import EINVAL, ENOENT
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from npulab.captures.folders import DESCRIPTION
from npulab.support.files import locked, opened, read_bounded, replace_file, text_of
from npulab.support.json_text import json_of, once
from npulab.support.refuse import refuse_if, refusing

VERSION = 1
SCHEMA = json.loads(Path(__file__).with_name("session.schema.json").read_text(encoding="utf-8"))
SECTIONS = tuple(
    name for name, part in SCHEMA["properties"].items() if "additionalProperties" in part
)
HEAD = ("npulab", "version", *(name for name in SCHEMA["properties"] if name not in SECTIONS))
BY_ID = ("bookmarks", "figures", "laws", "notes")
MARKS = "conflict"  # in an item: ids of what it is at odds with
RULER = tuple("0123456789abcdef~")
MOST_BYTES = 2**22
MOST_PARTS = 2**17  # values of the JSON, so that a small file never takes much memory
DEEPEST = 24
WIDTH = 110
MOST_LINES = 500  # of a text that is kept a line each
STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
GIT = re.compile(rb"^(<<<<<<<|=======|>>>>>>>)", re.MULTILINE)
PNG = b"\x89PNG\r\n\x1a\n"

Document = dict[str, Any]


class Real(float):
    """A number that is written with a point: no whole number even if nothing follows the point."""

    def is_integer(self) -> bool:
        return False


def empty() -> Document:
    """A session with nothing in it."""
    return {"npulab": "session", "version": VERSION, "title": "", **{name: {} for name in SECTIONS}}


def read_session(data: bytes, where: str) -> Document:
    """The session in a file's bytes; raises ValueError with file and place for what is none.

    >>> read_session(session_text(empty()).encode(), "x.json") == empty()
    True
    """
    size, parts = weight(data)
    refuse_if(size > MOST_BYTES, where, f"{size} bytes", f"are {MOST_BYTES}")
    if marks := GIT.search(data):
        line = data.count(b"\n", 0, marks.start()) + 1
        raise ValueError(
            f"{where}, line {line}: got git's mark of a conflict, allowed is a session; "
            "npulab session merge BASE OURS THEIRS merges the three it came from"
        )
    if parts > MOST_PARTS:
        raise ValueError(f"{where}: got {parts} values, allowed are {MOST_PARTS}")
    text = text_of(data[: whole_lines(data)], where)
    try:
        document, end = DECODER.raw_decode(text, len(text) - len(text.lstrip(BLANKS)))
    except (ValueError, RecursionError):  # said with line and column
        document, end = json_of(text, where, **HOOKS), len(text)
    first = text.count("\n", 0, end) + 2
    behind = text[end:]
    if behind.strip(BLANKS) and not behind.lstrip(" \t").startswith(("\n", "\r")):
        json_of(text, where, **HOOKS)  # says what stands behind the object
    for row, appended in enumerate(_behind(text, end), first):
        added = json_of(appended, where, row, **HOOKS)
        with refusing(f"{where}, line {row}"):
            _take(document, added)
    return checked(document, where)


def weight(data: bytes) -> tuple[int, int]:
    """How many bytes a file has, and how many values its JSON at most."""
    bare = STRINGS.sub(b"", data)
    return len(data), sum(bare.count(sign) for sign in (b",", b"[", b"{"))


def appended(kind: str, key: str, item: Any) -> bytes:
    """The line that adds a thing to a session's file."""
    return f"{_json({kind: {key: item}})}\n".encode()


def whole_lines(data: bytes) -> int:
    """How many bytes a file has without what a crash left of a last line that was appended."""
    end = data.rfind(b"\n") + 1
    last = data[end:]
    is_torn = data[:end].rstrip().endswith(b"}") and last[:2] == b'{"'[: len(last)]
    if is_torn:
        return end
    return len(data)


def is_folded(data: bytes) -> bool:
    """Whether a file has nothing behind its object."""
    return data.rstrip().count(b"\n{") == 0


def _behind(text: str, end: int) -> list[str]:
    """The lines that were appended; none for blanks."""
    return [line for line in text[end:].split("\n") if line.strip(BLANKS)]


def _take(document: Any, line: Any) -> None:
    """Put what a line adds into a document."""
    added = {}
    if isinstance(line, dict):
        added = line
    refuse_if(
        not isinstance(document, dict) or len(added) != 1 or not {*added} <= {*BY_ID},
        "a line behind the object",
        f"{line!r:.80}",
        f"is one of {', '.join(BY_ID)} with what is added",
    )
    for kind, items in added.items():
        held = document.setdefault(kind, {})
        if (
            not isinstance(items, dict)
            or not isinstance(held, dict)
            or any(held[key] != items[key] for key in held.keys() & items.keys())
        ):
            raise ValueError(
                f"a line behind the object: got {line!r:.80}, allowed are items by ids that are new"
            )
        held.update(items)


def checked(document: Any, where: str) -> Document:
    """A document with every section, without the ruler; raises as ``read_session``."""
    d: Document = {}
    if isinstance(document, dict):
        d = document
    refuse_if(d is not document, f"{where}, the file", f"{document!r:.80}", "is an object")
    if d.get("npulab") != "session":
        raise ValueError(f'{where}: got no "npulab": "session", allowed is a session of npulab')
    if type(d.get("version")) is not int or d["version"] < 1:
        raise ValueError(
            f"{where}, version: got {d.get('version')!r:.40}, allowed is a whole number from 1 on"
        )
    for name, value in d.items():
        _plain(name, where, name, 0)
        _plain(value, where, name, 1)
    out = {**empty(), **d}
    for name in SECTIONS:
        if isinstance(out[name], dict):
            out[name] = {
                key: item for key, item in out[name].items() if key not in RULER or item != ""
            }
    from fastjsonschema import JsonSchemaValueException

    try:
        _schema()(out)
    except JsonSchemaValueException:  # the part at fault by itself says its place
        for name in SCHEMA["properties"]:
            if name in SECTIONS and isinstance(out[name], dict):
                for key, item in out[name].items():
                    _check({name: {key: item}}, where, f"{name} {key!r:.80}", f"data.{name}.{key}")
            elif name in out:
                _check({name: out[name]}, where, name, f"data.{name}")
        raise
    return out


def _check(part: Document, where: str, place: str, named: str) -> None:
    """Hold a part of a document against the schema; ``named`` is the schema's name of ``place``."""
    from fastjsonschema import JsonSchemaValueException

    try:
        _schema()(part)
    except JsonSchemaValueException as error:
        inner = str(error.name).removeprefix(named).replace(".", ", ")
        allowed, got = error.definition, f"{error.value!r:.80}"
        if error.rule == "propertyNames":
            allowed, key = error.rule_definition, next(iter(error.value))
            got, inner = f"{key!r:.80}" if "format" in allowed else "that as an id", ""
        elif error.rule == "required":
            missing = next(name for name in error.rule_definition if name not in error.value)
            allowed, got = {"description": "is one"}, f"no {missing}"
        elif error.rule == "dependencies":
            got = str(sorted(error.value))
        raise ValueError(
            f"{where}, {place}{inner}: got {got}, allowed {allowed['description']}"
        ) from None


@cache
def _schema() -> Callable[[Document], Any]:
    """The check of a document, compiled when one is read for the first time."""
    import fastjsonschema

    return fastjsonschema.compile(SCHEMA, formats={"path inside": _is_inside}, use_default=False)


def _is_inside(path: str) -> bool:
    """Whether a path is one below a folder, spelled in one way."""
    parts = PurePosixPath(path)
    return (
        bool(path)
        and "\\" not in path
        and path.isprintable()
        and parts.as_posix() == path
        and not parts.is_absolute()
        and not re.match(r"[A-Za-z]:", path)
        and not {".", ".."} & {*parts.parts, path}
    )


def _plain(value: Any, where: str, place: str, depth: int) -> None:
    """Refuse what is nested too deep, and texts that no file can hold."""
    refuse_if(depth > DEEPEST, f"{where}, {place}", f"values {depth} deep", f"are {DEEPEST}")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{where}, {place}: got a half of a surrogate pair at {error.start}, "
                "allowed is Unicode text"
            ) from None
    elif isinstance(value, dict | list):
        for part in value:
            _plain(part, where, place, depth + 1)
        for part in value.values() if isinstance(value, dict) else ():
            _plain(part, where, place, depth + 1)


def unknown(document: Mapping[str, Any]) -> list[str]:
    """The names in a document that this version of npulab does not know."""
    out = {name for name in document if name not in (*HEAD, *SECTIONS)}
    for kind in {*SECTIONS, "map"} - {"conflicts", "views"}:
        if kind == "map":
            items = [document.get("map", {})]
        else:
            items = document[kind].values()
        known = SCHEMA["definitions"][kind]["properties"]
        out |= {f"{kind}: {name}" for item in items for name in item if name not in known}
    return sorted(out)


def session_text(document: Mapping[str, Any]) -> str:
    """The file's text: the same document gives the same text; every section is there, with or
    without items."""
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
        if name == "notes":
            broken = 2
        elif name in SECTIONS or name == "map":
            broken = 1
        else:
            broken = 0
        lines.append(f" {_json(name)}: {_layout(value, 1, broken)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def as_kept(text: str) -> str | list[str]:
    """A text as the file has it, a line each where there are a few."""
    lines = text.split("\n")
    if 1 < len(lines) <= MOST_LINES:
        return lines
    return text


def as_text(kept: str | list[str]) -> str:
    """What ``as_kept`` was given."""
    if isinstance(kept, str):
        return kept
    return "\n".join(kept)


def canonical(value: Any) -> str:
    """One text for equal values."""
    return _json(value)


def id_of(*parts: Any) -> str:
    """Twelve hexadecimal digits that follow from the content, so that what is noted twice is one
    note."""
    return hashlib.sha256(_json(parts).encode()).hexdigest()[:12]


def _layout(value: Any, indent: int, broken: int) -> str:
    """JSON in which what fits on a line is one; the outer ``broken`` levels and lists of lines
    never are."""
    text = _json(value)
    lines = (
        isinstance(value, list) and len(value) > 1 and all(isinstance(one, str) for one in value)
    )
    if (
        not isinstance(value, dict | list)
        or not (value or broken)
        or (not broken and not lines and indent + len(text) <= WIDTH)
    ):
        return text
    if isinstance(value, list) and not any(isinstance(one, str | dict | list) for one in value):
        pad = " " * (indent + 1)
        return f"[\n{textwrap.fill(text[1:-1], WIDTH, initial_indent=pad, subsequent_indent=pad)}\n{' ' * indent}]"
    deep = max(broken - 1, 0)
    if isinstance(value, dict):
        ends, rows = (
            "{}",
            [f"{_json(key)}: {_layout(value[key], indent + 1, deep)}" for key in sorted(value)],
        )
    else:
        ends, rows = "[]", [_layout(one, indent + 1, deep) for one in value]
    body = ",\n".join(" " * (indent + 1) + row for row in rows)
    return f"{ends[0]}\n{body}{chr(10) * bool(body)}{' ' * indent}{ends[1]}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)


def _no_number(name: str) -> Any:
    raise ValueError(f"got {name}, allowed are finite numbers")


BLANKS = " \t\r\n"
HOOKS: dict[str, Any] = {"parse_float": Real, "parse_constant": _no_number}
DECODER = json.JSONDecoder(object_pairs_hook=once, **HOOKS)


# What lies beside it


def fold(path: Path) -> None:
    """Write a session's file anew, with what was appended to it inside; one that cannot be read or
    written stays as it is."""
    with suppress(ValueError, OSError), locked(path):
        data = read_bounded(path, MOST_BYTES)
        if not is_folded(data):
            replace_file(path, session_text(read_session(data, str(path))).encode())


@refusing()
def on_disk(path: Path) -> tuple[Document, bytes]:
    """The session in a file, and the file's bytes.

    Raises ValueError with file and place for what is none, or has a path that leads out of the
    file's folder.
    """
    data = read_bounded(path, MOST_BYTES)
    document = read_session(data, str(path))
    named = [
        *document["captures"],
        *document["journals"],
        *(one["path"] for one in document["figures"].values()),
        *([document["map"]["path"]] if "map" in document else []),
    ]
    with refusing(path):
        for name in named:
            inside(path.parent, name)
    return document, data


def inside(folder: Path, path: str) -> Path:
    """Where a path of a session lies; raises ValueError where links lead out of the session's
    folder."""
    found = folder / path
    if not found.resolve().is_relative_to(folder.resolve()):
        raise ValueError(
            f"{path!r:.80}: leads out of the session's folder over a link, allowed is a path "
            "inside it"
        )
    return found


def sum_of(path: Path) -> str:
    """The sha256 of a file, or of the description in a case folder; raises OSError where there is
    none."""
    if path.is_dir():
        path = path / DESCRIPTION
    if path.exists() and not path.is_file():
        raise OSError(EINVAL, "is no file", str(path))
    if not path.exists():
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(path))
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def png(picture: Any) -> bytes:
    """The PNG of a picture; raises ValueError for what draws none."""
    data: Any = b""
    if isinstance(picture, bytes):
        data = picture
    elif hasattr(picture, "_repr_png_"):
        data = picture._repr_png_()
    elif hasattr(picture, "savefig"):
        out = io.BytesIO()
        picture.savefig(out, format="png", metadata={"Software": None})
        data = out.getvalue()
    if not isinstance(data, bytes) or not data.startswith(PNG):
        raise ValueError(
            f"figure: got {type(picture).__name__}, allowed is a picture of npulab, a matplotlib "
            "figure "
            "or the bytes of a PNG"
        )
    return data
