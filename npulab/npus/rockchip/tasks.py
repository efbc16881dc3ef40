"""Task records, which hand blocks of commands to the NPU.

A record has ten 32-bit words. Records follow each other, and a record of zeros ends them. Source:
PH, WT (the captures).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from npulab.npus.kit import WORD_BYTES, Job, refuse_if
from npulab.npus.rockchip.facts import TABLES, TASK

BYTES = len(TABLES[TASK]) * WORD_BYTES
# Interrupt masks have 17 bits; the mask that clears all interrupts has all of them.
INTERRUPTS = 2**17
UNITS = 2**8
MOST_COMMANDS = 2**16
# PC.BASE_ADDRESS holds the address of commands: a multiple of ALIGN, below MOST_ADDRESS.
ALIGN, MOST_ADDRESS = 16, 2**32
# There are at most MOST_TASKS records, with at most MOST_TOGETHER commands of all records.
MOST_TASKS, MOST_TOGETHER = 2**13, 2**18


@dataclass(frozen=True)
class Task:
    """A task record, with the fields of ``tasks.csv``.

    ``commands`` is the number of command words without those of the block's end,
    ``command_address`` the address of the first. ``enable_mask`` has a bit for each unit that runs.
    """

    flags: int
    op_index: int
    enable_mask: int
    interrupt_mask: int
    interrupt_clear: int
    interrupt_status: int
    commands: int
    command_offset: int
    command_address: int

    @classmethod
    def of(cls, data: bytes) -> Task:
        """Return the record that 40 bytes have."""
        return cls(**TABLES[TASK].decode(np.frombuffer(data, "<u4")))

    @property
    def job(self) -> Job:
        """The record as a job of the block ``TASK``."""
        return Job(TASK, TABLES[TASK].encode(asdict(self)))

    @property
    def plausible(self) -> bool:
        """True if the record has units, interrupts and commands, and a possible address of
        commands.
        """
        return (
            0 < self.enable_mask < UNITS
            and 0 < self.interrupt_mask < INTERRUPTS
            and 0 < self.interrupt_clear < INTERRUPTS
            and self.interrupt_status < INTERRUPTS
            and 0 < self.commands < MOST_COMMANDS
            and 0 < self.command_address < MOST_ADDRESS
            and self.command_address % ALIGN == 0
        )


def tasks(data: bytes, where: str = "tasks") -> list[Task]:
    """Return the records that bytes have, up to a record of zeros or to the end.

    Raises ValueError, with the byte, for a record that is not plausible or is cut short, and for
    too many records or commands.
    """
    records: list[Task] = []
    for at in range(0, len(data), BYTES):
        part = data[at : at + BYTES]
        if not any(part):
            break
        begin = f"{where}: task {len(records)} at byte {at:#x}"
        if len(part) < BYTES or len(records) >= MOST_TASKS:
            raise ValueError(
                f"{begin}: got {len(part)} bytes, allowed are {BYTES} each of at most {MOST_TASKS} "
                "records"
            )
        record = Task.of(part)
        allowed = "is a record with units, interrupts, commands and an address"
        refuse_if(not record.plausible, begin, record, allowed)
        records.append(record)
    total = sum(task.commands for task in records)
    if total > MOST_TOGETHER:
        raise ValueError(
            f"{where}: got {len(records)} tasks of {total} commands together, at most "
            f"{MOST_TOGETHER} are allowed"
        )
    return records


def is_tasks(data: bytes) -> bool:
    """Return true if bytes begin with a plausible record."""
    return len(data) >= BYTES and Task.of(data[:BYTES]).plausible
