"""Macros that annotations of npulab's own name: registers, their fields and enums, in the order of
the file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from npulab.registers.fields import WORD_BYTES
from npulab.registers.formats.c_comments import note_in, said_in
from npulab.registers.formats.c_fields import runs_of
from npulab.registers.formats.c_source import Source
from npulab.registers.table import COLUMNS


def notes_of(source: Source) -> dict[int, tuple[str, dict[str, Any]]]:
    """The note and annotation behind each macro on its line, by the macro's position."""
    starts = sorted(macro.position for macro in source.macros.values())
    out: dict[int, tuple[str, dict[str, Any]]] = {}
    for one in source.comments:
        at = bisect_right(starts, one.start) - 1
        if at < 0 or one.start - starts[at] > 2 ** 12:
            continue
        start = starts[at]
        between = source.code[start:one.start]
        if "\n" in between.replace("\\\n", "") or between.strip():
            continue
        try:
            said = said_in(one.text)
        except ValueError as error:
            raise ValueError(f"{source.where(one.start)}: {error}") from None
        note, words = out.get(start, ("", {}))
        out[start] = (note, {**words, **said}) if said is not None else (f"{note} {note_in(one.text)}".strip(), words)
    return out


def annotated(source: Source, values: Mapping[str, int], notes: Mapping[int, tuple[str, dict[str, Any]]],
              ) -> tuple[list[tuple[int, list[dict[str, Any]]]], dict[str, dict[int, str]], set[str]]:
    """Registers, fields and enums that annotations name, in the order of the file; the macros they
    are of."""
    chunks: list[tuple[int, list[dict[str, Any]]]] = []
    enums: dict[str, dict[int, str]] = {}
    taken: set[str] = set()
    texts: set[tuple[str, str]] = set()
    register: dict[str, Any] = {}
    ordered = sorted((macro for macro in source.macros.values() if macro.parameters is None),
                     key=lambda macro: macro.position)
    for macro in ordered:
        note, words = notes.get(macro.position, ("", {}))
        place = source.macros.get(f"{macro.name.removesuffix('__SHIFT')}__MASK")
        if register and place and notes.get(place.position, ("", {}))[1]:
            taken.add(macro.name)  # what it says stands in the mask
        if not words or macro.name not in values:
            continue
        taken.add(macro.name)
        value = values[macro.name]
        where = source.where(macro.position)
        if "enum" in words:
            names = enums.setdefault(words["enum"], {})
            text = words.get("name", macro.name)
            if value < 0 or value in names or (words["enum"], text) in texts:
                raise ValueError(f"{where}: enum {words['enum']}: got {text} = {value}, allowed is each name and each "
                                 "number from 0 once")
            names[value] = text
            texts.add((words["enum"], text))
        elif "block" in words:
            if value < 0 or value % WORD_BYTES:
                raise ValueError(f"{where}: register {macro.name}: got offset {value}, allowed is a multiple of "
                                 f"{WORD_BYTES} from 0")
            register = {"block": words["block"], "offset": value, "register": words.get("register", "")}
            chunks.append((macro.position, []))
        elif not register:
            raise ValueError(f"{where}: field {macro.name}: got it before any register, allowed is behind its register")
        else:
            runs = runs_of(value)
            if len(runs) != 1:
                raise ValueError(f"{where}: field {macro.name}: got mask {value:#x}, allowed is one run of bits of a "
                                 "word")
            columns = {name: said for name, said in words.items() if name in COLUMNS}
            chunks[-1][1].append({**register, "field": macro.name.removesuffix("__MASK"), "lsb": runs[0][0],
                                  "width": runs[0][1], **({"note": note} if note else {}), **columns})
    return chunks, enums, taken
