"""Feature cubes in memory, read and written by blocks of surfaces and rows.

A cube of ``(surfaces, height, width, lanes)``: a surface holds as many channels as an atom of memory has elements.
Lanes past the channels are there like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from npulab.captures.target import Unanswerable

MEMORIES = ("sec_mem", "pri_mem")  # by the raw value of a RAM_TYPE field: CV, MC
TYPES: dict[int, np.dtype[Any]] = {1: np.dtype(np.int8), 2: np.dtype("<i2")}  # of an element, by its bytes
PRECISIONS = {0: 1, 1: 2}  # bytes of an element, by the raw value of a precision field
FULL_MAP_UNIT = 32  # bytes that an address or pitch of the full map counts
# lanes computed at a time: temporaries, some 160 bytes a lane, stay small beside the cubes
BLOCK, MOST_BLOCK, BLOCKS = 2 ** 12, 2 ** 14, 32
MOST_LANES, MOST_ROWS = 2 ** 25, 2 ** 19  # of a cube that is run


class ByteMemory(Protocol):
    """Memory by name and byte address; both raise where nothing was reserved."""

    def read(self, memory: str, address: int, size: int, /) -> bytes: ...

    def write(self, memory: str, address: int, data: bytes, /) -> None: ...


@dataclass(frozen=True)
class Fields:
    """Raw register values by full name, as one unit reads them; a register that nobody wrote is 0."""

    values: Mapping[str, int]
    features: Mapping[str, int]

    def __getitem__(self, name: str) -> int:
        return int(self.values.get(name, 0))

    def size(self, name: str) -> int:
        """A size that is stored less 1."""
        return self[name] + 1

    def pitch(self, name: str) -> int:
        """Bytes, of a field that holds them or a 32nd of them."""
        return self[name] * (FULL_MAP_UNIT if self.features.get("full_map") else 1)

    def address(self, low: str) -> int:
        """A byte address from its low and its high register; ``low`` is the name of the low one's field."""
        return self[low.replace("_LOW", "_HIGH")] * 2 ** 32 + self.pitch(low)

    def precision(self, name: str) -> int:
        """Bytes of an element; Unanswerable for what is no whole number."""
        if self[name] not in PRECISIONS:
            raise Unanswerable(f"{name} is {self[name]}, covered are 0 (INT8) and 1 (INT16)")
        return PRECISIONS[self[name]]

    def refuse(self, *names: str) -> None:
        """Raise Unanswerable where one of these fields is not 0."""
        for name in names:
            if self[name]:
                raise Unanswerable(f"{name} is {self[name]}, covered is 0")

    def shape(self, names: str) -> tuple[int, int, int]:
        """(height, width, channels) of a cube's registers; ``names`` has {} where their names differ."""
        height, width, channels = (self.size(names.format(name)) for name in ("HEIGHT", "WIDTH", "CHANNEL"))
        return height, width, channels

    def cube(self, unit: str, side: str, ram_type: str, shape: tuple[int, int, int], itemsize: int) -> Cube:
        """The cube that a unit's SRC or DST registers place; ``shape`` is (height, width, channels).

        Raises Unanswerable for one that takes too long to run.
        """
        atom = self.features["memory_atom"]
        rows = -(-shape[2] // (atom // itemsize)) * shape[0]
        if rows > MOST_ROWS or rows * shape[1] * (atom // itemsize) > MOST_LANES:
            raise Unanswerable(f"{unit}: got a cube of {shape[0]} x {shape[1]} x {shape[2]}, covered are up to "
                               f"{MOST_LANES} elements with the padding, in up to {MOST_ROWS} rows of all surfaces")
        base, line, surface = (f"{unit}.D_{side}_{part}.{side}_{part}"
                               for part in ("BASE_ADDR_LOW", "LINE_STRIDE", "SURFACE_STRIDE"))
        return Cube(MEMORIES[self[ram_type]], self.address(base), self.pitch(line), self.pitch(surface),
                    -(-shape[2] // (atom // itemsize)), shape[0], shape[1], atom, itemsize)


@dataclass(frozen=True)
class Cube:
    """A cube's place: base address, pitches and atom in bytes, elements of one or two bytes, little-endian."""

    memory: str
    base: int
    row_pitch: int
    plane_pitch: int
    surfaces: int
    height: int
    width: int
    atom: int
    itemsize: int = 1

    @property
    def lanes(self) -> int:
        """Elements of an atom."""
        return self.atom // self.itemsize

    def without_padding(self, block: np.ndarray, surfaces: slice, channels: int) -> np.ndarray:
        """A block ``(surfaces, rows, width, lanes)`` with 0 in the lanes past the channels."""
        channel = np.arange(surfaces.start * self.lanes, surfaces.stop * self.lanes).reshape(-1, 1, 1, self.lanes)
        return np.where(channel < channels, block, 0)

    def blocks(self, whole_rows: bool = False) -> Iterator[tuple[slice, slice]]:
        """(surfaces, rows) of blocks that cover the cube, of ``BLOCK`` lanes or more where a row allows it.

        With ``whole_rows`` each block has every surface of its rows.
        """
        row = self.width * self.lanes
        block = max(BLOCK, min(MOST_BLOCK, row * self.height * self.surfaces // BLOCKS))
        if whole_rows:
            surfaces, rows = self.surfaces, max(1, block // (row * self.surfaces))
        else:
            rows = min(self.height, max(1, block // row))
            surfaces = max(1, block // (row * rows)) if rows == self.height else 1
        for surface in range(0, self.surfaces, surfaces):
            for line in range(0, self.height, rows):
                yield (slice(surface, min(surface + surfaces, self.surfaces)),
                       slice(line, min(line + rows, self.height)))

    def read(self, memory: ByteMemory, surfaces: slice, rows: slice) -> np.ndarray:
        """A block ``(surfaces, rows, width, lanes)``, int8 or int16."""
        runs = list(self._runs(surfaces, rows))
        if len(runs) == 1:
            data: bytes = memory.read(self.memory, *runs[0])
        else:
            data = b"".join([memory.read(self.memory, address, size) for address, size in runs])
        return np.frombuffer(data, TYPES[self.itemsize]).reshape(
            surfaces.stop - surfaces.start, rows.stop - rows.start, self.width, self.lanes)

    def write(self, memory: ByteMemory, surfaces: slice, rows: slice, block: np.ndarray) -> None:
        """Write a block of values that the element type holds; gaps between rows and surfaces stay as they are."""
        data = np.ascontiguousarray(block, TYPES[self.itemsize]).reshape(-1).view(np.uint8)
        at = 0
        for address, size in self._runs(surfaces, rows):
            memory.write(self.memory, address, data[at:at + size].tobytes())
            at += size

    def _runs(self, surfaces: slice, rows: slice) -> Iterator[tuple[int, int]]:
        """(address, bytes) without gaps, in the order surface, row."""
        row, count, planes = self.width * self.atom, rows.stop - rows.start, surfaces.stop - surfaces.start
        first = self.base + surfaces.start * self.plane_pitch + rows.start * self.row_pitch
        if count > 1 and self.row_pitch != row:
            for plane in range(planes):
                for line in range(count):
                    yield first + plane * self.plane_pitch + line * self.row_pitch, row
        elif planes > 1 and self.plane_pitch != count * row:
            for plane in range(planes):
                yield first + plane * self.plane_pitch, count * row
        else:
            yield first, planes * count * row


def dealt(block: np.ndarray, surfaces: int, lanes: int) -> np.ndarray:
    """A block of every surface ``(surfaces, rows, width, lanes)`` with its channels in atoms of other lanes.

    Channels that lack are 0.

    >>> dealt(np.arange(4).reshape(2, 1, 1, 2), 1, 4).shape
    (1, 1, 1, 4)
    """
    if block.shape[::3] == (surfaces, lanes):
        return block
    rows, width = block.shape[1:3]
    flat = block.transpose(1, 2, 0, 3).reshape(rows, width, -1)[..., :surfaces * lanes]
    out = np.zeros((rows, width, surfaces * lanes), block.dtype)
    out[..., :flat.shape[2]] = flat
    return out.reshape(rows, width, surfaces, lanes).transpose(2, 0, 1, 3)
