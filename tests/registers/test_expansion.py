"""Registers of other sizes, arrays, and blocks that repeat."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest
from round_trip import rows_in

from npulab.analysis.draft import draft
from npulab.registers.expansion import Place
from npulab.registers.formats import read_map
from npulab.registers.map import RegisterMap

HEAD = "block,offset,register,field,lsb,width,at,value,bits,count,stride"


def table(folder: Path, *lines: str) -> Path:
    path = folder / "registers.csv"
    path.write_text("\n".join([HEAD, *lines]) + "\n")
    return path


def bits_of(data: bytes, low: int, width: int) -> int:
    """The definition: a little-endian number, cut."""
    return int.from_bytes(data, "little") >> low & (1 << width) - 1


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.long)])
def test_registers_of_any_size_read_as_bytes_do(count: int) -> None:
    random = Random(count)
    for _ in range(count):
        bits, offset = random.choice([8, 16, 32, 48, 64, 128]), random.randrange(8)
        width = random.randint(1, min(64, bits))
        lsb = random.randint(0, bits - width)
        row = {"offset": offset, "register": "R", "field": "f", "lsb": lsb, "width": width}
        registers = RegisterMap([{**row, "bits": bits}])
        memory = random.randbytes(4 * len(registers))
        words = np.frombuffer(memory, "<u4")
        value = registers.decode(words)["f"]
        at = 8 * offset + lsb
        assert value == bits_of(memory, at, width)
        assert np.array_equal(registers.encode(registers.decode(words)), words)
        again = registers.encode({"f": value}).astype("<u4").tobytes()
        assert bits_of(again, at, width) == value


def test_small_registers_share_words_and_keep_their_names(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "B,0x0,MODE,on,0,1,,,8,,",
        "B,0x1,SIZE,on,0,1,,,8,,",
        "B,0x2,STEP,step,0,16,,signed,16,,",
        "B,0x8,BASE,base,4,44,,,64,,",
        "B,0x10,END,base,4,44,,,64,,",
    )
    registers = RegisterMap.read(path)
    words = registers.encode(
        {"MODE.on": 1, "SIZE.on": 1, "STEP.step": -2, "BASE.base": 0x123456789AB, "END.base": 1}
    )
    assert [hex(word) for word in words] == [
        "0xfffe0101",
        "0x0",
        "0x56789ab0",
        "0x1234",
        "0x10",
        "0x0",
    ]
    assert registers.registers[0] == ("B", 0, "MODE_SIZE_STEP")
    assert registers.registers[2:4] == [("B", 8, "BASE"), ("B", 12, "BASE")]


def test_an_array_is_its_registers_by_number(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "B,0x0,GO,go,0,1,,,,,",
        "B,0x10,LUT,low,0,8,,,,2 3,0x20 4",
        "B,0x10,LUT,high,16,8,,,,2 3,0x20 4",
    )
    registers = RegisterMap.read(path)
    lines = ["block,offset,register,field,lsb,width", "B,0,GO,go,0,1"]
    for i, j in product(range(2), range(3)):
        place = f"B,{0x10 + 0x20 * i + 4 * j},LUT_{i}_{j}"
        lines += [f"{place},low,0,8", f"{place},high,16,8"]
    by_hand = RegisterMap(rows_in("\n".join(lines)))
    assert registers.registers == by_hand.registers
    assert list(registers) == list(by_hand)
    assert registers["LUT_1_2.high"].bits == "14[23:16]"


def test_split_fields_of_an_array_are_apart() -> None:
    registers = RegisterMap(
        rows_in("""
block,offset,register,field,lsb,width,at,count,stride
B,0,A,f,0,4,0,2,8
B,4,C,f,8,4,4,2,8
""")
    )
    assert registers["f_1"].bits == "2[3:0] 3[11:8]"


REPEATED = (
    "LAYER,0x50100000,,group layer,,,,sparse,,4 32,0x400000 4",
    "LAYER,0x0,CTRL,relu,0,1,,,,,",
    "LAYER,0x80,SIZE,rows,0,10,,raw+1,,,",
)


def test_a_block_that_repeats_is_placed_by_address(tmp_path: Path) -> None:
    registers = RegisterMap.read(table(tmp_path, *REPEATED))
    assert len(registers) == 2
    assert not registers.dense
    every = {
        0x50100000 + 0x400000 * group + 4 * layer + offset: Place("LAYER", (group, layer), offset)
        for group in range(4)
        for layer in range(32)
        for offset in (0, 0x80)
    }
    assert {address: registers.place(address) for address in every} == every
    assert registers.place(0x50100082) == Place("LAYER", (0, 0), 0x82)
    assert registers.holds(0x50100084)
    assert not registers.holds(0x50100100)
    assert registers.repeats["LAYER"].labels((1, 2)) == ("group 1", "layer 2")
    with pytest.raises(
        LookupError,
        match=r"^address: got 0x50100100, the map has 256 words from 0x50100000 to 0x50d000fc",
    ):
        registers.place(0x50100100)


def test_a_field_of_a_shared_word_is_known_by_its_own_name() -> None:
    registers = RegisterMap(
        rows_in("""
block,register,offset,field,lsb,width,bits
B,CTRL,0,mode,0,2,16
B,CTRL,0,x,4,2,16
B,SHIFT,2,by,0,2,8
B,SHIFT,2,x,4,2,8
""")
    )
    assert registers.encode({"mode": 1, "by": 2, "CTRL.x": 3}).tolist() == [0x20031]
    read = registers.decode(np.array([0x20031], np.uint32))
    assert (read["mode"], read["by"], read["CTRL.x"], read["SHIFT.x"]) == (1, 2, 3, 0)
    assert registers["CTRL.mode"] is registers["mode"]
    with pytest.raises(
        LookupError, match=r"got field 'x', which 2 fields have, allowed is one of "
    ):
        registers["x"]
    plain = RegisterMap(
        [
            *registers.fields.to_dict("records"),
            {"block": "B", "offset": 4, "field": "by", "lsb": 0, "width": 1},
        ]
    )
    assert plain["by"].pieces[0].word == 1
    assert plain.encode({"SHIFT.by": 1}).tolist() == [0x10000, 0]


def test_a_block_lies_elsewhere_on_another_chip() -> None:
    rows = [
        {"block": "B", "offset": base, "feature": chip}
        for chip, base in (("old", 0x1000), ("new", 0x20001D000))
    ]
    registers = RegisterMap(
        [*rows, {"block": "B", "register": "R", "field": "f", "lsb": 0, "width": 1}],
        features=["old"],
    )
    assert registers.place(0x1000) == Place("B", (), 0)
    assert registers.select(["new"]).place(0x20001D000) == Place("B", (), 0)


def test_tables_of_arrays_go_to_other_formats_and_to_drafts(tmp_path: Path) -> None:
    path = table(tmp_path, *REPEATED, "LAYER,0x100,LUT,entry,0,16,,,16,4,2")
    registers = RegisterMap.read(path)
    lost = r"not carried over: where the blocks lie and repeat \(LAYER\)$"
    with pytest.warns(UserWarning, match=lost):
        assert read_map(path).map().registers == registers.registers
    made = draft(path)
    assert (made.map.registers, made.map.repeats) == (registers.registers, registers.repeats)
    assert list(made.map) == list(registers)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            ["B,0,R,f,8,1,,,8,,"],
            "field 'f' of register 'R': got lsb 8 width 1, allowed is inside bits 0 to 7",
        ),
        (
            ["B,0,R,f,0,1,,,12,,"],
            "register 'R': got bits '12', allowed is a multiple of 8 up to 1024",
        ),
        (["B,0,,f,0,1,,,8,,"], "got bits in a row without a register"),
        (
            ["B,0,R,f,0,1,,,,4,"],
            "got count '4' and stride '', allowed are as many counts as strides",
        ),
        (["B,0,R,f,0,1,,,,0,4"], "got count '0' and stride '4'"),
        (["B,0,R,f,0,1,,,,x,4"], "got count 'x', allowed are whole numbers"),
        (["B,0,R,f,0,1,,,,2,4", "B,4,S,g,0,1,,,,,"], "R_1.*S|register names"),
        (["B,0,,a b,,,,,,2,4", "B,0,R,f,0,1,,,,,"], "got 2 names of dimensions"),
        (
            ["B,0,,,,,,,,2,4", "B,0,,,,,,,,,", "B,0,R,f,0,1,,,,,"],
            "got two rows with the block's place, allowed is one for each chip",
        ),
        (
            ["C,0,,,,,,,,2,4", "B,0,R,f,0,1,,,,,"],
            "block 'C': got a row with the place of a block without registers, allowed is the place of a block that",
        ),
        (["B,2,,,,,,,,2,4", "B,0,R,f,0,1,,,,,"], "got offset '2', allowed is a multiple of 4"),
        (["B,0,,,,,,thin,,,", "B,0,R,f,0,1,,,,,"], "got value 'thin', allowed is blank or sparse"),
    ],
)
def test_shapes_that_are_none(tmp_path: Path, lines: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RegisterMap.read(table(tmp_path, *lines))


def test_copies_that_meet_are_refused() -> None:
    registers = RegisterMap(
        [
            {"block": "B", "offset": 0, "count": 4, "stride": 4},
            {"block": "B", "offset": 8, "register": "R", "field": "f", "lsb": 0, "width": 1},
        ]
    )
    with pytest.raises(
        ValueError, match=r"address 0x4: got offset 0x0 of B \(1,\) and 0x4 of B \(0,\)"
    ):
        registers.place(0)


def test_too_many_copies_and_two_words_at_an_address_are_refused(tmp_path: Path) -> None:
    rows = [f"LAYER,{4 * n:#x},R{n},f{n},0,1,,,,," for n in range(17)]
    many = RegisterMap.read(
        table(
            tmp_path,
            REPEATED[0].replace("4 32", "4096 16").replace("0x400000 4", "0x2000 0x80"),
            *rows,
        )
    )
    with pytest.raises(
        ValueError,
        match=r"^register map: got 1114112 words in all copies of its blocks, allowed are at most 1048576$",
    ):
        many.place(0x50100000)
    alike = RegisterMap.read(
        table(tmp_path, REPEATED[0].replace("0x400000 4", "0x400000 0x80"), *REPEATED[1:])
    )
    with pytest.raises(
        ValueError,
        match=r"address 0x50100080: got offset 0x0 of LAYER \(0, 1\) and 0x80 of LAYER \(0, 0\)",
    ):
        alike.place(0x50100000)
