"""The tables of vta."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from npulab.bits import RegisterMap, read_enums, read_table
from npulab.captures.tokens import Place, read_tokens
from npulab.target import read_chips, read_sources

HERE = Path(__file__).parent


class Kind(NamedTuple):
    """A memory as LOAD and STORE name it: the memory on chip that holds the entries, the unit that
    moves them, and an entry's shape and type in DRAM."""

    holds: str
    unit: str
    shape: tuple[int, ...]
    stored: np.dtype

    @property
    def size(self) -> int:
        """The bytes of an entry in DRAM, which ``x_stride`` counts."""
        return self.stored.itemsize * int(np.prod(self.shape))


def read_kinds() -> dict[str, Kind]:
    kinds = {}
    for row in read_table(HERE / "memories.csv"):
        shape = tuple(map(int, row["lanes"].split()))
        kinds[row["memory"]] = Kind(row["holds"], row["unit"], shape, np.dtype(row["stored"]))
    return kinds


def places_of(kinds: Mapping[str, Kind], opcodes: Iterable[str]) -> list[Place]:
    """Which unit runs an instruction: LOAD goes by the memory that it fills, STORE is a unit's own."""
    places = [Place("LOAD", kind.unit, "memory_type", name) for name, kind in kinds.items()]
    for block in opcodes:
        unit = {"STORE": "store"}.get(block, "compute")
        places.append(Place(block, unit))
    return places


def read_maps(
    enums: Mapping[str, Mapping[int, str]], numbers: Mapping[str, int]
) -> dict[str, RegisterMap]:
    rows = read_table(HERE / "registers.csv")
    maps = {}
    for block in dict.fromkeys(row["block"] for row in rows):
        own = [row for row in rows if row["block"] == block]
        maps[block] = RegisterMap(own, enums=enums, numbers=numbers)
    return maps


USUAL = "vta16"
CHIPS = read_chips(HERE / "chips.csv")
ENUMS = read_enums(read_table(HERE / "enums.csv"))
TABLES = read_maps(ENUMS, CHIPS[USUAL])
COMMANDS = {block: TABLES[block] for block in ENUMS["opcode"].values()}
KINDS = read_kinds()
TOKENS = read_tokens(HERE / "tokens.csv", places_of(KINDS, ENUMS["opcode"].values()))
SOURCES = read_sources(HERE / "sources.csv")
