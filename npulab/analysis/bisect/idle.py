"""Whether an inserted or left out job breaks the capture by what it does, or by its tokens: in a
further trial a no-operation that passes the same tokens stands in the job's place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from npulab.analysis.bisect.kinds import Groups
from npulab.analysis.bisect.parts import name_of
from npulab.analysis.check import Difference, Key
from npulab.analysis.edited import is_inserted, is_job, number_of
from npulab.captures.capture import Capture, Job
from npulab.captures.journal import Trial
from npulab.captures.registry import stated_target
from npulab.captures.target import Target, Unsupported
from npulab.captures.tokens import passed_by
from npulab.support.refuse import need, refuse_if

# If a no-operation stands in place of a job, the job's name in a journal ends with this.
AS_IDLE = " as a no-operation"
# At most this many jobs are tried as no-operations, since each costs a run.
MOST_IDLE = 4
# What of an inserted or left out job breaks the capture.
EFFECT, TOKENS, BOTH, OPEN = "what it does", "its tokens", "both", "open"


@dataclass(frozen=True)
class Idle:
    """A trial in which ``job``, a no-operation, stands in place of the job of the part ``item``;
    the other parts of the ``group`` are changed. ``fields`` are the fields in which the
    no-operation differs from that job.
    """

    group: tuple[int, ...]
    item: int
    job: Job
    fields: str


class Idled(NamedTuple):
    """What trials with a no-operation in place of a job showed. ``matters`` is "what it does", "its
    tokens" (or only that a job is there), "both", or "open" if the trials do not tell.
    """

    job: Key
    outcomes: tuple[str, ...]
    matters: str


def names_of(parts: Iterable[Difference], idle: Key | None = None) -> tuple[str, ...]:
    """Return the names of changed parts as a journal writes them. If ``idle`` is the key of a part,
    its name says that a no-operation stands in place of the job.
    """
    names = []
    for part in parts:
        name = name_of(part.key)
        if part.key == idle:
            name += AS_IDLE
        names.append(name)
    return tuple(names)


def is_idle(trial: Trial) -> bool:
    """True if a no-operation stood for a job in this trial: the names of its parts then do not say
    what ran.
    """
    return any(name.endswith(AS_IDLE) for name in trial.subset)


def idles_of(
    good: Capture, bad: Capture, parts: Sequence[Difference], groups: Groups
) -> list[Idle]:
    """Return a trial for each inserted or left out job of the groups that has a no-operation."""
    found: dict[int, Idle] = {}
    for group in groups:
        for item in group:
            part = parts[item]
            if item in found or not is_job(part):
                continue
            if is_inserted(part):
                capture, number = bad, number_of(part.b)
            elif part.b is None:
                capture, number = good, part.task
            else:
                continue  # a moved job is in the good and in the bad stream
            job = idle_form(capture, number)
            if job is not None:
                fields = _fields(job, capture.jobs[number], capture)
                found[item] = Idle(group, item, job, fields)
    return list(found.values())


def idle_form(capture: Capture, number: int) -> Job | None:
    """Return the no-operation of the capture's target with the tokens of a job; None if the target
    has none.

    Raises TypeError if the target returns something else than a job, ValueError if its job passes
    other tokens.
    """
    of = _target_of(capture)
    if of is None or of.idle is None:
        return None
    try:
        job = of.idle(capture, number)
    except Unsupported:
        return None
    if job is None:
        return None
    what = f"target {of.name}: idle of job {number} of {capture.name}"
    need(what, job, Job, "is a Job or None")
    blocks = ", ".join(capture.maps)
    refuse_if(job.block not in capture.maps, what, f"block {job.block}", f"is one of {blocks}")
    if of.tokens is not None:
        wanted = passed_by(capture.jobs[number], capture, of.tokens)
        given = passed_by(job, capture, of.tokens)
        refuse_if(given != wanted, what, str(given), f"is {wanted}")
    return job


def _target_of(capture: Capture) -> Target | None:
    try:
        return stated_target(capture.target)
    except (LookupError, ValueError, ImportError):
        return None  # the capture names no target, or one whose code is not trusted


def _fields(job: Job, was: Job, capture: Capture) -> str:
    """Return the fields, with their values, in which the job ``job`` differs from ``was``."""
    before = {}
    for block, item, raw in was.values(capture.maps):
        before[block, item.register, item.name] = raw
    texts = []
    for block, item, raw in job.values(capture.maps):
        if before.get((block, item.register, item.name)) != raw:
            texts.append(f"{block} {item.register}.{item.name} = {item.text(raw)}")
    return ", ".join(texts)


def matters(part: Difference, outcomes: Iterable[str], symptom: str) -> str:
    """Return what matters of an inserted or left out job, from the outcomes with a no-operation in
    its place; ``symptom`` is the outcome with the part changed.

    >>> left_out = Difference(9, "GEMM", "(job)", "left out job 9", "job 9", None)
    >>> matters(left_out, ["pass"], "hang"), matters(left_out, ["fail"], "hang")
    ('its tokens', 'both')
    """
    seen = set(outcomes)
    if len(seen) != 1:
        return OPEN
    (outcome,) = seen
    inserted = is_inserted(part)
    if outcome == "pass" and inserted:
        return EFFECT
    if outcome == "pass":
        return TOKENS
    if outcome == symptom and inserted:
        return TOKENS
    if outcome == symptom:
        return EFFECT
    if outcome == "hang":
        # perhaps the no-operation itself hangs
        return OPEN
    # the outcome is neither that with the job nor that without it
    return BOTH
