"""The tables in the folder of an NPU, read once: chips, register maps, enums, sources."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from npulab.captures.target import Target, Unsupported, read_chips, read_sources, select
from npulab.registers.map import RegisterMap
from npulab.support.files import read_table

STARTS = "starts.csv"


class Facts(NamedTuple):
    """The facts in the tables of an NPU's folder: features by chip, the chip that is meant if none
    is named, register maps by block.
    """

    here: Path
    chips: dict[str, dict[str, int]]
    usual_chip: str
    tables: dict[str, RegisterMap]

    @classmethod
    def beside(
        cls, module: str, tables: Mapping[str, str | RegisterMap], sparse: Collection[str] = ()
    ) -> Facts:
        """Read the tables in the folder of a module (its ``__file__``): ``chips.csv``, and register
        maps by block.

        ``tables`` has a file's name or a RegisterMap for each block; maps of the blocks in
        ``sparse`` have no words between registers. ``starts.csv`` (block, register, evidence,
        note), if it exists, names the registers that start a unit when they are written.
        """
        here = Path(module).parent
        chips = read_chips(here / "chips.csv")
        usual = chips[next(iter(chips))]
        starts = set()
        if (here / STARTS).exists():
            starts = {f"{row['block']}.{row['register']}" for row in read_table(here / STARTS)}
        maps = {}
        for block, table in tables.items():
            if not isinstance(table, RegisterMap):
                table = RegisterMap.read(here / table, dense=block not in sparse, numbers=usual)
            maps[block] = table.starting(starts) if starts else table
        return cls(here, chips, next(iter(chips)), maps)

    def features(self, chip: str) -> dict[str, int]:
        """Return the features of a chip; raises Unsupported for an unknown chip."""
        if chip not in self.chips:
            raise Unsupported(f"chip: got {chip!r}, allowed is one of {', '.join(self.chips)}")
        return self.chips[chip]

    def target(self, title: str, *steps: Callable[..., Any], **known: Any) -> Target:
        """Return the Target that these tables describe; ``steps`` are its functions (``lift``,
        ``lower``, ...), passed under their own names, ``known`` its further fields by name.
        """
        known |= {step.__name__: step for step in steps}
        sources = read_sources(self.here / "sources.csv")
        return Target(self.here.name, title, self.chips, self.tables, sources=sources, **known)

    def maps(self, chip: str) -> dict[str, RegisterMap]:
        """Return the register maps by block, with the fields that a chip has."""
        return select(self.tables, self.chips[chip])

    def enum(self, name: str) -> dict[str, int]:
        """Return the raw value of each name of an enum in ``enums.csv``, by that name."""
        rows = [row for row in read_table(self.here / "enums.csv") if row["enum"] == name]
        return {row["name"]: int(row["raw"], 0) for row in rows}

    def agreements(self) -> dict[str, list[tuple[str, str, str]]]:
        """Return the rows of ``agreements.csv`` (when, a, b, why) by ``when``: pairs of fields that
        must have the same value, and why.
        """
        out: dict[str, list[tuple[str, str, str]]] = {}
        for row in read_table(self.here / "agreements.csv"):
            out.setdefault(row["when"], []).append((row["a"], row["b"], row["why"]))
        return out

    def expected(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Return, from ``expected.csv`` (when, field, allowed, note), the allowed values of a field
        by ``when`` and by field.

        Blanks separate values in the table; an empty cell, here (), allows any value but 0.
        """
        out: dict[str, dict[str, tuple[int, ...]]] = {}
        for row in read_table(self.here / "expected.csv"):
            numbers = tuple(int(number, 0) for number in row["allowed"].split())
            out.setdefault(row["when"], {})[row["field"]] = numbers
        return out
