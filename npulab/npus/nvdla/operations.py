"""Divides register writes into operations: the units that were enabled together, with the registers
of their groups.

Most units have two groups of registers (``D_...``): writes go to the group that
``S_POINTER.PRODUCER`` names, and enabling starts the unit with it. ``S_...`` registers and lookup
tables exist once. Units are one operation if data flow between them: the convolution's units into
an SDP on the fly, SDP into PDP if that is its destination, and each unit with its reader. An
operation inherits the registers that it does not write anew from earlier writes to the same groups;
inherited writes stand first in its job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

from npulab.npus.kit import RegisterMap, names_of, offsets_of
from npulab.npus.nvdla.events import ASKS, Check, Done, Event, Write
from npulab.npus.nvdla.facts import (
    ACCESS,
    CONVOLUTION,
    DATA,
    ENDS,
    PAIRS,
    READERS,
    STARTS,
    UNITS,
    Pair,
)
from npulab.npus.nvdla.registers import Access, Tables, accesses

# CMAC_A and CMAC_B are not listed, because a convolution may use only one half of the multipliers.
NEEDED = ("CDMA", "CSC", "CACC")
ON_THE_FLY, TO_PDP = "SDP.D_FEATURE_MODE_CFG.FLYING_MODE", "SDP.D_FEATURE_MODE_CFG.OUTPUT_DST"
FROM_MEMORY = "PDP.D_OPERATION_MODE_CFG.FLYING_MODE"
ONCE = None  # the group of registers that exist once

Key = tuple[str, int | None]


class OrderedWrite(NamedTuple):
    """A register write of the trace, ``order`` counted through the trace."""

    order: int
    offset: int
    value: int


@dataclass(frozen=True)
class Operation:
    """Units that were enabled together, with the group of registers of each, and the register
    writes.

    The first ``inherited`` writes were made for earlier operations. ``orders`` has, for each later
    write, its number among the trace's events. ``line`` is the line of the last enable.
    """

    units: Mapping[str, int]
    writes: tuple[Pair, ...]
    inherited: int
    orders: tuple[int, ...]
    line: int

    @property
    def end(self) -> tuple[str, int]:
        """The unit that writes the result, and its group: its interrupt says that all is done."""
        unit = next(unit for unit in ENDS if unit in self.units)
        return unit, self.units[unit]

    @property
    def row(self) -> dict[str, Any]:
        """The row of a capture's parameters."""
        return {"units": dict(self.units), "inherited": self.inherited, "line": self.line}


@dataclass
class _Started:
    """A unit that was enabled and whose operation is not yet whole."""

    group: int
    line: int
    writes: list[OrderedWrite]
    before: list[Pair]
    words: dict[int, int]


@dataclass
class _Device:
    """The state of the registers, and the writes to each group since it was last started."""

    registers: RegisterMap
    state: dict[Key, dict[int, int]] = field(default_factory=dict)
    pending: dict[Key, list[OrderedWrite]] = field(default_factory=dict)
    tables: dict[str, Tables] = field(default_factory=dict)
    started: dict[str, _Started] = field(default_factory=dict)
    done: list[Operation] = field(default_factory=list)

    def write(self, written: OrderedWrite, access: Access, line: int) -> None:
        unit, register = access.unit, access.register
        if unit not in UNITS:
            self.pending.setdefault(("", ONCE), []).append(written)
            return
        if access.starts:
            self.start(unit, access.group, written, line)
            return
        group = ONCE
        if register.startswith("D_"):
            group = access.group
        self.pending.setdefault((unit, group), []).append(written)
        if register not in (*STARTS, ACCESS, DATA):
            self.state.setdefault((unit, group), {})[written.offset] = written.value

    def start(self, unit: str, group: int, enable: OrderedWrite, line: int) -> None:
        if unit in self.started:
            self.close(self.chain(unit))
        own = [*self.pending.pop((unit, group), []), *self.pending.pop((unit, ONCE), [])]
        words = {**self.state.get((unit, ONCE), {}), **self.state.get((unit, group), {})}
        inherited = dict(words)
        for written in own:
            inherited.pop(written.offset, None)
        before, offsets = [*inherited.items()], offsets_of(self.registers)
        if f"{unit}.{DATA}" in offsets:
            tables = self.tables.get(unit, Tables())
            before += tables.writes(offsets[f"{unit}.{ACCESS}"], offsets[f"{unit}.{DATA}"])
            entries = [(self.register(written.offset), written.value) for written in sorted(own)]
            self.tables[unit] = tables.after(entries)
        self.started[unit] = _Started(group, line, [*own, enable], before, words)

    def chain(self, unit: str) -> list[str]:
        """Return the started units whose data flow to or from a unit."""
        parts = []
        for pair in PAIRS:
            parts.append([member for member in pair if member in self.started])
        convolution, sdp, pdp, *others = parts
        if "SDP" in sdp and self.says(TO_PDP) and "PDP" in pdp:
            sdp, pdp = sdp + pdp, []
        if "SDP" in sdp and self.says(ON_THE_FLY):
            convolution, sdp = convolution + sdp, []
        return next(part for part in (convolution, sdp, pdp, *others) if unit in part)

    def says(self, name: str) -> int:
        """Return the value of a field of a started unit, by the field's full name."""
        item = self.registers[name]
        offset = offsets_of(self.registers)[f"{item.block}.{item.register}"]
        word = self.started[item.block].words.get(offset, 0)
        return word >> item.pieces[0].lsb & 2**item.width - 1

    def missing(self, chain: Sequence[str]) -> list[str]:
        """Return the units without which a chain does not run."""
        out: list[str] = []
        flies = "SDP" in chain and self.says(ON_THE_FLY)
        if set(chain) & set(CONVOLUTION) or flies:
            out += [unit for unit in NEEDED if unit not in chain]
            if not {"CMAC_A", "CMAC_B"} & set(chain):
                out.append("CMAC_A")
            if not flies:
                out.append("SDP on the fly")
        if "SDP" in chain and self.says(TO_PDP) and "PDP" not in chain:
            out.append("PDP")
        if "PDP" in chain and not self.says(FROM_MEMORY) and "SDP" not in chain:
            out.append("SDP into it")
        reads = {"SDP": not flies, "CDP": True, "PDP": "SDP" not in chain}
        for unit, reader in READERS.items():
            if unit in chain and reads[unit] and reader not in chain and "SDP into it" not in out:
                out.append(reader)
            if reader in chain and unit not in chain:
                out.append(unit)
        return out

    def close(self, chain: Sequence[str]) -> None:
        """Make an operation of the units of a chain; raises ValueError if a unit is missing."""
        if missing := self.missing(chain):
            line = max(self.started[unit].line for unit in chain)
            raise ValueError(
                f"line {line}: got {', '.join(chain)} enabled without {', '.join(missing)}, "
                "allowed are units that make one operation"
            )
        units, line = {}, 0
        registers: set[Pair] = set()
        # Writes to tables stay in order: each datum goes to the entry after the last.
        tables: list[Pair] = []
        own = self.pending.pop(("", ONCE), [])
        for unit in chain:
            part = self.started.pop(unit)
            units[unit], line = part.group, max(part.line, line)
            own += part.writes
            for offset, value in part.before:
                if self.register(offset) in (ACCESS, DATA):
                    tables.append((offset, value))
                else:
                    registers.add((offset, value))
        before = (*sorted(registers), *tables)
        own.sort()
        writes = [(written.offset, written.value) for written in own]
        orders = tuple(written.order for written in own)
        self.done.append(Operation(units, (*before, *writes), len(before), orders, line))

    def register(self, offset: int) -> str:
        return names_of(self.registers)[offset].partition(".")[2]

    def close_whole(self) -> None:
        """Make an operation of every chain of units in which none is missing."""
        for unit in list(self.started):
            if unit in self.started and not self.missing(chain := self.chain(unit)):
                self.close(chain)


def operations(
    events: Sequence[Event], registers: RegisterMap
) -> tuple[list[Operation], list[int]]:
    """Return the operations of a trace, in the order in which they become complete, and for every
    event how many operations come before it.

    An operation whose units were all enabled ends at the next event that is not an access to a
    register, or when one of its units is enabled again. Raises ValueError naming the line that
    enables units which make no operation.
    """
    device = _Device(registers)
    before = []
    writes = [(event.offset, event.value) for event in events if isinstance(event, Write)]
    each = accesses(writes, registers)
    # The first write to a unit after the last event that waits for an operation.
    open_since: Write | None = None
    for order, event in enumerate(events):
        if isinstance(event, Write):
            access = next(each)
            written = OrderedWrite(order, event.offset, event.value)
            device.write(written, access, event.line)
            if open_since is None and access.unit in UNITS:
                open_since = event
        elif not isinstance(event, ASKS):
            device.close_whole()
            open_since = None
        before.append(len(device.done))
    device.close_whole()
    for unit in device.started:
        device.close(device.chain(unit))  # raises ValueError: a unit is missing
    if not device.done:
        raise ValueError(
            f"line {events[-1].line if events else 1}: ends before an operation is enabled, "
            "allowed is at least one"
        )
    if open_since is not None:
        name = names_of(registers)[open_since.offset]
        raise ValueError(
            f"line {events[-1].line}: ends after writes to {name} and others (from line "
            f"{open_since.line}), allowed is that an operation follows and is waited for: it is "
            "cut short"
        )
    rest = sorted(chain.from_iterable(device.pending.values()))
    after = [(written.offset, written.value) for written in rest]
    last = device.done[-1]
    orders = (*last.orders, *(written.order for written in rest))
    device.done[-1] = replace(last, writes=(*last.writes, *after), orders=orders)
    return device.done, before


def checked_after(
    events: Sequence[Event], before: Sequence[int], found: Sequence[Operation]
) -> dict[int, int]:
    """Return, by the number of each check in a trace, how many operations have run before memory is
    compared.

    A check waits for an event, which the interrupt of an operation raises: the n-th interrupt of a
    unit and group comes from the n-th operation that ends there.
    """
    ends: dict[Key, list[int]] = {}
    for number, operation in enumerate(found, 1):
        ends.setdefault(operation.end, []).append(number)
    raised: dict[str, int] = {}
    out = {}
    for number, event in enumerate(events):
        if isinstance(event, Check):
            out[number] = raised.get(event.sync, before[number])
        elif isinstance(event, Done) and event.sync:
            waiting = ends.get((event.unit, event.group)) or [before[number]]
            raised[event.sync] = waiting.pop(0)
    return out
