"""The file of a session: one JSON object, read strictly, written so that git can merge it.

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

Notes, bookmarks, laws and figures have an id as key, captures and journals their path from the
file's folder, views a name. The blank lines of the notes are a ruler: notes that two people add
come between different lines of it, so that git can merge them. Names that only a newer npulab knows
are kept in the file; a file of a later version of the format is refused.

An item that is added to a large session is appended after the object as a line such as ``{"notes":
{"1c40f5e1a9b2": {...}}}``. When the file is written anew, all items are inside the object. If the
last appended line has no line end, a crash cut it off, and it is not part of the session.
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
MARKS = "conflict"  # under this key an item has the ids of items that contradict it
RULER = tuple("0123456789abcdef~")
MOST_BYTES = 2**22
MOST_PARTS = 2**17  # the most JSON values in a file, as even a short value takes memory
DEEPEST = 24
WIDTH = 110
MOST_LINES = 500  # a longer text is kept as one string, not as a list of lines
STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
GIT = re.compile(rb"^(<<<<<<<|=======|>>>>>>>)", re.MULTILINE)
PNG = b"\x89PNG\r\n\x1a\n"

Document = dict[str, Any]


class Real(float):
    """A number that is written with a decimal point; it does not count as a whole number, even if
    only zeros follow the point.
    """

    def is_integer(self) -> bool:
        return False


def empty() -> Document:
    """Return the document of a session that has every section, but no items."""
    return {"npulab": "session", "version": VERSION, "title": "", **{name: {} for name in SECTIONS}}


def read_session(data: bytes, where: str) -> Document:
    """Return the session in a file's bytes; raises ValueError with file and place for bytes that
    are not a session.

    >>> read_session(session_text(empty()).encode(), "x.json") == empty()
    True
    """
    size, parts = weight(data)
    refuse_if(size > MOST_BYTES, where, f"{size} bytes", f"are {MOST_BYTES}")
    marks = GIT.search(data)
    if marks:
        line = data.count(b"\n", 0, marks.start()) + 1
        raise ValueError(
            f"{where}, line {line}: got git's mark of a conflict, allowed is a session; "
            "npulab session merge BASE OURS THEIRS merges the three sessions that it was made from"
        )
    if parts > MOST_PARTS:
        raise ValueError(f"{where}: got {parts} JSON values, allowed are at most {MOST_PARTS}")
    text = text_of(data[: whole_lines(data)], where)
    try:
        document, end = DECODER.raw_decode(text, len(text) - len(text.lstrip(BLANKS)))
    except (ValueError, RecursionError):  # json_of raises the error again, with line and column
        document, end = json_of(text, where, **HOOKS), len(text)
    first = text.count("\n", 0, end) + 2
    rest = text[end:]
    if rest.strip(BLANKS) and not rest.lstrip(" \t").startswith(("\n", "\r")):
        json_of(text, where, **HOOKS)  # this call refuses text behind the object on its last line
    appended = [text for text in rest.split("\n") if text.strip(BLANKS)]
    for row, text in enumerate(appended, first):
        added = json_of(text, where, row, **HOOKS)
        with refusing(f"{where}, line {row}"):
            _take(document, added)
    return checked(document, where)


def weight(data: bytes) -> tuple[int, int]:
    """Return the number of bytes of a session's file, and an upper limit of the number of its JSON
    values.
    """
    bare = STRINGS.sub(b"", data)
    return len(data), bare.count(b",") + bare.count(b"[") + bare.count(b"{")


def appended(kind: str, key: str, item: Any) -> bytes:
    """Return the line that adds an item to a session's file."""
    return f"{_json({kind: {key: item}})}\n".encode()


def whole_lines(data: bytes) -> int:
    """Return the number of bytes of a session's file, without a last appended line that has no line
    end, because a crash cut it off.
    """
    end = data.rfind(b"\n") + 1
    last = data[end:]
    is_torn = data[:end].rstrip().endswith(b"}") and last[:2] == b'{"'[: len(last)]
    if is_torn:
        return end
    return len(data)


def is_folded(data: bytes) -> bool:
    """True if a session's file is one object, without appended lines after it."""
    return data.rstrip().count(b"\n{") == 0


def _take(document: Any, line: Any) -> None:
    """Put the item of an appended line into a document; raises ValueError if the line is not
    an item with a new id.
    """
    added = {}
    if isinstance(line, dict):
        added = line
    refuse_if(
        not isinstance(document, dict) or len(added) != 1 or not {*added} <= {*BY_ID},
        "a line after the object",
        f"{line!r:.80}",
        f"is one of {', '.join(BY_ID)} with the items that it adds",
    )
    for kind, items in added.items():
        held = document.setdefault(kind, {})
        is_new = isinstance(items, dict) and isinstance(held, dict)
        if is_new:
            is_new = all(held[key] == items[key] for key in held.keys() & items.keys())
        if not is_new:
            raise ValueError(
                f"a line after the object: got {line!r:.80}, allowed are items with new ids"
            )
        held.update(items)


def checked(document: Any, where: str) -> Document:
    """Return a document with every section, without the blank lines of the notes' ruler; raises
    ValueError as ``read_session``.
    """
    d: Document = {}
    if isinstance(document, dict):
        d = document
    refuse_if(d is not document, f"{where}, the file", f"{document!r:.80}", "is an object")
    if d.get("npulab") != "session":
        raise ValueError(f'{where}: got no "npulab": "session", allowed is a session of npulab')
    if d.get("version") != VERSION or d["version"] is True:
        raise ValueError(f"{where}, version: got {d.get('version')!r:.40}, allowed is {VERSION}")
    for name, value in d.items():
        _check_value(name, where, name, 0)
        _check_value(value, where, name, 1)
    out = {**empty(), **d}
    for name in SECTIONS:
        if isinstance(out[name], dict):
            items = out[name].items()
            out[name] = {key: item for key, item in items if key not in RULER or item != ""}
    from fastjsonschema import JsonSchemaValueException

    try:
        _schema()(out)
    except JsonSchemaValueException:  # each part is checked alone, to name the part at fault
        for name in SCHEMA["properties"]:
            if name in SECTIONS and isinstance(out[name], dict):
                for key, item in out[name].items():
                    _check_part(
                        {name: {key: item}}, where, f"{name} {key!r:.80}", f"data.{name}.{key}"
                    )
            elif name in out:
                _check_part({name: out[name]}, where, name, f"data.{name}")
        raise
    return out


def _check_part(part: Document, where: str, place: str, named: str) -> None:
    """Raise ValueError if a part of a document breaks the schema; ``where`` is the file, ``place``
    the part's name in error texts, ``named`` its name in the schema's own errors.
    """
    from fastjsonschema import JsonSchemaValueException

    try:
        _schema()(part)
    except JsonSchemaValueException as error:
        inner = str(error.name).removeprefix(named).replace(".", ", ")
        allowed, got = error.definition, f"{error.value!r:.80}"
        if error.rule == "propertyNames":
            allowed = error.rule_definition
            inner = ""
            got = "that as an id"
            if "format" in allowed:
                key = next(iter(error.value))
                got = f"{key!r:.80}"
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
    """Return the function that checks a document by the schema; it is compiled when the first
    document is read.
    """
    import fastjsonschema

    return fastjsonschema.compile(SCHEMA, formats={"path inside": _is_inside}, use_default=False)


def _is_inside(path: str) -> bool:
    """True if a path is relative, in its normal form, and leads out of no folder."""
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


def _check_value(value: Any, where: str, place: str, depth: int) -> None:
    """Raise ValueError for a value that is nested too deep, or a text that cannot be written as
    UTF-8.
    """
    refuse_if(depth > DEEPEST, f"{where}, {place}", f"values {depth} deep", f"are {DEEPEST}")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{where}, {place}: got half of a surrogate pair at character {error.start}, "
                "allowed is Unicode text"
            ) from None
    parts: list[Any] = []
    if isinstance(value, list):
        parts = value
    elif isinstance(value, dict):
        parts = [*value, *value.values()]
    for part in parts:
        _check_value(part, where, place, depth + 1)


def unknown(document: Mapping[str, Any]) -> list[str]:
    """Return the names in a document that this version of npulab does not know, sorted; the name
    of a value in an item has the item's section in front.
    """
    names = set(document) - {*HEAD, *SECTIONS}
    for kind in {*SECTIONS, "map"} - {"conflicts", "views"}:
        items = [document.get("map", {})]
        if kind != "map":
            items = document[kind].values()
        known = SCHEMA["definitions"][kind]["properties"]
        for item in items:
            names |= {f"{kind}: {name}" for name in item if name not in known}
    return sorted(names)


def session_text(document: Mapping[str, Any]) -> str:
    """Return the text of a session's file: equal documents give equal texts, and every section is
    written, even if it has no items.
    """
    lines = []
    for name in (*HEAD, *sorted(name for name in document if name not in HEAD)):
        if name in ("npulab", "version", "title") or document.get(name):
            value = document[name]
        elif name in SECTIONS:
            value = {}
        else:
            continue
        broken = 0
        if name in SECTIONS or name == "map":
            broken = 1
        if name == "notes":
            broken = 2
            value = {**dict.fromkeys(RULER, ""), **value}
        lines.append(f" {_json(name)}: {_layout(value, 1, broken)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def as_kept(text: str) -> str | list[str]:
    """Return a text as the file has it: a list of its lines, or, if it has a single line or too
    many, the text itself.
    """
    lines = text.split("\n")
    if 1 < len(lines) <= MOST_LINES:
        return lines
    return text


def as_text(kept: str | list[str]) -> str:
    """Return the text that a file has as ``kept``, a text or a list of its lines."""
    if isinstance(kept, str):
        return kept
    return "\n".join(kept)


def canonical(value: Any) -> str:
    """Return JSON text that is the same for equal values."""
    return _json(value)


def id_of(*parts: Any) -> str:
    """Return an id of twelve hexadecimal digits, a hash of the content: equal notes have equal ids,
    so that a note that is added twice is one note.
    """
    return hashlib.sha256(_json(parts).encode()).hexdigest()[:12]


def _layout(value: Any, indent: int, broken: int) -> str:
    """Return JSON text with each value on one line if it fits.

    Two kinds of values have a line for each element even if they would fit on one line: values of
    the outermost ``broken`` levels, and lists of texts, such as the lines of a note.
    """
    text = _json(value)
    if not isinstance(value, dict | list) or not (value or broken):
        return text
    is_text = isinstance(value, list) and len(value) > 1
    if is_text:
        is_text = all(isinstance(line, str) for line in value)
    if not broken and not is_text and indent + len(text) <= WIDTH:
        return text
    pad = " " * (indent + 1)
    start, end = text[0], " " * indent + text[-1]
    deep = max(broken - 1, 0)
    rows = []
    if isinstance(value, dict):
        for key in sorted(value):
            rows.append(f"{pad}{_json(key)}: {_layout(value[key], indent + 1, deep)}")
    elif any(isinstance(item, str | dict | list) for item in value):
        rows = [pad + _layout(item, indent + 1, deep) for item in value]
    else:
        rows = [textwrap.fill(text[1:-1], WIDTH, initial_indent=pad, subsequent_indent=pad)]
    if not rows:
        return f"{start}\n{end}"
    body = ",\n".join(rows)
    return f"{start}\n{body}\n{end}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)


def _no_number(name: str) -> Any:
    raise ValueError(f"number: got {name}, allowed are finite numbers")


BLANKS = " \t\r\n"
HOOKS: dict[str, Any] = {"parse_float": Real, "parse_constant": _no_number}
DECODER = json.JSONDecoder(object_pairs_hook=once, **HOOKS)


# Functions for files on disk: the session's own, and the files that it refers to


def fold(path: Path) -> None:
    """Write a session's file anew, with the appended items inside its object; a file that cannot be
    read or written stays as it is.
    """
    with suppress(ValueError, OSError), locked(path):
        data = read_bounded(path, MOST_BYTES)
        if not is_folded(data):
            replace_file(path, session_text(read_session(data, str(path))).encode())


@refusing()
def on_disk(path: Path) -> tuple[Document, bytes]:
    """Return the session in a file as a document, and the file's bytes.

    Raises ValueError with file and place for a file that is not a session, or that has a path that
    leads out of the file's folder.
    """
    data = read_bounded(path, MOST_BYTES)
    document = read_session(data, str(path))
    named = [*document["captures"], *document["journals"]]
    named += [figure["path"] for figure in document["figures"].values()]
    if "map" in document:
        named.append(document["map"]["path"])
    with refusing(path):
        for name in named:
            inside(path.parent, name)
    return document, data


def inside(folder: Path, path: str) -> Path:
    """Return the file or folder at a path that starts in the session's folder; raises ValueError if
    links lead out of this folder.
    """
    found = folder / path
    if not found.resolve().is_relative_to(folder.resolve()):
        raise ValueError(
            f"{path!r:.80}: leads out of the session's folder over a link, allowed is a path "
            "inside the folder"
        )
    return found


def sum_of(path: Path) -> str:
    """Return the sha256 of a file, or, for a case folder, of its description ``capture.json``;
    raises OSError if there is no such file.
    """
    if path.is_dir():
        path = path / DESCRIPTION
    if path.exists() and not path.is_file():
        raise OSError(EINVAL, "is no file", str(path))
    if not path.exists():
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(path))
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def png(picture: Any) -> bytes:
    """Return the bytes of a picture's PNG; raises ValueError for an object that has no PNG."""
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
            "figure or the bytes of a PNG"
        )
    return data
