"""Limits of time that hold on a slow machine too: a hang is told from work, whatever the
processor.
"""

from __future__ import annotations

import time
from functools import cache

REFERENCE_SECONDS = 0.075  # what the loop below takes on a processor of 2022 at 3 GHz
LOOPS = 1_000_000


@cache
def slowness() -> float:
    """How many times longer than the reference machine this one takes, at least 1."""
    times = []
    for _ in range(3):
        start = time.process_time()
        sum(i * i for i in range(LOOPS))
        times.append(time.process_time() - start)
    return max(1.0, min(times) / REFERENCE_SECONDS)


def limit(reference: float) -> float:
    """A limit of the reference machine as one of this machine, in the same unit."""
    return reference * slowness()
