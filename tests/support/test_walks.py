"""The walks in npulab/README.md: each call passes the listed functions in their order."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import CodeType, FrameType

import numpy as np
import pandas as pd
import pytest
from conftest import CAPTURES, ROOT

import npulab
from npulab.captures.devices import Simulated

PACKAGE = ROOT / "npulab"
SECTION = (PACKAGE / "README.md").read_text(encoding="utf-8").split("\n## Walks\n")[-1]
STEP = re.compile(r"^- `([\w/]+\.py):([\w.<>]+)`", re.MULTILINE)


def listed(call: str) -> list[tuple[str, str]]:
    """(file, function) of each line under the call whose text begins so."""
    below = SECTION.split(f"\n**`{call}", maxsplit=1)[1].split("\n**`")[0].split("\n## ")[0]
    return STEP.findall(below)


def passed(call: Callable[[], object]) -> list[tuple[str, str]]:
    """(file, function) of the package's functions that the call runs, in the order in which they
    start.
    """
    codes: list[CodeType] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.append(frame.f_code)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [
        (code.co_filename.removeprefix(f"{PACKAGE}/"), code.co_qualname)
        for code in codes
        if code.co_filename.startswith(f"{PACKAGE}/")
    ]


def loading() -> Callable[[], object]:
    path = CAPTURES / "ane" / "sim-3x3-same"
    npulab.load(path)  # the first call also imports a third of the package
    return lambda: npulab.load(path)


def checking() -> Callable[[], object]:
    capture = npulab.load(CAPTURES / "ane" / "sim-3x3-same")
    return lambda: npulab.check(capture)


def bisecting() -> Callable[[], object]:
    good, bad = (npulab.load(CAPTURES / "vivante" / f"update4-{who}") for who in ("mesa", "vendor"))
    return lambda: npulab.bisect_fields(good, bad, Simulated())


def finding_laws() -> Callable[[], object]:
    width = np.arange(1, 13)
    words = (width + 64 * (width > 5))[:, None]
    return lambda: npulab.find_laws(words, pd.DataFrame({"width": width}))


def lowering() -> Callable[[], object]:
    vivante = npulab.target("vivante")
    layer = vivante.lift(npulab.load(CAPTURES / "vivante" / "sim-3x3-same")).layer
    return lambda: vivante.lower(layer)


@pytest.mark.parametrize(
    ("call", "prepared"),
    [
        ("load(", loading),
        ("check(", checking),
        ("bisect_fields(", bisecting),
        ("find_laws(", finding_laws),
        ('target("vivante").lower(', lowering),
    ],
)
def test_a_walk_is_what_its_call_passes(
    call: str, prepared: Callable[[], Callable[[], object]]
) -> None:
    steps = listed(call)
    assert len(steps) > 5
    started = passed(prepared())
    for step in steps:
        assert step in started, f"{step} is not called after the steps before it"
        started = started[started.index(step) :]
