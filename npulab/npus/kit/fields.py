"""A job's values by full name, ``BLOCK.REGISTER.FIELD``, and what they are expected to be."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

from npulab.captures.capture import Job
from npulab.captures.target import Hang, Unanswerable
from npulab.registers.map import Field, RegisterMap

Raw = Mapping[str, int]
Cut = tuple[str, Field, tuple[tuple[int, int, int, int], ...]]
DEVICE = "{name} is {got}, the simulated unit knows {allowed} only"


class Values(dict[str, int]):
    """Values by full name; one of a register that is not written is refused in a sentence."""

    def __missing__(self, name: str) -> int:
        raise Unanswerable(f"field {name}: the task does not write its register")


def values_of(job: Job, maps: Mapping[str, RegisterMap], *, raw: bool = False,
              unwritten: bool = False) -> Values:
    """Values of a job's fields and of those of its start, by full name, as meant; ``raw`` as stored.

    Enums stay their code.  Of a job of register writes only fields of registers that it writes,
    with ``unwritten`` all of them.  Raises LookupError if there is no map for a block.
    """
    if job.block not in maps:
        raise LookupError(f"block: got {job.block!r}, maps are known for {', '.join(maps) or 'none'}")
    registers, words = maps[job.block], job.words.tolist()
    everything = unwritten or not job.writes
    written = set() if everything else {registers.index.get(offset, -1) for offset, _ in job.writes}
    out = Values()
    for name, item, pieces in _cuts(registers):
        if everything or not written.isdisjoint(piece[0] for piece in pieces):
            word, lsb, mask, _ = pieces[0]
            value = words[word] >> lsb & mask
            if len(pieces) > 1:
                value = sum((words[word] >> lsb & mask) * unit for word, lsb, mask, unit in pieces)
            plain = raw or not (item.meaning.kind or item.meaning.steps)
            out[name] = value if plain else item.value(np.array(value, item.stored_type)).item()
    if job.start:
        out.update(values_of(job.start, maps, raw=raw, unwritten=unwritten))
    return out


@cache
def _cuts(registers: RegisterMap) -> list[Cut]:
    """(full name, field, its pieces: word, lsb, mask, weight of its lowest bit) of each field."""
    return [(f"{item.block}.{item.register}.{item.name}", item,
             tuple((word, lsb, 2 ** width - 1, 2 ** at) for word, lsb, width, at in item.pieces))
            for item in registers]


def expect(values: Mapping[str, Any], allowed: Mapping[str, Collection[Any]], text: str,
           error: type[Exception] = ValueError, style: str = "", joint: str = " or ") -> None:
    """Raise ``error`` for the first field that has none of its allowed values.

    ``text`` says so with ``{name}``, ``{got}`` and ``{allowed}``; ``style`` formats the numbers.
    """
    for name, known in allowed.items():
        if values[name] not in known:
            numbers = joint.join(format(number, style) for number in known)
            got = format(values[name], style)
            raise error(text.format(name=name, got=got, allowed=numbers))


def agree(values: Mapping[str, Any], pairs: Iterable[tuple[str, str]], text: str) -> None:
    """Raise ValueError for the first two fields that should say the same and do not.

    ``text`` says so with ``{a}``, ``{got}``, ``{b}`` and ``{other}``.
    """
    for a, b in pairs:
        if values[a] != values[b]:
            raise ValueError(text.format(a=a, got=values[a], b=b, other=values[b]))


def known(values: Mapping[str, Any], allowed: Mapping[str, Collection[Any]],
          text: str = DEVICE) -> None:
    """Raise Hang for the first field that has a value which a simulated unit does not know."""
    expect(values, allowed, text, Hang, joint=" and ")


def nonzero(values: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise Hang for the first of these fields that is 0."""
    for name in names:
        if values[name] == 0:
            raise Hang(f"{name} is 0")
