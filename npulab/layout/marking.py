"""Tensors whose values identify every element if several captures are read together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from npulab.layout.stored import (
    BITS,
    DTYPES,
    ELEMENTS,
    MOST_ELEMENTS,
    Shape,
    held_as,
    join_units,
    values_of,
)
from npulab.support.refuse import refuse_if

MOST_CAPTURES = 64
# Captures beyond those that identify every unit, so that ``find_layout`` can hold some back.
MORE = 2
MIX = np.uint64(0x9E3779B97F4A7C15)
MIXES = 3
MIXED_BITS = 60
# The step from value to value as a share of their range, so that near indices differ much.
GOLDEN = 0.618


def markers(
    shape: Shape,
    dtype: str = "uint8",
    *,
    captures: int = 0,
    avoid: Iterable[float] = (),
    unit: int = 0,
) -> list[np.ndarray]:
    """Return tensors of ``shape`` and ``dtype`` whose values, read together, identify each element.

    There are ``captures`` tensors, by default as few as identify each element, but at least two:
    three uint8 tensors for a million elements. Values in ``avoid`` are not used, because a device
    may treat a value specially, such as a zero point. Floats are positive normal numbers. Each
    element has different values in some tensors, so that no element looks like fill. At most half
    of the possible combinations of values are used, spread over the whole range, so that a device
    that changes values is noticed. Raises ValueError if there are too few values or captures.

    With a ``unit`` of 1, 2, 4 or 8 bits, values identify each unit of each element, as elements
    with bits in planes need. ``dtype`` is then an integer type of 1 to 16 or 32 bits (``uint5``,
    ``int12``). These tensors are dense, and every plane of bits changes from capture to capture. By
    default there are two captures more than identify each unit; ``find_layout`` holds back one or
    two of them.

    >>> [one.tolist() for one in markers((4,), avoid=[0])]
    [[158, 60, 217, 119], [1, 1, 1, 1]]
    >>> len(markers((3, 3, 8, 16), unit=4)), len(markers((3, 3, 8, 16), unit=1))
    (6, 17)
    """
    if unit:
        return _unit_markers(shape, dtype, captures, [*avoid], unit)
    refuse_if(dtype not in DTYPES, "dtype", repr(dtype), f"is one of {', '.join(DTYPES)}")
    _check_shape(shape)
    elements = math.prod(shape)
    values = _values(dtype, avoid)
    base = len(values)
    needed = next(
        (count for count in range(2, MOST_CAPTURES) if base**count - base >= 2 * elements), 0
    )
    # ``needed`` is 0 if no number of captures is enough, because ``avoid`` leaves too few values.
    allowed = f"leaves enough values to mark {elements} elements"
    refuse_if(not needed, "avoid", f"all but {base} values", allowed)
    given = f"{captures} for {elements} elements with {base} possible values"
    refuse_if(captures and captures < needed, "captures", given, f"is {needed} or more")
    captures = captures or needed
    # Each element gets a number, whose digits in base ``base`` are its values in the captures.
    # Numbers with equal digits, which are the multiples of 11...1, are skipped.
    ones = sum(base**at for at in range(needed))
    index = np.arange(elements, dtype=np.int64)
    index += index // (ones - 1) + 1
    out = []
    for _ in range(needed):
        out.append(values[index % base].reshape(shape))
        index //= base
    return [out[at % needed] for at in range(captures)]


def _check_shape(shape: Shape) -> None:
    refuse_if(
        not shape or not 1 <= math.prod(shape) <= MOST_ELEMENTS or min(shape) < 1,
        "shape",
        shape,
        f"are one or more axes of at least 1, at most {MOST_ELEMENTS} elements",
    )


def _unit_markers(
    shape: Shape, dtype: str, captures: int, avoid: list[float], unit: int
) -> list[np.ndarray]:
    whole = [name for name in ELEMENTS if "int" in name]
    refuse_if(dtype not in whole, "dtype", repr(dtype), f"is one of {', '.join(whole)} with a unit")
    bits = ELEMENTS[dtype]
    fits = unit in (1, 2, 4, 8) and bits % unit == 0
    refuse_if(not fits, "unit", unit, f"is 1, 2, 4 or 8 bits that divide the {bits} of an element")
    refuse_if(bool(avoid), "avoid", avoid, "is nothing if every unit has values of its own")
    _check_shape(shape)
    units = math.prod(shape) * bits // unit
    digits = max(-(-units.bit_length() // unit), 2)
    refuse_if(
        0 < captures <= digits,
        "captures",
        captures,
        f"are {digits + 1} or more for {units} units of {unit} bits",
    )
    captures = captures or digits + 1 + MORE
    index = np.arange(1, units + 1, dtype=np.uint64)
    codes = [*_digits(_mixed(index, digits * unit), unit, digits)]
    # If a device changes all digits by one xor, the xor of two digits does not change. This xor as
    # a further digit makes sure that no changed code is the code of another unit.
    codes.append(codes[0] ^ codes[1])
    # Further captures have the digits of other mixes of the index.
    for more in range(1, -(-captures // digits)):
        codes += _digits(
            _mixed(index + np.uint64(more * MOST_ELEMENTS**2), MIXED_BITS), unit, digits
        )
    out = []
    for code in codes[:captures]:
        pieces = code.reshape(*shape, bits // unit)
        out.append(values_of(join_units(pieces, held_as(dtype).itemsize, unit), dtype))
    return out


def _digits(codes: np.ndarray, unit: int, count: int) -> Iterator[np.ndarray]:
    for at in range(count):
        code = codes // np.uint64(2 ** (at * unit)) % np.uint64(2**unit)
        yield code.astype(np.uint8)


def _mixed(index: np.ndarray, bits: int) -> np.ndarray:
    """Return a number of ``bits`` bits for each index, which looks random.

    Different indices below ``2**bits`` get different numbers, because each step can be undone.
    """
    out = index % np.uint64(2**bits)
    for _ in range(MIXES):
        out = out * MIX % np.uint64(2**bits)
        out ^= out // np.uint64(2 ** (bits // 2 + 1))
    return out


def _values(dtype: str, avoid: Iterable[float]) -> np.ndarray:
    kind, bits = held_as(dtype), BITS[dtype]
    if kind.kind == "f":
        one = np.finfo(dtype)
        ends = np.array([one.tiny, one.max], dtype).view(f"u{kind.itemsize}")
        first, last = int(ends[0]), int(ends[1])
        step = max((last - first) // 2**16, 1)
        values = np.arange(first, last + 1, step).astype(f"u{kind.itemsize}").view(dtype)
    else:
        values = values_of(np.arange(min(2**bits, 2**16)).astype(f"u{kind.itemsize}"), dtype)
    left = values[~np.isin(values, np.array(list(avoid), np.float64))]
    step = int(GOLDEN * len(left))
    # A step with a common divisor with the number of values would repeat some values and leave out
    # others.
    while math.gcd(step, len(left)) > 1:
        step += 1
    return left[np.arange(len(left)) * step % max(len(left), 1)]
