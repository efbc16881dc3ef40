"""What runs a capture."""

from __future__ import annotations

from dataclasses import dataclass, replace

from npulab.capture import Capture
from npulab.target import Hang
from npulab.targets import target


@dataclass(frozen=True)
class Run:
    """One run: ``outcome`` is "done" or "hang", ``output`` the bytes written, ``reason`` why it hung."""

    outcome: str
    output: bytes | None = None
    reason: str = ""


@dataclass(frozen=True)
class Simulated:
    """The target's simulated device; ``expected`` are the output bytes that make a run pass.

    Called with a capture it is an oracle: "pass", "fail" or "hang".
    """

    expected: bytes | None = None

    def run(self, capture: Capture) -> Run:
        """Run a capture's words and bytes; a hang is an outcome, never an exception."""
        try:
            return Run("done", target(capture.target).simulate(capture))
        except Hang as hang:
            return Run("hang", reason=str(hang))

    def record(self, capture: Capture) -> Capture:
        """The capture as a simulated one, with the output that the device gives.

        Raises ValueError where the device hangs.
        """
        run = self.run(capture)
        if run.output is None:
            raise ValueError(f"capture {capture.name}: the simulated device hangs: {run.reason}")
        return replace(capture, buffers={**capture.buffers, "output": run.output}, provenance="simulated",
                       tool="npulab simulated device", date="")

    def __call__(self, capture: Capture) -> str:
        run = self.run(capture)
        expected = capture.buffers.get("output") if self.expected is None else self.expected
        if run.outcome == "hang":
            return "hang"
        return "pass" if run.output == expected else "fail"
