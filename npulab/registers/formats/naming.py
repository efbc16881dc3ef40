"""Names that other formats allow: identifiers, unique in their scope, and the places of blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from functools import cache, partial
from pathlib import Path

from npulab.registers.fields import WORD_BYTES, NewCodes, Row
from npulab.registers.formats.tables import RegisterTable
from npulab.registers.names import register_of

APART = 2**12  # bytes; blocks begin at multiples of it
MOST_LETTERS = 120


@cache
def keywords(language: str) -> frozenset[str]:
    """Return the words that a language reserves."""
    lines = Path(__file__).with_name("keywords.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(
        word for line in lines if line.startswith(f"{language}:") for word in line.split()[1:]
    )


class Identifiers:
    """The identifiers of a scope: each text gets an identifier of letters, digits and underscores,
    and no two texts get the same.

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
        """Return a new identifier like this text, different on each call, also with each of the
        tails after it.

        Names that differ only in case count as the same, since other tools ignore case.
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
    """An identifier like a text: letters of ASCII, digits and underscores."""
    plain = re.sub(r"[^0-9A-Za-z_]+", "_", text)[:MOST_LETTERS]
    if plain != text:
        plain = plain.strip("_")
    if not plain or plain[0].isdigit():
        plain = f"_{plain}"
    if plain in keywords:
        return f"{plain}_"
    return plain


def by_block(table: RegisterTable) -> Iterator[tuple[str, int, list[tuple[int, str, list[Row]]]]]:
    """Yield (block, its place in bytes, its registers) in the order of the table; each register
    is an offset, a name and its rows. Blocks follow each other and never overlap.

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
    """A name without the numbers of its arrays: ``CORE[0].SIZE`` is ``CORE.SIZE``."""
    return re.sub(r"\[\d+\]", "", name)
