"""Task records: ten 32-bit words that hand a block of commands to the NPU; many in a row, zeros
after the last.

Source: PH, WT (the captures).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from npulab.npus.kit import WORD_BYTES, Job, refuse_if
from npulab.npus.rockchip.facts import TABLES, TASK

BYTES = len(TABLES[TASK]) * WORD_BYTES
# Interrupt masks are below this: the mask that clears all interrupts is this number less 1.
INTERRUPTS = 2**17
UNITS = 2**8
MOST_COMMANDS = 2**16
# An address of commands is a multiple of ALIGN and below MOST_ADDRESS, as PC.BASE_ADDRESS holds it.
ALIGN, MOST_ADDRESS = 16, 2**32
MOST_TASKS, MOST_TOGETHER = 2**13, 2**18  # most records, and most commands of all records together


@dataclass(frozen=True)
class Task:
    """A task record, its fields as in ``tasks.csv``. ``commands`` is the number of command words,
    without those of the block's end; the first lies at ``command_address``. ``enable_mask`` has a
    bit for each unit that runs."""

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
        """Read a record from its 40 bytes."""
        return cls(**TABLES[TASK].decode(np.frombuffer(data, "<u4")))

    @property
    def job(self) -> Job:
        """The record as a job of its own block."""
        return Job(TASK, TABLES[TASK].encode(asdict(self)))

    @property
    def plausible(self) -> bool:
        """True if the record has units, interrupts and commands, and an address at which commands
        can lie.
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
    """Return the records in bytes, up to the first that is all zeros or the end.

    Raises ValueError naming the byte of a record that is not plausible or is cut short.
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
    """Return true if bytes begin with a record."""
    return len(data) >= BYTES and Task.of(data[:BYTES]).plausible
