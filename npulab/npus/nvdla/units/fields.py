"""Registers as a unit reads them, and the cubes that they place."""

from __future__ import annotations

from dataclasses import dataclass

from npulab.captures.target import Features
from npulab.npus.kit import Hang, Job, Raw, RegisterMap, Unsupported, agree, expect, values_of
from npulab.npus.nvdla.facts import FACTS, LETTERS, MEMORIES, TABLES, Pair, Shape
from npulab.npus.nvdla.layouts import Cube

PRECISIONS = {0: 1, 1: 2}  # bytes of an element, by the raw value of a precision field
# A key is a use of a job; the values are the numbers that each field may have in it.
EXPECTED = FACTS.expected()
# A key is a kind of job; the value lists pairs of fields that must be equal, and the reason of the
# hang if they differ.
AGREEMENTS = FACTS.agreements()
# Fields of the unit that reads a stage's operands begin with this name; {0} is the stage's letter.
READER = "SDP_RDMA.D_{0}RDMA_CFG.{0}RDMA_"
DIFFER = "{b} is {other} and {a} is {got}: {why}"
MOST_LANES, MOST_ROWS = 2**25, 2**19  # the most elements, and the most rows, of a simulated cube


@dataclass(frozen=True)
class Fields:
    """Register values by full name, as a unit reads them; a register that nobody wrote is 0."""

    values: Raw
    features: Features

    @classmethod
    def of(cls, job: Job, features: Features, registers: RegisterMap | None = None) -> Fields:
        """Return the fields of a job on a chip's features; both maps are by byte address."""
        maps = TABLES
        if registers:
            maps = {job.block: registers}
        return cls(values_of(job, maps), features)

    def __getitem__(self, name: str) -> int:
        return int(self.values.get(name, 0))

    def size(self, name: str) -> int:
        """Return a size, of which the register has the size less 1."""
        return self[name] + 1

    def pair(self, names: str, axes: tuple[str, str] = ("HEIGHT", "WIDTH")) -> Pair:
        """Return two sizes, of which the registers have the size less 1. ``names`` is the name of
        both fields, with {} where they differ.
        """
        return self.size(names.format(axes[0])), self.size(names.format(axes[1]))

    def shape(self, names: str) -> Shape:
        """Return (height, width, channels) as a cube's registers state them. ``names`` is the name
        of the three fields with {} or {0} where they differ; {1} is 1 in the name of the channels,
        else 0.
        """
        return (
            self.size(names.format("HEIGHT", 0)),
            self.size(names.format("WIDTH", 0)),
            self.size(names.format("CHANNEL", 1)),
        )

    def of_stage(self, stage: str, name: str) -> int:
        """Return a field of one of SDP's stages; ``name`` is its register and field without the
        beginning that they share, with {} for the stage: "CFG.{}_BYPASS"."""
        return self[f"SDP.D_DP_{stage}_{name.format(stage)}"]

    def of_reader(self, stage: str, name: str) -> int:
        """Return a field of the reader of a stage's operands: "DISABLE", "DATA_USE"."""
        return self[READER.format(LETTERS[stage]) + name]

    def address(self, low: str) -> int:
        """Return a byte address from its two registers; ``low`` is the field of the low one."""
        return self[low.replace("_LOW", "_HIGH")] * 2**32 + self[low]

    def precision(self, name: str) -> int:
        """Return the bytes of an element; Unsupported for floating point."""
        if self[name] not in PRECISIONS:
            raise Unsupported(f"{name} is {self[name]}, covered are 0 (INT8) and 1 (INT16)")
        return PRECISIONS[self[name]]

    def whole_atoms(self, *names: str) -> list[int]:
        """Return fields whose addresses and pitches lack the low bits that the units do not have:
        each is a whole number of atoms of memory.
        """
        atom = self.features["memory_atom"]
        return [self[name] // atom * atom for name in names]

    def memory_of(self, ram_type: str) -> str:
        """Return the memory that a RAM_TYPE field names."""
        return MEMORIES[self[ram_type]]

    def has_memory(self, ram_type: str) -> bool:
        """True if the chip has the memory that a RAM_TYPE field names; else no request for it is
        made."""
        return bool(self[ram_type] or self.features.get("second_memory", 1))

    def expect(self, use: str) -> None:
        """Raise Unsupported if a field has none of the values of ``expected.csv`` for that use."""
        expect(self, EXPECTED[use], "{name} is {got}, covered is {allowed}", Unsupported)

    def agree(self, job: str) -> None:
        """Raise Hang for the first two fields of ``agreements.csv`` that differ in that job."""
        agree(self, AGREEMENTS[job], DIFFER, Hang)

    def places(self, unit: str, side: str) -> list[str]:
        """Return the names of address, row pitch and plane pitch of a unit's SRC or DST."""
        return [
            f"{unit}.D_{side}_{part}.{side}_{part}"
            for part in ("BASE_ADDR_LOW", "LINE_STRIDE", "SURFACE_STRIDE")
        ]

    def placed(self, unit: str, side: str, shape: Shape, itemsize: int = 1) -> Cube:
        """Return the cube that a unit's SRC or DST registers place; ``shape`` is (height, width,
        channels)."""
        base, line, surface = self.places(unit, side)
        config = "DMA_CFG"
        if unit.startswith("PDP"):
            config = "RAM_CFG"
        memory = MEMORIES[self[f"{unit}.D_{side}_{config}.{side}_RAM_TYPE"]]
        return Cube(
            *shape,
            self.features["memory_atom"],
            self[line],
            self[surface],
            itemsize,
            memory,
            self.address(base),
        )

    def cube(self, unit: str, side: str, shape: Shape, itemsize: int) -> Cube:
        """Return the cube of ``placed``; Unsupported if it takes too long to run."""
        cube = self.placed(unit, side, shape, itemsize)
        rows = cube.surfaces * cube.height
        if rows > MOST_ROWS or rows * cube.width * cube.lanes > MOST_LANES:
            raise Unsupported(
                f"{unit}: got a cube of {shape[0]} x {shape[1]} x {shape[2]}, covered are up to "
                f"{MOST_LANES} elements with the padding, in up to {MOST_ROWS} rows of all surfaces"
            )
        return cube
