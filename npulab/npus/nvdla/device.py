"""A simulated device of the RTL that runs job after job without a reset: state that a job leaves in
the units affects the next job.

Each unit counts by its own registers, and a job ends with the interrupt of its last unit only. So a
job whose registers disagree may write the right bytes and still leave a unit that never ends, or
data that a unit has not taken. Source: the RTL of nv_small; see ``buffer.py``, ``streams.py`` and
``readers.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.captures.target import Features
from npulab.npus.kit import Hang, ceil_div, hang_if
from npulab.npus.nvdla.buffer import Buffer
from npulab.npus.nvdla.facts import CONVOLUTION, LETTERS, Lut
from npulab.npus.nvdla.layouts import Cube
from npulab.npus.nvdla.memory import Memory
from npulab.npus.nvdla.readers import CUBE, Counts, Reader, cube, reader_of
from npulab.npus.nvdla.rules import RULES
from npulab.npus.nvdla.streams import Part
from npulab.npus.nvdla.units import pdp, pool_stream, sdp
from npulab.npus.nvdla.units.fields import Fields
from npulab.npus.nvdla.units.lut import Lookup, Tables
from npulab.npus.nvdla.waiting import few

NEEDED = ("CDMA", "CSC", "CMAC_A", "CACC")  # a convolution may do with one half of the multipliers
TO_PDP = "SDP.D_FEATURE_MODE_CFG.OUTPUT_DST"
PRECISION = "SDP.D_DATA_FORMAT.PROC_PRECISION"
PDP_SOURCE = "PDP_RDMA.D_SRC_RAM_CFG.SRC_RAM_TYPE"
OUT_PRECISION = "SDP.D_DATA_FORMAT.OUT_PRECISION"
CHANNELS = {
    "SDP": "D_DATA_CUBE_CHANNEL.CHANNEL",
    "PDP": "D_DATA_CUBE_OUT_CHANNEL.CUBE_OUT_CHANNEL",
}
BLOCK = 2**13  # atoms that SDP works on at a time: temporaries take 64 bytes an atom and stay small
Taken = Callable[[int], Any]  # takes this many atoms away and gives their values


@dataclass
class Units:
    """The state of a chip's units between jobs. A new instance is a device after a reset."""

    features: Features
    buffer: Buffer = field(init=False)
    readers: deque[Reader] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.buffer = Buffer(dict(self.features))

    @staticmethod
    def known(features: Features) -> bool:
        """True if the state of a chip's units is known: of int8 chips whose convolution buffer has
        one atom in an entry."""
        one_atom = features.get("cbuf_entry") == features["memory_atom"]
        return one_atom and not features.get("int16")

    def run(
        self, v: Fields, on: Collection[str], memory: Memory, lut: Callable[[], Lut | None]
    ) -> tuple[Cube, Array]:
        """Run a job of the units ``on``. Return the cube that it writes, and the cube's content
        ``(surfaces, height, width, lanes)``. ``lut`` is called for SDP's tables if the job uses
        them.

        Raises Hang, with the reason, for a job whose last unit never ends.
        """
        self._start(v, on, memory)
        if "SDP" not in on:
            return self.pooled(v, on, memory, None)
        y = self.points(v, lut)
        if "PDP" in on:
            return self.pooled(v, on, memory, y)
        hang_if(v[TO_PDP], f"{TO_PDP} is 1: SDP waits for PDP, which nobody started")
        return _destination(v, "SDP", y.shape), y

    def wait(self, v: Fields, on: Collection[str], memory: Memory) -> None:
        """Start a job and raise Hang if SDP waits for items that never come; nothing is read,
        computed or written."""
        self.buffer.keeps = False
        self._start(v, on, memory)
        if "SDP" in on:
            self._ready(v, Counts.of(v, "SDP", PRECISION))

    def _start(self, v: Fields, on: Collection[str], memory: Memory) -> None:
        hang_if(
            not {*on} & {"SDP", "PDP"},
            f"nothing is written: the job starts {', '.join(sorted(on)) or 'no unit'}",
        )
        if {*on} & {*CONVOLUTION}:
            missing = [unit for unit in NEEDED if unit not in on]
            hang_if(missing, f"a convolution waits for {', '.join(missing)}, which nobody started")
            self.buffer.add(v, memory)
        if "SDP_RDMA" in on:
            self.readers.append(reader_of(v, memory))

    def _ready(self, v: Fields, counts: Counts) -> tuple[Taken, dict[str, dict[str, Taken]]]:
        """Return the functions that take SDP's atoms, and the operands of each stage that works;
        Hang if fewer come than it waits for."""
        source = self._source(v, counts)
        stages = {}
        for name in LETTERS:
            # nv_small has no EW
            if not sdp.bypassed(v, name) and (name != "EW" or v.features["ew"]):
                stages[name] = self._operands(v, name, counts)
        if not v[TO_PDP]:
            _refuse_missing(v, "SDP.D_DST_DMA_CFG.DST_RAM_TYPE")
        return source, stages

    def points(self, v: Fields, lut: Callable[[], Lut | None]) -> Array:
        """Return what SDP makes of a job, ``(surfaces, height, width, lanes)``; Hang if it waits
        for items that never come."""
        counts = Counts.of(v, "SDP", PRECISION)
        source, stages = self._ready(v, counts)
        tables = None
        if "EW" in stages and sdp.looks_up(v):
            tables = Tables.of(lut())
        how = Lookup.of(v, "SDP", RULES)
        few(counts.items * counts.atom, "the elements of SDP's output")
        # Any precision but int8 saturates to 16 bits, and then only the lowest 8 bits are written.
        v = replace(v, values={**v.values, OUT_PRECISION: int(v[OUT_PRECISION] > 0)})
        out = np.empty((counts.items, counts.atom), np.int8)
        for start in range(0, counts.items, BLOCK):
            stop = min(start + BLOCK, counts.items)
            operands = {}
            for name, values in stages.items():
                taken = {part: value(stop - start) for part, value in values.items()}
                operands[name] = sdp.Operands(taken["ALU"], taken["MUL"])
            x = source(stop - start)
            out[start:stop] = sdp.processed(v, x, operands, tables, how, RULES)
        return out.reshape(counts.surfaces, counts.height, counts.width, counts.atom)

    def _source(self, v: Fields, counts: Counts) -> Taken:
        """Return the function that takes a number of SDP's atoms, from CACC or from memory."""
        wanted = f"SDP waits for {counts.items} atoms"
        if not v["SDP.D_FEATURE_MODE_CFG.FLYING_MODE"]:
            stream = self._stream(CUBE, counts.items)
            if stream is None:
                raise Hang(f"{wanted}, of SDP_RDMA's cube come fewer")
            return stream
        sums = self.buffer.sums
        why = self.buffer.waits() or f"CACC gives {sums.available()}"
        hang_if(sums.available() < counts.items, f"{wanted}: {why}")
        return sums.take

    def _operands(self, v: Fields, name: str, counts: Counts) -> dict[str, Taken]:
        """Return the functions that take a number of a stage's operands, ALU and MUL, from
        registers or from SDP_RDMA's streams."""
        found: dict[str, Taken] = {}
        for part, value in sdp.register_operands(v, name).items():
            found[part] = partial(_always, value)
        parts = sdp.parts_from_memory(v, name)
        for part in parts:
            stream = self._stream(f"{name} {part}", counts.items, alone=len(parts) == 1)
            if stream is None:
                raise Hang(
                    f"SDP waits for {counts.items} operands, SDP_RDMA gives fewer of {name} {part}"
                )
            if name == "EW":
                found[part] = partial(_converted, v, part, stream)
            else:
                found[part] = stream
        return found

    def _stream(self, name: str, count: int, alone: bool = False) -> Taken | None:
        """Return the function that takes a number of items from one of SDP_RDMA's streams. Return
        None if the reader's job has fewer than ``count`` items.

        The reader starts its next job once all items of its job were taken. If it gives two
        operands and SDP takes one of them (``alone``), the reader stops after a surface, because
        there is no room for the other operand.
        """
        while self.readers and self.readers[0].drained:
            self.readers.popleft()
        for reader in self.readers:
            part = reader.streams.get(name)
            if part is not None and part.left:
                room = part.left * part.comes
                others = [other for other in reader.streams if other[:2] == name[:2]]
                if alone and len(others) == 2:
                    room = min(room, reader.counts.height * reader.counts.width)
                if room < count:
                    return None
                return part.take
            if not reader.drained:
                return None
        return None

    def pooled(
        self, v: Fields, on: Collection[str], memory: Memory, handed: Array | None
    ) -> tuple[Cube, Array]:
        """Return what PDP makes of SDP's atoms ``handed`` or of memory, as ``run`` does."""
        v.expect("run pooling")
        v = _as_pdp_reads(v)
        from_memory = v["PDP.D_OPERATION_MODE_CFG.FLYING_MODE"]
        atom = v.features["memory_atom"]
        height, width, _ = v.shape("PDP.D_DATA_CUBE_IN_{0}.CUBE_IN_{0}")
        surfaces = v["PDP.D_DATA_CUBE_OUT_CHANNEL.CUBE_OUT_CHANNEL"] // atom + 1
        if from_memory:
            hang_if("PDP_RDMA" not in on, "PDP waits for PDP_RDMA, which nobody started")
            _refuse_missing(v, PDP_SOURCE)
            rows, across, channels = v.shape("PDP_RDMA.D_DATA_CUBE_IN_{0}.CUBE_IN_{0}")
            counts = Counts(ceil_div(channels, atom), rows, across, atom, atom)
            source = Part(counts.items, cube(v, memory, counts, "PDP_RDMA", PDP_SOURCE))
        elif handed is None:
            raise Hang("PDP waits for SDP, which nobody started")
        else:
            atoms = handed.reshape(-1, atom)
            source = Part(len(atoms), lambda start, stop: atoms[start:stop].astype(np.int64))
        count = surfaces * height * width
        hang_if(source.left < count, f"PDP waits for {count} atoms, its source gives {source.left}")
        _refuse_missing(v, "PDP.D_DST_RAM_CFG.DST_RAM_TYPE")
        few(count * atom, "the elements of PDP's input")
        x = source.take(count).reshape(surfaces, height, width, atom)
        if pool_stream.plain(v):
            y = pdp.windows(v, x)
        else:
            y = pool_stream.streamed(v, x)
        return _destination(v, "PDP", y.shape), y


def _always(value: int, count: int) -> int:
    """Return the operand of a register, for any number of atoms."""
    return value


def _converted(v: Fields, part: str, stream: Taken, count: int) -> Array:
    return sdp.converted(v, part, stream(count), RULES.table_rounding)


def _refuse_missing(v: Fields, ram_type: str) -> None:
    """Raise Hang for a RAM_TYPE field that names a memory which the chip does not have."""
    hang_if(not v.has_memory(ram_type), f"{ram_type} is 0, a memory that the chip does not have")


def _as_pdp_reads(v: Fields) -> Fields:
    """Return the registers as PDP of an int8 chip reads them: it ignores the precision, and reads
    only 3 bits of the kernel's sizes."""
    values = {**v.values, "PDP.D_DATA_FORMAT.INPUT_DATA": 0}
    for name in ("WIDTH", "HEIGHT"):
        kernel = f"PDP.D_POOLING_KERNEL_CFG.KERNEL_{name}"
        values[kernel] = v[kernel] % 8
    return replace(v, values=values)


def _destination(v: Fields, unit: str, shape: tuple[int, ...]) -> Cube:
    """Return the cube that SDP or PDP writes, whose content has the ``shape`` (surfaces, height,
    width, lanes). The unit ignores the lowest bits of address and pitches."""
    surfaces, height, width, atom = shape
    base, line, plane = v.whole_atoms(*v.places(unit, "DST"))
    config = "DMA_CFG"
    if unit == "PDP":
        config = "RAM_CFG"
    name = v.memory_of(f"{unit}.D_DST_{config}.DST_RAM_TYPE")
    channels = v.size(f"{unit}.{CHANNELS[unit]}")
    if ceil_div(channels, atom) != surfaces:
        channels = surfaces * atom
    return Cube(height, width, channels, atom, line, plane, 1, name, base)
