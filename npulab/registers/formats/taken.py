"""The bits and names of a register map as it grows, so that a clash is told where it is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from npulab.registers.formats.tables import Row


@dataclass(frozen=True)
class Taken:
    """The bits and names that rows have taken."""

    bits: dict[tuple[Any, ...], dict[str, int]] = field(default_factory=dict)
    registers: dict[tuple[Any, ...], dict[str, str]] = field(default_factory=dict)
    fields: dict[tuple[Any, ...], set[str]] = field(default_factory=dict)

    def alias(self, rows: Iterable[Row]) -> str:
        """The register that lies where rows of another would go, on a chip that has both; blank
        where there is none."""
        return next((other for row in rows for other in _both(
            self.registers.get((row["block"], row["offset"]), {}), row["feature"]) if other != row["register"]), "")

    def add(self, row: Row, where: str) -> None:
        """Take the bits and the name of a row; raises ValueError where another has them on the same
        chip."""
        feature, place = row["feature"], (row["block"], row["offset"])
        said = f"{where}: field {row['field']} of register {row['register']} at {row['offset']:#x}"
        taken = self.bits.setdefault(place, {})
        mask = (2 ** row["width"] - 1) * 2 ** row["lsb"]
        if any(bits & mask for bits in _both(taken, feature)):
            raise ValueError(f"{said}: got bits {row['lsb']} to {row['lsb'] + row['width'] - 1}, of which another "
                             "field has some, allowed is each bit once")
        taken[feature] = taken.get(feature, 0) | mask
        self.registers.setdefault(place, {})[feature] = row["register"]
        if "at" not in row:
            names = self.fields.setdefault((row["block"], row["register"], row["field"]), set())
            if feature in names or "" in names or (names and not feature):
                raise ValueError(f"{said}: got this name a second time, allowed is once in its register and a register "
                                 "once in its domain")
            names.add(feature)


def _both(have: Mapping[str, Any], feature: str) -> list[Any]:
    """What a chip with this feature has too; any chip, where it is blank."""
    return [*have.values()] if not feature else [have[name] for name in (feature, "") if name in have]
