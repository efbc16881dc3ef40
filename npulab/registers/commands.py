"""Streams of commands of varying length: the opcode of a command names the block of the command.

Every block has the opcode field: one name, the same bits, and an enum whose names are the blocks.
By default, a command is as long as the words of its block. If the row that says where the block
lies has ``bits``, a command has so many bits. If a field of the command counts items that follow,
the same row has the name of that field as ``count`` and the bytes of an item as ``stride``; its
``bits`` are the length without items::

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

MOST_KEPT = 64  # most sets of maps whose opcode fields are kept in memory

Maps = Mapping[str, RegisterMap]  # the map of each block, by the block's name


def read_commands(data: bytes, maps: Maps, opcode: str) -> list[tuple[str, Array]]:
    """Return the block and the words ``(W,) uint32`` of each command of a stream, in the order of
    the stream. W is the number of words of the block; bits after the end of the command are 0.

    ``opcode`` is the name of the opcode field. Raises ValueError, with the byte at which the
    command begins, for an opcode without a block, a command that is longer than the words of its
    block, and a command that is cut off. Raises ValueError if the blocks differ in the bits or the
    enum of the opcode field, or if the enum does not name each block.
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
                f"{where}: got {len(command)} bytes of a command {block} before the end of "
                f"the stream, allowed are {size}"
            )
        out.append((block, _words_at(command, 0, most).astype(np.uint32)))
        at += size
    return out


def _words_at(data: bytes, at: int, size: int) -> Array:
    """Return ``size`` bytes of a stream, from byte ``at`` on, as 32-bit words; bytes after the end
    of the stream are 0."""
    return np.frombuffer(data[at : at + size].ljust(size, b"\0"), "<u4")


def write_commands(commands: Iterable[tuple[str, Array]], maps: Maps) -> bytes:
    """Return the stream of commands, each given as its block and its words; raises ValueError for
    words with a bit set after the end of their command.
    """
    out = []
    for number, (block, words) in enumerate(commands):
        data, size = np.asarray(words, "<u4").tobytes(), command_bytes(maps[block], block, words)
        if any(data[size:]):
            raise ValueError(
                f"command {number}, {block}: got bits set after its end, allowed are set bits in "
                f"its first {size} bytes"
            )
        out.append(data[:size])
    return b"".join(out)


def opcodes(maps: Maps) -> dict[str, Field]:
    """Return the opcode field of each block, by the name of the block; an empty dict if no field is
    an opcode field.

    An opcode field has the same name, bits and enum in two or more blocks, and its enum names each
    of these blocks. Blocks that the enum does not name are left out.
    """
    return _opcodes(tuple(maps.items()))


@lru_cache(MOST_KEPT)
def _opcodes(items: tuple[tuple[str, RegisterMap], ...]) -> dict[str, Field]:
    """Return the same as ``opcodes``, for maps given as pairs of a block and its map: unlike a
    dict, such pairs can be a key of the cache."""
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
    """Return an error text if words cannot be a command of a block, because their opcode does not
    name this block; "" if they can be one, or if the block has no opcode field.
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
    """Return the length in bytes of a command of a block with these words; raises ValueError if it
    is longer than the words of the block."""
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
    """Return the field with the name ``opcode``, and the block of each raw number of this field;
    raises ValueError if the blocks differ in its bits or its enum, or if the enum does not name
    each block.
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
