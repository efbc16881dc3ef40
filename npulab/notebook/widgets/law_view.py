"""What is known of each bit of a block: laws found from a sweep, to search, to open field by field,
to shade.

``LawModel`` holds the state and all the logic and needs no browser; ``LawView`` shows it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import traitlets

from npulab.analysis.correlate import best_related, bit_effects, flips, related
from npulab.analysis.laws.naming import naming_of
from npulab.captures.capture import ROWS_SHOWN
from npulab.notebook.widgets.bits_view import LETTERS, Parameter, a_bit, letters_of, need_laws
from npulab.notebook.widgets.frame import Model, View, assets, table_html
from npulab.notebook.widgets.law_picture import (
    capture_line,
    own_parameters,
    scatter,
    usual_parameter,
)
from npulab.registers.fields import WORD_BITS, Field, Piece
from npulab.support.text import plural

COLOURS = ("status", "flips", "relation")
MOST_RELATED = 4
MOST_OPEN = 8
MOST_RIVALS = 6


@dataclass(frozen=True, eq=False)
class Run:
    """Bits of a word that are looked at together: the field of a law, or a run of bits of one
    status that has none."""

    word: int
    lsb: int
    width: int
    status: str
    law: Any = None
    index: int = -1  # among the fields of the laws
    name: str = ""

    @property
    def bits(self) -> str:
        if self.width == 1:
            return f"word {self.word} bit {self.lsb}"
        return f"word {self.word} bits {self.lsb + self.width - 1} to {self.lsb}"

    def raw(self, words: np.ndarray) -> np.ndarray:
        """Values ``(N,)`` as stored."""
        return (
            Field("", "", self.name, (Piece(self.word, self.lsb, self.width, 0),))
            .extract(words)
            .astype(np.int64)
        )


class LawModel(Model):
    """What is known of each bit, with a cursor, a search and the panel of a field; it needs no
    browser.

    ``laws`` is what ``find_laws`` gives.  Can be set and observed: ``place``, (word, bit);
    ``opened``, whether there is a panel, which is that of the field at ``place``; ``query``, words
    that are all in a field's name, law, status or reason; ``colour``, "status", "flips" (share of
    neighbouring captures in which a bit flips) or "relation" (mutual information with
    ``parameter``, in bits); ``parameter``; ``against``, the parameter of the panel's picture, empty
    for the one of the field's law that tells most.  Follow them: ``matches`` (indices of ``runs``),
    ``shades`` (per word 32 numbers of 0 to 100, bit 0 first; none for the status) and ``panel``
    (texts and numbers as JSON has them). Raises ValueError for a place outside, LookupError for an
    unknown parameter.
    """

    place = a_bit()
    opened = traitlets.Bool()
    query = traitlets.Unicode()
    colour = traitlets.Enum(COLOURS, "status")
    parameter = Parameter()
    against = Parameter()
    matches = traitlets.List(traitlets.Int(), read_only=True)
    shades: traitlets.List[Any] = traitlets.List(read_only=True)
    panel = traitlets.Dict(read_only=True)

    def __init__(self, laws: Any) -> None:
        need_laws("LawView", laws)
        self.laws = laws
        self.status = np.asarray(laws.status)
        self.parameters = tuple(str(name) for name in laws.parameters)
        self.runs = _runs(laws, self.status)
        self._owner = np.zeros(self.status.shape, int)
        for number, run in enumerate(self.runs):
            self._owner[run.word, run.lsb : run.lsb + run.width] = number
        self._open = [dict(row) for _, row in laws.open.iterrows()]
        super().__init__()
        self.parameter = self.parameters[0]
        told = np.argwhere(self.status[:, ::-1] != "never exercised")
        if len(told):
            self.place = int(told[0][0]), WORD_BITS - 1 - int(told[0][1])

    # ---- what it says ----

    @property
    def count(self) -> int:
        """Words of the block."""
        return len(self.status)

    @property
    def simulated(self) -> bool:
        return bool(getattr(self.laws, "simulated", False))

    @property
    def title(self) -> str:
        name = str(getattr(self.laws, "name", ""))
        return (
            f"{name + ': ' if name else ''}{plural(len(self.laws.words), 'capture')} of "
            f"{plural(self.count, 'word')}, {plural(len(self.parameters), 'parameter')}"
        )

    @property
    def counts(self) -> dict[str, int]:
        """Bits of each status, most telling first."""
        return {name: int(np.count_nonzero(self.status == name)) for name in LETTERS}

    @property
    def summary(self) -> str:
        bits = (
            ", ".join(f"{count} {name}" for name, count in self.counts.items() if count) + " bits"
        )
        captured_for = getattr(self.laws, "captured_for", "")
        if captured_for:
            return f"{bits}; captured {captured_for}"
        return bits

    @property
    def grid(self) -> list[str]:
        """A text of 32 letters per word, bit 31 first: the letter of each bit's status."""
        return ["".join(row) for row in letters_of(self.status)]

    def run_at(self, word: int, bit: int) -> Run:
        return self.runs[self._owner[word, bit]]

    def about(self, run: Run) -> str:
        """A field in one line: its law, or why there is none."""
        if run.law is not None:
            return str(run.law.text)
        values = run.raw(self.laws.words)
        if run.status in ("constant", "never exercised"):
            return f"always {int(values[0]):#x}"
        reasons = list(dict.fromkeys(str(row["reason"]) for row in self._opened(run)))
        return ", ".join(reasons) or run.status

    def find(self, query: str) -> list[int]:
        """Indices of the runs that have every word of a query somewhere in what is known of
        them."""
        asked = query.casefold().split()
        if asked:
            return [
                number
                for number, text in enumerate(self._texts)
                if all(word in text for word in asked)
            ]
        return []

    @cached_property
    def _texts(self) -> list[str]:
        out = []
        for run in self.runs:
            open_ = [
                str(row.get(name, ""))
                for row in self._opened(run)
                for name in ("reason", "detail", "related")
            ]
            parts = [
                run.name,
                run.bits,
                run.status,
                self.about(run),
                *open_,
                *(rival for row in self._steps(run) for rival in row["rivals"]),
            ]
            out.append(" ".join(parts).casefold())
        return out

    @cached_property
    def _effects(self) -> np.ndarray:
        return bit_effects(self.laws.words, self.laws.parameters)

    @cached_property
    def _flips(self) -> np.ndarray:
        return flips(self.laws.words)

    def _opened(self, run: Run) -> list[dict[str, Any]]:
        """What is said of the run's bits that nothing explains, by bit."""
        return [
            row
            for row in self._open
            if int(row["word"]) == run.word and run.lsb <= int(row["bit"]) < run.lsb + run.width
        ]

    def _steps(self, run: Run) -> list[dict[str, Any]]:
        table = self.laws.table
        if run.index >= 0:
            rows = table[table["field"] == run.index]
        else:
            rows = table[:0]
        conditions = [str(when or "always") for when in rows["when"]]
        if len(rows) == 1:
            alone = "always"
        else:
            alone = "else"
        return [
            {
                "when": alone if when == "always" else when,
                "law": str(row["law"]),
                "support": int(row["support"]),
                "extrapolated": bool(row["extrapolated"]),
                "rivals": _several(row["rivals"]),
            }
            for when, (_, row) in zip(conditions, rows.iterrows(), strict=True)
        ]

    # ---- what follows ----

    @traitlets.observe("place")
    def _moved(self, change: Any) -> None:
        if change.old and self.run_at(*change.old) is not self.run_at(*change.new):
            self.against = ""

    @traitlets.observe("query")
    def _search(self, _: Any) -> None:
        self.set_trait("matches", self.find(self.query))

    @traitlets.observe("colour", "parameter")
    def _shade(self, _: Any) -> None:
        if self.colour == "status":
            shares = None
        elif self.colour == "flips":
            shares = self._flips
        else:
            shares = self._effects[
                :, :, self.parameters.index(self.parameter or self.parameters[0])
            ]
        self.set_trait(
            "shades", [] if shares is None else np.rint(100 * shares).astype(int).tolist()
        )

    @traitlets.observe("place", "opened", "against")
    def _show(self, _: Any) -> None:
        self.set_trait("panel", self._panel() if self.opened else {})

    def _panel(self) -> dict[str, Any]:
        word, bit = self.place
        run = self.run_at(word, bit)
        values = run.raw(self.laws.words)
        most = related(values, self.laws.parameters, MOST_RELATED)
        bit_most = best_related(
            self.laws.words[:, word] >> np.uint32(bit) & np.uint32(1), self.laws.parameters
        )
        own: list[str] = []
        if run.law is not None:
            own = own_parameters(run.law, self.laws)
        against = self.against or usual_parameter(own, self.laws, values)
        shares = dict(most)
        names = dict.fromkeys([*own, *shares, *([against] if own or shares else [])])
        choices = [[name, round(float(shares.get(name, 0.0)), 2)] for name in names]
        steps = self._steps(run)
        rivals = [
            f"{step['law']}: {rival}" if len(steps) > 1 else rival
            for step in steps
            for rival in step["rivals"]
        ]
        return {
            "name": run.name,
            "bits": run.bits,
            "status": run.status,
            "about": self.about(run),
            "law": run.law is not None,
            "steps": [
                {name: step[name] for name in ("when", "law", "support", "extrapolated")}
                for step in steps
            ],
            "rivals": _first(rivals, MOST_RIVALS),
            "open": self._open_rows(run, own or [*shares]),
            "related": choices,
            "bit": f"bit {bit}: "
            + (", ".join(f"{name} {share:.2f}" for name, share in bit_most) or "nothing"),
            "scatter": scatter(
                None if run.law and run.law.open else run.law, self.laws, run.name, values, against
            ),
        }

    def _open_rows(self, run: Run, first: list[str]) -> list[list[str]]:
        """Why bits are open, a row a reason: bits, why, what to capture, that in full where it is
        longer."""
        rows: dict[str, tuple[list[int], Any]] = {}
        for row in self._opened(run):
            why = f"{row['reason']}" + (f", {row['detail']}" if row.get("detail") else "")
            bits, _ = rows.setdefault(why, ([], row.get("capture")))
            bits.append(int(row["bit"]))
        out = []
        for why, (bits, capture) in rows.items():
            # what the reason is about says most
            said = [name for name in self.parameters if name in re.findall(r"\w+", why)]
            if isinstance(capture, Mapping):
                line = capture_line(capture, self.laws.parameters, [*said, *first])
            else:
                line = "", ""
            out.append([f"{'bits' if len(bits) > 1 else 'bit'} {_listed(bits)}", why, *line])
        if len(out) <= MOST_OPEN:
            return out
        return [*out[: MOST_OPEN - 1], ["", f"… {len(out) - MOST_OPEN + 1} more reasons", "", ""]]

    def _repr_html_(self) -> str:
        head = self.heading_html()
        legend = ", ".join(
            f"{LETTERS[name]} {name}" for name, count in self.counts.items() if count
        )
        names = naming_of(self.laws).words
        wide = max(4, *map(len, names)) + 1
        lines = [
            f"{name:<{wide}}{_nibbles(row)}" for name, row in zip(names, self.grid, strict=True)
        ]
        if len(lines) >= ROWS_SHOWN:
            lines[ROWS_SHOWN - 2 :] = [f"… {len(lines) - ROWS_SHOWN + 2} more words"]
        grid = "\n".join([f"{' ' * wide}{_nibbles('31' + ' ' * 29 + '0')}", *lines, legend])
        rows = [
            (run.name, run.bits, run.status, self.about(run))
            for run in self.runs
            if run.status not in ("constant", "never exercised") or run.law is not None
        ]
        return f"{head}<pre>{html.escape(grid)}</pre>{table_html(('field', 'bits', 'status', 'law'), rows)}"


class LawView(View):
    """What is known of each bit of a block, to search and to open field by field.

    ``laws`` is what ``find_laws`` gives.  Arrows move, Enter opens the field's panel, Escape closes
    it, / searches. ``place``, ``opened``, ``query``, ``colour``, ``parameter`` and ``against`` are
    the model's and can be set and observed; ``panel`` follows them.  Everything else is on
    ``model``.
    """

    _esm, _css = assets("law_view")
    _linked = ("place", "opened", "query", "colour", "parameter", "against")
    _of, _followed = LawModel, ("matches", "shades", "panel")

    grid = traitlets.List(traitlets.Unicode()).tag(sync=True)
    letters: traitlets.List[Any] = traitlets.List().tag(sync=True)
    runs: traitlets.List[Any] = traitlets.List().tag(sync=True)
    parameters = traitlets.List(traitlets.Unicode()).tag(sync=True)
    names = traitlets.List(traitlets.Unicode()).tag(sync=True)

    def __init__(self, laws: Any) -> None:
        model = LawModel(laws)
        super().__init__(
            model,
            grid=model.grid,
            letters=[[letter, name, model.counts[name]] for name, letter in LETTERS.items()],
            runs=[
                [run.name, run.word, run.lsb, run.width, run.status, model.about(run)]
                for run in model.runs
            ],
            parameters=list(model.parameters),
            names=list(naming_of(laws).words),
        )


def _runs(laws: Any, status: np.ndarray) -> tuple[Run, ...]:
    """Every bit in one run: the fields of the laws, then what is left by word and status."""
    free = np.ones(status.shape, bool)
    out = []
    for index, law in enumerate(laws.fields):
        here = slice(law.lsb, law.lsb + law.width)
        free[law.word, here] = False
        out.append(
            Run(law.word, law.lsb, law.width, _worst(status[law.word, here]), law, index, law.name)
        )
    for word in range(len(status)):
        marks = [name if here else "" for name, here in zip(status[word], free[word], strict=True)]
        lsb = 0
        for name, group in groupby(marks):
            width = len(list(group))
            if name:
                called = naming_of(laws).name(word, lsb, width)
                out.append(Run(word, lsb, width, str(name), name=called))
            lsb += width
    return tuple(sorted(out, key=lambda run: (run.word, run.lsb)))


def _worst(names: Iterable[str]) -> str:
    """The status of a field whose bits differ in it: the one that leaves most to do."""
    order = ("open", "rivals", "nuisance", "law", "constant", "never exercised")
    return min(
        (str(name) for name in names), key=lambda name: order.index(name) if name in order else 0
    )


def _several(value: Any) -> list[str]:
    """Rivals as texts, however a table has them: a text, several, a count or nothing."""
    if isinstance(value, str):
        if value:
            return [value]
        return []
    if isinstance(value, list | tuple):
        return [str(one) for one in value]
    if value is None or value != value or not value:
        return []
    return [f"{int(value)} more"]


def _first(items: Sequence[Any], most: int) -> list[Any]:
    if len(items) <= most:
        return list(items)
    return [*items[: most - 1], f"… {len(items) - most + 1} more"]


def _listed(bits: Sequence[int]) -> str:
    """Bits as runs, highest first.

    >>> _listed([4, 5, 6, 9])
    '9, 6 to 4'
    """
    runs: list[list[int]] = []
    for bit in sorted(bits, reverse=True):
        if runs and runs[-1][-1] == bit + 1:
            runs[-1].append(bit)
        else:
            runs.append([bit])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _nibbles(row: str) -> str:
    return " ".join(row[at : at + 4] for at in range(0, WORD_BITS, 4))
