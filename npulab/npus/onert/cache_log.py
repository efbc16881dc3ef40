"""Reads and replays the log that ONE's fully connected layers wrote when weights were freed after
packing.

A line is a function, the address of the layer, and an event: ``void onert::backend::cpu::ops::
FullyConnectedLayer::prepare() 0x752570 cached:  0x754a28``. ``prepare`` logs the address by which
the cache finds the weights of a layer ("batch_size > 4" means that they are not cached).
``fullyConnectedHybrid`` logs the beginning and the end of each run, and the fate of the weights
("tensor->ref is 0" means that they are freed). Lines of other functions are skipped.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

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
LAYER_COLUMNS = ["layer", "weights", "runs", "freed", "seen_freed", "stopped"]


class LogLine(NamedTuple):
    """A line of the log: its number from 1, the function, the address of the layer, the event
    (``what``), and the event's ``number``: an address or a count of references."""

    line: int
    function: str
    layer: int
    what: str
    number: int | None = None

    @property
    def frees(self) -> bool:
        """True if the line says that the layer's weights are freed."""
        return (self.what, self.number) == ("references", 0)


@dataclass(frozen=True)
class Log:
    """The lines of fully connected layers in a log. ``fault`` is the number of the line of the
    segmentation fault, 0 without a fault."""

    lines: tuple[LogLine, ...]
    fault: int = 0

    @property
    def layers(self) -> pd.DataFrame:
        """A table with a row for each layer, in the order in which the layers were prepared.

        Columns: layer; weights (their address, "" if they are not cached); runs (the number of
        whole runs); freed (the first line that frees the weights, else 0); seen_freed (the first
        line that says that the weights were freed before, else 0); stopped (true if the program
        ended in a run of the layer).
        """
        rows: dict[int, dict[str, Any]] = {}
        for entry in self.lines:
            if entry.function == PREPARE:
                new = {"layer": f"{entry.layer:#x}", "weights": "", "runs": 0}
                new |= {"freed": 0, "seen_freed": 0, "stopped": False}
                row = rows.setdefault(entry.layer, new)
                if entry.what == "cached":
                    row["weights"] = f"{entry.number:#x}"
                continue
            row = rows[entry.layer]
            row["stopped"] = self.fault > 0 and entry.what == "multiplies"
            row["runs"] += entry.what == "multiplied"
            if entry.frees:
                row["freed"] = row["freed"] or entry.line
            if entry.what == "freed before":
                row["seen_freed"] = row["seen_freed"] or entry.line
        return pd.DataFrame(rows.values(), columns=LAYER_COLUMNS)

    def events(self, zeros: bool = False, renewed: bool = False) -> list[Event]:
        """Return the events of the log, for ``cache.replay``.

        With ``zeros``, the input of each layer's first run is taken to be zeros. With ``renewed``,
        the program is taken to make another context before the first second run of a layer. The log
        shows neither.
        """
        found: list[Event] = []
        weights: dict[int, int | None] = {}
        held: set[int] = set()
        prepared: set[int] = set()
        runs: Counter[int] = Counter()
        for entry in self.lines:
            layer, what = entry.layer, entry.what
            name = f"{layer:#x}"
            if what == "begins" and entry.function == PREPARE:
                weights[layer] = None
                prepared.discard(layer)
            if what == "cached" and entry.number is not None:
                weights[layer] = entry.number
                if entry.number not in held:
                    found.append(Allocate(entry.number, f"weights of {name}"))
                    held.add(entry.number)
            address = weights.get(layer)
            # A layer is prepared when the log says that it is cached or wide, else when it runs.
            if what in ("cached", "wide", "multiplies") and layer not in prepared:
                columns = NARROW
                if address is None:
                    columns += 1
                found.append(Prepare(Layer(name, address, columns=columns)))
                prepared.add(layer)
            if what == "multiplies":
                if renewed and runs[layer] == 1 == max(runs.values()):
                    found.append(Renew())
                runs[layer] += 1
                found.append(Run(name, zeros and runs[layer] == 1))
            elif entry.frees and address is not None:
                found.append(Free(address))
                held.discard(address)
        return found


class LogReading(NamedTuple):
    """A possible history that the log does not show: the cache's ``policy``, whether the first
    inputs were ``zeros``, and whether the context was ``renewed``. ``why`` is its explanation.
    """

    name: str
    policy: str
    zeros: bool
    renewed: bool
    why: str


READINGS = [
    LogReading(row["name"], row["policy"], row["zeros"] == "1", row["renewed"] == "1", row["why"])
    for row in read_table(HERE / "readings.csv")
]


def read_log(text: str) -> Log:
    """Return the log in a text, which may hold other lines too.

    Raises ValueError with the line's number for a line that is broken or cannot follow the lines
    before. Raises ValueError for a text without lines of the log.

    >>> log = read_log('''void onert::ops::FullyConnectedLayer::prepare() 0x10
    ... void onert::ops::FullyConnectedLayer::prepare() 0x10 hybrid
    ... void onert::ops::FullyConnectedLayer::prepare() 0x10 cached:  0x20''')
    >>> log.lines[-1]
    LogLine(line=3, function='prepare', layer=16, what='cached', number=32)
    """
    lines: list[LogLine] = []
    last: dict[int, LogLine] = {}
    known: dict[int, int | None] = {}  # by layer: the address of its weights, None if not cached
    freed: set[int] = set()
    fault = 0
    for number, text_line in enumerate(text.splitlines(), 1):
        if END.match(text_line) and lines and not fault:
            fault = number
        if not LINE.match(text_line):
            continue
        if fault:
            raise ValueError(
                f"line {number}: got a layer's line after the segmentation fault in line {fault}, "
                "allowed is the fault only after all lines of layers"
            )
        entry = _parsed_line(number, text_line)
        _check_order(entry, last.get(entry.layer), known, freed)
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
    """Replay a log in each of the ways to read it (``READINGS``); return a table with a row for
    each.

    Columns: reading; policy; ends (the outcome of the last run); faults (their number); agrees
    (true if replay and log have the same number of runs and both or neither end in a segmentation
    fault); why. A reading that agrees is possible; the log does not prove it.
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
        row: dict[str, Any] = {"reading": reading.name, "policy": reading.policy, "ends": ends}
        row["faults"] = sum(step.fault for step in outcomes)
        row["agrees"] = stopped == bool(log.fault) and len(ran) == runs
        row["why"] = reading.why
        rows.append(row)
    return pd.DataFrame(rows)


def _parsed_line(number: int, line: str) -> LogLine:
    """Return the parsed form of one line of a layer. Raises ValueError for another form."""
    whole = WHOLE.match(line)
    if not whole:
        raise ValueError(
            f"line {number}: got {line[:120]!r}, allowed is a line of "
            "FullyConnectedLayer::prepare() or fullyConnectedHybrid() with the address of the layer"
        )
    function, layer, message = whole[1], int(whole[2], 16), whole[3] or ""
    forms = {form: what for owner, form, what, _ in FORMS if owner == function}
    for form, what in forms.items():
        pattern = re.escape(form)
        for part, digits in PARTS.items():
            pattern = pattern.replace(part, digits)
        match = re.fullmatch(pattern, message)
        if match:
            value = None
            if match.groups() and match[1] != NONE:
                base = 10
                if match[1].startswith("0x"):
                    base = 16
                value = int(match[1], base)
            return LogLine(number, function, layer, what, value)
    allowed = ", ".join(map(repr, filter(None, forms)))
    raise ValueError(
        f"line {number}: got {message[:80]!r} of {function}(), allowed is one of {allowed}"
    )


def _check_order(
    entry: LogLine, previous: LogLine | None, known: dict[int, int | None], freed: set[int]
) -> None:
    """Raise ValueError for a line that cannot follow the lines before it. ``previous`` is the
    layer's line before, ``known`` has the address of each layer's weights, ``freed`` the addresses
    that were freed."""
    where = f"line {entry.line}"
    layer = f"{entry.layer:#x}"
    what = entry.what
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
            raise ValueError(
                f"{where}: got no address after 'cached', allowed is the address of the weights"
            )
        return
    refuse_if(entry.layer not in known, where, f"a run of {layer}", "is a layer that was prepared")
    address = known[entry.layer]
    if what in ("multiplies", "multiplied") and entry.number != address:
        raise ValueError(
            f"{where}: got {_address_text(entry.number)} as the weights of layer {layer}, allowed "
            f"is {_address_text(address)}, with which the layer was prepared"
        )
    if what in ("drops", "freed before") and address is None:
        raise ValueError(
            f"{where}: got {what!r} of layer {layer}, whose weights are not cached, allowed is "
            "this line only for cached weights"
        )
    if what == "freed before" and address not in freed:
        raise ValueError(
            f"{where}: got 'freed before' for the weights of layer {layer}, allowed is this line "
            "only after a line that frees these weights"
        )


def _address_text(address: int | None) -> str:
    if address is None:
        return NONE
    return f"{address:#x}"
