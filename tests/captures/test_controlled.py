"""Devices with controls: what a known-good and a known-bad job show of a device, and what is said."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench_trials import bits_of, flipped, pair

import npulab
from npulab import Capture, bisect_fields
from npulab.captures.capture import Job
from npulab.captures.controlled import Controlled, TakenBack, Unusable, facts_of
from npulab.captures.devices import Command, InProcess, Recorder, Simulated
from npulab.captures.faulty import FILL, Faulty
from npulab.captures.fingerprints import Fingerprint, content_hash, fingerprint_of, said_by
from npulab.captures.journal import OUTCOMES, Journal
from npulab.captures.never import Never
from npulab.captures.target import Hang, Run
from npulab.registers.map import RegisterMap
from npulab.support.processes import NotRun

MAP = RegisterMap([{"block": "NN", "field": f"f{n}", "lsb": n, "width": 1} for n in range(8)])
EXPECTED = b"good output"


def job(word: int, name: str = "job", **parts: object) -> Capture:
    buffers = {"input": b"in", "output": EXPECTED}
    return Capture(name, "demo", "x", (Job("NN", [word]),), buffers, maps={"NN": MAP}, **parts)  # type: ignore[arg-type]


GOOD, BAD = job(0, "good"), job(255, "bad")


class Toy:
    """A device on which a job with bit 7 gives other bytes; ``acts`` is called before each run, and
    what it returns takes the place of the run."""

    def __init__(self, acts: Callable[[Toy, Capture], Run | None] = lambda toy, job: None) -> None:
        self.acts, self.jobs, self.recovered, self.fill = acts, 0, 0, []
        self.poisoned = False

    def run(self, capture: Capture) -> Run:
        self.jobs += 1
        self.fill.append(capture.parameters.get(FILL))
        run = self.acts(self, capture)
        if run is not None:
            return run
        if capture.words[0] >= 128:
            return Run("done", b"wrong bytes")
        return Run("done", EXPECTED + bytes(capture.buffers["input"] != b"in"))

    def judge(self, capture: Capture, run: Run) -> str:
        return Simulated(EXPECTED).judge(capture, run)

    def recover(self) -> None:
        self.recovered += 1
        self.poisoned = False


def with_controls(
    acts: Callable[[Toy, Capture], Run | None] | None = None, **options: object
) -> Controlled:
    toy = Toy(acts) if acts else Toy()
    return Controlled(toy, GOOD, BAD, **options)  # type: ignore[arg-type]


def test_a_sound_device_passes_and_fails_as_without_controls() -> None:
    oracle = with_controls()
    assert [oracle(job(word)) for word in (1, 128, 3)] == ["pass", "fail", "pass"]
    oracle.finish()
    assert oracle.counts("good")[0] == oracle.counts("good")[1] > 2
    assert oracle.counts("bad") == (2, 2)
    assert {*oracle.device.fill} == {0xA5, 0x5A}
    assert "the known-good job passed in" in oracle.sentence


def test_a_trial_says_what_ran_before_it() -> None:
    oracle = with_controls(lambda toy, job: Run("hang") if job.words[0] == 9 else None)
    assert oracle(job(9)) == "hang"
    assert oracle(job(1)) == "pass"
    facts = facts_of(oracle)
    assert facts["hash"] == content_hash(job(1))[:12]
    assert facts["since"] == "hang"
    assert facts["runs"] == 3
    assert facts["before"]
    assert facts_of(lambda capture: "pass") == {}


def poison(toy: Toy, capture: Capture) -> Run | None:
    was, toy.poisoned = toy.poisoned, toy.poisoned or bool(capture.words[0] & 2)
    return Run("done", b"garbage") if was else None


def test_a_job_that_poisons_is_told_from_one_that_fails() -> None:
    oracle = with_controls(poison)
    assert [oracle(job(word)) for word in (1, 2, 4)] == ["pass", "poisons", "pass"]
    assert oracle.device.recovered > 0


def test_a_known_bad_job_that_poisons_ends_nothing() -> None:
    oracle = with_controls(poison)
    assert oracle(job(1)) == "pass"
    assert "the known-bad job poisons the device" in oracle.sentence


def test_what_was_answered_since_a_passing_control_is_asked_again() -> None:
    """The device dies without a reason; the answers before are taken back, once."""
    dead: list[bool] = [False]

    def acts(toy: Toy, capture: Capture) -> Run | None:
        return Run("done", b"garbage") if dead[0] and toy.recovered == 0 else None

    oracle = with_controls(acts)
    assert [oracle(job(word)) for word in (1, 4)] == ["pass", "pass"]
    dead[0] = True
    with pytest.raises(TakenBack, match="2 answers before it must be asked again") as back:
        oracle(job(8))
    assert back.value.count == 2
    assert [oracle(job(word)) for word in (1, 4, 8)] == ["pass"] * 3


@pytest.mark.parametrize(
    ("acts", "said"),
    [
        (lambda toy, job: Run("done", EXPECTED), "the known-bad job gives the known-good output"),
        (lambda toy, job: Run("done", b"garbage"), "the known-good job fails after each of 3"),
        (lambda toy, job: Run("hang"), "the known-good job fails after each of 3 power-ups"),
    ],
)
def test_a_device_that_lies_is_not_used(acts: Callable[[Toy, Capture], Run], said: str) -> None:
    oracle = with_controls(acts)
    with pytest.raises(Unusable, match=said):
        oracle(job(1))
    assert oracle.device.jobs < 12


def test_a_device_without_a_reset_says_so() -> None:
    class Bare:
        def run(self, capture: Capture) -> bytes:
            raise Hang("no interrupt")

    with pytest.raises(Unusable, match="the device has no reset that would power it up"):
        Controlled(InProcess(Bare(), EXPECTED), GOOD, BAD)(job(1))


def test_a_job_that_is_not_executed_is_seen_by_the_fill_and_by_what_was_there() -> None:
    def filled(toy: Toy, capture: Capture) -> Run | None:
        if capture.words[0] == 1:
            return Run("done", bytes([capture.parameters[FILL]]) * 11)
        return None

    memory = [b""]

    def left(toy: Toy, capture: Capture) -> Run | None:
        if capture.words[0] == 1:
            return Run("done", memory[0])
        memory[0] = b"wrong bytes"
        if capture.words[0] < 128:
            memory[0] = EXPECTED + bytes(capture.buffers["input"] != b"in")
        return Run("done", memory[0])

    constant = with_controls(lambda toy, job: Run("done", bytes(11)) if job.words[0] == 1 else None)
    for oracle in (with_controls(filled), with_controls(left), constant):
        assert oracle(job(1)) == "not executed"
        assert oracle(job(2)) == "pass"


def test_a_reboot_is_told_from_a_hang() -> None:
    boots = [1]

    def acts(toy: Toy, capture: Capture) -> Run | None:
        if capture.words[0] == 1:
            boots[0] += 1
        return Run("hang") if capture.words[0] in (1, 2) else None

    oracle = with_controls(acts, boot=lambda: f"boot {boots[0]}")
    assert [oracle(job(word)) for word in (1, 2, 4)] == ["reboots", "hang", "pass"]


def test_a_change_in_the_middle_ends_the_search_and_is_named() -> None:
    firmware = ["a"]
    oracle = with_controls(fingerprint=lambda: f"Linux 6.1\nfirmware {firmware[0]}", every=1)
    assert oracle(job(1)) == "pass"
    firmware[0] = "b"
    with pytest.raises(Unusable, match="line 2 was 'firmware a', is 'firmware b'") as ended:
        oracle(job(4))
    assert ended.value.count == 1


def test_what_must_not_run_does_not_run() -> None:
    refused = content_hash(job(4))[:16]
    oracle = with_controls(never=["f0 == 1 and f7 == 0", refused])
    ran = oracle.device.jobs
    assert [oracle(job(word)) for word in (3, 4)] == ["refused", "refused"]
    assert oracle.device.jobs == ran
    assert "f0 == 1 and f7 == 0, which must not be run" in oracle.run(job(3)).reason
    assert oracle(job(2)) == "pass"


def test_bad_controls_and_conditions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"never: got 'f9 == 1'.*f0 == 0"):
        with_controls(never=["f9 == 1"])
    with pytest.raises(ValueError, match="control bad: got job 0 has f7 == 1"):
        with_controls(never=["f7 == 1"])
    with pytest.raises(ValueError, match="the same job as good"):
        Controlled(Toy(), GOOD, job(0, "other name"))
    with pytest.raises(ValueError, match="an output of one value"):
        Controlled(Toy(), GOOD.with_buffers(output=bytes(9)), BAD)
    for name in ("every", "agree"):
        with pytest.raises(ValueError, match=f"{name}: got 0"):
            with_controls(**{name: 0})
    assert Never.of((), GOOD).why(GOOD) == ""


def test_errors_are_measured_and_more_runs_are_made() -> None:
    rng = np.random.default_rng(4)

    def acts(toy: Toy, capture: Capture) -> Run | None:
        return Run("done", rng.bytes(9)) if rng.random() < 0.1 else None

    oracle = with_controls(acts, every=1000)
    assert oracle.needed == 2
    outcomes = []
    while len(outcomes) < 60:
        try:
            outcomes.append(oracle(job(1 + 128 * (len(outcomes) % 2))))
        except TakenBack as back:
            del outcomes[len(outcomes) - back.count :]
    assert outcomes == ["pass", "fail"] * 30
    assert 0.05 < oracle.error_rate < oracle.error_bound < 0.2
    assert oracle.needed > 3


def test_a_trial_that_never_ends_alike_is_said() -> None:
    turns = [0]

    def acts(toy: Toy, capture: Capture) -> Run | None:
        turns[0] += capture.words[0] == 1
        return Run("done", b"other") if capture.words[0] == 1 and turns[0] % 2 else None

    with pytest.raises(Unusable, match=r"job ends differently from run to run"):
        with_controls(acts)(job(1))


def test_bisection_ends_with_what_prevents_it_and_asks_again() -> None:
    def acts(toy: Toy, capture: Capture) -> Run | None:
        return Run("done", EXPECTED) if toy.jobs > 14 else None

    found = bisect_fields(GOOD, BAD, with_controls(acts))
    assert not found.found
    assert found.sentence.startswith("not found: the device cannot be trusted: the known-bad job")
    found = bisect_fields(GOOD, BAD, with_controls(), progress=None)
    assert [key[3] for key in found.culprits] == ["f7"]
    assert all(trial.more["hash"] for trial in found.journal)
    assert found.oracle.startswith("npulab.Manual")


def test_bisection_counts_the_outcomes_of_controls() -> None:
    def acts(toy: Toy, capture: Capture) -> Run | None:
        return Run("done", bytes(11)) if capture.words[0] & 128 else None

    found = bisect_fields(GOOD, BAD, with_controls(acts, never=["f0 == 1 and f1 == 0"]))
    assert [key[3] for key in found.culprits] == ["f7"], found.sentence
    assert "without being executed, which counts as a failure" in found.sentence
    with pytest.raises(ValueError, match=r"bad: bad: got job 0 has f7 == 1"):
        oracle = Controlled(Toy(), GOOD, None, never=["f7 == 1"])
        bisect_fields(GOOD, BAD, oracle)


def test_a_recorder_keeps_what_controls_show(tmp_path: Path) -> None:
    of = pair("onert", 2)
    device = Controlled(Faulty(of.good.buffers["output"], poisons=of.has), of.good, of.bad)
    oracle = Recorder(device, tmp_path)
    found = bisect_fields(of.good, of.bad, oracle, different_layers=True)
    assert found.found, found.sentence
    assert len([*tmp_path.iterdir()]) >= found.queries


def test_a_journal_keeps_each_outcome(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    for outcome in OUTCOMES:
        journal.add(npulab.captures.journal.Trial((), "", outcome, more={"hash": "12", "runs": 3}))
    again = Journal.read(tmp_path / "j.jsonl")
    assert tuple(trial.outcome for trial in again) == OUTCOMES
    assert again.hangs == 2
    assert again[0].more == {"hash": "12", "runs": 3}


def test_a_fingerprint_has_the_programs_of_a_device(tmp_path: Path) -> None:
    program = tmp_path / "run.sh"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    device = Command((os.fspath(program),))
    first = fingerprint_of(device, "echo kernel; echo firmware")
    assert first is not None
    assert first.text.startswith(f"kernel\nfirmware\nprogram {program}: sha256 ")
    program.write_text("#!/bin/sh\ntrue\n", encoding="utf-8")
    second = fingerprint_of(device, ["echo", "kernel"])
    assert second is not None
    assert "line 2 was 'firmware'" in first.changes(second)
    assert fingerprint_of(Toy(), None) is None
    assert Fingerprint("a").changes(Fingerprint("a")) == ""
    for command, said in (("exit 3", "allowed is status 0"), ("true", "got nothing")):
        with pytest.raises(NotRun, match=said):
            said_by(command, "fingerprint")


def test_faulty_boards_refuse_bad_options() -> None:
    with pytest.raises(ValueError, match="wrong: got 2"):
        Faulty(wrong=2)
    with pytest.raises(ValueError, match="lies: got 'often'"):
        Faulty(lies="often")


def test_content_is_the_job_and_not_its_name() -> None:
    good, breakers, _ = bits_of("onert")
    assert content_hash(good) == content_hash(replace(good, name="x", parameters={}))
    assert content_hash(good) != content_hash(flipped(good, [breakers[0]]))
    assert content_hash(good) != content_hash(good.with_buffers(input=b"other"))
