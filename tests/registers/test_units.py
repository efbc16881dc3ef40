"""Fields whose unit another field names, and places that follow from numbers of a chip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from round_trip import rows_in

import npulab
from npulab import Capture
from npulab.bits import RegisterMap
from npulab.capture import Job
from npulab.npus.kit import values_of
from npulab.registers.formats import FORMATS, RegisterTable
from npulab.registers.meaning import Meaning
from npulab.registers.numbers import is_sum

FACTORS = (4, 256, 0, 64)  # of kinds 0 to 3; 2 and 4 to 7 have none
ROWS = rows_in("""
block,offset,register,field,lsb,width,at,value,address
L,0,W0,kind,0,3,,,
L,0,W0,base,26,6,0,raw*kind(4 256 0 64),yes
L,4,W1,base,0,26,6,,yes
""")
READ = ("csv", "struct", "macros", "xml", "rdl", "svd")


def unit_of(kind: int) -> int:
    if kind < len(FACTORS):
        return FACTORS[kind] or 1
    return 1


def random_words(count: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 2**32, (count, 2), np.uint32)


def test_the_value_is_the_raw_number_in_the_unit_and_every_word_round_trips() -> None:
    registers, words = RegisterMap(ROWS), random_words(2000)
    values, raw = registers.decode(words), registers.decode(words, raw=True)
    for kind, value, number in zip(values["kind"], values["base"], raw["base"], strict=True):
        assert int(value) == int(number) * unit_of(int(kind))
    assert np.array_equal(registers.encode(values), words)
    assert np.array_equal(registers.encode(raw, raw=True), words)
    for one, value in zip(words[:200], values["base"], strict=False):
        alone = registers.decode(one)
        assert (alone["base"], type(alone["base"])) == (value, int)
        assert np.array_equal(registers.encode(alone), one)
        assert np.array_equal(registers.encode(dict(reversed(alone.items()))), one)


def test_the_unit_is_that_of_the_words_wherever_a_field_is_shown() -> None:
    registers = RegisterMap(ROWS)
    job = Job("L", registers.encode({"kind": 3, "base": 0x1240}))
    capture = Capture("c", "vivante", "x", (job,), maps={"L": registers})
    assert capture.values["base"] == 0x1240
    row = capture.fields.set_index("field").loc["base"]
    assert (row["raw"], row["value"]) == (0x49, 0x1240)
    assert values_of(job, capture.maps)["L.W0.base"] == 0x1240
    assert values_of(job, capture.maps, raw=True)["L.W0.base"] == 0x49
    other = capture.with_fields(kind=1)
    assert other.values["base"] == 0x49 * 256
    both = capture.with_fields(base=0x200, kind=1)
    assert both.values["base"] == 0x200
    (base,) = npulab.diff(capture, both).query("field == 'base'").to_dict("records")
    assert (base["a"], base["b"], base["address"]) == (0x1240, 0x200, True)
    with pytest.raises(
        ValueError, match="got 514, allowed is a multiple of 64, the unit named by field kin"
    ):
        capture.with_fields(base=514)
    (item,) = (item for _, item, _ in job.values(capture.maps) if item.name == "base")
    assert (item.unit, registers.key(item)) == (64, "base")


@pytest.mark.parametrize(
    ("kind", "base", "words"),
    [
        (3, 65, "got 65, allowed is a multiple of 64, the unit named by field kind"),
        (0, -4, "got raw -1, allowed is 0 to 4294967295"),
        (1, 2**40, "got raw 4294967296, allowed is 0 to 4294967295"),
        ([0, 1], [4, 4], "allowed is a multiple of 256, the unit named by field kind"),
        (0, 0.5, "got 0.5, allowed is a multiple of 4"),
    ],
)
def test_what_no_raw_number_gives_is_refused(kind: Any, base: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"register W0 field base: .*{words}"):
        RegisterMap(ROWS).encode({"base": base, "kind": kind})


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        ("raw*sort(1 2)", LookupError, "a unit by 'sort', the name of 0 fields of the block"),
        ("raw*kind()", ValueError, "got '' in brackets, allowed are one or more numbers"),
        ("raw*kind(4 -1)", ValueError, "got '4 -1' in brackets, allowed are one or more numbers"),
        ("raw*kind(4 x)", ValueError, "got 'x' after 'kind', allowed is blank, or signed"),
        ("raw*kind(1 2 3 4 5 6 7 8 9)", ValueError, "got 9 factors by kind .3 bits., allowed are"),
        ("raw*base(1 2)", ValueError, "by base .32 bits., allowed are at most 65536, by a field"),
        ("raw*kind(1 0x100000000)", ValueError, "got a field of 32 bits, allowed is one whose"),
        ("raw*kind(1)+2", ValueError, "got 'k' after '[*]'"),
    ],
)
def test_a_malformed_unit_is_refused(value: str, error: type[Exception], words: str) -> None:
    rows = [ROWS[0], {**ROWS[1], "value": value}, ROWS[2]]
    with pytest.raises(error, match=words):
        RegisterMap(rows)


def test_the_field_of_the_same_register_is_the_nearer_one() -> None:
    rows = []
    for offset, register in ((0, "A"), (4, "B")):
        place = {"block": "L", "offset": offset, "register": register}
        rows.append({**place, "field": "kind", "lsb": 0, "width": 1})
        unit = {"value": "raw*kind(2 8)"}
        rows.append({**place, "field": "size", "lsb": 8, "width": 8, **unit})
    registers = RegisterMap(rows)
    words = registers.encode({"A.kind": 1, "A.size": 16, "B.size": 16})
    assert words.tolist() == [0x201, 0x800]
    loose = [*rows[:1], rows[2], {**rows[1], "offset": 8, "register": "C"}]
    with pytest.raises(LookupError, match="the name of 2 fields of the block, allowed is"):
        RegisterMap(loose)


def test_text_of_a_unit_is_read_again() -> None:
    for text in ("raw*kind(4 256 0 64)", "*kind(4)", " raw * kind ( 4   0x10 ) "):
        meaning = Meaning.parse(text)
        assert Meaning.parse(str(meaning)) == meaning
    assert str(Meaning.parse("*kind( 4  0x10)")) == "raw*kind(4 16)"


@pytest.mark.parametrize("to", READ)
def test_every_format_that_is_read_keeps_the_unit(to: str, tmp_path: Path) -> None:
    table = RegisterTable.of(ROWS)
    path = tmp_path / f"map{FORMATS[to].suffix}"
    npulab.write_map(table, path, to=to)
    again = npulab.read_map(path)
    assert again.rows == table.rows
    words = random_words(50)
    assert np.array_equal(
        again.map().decode(words)["base"], RegisterMap(ROWS).decode(words)["base"]
    )


SUMS = [
    {"field": "dst", "lsb": "0", "width": "log_acc"},
    {"field": "src", "lsb": "log_acc", "width": "log_inp"},
    {"field": "end", "lsb": "log_acc + log_inp", "width": "log_acc-0xa+1"},
    {"field": "on", "lsb": 31, "width": 1, "feature": "new"},
]


def places(registers: RegisterMap) -> dict[str, str]:
    return {item.name: item.bits for item in registers if not item.automatic}


def test_places_follow_from_the_numbers_of_a_chip() -> None:
    registers = RegisterMap(SUMS, numbers={"log_acc": 11, "log_inp": 8, "other": 3})
    assert registers.numbers == {"log_acc": 11, "log_inp": 8}
    assert places(registers) == {"dst": "0[10:0]", "src": "0[18:11]", "end": "0[20:19]"}
    other = registers.select(["new"], {"log_acc": 12, "log_inp": 4, "log_wgt": 1})
    wanted = {"dst": "0[11:0]", "src": "0[15:12]", "end": "0[18:16]", "on": "0[31]"}
    assert places(other) == wanted
    assert other is registers.select(["new"], {"log_inp": 4, "log_acc": 12})
    assert places(other.select([])) == {name: wanted[name] for name in ("dst", "src", "end")}
    assert places(other.of_block("").select(["new"])) == wanted
    assert places(other.select([], registers.numbers)) == places(registers)
    assert places(registers.starting(["A.R"]).select(["new"], other.numbers)) == wanted


@pytest.mark.parametrize(
    ("lsb", "words"),
    [
        (
            "log_uop",
            "got lsb 'log_uop', allowed is .* names of numbers of the chip, known are log_ac",
        ),
        ("8*2", "got lsb '8[*]2', allowed is a whole number, or numbers and names of numbers"),
        ("8+", "got lsb '8[+]', allowed is a whole number, or"),
        ("--3", "got lsb '--3', allowed is a whole number, or"),
        ("log_acc log_acc", "allowed is a whole number, or"),
        ("__import__('os')", "allowed is a whole number, or"),
        ("log_acc+25", "got lsb 36 width 4, allowed is inside bits 0 to 31"),
        ("5-log_acc", "got lsb -6 width 4, allowed is inside bits 0 to 31"),
    ],
)
def test_a_malformed_sum_is_refused(lsb: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"register map, field 'f'.*{words}"):
        RegisterMap([{"field": "f", "lsb": lsb, "width": "4"}], numbers={"log_acc": 11})


def test_a_table_of_sums_is_not_carried_into_another_format(tmp_path: Path) -> None:
    path = tmp_path / "registers.csv"
    path.write_text("block,offset,register,field,lsb,width\nA,0,R,f,0,4\nA,0,R,g,4,log\n")
    registers = RegisterMap.read(path, numbers={"log": 3})
    assert places(registers) == {"f": "0[3:0]", "g": "0[6:4]"}
    words = r"line 3: field 'g': got width 'log', allowed is a whole number, because a sum needs numbers of a chip"
    with pytest.raises(ValueError, match=words):
        npulab.read_map(path)
    assert not any(map(is_sum, ("", " ", "8", "0x1f", 8, None, "-1")))
