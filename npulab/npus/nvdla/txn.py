"""Reads traces in ``.txn`` files: a command a line, ``#`` and ``//`` start comments.

====================================== ==================================================
``load_mem address size file``         the first ``size`` bytes of an image put into memory
``write_reg 0xffffWWWW value``         byte address 4 * 0xWWWW
``read_reg 0xffffWWWW mask expected``  polled until the masked value is as expected
``until 0xffffWWWW expected``          the same for all bits
``wait``                               for an interrupt
``dump_mem address size file``         memory that has to equal the image
====================================== ==================================================

An address below 0xffff0000 is a byte address. No command says which memory it means: addresses of
both differ. Source: the traces of nvdla/hw, branch nvdlav1; for ``until`` the traces that are made
of logs (nvdla_vp_util, gem5-NVDLA).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from npulab.npus.kit import WORD_BYTES, RegisterMap, names_of, refusing
from npulab.npus.nvdla.cfg import WORDS, extent, number, refuse_count
from npulab.npus.nvdla.events import Ask, Check, Done, Event, Load, Read, Write
from npulab.npus.nvdla.facts import ANY_MEMORY
from npulab.npus.nvdla.images import image_file, read_lines

BUS = 0xFFFF0000  # where registers begin on the player's bus, a word each
ARGUMENTS = {"load_mem": 3, "write_reg": 2, "read_reg": 3, "until": 2, "wait": 0, "dump_mem": 3}
INTERRUPTS = "GLB.S_INTR_STATUS"
ADDRESS = re.compile(r"(?m)^[ \t]*(?:write_reg|read_reg|until)[ \t]+(0[xX][0-9a-fA-F]{1,8})\b")


def read_txn(path: Path, text: str, registers: RegisterMap) -> list[Event]:
    """Return the events of a trace.

    Raises ValueError naming file and line for text that is not a command, an address without a
    register, a number that is malformed or out of range, and a file that is missing, broken or too
    short.
    """
    names = names_of(registers)
    events: list[Event] = []
    for line, full in enumerate(text.split("\n"), 1):
        words = full.split("#")[0].split("//")[0].split()
        with refusing(f"{path}, line {line}"):
            if words:
                events.append(_event(line, words, path.parent, names))
    return events


def addresses_of(text: str) -> set[int]:
    """Return the byte addresses of the registers that a trace names."""
    return {_offset(match[1]) for match in ADDRESS.finditer(text)}


def _offset(text: str) -> int:
    address = number(text, WORDS, "address")
    if address >= BUS:
        return WORD_BYTES * (address - BUS)
    return address


def _event(line: int, words: Sequence[str], folder: Path, names: dict[int, str]) -> Event:
    """Return the event of a command."""
    what, *arguments = words
    if what not in ARGUMENTS:
        raise ValueError(f"got command {what[:60]!r}, allowed are {', '.join(ARGUMENTS)}")
    refuse_count(what, arguments, ARGUMENTS)
    if what == "wait":
        return Done(line, statement=what)
    if what in ("load_mem", "dump_mem"):
        address, size = extent(arguments[0], arguments[1])
        image = read_lines(image_file(folder, arguments[2]), size)
        if what == "load_mem":
            return Load(line, ANY_MEMORY, address, image, arguments[2])
        return Check(line, ANY_MEMORY, address, size, golden=image, sync=arguments[2])
    offset = _offset(arguments[0])
    if offset not in names:
        raise ValueError(
            f"got address {arguments[0]!r}, allowed is the address of a register: in bytes, or "
            f"{BUS:#x} plus its word"
        )
    if what == "write_reg":
        return Write(line, offset, number(arguments[1], WORDS, "value"))
    mask = WORDS - 1
    if what == "read_reg":
        mask = number(arguments[1], WORDS, "mask")
    value = number(arguments[-1], WORDS, "value")
    # A poll of the interrupt status until a bit is set waits for the end of a job, as ``wait``
    # does.
    if names[offset] == INTERRUPTS:
        if mask & value:
            return Done(line, statement=what, arguments=tuple(arguments))
        return Ask(line, offset, what, tuple(arguments[1:]))
    return Read(line, offset, mask, value, what, tuple(arguments[1:]))
