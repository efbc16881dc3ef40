"""What differs: captures by field, outputs by element, a capture against our understanding of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from npulab.capture import COMMANDS, Capture, CaptureSet, Job
from npulab.emulate import emulate
from npulab.target import Target, Unanswerable
from npulab.targets import target

if TYPE_CHECKING:
    import pandas as pd

    from npulab.layers import Conv2D

Key = tuple[int, str, str, str]
WRITES, ORDER = "(writes)", "(order)"  # stand for a field where only the way differs in which a state is written


@dataclass(frozen=True, eq=False)
class Comparison:
    """How a capture agrees with our understanding of it.

    ``words`` and ``coefficients`` say whether decoding and encoding gives the same bytes (None where
    there are none).  ``verdict`` is about the output: ``equal``, ``differs``, ``not executed`` or
    ``nothing to compare``; of ``compared`` elements ``mismatches`` differ, ``first`` (row, column,
    channel) is the first of them, ``max`` the largest difference.  ``predicted`` and ``captured`` are
    ``(H, W, C)`` or None; ``reason`` says in words what is wrong; ``layer`` is what was lifted, ``rule``
    the rounding rule it was emulated with, ``x`` the input.  ``neighbours`` says which other explanation
    would make it equal.
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
    layer: Conv2D | None = None
    rule: str = ""
    x: np.ndarray | None = None

    @property
    def ok(self) -> bool:
        """Nothing differs."""
        return self.words and self.coefficients is not False and self.verdict != "differs"

    def __repr__(self) -> str:
        counts = f", {self.mismatches} of {self.compared} differ" if self.compared else \
            ", nothing was compared" if self.verdict == "differs" else ""
        said = f", {self.reason}" if self.reason else ""
        return f"Comparison({self.case}{' (simulated)' if self.simulated else ''}: {self.verdict}{counts}{said})"


def check(capture: Capture) -> Comparison:
    """Words and coefficients decoded and encoded again, the output emulated by the target's own rule.

    What the target cannot read counts as a difference, with the reason; ``compared`` is 0 then.
    """
    _refuse(capture, "check", Capture)
    of = target(capture.target)
    words = all(_same_words(job, capture) for job in capture.jobs)
    coefficients, reasons = _same_coefficients(of, capture)
    said = Comparison(capture.name, capture.target, capture.simulated, words, coefficients, "differs")
    try:
        said = _compared(said, of, capture)
    except Unanswerable as error:
        said = replace(said, verdict="nothing to compare", reason=str(error))
    except (ValueError, LookupError) as error:
        reasons.append(str(error))
    return replace(said, reason="; ".join(dict.fromkeys([*reasons, *filter(None, [said.reason])])))


def _refuse(value: Any, what: str, *kinds: type) -> None:
    if not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{what}: got {type(value).__name__}, allowed is {names}, as npulab.load and load_all give")


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
    if job.block not in capture.maps:
        raise LookupError(f"capture {capture.name}: got block {job.block!r}, its maps are for "
                          f"{', '.join(capture.maps) or 'none'}")
    registers = capture.maps[job.block]
    same = bool(np.array_equal(registers.encode(registers.decode(job.words)), job.words))
    return same and (job.start is None or _same_words(job.start, capture))


def _compared(said: Comparison, of: Target, capture: Capture) -> Comparison:
    """The comparison of the output, if there is one."""
    layer, x, output = of.lift(capture)
    said = replace(said, layer=layer, rule=of.rule_of(capture) if of.rule_of else of.rule)
    if x is None or output is None:
        missing = [name for name, tensor in (("input", x), ("output", output)) if tensor is None]
        return replace(said, verdict="nothing to compare", reason=f"no {' and no '.join(missing)} recorded")
    predicted = emulate(layer, x, said.rule)
    if predicted.shape != output.shape:
        return replace(said, captured=output, x=x,
                       reason=f"predicted shape {predicted.shape}, captured {output.shape}")
    difference = np.abs(predicted.astype(np.int64) - output.astype(np.int64))
    wrong = np.argwhere(difference)
    said = replace(said, compared=predicted.size, mismatches=len(wrong), max=int(difference.max(initial=0)),
                   predicted=predicted, captured=output, x=x)
    if not len(wrong):
        return replace(said, verdict="equal")
    said = replace(said, first=tuple(int(n) for n in wrong[0]))
    zero_point = layer.output_q.zero_point
    if output.size > 1 and np.all(output == output.flat[0]) and output.flat[0] != zero_point:
        return replace(said, reason=f"every captured output is {output.flat[0]}, predicted are "
                                    f"{predicted.min()} to {predicted.max()}")
    if not np.all(output == zero_point):
        return said
    return replace(said, verdict="not executed",
                   reason=f"every output is the zero point {zero_point}, as before the job ran")


def explain(capture: Capture) -> pd.DataFrame:
    """Every run of bits of the coefficient buffer: byte, bits, kind, core, channel, plane, row, column,
    value, weights (how many the item stands for); raises ValueError where a byte cannot be explained."""
    import pandas as pd

    _refuse(capture, "explain", Capture)
    items = [(item.bit // 8, item.bits, item.kind, item.core, item.channel, item.plane, item.row, item.column,
              item.value, item.weights) for item in target(capture.target).explain(capture)]
    frame = pd.DataFrame(items, columns=["byte", "bits", "kind", "core", "channel", "plane", "row", "column",
                                         "value", "weights"])
    return frame.astype(dict.fromkeys(("core", "channel", "plane", "row", "column"), "Int64"))


def diff(a: Any, b: Any) -> pd.DataFrame:
    """Fields that differ between two captures: task, block, register, field, a, b, address.

    A field that one side does not have is None there; ``address`` says that it points into memory.
    Register writes that leave the same state in another way (a register written twice, another order)
    differ too, in the fields ``(writes)`` of a register and ``(order)`` of a block.

    Buffers are compared by ``diff_buffers``.

    For two CaptureSets the columns are task, block, register, field, differs (``always``: no value
    is common to both; ``sometimes``), constant (within a and within b, but different between them),
    a, b (the values seen, at most five) and address; fields that never differ are left out, and the
    order of register writes is not looked at.
    Raises ValueError for captures of different targets.
    """
    _refuse(a, "diff", Capture, CaptureSet)
    _refuse(b, "diff", Capture, CaptureSet)
    sets = [one if isinstance(one, CaptureSet) else CaptureSet((one,)) for one in (a, b)]
    names = {capture.target for one in sets for capture in one}
    if len(names) > 1:
        raise ValueError(f"diff: got targets {', '.join(sorted(names))}, allowed is one")
    if isinstance(a, CaptureSet) or isinstance(b, CaptureSet):
        return _diff_sets(*sets)
    return _diff_two(a, b)


def diff_buffers(a: Capture, b: Capture) -> pd.DataFrame:
    """Buffers that differ: buffer, first (byte), bytes (that differ), a, b (lengths; None where there is none).

    The command stream is left out: its register writes are fields, which ``diff`` compares.
    """
    import pandas as pd

    _refuse(a, "diff_buffers", Capture)
    _refuse(b, "diff_buffers", Capture)
    rows = []
    for name in dict.fromkeys([*a.buffers, *b.buffers]):
        if name == COMMANDS and any(job.start for job in (*a.jobs, *b.jobs)):
            continue
        one, other = (capture.buffers.get(name) for capture in (a, b))
        if one != other:
            left, right = (np.frombuffer(data or b"", np.uint8) for data in (one, other))
            both = min(len(left), len(right))
            wrong = np.flatnonzero(left[:both] != right[:both])
            rows.append((name, int(wrong[0]) if len(wrong) else both, len(wrong) + abs(len(left) - len(right)),
                         None if one is None else len(one), None if other is None else len(other)))
    return pd.DataFrame(rows, columns=["buffer", "first", "bytes", "a", "b"], dtype=object)


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


def differences(a: Capture, b: Capture) -> list[Difference]:
    """The fields that differ between two captures: the rows of ``diff``."""
    left, right = _values(a), _values(b)
    named = _named(left, right)
    rows = []
    for key in {**left, **right}:
        one, other = left.get(key, ABSENT), right.get(key, ABSENT)
        if one.raw != other.raw and not _idle(key, [one, other], named):
            rows.append(Difference(*key, one.value, other.value, one.address or other.address))
    return rows + _written_differently(a, b)


def _diff_two(a: Capture, b: Capture) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(differences(a, b), columns=list(Difference._fields), dtype=object)
    return frame.astype({"task": int, "address": bool})


def _named(*sides: Mapping[Key, Seen]) -> set[tuple[int, str, str]]:
    """(task, block, register) of every register with a field that has a name."""
    return {key[:3] for values in sides for key, found in values.items() if not found.automatic}


def _idle(key: Key, seen: Iterable[Seen], named: set[tuple[int, str, str]]) -> bool:
    """Whether a field differs only in that its register was not written: such a register is told by its
    named fields and by the bits that are set in it."""
    seen = list(seen)
    return {found.raw for found in seen} == {None, 0} and any(found.automatic for found in seen) and key[:3] in named


def _written_differently(a: Capture, b: Capture) -> list[Difference]:
    """Jobs of register writes that leave the same state in another way."""
    rows: list[Difference] = []
    for task, pair in enumerate(zip(a.jobs, b.jobs, strict=False)):
        for job, other in zip(_parts(pair[0]), _parts(pair[1]), strict=False):
            registers = a.maps[job.block]
            both = [offset for offset in dict(job.writes) if offset in dict(other.writes)]
            names = {at: registers.registers[registers.index[at]][2] if at in registers.index else f"{at:#06x}"
                     for at in both}
            for at in both:
                values = [[value for offset, value in one.writes if offset == at] for one in (job, other)]
                if values[0] != values[1] and values[0][-1] == values[1][-1]:
                    told = [" ".join(map(hex, value)) for value in values]
                    rows.append(Difference(task, job.block, names[at], WRITES, told[0], told[1]))
            orders = [[names[at] for at in dict.fromkeys(offset for offset, _ in one.writes) if at in names]
                      for one in (job, other)]
            if orders[0] != orders[1]:
                rows.append(Difference(task, job.block, "", ORDER, " ".join(orders[0]), " ".join(orders[1])))
    return rows


def _parts(job: Job) -> list[Job]:
    return [job, *(_parts(job.start) if job.start else [])]


def _diff_sets(a: CaptureSet, b: CaptureSet) -> pd.DataFrame:
    import pandas as pd

    sides = [[_values(capture) for capture in one] for one in (a, b)]
    keys = dict.fromkeys(key for side in sides for values in side for key in values)
    named = _named(*(values for side in sides for values in side))
    rows = []
    for key in keys:
        # told apart by raw, shown as meant
        left, right = ({found.raw: found for found in (values.get(key, ABSENT) for values in side)} for side in sides)
        both = [*left.values(), *right.values()]
        if (left.keys() == right.keys() and len(left) == 1) or _idle(key, both, named):
            continue
        always = not left.keys() & right.keys()
        shown = [[found.value for found in one.values()][:5] for one in (left, right)]
        address = any(found.address for found in both)
        constant = always and len(left) == len(right) == 1
        rows.append((*key, "always" if always else "sometimes", constant, *shown, address))
    return pd.DataFrame(rows, columns=["task", "block", "register", "field", "differs", "constant", "a", "b",
                                       "address"])


class Seen(NamedTuple):
    """A field in one capture."""

    value: Any
    address: bool
    raw: int | None
    automatic: bool


ABSENT = Seen(None, False, None, False)


def _values(capture: Capture) -> dict[Key, Seen]:
    return {(task, block, item.register, item.name): Seen(item.text(raw), item.address, int(raw), item.automatic)
            for task, job in enumerate(capture.jobs) for block, item, raw in job.values(capture.maps)}
