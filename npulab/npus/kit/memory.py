"""A simulated memory by address, which knows which bytes were written and by whom; the buffers of a
capture by address.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy import ndarray as Array

from npulab.captures.capture import Capture
from npulab.captures.target import Hang, Unsupported
from npulab.layout import Layout
from npulab.support.refuse import refuse_if

PAGE, MOST_PAGES = 4096, 2**14
MOST_BYTES = PAGE * MOST_PAGES


class Memory:
    """The memory of a simulated device: pages of bytes, made when something is written to them.

    Raises Hang if a byte is read that was never written, and if the pages would take more than 64
    MiB.

    >>> memory = Memory({"input": b"abc"}, {"input": 0x5000})
    >>> memory.write(0x5001, b"x", by="task 0")
    >>> memory.segments, memory.writer(0x5000), memory.writer(0x5001)
    ({20480: b'axc'}, 'input', 'task 0')
    """

    def __init__(self, buffers: Mapping[str, bytes], addresses: Mapping[str, int]) -> None:
        self.pages: dict[int, tuple[Array, Array]] = {}
        self.writers: list[tuple[range | Array, str]] = []
        for name, data in buffers.items():
            if name in addresses:
                self.write(addresses[name], data, name)

    @classmethod
    def of(cls, capture: Capture) -> Memory:
        """Return a memory that holds each buffer of a capture that has an address."""
        return cls(capture.buffers, capture.addresses)

    def write(self, start: int, data: bytes, by: str = "") -> None:
        """Write bytes from an address on; ``by`` is the name that ``writer`` returns for them."""
        values, at = np.frombuffer(data, np.uint8), 0
        if by:
            self.writers.append((range(start, start + len(data)), by))
        while at < len(values):
            page, first = divmod(start + at, PAGE)
            part = values[at : at + PAGE - first]
            stored, known = self._page(page)
            stored[first : first + len(part)], known[first : first + len(part)] = part, True
            at += len(part)

    def scatter(self, addresses: Array, values: Array, by: str = "") -> None:
        """Write each of ``values`` at its address, the last one if an address occurs twice; ``by``
        is the name that ``writer`` returns for them.
        """
        if by:
            self.writers.append((addresses.copy(), by))
        for page, where in self._by_page(addresses):
            data, known = self._page(page)
            data[addresses[where] % PAGE], known[addresses[where] % PAGE] = values[where], True

    def gather(self, addresses: Array) -> Array:
        """Return the bytes at an array of addresses, as ``uint8`` of the same shape."""
        out = np.empty(addresses.shape, np.uint8)
        for page, where in self._by_page(addresses):
            data, known = self.pages.get(page, (None, None))
            if data is None or known is None or not np.all(known[addresses[where] % PAGE]):
                raise Hang(f"a job reads memory near {page * PAGE:#x} that holds nothing")
            out[where] = data[addresses[where] % PAGE]
        return out

    def read(self, start: int, size: int, what: str = "") -> bytes:
        """Return ``size`` bytes from an address on; ``what`` names the reader in the error."""
        data = self.stretch(start, size)
        if len(data) < size and what:
            raise Hang(f"{what}: reads {size} bytes at {start:#x}, which no buffer holds")
        if len(data) < size:
            raise Hang(f"a job reads memory at {start + len(data):#x} that holds nothing")
        return data

    def stretch(self, start: int, most: int = MOST_BYTES) -> bytes:
        """Return the bytes from an address on, until the first byte that was never written; at most
        ``most`` bytes.
        """
        out, at, end = [], start, start + most
        while at < end and at // PAGE in self.pages:
            data, known = self.pages[at // PAGE]
            first, last = at % PAGE, min(PAGE, at % PAGE + end - at)
            gaps = np.flatnonzero(~known[first:last])
            if len(gaps):
                last = first + int(gaps[0])
            out.append(data[first:last].tobytes())
            at += last - first
            if len(gaps):
                break
        return b"".join(out)

    def writer(self, address: int) -> str:
        """Return the name of the last writer of the byte at an address; empty if no writer has a
        name.
        """
        return next((by for where, by in reversed(self.writers) if address in where), "")

    @property
    def segments(self) -> dict[int, bytes]:
        """All written bytes as runs without a gap, by the address of the first byte.

        Words written one by one thus become buffers.
        """
        out: dict[int, bytes] = {}
        end = 0
        for page in sorted(self.pages):
            _, known = self.pages[page]
            starts = np.flatnonzero(known & ~np.concatenate(([False], known[:-1])))
            for start in (page * PAGE + starts).tolist():
                # bytes before ``end`` belong to a segment that began in an earlier page
                if start >= end or not out:
                    out[start] = self.stretch(start)
                    end = start + len(out[start])
        return out

    def tensor(self, start: int, layout: Layout) -> Array:
        """Return the tensor at an address, unpacked by ``layout``."""
        return layout.unpack(self.read(start, layout.size))

    def _page(self, page: int) -> tuple[Array, Array]:
        """Return the bytes of a page, and an array that is True for each byte that was written.

        Raises Hang if there would be too many pages.
        """
        if page not in self.pages:
            if len(self.pages) == MOST_PAGES:
                raise Hang(
                    f"the jobs write more than the simulated device's {MOST_BYTES} bytes of memory"
                )
            self.pages[page] = np.zeros(PAGE, np.uint8), np.zeros(PAGE, bool)
        return self.pages[page]

    def _by_page(self, addresses: Array) -> list[tuple[int, Array]]:
        """Return (page, indices of the addresses that lie in it) for each page that has any."""
        pages = addresses // PAGE
        order = np.argsort(pages, kind="stable")
        numbers, first = np.unique(pages[order], return_index=True)
        if not len(numbers):
            return []
        return list(zip(numbers.tolist(), np.split(order, first[1:]), strict=True))


def buffer_of(capture: Capture, name: str, size: int | None = None) -> bytes:
    """Return a buffer of a capture; raises Unsupported if there is none of this name, ValueError if
    it is not ``size`` bytes long.
    """
    if name not in capture.buffers:
        raise Unsupported(
            f"capture {capture.name}: buffer {name!r} is missing, there are "
            f"{', '.join(capture.buffers) or 'none'}"
        )
    data = capture.buffers[name]
    refuse_if(
        size not in (None, len(data)),
        f"capture {capture.name}: buffer {name!r}",
        f"{len(data)} bytes",
        f"by its words are {size}",
    )
    return data


def address_of(capture: Capture, name: str, why: str) -> int:
    """Return the address of a capture's buffer; raises Unsupported if it is not known. ``why``
    completes the error: "which says ...".
    """
    if name not in capture.addresses:
        raise Unsupported(f"capture {capture.name}: address {name!r} is missing, which says {why}")
    return capture.addresses[name]


def bytes_at(capture: Capture, name: str, address: int, size: int) -> bytes:
    """Return ``size`` bytes from an address on, out of the buffer ``name``; raises ValueError if
    the buffer does not have all of them.
    """
    data, base = buffer_of(capture, name), address_of(capture, name, "where the buffer lies")
    start = address - base
    if start < 0 or start + size > len(data) or size > MOST_BYTES:
        raise ValueError(
            f"capture {capture.name}: buffer {name!r} has {len(data)} bytes from "
            f"{base:#x} on, the words say {size} bytes at {address:#x}"
        )
    return data[start : start + size]


def tensor_at(capture: Capture, name: str, address: int, layout: Layout) -> Array:
    """Return the tensor at an address in the buffer ``name``, unpacked by ``layout``; raises as
    ``bytes_at``.
    """
    return layout.unpack(bytes_at(capture, name, address, layout.size))
