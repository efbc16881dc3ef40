"""Which field breaks it, asked of a person or of an oracle: a bisection to look at, to answer and
to run.

``BisectModel`` holds the state and all the logic and needs no browser; ``BisectView`` shows it.
"""

from __future__ import annotations

import html
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import traitlets

from npulab.analysis.bisect import MAX_HANGS, Bisected, Bisection, Oracle
from npulab.analysis.bisect.parts import BUFFER
from npulab.analysis.check import Difference
from npulab.analysis.sides import jobs_of
from npulab.captures.capture import Capture
from npulab.captures.devices import as_code
from npulab.captures.journal import OUTCOMES, Journal
from npulab.notebook.widgets.frame import Model, View, assets, table_html
from npulab.support.processes import Stopped
from npulab.support.refuse import need, refuse_if
from npulab.support.text import plural

STATES = ("asks", "runs", "stops", "stopped", "failed", "done")
RUNNING = ("runs", "stops")
ACTS = (*OUTCOMES, "undo", "again", "run", "stop")
LOGGED = 8  # trials
LETTERS = 80  # of a value
SENTENCE = 400  # letters of what an oracle raised
POLL = 0.05  # seconds


class Row(NamedTuple):
    """A part that differs, as texts: where it lies, its name, what it is in the good and in the bad
    capture."""

    where: str
    field: str
    good: str
    bad: str


# One journal has one writer: a cell that is run again takes it over from the model that it made
# before.
_WRITERS: WeakValueDictionary[Path, BisectModel] = WeakValueDictionary()


class BisectModel(Model):
    """A bisection that a person answers, or an oracle in a thread; it needs no browser.

    ``options`` are those of ``Bisection``; with a ``journal`` it goes on where that ended.  An
    oracle is stopped after ``max_hangs`` hangs in all.  ``state`` is "asks" (it waits for an
    answer), "runs" (the oracle does), "stops" (when the oracle is back), "stopped", "failed" (the
    oracle raised ``error``) or "done"; ``allowed`` says what can be done in it.  ``trial`` counts
    from 1 and says which is asked, ``reason`` why, ``chosen`` which of ``parts`` are as in the bad
    capture; ``turn`` never comes twice, so that an answer can be held to the question it was given
    for.  All of these and ``counts``, ``suspects`` (text, probability), ``left`` (trials, about),
    ``progress`` (0 to 1), ``log`` (the last trials: number, outcome, parts changed, seconds),
    ``note`` (what went wrong) and ``found`` (the result as texts) can be observed, none be set.

    Raises what ``Bisection`` does; ValueError for what is not allowed in a state.

    >>> from npulab.bits import RegisterMap
    >>> from npulab.capture import Job
    >>> registers = RegisterMap([dict(block="NN", field=f"f{n}", lsb=n, width=1) for n in range(32)])
    >>> good, bad = (Capture(name, "demo", "x", (Job("NN", [word]),), maps={"NN": registers})
    ...              for name, word in (("good", 0), ("bad", 2 ** 32 - 1)))
    >>> model = BisectModel(good, bad)
    >>> model.answer("pass")
    >>> model.undo()
    >>> model.run(lambda capture: "fail" if capture.words[0] >= 2 ** 31 else "pass", wait=True)
    >>> model.state, model.result.culprits
    ('done', ((0, 'NN', 'w0', 'f31'),))
    """

    state = traitlets.Enum(STATES, "asks", read_only=True)
    turn = traitlets.Int(read_only=True)
    trial = traitlets.Int(read_only=True)
    reason = traitlets.Unicode(read_only=True)
    chosen = traitlets.List(traitlets.Int(), read_only=True)
    counts = traitlets.Dict(read_only=True)
    suspects: traitlets.List[Any] = traitlets.List(read_only=True)
    left = traitlets.Int(read_only=True)
    progress = traitlets.Float(read_only=True)
    log: traitlets.List[Any] = traitlets.List(read_only=True)
    note = traitlets.Unicode(read_only=True)
    found = traitlets.Dict(read_only=True)

    def __init__(
        self,
        good: Capture,
        bad: Capture,
        oracle: Oracle | None = None,
        *,
        max_hangs: int = MAX_HANGS,
        **options: Any,
    ) -> None:
        for one in (good, bad):
            need("BisectView", one, Capture, "is a Capture, as npulab.load gives")
        self.oracle, self.max_hangs = _callable(oracle), max_hangs
        self.error: BaseException | None = None
        self._lock = threading.RLock()
        self._halt = threading.Event()
        self._thread: threading.Thread | None = None
        self._retired = ""
        journal = options.get("journal")
        if isinstance(journal, Journal):
            path = journal.path
        elif isinstance(journal, str | os.PathLike):
            path = Path(journal)
        else:
            path = None
        before = None
        if path is not None:
            before = _WRITERS.get(path.resolve())
        if before is not None:
            before.stop()
        self.session = Bisection(good, bad, **options)
        if path is not None:
            _WRITERS[path.resolve()] = self
        if before is not None:
            before._retire(f"{path}: a newer view goes on with this journal")
            self._thread = before._thread
        self.parts = tuple(_row(self.session, part) for part in self.session.differences)
        self._places = {part.key: place for place, part in enumerate(self.session.differences)}
        super().__init__()
        self._publish("asks")

    # ---- what it says ----

    @property
    def title(self) -> str:
        return (
            f"{self.session.good.target}/{self.session.good.name} against {self.session.bad.name}"
        )

    @property
    def simulated(self) -> bool:
        return self.session.good.simulated or self.session.bad.simulated

    @property
    def summary(self) -> str:
        if self.state == "done":
            end = self.found["sentence"]
        else:
            end = f"trial {self.trial}, about {self.left} left"
        return f"{_counted(self.parts)} differ: {self.state}, {end}"

    @property
    def line(self) -> str:
        return f"{self.title}{', simulated' if self.simulated else ''}, {self.summary}"

    @property
    def changed(self) -> list[Row]:
        """The parts that the trial takes from the bad capture."""
        return [self.parts[place] for place in self.chosen]

    @property
    def capture(self) -> Capture | None:
        """The capture to run now; None when it is done."""
        with self._lock:
            trying = self.session.trial
        if trying is None:
            return None
        return trying.capture

    @property
    def result(self) -> Bisected:
        """What is known now."""
        with self._lock:
            return self.session.result

    @property
    def allowed(self) -> tuple[str, ...]:
        """What can be done in this state, of "pass", "fail", "hang", "undo", "again", "run" and
        "stop"."""
        if self._retired or self.state == "stops":
            return ()
        if self.state == "runs":
            return ("stop",)
        back = ("undo", "again") if any(self.counts.values()) else ()
        if self.state == "done":
            return back
        return *OUTCOMES, *back, *(("run",) if self.oracle is not None else ())

    @property
    def status(self) -> str:
        """The state in one sentence."""
        taken = f"{_counted(self.changed)} of {len(self.parts)} from {self.session.bad.name}"
        said = {
            "asks": f"Trial {self.trial} takes {taken}: does it pass, fail or hang?",
            "runs": f"Trial {self.trial} runs with {taken}.",
            "stops": f"Stops when trial {self.trial} has ended; its outcome will not count.",
            "stopped": f"Stopped before the outcome of trial {self.trial}, which takes {taken}.",
            "failed": f"Trial {self.trial} is not recorded; run tries it again.",
            "done": f"Done: {self.found.get('sentence', '')}.",
        }[self.state]
        if self.note:
            return f"{self.note} · {said}"
        return said

    @property
    def shown(self) -> dict[str, Any]:
        """Everything that changes, as JSON has it: one message to a view, so that it never shows
        half of a trial."""
        with self._lock:
            names = (
                "state",
                "turn",
                "trial",
                "reason",
                "chosen",
                "counts",
                "suspects",
                "left",
                "progress",
                "log",
                "found",
            )
            return {name: getattr(self, name) for name in names} | {
                "status": self.status,
                "allowed": list(self.allowed),
            }

    # ---- what it does ----

    def answer(self, outcome: str) -> None:
        """The outcome of the trial that is asked: "pass", "fail" or "hang"; it is in the journal
        when this returns."""
        if outcome not in OUTCOMES:
            raise ValueError(f"answer: got {outcome!r}, allowed is one of {', '.join(OUTCOMES)}")
        self._turn(outcome, partial(self.session.tell, outcome))

    def undo(self) -> None:
        """Take the last verdict back."""
        self._turn("undo", self.session.undo)

    def again(self) -> None:
        """Ask for the last trial once more, where its outcome is in doubt; both outcomes count."""
        self._turn("again", self.session.again)

    def run(self, oracle: Oracle | None = None, wait: bool = False) -> None:
        """Have the oracle answer trial by trial until it is done, in a thread.

        With ``wait`` it does so in this thread, and what the oracle raises is raised.  Nothing
        happens where there is no trial left.
        """
        with self._lock:
            self._allow("run")
            if oracle is not None:
                self.oracle = _callable(oracle)
            if self.oracle is None:
                raise ValueError(
                    'run: got no oracle, allowed is one that says "pass", "fail" or "hang" of a '
                    "capture"
                )
            if self.state == "done":
                return
            self._halt, self.error = threading.Event(), None
            work = partial(self._work, self.oracle, self._halt, self._thread)
            if not wait:
                self._thread = threading.Thread(
                    target=work, name=f"bisect {self.title}", daemon=True
                )
                self._thread.start()  # it waits for the lock
            self._publish("runs")
        if wait:
            work()
            if self.error is not None:
                raise self.error

    def stop(self) -> None:
        """End a run; the trial under way does not count.

        An oracle with an event ``stop``, as ``Command`` has, is told at once; others come to their
        end first.
        """
        self._halt.set()  # before the lock, so that no further trial begins
        with self._lock:
            if self.state == "runs":
                if (event := _stop_of(self.oracle)) is not None:
                    event.set()
                self._publish("stops")

    def press(self, act: str, turn: int) -> None:
        """Do what was pressed in a view: one of ``ACTS``.

        What is about a question ("run" and "stop" are not) is ignored where that of its ``turn`` is
        over.  What goes wrong is said in ``note``.
        """
        refuse_if(act not in ACTS, "press", repr(act), f"is one of {', '.join(ACTS)}")
        with self._lock:
            if act not in ("run", "stop") and turn != self.turn:
                return
            try:
                self.answer(act) if act in OUTCOMES else getattr(self, act)()
            except Exception as error:  # nobody would see it: a message has no cell to fail
                self._publish(self.state, sentence(error))

    def _turn(self, act: str, do: Callable[[], object]) -> None:
        with self._lock:
            self._allow(act)
            do()
            self._publish("asks", turned=True)

    def _allow(self, act: str) -> None:
        if self._retired:
            raise ValueError(f"{act}: got it where {self._retired}")
        refuse_if(
            self.state in RUNNING if act == "run" else act not in self.allowed,
            act,
            f"it in state {self.state!r}",
            f"there is {', '.join(self.allowed) or 'to wait'}",
        )

    def _retire(self, why: str) -> None:
        with self._lock:
            self._retired = why
            self._publish(self.state)

    def _publish(self, state: str, note: str = "", turned: bool = False) -> None:
        """Set every trait to what the session says now, with no change told before all are made;
        ``turned`` where the question is another."""
        session, trying = self.session, self.session.trial
        counts = Counter(trial.outcome for trial in session.journal)
        facts = {
            "state": state if trying else "done",
            "turn": self.turn + turned,
            "trial": session.queries + bool(trying),
            "left": session.left if trying else 0,
            "reason": trying.reason if trying else "",
            "chosen": [self._places[part.key] for part in trying.changed] if trying else [],
            "counts": {outcome: counts[outcome] for outcome in OUTCOMES},
            "suspects": [(one.text, one.probability) for one in session.suspects],
            "progress": session.queries / (session.queries + session.left) if trying else 1.0,
            "log": [
                (number, one.outcome, len(one.subset), one.seconds)
                for number, one in enumerate(session.journal, 1)
            ][-LOGGED:],
            "found": {} if trying else self._found(),
            "note": note or self._retired,
        }
        with self.hold_trait_notifications():
            for name, value in facts.items():
                self.set_trait(name, value)

    def _found(self) -> dict[str, Any]:
        result = self.session.result
        rows = [
            [*self.parts[self._places[key]], number]
            for number, group in enumerate(result.groups, 1)
            for key in group
        ]
        script = ""
        if rows:
            script = result.script(oracle=as_code(self.oracle, result.good))
        return {"sentence": result.sentence, "rows": rows, "script": script}

    # ---- the oracle's thread ----

    def _work(self, oracle: Oracle, halt: threading.Event, before: threading.Thread | None) -> None:
        try:
            while before is not None and before.is_alive() and not halt.wait(POLL):
                pass  # what ran before may still hold the device
            self._ask(oracle, halt)
            self._ended(halt)
        except BaseException as error:  # nobody would hear of it in a thread
            with suppress(Exception):  # an observer's, once more
                self._ended(halt, error)

    def _ask(self, oracle: Oracle, halt: threading.Event) -> None:
        with self._lock:
            trying = self.session.trial
        while trying is not None and not halt.is_set():
            if self.session.journal.hangs >= self.max_hangs:
                with self._lock:
                    self._publish(
                        "stopped", f"{self.max_hangs} trials hung, which is as many as allowed"
                    )
                return
            start = time.monotonic()
            outcome = oracle(trying.capture)
            seconds = time.monotonic() - start
            with self._lock:
                if halt.is_set():
                    return
                self.session.tell(outcome, seconds)
                trying = self.session.trial
                self._publish("runs", turned=True)

    def _ended(self, halt: threading.Event, error: BaseException | None = None) -> None:
        with self._lock:
            if halt is not self._halt:
                return  # another run has begun since this one was done
            if halt.is_set() and (event := _stop_of(self.oracle)) is not None:
                event.clear()
            if halt.is_set() or isinstance(error, Stopped):
                self._publish("stopped")
            elif isinstance(error, KeyboardInterrupt):
                self.error = error
                self._publish("stopped")
            elif error is not None:
                self.error = error
                self._publish("failed", sentence(error))

    def _repr_html_(self) -> str:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        head = self.heading_html(self.status)
        if self.state == "done":
            rows = [
                (*row[:4], "" if len(self.result.groups) < 2 else str(row[4]))
                for row in self.found["rows"]
            ]
            table = table_html(("register", "field", "good", "bad", ""), rows)
            return f"{head}<p>{counts}</p>{table if rows else ''}"
        suspects = [(f"{probability:.1%}", text) for text, probability in self.suspects]
        return (
            f"{head}<p>{counts}, about {self.left} trials left; {html.escape(self.reason)}</p>"
            f"{table_html(('register', 'field', 'good', 'tried, bad'), self.changed)}"
            f"{table_html(('probable', 'suspect'), suspects)}"
        )


class BisectView(View):
    """A bisection to answer by button and by key, or to run with an oracle and to stop.

    ``options`` are those of ``Bisection``; with a ``journal`` it goes on where that ended.
    Everything is on ``model``, which can be observed; ``capture`` is what to run now, ``result``
    what is known.
    """

    _esm, _css = assets("bisect_view")

    good = traitlets.Unicode().tag(sync=True)
    bad = traitlets.Unicode().tag(sync=True)
    parts: traitlets.List[Any] = traitlets.List().tag(sync=True)
    shown = traitlets.Dict().tag(sync=True)

    def __init__(
        self, good: Capture, bad: Capture, oracle: Oracle | None = None, **options: Any
    ) -> None:
        model = BisectModel(good, bad, oracle, **options)
        super().__init__(
            model,
            good=good.name,
            bad=bad.name,
            shown=model.shown,
            parts=[list(row) for row in model.parts],
        )
        model.observe(self._show)

    def _show(self, _: Any) -> None:
        self.shown = self.model.shown

    def _receive(self, _: Any, content: Any, __: Any) -> None:
        """``{"act": "pass", "turn": 3}`` as the page sends it."""
        if not isinstance(content, dict) or content.keys() != {"act", "turn"}:
            raise ValueError(f"message: got {content!r:.80}, allowed is an act and its turn")
        self.model.press(content["act"], content["turn"])


def _callable(oracle: Any) -> Callable[[Capture], str] | None:
    if oracle is not None and not callable(oracle):
        raise TypeError(
            f"oracle: got {type(oracle).__name__}, allowed is what is called with a capture"
        )
    return oracle


def _stop_of(oracle: Any) -> threading.Event | None:
    event = getattr(oracle, "stop", None)
    if isinstance(event, threading.Event):
        return event
    return None


def sentence(error: BaseException) -> str:
    """What was raised, on a line of at most ``SENTENCE`` letters."""
    text = " ".join(str(error).split())
    if text:
        said = f"{type(error).__name__}: {text}"
    else:
        said = type(error).__name__
    if len(said) <= SENTENCE:
        return said
    return f"{said[:SENTENCE]}…"


def _row(session: Bisection, part: Difference) -> Row:
    """A part that differs, as texts; of a buffer its length, and how many bytes differ."""
    if part.block == BUFFER:
        one, other = (
            np.frombuffer(capture.buffers.get(part.register, b""), np.uint8)
            for capture in (session.good, session.bad)
        )
        both = min(len(one), len(other))
        differ = int(np.count_nonzero(one[:both] != other[:both])) + abs(len(one) - len(other))
        return Row(
            "buffer", part.register, f"{len(one)} bytes", f"{len(other)} bytes, {differ} differ"
        )
    jobs = jobs_of(session.good, session.bad)
    task = ""
    if len(jobs) > 1:
        task = f"{jobs[part.task].name or f'job {part.task}'} "
    where = f"{task}{part.block} {part.register}".strip()
    return Row(where, part.field, _meant(part.a, part.address), _meant(part.b, part.address))


def _meant(value: Any, address: bool) -> str:
    if value is None:
        text = "not written"
    elif address and isinstance(value, int):
        text = f"{value:#x}"
    else:
        text = str(value)
    if len(text) <= LETTERS:
        return text
    return f"{text[:LETTERS]}…"


def _counted(rows: Sequence[Row]) -> str:
    """How many fields and buffers, in words.

    >>> _counted([Row("NN w0", "relu", "0", "1"), Row("buffer", "input", "4 bytes", "4 bytes, 1 differ")])
    '1 field and 1 buffer'
    """
    buffers = sum(row.where == "buffer" for row in rows)
    told = [
        plural(count, name)
        for count, name in ((len(rows) - buffers, "field"), (buffers, "buffer"))
        if count
    ]
    return " and ".join(told) or "nothing"
