"""A running exploration with its progress, the status of each bit, the share of right predictions,
and a Stop.

``ExploreModel`` runs it in a thread and needs no browser; ``ExploreView`` shows it.
"""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import Any

import numpy as np
from traitlets import Dict, Enum

from npulab.analysis.explore import Explored, explore
from npulab.analysis.explore.loop import Step, need_source
from npulab.analysis.laws.naming import naming_of
from npulab.captures.sources import Source
from npulab.notebook.widgets.bisect_view import sentence
from npulab.notebook.widgets.bits_view import letters_of
from npulab.notebook.widgets.frame import Model, View, assets, table_html
from npulab.support.text import plural

STATES = ("ready", "runs", "stops", "stopped", "failed", "done")
COLUMNS = ["batch", "captures", "claimed", "wrong", "share", "drawn_share"]
BATCH = ("batch", "captures", "claimed", "wrong", "right", "right of the drawn")


class ExploreModel(Model):
    """An exploration that runs in a thread; it needs no browser.

    The arguments are those of ``explore``. ``state`` is "ready", "runs", "stops" (waits for the
    layers under way), "stopped", "failed" or "done". ``explored`` is the result so far. ``shown``
    has everything that changes, as JSON values by name:

    - ``state``, ``allowed``, ``budget``, ``asked`` (how many layers were asked for) and ``text``
      (the present activity);
    - ``batches``: for each its number, captures so far, cells claimed, cells wrong, the share of
      all cells that was predicted right, and this share in the layers drawn at random;
    - ``bits``: (word, letters) of each word that varies, a letter per bit, bit 31 first, as in
      ``LawView``; ``names``: the names of these words; ``status``: the number of bits by status;
    - ``surprise``: the last wrong prediction, in words.
    """

    state = Enum(STATES, "ready", read_only=True)
    shown = Dict(read_only=True)

    def __init__(self, source: Source, *args: Any, budget: int = 200, **options: Any) -> None:
        need_source(source)
        self.budget = budget
        self._halt = threading.Event()
        self._last = Step(0, budget, "not begun")
        options |= {"budget": budget, "progress": self._step}
        self._explore = partial(explore, source, *args, **options)
        self._resumes, self._record = "store" in options, source.record
        self.explored: Explored | None = None
        self.error: BaseException | None = None
        super().__init__()
        self._publish("ready")

    @property
    def title(self) -> str:
        stated = [self._record.get(name) for name in ("command", "target", "source")]
        source = next(filter(None, stated), "a source")
        if not isinstance(source, str):  # a command is a list of words
            source = " ".join(source)
        return f"exploration of {source}"

    @property
    def simulated(self) -> bool:
        return self._record.get("source") == "lower"

    @property
    def summary(self) -> str:
        layers = plural(self.budget, "layer")
        return f"{self._last.asked} of {layers}, {self.state}: {self._last.text}"

    @property
    def allowed(self) -> tuple[str, ...]:
        """The acts that are possible now: ``("run",)``, ``("stop",)`` or none; an exploration that
        stopped or failed can run again only with a store.
        """
        again = self._resumes and self.state in ("stopped", "failed")
        if self.state == "runs":
            return ("stop",)
        if again or self.state == "ready":
            return ("run",)
        return ()

    def run(self, wait: bool = False) -> None:
        """Begin the exploration, or continue it from the store; with ``wait`` return when it ends,
        and raise its error.

        Raises ValueError if "run" is not ``allowed`` now.
        """
        if "run" not in self.allowed:
            raise ValueError(
                f"run: got state {self.state!r}, allowed is 'ready', or with a store 'stopped' or "
                "'failed'"
            )
        self._halt.clear()
        self.error = None
        self._publish("runs")
        thread = threading.Thread(target=self._work, name=self.title, daemon=True)
        thread.start()
        if wait:
            thread.join()
            if self.error is not None:
                raise self.error

    def stop(self) -> None:
        """End the exploration when the layers under way have answered; the result so far stays."""
        self._halt.set()
        if self.state == "runs":
            self._publish("stops")

    def press(self, act: Any) -> None:
        """Do the act "run" or "stop" that the page asks for; an act that is not possible now is
        ignored.
        """
        if act in self.allowed:
            getattr(self, act)()

    def _work(self) -> None:
        try:
            self.explored = self._explore(stop=self._halt)
            self._last = Step(self._last.asked, self.budget, repr(self.explored), self.explored)
            state = "done"
            if self._halt.is_set():
                state = "stopped"
            self._publish(state)
        except BaseException as error:  # an error that leaves a thread is lost
            self.error = error
            self._last = Step(self._last.asked, self.budget, sentence(error))
            self._publish("failed")

    def _step(self, step: Step) -> None:
        self.explored = step.found or self.explored
        self._last = step
        self._publish(self.state)

    def _publish(self, state: str) -> None:
        found = self.explored
        shown: dict[str, Any] = {
            "asked": self._last.asked,
            "budget": self.budget,
            "text": self._last.text,
            "batches": [],
            "bits": [],
            "names": [],
            "status": {},
            "surprise": "",
        }
        if found is not None and len(found.batches):
            table = found.batches.assign(captures=found.batches["captures"].cumsum())
            shown["batches"] = json.loads(table[COLUMNS].to_json(orient="values"))
        if found is not None and len(found.surprises):
            last = found.surprises.iloc[-1]
            values = f"predicted {last['predicted']}, captured {last['captured']}"
            shown["surprise"] = f"layer {last['layer']}, word {last['word']}: {values}"
        if found is not None and found.laws is not None:
            status = found.laws.status
            moving = np.flatnonzero(~np.isin(status, ("constant", "nuisance")).all(axis=1)).tolist()
            names = naming_of(found.laws).words
            for word, letters in zip(moving, letters_of(status[moving]), strict=True):
                shown["bits"].append([word, "".join(letters)])
                shown["names"].append(names[word])
            for name in ("law", "rivals", "open", "nuisance"):
                shown["status"][name] = int((status == name).sum())
        with self.hold_trait_notifications():
            self.set_trait("state", state)
            self.set_trait("shown", shown | {"state": state, "allowed": list(self.allowed)})

    def _repr_html_(self) -> str:
        rows = []
        for *counts, share, drawn_share in self.shown["batches"]:
            rows.append([*map(str, counts), f"{share:.1%}", f"{drawn_share:.1%}"])
        bits = ", ".join(f"{count} {name}" for name, count in self.shown["status"].items())
        face = f"{self.heading_html()}<p>bits: {bits or 'none known'}</p>"
        if self.shown["surprise"]:
            face += f"<p>last wrong prediction: {self.shown['surprise']}</p>"
        return face + table_html(BATCH, rows)


class ExploreView(View):
    """An exploration with its progress, the status of each bit, the share of cells that the laws
    predicted right in each batch, and Run and Stop.

    The arguments are those of ``npulab.explore``; ``explored`` is the result so far.
    """

    _esm, _css = assets("explore_view")
    _of = ExploreModel
    _followed = ("shown",)

    def __init__(self, source: Source, *args: Any, **options: Any) -> None:
        super().__init__(ExploreModel(source, *args, **options))
