"""Imports logs of register accesses: prints of the virtual platform, of the kernel driver, and of
the player of the Verilator simulation.

::

    Info: nvdla.csb_adaptor: GP: iswrite=1 addr=0x1020b010 len=4 data=0x 00000001
    resp=TLM_OK_RESPONSE
    NV_NVDLA_csb_master.cpp: 80:Addr: 0xb010        (then Data, Is write, nposted; reads: Err bit)
    [  219.1] nvdla_reg_write offset=0xb010 value=0x1
    (164) write to nvdla: addr 00002c04, data 00000001

Addresses are byte addresses; only the last form counts words. The high bits that most addresses
share are the address of the device; some logs leave them out. Other lines, and accesses to
addresses without a register, are skipped and counted. Sources: nvdla/vp's documentation,
nvdla/hw's C model and ``nvdla.cpp``, and prints that people put into ``nvdla_core_callbacks.c``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from npulab.npus.kit import WORD_BYTES, Capture, Line, head_of, lines_of, names_of, skipped
from npulab.npus.nvdla.events import Done, Event, Read, Write
from npulab.npus.nvdla.facts import TABLES, USUAL_CHIPS, maps
from npulab.npus.nvdla.recorded import block_of_addresses, of_accesses
from npulab.npus.nvdla.txn import INTERRUPTS

ADAPTOR = re.compile(
    r"csb_adaptor: GP: iswrite=([01]) addr=(0x[0-9a-fA-F]{1,16}) len=(\d+) "
    r"data=0x ?([0-9a-fA-F]{1,8})\b"
)
REQUEST = re.compile(r"csb req to \w+")
MASTER = re.compile(
    r"NV_NVDLA_csb_master\.cpp: ?\d+: ?(Addr|Data|Is write|nposted): (0x[0-9a-fA-F]{1,8})\b"
)
ANSWER = re.compile(
    r"NV_NVDLA_csb_master\.cpp: ?\d+:.{0,200}?Err bit: ?(?:0x)?[0-9a-fA-F]+\b.{0,200}?"
    r"0x([0-9a-fA-F]{1,8})\s*$"
)
PLAYER = re.compile(
    r"\b(write to|read from) nvdla: addr ([0-9a-fA-F]{8})(?:, data ([0-9a-fA-F]{8}))?\b"
)
PLAYED = re.compile(r"\bread response from nvdla:?(?: data)? ([0-9a-fA-F]{8})\b")
PRINT = re.compile(
    r"\b(?:\w*_)?reg[_ ]?(write|read)\w*\b(?!\s*\(\s*NVDLA_)(.{0,200})", re.IGNORECASE
)
LABELLED = re.compile(
    r"\b(?:(addr(?:ess)?|off(?:set)?|reg(?:ister)?)|(val(?:ue)?|data|reg_val))\s*[:=(]*\s*"
    r"(0[xX][0-9a-fA-F]{1,16}|[0-9a-fA-F]{1,8})\b",
    re.IGNORECASE,
)
BARE = re.compile(r"(0[xX][0-9a-fA-F]{1,16})\b")
# Parts of a request, in the order in which the C model prints them before nposted.
PARTS = ("Addr", "Data", "Is write")
APERTURE = 2**18  # bytes that the registers of the device span
MOST_ACCESSES = 2**21
DRIVEN = "open driver"  # the provenance of a log that no player of traces wrote
SIGNS = (ADAPTOR, MASTER, PLAYER)


class Access(NamedTuple):
    """A register access: byte address, and the value that was written or read (None if the log
    does not say)."""

    line: Line
    write: bool
    address: int
    value: int | None


def recognises(path: Path) -> bool:
    """True for a text with such lines; a driver's prints count if two of them name registers."""
    if not path.is_file():
        return False
    head = head_of(path)
    if any(sign.search(head) for sign in SIGNS):
        return True
    found = [
        access
        for text in head.split("\n")
        if "reg" in text.lower() and (access := _printed(Line(0, text)))
    ]
    known = {*TABLES["FULL"].index, *TABLES["SMALL"].index}
    return sum(access.address % APERTURE in known for access in found) > 1


def read(path: Path) -> dict[str, Capture]:
    """Return the capture of a log, by the file's name.

    The chip has the map that names most of the addresses. Raises ValueError naming file and line
    for an access that is not one word, and if nothing was written.
    """
    accesses, rest = _accesses(path)
    base = _base(accesses)
    offsets = []
    for access in accesses:
        offset = access.address - base
        if not 0 <= offset < APERTURE:
            offset = access.address  # an access to another device
        offsets.append(offset)
    block = block_of_addresses(offsets)
    chip = USUAL_CHIPS[block]
    registers = maps(chip)
    names = names_of(registers[block])
    events: list[Event] = []
    for access, offset in zip(accesses, offsets, strict=True):
        number = access.line.number
        if offset not in names:
            rest.append(
                Line(number, f"no register at {access.address:#x}: {access.line.text.strip()}")
            )
        elif access.write:
            events.append(Write(number, offset, access.value or 0))
        elif names[offset] == INTERRUPTS:
            if access.value:
                events += [Done(number)]
        elif access.value is not None:
            events.append(Read(number, offset, 2**32 - 1, access.value))
    name = path.name.split(".")[0] or path.name
    capture = of_accesses(path, name, chip, block, events, registers)
    provenance = capture.provenance
    if not PLAYER.search(accesses[0].line.text):
        provenance = DRIVEN
    parameters = {**capture.parameters, **skipped(sorted(rest))}
    return {name: replace(capture, parameters=parameters, provenance=provenance)}


def _accesses(path: Path) -> tuple[list[Access], list[Line]]:
    out: list[Access] = []
    rest: list[Line] = []
    request: dict[str, int] = {}  # the parts of a request that the C model has printed so far
    begun: Line | None = None
    for line in lines_of(path):
        text = line.text
        if match := ADAPTOR.search(text):
            if int(match[3]) != WORD_BYTES:
                raise ValueError(
                    f"{path}, line {line.number}: got an access of {match[3][:20]} bytes, allowed "
                    f"are {WORD_BYTES}"
                )
            out.append(Access(line, match[1] == "1", int(match[2], 16), int(match[4], 16)))
        elif match := MASTER.search(text):
            request[match[1]] = int(match[2], 16)
            begun = begun or line
            if match[1] == "nposted":
                if missing := [name for name in PARTS if name not in request]:
                    raise ValueError(
                        f"{path}, line {line.number}: got the end of a request without "
                        f"{', '.join(missing)}, allowed is one with {', '.join(PARTS)}"
                    )
                value = None
                if request["Is write"]:
                    value = request["Data"]
                out.append(Access(begun, value is not None, request["Addr"], value))
                request, begun = {}, None
        elif match := ANSWER.search(text) or PLAYED.search(text):
            _answer(out, int(match[1], 16))
        elif match := PLAYER.search(text):
            is_write = match[1] == "write to"
            if is_write and match[3] is None:
                raise ValueError(
                    f"{path}, line {line.number}: got {text.strip()[-60:]!r}, allowed is a write "
                    "with its data"
                )
            value = None
            if is_write:
                value = int(match[3], 16)
            out.append(Access(line, is_write, WORD_BYTES * (int(match[2], 16) % 2**16), value))
        elif (access := _printed(line)) is not None:
            out.append(access)
        elif not REQUEST.search(text):
            rest.append(line)
        if len(out) > MOST_ACCESSES:
            raise ValueError(
                f"{path}, line {line.number}: got more than {MOST_ACCESSES} accesses, at most "
                f"{MOST_ACCESSES} are allowed"
            )
    if request and begun is not None:
        raise ValueError(
            f"{path}, line {begun.number}: got a request that does not end, allowed is one with "
            f"{', '.join(PARTS)} and nposted: the log is cut short"
        )
    return out, rest


def _answer(out: list[Access], value: int) -> None:
    """Set the value that the device gave back for the last read."""
    if out and not out[-1].write and out[-1].value is None:
        out[-1] = out[-1]._replace(value=value)


def _printed(line: Line) -> Access | None:
    """Return the access that a driver printed: address and value by their labels, else in this
    order; None for other lines."""
    match = PRINT.search(line.text)
    if match is None:
        return None
    labels = {}
    for label in LABELLED.finditer(match[2]):
        kind = "value"
        if label[1]:
            kind = "address"
        labels[kind] = int(label[3], 16)
    bare = [int(number, 16) for number in BARE.findall(match[2])]
    is_write = match[1].lower() == "write"
    if "address" not in labels and "value" not in labels and len(bare) >= 1 + is_write:
        labels = dict(zip(("address", "value"), bare[:2], strict=False))
    value = labels.get("value")
    if "address" not in labels or (value is None and is_write) or (value or 0) >= 2**32:
        return None
    return Access(line, is_write, labels["address"], value)


def _base(accesses: Sequence[Access]) -> int:
    """Return the high bits that most addresses share above the registers."""
    counts = Counter(access.address // APERTURE * APERTURE for access in accesses)
    return max(counts, key=lambda top: (counts[top], -top), default=0)
