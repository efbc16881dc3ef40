"""Poolings done wrongly, one output after the other, each in a way of its own: the outputs that the
search for explanations has to explain. Nothing here is npulab's arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from random import Random
from typing import Any

import numpy as np

Codes = list[list[int | None]]  # a window, row by row; None is outside the image


def half_away(value: Fraction) -> int:
    size = floor(abs(value) + Fraction(1, 2))
    return size if value >= 0 else -size


ROUND: dict[str, Callable[[Fraction], int]] = {
    "floor": floor,
    "toward-zero": int,
    "half-up": lambda value: floor(value + Fraction(1, 2)),
    "half-even": round,
    "half-away": half_away,
}


@dataclass(frozen=True)
class Case:
    """A pooling: image ``(H, W, C)``, and what a layer says of it."""

    image: np.ndarray
    kind: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[tuple[int, int], tuple[int, int]]
    zero: int
    rounding: str

    @property
    def size(self) -> tuple[int, int]:
        out = []
        for axis in (0, 1):
            span = self.image.shape[axis] + sum(self.pads[axis]) - self.kernel[axis]
            out.append(span // self.stride[axis] + 1)
        return out[0], out[1]

    @property
    def limits(self) -> tuple[int, int]:
        info = np.iinfo(self.image.dtype)
        return int(info.min), int(info.max)


def random_case(random: Random) -> Case:
    """An average of 2 to 64 taps, or a maximum or minimum of 4 to 64."""
    kind = random.choice(["average"] * 4 + ["max", "min"])
    while True:
        kernel = random.randint(1, 8), random.randint(1, 8)
        if kernel[0] * kernel[1] >= 2:
            break
    stride = random.randint(1, 3), random.randint(1, 3)
    pads = []
    for taps in kernel:
        if random.random() < 0.5:
            pads.append((0, 0))
        else:
            pads.append((random.randrange(taps), random.randrange(taps)))
    shape = []
    for axis in (0, 1):
        least = kernel[axis] + 3 * stride[axis]
        shape.append(least + random.randint(0, 5))
    channels = random.randint(3, 9)
    dtype: Any = random.choice([np.int8, np.int8, np.uint8])
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    image = random_image((*shape, channels), kernel, dtype, random.randrange(2**31))
    zero = random.choice([0, 0, random.randint(low + 20, high - 20)])
    rounding = random.choice(["half-away"] * 3 + ["half-up", "toward-zero"])
    if kind != "average":
        rounding = "half-away"
    return Case(image, kind, kernel, stride, (pads[0], pads[1]), zero, rounding)


def random_image(
    shape: tuple[int, ...], kernel: tuple[int, int], dtype: Any, seed: int
) -> np.ndarray:
    """Return an image with bright and dark regions, so that sums are large at some places."""
    draw = np.random.RandomState(seed)
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    image = draw.randint(low, high + 1, shape)
    level = draw.choice([low, 0, high], (*shape[:2], 1))[:: kernel[0], :: kernel[1]]
    level = level.repeat(kernel[0], 0).repeat(kernel[1], 1)[: shape[0], : shape[1]]
    image = np.where(draw.random_sample(shape) < 0.7, (image + 3 * level) // 4, image)
    return image.clip(low, high).astype(dtype)


def windows(case: Case, move: tuple[int, int] = (0, 0), border: Any = None) -> dict[Any, Codes]:
    """Return every window by (row, column, channel) of its output."""
    found = {}
    height, width, channels = case.image.shape
    for i, j in np.ndindex(*case.size):
        top = i * case.stride[0] - case.pads[0][0] + move[0]
        left = j * case.stride[1] - case.pads[1][0] + move[1]
        for channel in range(channels):
            window: Codes = []
            for row in range(top, top + case.kernel[0]):
                line: list[int | None] = []
                for column in range(left, left + case.kernel[1]):
                    if 0 <= row < height and 0 <= column < width:
                        line.append(int(case.image[row, column, channel]))
                    else:
                        line.append(border)
                window.append(line)
            found[i, j, channel] = window
    return found


def inside(window: Codes) -> list[int]:
    return [code for line in window for code in line if code is not None]


def mean(case: Case, codes: list[int], rounding: str = "", centre: int = 0) -> int:
    return ROUND[rounding or case.rounding](Fraction(sum(codes), len(codes)) - centre) + centre


def plain(case: Case, window: Codes) -> int:
    codes = inside(window)
    if case.kind == "average":
        return mean(case, codes)
    return {"max": max, "min": min}[case.kind](codes)


def output(
    case: Case, code: Callable[[Codes], int], given: dict[Any, Codes] | None = None
) -> np.ndarray:
    """Return the output in which each window has the code that a function gives, saturated."""
    low, high = case.limits
    out = np.zeros((*case.size, case.image.shape[-1]), case.image.dtype)
    for place, window in (given or windows(case)).items():
        out[place] = min(max(code(window), low), high)
    return out


def right(case: Case) -> np.ndarray:
    return output(case, lambda window: plain(case, window))


def signed(value: int, bits: int) -> int:
    return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def silicon(value: int, factor: int, bits: int) -> int:
    """A product with a reciprocal as an RTL was seen to do it: cut before it is rounded."""
    product = value * factor
    whole, rest = product >> 16, product & 65535
    if product < 0:
        return signed(whole + (rest > 32768), bits)
    return signed(whole % 2 ** (bits - 1) + (rest >> 15), bits)


Planted = tuple[str, np.ndarray]


def planted(case: Case, random: Random) -> Planted:
    """Return a wrong output and the text of the explanation that is its cause; the text is "" if the
    cause does not apply to the case."""
    name = random.choice([*CAUSES])
    return CAUSES[name](case, random)


def _kind(case: Case, random: Random) -> Planted:
    kind = random.choice([kind for kind in ("average", "max", "min") if kind != case.kind])
    other = Case(case.image, kind, case.kernel, case.stride, case.pads, case.zero, "half-away")
    return kind, right(other)


def _rounding(case: Case, random: Random) -> Planted:
    if case.kind != "average":
        return "", right(case)
    rounding = random.choice([name for name in ROUND if name != case.rounding])
    if case.zero and random.random() < 0.3:
        out = output(case, lambda window: mean(case, inside(window), rounding, case.zero))
        return f"rounding {rounding}:centred", out
    return f"rounding {rounding}", output(case, lambda window: mean(case, inside(window), rounding))


def _border(case: Case, random: Random) -> Planted:
    if not np.any(case.pads):
        return "", right(case)
    code = random.choice([case.zero, 0, case.limits[0]])
    counted = windows(case, border=code)
    words = "border"
    if case.kind == "average":
        words = "border counted"
    return f"{words}, of code {code}", output(case, lambda window: plain(case, window), counted)


def _moved(case: Case, random: Random) -> Planted:
    move = random.choice([(1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, -1)])
    moved = windows(case, move)
    if not all(inside(window) for window in moved.values()):
        return "", right(case)
    down = {0: "", 1: "one row down", -1: "one row up"}[move[0]]
    across = {0: "", 1: "one column right", -1: "one column left"}[move[1]]
    words = f"windows {' and '.join(filter(None, (down, across)))}"
    return words, output(case, lambda window: plain(case, window), moved)


def _kernel(case: Case, random: Random) -> Planted:
    high, wide = case.kernel
    kernel = random.choice([(high, wide - 1), (high - 1, wide), (high + 1, wide), (high, wide + 1)])
    if min(kernel) < 1:
        return "", right(case)
    size = case.size
    pads = []
    for axis in (0, 1):
        before = case.pads[axis][0]
        end = (size[axis] - 1) * case.stride[axis] + kernel[axis] - before
        pads.append((before, end - case.image.shape[axis]))
    other = Case(case.image, case.kind, kernel, case.stride, (pads[0], pads[1]), 0, case.rounding)
    if not all(inside(window) for window in windows(other).values()):
        return "", right(case)
    return f"windows of {kernel[0]}x{kernel[1]}", right(other)


def _register(case: Case, random: Random) -> Planted:
    taps = case.kernel[0] * case.kernel[1]
    if case.kind != "average" or taps < 4:
        return "", right(case)
    bits = random.randint(8, 7 + (taps - 1).bit_length())
    how = random.choice(["wrapped at", "saturated at"])

    def keep(value: int) -> int:
        low, high = 0, 2**bits - 1
        if case.limits[0]:
            low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        if how == "saturated at":
            return min(max(value, low), high)
        return (value - low) % 2**bits + low

    def code(window: Codes) -> int:
        codes = inside(window)
        return ROUND[case.rounding](Fraction(keep(sum(codes)), len(codes)))

    return f"sums {how} {bits} bits", output(case, code)


def _swapped_reciprocals(case: Case, random: Random) -> Planted:
    taps = case.kernel[0] * case.kernel[1]
    if case.kind != "average" or taps < 9 or np.any(case.pads) or not case.limits[0]:
        return "", right(case)

    def code(window: Codes) -> int:
        return silicon(silicon(sum(inside(window)), 65536, 11), (65536 + taps // 2) // taps, 8)

    return "11 bits", output(case, code)


def _reciprocal(case: Case, random: Random) -> Planted:
    if case.kind != "average":
        return "", right(case)
    bits = random.randint(7, 16)
    rounding = random.choice(["half-away", "half-up", "floor", "toward-zero", case.rounding])
    rounded = random.choice(["nearest", "down"])

    def code(window: Codes) -> int:
        codes = inside(window)
        exact = Fraction(2**bits, len(codes))
        factor = floor(exact)
        if rounded == "nearest":
            factor = floor(exact + Fraction(1, 2))
        return ROUND[rounding](Fraction(sum(codes) * factor, 2**bits))

    words = f"a reciprocal of {bits} bits rounded {rounded}, product rounded {rounding}"
    return words, output(case, code)


def _of_averages(case: Case, random: Random) -> Planted:
    if case.kind != "average" or 1 in case.kernel:
        return "", right(case)
    by_row = random.random() < 0.5

    def code(window: Codes) -> int:
        lines: list[list[int]] = []
        for line in window if by_row else list(map(list, zip(*window, strict=True))):
            codes = [value for value in line if value is not None]
            if codes:
                lines.append(codes)
        return mean(case, [mean(case, codes) for codes in lines])

    name = "rows averaged" if by_row else "columns averaged"
    return f"{name}, then their averages, each rounded {case.rounding}", output(case, code)


def _two_steps(case: Case, random: Random) -> Planted:
    if case.kind != "average" or 1 in case.kernel:
        return "", right(case)
    by_width = random.random() < 0.5

    def code(window: Codes) -> int:
        rows = [line for line in window if any(value is not None for value in line)]
        down, across = len(rows), len([value for value in rows[0] if value is not None])
        first, second = (across, down) if by_width else (down, across)
        between = ROUND[case.rounding](Fraction(sum(inside(window)), first))
        return ROUND[case.rounding](Fraction(between, second))

    order = "width, then by the height" if by_width else "height, then by the width"
    return f"divided by the {order}, each rounded {case.rounding}", output(case, code)


def _shift(case: Case, random: Random) -> Planted:
    taps = case.kernel[0] * case.kernel[1]
    if case.kind != "average" or taps.bit_count() == 1 or np.any(case.pads):
        return "", right(case)
    above = random.random() < 0.5
    by = 1 << (taps.bit_length() - (not above))
    word = "above" if above else "below"
    out = output(case, lambda window: ROUND[case.rounding](Fraction(sum(inside(window)), by)))
    return f"divided by a power of two {word} the taps", out


def _zero_point(case: Case, random: Random) -> Planted:
    step = random.choice([1, -1])
    return f"output zero point {step:+d}", output(case, lambda window: plain(case, window) + step)


def _sign(case: Case, random: Random) -> Planted:
    other = np.int8 if case.image.dtype == np.uint8 else np.uint8
    seen = Case(
        case.image.view(other),
        case.kind,
        case.kernel,
        case.stride,
        case.pads,
        case.zero,
        case.rounding,
    )
    return "codes read as the other sign", right(seen).view(case.image.dtype)


def _order(case: Case, random: Random) -> Planted:
    out = right(case)
    name = random.choice(["channels reversed", "rows flipped", "columns flipped"])
    axis = {"channels reversed": -1, "rows flipped": 0, "columns flipped": 1}[name]
    return f"output {name}", np.ascontiguousarray(np.flip(out, axis))


CAUSES: dict[str, Callable[[Case, Random], Planted]] = {
    "kind": _kind,
    "rounding": _rounding,
    "border": _border,
    "moved": _moved,
    "kernel": _kernel,
    "register": _register,
    "swapped reciprocals": _swapped_reciprocals,
    "reciprocal": _reciprocal,
    "averages of averages": _of_averages,
    "two steps": _two_steps,
    "shift": _shift,
    "zero point": _zero_point,
    "sign": _sign,
    "order": _order,
}
