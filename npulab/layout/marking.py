"""Tensors whose values identify every element, over as many captures as that takes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from npulab.layout.stored import BITS, DTYPES, MOST_ELEMENTS, Shape, held_as, values_of
from npulab.support.refuse import refuse_if

MOST_CAPTURES = 64
GOLDEN = (
    0.618  # step from value to value, as a share of the range: near indices have values far apart
)


def markers(
    shape: Shape,
    dtype: str = "uint8",
    *,
    captures: int = 0,
    avoid: Iterable[float] = (),
) -> list[np.ndarray]:
    """Return tensors of ``shape`` and ``dtype`` that together give every element its own values.

    There are ``captures`` of them, by default as few as it takes, at least two: three uint8 tensors
    for a million elements. ``avoid`` are values that a device treats specially, such as a zero
    point; floats are positive normal numbers. No element has the same value in all tensors, so that
    none looks like fill. At most half of the possible combinations of values are used, spread over
    the whole range, so that a device which changes values is noticed. Raises ValueError if there
    are too few values or captures.

    >>> [one.tolist() for one in markers((4,), avoid=[0])]
    [[158, 60, 217, 119], [1, 1, 1, 1]]
    """
    refuse_if(dtype not in DTYPES, "dtype", repr(dtype), f"is one of {', '.join(DTYPES)}")
    elements = math.prod(shape)
    refuse_if(
        not shape or not 1 <= elements <= MOST_ELEMENTS or min(shape) < 1,
        "shape",
        shape,
        f"are one or more axes of at least 1, at most {MOST_ELEMENTS} elements",
    )
    values = _values(dtype, avoid)
    base = len(values)
    needed = next(
        (count for count in range(2, MOST_CAPTURES) if base**count - base >= 2 * elements), 0
    )
    if not needed or (captures and captures < needed):
        raise ValueError(
            f"captures: got {captures or 'none'} for {elements} elements with {base} possible "
            f"values, allowed is {needed or 'no number'} or more"
            if needed
            else f"avoid: got all but {base} values, allowed is to leave enough for "
            f"{elements} elements"
        )
    captures = captures or needed
    # the digits of a number (in base ``base``) are an element's values; numbers whose digits are
    # all the same, the multiples of 11...1, are skipped
    ones = sum(base**at for at in range(needed))
    index = np.arange(elements, dtype=np.int64)
    index += index // (ones - 1) + 1
    out = []
    for _ in range(needed):
        out.append(values[index % base].reshape(shape))
        index //= base
    return [out[at % needed] for at in range(captures)]


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
    # a step that has a common divisor with the number of values would repeat some values and leave
    # others out
    while math.gcd(step, len(left)) > 1:
        step += 1
    return left[np.arange(len(left)) * step % max(len(left), 1)]
