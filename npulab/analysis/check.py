"""What differs: captures by field, outputs by element, a capture against our understanding of
it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from npulab.analysis.compared import (
    OUTPUT,
    STEP,
    as_unwritten,
    bytes_unseen,
    count_of,
    cut_of,
    fill_of,
    layers_left,
    left_of,
    never_written,
    numbered,
    one_value,
    surely_written,
    without_outputs,
)
from npulab.analysis.mismatch.summary import in_hex, window
from npulab.captures.capture import COMMANDS, Capture, CaptureSet, Job
from npulab.captures.registry import target
from npulab.captures.streams import Held, held_against
from npulab.captures.sweep import Sweep
from npulab.captures.target import Claim, Item, Lifted, Range, Target, Unsupported
from npulab.quant.emulate import emulate, outputs
from npulab.quant.floats import steps, unit
from npulab.quant.layers import Network
from npulab.registers.fields import WORD_BITS, WORD_BYTES, Field
from npulab.registers.map import RegisterMap
from npulab.support.late import pd
from npulab.support.refuse import refuse_if
from npulab.support.text import Row, as_address, indented

if TYPE_CHECKING:
    from npulab.quant.layers import Layer

Key = tuple[int, str, str, str]
SETS = ("task", "block", "register", "field", "differs", "constant", "a", "b", "address")
MOST_SHOWN = 5
ONE_VALUE = "one value"  # a verdict: what is equal is what memory may hold before a job runs
NOT_EXECUTED = "not executed"  # a verdict: every output is what memory held before the job ran
WRITES, ORDER = (
    "(writes)",
    "(order)",
)  # stand for a field where only the way differs in which a state is written


@dataclass(frozen=True, eq=False)
class Comparison:
    """How a capture agrees with our understanding of it.

    ``words`` and ``coefficients`` say whether decoding and encoding gives the same bytes (None if
    there are none); ``refused`` says that the coefficients were not decoded at all.  ``verdict`` is
    about the output: ``equal`` where all that was recorded of it was compared and nothing differs,
    ``partly compared`` where what was compared is equal and ``left`` says what else there is, ``one
    value`` where every output is the same number that memory may hold before a job runs,
    ``differs``, ``not executed``, ``nothing to compare``, ``claims agree`` where only claims could
    be compared. Of ``outputs`` elements ``compared`` were, of which ``mismatches`` differ;
    ``first`` (row, column, channel) is the first of them, ``max`` the largest difference in units
    of ``unit``: "code", or "ulp" where outputs are real numbers (how many representable ones apart;
    +0 and -0 are equal, and so are two NaN). ``predicted`` and ``captured`` are ``(H, W, C)``, of a
    fully connected layer ``(batches, 1, C)``, or None; ``reason`` says in words what is wrong;
    ``layer`` is what was lifted, ``rule`` the rounding rule it was emulated with, ``x`` the input.
    ``hypotheses`` says which other explanation would make it equal.  ``claims`` is what sources
    beside the capture say of its fields; where no output was compared, the verdict is whether they
    agree.  ``before_run`` says that the output was recorded before the job ran.  ``fill`` is how
    many bytes lie inside the output, hold no element of it and are not all the same.
    """

    case: str
    target: str
    simulated: bool
    words: bool
    coefficients: bool | None
    verdict: str
    compared: int = 0
    mismatches: int = 0
    first: tuple[int, ...] | None = None
    max: int = 0
    predicted: np.ndarray | None = None
    captured: np.ndarray | None = None
    reason: str = ""
    layer: Layer | Network | None = None
    rule: str = ""
    x: Any = None
    unit: str = "code"
    claims: tuple[Claim, ...] = ()
    provenance: str = ""
    outputs: int = 0
    left: tuple[str, ...] = ()
    refused: bool = False
    before_run: bool = False
    fill: int = 0

    @property
    def complete(self) -> bool:
        """Whether all outputs that were recorded, or should have been, were compared."""
        return self.compared > 0 and self.compared == self.outputs and not self.left

    @property
    def claims_wrong(self) -> int:
        """How many claims do not agree."""
        return sum(not claim.agrees for claim in self.claims)

    @property
    def ok(self) -> bool:
        """Nothing differs; an output that was recorded before the run, and says so, is as it
        should be."""
        sound = self.words and self.coefficients is not False
        unwritten = self.verdict == NOT_EXECUTED and not self.before_run
        return sound and self.verdict != "differs" and not unwritten and not self.claims_wrong

    @property
    def largest(self) -> str:
        """The largest difference, with its unit where it is not in codes."""
        if self.unit == "code":
            return str(self.max)
        return f"{self.max} {self.unit}"

    @property
    def shown(self) -> str:
        """What is predicted where nothing ran, the first bytes in hexadecimal."""
        if self.predicted is None or self.verdict != NOT_EXECUTED:
            return ""
        return in_hex(self.predicted)

    def records(self) -> list[Row]:
        return [
            {
                "case": self.case,
                "target": self.target,
                "words": _same(self.words),
                "coefficients": "not read" if self.refused else _same(self.coefficients),
                "compared": self.compared,
                "outputs": self.outputs,
                "mismatches": self.mismatches,
                "verdict": self.verdict,
                "simulated": self.simulated,
                "reason": self.reason,
                "predicted": self.shown,
                "unit": self.unit,
                "claims": len(self.claims),
                "claims_wrong": self.claims_wrong,
                "provenance": self.provenance,
                "fill": self.fill,
            }
        ]

    def __str__(self) -> str:
        lines = [self.reason] * bool(self.reason)
        if self.layer is not None:
            lines.append(f"{self.layer}, rule {self.rule}")
        if self.first is not None and self.predicted is not None and self.captured is not None:
            lines += [
                f"first difference at (row, column, channel) {self.first}: predicted "
                f"{self.predicted[self.first]}, captured {self.captured[self.first]}; "
                f"{self.mismatches} of {self.compared} differ, largest {self.largest}",
                *window(self.predicted, self.captured),
            ]
        head = f"{self.case}{' (simulated)' * self.simulated}: {self.verdict}"
        return "\n".join([head, *indented(lines)])

    def __repr__(self) -> str:
        if self.compared:
            counts = f"{self.mismatches} of {self.compared} differ"
        elif self.verdict == "differs" and not self.claims:
            counts = "nothing was compared"
        else:
            counts = ""
        largest = ""
        if self.unit != "code" and self.mismatches:
            largest = f"largest {self.largest}"
        text = ", ".join(filter(None, [self.verdict, counts, largest, self.reason]))
        return f"Comparison({self.case}{' (simulated)' * self.simulated}: {text})"


def check(capture: Capture) -> Comparison:
    """Words and coefficients decoded and encoded again, the output emulated by the target's own
    rule.

    What the target cannot read counts as a difference, with the reason; ``compared`` is 0 then.
    """
    _refuse(capture, "check", Capture)
    of = target(capture.target)
    words = all(_same_words(job, capture) for job in capture.jobs)
    result = Comparison(
        capture.name,
        capture.target,
        capture.simulated,
        words,
        None,
        "differs",
        provenance=capture.origin,
        before_run=capture.before_run,
    )
    result, reasons = _with_coefficients(result, of, capture)
    try:
        ranges = of.replay(capture)
        if ranges:
            result = _replayed(result, of, capture, ranges)
        else:
            result = _compared(result, of, capture)
    except (ValueError, LookupError) as error:
        result = _not_lifted(result, of, capture, error)
    try:
        result = _claimed(replace(result, claims=tuple(of.claims(capture))))
    except (ValueError, LookupError) as error:
        reasons.append(str(error))
        if not isinstance(error, Unsupported):
            result = replace(result, verdict="differs")
    stream = _stream(of, capture)
    if stream.unlike:
        reasons.insert(0, f"buffer {COMMANDS!r}: {stream.unlike}")
        result = replace(result, verdict="differs")
    if stream.absent:
        absent = f"buffer {COMMANDS!r} has nothing of task {numbered(stream.absent)}"
        result = replace(result, left=(*result.left, absent))
    if result.fill:
        size = len(capture.buffers[OUTPUT])
        reasons.append(
            f"{result.fill} of {size} bytes hold no value of the output (fill): not compared"
        )
    return _told(result, reasons)


def _stream(of: Target, capture: Capture) -> Held:
    """The recorded command stream held against the jobs; as if it were theirs where none was
    recorded, and where the target reads none."""
    data = capture.buffers.get(COMMANDS)
    if data is None:
        return Held()
    try:
        return held_against(capture.jobs, data, of.writes)
    except Unsupported:
        return Held()
    except ValueError as error:
        return Held(str(error).removeprefix(f"{COMMANDS}: "))


def _told(result: Comparison, reasons: Sequence[str]) -> Comparison:
    """The comparison with all its reasons, and with a verdict that says no more than was
    compared."""
    wrong = []
    if not result.words:
        wrong.append("words")
    if result.coefficients is False and not result.refused:
        wrong.append("coefficients")
    encoded = [f"{what} encode to others than were recorded" for what in wrong]
    if (encoded or result.refused) and result.verdict != NOT_EXECUTED:
        result = replace(result, verdict="differs")
    if result.verdict == "equal" and result.left:
        result = replace(result, verdict="partly compared")
    reasons = [*reasons, *encoded]
    texts = [*reasons, result.reason, *result.left]
    return replace(result, reason="; ".join(dict.fromkeys(filter(None, texts))))


def _not_lifted(result: Comparison, of: Target, capture: Capture, error: Exception) -> Comparison:
    """The comparison of a capture that is refused as it is: one whose outputs are to blame
    differs."""
    if isinstance(error, Unsupported):
        verdict = "nothing to compare"
    else:
        verdict = "differs"
    result = replace(
        result,
        verdict=verdict,
        reason=str(error),
        left=tuple(filter(None, [bytes_unseen(capture)])),
    )
    bare = replace(capture, buffers=without_outputs(capture))
    if len(bare.buffers) == len(capture.buffers) or _lifted(of, capture) is not None:
        return result
    lifted = _lifted(of, bare)
    if lifted is None:
        return result
    count = count_of(lifted)
    return replace(
        result,
        verdict="differs",
        layer=lifted.layer,
        x=lifted.x,
        rule=_rule(of, capture),
        outputs=count,
        left=(f"0 of {count} outputs were compared",),
    )


def _lifted(of: Target, capture: Capture) -> Lifted | None:
    """What a capture is lifted to; None where that is refused."""
    try:
        return of.lift(capture)
    except (ValueError, LookupError):
        return None


def _rule(of: Target, capture: Capture) -> str:
    if of.rule_of:
        return of.rule_of(capture)
    return of.rule


def _same(equal: bool | None) -> str:
    if equal is None:
        return "none"
    if equal:
        return "equal"
    return "differs"


def _replayed(
    result: Comparison, of: Target, capture: Capture, ranges: Sequence[Range]
) -> Comparison:
    """The comparison of memory after a run; if only a CRC was kept, no difference of a byte is
    known."""
    known = [memory for memory in ranges if memory.captured is not None or memory.crc is not None]
    wrong = [memory for memory in known if memory.differing]
    reasons = [str(memory) for memory in wrong]
    sizes = [len(memory.predicted) for memory in known]
    left = [
        f"{memory.name}: {len(memory.predicted)} bytes were not recorded"
        for memory in ranges
        if memory not in known
    ]
    cut = ""
    named = {memory.name for memory in known}
    if OUTPUT in named:
        lifted = of.lift(capture)
        cut = cut_of(of, capture, lifted)
        left += left_of(of, capture, lifted, named)
        values = sum(len(memory.predicted) for memory in known if memory.name == OUTPUT)
        if (
            lifted.output is not None and values == lifted.output.nbytes
        ):  # without the fill around them
            result = replace(result, fill=fill_of(of, capture, lifted))
    elif OUTPUT in capture.buffers:
        left.append(bytes_unseen(capture))
    if wrong or cut:
        verdict = "differs"
    else:
        verdict = "equal"
    if not any(sizes):
        verdict = "nothing to compare"
    elif verdict == "equal" and not surely_written(capture):
        fresh = [memory.name for memory in known if never_written(memory.predicted)]
        if fresh:
            verdict = ONE_VALUE
            reasons.append(
                f"{' and '.join(fresh)}: every byte is the same, as in memory that no job wrote"
            )
    return replace(
        result,
        verdict=verdict,
        compared=sum(sizes),
        outputs=sum(len(one.predicted) for one in ranges),
        mismatches=sum(len(memory.differing) for memory in wrong),
        first=(wrong[0].differing[0],) if wrong else None,
        left=tuple(left),
        max=max((memory.largest for memory in wrong), default=0),
        reason="; ".join(filter(None, [*reasons, cut])),
    )


def _claimed(result: Comparison) -> Comparison:
    """What claims make of the verdict, in words."""
    claims, undecided = result.claims, result.verdict == "nothing to compare"
    wrong = [claim for claim in claims if not claim.agrees]
    if not claims or not (undecided or wrong):
        return result
    sources = " and ".join(dict.fromkeys(filter(None, (claim.source for claim in claims))))
    of = ""
    if sources:
        of = f" of {sources}"
    words = f"{len(claims) - len(wrong)} of {len(claims)} statements{of} agree"
    verdict = result.verdict
    if undecided:
        if wrong:
            verdict = "differs"
        else:
            verdict = "claims agree"
    reason = "; ".join(filter(None, [words, *map(str, wrong[:1]), result.reason]))
    return replace(result, verdict=verdict, reason=reason)


def _refuse(value: Any, what: str, *kinds: type) -> None:
    if not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(
            f"{what}: got {type(value).__name__}, allowed is {names}, as npulab.load and load_all "
            "give"
        )


def _with_coefficients(
    result: Comparison, of: Target, capture: Capture
) -> tuple[Comparison, list[str]]:
    """The comparison of the coefficient buffer with itself, decoded and encoded again, and why it
    is
    not one."""
    if "coefficients" not in capture.buffers:
        return result, []
    try:
        same = of.recode(capture) == capture.buffers["coefficients"]
    except ValueError as error:
        refused = not isinstance(error, Unsupported)
        return replace(result, coefficients=False if refused else None, refused=refused), [
            str(error)
        ]
    return replace(result, coefficients=same), []


def _same_words(job: Job, capture: Capture) -> bool:
    if job.block not in capture.maps:
        raise LookupError(
            f"capture {capture.name}: got block {job.block!r}, its maps are for "
            f"{', '.join(capture.maps) or 'none'}"
        )
    registers = capture.maps[job.block]
    same = bool(np.array_equal(registers.encode(registers.decode(job.words)), job.words))
    return same and (job.start is None or _same_words(job.start, capture))


def _compared(result: Comparison, of: Target, capture: Capture) -> Comparison:
    """The comparison of the output, if there is one."""
    lifted = of.lift(capture)
    layer, x, output = lifted
    result = replace(result, layer=layer, rule=_rule(of, capture))
    absent = x is None or (isinstance(x, tuple | list) and any(tensor is None for tensor in x))
    steps_of = []
    if isinstance(layer, Network) and not absent:
        steps_of = _captured_layers(capture)
    if steps_of:
        result = _layer_by_layer(result, of, capture, x, steps_of)
        if result.mismatches:
            return result
    if output is not None and not absent:
        result = _of_output(replace(result, x=x, captured=output), output, of, capture)
    recorded = output is not None or OUTPUT in capture.buffers
    missing = [name for name, gone in (("input", absent), ("output", not recorded)) if gone]
    if not steps_of and (absent or output is None):
        said = ""
        if missing:
            said = f"no {' and no '.join(missing)} recorded"
        result = replace(result, verdict="nothing to compare", reason=said)
    left = left_of(of, capture, lifted, [OUTPUT, *(f"{STEP}{number}" for number in steps_of)])
    if steps_of and output is None:
        left.append(layers_left(layer, steps_of))
    if recorded and not result.compared:
        left.insert(0, f"0 of {count_of(lifted)} outputs were compared")
    cut = cut_of(of, capture, lifted)
    if cut:
        result = replace(result, verdict="differs", reason=cut)
    elif result.compared and output is not None:
        result = replace(result, fill=fill_of(of, capture, lifted))
    return replace(
        result, outputs=result.outputs or count_of(lifted), left=tuple(filter(None, left))
    )


def _of_output(result: Comparison, output: np.ndarray, of: Target, capture: Capture) -> Comparison:
    """The comparison of the recorded output with what the lifted layer gives."""
    layer = cast("Layer", result.layer)
    predicted = emulate(layer, result.x, result.rule)
    before = result.compared  # of captured layers
    if predicted.shape != output.shape:
        return replace(
            result,
            verdict="differs",
            outputs=before + predicted.size,
            reason=f"predicted shape {predicted.shape}, captured {output.shape}",
        )
    if "f" in (predicted.dtype.kind, output.dtype.kind) and predicted.dtype != output.dtype:
        return replace(
            result,
            verdict="differs",
            outputs=before + predicted.size,
            reason=f"predicted are numbers of {predicted.dtype}, captured of {output.dtype}",
        )
    zero_point = _zero_point(layer)
    unwritten = as_unwritten(capture, OUTPUT, output, lambda memory: of.lift(memory).output)
    found = with_outputs(
        result,
        _image(predicted),
        _image(output),
        unwritten,
        None if surely_written(capture) else zero_point,
    )
    if not found.mismatches:
        verdict = found.verdict
        if ONE_VALUE in (result.verdict, found.verdict):
            verdict = ONE_VALUE
        count = before + found.compared
        return replace(found, verdict=verdict, compared=count, outputs=count)
    if np.all(output == zero_point):
        if found.unit == "ulp":
            value = "0"
        else:
            value = f"the zero point {zero_point}"
        return replace(
            found, verdict=NOT_EXECUTED, reason=f"every output is {value}, as before the job ran"
        )
    if (
        output.size > 1
        and not np.any(steps(output, output.flat[0]))
        and output.flat[0] != zero_point
    ):
        return replace(
            found,
            reason=f"every captured output is {output.flat[0]}, predicted are "
            f"{predicted.min()} to {predicted.max()}",
        )
    return found


def _zero_point(layer: Layer | Network) -> int:
    """The code that stands for 0 in a layer's output."""
    q = layer.output_q
    if q is None:
        return 0
    return q.zero_point


def _captured_layers(capture: Capture) -> list[int]:
    """The numbers of the layers that a buffer ``output:N`` is of."""
    names = (name.removeprefix(STEP) for name in capture.buffers if name.startswith(STEP))
    return sorted(
        int(number) for number in names if number.isdecimal() and number == str(int(number))
    )


def _layer_by_layer(
    result: Comparison, of: Target, capture: Capture, x: Any, numbers: Sequence[int]
) -> Comparison:
    """The comparison of a network's captured layers, up to the first that differs.

    Raises ValueError for a layer that the network does not have.
    """
    network = cast("Network", result.layer)
    if numbers[-1] >= len(network.layers):
        raise ValueError(
            f"capture {capture.name}: got buffer {STEP}{numbers[-1]}, its network has layers 0 to "
            f"{len(network.layers) - 1}"
        )
    every, compared, same = outputs(network, x, result.rule), 0, list[int]()
    for number in numbers:
        predicted = every[number]
        name = f"{STEP}{number}"
        captured = of.tensor(capture, name, predicted)
        zero = None
        if not surely_written(capture):
            zero = _zero_point(network.layers[number])
        unwritten = as_unwritten(capture, name, captured, partial(_tensor, of, name, predicted))
        found = with_outputs(result, _image(predicted), _image(captured), unwritten, zero)
        if found.mismatches:
            if isinstance(x, tuple | list):
                given = x
            else:
                given = (x,)
            taken = [
                given[-1 - source] if source < 0 else every[source]
                for source in network.inputs[number]
            ]
            return replace(
                found,
                layer=network.layers[number],
                x=taken[0] if len(taken) == 1 else tuple(taken),
                reason=f"layer {number} is the first of {len(numbers)} captured layers that "
                "differs",
            )
        if found.verdict == ONE_VALUE:
            same.append(number)
        compared += found.compared
    reason = f"{len(numbers)} of {len(network.layers)} layers were compared"
    if same:
        reason += f"; of layer {', '.join(map(str, same))} every output is one value, as in memory that no job wrote"
    verdict = "equal"
    if same:
        verdict = ONE_VALUE
    return replace(found, verdict=verdict, compared=compared, outputs=compared, reason=reason)


def _tensor(of: Target, name: str, like: np.ndarray, capture: Capture) -> np.ndarray:
    """What a capture's buffer of a layer holds."""
    return of.tensor(capture, name, like)


def with_outputs(
    result: Comparison,
    predicted: np.ndarray,
    captured: np.ndarray,
    unwritten: Sequence[np.ndarray] = (),
    zero_point: int | None = None,
) -> Comparison:
    """A comparison with two outputs of one shape, element by element.

    Equal outputs are held against memory that no job wrote: against ``unwritten`` outputs, and
    against the ``zero_point`` where one is given.
    """
    difference = np.abs(steps(predicted, captured))
    wrong = np.argwhere(difference)
    verdict, reason = "equal", result.reason
    if len(wrong):
        verdict = "differs"
    elif one_value(captured, unwritten, zero_point):
        said = f"every output is {captured.flat[0]}, as in memory that no job wrote"
        verdict, reason = ONE_VALUE, "; ".join(filter(None, [reason, said]))
    return replace(
        result,
        verdict=verdict,
        reason=reason,
        compared=predicted.size,
        outputs=predicted.size,
        mismatches=len(wrong),
        first=tuple(wrong[0].tolist()) if len(wrong) else None,
        max=int(difference.max(initial=0)),
        predicted=predicted,
        captured=captured,
        unit=unit(captured.dtype),
    )


def _image(output: np.ndarray) -> np.ndarray:
    """An output of any number of axes as ``(H, W, C)``; batches of a fully connected layer are
    rows."""
    *rows, channels = output.shape
    *rows, wide = [*rows, 1, 1][: max(len(rows), 2)]
    return output.reshape(math.prod(rows), wide, channels)


def explain(capture: Capture, byte: int | None = None) -> pd.DataFrame:
    """Every run of bits of the coefficient buffer, in order: byte, bit (of that byte, 0 the
    lowest), bits, kind, core, channel, plane, row, column, value, weights (how many the item stands
    for).

    With ``byte`` only what that byte has a bit of, or what begins there without one.
    Raises ValueError where a byte cannot be explained, and for one that is not in the buffer.
    """
    from npulab.registers.shown import Table

    _refuse(capture, "explain", Capture)
    items = target(capture.target).explain(capture)
    if byte is not None:
        size = len(capture.buffers["coefficients"])
        refuse_if(not 0 <= byte < size, "byte", byte, f"is 0 to {size - 1}")
        items = [
            item
            for item in items
            if item.bit // 8 == byte or item.bit < 8 * byte < item.bit + item.bits
        ]
    places = ["core", "channel", "plane", "row", "column"]
    frame = Table(items, columns=Item._fields).astype(dict.fromkeys(places, "Int64"))
    frame.insert(0, "byte", frame["bit"] // 8)
    frame["bit"] %= 8
    return frame[["byte", "bit", "bits", "kind", *places, "value", "weights"]]


def diff(a: Any, b: Any, *, never: bool = False, tasks: Sequence[int] = ()) -> pd.DataFrame:
    """Fields that differ between two captures: task, block, register, field, a, b, address.

    A field that one side does not have is None there; ``address`` says that it points into memory.
    Register writes that leave the same state in another way (a register written twice, another
    order) differ too, in the fields ``(writes)`` of a register and ``(order)`` of a block.

    Buffers are compared by ``diff_buffers``.  ``tasks``, a number for each side, compares these two
    jobs alone, as task 0; ``a`` and ``b`` may be the same capture.

    For two CaptureSets or two Sweeps the columns are task, block, register, field, differs
    (``always``: no value is common to both; ``sometimes``), constant (within a and within b, but
    different between them), a, b (the values seen, at most five) and address; the order of register
    writes is not looked at.  Two Sweeps of the same parameters, row by row, also have ``pairs``: in
    how many rows the field differs.  Where the words of a sweep have no map, its fields are runs of
    bits.  Fields that differ ``never`` are left out unless ``never`` asks for them. Raises
    ValueError for captures of different targets, sweeps of different blocks, and ``never`` of two
    captures.
    """
    from npulab.registers.shown import Table

    for side in (a, b):
        _refuse(side, "diff", Capture, CaptureSet, Sweep)
    if tasks:
        a, b = jobs_apart(a, b, tasks)
    if isinstance(a, Sweep) and isinstance(b, Sweep):
        return _diff_sweeps(a, b, never)
    if isinstance(a, Sweep) or isinstance(b, Sweep):
        raise TypeError(
            f"diff: got {type(a).__name__} and {type(b).__name__}, allowed is a Sweep with a "
            "Sweep; "
            "npulab.captures.sweep.sweep_of makes one of captures"
        )
    sets = [side if isinstance(side, CaptureSet) else CaptureSet((side,)) for side in (a, b)]
    names = {capture.target for side in sets for capture in side}
    refuse_if(len(names) > 1, "diff", f"targets {', '.join(sorted(names))}", "is one")
    if isinstance(a, CaptureSet) or isinstance(b, CaptureSet):
        rows = [
            _row(*seen)
            for seen in _pairs(*([raw_fields(capture) for capture in side] for side in sets))
        ]
        return Table([row for row in rows if never or row[4] != "never"], columns=[*SETS])
    refuse_if(never, "diff", "never with two captures", "is with CaptureSets and Sweeps")
    frame = Table(differences(a, b), columns=list(Difference._fields), dtype=object)
    return frame.astype({"task": int, "address": bool})


def jobs_apart(a: Any, b: Any, tasks: Sequence[int]) -> tuple[Capture, Capture]:
    """Two captures with one job each, those of two tasks, as their names say.

    Raises TypeError for what is no capture, LookupError for a task that is not there.
    """
    refuse_if(len(tasks) != 2, "tasks", len(tasks), "are two, one of each side")
    apart: list[Capture] = []
    for side, task in zip((a, b), tasks, strict=True):
        _refuse(side, "tasks", Capture)
        if not 0 <= task < len(side.jobs):
            raise LookupError(
                f"capture {side.name}: got task {task}, it has 0 to {len(side.jobs) - 1}"
            )
        job = side.jobs[task]
        name = ", ".join(filter(None, [f"{side.name} task {task}", job.name]))
        apart.append(replace(side, name=name, jobs=(replace(job, label="", unit=""),)))
    return apart[0], apart[1]


def diff_buffers(a: Capture, b: Capture) -> pd.DataFrame:
    """Buffers that differ: buffer, first (byte), bytes (that differ), a, b (lengths; None where
    there is none).

    The command stream is left out: its register writes are fields, which ``diff`` compares.
    """
    from npulab.registers.shown import Table

    for side in (a, b):
        _refuse(side, "diff_buffers", Capture)
    rows = []
    for name in dict.fromkeys([*a.buffers, *b.buffers]):
        data = [capture.buffers.get(name) for capture in (a, b)]
        stream = name == COMMANDS and any(job.start for job in (*a.jobs, *b.jobs))
        if data[0] != data[1] and not stream:
            left, right = (np.frombuffer(side or b"", np.uint8) for side in data)
            both = min(len(left), len(right))
            wrong = np.flatnonzero(left[:both] != right[:both])
            rows.append(
                (
                    name,
                    int(wrong[0]) if len(wrong) else both,
                    len(wrong) + abs(len(left) - len(right)),
                    *(None if side is None else len(side) for side in data),
                )
            )
    return Table(rows, columns=["buffer", "first", "bytes", "a", "b"], dtype=object)


class Difference(NamedTuple):
    """A field that differs between two captures, as meant; None where a side does not have it."""

    task: int
    block: str
    register: str
    field: str
    a: Any
    b: Any
    address: bool = False

    @property
    def key(self) -> Key:
        return self[:4]

    @property
    def texts(self) -> tuple[Any, Any]:
        """Both values as people read them: addresses in hexadecimal."""
        if self.address:
            return as_address(self.a), as_address(self.b)
        return self.a, self.b


def differences(a: Capture, b: Capture) -> list[Difference]:
    """The fields that differ between two captures: the rows of ``diff``."""
    rows = [
        Difference(*key, _meant(left)[0], _meant(right)[0], _address(left, right))
        for key, left, right in _pairs([raw_fields(a)], [raw_fields(b)])
        if left.keys() != right.keys()
    ]
    return rows + _written_differently(a, b)


def raw_fields(capture: Capture) -> dict[Key, tuple[Field, int]]:
    """Every field of a capture with its raw value, by task, block, register and name."""
    return {
        (task, block, item.register, item.name): (item, int(raw))
        for task, job in enumerate(capture.jobs)
        for block, item, raw in job.values(capture.maps)
    }


# The raw values of a field on one side, each with a field that says what it means; None and None
# where a capture does not have the field
Seen = Mapping[int | None, Field | None]
ABSENT = None, None
ONLY_ABSENT: Seen = {None: None}


def _pairs(
    a: Sequence[Mapping[Key, tuple[Field, int]]],
    b: Sequence[Mapping[Key, tuple[Field, int]]],
) -> Iterator[tuple[Key, Seen, Seen]]:
    """Each field of two sides' captures, and what is seen of it on both.

    A field that differs only in that its register was not written is left out: such a register is
    described by its named fields and by the bits that are set in it.
    """
    fields = [(key, item) for values in (*a, *b) for key, (item, _) in values.items()]
    named = {key[:3] for key, item in fields if not item.automatic}
    for key in dict(fields):
        left, right = (
            {raw: item for item, raw in (values.get(key, ABSENT) for values in side)}
            for side in (a, b)
        )
        automatic = any(item and item.automatic for item in (*left.values(), *right.values()))
        if not ({*left, *right} == {None, 0} and automatic and key[:3] in named):
            yield key, left, right


def _meant(seen: Seen) -> list[Any]:
    """The values of a side as meant, at most ``MOST_SHOWN``."""
    return [
        None if item is None or raw is None else item.text(raw)
        for raw, item in islice(seen.items(), MOST_SHOWN)
    ]


def _address(left: Seen, right: Seen) -> bool:
    return any(item is not None and item.address for item in (*left.values(), *right.values()))


def _written_differently(a: Capture, b: Capture) -> list[Difference]:
    """Jobs of register writes that leave the same state in another way."""
    rows: list[Difference] = []
    for task, pair in enumerate(zip(a.jobs, b.jobs, strict=False)):
        for job, other in zip(_parts(pair[0]), _parts(pair[1]), strict=False):
            registers = a.maps[job.block]
            both = [offset for offset in dict(job.writes) if offset in dict(other.writes)]
            names = {at: registers.register_at(at) for at in both}
            for at in both:
                values = [
                    [value for offset, value in side.writes if offset == at]
                    for side in (job, other)
                ]
                if values[0] != values[1] and values[0][-1] == values[1][-1]:
                    left, right = (" ".join(map(hex, value)) for value in values)
                    rows.append(Difference(task, job.block, names[at], WRITES, left, right))
            orders = [
                [names[at] for at in dict(side.writes) if at in names] for side in (job, other)
            ]
            if orders[0] != orders[1]:
                first = next(
                    at for at, pair in enumerate(zip(*orders, strict=True)) if len({*pair}) > 1
                )
                left, right = (_from(order, first) for order in orders)
                rows.append(Difference(task, job.block, "", ORDER, left, right))
    return rows


def _from(names: Sequence[str], first: int) -> str:
    """A few names of an order, from one place on."""
    end = first + MOST_SHOWN
    return " ".join([*["..."] * bool(first), *names[first:end], *["..."] * (len(names) > end)])


def _parts(job: Job) -> list[Job]:
    return [job, *(_parts(job.start) if job.start else [])]


def _row(key: Key, left: Seen, right: Seen) -> tuple[Any, ...]:
    """A field of two sets or sweeps, as ``SETS`` has it."""
    if not left.keys() & right.keys():
        differs = "always"
    elif left.keys() == right.keys() and len(left) == 1:
        differs = "never"
    else:
        differs = "sometimes"
    constant = differs == "always" and len(left) == len(right) == 1
    return (*key, differs, constant, _meant(left), _meant(right), _address(left, right))


def _diff_sweeps(a: Sweep, b: Sweep, never: bool) -> pd.DataFrame:
    for what in ("target", "block"):
        names = sorted({getattr(side, what) for side in (a, b)} - {""})
        if len(names) > 1:
            raise ValueError(f"diff: got {what}s {', '.join(names)}, allowed is one")
    widths = [side.words.shape[1] for side in (a, b)]
    if widths[0] != widths[1] or not len(a) or not len(b):
        raise ValueError(
            f"diff: got {len(a)} captures of {widths[0]} words and {len(b)} of {widths[1]}, "
            "allowed are "
            "some on each side, of one length"
        )
    maps = [side.registers or other.registers or _runs(a, b) for side, other in ((a, b), (b, a))]
    paired = len(a) == len(b) and a.parameters.equals(b.parameters)
    sides: list[dict[Key, tuple[Field, np.ndarray]]] = [
        {
            (0, item.block, item.register, item.name): (item, item.extract(side.words))
            for item in registers
        }
        for side, registers in zip((a, b), maps, strict=True)
    ]
    rows = []
    for key in {**sides[0], **sides[1]}:
        values = [side[key][1] for side in sides if key in side]
        seen: list[Seen] = [
            dict.fromkeys(side[key][1].tolist(), side[key][0]) if key in side else ONLY_ABSENT
            for side in sides
        ]
        row = _row(key, seen[0], seen[1])
        if never or row[4] != "never":
            if len(values) < 2:
                pairs = len(a)
            elif paired:
                pairs = int(np.sum(values[0] != values[1]))
            else:
                pairs = 0
            rows.append((*row, pairs))
    frame = pd.DataFrame(rows, columns=[*SETS, "pairs"])
    if paired:
        return frame
    return frame.drop(columns="pairs")


def _runs(a: Sweep, b: Sweep) -> RegisterMap:
    """A map without names: runs of bits that vary, that differ between the sweeps, or neither."""
    varying, differing = a.varying | b.varying, a.words[0] ^ b.words[0]
    places, one = np.arange(WORD_BITS, dtype=np.uint32), np.uint32(1)
    kinds = np.where(varying[:, None] >> places & one, 2, differing[:, None] >> places & one)
    rows = []
    for word, bits in enumerate(kinds):
        edges = [0, *(np.flatnonzero(np.diff(bits)) + 1).tolist(), WORD_BITS]
        rows += [
            {
                "block": a.block or b.block,
                "offset": WORD_BYTES * word,
                "field": "",
                "lsb": lsb,
                "width": stop - lsb,
            }
            for lsb, stop in pairwise(edges)
        ]
    return RegisterMap(rows)
