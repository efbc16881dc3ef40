"""Which job of a recorded run is which operator of a model, and what data-moving jobs belong to."""

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

TOLERANCE = 2.0**-12  # of a scale: a fixed point keeps 15 bits of it or more
# share of the common values that must agree, for a job that is not quite like its operator
LIKENESS = 0.6
# Weights of a pair of job and operator, whole so that equal weights are equal: EXACT and EACH for
# every value if all agree, at most PARTLY if some differ, and CONTENT if the stored weights agree.
EXACT, PARTLY, EACH, CONTENT = 1000, 500, 10, 100
CODE_SHIFT = 128  # between a code read as int8 and as uint8, with the top bit turned

Outline = Mapping[str, Any]


def match(
    outlines: Mapping[int, Outline],
    wanted: Mapping[int, Outline],
    captures: Mapping[int, Capture],
    layers: Mapping[int, Layer],
) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Return the operator of each job, and the other operators that it might be as well."""
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
        # order and outlines leave several operators: the weights decide
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
    """Return the weight of a pair, 0 if the job cannot be the operator."""
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
    """True if two values of outlines are equal, real numbers as far as a fixed point keeps them."""
    if isinstance(a, float):
        return math.isclose(a, b, rel_tol=TOLERANCE)
    return bool(a == b)


def _alignments(weights: Array) -> list[list[int]]:
    """Return for each row the columns that it has in the heaviest matchings that keep the order of
    rows and columns."""
    before = _heaviest(weights)
    after = _heaviest(weights[::-1, ::-1])[::-1, ::-1]
    through = before[:-1, :-1] + weights + after[1:, 1:]
    on_path = (weights > 0) & (through == before[-1, -1])
    return [np.flatnonzero(row).tolist() for row in on_path]


def _heaviest(weights: Array) -> Array:
    """Return the weight of the heaviest matching of the first rows and columns, by how many there
    are."""
    rows, columns = weights.shape
    out = np.zeros((rows + 1, columns + 1), np.int64)
    for row, line in enumerate(weights):
        # the best of the rows before, or a pair of this row with what lies before it
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
    """Return how often each stored weight occurs, but for the zero point: how often that occurs
    depends on how the layer was lowered."""
    if not isinstance(layer, Conv2D | FullyConnected) or layer.weights.dtype.kind not in "iu":
        return None
    codes, zero = stored_weights(layer)
    counts = np.bincount(codes.ravel(), minlength=2**8)
    counts[zero % len(counts)] = 0
    return tuple(counts.tolist())


def stored_weights(layer: Conv2D | FullyConnected) -> tuple[Array, int]:
    """Return weights and their zero point as uint8 codes, in whole numbers; real weights as they
    are."""
    weights = layer.weights
    if weights.dtype.kind == "f":
        return weights, 0
    shift = 0
    if weights.dtype == np.int8:
        shift = CODE_SHIFT
    codes = weights.astype(np.int64) + shift
    return codes, layer.weight_q.zero_point + shift


def computes(capture: Capture) -> bool:
    """True if a capture has a job of the parameter block, which the maps name first; other jobs
    move data."""
    block = next(iter(capture.maps), None)
    return any(job.block == block for job in capture.jobs)


def owners(captures: Sequence[Capture]) -> dict[int, int | None]:
    """Return for each job that only moves data the computing job that it moves data for."""
    computing = [n for n, capture in enumerate(captures) if computes(capture)]
    found: dict[int, int | None] = {}
    # a job may move data for a job after it that moves data itself
    for n in reversed(range(len(captures))):
        if n not in computing:
            found[n] = _owner(n, captures, computing, found)
    return dict(sorted(found.items()))


def _owner(
    job: int, captures: Sequence[Capture], computing: Sequence[int], known: Mapping[int, int | None]
) -> int | None:
    """Return the job whose input this job writes, else the one whose output it reads, else the
    next."""
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
