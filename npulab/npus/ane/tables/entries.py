"""Decoding, encoding and checking the 128 bytes of an activation table.

The bytes are 64 slots of 16 bits, little-endian."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.npus.ane.facts import enum
from npulab.npus.kit import Unsupported, refuse_if

KNOTS = 33
# A numpy type, because construct would read halves as Python floats and lose the bits of a NaN.
SLOTS = np.dtype(
    [
        ("x_low", "<f2"),
        ("x_high", "<f2"),
        ("y_low", "<f2"),
        ("y_high", "<f2"),
        ("knots", "<f2", KNOTS),
        ("left_slope", "<f2"),
        ("left_intercept", "<f2"),
        ("right_slope", "<f2"),
        ("right_intercept", "<f2"),
        ("step_exponent", "<i2"),
        ("mode", "<u2"),
        ("rest", "<u2", 21),
    ]
)
SIZE = SLOTS.itemsize
# The step exponent of a table without knots, which has a line below 0 and a line from 0 on.
NO_STEP = 64
# The allowed step exponents. Other steps would be below the smallest or above the largest fp16.
STEPS = range(-16, 25)
# How many codes of kind, symmetry and flags the slot ``mode`` can have, from its low bits on.
KIND_CODES, SYMMETRY_CODES, FLAG_CODES = 2**5, 2**3, 2**8
# Kinds without reduction: the x of the first knot, counted in steps.
PLAIN = {"from_zero": 0, "centred": -16, "to_zero": -32}
# Kinds named after a function: the reduced x of the first knot, counted in steps, and the step
# exponent. Tables of sqrt do not use 8 of the knots.
REDUCED = {"exp2": (0, 5), "log2": (32, 6), "inv": (32, 6), "sqrt": (0, 4), "rsqrt": (0, 4)}
KINDS, SYMMETRIES = enum("table_kind"), enum("table_symmetry")

Half = np.float16 | float


@dataclass(frozen=True, eq=False)
class Table:
    """An activation table, with the values of its 64 slots; tables with equal bytes are equal.

    ``knots`` ``(33,) float16`` are values at x that are ``2**-step_exponent`` apart; the step
    exponent 64 means no knots, only the two lines. ``kind`` and ``symmetry`` are given as codes or
    as names in ``KINDS`` and ``SYMMETRIES``. ``flags`` are the bits above them in the slot
    ``mode``, ``rest`` the 21 slots after it; both are 0 in every table that was seen. Other numbers
    are rounded to fp16. Raises ValueError, with the name, for a value that its slot cannot hold.
    """

    x_low: Half
    x_high: Half
    y_low: Half
    y_high: Half
    knots: Array
    left_slope: Half = 0.0
    left_intercept: Half = 0.0
    right_slope: Half = 0.0
    right_intercept: Half = 0.0
    step_exponent: int = NO_STEP
    kind: int = 0
    symmetry: int = 0
    flags: int = 0
    rest: Array = field(default_factory=lambda: np.zeros(21, np.uint16))

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", _code("kind", self.kind, KINDS))
        object.__setattr__(self, "symmetry", _code("symmetry", self.symmetry, SYMMETRIES))
        for name, low, high in (
            ("step_exponent", -(2**15), 2**15),
            ("kind", 0, KIND_CODES),
            ("symmetry", 0, SYMMETRY_CODES),
            ("flags", 0, FLAG_CODES),
        ):
            value = operator.index(getattr(self, name))
            refuse_if(not low <= value < high, name, value, f"is {low} to {high - 1}")
            object.__setattr__(self, name, value)
        knots, rest = np.asarray(self.knots), np.asarray(self.rest)
        for name, values in (("knots", knots), ("rest", rest)):
            shape = SLOTS[name].shape
            refuse_if(values.shape != shape, name, f"shape {values.shape}", f"is {shape}")
        stored = rest.astype(np.uint16)
        if np.any(stored != rest):
            raise ValueError(f"rest: got {rest.tolist()}, allowed is 0 to {2**16 - 1} each")
        for name, held in (("knots", halves(knots)), ("rest", stored)):
            held.flags.writeable = False
            object.__setattr__(self, name, held)
        for name in _SCALARS:
            object.__setattr__(self, name, halves(getattr(self, name))[()])

    def encode(self) -> bytes:
        """Return the 128 bytes of the table, the inverse of ``decode``."""
        slots = np.zeros((), SLOTS)
        for name in SLOTS.names or ():
            if name != "mode":
                slots[name] = getattr(self, name)
        slots["mode"] = self.kind + KIND_CODES * (self.symmetry + SYMMETRY_CODES * self.flags)
        return slots.tobytes()

    @property
    def kind_name(self) -> str:
        """The name of the table's kind, or its code if it has no name."""
        return _name(self.kind, KINDS)

    @property
    def symmetry_name(self) -> str:
        """The name of the table's symmetry, or its code if it has no name."""
        return _name(self.symmetry, SYMMETRIES)

    @property
    def positions(self) -> Array:
        """The x of each knot, ``(33,) float64``, reduced if the kind reduces x.

        It is empty for a table without knots. Raises ``Unsupported`` for an unknown kind, symmetry
        or flag.
        """
        refuse_unknown(self)
        if self.step_exponent == NO_STEP:
            return np.zeros(0)
        return np.ldexp(self.first + np.arange(KNOTS, dtype=np.float64), -self.step_exponent)

    @property
    def first(self) -> int:
        """The x of the first knot, counted in steps, reduced if the kind reduces x.

        The kind must be known.
        """
        if self.kind_name in REDUCED:
            return REDUCED[self.kind_name][0]
        return PLAIN[self.kind_name]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Table):
            return self.encode() == other.encode()
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.encode())

    def __repr__(self) -> str:
        if self.step_exponent == NO_STEP:
            step = "no knots"
        else:
            step = f"step 2**{-self.step_exponent}"
        odd = ""
        if self.symmetry:
            odd = f", {self.symmetry_name}"
        return f"Table({self.kind_name}{odd}, {step}, x {self.x_low:g} to {self.x_high:g})"


_SCALARS = [name for name in SLOTS.names or () if SLOTS[name] == np.float16]


def halves(values: Any) -> Array:
    """Return values rounded to float16, half to even, infinite beyond the largest float16.

    A NaN that is float16 already keeps its bits."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(values, np.float16)


def decode(data: bytes) -> Table:
    """Return the table that 128 bytes state; raise ValueError for another number of bytes.

    >>> decode(bytes(82) + bytes([3, 0, 96, 0]) + bytes(42))
    Table(from_zero, odd, step 2**-3, x 0 to 0)
    """
    refuse_if(len(data) != SIZE, "activation table", f"{len(data)} bytes", f"is {SIZE}")
    slots = np.frombuffer(data, SLOTS)[0]
    mode = int(slots["mode"])
    held = {name: slots[name] for name in SLOTS.names or () if name != "mode"}
    return Table(
        **held,
        kind=mode % KIND_CODES,
        symmetry=mode // KIND_CODES % SYMMETRY_CODES,
        flags=mode // (KIND_CODES * SYMMETRY_CODES),
    )


def refuse_unknown(table: Table) -> None:
    """Raise ``Unsupported``, with slot and byte offset, for a table with an unknown code in a
    slot."""
    kinds = [*PLAIN, *REDUCED]
    exponent = None
    if table.kind_name in REDUCED:
        exponent = REDUCED[table.kind_name][1]
    if table.kind_name not in kinds:
        raise _unknown(
            "mode",
            f"kind {_both(table.kind, KINDS)}",
            ", ".join(_both(KINDS[name], KINDS) for name in kinds),
        )
    if table.symmetry_name not in SYMMETRIES:
        raise _unknown(
            "mode",
            f"symmetry {table.symmetry}",
            ", ".join(_both(code, SYMMETRIES) for code in SYMMETRIES.values()),
        )
    if table.flags:
        raise _unknown("mode", f"flags {table.flags:#x} above the symmetry", "0")
    if exponent is not None and table.step_exponent != exponent:
        raise _unknown(
            "step_exponent", f"{table.step_exponent} with kind {table.kind_name}", str(exponent)
        )
    if table.step_exponent != NO_STEP and table.step_exponent not in STEPS:
        raise _unknown(
            "step_exponent",
            f"{table.step_exponent}",
            f"{STEPS[0]} to {STEPS[-1]}, or {NO_STEP} for no knots",
        )
    if table.rest.any():
        at = int(np.flatnonzero(table.rest)[0])
        raise _unknown("rest", f"{int(table.rest[at]):#x}", "0", at)


def _code(what: str, given: Any, codes: dict[str, int]) -> Any:
    if not isinstance(given, str):
        return given
    if given not in codes:
        raise ValueError(f"{what}: got {given!r}, allowed is a code or one of {', '.join(codes)}")
    return codes[given]


def _unknown(name: str, got: str, allowed: str, further: int = 0) -> Unsupported:
    assert SLOTS.fields is not None
    slot = int(SLOTS.fields[name][1]) // 2 + further
    return Unsupported(
        f"activation table, slot {slot} at byte {2 * slot} ({name}): got {got}, allowed is "
        f"{allowed} (the meaning of other values is not known)"
    )


def _name(code: int, codes: dict[str, int]) -> str:
    return next((name for name, held in codes.items() if held == code), str(code))


def _both(code: int, codes: dict[str, int]) -> str:
    if code in codes.values():
        return f"{code} ({_name(code, codes)})"
    return str(code)
