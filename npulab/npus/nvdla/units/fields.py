"""Registers as one unit reads them, and the cubes that they place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from npulab.captures.target import Unsupported
from npulab.npus.nvdla.events import MEMORIES
from npulab.npus.nvdla.layouts import Cube

PRECISIONS = {0: 1, 1: 2}  # bytes of an element, by the raw value of a precision field
FULL_MAP_UNIT = 32  # bytes that an address or pitch of the full map counts
MOST_LANES, MOST_ROWS = 2 ** 25, 2 ** 19  # of a cube that is run


@dataclass(frozen=True)
class Fields:
    """Raw register values by full name, as one unit reads them; a register that nobody wrote is
    0."""

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
        """A byte address from its low and its high register; ``low`` is the name of the low one's
        field."""
        return self[low.replace("_LOW", "_HIGH")] * 2 ** 32 + self.pitch(low)

    def precision(self, name: str) -> int:
        """Bytes of an element; Unsupported for what is no whole number."""
        if self[name] not in PRECISIONS:
            raise Unsupported(f"{name} is {self[name]}, covered are 0 (INT8) and 1 (INT16)")
        return PRECISIONS[self[name]]

    def refuse(self, *names: str) -> None:
        """Raise Unsupported where one of these fields is not 0."""
        for name in names:
            if self[name]:
                raise Unsupported(f"{name} is {self[name]}, covered is 0")

    def shape(self, names: str) -> tuple[int, int, int]:
        """(height, width, channels) of a cube's registers; ``names`` has {} where their names
        differ."""
        height, width, channels = (self.size(names.format(name)) for name in ("HEIGHT", "WIDTH", "CHANNEL"))
        return height, width, channels

    def cube(self, unit: str, side: str, ram_type: str, shape: tuple[int, int, int], itemsize: int) -> Cube:
        """The cube that a unit's SRC or DST registers place; ``shape`` is (height, width,
        channels).

        Raises Unsupported for one that takes too long to run.
        """
        atom = self.features["memory_atom"]
        rows = -(-shape[2] // (atom // itemsize)) * shape[0]
        if rows > MOST_ROWS or rows * shape[1] * (atom // itemsize) > MOST_LANES:
            raise Unsupported(f"{unit}: got a cube of {shape[0]} x {shape[1]} x {shape[2]}, covered are up to "
                               f"{MOST_LANES} elements with the padding, in up to {MOST_ROWS} rows of all surfaces")
        base, line, surface = (f"{unit}.D_{side}_{part}.{side}_{part}"
                               for part in ("BASE_ADDR_LOW", "LINE_STRIDE", "SURFACE_STRIDE"))
        return Cube(*shape, atom, self.pitch(line), self.pitch(surface), itemsize, MEMORIES[self[ram_type]],
                    self.address(base))
