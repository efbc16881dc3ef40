"""The rows of a diff between captures or sets of captures, sorted by place, with raw numbers and
values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from npulab.analysis.check import (
    JOB,
    ORDER,
    WRITES,
    Difference,
    Key,
    RawFields,
    diff,
    fields_side_by_side,
    raw_fields,
)
from npulab.analysis.edited import edited_job
from npulab.analysis.sides import jobs_of
from npulab.captures.aligned import aligned
from npulab.captures.capture import Capture, CaptureSet
from npulab.captures.listing import folded
from npulab.registers.fields import Field

ABSENT = "–"
MOST_VALUES = 5  # at most this many values of a field in a set are shown
MOST_LETTERS = 120  # at most this many letters of a value are shown


@dataclass(frozen=True)
class DiffRow:
    """A field that differs: its place, and its raw number (hex) and value in ``a`` and ``b``.

    ``job`` is the name of the job (its number if it has no name), or of several jobs with the same
    difference. ``xor`` has the bits that differ; it is None unless each side has a single value.
    ``differs`` is "always" or "sometimes" for two sets. ``automatic`` is True for a field that
    nobody named, ``bits`` is the field's place in its register.
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
    def of_job(self) -> bool:
        """True if the row stands for a whole job; ``known`` then says whether the job was put in,
        left out or moved.
        """
        return self.register == JOB

    @property
    def meaning(self) -> str:
        if self.of_job:
            return self.known
        values = ""
        if not self.automatic and (self.a, self.b) != (self.hex_a, self.hex_b):
            values = f"{self.a} → {self.b}"
        return ", ".join(filter(None, [values, self.differs]))

    @property
    def xor_text(self) -> str:
        if self.xor is None:
            return ""
        return f"{self.xor:#x}"

    @property
    def binary(self) -> list[str]:
        """The binary digits of the raw numbers in ``a`` and in ``b``, highest bit first; no digits
        for an address, and if a side has several values.

        >>> row = DiffRow(0, "NN", "w1", "pad", "[4:2]", "0x1", "0x5", 4, "1", "5", False, False,
        ...               width=3)
        >>> row.binary
        ['001', '101']
        """
        if self.xor is None or self.address:
            return []
        return [f"{int(value, 16):0{self.width}b}" for value in (self.hex_a, self.hex_b)]

    @property
    def line(self) -> str:
        """Place, values, differing bits, evidence and note of the field, in one line."""
        if self.of_job:
            return self.known
        xor = self.xor or 0
        differ = [str(bit) for bit in range(xor.bit_length()) if xor >> bit & 1]
        bits = ""
        if differ:
            bits = f"bits that differ {', '.join(differ)}"
        a = f"a {self.hex_a}"
        if not self.automatic and self.a != self.hex_a:
            a += f" = {self.a}"
        b = f"b {self.hex_b}"
        if not self.automatic and self.b != self.hex_b:
            b += f" = {self.b}"
        kind = ""
        if self.address:
            kind = "address"
        elif self.automatic:
            kind = "nobody named it"
        job = self.job
        if self.job.isdecimal():
            job = f"job {self.job}"
        place = f"{job} {self.where} {self.field} {self.bits}".rstrip()
        return " · ".join(filter(None, [place, a, b, bits, self.differs, kind, self.known]))

    def matches(self, pattern: str) -> bool:
        """True if a glob matches ``field``, ``register.field`` or ``block.register.field``.

        A pattern without ``*``, ``?`` and ``[`` matches each name that contains it. Case is
        ignored.
        """
        glob = pattern.casefold().strip()
        if not any(letter in glob for letter in "*?["):
            glob = f"*{glob}*"
        register = f"{self.register}.{self.field}"
        names = self.field, register, f"{self.block}.{register}"
        return any(fnmatchcase(name.casefold(), glob) for name in names)


def rows(a: Capture | CaptureSet, b: Capture | CaptureSet) -> tuple[tuple[DiffRow, ...], int]:
    """Return the rows of ``npulab.diff`` sorted by place, and the number of fields that are equal.

    Jobs with the same difference share a row. If jobs were put in, left out or moved between two
    captures, each of these jobs has a row, and these rows come first.
    """
    captures_a, captures_b = _fields_of(a, b)
    every: dict[Key, Field] = {}
    for fields in captures_a + captures_b:
        for key, (item, _) in fields.items():
            every.setdefault(key, item)
    found = []
    jobs = []
    for row in diff(a, b).to_dict("records"):
        key = row["task"], row["block"], row["register"], row["field"]
        if row["register"] == JOB and isinstance(a, Capture):
            jobs.append(_row_of_job(Difference(**row), len(a.jobs)))
            continue
        side_a = _side(row["a"], row["address"], key, captures_a)
        side_b = _side(row["b"], row["address"], key, captures_b)
        found.append(_row(row, key, every.get(key), side_a, side_b))
    place = _sort_key(a, b, every)
    found.sort(key=lambda row: place(row.key))
    records = []
    for row in found:
        names = {"task": row.task, "block": row.block, "register": row.register, "field": row.field}
        # rows that differ in nothing but the task become one row
        records.append({**names, "row": row})
    folded_rows = []
    for record in folded(records, jobs_of(a, b)):
        folded_rows.append(replace(record["row"], job=str(record["task"])))
    equal = every.keys() - {row.key for row in found}
    return (*jobs, *folded_rows), len(equal)


def _fields_of(
    a: Capture | CaptureSet, b: Capture | CaptureSet
) -> tuple[list[RawFields], list[RawFields]]:
    """Return for each side a dictionary per capture: the fields, with raw numbers, by the key under
    which ``npulab.diff`` compares them.
    """
    if isinstance(a, Capture) and isinstance(b, Capture):
        mine, theirs = fields_side_by_side(a, b, aligned(a.jobs, b.jobs))
        return [mine], [theirs]
    return [*map(raw_fields, captures_of(a))], [*map(raw_fields, captures_of(b))]


def captures_of(side: Capture | CaptureSet) -> Iterable[Capture]:
    if isinstance(side, Capture):
        return [side]
    return side


@dataclass(frozen=True)
class _Side:
    """The values that a field has in the captures of one side, and its distinct raw numbers."""

    values: Sequence[Any]
    raws: Sequence[int]
    address: bool

    @property
    def single(self) -> int | None:
        """The raw number if all captures of the side have the same number in the field, else
        None.
        """
        if len(self.raws) == 1 and None not in self.values:
            return self.raws[0]
        return None

    @property
    def meant(self) -> str:
        texts = []
        for value in self.values[:MOST_VALUES]:
            text = str(value)[:MOST_LETTERS]
            if value is None:
                text = ABSENT
            elif self.address and isinstance(value, int):
                text = f"{value:#x}"
            texts.append(text)
        return ", ".join(texts) or ABSENT

    @property
    def hex(self) -> str:
        texts = [f"{raw:#x}" for raw in self.raws[:MOST_VALUES]]
        if len(self.raws) > MOST_VALUES:
            texts.append(f"… {len(self.raws) - MOST_VALUES} more")
        if None in self.values:
            texts.append(ABSENT)
        return ", ".join(texts) or ABSENT


def _side(values: Any, address: bool, key: Key, captures: list[Any]) -> _Side:
    if not isinstance(values, list):
        values = [values]
    raws = dict.fromkeys(fields[key][1] for fields in captures if key in fields)
    return _Side(values, [*raws], bool(address))


def _row_of_job(row: Difference, jobs: int) -> DiffRow:
    """Return the row of a whole job; ``jobs`` is the number of jobs in the capture ``a``."""
    a, b = row.a or ABSENT, row.b or ABSENT
    text = edited_job(row, jobs, "b")
    return DiffRow(*row.key, "", a, b, None, a, b, False, False, known=text, job=str(row.task))


def _row(row: Any, key: Key, item: Field | None, a: _Side, b: _Side) -> DiffRow:
    differs = str(row.get("differs", ""))
    address = bool(row["address"])
    if item is None:  # an order of jobs or of writes has no raw number
        return DiffRow(*key, "", a.meant, b.meant, None, a.meant, b.meant, address, False, differs)
    xor = None
    if a.single is not None and b.single is not None:
        xor = a.single ^ b.single
    known = f"evidence {item.evidence}"
    if item.note:
        known += f" · {item.note}"
    return DiffRow(
        *key,
        _bits_text(item),
        a.hex,
        b.hex,
        xor,
        a.meant,
        b.meant,
        address,
        item.automatic,
        differs,
        known,
        item.width,
    )


def _sort_key(
    a: Capture | CaptureSet,
    b: Capture | CaptureSet,
    every: dict[Key, Field],
) -> Callable[[Key], tuple[Any, ...]]:
    """Return a function that takes a field's key and returns a tuple to sort by: job, block (in the
    order of the captures), register (in the order of the map, unknown registers last), lowest bit.
    """
    words: dict[tuple[str, str], int] = {}
    for capture in (*captures_of(a), *captures_of(b)):
        for registers in capture.maps.values():
            for word, (block, _, register) in enumerate(registers.registers):
                words.setdefault((block, register), word)
    blocks = {block: n for n, block in enumerate(dict.fromkeys(key[1] for key in every))}

    def place(key: Key) -> tuple[Any, ...]:
        task, block, register, field = key
        word = words.get((block, register), len(words))
        last = 0
        if field == WRITES:
            last = 1
        elif field == ORDER:
            last = 2
        lsb = 0
        if key in every:
            lsb = every[key].pieces[0].lsb
        return task, blocks.get(block, len(blocks)), last == 2, word, register, last, lsb, field

    return place


def _bits_text(item: Field) -> str:
    """Return the bits of a field, as ``[6:3]``; if the field has several pieces, each has the
    number of its word in front.

    >>> from npulab.bits import Piece
    >>> _bits_text(Field("", "r", "f", (Piece(5, 3, 4, 0),)))
    '[6:3]'
    >>> _bits_text(Field("", "r", "f", (Piece(5, 3, 1, 0), Piece(6, 0, 8, 1))))
    '5[3] 6[7:0]'
    """
    if len(item.pieces) > 1:
        return item.bits
    return item.bits[item.bits.index("[") :]
