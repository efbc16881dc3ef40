"""Searches on simulated boards with a planted fault, with controls and without: how many end right,
how many say what prevents an answer, and how many are wrong.

    python tests/tools/bench_trials.py [--seeds N] [--odd] [--fault NAME] [--target NAME]

Even seeds are those on which the controls were decided, odd ones judge. A pair is a capture of the
simulated device's own and the same with 6 to 12 fields changed, of which one or two break it.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import npulab
from npulab import Capture, bisect_fields
from npulab.analysis.bisect import Bisected
from npulab.captures.controlled import Controlled, Unusable
from npulab.captures.faulty import Faulty

CAPTURES = Path(__file__).resolve().parents[2] / "captures"
CASES = {
    "vivante": "sim-1x1",
    "nvdla": "sim-1x1-relu",
    "ane": "sim-1x1-relu",
    "onert": "sim-uint8",
}
Bit = tuple[int, int, int]  # job, word, bit
NEEDED = 14  # harmless fields that are looked for
BREAKERS = 4


@dataclass(frozen=True)
class Pair:
    """A good and a bad capture, the bits that break it, and one bit that breaks nothing."""

    good: Capture
    bad: Capture
    harmless: Bit

    def has(self, capture: Capture) -> bool:
        """Whether a capture has the harmless bit as the bad one has it."""
        task, word, bit = self.harmless
        if task >= len(capture.jobs):
            return False
        mine = int(capture.jobs[task].words[word]) >> bit & 1
        return mine == int(self.bad.jobs[task].words[word]) >> bit & 1


def flipped(capture: Capture, bits: list[Bit]) -> Capture:
    for task, word, bit in bits:
        words = capture.jobs[task].words.copy()
        words[word] ^= np.uint32(1 << bit)
        capture = capture.with_words(words, task)
    return capture


def ends(capture: Capture, expected: bytes) -> str | None:
    try:
        return str(npulab.Simulated(expected)(capture))
    except (ValueError, LookupError):
        return None


@cache
def bits_of(target: str) -> tuple[Capture, tuple[Bit, ...], tuple[Bit, ...]]:
    """A capture, bits of different fields that break it, and bits that do not."""
    good = npulab.Simulated().record(npulab.load(CAPTURES / target / CASES[target]))
    expected = good.buffers["output"]
    rng = np.random.default_rng(7)
    places = []
    for task, job in enumerate(good.jobs):
        for _, item, _ in job.values(good.maps):
            piece = item.pieces[0]
            if not item.address and piece.word < len(job.words):
                places.append((task, piece.word, piece.lsb))
    breakers, harmless = [], []
    for number in rng.permutation(len(places)):
        if len(breakers) >= BREAKERS and len(harmless) >= NEEDED:
            break
        outcome = ends(flipped(good, [places[number]]), expected)
        if outcome == "fail" and len(breakers) < BREAKERS:
            breakers.append(places[number])
        if outcome == "pass" and len(harmless) < NEEDED:
            harmless.append(places[number])
    return good, tuple(breakers), tuple(harmless)


def pair(target: str, seed: int) -> Pair:
    good, breakers, harmless = bits_of(target)
    rng = np.random.default_rng([seed, 11])
    while True:
        most = min(len(breakers), 2)
        guilty = rng.permutation(len(breakers))[: rng.integers(1, most + 1)]
        innocent = rng.permutation(len(harmless))[: rng.integers(5, 11)]
        bits = [breakers[one] for one in guilty] + [harmless[one] for one in innocent]
        bad = flipped(good, bits)
        if ends(bad, good.buffers["output"]) == "fail":
            return Pair(good, bad, harmless[innocent[0]])


FAULTS: dict[str, Callable[[Pair], dict[str, object]]] = {
    "none": lambda of: {},
    "poisons": lambda of: {"poisons": of.has},
    "poisons, hangs": lambda of: {"poisons": of.has, "poison_hangs": True},
    "once a power-up": lambda of: {"once": True},
    "once, fills": lambda of: {"once": True, "fills": True},
    "2 % wrong": lambda of: {"wrong": 0.02},
    "hang every 50th": lambda of: {"hang_every": 50},
    "hang every 7th": lambda of: {"hang_every": 7},
    "reboots on one shape": lambda of: {"reboots": of.has},
    "lies": lambda of: {"lies": "same"},
    "noise": lambda of: {"lies": "noise"},
    "not executed": lambda of: {"skips": of.has},
    "not executed, fills": lambda of: {"skips": of.has, "fills": True},
    "another model": lambda of: {"changes_after": 4},
}
MAY_STOP = ("lies", "noise", "another model")  # no answer can be found


def board(of: Pair, fault: str, seed: int, controls: bool) -> Faulty:
    faults = FAULTS[fault](of)
    if controls and fault == "another model":
        faults = {"changes_after": 15}  # as far into a search that runs each trial thrice
    return Faulty(of.good.buffers["output"], seed=seed, **faults)  # type: ignore[arg-type]


def truth(of: Pair, fault: str, seed: int) -> set[frozenset[object]]:
    """The answer on a board whose jobs end as they do, of a search that asks the same questions:
    in some pairs one change mends what another breaks, so that it depends on the questions."""
    expected = of.good.buffers["output"]

    def oracle(capture: Capture) -> str:
        if fault == "reboots on one shape" and of.has(capture):
            return "hang"
        if fault.startswith("not executed") and of.has(capture):
            return "fail"
        return str(npulab.Simulated(expected)(capture))

    return groups(bisect_fields(of.good, of.bad, oracle, different_layers=True, seed=seed))


def groups(found: Bisected) -> set[frozenset[object]]:
    return {frozenset(group) for group in found.groups}


@dataclass(frozen=True)
class Ended:
    """How a search ended: "right", "says" (what prevents it) or "wrong"; the jobs that ran."""

    how: str
    jobs: int
    sentence: str


Ask = Callable[[str, str, int, bool], Ended]


def asked(target: str, fault: str, seed: int, controls: bool) -> Ended:
    of = pair(target, seed)
    device = board(of, fault, seed, controls)
    oracle: object = device
    if controls:
        oracle = Controlled(device, of.good, of.bad)
    try:
        found = bisect_fields(of.good, of.bad, oracle, different_layers=True, seed=seed)  # type: ignore[arg-type]
    except Unusable as error:
        return Ended("says", device.jobs, str(error))
    if not found.found:
        return Ended("says", device.jobs, found.sentence)
    how = "wrong"
    if groups(found) == truth(of, fault, seed):
        how = "right"
    return Ended(how, device.jobs, found.sentence)


def table(
    options: argparse.Namespace, ask: Ask, faults: Iterable[str], cases: Iterable[str]
) -> None:
    """Print a row for each fault: how the searches ended, with controls and without."""
    for fault in [options.fault] if options.fault else faults:
        row = f"{fault:22}"
        for controls in (True, False):
            counts: Counter[str] = Counter()
            jobs = []
            for case in [options.case] if options.case else cases:
                for number in range(options.seeds):
                    ended = ask(case, fault, 2 * number + options.odd, controls)
                    counts[ended.how] += 1
                    jobs.append(ended.jobs)
                    if options.show:
                        print(case, number, controls, ended)
            text = ", ".join(f"{counts[how]} {how}" for how in ("right", "says", "wrong"))
            row += f" {text:26} {np.median(jobs):6.0f} "
        print(row, f"{time.process_time():.0f} s", flush=True)


def options_of(
    parser: argparse.ArgumentParser,
    seeds: int,
    case: str,
    faults: Iterable[str] | None = None,
    cases: Iterable[str] | None = None,
) -> argparse.Namespace:
    """The options of ``table``; ``case`` is the name of the option of a case."""
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--odd", action="store_true")
    parser.add_argument("--fault", choices=faults)
    parser.add_argument(case, dest="case", choices=cases)
    parser.add_argument("--show", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = options_of(
        argparse.ArgumentParser(description=__doc__), 10, "--target", FAULTS, CASES
    )
    print(f"{'fault':22} {'with controls':26} {'jobs':>6}  {'without':26} {'jobs':>6}")
    table(options, asked, FAULTS, CASES)


if __name__ == "__main__":
    main()
