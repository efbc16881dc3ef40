"""The values of a capture: every field is there once, and found by each name that it alone has."""

from __future__ import annotations

import pytest
from conftest import CAPTURES

from npulab.captures.capture import Capture, Job
from npulab.captures.registry import target
from npulab.captures.store import load
from npulab.registers.map import RegisterMap


def row(block: str, register: str, field: str, offset: int, lsb: int) -> dict[str, object]:
    return {
        "block": block,
        "register": register,
        "field": field,
        "offset": offset,
        "lsb": lsb,
        "width": 16,
    }


ROWS = [
    row("IN", "START", "on", 0, 0),
    row("IN", "START", "size", 0, 16),
    row("IN", "STEP", "step", 4, 0),
    row("IN", "PAGE", "step", 8, 0),
    row("OUT", "START", "on", 12, 0),
    row("OUT", "START", "last", 12, 16),
]
MAP = RegisterMap(ROWS, dense=False)
WORDS = [0x20001, 3, 4, 0x60005]
CAPTURE = Capture("one", "none", "chip", (Job("IN", WORDS),), maps={"IN": MAP})
WHOLE = {
    "IN.START.on": 1,
    "IN.START.size": 2,
    "IN.STEP.step": 3,
    "IN.PAGE.step": 4,
    "OUT.START.on": 5,
    "OUT.START.last": 6,
}


def test_a_loop_meets_every_field_once_by_its_full_name() -> None:
    values = CAPTURE.values
    named = {name: value for name, value in values.items() if ".w" not in name}
    assert named == WHOLE
    assert len(values) == len(list(MAP)) == len(list(values))
    by_block = {name: value for name, value in values.items() if name.startswith("OUT.START.")}
    assert list(by_block.values()) == [5, 6]


@pytest.mark.parametrize("names", [("last", 6), ("size", 2), ("STEP.step", 3), ("OUT.on", 5)])
def test_a_short_name_of_one_field_is_enough(names: tuple[str, int]) -> None:
    name, value = names
    assert CAPTURE.values[name] == CAPTURE.values.get(name) == value
    assert name in CAPTURE.values


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("on", "IN.START.on, OUT.START.on"),
        ("step", "STEP.step, PAGE.step"),
        ("START.on", "IN.START.on, OUT.START.on"),
    ],
)
def test_a_name_of_several_fields_is_refused_with_their_names(name: str, allowed: str) -> None:
    text = rf"^got field '{name}', which 2 fields have, allowed is one of {allowed}$"
    for ask in (CAPTURE.values.__getitem__, CAPTURE.values.get):
        with pytest.raises(LookupError, match=text):
            ask(name)
    with pytest.raises(LookupError, match=text):
        CAPTURE.with_fields(**{name: 1})
    assert name not in CAPTURE.values
    for candidate in allowed.split(", "):
        assert CAPTURE.values[candidate] in WHOLE.values()


def test_an_unknown_name_is_refused_or_has_a_default() -> None:
    with pytest.raises(LookupError, match=r"^got field 'lst', the map has last"):
        CAPTURE.values["lst"]
    assert CAPTURE.values.get("lst") is None
    assert CAPTURE.values.get("lst", 7) == 7
    assert "lst" not in CAPTURE.values


def test_values_with_others_are_encoded() -> None:
    changed = CAPTURE.values | {"last": 8, "IN.on": 9}
    assert changed["OUT.START.last"] == 8
    assert dict(changed) == {**CAPTURE.values, "OUT.START.last": 8, "IN.START.on": 9}
    assert MAP.encode(changed).tolist() == [0x20009, 3, 4, 0x80005]
    assert MAP.encode(CAPTURE.values).tolist() == WORDS
    with pytest.raises(LookupError, match=r"^got field 'on', which 2 fields have"):
        _ = CAPTURE.values | {"on": 1}


def test_of_many_fields_of_one_name_twelve_are_named() -> None:
    rows = [row("B", f"R{n}", "same", 4 * n, 0) for n in range(14)]
    with pytest.raises(LookupError, match=r"which 14 fields have.* R11\.same, \.\.\.$"):
        RegisterMap(rows)["same"]


def test_every_field_of_every_unit_is_found_by_its_dotted_name() -> None:
    """Of a map of several units, where short names hid the unit of 385 fields."""
    capture = load(CAPTURES / "nvdla" / "sim-3x3-same")
    registers = target("nvdla").maps(capture.chip)[capture.jobs[0].block]
    decoded = registers.decode(capture.words)
    values = capture.values
    dotted = [f"{item.block}.{item.register}.{item.name}" for item in registers]
    assert list(values) == dotted
    assert [values[name] for name in dotted] == list(decoded.values())
    assert [values[name] for name in decoded] == list(decoded.values())
    assert sum("." not in name for name in decoded) > 300
