"""The memory of a capture: the ranges that its jobs read, and the ranges set aside for results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import Capture, Range, Unsupported
from npulab.npus.nvdla.facts import ANY_MEMORY, Pair
from npulab.npus.nvdla.images import merged


class Outside(ValueError):
    """Memory was read or written that nothing set aside, ``size`` bytes from ``address``."""

    def __init__(self, text: str, address: int, size: int) -> None:
        super().__init__(text)
        self.address = address
        self.size = size


@dataclass(frozen=True, eq=False)
class Memory:
    """Ranges of memory: (memory, address, bytes ``(n,) uint8``), apart and in ascending order for
    each memory.

    ``pri_mem`` and ``sec_mem`` are two memories; ranges of ``any_mem`` belong to both.
    """

    ranges: tuple[tuple[str, int, Array], ...]

    @classmethod
    def of(cls, capture: Capture, most: int | None = None) -> Memory:
        """Return the memory of a capture before its first job.

        It has every range that the capture sets aside or checks, zero if no image was loaded yet.
        A capture with neither rows of memory nor checks has its buffers but the output.

        Raises Unsupported for more than ``most`` bytes set aside.
        """
        if not {"memory", "checks"} & {*capture.parameters}:
            buffers = []
            for name, data in capture.buffers.items():
                if name in capture.addresses and name != "output":
                    held = np.frombuffer(data, np.uint8).copy()
                    buffers.append((ANY_MEMORY, capture.addresses[name], held))
            return cls(tuple(buffers))
        touched: dict[str, list[Pair]] = {}
        for row in (*capture.parameters.get("memory", ()), *capture.parameters.get("checks", ())):
            touched.setdefault(row["memory"], []).append((row["address"], row["size"]))
        sizes = []
        for memory, rows in sorted(touched.items()):
            for start, size in merged(*np.array(rows, np.int64).T).tolist():
                sizes.append((size, memory, start))
        if most is not None and sum(size for size, _, _ in sizes) > most:
            size, _, start = max(sizes)
            raise Unsupported(
                f"memory at {start:#x}: got {size} bytes, covered are up to {most} in all"
            )
        ranges = [(memory, start, np.zeros(size, np.uint8)) for size, memory, start in sizes]
        out = cls(tuple(ranges))
        out.load(capture, 0)
        return out

    def load(self, capture: Capture, task: int) -> None:
        """Load the images that the trace puts into memory right before job ``task``."""
        for row in capture.parameters.get("memory", ()):
            if row["task"] == task:
                self._load_row(row, capture.buffers)

    def _load_row(self, row: Mapping[str, Any], buffers: Mapping[str, bytes]) -> None:
        into = self.view(row["memory"], row["address"], row["size"])
        if not row["buffer"]:
            into[:] = 0
            return
        data = np.frombuffer(buffers[row["buffer"]], np.uint8)
        at = 0  # position in packed data, which has only the bytes of the runs
        for start, size in row.get("runs", [(0, row["size"])]):
            first = start
            if row.get("packed"):
                first = at
            into[start : start + size] = data[first : first + size]
            at += size

    def view(self, memory: str, address: int, size: int) -> Array:
        """Return the bytes ``(size,) uint8`` of memory itself: a write to them is in memory.

        Raises ``Outside`` naming address and ranges if they are in no range.
        """
        end = address + size
        if (place := self._range(memory, address, end)) is None:
            known = []
            for name, at, data in self.ranges:
                if _same_memory(name, memory):
                    known.append(f"{name} {at:#x} to {at + len(data):#x}")
            raise Outside(
                f"memory: got {memory} {address:#x} to {end:#x}, allowed are "
                f"{'; '.join(known) or 'none of it'}",
                address,
                size,
            )
        start, data = place
        return data[address - start : address - start + size]

    def holds(self, memory: str, address: int, size: int) -> bool:
        """True if the bytes lie in one range."""
        return self._range(memory, address, address + size) is not None

    def with_range(self, address: int, size: int) -> Memory:
        """Return a memory that shares these ranges and also has ``size`` zero bytes in both
        memories.
        """
        return Memory((*self.ranges, (ANY_MEMORY, address, np.zeros(size, np.uint8))))

    def read(self, memory: str, address: int, size: int) -> Any:
        """Return the bytes ``(size,) uint8``, not to be written to; raises as ``view``."""
        out = self.view(memory, address, size)
        out.flags.writeable = False
        return out

    def atoms(self, memory: str, addresses: Array, size: int) -> Array:
        """Return ``size`` bytes from each address, ``(n, size) uint8``; 0 where nothing was put."""
        out = np.zeros((len(addresses), size), np.uint8)
        for start, data in self._ranges(memory):
            places = addresses - start
            inside = (places >= 0) & (places + size <= len(data))
            if inside.all():
                return _pieces(data, places, size)
            if inside.any():
                out[inside] = _pieces(data, places[inside], size)
        return out

    def put_atoms(self, memory: str, addresses: Array, atoms: Array) -> None:
        """Put ``atoms (n, size) uint8`` at their addresses, in order, where memory was set aside;
        the others are lost."""
        size = atoms.shape[1]
        for start, data in self._ranges(memory):
            places = addresses - start
            inside = (places >= 0) & (places + size <= len(data))
            if inside.all():
                _windows(data, size)[places] = atoms
            elif inside.any():
                _windows(data, size)[places[inside]] = atoms[inside]

    def _ranges(self, memory: str) -> Iterator[tuple[int, Array]]:
        for name, start, data in self.ranges:
            if _same_memory(name, memory):
                yield start, data

    def write(self, memory: str, address: int, data: Any) -> None:
        """Put bytes, or an array in C order, into memory; raises as ``view``."""
        held = np.frombuffer(data, np.uint8)
        self.view(memory, address, len(held))[:] = held

    def _range(self, memory: str, start: int, end: int) -> tuple[int, Array] | None:
        """Return the range that holds bytes, as (start, bytes), or None."""
        for name, at, data in self.ranges:
            if at <= start and end <= at + len(data) and _same_memory(name, memory):
                return at, data
        return None


def _pieces(data: Array, places: Array, size: int) -> Array:
    """Return ``size`` bytes from each place in ``data``; whole rows if all places are aligned."""
    rows, rest = np.divmod(places, size)
    if rest.any():
        return _windows(data, size)[places]
    whole = len(data) // size
    return np.take(data[: whole * size].reshape(whole, size), rows, axis=0)


def _windows(data: Array, size: int) -> Array:
    """Return the ``size`` bytes from each byte of ``data`` on, as a view; numpy's own
    ``sliding_window_view`` takes 15 us a call, a tenth of a small job's time."""
    count = max(len(data) - size + 1, 0)
    return np.ndarray((count, size), np.uint8, data, strides=(1, 1))


def _same_memory(name: str, other: str) -> bool:
    return name == other or ANY_MEMORY in (name, other)


def checked(capture: Capture, memory: Memory, task: int) -> Iterator[Range]:
    """Yield the bytes of memory at each check that a capture has after ``task`` jobs, with the
    CRC-32 or the golden bytes of the trace.
    """
    for row in capture.parameters.get("checks", ()):
        if row["task"] == task:
            found = memory.read(row["memory"], row["address"], row["size"]).tobytes()
            golden = None
            if row["crc"] is None:
                golden = capture.buffers[row["buffer"]][: row["size"]]
            name = f"{row['memory']} {row['address']:#x} (line {row['line']})"
            yield Range(name, found, golden, row["crc"])
