"""Constants in streams, sought by loops over places, formulas and encodings with exact fractions: no
keys, no arrays of formulas, no costs."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np

LENGTHS = {1: range(5, 9), 2: range(9, 17), 4: range(17, 33)}


class Fit(NamedTuple):
    """A formula that fits a place: (offset, order, width, factors, encoding, rounding, fraction)."""

    offset: int
    order: str
    width: int
    factors: tuple[tuple[str, int], ...]
    encoding: str
    rounding: str
    fraction: int
    count: int


def fits(streams: np.ndarray, scales: dict[str, list[float]], most_factors: int = 2) -> set[Fit]:
    """Every formula of real columns that gives three different codes at a place, on all captures
    but a quarter, or 2 and a sixteenth; in double, by exact fractions."""
    captures = len(streams)
    out = set()
    for factors in products(list(scales), most_factors):
        values = []
        for number in range(captures):
            value = Fraction(1)
            for name, exponent in factors:
                value *= Fraction(scales[name][number]) ** exponent
            values.append(value)
        for encoding, rounding, fraction, width, codes in encoded(values):
            for order in ("little", "big")[: 1 + (width > 1)]:
                rows = [code.to_bytes(width, order) for code in codes]
                for offset in range(streams.shape[1] - width + 1):
                    good = []
                    for number, row in enumerate(rows):
                        if bytes(streams[number, offset : offset + width]) == row:
                            good.append(number)
                    lower = [codes[number] % 2 ** (4 * width) for number in good]
                    if (
                        len(good) >= captures - min(captures // 4, 2 + captures // 16)
                        and len({codes[number] for number in good}) >= 3
                        and (width == 1 or any(lower))
                    ):
                        out.add(
                            Fit(
                                offset,
                                order,
                                width,
                                factors,
                                encoding,
                                rounding,
                                fraction,
                                len(good),
                            )
                        )
    return out


def products(names: list[str], most: int) -> Iterator[tuple[tuple[str, int], ...]]:
    for count in range(1, most + 1):
        for chosen in itertools.combinations(names, count):
            for exponents in itertools.product((1, -1), repeat=count):
                yield tuple(zip(chosen, exponents, strict=True))


def encoded(values: list[Fraction]) -> Iterator[tuple[str, str, int, int, list[int]]]:
    single = [int.from_bytes(struct.pack("<f", float(value)), "little") for value in values]
    yield "f32", "even", 0, 4, single
    if all(0 < float(np.float16(float(value))) < math.inf for value in values):
        half = [int(np.float16(float(value)).view(np.uint16)) for value in values]
        yield "f16", "even", 0, 2, half
    yield "bf16", "zero", 0, 2, [code // 2**16 for code in single]
    yield "bf16", "even", 0, 2, [round(Fraction(code, 2**16)) for code in single]
    _, exponent = math.frexp(float(max(values)))
    for width, lengths in LENGTHS.items():
        for length in lengths:
            for rounding in ("away", "even", "zero"):
                scaled = [value * Fraction(2) ** (length - exponent) for value in values]
                codes = [rounded(value, rounding) for value in scaled]
                if max(codes) < 2 ** (8 * width):
                    yield f"fixed{8 * width}", rounding, length - exponent, width, codes
    for bits in (31, 15):
        for rounding in ("away", "zero"):
            codes = [multiplier(value, bits, rounding) for value in values]
            yield f"q{bits}", rounding, 0, (bits + 1) // 8, codes


def rounded(value: Fraction, rounding: str) -> int:
    if rounding == "even":
        return round(value)
    if rounding == "zero":
        return math.floor(value)
    return math.floor(value + Fraction(1, 2))


def multiplier(value: Fraction, bits: int, rounding: str) -> int:
    part, _ = math.frexp(float(value))
    code = rounded(Fraction(part) * 2**bits, rounding)
    if code == 2**bits:
        code //= 2
    return code
