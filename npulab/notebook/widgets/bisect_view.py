"""A bisection as a view: the search for the fields that break a capture. A person or an oracle says
the outcome of each trial.

``BisectModel`` holds the state and all the logic and needs no browser; ``BisectView`` shows it.
"""

from __future__ import annotations

import html
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
from traitlets import Dict, Enum, Float, Int, List, Unicode

from npulab.analysis.bisect import MAX_HANGS, Bisected, Bisection, Oracle
from npulab.analysis.check import Difference
from npulab.analysis.edited import edited_job, is_job
from npulab.analysis.records import BUFFER, BYTES, OTHERS
from npulab.analysis.sides import jobs_of
from npulab.captures.capture import Capture
from npulab.captures.devices import as_code
from npulab.captures.journal import ANSWERS, Journal, outcomes_counted
from npulab.notebook.widgets.frame import Model, View, assets, table_html
from npulab.support.processes import Stopped
from npulab.support.refuse import need, refuse_if
from npulab.support.text import plural

STATES = ("asks", "runs", "stops", "stopped", "failed", "done")
RUNNING = ("runs", "stops")
ACTS = (*ANSWERS, "undo", "again", "run", "stop")
# the page gets these attributes of the model
SHOWN = (
    "state",
    "turn",
    "trial",
    "reason",
    "chosen",
    "counts",
    "suspects",
    "shares",
    "left",
    "progress",
    "log",
    "found",
    "status",
)
LOGGED = 8  # the log has at most this many trials
LISTED = 12  # the HTML lists at most this many parts by their probability
LETTERS = 80  # at most this many letters of a value are shown
SENTENCE = 400  # at most this many letters of an error are shown
POLL = 0.05  # a run looks at this interval, in seconds, if an earlier run has ended


class Row(NamedTuple):
    """A part (a field, a buffer or a whole job) in which the captures differ, as texts: its place,
    its name, its value in the good capture and in the bad one.
    """

    where: str
    field: str
    good: str
    bad: str


# The model that writes a journal, by the journal's path: if a cell is run again, the new model
# takes the journal over from the model of the earlier run.
_WRITERS: WeakValueDictionary[Path, BisectModel] = WeakValueDictionary()


class BisectModel(Model):
    """A bisection whose trials a person answers, or an oracle in a thread; it needs no browser.

    ``options`` are those of ``Bisection``; with a ``journal`` it continues where the journal ends.
    An oracle is stopped after ``max_hangs`` hangs in all. ``allowed`` has the acts that are
    possible now. These can be observed, but not set:

    - ``state``: "asks" (waits for an answer), "runs" (the oracle answers), "stops" (waits for the
      oracle to return), "stopped", "failed" (the oracle raised ``error``) or "done";
    - ``trial``: the number of the present trial, from 1; ``reason``: why this trial is made;
      ``chosen``: the indices of the ``parts`` that the trial takes from the bad capture;
    - ``turn``: a number that never repeats, by which an answer is matched with its question;
    - ``counts``: trials by outcome; ``left``: about how many trials are left; ``progress``: 0 to 1;
    - ``suspects``: (text, probability); ``shares``: for each of ``parts`` the probability that the
      part contributes to the failure, in whole percent;
    - ``log``: the last trials (number, outcome, number of parts changed, seconds);
    - ``note``: an error; ``found``: the result as texts.

    Raises as ``Bisection``; ValueError for an act that is not allowed in a state.

    >>> from npulab.bits import RegisterMap
    >>> from npulab.capture import Job
    >>> fields = [{"block": "NN", "field": f"f{n}", "lsb": n, "width": 1} for n in range(32)]
    >>> registers = RegisterMap(fields)
    >>> good, bad = (Capture(name, "demo", "x", (Job("NN", [word]),), maps={"NN": registers})
    ...              for name, word in (("good", 0), ("bad", 2 ** 32 - 1)))
    >>> model = BisectModel(good, bad)
    >>> model.answer("pass")
    >>> model.undo()
    >>> model.run(lambda capture: "fail" if capture.words[0] >= 2 ** 31 else "pass", wait=True)
    >>> model.state, model.result.culprits
    ('done', ((0, 'NN', 'w0', 'f31'),))
    """

    state = Enum(STATES, "asks", read_only=True)
    turn = Int(read_only=True)
    trial = Int(read_only=True)
    reason = Unicode(read_only=True)
    chosen = List(Int(), read_only=True)
    counts = Dict(read_only=True)
    suspects: List[Any] = List(read_only=True)
    shares = List(Int(), read_only=True)
    left = Int(read_only=True)
    progress = Float(read_only=True)
    log: List[Any] = List(read_only=True)
    note = Unicode(read_only=True)
    found = Dict(read_only=True)

    def __init__(
        self,
        good: Capture,
        bad: Capture,
        oracle: Oracle | None = None,
        *,
        max_hangs: int = MAX_HANGS,
        **options: Any,
    ) -> None:
        for capture in (good, bad):
            need("BisectView", capture, Capture, "is a Capture, as npulab.load gives")
        self.oracle, self.max_hangs = _callable(oracle), max_hangs
        self.error: BaseException | None = None
        self._lock = threading.RLock()
        self._halt = threading.Event()
        self._thread: threading.Thread | None = None
        self._retired = ""
        path = options.get("journal")
        if isinstance(path, Journal):
            path = path.path
        before = None
        if path is not None:
            path = Path(path)
            before = _WRITERS.get(path.resolve())
        if before is not None:
            before.stop()
        self.session = Bisection(good, bad, **options)
        if path is not None:
            _WRITERS[path.resolve()] = self
        if before is not None:
            before._retire(f"{path}: a newer view goes on with this journal")
            self._thread = before._thread
        self.parts = tuple(_part_row(self.session, part) for part in self.session.differences)
        self._places = {part.key: place for place, part in enumerate(self.session.differences)}
        super().__init__()
        self._publish("asks")

    # ---- the state as text ----

    @property
    def title(self) -> str:
        good = self.session.good
        return f"{good.target}/{good.name} against {self.session.bad.name}"

    @property
    def simulated(self) -> bool:
        return self.session.good.simulated or self.session.bad.simulated

    @property
    def summary(self) -> str:
        end = f"trial {self.trial}, about {self.left} left"
        if self.state == "done":
            end = self.found["sentence"]
        return f"{_counts_text(self.parts)} differ: {self.state}, {end}"

    @property
    def line(self) -> str:
        return f"{self.marked_title}, {self.summary}"

    @property
    def changed(self) -> list[Row]:
        """The parts that the present trial takes from the bad capture."""
        return [self.parts[place] for place in self.chosen]

    @property
    def capture(self) -> Capture | None:
        """The capture of the present trial, to be run; None if the bisection is done."""
        with self._lock:
            return getattr(self.session.trial, "capture", None)

    @property
    def result(self) -> Bisected:
        """The result of the bisection so far."""
        with self._lock:
            return self.session.result

    @property
    def allowed(self) -> tuple[str, ...]:
        """The acts that are possible now, out of "pass", "fail", "hang", "undo", "again", "run" and
        "stop".
        """
        if self._retired or self.state == "stops":
            return ()
        if self.state == "runs":
            return ("stop",)
        acts: list[str] = []
        if self.state != "done":
            acts += ANSWERS
        if any(self.counts.values()):
            acts += ("undo", "again")
        if self.state != "done" and self.oracle is not None:
            acts.append("run")
        return tuple(acts)

    @property
    def status(self) -> str:
        """A sentence about the state and the present trial."""
        taken = f"{_counts_text(self.changed)} of {len(self.parts)} from {self.session.bad.name}"
        status = {
            "asks": f"Trial {self.trial} takes {taken}: does it pass, fail or hang?",
            "runs": f"Trial {self.trial} runs with {taken}.",
            "stops": f"Stops when trial {self.trial} has ended; its outcome will not count.",
            "stopped": f"Stopped before the outcome of trial {self.trial}, which takes {taken}.",
            "failed": f"Trial {self.trial} is not recorded; run tries it again.",
            "done": f"Done: {self.found.get('sentence', '')}.",
        }[self.state]
        if self.note:
            return f"{self.note} · {status}"
        return status

    @property
    def shown(self) -> dict[str, Any]:
        """Everything that changes, as JSON values, in one message: the page never shows half of a
        trial.
        """
        with self._lock:
            shown = {name: getattr(self, name) for name in SHOWN}
            return {**shown, "allowed": list(self.allowed)}

    # ---- acts of a person or the page ----

    def answer(self, outcome: str) -> None:
        """Give the present trial its outcome: "pass", "fail" or "hang"; when this returns, the
        outcome is in the journal.
        """
        if outcome not in ANSWERS:
            raise ValueError(f"answer: got {outcome!r}, allowed is one of {', '.join(ANSWERS)}")
        self._turn(outcome, partial(self.session.tell, outcome))

    def undo(self) -> None:
        """Take the last outcome back, or, right after ``again``, only the repeated question."""
        self._turn("undo", self.session.undo)

    def again(self) -> None:
        """Ask the last trial again, because its outcome is in doubt; both outcomes count."""
        self._turn("again", self.session.again)

    def run(self, oracle: Oracle | None = None, wait: bool = False) -> None:
        """Let the oracle answer all trials that are left, in a thread.

        With ``wait`` the oracle answers in this thread, and an error of it is raised. If no trial
        is left, nothing happens.
        """
        with self._lock:
            self._allow("run")
            if oracle is not None:
                self.oracle = _callable(oracle)
            if self.oracle is None:
                raise ValueError(
                    'run: got no oracle, allowed is a function that says "pass", "fail" or "hang" '
                    "of a capture"
                )
            if self.state == "done":
                return
            self._halt, self.error = threading.Event(), None
            work = partial(self._work, self.oracle, self._halt, self._thread)
            if not wait:
                self._thread = threading.Thread(
                    target=work, name=f"bisect {self.title}", daemon=True
                )
                self._thread.start()  # the thread waits for the lock before its first trial
            self._publish("runs")
        if wait:
            work()
            if self.error is not None:
                raise self.error

    def stop(self) -> None:
        """End a run of the oracle; the trial under way does not count.

        If the oracle has an event ``stop``, as ``Command`` has, the event is set; any other oracle
        finishes its trial first.
        """
        self._halt.set()  # set without the lock, so that no further trial begins
        with self._lock:
            if self.state == "runs":
                event = _stop_of(self.oracle)
                if event is not None:
                    event.set()
                self._publish("stops")

    def press(self, act: str, turn: int) -> None:
        """Do an act that was pressed on the page: one of ``ACTS``.

        Acts other than "run" and "stop" belong to the question of a ``turn``, and are ignored if
        that question is over. Errors are reported in ``note``.
        """
        refuse_if(act not in ACTS, "press", repr(act), f"is one of {', '.join(ACTS)}")
        with self._lock:
            if act not in ("run", "stop") and turn != self.turn:
                return
            try:
                if act in ANSWERS:
                    self.answer(act)
                else:
                    getattr(self, act)()
            except Exception as error:  # no cell could show an error of a page's message
                self._publish(self.state, sentence(error))

    def _turn(self, act: str, do: Callable[[], object]) -> None:
        with self._lock:
            self._allow(act)
            do()
            self._publish("asks", turned=True)

    def _allow(self, act: str) -> None:
        if self._retired:
            raise ValueError(
                f"{act}: got a view that has ended, allowed is the newer view; {self._retired}"
            )
        refused = act not in self.allowed
        if act == "run":  # run may bring an oracle, and does nothing if no trial is left
            refused = self.state in RUNNING
        allowed = ", ".join(self.allowed) or "to wait"
        refuse_if(refused, act, f"it in state {self.state!r}", f"is then {allowed}")

    def _retire(self, why: str) -> None:
        with self._lock:
            self._retired = why
            self._publish(self.state)

    def _publish(self, state: str, note: str = "", turned: bool = False) -> None:
        """Set every trait from the session; observers are called when all are set.

        ``turned`` is True if the page's question is new, so that ``turn`` goes up.
        """
        session = self.session
        trying = session.trial  # before the result is read: looking for a trial may end the search
        counts = Counter(trial.outcome for trial in session.journal)
        log = []
        for number, trial in enumerate(session.journal, 1):
            log.append((number, trial.outcome, len(trial.subset), trial.seconds))
        facts: dict[str, Any] = {
            "turn": self.turn + turned,
            "counts": outcomes_counted(counts),
            "suspects": [(suspect.text, suspect.probability) for suspect in session.suspects],
            "shares": [round(100 * share) for share in session.shares],
            "log": log[-LOGGED:],
            "note": note or self._retired,
        }
        if trying is None:
            facts |= {"state": "done", "trial": session.queries, "left": 0, "reason": ""}
            facts |= {"chosen": [], "progress": 1.0, "found": self._found()}
        else:
            facts |= {"state": state, "trial": session.queries + 1, "left": session.left}
            facts |= {"reason": trying.reason, "found": {}}
            facts["chosen"] = [self._places[part.key] for part in trying.changed]
            facts["progress"] = session.queries / (session.queries + session.left)
        with self.hold_trait_notifications():
            for name, value in facts.items():
                self.set_trait(name, value)

    def _found(self) -> dict[str, Any]:
        result = self.session.result
        rows: list[list[Any]] = []
        for number, group in enumerate(result.groups, 1):
            for key in group:
                rows.append([*self.parts[self._places[key]], number])
        script = ""
        if rows:
            script = result.script(oracle=as_code(self.oracle, result.good))
        return {"sentence": result.sentence, "rows": rows, "script": script}

    # ---- what the oracle's thread runs ----

    def _work(self, oracle: Oracle, halt: threading.Event, before: threading.Thread | None) -> None:
        try:
            while before is not None and before.is_alive() and not halt.wait(POLL):
                pass  # wait, as an earlier run may still use the device
            self._ask(oracle, halt)
            self._ended(halt)
        except BaseException as error:  # an error that leaves a thread is lost
            with suppress(Exception):  # the observer that raised may raise again
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
                return  # another run began in the meantime
            event = _stop_of(self.oracle)
            if halt.is_set() and event is not None:
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
            face = f"{head}<p>{counts}</p>"
            rows = []
            for *texts, number in self.found["rows"]:
                group = ""
                if len(self.result.groups) > 1:
                    group = str(number)
                rows.append((*texts, group))
            if rows:
                face += table_html(("register", "field", "good", "bad", ""), rows)
            return face
        suspects = [(f"{probability:.1%}", text) for text, probability in self.suspects]
        suspected = []
        for place in sorted(range(len(self.parts)), key=lambda place: -self.shares[place]):
            suspected.append((f"{self.shares[place]} %", *self.parts[place][:2]))
        if len(suspected) > LISTED:
            suspected[LISTED - 1 :] = [("", "", f"… {len(suspected) - LISTED + 1} more")]
        return (
            f"{head}<p>{counts}, about {self.left} trials left; {html.escape(self.reason)}</p>"
            f"{table_html(('register', 'field', 'good', 'tried, bad'), self.changed)}"
            f"{table_html(('probable', 'suspect'), suspects)}"
            f"{table_html(('probable', 'register', 'field'), suspected)}"
        )


class BisectView(View):
    """A bisection to answer by button or key, or to run with an oracle and to stop.

    ``options`` are those of ``Bisection``; with a ``journal`` it continues where the journal ends.
    Everything is on ``model``, which can be observed; ``capture`` is the capture to run now,
    ``result`` the result so far.
    """

    _esm, _css = assets("bisect_view")

    good = Unicode()
    bad = Unicode()
    parts: List[Any] = List()
    shown = Dict()

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
        """Do the act of a message of the page, such as ``{"act": "pass", "turn": 3}``."""
        if not isinstance(content, dict) or content.keys() != {"act", "turn"}:
            raise ValueError(f"message: got {content!r:.80}, allowed is an act and its turn")
        self.model.press(content["act"], content["turn"])


def _callable(oracle: Any) -> Callable[[Capture], str] | None:
    if oracle is not None and not callable(oracle):
        raise TypeError(
            f"oracle: got {type(oracle).__name__}, allowed is a function that takes a capture"
        )
    return oracle


def _stop_of(oracle: Any) -> threading.Event | None:
    event = getattr(oracle, "stop", None)
    if isinstance(event, threading.Event):
        return event
    return None


def sentence(error: BaseException) -> str:
    """Return an error (type and text) as one line of at most ``SENTENCE`` letters."""
    line = type(error).__name__
    text = " ".join(str(error).split())
    if text:
        line += f": {text}"
    return _shortened(line, SENTENCE)


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[:most]}…"


def _part_row(session: Bisection, part: Difference) -> Row:
    """Return the texts of a part that differs: for a buffer its two sizes in bytes and the number
    of bytes that differ.
    """
    if part.block == BUFFER and part.field not in (BYTES, OTHERS):
        texts = [_value_text(value, part.address) for value in (part.a, part.b)]
        return Row(f"records {part.register}", part.field, *texts)
    if part.block == BUFFER:
        good = session.good.buffers.get(part.register, b"")
        bad = session.bad.buffers.get(part.register, b"")
        both = min(len(good), len(bad))
        equal = np.frombuffer(good, np.uint8, both) == np.frombuffer(bad, np.uint8, both)
        differ = max(len(good), len(bad)) - np.count_nonzero(equal)
        bad_text = f"{len(bad)} bytes, {differ} differ"
        return Row("buffer", part.register, f"{len(good)} bytes", bad_text)
    jobs = jobs_of(session.good, session.bad)
    if is_job(part):
        text = edited_job(part, len(session.good.jobs), "BAD")
        return Row("job", text, part.a or "not there", part.b or "not there")
    where = f"{part.block} {part.register}".strip()
    if len(jobs) > 1:
        job = jobs[part.task].name or f"job {part.task}"
        where = f"{job} {where}"
    good_text = _value_text(part.a, part.address)
    return Row(where, part.field, good_text, _value_text(part.b, part.address))


def _value_text(value: Any, address: bool) -> str:
    if value is None:
        return "not written"
    if address and isinstance(value, int):
        return f"{value:#x}"
    return _shortened(str(value), LETTERS)


def _counts_text(rows: Sequence[Row]) -> str:
    """Return in words how many of the rows are fields, how many jobs and how many buffers.

    >>> buffer = Row("buffer", "input", "4 bytes", "4 bytes, 1 differ")
    >>> _counts_text([Row("NN w0", "relu", "0", "1"), buffer])
    '1 field and 1 buffer'
    """
    buffers = sum(row.where == "buffer" for row in rows)
    jobs = sum(row.where == "job" for row in rows)
    counts = []
    for count, name in ((len(rows) - jobs - buffers, "field"), (jobs, "job"), (buffers, "buffer")):
        if count:
            counts.append(plural(count, name))
    return " and ".join(counts) or "nothing"
