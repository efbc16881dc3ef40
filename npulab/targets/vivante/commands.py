"""The command stream that starts a job: LOAD_STATE commands and what fills between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import construct
import numpy as np

LOAD_STATE = 1
HEADER = construct.ByteSwapped(construct.BitStruct(
    "opcode" / construct.BitsInteger(5), "fixed_point" / construct.Flag,
    "count" / construct.BitsInteger(10), "offset" / construct.BitsInteger(16)))
MOST_STATES = 1024  # what a count of 0 means

# What Mesa sends once at start-up, before and after the address of the parameter block
START_UP = ((0x0A28, 0x11), (0x384C, 2))
BEFORE = ((0x393C, 0), (0x3940, 0), (0x3930, 0x10))
NN_INST_ADDR = 0x10A0
AFTER = ((0x10A4, 0), (0x380C, 0xC23), (0x380C, 0xC23))


def loads(words: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(word index, first offset, count) of every LOAD_STATE in a command stream ``(n,) uint32``.

    Commands are aligned to two words.  Raises ValueError for a command that runs past the end.
    """
    at = 0
    while at < len(words):
        head = HEADER.parse(int(words[at]).to_bytes(4, "little"))
        count = (head.count or MOST_STATES) if head.opcode == LOAD_STATE else 1
        if head.opcode == LOAD_STATE:
            if at + 1 + count > len(words):
                raise ValueError(f"commands: the LOAD_STATE at word {at} has {count} states, "
                                 f"{len(words) - at - 1} words follow")
            yield at, 4 * head.offset, count
        at += (2 + count) // 2 * 2


def writes(words: np.ndarray) -> list[tuple[int, int]]:
    """(offset, value) of every state that a command stream ``(n,) uint32`` loads, in order."""
    return [(offset + 4 * i, int(words[at + 1 + i])) for at, offset, count in loads(words) for i in range(count)]


def commands(states: Iterable[tuple[int, int]]) -> np.ndarray:
    """A command stream that loads states (offset, value) one by one; the inverse of ``writes``."""
    words = []
    for offset, value in states:
        head = HEADER.build({"opcode": LOAD_STATE, "fixed_point": False, "count": 1, "offset": offset // 4})
        words += [int.from_bytes(head, "little"), value]
    return np.array(words, np.uint32)


def start_commands(address: int) -> np.ndarray:
    """What Mesa sends to start the NN job whose parameter block lies at ``address``."""
    body = commands([*BEFORE, (NN_INST_ADDR, address), *AFTER])
    return np.concatenate([commands(START_UP), np.zeros(2, np.uint32), body, np.zeros(2, np.uint32)])
