"""Command streams: register writes of whole words, byte lanes, bits that are set or cleared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from npulab.capture import Job
from npulab.captures.dumps import folder_importer
from npulab.registers.commands import read_commands, write_commands
from npulab.registers.map import RegisterMap

from .facts import BLOCK, CHIPS, TABLES

Maps = Mapping[str, RegisterMap]
COMMANDS = {block: table for block, table in TABLES.items() if block != BLOCK}


def lane_bits(lanes: int) -> int:
    return sum(0xFF * 256**lane for lane in range(4) if lanes // 2**lane % 2)


def jobs_of(stream: bytes, maps: Maps) -> list[Job]:
    """A job for each group and layer that a stream programs."""
    writes: list[tuple[int, int, int]] = []
    for block, words in read_commands(stream, COMMANDS, "opcode"):
        v = COMMANDS[block].decode(words)
        if block == "WRITE":
            writes.append((v["at"], v["value"], lane_bits(v["lanes"])))
        elif block != "START":
            writes.append((v["at"], v["mask"] * (block == "SET"), v["mask"]))
    jobs, rest = Job.split(writes, {BLOCK: maps[BLOCK]})
    if rest:
        raise ValueError(f"stream: got a write to {rest[0][0]:#x}, allowed are the register files")
    return jobs


def stream_of(states: Sequence[tuple[int, np.ndarray]], maps: Maps) -> bytes:
    """The stream that leaves these words of a register file in the copies at these addresses."""
    out = []

    def add(block: str, **values: int) -> None:
        opcode = list(COMMANDS).index(block) + 1
        out.append((block, COMMANDS[block].encode({"opcode": opcode, **values})))

    for base, words in states:
        for offset, word in maps[BLOCK].index.items():
            at, value = base + offset, int(words[word])
            if offset == 0:
                add("CLEAR", at=at, mask=0xFFFF)
                add("SET", at=at, mask=value)
            elif offset == 0x20:
                add("WRITE", at=at, value=value, lanes=0b0011)
                add("WRITE", at=at, value=value, lanes=0b1100)
            elif offset != 0x100:
                add("WRITE", at=at, value=value, lanes=0b1111)
    add("START", groups=0b1111)
    return write_commands(out, COMMANDS)


def dumped(path: Path, buffers: Mapping[str, bytes], maps: Maps) -> list[Job]:
    return jobs_of(buffers["stream"], maps)


IMPORTERS = (folder_importer("wren", CHIPS, TABLES, dumped),)
