"""A recorded run of a whole model on an NPU, checked job by job to find the first operator whose
output is wrong.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

import numpy as np

from npulab.analysis.check import NOT_EXECUTED, Comparison, check, with_outputs
from npulab.analysis.checks import explained, nearby
from npulab.analysis.compared import OUTPUT, as_unwritten, rest_left
from npulab.analysis.mismatch.matching import (
    CODE_SHIFT,
    Outline,
    computes,
    match,
    owners,
    same_value,
    stored_weights,
)
from npulab.captures.capture import Capture
from npulab.captures.listing import Decoded, Wanted
from npulab.captures.registry import target
from npulab.captures.target import Hang, Target
from npulab.models import Model, read_model
from npulab.models.listing import operators
from npulab.quant.emulate.engines import REAL
from npulab.quant.layers import Conv2D, FullyConnected, Layer, per_channel
from npulab.quant.rules import QUANTIZED
from npulab.support.answers import TINTS, Answer, Part, Table, compared_rows, tone
from npulab.support.late import pd
from npulab.support.text import Row, plural, six_digits

VERDICTS = (
    "equal",
    "partly compared",
    "one value",
    "differs",
    NOT_EXECUTED,
    "claims agree",
    "nothing to compare",
    "not covered",
    "not run",
    "no operator",
)
COLUMNS = (
    "inference",
    "operator",
    "name",
    "input",
    "output",
    "jobs",
    "provenance",
    "words",
    "coefficients",
    "compared",
    "mismatches",
    "verdict",
    "reason",
)
# Columns that the table in a notebook leaves out.
NOT_IN_TABLE = ("input", "output", "provenance", "words", "coefficients")
# Columns of the table of fields in the details of an operator.
FIELDS = ("task", "register", "field", "bits", "value", "evidence")
NOT_RUN = "no job of the run is like it; the driver left it to the CPU, or its files are missing"
NO_OPERATOR = "no operator of the model is like it"
NO_MOVES = "moves data for no job of the run"
SIMULATED = "simulated device"

# Calls a function for each capture and returns the results in order, as ``map`` does.
Run = Callable[..., Iterable[Comparison]]


def check_run(
    captures: Iterable[Capture],
    model: Model | bytes | str | os.PathLike[str],
    run: Run = map,
) -> RunCheck:
    """Check every job of a recorded run against its operator of the model, on the job's own
    captured input.

    ``captures`` are the jobs in the order in which they ran, as ``npulab.load_all`` returns them
    for a recording; ``run`` is called as ``map`` is, and may be the map of a pool of processes.
    Jobs are matched to operators by their order and by the outputs, zero points and scale that
    their words state; if that leaves several operators, by their weights. An operator differs if
    its output is not the one that the target's rule gives for its input, or if its job states other
    values than the model. Raises ValueError if there is no capture, for captures of several
    targets, and for a file that is not a model.
    """
    recording = list(captures)
    names = {capture.target for capture in recording}
    if len(names) != 1:
        raise ValueError(
            f"captures: got {len(recording)} of targets {', '.join(sorted(names)) or 'none'}, "
            "allowed are one or more of one target"
        )
    if not isinstance(model, Model):
        model = read_model(model)
    of = target(names.pop())
    wanted = _WantedModel.of(model, of)
    parts: list[Capture] = []
    for capture in recording:
        parts += of.split(capture)
    rows: list[OperatorCheck] = []
    for inference, jobs in enumerate(_inferences(parts, sum(map(bool, wanted.outlines.values())))):
        rows += _Inference(inference, jobs, wanted).rows(run)
    return RunCheck(tuple(rows))


@dataclass(frozen=True, eq=False)
class OperatorCheck:
    """The result of one operator of a model in a run.

    ``operator`` is its number in the file (None for a job that is not an operator of the model),
    ``captures`` the captures of its jobs in order, and ``cases`` their names. ``inference`` is the
    number of the inference in the recording, from 0. ``shapes`` are input and output as the model
    states them. ``verdict`` is one of ``VERDICTS``, ``reason`` its reason in words, ``comparison``
    the comparison of the job that decides it.
    """

    operator: int | None
    name: str
    cases: tuple[str, ...]
    verdict: str
    reason: str = ""
    layer: Layer | None = None
    comparison: Comparison | None = None
    inference: int = 0
    provenance: str = ""
    captures: tuple[Capture, ...] = ()
    shapes: Row = field(default_factory=dict)

    def records(self) -> list[Row]:
        row: Row = {
            "inference": self.inference,
            "operator": self.operator,
            "name": self.name,
            "input": self.shapes.get("input"),
            "output": self.shapes.get("output"),
            "jobs": list(self.cases),
            "layer": None,
            "case": None,
            "target": None,
            "words": "none",
            "coefficients": "none",
        }
        if self.layer is not None:
            row["layer"] = str(self.layer)
        if self.comparison:
            row |= self.comparison.records()[0]
        else:
            row |= {"compared": 0, "mismatches": 0}
        row |= {"verdict": self.verdict, "reason": self.reason, "provenance": self.provenance}
        return [row]

    def _repr_html_(self) -> str:
        return self.details(True)

    def details(self, opened: bool) -> str:
        """Return HTML: a line that opens to the operator's jobs, with their fields that are not
        zero.
        """
        head = []
        if self.operator is not None:
            head.append(str(self.operator))
        head.append(self.name or "no operator")
        shapes = [self.shapes[side] for side in ("input", "output") if self.shapes.get(side)]
        if shapes:
            head.append(" → ".join(shapes))
        start = "<details>"
        if opened:
            start = "<details open>"
        tint = TINTS.get(tone("verdict", self.verdict), "")
        text = (
            f"{start}<summary>{escape(' '.join(head))} "
            f"<span style='background:{tint}'>{escape(self.verdict)}</span> "
            f"{escape(self.reason)}</summary>"
        )
        if self.layer is not None:
            text += f"<p>{escape(str(self.layer))}</p>"
        for capture in self.captures:
            rows = Decoded(capture, Wanted(nonzero=True)).rows
            text += f"<p>job {escape(repr(capture))}</p>{Table(rows, FIELDS)._repr_html_()}"
        return f"{text}</details>"

    def __repr__(self) -> str:
        result = self.comparison
        parts = [self.verdict]
        if result and result.mismatches:
            parts.append(f"{result.mismatches} of {result.compared} differ")
        if self.reason:
            parts.append(self.reason)
        return f"OperatorCheck({self.text}: {', '.join(parts)})"

    @property
    def ok(self) -> bool:
        """True if nothing differs, and no output shows that the operator was not executed."""
        if self.verdict == NOT_EXECUTED and self.comparison is not None:
            return self.comparison.ok
        return self.verdict != "differs"

    @property
    def text(self) -> str:
        """The operator's number and name, and the names of its jobs, as text."""
        what = "no operator"
        if self.operator is not None:
            what = f"operator {self.operator}, {self.name}"
        if self.inference:
            what = f"inference {self.inference}, {what}"
        jobs = "no job"
        if self.cases:
            jobs = f"{_many('job', len(self.cases))} {' '.join(self.cases)}"
        if self.provenance == "simulated":
            jobs += ", simulated"
        return f"{what} ({jobs})"


@dataclass(frozen=True, eq=False)
class RunCheck(Answer):
    """The result of a run of a model. ``operators`` are the checks in the order of the model, for
    one inference after the other.

    With ``explain``, ``print`` also shows, for each operator that differs, the change that would
    make its output equal.
    """

    operators: tuple[OperatorCheck, ...]
    explain: bool = False

    @property
    def ok(self) -> bool:
        """True if every operator is ``ok``."""
        return all(operator.ok for operator in self.operators)

    @property
    def first(self) -> OperatorCheck | None:
        """The first operator with the verdict "differs"; None if there is none."""
        for operator in self.operators:
            if operator.verdict == "differs":
                return operator
        return None

    @property
    def counts(self) -> dict[str, int]:
        """The number of operators by verdict; verdicts without operators are left out."""
        counts = Counter(operator.verdict for operator in self.operators)
        return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}

    @property
    def _verdicts(self) -> str:
        return ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())

    def records(self) -> list[Row]:
        rows: list[Row] = []
        for operator in self.operators:
            rows += operator.records()
        return rows

    @property
    def parts(self) -> list[Part]:
        rows = compared_rows(self.operators)
        columns: Sequence[str] = COLUMNS
        if not any(operator.inference for operator in self.operators):
            columns = COLUMNS[1:]
        parts: list[Part] = [Table(rows, columns), self._sentence()]
        if not self.explain:
            return parts
        for operator in self.operators:
            result = operator.comparison
            if operator.verdict == "differs" and result:
                near = None
                if result.mismatches and result.layer is not None:
                    near = nearby(result, iter)
                parts += explained(result, near)
        return parts

    def _sentence(self) -> str:
        text = f"{plural(len(self.operators), 'operator')} ({self._verdicts})"
        if self.first:
            text += f"; first wrong: {self.first.text}: {self.first.reason}"
        return text

    def _repr_html_(self) -> str:
        """Return HTML: a line for each operator, which opens to its jobs and their fields; the line
        of the first wrong operator is open.
        """
        rows = "".join(operator.details(operator is self.first) for operator in self.operators)
        return f"<p>{escape(self._sentence())}</p>{rows}"

    @property
    def table(self) -> pd.DataFrame:
        """One row per operator: inference, operator, name, jobs, compared, mismatches, verdict,
        reason."""
        rows = [{**row, "jobs": " ".join(row["jobs"])} for row in self.records()]
        names = [name for name in COLUMNS if name not in NOT_IN_TABLE]
        return pd.DataFrame(rows, columns=names).astype({"operator": "Int64"})

    def __repr__(self) -> str:
        text = self._verdicts or "nothing"
        if self.first:
            text += f"; first wrong: {self.first.text}"
        return f"RunCheck({text})"


@dataclass(frozen=True)
class _WantedModel:
    """A model, and the values that its jobs should state: ``layers``, the values that words of
    their jobs state (``outlines``), and ``shapes``, each by the number of the operator.
    """

    graph: Model
    layers: Mapping[int, Layer]
    outlines: Mapping[int, Outline]
    shapes: Mapping[int, Row]

    @classmethod
    def of(cls, graph: Model, target: Target) -> _WantedModel:
        layers: dict[int, Layer] = {}
        for number, layer in graph.by_operator.items():
            if not isinstance(layer, str):
                layers[number] = layer
        outlines = {number: target.outline(layer) for number, layer in layers.items()}
        shapes = {row["operator"]: row for row in operators(graph) if not row["graph"]}
        return cls(graph, layers, outlines, shapes)


def _inferences(captures: Sequence[Capture], operators: int) -> Iterator[Sequence[Capture]]:
    """Yield the captures of each inference. A recording is split only if it has more computing jobs
    than the model has operators, and its jobs repeat with a period.
    """
    keys = []
    for capture in captures:
        keys.append([(job.block, job.words.tobytes()) for job in capture.jobs])
    period = len(keys)
    if sum(map(computes, captures)) > operators:
        period = next((n for n in range(1, len(keys)) if keys[n:] == keys[:-n]), period)
    for at in range(0, len(captures), period):
        yield captures[at : at + period]


@dataclass(frozen=True)
class _Inference:
    """The jobs of one inference, and the model that they are compared with."""

    number: int
    captures: Sequence[Capture]
    wanted: _WantedModel

    def rows(self, run: Run) -> Iterator[OperatorCheck]:
        """Yield a row for each operator, and for each job that is no operator, in the model's
        order.
        """
        graph = self.wanted.graph
        outlines: dict[int, Outline] = {}
        computing: dict[int, Capture] = {}
        for n, capture in enumerate(self.captures):
            if computes(capture):
                computing[n] = capture
                outlines[n] = target(capture.target).outline(capture)
        matched, rivals = match(outlines, self.wanted.outlines, computing, self.wanted.layers)
        known = list(self.captures)
        for n, number in matched.items():
            known[n] = replace(known[n], parameters=self.wanted.layers[number].parameters)
        results = list(run(_checked, known))
        owned = owners(self.captures)
        places = {number: place for place, number in enumerate(graph.by_operator)}
        rows: list[tuple[float, OperatorCheck]] = []
        last = -1.0  # place of the last operator: a job that is no operator comes after it
        for n in range(len(self.captures)):
            if owned.get(n) is not None:
                continue
            jobs = [job for job in range(len(self.captures)) if job == n or owned.get(job) == n]
            moves = [results[job] for job in jobs if job != n]
            if n in matched:
                last = places[matched[n]]
                row = self._of_operator(matched[n], results[n], moves, outlines[n], rivals[n])
            else:
                row = self._of_no_operator(results[n], moves, n in computing)
            ran = tuple(self.captures[job] for job in jobs)
            cases = tuple(capture.name for capture in ran)
            row = replace(row, cases=cases, provenance=self.captures[n].origin, captures=ran)
            rows.append((last, row))
            if n in matched:
                last += 0.5
        for number, layer in graph.by_operator.items():
            if number not in matched.values():
                rows.append((places[number], self._not_run(number, layer)))
        rows.sort(key=lambda pair: pair[0])
        for _, row in rows:
            yield row

    def _of_operator(
        self,
        number: int,
        result: Comparison,
        moves: Sequence[Comparison],
        outline: Outline,
        rivals: Sequence[int],
    ) -> OperatorCheck:
        layer = self.wanted.layers[number]
        unlike = _unlike(outline, self.wanted.outlines[number], result.layer, layer)
        decides, verdict, reason = _verdict(result, moves, unlike)
        if rivals:
            others = ", ".join(map(str, rivals))
            rival = f"{_many('operator', len(rivals))} {others} would fit as well"
            reason = "; ".join(filter(None, [reason, rival]))
        name = self.wanted.graph.operators[number].name
        return OperatorCheck(
            number,
            name,
            (),
            verdict,
            reason,
            layer,
            decides,
            self.number,
            shapes=self.wanted.shapes.get(number, {}),
        )

    def _of_no_operator(
        self, result: Comparison, moves: Sequence[Comparison], computing: bool
    ) -> OperatorCheck:
        decides, verdict, why = _verdict(result, moves, [])
        if verdict != "differs":
            verdict = "no operator"
        reason = NO_MOVES
        if computing:
            reason = NO_OPERATOR
        if why:
            reason += f"; {why}"
        return OperatorCheck(None, "", (), verdict, reason, None, decides, self.number)

    def _not_run(self, number: int, layer: Layer | str) -> OperatorCheck:
        reason = NOT_RUN
        known = None
        if isinstance(layer, str):
            reason = layer.split(": ", 1)[-1]
        else:
            known = layer
            if not self.wanted.outlines.get(number):
                reason = f"no job is known that does {layer.op}"
        return OperatorCheck(
            number,
            self.wanted.graph.operators[number].name,
            (),
            "not run",
            reason,
            known,
            inference=self.number,
            shapes=self.wanted.shapes[number],
        )


def _many(noun: str, count: int) -> str:
    if count == 1:
        return noun
    return f"{noun}s"


# How it ran


def _checked(capture: Capture) -> Comparison:
    """Return the result of ``npulab.check``; if no layer can be lifted, compare the output with
    that of the simulated device instead.
    """
    result = check(capture)
    if result.layer is not None or result.compared:
        return result
    if not {"input", "output"} <= capture.buffers.keys():
        return result
    try:
        predicted = np.frombuffer(target(capture.target).simulate(capture), np.uint8)
    except (ValueError, LookupError, Hang):
        return result
    size = len(capture.buffers["output"])
    both = min(len(predicted), size)  # the simulated output may be longer or shorter
    if not both:
        return result
    captured = np.frombuffer(capture.buffers["output"], np.uint8, both)

    def read(of: Capture) -> np.ndarray:
        return np.frombuffer(of.buffers[OUTPUT], np.uint8, both)

    unwritten = as_unwritten(capture, OUTPUT, captured, read)
    found = with_outputs(
        replace(result, rule=SIMULATED, reason="", left=()), predicted[:both], captured, unwritten
    )
    cut = len(predicted) > size
    if not cut and not rest_left(capture, len(predicted)):
        return found
    said = f"{both} of {max(size, len(predicted))} bytes of buffer 'output' were compared"
    verdict = found.verdict
    if verdict == "equal":
        verdict = "partly compared"
    reason = "; ".join(filter(None, [found.reason, said]))
    return replace(found, verdict=verdict, left=(said,), reason=reason)


def _verdict(
    result: Comparison,
    moves: Sequence[Comparison],
    unlike: Sequence[str],
) -> tuple[Comparison, str, str]:
    """Return the comparison that decides the verdict, the verdict, and the reason."""
    sound = result.words and result.coefficients is not False
    verdict = result.verdict
    if sound and result.layer is None and not result.compared:
        verdict = "not covered"
    reasons = []
    if unlike:
        reasons.append(f"the job differs from the operator: {', '.join(unlike)}")
    if not sound:
        what = "words"
        if result.words:
            what = "coefficients"
        reasons.append(f"{what} differ from those recorded once they are decoded and encoded again")
    wrong = []
    unseen = []
    for move in moves:
        if move.verdict == "differs" and (move.compared or not move.words):
            wrong.append(move)
            reasons.append(f"{move.case}: {move.mismatches} of {move.compared} moved bytes differ")
        elif move.verdict == "nothing to compare":
            unseen.append(move.case)
    if verdict == "differs" and result.compared:
        reasons.append(
            f"{result.mismatches} of {result.compared} outputs differ, first at {result.first}, "
            f"largest {result.largest}"
        )
    if unlike or wrong or not sound:
        verdict = "differs"
    decides = result
    if wrong and result.verdict != "differs":
        decides = wrong[0]
    reasons.append(result.reason)
    if unseen:
        reasons.append(f"{' '.join(unseen)} not compared")
    return decides, verdict, "; ".join(filter(None, reasons))


def _unlike(outline: Outline, wanted: Outline, lifted: Any, layer: Layer) -> list[str]:
    """Return a text for each value in which a job differs from the operator of the model."""
    reasons = []
    for name, value in wanted.items():
        if name in outline and not same_value(outline[name], value):
            reasons.append(
                f"{name} is {six_digits(outline[name])}, the model's {six_digits(value)}"
            )
    weighted = Conv2D | FullyConnected
    if not isinstance(lifted, weighted) or not isinstance(layer, weighted):
        return reasons
    if per_channel(layer.weight_q.scale):
        return reasons
    mine, _ = stored_weights(lifted)
    theirs, _ = stored_weights(layer)
    if mine.size == theirs.size:
        wrong = np.count_nonzero(mine.ravel() != theirs.ravel())
        if mine.ndim == 4 and theirs.ndim != 4:
            # a job may hold a fully connected layer as a convolution, with its weights plane by
            # plane
            planes = mine.transpose(0, 3, 1, 2)
            wrong = min(wrong, np.count_nonzero(planes.ravel() != theirs.ravel()))
        if wrong:
            reasons.append(f"{wrong} of {theirs.size} weights differ")
    elif not any(reason.startswith("outputs") for reason in reasons):
        reasons.append(f"it has {mine.size} weights, the model {theirs.size}")
    if lifted.bias.size == layer.bias.size:
        wrong = np.count_nonzero(lifted.bias != layer.bias)
        if wrong:
            reasons.append(f"{wrong} of {layer.bias.size} biases differ")
    mine_range, their_range = _output_range(lifted), _output_range(layer)
    if mine_range != their_range:
        reasons.append(f"its outputs are within {mine_range}, the model's {their_range}")
    return reasons


def _output_range(layer: Conv2D | FullyConnected) -> tuple[float, float]:
    """Return the lowest and the highest output that the activation allows, as uint8 codes, or as
    real numbers.
    """
    low, high = REAL.get(layer.activation, REAL[None])
    if layer.dtype not in QUANTIZED:
        return low, high
    zero = layer.output_q.zero_point
    if layer.dtype == "int8":
        zero += CODE_SHIFT
    unit = 1 / float(np.ravel(layer.output_q.scale)[0])
    codes = np.clip([zero + low * unit, zero + high * unit], 0, 2**8 - 1)
    return round(codes[0]), round(codes[1])
