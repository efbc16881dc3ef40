"""The fields of a capture that a target does not read yet: they can change without an effect on
what ``lift`` returns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from npulab.captures.capture import Capture, Job
from npulab.captures.registry import target
from npulab.captures.target import Hang, Target, Unsupported
from npulab.registers.fields import Field
from npulab.registers.map import RegisterMap
from npulab.support.late import pd
from npulab.support.refuse import refuse_if, shortly

COLUMNS = (
    "task",
    "block",
    "register",
    "field",
    "raw",
    "tried",
    "unread",
    "all",
    "effect",
    "evidence",
    "address",
)
SAME, OTHER, HANG = "same output", "other output", "hang"
GUESSED_HANG = "hang (a guess)"


def ignored_fields(
    capture: Capture, progress: Callable[[Any], Iterable[Any]] = iter
) -> pd.DataFrame:
    """Return the fields of a capture that can change without ``lift``, or ``replay``, noticing.

    Each field in turn gets other values: its lowest bit inverted, its highest bit inverted, all
    bits inverted, 0, and the codes of its enum. A change is noticed if the target refuses the
    capture, or returns another layer, input, output or rounding rule. If the target cannot lift
    the capture, but replays it, a change is noticed if other bytes are predicted.

    There is a row for each field with a change that was not noticed: task, block, register, field,
    raw, ``tried`` (the number of values), ``unread`` (the values that were not noticed), ``all``
    (True if no value was noticed), ``effect``, evidence, and ``address`` (True if the field points
    into memory). The effect is what ``simulate`` returns for the unread values: "other output" or
    "hang" ("hang (a guess)" if no board or RTL confirmed it) if any of them causes it, else "same
    output", or blank if the target does not simulate the capture. ``progress`` is called with the
    list of fields and yields them one by one.

    If an ignored field has an effect, ``lift`` has a mistake that no capture shows yet; a field
    without an effect in the simulation may have one in the hardware. Raises ValueError for a
    capture that cannot be lifted as it is.
    """
    if not isinstance(capture, Capture):
        raise TypeError(
            f"ignored_fields: got {type(capture).__name__}, allowed is Capture, as npulab.load "
            "gives"
        )
    refuse_if(
        not callable(progress),
        "ignored_fields: progress",
        shortly(progress),
        "is a function that is given the fields and yields them one by one",
        TypeError,
    )
    of = target(capture.target)
    meaning, usual = _meaning(of, capture)
    simulated = _simulated(of, capture)
    rows = []
    for task, block, item, raw, changed in progress(list(changeable(capture))):
        values = _other_values(item, raw)
        same = [value for value in values if _read_as(meaning, changed, value) == usual]
        if same:
            rows.append(
                (
                    task,
                    block,
                    item.register,
                    item.name,
                    raw,
                    len(values),
                    tuple(same),
                    len(same) == len(values),
                    _effect(of, simulated, map(changed, same)),
                    item.evidence,
                    item.address,
                )
            )
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype({"raw": object, "all": bool, "address": bool})


def _meaning(of: Target, capture: Capture) -> tuple[Callable[[Capture], bytes], bytes]:
    """Return a function that gives a digest of everything that the target reads from a capture; and
    the digest of this capture.
    """

    def lifted(changed: Capture) -> bytes:
        rule: Any = of.rule
        if of.rule_of:
            rule = of.rule_of(changed)
        return _digest((of.lift(changed), rule))

    def replayed(changed: Capture) -> bytes:
        return _digest([(memory.name, memory.predicted) for memory in of.replay(changed)])

    try:
        return lifted, lifted(capture)
    except (ValueError, LookupError) as error:
        if not (isinstance(error, Unsupported) and of.replay(capture)):
            raise ValueError(
                f"ignored_fields: capture {capture.name} cannot be lifted: {error}"
            ) from error
        return replayed, replayed(capture)


def _read_as(
    meaning: Callable[[Capture], bytes], changed: Callable[[int], Capture], value: int
) -> bytes | None:
    """Return the digest of what the target reads from the capture with another value; None if the
    target refuses this capture, for example because the opcode then names another block.
    """
    try:
        return meaning(changed(value))
    except (ValueError, LookupError, Hang):
        return None


def _simulated(of: Target, capture: Capture) -> bytes | str | None:
    """Return the output bytes of the simulated device, "hang" or "hang (a guess)", or None if it
    cannot run the capture."""
    try:
        return of.simulate(capture)
    except Hang as hang:
        if hang.guessed:
            return GUESSED_HANG
        return HANG
    except (ValueError, LookupError):
        return None


def _effect(of: Target, usual: bytes | str | None, captures: Iterable[Capture]) -> str:
    if usual is None:
        return ""
    effect = SAME
    for capture in captures:
        got = _simulated(of, capture)
        if isinstance(got, bytes) and got != usual:
            return OTHER
        if isinstance(got, str) and isinstance(usual, bytes):
            effect = got
    return effect


class _FieldOfJob(NamedTuple):
    """A field of a job, its raw value, and a function that returns the job with another raw
    value."""

    block: str
    item: Field
    raw: int
    changed: Callable[[int], Job]


def changeable(
    capture: Capture,
) -> Iterator[tuple[int, str, Field, int, Callable[[int], Capture]]]:
    """Yield (task, block, field, raw, function) for every field; the function takes another raw
    value and returns the changed capture.
    """
    for task, job in enumerate(capture.jobs):
        for block, item, raw, changed in _of_job(job, capture.maps):
            yield task, block, item, raw, partial(_with_job, capture, task, changed)


def _of_job(job: Job, maps: Mapping[str, RegisterMap]) -> Iterator[_FieldOfJob]:
    registers = maps[job.block]
    of_map = set(registers)
    for block, item, raw in replace(job, start=None).values(maps):
        change = _with_write
        if item in of_map:
            change = _with_field
        yield _FieldOfJob(block, item, int(raw), partial(change, job, item, registers))
    if job.start:
        for found in _of_job(job.start, maps):
            yield found._replace(changed=partial(_with_start, job, found.changed))


def _with_job(capture: Capture, task: int, changed: Callable[[int], Job], raw: int) -> Capture:
    return capture.with_job(changed(raw), task)


def _with_start(job: Job, changed: Callable[[int], Job], raw: int) -> Job:
    return replace(job, start=changed(raw))


def _with_field(job: Job, item: Field, registers: RegisterMap, raw: int) -> Job:
    words = job.words.copy()
    item.insert(words, np.array(raw, item.stored_type))
    return job.with_words(words, registers)


def _with_write(job: Job, item: Field, registers: RegisterMap, raw: int) -> Job:
    """Return the job with another value written to a register that its map does not have."""
    names = {registers.unmapped(job.block, offset).register: offset for offset in job.state}
    return job.with_writes({names[item.register]: raw}, registers)


def _other_values(item: Field, raw: int) -> list[int]:
    """Return the raw values that are tried in place of ``raw``."""
    held = sum((2**piece.width - 1) * 2**piece.at for piece in item.pieces)
    lowest, highest = held & -held, 2 ** (held.bit_length() - 1)
    codes = [code for code, _ in item.names if not code & ~held]
    values = dict.fromkeys([raw ^ lowest, raw ^ highest, raw ^ held, 0, *codes])
    values.pop(raw, None)
    return list(values)


def _digest(value: Any) -> bytes:
    """Return a hash of nested values; equal values have equal hashes."""
    sums = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, np.ndarray):
            sums.update(f"{part.dtype}{part.shape}".encode())
            sums.update(np.ascontiguousarray(part).tobytes())
        elif isinstance(part, bytes):
            sums.update(b"%d:" % len(part) + part)
        elif is_dataclass(part):
            sums.update(type(part).__name__.encode())
            add([getattr(part, each.name) for each in fields(part)])
        elif isinstance(part, Mapping):
            add(sorted(part.items(), key=repr))
        elif isinstance(part, list | tuple):
            sums.update(b"(%d" % len(part))
            for each in part:
                add(each)
        else:
            if isinstance(part, frozenset | set):
                part = sorted(part)
            sums.update(repr(part).encode())

    add(value)
    return sums.digest()
