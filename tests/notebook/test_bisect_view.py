"""The bisect view: its model with no browser, its view with no front end, its drawing in a blank
page.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import traitlets
from blank_page import THEMES, BlankPage
from conftest import CAPTURES
from map_rows import map_rows
from playwright.sync_api import Browser

import npulab
import npulab.analysis.bisect
from npulab.captures.capture import Capture, Job
from npulab.captures.devices import Command, Recorder, Simulated
from npulab.notebook.widgets import BisectModel, BisectView
from npulab.notebook.widgets.bisect_view import LISTED
from npulab.registers.map import RegisterMap
from npulab.support.processes import Stopped

FIELDS = 12
SOON = 10.0  # seconds that nothing here needs


def pair(fields: int = FIELDS, width: int = 8, **changes: object) -> tuple[Capture, Capture]:
    """A good capture of zeros and a bad one in which every field is its number plus one."""
    rows = [
        {
            "block": "NN",
            "offset": 4 * (n // 4),
            "register": f"R{n // 4}",
            "field": f"f{n}",
            "lsb": 8 * (n % 4),
            "width": width,
        }
        for n in range(fields)
    ]
    registers = RegisterMap(rows)
    good = Capture(
        "good",
        "demo",
        "x",
        (Job("NN", np.zeros(len(registers), np.uint32)),),
        maps={"NN": registers},
    )
    bad = good.with_fields(**{f"f{n}": n % (2**width - 1) + 1 for n in range(fields)})
    return replace(good, **changes), replace(bad, **{"name": "bad", "tool": "", **changes})


def breaks(*names: str, outcome: str = "fail") -> Callable[[Capture], str]:
    """An oracle of a job that breaks where all of these fields are changed."""
    return lambda capture: outcome if all(capture.values[name] for name in names) else "pass"


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


class Slow:
    """An oracle that says when it is asked and answers when it is told to."""

    def __init__(self) -> None:
        self.asked, self.go, self.calls = threading.Semaphore(0), threading.Semaphore(0), 0

    def __call__(self, capture: Capture) -> str:
        self.calls += 1
        self.asked.release()
        assert self.go.acquire(timeout=SOON)
        return breaks("f7")(capture)


class Interrupted(Slow):
    """One that an event stops."""

    def __init__(self) -> None:
        super().__init__()
        self.stop = threading.Event()

    def __call__(self, capture: Capture) -> str:
        self.asked.release()
        assert self.stop.wait(SOON)
        raise Stopped("the run of the program was stopped")


# ---- the model ----


def test_model_asks() -> None:
    model = BisectModel(*pair())
    assert (model.state, model.trial, model.counts) == (
        "asks",
        1,
        {"pass": 0, "fail": 0, "hang": 0},
    )
    assert model.allowed == ("pass", "fail", "hang")
    assert len(model.parts) == FIELDS
    assert model.parts[7] == ("NN R1", "f7", "0", "8")
    assert model.changed == [model.parts[place] for place in model.chosen]
    assert [model.capture.values[row.field] for row in model.changed] == [
        int(row.bad) for row in model.changed
    ]
    assert model.status == (
        f"Trial 1 takes {len(model.chosen)} fields of 12 from bad: does it pass, fail or hang?"
    )
    assert model.reason == model.session.trial.reason != ""


def test_model_answered_by_hand() -> None:
    model, oracle, seen = BisectModel(*pair()), breaks("f7"), []
    while model.state == "asks":
        outcome = oracle(model.capture)
        seen.append((model.trial, outcome, len(model.chosen), 0.0))
        model.answer(outcome)
    assert model.state == "done"
    assert model.result.culprits == ((0, "NN", "R1", "f7"),)
    assert model.log == seen[-8:]
    assert model.counts == {
        outcome: [row[1] for row in seen].count(outcome) for outcome in ("pass", "fail", "hang")
    }
    assert (model.trial, model.left, model.progress, model.chosen, model.capture) == (
        len(seen),
        0,
        1.0,
        [],
        None,
    )
    assert model.suspects[0] == ("NN R1.f7 = 8 (good 0)", model.result.certainty)
    assert model.found["sentence"] == model.result.sentence
    assert model.found["rows"] == [["NN R1", "f7", "0", "8", 1]]
    assert model.status == f"Done: {model.result.sentence}."


@pytest.mark.parametrize(
    ("names", "outcome"), [(("f7",), "fail"), (("f1", "f10"), "fail"), (("f4",), "hang")]
)
def test_model_runs_as_bisect_fields_does(names: tuple[str, ...], outcome: str) -> None:
    model, oracle = BisectModel(*pair()), breaks(*names, outcome=outcome)
    model.run(oracle, wait=True)
    expected = npulab.bisect_fields(*pair(), oracle)
    assert model.state == "done"
    assert (model.result.culprits, model.result.queries) == (expected.culprits, expected.queries)
    assert tuple(key[3] for key in model.result.culprits) == names


@pytest.mark.parametrize("names", [("out_zero_point",), ("relu", "out_zero_point")])
def test_model_finds_mistakes_on_a_simulated_device(names: tuple[str, ...]) -> None:
    good, bad = (
        npulab.load(CAPTURES / "vivante" / name) for name in ("sim-3x3-same", "sim-other-driver")
    )
    mended = {name: good.values[name] for name in ("out_zero_point", "relu") if name not in names}
    model = BisectModel(good, bad.with_fields(**mended), Simulated(good.buffers["output"]))
    assert len(model.parts) >= 40
    model.run(wait=True)
    assert [[key[3] for key in group] for group in model.result.groups] == [
        [name] for name in names
    ]


def test_model_runs_in_a_thread() -> None:
    model, seen = BisectModel(*pair(), breaks("f7")), []
    model.observe(
        lambda change: seen.append((change.new, threading.current_thread().name)), "trial"
    )
    assert model.allowed == ("pass", "fail", "hang", "run")
    model.run()
    until(lambda: model.state == "done")
    assert {name for _, name in seen} == {"bisect demo/good against bad"}
    assert [trial for trial, _ in seen] == list(range(2, model.trial + 1))


def test_model_is_whole_whenever_it_is_observed() -> None:
    model, seen = BisectModel(*pair(), breaks("f7")), []

    def look(_: object) -> None:
        asked, told = model.session.trial, model.session.queries
        seen.append(
            (
                model.turn,
                model.trial,
                sum(model.counts.values()),
                [row.field for row in model.changed],
            )
            == (
                told,
                told + (asked is not None),
                told,
                [] if asked is None else [one.field for one in asked.changed],
            )
        )

    model.observe(look)
    model.run(wait=True)
    assert len(seen) > 30
    assert all(seen)


def test_model_stops_within_one_step() -> None:
    oracle = Slow()
    model = BisectModel(*pair(), oracle)
    model.run()
    oracle.go.release()
    for _ in range(2):
        assert oracle.asked.acquire(timeout=SOON)
    until(lambda: model.trial == 2)
    model.stop()
    assert (model.state, model.allowed) == ("stops", ())
    assert model.status == "Stops when trial 2 has ended; its outcome will not count."
    oracle.go.release()
    until(lambda: model.state == "stopped")
    assert (oracle.calls, len(model.session.journal)) == (
        2,
        1,
    )  # the second outcome came after Stop
    assert model.status.startswith("Stopped before the outcome of trial 2, which takes ")
    model.run(breaks("f7"), wait=True)
    assert model.result.culprits == ((0, "NN", "R1", "f7"),)


def test_model_stops_an_oracle_that_can_be_interrupted() -> None:
    oracle = Interrupted()
    model = BisectModel(*pair(), oracle)
    for _ in range(2):  # the event is ready for another run
        model.run()
        assert oracle.asked.acquire(timeout=SOON)
        model.stop()
        until(lambda: model.state == "stopped")
        assert (len(model.session.journal), model.error, oracle.stop.is_set()) == (0, None, False)


def test_model_stop_kills_a_program() -> None:
    good = npulab.load(CAPTURES / "vivante/sim-1x1")
    device = Command(("sh", "-c", "exec sleep 60"), timeout=50)
    model = BisectModel(good, good.with_fields(relu=1 - good.values["relu"]), device)
    start = time.monotonic()
    model.run()
    model.stop()
    until(lambda: model.state == "stopped")
    assert time.monotonic() - start < SOON
    assert (len(model.session.journal), device.stop.is_set()) == (0, False)


def test_model_stop_where_nothing_runs() -> None:
    oracle = Interrupted()
    model = BisectModel(*pair(), oracle)
    model.stop()
    assert (model.state, oracle.stop.is_set()) == ("asks", False)


def test_model_refuses_while_it_runs() -> None:
    oracle = Slow()
    model = BisectModel(*pair(), oracle)
    model.answer("pass")
    model.run()
    assert oracle.asked.acquire(timeout=SOON)
    for act in (
        lambda: model.answer("fail"),
        model.undo,
        model.again,
        model.run,
        lambda: model.run(breaks("f1")),
    ):
        with pytest.raises(
            ValueError,
            match=r"^(fail|undo|again|run): got it in state 'runs', allowed is then stop$",
        ):
            act()
    assert (model.trial, len(model.session.journal), model.oracle) == (2, 1, oracle)
    model.stop()
    with pytest.raises(
        ValueError, match=r"^fail: got it in state 'stops', allowed is then to wait$"
    ):
        model.answer("fail")
    oracle.go.release()
    until(lambda: model.state == "stopped")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (TimeoutError("no answer\n  from the board"), "TimeoutError: no answer from the board"),
        (KeyError(), "KeyError"),
        (SystemExit(3), "SystemExit: 3"),
        (ValueError("x" * 1000), "ValueError: " + "x" * 388 + "…"),
        (
            "maybe",
            "ValueError: outcome: got 'maybe', allowed is one of pass, fail, hang, poisons, reboots, not executed, refused",
        ),
        (
            None,
            "ValueError: outcome: got None, allowed is one of pass, fail, hang, poisons, reboots, not executed, refused",
        ),
    ],
)
def test_model_of_an_oracle_that_fails(
    said: object, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def oracle(capture: Capture) -> str:
        if model.trial < 3:
            return breaks("f7")(capture)
        if isinstance(said, BaseException):
            raise said
        return said

    model = BisectModel(*pair(), oracle)
    model.run()
    until(lambda: model.state == "failed")
    model._thread.join()
    assert model.note == sentence
    assert model.status == f"{sentence} · Trial 3 is not recorded; run tries it again."
    assert isinstance(model.error, type(said) if isinstance(said, BaseException) else ValueError)
    assert len(model.session.journal) == 2
    assert model.allowed == ("pass", "fail", "hang", "undo", "again", "run")
    with pytest.raises(type(model.error)):
        model.run(wait=True)
    assert (model.state, len(model.session.journal)) == ("failed", 2)
    model.run(breaks("f7"), wait=True)
    assert (model.state, model.note, model.error) == ("done", "", None)
    assert capfd.readouterr() == ("", "")


def test_model_of_an_observer_that_fails() -> None:
    model = BisectModel(*pair(), breaks("f7"))

    def observer(change: object) -> None:
        if model.trial > 2:
            raise RuntimeError("not today")

    model.observe(observer)
    model.run()
    until(lambda: model.state == "failed")
    model._thread.join()
    assert (model.note, len(model.session.journal)) == ("RuntimeError: not today", 2)


def test_model_interrupted_in_this_thread() -> None:
    def oracle(_: Capture) -> str:
        raise KeyboardInterrupt

    model = BisectModel(*pair(), oracle)
    with pytest.raises(KeyboardInterrupt):
        model.run(wait=True)
    assert (model.state, model.note, len(model.session.journal)) == ("stopped", "", 0)


def test_model_undo_and_again() -> None:
    model = BisectModel(*pair())
    first = model.chosen
    model.answer("fail")
    second = model.chosen
    model.again()
    assert (model.trial, model.chosen, model.reason) == (
        2,
        first,
        "asked again: the last outcome was fail",
    )
    model.undo()
    assert (model.trial, model.chosen, model.counts["fail"]) == (2, second, 1)
    model.undo()
    assert (model.trial, model.chosen, model.counts["fail"]) == (1, first, 0)
    model.answer("fail")
    assert (model.trial, model.chosen) == (2, second)
    with pytest.raises(
        ValueError, match=r"^answer: got 'boom', allowed is one of pass, fail, hang$"
    ):
        model.answer("boom")


def test_model_goes_on_from_its_end() -> None:
    model = BisectModel(*pair())
    model.run(breaks("f7"), wait=True)
    trials = model.trial
    assert model.allowed == ("undo", "again")
    model.run()  # nothing is left to run
    with pytest.raises(
        ValueError, match=r"^pass: got it in state 'done', allowed is then undo, again$"
    ):
        model.answer("pass")
    model.undo()
    assert (model.state, model.trial, model.found, model.allowed[-1]) == ("asks", trials, {}, "run")
    model.run(wait=True)
    assert (model.state, model.trial) == ("done", trials)
    model.again()
    assert (model.state, model.trial) == ("asks", trials + 1)


def test_model_undo_of_nothing() -> None:
    for act in ("undo", "again"):
        with pytest.raises(
            ValueError, match=f"^{act}: got it in state 'asks', allowed is then pass, fail, hang$"
        ):
            getattr(BisectModel(*pair()), act)()


def test_model_press_counts_for_its_own_question() -> None:
    model = BisectModel(*pair())
    turn = model.turn
    for _ in range(3):  # pressed three times before the first answer was seen
        model.press("fail", turn)
    assert (model.trial, model.turn) == (2, turn + 1)
    model.press("undo", turn + 1)
    model.press("fail", turn)  # the first trial is asked again, in another turn
    assert (model.trial, model.turn) == (1, turn + 2)
    model.press("hang", turn + 2)
    assert model.counts["hang"] == 1
    with pytest.raises(
        ValueError,
        match=r"^press: got 'explode', allowed is one of pass, fail, hang, undo, again, run, stop$",
    ):
        model.press("explode", model.turn)


def test_model_press_that_goes_wrong_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model = BisectModel(*pair())

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model.session.journal, "add", full)
    model.press("fail", model.turn)
    assert (model.state, model.trial) == ("asks", 1)
    assert model.note == "OSError: [Errno 28] No space left on device"
    monkeypatch.undo()
    model.press("run", model.turn)
    assert model.note.startswith("ValueError: run: got no oracle, allowed is")
    model.press("fail", model.turn)
    assert (model.trial, model.note) == (2, "")


def test_model_press_stop_counts_for_every_question() -> None:
    oracle = Slow()
    model = BisectModel(*pair(), oracle)
    turn = model.turn
    model.press("run", turn)
    oracle.go.release()
    until(lambda: model.trial == 2)
    model.press("stop", turn)
    assert model.state == "stops"
    oracle.go.release()
    until(lambda: model.state == "stopped")


def test_model_goes_on_with_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    one = BisectModel(*pair(), journal=path)
    for outcome in ("pass", "fail", "fail"):
        one.answer(outcome)
    one.undo()
    two = BisectModel(*pair(), journal=str(path))
    for name in ("trial", "chosen", "reason", "suspects", "left", "counts", "progress"):
        assert getattr(two, name) == getattr(one, name)
    assert [row[:3] for row in two.log] == [row[:3] for row in one.log]
    two.answer("fail")
    assert BisectModel(*pair(), journal=path).trial == 4


def test_model_of_a_journal_of_others(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first = BisectModel(*pair(), journal=path)
    with pytest.raises(ValueError, match=r"run\.jsonl: is a journal of something else"):
        BisectModel(*pair(10), journal=path)
    first.answer("pass")  # it is still the one that writes there


def test_model_hands_its_journal_over(tmp_path: Path) -> None:
    path, oracle = tmp_path / "run.jsonl", Slow()
    one = BisectModel(*pair(), oracle, journal=path)
    one.run()
    oracle.go.release()
    for _ in range(2):
        assert oracle.asked.acquire(timeout=SOON)
    until(lambda: one.trial == 2)
    two = BisectModel(*pair(), oracle, journal=path)  # the cell is run again while the oracle works
    assert (two.trial, one.allowed) == (2, ())
    two.run()
    time.sleep(0.1)
    assert oracle.calls == 2  # the device is never asked by both
    oracle.go.release()
    assert oracle.asked.acquire(timeout=SOON)
    assert one.state == "stopped"
    assert one.note == f"{path}: a newer view goes on with this journal"
    with pytest.raises(
        ValueError,
        match=r"^pass: got a view that has ended, allowed is the newer view; "
        r".*run\.jsonl: a newer view goes on with this journal$",
    ):
        one.answer("pass")
    for _ in range(50):
        oracle.go.release()
    until(lambda: two.state == "done")
    assert two.result.culprits == ((0, "NN", "R1", "f7"),)
    assert len(npulab.analysis.bisect.Bisection(*pair(), journal=path).journal) == two.trial


def test_model_is_not_set_from_outside() -> None:
    model = BisectModel(*pair())
    for name in model.trait_names():
        with pytest.raises(traitlets.TraitError, match="read-only"):
            setattr(model, name, getattr(model, name))


def test_model_refuses_what_is_no_oracle() -> None:
    with pytest.raises(
        TypeError, match=r"^oracle: got str, allowed is a function that takes a capture$"
    ):
        BisectModel(*pair(), "simulated")
    with pytest.raises(
        ValueError,
        match=r"^run: got no oracle, allowed is a function that says \"pass\", \"fail\" or \"hang\"",
    ):
        BisectModel(*pair()).run()
    with pytest.raises(TypeError, match="unexpected keyword argument 'flakes'"):
        BisectModel(*pair(), flakes=1)


def test_model_says_what_buffers_addresses_and_writes_are() -> None:
    good, bad = pair(4)
    rows = map_rows(
        """
        block,register,field,lsb,width,value,address
        NN,R0,mode,0,8,,
        NN,R0,where,8,24,raw*64,yes
        """
    )
    maps = {"NN": RegisterMap(rows)}
    good = replace(good, maps=maps, buffers={"input": bytes(8), "output": b"a"})
    bad = replace(bad, maps=maps, buffers={"input": bytes(6) + b"\1\1\1", "output": b"b"})
    model = BisectModel(good, bad, addresses=True)
    assert model.parts == (
        ("NN R0", "mode", "0", "1"),
        ("NN R0", "where", "0x0", "0x100c080"),
        ("buffer", "input", "8 bytes", "9 bytes, 3 differ"),
    )
    model.run(lambda capture: "fail", wait=True)
    writes = [((0, 1),), ((0, 1), (4, 2))]
    registers = RegisterMap(
        map_rows(
            """
            block,offset,register,field,lsb,width
            NN,4,B,b,0,32
            NN,0,A,a,0,32
            """
        )
    )
    good, bad = (
        replace(
            good,
            buffers={},
            maps={"NN": registers},
            jobs=(Job("NN", [0, 0]), Job.from_writes("NN", one, registers)),
        )
        for one in writes
    )
    assert BisectModel(good, bad).parts == (("job 1 NN B", "b", "not written", "2"),)


def test_a_line_says_the_trial() -> None:
    view = BisectView(*pair())
    view.answer("fail")
    told = f"12 fields differ: asks, trial 2, about {view.model.left} left"
    assert repr(view) == f"BisectView(demo/good against bad, {told})"


def test_face() -> None:
    view = BisectView(*pair(name="<script>"))
    face = view._repr_mimebundle_()[0]["text/html"]
    assert "<b>demo/&lt;script&gt; against &lt;script&gt;</b>; Trial 1 takes " in face
    assert all(f">{row.field}</td>" in face for row in view.model.changed)
    assert re.search(r"<td[^>]*>\d\.\d%</td>", face)
    view.run(breaks("f7"), wait=True)
    face = view._repr_mimebundle_()[0]["text/html"]
    assert "NN R1.f7 = 8 (good 0) breaks it" in face
    assert face.count("<tr>") == 2
    assert (
        repr(view)
        == f"BisectView(demo/<script> against <script>, 12 fields differ: done, {view.result.sentence})"
    )


def test_face_has_at_most_60_rows() -> None:
    model = BisectModel(*pair(240))
    model.answer("fail")
    face = model._repr_html_()
    assert len(model.changed) > 60
    assert face.count("<tr>") == 60 + 1 + len(model.suspects) + 1 + LISTED
    assert f"… {len(model.changed) - 58} more" in face


def test_one_simulated_capture_of_two_is_said() -> None:
    good, bad = pair()
    assert BisectModel(replace(good, provenance="simulated"), bad).simulated
    assert BisectModel(good, replace(bad, provenance="simulated")).simulated


def test_script_names_the_oracle(tmp_path: Path) -> None:
    good, bad = (replace(capture, buffers={"output": b"ok"}) for capture in pair())
    command = Command(("sh", "-c", "exit 0"), timeout=5, expected=b"ok")

    def script(oracle: object) -> str:
        model = BisectModel(good, bad)
        model.run(breaks("f7"), wait=True)
        model.oracle = oracle
        return re.search(r"^oracle = (.*)$", model._found()["script"], re.M)[1]

    assert eval(script(command)) == replace(command, expected=None)
    assert script(Recorder(command, tmp_path, "board")) == script(command)
    assert script(Simulated()) == script(Simulated(b"ok")) == "npulab.Simulated()"
    assert script(None) == "npulab.Manual()"
    assert script(Simulated(b"other")) == "npulab.Simulated(npulab.Simulated().run(good).output)"
    assert script(breaks) == "npulab.Manual()  # asks a person; it was breaks"
    assert script(breaks("f7")) == "npulab.Manual()  # asks a person; it was a function"


# ---- the view, with no front end ----


def test_view_takes_what_a_browser_sends() -> None:
    view = BisectView(*pair(), breaks("f7"))
    view._handle_custom_msg({"act": "fail", "turn": view.shown["turn"]}, [])
    assert (view.model.trial, view.shown["trial"], view.shown["counts"]["fail"]) == (2, 2, 1)
    view._handle_custom_msg({"act": "undo", "turn": view.shown["turn"]}, [])
    assert view.shown["trial"] == 1
    view._handle_custom_msg({"act": "run", "turn": view.shown["turn"]}, [])
    until(lambda: view.shown["state"] == "done")
    assert view.shown["found"]["sentence"] == view.result.sentence
    assert view.capture is None


@pytest.mark.parametrize(
    "sent", [None, "pass", {"act": "pass"}, {"act": "pass", "turn": 0, "trial": 1}]
)
def test_view_refuses_what_a_browser_must_not_send(sent: object) -> None:
    view = BisectView(*pair())
    with pytest.raises(ValueError, match=r"^message: got .*, allowed is an act and its turn$"):
        view._receive(view, sent, [])
    assert view.model.trial == 1


def test_view_sends_texts_and_no_bytes() -> None:
    good, bad = (
        replace(capture, buffers={"weights": bytes([n]) * 100_000})
        for n, capture in enumerate(pair())
    )
    view = BisectView(good, bad)
    view.answer("fail")
    state = {name: value for name, value in view.get_state().items() if not name.startswith("_")}
    assert len(json.dumps({name: state[name] for name in ("title", "parts", "shown")})) < 5000


def test_view_has_the_acts_of_its_model() -> None:
    view = BisectView(*pair())
    outcome = breaks("f7")(view.capture)
    view.answer(outcome)
    view.again()
    assert view.shown["reason"] == f"asked again: the last outcome was {outcome}"
    view.undo()
    assert view.capture == view.model.capture
    view.run(breaks("f7"), wait=True)
    view.stop()
    assert (view.result.culprits, view.shown["progress"]) == (((0, "NN", "R1", "f7"),), 1.0)


# ---- the drawing, in a blank page ----


class Linked(BlankPage):
    """A page with its view behind it: ``deliver`` takes to Python what was sent, and back what it
    says.

    Its clock stands still, so that no trial counts as seen before ``look``.
    """

    taken = 0

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self.page.evaluate("window.time = 0; performance.now = () => window.time")

    def deliver(self, view: BisectView) -> None:
        sent = self.sent
        for content in sent[self.taken :]:
            view._handle_custom_msg(content, [])
        self.taken = len(sent)
        self.push(shown=view.shown)

    def look(self) -> None:
        """Let the time pass that a person needs to see a trial."""
        self.page.evaluate("window.time += 1e6")

    def acts(self) -> list[str]:
        return [content["act"] for content in self.sent]

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def enabled(self) -> list[str]:
        return self.page.eval_on_selector_all(
            ".tools button[aria-disabled=false]", "all => all.map(b => b.dataset.act)"
        )

    def rows(self, selector: str) -> list[list[str]]:
        return self.page.eval_on_selector_all(
            f"{selector} tr", "all => all.map(r => [...r.cells].map(c => c.innerText))"
        )


@pytest.mark.sample(1)
@pytest.mark.parametrize("theme", THEMES)
def test_page_in_each_theme(chrome: Browser, theme: str) -> None:
    view = BisectView(*pair(provenance="simulated"))
    view.answer("pass")
    asks = view.shown
    view.run(breaks("f7", "f10"), wait=True)
    with Linked(chrome, view, theme) as page:
        page.push(shown=asks)
        assert not page.page.is_visible(".result")
        page.page.evaluate(
            "document.querySelector('.result').hidden = false"
        )  # both at once, to look at once
        page.page.click(".fold")
        for shown in (
            ".npulab-heading",
            "text=simulated",
            "[role=status]",
            "[role=progressbar]",
            ".tried table",
            ".kept",
            ".suspects table",
            ".trials table",
            ".result table",
            ".script",
            ".npulab-help",
        ):
            assert page.page.is_visible(shown), shown
        assert page.accessibility() == []
        page.cleanup()
        assert page.listeners == 0
        assert page.errors == []


def test_page_shows_the_trial(chrome: Browser) -> None:
    view = BisectView(*pair())
    with Linked(chrome, view) as page:
        taken = [list(row) for row in view.model.changed]
        assert page.rows(".tried tbody:not(.kept)") == [[*row, row[3]] for row in taken]
        assert page.text("[role=status]") == view.model.status
        assert page.text(".reason") == f"why: {view.model.reason}"
        assert page.text(".where") == f"trial 1 · about {view.model.left} left"
        assert page.rows(".kept") == []
        page.page.click(".fold")
        assert page.rows(".kept") == [
            [*row[:3], row[2], row[3]] for row in view.model.parts if list(row) not in taken
        ]
        for outcome in ("pass", "fail"):
            view.answer(outcome)
            page.push(shown=view.shown)
        assert page.rows(".suspects tbody") == [
            [f"{100 * share:.1f} %", text] for text, share in view.model.suspects
        ]
        assert [row[:3] for row in page.rows(".trials tbody")] == [
            [str(number), outcome, str(changed)]
            for number, outcome, changed, _ in view.model.log[::-1]
        ]
        assert page.text(".counts") == "1 pass\n1 fail\n0 hang"
        assert (
            page.page.get_attribute("[role=progressbar]", "aria-valuenow")
            == f"{100 * view.model.progress:.0f}"
        )
        assert len(page.rows(".kept")) + len(page.rows(".tried tbody:not(.kept)")) == FIELDS
        assert page.errors == []


def test_page_keys_do_what_they_say(chrome: Browser) -> None:
    view = BisectView(*pair(), breaks("f7"))
    with Linked(chrome, view) as page:
        page.page.click(".npulab-heading")  # a click anywhere makes the keys live
        page.look()
        assert page.enabled() == ["pass", "fail", "hang", "run"]
        page.press("u a s Escape")  # none makes sense yet
        assert page.sent == []
        for key in "pfhua":
            page.press(key)
            page.deliver(view)
            page.look()
        assert page.acts() == ["pass", "fail", "hang", "undo", "again"]
        assert [content["turn"] for content in page.sent] == [0, 1, 2, 3, 4]
        assert view.model.counts == {"pass": 1, "fail": 1, "hang": 0}
        assert page.enabled() == ["pass", "fail", "hang", "undo", "again", "run"]
        page.press("r")
        page.deliver(view)
        until(lambda: view.model.state == "done")
        page.deliver(view)
        assert page.enabled() == ["undo", "again"]
        page.press("p r s")
        assert page.acts()[5:] == ["run"]
        assert page.errors == []


def test_page_stops_by_key_and_by_button(chrome: Browser) -> None:
    oracle = Slow()
    view = BisectView(*pair(), oracle)
    with Linked(chrome, view) as page:
        for stop in (
            lambda: page.press("Escape"),
            lambda: page.press("s"),
            lambda: page.page.click("button.stop"),
        ):
            page.page.click("button.run")
            page.deliver(view)
            assert page.enabled() == ["stop"]
            assert (
                page.page.evaluate("document.activeElement.dataset.act") == "run"
            )  # the keys stay with the view
            stop()
            page.deliver(view)
            assert page.enabled() == []
            oracle.go.release()
            until(lambda: view.model.state == "stopped")
            page.deliver(view)
            assert page.text("[role=status]").startswith("Stopped before the outcome of trial 1")
        assert page.errors == []


def test_page_answers_no_trial_that_was_not_seen(chrome: Browser) -> None:
    view = BisectView(*pair())
    with Linked(chrome, view) as page:
        page.page.focus("button.pass")
        page.press("p")  # before anybody could look
        assert page.sent == []
        assert page.text("[role=status]") == "Trial 1 has only just come: look at it, then answer."
        page.look()
        page.press("p p Enter f")  # before Python has answered
        assert page.acts() == ["pass", "pass", "pass", "fail"]
        page.deliver(view)
        assert view.model.counts == {"pass": 1, "fail": 0, "hang": 0}
        page.page.dblclick("button.fail")  # as soon as the next trial is there
        page.deliver(view)
        assert view.model.trial == 2


def test_shares_follow_the_trials() -> None:
    model = BisectModel(*pair())
    assert len(model.shares) == len(model.parts)
    before = model.shares
    assert max(before) - min(before) < 10  # nothing is known yet
    culprit = breaks("f3")
    while model.state != "done":
        model.answer(culprit(model.capture))
        assert all(0 <= share <= 100 for share in model.shares)
        [guilty] = [n for n, part in enumerate(model.parts) if part.field == "f3"]
        assert model.shares[guilty] >= max(model.shares) - 10  # it is never below others
    assert [n for n, share in enumerate(model.shares) if share] == [guilty]
    assert model.shares[guilty] > 90
    table = BisectModel(*pair())._repr_html_()
    assert all(f"{part.field}<" in table for part in model.parts)
    assert "… 9 more" in BisectModel(*pair(20))._repr_html_()


def test_page_held_keys_say_it_once(chrome: Browser) -> None:
    view = BisectView(*pair())
    with Linked(chrome, view) as page:
        page.page.focus("button.fail")
        page.look()
        for key, times in (("p", 3), ("Enter", 3), (" ", 3)):
            for _ in range(times):
                page.page.keyboard.down(key)
            page.page.keyboard.up(key)
        assert page.acts() == ["pass", "fail", "fail"]


def test_page_keeps_its_keys_to_itself(chrome: Browser) -> None:
    view = BisectView(*pair())
    with Linked(chrome, view) as page:
        page.page.evaluate(
            "window.reached = []; document.addEventListener('keydown', e => reached.push(e.key))"
        )
        page.page.focus("button.pass")
        page.press(
            "m x d Shift+P Enter ArrowRight ArrowDown Home Backspace Tab PageDown ArrowUp Escape Control+s Shift+Enter F5",
        )
        assert page.page.evaluate("reached") == [
            "Shift",
            "Tab",
            "Escape",
            "Control",
            "s",
            "Shift",
            "Enter",
            "F5",
        ]
        page.look()
        page.page.evaluate("""document.activeElement.dispatchEvent(
          new KeyboardEvent('keydown', {key: 'P', bubbles: true}))""")  # as Caps Lock types it
        assert page.acts() == ["pass"]


def test_page_is_gone_through_by_tab_and_arrows(chrome: Browser) -> None:
    view = BisectView(*pair())
    with Linked(chrome, view) as page:
        seen = []
        for key in (
            "Tab",
            "ArrowRight",
            "ArrowRight",
            "ArrowLeft",
            "End",
            "ArrowRight",
            "Home",
            "End",
            "Tab",
            "Tab",
            "Tab",
        ):
            page.press(key)
            seen.append(page.page.evaluate("document.activeElement.className"))
        assert seen == [
            "pass",
            "fail",
            "hang",
            "fail",
            "stop",
            "stop",
            "pass",
            "stop",
            "strip",
            "scroll",
            "fold",
        ]
        assert page.page.locator(".tools [tabindex='0']").count() == 1
        assert [
            button.get_attribute("aria-keyshortcuts")
            for button in page.page.locator(".tools button").all()
        ] == list("pfhuars")
        assert page.page.get_by_role("button", name="Ask again", exact=True).count() == 1


def test_page_strip_shows_how_probable_each_field_is(chrome: Browser) -> None:
    view = BisectView(*pair())
    view.answer("pass")
    with Linked(chrome, view) as page:
        cells = page.page.locator(".strip .part")
        assert cells.count() == len(view.parts) == len(view.shares)
        taken = page.page.locator(".strip .taken").count()
        assert taken == len(view.chosen)
        page.page.focus(".strip")
        page.press("Home")
        for index in range(3):
            where, field = view.parts[index][:2]
            assert page.text(".told").startswith(f"{view.shares[index]} % {where} {field}")
            page.press("ArrowRight")
        assert page.page.locator(".strip [aria-selected='true']").count() == 1
        assert page.accessibility() == []
        done = BisectView(*pair())
        done.run(breaks("f1", "f10"), wait=True)
        page.push(shown=done.shown)
        shares = cells.evaluate_all(
            "all => all.map(one => parseFloat(one.style.getPropertyValue('--share')))"
        )
        names = [view.parts[index][1] for index, share in enumerate(shares) if share]
        assert names == ["f1", "f10"]
        assert page.errors == []


def test_page_breaks_no_heading_and_no_number(chrome: Browser) -> None:
    """Values of 32 bits and headings stay whole in the width that a notebook leaves."""
    rows = [
        {
            "block": "NN",
            "offset": 4 * n,
            "field": f"address_of_everything_{n}",
            "lsb": 0,
            "width": 32,
        }
        for n in range(3)
    ]
    registers = RegisterMap(rows)
    good, bad = (
        Capture(name, "demo", "x", (Job("NN", words),), maps={"NN": registers})
        for name, words in (("good", [0] * 3), ("bad", [4294967231] * 3))
    )
    with Linked(chrome, BisectView(good, bad)) as page:
        for width in (760, 960):
            page.page.set_viewport_size({"width": width, "height": 900})
            broken = page.page.evaluate("""() => [...document.querySelectorAll('.tried :is(th, td)')]
              .filter(one => { const text = document.createRange(); text.selectNodeContents(one);
                               return one.cellIndex !== 1 && text.getClientRects().length > 1; })
              .map(one => one.textContent)""")
            assert broken == []


def test_page_of_a_result(chrome: Browser) -> None:
    view = BisectView(*pair())
    view.run(breaks("f1", "f10"), wait=True)
    with Linked(chrome, view) as page:
        assert page.text("[role=status]") == f"Done: {view.result.sentence}."
        assert [row[:4] for row in page.rows(".result tbody")] == [
            ["NN R0", "f1", "0", "2"],
            ["NN R2", "f10", "0", "11"],
        ]
        assert page.text(".script") == view.result.script(
            oracle="npulab.Manual()  # asks a person; it was a function"
        )
        page.page.click(".copy")  # a blank page has no clipboard
        assert page.text("[role=status]") == "The script is selected: Ctrl+C or Cmd+C copies it."
        assert (
            page.page.evaluate("getSelection().toString()").strip() == page.text(".script").strip()
        )
        page.page.evaluate(
            "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async t => { copied = t }}})"
        )
        page.page.click(".copy")
        page.page.wait_for_function(
            "document.querySelector('[role=status]').textContent === 'The script is copied.'"
        )
        assert page.page.evaluate("copied") == view.shown["found"]["script"]
        view.undo()
        page.push(shown=view.shown)
        assert page.page.is_visible(".tried")
        assert not page.page.is_visible(".result")
        assert page.errors == []


def test_page_of_many_fields_fits(chrome: Browser) -> None:
    good, bad = pair(240)
    rows = [
        {
            "block": "NN",
            "offset": 4 * item.pieces[0].word,
            "register": "A_REGISTER_" * 4 + item.register,
            "field": "a_field_of_a_long_name_" * 3 + item.name,
            "lsb": item.pieces[0].lsb,
            "width": 8,
        }
        for item in good.maps["NN"]
        if not item.automatic
    ]
    maps = {"NN": RegisterMap(rows)}
    view = BisectView(
        replace(good, maps=maps, name="good" * 20), replace(bad, maps=maps, name="bad" * 20)
    )
    with Linked(chrome, view, size=(700, 900)) as page:
        page.push(shown={**view.shown, "chosen": list(range(230))})
        shown = page.rows(".tried tbody:not(.kept)")
        assert (len(shown), shown[-1]) == (201, ["… 30 more"])
        assert page.text(".fold") == f"▸ 10 stay as in {'good' * 20}"
        for selector in ("html", ".npulab-bisect", ".scroll"):
            assert page.page.eval_on_selector(
                selector, "one => one.scrollWidth <= one.clientWidth"
            ), selector
