"""The values of all fields in the words of a map; a field is found by each of its names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from npulab.support.refuse import need

if TYPE_CHECKING:
    from npulab.registers.map import RegisterMap


class FieldValues(Mapping[str, Any]):
    """The values of all fields of a map, read-only.

    The keys are full names, ``block.register.field``, in the order of the map. A value is also
    found by each shorter name that only one field has. ``values | others`` gives a copy in which
    the values in ``others`` replace the values of the same fields. ``dict(values)`` gives a dict by
    full name.

    >>> from npulab.registers.map import RegisterMap
    >>> rows = [dict(block="A", offset=0, register="R", field="on", lsb=0, width=32)]
    >>> rows += [dict(block="A", offset=4, register="S", field=name, lsb=lsb, width=16)
    ...          for name, lsb in (("on", 0), ("size", 16))]
    >>> registers = RegisterMap(rows)
    >>> values = FieldValues(registers, registers.decode([1, 0x70000]))
    >>> dict(values), values["size"], values["R.on"]
    ({'A.R.on': 1, 'A.S.on': 0, 'A.S.size': 7}, 7, 1)
    """

    def __init__(self, registers: RegisterMap, values: Mapping[str, Any]) -> None:
        """``values`` is what ``registers.decode`` returns; its keys may be any names that the map
        knows."""
        self.registers = registers
        self._values: dict[str, Any] = {}
        for name, value in values.items():
            self._values[registers.full_name(name)] = value

    def __getitem__(self, name: str) -> Any:
        """Return the value of a field; raises LookupError for an unknown name, and for a name of
        several fields, which it lists."""
        if name in self._values:
            return self._values[name]
        return self._values[self.registers.full_name(name)]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a field, or ``default`` if no field has this name; raises LookupError
        for a name of several fields."""
        if name in self.registers or self.registers.named(name):
            return self[name]
        return default

    def __contains__(self, name: object) -> bool:
        """True if one field is known by this name; False for a name of several fields."""
        return name in self.registers

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __or__(self, others: Mapping[str, Any]) -> FieldValues:
        need("FieldValues |", others, Mapping, "are values by field's name")
        return FieldValues(self.registers, {**self._values, **others})

    def _ipython_key_completions_(self) -> list[str]:
        return self.registers._ipython_key_completions_()

    def __repr__(self) -> str:
        return f"FieldValues({self._values})"
