"""Streams of commands of varying length: the opcode of a command names the block it belongs to.

Every block has the opcode field: one name, the same bits, and an enum that names the blocks. A
command is as long as the words of its block. If the row that says where the block lies has
``bits``, the command is that long. If a field of the command counts items that follow, that row
has the field's name as ``count`` and the bytes of an item as ``stride``::

    block,offset,register,field,lsb,width,value,bits,count,stride
    LOAD,,,,,,,48,,
    LOAD,0,CMD,opcode,0,8,enum:opcode,48,,
    LOAD,0,CMD,address,16,32,,48,,
    BURST,,,,,,,32,words,4
    BURST,0,CMD,opcode,0,8,enum:opcode,,,
    BURST,0,CMD,words,8,4,raw+1,,,
    BURST,4,DATA,data,0,32,,,16,4
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np
from numpy import ndarray as Array

from npulab.registers.expansion import BYTE_BITS, Repeat
from npulab.registers.fields import WORD_BITS, WORD_BYTES, Field
from npulab.registers.map import RegisterMap
from npulab.support.refuse import refusing
from npulab.support.text import plural

MOST_KEPT = 64  # most sets of maps whose opcodes are kept in memory

Maps = Mapping[str, RegisterMap]  # by block


def read_commands(data: bytes, maps: Maps, opcode: str) -> list[tuple[str, Array]]:
    """Return the block and the words ``(W,) uint32`` of each command of a stream, from the first
    command to the last; if a command ends inside a word, the bits of the word after its end are
    0.

    Raises ValueError, with the command's first byte, for an opcode without a block and for a
    command that is cut off; and ValueError if the blocks do not agree on the field ``opcode``.
    """
    field, blocks = _blocks(opcode, maps)
    head = WORD_BYTES * (1 + max(piece.word for piece in field.pieces))
    out, at = [], 0
    while at < len(data):
        where = f"byte {at:#x}"
        code = int(field.extract(_words_at(data, at, head)))
        if code not in blocks:
            allowed = ", ".join(f"{raw:#x} ({block})" for raw, block in blocks.items())
            raise ValueError(f"{where}: got opcode {code:#x}, allowed is {allowed}")
        block = blocks[code]
        most = WORD_BYTES * len(maps[block])
        with refusing(where):
            size = command_bytes(maps[block], block, _words_at(data, at, most))
        command = data[at : at + size]
        if len(command) < size:
            raise ValueError(
                f"{where}: got {len(command)} bytes of a command {block}, allowed are {size}"
            )
        out.append((block, _words_at(command, 0, most).astype(np.uint32)))
        at += size
    return out


def _words_at(data: bytes, at: int, size: int) -> Array:
    """``size`` bytes of a stream as 32-bit words; bytes after the stream's end are 0."""
    return np.frombuffer(data[at : at + size].ljust(size, b"\0"), "<u4")


def write_commands(commands: Iterable[tuple[str, Array]], maps: Maps) -> bytes:
    """Return the stream of commands; raises ValueError for words with bits set after the command's
    end.
    """
    out = []
    for number, (block, words) in enumerate(commands):
        data, size = np.asarray(words, "<u4").tobytes(), command_bytes(maps[block], block, words)
        if any(data[size:]):
            raise ValueError(
                f"command {number}, {block}: got set bits after byte {size}, allowed are set bits "
                f"in its {size} bytes"
            )
        out.append(data[:size])
    return b"".join(out)


def opcodes(maps: Maps) -> dict[str, Field]:
    """Return, by block, the field whose enum names the block, as ``read_commands`` reads it; an
    empty dict if no field distinguishes the blocks.

    The field has the same name and the same bits in two or more blocks, and its enum names each of
    these blocks.
    """
    return _opcodes(tuple(maps.items()))


@lru_cache(MOST_KEPT)
def _opcodes(items: tuple[tuple[str, RegisterMap], ...]) -> dict[str, Field]:
    """``opcodes`` of the maps with these names."""
    maps = dict(items)
    for block, registers in items:
        for item in registers:
            named = {name for _, name in item.names if name in maps}
            if len(named) < 2 or block not in named:
                continue
            found = {name: maps[name][item.name] for name in named if item.name in maps[name]}
            kinds = {(field.pieces, field.names) for field in found.values()}
            if len(found) == len(named) and len(kinds) == 1:
                return found
    return {}


def contradiction(block: str, words: Array, maps: Maps) -> str:
    """Return why words cannot be a command of a block: their opcode names another block; "" if they
    can.
    """
    item = opcodes(maps).get(block)
    if item is None or max(piece.word for piece in item.pieces) >= len(words):
        return ""
    raw, names = item.raw_in(words), dict(item.names)
    if names.get(raw) == block:
        return ""
    got = f"{raw:#x}"
    if raw in names:
        got = f"{names[raw]} ({raw:#x})"
    allowed = " or ".join(f"{name} ({code:#x})" for code, name in item.names if name == block)
    return (
        f"field {item.name} of block {block}: got {got}, allowed is {allowed}, because the opcode "
        "names the block; for another block replace the whole job"
    )


def command_bytes(registers: RegisterMap, block: str, words: Array) -> int:
    """Return the length in bytes of a command of a block with these words."""
    repeat = registers.repeats.get(block, Repeat())
    bits = repeat.bits or WORD_BITS * len(registers)
    if repeat.counted:
        counted = registers[repeat.counted]
        bits += BYTE_BITS * repeat.step * int(counted.value(counted.extract(words)))
    if bits > WORD_BITS * len(registers):
        raise ValueError(
            f"block {block}: got a command of {bits} bits, allowed are at most "
            f"{WORD_BITS * len(registers)}, the bits of its {plural(len(registers), 'word')}"
        )
    return bits // BYTE_BITS


def _blocks(opcode: str, maps: Maps) -> tuple[Field, dict[int, str]]:
    """Return the field ``opcode`` and the block of each opcode; raises ValueError if the blocks'
    fields of this name differ in bits or enum, or if a block has no opcode.
    """
    first, *others = [registers[opcode] for registers in maps.values()]
    for item in others:
        if (item.pieces, item.names) != (first.pieces, first.names):
            raise ValueError(
                f"blocks {first.block} and {item.block}: got field {first.name} at {first.bits} "
                f"and {item.name} at {item.bits}, allowed are the same bits and the same enum"
            )
    blocks = {raw: name for raw, name in first.names if name in maps}
    missing = [block for block in maps if block not in blocks.values()]
    if missing:
        raise ValueError(
            f"field {first.name}: its enum has no opcode for block {missing[0]}, it "
            f"names {', '.join(name for _, name in first.names) or 'none'}"
        )
    return first, blocks
