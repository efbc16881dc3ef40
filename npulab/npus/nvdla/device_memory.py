"""Memory of the simulated device: the ranges that a capture sets aside, and those that its jobs write."""

from __future__ import annotations

from typing import Any

import numpy as np

from npulab.captures.capture import Capture
from npulab.captures.target import Hang, Unanswerable

ANY = "any_mem"  # a range that lies in both memories
MEMORIES = ("sec_mem", "pri_mem")  # by the raw value of a RAM_TYPE field
MOST = 2 ** 26  # bytes of a result that a capture set no memory aside for
MOST_SET_ASIDE = 2 ** 30


class Memory:
    """Bytes by memory and address; what nobody set aside or wrote cannot be read."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.ranges: list[tuple[str, int, np.ndarray]] = []
        rows = capture.parameters.get("memory")
        if rows is None:
            for name, data in capture.buffers.items():
                if name in capture.addresses and name != "output":
                    self.ranges.append((ANY, capture.addresses[name], np.frombuffer(data, np.uint8).copy()))
            return
        for row in rows:
            self._set_aside(row["memory"], row["address"], row["size"])
        for row in capture.parameters.get("checks", ()):
            self._set_aside(row["memory"], row["address"], row["size"])
        self.before(0)

    def before(self, task: int) -> None:
        """What the recording did to memory before a job."""
        for row in self.capture.parameters.get("memory") or ():
            if row["task"] != task:
                continue
            at = self._place(row["memory"], row["address"], row["size"])
            if at is None:
                raise Unanswerable(f"memory at {row['address']:#x} is set aside in parts")
            data = np.frombuffer(self.capture.buffers[row["buffer"]], np.uint8) if row.get("buffer") else None
            for start, size in row.get("runs", [(0, row["size"])]):
                at[start:start + size] = 0 if data is None else data[start:start + size]

    def _set_aside(self, memory: str, address: int, size: int) -> None:
        """A range, joined with those that it meets."""
        end = address + size
        met = [one for one in self.ranges if one[0] == memory and one[1] <= end and address <= one[1] + len(one[2])]
        start, stop = min([address, *(one[1] for one in met)]), max([end, *(one[1] + len(one[2]) for one in met)])
        if stop - start + sum(len(one[2]) for one in self.ranges) > MOST_SET_ASIDE:
            raise Unanswerable(f"memory at {address:#x}: got {size} bytes, covered are {MOST_SET_ASIDE} in all")
        joined = np.zeros(stop - start, np.uint8)
        for one in met:
            joined[one[1] - start:one[1] - start + len(one[2])] = one[2]
        kept = [one for one in self.ranges if not any(one is other for other in met)]
        self.ranges = [*kept, (memory, start, joined)]

    def _place(self, memory: str, address: int, size: int) -> np.ndarray | None:
        for name, start, data in self.ranges:
            if (name == memory or ANY in (name, memory)) and start <= address \
                    and address + size <= start + len(data):
                return data[address - start:address - start + size]
        return None

    def take(self, memory: str, places: np.ndarray, what: str) -> np.ndarray:
        """The bytes uint8 at addresses; Hang where nothing lies there."""
        low, high = int(places.min()), int(places.max())
        data = self._place(memory, low, high - low + 1)
        if data is None:
            raise Hang(f"{what} reads {memory} {low:#x} to {high + 1:#x}, where nothing was put")
        return data[places - low]

    def put(self, memory: str, places: np.ndarray, values: Any, what: str) -> None:
        """Write bytes to addresses; Hang where they go past memory that was set aside."""
        low, high = int(places.min()), int(places.max())
        data = self._place(memory, low, high - low + 1)
        if data is None:
            raise Hang(f"{what} writes {memory} {low:#x} to {high + 1:#x}, past what is set aside")
        data[places - low] = values

    def reserve(self, memory: str, address: int, size: int) -> None:
        """Memory for a result, where the capture does not say what it set aside.

        Raises Unanswerable for more than 64 MiB, Hang for a result that begins or ends inside a buffer.
        """
        if self.capture.parameters.get("memory") is not None or self._place(memory, address, size) is not None:
            return
        if size > MOST:
            raise Unanswerable(f"the result at {address:#x} spans {size} bytes, covered are {MOST}")
        for _, start, data in self.ranges:
            if start < address + size and address < start + len(data):
                raise Hang(f"the result at {address:#x}, {size} bytes, overlaps a buffer at {start:#x}")
        self.ranges.append((ANY, address, np.zeros(size, np.uint8)))

    def stretch(self, memory: str, address: int, size: int) -> bytes:
        """Bytes that lie there."""
        data = self._place(memory, address, size)
        if data is None:
            raise Hang(f"no job writes {memory} {address:#x} to {address + size:#x}")
        return data.tobytes()
