"""Simulated boards with a planted fault: they poison, hang, reboot, err and lie as real boards do.

They prove nothing about an NPU. They show what a search says of a board that is not to be trusted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import numpy as np

from npulab.captures.capture import Capture
from npulab.captures.devices import Simulated
from npulab.captures.target import Run
from npulab.support.refuse import refuse_if

FILL = "output_fill"  # the parameter that says with which byte the output is filled before a run
LIES = ("", "same", "noise")
Condition = Callable[[Capture], bool]


@dataclass(eq=False, repr=False)
class Faulty:
    """A simulated board with one memory for outputs, and with faults that are switched on.

    - ``poisons(capture)``: after such a job each job gives wrong bytes until power-up, or hangs if
      ``poison_hangs``.
    - ``reboots(capture)``: such a job makes the board begin anew; the run looks like a hang.
    - ``skips(capture)``: such a job ends at once without being executed, so that the memory holds
      what it held before.
    - ``once``: only the first job after a power-up is executed; the others end at once, and the
      memory holds what it held before.
    - ``wrong``: the share of jobs that give a wrong answer: a changed byte or, as often, what the
      memory held before.
    - ``hang_every``: if it is 3, every third job hangs, whatever the job is.
    - ``lies``: "same" gives the output of the first job for every job, "noise" random bytes.
    - ``changes_after``: after this number of jobs the board has another model file, which gives
      other bytes; ``fingerprint()`` says so.

    With ``fills``, the memory is filled before a run with the byte that the capture's parameter
    ``output_fill`` states. ``recover()`` powers the board up, ``boot()`` is a text that changes
    whenever the board begins anew. A run passes if its output is ``expected``, as for
    ``Simulated``. ``seed`` sets the random faults, so that a board can be made again.

    Raises ValueError for a share outside of 0 to 1, or an unknown lie.
    """

    expected: bytes | None = None
    _: KW_ONLY
    poisons: Condition | None = None
    poison_hangs: bool = False
    reboots: Condition | None = None
    skips: Condition | None = None
    once: bool = False
    wrong: float = 0.0
    hang_every: int = 0
    lies: str = ""
    changes_after: int = 0
    fills: bool = False
    seed: int = 0
    provenance: ClassVar[str] = "simulated"

    def __post_init__(self) -> None:
        refuse_if(not 0 <= self.wrong <= 1, "wrong", self.wrong, "is a share from 0 to 1")
        refuse_if(self.lies not in LIES, "lies", repr(self.lies), "is same or noise")
        self.device = Simulated(self.expected)
        self.jobs = self.power_ups = self._since = 0
        self._boots = 1
        self._poisoned = False
        self._memory = b""
        self._first: bytes | None = None
        self._rng = np.random.default_rng(self.seed)

    def run(self, capture: Capture) -> Run:
        """Run a capture with the faults that are switched on."""
        self.jobs += 1
        self._since += 1
        if self.fills and FILL in capture.parameters:
            self._memory = bytes([int(capture.parameters[FILL])]) * len(self._memory)
        if self.hang_every and self.jobs % self.hang_every == 0:
            return self._restart("no interrupt came")
        if self.reboots is not None and self.reboots(capture):
            return self._restart("the connection was lost")
        skipped = self.skips is not None and self.skips(capture)
        if skipped or (self.once and self._since > 1):
            return Run("done", self._memory)
        if self._poisoned and self.poison_hangs:
            return self._restart("no interrupt came", powers_up=False)
        run = self._answered(capture)
        if self.poisons is not None and self.poisons(capture):
            self._poisoned = True
        if run.output is not None:
            self._memory = run.output
        return run

    def _answered(self, capture: Capture) -> Run:
        """Run a capture on the simulated device, and put the faults that change an answer into the
        output: poison, another model file, lies and wrong answers."""
        run = self.device.run(capture)
        if run.output is None:
            return run
        if self._first is None:
            self._first = run.output
        output = run.output
        if self._poisoned or 0 < self.changes_after < self.jobs:
            output = self._other(output, 0)
        if self.lies == "same":
            output = self._first
        elif self.lies == "noise":
            output = self._rng.bytes(len(output))
        elif self.wrong and self._rng.random() < self.wrong:
            place = int(self._rng.integers(len(output)))
            output = self._other(output, place)
            if self._rng.random() < 0.5 and len(self._memory) == len(output):
                output = self._memory
        return replace(run, output=output)

    def _other(self, output: bytes, place: int) -> bytes:
        changed = bytearray(output)
        changed[place] ^= 0x55
        return bytes(changed)

    def _restart(self, reason: str, powers_up: bool = True) -> Run:
        """The run of a job that hangs; if ``powers_up``, the board begins anew."""
        if powers_up:
            self._begin()
        return Run("hang", reason=reason)

    def _begin(self) -> None:
        self._boots += 1
        self._since = 0
        self._poisoned = False

    def recover(self) -> None:
        """Power the board up."""
        self.power_ups += 1
        self._begin()

    def boot(self) -> str:
        """A text that changes when the board begins anew."""
        return f"boot {self._boots}"

    def fingerprint(self) -> str:
        """What the board is, and which model file it has."""
        model = "first"
        if 0 < self.changes_after < self.jobs:
            model = "second"
        return f"simulated board with faults\nmodel {model}"

    def judge(self, capture: Capture, run: Run) -> str:
        """ "pass" if the run wrote the expected output, "hang" if it hung, else "fail"."""
        return self.device.judge(capture, run)

    def __call__(self, capture: Capture) -> str:
        return self.judge(capture, self.run(capture))

    def __repr__(self) -> str:
        return f"Faulty({self.jobs} jobs, {self.power_ups} power-ups)"
