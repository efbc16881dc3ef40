"""Task records: ten 32-bit words that hand a block of commands to the NPU; many in a row, zeros
behind the last.

Source: PH, WT (the captures).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from npulab.npus.kit import WORD_BYTES, Job, refuse_if
from npulab.npus.rockchip.facts import TABLES, TASK

BYTES = len(TABLES[TASK]) * WORD_BYTES
INTERRUPTS = 2**17  # what a clear writes to all of them is one less
UNITS = 2**8
MOST_COMMANDS = 2**16
# of the address, as PC.BASE_ADDRESS has it
ALIGN, MOST_ADDRESS = 16, 2**32
MOST_TASKS, MOST_TOGETHER = 2**13, 2**18  # records, and the commands that they name


@dataclass(frozen=True)
class Task:
    """A task record, its fields as in ``tasks.csv``: ``commands`` words without the end of their
    block, from ``command_address`` on; ``enable_mask`` are the units that run."""

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
        """The record in 40 bytes."""
        return cls(**TABLES[TASK].decode(np.frombuffer(data, "<u4")))

    @property
    def job(self) -> Job:
        """The record as a job of its own block."""
        return Job(TASK, TABLES[TASK].encode(asdict(self)))

    @property
    def plausible(self) -> bool:
        """Whether it can be a record: some units, interrupts and commands, and an address that
        commands can have."""
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
    """The records in bytes, up to the first that is all zeros or the end.

    Raises ValueError naming the byte of a record that is not plausible or is cut short.
    """
    out: list[Task] = []
    for at in range(0, len(data), BYTES):
        part, begin = data[at : at + BYTES], f"{where}: task {len(out)} at byte {at:#x}"
        if not any(part):
            break
        refuse_if(
            len(part) < BYTES or len(out) >= MOST_TASKS,
            begin,
            f"{len(part)} bytes",
            f"are {BYTES} each of at most {MOST_TASKS} records",
        )
        out.append(Task.of(part))
        refuse_if(
            not out[-1].plausible,
            begin,
            out[-1],
            "is a record with units, interrupts, commands and an address",
        )
    if (total := sum(task.commands for task in out)) > MOST_TOGETHER:
        raise ValueError(
            f"{where}: got {len(out)} tasks of {total} commands together, at most "
            f"{MOST_TOGETHER} are allowed"
        )
    return out


def is_tasks(data: bytes) -> bool:
    """Whether bytes begin with a record."""
    return len(data) >= BYTES and Task.of(data[:BYTES]).plausible
