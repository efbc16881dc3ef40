"""The rows of a difference between captures or sets of them: by place, as stored and as meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from npulab.analysis.check import ORDER, WRITES, Key, diff, raw_fields
from npulab.analysis.sides import jobs_of
from npulab.captures.capture import Capture, CaptureSet
from npulab.captures.listing import folded
from npulab.registers.fields import Field

ABSENT = "–"
MOST_VALUES = 5  # of a field in a set
MOST_LETTERS = 120  # of a value


@dataclass(frozen=True)
class DiffRow:
    """A field that differs: where it lies, and what it is in ``a`` and ``b``, as stored (hex) and
    as meant.

    ``job`` is the task, or the name of the job or of the units of one label that say the same.
    ``xor`` has the bits that differ, where both sides have one value; ``differs`` says of two sets
    "always" or "sometimes".  ``automatic`` is a field that nobody named, ``bits`` where it lies in
    its register.
    """

    task: int = field(repr=False)
    block: str
    register: str
    field: str
    bits: str
    hex_a: str
    hex_b: str
    xor: int | None
    a: str
    b: str
    address: bool
    automatic: bool
    differs: str = ""
    known: str = ""
    width: int = 0
    job: str = "0"

    @property
    def key(self) -> Key:
        return self.task, self.block, self.register, self.field

    @property
    def where(self) -> str:
        return f"{self.block} {self.register}".strip()

    @property
    def meaning(self) -> str:
        if (self.a, self.b) == (self.hex_a, self.hex_b):
            said = ""
        else:
            said = f"{self.a} → {self.b}"
        return ", ".join(filter(None, [said, self.differs]))

    @property
    def xor_text(self) -> str:
        if self.xor is None:
            return ""
        return f"{self.xor:#x}"

    @property
    def binary(self) -> list[str]:
        """The bits of ``a`` and of ``b``, highest first; none of an address, and where a side has
        not one value.

        >>> row = DiffRow(0, "NN", "w1", "pad", "[4:2]", "0x1", "0x5", 4, "1", "5", False, False, width=3)
        >>> row.binary
        ['001', '101']
        """
        if self.xor is None or self.address:
            return []
        return [f"{int(value, 16):0{self.width}b}" for value in (self.hex_a, self.hex_b)]

    @property
    def line(self) -> str:
        """Everything that is known of it in one line."""
        xor = self.xor or 0
        differ = [str(bit) for bit in range(xor.bit_length()) if xor >> bit & 1]
        bits = ""
        if differ:
            bits = f"bits that differ {', '.join(differ)}"
        sides = [
            f"{name} {raw} = {value}" if raw != value else f"{name} {raw}"
            for name, raw, value in (("a", self.hex_a, self.a), ("b", self.hex_b, self.b))
        ]
        if self.address:
            kind = "address"
        elif self.automatic:
            kind = "nobody named it"
        else:
            kind = ""
        job = self.job
        if self.job.isdecimal():
            job = f"job {self.job}"
        place = f"{job} {self.where} {self.field} {self.bits}".rstrip()
        return " · ".join(filter(None, [place, *sides, bits, self.differs, kind, self.known]))

    def matches(self, pattern: str) -> bool:
        """Whether its name, alone or behind register or block, is as a glob says; without ``*``,
        ``?`` and ``[`` it is enough to have it somewhere.  Letters count alike, large and small."""
        glob = pattern.casefold().strip()
        if not any(letter in glob for letter in "*?["):
            glob = f"*{glob}*"
        register = f"{self.register}.{self.field}"
        return any(
            fnmatchcase(name.casefold(), glob)
            for name in (self.field, register, f"{self.block}.{register}")
        )


def rows(a: Capture | CaptureSet, b: Capture | CaptureSet) -> tuple[tuple[DiffRow, ...], int]:
    """The rows of ``npulab.diff`` by place, those of equal units as one, and how many fields are
    equal."""
    table = diff(a, b)
    sides = [
        [raw_fields(capture) for capture in ([side] if isinstance(side, Capture) else side)]
        for side in (a, b)
    ]
    every: dict[Key, Field] = {}
    for fields in (*sides[0], *sides[1]):
        for key, (first, _) in fields.items():
            every.setdefault(key, first)
    places = _places(a, b, every)
    out = []
    for row in table.to_dict("records"):
        key = (row["task"], row["block"], row["register"], row["field"])
        item = every.get(key)
        raws = [
            [*dict.fromkeys(fields[key][1] for fields in side if key in fields)] for side in sides
        ]
        values = [row[name] if isinstance(row[name], list) else [row[name]] for name in ("a", "b")]
        meant = [_meant(side, row["address"]) for side in values]
        if item is None:
            shown = meant
        else:
            shown = [_hex(*side) for side in zip(raws, values, strict=True)]
        single = [
            side[0]
            for side, several in zip(raws, values, strict=True)
            if len(side) == 1 and None not in several
        ]
        if item is None:
            known = ""
        else:
            known = f"evidence {item.evidence}" + (f" · {item.note}" if item.note else "")
        out.append(
            DiffRow(
                *key,
                "" if item is None else _bits(item),
                shown[0],
                shown[1],
                single[0] ^ single[1] if len(single) == 2 else None,
                meant[0],
                meant[1],
                bool(row["address"]),
                item is not None and item.automatic,
                str(row.get("differs", "")),
                known,
                0 if item is None else item.width,
            )
        )
    out.sort(key=lambda row: places(row.key))
    together = folded(
        [
            {
                "task": row.task,
                "block": row.block,
                "register": row.register,
                "field": row.field,
                "row": row,
            }
            for row in out
        ],
        jobs_of(a, b),
    )
    equal = len(every.keys() - {row.key for row in out})
    return tuple(replace(one["row"], job=str(one["task"])) for one in together), equal


def _places(
    a: Capture | CaptureSet,
    b: Capture | CaptureSet,
    every: dict[Key, Field],
) -> Callable[[Key], tuple[Any, ...]]:
    """A key to sort by: job, block as they come, registers as the map has them and then others,
    lowest bit."""
    captures = [one for side in (a, b) for one in ([side] if isinstance(side, Capture) else side)]
    words: dict[tuple[str, str], int] = {}
    for capture in captures:
        for registers in capture.maps.values():
            for word, (block, _, register) in enumerate(registers.registers):
                words.setdefault((block, register), word)
    blocks = {block: n for n, block in enumerate(dict.fromkeys(key[1] for key in every))}

    def place(key: Key) -> tuple[Any, ...]:
        task, block, register, field = key
        word = words.get((block, register), len(words))
        if field == ORDER:
            last = 2
        elif field == WRITES:
            last = 1
        else:
            last = 0
        lsb = 0
        if key in every:
            lsb = every[key].pieces[0].lsb
        return task, blocks.get(block, len(blocks)), last == 2, word, register, last, lsb, field

    return place


def _meant(values: Sequence[Any], address: bool) -> str:
    texts = [
        ABSENT
        if value is None
        else f"{value:#x}"
        if address and isinstance(value, int)
        else str(value)[:MOST_LETTERS]
        for value in values[:MOST_VALUES]
    ]
    return ", ".join(texts) or ABSENT


def _hex(raws: Sequence[int], values: Sequence[Any]) -> str:
    """Raw values of a side; a capture of a set that has none counts as one."""
    texts = [f"{raw:#x}" for raw in raws[:MOST_VALUES]]
    if len(raws) > MOST_VALUES:
        texts += [f"… {len(raws) - MOST_VALUES} more"]
    return ", ".join([*texts, *([ABSENT] if None in values else [])]) or ABSENT


def _bits(item: Field) -> str:
    """Where a field lies, without the word where that is one alone.

    >>> from npulab.bits import Piece
    >>> _bits(Field("", "r", "f", (Piece(5, 3, 4, 0),)))
    '[6:3]'
    >>> _bits(Field("", "r", "f", (Piece(5, 3, 1, 0), Piece(6, 0, 8, 1))))
    '5[3] 6[7:0]'
    """
    if len(item.pieces) > 1:
        return item.bits
    return item.bits[item.bits.index("[") :]
