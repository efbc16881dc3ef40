"""Values of a job's fields by full name, ``BLOCK.REGISTER.FIELD``, and checks of these values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from itertools import chain
from typing import Any, Protocol

import numpy as np

from npulab.captures.capture import Capture, Job
from npulab.captures.target import Hang, Unsupported
from npulab.registers.fields import Field
from npulab.registers.map import RegisterMap


class Named(Protocol):
    """Protocol of anything that returns a value for a name in brackets."""

    def __getitem__(self, name: str, /) -> Any: ...


Raw = Mapping[str, int]
Cut = tuple[str, Field | None, list[tuple[int, int, int, int]]]
DEVICE = "{name} is {got}, the simulated unit knows {allowed} only"


class Values(dict[str, int]):
    """Values of fields by full name; a name without a value raises Unsupported, because the job
    does not write the field's register.
    """

    def __missing__(self, name: str) -> int:
        raise Unsupported(f"field {name}: the task does not write its register")


def values_of(
    job: Job, maps: Mapping[str, RegisterMap], *, raw: bool = False, unwritten: bool = False
) -> Values:
    """Return the values of the fields of a job, and of the job that starts it, by full name:
    decoded, or with ``raw`` the stored bits.

    A field with an enum has its number as value. If the job is register writes, only fields of
    registers that the job writes are returned, or with ``unwritten`` all fields. Raises LookupError
    if there is no map for a block.
    """
    if job.block not in maps:
        blocks = ", ".join(maps) or "none"
        raise LookupError(f"block: got {job.block!r}, maps are known for {blocks}")
    registers, words = maps[job.block], job.words.tolist()
    cuts, out = _cuts(registers, raw), Values()
    if job.writes and not unwritten:
        used = sorted({registers.index[at] for at in job.state if at in registers.index})
        cuts = [cuts[number] for number in used]
    for name, item, pieces in chain.from_iterable(cuts):
        value = 0
        for word, lsb, mask, unit in pieces:
            value += (words[word] >> lsb & mask) * unit
        if item is None:
            out[name] = value
        else:
            item = registers.field_in(item, job.words)
            out[name] = item.value(np.array(value, item.stored_type)).item()
    if job.start:
        out.update(values_of(job.start, maps, raw=raw, unwritten=unwritten))
    return out


def only_job(capture: Capture, block: str, what: str) -> dict[str, Any]:
    """Return the values of the fields of a capture's only job, by field name.

    Raises Unsupported unless the capture has exactly one job, of ``block``; the error says ``what``
    ("the simulated device runs") one of this block.
    """
    if [job.block for job in capture.jobs] != [block]:
        blocks = ", ".join(job.block for job in capture.jobs) or "none"
        raise Unsupported(f"capture {capture.name}: got jobs {blocks}, {what} one of {block}")
    return capture.maps[block].decode(capture.words)


@cache
def offsets_of(registers: RegisterMap) -> dict[str, int]:
    """Return the byte offset of each register by ``BLOCK.REGISTER``."""
    return {f"{block}.{name}": offset for block, offset, name in registers.registers}


@cache
def names_of(registers: RegisterMap) -> dict[int, str]:
    """Return the name ``BLOCK.REGISTER`` of the register at each byte offset."""
    return {offset: name for name, offset in offsets_of(registers).items()}


@cache
def _cuts(registers: RegisterMap, raw: bool) -> list[list[Cut]]:
    """Return for each word of a map how to compute its fields: (full name, field, pieces).

    A piece is (word, lsb, mask, weight of the lowest bit). The field is None if its value is the
    weighted sum of its pieces. A sign is a further piece: the highest bit once more, with a
    negative weight.
    """
    out: list[list[Cut]] = [[] for _ in registers.registers]
    for item in registers:
        signed, steps = item.meaning.kind == "signed", dict(item.meaning.steps)
        simple = steps.keys() <= {"*"} and not item.meaning.by
        plain = raw or ((signed or not item.meaning.kind) and simple)
        by = 1
        if plain and not raw:
            by = steps.get("*", 1)
        pieces = [(word, lsb, 2**width - 1, by * 2**at) for word, lsb, width, at in item.pieces]
        if signed and plain and not raw:
            top = max(item.pieces, key=lambda piece: piece.at)
            pieces.append((top.word, top.lsb + top.width - 1, 1, -by * 2**item.width))
        name = f"{item.block}.{item.register}.{item.name}"
        for word in {piece.word for piece in item.pieces}:
            out[word].append((name, None if plain else item, pieces))
    return out


def expect(
    values: Named,
    allowed: Mapping[str, Collection[Any]],
    text: str,
    error: type[Exception] = ValueError,
    style: str = "",
    joint: str = " or ",
) -> None:
    """Raise ``error`` for the first field whose value is not among its ``allowed`` values; a field
    with no allowed values may have any value but 0.

    ``text`` is the message, with ``{name}``, ``{got}`` and ``{allowed}``; ``style`` formats the
    numbers, ``joint`` stands between the allowed values, and a range is printed as its ends.
    """
    for name, known in allowed.items():
        value = values[name]
        if value in known or (value and not known):
            continue
        # A range may be of 2**26 numbers, so only its ends are formatted.
        if isinstance(known, range):
            numbers = f"{known[0]:{style}} to {known[-1]:{style}}"
        else:
            numbers = joint.join(format(number, style) for number in known) or "any but 0"
        raise error(text.format(name=name, got=format(value, style), allowed=numbers))


def agree(
    values: Named,
    pairs: Iterable[tuple[str, str, str]],
    text: str,
    error: type[Exception] = ValueError,
) -> None:
    """Raise ``error`` for the first pair of fields (a, b, why) whose values differ.

    ``text`` is the message, with ``{a}``, ``{got}`` (the value of a), ``{b}``, ``{other}`` (the
    value of b) and ``{why}``.
    """
    for a, b, why in pairs:
        if values[a] != values[b]:
            raise error(text.format(a=a, got=values[a], b=b, other=values[b], why=why))


def known(values: Named, allowed: Mapping[str, Collection[Any]], text: str = DEVICE) -> None:
    """Raise Hang for the first field whose value is not among its ``allowed`` values, those that a
    simulated unit knows; a field with no allowed values may have any value but 0.
    """
    for name, numbers in allowed.items():
        hang_if(not numbers and values[name] == 0, f"{name} is 0")
        expect(values, {name: numbers}, text, Hang, joint=" and ")


def hang_if(wrong: object, text: str) -> None:
    """Raise Hang with ``text`` if ``wrong`` is true."""
    if wrong:
        raise Hang(text)
