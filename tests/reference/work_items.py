"""Work for executors that other processes can load by name: jobs that compute, that wait, that end
their process, and a source of captures."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from npulab.captures.capture import Capture, Job
from npulab.captures.sources import Answer
from npulab.registers.map import RegisterMap

MAP = RegisterMap(
    [
        {
            "block": "B",
            "offset": 4 * n,
            "register": f"r{n}",
            "field": f"f{n}",
            "lsb": 0,
            "width": 32,
        }
        for n in range(2)
    ]
)


def busy(seconds: float) -> None:
    """Use a core for so many seconds of its time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def square(number: int) -> int:
    return number * number


def square_late(number: int) -> int:
    """The first items take the longest, so that later ones end before them."""
    time.sleep(max(0.0, 0.05 - number / 100))
    return number * number


def fails_at_three(number: int) -> int:
    if number == 3:
        raise ValueError("three: got 3, allowed is another")
    return number


@dataclass(frozen=True)
class EndsItsProcess:
    """Squares; the process of the item ``at`` is killed, once only if a ``mark`` is given."""

    at: int
    mark: Path | None = None

    def __call__(self, number: int) -> int:
        kills = number == self.at
        if self.mark is not None:
            kills = kills and not self.mark.exists()
        if kills:
            if self.mark is not None:
                self.mark.write_text("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        return number * number


@dataclass(frozen=True)
class SlowSource:
    """A source whose words follow from the layer and the seed, after some work."""

    seconds: float = 0.0
    sleeps: bool = False
    log: str = ""
    record: ClassVar[dict[str, Any]] = {"source": "slow", "version": "1"}

    def __call__(self, parameters: Mapping[str, float], seed: int = 0) -> Answer:
        if self.sleeps:
            time.sleep(self.seconds)
        else:
            busy(self.seconds)
        if self.log:
            # one short write to the end of a file is whole, also between processes
            with Path(self.log).open("a") as log:
                log.write(f"{os.getpid()}\n")
        width, height = int(parameters["input_w"]), int(parameters["input_h"])
        if width * height > 1200:
            return Answer("refused", text="too large")
        words = [width + 256 * (height - 1), 4 * int(parameters["output_c"]) + (seed % 2)]
        capture = Capture("c", "demo", "x", (Job("B", words),), maps={"B": MAP})
        return Answer("captured", capture)


def bytes_as_outputs(data: bytes, given: int) -> np.ndarray | None:
    """A device with an output for each byte; bit 7 of byte 2 hangs, byte 5 is dead."""
    values = np.frombuffer(data, np.uint8).astype(np.int64)
    if values[2] & 128:
        return None
    values[5] = 0
    return values * 3 + given


def breaks_by_two_bits(capture: Capture) -> str:
    """An oracle: bits 3 and 17 together fail."""
    word = int(capture.words[0])
    if word >> 3 & 1 and word >> 17 & 1:
        return "fail"
    return "pass"
