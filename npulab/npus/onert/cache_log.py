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
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from npulab.npus.onert.cache import NARROW, Allocate, Event, Free, Layer, Prepare, Renew, Run, replay

if TYPE_CHECKING:
    import pandas as pd

LINE = re.compile(r"(?:virtual )?void onert::")
WHOLE = re.compile(r"(?:virtual )?void onert::[\w:]*\bFullyConnectedLayer::(prepare|fullyConnectedHybrid)\(\) "
                   r"(0x[0-9a-fA-F]{1,16})(?: +(.*?))? *$")
SAID = {"prepare": {"": "begins", "hybrid": "hybrid", "batch_size > 4": "wide", r"cached: +(\S+)": "cached"},
        "fullyConnectedHybrid": {
            "": "begins", r"hybrid cache: +(\S+)": "multiplies", r"hybrid cache: +(\S+) is done": "multiplied",
            "tensor->decrease_ref\\(\\) will run": "drops", r"tensor->ref is (\d{1,9})": "references",
            "tensor->decrease_ref\\(\\) is done": "dropped", "weight is already freed": "freed before",
            "cached weight is nullptr": "keeps"}}
END = re.compile(r"Segmentation fault\b")
NONE = "(nil)"
# what may come before: of a layer's line in its function
BEFORE = {"hybrid": ("begins",), "wide": ("hybrid",), "cached": ("hybrid",), "multiplies": ("begins",),
          "multiplied": ("multiplies",), "drops": ("multiplied",), "references": ("drops",), "dropped": ("references",),
          "freed before": ("multiplied",), "keeps": ("multiplied",)}


class Said(NamedTuple):
    """A line of the log: its number from 1, the function, the layer, what happened, and the number
    that goes with it (an address, a count of references)."""

    line: int
    function: str
    layer: int
    what: str
    number: int | None = None


@dataclass(frozen=True)
class Log:
    """The lines of fully connected layers; ``fault`` is the line that says the program ended, 0
    where none does."""

    said: tuple[Said, ...]
    fault: int = 0

    @property
    def layers(self) -> pd.DataFrame:
        """One row per layer, in the order they were prepared: layer, weights (the address that is
        cached, "" where the other side is too wide), runs (whole ones), freed (the line that says
        so, 0 where none does), seen_freed (the first line that says they had been freed), stopped
        (whether the log ends inside a run)."""
        import pandas as pd

        rows = {}
        for layer, address in self._weights().items():
            mine = [one for one in self.said if one.layer == layer and one.function != "prepare"]
            rows[layer] = {"layer": f"{layer:#x}", "weights": "" if address is None else f"{address:#x}",
                           "runs": sum(one.what == "multiplied" for one in mine),
                           "freed": next((one.line for one in mine if (one.what, one.number) == ("references", 0)), 0),
                           "seen_freed": next((one.line for one in mine if one.what == "freed before"), 0),
                           "stopped": bool(mine and self.fault and mine[-1].what == "multiplies")}
        return pd.DataFrame(list(rows.values()), columns=["layer", "weights", "runs", "freed", "seen_freed", "stopped"])

    def events(self, zeros: bool = False, renewed: bool = False) -> list[Event]:
        """What the log says happened, for ``cache.replay``.

        With ``zeros`` the input of each layer's first run was zeros, with ``renewed`` there is
        another context when a layer runs for the second time; the log says neither.
        """
        out: list[Event] = []
        weights: dict[int, int | None] = {}
        here: set[int] = set()
        prepared: set[int] = set()
        runs: dict[int, int] = {}
        for one in self.said:
            if one.what == "begins" and one.function == "prepare":
                weights[one.layer] = None
                prepared.discard(one.layer)
            address = weights.get(one.layer)
            if one.what == "cached" and one.number is not None:
                address = weights[one.layer] = one.number
                if address not in here:
                    out.append(Allocate(address, f"weights of {one.layer:#x}"))
                    here.add(address)
            # a layer that is neither cached nor wide says no more until it runs
            if one.what in ("cached", "wide", "multiplies") and one.layer not in prepared:
                out.append(Prepare(Layer(f"{one.layer:#x}", address, columns=NARROW + (address is None))))
                prepared.add(one.layer)
            if one.what == "multiplies":
                if renewed and runs.get(one.layer) == 1 == max(runs.values()):
                    out.append(Renew())
                runs[one.layer] = runs.get(one.layer, 0) + 1
                out.append(Run(f"{one.layer:#x}", zeros and runs[one.layer] == 1))
            elif (one.what, one.number) == ("references", 0) and address is not None:
                out.append(Free(address))
                here.discard(address)
        return out

    def _weights(self) -> dict[int, int | None]:
        """The address of the weights of each layer that was prepared."""
        out: dict[int, int | None] = {}
        for one in self.said:
            if one.function == "prepare":
                out[one.layer] = one.number if one.what == "cached" else out.get(one.layer)
        return out


class Reading(NamedTuple):
    """What may have been, beyond what the log says: a policy of the cache, zeros at first, another
    context."""

    name: str
    policy: str
    zeros: bool
    renewed: bool
    why: str


# RuySupport.h of compute/cker sets a policy only where TFLITE_WITH_RUY_GEMV is defined, layers free
# weights with EXPERIMENTAL_RUY_FEATURE; FullyConnectedLayer.cc came to say that zeros go round ruy
READINGS = (
    Reading("kept", "kCacheLHSOnNarrowMul", False, False, "packed in the first run and found in the second"),
    Reading("no cache", "kNoCache", False, False, "ruy's default: nothing is kept, the second run packs freed memory"),
    Reading("zeros at first", "kCacheLHSOnNarrowMul", True, False,
            "an input of zeros goes round ruy: nothing was packed when the weights were freed"),
    Reading("another context", "kCacheLHSOnNarrowMul", False, True, "the cache of the second run is empty"))


def read_log(text: str) -> Log:
    """The log in a text, which may hold other lines too.

    Raises ValueError naming the line for one that is broken or cannot come where it is, and for a
    text without any.

    >>> log = read_log('''void onert::ops::FullyConnectedLayer::prepare() 0x10
    ... void onert::ops::FullyConnectedLayer::prepare() 0x10 hybrid
    ... void onert::ops::FullyConnectedLayer::prepare() 0x10 cached:  0x20''')
    >>> log.said[-1]
    Said(line=3, function='prepare', layer=16, what='cached', number=32)
    """
    said: list[Said] = []
    last: dict[int, Said] = {}
    known: dict[int, int | None] = {}  # of each layer the address in the cache
    freed: set[int] = set()
    fault = 0
    for number, text_line in enumerate(text.splitlines(), 1):
        if END.match(text_line) and said and not fault:
            fault = number
        if not LINE.match(text_line):
            continue
        if fault:
            raise ValueError(f"line {number}: got a layer's line behind the segmentation fault of line {fault}, "
                             "allowed is none")
        one = _said(number, text_line)
        _check(one, last.get(one.layer), known, freed)
        if one.function == "prepare":
            known[one.layer] = one.number
            freed.discard(one.number or 0)
        if (one.what, one.number) == ("references", 0):
            freed.add(known[one.layer] or 0)
        last[one.layer] = one
        said.append(one)
    if not said:
        raise ValueError(f"log: got {len(text.splitlines())} lines and none of a FullyConnectedLayer, allowed are "
                         "lines of its prepare() and fullyConnectedHybrid()")
    return Log(tuple(said), fault)


def readings(log: Log) -> pd.DataFrame:
    """What each reading makes of a log, one row each: reading, policy, ends (how the replay ends),
    faults (how many), agrees (whether it ends at the run at which the log does, or as it does
    without an end), why.

    A reading that agrees may be what happened; the log does not say that it was.
    """
    import pandas as pd

    runs = sum(one.what == "multiplies" for one in log.said)
    rows = []
    for one in READINGS:
        done = replay(log.events(one.zeros, one.renewed), one.policy)
        ran = [step for step in done if step.what == "run"]
        stopped = bool(ran) and ran[-1].outcome == "segmentation fault"
        agrees = stopped == bool(log.fault) and len(ran) == runs
        ends = f"{ran[-1].outcome} of {ran[-1].layer}" if ran else "nothing runs"
        rows.append({"reading": one.name, "policy": one.policy, "ends": ends,
                     "faults": sum(step.fault for step in done), "agrees": agrees, "why": one.why})
    return pd.DataFrame(rows)


def _said(number: int, line: str) -> Said:
    """What one line says."""
    whole = WHOLE.match(line)
    if not whole:
        raise ValueError(f"line {number}: got {line[:120]!r}, allowed is a line of FullyConnectedLayer's prepare() or "
                         "fullyConnectedHybrid() with the address of the layer")
    function, layer, message = whole.group(1), int(whole.group(2), 16), whole.group(3) or ""
    for form, what in SAID[function].items():
        found = re.fullmatch(form, message)
        if found and not found.groups():
            return Said(number, function, layer, what)
        if found and what == "references":
            return Said(number, function, layer, what, int(found.group(1)))
        if found and (found.group(1) == NONE or re.fullmatch("0x[0-9a-fA-F]{1,16}", found.group(1))):
            return Said(number, function, layer, what, None if found.group(1) == NONE else int(found.group(1), 16))
    raise ValueError(f"line {number}: got {message[:80]!r} of {function}(), allowed is one of "
                     f"{', '.join(repr(_plain(form)) for form in SAID[function] if form)}")


def _plain(form: str) -> str:
    """A form as people read it."""
    return form.replace("\\(", "(").replace("\\)", ")").replace("(\\S+)", "ADDRESS").replace("(\\d{1,9})", "COUNT") \
        .replace(": +", ": ")


def _check(one: Said, before: Said | None, known: dict[int, int | None], freed: set[int]) -> None:
    """Raises ValueError for a line that cannot come where it is."""
    had = before.what if before and before.function == one.function else ""
    wanted = BEFORE.get(one.what, ())
    if wanted and had not in wanted:
        raise ValueError(f"line {one.line}: got {one.what!r} of {one.layer:#x} after {had or 'nothing'!r}, allowed is "
                         f"after {wanted[0]!r}")
    if one.function == "prepare":
        if one.what == "cached" and one.number is None:
            raise ValueError(f"line {one.line}: got no address, allowed is that of the weights")
        return
    if one.layer not in known:
        raise ValueError(f"line {one.line}: got a run of {one.layer:#x}, allowed is a layer that was prepared")
    address = known[one.layer]
    if one.what in ("multiplies", "multiplied") and one.number != address:
        got, allowed = (NONE if n is None else f"{n:#x}" for n in (one.number, address))
        raise ValueError(f"line {one.line}: got {got} as the weights of {one.layer:#x}, allowed is {allowed} as it was "
                         "prepared")
    if one.what in ("drops", "freed before") and address is None:
        raise ValueError(f"line {one.line}: got {one.what!r} of {one.layer:#x}, allowed where its weights are cached")
    if one.what == "freed before" and address not in freed:
        raise ValueError(f"line {one.line}: got weights of {one.layer:#x} freed before, allowed after a line that "
                         "frees them")
