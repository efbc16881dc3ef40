"""Constants planted in random streams, from the words of the question: a compiler writes numbers that
follow from scales and zero points into its output, at any byte, in one of the usual encodings.

Written with plain Python numbers and ``struct``, without npulab's encodings. Even seeds may be
looked at while the search is made; odd seeds only judge.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

SIZE, CAPTURES, NOISE = 4096, 8, 0.01
REAL = ("input_scale", "weight_scale", "output_scale", "other_scale")
KINDS = (
    "f32",
    "f32 steps",
    "f16",
    "bf16 even",
    "bf16 zero",
    "fixed8 away",
    "fixed8 even",
    "fixed8 zero",
    "fixed16 away",
    "fixed16 zero",
    "fixed32 away",
    "fixed32 zero",
    "q31",
    "q15",
    "sum f32",
    "sum int32",
)


@dataclass(frozen=True)
class Planted:
    """One planted constant: its place, its encoding's name, the parts of its formula (numerators,
    denominators, and of sums the zero point and the factors), and the place of a shift."""

    kind: str
    offset: int
    big_endian: bool
    above: tuple[str, ...]
    below: tuple[str, ...]
    plus: str = ""
    shift: int = -1

    @property
    def encoding(self) -> str:
        if self.kind.startswith("sum "):
            return {"f32": "f32", "int32": "fixed"}[self.kind.removeprefix("sum ")]
        return self.kind.split()[0]


@dataclass(frozen=True)
class Case:
    """Streams ``(N, B) uint8``, columns of parameters, and what is planted."""

    streams: np.ndarray
    parameters: dict[str, list[Any]]
    planted: tuple[Planted, ...]


def single(number: float) -> float:
    """A number rounded to float32."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


def parameters_of(rng: random.Random, captures: int = CAPTURES) -> dict[str, list[Any]]:
    """Scales as float32, each over a factor of 4, zero points and a sum of weights."""
    out: dict[str, list[Any]] = {}
    for name in REAL:
        middle = 10 ** rng.uniform(-3, -1)
        out[name] = [single(middle * 10 ** rng.uniform(-0.3, 0.3)) for _ in range(captures)]
    out["input_zero_point"] = [rng.randrange(1, 256) for _ in range(captures)]
    out["output_zero_point"] = [rng.randrange(256) for _ in range(captures)]
    out["weight_sum"] = [rng.randrange(-4000, 4000) for _ in range(captures)]
    return out


def case_of(seed: int, kinds: tuple[str, ...] = KINDS, captures: int = CAPTURES) -> Case:
    """One constant of each kind in streams of random bytes, of which each capture has others in 1
    of 100."""
    rng = random.Random(f"planted {seed}")
    parameters = parameters_of(rng, captures)
    bits = np.random.default_rng(seed)
    base = bits.integers(0, 256, SIZE).astype(np.uint8)
    streams = np.tile(base, (captures, 1))
    taken: set[int] = set()
    planted = []
    for kind in kinds:
        planted.append(_plant(rng, kind, streams, parameters, taken))
    noisy = bits.random(streams.shape) < NOISE
    streams[noisy] = bits.integers(0, 256, int(noisy.sum()))
    return Case(streams, parameters, tuple(planted))


def null_of(seed: int, captures: int = CAPTURES) -> Case:
    """Nothing planted: a fixed stream with noise, counters, moving words and moving floats."""
    rng = random.Random(f"null {seed}")
    parameters = parameters_of(rng, captures)
    bits = np.random.default_rng(10**6 + seed)
    base = bits.integers(0, 256, SIZE).astype(np.uint8)
    streams = np.tile(base, (captures, 1))
    for number in range(captures):
        for place in range(0, 128, 8):
            # counters of several steps, and pointers that move by pages
            _put(streams, number, place, 5 * place + number * (1 + place), 4)
            _put(streams, number, place + 4, 0x10000 + rng.randrange(2**12) * 4096, 4)
        for place in range(200, 264, 4):
            value = struct.pack("<f", 10 ** rng.uniform(-4, 1))
            streams[number, place : place + 4] = list(value)
    streams[:, 1024:2048] = bits.integers(0, 256, (captures, 1024))
    streams[:, 2048:2560] = bits.integers(0, 6, (captures, 512))
    noisy = bits.random(streams.shape) < NOISE
    streams[noisy] = bits.integers(0, 256, int(noisy.sum()))
    return Case(streams, parameters, ())


def _put(
    streams: np.ndarray, number: int, place: int, code: int, size: int, big: bool = False
) -> None:
    order = "little"
    if big:
        order = "big"
    streams[number, place : place + size] = list((code % 256**size).to_bytes(size, order))


def _free(rng: random.Random, taken: set[int], size: int) -> int:
    while True:
        place = rng.randrange(SIZE - size)
        if not taken & set(range(place, place + size)):
            taken |= set(range(place, place + size))
            return place


def _formula(rng: random.Random) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A product of 1 to 4 scales, each above or below."""
    names = rng.sample(REAL, rng.randrange(1, len(REAL) + 1))
    above = [name for name in names if rng.random() < 0.6]
    below = [name for name in names if name not in above]
    return tuple(above), tuple(below)


def _plant(
    rng: random.Random,
    kind: str,
    streams: np.ndarray,
    parameters: dict[str, list[Any]],
    taken: set[int],
) -> Planted:
    rows = []
    for number in range(len(streams)):
        rows.append({name: values[number] for name, values in parameters.items()})
    above, below = _formula(rng)
    # no compiler writes a float16 that is infinite or 0
    while kind == "f16" and not all(1e-4 < _exact(row, above, below) < 6e4 for row in rows):
        above, below = _formula(rng)
    plus = ""
    if kind.startswith("sum "):
        # zy - zx * sum * M
        above, below = ("input_scale", "weight_scale"), ("output_scale",)
        above = ("input_zero_point", "weight_sum", *above)
        plus = "output_zero_point"
    if kind == "f32 steps":
        codes = [_float_steps(row, above, below) for row in rows]
    else:
        exact = [_exact(row, above, below) for row in rows]
        if plus:
            exact = [row[plus] - value for row, value in zip(rows, exact, strict=True)]
        codes = _codes(rng, kind, exact)
    size = 4
    if "8" in kind:
        size = 1
    if "16" in kind or kind == "q15":
        size = 2
    big = size > 1 and rng.random() < 0.3
    offset = _free(rng, taken, size)
    for number, code in enumerate(codes):
        _put(streams, number, offset, code, size, big)
    shift = -1
    if kind in ("q31", "q15"):
        shift = _free(rng, taken, 1)
        if rng.random() < 0.5 and not taken & {offset + size} and offset + size < SIZE:
            shift = offset + size
            taken.add(shift)
        sign = rng.choice((1, -1))
        for number, value in enumerate(exact):
            _put(streams, number, shift, sign * _mantissa(value, 31)[1], 1)
    return Planted(kind, offset, big, above, below, plus, shift)


def _exact(row: dict[str, Any], above: tuple[str, ...], below: tuple[str, ...]) -> Fraction:
    out = Fraction(1)
    for name in above:
        out *= Fraction(row[name])
    for name in below:
        out /= Fraction(row[name])
    return out


def _float_steps(row: dict[str, Any], above: tuple[str, ...], below: tuple[str, ...]) -> int:
    """float32 of a product that is made in float32 steps, what stands above first."""
    out = 1.0
    for name in above:
        out = single(out * row[name])
    for name in below:
        out = single(out / row[name])
    return _of_float(out)


def _of_float(number: float) -> int:
    return int.from_bytes(struct.pack("<f", number), "little")


def _rounded(value: Fraction, rounding: str) -> int:
    if rounding == "even":
        return round(value)
    if rounding == "zero":
        return math.trunc(value)
    return int(math.copysign(math.floor(abs(value) + Fraction(1, 2)), value))


def _mantissa(value: Fraction, bits: int) -> tuple[int, int]:
    """TFLite's QuantizeMultiplier: value is multiplier * 2**(shift - bits)."""
    part, shift = math.frexp(float(value))
    code = _rounded(Fraction(part) * 2**bits, "away")
    if code == 2**bits:
        code //= 2
        shift += 1
    return code, shift


def _codes(rng: random.Random, kind: str, exact: list[Fraction]) -> list[int]:
    name, _, rounding = kind.partition(" ")
    if kind in ("f32", "sum f32"):
        return [_of_float(float(value)) for value in exact]
    if name == "f16":
        return [int(np.float16(float(value)).view(np.uint16)) for value in exact]
    if kind == "bf16 zero":
        return [_of_float(float(value)) // 2**16 for value in exact]
    if kind == "bf16 even":
        return [round(Fraction(_of_float(float(value)), 2**16)) for value in exact]
    if kind == "sum int32":
        return [_rounded(value, "away") for value in exact]
    if name in ("q31", "q15"):
        return [_mantissa(value, int(name[1:]))[0] for value in exact]
    bits = int(name.removeprefix("fixed"))
    # as many bits after the point as the largest number leaves, or up to two fewer
    length = bits - rng.randrange(3)
    _, exponent = math.frexp(float(max(exact)))
    scale = Fraction(2) ** (length - exponent)
    return [min(_rounded(value * scale, rounding), 2**bits - 1) for value in exact]


def right(found: Any, planted: Planted) -> bool:
    """True if an answer of ``find_constants`` has this constant: a claim at its place, in its
    encoding and byte order, whose first formula is the planted one."""
    return any(_is(constant, planted) for constant in at(found, planted))


def at(found: Any, planted: Planted) -> list[Any]:
    """The claims that say that a word begins at the place of a planted constant, also those of a
    narrower word that say so: the bytes above are 0."""
    out = []
    for constant in found.constants:
        places = set(constant.places)
        for wider in constant.wider:
            if constant.big_endian:
                places |= {place + constant.width - wider for place in constant.places}
        if planted.offset in places:
            out.append(constant)
    return out


def _is(constant: Any, planted: Planted) -> bool:
    formula = constant.meaning.formula
    above = sorted(name for name, exponent in formula.factors if exponent > 0)
    below = sorted(name for name, exponent in formula.factors if exponent < 0)
    roundings = {stored.encoding.rounding for stored in constant.meaning.stored}
    wanted = planted.kind.partition(" ")[2]
    return (
        constant.encoding.startswith(planted.encoding)
        and (above, below) == (sorted(planted.above), sorted(planted.below))
        and formula.plus == planted.plus
        and constant.big_endian == planted.big_endian
        and (wanted not in ("even", "zero", "away") or wanted in roundings)
    )


Search = Callable[..., Any]


def judged(search: Search, seeds: range, kinds: tuple[str, ...] = KINDS) -> dict[str, list[int]]:
    """For each kind how many constants were planted, found right, found without a tie, and how many
    claims of the search were false: (planted, right, sure, false)."""
    counts = {kind: [0, 0, 0, 0] for kind in kinds}
    counts["elsewhere"] = [0, 0, 0, 0]
    for seed in seeds:
        case = case_of(seed, kinds)
        found = search(case.streams, case.parameters)
        expected = set()
        for planted in case.planted:
            here = at(found, planted)
            good = [constant for constant in here if _is(constant, planted)]
            expected |= {id(constant) for constant in here}
            count = counts[planted.kind]
            count[0] += 1
            count[1] += len(good) > 0
            count[2] += any(constant.sure for constant in good)
            count[3] += len(here) - len(good)
        for constant in found.constants:
            counts["elsewhere"][3] += id(constant) not in expected or len(constant.places) > 1
    return counts
