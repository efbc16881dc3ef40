"""Automatic names, for bits without a name in the table. Every view and every format uses the same
automatic name for the same bits.

A field without a name of its own is called ``w<word>_<lsb>_<width>``; words are counted from the
start of the block. ``w18_27_2`` are two bits of word 18, from bit 27 on. If the registers of the
block have addresses, the field is called ``r<offset>_<lsb>_<width>``; the byte offset is in base 16
with at least four digits, as in ``r1010_0_5``. A register without a name is called ``w18`` or
``r1010``.

The first rule that applies says whether the registers of a block have addresses:

1. Yes, if the table says that the block is ``sparse``.
2. No, if a name in the block counts words (a register ``w4`` at 0x10).
3. Yes, if a name in the block is an address (a register ``r1010`` at 0x1010).
4. Yes, if any block of the table begins at 0x1000 or further, or if the table comes from a format
   of registers (CMSIS-SVD, SystemRDL, rnndb). Otherwise no.

So a map, its files and each part of the map have the same names.

If there are several blocks, the name of the block stands in front, ``GEMM.w3_0_7`` (``GEMM_w3_0_7``
if a format allows no dot), unless a column or the surrounding text names the block already. A name
in a table is written unchanged, even if it looks like an automatic name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from npulab.registers.fields import WORD_BYTES, Row

# bytes: if a block begins at this offset or further, the registers of every block of its table have
# addresses, except in blocks with a name that counts words
FIRST_ADDRESS = 0x1000
DIGITS = 4  # least digits of the offset in an automatic name
LABEL = r"(?:w\d+|r[0-9a-f]{4,})"
REGISTER = re.compile(LABEL)
FIELD = re.compile(rf"{LABEL}_\d+_\d+")
PARTS = re.compile(r"(?:w(?P<word>\d+)|r(?P<offset>[0-9a-f]{4,}))_(?P<lsb>\d+)_(?P<width>\d+)")


class Run(NamedTuple):
    """A run of bits: byte offset of its word in the block, lowest bit, width."""

    offset: int
    lsb: int
    width: int


def word_name(offset: int, by_address: bool) -> str:
    """Return the automatic name of a register at an offset in bytes; ``by_address`` says whether
    the registers of its block have addresses.

    >>> word_name(72, False), word_name(72, True)
    ('w18', 'r0048')
    """
    if by_address:
        return f"r{offset:0{DIGITS}x}"
    return f"w{offset // WORD_BYTES}"


def automatic_name(label: str, lsb: int, width: int) -> str:
    """Return the automatic name of bits; ``label`` is the automatic name of their register."""
    return f"{label}_{lsb}_{width}"


def run_name(offset: int, lsb: int, width: int, by_address: bool) -> str:
    """Return the automatic name of bits, from the offset of their register in bytes.

    >>> run_name(0x1010, 0, 5, True), run_name(72, 27, 2, False)
    ('r1010_0_5', 'w18_27_2')
    """
    return automatic_name(word_name(offset, by_address), lsb, width)


def run_of(name: str) -> Run | None:
    """Return the bits that an automatic name stands for; None for any other name.

    >>> run_of("r1010_0_5"), run_of("w18_27_2"), run_of("stride")
    (Run(offset=4112, lsb=0, width=5), Run(offset=72, lsb=27, width=2), None)
    """
    found = PARTS.fullmatch(name)
    if found is None:
        return None
    if found["offset"]:
        offset = int(found["offset"], 16)
    else:
        offset = int(found["word"]) * WORD_BYTES
    return Run(offset, int(found["lsb"]), int(found["width"]))


def in_block(block: str, name: str, blocks: Collection[str]) -> str:
    """Return a field's name with its block in front, if there are several blocks.

    >>> in_block("GEMM", "w3_0_7", ["GEMM", "ALU"]), in_block("GEMM", "w3_0_7", ["GEMM"])
    ('GEMM.w3_0_7', 'w3_0_7')
    """
    if block and len(blocks) > 1:
        return f"{block}.{name}"
    return name


def full_names(block: str, register: str, name: str) -> tuple[str, ...]:
    """Return the four spellings of a field's name: alone, with the register's name in front, with
    the block's name in front, and with both in front.

    >>> full_names("ALU", "W3", "imm")
    ('imm', 'W3.imm', 'ALU.imm', 'ALU.W3.imm')
    """
    return name, f"{register}.{name}", f"{block}.{name}", f"{block}.{register}.{name}"


def blocks_by_address(
    rows: Iterable[Row],
    sparse: Collection[str] = (),
    far: bool | None = None,
) -> frozenset[str]:
    """Return the names of the blocks whose registers have addresses; ``rows`` are plain rows of
    words.

    Blocks in ``sparse`` have addresses. ``far`` decides for blocks whose names show neither words
    nor addresses: by default, these have addresses if any block begins at ``FIRST_ADDRESS`` or
    further.
    """
    first: dict[str, int] = {}
    said: dict[str, set[str]] = {}
    for row in rows:
        block, offset = row.get("block") or "", row.get("offset") or 0
        first[block] = min(offset, first.get(block, offset))
        said.setdefault(block, set()).update(_kinds(row, offset))
    if far is None:
        far = max(first.values(), default=0) >= FIRST_ADDRESS
    return frozenset(
        block for block, kinds in said.items() if block in sparse or _has_addresses(kinds, far)
    )


def _has_addresses(kinds: Collection[str], far: bool) -> bool:
    if "w" in kinds:
        return False
    return far or "r" in kinds


def _kinds(row: Row, offset: int) -> set[str]:
    """Return the first letter ("w": counts words, "r": an address) of each automatic name in a row.
    A name counts only if it agrees with the place of the row.
    """
    out = set()
    register, field = row.get("register") or "", row.get("field") or ""
    for letter in ("w", "r"):
        if not register.startswith(letter) and not field.startswith(letter):
            continue
        label = word_name(offset, letter == "r")
        if register == label or field == automatic_name(label, row["lsb"], row["width"]):
            out.add(letter)
    return out


def name_of(row: Row, by_address: Collection[str]) -> str:
    """Return the name of the field of a plain row: its own name or, if it has none, the automatic
    name.
    """
    return str(
        row.get("field")
        or run_name(row["offset"], row["lsb"], row["width"], row.get("block", "") in by_address)
    )


def register_of(row: Row, by_address: Collection[str]) -> str:
    """Return the name of the register of a plain row: its own name or, if it has none, the
    automatic name.
    """
    return str(row.get("register") or word_name(row["offset"], row.get("block", "") in by_address))


def in_register(rows: Sequence[Row], by_address: Collection[str]) -> list[str]:
    """Return the name of the field of each row; ``rows`` are the rows of one block. The name has
    the register's name in front if another field of the block has the same name. Pieces of one
    field have the same name.
    """
    names = [name_of(row, by_address) for row in rows]
    places: dict[tuple[str, Any], int] = {}
    for row, name in zip(rows, names, strict=True):
        key = name, row.get("at")
        places[key] = places.get(key, 0) + 1
    out = []
    for row, name in zip(rows, names, strict=True):
        twice = places[name, row.get("at")] > 1
        out.append(f"{register_of(row, by_address)}_{name}" if twice else name)
    return out
