"""Checks of a capture against our understanding of its NPU, and diffs of captures by field and
buffer.

``check`` decodes what was recorded, encodes it again, and compares the emulated output with the
recorded one; ``explain`` lists a coefficient buffer bit by bit; ``diff`` and ``diff_buffers``
compare two sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy import ndarray as Array

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
from npulab.analysis.records import BUFFER, Part, beside
from npulab.captures.aligned import CHANGED, INSERTED, Edit, Pair, aligned, edits_of
from npulab.captures.capture import COMMANDS, Capture, CaptureSet, Job
from npulab.captures.records import Records
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
# The fields of a capture, each with its raw value, by (task, block, register, field).
RawFields = dict[Key, "tuple[Field, int]"]
SETS = ("task", "block", "register", "field", "differs", "constant", "a", "b", "address")
# A diff shows at most this many values of a field on each side, and this many registers of an order
# of writes.
MOST_SHOWN = 5
# The verdict for equal outputs of a single value, which memory may hold before a job runs.
ONE_VALUE = "one value"
# The verdict if the captured output is the zero point everywhere, as before a job runs.
NOT_EXECUTED = "not executed"
# Names in place of a field's name, for two jobs that leave the same state but write a register
# unequally often, or write registers in another order.
WRITES, ORDER = "(writes)", "(order)"
# The register in a row of a diff that stands for a whole job.
JOB = "(job)"


# The members of a ``Comparison`` that ``records`` and ``--json`` write, some in another form.
RECORDED = (
    "case",
    "target",
    "words",
    "coefficients",
    "compared",
    "outputs",
    "mismatches",
    "verdict",
    "simulated",
    "reason",
    "predicted",
    "unit",
    "claims",
    "claims_wrong",
    "provenance",
    "fill",
)


@dataclass(frozen=True, eq=False)
class Comparison:
    """How far a capture agrees with our understanding of its NPU.

    ``words`` (of jobs, and of records in buffers) and ``coefficients`` are True if decoding and
    encoding again gives the same bytes (``coefficients`` is None if there are none); ``refused`` is
    True if the coefficients could not be decoded at all.

    ``verdict`` is about the output:

    - ``equal``: all that was recorded of it was compared, and nothing differs.
    - ``partly compared``: the compared part is equal; ``left`` names the rest.
    - ``one value``: every output is the same number, which memory may hold before a job runs.
    - ``differs``, ``not executed``, ``nothing to compare``.
    - ``claims agree``: only claims could be compared.

    ``outputs`` is the number of output elements; ``compared`` of them were compared and
    ``mismatches`` differ. ``first`` (row, column, channel) is the first that differs, ``max`` the
    largest difference in units of ``unit``: "code", or "ulp" for real numbers (by how
    many representable numbers they are apart; +0 and -0 are equal, and so are two NaN).

    ``predicted`` and ``captured`` are ``(H, W, C)``, for a fully connected layer ``(batches, 1,
    C)``, or None. ``reason`` says in words what is wrong. ``layer`` is the lifted layer, ``rule``
    the rounding rule it was emulated with, ``x`` the input; ``hypotheses`` searches for other rules
    or layers that would make the output equal. ``claims`` are statements of other sources about
    the fields of the capture; if no output was compared, the verdict says if they agree.
    ``before_run`` is True if the output was recorded before the job ran. ``fill`` is the number of
    bytes that lie inside the output and hold no element of it, if they are not all the same, else
    0. ``capture`` is what was checked, for trials on the target's simulated device.
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
    predicted: Array | None = None
    captured: Array | None = None
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
    capture: Capture | None = None

    @property
    def complete(self) -> bool:
        """True if every output that was recorded, or should have been recorded, was compared."""
        return self.compared > 0 and self.compared == self.outputs and not self.left

    @property
    def claims_wrong(self) -> int:
        """The number of claims that do not agree."""
        return sum(not claim.agrees for claim in self.claims)

    @property
    def ok(self) -> bool:
        """True if nothing differs. An output that was never written counts as a difference, unless
        the capture says that it was recorded before the run."""
        sound = self.words and self.coefficients is not False
        unwritten = self.verdict == NOT_EXECUTED and not self.before_run
        return sound and self.verdict != "differs" and not unwritten and not self.claims_wrong

    @property
    def largest(self) -> str:
        """The largest difference as text, with its unit unless that is "code"."""
        if self.unit == "code":
            return str(self.max)
        return f"{self.max} {self.unit}"

    @property
    def shown(self) -> str:
        """The first predicted bytes in hexadecimal, if the job was not executed; else ""."""
        if self.predicted is None or self.verdict != NOT_EXECUTED:
            return ""
        return in_hex(self.predicted)

    @property
    def _name(self) -> str:
        if self.simulated:
            return f"{self.case} (simulated)"
        return self.case

    def records(self) -> list[Row]:
        row = {name: getattr(self, name) for name in RECORDED}
        row |= {"words": _equality(self.words), "coefficients": _equality(self.coefficients)}
        row |= {"predicted": self.shown, "claims": len(self.claims)}
        if self.refused:
            row["coefficients"] = "not read"
        return [row]

    def __str__(self) -> str:
        lines = []
        if self.reason:
            lines.append(self.reason)
        if self.layer is not None:
            lines.append(f"{self.layer}, rule {self.rule}")
        if self.first is not None and self.predicted is not None and self.captured is not None:
            lines += [
                f"first difference at (row, column, channel) {self.first}: predicted "
                f"{self.predicted[self.first]}, captured {self.captured[self.first]}; "
                f"{self.mismatches} of {self.compared} differ, largest {self.largest}",
                *window(self.predicted, self.captured),
            ]
        return "\n".join([f"{self._name}: {self.verdict}", *indented(lines)])

    def __repr__(self) -> str:
        parts = [self.verdict]
        if self.compared:
            parts.append(f"{self.mismatches} of {self.compared} differ")
        elif self.verdict == "differs" and not self.claims:
            parts.append("nothing was compared")
        if self.unit != "code" and self.mismatches:
            parts.append(f"largest {self.largest}")
        if self.reason:
            parts.append(self.reason)
        return f"Comparison({self._name}: {', '.join(parts)})"


def check(capture: Capture) -> Comparison:
    """Decode the words and coefficients of a capture and encode them again, and compare its output
    with the output that is emulated by the rule of the target.

    A capture that the target cannot read counts as a difference, with the reason; ``compared`` is 0
    then.
    """
    _refuse(capture, "check", Capture)
    of = target(capture.target)
    words = all(_same_words(job, capture) for job in capture.jobs)
    words = words and all(map(_same_records, capture.records.values()))
    result = Comparison(
        capture.name,
        capture.target,
        capture.simulated,
        words,
        None,
        "differs",
        provenance=capture.origin,
        before_run=capture.before_run,
        capture=capture,
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
    return _with_reasons(result, reasons)


def _stream(of: Target, capture: Capture) -> Held:
    """Compare the recorded command stream with the jobs; an empty ``Held`` if no stream was
    recorded, or if the target cannot read streams.
    """
    data = capture.buffers.get(COMMANDS)
    if data is None:
        return Held()
    try:
        return held_against(capture.jobs, data, of.writes)
    except Unsupported:
        return Held()
    except ValueError as error:
        return Held(str(error).removeprefix(f"{COMMANDS}: "))


def _with_reasons(result: Comparison, reasons: Sequence[str]) -> Comparison:
    """Return the comparison with all its reasons joined to one text, and with a verdict that claims
    no more than was compared.
    """
    wrong = []
    if not result.words:
        wrong.append("words")
    if result.coefficients is False and not result.refused:
        wrong.append("coefficients")
    encoded = [f"{what} encode to other bytes than were recorded" for what in wrong]
    if (encoded or result.refused) and result.verdict != NOT_EXECUTED:
        result = replace(result, verdict="differs")
    if result.verdict == "equal" and result.left:
        result = replace(result, verdict="partly compared")
    reasons = [*reasons, *encoded]
    texts = [*reasons, result.reason, *result.left]
    return replace(result, reason="; ".join(dict.fromkeys(filter(None, texts))))


def _not_lifted(result: Comparison, of: Target, capture: Capture, error: Exception) -> Comparison:
    """Return the comparison of a capture that cannot be lifted. The verdict is "differs" if the
    capture can be lifted without its outputs: then the outputs are wrong.
    """
    verdict = "differs"
    if isinstance(error, Unsupported):
        verdict = "nothing to compare"
    left = tuple(filter(None, [bytes_unseen(capture)]))
    result = replace(result, verdict=verdict, reason=str(error), left=left)
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
        rule=rule_for(of, capture),
        outputs=count,
        left=(f"0 of {count} outputs were compared",),
    )


def _lifted(of: Target, capture: Capture) -> Lifted | None:
    """Lift a capture; return None if the target refuses it."""
    try:
        return of.lift(capture)
    except (ValueError, LookupError):
        return None


def rule_for(of: Target, capture: Capture) -> str:
    """Return the name of the rounding rule by which a target computes a capture."""
    if of.rule_of:
        return of.rule_of(capture)
    return of.rule


def _equality(equal: bool | None) -> str:
    if equal is None:
        return "none"
    if equal:
        return "equal"
    return "differs"


def _replayed(
    result: Comparison, of: Target, capture: Capture, ranges: Sequence[Range]
) -> Comparison:
    """Return the comparison of ranges of memory with their bytes after a run. If only a CRC of a
    range was kept, all its bytes count as equal or all as different.
    """
    known: list[Range] = []
    wrong: list[Range] = []
    left = []
    compared = 0
    for memory in ranges:
        size = len(memory.predicted)
        if memory.captured is None and memory.crc is None:
            left.append(f"{memory.name}: {size} bytes were not recorded")
            continue
        known.append(memory)
        compared += size
        if memory.differing:
            wrong.append(memory)
    reasons = [str(memory) for memory in wrong]
    cut = ""
    named = {memory.name for memory in known}
    if OUTPUT in named:
        lifted = of.lift(capture)
        cut = cut_of(of, capture, lifted)
        left += left_of(of, capture, lifted, named)
        values = sum(len(memory.predicted) for memory in known if memory.name == OUTPUT)
        # if the range holds only the bytes of elements, the fill between them is counted, too
        if lifted.output is not None and values == lifted.output.nbytes:
            result = replace(result, fill=fill_of(of, capture, lifted))
    elif OUTPUT in capture.buffers:
        left.append(bytes_unseen(capture))
    verdict = "equal"
    if wrong or cut:
        verdict = "differs"
    if not compared:
        verdict = "nothing to compare"
    elif verdict == "equal" and not surely_written(capture):
        fresh = [memory.name for memory in known if never_written(memory.predicted)]
        if fresh:
            verdict = ONE_VALUE
            reasons.append(
                f"{' and '.join(fresh)}: every byte is the same, as in memory that no job wrote"
            )
    if wrong:
        result = replace(
            result,
            mismatches=sum(len(memory.differing) for memory in wrong),
            first=(wrong[0].differing[0],),
            max=max(memory.largest for memory in wrong),
        )
    return replace(
        result,
        verdict=verdict,
        compared=compared,
        outputs=sum(len(memory.predicted) for memory in ranges),
        left=tuple(left),
        reason="; ".join(filter(None, [*reasons, cut])),
    )


def _claimed(result: Comparison) -> Comparison:
    """Return the comparison with a count of the claims in its reason; the claims decide the verdict
    if no output was compared."""
    claims, undecided = result.claims, result.verdict == "nothing to compare"
    wrong = [claim for claim in claims if not claim.agrees]
    if not claims or not (undecided or wrong):
        return result
    words = f"{len(claims) - len(wrong)} of {len(claims)} statements"
    sources = dict.fromkeys(claim.source for claim in claims if claim.source)
    if sources:
        words += f" of {' and '.join(sources)}"
    verdict = result.verdict
    if undecided:
        verdict = "claims agree"
    if undecided and wrong:
        verdict = "differs"
    reason = "; ".join(filter(None, [f"{words} agree", *map(str, wrong[:1]), result.reason]))
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
    """Return the comparison with ``coefficients``: if the coefficient buffer is the same after
    decoding and encoding. Return also the reasons if that is not possible.
    """
    if "coefficients" not in capture.buffers:
        return result, []
    try:
        same = of.recode(capture) == capture.buffers["coefficients"]
    except ValueError as error:
        if not isinstance(error, Unsupported):
            result = replace(result, coefficients=False, refused=True)
        return result, [str(error)]
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


def _same_records(records: Records) -> bool:
    """True if the records of a buffer are encoded to the bytes that they were decoded from."""
    again = records.registers.encode(records.registers.decode(records.words))
    return records.with_words(again.reshape(records.words.shape)) == records.data


def _compared(result: Comparison, of: Target, capture: Capture) -> Comparison:
    """Return the comparison after its output, and the captured outputs of layers within a network,
    were compared with what is emulated.
    """
    lifted = of.lift(capture)
    layer, x, output = lifted
    result = replace(result, layer=layer, rule=rule_for(of, capture))
    absent = x is None or (isinstance(x, tuple | list) and any(tensor is None for tensor in x))
    numbers = []
    if isinstance(layer, Network) and not absent:
        numbers = _captured_layers(capture)
    if numbers:
        result = _layer_by_layer(result, of, capture, x, numbers)
        if result.mismatches:
            return result
    if output is not None and not absent:
        result = _of_output(replace(result, x=x, captured=output), output, of, capture)
    recorded = output is not None or OUTPUT in capture.buffers
    missing = []
    if absent:
        missing.append("no input")
    if not recorded:
        missing.append("no output")
    if not numbers and (absent or output is None):
        said = ""
        if missing:
            said = f"{' and '.join(missing)} recorded"
        result = replace(result, verdict="nothing to compare", reason=said)
    left = left_of(of, capture, lifted, [OUTPUT, *(f"{STEP}{number}" for number in numbers)])
    if numbers and output is None:
        left.append(layers_left(layer, numbers))
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


def _of_output(result: Comparison, output: Array, of: Target, capture: Capture) -> Comparison:
    """Return the comparison after the recorded output was compared with the emulated output of the
    lifted layer.
    """
    layer = cast("Layer", result.layer)
    predicted = emulate(layer, result.x, result.rule)
    before = result.compared  # the elements of captured inner layers, compared already
    unlike = ""
    if predicted.shape != output.shape:
        unlike = f"predicted shape {predicted.shape}, captured {output.shape}"
    elif "f" in (predicted.dtype.kind, output.dtype.kind) and predicted.dtype != output.dtype:
        unlike = f"predicted are numbers of {predicted.dtype}, captured of {output.dtype}"
    if unlike:
        count = before + predicted.size
        return replace(result, verdict="differs", outputs=count, reason=unlike)
    unwritten = as_unwritten(capture, OUTPUT, output, lambda memory: of.lift(memory).output)
    fresh = _fresh_code(capture, layer)
    found = with_outputs(result, _image(predicted), _image(output), unwritten, fresh)
    if not found.mismatches:
        verdict = found.verdict
        if ONE_VALUE in (result.verdict, found.verdict):
            verdict = ONE_VALUE
        count = before + found.compared
        return replace(found, verdict=verdict, compared=count, outputs=count)
    zero_point = _zero_point(layer)
    if np.all(output == zero_point):
        value = f"the zero point {zero_point}"
        if found.unit == "ulp":
            value = "0"
        reason = f"every output is {value}, as before the job ran"
        return replace(found, verdict=NOT_EXECUTED, reason=reason)
    if output.size > 1 and not np.any(steps(output, output.flat[0])):
        low, high = predicted.min(), predicted.max()
        reason = f"every captured output is {output.flat[0]}, predicted are {low} to {high}"
        return replace(found, reason=reason)
    return found


def _zero_point(layer: Layer | Network) -> int:
    """Return the code that stands for 0 in the output of a layer."""
    q = layer.output_q
    if q is None:
        return 0
    return q.zero_point


def _fresh_code(capture: Capture, layer: Layer | Network) -> int | None:
    """Return the code that stands for 0 in a layer's output, which memory may hold before a job
    runs; None if it is known that a job wrote the output.
    """
    if surely_written(capture):
        return None
    return _zero_point(layer)


def _captured_layers(capture: Capture) -> list[int]:
    """Return, sorted, the numbers N for which the capture has a buffer ``output:N``."""
    numbers = []
    for name in capture.buffers:
        number = name.removeprefix(STEP)
        if name.startswith(STEP) and number.isdecimal() and number == str(int(number)):
            numbers.append(int(number))
    return sorted(numbers)


def _layer_by_layer(
    result: Comparison, of: Target, capture: Capture, x: Any, numbers: Sequence[int]
) -> Comparison:
    """Return the comparison after the captured outputs of a network's layers were compared with
    what is emulated, up to the first layer that differs.

    Raises ValueError if a buffer is of a layer that the network does not have.
    """
    network = cast("Network", result.layer)
    if numbers[-1] >= len(network.layers):
        raise ValueError(
            f"capture {capture.name}: got buffer {STEP}{numbers[-1]}, its network has layers 0 to "
            f"{len(network.layers) - 1}"
        )
    every = outputs(network, x, result.rule)
    compared = 0
    same = []
    for number in numbers:
        layer, predicted = network.layers[number], every[number]
        name = f"{STEP}{number}"
        captured = of.tensor(capture, name, predicted)
        read = partial(_tensor, of, name, predicted)
        unwritten = as_unwritten(capture, name, captured, read)
        fresh = _fresh_code(capture, layer)
        found = with_outputs(result, _image(predicted), _image(captured), unwritten, fresh)
        if found.mismatches:
            reason = f"layer {number} is the first of {len(numbers)} captured layers that differs"
            given = _inputs_of(network.inputs[number], x, every)
            return replace(found, layer=layer, x=given, reason=reason)
        if found.verdict == ONE_VALUE:
            same.append(str(number))
        compared += found.compared
    verdict = "equal"
    reason = f"{len(numbers)} of {len(network.layers)} layers were compared"
    if same:
        verdict = ONE_VALUE
        reason += (
            f"; of layer {', '.join(same)} every output is one value, as in memory that no job "
            "wrote"
        )
    return replace(found, verdict=verdict, compared=compared, outputs=compared, reason=reason)


def _inputs_of(sources: Sequence[int], x: Any, every: Sequence[Array]) -> Any:
    """Return the input tensors of a layer by their ``sources``: numbers of layers whose output they
    are, or -1 - n for input n of the network; one tensor, or a tuple of several."""
    if not isinstance(x, tuple | list):
        x = (x,)
    taken = []
    for source in sources:
        if source < 0:
            taken.append(x[-1 - source])
        else:
            taken.append(every[source])
    if len(taken) == 1:
        return taken[0]
    return tuple(taken)


def _tensor(of: Target, name: str, like: Array, capture: Capture) -> Array:
    """Return the tensor in the buffer ``name`` of a capture, in the shape of ``like``. The capture
    comes last, so that ``partial`` can set the arguments before it.
    """
    return of.tensor(capture, name, like)


def with_outputs(
    result: Comparison,
    predicted: Array,
    captured: Array,
    unwritten: Sequence[Array] = (),
    zero_point: int | None = None,
) -> Comparison:
    """Return the comparison after two outputs of one shape were compared element by element.

    Equal outputs are also compared with memory to which no job wrote: with each of the
    ``unwritten`` outputs, and with the ``zero_point`` if it is given.
    """
    difference = np.abs(steps(predicted, captured))
    wrong = np.argwhere(difference)
    verdict, reason = "equal", result.reason
    first = None
    if len(wrong):
        verdict = "differs"
        first = tuple(wrong[0].tolist())
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
        first=first,
        max=int(difference.max(initial=0)),
        predicted=predicted,
        captured=captured,
        unit=unit(captured.dtype),
    )


def _image(output: Array) -> Array:
    """Return an output of any number of axes as ``(H, W, C)``; a fully connected layer has its
    batches as H, and W is 1."""
    *rows, channels = output.shape
    width = 1
    if len(rows) > 1:
        width = rows.pop()
    return output.reshape(math.prod(rows), width, channels)


def explain(capture: Capture, byte: int | None = None) -> pd.DataFrame:
    """Return a row for every run of bits of the coefficient buffer, by place: byte, bit (in that
    byte, 0 is the lowest), bits, kind, core, channel, plane, row, column, value, weights (how many
    weights the run stands for).

    With ``byte`` there are only runs that have a bit in that byte, and runs of no bits at its
    place. Raises ValueError if a byte cannot be explained, and for a ``byte`` outside of the
    buffer.
    """
    from npulab.registers.shown import Table

    _refuse(capture, "explain", Capture)
    items = target(capture.target).explain(capture)
    if byte is not None:
        size = len(capture.buffers["coefficients"])
        refuse_if(not 0 <= byte < size, "byte", byte, f"is 0 to {size - 1}")
        first = 8 * byte
        items = [item for item in items if _touches(item, first)]
    places = ["core", "channel", "plane", "row", "column"]
    frame = Table(items, columns=Item._fields).astype(dict.fromkeys(places, "Int64"))
    frame.insert(0, "byte", frame["bit"] // 8)
    frame["bit"] %= 8
    return frame[["byte", "bit", "bits", "kind", *places, "value", "weights"]]


def _touches(item: Item, first: int) -> bool:
    """True if an item has bits in the byte whose first bit is ``first``, or begins in that byte."""
    return first <= item.bit < first + 8 or item.bit < first < item.bit + item.bits


def diff(a: Any, b: Any, *, never: bool = False, tasks: Sequence[int] = ()) -> pd.DataFrame:
    """Return the fields that differ between two captures: task, block, register, field, a, b,
    address.

    A field that one side does not have is None there; ``address`` is True if the field points into
    memory. Jobs are compared with their like, not by number, if that takes fewer edits: a job that
    only one capture has, or that stands elsewhere, is one row with the register ``(job)``. Tasks
    are those of ``a``. Register writes that leave the same state in another way (a register is
    written twice, or in another order) differ too, in the fields ``(writes)`` of a register and
    ``(order)`` of a block.

    Records in buffers are compared with their like as jobs are. Their rows are of task 0 and block
    ``buffer``, the register is the name of the buffer, the field ``record 12 UOP.dst_idx``. The
    bytes of buffers are compared by ``diff_buffers``. With ``tasks``, a number for each side, only
    these two jobs are compared, as task 0; ``a`` and ``b`` may then be the same capture.

    For two CaptureSets or two Sweeps the columns are task, block, register, field, differs
    (``always``: no value occurs on both sides; ``sometimes``), constant (True if each side has one
    value and they differ), a, b (the values that occur, at most five) and address; the order of
    register writes is not compared. Two Sweeps with equal parameters in each row also have
    ``pairs``: the number of rows in which the field differs. If the words of a sweep have no map,
    its fields are runs of bits. Fields that ``never`` differ are left out, unless ``never`` is
    True.

    Raises ValueError for captures of different targets, sweeps of different blocks, and ``never``
    with two captures.
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
            "Sweep; npulab.captures.sweep.sweep_of makes one of captures"
        )
    left, right = _captures_of(a), _captures_of(b)
    names = {capture.target for capture in (*left, *right)}
    refuse_if(len(names) > 1, "diff", f"targets {', '.join(sorted(names))}", "is one")
    if isinstance(a, CaptureSet) or isinstance(b, CaptureSet):
        rows = []
        for key, in_a, in_b in _pairs(list(map(raw_fields, left)), list(map(raw_fields, right))):
            row = _row(key, in_a, in_b)
            if never or row[4] != "never":
                rows.append(row)
        return Table(rows, columns=[*SETS])
    refuse_if(never, "diff", "never with two captures", "is with CaptureSets and Sweeps")
    found = differences(a, b)
    if not tasks:
        found += differing_records(a, b)
    frame = Table(found, columns=list(Difference._fields), dtype=object)
    return frame.astype({"task": int, "address": bool})


def _captures_of(side: Any) -> list[Capture]:
    if isinstance(side, CaptureSet):
        return list(side)
    return [side]


def jobs_apart(a: Any, b: Any, tasks: Sequence[int]) -> tuple[Capture, Capture]:
    """Return two captures with one job each: the jobs of the two ``tasks``, one from each side;
    their names state the task.

    Raises TypeError for a side that is not a capture, LookupError for a task that it does not have.
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
    """Return the buffers that differ: buffer, first (the first byte that differs), bytes (how many
    differ), a, b (lengths in bytes; None if a side lacks the buffer).

    The command stream is left out if jobs have its register writes: these are fields, which
    ``diff`` compares.
    """
    from npulab.registers.shown import Table

    for side in (a, b):
        _refuse(side, "diff_buffers", Capture)
    rows = []
    for name in dict.fromkeys([*a.buffers, *b.buffers]):
        left, right = a.buffers.get(name), b.buffers.get(name)
        if name == COMMANDS and any(job.start for job in (*a.jobs, *b.jobs)):
            continue
        if left != right:
            rows.append((name, *_bytes_apart(left or b"", right or b""), _size(left), _size(right)))
    return Table(rows, columns=["buffer", "first", "bytes", "a", "b"], dtype=object)


def _bytes_apart(a: bytes, b: bytes) -> tuple[int, int]:
    """Return the place of the first byte that differs, and the number of bytes that differ; bytes
    that only one side has count as differing.
    """
    both = min(len(a), len(b))
    wrong = np.flatnonzero(np.frombuffer(a, np.uint8, both) != np.frombuffer(b, np.uint8, both))
    count = len(wrong) + abs(len(a) - len(b))
    return int(min(wrong, default=both)), count


def _size(data: bytes | None) -> int | None:
    if data is None:
        return None
    return len(data)


class Difference(NamedTuple):
    """A field that differs between two captures, with its values ``a`` and ``b`` in the form that
    people read; None on a side that does not have the field."""

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
        """The two values as texts; addresses are hexadecimal."""
        if self.address:
            return as_address(self.a), as_address(self.b)
        return self.a, self.b


def differences(a: Capture, b: Capture) -> list[Difference]:
    """Return what differs between two captures: the rows of ``diff``.

    Each job is compared with the job that ``aligned`` puts beside it. Tasks are numbers of jobs of
    ``a``; the task of an inserted job is that of the job of ``a`` before which it stands.
    """
    pairs = aligned(a.jobs, b.jobs)
    rows = []
    mine, theirs = fields_side_by_side(a, b, pairs)
    for key, left, right in _pairs([mine], [theirs]):
        if left.keys() != right.keys():
            [in_a], [in_b] = _meant(left), _meant(right)
            rows.append(Difference(*key, in_a, in_b, _address(left, right)))
    for task, other in pairs:
        if task is not None and other is not None:
            rows += _written_differently(task, a.jobs[task], b.jobs[other], a.maps)
    return [*rows, *jobs_edited(a, b, pairs).values()]


def fields_side_by_side(
    a: Capture, b: Capture, pairs: Sequence[Pair]
) -> tuple[RawFields, RawFields]:
    """Return, for each of two captures, the raw fields of the jobs that both have; tasks are
    numbers of jobs of ``a``. ``pairs`` are the jobs side by side.
    """
    numbers = {}
    for task, other in pairs:
        if task is not None and other is not None:
            numbers[other] = task
    both = set(numbers.values())
    mine = {key: value for key, value in raw_fields(a).items() if key[0] in both}
    theirs: RawFields = {}
    for (other, *names), value in raw_fields(b).items():
        if other in numbers:
            block, register, name = names
            theirs[numbers[other], block, register, name] = value
    return mine, theirs


def differing_records(a: Capture, b: Capture) -> list[Difference]:
    """Return what differs between the records in the buffers of two captures."""
    rows = []
    for name, held in beside(a, b).items():
        rows += [of_record(name, part) for part in held.parts]
    return rows


def of_record(buffer: str, part: Part) -> Difference:
    """Return a part, a difference between the records in a buffer, as a row of ``diff``."""
    address = part.field is not None and part.field.address
    return Difference(0, BUFFER, buffer, part.name, part.a, part.b, address)


def jobs_edited(a: Capture, b: Capture, pairs: Sequence[Pair]) -> dict[Edit, Difference]:
    """Return a row of ``diff`` for each job that only one of two captures has, or that stands
    elsewhere, by the edit of the job; ``pairs`` are the jobs side by side.
    """
    rows = {}
    for edit in edits_of(a.jobs, b.jobs, pairs):
        if edit.kind == CHANGED:
            continue
        there = other = None
        block = ""
        if edit.kind != INSERTED:
            block = a.jobs[edit.a].block
            there = f"job {edit.a}"
        if edit.b is not None:
            block = b.jobs[edit.b].block
            other = f"job {edit.b}"
        name = f"{edit.kind} {other or there}"
        rows[edit] = Difference(edit.a, block, JOB, name, there, other)
    return rows


def raw_fields(capture: Capture) -> RawFields:
    """Return every field of a capture and its raw value, by (task, block, register, field)."""
    fields: RawFields = {}
    for task, job in enumerate(capture.jobs):
        for block, item, raw in job.values(capture.maps):
            fields[task, block, item.register, item.name] = (item, int(raw))
    return fields


# The raw values of a field that occur on one side, each with the Field that decodes it. A capture
# without the field adds the value None with the Field None.
Seen = Mapping[int | None, Field | None]
ONLY_ABSENT: Seen = {None: None}


def _pairs(
    a: Sequence[Mapping[Key, tuple[Field, int]]],
    b: Sequence[Mapping[Key, tuple[Field, int]]],
) -> Iterator[tuple[Key, Seen, Seen]]:
    """Yield (key, values on side a, values on side b) for each field of the captures of two sides.

    A field without a name is left out if its values are only 0 and None (register not written), and
    its register has named fields, too.
    """
    fields: dict[Key, Field] = {}
    named = set()
    for values in (*a, *b):
        for key, (item, _) in values.items():
            fields[key] = item
            if not item.automatic:
                named.add(key[:3])
    for key in fields:
        left, right = _seen(a, key), _seen(b, key)
        automatic = any(item and item.automatic for item in (*left.values(), *right.values()))
        if not ({*left, *right} == {None, 0} and automatic and key[:3] in named):
            yield key, left, right


def _seen(side: Sequence[Mapping[Key, tuple[Field, int]]], key: Key) -> Seen:
    seen: dict[int | None, Field | None] = {}
    for values in side:
        if key in values:
            item, raw = values[key]
            seen[raw] = item
        else:
            seen[None] = None
    return seen


def _meant(seen: Seen) -> list[Any]:
    """Return at most ``MOST_SHOWN`` values of a side, in the form that people read."""
    values: list[Any] = []
    for raw, item in islice(seen.items(), MOST_SHOWN):
        if item is None or raw is None:
            values.append(None)
        else:
            values.append(item.text(raw))
    return values


def _address(left: Seen, right: Seen) -> bool:
    return any(item is not None and item.address for item in (*left.values(), *right.values()))


def _written_differently(
    task: int, in_a: Job, in_b: Job, maps: Mapping[str, RegisterMap]
) -> list[Difference]:
    """Return the differences between two jobs whose register writes leave the same state: registers
    that one job writes more often, and another order.
    """
    rows: list[Difference] = []
    for job, other in zip(_with_starts(in_a), _with_starts(in_b), strict=False):
        mine, theirs = _values_written(job), _values_written(other)
        registers = maps[job.block]
        names = {at: registers.register_at(at) for at in mine if at in theirs}
        for at, name in names.items():
            if mine[at] != theirs[at] and mine[at][-1] == theirs[at][-1]:
                left, right = " ".join(map(hex, mine[at])), " ".join(map(hex, theirs[at]))
                rows.append(Difference(task, job.block, name, WRITES, left, right))
        order = list(names.values())
        other_order = [names[at] for at in theirs if at in names]
        if order != other_order:
            first = 0
            while order[first] == other_order[first]:
                first += 1
            left, right = _names_from(order, first), _names_from(other_order, first)
            rows.append(Difference(task, job.block, "", ORDER, left, right))
    return rows


def _values_written(job: Job) -> dict[int, list[int]]:
    """Return the values that a job writes to each offset, with the offsets in the order of their
    first writes."""
    values: dict[int, list[int]] = {}
    for offset, value in job.writes:
        values.setdefault(offset, []).append(value)
    return values


def _names_from(names: Sequence[str], first: int) -> str:
    """Return at most ``MOST_SHOWN`` names as text, from index ``first`` on; "..." stands for names
    before and after them.
    """
    end = first + MOST_SHOWN
    shown = list(names[first:end])
    if first:
        shown.insert(0, "...")
    if len(names) > end:
        shown.append("...")
    return " ".join(shown)


def _with_starts(job: Job) -> list[Job]:
    """Return a list: a job, the job that starts it, the job that starts that one, and so on."""
    jobs = [job]
    while jobs[-1].start:
        jobs.append(jobs[-1].start)
    return jobs


def _row(key: Key, left: Seen, right: Seen) -> tuple[Any, ...]:
    """Return a row of the diff of two sets or sweeps, with the columns ``SETS``."""
    differs = "sometimes"
    if not left.keys() & right.keys():
        differs = "always"
    elif left.keys() == right.keys() and len(left) == 1:
        differs = "never"
    constant = differs == "always" and len(left) == len(right) == 1
    return (*key, differs, constant, _meant(left), _meant(right), _address(left, right))


def _diff_sweeps(a: Sweep, b: Sweep, never: bool) -> pd.DataFrame:
    for what in ("target", "block"):
        names = sorted({getattr(side, what) for side in (a, b)} - {""})
        if len(names) > 1:
            raise ValueError(f"diff: got {what}s {', '.join(names)}, allowed is one {what}")
    width, other = a.words.shape[1], b.words.shape[1]
    if width != other or not len(a) or not len(b):
        raise ValueError(
            f"diff: got {len(a)} captures of {width} words and {len(b)} of {other}, allowed is "
            "at least one on each side, with equally many words"
        )
    from npulab.registers.shown import with_part

    paired = len(a) == len(b) and a.parameters.equals(b.parameters)
    mine, theirs = _fields_of_sweep(a, b), _fields_of_sweep(b, a)
    rows = []
    for key in {**mine, **theirs}:
        seen = []
        for side in (mine, theirs):
            values: Seen = ONLY_ABSENT
            if key in side:
                item, raw = side[key]
                values = dict.fromkeys(raw.tolist(), item)
            seen.append(values)
        row = _row(key, *seen)
        if not never and row[4] == "never":
            continue
        pairs = len(a)
        if key in mine and key in theirs:
            pairs = 0
            if paired:
                pairs = int(np.count_nonzero(mine[key][1] != theirs[key][1]))
        rows.append((*row, pairs))
    frame = pd.DataFrame(rows, columns=[*SETS, "pairs"])
    if not paired:
        frame = frame.drop(columns="pairs")
    return with_part(frame, a, b)


def _fields_of_sweep(of: Sweep, other: Sweep) -> dict[Key, tuple[Field, Array]]:
    """Return the fields of a sweep with their raw values ``(N,)``; if another field states the unit
    of a field, with its decoded values. The map is that of the sweep, else that of the other sweep,
    else one of runs of bits.
    """
    registers = of.registers or other.registers or _runs_of_bits(of, other)
    fields: dict[Key, tuple[Field, Array]] = {}
    for item in registers:
        numbers = item.extract(of.words)
        if item.meaning.by:  # raw values say nothing, as the unit differs from capture to capture
            numbers = registers.decode(of.words)[registers.key(item)]
        fields[0, item.block, item.register, item.name] = (item, numbers)
    return fields


def _runs_of_bits(a: Sweep, b: Sweep) -> RegisterMap:
    """Return a map of fields without names: runs of bits that vary, runs that are constant but
    differ between the sweeps, and runs of the other bits."""
    places = np.arange(WORD_BITS, dtype=np.uint32)
    varying = (a.varying | b.varying)[:, None] >> places & np.uint32(1)
    differing = (a.words[0] ^ b.words[0])[:, None] >> places & np.uint32(1)
    rows = []
    for word, bits in enumerate(np.where(varying, 2, differing)):
        edges = [0, *(np.flatnonzero(np.diff(bits)) + 1).tolist(), WORD_BITS]
        for lsb, end in pairwise(edges):
            rows.append(
                {
                    "block": a.block or b.block,
                    "offset": WORD_BYTES * word,
                    "field": "",
                    "lsb": lsb,
                    "width": end - lsb,
                }
            )
    return RegisterMap(rows)
