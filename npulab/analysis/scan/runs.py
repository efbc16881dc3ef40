"""Runs of the device: a buffer with bits flipped goes in, an output or a hang comes out, and a
journal keeps it."""

from __future__ import annotations

import base64
import hashlib
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from npulab.analysis.scan.records import Probe
from npulab.captures.journal import Journal, Trial

Runner = Callable[[bytes, Any], "np.ndarray | None"]


class Runs:
    """Runs of a device, counted; with a journal, runs that it has are not made again."""

    def __init__(self, data: bytes, run: Runner, probes: Sequence[Probe], votes: int, journal: Journal | None) -> None:
        self.bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        self.name = hashlib.sha256(data).hexdigest()[:16]
        self.run, self.probes, self.votes, self.journal = run, probes, votes, journal
        self.count = self.hangs = 0
        self._first: dict[int, np.ndarray] = {}  # output with each input

    def ask(self, flips: np.ndarray, index: int, reason: str) -> np.ndarray | None:
        """The output with bits flipped and an input, by most votes and in the middle of what they
        gave."""
        outputs = [self._one(flips, index, reason) for _ in range(self.votes)]
        done = [one for one in outputs if one is not None]
        if 2 * len(done) <= len(outputs):
            return None
        shapes = [one.shape for one in done]
        usual = max(shapes, key=shapes.count)
        same = [one for one in done if one.shape == usual]
        return same[0] if len(same) == 1 else np.sort(same, axis=0)[(len(same) - 1) // 2]

    def _one(self, flips: np.ndarray, index: int, reason: str) -> np.ndarray | None:
        names = tuple(_ranges(flips))
        if self.journal is not None and self.count < len(self.journal):
            trial = self.journal[self.count]
            if (trial.subset, trial.more.get("input"), trial.more.get("data")) != (names, index, self.name):
                raise ValueError(f"journal: got {trial!r} with input {trial.more.get('input')} of data "
                                 f"{trial.more.get('data')} as run {self.count}, allowed is what this scan asks, "
                                 f"{', '.join(names[:3]) or 'nothing changed'} with input {index} of data {self.name}")
            output = _unpacked(trial)
        else:
            start = time.perf_counter()
            output = self._made(flips, index)
            seconds = time.perf_counter() - start
            if self.journal is not None:
                same = output is not None and np.array_equal(output, self._first.get(index, output))
                self.journal.add(Trial(names, reason, "hang" if output is None else "pass" if same else "fail",
                                       seconds, more={"input": index, "data": self.name, **_packed(output)}))
        if output is not None:
            self._first.setdefault(index, output)
        self.count += 1
        self.hangs += output is None
        return output

    def _made(self, flips: np.ndarray, index: int) -> np.ndarray | None:
        changed = self.bits.copy()
        changed[flips] ^= 1
        given = self.run(np.packbits(changed, bitorder="little").tobytes(), self.probes[index].given)
        output = None if given is None else np.array(given)
        if output is not None and (output.dtype.kind not in "biuf" or not output.size):
            raise ValueError(f"run: got an output of {output.dtype} and shape {output.shape}, allowed are numbers, "
                             "one or more")
        return output


def _ranges(bits: np.ndarray) -> Iterator[str]:
    """Sorted bits as names of runs of them.

    >>> list(_ranges(np.array([3, 4, 5, 9])))
    ['3..5', '9']
    """
    if len(bits):
        for run in np.split(bits, np.flatnonzero(np.diff(bits) > 1) + 1):
            yield f"{run[0]}..{run[-1]}" if len(run) > 1 else f"{run[0]}"


def _packed(output: np.ndarray | None) -> dict[str, Any]:
    """An output as JSON has it."""
    if output is None:
        return {}
    packed = base64.b64encode(zlib.compress(np.ascontiguousarray(output).tobytes())).decode()
    return {"dtype": output.dtype.str, "shape": list(output.shape), "output": packed}


def _unpacked(trial: Trial) -> np.ndarray | None:
    """The output that a trial keeps; raises ValueError where it does not."""
    if trial.outcome == "hang":
        return None
    try:
        raw = zlib.decompress(base64.b64decode(trial.more["output"], validate=True))
        return np.frombuffer(raw, trial.more["dtype"]).reshape(trial.more["shape"])
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"journal: got a run without its output ({error}), allowed is a journal of a scan") from None
