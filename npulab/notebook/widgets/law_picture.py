"""The picture of a field in the law view: captured points, the law and its rivals drawn through
them, and the capture that an open bit asks for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from npulab.analysis.correlate import related
from npulab.analysis.laws.naming import NAME
from npulab.support.late import pd

MOST_POINTS = 300
MOST_CURVES = 5  # of a law, each with the other parameters that it reads held
MOST_RIVAL_CURVES = 3
GRID = 160  # places across


def own_parameters(law: Any, laws: Any) -> list[str]:
    """The parameters that a law reads, those of its formulas before those of its conditions only,
    then those of the fields that it follows from.

    >>> from types import SimpleNamespace as Fake
    >>> width = Fake(name="w0_0_8", steps=(("always", "w"),))
    >>> laws = Fake(parameters={"w": 0, "c": 0, "mode": 0}, fields=[width])
    >>> law = Fake(name="w1_0_8", steps=(("mode == 1", "c"), ("always", "w0_0_8 * 2")))
    >>> own_parameters(law, laws)
    ['c', 'mode', 'w']
    """
    by_name = {field.name: field for field in laws.fields}
    out: dict[str, None] = {}
    waiting, seen = [law], {law.name}
    while waiting:
        field = waiting.pop(0)
        texts = [*(str(law) for _, law in field.steps), *(str(when) for when, _ in field.steps)]
        for text in texts:
            places = [
                (match.start(), name)
                for name in map(str, laws.parameters)
                for match in re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", text)
            ]
            out |= dict.fromkeys(name for _, name in sorted(places))
        names = {name for text in texts for name in NAME.findall(text)}
        new = sorted(names & by_name.keys() - seen)
        seen.update(new)
        waiting += [by_name[name] for name in new]
    return list(out)


def usual_parameter(law: Any, laws: Any, values: np.ndarray) -> str:
    """The parameter to draw a field against: the one of its law that tells most about it, else of
    all."""
    own = [] if law is None else own_parameters(law, laws)
    # a mode says in which step a capture is; a size says where in the step
    few = [name for name in own if len(np.unique(laws.parameters[name].astype(str))) > 2] or own
    most = related(values, laws.parameters[few] if few else laws.parameters, 1)
    return str(most[0][0]) if most else (few or [*map(str, laws.parameters)])[0]


def numbers(column: Any) -> tuple[np.ndarray, list[str]]:
    """Where captures lie across ``(N,) float64``, and the names of the places where they are
    texts."""
    values = np.asarray(column)
    if values.dtype.kind in "biuf":
        return values.astype(np.float64), []
    names, places = np.unique(values.astype(str), return_inverse=True)
    return places.astype(np.float64), names.tolist()


def scatter(
    law: Any,
    laws: Any,
    name: str,
    values: np.ndarray,
    against: str,
) -> dict[str, Any]:
    """What the picture shows, as JSON has it: points [x, raw, step (-1: no law), as the law has it,
    captures, hover text], curves of the law and of its rivals, and a sentence."""
    across, names = numbers(laws.parameters[against])
    own = [] if law is None else own_parameters(law, laws)
    if law is None:
        step = np.full(len(values), -1)
    else:
        step = law.which(laws.parameters)
    if law is None:
        stated = values
    else:
        stated = np.where(step < 0, values, law.values(laws.parameters))
    rows, first, counts = np.unique(
        np.stack([across, values, step, stated == values], axis=1),
        axis=0,
        return_index=True,
        return_counts=True,
    )
    keep = np.linspace(0, len(rows) - 1, min(len(rows), MOST_POINTS)).round().astype(int)
    shown = [against, *(parameter for parameter in own if parameter != against)][:6]
    told = None
    if law is not None:
        told = stated
    points = [
        [
            float(rows[at][0]),
            *map(int, rows[at][1:]),
            int(counts[at]),
            _hover(laws, int(first[at]), int(counts[at]), shown, values, told),
        ]
        for at in keep.tolist()
    ]
    right = int(np.count_nonzero((stated == values) & (step >= 0)))
    curves, left_out = ([], 0) if law is None or names else law_curves(law, laws, against, own)
    said = "no law" if law is None else f"{right} as the law has them"
    if left_out:
        said += f"; {left_out} more combinations of the law's other parameters are not drawn"
    return {
        "parameter": against,
        "points": points,
        "curves": curves,
        "names": names,
        "text": f"{name} against {against}: {len(values)} captures, {said}",
    }


def law_curves(
    law: Any,
    laws: Any,
    against: str,
    own: list[str],
) -> tuple[list[dict[str, Any]], int]:
    """Polylines of the law, one for each of the commonest combinations of what it reads besides,
    then of its rivals; and how many combinations are left out."""
    frame = laws.parameters
    column = np.asarray(frame[against])
    grid = np.linspace(column.min(), column.max(), GRID)
    whole = column.dtype.kind in "biu"
    grid = np.unique(grid.round().astype(np.int64) if whole else grid.astype(np.float32))
    others = [parameter for parameter in own if parameter != against]
    if others:
        groups = frame.groupby(others, sort=False).indices
    else:
        groups = {(): np.arange(len(frame))}
    common = sorted(groups.items(), key=lambda item: -len(item[1]))
    out: list[dict[str, Any]] = []
    for kinds, rows in common[:MOST_CURVES]:
        if not isinstance(kinds, tuple):
            kinds = (kinds,)
        held = ", ".join(
            f"{name} = {short(value)}" for name, value in zip(others, kinds, strict=True)
        )
        asked = _with(frame, int(rows[0]), against, grid)
        out += _pieces("law", held, grid, np.asarray(law.values(asked)), law.which(asked))
    asked = _with(frame, int(common[0][1][0]), against, grid)
    for text, values in [*law.rival_values(asked).items()][:MOST_RIVAL_CURVES]:
        held = f"{text}, the other parameters as in capture {common[0][1][0]}"
        out += _pieces("rival", held, grid, values, np.zeros(len(grid), int))
    return out, max(len(common) - MOST_CURVES, 0)


def capture_line(
    capture: Mapping[str, Any], parameters: pd.DataFrame, first: list[str], most: int = 3
) -> tuple[str, str]:
    """What to capture: in one line as the nearest capture with what is changed, and in full.

    ``first`` are the parameters that are named before others.
    """
    names = [name for name in capture if name in parameters]
    full = ", ".join(f"{name} = {short(value)}" for name, value in capture.items())
    if not names:
        return full, ""
    differ = np.stack([np.asarray(parameters[name] != capture[name]) for name in names], axis=1)
    row = int(differ.sum(1).argmin())
    changed = [name for name, other in zip(names, differ[row], strict=True) if other]
    rank = {name: at for at, name in reversed([*enumerate(first)])}
    changed.sort(key=lambda name: rank.get(name, len(first)))
    line = ", ".join(f"{name} = {short(capture[name])}" for name in changed[:most])
    more = ""
    if len(changed) > most:
        more = f" and {len(changed) - most} more"
    return f"capture {row} again, with {line or 'nothing changed'}{more}", full if more else ""


def _hover(
    laws: Any, row: int, count: int, names: list[str], values: np.ndarray, stated: np.ndarray | None
) -> str:
    layer = ", ".join(f"{name} = {short(laws.parameters[name].iloc[row])}" for name in names)
    law = ""
    if stated is not None:
        right = stated[row] == values[row]
        law = ", as the law has it" if right else f", the law has {stated[row]}"
    more = ""
    if count > 1:
        more = f" and {count - 1} more like it"
    return f"capture {row}{more}: {layer}: raw {values[row]} ({values[row]:#x}){law}"


def _with(frame: pd.DataFrame, row: int, name: str, values: np.ndarray) -> pd.DataFrame:
    """A capture's parameters, with one of them at each of some values."""
    return frame.iloc[[row] * len(values)].reset_index(drop=True).assign(**{name: values})


def _pieces(
    kind: str,
    held: str,
    grid: np.ndarray,
    values: np.ndarray,
    steps: np.ndarray,
) -> Iterator[dict[str, Any]]:
    """A curve cut where another step of the law begins; none where no step decides."""
    cuts = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(grid)]
    for low, high in itertools.pairwise(cuts):
        points = [[float(x), int(y)] for x, y in zip(grid[low:high], values[low:high], strict=True)]
        if steps[low] >= 0:
            yield {"kind": kind, "text": held, "step": int(steps[low]), "points": points}


def short(value: Any) -> str:
    return f"{float(value):.6g}" if isinstance(value, float | np.floating) else str(value)
