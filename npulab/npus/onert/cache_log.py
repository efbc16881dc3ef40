"""The log that ONE's fully connected layers wrote while weights were freed after packing, read and
replayed.

A line is a function, the address of the layer, and what happened: ``void onert::backend::cpu::ops::
FullyConnectedLayer::prepare() 0x752570 cached:  0x754a28``.  ``prepare`` says which layers take
their weights' address as that of the cache ("batch_size > 4" takes none), ``fullyConnectedHybrid``
each run: its beginning, its end, and what became of the weights ("tensor->ref is 0" frees them).
Lines of others are passed over.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from npulab.npus.kit import pd, read_table, refuse_if
from npulab.npus.onert.cache import (
    NARROW,
    Allocate,
    Event,
    Free,
    Layer,
    Prepare,
    Renew,
    Run,
    replay,
)
from npulab.npus.onert.facts import HERE

LINE = re.compile(r"(?:virtual )?void onert::")
WHOLE = re.compile(
    r"(?:virtual )?void onert::[\w:]*\bFullyConnectedLayer::(prepare|fullyConnectedHybrid)\(\) "
    r"(0x[0-9a-fA-F]{1,16})(?: +(.*?))? *$"
)
PREPARE, HYBRID = "prepare", "fullyConnectedHybrid"
FORMS = [tuple(row.values()) for row in read_table(HERE / "log.csv")]
PARTS = {"ADDRESS": r" *(\(nil\)|0x[0-9a-fA-F]{1,16})", "COUNT": r"(\d{1,9})"}
BEFORE = {what: before for _, _, what, before in FORMS}
END = re.compile(r"Segmentation fault\b")
NONE = "(nil)"


class LogLine(NamedTuple):
    """A line of the log: its number from 1, the function, the layer, what happened, and the number
    that goes with it (an address, a count of references)."""

    line: int
    function: str
    layer: int
    what: str
    number: int | None = None

    @property
    def frees(self) -> bool:
        """Whether it says that the weights are freed."""
        return (self.what, self.number) == ("references", 0)


@dataclass(frozen=True)
class Log:
    """The lines of fully connected layers; ``fault`` is the line that says the program ended, 0
    where none does."""

    lines: tuple[LogLine, ...]
    fault: int = 0

    @property
    def layers(self) -> pd.DataFrame:
        """One row per layer, in the order they were prepared: layer, weights (the address that is
        cached, "" where the other side is too wide), runs (whole ones), freed (the line that says
        so, 0 where none does), seen_freed (the first line that says they had been freed), stopped
        (whether the log ends inside a run)."""
        weights = {entry.layer: None for entry in self.lines if entry.function == PREPARE} | {
            entry.layer: entry.number for entry in self.lines if entry.what == "cached"
        }
        rows = []
        for layer, address in weights.items():
            mine = [
                entry for entry in self.lines if (entry.layer, entry.function) == (layer, HYBRID)
            ]
            rows.append(
                (
                    f"{layer:#x}",
                    "" if address is None else f"{address:#x}",
                    sum(entry.what == "multiplied" for entry in mine),
                    next((entry.line for entry in mine if entry.frees), 0),
                    next((entry.line for entry in mine if entry.what == "freed before"), 0),
                    bool(mine and self.fault and mine[-1].what == "multiplies"),
                )
            )
        return pd.DataFrame(
            rows, columns=["layer", "weights", "runs", "freed", "seen_freed", "stopped"]
        )

    def events(self, zeros: bool = False, renewed: bool = False) -> list[Event]:
        """What the log says happened, for ``cache.replay``.

        With ``zeros`` the input of each layer's first run was zeros, with ``renewed`` there is
        another context when a layer runs for the second time; the log says neither.
        """
        out: list[Event] = []
        weights: dict[int, int | None] = {}
        held: set[int] = set()
        prepared: set[int] = set()
        runs: Counter[int] = Counter()
        for entry in self.lines:
            layer, what, name = entry.layer, entry.what, f"{entry.layer:#x}"
            if what == "begins" and entry.function == PREPARE:
                weights[layer] = None
                prepared.discard(layer)
            if what == "cached" and entry.number is not None:
                weights[layer] = entry.number
                if entry.number not in held:
                    out.append(Allocate(entry.number, f"weights of {name}"))
                    held.add(entry.number)
            address = weights.get(layer)
            # a layer that is neither cached nor wide says no more until it runs
            if what in ("cached", "wide", "multiplies") and layer not in prepared:
                out.append(Prepare(Layer(name, address, columns=NARROW + (address is None))))
                prepared.add(layer)
            if what == "multiplies":
                if renewed and runs[layer] == 1 == max(runs.values()):
                    out.append(Renew())
                runs[layer] += 1
                out.append(Run(name, zeros and runs[layer] == 1))
            elif entry.frees and address is not None:
                out.append(Free(address))
                held.discard(address)
        return out


class Reading(NamedTuple):
    """What may have been, beyond what the log says: a policy of the cache, zeros at first, another
    context."""

    name: str
    policy: str
    zeros: bool
    renewed: bool
    why: str


READINGS = [
    Reading(row["name"], row["policy"], row["zeros"] == "1", row["renewed"] == "1", row["why"])
    for row in read_table(HERE / "readings.csv")
]


def read_log(text: str) -> Log:
    """The log in a text, which may hold other lines too.

    Raises ValueError naming the line for one that is broken or cannot come where it is, and for a
    text without any.

    >>> log = read_log('''void onert::ops::FullyConnectedLayer::prepare() 0x10
    ... void onert::ops::FullyConnectedLayer::prepare() 0x10 hybrid
    ... void onert::ops::FullyConnectedLayer::prepare() 0x10 cached:  0x20''')
    >>> log.lines[-1]
    LogLine(line=3, function='prepare', layer=16, what='cached', number=32)
    """
    lines: list[LogLine] = []
    last: dict[int, LogLine] = {}
    known: dict[int, int | None] = {}  # of each layer the address in the cache
    freed: set[int] = set()
    fault = 0
    for number, text_line in enumerate(text.splitlines(), 1):
        if END.match(text_line) and lines and not fault:
            fault = number
        if not LINE.match(text_line):
            continue
        refuse_if(
            fault,
            f"line {number}",
            f"a layer's line behind the segmentation fault of line {fault}",
            "is none",
        )
        entry = _parsed(number, text_line)
        _check(entry, last.get(entry.layer), known, freed)
        if entry.function == PREPARE:
            known[entry.layer] = entry.number
            freed.discard(entry.number or 0)
        if entry.frees:
            freed.add(known[entry.layer] or 0)
        last[entry.layer] = entry
        lines.append(entry)
    refuse_if(
        not lines,
        "log",
        f"{len(text.splitlines())} lines and none of a FullyConnectedLayer",
        "are lines of its prepare() and fullyConnectedHybrid()",
    )
    return Log(tuple(lines), fault)


def readings(log: Log) -> pd.DataFrame:
    """What each reading makes of a log, one row each: reading, policy, ends (how the replay ends),
    faults (how many), agrees (whether it ends at the run at which the log does, or as it does
    without an end), why.

    A reading that agrees may be what happened; the log does not say that it was.
    """
    runs = sum(entry.what == "multiplies" for entry in log.lines)
    rows = []
    for reading in READINGS:
        outcomes = replay(log.events(reading.zeros, reading.renewed), reading.policy)
        ran = [step for step in outcomes if step.what == "run"]
        stopped = bool(ran) and ran[-1].outcome == "segmentation fault"
        ends = "nothing runs"
        if ran:
            ends = f"{ran[-1].outcome} of {ran[-1].layer}"
        rows.append(
            (
                reading.name,
                reading.policy,
                ends,
                sum(step.fault for step in outcomes),
                stopped == bool(log.fault) and len(ran) == runs,
                reading.why,
            )
        )
    return pd.DataFrame(rows, columns=["reading", "policy", "ends", "faults", "agrees", "why"])


def _parsed(number: int, line: str) -> LogLine:
    """What one line says."""
    whole = WHOLE.match(line)
    if not whole:
        raise ValueError(
            f"line {number}: got {line[:120]!r}, allowed is a line of "
            "FullyConnectedLayer's prepare() or fullyConnectedHybrid() with the "
            "address of the layer"
        )
    function, layer, message = whole[1], int(whole[2], 16), whole[3] or ""
    forms = {form: what for owner, form, what, _ in FORMS if owner == function}
    for form, what in forms.items():
        pattern = re.escape(form)
        for part, digits in PARTS.items():
            pattern = pattern.replace(part, digits)
        match = re.fullmatch(pattern, message)
        if match:
            value = NONE
            if match.groups():
                value = match[1]
            if value.startswith("0x"):
                base = 16
            else:
                base = 10
            return LogLine(
                number, function, layer, what, None if value == NONE else int(value, base)
            )
    raise ValueError(
        f"line {number}: got {message[:80]!r} of {function}(), allowed is one of "
        f"{', '.join(repr(form) for form in forms if form)}"
    )


def _check(
    entry: LogLine, previous: LogLine | None, known: dict[int, int | None], freed: set[int]
) -> None:
    """Raises ValueError for a line that cannot come where it is."""
    where, layer, what = f"line {entry.line}", f"{entry.layer:#x}", entry.what
    had = ""
    if previous and previous.function == entry.function:
        had = previous.what
    refuse_if(
        BEFORE[what] and had != BEFORE[what],
        where,
        f"{what!r} of {layer} after {had or 'nothing'!r}",
        f"is after {BEFORE[what]!r}",
    )
    if entry.function == PREPARE:
        if what == "cached" and entry.number is None:
            raise ValueError(f"{where}: got no address, allowed is that of the weights")
        return
    refuse_if(entry.layer not in known, where, f"a run of {layer}", "is a layer that was prepared")
    address = known[entry.layer]
    if what in ("multiplies", "multiplied") and entry.number != address:
        got, allowed = (NONE if n is None else f"{n:#x}" for n in (entry.number, address))
        raise ValueError(
            f"{where}: got {got} as the weights of {layer}, allowed is {allowed} as it was prepared"
        )
    if what in ("drops", "freed before") and address is None:
        raise ValueError(f"{where}: got {what!r} of {layer}, allowed where its weights are cached")
    refuse_if(
        what == "freed before" and address not in freed,
        where,
        f"weights of {layer} freed before",
        "after a line that frees them",
    )
