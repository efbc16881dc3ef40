"""The picture of a field in the law view (captured points, curves of its law and of rivals), and
the line that says which capture would settle an open bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from numpy import ndarray

from npulab.analysis.correlate import related
from npulab.analysis.laws.naming import NAME
from npulab.support.late import pd

# a picture has at most this many points, so that it is drawn quickly
MOST_POINTS = 300
MOST_CURVES = 5  # at most this many curves of a law, each for other values of its other parameters
MOST_RIVAL_CURVES = 3
GRID = 160  # a curve has at most this many points
MOST_HOVERED = 6  # a point's hover text names at most this many parameters
MOST_CHANGED = 3  # the line that asks for a capture names at most this many parameters

Record: TypeAlias = dict[str, Any]  # an object of JSON


def scatter(law: Any, laws: Any, name: str, values: ndarray, against: str) -> Record:
    """Return the picture of a field against a parameter as JSON values.

    ``points`` are [x, raw, index of the law's step (a formula and its condition; -1: no step), 1 if
    the law predicts the value and else 0, number of captures, hover text]; ``curves`` are lines of
    the law and of its rivals; ``names`` label the positions on the x axis if the parameter is a
    text; ``text`` is a sentence. ``law`` is None for bits without a law.
    """
    across, labels = positions(laws.parameters[against])
    own: list[str] = []
    steps = np.full(len(values), -1)
    predicted = values
    sentence = "no law"
    curves: list[Record] = []
    if law is not None:
        own = own_parameters(law, laws)
        steps = law.which(laws.parameters)
        predicted = np.where(steps < 0, values, law.values(laws.parameters))
        right = np.count_nonzero((predicted == values) & (steps >= 0))
        sentence = f"{right} as the law has them"
    if law is not None and not labels:
        curves, left_out = _curves(law, laws, against, own)
        if left_out:
            sentence += (
                f"; {left_out} more combinations of the law's other parameters are not drawn"
            )
    captured = {"x": across, "raw": values, "step": steps, "predicted": predicted}
    hovered = list(dict.fromkeys([against, *own]))
    layers = laws.parameters[hovered[:MOST_HOVERED]]
    points = _points(pd.DataFrame(captured), layers)
    text = f"{name} against {against}: {len(values)} captures, {sentence}"
    return {
        "parameter": against,
        "points": points,
        "curves": curves,
        "names": labels,
        "text": text,
    }


def positions(column: Any) -> tuple[ndarray, list[str]]:
    """Return the captures' positions on the x axis, ``(N,) float64``, and, if the parameter is a
    text, the labels of the positions 0, 1, ... (else no labels).
    """
    values = np.asarray(column)
    if values.dtype.kind in "biuf":
        return values.astype(np.float64), []
    labels, indices = np.unique(values.astype(str), return_inverse=True)
    return indices.astype(np.float64), labels.tolist()


def _points(captured: pd.DataFrame, layers: pd.DataFrame) -> list[list[Any]]:
    """Return a point for each group of captures with the same x, raw number, step and agreement
    with the law; at most ``MOST_POINTS``, evenly chosen.
    """
    captured["right"] = captured["predicted"] == captured["raw"]
    captured["capture"] = range(len(captured))
    alike = captured.groupby(["x", "raw", "step", "right"], dropna=False, as_index=False)
    groups = alike.agg(
        captures=("capture", "size"), first=("capture", "first"), predicted=("predicted", "first")
    )
    count = len(groups)
    spread = np.linspace(0, count - 1, min(count, MOST_POINTS))
    layers = layers.astype(object)  # integers would become reals in a row that also has reals
    points = []
    for group in groups.iloc[spread.round().astype(int)].itertuples():
        hover = _hover(group, _assignments(layers.iloc[group.first], layers))
        right = int(group.right)
        points.append([group.x, group.raw, group.step, right, group.captures, hover])
    return points


def _hover(group: Any, layer: str) -> str:
    text = f"capture {group.first}"
    if group.captures > 1:
        text += f" and {group.captures - 1} more like it"
    raw = group.raw
    text += f": {layer}: raw {raw} ({raw:#x})"
    if group.step < 0:
        return text
    if group.right:
        return f"{text}, as the law has it"
    return f"{text}, the law has {group.predicted}"


def _curves(law: Any, laws: Any, against: str, own: list[str]) -> tuple[list[Record], int]:
    """Return curves of the law, then curves of its rivals, and the number of combinations without a
    curve.

    The law has a curve for each of the commonest combinations of values of its parameters other
    than ``against``; a rival has a curve for the commonest combination only.
    """
    frame = laws.parameters
    column = np.asarray(frame[against])
    grid = np.linspace(column.min(), column.max(), GRID)
    kind: Any = np.float32  # laws read real parameters in this type
    if column.dtype.kind in "biu":
        kind = np.int64
        grid = grid.round()
    grid = np.unique(grid.astype(kind))
    others = [name for name in own if name != against]
    captures = _commonest(frame, others)
    layers = frame[others].astype(object)
    curves: list[Record] = []
    for capture in captures[:MOST_CURVES]:
        asked = _swept(frame, capture, against, grid)
        held = _assignments(layers.iloc[capture], others)
        values = law.values(asked)
        curves += _pieces("law", held, grid, values, law.which(asked))
    asked = _swept(frame, captures[0], against, grid)
    always = np.zeros(len(grid), int)
    for text, values in islice(law.rival_values(asked).items(), MOST_RIVAL_CURVES):
        held = f"{text}, the other parameters as in capture {captures[0]}"
        curves += _pieces("rival", held, grid, values, always)
    return curves, max(len(captures) - MOST_CURVES, 0)


def _commonest(frame: pd.DataFrame, names: list[str]) -> list[int]:
    """Return the number of the first capture for each combination of values of the named
    parameters; the commonest combination comes first.
    """
    if not names:
        return [0]
    groups = frame.groupby(names, sort=False).indices
    by_size = sorted(groups.values(), key=len, reverse=True)
    return [int(captures[0]) for captures in by_size]


def _swept(frame: pd.DataFrame, capture: int, name: str, values: ndarray) -> pd.DataFrame:
    """Return a table with a row for each of ``values``: the parameters of a capture, with the named
    parameter set to the value.
    """
    rows = frame.iloc[np.full(len(values), capture)].reset_index(drop=True)
    rows[name] = values
    return rows


def _pieces(
    kind: str, held: str, grid: ndarray, values: ndarray, steps: ndarray
) -> Iterator[Record]:
    """Yield a curve in pieces: a piece for each run of points that one step of the law (a formula
    and its condition) decides; points that no step decides are left out.
    """
    points = np.stack([grid, values], axis=1)
    cuts = np.flatnonzero(np.diff(steps)) + 1
    for at in np.split(np.arange(len(grid)), cuts):
        step = int(steps[at[0]])
        if step >= 0:
            yield {"kind": kind, "text": held, "step": step, "points": points[at].tolist()}


def usual_parameter(own: list[str], laws: Any, values: ndarray) -> str:
    """Return the parameter against which a field is drawn: the parameter whose values say most
    about the field's values, of the law's own parameters, or of all if the law has none.
    """
    # a parameter of two values mostly decides the law's step, and a curve over it is flat
    counts = laws.parameters[own].nunique(dropna=False)
    sizes = counts.index[counts > 2].tolist()
    names = sizes or own or laws.parameters.columns.tolist()
    for name, _ in related(values, laws.parameters[names], 1):
        return str(name)
    return str(names[0])


def own_parameters(law: Any, laws: Any) -> list[str]:
    """Return the parameters that a law reads: first in its formulas, then in its conditions, then
    in the laws of other fields that the law reads.

    >>> from types import SimpleNamespace as Fake
    >>> width = Fake(name="w0_0_8", steps=(("always", "w"),))
    >>> laws = Fake(parameters={"w": 0, "c": 0, "mode": 0}, fields=[width])
    >>> law = Fake(name="w1_0_8", steps=(("mode == 1", "c"), ("always", "w0_0_8 * 2")))
    >>> own_parameters(law, laws)
    ['c', 'mode', 'w']
    """
    longest_first = sorted(map(str, laws.parameters), key=len, reverse=True)
    any_parameter = "|".join(map(re.escape, longest_first))
    parameter = re.compile(rf"(?<!\w)(?:{any_parameter})(?!\w)")
    unread = {field.name: field for field in laws.fields if field.name != law.name}
    found: list[str] = []
    waiting = [law]
    while waiting:
        formulas = []
        conditions = []
        for condition, formula in waiting.pop(0).steps:
            formulas.append(str(formula))
            conditions.append(str(condition))
        text = "\n".join(formulas + conditions)
        found += parameter.findall(text)
        for name in sorted(unread.keys() & NAME.findall(text)):
            waiting.append(unread.pop(name))
    return list(dict.fromkeys(found))


def capture_line(
    capture: Mapping[str, Any], parameters: pd.DataFrame, first: list[str]
) -> tuple[str, str]:
    """Return two texts that say what to capture: a line with the nearest capture and the changes
    to it, and a text with all parameters if the line leaves some out (else "").

    ``first`` are the parameters that the line names before all others.
    """
    full = _assignments(capture, capture)
    differs = pd.DataFrame()
    for name, value in capture.items():
        if name in parameters:
            differs[name] = parameters[name] != value
    if differs.empty:
        return full, ""
    nearest = int(differs.sum(axis=1).to_numpy().argmin())
    differing = differs.iloc[nearest]
    changed = differing.index[differing].tolist()
    changed.sort(key=[*first, *differs].index)
    changes = _assignments(capture, changed[:MOST_CHANGED]) or "nothing changed"
    line = f"capture {nearest} again, with {changes}"
    unnamed = len(changed) - MOST_CHANGED
    if unnamed <= 0:
        return line, ""
    return f"{line} and {unnamed} more", full


def _assignments(values: Any, names: Iterable[str]) -> str:
    return ", ".join(f"{name} = {short(values[name])}" for name in names)


def short(value: Any) -> str:
    """Return a value as text; real numbers have six digits."""
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    return str(value)
