"""The tables beside an NPU's modules: chips, register maps, enums, sources."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from npulab.captures.target import Target, Unsupported, read_chips, read_sources, select
from npulab.registers.map import RegisterMap
from npulab.support.files import read_table

STARTS = "starts.csv"


class Facts(NamedTuple):
    """What the tables of a folder say: features by chip, register maps by block."""

    here: Path
    chips: dict[str, dict[str, int]]
    usual_chip: str
    tables: dict[str, RegisterMap]

    @classmethod
    def beside(
        cls, module: str, tables: Mapping[str, str | RegisterMap], sparse: Collection[str] = ()
    ) -> Facts:
        """The tables beside a module: ``chips.csv``, and register maps by block, from files by name
        or made already; those of the blocks in ``sparse`` have no words between registers.

        ``starts.csv`` (block, register, evidence, note), where it is there, names the registers
        that start a unit when they are written.
        """
        here = Path(module).parent
        chips = read_chips(here / "chips.csv")
        maps = {
            block: table
            if isinstance(table, RegisterMap)
            else RegisterMap.read(here / table, dense=block not in sparse)
            for block, table in tables.items()
        }
        if (here / STARTS).exists():
            starts = {f"{row['block']}.{row['register']}" for row in read_table(here / STARTS)}
            maps = {block: table.starting(starts) for block, table in maps.items()}
        return cls(here, chips, next(iter(chips)), maps)

    def features(self, chip: str) -> dict[str, int]:
        """The features of a chip; Unsupported for one that is not known."""
        if chip not in self.chips:
            raise Unsupported(f"chip: got {chip!r}, allowed is one of {', '.join(self.chips)}")
        return self.chips[chip]

    def target(self, title: str, *steps: Callable[..., Any], **known: Any) -> Target:
        """The target that these tables are of, with what is known of it beyond them: functions that
        have the names of its ``steps``, and the rest by name."""
        known |= {step.__name__: step for step in steps}
        sources = read_sources(self.here / "sources.csv")
        return Target(self.here.name, title, self.chips, self.tables, sources=sources, **known)

    def maps(self, chip: str) -> dict[str, RegisterMap]:
        """The register maps of a chip, by block."""
        return select(self.tables, self.chips[chip])

    def enum(self, name: str) -> dict[str, int]:
        """The codes of an enum by the names of ``enums.csv``."""
        return {
            row["name"]: int(row["raw"], 0)
            for row in read_table(self.here / "enums.csv")
            if row["enum"] == name
        }

    def agreements(self) -> dict[str, list[tuple[str, str, str]]]:
        """The pairs of fields that have to say the same, and why, by the case that a row of
        ``agreements.csv`` is for (when, a, b, why)."""
        out: dict[str, list[tuple[str, str, str]]] = {}
        for row in read_table(self.here / "agreements.csv"):
            out.setdefault(row["when"], []).append((row["a"], row["b"], row["why"]))
        return out

    def expected(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """The values that a field may have, by the case that a row of ``expected.csv`` is for
        (when, field, allowed, note) and by field; several are parted by spaces, none is any but 0."""
        out: dict[str, dict[str, tuple[int, ...]]] = {}
        for row in read_table(self.here / "expected.csv"):
            numbers = tuple(int(number, 0) for number in row["allowed"].split())
            out.setdefault(row["when"], {})[row["field"]] = numbers
        return out
