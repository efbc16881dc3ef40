"""Reads and writes the command stream that starts jobs. It consists of LOAD_STATE commands, which
write states (registers), and of fill words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import construct
import numpy as np
from numpy import ndarray as Array

LOAD_STATE = 1
HEADER = construct.ByteSwapped(
    construct.BitStruct(
        "opcode" / construct.BitsInteger(5),
        "fixed_point" / construct.Flag,
        "count" / construct.BitsInteger(10),
        "offset" / construct.BitsInteger(16),
    )
)
MOST_STATES = 1024  # a LOAD_STATE whose count field is 0 loads this many states

# The states that Mesa sends, as (offset, value): START_UP once at the beginning, FLUSH once at the
# end, the others before and after the address of each parameter block.
START_UP = ((0x0A28, 0x11), (0x384C, 2))
NO_REMAP = ((0x393C, 0), (0x3940, 0))
NN_CONFIG, NN_INST_ADDR = (0x3930, 0x10), 0x10A0
TP_CONFIG, TP_INST_ADDR = (0x394C, 0), 0x10B8
# All parts of a pad job except the last write PAD_PART to the state at offset PART; other jobs, 0.
PART, PAD_PART = 0x3950, 8
SLOT = (0x10A4, 0)
FLUSH = ((0x380C, 0xC23), (0x380C, 0xC23))
States = list[tuple[int, int]]


def loads(words: Array) -> Iterator[tuple[int, int, int]]:
    """Yield (word index, first offset, count) of every LOAD_STATE in a command stream ``(n,)
    uint32``.

    Commands are aligned to two words. Raises ValueError for a command that runs past the end.
    """
    at = 0
    while at < len(words):
        head = _head(int(words[at]))
        count = 1
        if head.opcode == LOAD_STATE:
            count = head.count or MOST_STATES
            if at + 1 + count > len(words):
                raise ValueError(
                    f"commands: the LOAD_STATE at word {at} has {count} states, allowed are at "
                    f"most the {len(words) - at - 1} words that follow"
                )
            yield at, 4 * head.offset, count
        at += (2 + count) // 2 * 2


@lru_cache(2**12)
def _head(word: int) -> Any:
    """Return the fields of a command's first word. Results are cached, because the commands of a
    stream have few different first words."""
    return HEADER.parse(word.to_bytes(4, "little"))


def writes(words: Array) -> States:
    """Return (offset, value) of every state that a command stream ``(n,) uint32`` loads, in
    order."""
    out: States = []
    for at, offset, count in loads(words):
        values = words[at + 1 : at + 1 + count].tolist()
        out += zip(range(offset, offset + 4 * count, 4), values, strict=True)
    return out


def commands(states: Iterable[tuple[int, int]]) -> Array:
    """Return a command stream that loads states (offset, value) one by one; the inverse of
    ``writes``."""
    words = []
    for offset, value in states:
        head = HEADER.build(
            {"opcode": LOAD_STATE, "fixed_point": False, "count": 1, "offset": offset // 4}
        )
        words += [int.from_bytes(head, "little"), value]
    return np.array(words, np.uint32)


def nn_states(address: int) -> States:
    """Return the states that start the NN job whose parameter block lies at ``address``."""
    return [*NO_REMAP, NN_CONFIG, (NN_INST_ADDR, address), SLOT]


def tp_states(addresses: Sequence[int], pads: bool = False) -> list[States]:
    """Return the states that start each part of a TP job. ``addresses`` are those of the parts'
    parameter blocks; ``pads`` is True for a pad job.

    Bit 0 of a written address is 1 if more parts follow.
    """
    out: list[States] = []
    for address in addresses[:-1]:
        kind = 0
        if pads:
            kind = PAD_PART
        out.append([*NO_REMAP, TP_CONFIG, (PART, kind), (TP_INST_ADDR, address + 1)])
    out.append([*NO_REMAP, TP_CONFIG, (PART, 0), (TP_INST_ADDR, addresses[-1]), SLOT])
    return out


def stream_of(jobs: Sequence[States]) -> Array:
    """Return the command stream that runs jobs in order, as Mesa sends it.

    ``jobs`` are the states of each job as ``start_to_end`` returns them: START_UP comes first,
    FLUSH last."""
    states: States = []
    for job in jobs:
        states += job
    first, gap = len(START_UP), np.zeros(2, np.uint32)
    return np.concatenate([commands(states[:first]), gap, commands(states[first:]), gap])


def start_to_end(jobs: Sequence[States]) -> list[States]:
    """Return the states of all jobs, with the states of Mesa's start-up before the first job's and
    the flush after the last job's.
    """
    out = [list(job) for job in jobs]
    out[0] = [*START_UP, *out[0]]
    out[-1] = [*out[-1], *FLUSH]
    return out
