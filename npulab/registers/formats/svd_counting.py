"""Counts the elements that the arrays of a CMSIS-SVD file would make, before any is made: arrays in
arrays multiply, so a small file could ask for more than memory holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from npulab.registers.formats import svd_names
from npulab.registers.formats.svd_names import Device, TooMuch, View, dim_of, view_of
from npulab.registers.formats.tables import MOST_ROWS
from npulab.registers.formats.xml import Element

# the tags of the elements that an array repeats with an element, by the tag of that element
INSIDE = {
    "peripheral": ("register", "cluster"),
    "cluster": ("register", "cluster"),
    "register": ("field",),
}
SHOWN = 10**15  # an error text writes a larger count as "more than" this number


class Count(NamedTuple):
    """The number of elements, in which an array and each of its elements count, and the number of
    registers."""

    elements: int
    registers: int


NOTHING = Count(0, 0)


@dataclass(frozen=True)
class Counting:
    """The counts of a device. The elements inside an element of the file are counted once, and the
    count is multiplied by the length of its array."""

    device: Device
    known: dict[int, Count] = field(default_factory=dict)  # each count, by the element's ``id``

    def refuse(self, peripherals: Iterable[Element]) -> None:
        """Raise TooMuch for more elements or registers than allowed. The error names the innermost
        element that has too many, or the peripheral with which the sum becomes too large."""
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
        # nothing is counted of an element that contains itself; the reader refuses it
        self.known[id(element)] = NOTHING
        try:
            view = view_of(element, self.device)
            dim = dim_of(view)
        except TooMuch:
            raise
        except ValueError:  # the reader reports the element as lost
            return NOTHING
        elements = 1
        registers = int(element.tag == "register")
        for inner in _inside(view, element.tag):
            found = self._count(inner)
            elements += found.elements
            registers += found.registers
        copies = max(dim, 1)
        count = Count(dim + 1 + copies * (elements - 1), copies * registers)
        _refuse(f"{view.where}: {element.tag} {view.path}", count)
        self.known[id(element)] = count
        return count


def _refuse(where: str, count: Count) -> None:
    """Raise TooMuch for a count of more than MOST_STEPS elements or MOST_ROWS registers."""
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
    """Return the elements that are repeated with a peripheral, cluster or register."""
    tags = INSIDE.get(tag, ())
    if tag == "cluster":
        return view.every(*tags)
    groups = view.every("registers" if tag == "peripheral" else "fields")
    return [inner for group in groups for inner in group if inner.tag in tags]
