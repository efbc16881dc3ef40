"""What a MIL program is made of: functions, operations, types and constants, as values."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from npulab.npus.kit import one_of, read_table, refuse_if

NAME = re.compile(r"(?!(?:true|false|inf|nan)\Z)[A-Za-z_][A-Za-z0-9_]*")
# letter of the kind (float, signed, unsigned, bool, string) and bits
DTYPES = {
    row["name"]: (row["kind"], int(row["bits"]))
    for row in read_table(Path(__file__).parents[1] / "types.csv")
    if row["kind"]
}
TARGET = "ios18"
MOST_AXES = 32


@dataclass(frozen=True)
class Type:
    """An element type and a shape, None where a size is not known; ``plain`` is ``fp16`` rather
    than ``tensor<fp16, []>``, which programs of version 1.0 write.

    Raises ValueError for a size below 0 and a plain type with a shape, LookupError for an element
    type that is not known.

    >>> str(Type("fp16", (1, 768, 1, 512))), str(Type("int32", plain=True))
    ('tensor<fp16, [1, 768, 1, 512]>', 'int32')
    """

    dtype: str
    shape: tuple[int | None, ...] = ()
    plain: bool = False

    def __post_init__(self) -> None:
        one_of("dtype", self.dtype, DTYPES)
        sizes = tuple(int(size) if isinstance(size, np.integer) else size for size in self.shape)
        if any(
            size is not None and (not isinstance(size, int) or isinstance(size, bool))
            for size in sizes
        ):
            raise ValueError(
                f"shape: got {sizes}, allowed are whole numbers, and None for a size that is not "
                "known"
            )
        object.__setattr__(self, "shape", sizes)
        if (self.plain and self.shape) or any(size is not None and size < 0 for size in self.shape):
            raise ValueError(
                f"shape: got {list(self.shape)}, allowed are sizes of 0 or more"
                f"{', of a plain type none' if self.plain else ''}"
            )
        if len(self.shape) > MOST_AXES:
            raise ValueError(f"shape: got {len(self.shape)} axes, allowed are up to {MOST_AXES}")

    @property
    def elements(self) -> int | None:
        sizes = [size for size in self.shape if size is not None]
        return math.prod(sizes) if len(sizes) == len(self.shape) else None

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether the shape is this one, as far as that is known."""
        return len(shape) == len(self.shape) and all(
            size in (None, have) for size, have in zip(self.shape, shape, strict=True)
        )

    def spelled(self, comma: str = ", ") -> str:
        sizes = comma.join("?" if size is None else str(size) for size in self.shape)
        return self.dtype if self.plain else f"tensor<{self.dtype}, [{sizes}]>"

    def __str__(self) -> str:
        return self.spelled()


@dataclass(frozen=True)
class Compound:
    """A type made of others: ``dict<string, string>``, ``tuple<...>``, ``list<...>``,
    ``state<...>``."""

    kind: str
    of: tuple[Type | Compound, ...]
    KINDS: ClassVar = ("dict", "list", "tuple", "state")

    def __post_init__(self) -> None:
        refuse_if(
            self.kind not in self.KINDS or not self.of,
            "type",
            f"{self.kind!r} of {len(self.of)}",
            f"is one of {', '.join(self.KINDS)} of 1 or more",
        )

    def spelled(self, comma: str = ", ") -> str:
        return f"{self.kind}<{', '.join(part.spelled(comma) for part in self.of)}>"

    def __str__(self) -> str:
        return self.spelled()


@dataclass(frozen=True)
class File:
    """BLOBFILE: a constant whose data is in a weight file, at the record that starts at byte
    ``offset``."""

    path: str
    offset: int
    plain: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.offset < 2**64:
            raise ValueError(f"BLOBFILE offset: got {self.offset}, allowed is 0 to 2**64 - 1")


@dataclass(frozen=True)
class Group:
    """Items in brackets inside of a compound constant; ``bracket`` is the opening one."""

    bracket: str
    items: tuple[Any, ...]


@dataclass(frozen=True)
class Value:
    """A constant: a number, bool or string, of a tensor the tuple of its elements (the last axis
    fastest), or a File.

    An array or list gives its elements.  Without a type it is a bare literal.  Numbers of a float
    type are kept as they are written, not rounded to it. Raises ValueError for elements that are
    not as many as the shape says, or that the type cannot hold.

    >>> Value(Type("int32", (2,)), (1, 1)).data
    (1, 1)
    """

    type: Type | Compound | None
    data: Any

    def __post_init__(self) -> None:
        if isinstance(self.type, Type) and not isinstance(self.data, File):
            object.__setattr__(self, "data", _checked(self.type, self.data))

    @property
    def shape(self) -> tuple[int | None, ...]:
        return self.type.shape if isinstance(self.type, Type) else ()


Argument = str | Value | tuple[str | Value, ...]


@dataclass(frozen=True)
class Operation:
    """An operation: outputs (name, type) or none, arguments by name (a name, a constant, or
    several), attributes.

    ``line`` is where it was read, and no part of what it is.
    """

    op: str
    outputs: tuple[tuple[str, Type], ...]
    arguments: tuple[tuple[str, Argument], ...] = ()
    attributes: tuple[tuple[str, Value], ...] = ()
    line: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        _refuse_names(
            [
                self.op,
                *(name for name, _ in self.outputs),
                *(name for name, _ in self.arguments),
                *(name for name, _ in self.attributes),
                *self.names,
            ]
        )

    @property
    def names(self) -> list[str]:
        """Every name that the arguments use."""
        groups = [
            argument if isinstance(argument, tuple) else (argument,)
            for _, argument in self.arguments
        ]
        return [item for group in groups for item in group if isinstance(item, str)]

    @property
    def value(self) -> Value | None:
        """What a const is."""
        return dict(self.attributes).get("val") if self.op == "const" else None

    def __str__(self) -> str:
        name = " ".join([self.op, *(name for name, _ in self.outputs[:1])])
        return f"line {self.line}, {name}" if self.line else name


@dataclass(frozen=True)
class Function:
    """A function: inputs (name, type), operations in order, names of the outputs; ``target`` is
    what it is compiled for."""

    inputs: tuple[tuple[str, Type | Compound], ...]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]
    name: str = "main"
    target: str = TARGET
    attributes: tuple[tuple[str, Value], ...] = ()
    line: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        _refuse_names(
            [
                self.name,
                self.target,
                *(name for name, _ in self.inputs),
                *self.outputs,
                *(name for name, _ in self.attributes),
            ]
        )


@dataclass(frozen=True)
class Program:
    """A program of a MIL ``version``: functions, and attributes such as ``buildInfo``.

    Raises ValueError for a version that is not numbers with dots, and two functions of a name.
    """

    functions: tuple[Function, ...]
    version: str = "1.3"
    attributes: tuple[tuple[str, Value], ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){0,3}", self.version):
            raise ValueError(
                f"version: got {self.version!r}, allowed are numbers with dots, as 1.3"
            )
        names = [function.name for function in self.functions]
        refuse_if(len(set(names)) < len(names), "functions", ", ".join(names), "is each name once")
        _refuse_names([name for name, _ in self.attributes])

    def __repr__(self) -> str:
        """In a line; ``write`` gives the text."""
        functions = [f"{each.name} of {len(each.operations)} operations" for each in self.functions]
        return f"Program({self.version}: {', '.join(functions) or 'no functions'})"

    @property
    def build_info(self) -> dict[str, str]:
        """The pairs of ``buildInfo``; empty where it has none or other than pairs of strings."""
        value = dict(self.attributes).get("buildInfo")
        groups = value.data if value and isinstance(value.data, tuple) else ()
        pairs = [
            pair.items
            for group in groups
            if isinstance(group, Group)
            for pair in group.items
            if isinstance(pair, Group)
        ]
        return {pair[0]: pair[1] for pair in pairs if [*map(type, pair)] == [str, str]}

    def __getitem__(self, name: str) -> Function:
        """A function; raises LookupError with the known names."""
        named = {function.name: function for function in self.functions}
        return named[one_of("function", name, named)]


def _refuse_names(names: list[str]) -> None:
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(
                f"name: got {str(name)[:40]!r}, allowed are letters, digits and _, a digit not "
                "first, "
                "and none of true, false, inf, nan"
            )


def _checked(kind: Type, data: Any) -> Any:
    """The data as it is kept: floats of a float type, whole numbers of an integer type."""
    if isinstance(data, np.ndarray | np.generic):
        if data.ndim:
            data = tuple(data.ravel().tolist())
        else:
            data = data.item()
    if isinstance(data, list):
        data = tuple(data)
    several = isinstance(data, tuple)
    if (kind.plain or kind.elements != len(data)) if several else kind.shape:
        raise ValueError(
            f"value: got {f'{len(data)} elements' if several else 'one element'}, allowed are "
            "those "
            f"of {kind}"
        )
    return (
        tuple(_element(kind.dtype, each) for each in data)
        if several
        else _element(kind.dtype, data)
    )


def _element(dtype: str, element: Any) -> Any:
    letter, bits = DTYPES[dtype]
    if isinstance(element, np.generic):
        element = element.item()
    number = isinstance(element, int | float) and not isinstance(element, bool)
    if letter == "f" and number:
        try:
            return math.nan if element != element else float(element)
        except OverflowError:
            raise ValueError(
                f"value: got {str(element)[:20]}..., allowed is a number of {dtype}"
            ) from None
    if letter in "iu" and number and isinstance(element, int):
        low = 0
        if letter == "i":
            low = -(2 ** (bits - 1))
        if low <= element < low + 2**bits:
            return element
        raise ValueError(
            f"value: got {element}, allowed for {dtype} is {low} to {low + 2**bits - 1}"
        )
    if isinstance(element, {"b": bool, "s": str}.get(letter, ())):
        return element
    raise ValueError(
        f"value: got {str(element)[:40]!r} ({type(element).__name__}), allowed is a {dtype}"
    )
