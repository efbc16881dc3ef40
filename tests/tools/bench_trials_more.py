"""Scans and explorations with a planted fault, with controls and without (see bench_trials.py).

python tests/tools/bench_trials_more.py scan|explore [--seeds N] [--odd]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from bench_trials import Ask, Ended, bits_of, options_of, table

import npulab
from npulab import Capture, explore, scan_capture
from npulab.analysis.explore.space import Possible
from npulab.captures.controlled import Controlled, Unusable
from npulab.captures.controlled_sources import ControlledSource
from npulab.captures.faulty import Faulty
from npulab.captures.layers import complete_ranges
from npulab.captures.sources import Answer, Lowered
from npulab.captures.target import Run

# ------------------------------------------------------------------------------------- scans

SCANNED = {
    "onert scales": {"buffer": "weight_scales"},
    "onert biases": {"buffer": "biases"},
    "onert": {"buffer": None},
}
SCAN_FAULTS: dict[str, Callable[[Callable[[Capture], bool]], dict[str, Any]]] = {
    "none": lambda has: {},
    "poisons": lambda has: {"poisons": has},
    "once a power-up": lambda has: {"once": True},
    "2 % wrong": lambda has: {"wrong": 0.02},
    "hang every 50th": lambda has: {"hang_every": 50},
    "reboots on one shape": lambda has: {"reboots": has},
    "lies": lambda has: {"lies": "same"},
    "another model": lambda has: {"changes_after": 60},
}


@dataclass(frozen=True)
class Asked:
    """A capture to scan, what is scanned, and a known-bad capture."""

    good: Capture
    bad: Capture
    options: dict[str, Any]

    def has(self, seed: int) -> Callable[[Capture], bool]:
        """A condition: one bit, which moves nothing, is not as the good capture has it."""
        buffer = self.options["buffer"]
        quiet = np.flatnonzero(_true_kinds(self.good.target, buffer) == "dead")
        bit = int(quiet[np.random.default_rng(seed).integers(len(quiet))])

        def condition(capture: Capture) -> bool:
            return _bit(capture, buffer, bit) != _bit(self.good, buffer, bit)

        return condition


def _bit(capture: Capture, buffer: str | None, bit: int) -> int:
    data = capture.jobs[0].words.tobytes()
    if buffer is not None:
        data = capture.buffers[buffer]
    return data[bit // 8] >> bit % 8 & 1


@cache
def _true_kinds(target: str, buffer: str | None) -> np.ndarray:
    good, _, _ = bits_of(target)
    return scan_capture(good, npulab.Simulated(), buffer, inputs=[good]).kinds


@dataclass(frozen=True)
class Hanging:
    """The simulated device, on which some jobs hang."""

    hangs: Callable[[Capture], bool]

    def run(self, capture: Capture) -> Run:
        if self.hangs(capture):
            return Run("hang")
        return npulab.Simulated().run(capture)


def asked_of(name: str) -> Asked:
    good, breakers, _ = bits_of(name.split()[0])
    task, word, bit = breakers[0]
    words = good.jobs[task].words.copy()
    words[word] ^= np.uint32(1 << bit)
    return Asked(good, good.with_words(words, task), SCANNED[name])


def scanned(name: str, fault: str, seed: int, controls: bool) -> Ended:
    of = asked_of(name)
    has = of.has(seed)
    board = Faulty(of.good.buffers["output"], seed=seed, **SCAN_FAULTS[fault](has))
    device: Any = board
    if controls:
        device = Controlled(board, of.good, of.bad)
    try:
        found = scan_capture(of.good, device, inputs=[of.good], **of.options)
    except (Unusable, ValueError) as error:
        return Ended("says", board.jobs, str(error))
    expected = _true_kinds(of.good.target, of.options["buffer"])
    if fault in ("poisons", "reboots on one shape"):
        # such a bit does not move nothing: it counts as one that hangs
        expected = scan_capture(of.good, Hanging(has), inputs=[of.good], **of.options).kinds
    differ = np.flatnonzero(found.kinds != expected)
    how = "right"
    if len(differ):
        how = "wrong"
    return Ended(how, board.jobs, f"{len(differ)} of {len(expected)} kinds differ; {found!r}")


# ------------------------------------------------------------------------------------- explorations

RANGES = {
    "op": [0],
    "input_h": (4, 12),
    "input_w": (4, 12),
    "input_c": (2, 8),
    "output_c": (2, 8),
    "kernel": [1, 3],
    "stride": [1],
    "same": [1],
    "depthwise": [0],
    "relu": [0],
}
SOURCES = {"vivante": ("vipnano-si-imx8mp", "uint8")}
EXPLORE_FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "poisons": {"poisons": True},
    "once a power-up": {"once": True},
    "2 % wrong": {"wrong": 0.02},
    "hang every 50th": {"hang_every": 50},
    "lies": {"lies": True},
    "another model": {"changes_after": 20},
}


@dataclass
class FaultySource:
    """A source with a fault: what ``Faulty`` does as a board."""

    source: Any
    seed: int
    poisons: bool = False
    once: bool = False
    wrong: float = 0.0
    hang_every: int = 0
    lies: bool = False
    changes_after: int = 0
    asked: int = 0
    since: int = 0
    poisoned: bool = False
    first: Answer | None = None
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    @property
    def record(self) -> dict[str, Any]:
        return {"source": "faulty"}

    def recover(self) -> None:
        self.poisoned, self.since = False, 0

    def fingerprint(self) -> str:
        return f"compiler {1 + (0 < self.changes_after < self.asked)}"

    def __call__(self, parameters: Mapping[str, float], seed: int = 0) -> Answer:
        self.asked += 1
        self.since += 1
        if self.hang_every and self.asked % self.hang_every == 0:
            return Answer("hang", text="no end")
        if self.once and self.since > 1 and self.first is not None:
            return self.first
        answer = self.source(parameters, seed)
        if self.first is None or self.once:
            self.first = answer
        if self.lies:
            return self.first
        spoiled = self.poisoned or 0 < self.changes_after < self.asked
        if self.poisons and parameters["input_h"] == 8:
            self.poisoned = True
        if answer.capture is not None and (spoiled or self.rng.random() < self.wrong):
            words = answer.capture.words.copy()
            words[int(self.rng.integers(len(words)))] ^= np.uint32(0x11)
            if spoiled:
                words = answer.capture.words ^ np.uint32(3)
            return replace(answer, capture=answer.capture.with_words(words))
        return answer


@cache
def known_layers() -> list[dict[str, float]]:
    """Two layers: one that is known to be good, and one that has other words."""
    drawn = Possible(complete_ranges(RANGES), (), None).draw(2, 5)
    return [drawn.iloc[place].to_dict() for place in range(2)]


@cache
def unseen(target: str) -> Any:
    """Layers that no exploration saw, with their words as a source without a fault gives them."""
    found = explore(_lowered(target), RANGES, budget=30, seed=977)
    return found.sweep


def _lowered(target: str) -> Lowered:
    chip, dtype = SOURCES[target]
    return Lowered(target, chip, dtype)


def explored(target: str, fault: str, seed: int, controls: bool, budget: int = 40) -> Ended:
    faulty = FaultySource(_lowered(target), seed, **EXPLORE_FAULTS[fault])
    source: Any = faulty
    if controls:
        good, bad = known_layers()
        source = ControlledSource(
            faulty, good, bad, fingerprint=faulty.fingerprint, recover=faulty.recover
        )
    try:
        found = explore(source, RANGES, budget=budget, seed=seed)
    except Unusable as error:
        return Ended("says", faulty.asked, str(error))
    if found.laws is None:
        return Ended("says", faulty.asked, repr(found))
    held = unseen(target)
    score = found.laws.score(held.words, held.parameters)
    bits = np.unpackbits(held.words.view(np.uint8), axis=1)
    varying = len(bits) * int(np.count_nonzero(bits.min(axis=0) != bits.max(axis=0)))
    how = "wrong"
    if score.wrong <= 0.002 * varying and score.claimed >= 0.95 * varying:
        how = "right"
    return Ended(how, faulty.asked, f"{score}; {varying} cells vary in layers not seen")


QUESTIONS: dict[str, tuple[Ask, Iterable[str], Iterable[str]]] = {
    "scan": (scanned, SCAN_FAULTS, SCANNED),
    "explore": (explored, EXPLORE_FAULTS, SOURCES),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", choices=QUESTIONS)
    options = options_of(parser, 2, "--case")
    table(options, *QUESTIONS[options.question])


if __name__ == "__main__":
    main()
