"""A source network as values: inputs, units and outputs with all keys of their dictionaries, in
Apple's spelling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

INDICES = ("KernelIndex", "BiasIndex", "ScaleIndex")
SHOWN = 8


@dataclass(frozen=True)
class Part:
    """A dictionary of a network by its name: ``keys`` are all of its keys, in the order of the
    file."""

    name: str
    keys: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Input(Part):
    """A tensor that comes in: ``InputWidth``, ``InputType``, strides in bytes, ..."""


@dataclass(frozen=True)
class Unit(Part):
    """An operation: ``Type``, ``Bottom``, ``Params``, ..."""

    @property
    def type(self) -> str:
        return str(self.keys["Type"])

    @property
    def bottoms(self) -> tuple[str, ...]:
        """The names of what it reads: inputs and other units."""
        return _names(self.keys["Bottom"])

    @property
    def params(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.keys.get("Params", {})
        return found

    @property
    def scalars(self) -> Mapping[str, Any]:
        """Where weights and biases lie: ``Params`` with what its ``BiasScaleGroupData`` holds."""
        return {**self.params, **self.params.get("BiasScaleGroupData", {})}


@dataclass(frozen=True)
class Output(Part):
    """A tensor that goes out: ``Bottom``, ``OutputType``, strides in bytes, ..."""

    @property
    def bottom(self) -> str:
        return _names(self.keys["Bottom"])[0]


@dataclass(frozen=True)
class Network:
    """Inputs, units and outputs in the order that the file lists them.

    ``weights`` are paths as written, of which only the last part says anything on another machine;
    None where the file has no such list.  ``other`` are keys that are none of these, ``order`` that
    of all keys in the file.
    """

    name: str
    inputs: tuple[Input, ...]
    units: tuple[Unit, ...]
    outputs: tuple[Output, ...]
    weights: tuple[str, ...] | None = None
    other: Mapping[str, Any] = field(default_factory=dict)
    order: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        _check_links(self)

    @cached_property
    def parts(self) -> dict[str, Part]:
        """Inputs, units and outputs by name."""
        return {one.name: one for one in (*self.inputs, *self.units, *self.outputs)}

    @cached_property
    def readers(self) -> dict[str, list[Unit | Output]]:
        """By the name of each input and unit, the units and outputs that read it."""
        found: dict[str, list[Unit | Output]] = {
            one.name: [] for one in (*self.inputs, *self.units)
        }
        users: tuple[Unit | Output, ...] = (*self.units, *self.outputs)
        for one in users:
            for name in dict.fromkeys(_names(one.keys["Bottom"])):
                found[name].append(one)
        return found

    @cached_property
    def sorted_units(self) -> tuple[Unit, ...]:
        """The units, each behind those that it reads; raises ValueError where some wait for one
        another."""
        units = {one.name: one for one in self.units}
        sorter: TopologicalSorter[str] = TopologicalSorter(
            dict.fromkeys(units, ())
        )  # in the order of the file
        for name, one in units.items():
            sorter.add(name, *(bottom for bottom in one.bottoms if bottom in units))
        try:
            return tuple(units[name] for name in sorter.static_order())
        except CycleError as error:
            stuck = set(error.args[1])
            raise ValueError(
                f"{self.name}.{min(stuck)}.Bottom: got units that wait for one another "
                f"({_some(stuck)}), "
                "allowed are units that follow from the inputs"
            ) from None


def _names(bottom: Any) -> tuple[str, ...]:
    if isinstance(bottom, str):
        return (bottom,)
    return tuple(bottom)


def _check_links(network: Network) -> None:
    """Refuse names and indices that lead nowhere, and units that wait for one another."""
    name = network.name
    parts = [*network.inputs, *network.units, *network.outputs]
    twice = repeated(one.name for one in parts)
    if twice is not None:
        raise ValueError(
            f"{name}: {twice}: got more than one place of Inputs, Units and Outputs, allowed is one"
        )
    known = {one.name for one in (*network.inputs, *network.units)}
    for one in (*network.units, *network.outputs):
        needed = ("Type", "Bottom") if isinstance(one, Unit) else ("Bottom",)
        missing = [key for key in needed if key not in one.keys]
        if missing:
            raise ValueError(f"{name}.{one.name}.{missing[0]}: got no value, allowed is a name")
        for bottom in _names(one.keys["Bottom"]):
            if bottom not in known:
                raise ValueError(
                    f"{name}.{one.name}.Bottom: got {bottom!r:.60}, allowed is an input or "
                    f"a unit: {_some(known)}"
                )
        if isinstance(one, Output) and len(_names(one.keys["Bottom"])) != 1:
            raise ValueError(
                f"{name}.{one.name}.Bottom: got {len(_names(one.keys['Bottom']))} names, allowed "
                "is one"
            )
    count = len(network.weights or ())
    for unit in network.units:
        for key in INDICES:
            index = unit.scalars.get(key)
            if index is not None and index >= count:
                raise ValueError(
                    f"{name}.{unit.name}.{key}: got {index}, allowed is one of {count} Weights"
                )
    assert len(network.sorted_units) == len(network.units)


def repeated(names: Iterable[str]) -> str | None:
    """The first name that is there twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:SHOWN]) + (", ..." if len(listed) > SHOWN else "")
