"""Streams of commands of varying length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from npulab.registers.commands import read_commands, write_commands
from npulab.registers.map import RegisterMap

ENUMS = {"opcode": {1: "NOP", 2: "LOAD", 0x83: "CONV"}}


Row = dict[str, object]


def opcode(block: str, bits: int) -> Row:
    return field(block, "opcode", 0, 8, bits, value="enum:opcode")


def field(block: str, name: str, lsb: int, width: int, bits: int, **more: object) -> Row:
    place = {"block": block, "register": "CMD", "lsb": lsb, "width": width}
    return {**place, "field": name, "bits": bits, **more}


ROWS = {
    "NOP": [{"block": "NOP", "bits": 16}, opcode("NOP", 16)],
    "LOAD": [
        {"block": "LOAD", "bits": 48},
        opcode("LOAD", 48),
        field("LOAD", "address", 16, 32, 48),
    ],
    "CONV": [opcode("CONV", 64), field("CONV", "rows", 20, 20, 64)],
}
MAPS = {block: RegisterMap(rows, enums=ENUMS) for block, rows in ROWS.items()}
SIZES = {"NOP": 2, "LOAD": 6, "CONV": 8}
CODES = {name: code for code, name in ENUMS["opcode"].items()}


@given(st.lists(st.tuples(st.sampled_from(sorted(SIZES)), st.integers(0, 2**56 - 1)), max_size=20))
def test_a_stream_is_its_commands_by_opcode(commands: list[tuple[str, int]]) -> None:
    parts = []
    for block, rest in commands:
        bits = 8 * SIZES[block]
        number = CODES[block] + 256 * (rest % 2 ** (bits - 8))
        parts.append((block, number, number.to_bytes(SIZES[block], "little")))
    data = b"".join(part for *_, part in parts)
    found = read_commands(data, MAPS, "opcode")
    assert [block for block, _ in found] == [block for block, *_ in parts]
    for (block, words), (_, number, _) in zip(found, parts, strict=True):
        assert sum(int(word) * 2 ** (32 * n) for n, word in enumerate(words)) == number
        values = MAPS[block].decode(words)
        assert values["opcode"] == CODES[block]
        if block == "LOAD":
            assert values["address"] == number // 2**16
        if block == "CONV":
            assert values["rows"] == number // 2**20 % 2**20
    assert write_commands(found, MAPS) == data


def test_the_length_of_a_command_stands_in_the_table(tmp_path: Path) -> None:
    (tmp_path / "load.csv").write_text(
        "block,offset,register,field,lsb,width,value,bits\n"
        "LOAD,,,,,,,48\nLOAD,0,CMD,opcode,0,8,enum:opcode,48\nLOAD,0,CMD,address,16,32,,48\n"
    )
    (tmp_path / "enums.csv").write_text("enum,raw,name\nopcode,2,LOAD\n")
    maps = {"LOAD": RegisterMap.read(tmp_path / "load.csv")}
    data = bytes([2, 0, 0x78, 0x56, 0x34, 0x12, 2, 0, 1, 0, 0, 0])
    found = [
        maps[block].decode(words)["address"] for block, words in read_commands(data, maps, "opcode")
    ]
    assert found == [0x12345678, 1]


def burst(**block: object) -> dict[str, RegisterMap]:
    rows = [
        {"block": "CONV", "bits": 32, "count": "words", "stride": 4, **block},
        opcode("CONV", 32),
        field("CONV", "words", 8, 3, 32, value="raw+1"),
        field("CONV", "data", 0, 32, 32, register="DATA", offset=4, count=6, stride=4),
    ]
    return {**MAPS, "CONV": RegisterMap(rows, enums=ENUMS)}


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6), max_size=6))
def test_a_field_of_the_command_says_how_many_words_follow(payloads: list[list[int]]) -> None:
    maps = burst()
    parts = [
        b"\x01\0" + bytes([0x83, len(payload) - 1, 0, 0]) + np.array(payload, "<u4").tobytes()
        for payload in payloads
    ]
    found = read_commands(b"".join(parts), maps, "opcode")
    assert [[*words[1:]] for block, words in found if block == "CONV"] == [
        payload + [0] * (6 - len(payload)) for payload in payloads
    ]
    assert write_commands(found, maps) == b"".join(parts)


def test_lengths_that_do_not_fit_the_block() -> None:
    with pytest.raises(
        ValueError,
        match=r"^byte 0x2: block CONV: got a command of 256 bits, allowed are at most 224, the bits of its 7 words$",
    ):
        read_commands(b"\x01\0\x83\6\0\0" + bytes(28), burst(), "opcode")
    with pytest.raises(
        ValueError,
        match=r"^byte 0x0: got 6 bytes of a command CONV before the end of the stream, allowed are 8$",
    ):
        read_commands(b"\x83\0\0\0\1\2", burst(), "opcode")
    with pytest.raises(
        ValueError,
        match=r"^command 0, CONV: got bits set after its end, allowed are set bits in its first 8 bytes$",
    ):
        write_commands([("CONV", np.array([0x83, 1, 2, 0, 0, 0, 0], np.uint32))], burst())
    with pytest.raises(
        ValueError,
        match=r"^register map, block 'CONV': got count words, which names a field, allowed is such a count in a row with bits and with a stride above 0$",
    ):
        burst(stride="")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            b"\x01\x00\x07\x00",
            r"^byte 0x2: got opcode 0x7, allowed is 0x1 \(NOP\), 0x2 \(LOAD\), 0x83 \(CONV\)$",
        ),
        (
            b"\x01\x00\x02\x00\x00",
            "^byte 0x2: got 3 bytes of a command LOAD before the end of the stream, allowed are 6$",
        ),
    ],
)
def test_streams_that_are_broken(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_commands(data, MAPS, "opcode")


def test_blocks_have_to_agree_on_the_opcode() -> None:
    other = [{**opcode("CONV", 64), "lsb": 8}]
    with pytest.raises(
        ValueError, match=r"opcode at 0\[7:0\] and opcode at 0\[15:8\], allowed are the same bits"
    ):
        read_commands(b"", {**MAPS, "CONV": RegisterMap(other, enums=ENUMS)}, "opcode")
    with pytest.raises(
        ValueError, match="its enum has no opcode for block STORE, it names NOP, LOAD, CONV"
    ):
        read_commands(b"", {"STORE": MAPS["NOP"]}, "opcode")


def test_bits_behind_a_command_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"^command 0, LOAD: got bits set after its end, allowed are set bits in its first 6 bytes$",
    ):
        write_commands([("LOAD", np.array([2, 2**16], np.uint32))], MAPS)
    long = RegisterMap([{"block": "NOP", "bits": 64}, opcode("NOP", 32)], enums=ENUMS)
    with pytest.raises(
        ValueError,
        match=r"^block NOP: got a command of 64 bits, allowed are at most 32, the bits of its 1 word$",
    ):
        write_commands([("NOP", np.array([1]))], {"NOP": long})


def test_an_opcode_in_two_words() -> None:
    half = {
        "block": "FAR",
        "register": "CMD",
        "field": "opcode",
        "bits": 64,
        "width": 4,
        "value": "enum:opcode",
    }
    maps = {
        "FAR": RegisterMap(
            [{**half, "lsb": 0, "at": 0}, {**half, "lsb": 36, "at": 4}],
            enums={"opcode": {0x83: "FAR"}},
        )
    }
    data = (0x83 % 16 + (0x83 // 16 << 36) + (0xABC << 40)).to_bytes(8, "little") * 2
    assert [(block, words.tolist()) for block, words in read_commands(data, maps, "opcode")] == [
        ("FAR", [3, 0xABC80])
    ] * 2
