"""Sentences about jobs that only one of two streams has, or that stand elsewhere in the other
stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from npulab.analysis.check import JOB, Difference
from npulab.captures.aligned import INSERTED, LEFT_OUT, MOVED
from npulab.support.text import plural


def is_job(part: Difference) -> bool:
    """True if a row of a diff stands for a whole job.

    >>> is_job(Difference(3, "LOAD", JOB, "inserted job 14", None, "job 14"))
    True
    """
    return part.register == JOB


def is_inserted(part: Difference) -> bool:
    """True if a row of a diff stands for a job that only the second stream has."""
    return is_job(part) and part.a is None


def number_of(job: str) -> int:
    """Return the number 14 from the name ``job 14`` of a job in a row of a diff."""
    return int(_number(job))


def edited_job(part: Difference, jobs: int, other: str, kind: str = "") -> str:
    """Return a row of a diff that stands for a whole job as text. ``jobs`` is the number of jobs of
    the first stream, ``other`` the name of the second one. ``kind`` is the kind of the job, by
    default its block.

    >>> edited_job(Difference(3, "LOAD", JOB, "inserted job 14", None, "job 14"), 21, "BAD")
    'job 14 of BAD (LOAD) inserted before job 3'
    >>> edited_job(Difference(9, "GEMM", JOB, "left out job 9", "job 9", None), 21, "BAD")
    'job 9 (GEMM) left out'
    >>> edited_job(Difference(3, "ALU", JOB, "moved job 17", "job 3", "job 17"), 21, "BAD")
    'job 3 (ALU) moved to 17'
    """
    kind = kind or part.block
    edit = _kind(part)
    if edit == INSERTED:
        return f"{part.b} of {other} ({kind}) inserted {_place(part, jobs)}"
    text = f"{part.a} ({kind}) {edit}"
    if edit == MOVED:
        text += f" to {_number(part.b)}"
    return text


def streams_differ(parts: Sequence[Difference], jobs: int) -> str:
    """Return one sentence that names the jobs that only one of two streams has, or that stand
    elsewhere; "" if no row stands for a whole job. ``jobs`` is the number of jobs of the first
    stream.

    >>> rows = [Difference(3, "LOAD", JOB, "inserted job 3", None, "job 3"),
    ...         Difference(9, "GEMM", "W0", "uop_bgn", 0, 4)]
    >>> streams_differ(rows, 21)
    '1 job LOAD inserted before job 3; 1 field of 1 job differs'
    """
    texts = []
    for kind in (INSERTED, LEFT_OUT, MOVED):
        edited = [part for part in parts if is_job(part) and _kind(part) == kind]
        if len(edited) == 1:
            texts.append(_one(edited[0], kind, jobs))
        elif edited:
            texts.append(_several(edited, kind, jobs))
    if not texts:
        return ""
    return f"{', '.join(texts)}; {_fields(parts)}"


def _one(part: Difference, kind: str, jobs: int) -> str:
    text = f"1 job {part.block} {kind}"
    if kind == INSERTED:
        return f"{text} {_place(part, jobs)}"
    if kind == LEFT_OUT:
        return f"{text} ({part.a})"
    return f"{text} ({_number(part.a)} to {_number(part.b)})"


def _several(parts: Sequence[Difference], kind: str, jobs: int) -> str:
    """Return edits of one kind (inserted, left out or moved jobs) as text: ``3 jobs inserted before
    job 3 (2 LOAD, 1 GEMM)``.
    """
    text = f"{len(parts)} jobs {kind}"
    places = {_place(part, jobs) for part in parts}
    if kind == INSERTED and len(places) == 1:
        text += f" {min(places)}"
    blocks = Counter(part.block for part in parts)
    return f"{text} ({', '.join(f'{count} {block}' for block, count in blocks.items())})"


def _fields(parts: Sequence[Difference]) -> str:
    fields = [part for part in parts if not (is_job(part) or part.address)]
    addresses = sum(part.address for part in parts)
    if not fields:
        text = "no field of the other jobs differs"
    else:
        verb = "differ"
        if len(fields) == 1:
            verb = "differs"
        within = len({part.task for part in fields})
        text = f"{plural(len(fields), 'field')} of {plural(within, 'job')} {verb}"
    if addresses == 1:
        text += ", 1 address"
    elif addresses:
        text += f", {addresses} addresses"
    return text


def _kind(part: Difference) -> str:
    if part.a is None:
        return INSERTED
    if part.b is None:
        return LEFT_OUT
    return MOVED


def _place(part: Difference, jobs: int) -> str:
    if part.task >= jobs:
        return "at the end"
    return f"before job {part.task}"


def _number(job: str) -> str:
    return job.removeprefix("job ")
