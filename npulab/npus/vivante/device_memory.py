"""The memory of the simulated device: bytes by address, of which it knows what was written."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npulab.captures.target import Hang

PAGE, MOST_PAGES = 4096, 2 ** 14


class Memory:
    """Pages of bytes, made where something is written.

    Raises Hang for a byte that is read and was never written, and where more than 64 MiB are.
    """

    def __init__(self, buffers: Mapping[str, bytes], addresses: Mapping[str, int]) -> None:
        self.pages: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for name, data in buffers.items():
            if name in addresses:
                self.write(addresses[name] + np.arange(len(data)), np.frombuffer(data, np.uint8))

    def write(self, addresses: np.ndarray, values: np.ndarray) -> None:
        """Set bytes one by one, in order."""
        for page, where in self._by_page(addresses):
            if page not in self.pages:
                if len(self.pages) == MOST_PAGES:
                    raise Hang(f"the jobs write more than the simulated device's {PAGE * MOST_PAGES} bytes of memory")
                self.pages[page] = np.zeros(PAGE, np.uint8), np.zeros(PAGE, bool)
            data, known = self.pages[page]
            data[addresses[where] % PAGE], known[addresses[where] % PAGE] = values[where], True

    def read(self, addresses: np.ndarray) -> np.ndarray:
        """Bytes one by one, ``uint8`` like ``addresses``."""
        out = np.empty(addresses.shape, np.uint8)
        for page, where in self._by_page(addresses):
            data, known = self.pages.get(page, (None, None))
            if data is None or known is None or not np.all(known[addresses[where] % PAGE]):
                raise Hang(f"a job reads memory near {page * PAGE:#x} that holds nothing")
            out[where] = data[addresses[where] % PAGE]
        return out

    def block(self, start: int, size: int) -> bytes:
        """So many bytes from an address on."""
        data = self.stretch(start)
        if len(data) < size:
            raise Hang(f"a job reads memory at {start + len(data):#x} that holds nothing")
        return data[:size]

    def stretch(self, start: int) -> bytes:
        """The bytes from an address on, up to the first that was never written."""
        out, at = [], start
        while at // PAGE in self.pages:
            data, known = self.pages[at // PAGE]
            gaps = np.flatnonzero(~known[at % PAGE:])
            end = at % PAGE + int(gaps[0]) if len(gaps) else PAGE
            out.append(data[at % PAGE:end].tobytes())
            at += len(out[-1])
            if len(gaps):
                break
        return b"".join(out)

    def _by_page(self, addresses: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """(page, which of the addresses lie in it)."""
        pages = addresses // PAGE
        order = np.argsort(pages, kind="stable")
        found, first = np.unique(pages[order], return_index=True)
        return list(zip(found.tolist(), np.split(order, first[1:]), strict=True)) if len(found) else []
