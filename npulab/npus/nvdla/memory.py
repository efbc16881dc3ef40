"""Memory as a capture sets it up: only the ranges that it touches, and those that are set aside for
results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from npulab.npus.kit import Capture, Range, Unsupported, refuse_if
from npulab.npus.nvdla.facts import ANY_MEMORY
from npulab.npus.nvdla.images import merged


class Outside(ValueError):
    """Memory that nothing set aside was read or written, ``size`` bytes from ``address`` on."""

    def __init__(self, text: str, address: int = 0, size: int = 0) -> None:
        super().__init__(text)
        self.address = address
        self.size = size


class ByteMemory(Protocol):
    """Memory by name and byte address, which gives and takes bytes or arrays of them; both raise
    where nothing was reserved."""

    def read(self, memory: str, address: int, size: int, /) -> Any: ...

    def write(self, memory: str, address: int, data: Any, /) -> None: ...


@dataclass(frozen=True, eq=False)
class Memory:
    """Ranges of memory: (memory, address, bytes ``(n,) uint8``), apart and in ascending order for
    each memory.

    ``pri_mem`` and ``sec_mem`` are two memories; ranges of ``any_mem`` belong to both.
    """

    ranges: tuple[tuple[str, int, np.ndarray], ...]

    @classmethod
    def of(cls, capture: Capture, most: int | None = None) -> Memory:
        """The memory of a capture before its first job: every range that it sets aside or checks,
        zero where no image was loaded yet; of a capture that says of neither, its buffers but the
        output.

        Raises Unsupported for more than ``most`` bytes set aside.
        """
        if not {"memory", "checks"} & {*capture.parameters}:
            return cls(
                tuple(
                    (ANY_MEMORY, capture.addresses[name], np.frombuffer(data, np.uint8).copy())
                    for name, data in capture.buffers.items()
                    if name in capture.addresses and name != "output"
                )
            )
        touched: dict[str, list[tuple[int, int]]] = {}
        for row in (*capture.parameters.get("memory", ()), *capture.parameters.get("checks", ())):
            touched.setdefault(row["memory"], []).append((row["address"], row["size"]))
        ranges = [
            (memory, start, size)
            for memory, rows in sorted(touched.items())
            for start, size in merged(*np.array(rows, np.int64).T).tolist()
        ]
        if most is not None and sum(size for _, _, size in ranges) > most:
            _, start, size = max(ranges, key=lambda row: row[2])
            raise Unsupported(f"memory at {start:#x}: got {size} bytes, covered are {most} in all")
        out = cls(
            tuple((memory, start, np.zeros(size, np.uint8)) for memory, start, size in ranges)
        )
        out.load(capture, 0)
        return out

    def load(self, capture: Capture, task: int) -> None:
        """What the trace does to memory before job ``task``, and behind the one before it."""
        for row in capture.parameters.get("memory", ()):
            if row["task"] == task:
                self._do(row, capture.buffers)

    def _do(self, row: Mapping[str, Any], buffers: Mapping[str, bytes]) -> None:
        into = self.view(row["memory"], row["address"], row["size"])
        if not row["buffer"]:
            into[:] = 0
            return
        data = np.frombuffer(buffers[row["buffer"]], np.uint8)
        at = 0  # in packed data, which are the bytes of the runs alone
        for start, size in row.get("runs", [(0, row["size"])]):
            first = start
            if row.get("packed"):
                first = at
            into[start : start + size] = data[first : first + size]
            at += size

    def view(self, memory: str, address: int, size: int) -> np.ndarray:
        """The bytes ``(size,) uint8`` themselves: what is put into them is in memory.

        Raises ``Outside`` naming address and ranges where they are in no range.
        """
        end = address + size
        if (place := self._range(memory, address, end)) is None:
            there = [
                f"{name} {at:#x} to {at + len(data):#x}"
                for name, at, data in self.ranges
                if name == memory or ANY_MEMORY in (name, memory)
            ]
            raise Outside(
                f"memory: got {memory} {address:#x} to {end:#x}, allowed are "
                f"{'; '.join(there) or 'none of it'}",
                address,
                size,
            )
        start, data = place
        return data[address - start : address - start + size]

    def holds(self, memory: str, address: int, size: int) -> bool:
        """Whether bytes lie in one range."""
        return self._range(memory, address, address + size) is not None

    def with_range(self, address: int, size: int) -> Memory:
        """The same memory, shared, and zeroed bytes of both memories."""
        return Memory((*self.ranges, (ANY_MEMORY, address, np.zeros(size, np.uint8))))

    def read(self, memory: str, address: int, size: int) -> np.ndarray:
        """The bytes ``(size,) uint8``, not to be written to; raises as ``view``."""
        out = self.view(memory, address, size)
        out.flags.writeable = False
        return out

    def write(self, memory: str, address: int, data: Any) -> None:
        """Put bytes (or uint8 in any shape) into memory, in order; raises as ``view``."""
        if isinstance(data, bytes | bytearray | memoryview):
            data = np.frombuffer(data, np.uint8)
        else:
            data = np.asarray(data)
        refuse_if(data.dtype.itemsize != 1, "memory", data.dtype, "are bytes, uint8 or int8")
        self.view(memory, address, data.size)[:] = data.reshape(-1).view(np.uint8)

    def _range(self, memory: str, start: int, end: int) -> tuple[int, np.ndarray] | None:
        return next(
            (
                (at, data)
                for name, at, data in self.ranges
                if at <= start
                and end <= at + len(data)
                and (name == memory or ANY_MEMORY in (name, memory))
            ),
            None,
        )


def checked(capture: Capture, memory: Memory, task: int) -> Iterator[Range]:
    """What the checks find that come when ``task`` jobs of a capture have run: beside a CRC-32, or
    the bytes where the trace has the golden ones."""
    for row in capture.parameters.get("checks", ()):
        if row["task"] == task:
            found = memory.read(row["memory"], row["address"], row["size"]).tobytes()
            golden = None
            if row["crc"] is None:
                golden = capture.buffers[row["buffer"]][: row["size"]]
            yield Range(
                f"{row['memory']} {row['address']:#x} (line {row['line']})",
                found,
                golden,
                row["crc"],
            )
