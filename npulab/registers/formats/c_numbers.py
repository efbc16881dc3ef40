"""The macros of a C header as numbers: which macros may be numbers, which values are computed here,
and which expressions the compiler computes.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Set
from dataclasses import dataclass
from functools import cached_property

from npulab.registers.fields import WORD_BITS
from npulab.registers.formats.c_dialects import (
    BITS,
    CALL,
    CHOSEN,
    GETS,
    HEX,
    MADE,
    NO_BITS,
    PREPARED,
    RANGE,
    tail_of,
)
from npulab.registers.formats.c_text import LITERAL, NAME, Macro, Source

LARGEST = 2**WORD_BITS  # offsets, and masks of bits in a word, are below this number
MOST_BODY = 2**11  # the body of a macro that may be a number has fewer characters
# Each alternative begins with one fixed character, so that a search skips all other characters.
NO_NUMBER = re.compile(r"\"|{|}|;|'|=(?<![=!<>]=)(?!=)|do(?<!\wdo)\b|\.\.\.")
# matches a cast to a pointer to a register, and the kernel's wrapper of an offset
POINTED = re.compile(
    r"\*?\s*\(\s*(?:(?:const|volatile|__IO|__IM?|__OM?)\s+)*(?:v?u?int(?:8|16|32|64)?(?:_t)?|"
    r"v?u(?:8|16|32|64)|(?:unsigned\s+)?(?:int|long|short|char)|unsigned)"
    r"(?:\s+volatile)?\s*\*\s*\)|\b_MMIO(?=\s*\()"
)
NO_BRACKETS = str.maketrans("", "", "() ")
WORD = r"(?:\w+|\(\w+\))"
TERM = rf"(?:\(?{WORD} *\* *{WORD}\)?|{WORD})"
SUM = re.compile(rf"\(*{TERM}(?: *\+ *{TERM})*\)*")  # brackets change no term's value


def constants(macros: Mapping[str, Macro]) -> dict[str, Macro]:
    """Return the macros that may be numbers. If a body casts a number to a pointer, as for a
    register in memory, the returned body is the number alone.
    """
    out = {}
    for name, macro in macros.items():
        if macro.body.isalnum():
            out[name] = macro
        elif macro.body and len(macro.body) < MOST_BODY and not NO_NUMBER.search(macro.body):
            out[name] = macro
            if "*" in macro.body or "_MMIO" in macro.body:
                address, found = POINTED.subn("", macro.body)
                if found:
                    out[name] = macro._replace(body=re.sub(r"(^|\()\s*\*", r"\1", address))
    return out


def plain_values(numbers: Mapping[str, Macro]) -> dict[str, int]:
    """Return the values that need no compiler, by macro: literals, and sums of literals and earlier
    macros that fit into an int.

    A macro with one parameter, the index of an array, has three values, for the indices 0 to 2;
    their keys are ``name[0]`` to ``name[2]``.
    """
    out: dict[str, int] = {}
    for name, macro in numbers.items():
        body, index = macro.body, macro.parameters
        if index is None and (found := LITERAL.fullmatch(body)):
            out[name] = int(found[1], 0)
            continue
        if index is not None and (len(index) != 1 or "+" not in body):
            continue
        if not SUM.fullmatch(body) or body.count("(") != body.count(")"):
            continue
        first, step = _linear(body, index or (), out)
        if first + 2 * step >= LARGEST // 2:  # the sum might not fit into an int
            continue
        if index is None:
            out[name] = first
        else:
            for n in range(3):
                out[f"{name}[{n}]"] = first + n * step
    return out


def _linear(body: str, index: Container[str], known: Mapping[str, int]) -> tuple[int, int]:
    """Return the value of a sum at index 0, and the number that each step of the index adds;
    (LARGEST, 0) if a term is unknown, or has the index twice.
    """
    sums = [0, 0]  # the sums of the terms without the index and of the factors of the index
    for term in body.translate(NO_BRACKETS).split("+"):
        power, product = 0, 1
        for part in term.split("*"):
            if part in index:
                power += 1
            elif part in known:
                product *= known[part]
            elif found := LITERAL.fullmatch(part):
                product *= int(found[1], 0)
            else:
                return LARGEST, 0
        if power < 2:
            sums[power] += product
        elif product:
            return LARGEST, 0
    return sums[0], sums[1]


def probes(source: Source, numbers: Mapping[str, Macro], known: Container[str]) -> dict[str, str]:
    """Return the expressions that the compiler computes. A key is the macro's name, with
    arguments if it has parameters; a value is the expression.

    For a macro X that packs or takes out a field, the keys are ``X(~)`` (all ones), ``X(1)`` and
    ``X(mask)`` (the mask of its FIELD_PREP). For a macro that adds, they are the first indices,
    such as ``X[0]`` or ``X[0,1]``. Values in ``known`` are left out.
    """
    out: dict[str, str] = {}
    plain = [name for name, macro in numbers.items() if not macro.parameters]
    paired = {tail[0] for tail in map(tail_of, plain) if tail}
    for name, macro in numbers.items():
        if macro.parameters is None:
            if name not in known and RANGE.fullmatch(macro.body) is None:
                out[name] = name
                if macro.body != source.macros[name].body:
                    out[name] = macro.body
        elif len(macro.parameters) == 1 and macro.parameters[0]:
            if name not in paired and (MADE.search(macro.body) or GETS.search(macro.body)):
                out[f"{name}(~)"] = f"{name}({LARGEST - 1}ull)"
                out[f"{name}(1)"] = f"{name}(1ull)"
                if prepared := PREPARED.search(macro.body):
                    out[f"{name}(mask)"] = prepared[1]
            if "+" in macro.body and f"{name}[0]" not in known:
                for n in range(3):
                    out[f"{name}[{n}]"] = f"{name}({n})"
        elif len(macro.parameters) == 2 and "+" in macro.body:
            for a, b in ((0, 0), (1, 0), (0, 1), (1, 1)):
                out[f"{name}[{a},{b}]"] = f"{name}({a}, {b})"
    return out


@dataclass(frozen=True)
class Facts:
    """The macros of a source, their values, and the way in which they are written."""

    source: Source
    numbers: Mapping[str, Macro]  # the macros that may be numbers, by name
    values: dict[str, int]
    refused: Mapping[str, str]  # why a macro has no value, by its name
    spoken: Set[str]  # the words in the declarations
    # A text for each word of a struct (``c_registers.Member``): macros of its fields begin with it.
    members: Set[str]

    def __post_init__(self) -> None:
        # ``1 << 31`` is an int below 0 in C; the value here becomes 2**31
        for name in self.bitwise:
            if -LARGEST // 2 <= self.values.get(name, 0) < 0:
                self.values[name] += LARGEST

    @cached_property
    def ordered(self) -> dict[str, Macro]:
        """The macros in the order of the text."""
        return dict(sorted(self.source.macros.items(), key=lambda item: item[1].position))

    @cached_property
    def plain(self) -> dict[str, Macro]:
        """The macros without parameters that may be numbers."""
        return {name: macro for name, macro in self.numbers.items() if macro.parameters is None}

    @cached_property
    def bitwise(self) -> frozenset[str]:
        """The macros without parameters that are written as bits are: with a shift, or with a macro
        such as ``BIT`` or ``GENMASK``.
        """
        bodies = {macro.body for macro in self.plain.values()}
        bits = {body for body in bodies if BITS.search(body) and not NO_BITS.match(body)}
        return frozenset(name for name, macro in self.plain.items() if macro.body in bits)

    @cached_property
    def hexadecimal(self) -> frozenset[str]:
        """The macros without parameters that are written in hexadecimal."""
        return frozenset(name for name, macro in self.plain.items() if HEX.fullmatch(macro.body))

    @cached_property
    def used(self) -> Set[str]:
        """The words in the declarations, and in the bodies of macros that are no literals."""
        bodies = [self.source.macros[name].body for name in self.numbers]
        text = " ".join(body for body in bodies if not LITERAL.fullmatch(body))
        return {*self.spoken, *NAME.findall(text)}

    def chosen_offsets(self, macro: Macro) -> list[int]:
        """Return the offsets among which a macro's index chooses, as in i915's headers; an empty
        list for any other macro, and if the value of an offset is unknown.
        """
        if "," not in macro.body or MADE.search(macro.body):
            return []
        found = CHOSEN.fullmatch(macro.body)
        if found is None or macro.parameters != (found[1],):
            return []
        words = re.findall(r"\w+", found[2])
        if len(words) == 1 and words[0][0] != "_":
            return []
        offsets = []
        for word in words:
            if HEX.fullmatch(word):
                offsets.append(int(word, 16))
            elif self.values.get(word, -1) >= 0:
                offsets.append(self.values[word])
            else:
                return []
        return offsets

    def packs(self, body: str) -> bool:
        """True if a body calls a macro that packs several numbers into one."""
        call = CALL.fullmatch(body)
        called = self.source.macros.get(call[1]) if call else None
        if called is None or len(called.parameters or ()) < 2:
            return False
        return "<<" in called.body or (called.body != body and self.packs(called.body))
