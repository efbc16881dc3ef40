"""Trials that workers run ahead: the next trial, and the trials that may follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from npulab.captures.capture import Capture
from npulab.captures.fingerprints import content_hash
from npulab.support.executors import Pool, Started, Workers

Oracle = Callable[[Capture], str]
Following = Callable[[], list[Capture]]
# Returns the outcome of a capture. Its second argument returns the captures that may be tried next.
Ask = Callable[[Capture, Following], str]


@contextmanager
def asked_ahead(oracle: Oracle, executor: Workers) -> Iterator[Ask]:
    """A context with a function that returns the oracle's outcome of a capture; the oracle runs in
    this process, or in workers if ``executor`` names them.
    """
    if executor is None:
        yield lambda capture, following: oracle(capture)
        return
    with Pool(oracle, executor, what="oracle") as pool:
        yield Ahead(pool)


class Ahead:
    """Trials that workers run, by the ``content_hash`` of their captures.

    If a trial was run ahead and is not the next one, its outcome is dropped: a search without
    workers would not have it. Each outcome comes from a run of its own, even if one set of changes
    is tried twice.
    """

    def __init__(self, pool: Pool[Capture, str]) -> None:
        self.pool = pool
        self.begun: dict[str, Started[Capture, str]] = {}

    def __call__(self, capture: Capture, following: Following) -> str:
        asked = self.begun.pop(content_hash(capture), None)
        for other in self.begun.values():
            other.cancel()
        self.begun.clear()
        if asked is None:
            asked = self.pool.start(capture)
        for ahead in following():
            name = content_hash(ahead)
            if name not in self.begun:
                self.begun[name] = self.pool.start(ahead)
        return asked.result()
