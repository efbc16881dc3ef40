"""The number of elements of a CMSIS-SVD file with all its arrays, counted before any is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from npulab.registers.formats import svd_names
from npulab.registers.formats.svd_names import Device, TooMuch, View, dim_of, view_of
from npulab.registers.formats.tables import MOST_ROWS
from npulab.registers.formats.xml import Element

INSIDE = {
    "peripheral": ("register", "cluster"),
    "cluster": ("register", "cluster"),
    "register": ("field",),
}
SHOWN = 10**15  # a larger number is reported as more than this


class Count(NamedTuple):
    """The number of elements, with arrays and their elements, and the number of registers."""

    elements: int
    registers: int


NOTHING = Count(0, 0)


@dataclass(frozen=True)
class Counting:
    """The counts of a device; each element of the file is counted once, however often it is
    repeated."""

    device: Device
    known: dict[int, Count] = field(default_factory=dict)  # by identity; None while it is counted

    def refuse(self, peripherals: Iterable[Element]) -> None:
        """Raise TooMuch for more elements or registers than allowed; it names the innermost
        element that has them, or the peripheral that exceeds the sum."""
        elements = registers = 0
        for element in peripherals:
            found = self._count(element)
            elements += found.elements
            registers += found.registers
            _refuse(
                f"{element.where}: {element.tag}, with those before it", Count(elements, registers)
            )

    def _count(self, element: Element) -> Count:
        if id(element) in self.known:
            return self.known[id(element)]
        self.known[id(element)] = NOTHING  # the reader refuses an element that holds itself
        try:
            view = view_of(element, self.device)
            dim = dim_of(view)
        except TooMuch:
            raise
        except ValueError:  # the reader reports it as lost
            return NOTHING
        elements = 1
        registers = int(element.tag == "register")
        for inner in _inside(view, element.tag):
            found = self._count(inner)
            elements += found.elements
            registers += found.registers
        times = max(dim, 1)
        count = Count(dim + 1 + times * (elements - 1), times * registers)
        _refuse(f"{view.where}: {element.tag} {view.path}", count)
        self.known[id(element)] = count
        return count


def _refuse(where: str, count: Count) -> None:
    for what, got, most in (
        ("elements", count.elements, svd_names.MOST_STEPS),
        ("registers", count.registers, MOST_ROWS),
    ):
        if got > most:
            if got <= SHOWN:
                shown = str(got)
            else:
                shown = f"more than {SHOWN}"
            raise TooMuch(
                f"{where}: got {shown} {what} with those of arrays, allowed are no more than "
                f"{most} {what} "
                "in all"
            )


def _inside(view: View, tag: str) -> list[Element]:
    """The elements that a peripheral, cluster or register repeats with itself."""
    tags = INSIDE.get(tag, ())
    if tag == "cluster":
        return view.every(*tags)
    groups = view.every("registers" if tag == "peripheral" else "fields")
    return [inner for group in groups for inner in group if inner.tag in tags]
