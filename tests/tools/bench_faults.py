"""How often the right explanation of a wrong output is named, and the seconds that takes, by kind of
fault and NPU; all outputs are simulated:

    pytest -o addopts= -s tests/tools/bench_faults.py

``FAULT_LAYERS=0:20`` takes the layers with which the search was made, for work on it; by default
twenty others judge it.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from planted_faults import ABSENT, FAULTS, NPUS, answer, planted

FIRST, END = map(int, os.environ.get("FAULT_LAYERS", "1000:1020").split(":"))
TWO = (
    ("shift", "weight"),
    ("weight", "channels"),
    ("zero point", "padding"),
    ("shift", "stride"),
    ("weight", "padding"),
    ("zero point", "channels"),
)
HEAD = """
| NPU | planted | layers | named first | tied | one named wrongly | more than one | mean tied | s, mean | s, most |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


@pytest.mark.parametrize("faults", [*((fault,) for fault in FAULTS), *TWO, ()], ids="+".join)
@pytest.mark.parametrize("npu", NPUS)
def test_faults(npu: str, faults: tuple[str, ...]) -> None:
    if (npu, faults) == (NPUS[0], FAULTS[:1]):
        print(HEAD)
    name = " and ".join(faults) or "none (outputs are equal)"
    lacks = [ABSENT[npu, fault] for fault in faults if (npu, fault) in ABSENT]
    if lacks:
        print(f"| {npu} | {name} | none: {', '.join(lacks)} | | | | | | | |", flush=True)
        return
    answers = []
    for number in range(FIRST, END):
        found = answer(planted(npu, faults, number))
        answers.append(found)
        if found.outcome == "wrong":
            print(f"wrong: {npu} {name} {number}")
    count = len(answers)
    by = Counter(found.outcome for found in answers)
    more = str(by["more"])
    if len(faults) > 1:
        more += f", both named {sum(found.both for found in answers)}"
    if not faults:
        more = f"nothing offered {by['silent']}"
    tied = sum(found.tied for found in answers) / count
    seconds = [found.seconds for found in answers]
    print(
        f"| {npu} | {name} | {count} | {by['first']} | {by['tied']} | {by['wrong']} | {more} "
        f"| {tied:.1f} | {sum(seconds) / count:.1f} | {max(seconds):.1f} |",
        flush=True,
    )
