"""What SDP_RDMA gives to SDP: the elements of a cube, and the operands of each stage, as streams.

The reader counts by its own registers, so that its streams may be longer or shorter than what SDP
takes. Source: the RTL of nv_small and nv_large (SDP_rdma, SDP_RDMA_ig, SDP_RDMA_EG_ro).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from npulab.npus.nvdla.facts import HELD, LETTERS, MEMORIES
from npulab.npus.nvdla.memory import Memory
from npulab.npus.nvdla.streams import Part
from npulab.npus.nvdla.units.fields import READER, Fields

CUBE = "MRDMA"


@dataclass(frozen=True)
class Counts:
    """How many items a stream has: surfaces of ``height`` rows of ``width`` items. An item has
    ``lanes`` elements, at most ``atom``."""

    surfaces: int
    height: int
    width: int
    lanes: int
    atom: int

    @classmethod
    def of(cls, v: Fields, unit: str, precision: str) -> Counts:
        """Return the counts of SDP or SDP_RDMA: an atom holds half as many channels if the field
        ``precision`` does not say int8."""
        atom = lanes = v.features["memory_atom"]
        if v[precision]:
            lanes //= 2
        height, width, channels = v.shape(f"{unit}.D_DATA_CUBE_{{0}}.{{0}}")
        return cls((channels - 1) // lanes + 1, height, width, lanes, atom)

    @property
    def items(self) -> int:
        return self.surfaces * self.height * self.width

    def places(self, start: int, stop: int) -> tuple[Array, Array, Array]:
        """Return (surface, row, column) of some items."""
        row, column = np.divmod(np.arange(start, stop), self.width)
        return *np.divmod(row, self.height), column


@dataclass
class Reader:
    """A job of SDP_RDMA, which reads operands from memory: its streams of data, by the name
    ``MRDMA`` (the input) or by stage and part ("BS ALU")."""

    streams: dict[str, Part]
    counts: Counts

    @property
    def drained(self) -> bool:
        """True if all items of the reader's streams were taken: its next job can start."""
        return not any(part.left for part in self.streams.values())


def reader_of(v: Fields, memory: Memory) -> Reader:
    """Return what a job of SDP_RDMA gives."""
    counts = Counts.of(v, "SDP_RDMA", "SDP_RDMA.D_FEATURE_MODE_CFG.PROC_PRECISION")
    streams = {}
    if not v["SDP_RDMA.D_FEATURE_MODE_CFG.FLYING_MODE"]:
        ram_type = "SDP_RDMA.D_SRC_DMA_CFG.SRC_RAM_TYPE"
        values = cube(v, memory, counts, "SDP_RDMA", ram_type)
        streams[CUBE] = Part(counts.items, values, comes=v.has_memory(ram_type))
    for name, letter in LETTERS.items():
        if v.of_reader(name, "DISABLE") or (name == "EW" and not v.features["ew"]):
            continue
        held = HELD.get(v.of_reader(name, "DATA_USE"), ())
        comes = v.has_memory(f"{READER.format(letter)}RAM_TYPE")
        for number, part in enumerate(held):
            values = _operand(v, memory, counts, name, number, len(held))
            streams[f"{name} {part}"] = Part(counts.items, values, comes=comes)
    return Reader(streams, counts)


def cube(
    v: Fields, memory: Memory, counts: Counts, unit: str, ram_type: str
) -> Callable[[int, int], Array]:
    """Return the function of (start, stop) to the atoms that a reader's SRC registers place, ``(n,
    lanes)`` int64: surface by surface, by rows."""
    base, line, plane = v.whole_atoms(*v.places(unit, "SRC"))
    name = v.memory_of(ram_type)

    def values(start: int, stop: int) -> Array:
        surface, row, column = counts.places(start, stop)
        addresses = base + surface * plane + row * line + column * counts.atom
        return _elements(memory.atoms(name, addresses, counts.atom), counts, 1)

    return values


def _operand(
    v: Fields, memory: Memory, counts: Counts, stage: str, number: int, parts: int
) -> Callable[[int, int], Array]:
    """Return the function of (start, stop) to operands ``(n, atom)`` int64: the part ``number`` of
    ``parts`` that lie next to each other."""
    size = v.of_reader(stage, "DATA_SIZE") + 1
    if counts.lanes < counts.atom:
        size = 2
    base, line, plane = v.whole_atoms(*v.places("SDP_RDMA", stage))
    length = counts.lanes * size * parts
    name = MEMORIES[v.of_reader(stage, "RAM_TYPE")]
    per_element = v.of_reader(stage, "DATA_MODE")

    def values(start: int, stop: int) -> Array:
        surface, row, column = counts.places(start, stop)
        if per_element:
            addresses = base + surface * plane + row * line + column * length
            return _elements(memory.atoms(name, addresses, length), counts, size, number, parts)
        first = int(surface[0])
        addresses = base + length * np.arange(first, int(surface[-1]) + 1)
        each = _elements(memory.atoms(name, addresses, length), counts, size, number, parts)
        return each[surface - first]

    return values


def _elements(stored: Array, counts: Counts, size: int, number: int = 0, parts: int = 1) -> Array:
    """Return the elements of stored items ``(n, atom)`` int64; lanes that an item lacks are 0."""
    found = np.ascontiguousarray(stored).view(f"<i{size}")[:, number::parts]
    if found.shape[1] == counts.atom:
        return found.astype(np.int64)
    out = np.zeros((len(found), counts.atom), np.int64)
    out[:, : found.shape[1]] = found
    return out
