"""The log that ONE's fully connected layers wrote while weights were freed after packing: its
reader and its replay.

A line is a function, the address of the layer, and an event: ``void onert::backend::cpu::ops::
FullyConnectedLayer::prepare() 0x752570 cached:  0x754a28``. ``prepare`` logs the address by which
the cache finds the weights of a layer ("batch_size > 4": not cached), ``fullyConnectedHybrid`` each
run: its beginning, its end, and the fate of the weights ("tensor->ref is 0" frees them). Lines of
other functions are passed over.
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
    """A line of the log: its number from 1, the function, the layer, the event, and the number of
    the event (an address, a count of references)."""

    line: int
    function: str
    layer: int
    what: str
    number: int | None = None

    @property
    def frees(self) -> bool:
        """True if the weights are freed."""
        return (self.what, self.number) == ("references", 0)


@dataclass(frozen=True)
class Log:
    """The lines of fully connected layers; ``fault`` is the line at which the program ended, 0 if
    the log does not say so."""

    lines: tuple[LogLine, ...]
    fault: int = 0

    @property
    def layers(self) -> pd.DataFrame:
        """One row per layer, in the order in which they were prepared.

        Columns: layer; weights (the address that is cached, "" if the other side is too wide); runs
        (whole runs); freed (the line that says so, else 0); seen_freed (the first line that says
        the weights had been freed, else 0); stopped (true if the log ends inside a run).
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

        With ``zeros`` the input of each layer's first run was zeros; with ``renewed`` there is
        another context when a layer runs for the second time. The log shows neither.
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
            # A layer that is neither cached nor wide logs no more until it runs.
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
    """A possible history that the log does not show: the cache's policy, if the first inputs were
    zeros, and if the context was renewed.
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

    Raises ValueError with the line for a line that is broken or cannot follow the lines before, and
    for a text without lines of the log.

    >>> log = read_log('''void onert::ops::FullyConnectedLayer::prepare() 0x10
    ... void onert::ops::FullyConnectedLayer::prepare() 0x10 hybrid
    ... void onert::ops::FullyConnectedLayer::prepare() 0x10 cached:  0x20''')
    >>> log.lines[-1]
    LogLine(line=3, function='prepare', layer=16, what='cached', number=32)
    """
    lines: list[LogLine] = []
    last: dict[int, LogLine] = {}
    known: dict[int, int | None] = {}  # the address of each layer in the cache
    freed: set[int] = set()
    fault = 0
    for number, text_line in enumerate(text.splitlines(), 1):
        if END.match(text_line) and lines and not fault:
            fault = number
        if not LINE.match(text_line):
            continue
        if fault:
            raise ValueError(
                f"line {number}: got a layer's line after the segmentation fault of line {fault}, "
                "allowed are no further lines"
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
    """Return a table with a row for each way to read a log (``READINGS``): the log is replayed in
    that way.

    Columns: reading; policy; ends (how the replay ends); faults (how many); agrees (true if it ends
    at the same run as the log, or if neither ends); why. A reading that agrees is possible; the log
    does not prove it.
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
    """Return the entry of one line."""
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
    """Raise ValueError for a line that cannot follow the lines before."""
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
            raise ValueError(f"{where}: got no address, allowed is the address of the weights")
        return
    refuse_if(entry.layer not in known, where, f"a run of {layer}", "is a layer that was prepared")
    address = known[entry.layer]
    if what in ("multiplies", "multiplied") and entry.number != address:
        raise ValueError(
            f"{where}: got {_address_text(entry.number)} as the weights of {layer}, allowed is "
            f"{_address_text(address)} as it was prepared"
        )
    if what in ("drops", "freed before") and address is None:
        raise ValueError(
            f"{where}: got {what!r} of {layer}, allowed is that only if its weights are cached"
        )
    if what == "freed before" and address not in freed:
        raise ValueError(
            f"{where}: got weights of {layer} freed before, allowed is that only after a line "
            "that frees them"
        )


def _address_text(address: int | None) -> str:
    if address is None:
        return NONE
    return f"{address:#x}"
