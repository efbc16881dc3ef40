"""An exploration as it goes: how far it is, what is known of each bit, how good the predictions
were, and Stop.

``ExploreModel`` runs it in a thread and needs no browser; ``ExploreView`` shows it.
"""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import Any

import numpy as np
import traitlets

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

    The arguments are those of ``explore``.  ``state`` is "ready", "runs", "stops" (when the layers
    under way have answered), "stopped", "failed" or "done".  ``shown`` is all that changes, as JSON
    has it: the layers ``asked``, what it does now (``text``), the ``batches`` (number, captures so
    far, cells claimed, wrong, shares of all cells that were predicted right in all layers and in
    those that were drawn), ``bits`` (each word that varies, and a letter for each bit from bit 31
    on, as ``LawView`` has them) and the ``names`` of these words, how many bits are of each
    ``status``, and the last wrong prediction (``surprise``).  ``explored`` is what was found so
    far.
    """

    state = traitlets.Enum(STATES, "ready", read_only=True)
    shown = traitlets.Dict(read_only=True)

    def __init__(self, source: Source, *args: Any, budget: int = 200, **options: Any) -> None:
        need_source(source)
        self._halt, self._last, self.budget = (
            threading.Event(),
            Step(0, budget, "not begun"),
            budget,
        )
        self._explore = partial(
            explore, source, *args, **options | {"budget": budget, "progress": self._step}
        )
        self._resumes, self._record = "store" in options, source.record
        self.explored: Explored | None = None
        self.error: BaseException | None = None
        super().__init__()
        self._publish("ready")

    @property
    def title(self) -> str:
        said = (
            self._record.get("command")
            or self._record.get("target")
            or self._record.get("source")
            or "a source"
        )
        return f"exploration of {said if isinstance(said, str) else ' '.join(said)}"

    @property
    def simulated(self) -> bool:
        return self._record.get("source") == "lower"

    @property
    def summary(self) -> str:
        return (
            f"{self._last.asked} of {plural(self.budget, 'layer')}, {self.state}: {self._last.text}"
        )

    @property
    def allowed(self) -> tuple[str, ...]:
        """What can be done now, of "run" and "stop"; what has no store cannot go on."""
        again = self._resumes and self.state in ("stopped", "failed")
        if self.state == "runs":
            return ("stop",)
        if again or self.state == "ready":
            return ("run",)
        return ()

    def run(self, wait: bool = False) -> None:
        """Begin, or go on from the store; with ``wait`` in this thread, and what goes wrong is
        raised.
        """
        if "run" not in self.allowed:
            raise ValueError(
                f"run: got it in state {self.state!r}, allowed is one that begins or has a store"
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
        """End when the layers under way have answered; what is known stays."""
        self._halt.set()
        if self.state == "runs":
            self._publish("stops")

    def press(self, act: Any) -> None:
        """ "run" or "stop" as the page sends it; nothing where it is not allowed."""
        if act in self.allowed:
            getattr(self, act)()

    def _work(self) -> None:
        try:
            self.explored = self._explore(stop=self._halt)
            self._last = Step(self._last.asked, self.budget, repr(self.explored), self.explored)
            self._publish("stopped" if self._halt.is_set() else "done")
        except BaseException as error:  # nobody would hear of it in a thread
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
            shown["surprise"] = (
                "layer {layer}, word {word}: predicted {predicted}, captured {captured}".format(
                    **found.surprises.iloc[-1]
                )
            )
        if found is not None and found.laws is not None:
            status = found.laws.status
            moving = np.flatnonzero(~np.isin(status, ("constant", "nuisance")).all(1)).tolist()
            shown["bits"] = [
                [word, "".join(letters)]
                for word, letters in zip(moving, letters_of(status[moving]), strict=True)
            ]
            shown["names"] = [naming_of(found.laws).words[word] for word in moving]
            shown["status"] = {
                name: int((status == name).sum()) for name in ("law", "rivals", "open", "nuisance")
            }
        with self.hold_trait_notifications():
            self.set_trait("state", state)
            self.set_trait("shown", shown | {"state": state, "allowed": list(self.allowed)})

    def _repr_html_(self) -> str:
        rows = [
            [*map(str, row[:4]), *(f"{share:.1%}" for share in row[4:])]
            for row in self.shown["batches"]
        ]
        bits = ", ".join(f"{count} {name}" for name, count in self.shown["status"].items())
        surprise = ""
        if self.shown["surprise"]:
            surprise = f"<p>last wrong prediction: {self.shown['surprise']}</p>"
        return f"{self.heading_html()}<p>bits: {bits or 'none known'}</p>{surprise}{table_html(BATCH, rows)}"


class ExploreView(View):
    """An exploration with its progress, what is known of each bit, the share of the cells that each
    batch's laws said right beforehand, and Run and Stop.

    The arguments are those of ``npulab.explore``; ``explored`` is what was found so far.
    """

    _esm, _css = assets("explore_view")
    _of = ExploreModel
    _followed = ("shown",)

    def __init__(self, source: Source, *args: Any, **options: Any) -> None:
        super().__init__(ExploreModel(source, *args, **options))
