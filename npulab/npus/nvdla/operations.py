"""Operations out of register writes: what is enabled together, with the registers of its groups.

Most units have two groups of registers (``D_...``): writes go to the one that
``S_POINTER.PRODUCER`` names, and enabling starts the unit with it.  ``S_...`` registers and lookup
tables are there once.  Units are one operation where data flow from one to the other: the
convolution's into SDP where that is on the fly, SDP into PDP where that is its destination, and
each unit with the one that reads for it.  What an operation does not write anew it has from what
was written before to the same groups; such writes stand first in its job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from npulab.npus.kit import RegisterMap, names_of, offsets_of
from npulab.npus.nvdla.events import Check, Event, Write
from npulab.npus.nvdla.facts import ACCESS, CONVOLUTION, DATA, ENDS, PAIRS, READERS, STARTS, UNITS
from npulab.npus.nvdla.registers import Access, Tables, accesses

NEEDED = ("CDMA", "CSC", "CACC")  # a convolution may do with one half of the multipliers
ON_THE_FLY, TO_PDP = "SDP.D_FEATURE_MODE_CFG.FLYING_MODE", "SDP.D_FEATURE_MODE_CFG.OUTPUT_DST"
FROM_MEMORY = "PDP.D_OPERATION_MODE_CFG.FLYING_MODE"
ONCE = None  # the group of what is there once

Key = tuple[str, int | None]


class Place(NamedTuple):
    """A register write of the trace, ``order`` counted through it."""

    order: int
    offset: int
    value: int


@dataclass(frozen=True)
class Operation:
    """What was enabled together: the group of each unit, the register writes, the first
    ``inherited`` of them from before; ``line`` is that of its last enable."""

    units: Mapping[str, int]
    writes: tuple[tuple[int, int], ...]
    inherited: int
    line: int

    @property
    def end(self) -> tuple[str, int]:
        """The unit that writes the result, and its group: its interrupt says that all is done."""
        unit = next(unit for unit in ENDS if unit in self.units)
        return unit, self.units[unit]

    @property
    def row(self) -> dict[str, Any]:
        """What a capture's parameters say of it."""
        return {"units": dict(self.units), "inherited": self.inherited, "line": self.line}


@dataclass
class _Started:
    """A unit that was enabled and whose operation is not yet whole."""

    group: int
    line: int
    writes: list[Place]
    before: list[tuple[int, int]]
    words: dict[int, int]


@dataclass
class _Device:
    """The registers as writes leave them, and what was written since each group was started."""

    registers: RegisterMap
    state: dict[Key, dict[int, int]] = field(default_factory=dict)
    pending: dict[Key, list[Place]] = field(default_factory=dict)
    tables: dict[str, Tables] = field(default_factory=dict)
    started: dict[str, _Started] = field(default_factory=dict)
    done: list[Operation] = field(default_factory=list)

    def write(self, place: Place, access: Access, line: int) -> None:
        unit, register = access.unit, access.register
        if unit not in UNITS:
            self.pending.setdefault(("", ONCE), []).append(place)
            return
        if access.starts:
            self.start(unit, access.group, place, line)
            return
        key = (unit, access.group if register.startswith("D_") else ONCE)
        self.pending.setdefault(key, []).append(place)
        if register not in (*STARTS, ACCESS, DATA):
            self.state.setdefault(key, {})[place.offset] = place.value

    def start(self, unit: str, group: int, place: Place, line: int) -> None:
        if unit in self.started:
            self.close(self.chain(unit))
        own = [*self.pending.pop((unit, group), []), *self.pending.pop((unit, ONCE), [])]
        words = {**self.state.get((unit, ONCE), {}), **self.state.get((unit, group), {})}
        written = {one.offset for one in own}
        before = [(offset, value) for offset, value in words.items() if offset not in written]
        offsets = offsets_of(self.registers)
        if f"{unit}.{DATA}" in offsets:
            tables = self.tables.get(unit, Tables())
            before += tables.writes(offsets[f"{unit}.{ACCESS}"], offsets[f"{unit}.{DATA}"])
            self.tables[unit] = tables.after(
                [(self.register(one.offset), one.value) for one in sorted(own)]
            )
        self.started[unit] = _Started(group, line, [*own, place], before, words)

    def chain(self, unit: str) -> list[str]:
        """The units that were started with one, as data flow."""
        parts = [[one for one in pair if one in self.started] for pair in PAIRS]
        convolution, sdp, pdp, *others = parts
        if "SDP" in sdp and self.says(TO_PDP) and "PDP" in pdp:
            sdp, pdp = sdp + pdp, []
        if "SDP" in sdp and self.says(ON_THE_FLY):
            convolution, sdp = convolution + sdp, []
        return next(part for part in (convolution, sdp, pdp, *others) if unit in part)

    def says(self, name: str) -> int:
        """What a field of a unit that was started says, by its full name."""
        item = self.registers[name]
        offset = offsets_of(self.registers)[f"{item.block}.{item.register}"]
        return (
            self.started[item.block].words.get(offset, 0) >> item.pieces[0].lsb & 2**item.width - 1
        )

    def missing(self, chain: Sequence[str]) -> list[str]:
        """Units without which a chain does not run."""
        out: list[str] = []
        flies = "SDP" in chain and self.says(ON_THE_FLY)
        if set(chain) & set(CONVOLUTION) or flies:
            out += [unit for unit in NEEDED if unit not in chain]
            if {"CMAC_A", "CMAC_B"} & set(chain):
                out += []
            else:
                out += ["CMAC_A"]
            if flies:
                out += []
            else:
                out += ["SDP on the fly"]
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
        """One operation of these units; raises ValueError where it cannot run."""
        if missing := self.missing(chain):
            line = max(self.started[unit].line for unit in chain)
            raise ValueError(
                f"line {line}: got {', '.join(chain)} enabled without {', '.join(missing)}, "
                "allowed are "
                "units that make one operation"
            )
        parts = {unit: self.started.pop(unit) for unit in chain}
        before = sorted(
            {one for part in parts.values() for one in part.before if not self.is_table(one[0])}
        )
        before += [one for part in parts.values() for one in part.before if self.is_table(one[0])]
        own = sorted(
            [
                *(one for part in parts.values() for one in part.writes),
                *self.pending.pop(("", ONCE), []),
            ]
        )
        self.done.append(
            Operation(
                {unit: part.group for unit, part in parts.items()},
                (*before, *((one.offset, one.value) for one in own)),
                len(before),
                max(part.line for part in parts.values()),
            )
        )

    def register(self, offset: int) -> str:
        return names_of(self.registers)[offset].partition(".")[2]

    def is_table(self, offset: int) -> bool:
        return self.register(offset) in (ACCESS, DATA)

    def close_whole(self) -> None:
        """An operation of every chain that is whole."""
        for unit in list(self.started):
            if unit in self.started and not self.missing(chain := self.chain(unit)):
                self.close(chain)


def operations(
    events: Sequence[Event], registers: RegisterMap
) -> tuple[list[Operation], list[int]]:
    """The operations of a trace in the order in which they are whole, and for every event how many
    come before it.

    Operations whose units were all enabled end at the next event that is no register write, and
    where a unit is enabled again.  Raises ValueError naming the line where units are enabled that
    make no operation.
    """
    device, before = _Device(registers), []
    each = accesses(
        ((one.offset, one.value) for one in events if isinstance(one, Write)), registers
    )
    open_since: Write | None = (
        None  # the first write of an operation's registers that nothing waits for
    )
    for order, event in enumerate(events):
        if isinstance(event, Write):
            access = next(each)
            device.write(Place(order, event.offset, event.value), access, event.line)
            if open_since is None and access.unit in UNITS:
                open_since = event
        else:
            device.close_whole()
            open_since = None
        before.append(len(device.done))
    device.close_whole()
    for unit in device.started:
        device.close(device.chain(unit))  # which refuses what is missing
    if not device.done:
        raise ValueError(
            f"line {events[-1].line if events else 1}: ends before an operation is enabled, "
            "allowed is at "
            "least one"
        )
    if open_since is not None:
        name = names_of(registers)[open_since.offset]
        raise ValueError(
            f"line {events[-1].line}: ends behind writes to {name} and others (from line "
            f"{open_since.line} on), allowed is that an operation follows and is waited "
            "for: it is cut short"
        )
    rest = sorted(one for places in device.pending.values() for one in places)
    *done, last = device.done
    return [
        *done,
        replace(last, writes=(*last.writes, *((one.offset, one.value) for one in rest))),
    ], before


def checked_after(
    events: Sequence[Event], before: Sequence[int], found: Sequence[Operation]
) -> dict[int, int]:
    """For the number of each check in a trace, how many operations have run before memory is
    compared.

    A check waits for an event, which the interrupt of an operation raises: the n-th interrupt of a
    unit and group is that of the n-th operation that ends there.
    """
    ends: dict[tuple[str, int | None], list[int]] = {}
    for number, one in enumerate(found, 1):
        ends.setdefault(one.end, []).append(number)
    raised: dict[str, int] = {}
    out = {}
    for number, event in enumerate(events):
        if isinstance(event, Check):
            out[number] = raised.get(event.sync, before[number])
        elif not isinstance(event, Write) and (sync := getattr(event, "sync", "")):
            waiting = ends.get((event.unit, event.group))  # type: ignore[union-attr]
            if waiting:
                raised[sync] = waiting.pop(0)
            else:
                raised[sync] = before[number]
    return out
