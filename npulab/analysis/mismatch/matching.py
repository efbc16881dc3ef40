"""Which job of a recorded run is which operator of a model, and for which computing job each other
job moves data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.captures.capture import Capture
from npulab.captures.registry import target
from npulab.quant.layers import Conv2D, FullyConnected, Layer

# Scales are equal up to this relative difference, since fixed point keeps 15 bits or more.
TOLERANCE = 2.0**-12
# A job and an operator may be a pair if at least this share of the values that both state agrees.
LIKENESS = 0.6
# The weight of a pair of job and operator is EXACT if all values agree, and EACH more for every
# value. If some values differ, it is PARTLY times the share that agrees. CONTENT is added if the
# stored weights agree. The numbers are whole, so that sums are exact.
EXACT, PARTLY, EACH, CONTENT = 1000, 500, 10, 100
# The uint8 code of a weight is its int8 code plus this.
CODE_SHIFT = 128

Outline = Mapping[str, Any]


def match(
    outlines: Mapping[int, Outline],
    wanted: Mapping[int, Outline],
    captures: Mapping[int, Capture],
    layers: Mapping[int, Layer],
) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Return two dicts by the number of a job: the number of its operator, and the numbers of
    further operators that fit the job equally well.
    """
    jobs, numbers = list(outlines), list(wanted)
    weights = np.zeros((len(jobs), len(numbers)), np.int64)
    for row, outline in enumerate(outlines.values()):
        for column, operator in enumerate(wanted.values()):
            weights[row, column] = _likeness(outline, operator)
    found = _alignments(weights)
    claims = Counter(chain.from_iterable(found))
    counts = None
    for row, columns in enumerate(found):
        if len(columns) < 2 and all(claims[column] == 1 for column in columns):
            continue
        # if order and outlines allow several operators, the stored weights of the layers decide
        if counts is None:
            counts = {number: _histogram(layer) for number, layer in layers.items()}
        capture = captures[jobs[row]]
        mine = _histogram(_lifted(capture))
        for column, number in enumerate(numbers):
            if mine is not None and weights[row, column] and mine == counts[number]:
                weights[row, column] += CONTENT
    if counts is not None:
        found = _alignments(weights)
    matched: dict[int, int] = {}
    rivals: dict[int, list[int]] = {}
    last = -1
    for job, columns in zip(jobs, found, strict=True):
        others = []
        for column in columns:
            if column > last and job not in matched:
                last = column
                matched[job] = numbers[column]
            else:
                others.append(numbers[column])
        rivals[job] = others
    return matched, rivals


def _likeness(job: Outline, operator: Outline) -> int:
    """Return the weight of a pair of job and operator, from the number of values in which their
    outlines agree; 0 if they are not a pair.
    """
    agree = {}
    for name, value in operator.items():
        if name in job:
            agree[name] = same_value(job[name], value)
    if not agree:
        return 0
    same, count = sum(agree.values()), len(agree)
    if same == count:
        return EXACT + EACH * same
    first = next(iter(agree.values()))
    if first and same / count >= LIKENESS:
        return PARTLY * same // count
    return 0


def same_value(a: Any, b: Any) -> bool:
    """True if two values of outlines are equal; real numbers may differ by the rounding of a
    fixed-point number.
    """
    if isinstance(a, float):
        return math.isclose(a, b, rel_tol=TOLERANCE)
    return bool(a == b)


def _alignments(weights: Array) -> list[list[int]]:
    """Return, for each row, the columns that it is paired with in a matching of the highest total
    weight. A matching keeps the order of rows and columns.
    """
    before = _heaviest(weights)
    after = _heaviest(weights[::-1, ::-1])[::-1, ::-1]
    through = before[:-1, :-1] + weights + after[1:, 1:]
    on_path = (weights > 0) & (through == before[-1, -1])
    return [np.flatnonzero(row).tolist() for row in on_path]


def _heaviest(weights: Array) -> Array:
    """Return a table with, at [i, j], the highest total weight of a matching of the first i rows
    with the first j columns.
    """
    rows, columns = weights.shape
    out = np.zeros((rows + 1, columns + 1), np.int64)
    for row, line in enumerate(weights):
        # either this row has no partner, or a column that is added to the best matching of the rows
        # and columns before
        paired = out[row, :-1] + line * (line > 0)
        best = np.maximum(out[row, 1:], paired)
        out[row + 1, 1:] = np.maximum.accumulate(best)
    return out


def _lifted(capture: Capture) -> Layer | None:
    try:
        return target(capture.target).lift(capture).layer
    except ValueError:
        return None


def _histogram(layer: Layer | None) -> tuple[int, ...] | None:
    """Return how often each weight code occurs; None for a layer without weight codes. The zero
    point is not counted, because lowering may add zero points as fill.
    """
    if not isinstance(layer, Conv2D | FullyConnected) or layer.weights.dtype.kind not in "iu":
        return None
    codes, zero = stored_weights(layer)
    counts = np.bincount(codes.ravel(), minlength=2**8)
    counts[zero % len(counts)] = 0
    return tuple(counts.tolist())


def stored_weights(layer: Conv2D | FullyConnected) -> tuple[Array, int]:
    """Return the weights as uint8 codes in int64, and their zero point; real weights are returned
    unchanged, with 0.
    """
    weights = layer.weights
    if weights.dtype.kind == "f":
        return weights, 0
    shift = 0
    if weights.dtype == np.int8:
        shift = CODE_SHIFT
    codes = weights.astype(np.int64) + shift
    return codes, layer.weight_q.zero_point + shift


def computes(capture: Capture) -> bool:
    """True if a capture has a job of the block that computes, which is the first of its maps; other
    jobs only move data.
    """
    block = next(iter(capture.maps), None)
    return any(job.block == block for job in capture.jobs)


def owners(captures: Sequence[Capture]) -> dict[int, int | None]:
    """Return, for each job that only moves data, the number of the computing job whose data it
    moves; None if there is none.
    """
    computing = [n for n, capture in enumerate(captures) if computes(capture)]
    found: dict[int, int | None] = {}
    # from the last job to the first: a job may write the input of a later one that only moves data,
    # too
    for n in reversed(range(len(captures))):
        if n not in computing:
            found[n] = _owner(n, captures, computing, found)
    return dict(sorted(found.items()))


def _owner(
    job: int, captures: Sequence[Capture], computing: Sequence[int], known: Mapping[int, int | None]
) -> int | None:
    """Return the job whose input this job writes, else the job whose output it reads, else the next
    computing job, else the last one before it.
    """
    addresses = captures[job].addresses
    writes, reads = addresses.get("output"), addresses.get("input")
    if writes is not None:
        for n in range(job + 1, len(captures)):
            if captures[n].addresses.get("input") == writes:
                return known.get(n, n)
    earlier = [n for n in reversed(computing) if n < job]
    if reads is not None:
        for n in earlier:
            if captures[n].addresses.get("output") == reads:
                return n
    for n in computing:
        if n > job:
            return n
    return next(iter(earlier), None)
