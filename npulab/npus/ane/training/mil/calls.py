"""An operation with what is known of its arguments, for the shapes and the values alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from npulab.npus.ane.training.mil.values import DTYPES, File, Operation, Type, Value

Shape = tuple[int, ...]
MOST_NUMBERS = 2 ** 12  # of an argument that says axes or sizes
NUMPY = {"fp16": "float16", "fp32": "float32", "fp64": "float64", "bool": "bool", "int4": "int8", "uint1": "uint8",
         "uint2": "uint8", "uint3": "uint8", "uint4": "uint8", "uint6": "uint8"}


class Known(NamedTuple):
    """What a name stands for: its type, and the constant where it is one and not in a file."""

    type: Type
    constant: Any = None

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
        found = self.given.get(name)
        if not isinstance(found, Known):
            self.refuse(name, "nothing" if found is None else "several", "one tensor or number")
        return found

    def has(self, name: str) -> bool:
        return name in self.given

    def several(self, name: str) -> tuple[Known, ...]:
        found = self.given.get(name)
        if not isinstance(found, tuple) or isinstance(found, Known) or not found:
            self.refuse(name, "nothing" if found is None else "one" if found else "none", "one tensor or more in ( )")
        return found

    def constant(self, name: str, default: Any = None) -> Any:
        """The constant of an argument: a number, bool or string, or the tuple of a tensor's
        elements."""
        if name not in self.given and default is not None:
            return default
        found = self[name].constant
        if found is None:
            self.refuse(name, "what is not known before the program runs", "a constant in the text")
        return found

    def whole(self, name: str, default: int | None = None) -> int:
        found = self.constant(name, default)
        if isinstance(found, tuple) and len(found) == 1:
            found = found[0]
        if not isinstance(found, int) or isinstance(found, bool):
            self.refuse(name, _short(found), "a whole number")
        return found

    def number(self, name: str, default: float) -> float:
        found = self.constant(name, default)
        if not isinstance(found, int | float) or isinstance(found, bool):
            self.refuse(name, _short(found), "a number")
        return found

    def wholes(self, name: str, default: Sequence[int] | None = None, count: int | None = None) -> tuple[int, ...]:
        found = self.constant(name, None if default is None else tuple(default))
        found = found if isinstance(found, tuple) else (found,)
        if len(found) > MOST_NUMBERS:
            self.refuse(name, f"{len(found)} elements", f"up to {MOST_NUMBERS}")
        if any(not isinstance(one, int) or isinstance(one, bool) for one in found) or count not in (None, len(found)):
            self.refuse(name, _short(found), f"{'' if count is None else f'{count} '}whole numbers")
        return found

    def flag(self, name: str, default: bool) -> bool:
        found = self.given[name].constant if name in self.given and isinstance(self.given[name], Known) else default
        if not isinstance(found, bool):
            self.refuse(name, _short(found), "true or false")
        return found

    def word(self, name: str, allowed: Sequence[str], default: str | None = None) -> str:
        found = self.constant(name, default)
        if found not in allowed:
            self.refuse(name, repr(found), f"one of {', '.join(allowed)}")
        return str(found)

    def axis(self, name: str, rank: int, default: int | None = None) -> int:
        """An axis, counted from the end where it is below 0."""
        return self.axes_of(name, [self.whole(name, default)], rank)[0]

    def axes(self, name: str, rank: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
        found = self.axes_of(name, self.wholes(name, default), rank)
        if len(set(found)) < len(found):
            self.refuse(name, list(found), "each axis once")
        return found

    def axes_of(self, name: str, found: Sequence[int], rank: int) -> tuple[int, ...]:
        for one in found:
            if not -rank <= one < rank:
                self.refuse(name, one, f"{-rank} to {rank - 1}")
        return tuple(one % rank for one in found)

    def number_type(self, name: str) -> str:
        if DTYPES[self[name].dtype][0] not in "fiu":
            self.refuse(name, self[name].type, "numbers")
        return self[name].dtype

    def float_type(self, name: str) -> str:
        if DTYPES[self[name].dtype][0] != "f":
            self.refuse(name, self[name].type, "floats")
        return self[name].dtype

    def same_type(self, *names: str) -> str:
        """The element type that some arguments share."""
        dtypes = {self[name].dtype for name in names}
        if len(dtypes) > 1:
            self.refuse(" and ".join(names), ", ".join(str(self[name].type) for name in names), "one element type")
        return dtypes.pop()

    def fits(self, name: str, shape: Shape) -> None:
        """Refuse an argument that does not broadcast to a shape."""
        try:
            fits = np.broadcast_shapes(self[name].shape, shape) == shape
        except ValueError:
            fits = False
        if not fits:
            self.refuse(name, list(self[name].shape), f"what broadcasts to {list(shape)}")

    def broadcast(self, *names: str) -> Shape:
        try:
            return np.broadcast_shapes(*(self[name].shape for name in names))
        except ValueError:
            self.refuse(" and ".join(names), ", ".join(str(list(self[name].shape)) for name in names),
                        "shapes that broadcast: sizes alike or 1, from the last axis on")


Results = list[tuple[str, Shape]]
Infer = Callable[[Call], Results]
Compute = Callable[[Call, dict[str, Any]], Any]


class Rule(NamedTuple):
    """What an operation gives: the element types and shapes, and the values ``(call, arrays by
    argument)``, one array or a list of them."""

    infer: Infer
    compute: Compute


def known(value: Value) -> Known:
    """A constant's type, and its data where it is in the text; a bare literal is a number of the
    usual type."""
    if isinstance(value.type, Type):
        return Known(value.type, None if isinstance(value.data, File) else value.data)
    usual = {bool: "bool", int: "int32", float: "fp32", str: "string"}.get(type(value.data))
    if value.type is not None or usual is None:
        raise ValueError(f"mil: constant: got {value.type or 'brackets'}, allowed is a tensor, number, bool or string")
    if usual == "int32" and not -2 ** 31 <= value.data < 2 ** 31:
        raise ValueError(f"mil: constant: got {value.data!s:.40}, allowed for a bare number are those of int32")
    return Known(Type(usual, plain=True), value.data)


def numpy_type(dtype: str) -> np.dtype[Any]:
    """The numpy type that holds elements; raises LookupError for one that numpy does not have."""
    name = NUMPY.get(dtype, dtype)
    if name not in np.sctypeDict or dtype == "string":
        raise LookupError(f"dtype: got {dtype}, allowed is one that numpy has")
    return np.dtype(name)


def _short(found: object) -> str:
    text = repr(list(found)) if isinstance(found, tuple) else repr(found)
    return text if len(text) <= 60 else f"{text[:57]}..."
