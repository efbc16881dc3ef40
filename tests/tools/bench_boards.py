"""How often a bisection's answer is true, is held against its own trials, and how many runs it
takes, over boards by lot:

    python tests/tools/bench_boards.py [COUNT] [FLAKE] [RATE]

COUNT boards of each kind of ``tests/reference/boards.py`` (default 60); FLAKE is how often they
err, RATE what the search is told of it (a number or ``auto``; default FLAKE). A row a kind: answers
that are told with 99 % and more; of these wrong (other groups than the smallest sets that break it)
and against a trial of their own; right in all; mean runs and hangs.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "reference"))

from boards import STATEFUL, STATELESS, Board, board

from npulab import Capture, bisect_fields
from npulab.analysis.bisect import Bisected
from npulab.bits import RegisterMap
from npulab.capture import Job


def bisected(of: Board, rate: float | None, **options: object) -> Bisected:
    """The answer of ``bisect_fields`` for a board."""
    fields = [
        {
            "block": "NN",
            "offset": 4 * (n // 32),
            "register": f"w{n // 32}",
            "field": f"f{n}",
            "lsb": n % 32,
            "width": 1,
        }
        for n in range(of.n)
    ]
    registers = RegisterMap(fields)
    count = -(-of.n // 32)
    every = [min(32, of.n - 32 * word) for word in range(count)]
    good, bad = (
        Capture(name, "demo", "x", (Job("NN", words),), maps={"NN": registers})
        for name, words in (("good", [0] * count), ("bad", [2**bits - 1 for bits in every]))
    )

    def oracle(capture: Capture) -> str:
        return of({n for n in range(of.n) if int(capture.words[n // 32]) >> n % 32 & 1})

    return bisect_fields(good, bad, oracle, rate, **options)


def groups_of(found: Bisected) -> set[frozenset[int]]:
    return {frozenset(int(key[3][1:]) for key in group) for group in found.groups}


def certain(found: Bisected) -> bool:
    """Whether a number of at least 99 % is told."""
    text = re.search(r"([\d.]+) ?% certain", found.sentence)
    return (
        found.done
        and not found.sentence.startswith("not found")
        and text is not None
        and float(text[1]) >= 99
    )


def against(found: Bisected, of: Board) -> list[int]:
    """The trials that the groups that are told contradict."""
    groups, symptom = (
        groups_of(found),
        "hang" if re.search(r"hangs? it", found.sentence) else "fail",
    )
    out = []
    for number, (on, outcome) in enumerate(of.trials):
        told = any(group <= on for group in groups)
        joined = any(on < group for group in groups)
        if (outcome == "pass" and told) or (outcome == symptom and (joined or not told)):
            out.append(number)
    return out


def row(kind: str, count: int, flake: float, rate: float | None) -> tuple[Counter[str], float]:
    told: Counter[str] = Counter()
    start = time.monotonic()
    for seed in range(count):
        of = board(kind, seed, flake)
        found = bisected(of, rate, seed=seed)
        symptom = "hang" if re.search(r"hangs? it", found.sentence) else "fail"
        right = groups_of(found) == of.least(symptom)
        told["right"] += right
        told["runs"] += len(of.trials)
        told["runs where right"] += right * len(of.trials)
        told["hangs"] += sum(outcome == "hang" for _, outcome in of.trials)
        if certain(found):
            told["told"] += 1
            told["wrong"] += not right
            told["against"] += flake == 0 and bool(against(found, of))
            if (not right or (flake == 0 and against(found, of))) and "-v" in sys.argv:
                print(
                    kind,
                    seed,
                    found.sentence[:150],
                    sorted(map(sorted, of.least(symptom)))[:5],
                    against(found, of),
                )
    return told, time.monotonic() - start


def main() -> None:
    given = [argument for argument in sys.argv[1:] if argument != "-v"]
    count = int(given[0]) if given else 60
    flake = float(given[1]) if len(given) > 1 else 0.0
    rate = flake if len(given) < 3 else None if given[2] == "auto" else float(given[2])
    kinds = [*STATELESS, *(() if flake else STATEFUL)]
    print(f"{count} boards a kind, errs {flake:.0%}, told {rate}")
    print(
        f"{'kind':18} {'>= 99 %':>8} {'wrong':>6} {'against':>8} {'right':>6} {'runs':>6} {'if right':>8} {'hangs':>6} {'s':>6}"
    )
    total: Counter[str] = Counter()
    for kind in kinds:
        told, seconds = row(kind, count, flake, rate)
        total += told
        print(
            f"{kind:18} {told['told']:8} {told['wrong']:6} {told['against']:8} {told['right']:6} "
            f"{told['runs'] / count:6.1f} {told['runs where right'] / max(told['right'], 1):8.1f} {told['hangs'] / count:6.1f} {seconds:6.1f}",
            flush=True,
        )
    print(
        f"{'all':18} {total['told']:8} {total['wrong']:6} {total['against']:8} {total['right']:6} of {count * len(kinds)}"
    )


if __name__ == "__main__":
    main()
