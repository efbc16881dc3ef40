"""Task records: ten 32-bit words that hand a block of commands to the NPU; many in a row, zeros
behind the last.

Source: PH, WT (the captures).
"""

from __future__ import annotations

from dataclasses import dataclass

import construct
import numpy as np

from npulab.captures.capture import Job
from npulab.npus.rockchip.facts import TABLES, TASK
from npulab.registers.fields import WORD_BYTES

NAMES = ("flags", "op_index", "enable_mask", "interrupt_mask", "interrupt_clear", "interrupt_status", "commands",
         "command_offset")
RECORD = construct.Struct(*(name / construct.Int32ul for name in NAMES), "command_address" / construct.Int64ul)
BYTES = RECORD.sizeof()
INTERRUPTS = 2 ** 17  # what a clear writes to all of them is one less
UNITS = 2 ** 8
MOST_COMMANDS = 2 ** 16
# of the address, as PC.BASE_ADDRESS has it
ALIGN, MOST_ADDRESS = 16, 2 ** 32
MOST_TASKS, MOST_TOGETHER = 2 ** 13, 2 ** 18  # records, and the commands that they name


@dataclass(frozen=True)
class Task:
    """A task record: ``commands`` words without the end of their block, from ``command_address``
    on; ``enable_mask`` are the units that run."""

    flags: int
    op_index: int
    enable_mask: int
    interrupt_mask: int
    interrupt_clear: int
    interrupt_status: int
    commands: int
    command_offset: int
    command_address: int

    @property
    def bytes(self) -> bytes:
        """Its 40 bytes."""
        return RECORD.build({name: getattr(self, name) for name in (*NAMES, "command_address")})  # type: ignore[no-any-return]

    @property
    def job(self) -> Job:
        """The record as a job of its own block."""
        return Job(TASK, np.frombuffer(self.bytes, "<u4"))

    @property
    def plausible(self) -> bool:
        """Whether it can be one: some units, interrupts and commands, and an address that commands
        can have."""
        return (0 < self.enable_mask < UNITS and 0 < self.interrupt_mask < INTERRUPTS
                and 0 < self.interrupt_clear < INTERRUPTS and self.interrupt_status < INTERRUPTS
                and 0 < self.commands < MOST_COMMANDS and 0 < self.command_address < MOST_ADDRESS
                and self.command_address % ALIGN == 0)


def tasks(data: bytes, where: str = "tasks") -> list[Task]:
    """The records in bytes, up to the first that is all zeros or the end.

    Raises ValueError naming the byte of a record that can be none, or that is cut short.
    """
    out: list[Task] = []
    for at in range(0, len(data), BYTES):
        part = data[at:at + BYTES]
        if not any(part):
            break
        if len(part) < BYTES or len(out) >= MOST_TASKS:
            raise ValueError(f"{where}: task {len(out)} at byte {at:#x}: got {len(part)} bytes, allowed are {BYTES} "
                             f"each of up to {MOST_TASKS} records")
        task = _record(part)
        if not task.plausible:
            raise ValueError(f"{where}: task {len(out)} at byte {at:#x}: got {task}, allowed is a record with units, "
                             "interrupts, commands and an address")
        out.append(task)
    if (total := sum(one.commands for one in out)) > MOST_TOGETHER:
        raise ValueError(f"{where}: got {len(out)} tasks of {total} commands together, allowed are {MOST_TOGETHER}")
    return out


def is_tasks(data: bytes) -> bool:
    """Whether bytes begin with a record."""
    return len(data) >= BYTES and _record(data[:BYTES]).plausible


def _record(data: bytes) -> Task:
    found = RECORD.parse(data)
    return Task(**{name: found[name] for name in (*NAMES, "command_address")})


assert len(TABLES[TASK]) * WORD_BYTES == BYTES
