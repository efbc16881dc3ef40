"""Eight hours at a board in a few seconds: hangs, resets, lost connections, a clock that jumps, a
full disk, kills.

The clock is the test's own.  A board takes a minute a job and five to say that it hangs; whoever
sits before it starts the same call again after each interruption.
"""

from __future__ import annotations

import errno
import json
import os
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import npulab.captures.devices
import npulab.captures.journal
import npulab.support.files
from npulab.analysis.bisect import bisect_fields
from npulab.analysis.explore import explore
from npulab.analysis.explore.storing import NAME
from npulab.captures.capture import Capture, Job
from npulab.captures.devices import Command
from npulab.captures.journal import Journal
from npulab.captures.sources import Answer
from npulab.registers.map import RegisterMap
from npulab.support.processes import End, NotRun

HOUR = 3600.0
FIELDS = 48
MAP = RegisterMap(
    [
        {
            "block": "B",
            "offset": 4 * (n // 16),
            "register": f"w{n // 16}",
            "field": f"f{n}",
            "lsb": n % 16 * 2,
            "width": 2,
        }
        for n in range(FIELDS)
    ]
)
GOOD = Capture(
    "good", "vivante", "x", (Job("B", [0] * 3),), maps={"B": MAP}, provenance="simulated"
)
BAD = Capture(
    "bad", "vivante", "x", (Job("B", [0x55555555] * 3),), maps={"B": MAP}, provenance="simulated"
)
INTERRUPTIONS = (KeyboardInterrupt, NotRun, OSError)


@dataclass
class World:
    """A clock, the faults of a day, and a board whose job fails by two fields together and hangs
    by a third.
    """

    random: random.Random
    seconds: float = 0.0
    skew: float = 0.0  # of the calendar, which somebody sets
    hung: bool = False
    culprits: tuple[int, int] = (0, 1)
    hangs: int = 2
    faults: Counter[str] = field(default_factory=Counter)
    answered: int = 0

    def fault(self, name: str, chance: float) -> bool:
        happens = self.random.random() < chance
        self.faults[name] += happens
        return happens

    def pass_time(self, seconds: float) -> None:
        self.seconds += seconds
        if self.fault("suspended", 0.01):
            self.skew += 5 * HOUR
        if self.fault("clock set back", 0.01):
            self.skew -= 7 * HOUR

    def interrupted(self) -> None:
        if self.fault("interrupt", 0.02):
            raise KeyboardInterrupt

    @property
    def disk_full(self) -> bool:
        return 0.3 < self.seconds % HOUR / HOUR < 0.4  # six minutes of each hour, then it is freed

    def fsync(self, handle: int) -> None:
        if self.disk_full:
            self.faults["disk full"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def now(self, zone: Any = UTC) -> datetime:
        return datetime(2026, 1, 1, tzinfo=zone) + timedelta(seconds=self.seconds + self.skew)

    def execute(self, name: str, program: tuple[str, ...], timeout: float, *stops: object) -> End:
        """What ``support.processes.execute`` does, on this board."""
        self.interrupted()
        if name == "reset":
            self.pass_time(90)
            if self.fault("reset failed", 0.1):
                return End(1, timeout, "no answer", True)
            self.hung = False
            return End(0, timeout, "", True)
        if self.fault("connection lost", 0.03):
            return End(255, timeout, "lost", True)
        assert not self.hung, "a job ran on a board that hangs"
        words = np.frombuffer(Path(program[-1], "b.bin").read_bytes(), "<u4")
        fields = {n for n in range(FIELDS) if int(words[n // 16]) >> n % 16 * 2 & 3}
        self.hung = self.hangs in fields
        self.pass_time(timeout if self.hung else 60)
        self.answered += 1
        return End(None if self.hung else int({*self.culprits} <= fields), timeout, "", True)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> World:
    made = World(random.Random(request.node.name))
    monkeypatch.setattr(npulab.captures.devices, "execute", made.execute)
    monkeypatch.setattr(npulab.captures.journal, "datetime", made)
    monkeypatch.setattr(npulab.support.files.os, "fsync", made.fsync)
    return made


HOURS = [1, pytest.param(8, marks=pytest.mark.long)]


@pytest.mark.parametrize("hours", HOURS)
def test_a_day_of_bisections_asks_nothing_twice_and_loses_nothing(
    world: World, tmp_path: Path, hours: int
) -> None:
    number = interruptions = 0
    while world.seconds < hours * HOUR:
        one, two, three = world.random.sample(range(FIELDS), 3)
        world.culprits, world.hangs, world.answered = (one, two), three, 0
        path = tmp_path / f"{number}.jsonl"
        lost, kept = 0, []
        while True:
            before = world.answered
            board = Command(
                ("board", "{capture}"), timeout=300, reset=("power", "cycle"), output=None
            )
            if world.hung:
                board._hung.set()  # a new process begins with the reset, as a person would
            try:
                found = bisect_fields(GOOD, BAD, board, journal=path)
                break
            except INTERRUPTIONS:
                interruptions += 1
                world.pass_time(120)
                accepted = list(Journal.read(path).trials) if path.exists() else []
                assert accepted[: len(kept)] == kept  # what was accepted stays, in its order
                lost += world.answered - before - (len(accepted) - len(kept))
                kept = accepted
        journal = Journal.read(path)
        subsets = [trial.subset for trial in journal.trials]
        assert len({*subsets}) == len(subsets)
        assert world.answered == len(subsets) + lost
        hangs = any(outcome == "hang" for outcome in (trial.outcome for trial in journal.trials))
        # BAD hangs, whatever fails: that is what a bisection which saw a hang looks for
        assert {name for _, _, _, name in found.culprits} == (
            {f"f{three}"} if hangs else {f"f{one}", f"f{two}"}
        )
        assert found.hangs == sum(trial.outcome == "hang" for trial in journal.trials)
        number += 1
    assert number > hours // 2  # some 50 jobs each, of a minute, and hangs of five
    assert interruptions >= 2 * hours


@dataclass
class Encoder:
    """Words by formulas, a minute a layer; a layer of the wrong shape hangs it, and somebody
    kills it now and then.
    """

    world: World
    asked: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    dtype: str = "uint8"
    record: ClassVar[dict[str, str]] = {"source": "encoder", "version": "1"}

    def __call__(self, parameters: Mapping[str, float], seed: int = 0) -> Answer:
        self.world.interrupted()
        width, height, kernels = (
            int(parameters[name]) for name in ("input_w", "input_h", "output_c")
        )
        self.world.pass_time(300 if width == 13 else 60)
        self.asked.append((seed, tuple(parameters.values())))
        if width == 13:
            return Answer("hang", text="no answer in 300 s")
        job = Job(
            "B",
            [
                width + 2**8 * (height - 1),
                kernels * int(parameters["input_c"]),
                width * 0x9E3779B1 % 2**32 >> 28,
            ],
        )
        return Answer(
            "captured",
            Capture("layer", "vivante", "x", (job,), maps={"B": MAP}, provenance="simulated"),
        )


@pytest.mark.parametrize("hours", HOURS)
def test_a_day_of_exploration_asks_nothing_twice_and_loses_nothing(
    world: World, tmp_path: Path, hours: int
) -> None:
    encoder, interruptions, kept = Encoder(world), 0, []
    budget = 12 * hours
    ranges = {
        "input_h": (1, 200),
        "input_w": (1, 200),
        "input_c": (1, 60),
        "output_c": (1, 60),
        "kernel": [1, 3],
    }
    lines = tmp_path / "store" / NAME
    while True:
        try:
            found = explore(encoder, ranges, budget=budget, store=tmp_path / "store")
        except OSError:
            found = None
        entries = lines.read_bytes().splitlines()
        assert entries[: len(kept)] == kept
        kept = entries
        if found is not None and not found.stopped:
            break
        interruptions += 1
        world.pass_time(120)
    layers = [json.loads(entry[9:]) for entry in kept[1:]]
    once = Counter((layer["seed"], *layer["parameters"].values()) for layer in layers)
    asked = Counter((seed, *values) for seed, values in encoder.asked)
    assert len(layers) == budget == once.total() == len(once)
    assert once <= asked
    assert (
        asked.total() - budget <= world.faults["disk full"]
    )  # what could not be kept is all that was asked for nothing
    assert sorted(
        folder.name
        for folder in lines.parent.glob("captures/*")
        if (folder / "capture.json").exists()
    ) == [f"{layer['number']:05d}" for layer in layers if layer["outcome"] == "captured"]
    assert len(found.outcomes) == sum(layer["outcome"] == "hang" for layer in layers)
    assert interruptions
