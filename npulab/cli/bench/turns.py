"""Measuring: the least times of functions that are called in turn, and a process of its own for
each measurement.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from npulab.support.extras import MissingPackage, lacking_in

CALLS = 3


def least(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the least time of each function, in ms.

    The functions are called in turn, so that other work of the machine slows all of them alike.
    """
    best = dict.fromkeys(runs, float("inf"))
    for turn in range(rounds + 1):
        for name, run in runs.items():
            for _ in range(CALLS):
                start = time.perf_counter()
                run()
                if turn:  # the first turn fills caches and is not counted
                    best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best


def child(what: str, rounds: int, environment: Mapping[str, str]) -> Any:
    """Return the numbers that a benchmark measures in a new process, with the given environment
    variables.

    A new process is needed because numpy's matrix product reads its settings when it is loaded, and
    because earlier work of a process decides where its memory lies.
    """
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-m", "npulab.cli.bench", what, str(rounds)],
        capture_output=True,
        text=True,
        env={**os.environ, **threads, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        check=False,
    )
    if done.returncode:
        missing = lacking_in(done.stderr)
        if missing:
            raise MissingPackage(f"bench {what} needs {missing}")
        raise OSError(
            done.returncode,
            " ".join(done.stderr.strip().splitlines()[-1:]) or "no output",
            f"bench {what}",
        )
    return json.loads(done.stdout.splitlines()[-1])
