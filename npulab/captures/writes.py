"""Register writes: reading them from a text file, a register table made of them, and the place for
a new write among recorded ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from npulab.registers.fields import WORD_BITS, WORD_BYTES
from npulab.registers.map import RegisterMap
from npulab.registers.names import word_name
from npulab.support.files import read_bounded, text_of

MOST_BYTES = 2**26
NUMBER = re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE)
COMMENT = re.compile(r"#|//|;")
ALLOWED = "an address and a value, and perhaps a mask, as 0x..., or a comment"


def read_writes(path: Path | str) -> list[tuple[int, ...]]:
    """The writes in a text file, in the order of its lines: (address, value), or (address, value,
    mask).

    Each line has two or three numbers as ``0x...`` and any words between them; a comment begins
    with ``#``, ``//`` or ``;``. Raises ValueError with file and line for a line of another form,
    for a file without a write, and for an address that is not a multiple of 4.
    """
    path, out = Path(path), []
    for number, line in enumerate(text_of(read_bounded(path, MOST_BYTES), path).splitlines(), 1):
        text = COMMENT.split(line, maxsplit=1)[0].strip()
        write = tuple(int(found, 16) for found in NUMBER.findall(text))
        if not text:
            continue
        if len(write) not in (2, 3) or write[0] % WORD_BYTES:
            raise ValueError(
                f"{path} line {number}: got {text[:60]!r}, allowed is {ALLOWED}; addresses are "
                f"multiples of {WORD_BYTES}"
            )
        out.append(write)
    if not out:
        raise ValueError(f"{path}: got no write, allowed are lines of {ALLOWED}")
    return out


def rows_of_writes(
    writes: Iterable[Sequence[int]], block: str = "", reads: Iterable[Sequence[int]] = ()
) -> list[dict[str, Any]]:
    """Rows of a register table, one for each register that is written or read, sorted by offset:
    each is one field of 32 bits without a name, whose note lists the values.

    >>> rows_of_writes([(0x10, 1), (0x10, 3)], "JOB", [(0x10, 2)])[0]["note"]
    'written 2 times: 0x1, 0x3; read once: 0x2'
    """
    notes: dict[int, list[str]] = {}
    for what, accesses in (("written", writes), ("read", reads)):
        values: dict[int, list[int]] = {}
        for offset, value, *_ in accesses:
            values.setdefault(offset, []).append(value)
        for offset, found in values.items():
            notes.setdefault(offset, []).append(_note(what, found))
    return [
        {
            "block": block,
            "offset": offset,
            "register": word_name(offset, by_address=True),
            "lsb": 0,
            "width": WORD_BITS,
            "evidence": "unknown",
            "note": "; ".join(notes[offset]),
        }
        for offset in sorted(notes)
    ]


def place_of_write(offset: int, offsets: Sequence[int], registers: RegisterMap) -> int:
    """The place among recorded writes, given by their ``offsets``, before which to insert a write
    to the register at ``offset``, so that the register is set before its unit starts.

    It is the first write of the run of writes that starts the unit of the register. If no write
    starts that unit, it is the first write that starts any unit; if no write starts a unit, it is
    the end.
    """
    starts = set()
    for item in registers:
        if item.starts:
            starts |= {registers.registers[piece.word][1] for piece in item.pieces}
    own = _block_of(offset, registers)
    first = None
    for number, at in enumerate(offsets):
        if at not in starts:
            continue
        if first is None:
            first = number
        if _block_of(at, registers) == own:
            return _first_of_run(number, offsets, starts)
    if first is None:
        return len(offsets)
    return first


def _first_of_run(number: int, offsets: Sequence[int], starts: Collection[int]) -> int:
    """The number of the first write in the run of consecutive writes at ``starts`` that contains
    the write ``number``."""
    while number and offsets[number - 1] in starts:
        number -= 1
    return number


def _block_of(offset: int, registers: RegisterMap) -> str | None:
    word = registers.index.get(offset)
    if word is None:
        return None
    return registers.registers[word][0]


def _note(what: str, values: list[int]) -> str:
    kinds = list(dict.fromkeys(values))
    more = ""
    if len(kinds) > 4:
        more = f" and {len(kinds) - 4} more"
    times = "once"
    if len(values) > 1:
        times = f"{len(values)} times"
    return f"{what} {times}: {', '.join(map(hex, kinds[:4]))}{more}"
