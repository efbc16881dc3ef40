"""Values of a source network: inputs, units and outputs, with the keys of their dictionaries.

Keys keep Apple's spelling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

from npulab.npus.kit import refuse_if

INDICES = ("KernelIndex", "BiasIndex", "ScaleIndex")
SHOWN = 8  # names in a refusal
NO_NAME = ("no value", "is a name")
Keys = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """A named dictionary of a network; ``keys`` has its keys and values, in the order of the
    file."""

    name: str
    keys: Keys = field(default_factory=dict)


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
        """The names of the inputs and units that the unit reads."""
        return _names(self.keys["Bottom"])

    @property
    def params(self) -> Keys:
        found: Keys = self.keys.get("Params", {})
        return found

    @property
    def scalars(self) -> Keys:
        """The keys in ``Params`` and in its ``BiasScaleGroupData``, which place weights and
        biases."""
        return {**self.params, **self.params.get("BiasScaleGroupData", {})}


@dataclass(frozen=True)
class Output(Part):
    """A tensor that goes out: ``Bottom``, ``OutputType``, strides in bytes, ..."""

    @property
    def bottom(self) -> str:
        return _names(self.keys["Bottom"])[0]


@dataclass(frozen=True)
class Network:
    """A source network: its inputs, units and outputs, in the order of the file.

    ``weights`` are the paths of weight files as written, None if the file has no list; only their
    last part is valid on another machine. ``other`` are all other keys, ``order`` is the order of
    all keys in the file.
    """

    name: str
    inputs: tuple[Input, ...]
    units: tuple[Unit, ...]
    outputs: tuple[Output, ...]
    weights: tuple[str, ...] | None = None
    other: Keys = field(default_factory=dict)
    order: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        _check_links(self)

    @cached_property
    def parts(self) -> dict[str, Part]:
        """All inputs, units and outputs by name."""
        return {part.name: part for part in (*self.inputs, *self.units, *self.outputs)}

    @cached_property
    def readers(self) -> dict[str, list[Unit | Output]]:
        """For each input and unit, by its name, the units and outputs that read it."""
        found: dict[str, list[Unit | Output]] = {}
        for part in (*self.inputs, *self.units):
            found[part.name] = []
        users: tuple[Unit | Output, ...] = (*self.units, *self.outputs)
        for user in users:
            for name in dict.fromkeys(_names(user.keys["Bottom"])):
                found[name].append(user)
        return found

    @cached_property
    def sorted_units(self) -> tuple[Unit, ...]:
        """The units, each after the units that it reads.

        Raises ValueError if units read each other in a loop.
        """
        units = {unit.name: unit for unit in self.units}
        # All names are added first, so that independent units keep the order of the file.
        sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(units, ()))
        for name, unit in units.items():
            sorter.add(name, *(bottom for bottom in unit.bottoms if bottom in units))
        try:
            return tuple(units[name] for name in sorter.static_order())
        except CycleError as error:
            stuck = set(error.args[1])
            raise ValueError(
                f"{self.name}.{min(stuck)}.Bottom: got units that wait for one another "
                f"({_some(stuck)}), allowed are units that follow from the inputs"
            ) from None


def _names(bottom: Any) -> tuple[str, ...]:
    if isinstance(bottom, str):
        return (bottom,)
    return tuple(bottom)


def _check_links(network: Network) -> None:
    """Raise ValueError if the parts of a network do not go together.

    That is: a repeated name, a missing ``Type`` or ``Bottom``, a ``Bottom`` that names no input or
    unit, an output with several, an index outside of ``Weights``, units that wait for one another.
    """
    name = network.name
    parts = [*network.inputs, *network.units, *network.outputs]
    twice = repeated(part.name for part in parts)
    if twice is not None:
        raise ValueError(
            f"{name}: {twice}: got the name more than once in Inputs, Units and Outputs, "
            "allowed is once"
        )
    known = {part.name for part in (*network.inputs, *network.units)}
    for part in (*network.units, *network.outputs):
        where = f"{name}.{part.name}"
        refuse_if("Type" not in part.keys and isinstance(part, Unit), f"{where}.Type", *NO_NAME)
        refuse_if("Bottom" not in part.keys, f"{where}.Bottom", *NO_NAME)
        bottoms = _names(part.keys["Bottom"])
        for bottom in bottoms:
            if bottom not in known:
                raise ValueError(
                    f"{where}.Bottom: got {bottom!r:.60}, allowed is an input or "
                    f"a unit: {_some(known)}"
                )
        if isinstance(part, Output) and len(bottoms) != 1:
            raise ValueError(f"{where}.Bottom: got {len(bottoms)} names, allowed is one")
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
    """Return the first name that occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    if len(listed) > SHOWN:
        listed[SHOWN:] = ["..."]
    return ", ".join(listed)
