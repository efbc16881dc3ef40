"""The functions that neurons compute, in float64; tables made for them, and how far a table is from
its function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from npulab.npus.ane.tables import CODES, evaluate, values
from npulab.npus.ane.tables.entries import KINDS, KNOTS, PLAIN, REDUCED, Table, halves
from npulab.npus.kit import pd, read_table, refuse_if

Function = Callable[[np.ndarray], np.ndarray]
LEAST_NORMAL = 2.0**-14
MOST = 65504.0
TO_INFINITY = 65520.0  # numbers from here on round to infinity
LEAST_SHARED = 2.0**-6
NEAR = 0.2  # share of the true value; steps of tables that were seen reach 0.12
# of SELU (Klambauer et al., 2017)
ALPHA, LAMBDA = 1.6732632423543772, 1.0507009873554805


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -x))


def _gated(gate: Function) -> Function:
    """``x * gate(x)``, for gates that vanish faster than x grows."""
    return lambda x: np.where(np.isneginf(x), 0.0, x * gate(x))


def _each(function: Callable[[float], float]) -> Function:
    return np.vectorize(function, otypes=[np.float64])


def _fitted(row: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of ``fit`` in a row of ``fits.csv``; of a line slope and intercept."""
    read = {"kind": str, "symmetry": str, "step_exponent": int}
    return {
        name: tuple(map(float, text.split()))
        if name in ("left", "right")
        else read.get(name, float)(text)
        for name, text in row.items()
        if text and name not in ("function", "note")
    }


# By the compiler's names in small letters where it has one.
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
    "equal_zero": lambda x: np.where(x == 0, 1.0, 0.0),
    "non_zero": lambda x: np.where(x != 0, 1.0, 0.0),
    "less_than_zero": lambda x: np.where(x < 0, 1.0, 0.0),
    "less_equal_zero": lambda x: np.where(x <= 0, 1.0, 0.0),
    "greater_equal_zero": lambda x: np.where(x >= 0, 1.0, 0.0),
    "greater_than_zero": lambda x: np.where(x > 0, 1.0, 0.0),
}
# Limits, lines and steps are those of the tables that compilers 4.2.1 and later wrote for H13, and
# so are the knots but for gelu and selu, where they chose others.
FITS: dict[Any, dict[str, Any]] = {
    row["function"]: _fitted(row) for row in read_table(Path(__file__).with_name("fits.csv"))
}


def true(function: str | Function, x: Any) -> np.ndarray:
    """The function's values float64 at x, by its name in ``FUNCTIONS`` or itself; NaN outside its
    domain.

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
    *,
    symmetry: str | None = None,
    step_exponent: int | None = None,
    y_low: float | None = None,
    y_high: float | None = None,
    left: tuple[float, float] | None = None,
    right: tuple[float, float] | None = None,
) -> Table:
    """A table whose knots are the function rounded to fp16; ``fit("tanh")`` makes the one that is
    known by name.

    ``low`` and ``high`` are where ``y_low`` and ``y_high`` begin (by default nowhere, and the
    function there).  The step is the finest with which the knots reach all finite limits.  ``left``
    and ``right`` are (slope, intercept) of the lines beyond the knots, by default toward the limit,
    or on the function one step further.  What is not given is taken from ``FITS``. Raises
    ValueError naming the argument that is missing, or that a table cannot hold.

    >>> fit("tanh")
    Table(from_zero, odd, step 2**-3, x 0 to 4)
    """
    given = {
        "kind": kind,
        "low": low,
        "high": high,
        "symmetry": symmetry,
        "step_exponent": step_exponent,
        "y_low": y_low,
        "y_high": y_high,
        "left": left,
        "right": right,
    }
    told = {
        "low": -math.inf,
        "high": math.inf,
        **FITS.get(function, {}),
        **{name: value for name, value in given.items() if value is not None},
    }
    kind, function = told.get("kind"), _exact(function)
    if kind not in PLAIN and kind not in REDUCED:
        raise ValueError(f"kind: got {kind!r}, allowed is one of {', '.join((*PLAIN, *REDUCED))}")
    ends = [float(halves(told[name])) for name in ("low", "high")]
    if not ends[0] < ends[1]:
        raise ValueError(
            f"low, high: got {told['low']} and {told['high']}, allowed is a low below high in fp16"
        )
    limits = [
        _limit(name, told.get(name), function, x)
        for name, x in zip(("y_low", "y_high"), ends, strict=True)
    ]
    exponent = told.get("step_exponent")
    if exponent is None:
        if kind in REDUCED:
            exponent = REDUCED[kind][1]
        else:
            exponent = _finest(kind, ends)
    table = Table(
        ends[0],
        ends[1],
        limits[0],
        limits[1],
        np.zeros(KNOTS),
        step_exponent=exponent,
        kind=KINDS[kind],
        symmetry=told.get("symmetry", "none"),
    )
    places = table.positions
    if kind in REDUCED:
        # below a half lie knots that no mantissa reaches
        return replace(
            table, knots=_finite(function, places, where=(places >= 0.5) | (kind == "exp2"))
        )
    if len(places):
        edges, step = (places[0], places[-1]), 2.0**-exponent
    else:
        edges, step = (0.0, 0.0), 1.0
    lines = [
        told[name] if name in told else _line(function, edge, limit, y, way)
        for name, edge, limit, y, way in zip(
            ("left", "right"), edges, ends, limits, (-step, step), strict=True
        )
    ]
    return replace(
        table,
        knots=_finite(function, places) if len(places) else table.knots,
        left_slope=lines[0][0],
        left_intercept=lines[0][1],
        right_slope=lines[1][0],
        right_intercept=lines[1][1],
    )


def errors(
    table: Table,
    function: str | Function,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    rounded: bool = True,
) -> pd.DataFrame:
    """How far a table is from a function, over all finite inputs from ``low`` to ``high`` where the
    function is finite.

    A row each for the absolute error, the relative one (where the true value is a normal fp16) and
    that in units of the true value's last place in fp16; columns ``largest``, ``mean``, ``x``,
    ``y`` and ``true`` of the largest, and how many ``inputs``.  An infinity where the true value
    rounds to it is no error, every other one and NaN is infinite.  Without ``rounded``, y is the
    value before it is rounded to fp16. Raises ValueError where no input is left.
    """
    x = np.arange(CODES, dtype=np.uint16).view(np.float16)
    x = np.sort(x[np.isfinite(x) & (x >= low) & (x <= high)])
    right = true(function, x)
    x, right = x[np.isfinite(right)], right[np.isfinite(right)]
    refuse_if(
        not len(x),
        "low, high",
        f"{low} and {high}",
        "is a range that holds inputs where the function is finite",
    )
    y = (evaluate if rounded else values)(table, x).astype(np.float64)
    with np.errstate(invalid="ignore"):
        off = np.where(np.isfinite(y), np.abs(y - right), np.inf)
    off[np.isinf(y) & (y * right > 0) & (np.abs(right) >= TO_INFINITY)] = 0.0
    normal = np.abs(right) >= LEAST_NORMAL
    everywhere = np.ones(len(x), bool)
    rows = []
    for measure, scale, some in (
        ("absolute", np.ones(len(x)), everywhere),
        ("relative", np.abs(right), normal),
        ("ulps", last_place(right), everywhere),
    ):
        sizes = np.divide(off, scale, out=np.full(len(x), -1.0), where=some)
        at = int(np.argmax(sizes))
        if some.any():
            numbers = sizes[at], sizes[some].mean(), float(x[at]), y[at], right[at]
        else:
            numbers = (np.nan,) * 5
        rows.append((measure, *numbers, int(np.count_nonzero(some))))
    return pd.DataFrame(
        rows, columns=["measure", "largest", "mean", "x", "y", "true", "inputs"]
    ).set_index("measure")


def closest(table: Table) -> pd.DataFrame:
    """The named functions by how near a table is to them, the nearest first: mean and largest
    error, by name.

    The error is over all finite inputs where the function is, as a share of the true value (or of
    1/64 where that is less), at most 1; values beyond fp16 count as its largest.
    """
    x = np.arange(CODES, dtype=np.uint16).view(np.float16)
    x = x[np.isfinite(x)]
    y = np.clip(values(table, x), -MOST, MOST)
    rows = []
    for name in FUNCTIONS:
        right = true(name, x)
        some = np.isfinite(right)
        right = np.clip(right[some], -MOST, MOST)
        share = np.nan_to_num(
            np.abs(y[some] - right) / np.maximum(np.abs(right), LEAST_SHARED), nan=1.0
        )
        rows.append((name, np.minimum(share, 1.0).mean(), min(share.max(), 1.0)))
    return (
        pd.DataFrame(rows, columns=["function", "mean", "largest"])
        .set_index("function")
        .sort_values(["mean", "largest"], kind="stable")
    )


def identify(table: Table) -> str | None:
    """The name of the function that a table is of; None where it is near none, or near several
    alike.

    >>> identify(fit("exp2"))
    'exp2'
    """
    found = closest(table)
    first, second = found.iloc[0], found.iloc[1]
    if first.largest < NEAR and 2 * first["mean"] < second["mean"]:
        return str(found.index[0])
    return None


def last_place(values: Any) -> np.ndarray:
    """What the last bit of an fp16 of each value's size is worth; float64.

    >>> last_place([1.0, 0.75, 0.0]).tolist()
    [0.0009765625, 0.00048828125, 5.960464477539063e-08]
    """
    exponent = np.frexp(np.maximum(np.abs(np.asarray(values, np.float64)), LEAST_NORMAL))[1]
    return np.ldexp(1.0, np.minimum(exponent, 16) - 11)


def _finest(kind: str, ends: list[float]) -> int:
    """The finest step exponent of which the knots of a plain kind reach the finite ends."""
    steps = -PLAIN[kind], KNOTS - 1 + PLAIN[kind]  # to the left and to the right of 0
    room = [
        count / size
        for count, size in zip(steps, (-ends[0], ends[1]), strict=True)
        if size > 0 and math.isfinite(size) and count
    ]
    refuse_if(
        not room,
        "step_exponent",
        f"none with limits {ends[0]} and {ends[1]}",
        f"is to leave it out where a limit on the side of the knots is finite ({kind})",
    )
    return math.floor(math.log2(min(room)))


def _finite(function: str | Function, x: np.ndarray, where: Any = True) -> np.ndarray:
    values = np.where(where, true(function, x), 0.0)
    lost = ~(np.abs(values) < TO_INFINITY)
    if lost.any():
        raise ValueError(
            f"function: got {values[lost][0]} at the knot {x[lost][0]}, allowed is at most {MOST:g}"
        )
    return values


def _limit(name: str, given: float | None, function: str | Function, x: float) -> float:
    if given is None:
        value = float(true(function, x))
    else:
        value = float(given)
    if math.isnan(value):
        raise ValueError(f"{name}: the function is not defined at {x}, allowed is to say {name}")
    return value


def _line(
    function: str | Function, edge: float, limit: float, y: float, way: float
) -> tuple[float, float]:
    """Slope and intercept of the line from the outermost knot to the limit, or to the function one
    step further."""
    if (limit - edge) * way <= 0:
        return 0.0, y
    near = float(halves(_finite(function, np.array([edge]))[0]))
    further = edge + way
    if math.isfinite(limit) and math.isfinite(y):
        further = limit
    else:
        y = float(_finite(function, np.array([further]))[0])
    slope = float(halves((y - near) / (further - edge))) + 0.0  # no -0
    return slope, near - slope * edge
