"""The parameters of captures, as columns of real and of whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.laws.constants.formulas import Columns
from npulab.captures.sweep import Sweep
from npulab.support.refuse import refuse_if


def of_sweep(sweep: Sweep) -> tuple[Array, dict[str, Array]]:
    """The words of a sweep as bytes ``(N, B) uint8``, little-endian, and its parameters; columns
    without a fraction are whole."""
    words = np.ascontiguousarray(sweep.words.astype("<u4"))
    columns = {}
    frame = sweep.parameters
    for name in frame.columns:
        values = frame[name].to_numpy()
        whole = (values == np.rint(values)).all()
        columns[str(name)] = values.astype(float)
        if whole:
            columns[str(name)] = values.astype(np.int64)
    return words.view(np.uint8), columns


def read_columns(parameters: Any, known: Columns | None = None) -> Columns:
    """The columns of a table; with ``known``, only the columns with the names of ``known``."""
    import pandas as pd

    if parameters is None:
        raise TypeError("parameters: got None, allowed are columns by name, or a DataFrame")
    try:
        frame = pd.DataFrame(parameters)
    except (ValueError, TypeError) as error:
        raise TypeError(
            f"parameters: got no table ({error}), allowed are columns by name"
        ) from None
    real, whole = [], []
    values = {}
    for name in frame.columns:
        column = frame[name].to_numpy()
        refuse_if(
            column.dtype.kind not in "biuf",
            f"parameters: {name}",
            f"{column.dtype}",
            "are numbers",
        )
        # the type of a column says if it is real: a scale of 1.0 is, a zero point of 1 is not
        if column.dtype.kind == "f":
            real.append(str(name))
        else:
            whole.append(str(name))
        values[str(name)] = column.astype(np.float64)
        refuse_if(
            not np.isfinite(values[str(name)]).all(),
            f"parameters: {name}",
            "a number that is missing or infinite",
            "are finite numbers",
        )
    if known is not None:
        missing = [name for name in known.names if name not in values]
        refuse_if(
            missing,
            "parameters",
            f"no column {', '.join(missing)}",
            "are all columns that formulas may read",
        )
        return Columns(known.real, known.whole, _stacked(values, known.names, len(frame)))
    refuse_if(
        not real,
        "parameters",
        "no column of real numbers",
        "is at least one; whole numbers are zero points and sums",
    )
    return Columns(tuple(real), tuple(whole), _stacked(values, [*real, *whole], len(frame)))


def _stacked(values: dict[str, Array], names: Sequence[str], rows: int) -> Array:
    return np.array([values[name] for name in names], np.float64).reshape(-1, rows)


def telling(columns: Columns) -> Columns:
    """The columns without those that are 1 in all captures, or 0 in all, which no formula needs."""
    kept = []
    for number, values in enumerate(columns.values):
        if not ((values == 1).all() or (values == 0).all()):
            kept.append(number)
    split = len(columns.real)
    real = tuple(columns.real[number] for number in kept if number < split)
    whole = tuple(columns.whole[number - split] for number in kept if number >= split)
    return Columns(real, whole, columns.values[kept])
