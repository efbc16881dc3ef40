"""Activation tables made for a function, compared with a function, and recognised."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.npus.ane.tables import CODES, evaluate, values
from npulab.npus.ane.tables.entries import KINDS, KNOTS, PLAIN, REDUCED, Table, halves
from npulab.npus.ane.tables.named import FUNCTIONS, Function
from npulab.npus.kit import pd, read_table, refuse_if

# The smallest normal and the largest number of fp16.
LEAST_NORMAL = 2.0**-14
MOST = 65504.0
# A number of at least this magnitude rounds to infinity in fp16.
TO_INFINITY = 65520.0
# ``closest`` divides an error by the true value, or by this number if the true value is smaller.
LEAST_SHARED = 2.0**-6
# ``identify`` accepts a function with a largest error below this share of the true value. Tables of
# compilers reach 0.12.
NEAR = 0.2


@dataclass(frozen=True)
class Shape:
    """The arguments of ``fit`` other than the function, which a row of ``fits.csv`` also states.

    ``symmetry`` is a name or a code; ``left`` and ``right`` are (slope, intercept) of a line.
    ``fit`` computes a value that is None.
    """

    kind: Any = None
    low: float = -math.inf
    high: float = math.inf
    symmetry: Any = "none"
    step_exponent: Any = None
    y_low: Any = None
    y_high: Any = None
    left: Any = None
    right: Any = None


def _line_in(cell: str) -> tuple[float, ...]:
    return tuple(map(float, cell.split()))


# The columns of fits.csv, each with the function that reads its cells.
ARGUMENTS: Mapping[str, Any] = {
    "kind": str,
    "symmetry": str,
    "low": float,
    "high": float,
    "y_low": float,
    "y_high": float,
    "step_exponent": int,
    "left": _line_in,
    "right": _line_in,
}


def _fits() -> Mapping[Any, Mapping[str, Any]]:
    """Return the arguments that ``fits.csv`` states for each function, by its name.

    Empty cells are left out.
    """
    fits = {}
    for row in read_table(Path(__file__).with_name("fits.csv")):
        given = {}
        for name, read in ARGUMENTS.items():
            if row[name]:
                given[name] = read(row[name])
        fits[row["function"]] = given
    return fits


# Arguments of ``fit`` by function. They give limits, lines and steps as in the tables that
# compilers from 4.2.1 on wrote for H13, and equal knots, except for gelu and selu, whose knots
# differ.
FITS = _fits()


def true(function: str | Function, x: Any) -> Array:
    """Return the true values (float64) of a function at x, NaN outside its domain.

    ``function`` is a function or its name in ``FUNCTIONS``; an unknown name raises LookupError.

    >>> true("relu6", [-1.0, 2.0, 9.0]).tolist()
    [0.0, 2.0, 6.0]
    """
    exact = _exact(function)
    with np.errstate(all="ignore"):
        found = exact(np.asarray(x, np.float64))
    return np.asarray(found, np.float64)


def _exact(function: str | Function) -> Function:
    if not isinstance(function, str):
        return function
    allowed = f"is a function of arrays or one of {', '.join(FUNCTIONS)}"
    refuse_if(function not in FUNCTIONS, "function", repr(function), allowed, LookupError)
    return FUNCTIONS[function]


def fit(
    function: str | Function,
    kind: str | None = None,
    low: float | None = None,
    high: float | None = None,
    **further: Any,
) -> Table:
    """Return an activation table whose knots are the function's values rounded to fp16.

    ``fit("tanh")`` makes the table of a known name: arguments that are left out come from ``FITS``.
    Other defaults are:

    - ``low`` and ``high``, the limits: infinite. At and below ``low`` the result is ``y_low``, at
      and above ``high`` it is ``y_high``: the function's values at the limits.
    - ``step_exponent``: the finest step with which the knots reach all finite limits.
    - ``left`` and ``right``, (slope, intercept) of the lines beyond the knots: a line from the
      outermost knot to the limit or, if the limit or its value is infinite, to the function's value
      one step further.

    ``further`` may have ``y_low``, ``y_high``, ``step_exponent``, ``left``, ``right`` and
    ``symmetry``. Raises ValueError, with the argument, if it is missing or does not fit a table.

    >>> fit("tanh")
    Table(from_zero, odd, step 2**-3, x 0 to 4)
    """
    given = {"kind": kind, "low": low, "high": high, **further}
    chosen = {name: value for name, value in given.items() if value is not None}
    known = FITS.get(function, {})
    exact = _exact(function)
    shape = _completed(Shape(**{**known, **chosen}), exact)
    table = Table(
        shape.low,
        shape.high,
        shape.y_low,
        shape.y_high,
        np.zeros(KNOTS),
        step_exponent=shape.step_exponent,
        kind=KINDS[shape.kind],
        symmetry=shape.symmetry,
    )
    x = table.positions
    if shape.kind in REDUCED:
        # Mantissas are at least a half; knots below a half are never used and are set to 0.
        reached = (x >= 0.5) | (shape.kind == "exp2")
        return replace(table, knots=_finite(exact, x, reached))
    left_edge, right_edge, step = 0.0, 0.0, 1.0
    if len(x):
        left_edge, right_edge = x[0], x[-1]
        step = 2.0**-shape.step_exponent
        table = replace(table, knots=_finite(exact, x))
    left = shape.left or _line(exact, left_edge, shape.low, shape.y_low, -step)
    right = shape.right or _line(exact, right_edge, shape.high, shape.y_high, step)
    return replace(
        table,
        left_slope=left[0],
        left_intercept=left[1],
        right_slope=right[0],
        right_intercept=right[1],
    )


def _completed(shape: Shape, exact: Function) -> Shape:
    """Return a shape with its missing limits, values and step computed, limits rounded to fp16."""
    kinds = [*PLAIN, *REDUCED]
    if shape.kind not in kinds:
        raise ValueError(f"kind: got {shape.kind!r}, allowed is one of {', '.join(kinds)}")
    low = float(halves(shape.low))
    high = float(halves(shape.high))
    if not low < high:
        raise ValueError(
            f"low, high: got {shape.low} and {shape.high}, allowed is a low below high in fp16"
        )
    y_low = _limit("y_low", shape.y_low, exact, low)
    y_high = _limit("y_high", shape.y_high, exact, high)
    exponent = shape.step_exponent
    if exponent is None:
        exponent = _step_exponent(shape.kind, low, high)
    changed = replace(shape, low=low, high=high, step_exponent=exponent)
    return replace(changed, y_low=y_low, y_high=y_high)


def errors(
    table: Table,
    function: str | Function,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    rounded: bool = True,
) -> pd.DataFrame:
    """Return the errors of a table against a function, over inputs from ``low`` to ``high``.

    Inputs are all finite fp16 numbers for which the function is finite. Rows: the absolute error;
    the relative error, of true values that are normal in fp16; the error in units of the true
    value's last place in fp16. Columns: ``largest`` and ``mean`` error; ``x``, ``y`` (the table's
    value) and ``true`` of the largest; ``inputs``, their number. An infinity is no error if the
    true value rounds to it; every other infinity or NaN is an infinite error. If ``rounded`` is
    false, y is the value before rounding to fp16. Raises ValueError if there is no input.
    """
    x = _finite_inputs()
    x = np.sort(x[(x >= low) & (x <= high)])
    right = true(function, x)
    finite = np.isfinite(right)
    x, right = x[finite], right[finite]
    allowed = "is a range that holds inputs where the function is finite"
    refuse_if(not len(x), "low, high", f"{low} and {high}", allowed)
    if rounded:
        y = evaluate(table, x).astype(np.float64)
    else:
        y = values(table, x)
    off = _distances(y, right)
    sizes = np.abs(right)
    everywhere = np.ones(len(x), bool)
    normal = sizes >= LEAST_NORMAL
    rows = []
    for measure, scale, some in (
        ("absolute", everywhere, everywhere),
        ("relative", sizes, normal),
        ("ulps", last_place(right), everywhere),
    ):
        scaled = np.full(len(x), -1.0)
        np.divide(off, scale, out=scaled, where=some)
        at = int(np.argmax(scaled))
        numbers: tuple[float, ...] = (np.nan,) * 5
        if some.any():
            mean = scaled[some].mean()
            numbers = scaled[at], mean, float(x[at]), y[at], right[at]
        count = int(np.count_nonzero(some))
        rows.append((measure, *numbers, count))
    columns = ["measure", "largest", "mean", "x", "y", "true", "inputs"]
    return pd.DataFrame(rows, columns=columns).set_index("measure")


def _distances(y: Array, right: Array) -> Array:
    """Return the absolute errors of ``y`` against the true values ``right``.

    An infinity or NaN that is not the rounded true value is an infinite error.
    """
    with np.errstate(invalid="ignore"):
        distances = np.abs(y - right)
    off = np.where(np.isfinite(y), distances, np.inf)
    to_infinity = np.abs(right) >= TO_INFINITY
    same_sign = y * right > 0
    off[np.isinf(y) & same_sign & to_infinity] = 0.0
    return off


def closest(table: Table) -> pd.DataFrame:
    """Return the mean and largest error of a table against each function of ``FUNCTIONS``.

    The nearest function comes first. Inputs are all finite fp16 numbers for which the function is
    finite. An error is divided by the true value, or by 1/64 if the true value is smaller, and is
    at most 1. Values beyond the largest fp16 count as the largest fp16.
    """
    x = _finite_inputs()
    y = np.clip(values(table, x), -MOST, MOST)
    rows = []
    for name in FUNCTIONS:
        right = true(name, x)
        some = np.isfinite(right)
        right = np.clip(right[some], -MOST, MOST)
        distance = np.abs(y[some] - right)
        scale = np.maximum(np.abs(right), LEAST_SHARED)
        share = np.nan_to_num(distance / scale, nan=1.0)
        share = np.minimum(share, 1.0)
        rows.append((name, share.mean(), share.max()))
    found = pd.DataFrame(rows, columns=["function", "mean", "largest"])
    found = found.set_index("function")
    return found.sort_values(["mean", "largest"], kind="stable")


def identify(table: Table) -> str | None:
    """Return the name of the function that a table approximates.

    The result is None if the table is near no function, or about as near to several.

    >>> identify(fit("exp2"))
    'exp2'
    """
    found = closest(table)
    first, second = found.iloc[0], found.iloc[1]
    is_near = first.largest < NEAR
    if is_near and 2 * first["mean"] < second["mean"]:
        return str(found.index[0])
    return None


def last_place(values: Any) -> Array:
    """Return for each value the distance (float64) of neighbouring fp16 numbers of its magnitude.

    >>> last_place([1.0, 0.75, 0.0]).tolist()
    [0.0009765625, 0.00048828125, 5.960464477539063e-08]
    """
    sizes = np.abs(np.asarray(values, np.float64))
    sizes = np.maximum(sizes, LEAST_NORMAL)
    exponent = np.frexp(sizes)[1]
    exponent = np.minimum(exponent, 16)
    return np.ldexp(1.0, exponent - 11)


def _finite_inputs() -> Array:
    codes = np.arange(CODES, dtype=np.uint16)
    x = codes.view(np.float16)
    return x[np.isfinite(x)]


def _step_exponent(kind: str, low: float, high: float) -> int:
    """Return the step exponent of the finest step with which the knots reach all finite limits.

    ``kind`` is one of ``PLAIN``.
    """
    if kind in REDUCED:
        return REDUCED[kind][1]
    steps_left = -PLAIN[kind]
    steps_right = KNOTS - 1 - steps_left
    finest = math.inf
    for steps, size in ((steps_left, -low), (steps_right, high)):
        if steps and 0 < size < math.inf:
            finest = min(finest, steps / size)
    got = f"none with limits {low} and {high}"
    allowed = f"is to leave it out where a limit on the side of the knots is finite ({kind})"
    refuse_if(finest == math.inf, "step_exponent", got, allowed)
    return math.floor(math.log2(finest))


def _finite(function: Function, x: Array, where: Any = True) -> Array:
    """Return the function's values at x, and 0 if ``where`` is false.

    Raises ValueError for a value beyond the largest fp16.
    """
    values = np.where(where, true(function, x), 0.0)
    lost = ~(np.abs(values) < TO_INFINITY)
    if lost.any():
        value, knot = values[lost][0], x[lost][0]
        raise ValueError(f"function: got {value} at the knot {knot}, allowed is at most {MOST:g}")
    return values


def _limit(name: str, given: float | None, function: Function, x: float) -> float:
    value = given
    if value is None:
        value = float(true(function, x))
    if math.isnan(value):
        raise ValueError(f"{name}: the function is not defined at {x}, allowed is to say {name}")
    return value


def _line(
    function: Function, edge: float, limit: float, y: float, way: float
) -> tuple[float, float]:
    """Return (slope, intercept) of a line from the outermost knot to the limit, or to the
    function's value one step further if limit or value is infinite."""
    if (limit - edge) * way <= 0:
        return 0.0, y
    at_edge = _finite(function, np.array([edge]))
    near = float(halves(at_edge[0]))
    further = limit
    if not math.isfinite(limit) or not math.isfinite(y):
        further = edge + way
        y = float(_finite(function, np.array([further]))[0])
    exact_slope = (y - near) / (further - edge)
    # Adding 0.0 turns a slope of -0 into 0.
    slope = float(halves(exact_slope)) + 0.0
    return slope, near - slope * edge
