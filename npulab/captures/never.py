"""A list of captures that must not be run, by conditions on a job's fields or by hash."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from npulab.captures.capture import Capture, Job
from npulab.captures.fingerprints import content_hash
from npulab.registers.filters import Test, filter_of
from npulab.support.refuse import near, need_all

HASH = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True)
class Never:
    """A list of captures that must not be run.

    Each of ``conditions`` is a filter (``npulab.registers.filters``) over the raw values of one
    job's fields by name, or the first 8 or more hex digits of a capture's ``content_hash``.
    """

    conditions: tuple[str, ...] = ()

    @classmethod
    def of(cls, conditions: Iterable[str], known: Capture) -> Never:
        """The list of these conditions; raises ValueError for a condition that is neither a hash
        nor a filter of the fields of any job of ``known``."""
        given = tuple(need_all("never", conditions, str, "are conditions in a list"))
        for condition in given:
            if not HASH.fullmatch(condition):
                _check(condition, known)
        return cls(given)

    def why(self, capture: Capture) -> str:
        """The reason why a capture must not be run; "" if it may be.

        >>> Never().why(Capture("a", "demo", "x", ()))
        ''
        """
        if not self.conditions:
            return ""
        rows = [_row(job, capture) for job in capture.jobs]
        for condition in self.conditions:
            if HASH.fullmatch(condition):
                if content_hash(capture).startswith(condition):
                    return f"it is the capture {condition}, which must not be run"
                continue
            for task, row in enumerate(rows):
                test = _test(condition, row)
                if test is not None and test(row):
                    return f"job {task} has {condition}, which must not be run"
        return ""


def _check(condition: str, known: Capture) -> None:
    """Raise ValueError for a condition that is no filter of the fields of any job of ``known``."""
    names: dict[str, int] = {}
    for job in known.jobs:
        row = _row(job, known)
        if _test(condition, row) is not None:
            return
        names |= row
    word = condition.split()[:1] or [""]
    raise ValueError(
        f"never: got {condition!r:.80}, allowed is a condition on the fields of one job of "
        f"{known.name}, such as {next(iter(names), 'field')} == 0, or 8 or more digits of a hash"
        f"{near(word[0], names)}"
    )


def _row(job: Job, capture: Capture) -> dict[str, int]:
    """The raw values of a job's fields by name."""
    row = {}
    for _, item, raw in job.values(capture.maps):
        row[item.name] = int(raw)
    return row


def _test(condition: str, row: Mapping[str, int]) -> Test | None:
    """The test that a condition states; None if it is no filter of the fields in ``row``."""
    try:
        return filter_of(condition, row)
    except ValueError:
        return None
