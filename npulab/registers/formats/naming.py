"""What writers of other formats share: identifiers that are unique in their scope, and the
registers of each block, with an address for the block."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from functools import cache, partial
from pathlib import Path

from npulab.registers.fields import WORD_BYTES, NewCodes, Row
from npulab.registers.formats.tables import RegisterTable
from npulab.registers.names import register_of

APART = 2**12  # the address that a block gets is a multiple of so many bytes
MOST_LETTERS = 120  # the most characters of an identifier, before a number makes it unique


@cache
def keywords(language: str) -> frozenset[str]:
    """Return the words that a language reserves."""
    lines = Path(__file__).with_name("keywords.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(
        word for line in lines if line.startswith(f"{language}:") for word in line.split()[1:]
    )


class Identifiers:
    """The identifiers of a scope. ``names[text]`` is an identifier of letters, digits and
    underscores: the same for the same text, and another for any other text.

    >>> names = Identifiers()
    >>> names["CORE[0].SIZE"], names["CORE_0_SIZE"], names["2 <b>"], names["CORE[0].SIZE"]
    ('CORE_0_SIZE', 'CORE_0_SIZE_2', '_2_b', 'CORE_0_SIZE')
    """

    def __init__(
        self, keywords: Container[str] = (), spell: Callable[[str], str] | None = None
    ) -> None:
        self._spell = spell or partial(_spelled, keywords)
        self._by_text: dict[str, str] = {}
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def __getitem__(self, text: str) -> str:
        if text not in self._by_text:
            self._by_text[text] = self.new(text)
        return self._by_text[text]

    def new(self, text: str, *tails: str) -> str:
        """Return an identifier like this text that no other call returns. With ``tails``, this
        holds for the identifier followed by each tail, not for the identifier alone.

        Names that differ only in case count as the same, because other tools ignore case.
        """
        out = plain = self._spell(text)
        n = self._next.get(plain.lower(), 1)
        while {f"{out}{tail}".lower() for tail in tails or ("",)} & self._taken:
            n += 1
            out = f"{plain}_{n}"
        self._next[plain.lower()] = n
        self._taken |= {f"{out}{tail}".lower() for tail in tails or ("",)}
        return out


def _spelled(keywords: Container[str], text: str) -> str:
    """Return an identifier like a text, of letters of ASCII, digits and underscores."""
    plain = re.sub(r"[^0-9A-Za-z_]+", "_", text)[:MOST_LETTERS]
    if plain != text:
        plain = plain.strip("_")
    if not plain or plain[0].isdigit():
        plain = f"_{plain}"
    if plain in keywords:
        return f"{plain}_"
    return plain


def by_block(table: RegisterTable) -> Iterator[tuple[str, int, list[tuple[int, str, list[Row]]]]]:
    """Yield (block, address, registers) for each block, in the order of the table; a register is
    (offset, name, rows). A table has no addresses, so each block gets the first free multiple of
    ``APART`` bytes after the block before it.

    Registers without a name get their automatic name (``npulab.registers.names``).
    """
    begin = 0
    for block, rows in table.blocks.items():
        names: NewCodes = {}
        for row in rows:
            if "register" in row:
                names.setdefault(row["offset"], row["register"])
        registers: dict[tuple[int, str], list[Row]] = {}
        for row in rows:
            name = names.get(row["offset"]) or register_of(row, table.by_address)
            name = row.get("register") or name
            registers.setdefault((row["offset"], name), []).append(row)
        end = max(row["offset"] for row in rows) + WORD_BYTES
        yield block, begin, [(offset, name, fields) for (offset, name), fields in registers.items()]
        begin += -(-end // APART) * APART


def unnumbered(name: str) -> str:
    """Return a name without the numbers of array elements: ``CORE.SIZE`` for ``CORE[0].SIZE``."""
    return re.sub(r"\[\d+\]", "", name)
