"""What differs: captures by field, outputs by element, a capture against our understanding of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npulab.capture import Capture, CaptureSet, Job
from npulab.emulate import emulate
from npulab.target import Target, Unanswerable
from npulab.targets import target

if TYPE_CHECKING:
    import pandas as pd

VERDICTS = ("equal", "differs", "not executed", "nothing to compare")
Key = tuple[int, str, str, str]


@dataclass(frozen=True, eq=False)
class Comparison:
    """How a capture agrees with our understanding of it.

    ``words`` and ``coefficients`` say whether decoding and encoding gives the same bytes (None where
    there are none).  ``verdict`` is about the output, one of ``VERDICTS``: ``compared`` elements,
    ``mismatches`` of them, ``first`` (row, column, channel) of the first, ``max`` the largest
    difference.  ``predicted`` and ``captured`` are ``(H, W, C)`` or None; ``reason`` says in words
    what is wrong.
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

    @property
    def ok(self) -> bool:
        """Nothing differs."""
        return self.words and self.coefficients is not False and self.verdict != "differs"

    def __repr__(self) -> str:
        said = f", {self.reason}" if self.reason else ""
        return (f"Comparison({self.case}{' (simulated)' if self.simulated else ''}: {self.verdict}, "
                f"{self.mismatches} of {self.compared} differ{said})")


def check(capture: Capture) -> Comparison:
    """Words and coefficients decoded and encoded again, the output emulated by the target's own rule.

    What the target cannot read counts as a difference, with the reason.
    """
    of = target(capture.target)
    words = all(_same_words(job, capture) for job in capture.jobs)
    coefficients, reasons = _same_coefficients(of, capture)
    said = Comparison(capture.name, capture.target, capture.simulated, words, coefficients, "differs")
    try:
        layer, x, output = of.lift(capture)
        if x is None or output is None:
            missing = [name for name, tensor in (("input", x), ("output", output)) if tensor is None]
            return replace(said, verdict="nothing to compare", reason=f"no {' and no '.join(missing)} recorded")
        rule = of.rule_of(capture) if of.rule_of else of.rule
        said = _compared(said, emulate(layer, x, rule), output, layer.output_q.zero_point)
    except Unanswerable as error:
        said = replace(said, verdict="nothing to compare", reason=str(error))
    except ValueError as error:
        reasons.append(str(error))
    return replace(said, reason="; ".join(dict.fromkeys([*reasons, *filter(None, [said.reason])])))


def _same_coefficients(of: Target, capture: Capture) -> tuple[bool | None, list[str]]:
    if "coefficients" not in capture.buffers:
        return None, []
    try:
        return of.recode(capture) == capture.buffers["coefficients"], []
    except Unanswerable as error:
        return None, [str(error)]
    except ValueError as error:
        return False, [str(error)]


def _same_words(job: Job, capture: Capture) -> bool:
    if job.writes:
        same = True
    else:
        registers = capture.maps[job.block]
        same = bool(np.array_equal(registers.encode(registers.decode(job.words)), job.words))
    return same and (job.start is None or _same_words(job.start, capture))


def _compared(said: Comparison, predicted: np.ndarray, output: np.ndarray, zero_point: int) -> Comparison:
    if predicted.shape != output.shape:
        return replace(said, reason=f"predicted shape {predicted.shape}, captured {output.shape}")
    difference = np.abs(predicted.astype(np.int64) - output.astype(np.int64))
    wrong = np.argwhere(difference)
    said = replace(said, compared=predicted.size, mismatches=len(wrong), max=int(difference.max(initial=0)),
                   predicted=predicted, captured=output)
    if not len(wrong):
        return replace(said, verdict="equal")
    said = replace(said, first=tuple(int(n) for n in wrong[0]))
    if not np.all(output == zero_point):
        return said
    return replace(said, verdict="not executed",
                   reason=f"every output is the zero point {zero_point}, as before the job ran")


def explain(capture: Capture) -> pd.DataFrame:
    """Every run of bits of the coefficient buffer: byte, bits, kind, core, channel, plane, row, column,
    value, weights (how many the item stands for); raises ValueError where a byte cannot be explained."""
    import pandas as pd

    items = [(item.bit // 8, item.bits, item.kind, item.core, item.channel, item.plane, item.row, item.column,
              item.value, item.weights) for item in target(capture.target).explain(capture)]
    frame = pd.DataFrame(items, columns=["byte", "bits", "kind", "core", "channel", "plane", "row", "column",
                                         "value", "weights"])
    return frame.astype(dict.fromkeys(("core", "channel", "plane", "row", "column"), "Int64"))


def diff(a: Any, b: Any) -> pd.DataFrame:
    """Fields that differ between two captures: task, block, register, field, a, b, address.

    A field that one side does not have is None there; ``address`` says that it points into memory.

    For two CaptureSets the columns are task, block, register, field, differs (``always``: no value
    is common to both; ``sometimes``), constant (within a and within b, but different between them),
    a, b (the values seen, at most five) and address; fields that never differ are left out.
    Raises ValueError for captures of different targets.
    """
    sets = [one if isinstance(one, CaptureSet) else CaptureSet((one,)) for one in (a, b)]
    names = {capture.target for one in sets for capture in one}
    if len(names) > 1:
        raise ValueError(f"diff: got targets {', '.join(sorted(names))}, allowed is one")
    if isinstance(a, CaptureSet) or isinstance(b, CaptureSet):
        return _diff_sets(*sets)
    return _diff_two(a, b)


def _diff_two(a: Capture, b: Capture) -> pd.DataFrame:
    import pandas as pd

    left, right = _values(a), _values(b)
    absent = Seen(None, False, None, False)
    rows = []
    for key in {**left, **right}:
        one, other = left.get(key, absent), right.get(key, absent)
        # a register that only one side writes is told by its named fields and the bits set in it
        idle = {one.raw, other.raw} == {None, 0} and (one.automatic or other.automatic)
        if one.raw != other.raw and not idle:
            rows.append((*key, one.value, other.value, one.address or other.address))
    frame = pd.DataFrame(rows, columns=["task", "block", "register", "field", "a", "b", "address"],
                         dtype=object)
    return frame.astype({"task": int, "address": bool})


def _diff_sets(a: CaptureSet, b: CaptureSet) -> pd.DataFrame:
    import pandas as pd

    seen: list[dict[Key, list[Any]]] = [{}, {}]
    address: dict[Key, bool] = {}
    for one, values in zip((a, b), seen, strict=True):
        for capture in one:
            for key, found in _values(capture).items():
                values.setdefault(key, []).append(found.value)
                address[key] = found.address
    rows = []
    for key, points in address.items():
        left, right = (list(dict.fromkeys(map(_hashable, values.get(key, [None])))) for values in seen)
        if left == right and len(left) == 1:
            continue
        always = not set(left) & set(right)
        constant = always and len(left) == len(right) == 1
        rows.append((*key, "always" if always else "sometimes", constant, left[:5], right[:5], points))
    return pd.DataFrame(rows, columns=["task", "block", "register", "field", "differs", "constant", "a", "b",
                                       "address"])


class Seen(NamedTuple):
    """A field in one capture."""

    value: Any
    address: bool
    raw: int | None
    automatic: bool


def _values(capture: Capture) -> dict[Key, Seen]:
    return {(task, block, item.register, item.name): Seen(item.text(raw), item.address, int(raw), item.automatic)
            for task, job in enumerate(capture.jobs) for block, item, raw in job.values(capture.maps)}


def _hashable(value: Any) -> Any:
    return "nan" if value != value else value
