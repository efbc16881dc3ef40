"""The 128 bytes of an activation table: 64 slots of 16 bits, little-endian, decoded, encoded and
checked."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.npus.ane.facts import enum
from npulab.npus.kit import Unsupported, refuse_if

KNOTS = 33
# a dtype and not construct, which would read halves as floats and lose the bits of a NaN
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
NO_STEP = 64  # step exponent of a table without knots: one line below 0, one from 0 on
# Step exponents: other steps would be below the smallest or above the largest fp16 number.
STEPS = range(-16, 25)
# Numbers of codes in the slot mode: kind in the low bits, then symmetry, then flags.
KIND_CODES, SYMMETRY_CODES, FLAG_CODES = 2**5, 2**3, 2**8
# By kind: the place of the first knot, in steps.
PLAIN = {"from_zero": 0, "centred": -16, "to_zero": -32}
# By kind: the place of the first knot, in steps, and the step exponent of its tables (sqrt leaves 8
# knots unused).
REDUCED = {"exp2": (0, 5), "log2": (32, 6), "inv": (32, 6), "sqrt": (0, 4), "rsqrt": (0, 4)}
KINDS, SYMMETRIES = enum("table_kind"), enum("table_symmetry")

Half = np.float16 | float


@dataclass(frozen=True, eq=False)
class Table:
    """An activation table as its 64 slots hold it; tables are equal if their bytes are.

    Numbers are rounded to fp16. ``knots`` are ``(33,) float16``; neighbours lie
    ``2**-step_exponent`` apart (64: no knots, only the two lines). ``kind`` and ``symmetry`` are
    codes or their names in ``KINDS`` and ``SYMMETRIES``; ``flags`` are the bits above them,
    ``rest`` the 21 slots after the mode, both 0 in every table seen. Raises ValueError naming the
    value that its slot cannot hold.
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
        """Return the 128 bytes; the inverse of ``decode``."""
        slots = np.zeros((), SLOTS)
        for name in SLOTS.names or ():
            if name != "mode":
                slots[name] = getattr(self, name)
        slots["mode"] = self.kind + KIND_CODES * (self.symmetry + SYMMETRY_CODES * self.flags)
        return slots.tobytes()

    @property
    def kind_name(self) -> str:
        """The kind's name, its code if it has no name."""
        return _name(self.kind, KINDS)

    @property
    def symmetry_name(self) -> str:
        """The symmetry's name, its code if it has no name."""
        return _name(self.symmetry, SYMMETRIES)

    @property
    def positions(self) -> Array:
        """``(33,) float64``: the (reduced) x of each knot; empty for a table without knots.

        Raises ``Unsupported`` as ``evaluate`` does.
        """
        refuse_unknown(self)
        if self.step_exponent == NO_STEP:
            return np.zeros(0)
        return np.ldexp(self.first + np.arange(KNOTS, dtype=np.float64), -self.step_exponent)

    @property
    def first(self) -> int:
        """The (reduced) x of the first knot, in steps; for a known kind only."""
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
    """Return values as float16, half to even; larger values become infinite, a NaN that is float16
    keeps its bits."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(values, np.float16)


def decode(data: bytes) -> Table:
    """Return the table in 128 bytes, little-endian; raises ValueError for another number of bytes.

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
    """Raise ``Unsupported`` with slot and byte offset for a table whose meaning is not known."""
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
