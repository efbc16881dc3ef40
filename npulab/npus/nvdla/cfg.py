"""Reads traces in ``.cfg`` files: a statement a line, ``//`` and ``#`` start comments.

=================================================== ==========================================
``mem_init(mem, address, size, ALL_ZERO);``         memory set aside and zeroed
``mem_load(mem, address, "file.dat");``             an image put into it
``reg_write(NVDLA_UNIT.REGISTER_0, value);``        a register write
``poll_reg_equal(NVDLA_UNIT.REGISTER_0, value);``   the register is read until it equals the value
``poll_field_equal(register, mask, value);``        the same for the bits of a mask
``reg_read(register);``, ``reg_read_expected``      the register is read once
``sync_notify(unit, event);``, ``sync_wait``        order among the player's threads; the order
                                                    here is the text's
``intr_notify(unit, event);``                       an operation's interrupt raises an event
``check_crc(event, mem, address, size, crc32);``    memory compared when the event comes
``check_file(event, mem, address, size, "f.dat");`` the same with all bytes
``check_nothing(event);``                           an event at which nothing is compared
=================================================== ==========================================

``mem`` is ``pri_mem`` or ``sec_mem``, or 1 or 0 as RAM_TYPE fields have it. Source: the traces of
nvdla/hw, its verification guide.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from npulab.npus.kit import PROVENANCES, RegisterMap, offsets_of, refusing
from npulab.npus.nvdla.events import Ask, Check, Done, Event, Load, Write, Zero
from npulab.npus.nvdla.facts import ADDRESSES, MEMORIES
from npulab.npus.nvdla.images import Image, image_file, read_records

COMMENT = re.compile(r'("[^"]*")|//.*|#.*')
STATEMENT = re.compile(r'\s*+(\w+)\s*+\(((?:[^()"]|"[^"]*")*+)\)\s*+;')
NAME = re.compile(r"(?:NVDLA_)?(\w+)\.(\w+)_0")
NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")
UNIT = re.compile(r"(?:NVDLA_)?(\w+?)_([01])")
CONDITION = r"(?:not_)?(?:equal|greater|less)"
ASKED = re.compile(
    rf"poll_reg_{CONDITION}|poll_field_{CONDITION}|reg_read|reg_read_expected|reg_read_check"
)
ARGUMENTS = {
    "mem_init": 4,
    "mem_load": 3,
    "reg_write": 2,
    "sync_notify": 2,
    "sync_wait": 2,
    "intr_notify": 2,
    "check_crc": 5,
    "check_file": 5,
    "check_nothing": 1,
}
PATTERN = "ALL_ZERO"
# npulab marks its own traces with a line of this form. Traces without it are from a simulation of
# the RTL.
PROVENANCE = "// provenance: "
WORDS = 2**32
HEAD_LINES = 8


def read_cfg(path: Path, text: str, registers: RegisterMap) -> list[Event]:
    """Return the events of a trace.

    Raises ValueError naming file and line for text that is not a statement, a register that the map
    does not have, a number that is malformed or out of range, and a file that is missing or broken.
    """
    offsets = offsets_of(registers)
    images: dict[str, Image] = {}
    events: list[Event] = []
    raised: dict[str, int] = {}
    awaited: set[str] = set()
    for line, full in enumerate(text.split("\n"), 1):
        code = COMMENT.sub(lambda match: match[1] or "", full)
        at = 0
        with refusing(f"{path}, line {line}"):
            while code[at:].strip():
                match = STATEMENT.match(code, at)
                if match is None:
                    raise ValueError(
                        f"got {code[at:].strip()[:60]!r}, allowed is a statement such as "
                        "reg_write(NVDLA_SDP.D_OP_ENABLE_0, 0x1);"
                    )
                at = match.end()
                arguments = [text.strip() for text in match[2].split(",")]
                found = _event(line, match[1], arguments, path.parent, offsets, images)
                if found is not None:
                    events.append(found)
                if isinstance(found, Done):
                    raised[found.sync] = line
                elif isinstance(found, Check):
                    awaited.add(found.sync)
                elif match[1] == "sync_wait":
                    awaited.add(arguments[-1])
    for name, line in raised.items():
        if name not in awaited:
            raise ValueError(
                f"{path}, line {line}: got event {name[:40]!r}, which nothing checks or waits for, "
                "allowed is a check of it: the trace is cut short"
            )
    for event in events:
        if isinstance(event, Check) and event.sync not in raised:
            raise ValueError(
                f"{path}, line {event.line}: got event {event.sync[:40]!r}, which no intr_notify "
                f"raises, allowed are {', '.join(raised) or 'none'}"
            )
    return events


def provenance_of(text: str) -> str:
    r"""Return the provenance of a trace: the one that npulab's comment states, else a simulation of
    the hardware's source.

    >>> provenance_of("// provenance: simulated\n"), provenance_of("// a test")
    ('simulated', 'RTL simulation')
    """
    for line in text.splitlines()[:HEAD_LINES]:
        if line.startswith(PROVENANCE):
            stated = line.removeprefix(PROVENANCE).strip()
            if stated in PROVENANCES:
                return stated
            break
    return "RTL simulation"


def _event(
    line: int,
    what: str,
    said: Sequence[str],
    folder: Path,
    offsets: Mapping[str, int],
    images: dict[str, Image],
) -> Event | None:
    """Return the event of a statement; None for a statement that orders the player's threads."""
    if ASKED.fullmatch(what):
        names = [text for text in said if NAME.fullmatch(text)]
        if not names:
            raise ValueError(
                f"got {what}({', '.join(said)}), allowed is a register NVDLA_UNIT.REGISTER_0 in it"
            )
        arguments = tuple(text for text in said if text != names[0])
        return Ask(line, _offset(names[0], offsets), what, arguments)
    if what not in ARGUMENTS:
        raise ValueError(f"got statement {what!r}, allowed are {', '.join(ARGUMENTS)} and polls")
    refuse_count(what, said, ARGUMENTS)
    if what == "reg_write":
        return Write(line, _offset(said[0], offsets), number(said[1], WORDS, "value"))
    if what == "mem_init":
        if said[3] != PATTERN:
            raise ValueError(f"got pattern {said[3]!r}, allowed is {PATTERN}")
        return Zero(line, _memory(said[0]), *extent(said[1], said[2]))
    if what == "mem_load":
        return Load(
            line,
            _memory(said[0]),
            number(said[1], ADDRESSES, "address"),
            _image(said[2], folder, images),
            said[2][1:-1],
        )
    if what == "intr_notify":
        unit = UNIT.fullmatch(said[0])
        if unit is None:
            raise ValueError(
                f"got unit {said[0]!r}, allowed is one such as SDP_0, with the number of its group"
            )
        return Done(line, unit[1].upper(), int(unit[2]), said[1], what, (said[1],))
    if what == "check_crc":
        start, size, crc = *extent(said[2], said[3]), number(said[4], WORDS, "CRC")
        return Check(line, _memory(said[1]), start, size, crc=crc, sync=said[0])
    if what == "check_file":
        start, size = extent(said[2], said[3])
        golden = _image(said[4], folder, images)
        return Check(line, _memory(said[1]), start, size, golden=golden, sync=said[0])
    if what == "check_nothing":
        return Check(line, MEMORIES[1], 0, 0, sync=said[0])
    return None


def refuse_count(what: str, arguments: Sequence[str], allowed: Mapping[str, int]) -> None:
    """Raise ValueError for a statement with more or fewer arguments than its kind takes."""
    if len(arguments) != allowed[what]:
        raise ValueError(f"got {what} with {len(arguments)} arguments, allowed are {allowed[what]}")


def number(text: str, below: int, what: str) -> int:
    """Return a number from 0 below a limit, decimal or hexadecimal; ValueError for other text.

    >>> number("0x1f", 32, "value")
    31
    """
    value = below
    if NUMBER.fullmatch(text) and len(text) < 40:
        base = 10
        if text[1:2] in ("x", "X"):
            base = 16
        value = int(text, base)
    if value >= below:
        raise ValueError(f"got {what} {text[:40]!r}, allowed is 0 to {below - 1:#x}")
    return value


def extent(address: str, size: str) -> tuple[int, int]:
    """Return address and size of memory. Raises ValueError for a size of 0 and for memory past the
    last address."""
    start = number(address, ADDRESSES, "address")
    length = number(size, ADDRESSES + 1, "size")
    if not 0 < length <= ADDRESSES - start:
        raise ValueError(
            f"got size {size} at address {address}, allowed is 1 to {ADDRESSES - start:#x}"
        )
    return start, length


def _offset(name: str, offsets: Mapping[str, int]) -> int:
    match = NAME.fullmatch(name)
    full = name
    if match:
        full = f"{match[1]}.{match[2]}"
    if full not in offsets:
        near = difflib.get_close_matches(full, offsets, 2)
        if near:
            known = " or ".join(f"NVDLA_{register}_0" for register in near)
        else:
            units = dict.fromkeys(register.split(".")[0] for register in offsets)
            known = f"a unit of {', '.join(units)} and a register of it"
        raise ValueError(f"got register {name[:60]!r}, allowed is {known}")
    return offsets[full]


def _memory(name: str) -> str:
    if name in MEMORIES:
        return name
    if name in ("0", "1"):
        return MEMORIES[int(name)]
    raise ValueError(f"got memory {name[:40]!r}, allowed are {', '.join(MEMORIES)}, 0 and 1")


def _image(quoted: str, folder: Path, images: dict[str, Image]) -> Image:
    if len(quoted) < 3 or quoted[0] != '"' or quoted[-1] != '"':
        raise ValueError(f"got file {quoted[:60]!r}, allowed is a name in quotes")
    if quoted not in images:
        images[quoted] = read_records(image_file(folder, quoted[1:-1]))
    return images[quoted]
