"""Activations as layers: outputs by input code, with the table that they come from and the function
that it is of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from npulab.npus.ane import tables
from npulab.npus.ane.tables import entries, functions
from npulab.quant.layers import Activation


@dataclass(frozen=True, eq=False, repr=False)
class TableActivation(Activation):
    """An activation whose ``outputs`` are those of a known activation table."""

    table: entries.Table | None = None


def table_of(layer: Activation, table: entries.Table | bytes | None = None) -> entries.Table:
    """The activation table that gives a layer's outputs: the one given, its own, or that of the
    function it names.

    Raises ValueError where there is none, or where it gives something else.
    """
    if isinstance(table, bytes | bytearray):
        table = entries.decode(bytes(table))
    table = table or getattr(layer, "table", None)
    if table is None and functions.NEURONS.get(layer.name, functions.Neuron(np.positive)).table:
        table = functions.fit(layer.name)
    if table is None:
        known = [name for name, one in functions.NEURONS.items() if one.table]
        raise refused(f"name: got an activation {layer.name!r} without a table, allowed is a table, or one of "
                      f"{', '.join(known)}")
    if not same_outputs(tables.outputs(table), layer.outputs):
        raise refused(f"outputs: got others than those of {table!r}, allowed are the same")
    return table


def relu_outputs() -> np.ndarray:
    """The output ``(65536,) float16`` of ReLU for every input code: what is not above 0 gives +0,
    NaN stays."""
    codes = np.arange(2 ** 16, dtype=np.uint16).view(np.float16)
    return np.where((codes > 0) | np.isnan(codes), codes, np.float16(0))


def same_outputs(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two tables of outputs are the same numbers, NaN being one of them and both zeros
    too."""
    return bool(np.array_equal(a, b, equal_nan=True))


def activation(table: entries.Table, shape: tuple[int, int, int], prescale: float = 1.0) -> TableActivation:
    """The layer of a table, named as the function whose table it is, else by its kind."""
    return TableActivation(shape, tables.outputs(table), name_of(table), prescale, table=table)


def name_of(table: entries.Table) -> str:
    """The function whose table has the same form and, within 2**-6, the same knots (or lines);
    "table" and its kind where there is none."""
    form = table.kind, table.symmetry, table.step_exponent
    near = [(_distance(table, one), name) for name, one in _fits().items()
            if (one.kind, one.symmetry, one.step_exponent) == form]
    return min((one for one in near if one[0] < 2.0 ** -6), default=(0.0, f"table {table.kind_name}"))[1]


@cache
def _fits() -> dict[str, entries.Table]:
    return {name: functions.fit(name) for name, one in functions.NEURONS.items() if one.table}


def _distance(a: entries.Table, b: entries.Table) -> float:
    if a.step_exponent == entries.NO_STEP:
        return 0.0 if a == b else np.inf
    return float(np.abs(a.knots.astype(np.float64) - b.knots.astype(np.float64)).max(initial=0.0))


def refused(why: str) -> ValueError:
    return ValueError(f"lower for ane: {why}")
