"""The jobs of a whole model: the jobs that a driver would send for each of its operators, or the
reason why it would send none.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.analysis.check import rule_for
from npulab.captures.capture import Capture, CaptureSet
from npulab.captures.registry import target
from npulab.captures.target import Target
from npulab.models import Model, read_model
from npulab.models.listing import operators
from npulab.models.read import Found
from npulab.quant.emulate import emulate
from npulab.quant.layers import Layer
from npulab.quant.layers.network import tensors_taken
from npulab.support.answers import Answer, Lines, Part
from npulab.support.refuse import need, refuse_if
from npulab.support.text import Row, plural

COLUMNS = ("operator", "name", "input", "output", "jobs", "reason")
ELSEWHERE = "tflite-reference"  # the rounding rule of an operator that the NPU does not run

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, eq=False)
class OperatorJobs:
    """The jobs of one operator of a model.

    ``operator`` is its number in the file; ``layer`` is None if it is part of no layer. If
    ``capture`` is None, ``reason`` says in a sentence why. ``x`` and ``output`` are the tensors, in
    the form that ``emulate`` takes and gives, or None if they are not known; an unknown output has
    a ``reason`` too. ``shapes`` are input and output as the model states them.
    """

    operator: int
    name: str
    layer: Layer | None = None
    capture: Capture | None = None
    reason: str = ""
    x: Any = None
    output: Array | None = None
    shapes: Row = field(default_factory=dict)

    def records(self) -> list[Row]:
        row = {
            "operator": self.operator,
            "name": self.name,
            "input": self.shapes["input"],
            "output": self.shapes["output"],
            "case": None,
            "jobs": 0,
            "reason": self.reason,
        }
        if self.capture is not None:
            row |= {"case": self.capture.name, "jobs": len(self.capture.jobs)}
        return [row]


@dataclass(frozen=True, eq=False)
class ModelJobs(Answer):
    """The answer of ``lower_model``: ``operators`` in the order of the file."""

    target: str
    operators: tuple[OperatorJobs, ...]

    @property
    def captures(self) -> CaptureSet:
        """The captures of the operators that are lowered, in their order."""
        found = [one.capture for one in self.operators if one.capture is not None]
        return CaptureSet(tuple(found))

    def records(self) -> list[Row]:
        rows: list[Row] = []
        for one in self.operators:
            rows += one.records()
        return rows

    @property
    def parts(self) -> list[Part]:
        return [Lines(self.records(), COLUMNS), self._sentence()]

    def _sentence(self) -> str:
        captures = self.captures
        chip = ""
        if len(captures):
            chip = f" ({captures[0].chip}), simulated"
        jobs = sum(len(capture.jobs) for capture in captures)
        return (
            f"{len(captures)} of {plural(len(self.operators), 'operator')} lower on {self.target}"
            f"{chip}: {plural(jobs, 'job')}"
        )

    def __repr__(self) -> str:
        return f"ModelJobs({self._sentence()})"


def lower_model(
    model: Model | bytes | str | os.PathLike[str],
    npu: str | Target,
    x: Any = None,
    progress: Progress | None = None,
    **options: Any,
) -> ModelJobs:
    """Return the jobs that a driver would send for each operator of a model, and for an operator
    that the target does not lower the reason.

    ``npu`` is a target or its name; ``options``, such as ``chip`` and ``dialect``, are those of the
    target's ``lower``. A capture is named after the number and the name of its operator
    ("03-conv_2d"). ``x`` is the model's input in the shape and type that the model states, with or
    without the batch, or a tuple if there are several: then each capture has its input too, the
    emulated output of the operators before it. Operators that are lowered are emulated by the
    target's rule, all others by ``tflite-reference``. ``progress`` is called with the number of
    operators that are done, of how many, and the name of the last.

    Raises ValueError for a file that is not a model and an input that does not fit it, LookupError
    for an unknown target, chip or option's value.

    >>> import numpy as np
    >>> from npulab import Conv2D, QuantParams, single_op_model
    >>> q = QuantParams(6 / 255)
    >>> weights = np.ones((8, 3, 3, 4), np.uint8)
    >>> layer = Conv2D(weights, np.zeros(8, int), (8, 8, 4), activation="relu6", output_q=q)
    >>> print(lower_model(single_op_model(layer), "rockchip"))
    operator  name     input          output         jobs  reason
    0         CONV_2D  1x8x8x4 uint8  1x6x6x8 uint8  1
    1 of 1 operator lower on rockchip (rk3588), simulated: 1 job
    """
    if not isinstance(model, Model):
        model = read_model(model)
    if isinstance(npu, str):
        npu = target(npu)
    need("lower_model: npu", npu, Target, "is a target, or its name")
    if "chip" in options:
        npu.features(options["chip"])
    run = _Run(model, npu, options, _inputs(model, x))
    entries: list[tuple[int, Found | str]] = [(found.number, found) for found in model.found]
    for number, layer in model.by_operator.items():
        if isinstance(layer, str):
            entries.append((number, layer))
    entries.sort(key=lambda entry: entry[0])
    done = []
    for number, found in entries:
        done.append(run.operator(number, found))
        if progress is not None:
            progress(len(done), len(entries), done[-1].name)
    return ModelJobs(npu.name, tuple(done))


def _inputs(graph: Model, x: Any) -> dict[int, Array]:
    """Return the model's inputs by the numbers of their tensors; none if ``x`` is None."""
    if x is None:
        return {}
    given = x
    if not isinstance(x, tuple | list):
        given = (x,)
    arrays = [np.asarray(tensor) for tensor in given]
    wanted = [graph.tensors[tensor] for tensor in graph.inputs]
    fits = len(arrays) == len(wanted)
    for array, tensor in zip(arrays, wanted, strict=False):
        shapes = tensor.shape, tensor.shape[1:]
        fits = fits and array.dtype.name == tensor.dtype and array.shape in shapes
    got = " and ".join(f"{array.shape} {array.dtype}" for array in arrays)
    allowed = " and ".join(f"{tensor.shape} {tensor.dtype}" for tensor in wanted)
    refuse_if(not fits, "x", f"shape {got}", f"is {allowed}, the batch may be left out")
    return dict(zip(graph.inputs, arrays, strict=True))


class _Run:
    """A model that is lowered operator by operator; ``known`` are the tensors computed so far, by
    number.
    """

    def __init__(
        self, graph: Model, of: Target, options: dict[str, Any], known: dict[int, Array]
    ) -> None:
        self.graph, self.of, self.options, self.known = graph, of, options, known
        self.shapes = {row["operator"]: row for row in operators(graph) if not row["graph"]}
        self.digits = max(2, len(str(len(graph.operators))))

    def operator(self, number: int, found: Found | str) -> OperatorJobs:
        """Return the jobs of an operator, and keep its output."""
        name = self.graph.operators[number].name
        jobs = OperatorJobs(number, name, shapes=self.shapes[number])
        if isinstance(found, str):
            return replace(jobs, reason=found)
        x = self._input(found)
        jobs = replace(jobs, layer=found.layer, x=x)
        rule: Any = ELSEWHERE
        try:
            capture = self._lowered(found.layer, x, f"{number:0{self.digits}}-{name.lower()}")
            rule = rule_for(self.of, capture)
            jobs = replace(jobs, capture=capture)
        except ValueError as error:
            jobs = replace(jobs, reason=str(error))
        if x is None:
            return jobs
        try:
            output = emulate(found.layer, x, rule)
        except ValueError as error:
            return replace(jobs, reason=jobs.reason or f"its output is not known: {error}")
        self.known[found.output] = output
        return replace(jobs, output=output)

    def _input(self, found: Found) -> Any:
        """Return the tensors that a layer takes, in their shapes; None if one is not known."""
        taken = []
        for source, tensor in zip(found.sources, tensors_taken(found.layer), strict=True):
            value = self.known.get(source)
            if value is None or value.size != math.prod(tensor.shape):
                return None
            taken.append(value.reshape(tensor.shape))
        if len(taken) == 1:
            return taken[0]
        return tuple(taken)

    def _lowered(self, layer: Layer, x: Any, name: str) -> Capture:
        given = dict(self.options)
        if x is not None:
            given["x"] = x
        return replace(self.of.lower(layer, **given), name=name)
