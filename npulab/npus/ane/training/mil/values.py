"""Values for the parts of a MIL program: the program, functions, operations, types, constants."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from npulab.npus.kit import one_of, read_table, refuse_if

NAME = re.compile(r"(?!(?:true|false|inf|nan)\Z)[A-Za-z_][A-Za-z0-9_]*")
# Element types by name: the letter of their kind (f float, i signed, u unsigned, b bool, s string)
# and the bits of an element.
DTYPES = {
    row["name"]: (row["kind"], int(row["bits"]))
    for row in read_table(Path(__file__).parents[1] / "types.csv")
    if row["kind"]
}
TARGET = "ios18"
MOST_AXES = 32


@dataclass(frozen=True)
class Type:
    """The type of a tensor or number: element type and shape. A size is None if it is not known.

    ``plain`` is how the text writes the type of a single element: ``fp16`` if true, else
    ``tensor<fp16, []>``, as in programs of version 1.0. A size is a whole number of 0 or more, and
    a plain type has no sizes; anything else raises ValueError. An unknown element type raises
    LookupError.

    >>> str(Type("fp16", (1, 768, 1, 512))), str(Type("int32", plain=True))
    ('tensor<fp16, [1, 768, 1, 512]>', 'int32')
    """

    dtype: str
    shape: tuple[int | None, ...] = ()
    plain: bool = False

    def __post_init__(self) -> None:
        one_of("dtype", self.dtype, DTYPES)
        sizes = []
        for size in self.shape:
            if isinstance(size, np.integer):
                size = int(size)
            # isinstance would accept a bool, because bool is a subclass of int.
            if size is not None and type(size) is not int:
                raise ValueError(
                    f"shape: got {self.shape}, allowed are whole numbers, and None for a size that "
                    "is not known"
                )
            sizes.append(size)
        object.__setattr__(self, "shape", tuple(sizes))
        if self.plain and sizes:
            raise ValueError(
                f"shape: got {sizes}, allowed for a plain type are no sizes (plain=False has sizes)"
            )
        if min(self.sizes, default=0) < 0:
            raise ValueError(f"shape: got {sizes}, allowed are sizes of 0 or more")
        if len(sizes) > MOST_AXES:
            raise ValueError(f"shape: got {len(sizes)} axes, allowed are up to {MOST_AXES}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape with 0 in place of each size that is not known."""
        return tuple(size or 0 for size in self.shape)

    @property
    def elements(self) -> int | None:
        if None in self.shape:
            return None
        return math.prod(self.sizes)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return true if a shape has as many axes as the type, and each size that the type
        states."""
        if len(shape) != len(self.shape):
            return False
        return all(size in (None, have) for size, have in zip(self.shape, shape, strict=True))

    def spelled(self, comma: str = ", ") -> str:
        if self.plain:
            return self.dtype
        sizes = comma.join(map(str, self.shape)).replace("None", "?")
        return f"tensor<{self.dtype}, [{sizes}]>"

    def __str__(self) -> str:
        return self.spelled()


@dataclass(frozen=True)
class Compound:
    """A type made of the types in ``of``, such as ``dict<string, string>``.

    ``kind`` is ``dict``, ``list``, ``tuple`` or ``state``.
    """

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
        parts = [part.spelled(comma) for part in self.of]
        return f"{self.kind}<{', '.join(parts)}>"

    def __str__(self) -> str:
        return self.spelled()


@dataclass(frozen=True)
class File:
    """The place of a constant's data in a weight file (``BLOBFILE`` in the text).

    The data's record starts at byte ``offset`` of the file. ``plain`` says how the text writes the
    types of path and offset: ``string`` if true, else ``tensor<string, []>``.
    """

    path: str
    offset: int
    plain: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.offset < 2**64:
            raise ValueError(f"BLOBFILE offset: got {self.offset}, allowed is 0 to 2**64 - 1")


@dataclass(frozen=True)
class Group:
    """Items in brackets, as ``{"key", "text"}`` in a dict; ``bracket`` is the opening bracket."""

    bracket: str
    items: tuple[Any, ...]


@dataclass(frozen=True)
class Value:
    """A constant of a program, with its type; a literal without a stated type has type None.

    ``data`` is a number, bool or string, the tuple of a tensor's elements (last axis fastest), or a
    ``File``; an array or list becomes a tuple. Floats are not rounded to the type. Raises
    ValueError for a number of elements that contradicts the shape, and for elements that the type
    cannot hold.

    >>> Value(Type("int32", (2,)), (1, 1)).data
    (1, 1)
    """

    type: Type | Compound | None
    data: Any

    def __post_init__(self) -> None:
        if isinstance(self.type, Type) and not isinstance(self.data, File):
            object.__setattr__(self, "data", _checked(self.type, self.data))


Argument = str | Value | tuple[str | Value, ...]
Attributes = tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class Operation:
    """An operation: the name ``op``, outputs as (name, type), arguments and attributes.

    An argument is (name, operand): the name of a value, a constant, or a tuple of names and
    constants. ``line`` is the operation's line in the text, 0 without a text; equality ignores it.
    """

    op: str
    outputs: tuple[tuple[str, Type], ...]
    arguments: tuple[tuple[str, Argument], ...] = ()
    attributes: Attributes = ()
    line: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        pairs = [*self.outputs, *self.arguments, *self.attributes]
        _refuse_names([self.op, *(name for name, _ in pairs), *self.names])

    @property
    def names(self) -> list[str]:
        """The names of the values that the arguments refer to, in order."""
        names = []
        for _, argument in self.arguments:
            if isinstance(argument, str):
                names.append(argument)
            elif isinstance(argument, tuple):
                names += [item for item in argument if isinstance(item, str)]
        return names

    @property
    def value(self) -> Value | None:
        """The constant of an operation ``const``, None for any other operation."""
        if self.op != "const":
            return None
        return dict(self.attributes).get("val")

    def __str__(self) -> str:
        text = self.op
        if self.outputs:
            text += f" {self.outputs[0][0]}"
        if self.line:
            return f"line {self.line}, {text}"
        return text


@dataclass(frozen=True)
class Function:
    """A function: inputs as (name, type), operations in order, and the names of its outputs.

    ``target`` is the system that the function is compiled for, such as ``ios18``. ``line`` is its
    line in the text, 0 without a text.
    """

    inputs: tuple[tuple[str, Type | Compound], ...]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]
    name: str = "main"
    target: str = TARGET
    attributes: Attributes = ()
    line: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        pairs = [*self.inputs, *self.attributes]
        _refuse_names([self.name, self.target, *self.outputs, *(name for name, _ in pairs)])


@dataclass(frozen=True)
class Program:
    """A program of a MIL ``version``: functions, and attributes such as ``buildInfo``.

    Raises ValueError for a version that is not of numbers and dots, and for two functions with the
    same name.
    """

    functions: tuple[Function, ...]
    version: str = "1.3"
    attributes: Attributes = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){0,3}", self.version):
            raise ValueError(
                f"version: got {self.version!r}, allowed are numbers with dots, as 1.3"
            )
        names = [function.name for function in self.functions]
        refuse_if(len(set(names)) < len(names), "functions", ", ".join(names), "is each name once")
        _refuse_names([name for name, _ in self.attributes])

    def __repr__(self) -> str:
        """One line that names the functions; ``mil.write`` returns the whole text."""
        texts = [f"{part.name} of {len(part.operations)} operations" for part in self.functions]
        return f"Program({self.version}: {', '.join(texts) or 'no functions'})"

    @property
    def build_info(self) -> dict[str, str]:
        """The attribute ``buildInfo`` as a dictionary of strings, empty if the program has none.

        Pairs that are not of two strings are left out.
        """
        value = dict(self.attributes).get("buildInfo")
        if value is None or not isinstance(value.data, tuple):
            return {}
        pairs = {}
        for group in value.data:
            if isinstance(group, Group):
                for pair in group.items:
                    if isinstance(pair, Group) and [*map(type, pair.items)] == [str, str]:
                        key, text = pair.items
                        pairs[key] = text
        return pairs

    def __getitem__(self, name: str) -> Function:
        """Return a function by name; raise LookupError, with the known names, if there is none."""
        named = {function.name: function for function in self.functions}
        return named[one_of("function", name, named)]


def _refuse_names(names: list[str]) -> None:
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(
                f"name: got {str(name)[:40]!r}, allowed are letters, digits and _, a digit not "
                "first, and none of true, false, inf, nan"
            )


def _checked(kind: Type, data: Any) -> Any:
    """Return data as a ``Value`` keeps it: a Python number, bool or string, or a tuple of them.

    Raises ValueError for elements that do not fit the type ``kind``.
    """
    if isinstance(data, np.ndarray) and data.ndim:
        data = data.ravel()
    if isinstance(data, np.ndarray | np.generic):
        data = data.tolist()
    if isinstance(data, list | tuple):
        if kind.plain or kind.elements != len(data):
            raise ValueError(f"value: got {len(data)} elements, allowed are the elements of {kind}")
        return tuple(_element(kind.dtype, element) for element in data)
    if kind.shape:
        raise ValueError(f"value: got one element, allowed are the elements of {kind}")
    return _element(kind.dtype, data)


def _element(dtype: str, element: Any) -> Any:
    letter, bits = DTYPES[dtype]
    if isinstance(element, np.generic):
        element = element.item()
    whole = isinstance(element, int) and not isinstance(element, bool)
    if letter == "f" and (whole or isinstance(element, float)):
        # Every NaN becomes the object math.nan: programs are compared by object before number.
        if element != element:
            return math.nan
        try:
            return float(element)
        except OverflowError:
            raise ValueError(
                f"value: got {str(element)[:20]}..., allowed is a number of {dtype}"
            ) from None
    if letter in "iu" and whole:
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
