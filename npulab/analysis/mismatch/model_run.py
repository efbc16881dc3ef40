"""A whole model's run on an NPU, checked job by job: which operator is the first that went
wrong."""

from __future__ import annotations

import math
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
from npulab.captures.capture import Capture
from npulab.captures.listing import Decoded, Wanted
from npulab.captures.registry import target
from npulab.captures.target import Hang
from npulab.models import Model, read_model
from npulab.models.listing import operators
from npulab.quant.emulate.engines import REAL
from npulab.quant.layers import Conv2D, FullyConnected, Layer, per_channel
from npulab.quant.rules import QUANTIZED
from npulab.support.answers import TINTS, Answer, Part, Table, tone
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
FIELDS = ("task", "register", "field", "bits", "value", "evidence")  # of a job behind an operator
NOT_RUN = "no job of the run is like it; the driver left it to the CPU, or its files are missing"
NO_OPERATOR = "no operator of the model is like it"
TOLERANCE = 2.0**-12  # of a scale: a fixed point keeps 15 bits of it or more
# of what outlines say in common, for a job that is taken for an operator it is not quite like
LIKENESS = 0.6
EXACT, PARTLY, EACH, CONTENT = (
    1000,
    500,
    10,
    100,
)  # weights of a pair of job and operator; whole, so that ties are ties
STORED_UP = 128  # between a code read as int8 and as uint8, with the top bit turned
SIMULATED = "simulated device"

Outline = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class OperatorCheck:
    """How one operator of a model ran.

    ``operator`` is its number in the file (None for a job that is no operator of the model),
    ``cases`` the captures of its jobs in order, ``inference`` counts from 0 where a recording holds
    several, ``captures`` those captures, ``shapes`` input and output as the model has them.
    ``verdict`` is one of ``VERDICTS``, ``reason`` says why in words; ``comparison`` is
    that of the job that decides it.
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
            "layer": None if self.layer is None else str(self.layer),
            "case": None,
            "target": None,
            "words": "none",
            "coefficients": "none",
        }
        if self.comparison:
            row |= self.comparison.records()[0]
        else:
            row |= {"compared": 0, "mismatches": 0}
        return [
            {**row, "verdict": self.verdict, "reason": self.reason, "provenance": self.provenance}
        ]

    def _repr_html_(self) -> str:
        return self.details(True)

    def details(self, opened: bool) -> str:
        """HTML: a line that opens to the operator's jobs and their fields that are not zero."""
        tint = TINTS.get(tone("verdict", self.verdict), "")
        head = " ".join(
            filter(
                None,
                [
                    "" if self.operator is None else str(self.operator),
                    self.name or "no operator",
                    " → ".join(filter(None, [self.shapes.get("input"), self.shapes.get("output")])),
                ],
            )
        )
        jobs = "".join(
            f"<p>job {escape(repr(capture))}</p>"
            + Table(Decoded(capture, Wanted(nonzero=True)).rows, FIELDS)._repr_html_()
            for capture in self.captures
        )
        return (
            f"<details{' open' * opened}><summary>{escape(head)} "
            f"<span style='background:{tint}'>{escape(self.verdict)}</span> "
            f"{escape(self.reason)}</summary>"
            f"{f'<p>{escape(str(self.layer))}</p>' * (self.layer is not None)}{jobs}</details>"
        )

    def __repr__(self) -> str:
        result = self.comparison
        counts = ""
        if result and result.mismatches:
            counts = f"{result.mismatches} of {result.compared} differ"
        return f"OperatorCheck({self.text}: {', '.join(filter(None, [self.verdict, counts, self.reason]))})"

    @property
    def ok(self) -> bool:
        """Whether it ran, and nothing differs."""
        if self.verdict == NOT_EXECUTED and self.comparison is not None:
            return self.comparison.ok
        return self.verdict != "differs"

    @property
    def text(self) -> str:
        """Number, name and jobs."""
        jobs = "no job"
        if self.cases:
            jobs = f"job{'s' * (len(self.cases) > 1)} {' '.join(self.cases)}"
        if self.operator is None:
            what = "no operator"
        else:
            what = f"operator {self.operator}, {self.name}"
        again = f"inference {self.inference}, " * bool(self.inference)
        return f"{again}{what} ({jobs}{', simulated' * (self.provenance == 'simulated')})"


@dataclass(frozen=True, eq=False)
class RunCheck(Answer):
    """How a model ran: ``operators`` in the model's order, each inference behind the one before.

    Where ``explain`` asks for it, ``print`` says of each operator that differs what would make it
    equal.
    """

    operators: tuple[OperatorCheck, ...]
    explain: bool = False

    @property
    def ok(self) -> bool:
        """Nothing differs, and every operator ran."""
        return all(operator.ok for operator in self.operators)

    @property
    def first(self) -> OperatorCheck | None:
        """The first operator that went wrong."""
        return next(
            (operator for operator in self.operators if operator.verdict == "differs"), None
        )

    @property
    def counts(self) -> dict[str, int]:
        """How many operators there are of each verdict."""
        counts = Counter(operator.verdict for operator in self.operators)
        return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}

    def records(self) -> list[Row]:
        return [row for operator in self.operators for row in operator.records()]

    @property
    def parts(self) -> list[Part]:
        rows = [
            row if row["compared"] else {**row, "compared": None, "mismatches": None}
            for row in self.records()
        ]
        parts: list[Part] = [
            Table(rows, COLUMNS[not any(operator.inference for operator in self.operators) :]),
            self._sentence(),
        ]
        for operator in self.operators if self.explain else ():
            if operator.verdict == "differs" and (result := operator.comparison):
                there = result.mismatches and result.layer is not None
                parts += explained(result, nearby(result, iter) if there else None)
        return parts

    def _sentence(self) -> str:
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())
        return f"{plural(len(self.operators), 'operator')} ({verdicts})" + (
            f"; first wrong: {self.first.text}: {self.first.reason}" if self.first else ""
        )

    def _repr_html_(self) -> str:
        """The operators in a line each, which opens to the operator's jobs and their fields; that
        of
        the first wrong one is open."""
        rows = "".join(operator.details(operator is self.first) for operator in self.operators)
        return f"<p>{escape(self._sentence())}</p>{rows}"

    @property
    def table(self) -> pd.DataFrame:
        """One row per operator: inference, operator, name, jobs, compared, mismatches, verdict,
        reason."""
        rows = [{**row, "jobs": " ".join(row["jobs"])} for row in self.records()]
        names = [
            name
            for name in COLUMNS
            if name not in ("input", "output", "provenance", "words", "coefficients")
        ]
        return pd.DataFrame(rows, columns=names).astype({"operator": "Int64"})

    def __repr__(self) -> str:
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())
        return f"RunCheck({verdicts or 'nothing'}{f'; first wrong: {self.first.text}' if self.first else ''})"


def check_run(
    captures: Iterable[Capture],
    model: Model | bytes | str | os.PathLike[str],
    run: Callable[..., Iterable[Comparison]] = map,
) -> RunCheck:
    """Every job of a recorded run against the operator of the model that it is, on its own captured
    input.

    ``captures`` are the jobs in the order they ran, as ``npulab.load_all`` gives them for a
    recording; ``run`` maps, as a pool of processes does.  Jobs are matched to operators by order
    and by what their words say of outputs, zero points and scale; where that leaves several, by
    their weights.  An operator differs where its output is not what the target's rule gives for its
    input, or where its job is not what the model says. Raises ValueError for no capture, captures
    of several targets, and a file that is no model.
    """
    recording = list(captures)
    names = {capture.target for capture in recording}
    if len(names) != 1:
        raise ValueError(
            f"captures: got {len(recording)} of targets {', '.join(sorted(names)) or 'none'}, "
            "allowed are "
            "one or more of one target"
        )
    if isinstance(model, Model):
        graph = model
    else:
        graph = read_model(model)
    of = target(names.pop())
    recording = [part for capture in recording for part in of.split(capture)]
    layers = {
        number: layer for number, layer in graph.by_operator.items() if not isinstance(layer, str)
    }
    wanted = {number: of.outline(layer) for number, layer in layers.items()}
    rows: list[OperatorCheck] = []
    for inference, jobs in enumerate(_inferences(recording, sum(map(bool, wanted.values())))):
        rows += _check_inference(jobs, graph, layers, wanted, run, inference)
    return RunCheck(tuple(rows))


def _inferences(captures: Sequence[Capture], operators: int) -> Iterator[Sequence[Capture]]:
    """The captures of each inference, where there are more jobs than operators and they are the
    same again."""
    keys = [[(job.block, job.words.tobytes()) for job in one.jobs] for one in captures]
    period = len(keys)
    if sum(map(_computes, captures)) > operators:
        period = next((n for n in range(1, len(keys)) if keys[n:] == keys[:-n]), period)
    yield from (captures[at : at + period] for at in range(0, len(captures), period))


def _check_inference(
    captures: Sequence[Capture],
    graph: Model,
    layers: Mapping[int, Layer],
    wanted: Mapping[int, Outline],
    run: Callable[..., Iterable[Comparison]],
    inference: int,
) -> Iterator[OperatorCheck]:
    main = [i for i, capture in enumerate(captures) if _computes(capture)]
    shapes = {row["operator"]: row for row in operators(graph) if not row["graph"]}
    outlines = {i: target(captures[i].target).outline(captures[i]) for i in main}
    matched, rivals = _match(outlines, wanted, {i: captures[i] for i in main}, layers)
    known = [
        replace(capture, parameters=layers[matched[i]].parameters) if i in matched else capture
        for i, capture in enumerate(captures)
    ]
    results = list(run(_checked, known))
    owners = _owners(captures, main)
    rows: list[tuple[float, OperatorCheck]] = []
    places = {number: at for at, number in enumerate(graph.by_operator)}
    at = -1.0
    for i in range(len(captures)):
        if owners.get(i) is not None:
            continue
        jobs = [n for n in range(len(captures)) if n == i or owners.get(n) == i]
        moves = [results[n] for n in jobs if n != i]
        number = matched.get(i)
        if number is None:
            name, layer, place = "", None, at
            decides, verdict, why = _verdict(results[i], moves, [])
            if verdict == "differs":
                verdict = "differs"
            else:
                verdict = "no operator"
            reasons = [NO_OPERATOR if i in main else "moves data for no job of the run", why]
        else:
            name, layer, place = graph.operators[number].name, layers[number], places[number]
            at = place + 0.5
            unlike = _unlike(outlines[i], wanted[number], results[i].layer, layer)
            decides, verdict, why = _verdict(results[i], moves, unlike)
            reasons = [why] + [
                f"operator{'s' * (len(others) > 1)} {', '.join(map(str, others))} would do as well"
                for others in [rivals[i]]
                if others
            ]
        rows.append(
            (
                place,
                OperatorCheck(
                    number,
                    name,
                    tuple(captures[n].name for n in jobs),
                    verdict,
                    "; ".join(filter(None, reasons)),
                    layer,
                    decides,
                    inference,
                    captures[i].origin,
                    tuple(captures[n] for n in jobs),
                    shapes.get(number, {}),
                ),
            )
        )
    ran = set(matched.values())
    rows += [
        (
            places[number],
            OperatorCheck(
                number,
                graph.operators[number].name,
                (),
                "not run",
                NOT_RUN if wanted.get(number) else _why(layer),
                None if isinstance(layer, str) else layer,
                inference=inference,
                shapes=shapes[number],
            ),
        )
        for number, layer in graph.by_operator.items()
        if number not in ran
    ]
    yield from (row for _, row in sorted(rows, key=lambda pair: pair[0]))


def _why(layer: Layer | str) -> str:
    if isinstance(layer, str):
        return layer.split(": ", 1)[-1]
    return f"no job is known that does {layer.op}"


def _computes(capture: Capture) -> bool:
    """Whether a capture has a job of the parameter block, which the maps name first; others move
    data."""
    return any(job.block == next(iter(capture.maps), None) for job in capture.jobs)


# Which job is which operator


def _match(
    outlines: Mapping[int, Outline],
    wanted: Mapping[int, Outline],
    captures: Mapping[int, Capture],
    layers: Mapping[int, Layer],
) -> tuple[dict[int, int], dict[int, list[int]]]:
    """The operator of each job, and the other operators that it might be as well."""
    jobs, numbers = list(outlines), list(wanted)
    weights = np.array(
        [[_likeness(outlines[i], wanted[number]) for number in numbers] for i in jobs], np.int64
    ).reshape(len(jobs), len(numbers))
    found = _alignments(weights)
    claims = Counter(column for columns in found for column in columns)
    open_ = [
        row
        for row, columns in enumerate(found)
        if len(columns) > 1 or any(claims[one] > 1 for one in columns)
    ]
    if open_:
        counts = {number: _histogram(layer) for number, layer in layers.items()}
        for row in open_:
            mine = _histogram(_lifted(captures[jobs[row]]))
            for column, number in enumerate(numbers):
                if mine is not None and weights[row, column] and mine == counts[number]:
                    weights[row, column] += CONTENT
        found = _alignments(weights)
    matched = {
        jobs[row]: numbers[columns[0]] for row, columns in enumerate(_in_order(found)) if columns
    }
    return matched, {
        i: [numbers[column] for column in found[row] if numbers[column] != matched.get(i)]
        for row, i in enumerate(jobs)
    }


def _likeness(job: Outline, operator: Outline) -> int:
    """The weight of a pair, 0 where the job cannot be the operator."""
    common = [name for name in operator if name in job]
    same = sum(_same(job[name], operator[name]) for name in common)
    if same == len(common):
        if common:
            return EXACT + EACH * same
        return 0
    first = next(iter(common))
    fits = _same(job[first], operator[first]) and same / len(common) >= LIKENESS
    if fits:
        return PARTLY * same // len(common)
    return 0


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float):
        return math.isclose(a, b, rel_tol=TOLERANCE)
    return bool(a == b)


def _alignments(weights: np.ndarray) -> list[list[int]]:
    """For each row the columns it has in the heaviest matchings that keep the order of rows and
    columns."""
    before, after = _heaviest(weights), _heaviest(weights[::-1, ::-1])[::-1, ::-1]
    on_path = (weights > 0) & (before[:-1, :-1] + weights + after[1:, 1:] == before[-1, -1])
    return [np.flatnonzero(row).tolist() for row in on_path]


def _heaviest(weights: np.ndarray) -> np.ndarray:
    """The weight of the heaviest matching of the first rows and columns, by how many there are."""
    rows, columns = weights.shape
    out = np.zeros((rows + 1, columns + 1), np.int64)
    for row in range(rows):
        # the best of the rows before, or a pair of this row with what lies before it
        paired = out[row, :-1] + weights[row] * (weights[row] > 0)
        out[row + 1, 1:] = np.maximum.accumulate(np.maximum(out[row, 1:], paired))
    return out


def _in_order(found: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Of each row the first column behind that of the row before, if it has one."""
    last = -1
    for columns in found:
        later = [column for column in columns if column > last][:1]
        last = max([last, *later])
        yield later


def _lifted(capture: Capture) -> Layer | None:
    try:
        return target(capture.target).lift(capture).layer
    except ValueError:
        return None


def _histogram(layer: Layer | None) -> tuple[int, ...] | None:
    """How often each stored weight is there but for the zero point, whose number depends on how it
    was lowered."""
    if not isinstance(layer, Conv2D | FullyConnected) or layer.weights.dtype.kind not in "iu":
        return None
    codes, zero = _stored(layer)
    counts = np.bincount(codes.ravel(), minlength=2**8)
    counts[zero % len(counts)] = 0
    return tuple(counts.tolist())


def _stored(layer: Conv2D | FullyConnected) -> tuple[np.ndarray, int]:
    """Weights and their zero point as uint8 codes, in whole numbers; real weights as they are."""
    if layer.weights.dtype.kind == "f":
        return layer.weights, 0
    up = 0
    if layer.weights.dtype == np.int8:
        up = STORED_UP
    return layer.weights.astype(np.int64) + up, layer.weight_q.zero_point + up


def _owners(captures: Sequence[Capture], main: Sequence[int]) -> dict[int, int | None]:
    """For each job that only moves data the computing job that it moves data for: the one whose
    input it writes, else the one whose output it reads, else the next."""
    owners: dict[int, int | None] = {i: i for i in main}
    for i in reversed(range(len(captures))):
        if i in owners:
            continue
        to, by = (captures[i].addresses.get(name) for name in ("output", "input"))
        readers = [
            n for n in range(i + 1, len(captures)) if captures[n].addresses.get("input") == to
        ]
        writers = [n for n in main if n < i and captures[n].addresses.get("output") == by]
        later, earlier = [n for n in main if n > i], [n for n in main if n < i]
        near = (
            [owners[n] for n in readers[:1]]
            if to is not None and readers
            else writers[-1:]
            if by is not None and writers
            else (later[:1] or earlier[-1:])
        )
        if near:
            owners[i] = near[0]
        else:
            owners[i] = None
    return {i: owner for i, owner in sorted(owners.items()) if i not in main}


# How it ran


def _checked(capture: Capture) -> Comparison:
    """As ``npulab.check``; where no layer can be lifted, the output beside that of the simulated
    device."""
    result = check(capture)
    if (
        result.layer is not None
        or result.compared
        or not {"input", "output"} <= capture.buffers.keys()
    ):
        return result
    try:
        predicted = np.frombuffer(target(capture.target).simulate(capture), np.uint8)
    except (ValueError, LookupError, Hang):
        return result
    size = len(capture.buffers["output"])
    both = min(len(predicted), size)  # what lies behind the buffer may have been read as well
    if not both:
        return result
    captured = np.frombuffer(capture.buffers["output"], np.uint8, both)

    def read(one: Capture) -> np.ndarray:
        return np.frombuffer(one.buffers[OUTPUT], np.uint8, both)

    unwritten = as_unwritten(capture, OUTPUT, captured, read)
    found = with_outputs(
        replace(result, rule=SIMULATED, reason="", left=()), predicted[:both], captured, unwritten
    )
    cut = len(predicted) > size
    if not cut and not rest_left(capture, len(predicted)):
        return found
    said = f"{both} of {max(size, len(predicted))} bytes of buffer 'output' were compared"
    if found.verdict == "equal":
        verdict = "partly compared"
    else:
        verdict = found.verdict
    return replace(
        found, verdict=verdict, left=(said,), reason="; ".join(filter(None, [found.reason, said]))
    )


def _verdict(
    result: Comparison,
    moves: Sequence[Comparison],
    unlike: Sequence[str],
) -> tuple[Comparison, str, str]:
    """The comparison that decides, the verdict and the reason."""
    sound = result.words and result.coefficients is not False
    unread = result.layer is None and not result.compared
    if unread and sound:
        verdict = "not covered"
    else:
        verdict = result.verdict
    reasons = []
    if unlike:
        reasons = [f"the job is not the operator: {', '.join(unlike)}"]
    if not sound:
        reasons.append(
            f"{'words' if not result.words else 'coefficients'} do not encode to what was recorded"
        )
    wrong = [one for one in moves if one.verdict == "differs" and (one.compared or not one.words)]
    reasons += [
        f"{one.case}: {one.mismatches} of {one.compared} moved bytes differ" for one in wrong
    ]
    if verdict == "differs" and result.compared:
        reasons.append(
            f"{result.mismatches} of {result.compared} outputs differ, first at {result.first}, "
            "largest "
            f"{result.largest}"
        )
    if unlike or wrong or not sound:
        verdict = "differs"
    decides = result
    if wrong and verdict == "differs" and result.verdict != "differs":
        decides = wrong[0]
    unseen = [one.case for one in moves if one.verdict == "nothing to compare"]
    return (
        decides,
        verdict,
        "; ".join(
            filter(
                None,
                [*reasons, result.reason, (f"{' '.join(unseen)} not compared" if unseen else "")],
            )
        ),
    )


def _unlike(outline: Outline, wanted: Outline, lifted: Any, layer: Layer) -> list[str]:
    """What a job says otherwise than the model."""
    reasons = [
        f"{name} is {six_digits(outline[name])}, the model's {six_digits(wanted[name])}"
        for name in wanted
        if name in outline and not _same(outline[name], wanted[name])
    ]
    if (
        not isinstance(lifted, Conv2D | FullyConnected)
        or not isinstance(layer, Conv2D | FullyConnected)
        or per_channel(layer.weight_q.scale)
    ):
        return reasons
    mine, theirs = _stored(lifted)[0], _stored(layer)[0]
    if mine.size == theirs.size:
        # a fully connected layer may be stored as the convolution of an image in planes
        if mine.ndim != 4 or theirs.ndim == 4:
            orders = [mine]
        else:
            orders = [mine, mine.transpose(0, 3, 1, 2)]
        wrong = min(int(np.count_nonzero(one.ravel() != theirs.ravel())) for one in orders)
        if wrong:
            reasons += [f"{wrong} of {theirs.size} weights"]
    elif not any(reason.startswith("outputs") for reason in reasons):
        reasons.append(f"it has {mine.size} weights, the model {theirs.size}")
    if lifted.bias.size == layer.bias.size and (
        wrong := int(np.count_nonzero(lifted.bias != layer.bias))
    ):
        reasons.append(f"{wrong} of {layer.bias.size} biases")
    if _range(lifted) != _range(layer):
        reasons.append(f"its outputs are within {_range(lifted)}, the model's {_range(layer)}")
    return reasons


def _range(layer: Conv2D | FullyConnected) -> tuple[float, float]:
    """The lowest and highest output after the activation: as uint8 code, or a real number."""
    up = 0
    if layer.dtype == "int8":
        up = STORED_UP
    zero, unit = layer.output_q.zero_point + up, 1 / float(np.ravel(layer.output_q.scale)[0])
    bounds = REAL.get(layer.activation, REAL[None])
    if layer.dtype not in QUANTIZED:
        return bounds
    low, high = (min(max(zero + one * unit, 0), 2**8 - 1) for one in bounds)
    return round(low), round(high)
