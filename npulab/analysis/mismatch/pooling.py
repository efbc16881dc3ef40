"""The predicted output of a pooling layer, and the changes of its explanation: a table of kinds,
like that of ``changes``.

An average is computed in steps, and a device may do each step in its own way: the sum; the bits of
the sum that a register keeps; the division, at once or by width and height, with reciprocals or
without; the rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.mismatch.changes import (
    ENOUGH,
    Change,
    Changes,
    Kinds,
    after,
    before,
    bordered,
    clamps,
    paddings,
    phases,
    reorders,
    varied,
    with_layer,
    with_window,
)
from npulab.analysis.mismatch.predicting import Explanation
from npulab.quant.emulate import clamp_range
from npulab.quant.layers import POOLS, Pool2D
from npulab.quant.layers.plain import CENTRED
from npulab.quant.rules import ROUNDINGS, divided, shift_right

TAKE = {"average": np.add, "max": np.maximum, "min": np.minimum}
# Numbers of fraction bits of a reciprocal, the usual ones first.
FRACTIONS = (16, 15, 31, 8, 24, 20, 14, 13, 12, 11, 10, 9, 7)
NEAREST, DOWN, UP = "nearest", "down", "up"
WIDTH, HEIGHT = "width", "height"
SUM, ROWS, COLUMNS, BETWEEN = "sums", "sums along rows", "sums along columns", "first quotients"
WRAPPED, SATURATED, CUT = "wrapped at", "saturated at", "cut to the low bits of"
# A window or a stride may be off by these numbers of (rows, columns).
STEPS = ((0, 1), (1, 0), (1, 1), (0, -1), (-1, 0), (-1, -1))
# A text names at most this many further reciprocals that give the same averages.
ALIKE_SHOWN = 3
# Reciprocals are compared for every sum if there are at most this many sums.
MOST_SUMS = 2**15
# If there are more sums, reciprocals are compared at this many places of the range of sums.
PLACES = 9
# If a number is fitted to each output, the outputs must hold this many bits more than the numbers.
LEAST_FITTED = 32
# The first sums and tables that were asked for are kept, at most this many.
MOST_HELD = 8
# A table is used if it has fewer entries than there are sums, plus this.
LEAST_TABLE = 2**14
# Multiples of powers of two up to this exponent are fitted.
MOST_FITTED = 20


class Reciprocal(NamedTuple):
    """A reciprocal in place of a division: the factor ``2**fraction / divisor``, ``rounded`` to a
    whole number.
    """

    fraction: int
    rounded: str

    def of(self, by: Array) -> Array:
        unit = 2**self.fraction
        if self.rounded == DOWN:
            return unit // by
        if self.rounded == UP:
            return -(-unit // by)
        return (2 * unit + by) // (2 * by)


class Kept(NamedTuple):
    """What a register that is too narrow keeps: ``where`` says of which sums, ``bits`` how many
    bits, and ``how`` the others are lost.
    """

    where: str
    bits: int
    how: str

    def of(self, values: Array, signed: bool) -> Array:
        low, high = 0, 2**self.bits - 1
        if signed:
            low, high = -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1
        if self.how == SATURATED:
            return values.clip(low, high)
        if self.how == CUT:
            values = np.where(values >= 0, values % (high + 1), values)
        return (values - low) % 2**self.bits + low


@dataclass(frozen=True)
class Average:
    """The steps to an average. By default the sum is divided once, by the number of taps inside the
    image.

    ``divisor`` is one of ``DIVISORS``, ``order`` one of ``ORDERS``. ``kept`` is a register that is
    too narrow. ``centre`` is subtracted from every code before the division and added after it.
    """

    divisor: str = "taps"
    order: str = "at once"
    reciprocal: Reciprocal | None = None
    kept: Kept | None = None
    centre: int | None = None


@dataclass(frozen=True, eq=False)
class Pooled(Explanation):
    """An explanation of the output of a pooling layer; ``offset`` is added to every output code."""

    layer: Pool2D
    average: Average = field(default_factory=Average)
    offset: int = 0

    @property
    def words(self) -> str:
        if self.layer.kind == "average":
            return f"average, rounding {self.layer.rounding}"
        return self.layer.kind

    @property
    def rounding(self) -> str:
        name, _, _ = self.layer.rounding.partition(":")
        return name

    @property
    def centre(self) -> int:
        if self.average.centre is not None:
            return self.average.centre
        if self.layer.rounding.endswith(CENTRED):
            return self.layer.input_q.zero_point
        return 0


class Table(NamedTuple):
    """All values that sums of windows may have: a function of a sum is computed once for each
    value.

    ``numbers (1, S)`` are the values. ``down (K, 1)`` and ``across (K, 1)`` are the rows and
    columns of taps inside the image, for each of K kinds of windows. ``places (N, H, W, C)`` has
    for each window its index in the flat table ``(K, S)`` of the results.
    """

    numbers: Array
    down: Array
    across: Array
    places: Array


class Windows:
    """Sums of windows and their tables. The first ``MOST_HELD`` that were asked for are kept, and
    the last one.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def of(self, layer: Pool2D, x: Array, along: str = "") -> Array:
        """Return the windows ``(N, H, W, C)``: sums, maxima or minima; with ``along`` only the sums
        along the width or the height of each window."""
        key = ("windows", id(x), layer.kind, layer.kernel, layer.stride, layer.pads, along)
        return self._kept(key, x, lambda: _windows(layer, x, along))

    def table(self, layer: Pool2D, x: Array, along: str = "") -> Table | None:
        """Return the table of the sums that ``of`` returns; None if it would have too many entries
        to save time (see ``LEAST_TABLE``).
        """
        key = ("table", id(x), layer.kind, layer.kernel, layer.stride, layer.pads, along)
        sums = self.of(layer, x, along)
        return self._kept(key, x, lambda: _table(sums, *taps_inside(layer, along)))

    def _kept(self, key: tuple[Any, ...], x: Array, make: Callable[[], Any]) -> Any:
        if key not in self._held:
            if len(self._held) > MOST_HELD:
                self._held.popitem()
            # the image stays with its sums: its id is in the key, and no new image may get it
            self._held[key] = (x, make())
        return self._held[key][1]


def _table(sums: Array, down: Array, across: Array) -> Table | None:
    low, high = int(sums.min()), int(sums.max())
    heights, rows = np.unique(down, return_inverse=True)
    widths, columns = np.unique(across, return_inverse=True)
    count = high - low + 1
    if heights.size * widths.size * count >= sums.size + LEAST_TABLE:
        return None
    first = rows.reshape(down.shape) * widths.size + columns.reshape(across.shape)
    places = (first * count - low + sums).astype(np.intp)
    numbers = np.arange(low, high + 1)[None]
    by_height = heights.repeat(widths.size)[:, None]
    by_width = np.tile(widths, heights.size)[:, None]
    return Table(numbers, by_height, by_width, places)


def _windows(layer: Pool2D, x: Array, along: str) -> Array:
    idle = 0
    if layer.kind == "max":
        idle = np.iinfo(x.dtype).min
    if layer.kind == "min":
        idle = np.iinfo(x.dtype).max
    rows, columns = layer.pads
    if along == WIDTH:
        rows = (0, 0)
    if along == HEIGHT:
        columns = (0, 0)
    images = x.reshape(-1, *layer.input_shape)
    out = np.pad(images, [(0, 0), rows, columns, (0, 0)], constant_values=idle)
    if layer.kind == "average":
        kind: Any = np.int32
        if np.iinfo(x.dtype).bits + math.prod(layer.kernel).bit_length() > 31:
            kind = np.int64
        out = out.astype(kind)
    if along != HEIGHT:
        out = _combined(layer, out, 1)
    if along != WIDTH:
        out = _combined(layer, out, 0)
    return out


def _combined(layer: Pool2D, x: Array, axis: int) -> Array:
    """Return the taps of every window combined along one axis (0 is the height)."""
    step, count = layer.stride[axis], layer.output_shape[axis]
    end = (count - 1) * step + 1
    lines = np.moveaxis(x, 1 + axis, 0)
    out = lines[:end:step].copy()
    for tap in range(1, layer.kernel[axis]):
        TAKE[layer.kind](out, lines[tap : tap + end : step], out=out)
    return np.moveaxis(out, 0, 1 + axis)


def taps_inside(layer: Pool2D, along: str = "") -> tuple[Array, Array]:
    """Return how many taps of each window lie inside the image: ``(H, 1, 1)`` along the window's
    height and ``(W, 1)`` along its width. If ``along`` names one axis, the number along the other
    is 1.
    """
    found = []
    for axis in (0, 1):
        first = np.arange(layer.output_shape[axis]) * layer.stride[axis] - layer.pads[axis][0]
        end = np.minimum(first + layer.kernel[axis], layer.input_shape[axis])
        found.append(end - np.maximum(first, 0))
    rows, columns = found
    if along == WIDTH:
        rows = np.ones(1, int)
    if along == HEIGHT:
        columns = np.ones(1, int)
    return rows[:, None, None], columns[:, None]


def _below(counts: Array) -> Array:
    exponents = np.frexp(counts)[1] - 1
    return 2**exponents


def _above(counts: Array) -> Array:
    exponents = np.frexp(counts - 1)[1]
    return 2**exponents


# By name: a function that returns the divisors for height and width, from the numbers of taps
# inside the image.
DIVISORS: dict[str, Callable[[Array, Array], tuple[Array, Array]]] = {
    "taps": lambda down, across: (down, across),
    "a power of two below the taps": lambda down, across: (_below(down * across), across**0),
    "a power of two above the taps": lambda down, across: (_above(down * across), across**0),
    "the width of the window": lambda down, across: (down**0, across),
    "the height of the window": lambda down, across: (down, across**0),
    "1 (sums)": lambda down, across: (down**0, across**0),
}
ORDERS = {
    "at once": "",
    "by the width, then by the height": WIDTH,
    "by the height, then by the width": HEIGHT,
    "rows averaged, then their averages": WIDTH,
    "columns averaged, then their averages": HEIGHT,
}
OF_AVERAGES = tuple(order for order in ORDERS if order.endswith("averages"))


def predict(of: Pooled, kept: Windows, shape: tuple[int, ...] | None = None) -> Array:
    """Return the output of a hypothesis; raises ValueError if its shape would not be ``shape``."""
    layer = of.layer
    if shape is not None and layer.output_shape != shape[-3:]:
        raise ValueError(f"shape: got {layer.output_shape}, allowed is {shape}")
    if layer.kind == "average":
        out = _averages(of, kept)
    else:
        out = _limited(of, kept.of(layer, of.x))
    return of.changed(out.reshape(*of.x.shape[:-3], *layer.output_shape))


def _limited(of: Pooled, codes: Array) -> Array:
    """Return codes as the type of the output has them."""
    if of.offset:
        codes = codes.astype(np.int64) + of.offset
    if of.clamp is None:
        codes = codes.clip(*clamp_range(of.layer, of.x.dtype, of.rule))
    else:
        codes = of.clamp(codes.astype(np.int64), of.limits())
    return codes.astype(of.x.dtype)


def _averages(of: Pooled, kept: Windows) -> Array:
    layer, how = of.layer, of.average
    # sums along one axis (a row or column of taps) are changed before they are added along the
    # other
    along = ""
    if how.kept is not None:
        along = {ROWS: WIDTH, COLUMNS: HEIGHT}.get(how.kept.where, "")
    if how.order in OF_AVERAGES:
        along = ORDERS[how.order]
    if not along:
        return _by_table(partial(_of_total, of), layer, of.x, kept)
    lines = _by_table(partial(_of_line, of, along), layer, of.x, kept, along)
    other = [WIDTH, HEIGHT].index(along)
    around = [(0, 0)] * 4
    around[1 + other] = layer.pads[other]
    total = _combined(layer, np.pad(lines, around), other)
    return _of_lines(of, along, total, *taps_inside(layer))


def _by_table(
    change: Callable[[Array, Array, Array], Array],
    layer: Pool2D,
    x: Array,
    kept: Windows,
    along: str = "",
) -> Array:
    """Return ``change(sums, down, across)`` for the sums of all windows, computed once for each
    value if a table saves time.
    """
    table = kept.table(layer, x, along)
    if table is None:
        sums = kept.of(layer, x, along).astype(np.int64)
        return change(sums, *taps_inside(layer, along))
    return change(table.numbers, table.down, table.across).ravel()[table.places]


def _of_total(of: Pooled, total: Array, down: Array, across: Array) -> Array:
    """Return the averages of sums over windows of ``down`` times ``across`` taps."""
    how = of.average
    total = _narrowed(of, SUM, total - of.centre * down * across)
    down, across = DIVISORS[how.divisor](down, across)
    if how.order == "at once":
        return _limited(of, _quotient(of, total, down * across) + of.centre)
    first, second = across, down
    if ORDERS[how.order] == HEIGHT:
        first, second = down, across
    between = _narrowed(of, BETWEEN, _quotient(of, total, first))
    return _limited(of, _quotient(of, between, second) + of.centre)


def _of_line(of: Pooled, along: str, sums: Array, down: Array, across: Array) -> Array:
    count = down * across
    sums = sums - of.centre * count
    where = COLUMNS
    if along == WIDTH:
        where = ROWS
    sums = _narrowed(of, where, sums)
    if of.average.order in OF_AVERAGES:
        return _quotient(of, sums, count)
    return sums


def _of_lines(of: Pooled, along: str, total: Array, down: Array, across: Array) -> Array:
    by = down * across
    if of.average.order in OF_AVERAGES:
        by = across
        if along == WIDTH:
            by = down
    return _limited(of, _quotient(of, total, by) + of.centre)


def _narrowed(of: Pooled, where: str, values: Array) -> Array:
    kept = of.average.kept
    if kept is None or kept.where != where:
        return values
    signed = bool(np.iinfo(of.x.dtype).min) or of.centre != 0
    return kept.of(values, signed)


def _quotient(of: Pooled, values: Array, by: Array) -> Array:
    reciprocal = of.average.reciprocal
    if reciprocal is None:
        return divided(values, by, of.rounding)
    return shift_right(values * reciprocal.of(by), reciprocal.fraction, of.rounding)


# Changes


def _kinds(start: Pooled, output: Array) -> Changes:
    for kind in POOLS:
        if kind == start.layer.kind:
            continue
        rounding = ROUNDINGS[-1]
        change = partial(with_layer, kind=kind, rounding=rounding)
        yield kind, "kind", change
    if start.layer.kernel != (1, 1):
        change = partial(with_window, output=output, kernel=(1, 1))
        yield "first pixel of each window", "kind", change


def _roundings(start: Pooled, output: Array) -> Changes:
    if start.layer.kind != "average":
        return
    for name in _other_roundings(start):
        yield f"rounding {name}", "rounding", partial(with_layer, rounding=name)
    info = np.iinfo(output.dtype)
    if info.min:
        return
    # a device with signed codes rounds towards, or away from, the middle of unsigned codes
    half = 2 ** (info.bits - 1)
    for name in ("toward-zero", "half-away"):
        change = partial(_rounded_about, rounding=name, centre=half)
        yield f"rounding {name} of codes minus {half}", "rounding", change


def _other_roundings(start: Pooled) -> Iterator[str]:
    """Yield the names of all roundings but the present one. Roundings around a zero point are left
    out if they are the same as without it: floor and half up, and half to even for an even zero
    point.
    """
    names = [*ROUNDINGS]
    zero = start.layer.input_q.zero_point
    if zero:
        names += [f"toward-zero{CENTRED}", f"half-away{CENTRED}"]
    if zero % 2:
        names.append(f"half-even{CENTRED}")
    for name in names:
        if name != start.layer.rounding:
            yield name


def _rounded_about(of: Pooled, rounding: str, centre: int) -> Pooled:
    average = replace(of.average, centre=centre)
    return replace(with_layer(of, rounding=rounding), average=average)


def _with_average(of: Pooled, **changed: Any) -> Pooled:
    average = replace(of.average, **changed)
    return replace(of, average=average)


def _offsets(start: Pooled, output: Array) -> Changes:
    zero = start.layer.input_q.zero_point
    offsets = {"output zero point +1": 1, "output zero point -1": -1}
    if abs(zero) > 1:
        offsets["output zero point left out"] = -zero
        offsets["output zero point added twice"] = zero
    for words, offset in offsets.items():
        yield words, "output zero point", partial(replace, offset=offset)
    if output.dtype.itemsize == 1:
        yield "codes read as the other sign", "sign", _as_other_sign


def _as_other_sign(of: Pooled) -> Pooled:
    kinds = {np.dtype(np.int8): np.uint8, np.dtype(np.uint8): np.int8}
    mine = of.x.dtype
    other = replace(of, x=of.x.view(kinds[mine]))
    return after(other, partial(_viewed, dtype=mine))


def _viewed(out: Array, dtype: Any) -> Array:
    return out.view(dtype)


def _borders(start: Pooled, output: Array) -> Changes:
    layer = start.layer
    if not np.any(layer.pads):
        return
    info = np.iinfo(output.dtype)
    zero = layer.input_q.zero_point
    codes = dict.fromkeys((zero, 0, int(info.min), int(info.max), zero + 1, zero - 1))
    counts = "border"
    if layer.kind == "average":
        counts = "border counted"
    for code in codes:
        if info.min <= code <= info.max:
            yield f"{counts}, of code {code}", "border", partial(bordered, constant_values=code)
    yield f"{counts}, the edge repeated", "border", partial(bordered, mode="edge")
    yield f"{counts}, the image mirrored", "border", partial(bordered, mode="reflect")


def _windows_changed(start: Pooled, output: Array) -> Changes:
    layer = start.layer
    (high, wide), (down, across) = layer.kernel, layer.stride
    kernels = [(wide, high)]
    strides = [(across, down), layer.kernel]
    for row, column in STEPS:
        kernels.append((high + row, wide + column))
        strides.append((down + row, across + column))
    for kernel in dict.fromkeys(kernels):
        if kernel != layer.kernel and min(kernel) > 0:
            change = partial(with_window, output=output, kernel=kernel)
            yield f"windows of {kernel[0]}x{kernel[1]}", "window", change
    for stride in dict.fromkeys(strides):
        if stride != layer.stride and min(stride) > 0:
            change = partial(with_window, output=output, stride=stride)
            yield f"stride {stride[0]}x{stride[1]}", "window", change


def _divisors(start: Pooled, output: Array) -> Changes:
    if start.layer.kind != "average":
        return
    for name in DIVISORS:
        if name != start.average.divisor:
            yield f"divided by {name}", "divisor", partial(_with_average, divisor=name)


def _orders_of_steps(start: Pooled, output: Array) -> Changes:
    layer = start.layer
    if layer.kind != "average" or 1 in layer.kernel:
        return
    names = [layer.rounding, *_other_roundings(start)]
    for order, rounding in product(ORDERS, names):
        if order != start.average.order:
            words = f"{_divided(order)}, each rounded {rounding}"
            change = partial(_in_steps, order=order, rounding=rounding)
            yield words, "order", change
    plain = (Reciprocal(16, NEAREST), Reciprocal(16, DOWN), Reciprocal(15, NEAREST))
    for order, reciprocal in product(ORDERS, plain):
        if order != start.average.order:
            words = f"{_divided(order)}, each by {_reciprocal(reciprocal)}"
            change = partial(_with_average, order=order, reciprocal=reciprocal)
            yield words, "order", change


def _divided(order: str) -> str:
    if order in OF_AVERAGES:
        return order
    return f"divided {order}"


def _in_steps(of: Pooled, order: str, rounding: str) -> Pooled:
    return _with_average(with_layer(of, rounding=rounding), order=order)


def _reciprocal(of: Reciprocal) -> str:
    return f"a reciprocal of {of.fraction} bits rounded {of.rounded}"


def _registers(start: Pooled, output: Array) -> Changes:
    """Yield the changes to a register that is too narrow for the sums of the codes; none if few
    outputs differ from each other, because a narrow register explains any constant output.
    """
    layer = start.layer
    if layer.kind != "average" or varied(output) < ENOUGH:
        return
    high, wide = layer.kernel
    sizes = {SUM: high * wide}
    if 1 not in layer.kernel:
        sizes |= {ROWS: wide, COLUMNS: high}
    info = np.iinfo(output.dtype)
    for where, taps in sizes.items():
        for bits, how in _narrow(info, taps):
            change = partial(_with_average, kept=Kept(where, bits, how))
            yield f"{where} {how} {bits} bits", "register", change


def _between_steps(start: Pooled, output: Array) -> Changes:
    """Yield the changes to two divisions, with a register that is too narrow for the first
    quotients.
    """
    layer = start.layer
    if layer.kind != "average" or 1 in layer.kernel or varied(output) < ENOUGH:
        return
    info = np.iinfo(output.dtype)
    high, wide = layer.kernel
    for order, others in (
        ("by the width, then by the height", high),
        ("by the height, then by the width", wide),
    ):
        for bits, how in _narrow(info, others):
            kept = Kept(BETWEEN, bits, how)
            change = partial(_with_average, order=order, kept=kept)
            yield f"divided {order}, {BETWEEN} {how} {bits} bits", "order", change


def _narrow(info: Any, taps: int) -> Iterator[tuple[int, str]]:
    """Yield (bits, how) of each register that cannot hold every sum of ``taps`` codes, the widest
    first; ``how`` says what it keeps of a sum that is too large.
    """
    ways = [WRAPPED, SATURATED]
    if info.min:
        ways.append(CUT)
    needed = info.bits + (taps - 1).bit_length()
    yield from product(range(needed - 1, info.bits - 1, -1), ways)


def _reciprocals(start: Pooled, output: Array) -> Changes:
    """Yield the changes to reciprocals that give another average for at least one sum. Reciprocals
    that give the same averages for every sum are one change, which names some of them.
    """
    layer = start.layer
    if layer.kind != "average":
        return
    found: dict[bytes, list[tuple[Reciprocal, str]]] = {}
    names = [layer.rounding]
    _, _, centred = layer.rounding.partition(":")
    for name in ROUNDINGS:
        full = ":".join(filter(None, (name, centred)))
        if full != layer.rounding:
            names.append(full)
    sums, counts = _telling_sums(start)
    rounded_as = {}
    exact = set()
    for rounding in names:
        of = with_layer(start, rounding=rounding)
        rounded_as[rounding] = of
        exact.add(_quotient(of, sums, counts).tobytes())
    for fraction, rounded, rounding in product(FRACTIONS, (NEAREST, DOWN, UP), names):
        reciprocal = Reciprocal(fraction, rounded)
        of = _with_average(rounded_as[rounding], reciprocal=reciprocal)
        table = _quotient(of, sums, counts).tobytes()
        if table not in exact:
            found.setdefault(table, []).append((reciprocal, rounding))
    for alike in found.values():
        (reciprocal, rounding), *others = alike
        words = f"{_reciprocal(reciprocal)}, product rounded {rounding}"
        more = []
        for other, its in others[:ALIKE_SHOWN]:
            more.append(f"{other.fraction} bits {other.rounded}, {its}")
        if len(others) > ALIKE_SHOWN:
            more.append(f"{len(others) - ALIKE_SHOWN} more")
        if more:
            words += f" (the same for every sum: {'; '.join(more)})"
        change = partial(_by_reciprocal, reciprocal=reciprocal, rounding=rounding)
        yield words, "reciprocal", change


def _telling_sums(start: Pooled) -> tuple[Array, Array]:
    """Return sums of codes on which reciprocals are compared, and the number of taps of each,
    ``(T,)``, for every number of taps that a window has inside the image. They are all sums or, if
    there are too many, ``2 * taps`` neighbouring sums at both ends of the range and at places
    between.

    The larger a sum is, the more two reciprocals differ; between the ends of the range both may
    round to the same integer.
    """
    info = np.iinfo(start.x.dtype)
    sums, counts = [], []
    held = np.unique(np.multiply(*taps_inside(start.layer))).tolist()
    every = sum(held) * 2**info.bits <= MOST_SUMS
    for taps in held:
        low, high = taps * (info.min - start.centre), taps * (info.max - start.centre)
        if every:
            near = np.arange(low, high + 1)
        else:
            firsts = np.linspace(low, high + 1 - 2 * taps, PLACES).astype(np.int64)
            near = (firsts[:, None] + np.arange(2 * taps)).ravel()
        sums.append(near)
        counts.append(np.full(near.size, taps))
    return np.concatenate(sums), np.concatenate(counts)


def _by_reciprocal(of: Pooled, reciprocal: Reciprocal, rounding: str) -> Pooled:
    return _with_average(with_layer(of, rounding=rounding), reciprocal=reciprocal)


def _orders(start: Pooled, output: Array) -> Changes:
    for words, change in reorders(output.shape, True):
        yield f"output {words}", "output order", partial(after, change=change)
    for words, change in reorders(start.x.shape, True):
        # another order of the channels has the same effect before and after a pooling
        if not words.startswith("channels"):
            yield f"input {words}", "input order", partial(before, change=change)


CHANGES: Kinds = (
    ("kind of pooling", _kinds),
    ("rounding", _roundings),
    ("zero point", _offsets),
    ("border", _borders),
    ("padding", paddings),
    ("stride phase", phases),
    ("window", _windows_changed),
    ("clamp", clamps),
    ("divisor", _divisors),
    ("register", _registers),
    ("order of division", _orders_of_steps),
    ("order of division", _between_steps),
    ("reciprocal", _reciprocals),
    ("channel order", _orders),
)


def off_by_multiples(start: Pooled, predicted: Array, output: Array, kept: Windows) -> list[Change]:
    """Return the change by which every sum is off by a multiple of a power of two, as a list; empty
    if there is none. The power is the largest that explains all outputs.

    A whole number is fitted to each output. So the outputs that differ have to hold more
    information than the fitted numbers.
    """
    layer = start.layer
    if layer.kind != "average":
        return []
    total = kept.of(layer, start.x).reshape(output.shape).astype(np.int64)
    counts = np.multiply(*taps_inside(layer))
    total = total - start.centre * counts
    low, high = clamp_range(layer, output.dtype, start.rule)
    inside = (output > low) & (output < high)
    wrong = np.count_nonzero((predicted != output) & inside)
    taps = int(counts.max())
    codes = output.astype(np.int64)
    for power in range(MOST_FITTED, 0, -1):
        information = wrong * (power - math.log2(taps))
        if information < LEAST_FITTED:
            return []
        multiple = 2**power
        number = np.rint((total - (codes - start.centre) * counts) / multiple).astype(np.int64)
        rounded = divided(total - number * multiple, counts, start.rounding) + start.centre
        if np.array_equal(rounded.clip(low, high), codes):
            words = f"averages off by multiples of 2**{power} / {taps}"
            change = partial(after, change=partial(_replaced, by=output))
            return [Change("register", words, change, "register")]
    return []


def _replaced(out: Array, by: Array) -> Array:
    return by
