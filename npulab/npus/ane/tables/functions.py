"""The functions that activation tables approximate, in float64.

Tables are fitted to them, compared with them, and recognised by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from npulab.npus.ane.tables import CODES, evaluate, values
from npulab.npus.ane.tables.entries import KINDS, KNOTS, PLAIN, REDUCED, Table, halves
from npulab.npus.kit import pd, read_table, refuse_if

Function = Callable[[np.ndarray], np.ndarray]
# limits of fp16
LEAST_NORMAL = 2.0**-14
MOST = 65504.0
TO_INFINITY = 65520.0  # numbers of this size and larger round to infinity
LEAST_SHARED = 2.0**-6  # below it, ``closest`` measures the error as a share of this
NEAR = 0.2  # share of the true value; steps of tables that were seen reach 0.12
# of SELU (Klambauer et al., 2017)
ALPHA, LAMBDA = 1.6732632423543772, 1.0507009873554805


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -x))


def _gated(gate: Function) -> Function:
    """Return ``x * gate(x)``, for gates that vanish faster than x grows."""
    return lambda x: np.where(np.isneginf(x), 0.0, x * gate(x))


def _compared(compare: Callable[[Any, float], Any]) -> Function:
    """Return a function that is 1 if x compares so with 0, else 0."""
    return lambda x: np.asarray(compare(x, 0.0), np.float64)


def _each(function: Callable[[float], float]) -> Function:
    return np.vectorize(function, otypes=[np.float64])


# By the compiler's names in small letters, if it has a name.
FUNCTIONS: Mapping[str, Function] = {
    "none": np.positive,
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "hard_tanh": lambda x: np.clip(x, -1.0, 1.0),
    "sigmoid": _sigmoid,
    "sigmoid_less_half": lambda x: _sigmoid(x) - 0.5,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "inv": np.reciprocal,
    "sqr": np.square,
    "log2": np.log2,
    "exp2": np.exp2,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))),
    "selu": lambda x: LAMBDA * np.where(x > 0, x, ALPHA * np.expm1(np.minimum(x, 0.0))),
    "sign": np.sign,
    "gelu": _gated(_each(lambda x: math.erfc(-x / math.sqrt(2.0)) / 2.0)),
    "silu": _gated(_sigmoid),
    "exp": np.exp,
    "log": np.log,
    "erf": _each(math.erf),
    "atan": np.arctan,
    "softplus": lambda x: np.logaddexp(0.0, x),
    "equal_zero": _compared(np.equal),
    "non_zero": _compared(np.not_equal),
    "less_than_zero": _compared(np.less),
    "less_equal_zero": _compared(np.less_equal),
    "greater_equal_zero": _compared(np.greater_equal),
    "greater_than_zero": _compared(np.greater),
}


@dataclass(frozen=True)
class Shape:
    """How a table takes a function: the arguments of ``fit``, and a row of ``fits.csv``.

    ``left`` and ``right`` are slope and intercept of a line; None means that ``fit`` computes it.
    """

    kind: str | None = None
    low: float = -math.inf
    high: float = math.inf
    symmetry: Any = "none"  # or its code
    step_exponent: int | None = None
    y_low: float | None = None
    y_high: float | None = None
    left: tuple[float, float] | None = None
    right: tuple[float, float] | None = None


def _arguments(row: Mapping[str, str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name in ("kind", "symmetry"):
        given[name] = row[name]
    for name in ("low", "high", "y_low", "y_high"):
        given[name] = row[name] and float(row[name])
    for name in ("left", "right"):
        given[name] = tuple(map(float, row[name].split()))
    given["step_exponent"] = row["step_exponent"] and int(row["step_exponent"])
    return {name: value for name, value in given.items() if value not in ("", ())}


# Limits, lines and steps are those of the tables that compilers 4.2.1 and later wrote for H13.  So
# are the knots, except for gelu and selu, where the compilers chose others.
FITS: Mapping[Any, Mapping[str, Any]] = {
    row["function"]: _arguments(row) for row in read_table(Path(__file__).with_name("fits.csv"))
}


def true(function: str | Function, x: Any) -> np.ndarray:
    """Return the values float64 of a function, or of the name of one in ``FUNCTIONS``; NaN outside
    its domain.

    Raises LookupError with the known names.

    >>> true("relu6", [-1.0, 2.0, 9.0]).tolist()
    [0.0, 2.0, 6.0]
    """
    with np.errstate(all="ignore"):
        return np.asarray(_exact(function)(np.asarray(x, np.float64)), np.float64)


def _exact(function: str | Function) -> Function:
    refuse_if(
        isinstance(function, str) and function not in FUNCTIONS,
        "function",
        repr(function),
        f"is a function of arrays or one of {', '.join(FUNCTIONS)}",
        LookupError,
    )
    if isinstance(function, str):
        return FUNCTIONS[function]
    return function


def fit(
    function: str | Function,
    kind: str | None = None,
    low: float | None = None,
    high: float | None = None,
    **further: Any,
) -> Table:
    """Return a table whose knots are the function rounded to fp16; ``fit("tanh")`` makes the table
    that is known by name.

    ``low`` and ``high`` are where ``y_low`` and ``y_high`` begin (by default nowhere, and the
    function's values there).  The step is the finest with which the knots reach all finite limits,
    if no ``step_exponent`` is given.  ``left`` and ``right`` are (slope, intercept) of the lines
    beyond the knots, by default toward the limit, or to the function one step further.  ``further``
    are these and ``symmetry``; arguments left out are taken from ``FITS``. Raises ValueError naming
    the argument that is missing, or that a table cannot hold.

    >>> fit("tanh")
    Table(from_zero, odd, step 2**-3, x 0 to 4)
    """
    given = {"kind": kind, "low": low, "high": high, **further}
    chosen = {name: value for name, value in given.items() if value is not None}
    shape = Shape(**{**FITS.get(function, {}), **chosen})
    function = _exact(function)
    first, last = _ends(shape)
    assert shape.kind is not None
    y_low = _limit("y_low", shape.y_low, function, first)
    y_high = _limit("y_high", shape.y_high, function, last)
    exponent = shape.step_exponent
    if exponent is None:
        exponent = _step_exponent(shape.kind, first, last)
    table = Table(
        first,
        last,
        y_low,
        y_high,
        np.zeros(KNOTS),
        step_exponent=exponent,
        kind=KINDS[shape.kind],
        symmetry=shape.symmetry,
    )
    x = table.positions
    if shape.kind in REDUCED:
        # below a half lie knots that no mantissa reaches
        reached = (x >= 0.5) | (shape.kind == "exp2")
        return replace(table, knots=_finite(function, x, where=reached))
    left_edge, right_edge, step = 0.0, 0.0, 1.0
    if len(x):
        left_edge, right_edge, step = x[0], x[-1], 2.0**-exponent
        table = replace(table, knots=_finite(function, x))
    left = shape.left or _line(function, left_edge, first, y_low, -step)
    right = shape.right or _line(function, right_edge, last, y_high, step)
    return replace(
        table,
        left_slope=left[0],
        left_intercept=left[1],
        right_slope=right[0],
        right_intercept=right[1],
    )


def _ends(shape: Shape) -> tuple[float, float]:
    """Return ``low`` and ``high`` rounded to fp16; raises ValueError for an impossible shape."""
    if shape.kind not in PLAIN and shape.kind not in REDUCED:
        raise ValueError(
            f"kind: got {shape.kind!r}, allowed is one of {', '.join((*PLAIN, *REDUCED))}"
        )
    low, high = float(halves(shape.low)), float(halves(shape.high))
    if not low < high:
        raise ValueError(
            f"low, high: got {shape.low} and {shape.high}, allowed is a low below high in fp16"
        )
    return low, high


def errors(
    table: Table,
    function: str | Function,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    rounded: bool = True,
) -> pd.DataFrame:
    """Return how far a table is from a function, over all finite inputs from ``low`` to ``high``
    for which the function is finite.

    A row each for the absolute error, the relative error (if the true value is a normal fp16) and
    the error in units of the true value's last place in fp16; columns ``largest``, ``mean``, ``x``,
    ``y`` and ``true`` of the largest, and how many ``inputs``.  An infinity is not an error if the
    true value rounds to it; every other infinity and NaN is an infinite error.  Without
    ``rounded``, y is the value before it is rounded to fp16. Raises ValueError if no input is left.
    """
    x = _finite_inputs()
    x = np.sort(x[(x >= low) & (x <= high)])
    right = true(function, x)
    x, right = x[np.isfinite(right)], right[np.isfinite(right)]
    refuse_if(
        not len(x),
        "low, high",
        f"{low} and {high}",
        "is a range that holds inputs where the function is finite",
    )
    if rounded:
        y = evaluate(table, x).astype(np.float64)
    else:
        y = values(table, x)
    with np.errstate(invalid="ignore"):
        off = np.where(np.isfinite(y), np.abs(y - right), np.inf)
    off[np.isinf(y) & (y * right > 0) & (np.abs(right) >= TO_INFINITY)] = 0.0
    everywhere = np.ones(len(x), bool)
    normal = np.abs(right) >= LEAST_NORMAL
    rows = []
    for measure, scale, some in (
        ("absolute", np.ones(len(x)), everywhere),
        ("relative", np.abs(right), normal),
        ("ulps", last_place(right), everywhere),
    ):
        sizes = np.divide(off, scale, out=np.full(len(x), -1.0), where=some)
        at = int(np.argmax(sizes))
        numbers: tuple[float, ...] = (np.nan,) * 5
        if some.any():
            numbers = sizes[at], sizes[some].mean(), float(x[at]), y[at], right[at]
        rows.append((measure, *numbers, int(np.count_nonzero(some))))
    columns = ["measure", "largest", "mean", "x", "y", "true", "inputs"]
    return pd.DataFrame(rows, columns=columns).set_index("measure")


def closest(table: Table) -> pd.DataFrame:
    """Return the mean and largest error of a table against each named function, the nearest first.

    The error is over all finite inputs for which the function is finite, as a share of the true
    value (or of 1/64 if that is larger), at most 1; values beyond fp16 count as its largest.
    """
    x = _finite_inputs()
    y = np.clip(values(table, x), -MOST, MOST)
    rows = []
    for name in FUNCTIONS:
        right = true(name, x)
        some = np.isfinite(right)
        right = np.clip(right[some], -MOST, MOST)
        share = np.abs(y[some] - right) / np.maximum(np.abs(right), LEAST_SHARED)
        share = np.minimum(np.nan_to_num(share, nan=1.0), 1.0)
        rows.append((name, share.mean(), share.max()))
    found = pd.DataFrame(rows, columns=["function", "mean", "largest"]).set_index("function")
    return found.sort_values(["mean", "largest"], kind="stable")


def identify(table: Table) -> str | None:
    """Return the name of the function that a table approximates; None if it is near no function, or
    about as near to several.

    >>> identify(fit("exp2"))
    'exp2'
    """
    found = closest(table)
    first, second = found.iloc[0], found.iloc[1]
    if first.largest < NEAR and 2 * first["mean"] < second["mean"]:
        return str(found.index[0])
    return None


def last_place(values: Any) -> np.ndarray:
    """Return what the last bit of an fp16 of each value's size is worth; float64.

    >>> last_place([1.0, 0.75, 0.0]).tolist()
    [0.0009765625, 0.00048828125, 5.960464477539063e-08]
    """
    sizes = np.abs(np.asarray(values, np.float64))
    exponent = np.frexp(np.maximum(sizes, LEAST_NORMAL))[1]
    return np.ldexp(1.0, np.minimum(exponent, 16) - 11)


def _finite_inputs() -> np.ndarray:
    x = np.arange(CODES, dtype=np.uint16).view(np.float16)
    return x[np.isfinite(x)]


def _step_exponent(kind: str, low: float, high: float) -> int:
    """Return the finest step exponent with which a plain kind's knots reach the finite ends."""
    if kind in REDUCED:
        return REDUCED[kind][1]
    first = PLAIN[kind]
    finest = math.inf
    # steps to the left of 0, steps to the right
    for steps, size in ((-first, -low), (KNOTS - 1 + first, high)):
        if steps and 0 < size < math.inf:
            finest = min(finest, steps / size)
    refuse_if(
        finest == math.inf,
        "step_exponent",
        f"none with limits {low} and {high}",
        f"is to leave it out where a limit on the side of the knots is finite ({kind})",
    )
    return math.floor(math.log2(finest))


def _finite(function: str | Function, x: np.ndarray, where: Any = True) -> np.ndarray:
    values = np.where(where, true(function, x), 0.0)
    lost = ~(np.abs(values) < TO_INFINITY)
    if lost.any():
        raise ValueError(
            f"function: got {values[lost][0]} at the knot {x[lost][0]}, allowed is at most {MOST:g}"
        )
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
    """Return slope and intercept of the line from the outermost knot to the limit, or to the
    function one step further."""
    if (limit - edge) * way <= 0:
        return 0.0, y
    near = float(halves(_finite(function, np.array([edge]))[0]))
    further = limit
    if not math.isfinite(limit) or not math.isfinite(y):
        further = edge + way
        y = float(_finite(function, np.array([further]))[0])
    slope = float(halves((y - near) / (further - edge))) + 0.0  # no -0
    return slope, near - slope * edge
