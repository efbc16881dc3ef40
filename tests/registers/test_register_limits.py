"""What maps, meanings and arrays of registers do exactly at their limits: the last that is
taken, the first that is not.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from round_trip import row

import npulab.registers.map
from npulab.registers.fields import Field, Piece
from npulab.registers.map import RegisterMap
from npulab.registers.meaning import Meaning
from npulab.registers.shown import Table
from npulab.registers.table import read_enums


def wide(width: int, value: str = "") -> RegisterMap:
    """A map with one field of up to 64 bits."""
    rows = [row("f", 0, min(width, 32), at=0, value=value)]
    if width > 32:
        rows.append(row("f", 0, width - 32, at=32, offset=4, value=value))
    return RegisterMap(rows)


def meant(value: str, raw: int, width: int) -> Fraction:
    """The meaning of a raw number, from its definition."""
    out = Fraction(raw)
    if value.startswith("signed") and raw >> (width - 1):
        out -= 2**width
    for operation, number in re.findall(r"(>>|\*|\+)(-?\d+)", value):
        if operation == "*":
            out *= int(number)
        elif operation == "+":
            out += int(number)
        else:
            out /= 2 ** int(number)
    return out


@pytest.mark.parametrize(
    ("value", "widest"),
    [
        ("", 64),
        ("signed", 64),
        ("raw*1", 62),
        ("raw*2", 61),
        ("raw*3", 61),
        ("raw*4", 60),
        ("raw+1", 62),
        ("signed raw+1", 62),
        ("raw+-1", 62),
        ("signed raw*3+7", 60),
        ("raw*2+1", 60),
        ("raw>>1", 53),
        ("signed raw>>0", 53),
        ("raw>>63", 53),
        ("raw+2>>3", 52),
        (f"raw+{2**61}", 62),
    ],
)
def test_widest_values_are_exact_and_wider_ones_refused(value: str, widest: int) -> None:
    for width in (widest, min(widest, 32), 8, 1):
        registers, last = wide(width, value), 2**width - 1
        for raw in {0, 1, last, last // 2, (last + 1) // 2}:
            words = registers.encode({"f": raw}, raw=True)
            want = meant(value, raw, width)
            assert Fraction(registers.decode(words)["f"]) == want
            given = registers.decode(words)["f"]
            assert registers.encode({"f": given}).tolist() == words.tolist()
            many = registers.decode(np.stack([words, words]))["f"]
            assert [Fraction(one) for one in many.tolist()] == [want, want]
            assert registers.encode({"f": many}).tolist() == [words.tolist()] * 2
        with pytest.raises(ValueError, match=r"field f: got "):
            registers.encode({"f": last + 1}, raw=True)
        with pytest.raises(ValueError, match=r"field f: got "):
            registers.encode({"f": -1}, raw=True)
    if widest < 64:
        with pytest.raises(
            ValueError,
            match=rf"got a field of {widest + 1} bits, allowed is one whose values fit into 63 bits \(53 with >>\)$",
        ):
            wide(widest + 1, value)


def test_a_field_has_64_bits_at_most() -> None:
    rows = [row("f", 0, 32, at=at, offset=at // 8) for at in (0, 32)]
    assert RegisterMap(rows).f.width == 64
    with pytest.raises(ValueError, match=r"field f: got 65 bits, allowed is at most 64$"):
        RegisterMap([*rows, row("f", 0, 1, at=64, offset=8)])


@pytest.mark.parametrize(
    ("value", "width", "allowed"),
    [
        ("f32", 32, True),
        ("f32", 31, False),
        ("f16", 16, True),
        ("f16", 32, False),
        ("f16", 15, False),
    ],
)
def test_floats_have_the_bits_of_their_type(value: str, width: int, allowed: bool) -> None:
    if allowed:
        assert wide(width, value).decode(wide(width, value).encode({"f": 1.5}))["f"] == 1.5
    else:
        with pytest.raises(
            ValueError,
            match=f"got a field of {width} bits, allowed is one of {value[1:]} bits for {value}$",
        ):
            wide(width, value)


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("raw*0", False),
        ("raw*1", True),
        ("raw>>63", True),
        ("raw>>64", False),
        ("raw>>-1", False),
        (f"raw+{2**64 - 1}", True),
        (f"raw+{2**64}", False),
        (f"raw*-{2**64}", False),
        ("raw*2*2", False),
        ("raw>>1+1", False),
        ("raw+1*2", True),
        ("raw+", False),
    ],
)
def test_numbers_beside_an_operation(value: str, fits: bool) -> None:
    if fits:
        assert str(Meaning.parse(value)) == value
    else:
        with pytest.raises(ValueError, match=r"^value 'raw"):
            Meaning.parse(value)


def test_values_that_no_raw_number_gives() -> None:
    for value, given, words in (
        ("raw*2", 3, "allowed is a multiple of 2$"),
        ("raw>>1", 0.25, "allowed is a value with a whole raw number of at most 63 bits$"),
        ("raw>>1", 2.0**62, "allowed is a value with a whole raw number"),
        ("", 0.5, "allowed is a value with a whole raw number"),
        ("raw+1", np.uint64(2**63), "allowed is a value of at most 63 bits$"),
        ("", np.inf, "allowed is a finite value$"),
        ("f16", 65505.0, "allowed is a value in the range of float16$"),
        ("f32", 1e40, "allowed is a value in the range of float32$"),
        ("raw+1", 2**70, "allowed is a number of at most 64 bits$"),
        ("", "a", "allowed is a number"),
    ):
        with pytest.raises(ValueError, match=f"field f: got .*, {words}"):
            wide(16 if value == "f16" else 32, value).encode({"f": given})
    half = wide(16, "f16")
    assert half.decode(half.encode({"f": 65504.0}))["f"] == 65504
    assert half.decode(half.encode({"f": np.inf}))["f"] == np.inf
    assert wide(62, "raw+1").encode({"f": np.uint64(2**62)}).tolist() == [2**32 - 1, 2**30 - 1]


def test_numpy_values_of_any_type_that_fit() -> None:
    registers = wide(7)
    for kind in (np.uint8, np.int8, np.uint16, np.int64, np.uint64):
        assert registers.encode({"f": kind(127)}).tolist() == [127]
        assert registers.encode({"f": np.array([127, 0], kind)}).tolist() == [[127], [0]]
        if kind != np.int8:
            with pytest.raises(
                ValueError, match=r"field f: got raw 128, allowed is 0 to 127 \(7 bits\)$"
            ):
                registers.encode({"f": np.array([127, 128], kind)})
    signed = wide(7, "signed")
    assert signed.encode({"f": np.array([-64, 63, -1])}).tolist() == [[64], [63], [127]]
    for wrong in (-65, 64):
        with pytest.raises(ValueError, match=rf"got raw {wrong}, allowed is -64 to 63 \(7 bits\)$"):
            signed.encode({"f": wrong})


def test_raw_values_have_32_bits_or_64() -> None:
    for width, kind in ((1, np.uint32), (32, np.uint32), (33, np.uint64), (64, np.uint64)):
        registers = wide(width)
        assert (
            registers.decode(np.ones((2, len(registers)), np.uint32), raw=True)["f"].dtype == kind
        )


def test_words_are_numbers_of_32_bits() -> None:
    registers = wide(32)
    for kind in (np.int64, np.uint64):
        assert registers.decode(np.array([2**32 - 1], kind))["f"] == 2**32 - 1
    for wrong in (-1, 2**32):
        with pytest.raises(ValueError, match=rf"^words: got {wrong}, allowed is uint32, 0 to "):
            registers.decode(np.array([0, wrong]))
    with pytest.raises(ValueError, match=r"^words: got float64, allowed is uint32$"):
        registers.decode(np.array([0.0]))


@pytest.mark.parametrize(("raw", "name"), [("-1", "a"), ("", "a"), ("x", "a"), ("1", "")])
def test_enums_that_are_refused(raw: str, name: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"^got row \{.*\}, allowed is enum, raw and name, all filled in, raw a whole number from 0$",
    ):
        read_enums([{"enum": "e", "raw": raw, "name": name}])
    with pytest.raises(ValueError, match=r"^got row "):
        read_enums([{"enum": "", "raw": "1", "name": "a"}])


def test_enums_name_each_number_once() -> None:
    rows = [
        {"enum": "e", "raw": "0", "name": "zero"},
        {"enum": "e", "raw": "0x10", "name": "a"},
        {"enum": "o", "raw": "0", "name": "zero"},
    ]
    assert read_enums(rows) == {"e": {0: "zero", 16: "a"}, "o": {0: "zero"}}
    for raw, name in (("0", "other"), ("3", "zero")):
        with pytest.raises(ValueError, match=rf"^enum e: got raw {raw} or name '{name}' twice"):
            read_enums([*rows, {"enum": "e", "raw": raw, "name": name}])


def test_places_inside_a_register() -> None:
    for lsb, width, fits in (
        (31, 1, True),
        (0, 32, True),
        (31, 2, False),
        (0, 33, False),
        (32, 1, False),
        (-1, 2, False),
        (3, 0, False),
    ):
        if fits:
            assert RegisterMap([row("f", lsb, width)]).f.pieces[0][1:3] == (lsb, width)
        else:
            words = f"got lsb {lsb} width {width}, allowed is inside bits 0 to 31$"
            with pytest.raises(ValueError, match=f"field 'f' of register 'R': {words}"):
                RegisterMap([row("f", lsb, width, register="R")])
    for offset in (-4, 2):
        with pytest.raises(ValueError, match=r"allowed is a multiple of 4 from 0$"):
            RegisterMap([row("f", offset=offset)])
    with pytest.raises(ValueError, match=r"got at -1, allowed is at least 0$"):
        RegisterMap([row("f", at=-1)])
    touching = RegisterMap([row("f", 0, 4, at=0), row("f", 8, 4, at=4)])
    assert touching.decode(np.array([0xA05]))["f"] == 0xA5
    with pytest.raises(
        ValueError,
        match=r"got pieces at bit 0 \(width 4\) and bit 3 of the field's value, allowed are pieces that",
    ):
        RegisterMap([row("f", 0, 4, at=0), row("f", 8, 4, at=3)])


def test_how_far_a_dense_block_reaches() -> None:
    last = 4 * 2**16
    assert RegisterMap([row("f", offset=last)], dense=False).registers == [("", last, "r40000")]
    for rows in ([row("f", offset=last + 4)], [row("a"), row("f", offset=last + 4)]):
        with pytest.raises(
            ValueError,
            match=r"got offset 0x40004, allowed is up to 0x40000 from the block's start, or dense=False$",
        ):
            RegisterMap(rows)
        assert len(RegisterMap(rows, dense=False)) == len(rows)


def test_alignment_is_none_unless_it_is_said() -> None:
    registers = RegisterMap([row("a"), row("b", 8, align=1), row("c", 16, align=64)])
    assert [registers[name].align for name in "abc"] == [0, 1, 64]
    assert registers.fields.set_index("field").loc[["a", "b", "c"], "align"].tolist() == [0, 1, 64]


def test_a_chip_s_map_is_made_once() -> None:
    registers = RegisterMap([row("a"), row("b", 8, feature="v2")])
    assert registers.select(["v2"]) is registers.select({"v2"}) is not registers.select([])
    assert "b" in registers.select(["v2"])
    assert "b" not in registers.select([])


def test_what_is_known_of_each_word_in_bits() -> None:
    registers = RegisterMap(
        [
            row("a", 0, 3, evidence="K"),
            row("b", 3, 5, evidence="guess"),
            row("", 8, 2),
            row("", 10, 4, evidence="guess"),  # a law with rivals, of a field that nobody named
            row("d", 31, 1, offset=4, evidence="K"),
        ]
    )
    assert registers.status().iloc[:, 4:].to_numpy().tolist() == [
        [3, 9, 20, 0, 0],
        [1, 0, 31, 0, 0],
    ]
    assert (
        registers.status().attrs["summary"]
        == "64 bits in 2 words: 6 % explained, 14 % guessed, 80 % open"
    )
    seen = registers.status(
        np.array([[0b1001_0001, 0], [0b1000_0000, 1 << 31], [1 << 10 | 0b1000_0000, 1]])
    )
    assert seen.iloc[:, 4:].to_numpy().tolist() == [[1, 2, 0, 20, 9], [1, 0, 1, 30, 0]]
    assert registers.coverage().bits == (9, 55)
    assert [str(one) for one in registers.lint()] == [
        "unnamed at word 0 bit 8 (2 bits)",
        "unnamed at word 0 bit 10 (4 bits)",
        "hole at word 0 bit 14 (18 bits)",
        "hole at word 1 bit 0 (31 bits)",
    ]
    assert registers.declared == 15


def block(**more: Any) -> dict[str, Any]:
    return {"block": "L", **more}


INSIDE = [row("f", block="L", register="A"), row("g", block="L", register="B", offset=4)]


def test_places_of_copies_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npulab.registers.map, "MOST_PLACES", 6)
    three = RegisterMap([block(offset=16, count="3", stride="8"), *INSIDE])
    assert [three.place(address)[1:] for address in (16, 20, 24, 37, 39)] == [
        ((0,), 0),
        ((0,), 4),
        ((1,), 0),
        ((2,), 5),
        ((2,), 7),
    ]
    assert [three.holds(address) for address in (12, 15, 16, 39, 40)] == [
        False,
        False,
        True,
        True,
        False,
    ]
    with pytest.raises(
        LookupError, match=r"^address: got 0x28, the map has 6 words from 0x10 to 0x24$"
    ):
        three.place(40)
    with pytest.raises(
        ValueError, match=r"got 8 words in all copies of its blocks, allowed are at most 6$"
    ):
        RegisterMap([block(count="4", stride="8"), *INSIDE]).place(0)
    with pytest.raises(
        ValueError,
        match=r"address 0x14: got offset 0x0 of L \(1,\) and 0x4 of L \(0,\), allowed is one word$",
    ):
        RegisterMap([block(offset=16, count="2", stride="4"), *INSIDE]).place(16)
    with pytest.raises(
        ValueError,
        match=r"address 0x4: got offset 0x4 of M \(\) and 0x4 of L \(\), allowed is one word$",
    ):
        RegisterMap([*INSIDE, row("h", block="M", offset=4)], dense=False).place(0)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"count": "2 3", "stride": "64"},
            "got count '2 3' and stride '64', allowed are as many counts as strides, all above 0",
        ),
        ({"count": "0", "stride": "64"}, "above 0"),
        ({"count": "2", "stride": "0"}, "above 0"),
        ({"count": "-2 -2", "stride": "4 4"}, "above 0"),
        ({"count": "65537", "stride": "8"}, "for at most 65536 copies$"),
        ({"offset": 2}, "allowed is a multiple of 4 from 0$"),
        ({"offset": -4}, "allowed is a multiple of 4 from 0$"),
        ({"bits": 12}, "got bits 12, allowed is a multiple of 8 up to 1024$"),
        ({"bits": 0}, "got bits 0, "),
        ({"bits": 1032}, "got bits 1032, "),
        (
            {"count": "f", "bits": 32},
            "got count f, which names a field, allowed is such a count in a row with bits and with a "
            "stride above 0$",
        ),
        (
            {"count": "f", "stride": 4},
            "got count f, which names a field, allowed is such a count in a row with bits and with a "
            "stride above 0$",
        ),
        ({"count": "f", "bits": 8, "stride": 0}, "with bits and with a stride above 0$"),
        ({"count": "f", "stride": -1, "bits": 32}, "with bits and with a stride above 0$"),
        ({"value": "thin"}, "got value 'thin', allowed is blank or sparse$"),
        ({"field": "a b", "count": "2", "stride": "8"}, "got 2 names of dimensions"),
        ({"offset": "4 8"}, "got offset '4 8', allowed is a whole number$"),
    ],
)
def test_blocks_that_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=rf"^register map, block 'L': .*{words}"):
        RegisterMap([block(**more), *INSIDE])


@pytest.mark.parametrize(
    "more",
    [
        {"count": "65536", "stride": "8"},
        {"bits": 8},
        {"bits": 1024},
        {"count": "f", "stride": 1, "bits": 32},
        {"count": "1", "stride": "1"},
        {"field": "a", "count": "2", "stride": "8"},
    ],
)
def test_blocks_that_are_taken(more: dict[str, Any]) -> None:
    assert len(RegisterMap([block(**more), *INSIDE])) == 2


def test_arrays_of_registers_of_any_size() -> None:
    rows = [
        row("f", 4, 40, register="A", bits=48, count="3", stride="6"),
        row("g", 4, 3, register="B", offset=20),
    ]
    registers = RegisterMap(rows)
    assert [item.bits for item in registers if item.name.endswith(".f")] == [
        "0[31:4] 1[11:0]",
        "1[31:20] 2[27:0]",
        "3[31:4] 4[11:0]",
    ]
    for lsb, width, fits in (
        (8, 40, True),
        (9, 40, False),
        (0, 48, True),
        (-1, 3, False),
        (3, 0, False),
    ):
        made = [row("f", lsb, width, register="A", bits=48)]
        if fits:
            assert RegisterMap(made).f.width == width
        else:
            with pytest.raises(
                ValueError, match=f"got lsb {lsb} width {width}, allowed is inside bits 0 to 47$"
            ):
                RegisterMap(made)
    with pytest.raises(ValueError, match=r"register 'A': got offset -4, allowed is at least 0$"):
        RegisterMap([row("f", register="A", bits=32, offset=-4)])
    for more, word in (({"bits": 32}, "bits"), ({"count": "2", "stride": "4"}, "count")):
        with pytest.raises(
            ValueError,
            match=f"got {word} in a row without a register, allowed is {word} in a row with a register$",
        ):
            RegisterMap([row("f", **more)])


def test_which_numbers_of_a_table_are_addresses() -> None:
    text = repr(
        Table(
            {
                "field": ["a", "b", "c", "d"],
                "value": [16, 17, 18, 19],
                "address": [1, 0, True, False],
            }
        )
    )
    assert [line.split()[2] for line in text.splitlines()[1:]] == ["0x10", "17", "0x12", "19"]
    shown = Table({"field": ["a", "b"], "raw": [2**31, None], "note": ["x", None]})._repr_html_()
    assert shown.count("text-align:left") >= 4


def test_blank_columns_and_texts_that_are_words_of_the_table() -> None:
    assert RegisterMap([row("f", count=""), row("g", 8)]).f.width == 8
    assert [RegisterMap([row("f", note=text)]).f.note for text in ("True", "False")] == [
        "True",
        "False",
    ]
    assert [
        RegisterMap([row("f", address=said)]).f.address for said in ("yes", True, "", False)
    ] == [True, True, False, False]


def test_a_map_of_one_block_is_the_map_of_that_block() -> None:
    one = RegisterMap([row("f", block="A"), row("g", block="A", offset=4)])
    two = RegisterMap([row("f", block="A"), row("g", block="B", offset=4)])
    assert one.of_block("A") is one
    assert [len(two.of_block(name)) for name in "AB"] == [1, 2]
    assert [str(item.name) for item in two.of_block("B") if not item.automatic] == ["g"]


def test_a_field_of_several_words_keeps_its_name() -> None:
    whole = RegisterMap(
        [row("f", 4, 40, register="A", bits=48), row("g", 0, 8, register="B", offset=8)]
    )
    assert [item.name for item in whole if not item.automatic] == ["f", "g"]
    twice = RegisterMap(
        [row("f", 4, 40, register="A", bits=48), row("f", 4, 40, register="B", bits=48, offset=8)]
    )
    assert [item.name for item in twice if not item.automatic] == ["A.f", "B.f"]


def test_values_of_one_type_share_pieces_of_memory_of_at_most_31_mib() -> None:
    count = npulab.registers.map.SHARED_BYTES // 8
    made = npulab.registers.map._arrays(
        [np.uint32, np.uint64, np.uint32, np.uint32, np.uint64], count
    )
    assert [(one.dtype, one.shape) for one in made] == [
        (np.dtype(kind), (count,)) for kind in ("u4", "u8", "u4", "u4", "u8")
    ]
    assert npulab.registers.map.SHARED_BYTES < 2**25
    pieces = [
        max(one.base.nbytes for one in made if np.shares_memory(one, other)) for other in made
    ]
    assert pieces == [8 * count, 8 * count, 8 * count, 4 * count, 8 * count]
    assert len(npulab.registers.map._arrays([np.uint32], 0)) == 1
    assert (
        len(npulab.registers.map._arrays([np.uint64] * 2, npulab.registers.map.SHARED_BYTES)) == 2
    )


@pytest.mark.parametrize(
    "shape", [(0, 3), (1, 1), (100, 2000), (40_000, 3), (40_000, 0), (9000, 200)]
)
def test_blocks_of_rows_are_all_of_them_and_near(shape: tuple[int, int]) -> None:
    rows, words = np.zeros(shape[0], int), shape[1]
    for part, columns, scratch in npulab.registers.map._blocks(shape):
        rows[part] += 1
        count = part.stop - part.start
        assert (columns.shape, scratch.shape) == ((words, count), (count,))
        assert count <= 2**14
        assert columns.size <= 2**20 + words
        assert np.log2(columns.strides[0] or 3) % 1
    assert np.all(rows == 1)


@pytest.mark.parametrize("shape", [(3, 700), (1, 1), (0, 5), (5, 0), (500, 321), (2**14, 129)])
def test_turning_copies_every_word(shape: tuple[int, int]) -> None:
    source = np.arange(math.prod(shape), dtype=np.uint32).reshape(shape[::-1]).T
    for given, target in (
        (source, np.zeros(shape, np.uint32)),
        (np.ascontiguousarray(source), np.zeros(shape[::-1], np.uint32).T),
    ):
        npulab.registers.map._turn(given, target)
        assert np.array_equal(target, source)


def test_an_unknown_name_is_told_the_nearest_or_the_first_twelve() -> None:
    registers = RegisterMap([row(f"field{n:02}", 0, 32, offset=4 * n) for n in range(20)])
    near = ", ".join(f"field0{n}" for n in range(12) if n < 10)
    with pytest.raises(
        LookupError, match=rf"^got field 'zzz', the map has {near}, field10, field11, \.\.\.$"
    ):
        registers["zzz"]
    with pytest.raises(
        LookupError, match=r"^got field 'fild07', the map has field07, (\w+, ){4}\.\.\.$"
    ):
        registers["fild07"]


def test_a_register_that_no_map_has_is_one_field() -> None:
    item = Field.whole_word("A", "R")
    assert (item.name, item.width, item.pieces, item.automatic, item.declared) == (
        "R_0_32",
        32,
        (Piece(0, 0, 32, 0),),
        True,
        False,
    )
