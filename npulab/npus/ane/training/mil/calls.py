"""An operation with what is known of its arguments, for the shapes and the values alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from npulab.npus.ane.training.mil.values import DTYPES, File, Operation, Type, Value
from npulab.support.refuse import refuse_if

Shape = tuple[int, ...]
MOST_NUMBERS = 2 ** 12  # of an argument that says axes or sizes
KINDS = {"fiu": "numbers", "f": "floats"}  # letters of DTYPES


class Known(NamedTuple):
    """What a name stands for: its type, the constant if it is one and not in a file, and the name
    or value that an argument has it from."""

    type: Type
    constant: Any = None
    source: str | Value | None = None

    @property
    def shape(self) -> Shape:
        return tuple(size for size in self.type.shape if size is not None)

    @property
    def dtype(self) -> str:
        return self.type.dtype


@dataclass(frozen=True)
class Call:
    """An operation and its arguments by name, each ``Known`` or a tuple of them."""

    operation: Operation
    given: dict[str, Any]

    def refuse(self, what: str, got: object, allowed: str) -> NoReturn:
        raise ValueError(f"mil: {self.operation}: {what}: got {got}, allowed is {allowed}")

    def __getitem__(self, name: str) -> Known:
        """A tensor or number among the arguments."""
        argument = self.given.get(name)
        if not isinstance(argument, Known):
            self.refuse(name, "nothing" if argument is None else "several", "one tensor or number")
        return argument

    def has(self, name: str) -> bool:
        return name in self.given

    def constant(self, name: str, default: Any = None) -> Any:
        """The constant of an argument: a number, bool or string, or the tuple of a tensor's
        elements."""
        if name not in self.given and default is not None:
            return default
        constant = self[name].constant
        if constant is None:
            self.refuse(name, "what is not known before the program runs", "a constant in the text")
        return constant

    def whole(self, name: str, default: int | None = None) -> int:
        constant = self.constant(name, default)
        if isinstance(constant, tuple) and len(constant) == 1:
            constant = constant[0]
        return self._of(int, name, constant, "a whole number")

    def number(self, name: str, default: float) -> float:
        return self._of(int | float, name, self.constant(name, default), "a number")

    def flag(self, name: str, default: bool) -> bool:
        argument = self.given.get(name)
        constant = argument.constant if isinstance(argument, Known) else default
        return self._of(bool, name, constant, "true or false")

    def _of(self, types: Any, name: str, constant: Any, allowed: str) -> Any:
        """A constant of the types; a bool is no number."""
        if not isinstance(constant, types) or isinstance(constant, bool) != (types is bool):
            self.refuse(name, _short(constant), allowed)
        return constant

    def wholes(self, name: str, default: Sequence[int] | None = None,
               count: int | None = None) -> tuple[int, ...]:
        constant = self.constant(name, None if default is None else tuple(default))
        numbers = constant if isinstance(constant, tuple) else (constant,)
        if len(numbers) > MOST_NUMBERS:
            self.refuse(name, f"{len(numbers)} elements", f"up to {MOST_NUMBERS}")
        if any(isinstance(number, bool) or not isinstance(number, int) for number in numbers) \
                or count not in (None, len(numbers)):
            self.refuse(name, _short(numbers), f"{'' if count is None else f'{count} '}whole numbers")
        return numbers

    def word(self, name: str, allowed: Sequence[str], default: str | None = None) -> str:
        word = self.constant(name, default)
        if word not in allowed:
            self.refuse(name, repr(word), f"one of {', '.join(allowed)}")
        return str(word)

    def axis(self, name: str, rank: int, default: int | None = None) -> int:
        """An axis, counted from the end where it is below 0."""
        return self._axes(name, [self.whole(name, default)], rank)[0]

    def axes(self, name: str, rank: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
        axes = self._axes(name, self.wholes(name, default), rank)
        if len(set(axes)) < len(axes):
            self.refuse(name, list(axes), "each axis once")
        return axes

    def _axes(self, name: str, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        for axis in axes:
            if not -rank <= axis < rank:
                self.refuse(name, axis, f"{-rank} to {rank - 1}")
        return tuple(axis % rank for axis in axes)

    def dtype(self, name: str, kinds: str = "fiu") -> str:
        """The element type of an argument, which is one of numbers, or of floats (kinds "f")."""
        if DTYPES[self[name].dtype][0] not in kinds:
            self.refuse(name, self[name].type, KINDS[kinds])
        return self[name].dtype

    def same_type(self, *names: str) -> str:
        """The element type that some arguments share."""
        if len({self[name].dtype for name in names}) > 1:
            types = ", ".join(str(self[name].type) for name in names)
            self.refuse(" and ".join(names), types, "one element type")
        return self[names[0]].dtype

    def fits(self, name: str, shape: Shape) -> None:
        """Refuse an argument that does not broadcast to a shape."""
        if broadcast(self[name].shape, shape) != shape:
            self.refuse(name, list(self[name].shape), f"what broadcasts to {list(shape)}")


Results = list[tuple[str, Shape]]
Infer = Callable[[Call], Results]
Compute = Callable[[Call, dict[str, Any]], Any]


class Rule(NamedTuple):
    """What an operation gives: the element types and shapes, and the values ``(call, arrays by
    argument)``, one array or a list of them."""

    infer: Infer
    compute: Compute


def broadcast(*shapes: Shape) -> Shape | None:
    """The shape that shapes broadcast to, or None if they do not."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def known(value: Value) -> Known:
    """A constant's type, and its data where it is in the text; a bare literal is a number of the
    usual type."""
    if isinstance(value.type, Type):
        return Known(value.type, None if isinstance(value.data, File) else value.data, value)
    usual = {bool: "bool", int: "int32", float: "fp32", str: "string"}.get(type(value.data))
    if value.type is not None or usual is None:
        raise ValueError(f"mil: constant: got {value.type or 'brackets'}, allowed is a tensor, number, bool or string")
    if usual == "int32" and not -2 ** 31 <= value.data < 2 ** 31:
        raise ValueError(f"mil: constant: got {value.data!s:.40}, allowed for a bare number are those of int32")
    return Known(Type(usual, plain=True), value.data, value)


def numpy_type(dtype: str) -> np.dtype[Any]:
    """The numpy type that holds elements; raises LookupError for one that numpy does not have."""
    refuse_if(dtype in ("bf16", "string"), "dtype", dtype, "is one that numpy has", LookupError)
    kind, bits = DTYPES[dtype]
    return np.dtype("bool" if kind == "b" else f"{kind}{max(bits // 8, 1)}")


def _short(constant: object) -> str:
    text = repr(list(constant) if isinstance(constant, tuple) else constant)
    return text if len(text) <= 60 else f"{text[:57]}..."
