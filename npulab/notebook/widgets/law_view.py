"""The laws found from a sweep, for each bit of a block: to search, to open field by field, to
shade.

``LawModel`` holds the state and all the logic and needs no browser; ``LawView`` shows it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
from numpy import ndarray
from traitlets import Bool, Dict, Enum, Int, List, Unicode, observe

from npulab.analysis.correlate import best_related, bit_effects, flips, related
from npulab.analysis.laws.naming import naming_of
from npulab.captures.capture import ROWS_SHOWN
from npulab.notebook.widgets.bits_view import LETTERS, a_bit, letters_of, need_laws
from npulab.notebook.widgets.frame import Model, NameIn, View, assets, table_html
from npulab.notebook.widgets.law_picture import (
    capture_line,
    own_parameters,
    scatter,
    usual_parameter,
)
from npulab.registers.fields import WORD_BITS, Field, Piece
from npulab.support.text import part_said, plural

COLOURS = ("status", "flips", "relation")
# the most rows in a field's panel: related parameters, reasons why bits are open, rival laws, and
# fields whose laws read the field
MOST_RELATED = 4
MOST_OPEN = 8
MOST_RIVALS = 6
MOST_READERS = 12
UNEXPLAINED = ("reason", "detail", "related")  # a query also searches these columns of laws.open


@dataclass(frozen=True, eq=False)
class RunOfBits:
    """Bits of a word that are shown together: the field of a law, or, without a law, neighbouring
    bits of the same status.
    """

    word: int
    lsb: int
    width: int
    status: str
    law: Any = None
    index: int = -1  # index in laws.fields, -1 without a law
    name: str = ""

    @property
    def bits(self) -> str:
        if self.width == 1:
            return f"word {self.word} bit {self.lsb}"
        return f"word {self.word} bits {self.lsb + self.width - 1} to {self.lsb}"

    def raw(self, words: ndarray) -> ndarray:
        """Return the raw number of these bits in each capture, ``(N,) int64``."""
        field = Field("", "", self.name, (Piece(self.word, self.lsb, self.width, 0),))
        return field.extract(words).astype(np.int64)


class LawModel(Model):
    """The status and the law of each bit, with a cursor, a search and the panel of a field; it
    needs no browser.

    ``laws`` is the result of ``find_laws``. These can be set and observed:

    - ``place``: (word, bit); ``opened``: True to show the panel of the field at ``place``;
    - ``query``: words that must all occur in a field's texts: its name, bits, status, law, rivals,
      and the reasons why it is open;
    - ``colour``: "status", "flips" (share of neighbouring captures between which a bit flips) or
      "relation" (mutual information of a bit with ``parameter``, in bits);
    - ``parameter``: the parameter for the colour "relation";
    - ``against``: the parameter of the panel's picture, or "" for the parameter most related to the
      field, out of the parameters that the field's law reads.

    These follow: ``matches`` (indices of ``runs``), ``shades`` (per word 32 numbers from 0 to 100,
    bit 0 first; no shades for the status) and ``panel`` (JSON values). Raises ValueError for a
    place outside the words, LookupError for an unknown parameter.
    """

    place = a_bit()
    opened = Bool()
    query = Unicode()
    colour = Enum(COLOURS, "status")
    parameter = NameIn("parameters")
    against = NameIn("parameters")
    matches = List(Int(), read_only=True)
    shades: List[Any] = List(read_only=True)
    panel = Dict(read_only=True)

    def __init__(self, laws: Any) -> None:
        need_laws("LawView", laws)
        self.laws = laws
        self.status = np.asarray(laws.status)
        self.parameters = tuple(str(name) for name in laws.parameters)
        self.runs = _runs_of_bits(laws, self.status)
        self._owner = np.zeros(self.status.shape, int)
        for number, run in enumerate(self.runs):
            self._owner[run.word, run.lsb : run.lsb + run.width] = number
        self._open = laws.open.to_dict("records")
        super().__init__()
        self.parameter = self.parameters[0]
        exercised = np.argwhere(self.status[:, ::-1] != "never exercised").tolist()
        if exercised:
            word, from_highest = exercised[0]
            self.place = word, WORD_BITS - 1 - from_highest

    # ---- the state as text ----

    @property
    def count(self) -> int:
        """The number of words in the block."""
        return len(self.status)

    @property
    def simulated(self) -> bool:
        return bool(getattr(self.laws, "simulated", False))

    @property
    def title(self) -> str:
        looked_at = str(getattr(self.laws, "looked_at", ""))
        unit = "capture"
        if looked_at:
            unit = "job"
        title = f"{plural(len(self.laws.words), unit)} of {plural(self.count, 'word')}"
        title += f", {plural(len(self.parameters), 'parameter')}"
        name = str(getattr(self.laws, "name", ""))
        if name:
            title = f"{name}: {title}"
        if looked_at:
            title += f"; {part_said(looked_at)}"
        return title

    @property
    def counts(self) -> dict[str, int]:
        """The number of bits by status, in the order of ``LETTERS``."""
        return {name: int(np.count_nonzero(self.status == name)) for name in LETTERS}

    @property
    def summary(self) -> str:
        counts = [f"{count} {name}" for name, count in self.counts.items() if count]
        bits = f"{', '.join(counts)} bits"
        captured_for = getattr(self.laws, "captured_for", "")
        if captured_for:
            return f"{bits}; captured {captured_for}"
        return bits

    @property
    def grid(self) -> list[str]:
        """For each word a text of 32 letters, bit 31 first: the letter of each bit's status."""
        return ["".join(row) for row in letters_of(self.status)]

    def run_at(self, word: int, bit: int) -> RunOfBits:
        return self.runs[self._owner[word, bit]]

    def about(self, run: RunOfBits) -> str:
        """Return one line about a run of bits: its law, its constant value, or the reasons why it
        has no law.
        """
        if run.law is not None:
            return str(run.law.text)
        values = run.raw(self.laws.words)
        if run.status in ("constant", "never exercised"):
            return f"always {int(values[0]):#x}"
        reasons = dict.fromkeys(str(row["reason"]) for row in self._open_bits(run))
        return ", ".join(reasons) or run.status

    def reads(self, run: RunOfBits) -> list[RunOfBits]:
        """Return the runs of the fields that the law of a run reads; no runs without a law."""
        names = getattr(run.law, "follows", ())
        return [other for other in self.runs if other.name in names]

    def read_by(self, run: RunOfBits) -> list[str]:
        """Return the names of the fields whose laws read a run."""
        names = []
        for other in self.runs:
            if run.name in getattr(other.law, "follows", ()):
                names.append(other.name)
        return names

    def find(self, query: str) -> list[int]:
        """Return the indices of the runs whose texts have every word of a query; no indices for an
        empty query.
        """
        asked = query.casefold().split()
        found = []
        for number, text in enumerate(self._texts):
            if asked and all(word in text for word in asked):
                found.append(number)
        return found

    @cached_property
    def _texts(self) -> list[str]:
        texts = []
        for run in self.runs:
            parts = [run.name, run.bits, run.status, self.about(run)]
            for row in self._open_bits(run):
                parts += [str(row.get(name, "")) for name in UNEXPLAINED]
            for step in self._steps(run):
                parts += step["rivals"]
            texts.append(" ".join(parts).casefold())
        return texts

    @cached_property
    def _effects(self) -> ndarray:
        return bit_effects(self.laws.words, self.laws.parameters)

    @cached_property
    def _flips(self) -> ndarray:
        return flips(self.laws.words)

    def _open_bits(self, run: RunOfBits) -> list[dict[str, Any]]:
        """Return the rows of ``laws.open`` for the bits of a run, in the table's order."""
        rows = []
        for row in self._open:
            if row["word"] == run.word and run.lsb <= row["bit"] < run.lsb + run.width:
                rows.append(row)
        return rows

    def _steps(self, run: RunOfBits) -> list[dict[str, Any]]:
        if run.index < 0:
            return []
        table = self.laws.table
        rows = table[table["field"] == run.index].to_dict("records")
        otherwise = "else"
        if len(rows) == 1:
            otherwise = "always"
        steps = []
        for row in rows:
            when = str(row["when"])
            if when in ("", "always"):
                when = otherwise
            facts = {"support": int(row["support"]), "extrapolated": bool(row["extrapolated"])}
            rivals = _rival_texts(row["rivals"])
            steps.append({"when": when, "law": str(row["law"]), **facts, "rivals": rivals})
        return steps

    # ---- what follows from the traits ----

    @observe("place")
    def _moved(self, change: Any) -> None:
        if change.old and self.run_at(*change.old) is not self.run_at(*change.new):
            self.against = ""

    @observe("query")
    def _search(self, _: Any) -> None:
        self.set_trait("matches", self.find(self.query))

    @observe("colour", "parameter")
    def _shade(self, _: Any) -> None:
        shares = np.zeros(0)
        if self.colour == "flips":
            shares = self._flips
        elif self.colour == "relation":
            number = self.parameters.index(self.parameter or self.parameters[0])
            shares = self._effects[:, :, number]
        self.set_trait("shades", np.rint(100 * shares).astype(int).tolist())

    @observe("place", "opened", "against")
    def _show(self, _: Any) -> None:
        panel: dict[str, Any] = {}
        if self.opened:
            panel = self._panel()
        self.set_trait("panel", panel)

    def _panel(self) -> dict[str, Any]:
        word, bit = self.place
        run = self.run_at(word, bit)
        values = run.raw(self.laws.words)
        law = run.law
        own: list[str] = []
        if law is not None:
            own = own_parameters(law, self.laws)
        against = self.against or usual_parameter(own, self.laws, values)
        shares = dict(related(values, self.laws.parameters, MOST_RELATED))
        names = dict.fromkeys([*own, *shares])
        if names:
            names[against] = None
        steps = self._steps(run)
        rivals = []
        for step in steps:
            for rival in step.pop("rivals"):
                if len(steps) > 1:
                    rival = f"{step['law']}: {rival}"
                rivals.append(rival)
        drawn = law
        if law is not None and law.open:
            drawn = None
        return {
            "name": run.name,
            "bits": run.bits,
            "status": run.status,
            "about": self.about(run),
            "law": law is not None,
            "steps": steps,
            "rivals": _first_texts(rivals, MOST_RIVALS),
            "read_by": _first_texts(self.read_by(run), MOST_READERS),
            "open": self._open_rows(run, own or [*shares]),
            "related": [[name, round(float(shares.get(name, 0)), 2)] for name in names],
            "bit": self._bit_text(word, bit),
            "scatter": scatter(drawn, self.laws, run.name, values, against),
        }

    def _bit_text(self, word: int, bit: int) -> str:
        values = self.laws.words[:, word] >> np.uint32(bit) & np.uint32(1)
        pairs = best_related(values, self.laws.parameters)
        most = ", ".join(f"{name} {share:.2f}" for name, share in pairs)
        return f"bit {bit}: {most or 'nothing'}"

    def _open_rows(self, run: RunOfBits, first: list[str]) -> list[list[str]]:
        """Return a row for each reason why bits of a run are open: the bits, the reason, a line
        that says what to capture, and all parameters if the line leaves some out.
        """
        bits_of: dict[str, list[int]] = {}
        captures: dict[str, Any] = {}
        for row in self._open_bits(run):
            why = str(row["reason"])
            if row.get("detail"):
                why += f", {row['detail']}"
            bits_of.setdefault(why, []).append(int(row["bit"]))
            captures.setdefault(why, row.get("capture"))
        rows = []
        for why, bits in bits_of.items():
            # the line names the parameters that the reason names first
            words = re.findall(r"\w+", why)
            named = [name for name in self.parameters if name in words]
            asked = "", ""
            if isinstance(captures[why], Mapping):
                asked = capture_line(captures[why], self.laws.parameters, [*named, *first])
            rows.append([_bits_text(bits), why, *asked])
        if len(rows) > MOST_OPEN:
            more = len(rows) - MOST_OPEN + 1
            rows[MOST_OPEN - 1 :] = [["", f"… {more} more reasons", "", ""]]
        return rows

    def _repr_html_(self) -> str:
        names = naming_of(self.laws).words
        wide = max(4, *map(len, names)) + 1
        lines = [f"{' ' * wide}{_nibbles('31' + ' ' * 29 + '0')}"]
        for name, row in zip(names, self.grid, strict=True):
            lines.append(f"{name:<{wide}}{_nibbles(row)}")
        if len(lines) > ROWS_SHOWN:
            lines[ROWS_SHOWN - 1 :] = [f"… {len(lines) - ROWS_SHOWN + 1} more words"]
        counts = self.counts.items()
        lines.append(", ".join(f"{LETTERS[name]} {name}" for name, count in counts if count))
        grid = html.escape("\n".join(lines))
        rows = []
        for run in self.runs:
            if run.law is not None or run.status not in ("constant", "never exercised"):
                rows.append((run.name, run.bits, run.status, self.about(run)))
        table = table_html(("field", "bits", "status", "law"), rows)
        return f"{self.heading_html()}<pre>{grid}</pre>{table}"


class LawView(View):
    """The status and the law of each bit of a block, to search and to open field by field.

    ``laws`` is the result of ``find_laws``. Arrows move, Enter opens the field's panel, Escape
    closes it, / searches. ``place``, ``opened``, ``query``, ``colour``, ``parameter`` and
    ``against`` are the model's and can be set and observed; ``panel`` follows them. Everything else
    is on ``model``.
    """

    _esm, _css = assets("law_view")
    _linked = ("place", "opened", "query", "colour", "parameter", "against")
    _of, _followed = LawModel, ("matches", "shades", "panel")
    _fixed = ("grid", "parameters")

    letters: List[Any] = List()
    runs: List[Any] = List()
    names = List(Unicode())

    def __init__(self, laws: Any) -> None:
        model = LawModel(laws)
        counts = model.counts
        runs = []
        for run in model.runs:
            place = run.word, run.lsb, run.width
            runs.append([run.name, *place, run.status, model.about(run)])
        super().__init__(
            model,
            letters=[[letter, name, counts[name]] for name, letter in LETTERS.items()],
            runs=runs,
            names=list(naming_of(laws).words),
        )


def _runs_of_bits(laws: Any, status: ndarray) -> tuple[RunOfBits, ...]:
    """Return runs of bits that together have every bit once, sorted by word and lowest bit: the
    fields of the laws, and, of the remaining bits, neighbours of the same status.
    """
    rest = status.astype(object)
    runs = []
    for index, law in enumerate(laws.fields):
        bits = slice(law.lsb, law.lsb + law.width)
        rest[law.word, bits] = ""
        worst = _worst(status[law.word, bits])
        runs.append(RunOfBits(law.word, law.lsb, law.width, worst, law, index, law.name))
    naming = naming_of(laws)
    for word, marks in enumerate(rest.tolist()):
        lsb = 0
        for mark, group in groupby(marks):
            width = len(list(group))
            if mark:
                name = naming.name(word, lsb, width)
                runs.append(RunOfBits(word, lsb, width, str(mark), name=name))
            lsb += width
    return tuple(sorted(runs, key=lambda run: (run.word, run.lsb)))


def _worst(names: ndarray) -> str:
    """Return one status for a field whose bits may have several: the least certain status."""
    order = ("open", "rivals", "nuisance", "law", "constant", "never exercised")
    return min(map(str, names), key=order.index)


def _rival_texts(value: Any) -> list[str]:
    """Return the rivals in a cell of the laws' table as a list of texts; the cell is a text,
    several texts, a count, or empty.
    """
    if isinstance(value, list | tuple):
        return [*map(str, value)]
    if value is None or value != value or not value:
        return []
    if isinstance(value, str):
        return [value]
    return [f"{int(value)} more"]


def _first_texts(texts: list[str], most: int) -> list[str]:
    if len(texts) <= most:
        return texts
    return [*texts[: most - 1], f"… {len(texts) - most + 1} more"]


def _bits_text(bits: list[int]) -> str:
    """Return the numbers of bits as text; neighbours are joined, the highest bit is first.

    >>> _bits_text([4, 5, 6, 9]), _bits_text([3])
    ('bits 9, 6 to 4', 'bit 3')
    """
    if len(bits) == 1:
        return f"bit {bits[0]}"
    runs: list[list[int]] = []
    for bit in sorted(bits, reverse=True):
        if not runs or runs[-1][-1] != bit + 1:
            runs.append([])
        runs[-1].append(bit)
    texts = []
    for run in runs:
        text = str(run[0])
        if len(run) > 1:
            text += f" to {run[-1]}"
        texts.append(text)
    return f"bits {', '.join(texts)}"


def _nibbles(row: str) -> str:
    return " ".join(row[at : at + 4] for at in range(0, WORD_BITS, 4))
