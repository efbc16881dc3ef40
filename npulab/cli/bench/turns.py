"""Least times, taken in turn, in a process of their own."""

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
    """Least ms of each, taken in turn so that whatever else the machine does meets all of them."""
    best = dict.fromkeys(runs, float("inf"))
    for turn in range(rounds + 1):
        for name, run in runs.items():
            for _ in range(CALLS):
                start = time.perf_counter()
                run()
                if turn:  # the first turn warms up
                    best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best


def child(what: str, rounds: int, environment: Mapping[str, str]) -> Any:
    """What one setting gives; numpy's matrix product reads its settings when it is loaded, and what
    a process did before decides where its memory lies."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-m", "npulab.cli.bench", what, str(rounds)],
        capture_output=True,
        text=True,
        env={**os.environ, **threads, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        check=False,
    )
    missing = ""
    if done.returncode:
        missing = lacking_in(done.stderr)
    if missing:
        raise MissingPackage(f"bench {what} needs {missing}")
    if done.returncode:
        raise OSError(
            done.returncode,
            " ".join(done.stderr.strip().splitlines()[-1:]) or "no output",
            f"bench {what}",
        )
    return json.loads(done.stdout.splitlines()[-1])
