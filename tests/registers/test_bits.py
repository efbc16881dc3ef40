"""Register maps."""

from __future__ import annotations

import ctypes
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import shared
from round_trip import row

import npulab
from npulab.registers.map import STATUS, RegisterMap
from npulab.registers.meaning import Meaning
from npulab.registers.table import refuse_odd
from npulab.support.files import read_table

VIVANTE = npulab.target("vivante")
A311D, IMX8MP = "vipnano-qi-a311d", "vipnano-si-imx8mp"


SPLIT = [
    row("a", 26, 1, at=0),
    row("a", 22, 6, at=1, offset=4),
    row("a", 24, 8, at=7, offset=8),
    row("b", 0, 3, value="signed"),
    row("c", 0, 32, offset=12, value="f32"),
]


def test_split_field_is_one_value() -> None:
    registers = RegisterMap(SPLIT)
    words = registers.encode({"a": 12478})
    assert registers.a.bits == "0[26] 1[27:22] 2[31:24]"
    assert [hex(word) for word in words] == ["0x0", "0x7c00000", "0x61000000", "0x0"]
    assert registers.decode(words)["a"] == 12478


def slow_extract(words: list[int], pieces: list[tuple[int, int, int, int]]) -> int:
    """The definition: bit by bit."""
    return sum(
        ((words[word] >> (lsb + i)) & 1) * 2 ** (at + i)
        for word, lsb, width, at in pieces
        for i in range(width)
    )


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("chip", [A311D, IMX8MP])
def test_every_word_round_trips(chip: str, count: int) -> None:
    registers = VIVANTE.maps(chip)["NN"]
    for array in random_words(count + 50, 34, 6)[34:]:
        assert np.array_equal(registers.encode(registers.decode(array)), array)
        raw = registers.decode(array, raw=True)
        words = array.tolist()
        for item in registers:
            assert raw[registers.key(item)] == slow_extract(words, list(item.pieces))


def test_signalling_nan_survives() -> None:
    registers = RegisterMap(SPLIT)
    words = np.array([0, 0, 0, 0x7F800001], np.uint32)
    assert np.array_equal(registers.encode(registers.decode(words)), words)


@pytest.mark.parametrize(
    ("value", "raw", "meant"),
    [
        ("", 5, 5),
        ("raw", 5, 5),
        ("signed", 7, -1),
        ("raw*64", 3, 192),
        ("*64", 3, 192),
        ("raw+1", 0, 1),
        ("signed raw*2+1", 7, -1),
        ("raw>>2", 5, 1.25),
        ("raw>>0", 5, 5),
        ("raw*0x10", 2, 32),
        ("signed >>1", 5, -1.5),
    ],
)
def test_meaning_round_trips(value: str, raw: int, meant: float) -> None:
    registers = RegisterMap([row("f", 4, 3, value=value)])
    words = registers.encode({"f": raw}, raw=True)
    assert registers.decode(words)["f"] == meant
    assert np.array_equal(registers.encode({"f": meant}), words)


@pytest.mark.parametrize(
    "value",
    [
        "eval(1)",
        "raw>>3*7",
        "raw-1",
        "f32 raw*2",
        "enum:",
        "raw raw",
        "signed f32",
        "raw*x",
    ],
)
def test_meaning_refuses_other_words(value: str) -> None:
    with pytest.raises(ValueError, match=r"^value .*got .*"):
        Meaning.parse(value)


def test_enum_reads_and_writes_names() -> None:
    registers = RegisterMap(
        [row("mode", 0, 2, value="enum:mode")], enums={"mode": {0: "off", 1: "full"}}
    )
    assert registers.mode.text(1) == "full"
    assert registers.mode.text(3) == 3
    assert registers.encode({"mode": "full"})[0] == 1
    with pytest.raises(
        LookupError, match=r"^register w0 field mode: got 'ful', allowed is one of off, full$"
    ):
        registers.encode({"mode": "ful"})


def test_unknown_enum_is_refused() -> None:
    with pytest.raises(LookupError, match="got enum 'mode', known are none"):
        RegisterMap([row("mode", 0, 2, value="enum:mode")])


def test_value_that_does_not_fit() -> None:
    registers = RegisterMap(
        [
            row("f", 4, 3, register="CFG"),
            row("m", 8, 4, value="raw*64"),
        ]
    )
    with pytest.raises(
        ValueError, match=r"^register CFG field f: got raw 8, allowed is 0 to 7 \(3 bits\)$"
    ):
        registers.encode({"f": 8})
    with pytest.raises(
        ValueError, match=r"^register CFG field m: got 65, allowed is a multiple of 64$"
    ):
        registers.encode({"m": 65})


def test_gap_in_a_split_value_takes_no_bits() -> None:
    registers = RegisterMap([row("f", 0, 2, at=0), row("f", 4, 2, at=4)])
    assert registers.decode(registers.encode({"f": 0x31}))["f"] == 0x31
    with pytest.raises(ValueError, match="field f: got a value with bits set that no piece holds"):
        registers.encode({"f": 4})


@pytest.mark.parametrize(("width", "bit"), [(4, 3), (32, 31)])
def test_overlap_is_refused_with_both_names(width: int, bit: int) -> None:
    with pytest.raises(ValueError, match=f"fields a and b overlap at register w0 bit {bit}$"):
        RegisterMap([row("a", 0, width), row("b", bit, 1)])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lsb": "x"}, "got lsb 'x', allowed is a whole number"),
        ({"address": "maybe"}, "got address 'maybe', allowed is blank or yes"),
        ({"colour": "red"}, "got column 'colour'"),
        ({"value": "__import__('os')"}, 'value "__import__.*allowed is blank, or signed'),
    ],
)
def test_bad_rows_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RegisterMap([{**row("f", 0, 3), **change}])


def test_features_choose_rows_and_overlaps_count_per_feature() -> None:
    table = RegisterMap(
        [row("a", 0, 4), row("b", 4, 4, feature="new"), row("c", 4, 2, feature="old")]
    )
    assert [item.name for item in table] == ["a", "w0_4_28"]
    assert [item.name for item in table.select(["old"])] == ["a", "c", "w0_6_26"]
    with pytest.raises(ValueError, match="fields b and c overlap"):
        table.select(["old", "new"])


def test_unnamed_bits_get_names_and_are_told() -> None:
    registers = RegisterMap(
        [row("a", 0, 18), row("", 18, 9, evidence="unknown", note="seen 1 once")]
    )
    assert [item.name for item in registers] == ["a", "w0_18_9", "w0_27_5"]
    assert [str(found) for found in registers.lint()] == [
        "unnamed at word 0 bit 18 (9 bits)",
        "hole at word 0 bit 27 (5 bits)",
    ]
    assert registers.coverage().bits == (18, 14)
    assert registers.declared == 27


def test_every_bit_has_one_owner_for_each_chip(vivante) -> None:
    for chip in vivante.chips:
        for registers in vivante.maps(chip).values():
            owners = np.zeros((len(registers), 32), int)
            for run in registers.fields.itertuples():
                assert run.field
                owners[run.word, run.lsb : run.lsb + run.width] += 1
            assert np.all(owners == 1)
            cover = registers.coverage()
            assert not np.any(cover.named & cover.automatic)
            assert sum(cover.bits) == owners.size


def test_nn_words_have_no_hole(vivante) -> None:
    for chip in vivante.chips:
        registers = vivante.maps(chip)["NN"]
        assert len(registers) == 34
        assert [found for found in registers.lint() if found.kind == "hole"] == []
        assert registers.declared == 34 * 32


def struct_of_update_3() -> list[tuple[str, int]]:
    """(name, width) of the members of the struct that the blog printed."""
    text = shared("seeds/001_8829da847375e5fe.txt").read_text(encoding="utf-8")
    members = re.findall(r"uint32_t (\w+)(?: : (\d+))?;", text)
    return [(name, int(width or 32)) for name, width in members]


def test_struct_of_update_3_lints_with_its_silent_holes() -> None:
    struct = struct_of_update_3()
    registers = RegisterMap.from_struct(struct)
    assert len(struct) == 95
    assert registers.declared == sum(width for _, width in struct) == 1089
    assert [str(found) for found in registers.lint()] == [
        "hole at word 20 bit 27 (5 bits)",
        "hole at word 23 bit 6 (26 bits)",
    ]


def test_names_complete_in_a_notebook(vivante) -> None:
    registers = vivante.registers
    assert "post_multiplier" in dir(registers)
    assert "post_multiplier" in registers._ipython_key_completions_()
    assert registers.post_multiplier is registers["post_multiplier"]


def test_unknown_name_tells_what_is_near(vivante) -> None:
    with pytest.raises(LookupError, match=r"^got field 'post_shft', the map has post_shift"):
        vivante.registers.encode({"post_shft": 1})
    with pytest.raises(AttributeError, match="no field or attribute 'post_shft'"):
        _ = vivante.registers.post_shft


def test_same_name_in_two_registers_is_told_apart() -> None:
    registers = RegisterMap(
        [row("en", 0, 1, register="A"), row("en", 0, 1, register="B", offset=4)]
    )
    assert list(registers.decode([1, 0])) == ["A.en", "w0_1_31", "B.en", "w1_1_31"]
    with pytest.raises(ValueError, match="field en stands twice in register A"):
        RegisterMap([row("en", 0, 1, register="A"), row("en", 1, 1, register="A")])


@pytest.mark.parametrize("words", [[0], [[0] * 33], 7])
def test_words_of_the_wrong_count(words: object, vivante) -> None:
    with pytest.raises(
        ValueError, match=r"^words: got .* allowed are 34 words in the last axis \(block NN\)$"
    ):
        vivante.registers.decode(words)


def test_fields_table_has_a_row_per_run(vivante) -> None:
    table = vivante.registers.fields
    assert list(table.columns)[:8] == [
        "block",
        "offset",
        "register",
        "field",
        "lsb",
        "width",
        "at",
        "value",
    ]
    assert table.groupby("offset").width.sum().tolist() == [32] * 34
    assert table[table.field == "post_multiplier"][
        ["offset", "lsb", "width", "at"]
    ].to_numpy().tolist() == [[8, 26, 1, 0], [60, 22, 6, 1], [68, 24, 8, 7]]
    again = RegisterMap(table.to_dict("records"), enums=vivante.registers.enums, features=["nn_v7"])
    assert again.fields.equals(table)
    assert again.coverage().bits == vivante.registers.coverage().bits
    assert again.decode(np.arange(34)) == vivante.registers.decode(np.arange(34))


def test_table_reader_skips_comments(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("field,lsb,width\n# a remark\n\nf,0,3\n")
    assert read_table(path) == [{"field": "f", "lsb": "0", "width": "3"}]
    path.write_text("field,lsb,width\nf,30,3\n")
    with pytest.raises(ValueError, match=r"m.csv: register map, field 'f'"):
        RegisterMap.read(path)


def test_every_evidence_has_a_source(vivante, captures) -> None:
    for registers in (vivante.registers, *vivante.maps("vipnano-si-imx8mp").values()):
        for item in registers:
            code = item.evidence
            assert (
                code in vivante.sources
                or code in ("guess", "unknown")
                or (code.startswith("C:") and code[2:] in captures.names)
            ), (item.name, code)


def test_whole_numbers_of_any_type_encode_the_same() -> None:
    registers = RegisterMap(
        [
            row("plus", 0, 8, value="raw+1"),
            row("signed", 8, 8, value="signed"),
            row("times", 16, 4, value="raw*1000"),
        ]
    )
    for value, want in ((np.uint8(3), 2), (np.int8(3), 2), (np.uint32(3), 2), (3.0, 2), (3, 2)):
        assert registers.encode({"plus": value})[0] == want
    assert registers.encode({"signed": np.int8(-1)})[0] == 0xFF00
    assert registers.encode({"times": np.uint16(3000)})[0] == 3 * 2**16
    with pytest.raises(ValueError, match=r"field plus: got raw -1, allowed is 0 to 255"):
        registers.encode({"plus": np.uint32(0)})


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [row("f", 0, 4, at=0, value="signed"), row("f", 8, 4, at=4, value="raw*2")],
            r"got value 'raw\*2' on a later piece",
        ),
        (
            [row("f", 0, 4, at=0), row("f", 8, 4, at=4, address="yes")],
            "got address 'yes' on a later piece",
        ),
        ([row("f", 0, 4, at=0), row("f", 8, 4)], "got a piece with column 'at' blank"),
        ([row("f", 8, 4), row("f", 0, 4, at=0, offset=4)], "got a piece with column 'at' blank"),
    ],
)
def test_pieces_that_do_not_go_together(rows: list[dict[str, object]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RegisterMap(rows)


def test_writes_leave_a_state() -> None:
    registers = RegisterMap(
        [row("a", 0, 32, block="A", offset=0x10), row("b", 0, 32, block="B", offset=0x40)],
        dense=False,
    )
    assert registers.state([(0x40, 1), (0x10, 2), (0x40, 3), (0x99, 4)]).tolist() == [2, 3]
    same = RegisterMap([row("a", 0, 32, block="A"), row("b", 0, 32, block="B")], dense=False)
    with pytest.raises(ValueError, match="blocks 'A' and 'B' both have offset 0x0"):
        same.state([(0, 1)])


def test_table_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("\ufefffield,lsb,width\nf,0,3\n", encoding="utf-8")
    assert RegisterMap.read(path).f.width == 3


def test_enums_that_would_not_read_back(tmp_path: Path) -> None:
    (tmp_path / "enums.csv").write_text("enum,raw,name\ne,x,a\n")
    (tmp_path / "m.csv").write_text("field,lsb,width,value\nf,0,2,enum:e\n")
    with pytest.raises(ValueError, match=r"enums.csv: .*'raw': 'x'.*raw a whole number"):
        RegisterMap.read(tmp_path / "m.csv")


def test_table_that_is_no_utf8(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_bytes("field,lsb,width,note\nf,0,2,Größe\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"m.csv: is not UTF-8"):
        RegisterMap.read(tmp_path / "m.csv")


@pytest.mark.parametrize("given", [126.0, 1000.0, 2.0**40, -(2.0**62)])
def test_real_numbers_that_are_whole_are_raw(given: float) -> None:
    assert Meaning.parse("").raw(given) == int(given)


def test_arithmetic_is_written_behind_raw() -> None:
    for text, told in (
        ("signed *2", "signed raw*2"),
        ("*2+1", "raw*2+1"),
        ("signed", "signed"),
        ("enum:a", "enum:a"),
    ):
        assert str(Meaning.parse(text)) == told
        assert Meaning.parse(told) == Meaning.parse(text)


def test_the_table_of_a_map_with_holes_makes_it_again() -> None:
    rows = []
    for block, offset in (("A", 0), ("A", 8), ("B", 0), ("B", 8)):
        rows.append(
            row(f"{block}{offset}", 4, 8, block=block, offset=offset, register=f"r{offset}")
        )
    one = RegisterMap(rows, dense=False)
    again = RegisterMap(one.fields.drop(columns="word").to_dict("records"), dense=False)
    words = np.arange(8, dtype=np.uint32).reshape(2, 4) * 0x1234567
    assert one.decode(words).keys() == again.decode(words).keys()
    assert one.fields[["block", "offset", "lsb", "width"]].value_counts().max() == 1
    assert len(one.fields) == 12


def test_the_largest_numbers_are_raw_and_no_larger_ones() -> None:
    meaning = Meaning.parse("raw+1")
    assert meaning.raw(np.array([200, 2**63 - 1], np.uint64)).tolist() == [199, 2**63 - 2]
    with pytest.raises(ValueError, match=r"^allowed is a value of at most 63 bits$"):
        meaning.raw(np.array([200, 2**63], np.uint64))
    assert Meaning.parse("f32").raw(float(np.finfo(np.float32).max)) == 0x7F7FFFFF


@pytest.mark.parametrize("letter", ["\0", "\x1f", "\x7f", "\x9f", "\ud800", "\ufffe"])
def test_characters_that_no_text_holds_are_refused(letter: str) -> None:
    refuse_odd("a field", "name")
    with pytest.raises(
        ValueError, match=rf"^name: got the character U\+{ord(letter):04X}, allowed is text$"
    ):
        refuse_odd(f"a{letter}b", "name")


# Shipped maps and random words


PATTERNS = (
    *(0x7FA00001, 0xFFA00000, 0x7F800001, 0xFFBFFFFF, 0x7FC00000, 0x80000000),
    *(0x00000001, 0x7F800000, 0xFF800000, 0x7FFFFFFF, 0xFFFFFFFF),
)


def random_words(n: int, width: int, seed: int = 5) -> np.ndarray:
    """Random words, with all-zero, all-one and single-bit rows."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**32, (n, width), dtype=np.uint32)
    words[0], words[1] = 0, 0xFFFFFFFF
    words[2:34] = (np.uint32(1) << np.arange(32, dtype=np.uint32))[:, None]
    words[34 : 34 + len(PATTERNS)] = np.array(PATTERNS, np.uint32)[:, None]
    return words


MAPS = [
    pytest.param(chip, block, id=f"{chip}-{block}")
    for chip in VIVANTE.chips
    for block in ("NN", "STATE")
]


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(("chip", "block"), MAPS)
def test_encode_of_decode_is_the_words(chip: str, block: str, raw: bool) -> None:
    registers = VIVANTE.maps(chip)[block]
    words = random_words(300, registers.encode({}).shape[-1])
    again = registers.encode(registers.decode(words, raw=raw), raw=raw)
    assert again.dtype == np.uint32
    assert np.array_equal(again, words)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("chip", "block"), MAPS)
def test_decode_of_many_is_decode_of_each(chip: str, block: str) -> None:
    registers = VIVANTE.maps(chip)[block]
    words = random_words(60, registers.encode({}).shape[-1])
    many = registers.decode(words)
    deep = registers.decode(words.reshape(3, 20, -1))
    for n in range(60):
        for name, value in registers.decode(words[n]).items():
            np.testing.assert_array_equal(np.asarray(many[name])[n], value, err_msg=name)
            np.testing.assert_array_equal(
                np.asarray(deep[name])[n // 20, n % 20], value, err_msg=name
            )


@pytest.mark.parametrize(
    ("chip", "name", "pieces"),
    [
        (A311D, "post_multiplier", [(2, 26, 1), (15, 22, 6), (17, 24, 8)]),
        (IMX8MP, "post_multiplier", [(2, 26, 1), (15, 22, 6), (17, 24, 8), (22, 18, 8)]),
        (A311D, "post_shift", [(2, 27, 5), (15, 28, 2)]),
        (A311D, "kernel_data_type", [(1, 0, 2), (15, 19, 1), (18, 31, 1)]),
        (A311D, "in_image_data_type", [(1, 2, 2), (15, 20, 1), (19, 31, 1)]),
        (A311D, "out_image_data_type", [(1, 4, 2), (15, 21, 1), (20, 26, 1)]),
        (A311D, "kernel_z_size", [(0, 6, 14), (5, 26, 6)]),
    ],
)
def test_split_field_is_its_pieces_joined(
    chip: str, name: str, pieces: list[tuple[int, int, int]]
) -> None:
    words = random_words(200, 34, 8)
    want, at = np.zeros(200, np.int64), 0
    for word, lsb, width in pieces:
        want |= (words[:, word].astype(np.int64) >> lsb & (1 << width) - 1) << at
        at += width
    registers = VIVANTE.maps(chip)["NN"]
    assert registers[name].width == at
    got = registers.decode(words, raw=True)[name]
    assert np.asarray(got).astype(np.int64).tolist() == want.tolist()


@pytest.mark.parametrize(("chip", "bits"), [(A311D, 4), (IMX8MP, 5)])
@pytest.mark.parametrize("axis", ["x", "y"])
def test_window_offset_is_signed(chip: str, bits: int, axis: str) -> None:
    registers = VIVANTE.maps(chip)["NN"]
    name = f"in_image_{axis}_offset"
    for value in range(-(2 ** (bits - 1)), 2 ** (bits - 1)):
        words = [int(word) for word in registers.encode({name: value})]
        lsb, high, top = (0, 16, 29) if axis == "x" else (3, 17, 30)
        raw = words[2] >> lsb & 7 | (words[4] >> high & 1) << 3 | (words[18] >> top & 1) << 4
        assert raw == value % 2**bits
        assert registers.decode(np.array(words, np.uint32))[name] == value
    for value in (-(2 ** (bits - 1)) - 1, 2 ** (bits - 1)):
        with pytest.raises(ValueError, match=name):
            registers.encode({name: value})


def test_address_is_shown_as_an_address() -> None:
    words = np.zeros(34, np.uint32)
    words[5] = 0xFFFF4000 >> 6
    assert VIVANTE.registers.decode(words)["kernel_address"] == 0xFFFF4000
    with pytest.raises(ValueError, match="kernel_address"):
        VIVANTE.registers.encode({"kernel_address": 0xFFFF4001})


def c_layout(members: Sequence[tuple[str, int]]) -> Callable[[Mapping[str, int]], bytes]:
    """Return the bytes of values as this machine's C lays the members out, by way of ctypes."""

    class Struct(ctypes.LittleEndianStructure):
        _fields_ = [(name, ctypes.c_uint32, width) for name, width in members]

    def fill(values: Mapping[str, int]) -> bytes:
        struct = Struct()
        for name, value in values.items():
            setattr(struct, name, value)
        return bytes(struct)

    return fill


@pytest.mark.parametrize("number", range(12))
def test_any_struct_is_laid_out_as_c_does(number: int) -> None:
    rng = random.Random(number)
    members = [
        (f"m{i}", rng.choice([1, 2, 3, 5, 8, 13, 16, 26, 31, 32]))
        for i in range(rng.randint(1, 40))
    ]
    registers = RegisterMap.from_struct(members)
    fill = c_layout(members)
    values = {name: rng.getrandbits(width) for name, width in members}
    data = fill(values)
    assert registers.encode(values).tobytes() == data, members
    decoded = registers.decode(np.frombuffer(data, "<u4"))
    assert {name: decoded[name] for name in values} == values
    assert registers.declared + sum(
        f.width for f in registers.lint() if f.kind == "hole"
    ) == 8 * len(data)


def test_status_counts_every_bit_once(captures: npulab.CaptureSet) -> None:
    registers = VIVANTE.maps(A311D)["NN"]
    every = [capture.words for capture in captures if capture.words is not None]
    words = np.stack([some for some in every if len(some) == len(registers)])
    moves = np.bitwise_or.reduce(words ^ words[0], axis=0)
    counts = {kind: np.zeros(len(registers), int) for kind in STATUS}
    for run in registers.fields.itertuples():
        known = "explained"
        if re.fullmatch(r"w\d+_\d+_\d+", run.field):
            known = "open"
        elif run.evidence in ("guess", "unknown"):
            known = "guessed"
        still = "constant"
        if known != "open":
            still = "never exercised"
        moving = (int(moves[run.word]) >> run.lsb & 2**run.width - 1).bit_count()
        counts[known][run.word] += moving
        counts[still][run.word] += run.width - moving
    status = registers.status(words)
    for kind, mine in counts.items():
        assert status[kind].tolist() == mine.tolist(), kind
        share = 100 * mine.sum() / (32 * len(registers))
        assert f"{share:.0f} % {kind}" in status.attrs["summary"]
    assert (status[[*counts]].sum(axis=1) == 32).all()
