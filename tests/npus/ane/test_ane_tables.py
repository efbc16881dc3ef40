"""Activation tables of the ane target: 128 bytes decoded and encoded, evaluated exactly, made
and judged.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from ane_table_loops import evaluate_reference
from conftest import shared
from hypothesis import given, settings, strategies as st

from npulab.captures.target import Unsupported
from npulab.npus.ane.facts import HERE
from npulab.npus.ane.tables import Table, decode, entries, evaluate, functions, outputs, values
from npulab.npus.ane.tables.functions import (
    FITS,
    FUNCTIONS,
    closest,
    errors,
    fit,
    identify,
    last_place,
    true,
)
from npulab.quant.floats import Near, odd
from npulab.support.files import read_table

CODES = np.arange(2**16, dtype=np.uint16)
EVERY = CODES.view(np.float16)
ODD_ONES = np.array(
    [
        0,
        0x8000,
        1,
        0x8001,
        0x3FF,
        0x400,
        0x7BFF,
        0xFBFF,
        0x7C00,
        0xFC00,
        0x7E00,
        0xFE01,
        0x3C00,
        0xBC00,
    ],
    np.uint16,
)
FILES = [
    "activation/gelu",
    "activation/leakyrelu",
    "activation/relu6",
    "activation/selu",
    "activation/silu",
    "activation/softmax",
    "binary/div",
    "unary/exp2",
    "unary/log",
    "unary/log2",
    "unary/sign",
    "unary/sqrt",
    "unary/tanh",
    "sigmoid77",
]
FITTED = {name: FITS[name] for name in FUNCTIONS if name in FITS}


@cache
def from_file(name: str) -> bytes:
    """The 128 bytes of a file's table: behind the task list, on a multiple of 16 bytes."""
    if name == "sigmoid77":
        sections = json.loads(shared("data/ane/expected/hwx_sigmoid77.json").read_text())[
            "sections"
        ]
        at = next(
            one["offset"] for one in sections if (one["seg"], one["sect"]) == ("__TEXT", "__const")
        )
        return shared("data/ane/hwx/sigmoid77/model.hwx").read_bytes()[at : at + 128]
    sizes = json.loads(shared("data/ane/h13_tasks/index.json").read_text())[name]
    data = shared(f"data/ane/h13_tasks/{name}.bin").read_bytes()
    at = -(-sizes["tsk_size"] // 16) * 16
    assert at + sizes["krn_size"] == len(data)
    return data[at : at + 128]


def codes(values: object) -> np.ndarray:
    return np.asarray(values, np.float16).view(np.uint16)


def ramp(**others: object) -> Table:
    """Knots 0, 1, ... 32 at 0, 1, ... 32."""
    return Table(
        **{
            "x_low": -math.inf,
            "x_high": math.inf,
            "y_low": 0,
            "y_high": 0,
            "knots": np.arange(33),
            "step_exponent": 0,
            "kind": "from_zero",
            **others,
        }
    )


# The bytes


@settings(max_examples=300)
@given(st.binary(min_size=128, max_size=128))
def test_any_128_bytes_come_back(data: bytes) -> None:
    table = decode(data)
    assert table.encode() == data
    assert decode(table.encode()) == table
    assert hash(table) == hash(decode(data))


def test_nan_payloads_and_negative_exponents_come_back() -> None:
    slots = np.arange(64, dtype="<u2") + 0x7C01
    slots[41], slots[42] = 0xFFFD, 0xA5E3
    table = decode(slots.tobytes())
    assert table.encode() == slots.tobytes()
    assert (table.step_exponent, table.kind, table.symmetry, table.flags) == (-3, 3, 7, 0xA5)
    assert (table.kind_name, table.symmetry_name) == ("int", "7")
    assert table.rest.tolist() == slots[43:].tolist()


def test_slots_lie_where_they_should() -> None:
    numbers = np.arange(1, 42, dtype=np.float16)
    data = numbers.tobytes()[:82] + bytes([3, 0, 0x61, 0]) + bytes(42)
    table = decode(data)
    assert (table.x_low, table.x_high, table.y_low, table.y_high) == (1, 2, 3, 4)
    assert table.knots.tolist() == list(range(5, 38))
    assert (table.left_slope, table.left_intercept, table.right_slope, table.right_intercept) == (
        38,
        39,
        40,
        41,
    )
    assert (table.step_exponent, table.kind_name, table.symmetry_name) == (3, "centred", "odd")
    assert repr(table) == "Table(centred, odd, step 2**-3, x 1 to 2)"
    assert table.positions.tolist() == [n / 8 for n in range(-16, 17)]


@pytest.mark.parametrize("size", [0, 127, 129, 256])
def test_other_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=rf"^activation table: got {size} bytes, allowed is 128$"):
        decode(bytes(size))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"knots": np.zeros(32)}, r"^knots: got shape \(32,\), allowed is \(33,\)$"),
        ({"rest": np.zeros(20, int)}, r"^rest: got shape \(20,\), allowed is \(21,\)$"),
        ({"rest": np.full(21, 65536)}, r"^rest: got \[65536, .*\], allowed is 0 to 65535 each$"),
        ({"step_exponent": 2**15}, r"^step_exponent: got 32768, allowed is -32768 to 32767$"),
        ({"kind": 32}, r"^kind: got 32, allowed is 0 to 31$"),
        (
            {"kind": "tanh"},
            r"^kind: got 'tanh', allowed is a code or one of from_zero, centred, to_zero, int, ",
        ),
        ({"symmetry": 8}, r"^symmetry: got 8, allowed is 0 to 7$"),
        (
            {"symmetry": "even"},
            r"^symmetry: got 'even', allowed is a code or one of none, odd, positive$",
        ),
        ({"flags": -1}, r"^flags: got -1, allowed is 0 to 255$"),
    ],
)
def test_what_a_slot_cannot_hold_is_refused(what: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ramp(**what)


def test_knots_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValueError, match="read-only"):
        ramp().knots[0] = 1


# Values


def test_values_by_hand() -> None:
    table = ramp(left_slope=2, left_intercept=-1, right_slope=0.5, right_intercept=100)
    assert evaluate(table, [0, 2.5, 31.75, 32, 33, 40, -1]).tolist() == [
        0,
        2.5,
        31.75,
        32,
        116.5,
        120,
        -3,
    ]
    assert evaluate(ramp(x_low=2, y_low=7, x_high=3, y_high=9), [1, 2, 2.5, 3, 4]).tolist() == [
        7,
        7,
        2.5,
        9,
        9,
    ]
    assert evaluate(ramp(kind="centred"), [-16, 0, 15.5, 16]).tolist() == [0, 16, 31.5, 32]
    assert evaluate(ramp(kind="to_zero"), [-32, -0.5, 0]).tolist() == [0, 31.5, 32]
    assert evaluate(ramp(kind="to_zero", step_exponent=5), [-1, -1 / 64, 0]).tolist() == [
        0,
        31.5,
        32,
    ]
    assert evaluate(ramp(symmetry="odd"), [-2.5, 2.5, -32]).tolist() == [-2.5, 2.5, -32]
    lines = ramp(
        step_exponent=64, left_slope=2, left_intercept=1, right_slope=-1, right_intercept=4
    )
    assert evaluate(lines, [-3, -0.0, 0, 3]).tolist() == [-5, 4, 4, 1]


def test_ties_go_to_the_even_one_and_are_rounded_once() -> None:
    last = 2.0**-10
    knots = np.where(np.arange(33) % 2, 1 + last, 1.0)
    assert evaluate(ramp(knots=knots), [0.5, 1.5, 2.5]).tolist() == [1, 1, 1]
    assert evaluate(ramp(knots=knots + last), [0.5, 1.5]).tolist() == [1 + 2 * last] * 2
    # 1 + 2**-11 + 2**-34: float64 holds it, float32 rounds it to the tie
    table = ramp(step_exponent=64, right_slope=1 + last, right_intercept=1, left_slope=1)
    assert evaluate(table, 2.0**-11) == 1 + last


def to_odd(value: Fraction) -> float:
    """In float64, rounded to the neighbour whose last bit is 1 where it is not exact."""
    near = float(value)
    if Fraction(near) == value or np.float64(near).view(np.uint64) % 2:
        return near
    return math.nextafter(near, math.inf if value > Fraction(near) else -math.inf)


def test_values_are_rounded_to_odd() -> None:
    rng = np.random.default_rng(6)
    sizes = 2.0 ** rng.integers(-24, 16, (3, 4000))
    base, rise, t = np.round(rng.uniform(-(2**11), 2**11, (3, 4000))) * sizes
    rise[:2000] += 2.0**-24 * rng.integers(-1, 2, 2000)
    t[1000:3000] = 1 - np.abs(t[1000:3000]) * 2.0**-40
    base[2000:] = -rise[2000:] * t[2000:]  # what is left is the rounding of the product
    expected = [
        to_odd(Fraction(a) + Fraction(b) * Fraction(c))
        for a, b, c in zip(base.tolist(), rise.tolist(), t.tolist(), strict=True)
    ]
    assert odd(Near(rise) * t + base).tolist() == expected
    assert (
        sum(one != float(a + b * c) for one, a, b, c in zip(expected, base, rise, t, strict=True))
        > 1000
    )


def test_a_computed_zero_has_no_sign() -> None:
    for slope, intercept, x in ((-1, -0.0, 0.0), (1, -0.0, -0.0), (1, 0.0, -0.0), (-2, 2, 1)):
        table = ramp(
            step_exponent=64,
            left_slope=slope,
            right_slope=slope,
            left_intercept=intercept,
            right_intercept=intercept,
        )
        assert codes(evaluate(table, x)) == codes(evaluate_reference(table, x)) == 0
    assert codes(evaluate(ramp(knots=np.full(33, -0.0)), [0, 0.5, 1])).tolist() == [0, 0, 0]
    assert codes(evaluate(ramp(x_low=0, y_low=-0.0), 0)) == 0x8000


def test_what_is_no_ordinary_number() -> None:
    tanh = fit("tanh")
    given = np.array(
        [0x7E00, 0xFE00, 0x7D55, 0x7C00, 0xFC00, 0, 0x8000, 1, 0x8001, 0x83FF], np.uint16
    ).view(np.float16)
    assert codes(evaluate(tanh, given)).tolist() == [
        0x7E00,
        0x7E00,
        0x7E00,
        0x3C00,
        0xBC00,
        0,
        0x8000,
        1,
        0x8001,
        0x83FA,
    ]
    for name in ("log2", "sqrt", "rsqrt"):
        low, nothing, half = evaluate(fit(name, low=-1, y_low=7), [-1, 0, -0.5])
        assert low == 7
        assert np.isnan(nothing)
        assert np.isnan(half)
    assert evaluate(fit("inv"), [0, -0.0, np.inf, -np.inf]).tolist() == [math.inf, -math.inf, 0, 0]
    assert np.signbit(evaluate(fit("inv"), -np.inf))
    assert evaluate(fit("exp2"), [-np.inf, -25, 16, np.inf, 0, -0.0]).tolist() == [
        0,
        0,
        math.inf,
        math.inf,
        1,
        1,
    ]
    nan = ramp(x_low=np.nan, x_high=np.nan, right_slope=1)
    assert codes(evaluate(nan, [np.inf, -np.inf])).tolist() == [0x7E00, 0x7E00]
    assert evaluate(nan, 1000.0) == 1000


def test_shapes_and_large_inputs() -> None:
    table = fit("sigmoid")
    x = (
        np.random.default_rng(4)
        .integers(0, 2**16, (5, 130, 129))
        .astype(np.uint16)
        .view(np.float16)
    )
    large = evaluate(table, x)
    assert large.shape == x.shape
    assert np.array_equal(codes(large[0]), codes(evaluate(table, x[0])))
    assert evaluate(table, 0.0) == 0.5
    assert np.ndim(evaluate(table, 0.0)) == 0
    assert evaluate(table, np.zeros((2, 0))).shape == (2, 0)
    assert outputs(table).dtype == np.float16
    assert np.array_equal(
        codes(outputs(table)),
        codes([evaluate(table, part) for part in EVERY.reshape(256, 256)]).ravel(),
    )
    assert evaluate(table, [1e6, -1e300]).tolist() == [1, 0]  # infinite in fp16


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["tanh", "relu6"])
def test_all_inputs_as_in_whole_fractions(name: str) -> None:
    assert np.array_equal(codes(outputs(fit(name))), codes(evaluate_reference(fit(name), EVERY)))


@pytest.mark.long
@pytest.mark.parametrize("name", FITTED)
def test_all_inputs_of_all_made_tables_as_in_whole_fractions(name: str) -> None:
    assert np.array_equal(codes(outputs(fit(name))), codes(evaluate_reference(fit(name), EVERY)))


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_all_inputs_of_all_files_as_in_whole_fractions(name: str) -> None:
    table = decode(from_file(name))
    assert np.array_equal(codes(outputs(table)), codes(evaluate_reference(table, EVERY)))


def random_table(rng: np.random.Generator) -> Table:
    """A table of any known kind; bits at random, values of one size, or very large beside very
    small ones.
    """
    slots = rng.integers(0, 2**16, 64).astype(np.uint16)
    style = rng.integers(0, 3)
    if style == 1:
        slots[:41] = codes(rng.normal(0, 10.0 ** rng.integers(-7, 5), 41))
    if style == 2:
        sizes = np.where(
            rng.random(41) < 0.5, rng.integers(0, 64, 41), rng.integers(0x7000, 0x7C00, 41)
        )
        slots[:41] = sizes + 0x8000 * rng.integers(0, 2, 41)
    if rng.random() < 0.7:
        slots[:2] = 0xFC00, 0x7C00
    kind = str(rng.choice([*entries.PLAIN, *entries.REDUCED]))
    step = (
        entries.REDUCED[kind][1]
        if kind in entries.REDUCED
        else int(rng.choice([64, *entries.STEPS]))
    )
    slots[41] = step % 2**16
    slots[42] = entries.KINDS[kind] + 32 * int(rng.choice([0, 3, 6]))
    slots[43:] = 0
    return decode(slots.tobytes())


def compare_random_tables(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        table = random_table(rng)
        x = (
            np.concatenate([ODD_ONES, rng.integers(0, 2**16, 40), rng.integers(0, 0x100, 4)])
            .astype(np.uint16)
            .view(np.float16)
        )
        assert np.array_equal(codes(evaluate(table, x)), codes(evaluate_reference(table, x))), (
            table.encode().hex()
        )


def test_random_tables_as_in_whole_fractions() -> None:
    compare_random_tables(250, 11)


@pytest.mark.long
def test_many_random_tables_as_in_whole_fractions() -> None:
    compare_random_tables(20_000, 12)


def test_rounding_is_that_of_numpy_from_whole_fractions() -> None:
    """Values that float64 holds exactly, so that both must round alike."""
    from ane_table_loops import _rounded

    rng = np.random.default_rng(9)
    numbers = np.concatenate(
        [
            np.ldexp(rng.integers(-(2**14), 2**14, 4000) / 2.0**13, rng.integers(-27, 18, 4000)),
            [65504, 65519.99, 65520, 65536, 2.0**-25, 3 * 2.0**-26, -(2.0**-25), 2.0**-26],
        ]
    )
    with np.errstate(over="ignore"):
        assert [int(codes(_rounded(Fraction(float(one))))) for one in numbers if one] == codes(
            numbers[numbers != 0].astype(np.float16)
        ).tolist()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            {"kind": 3},
            r"slot 42 at byte 84 \(mode\): got kind 3 \(int\), allowed is 0 \(from_zero\), 1 \(centred\), 2 \(to_zero\), 10 \(exp2\), 9 ",
        ),
        ({"kind": 4}, r"slot 42 at byte 84 \(mode\): got kind 4 \(frac\), allowed is "),
        ({"kind": 8}, r"slot 42 at byte 84 \(mode\): got kind 8, allowed is "),
        (
            {"symmetry": 2},
            r"slot 42 at byte 84 \(mode\): got symmetry 2, allowed is 0 \(none\), 3 \(odd\), 6 \(positive\) ",
        ),
        (
            {"flags": 1},
            r"slot 42 at byte 84 \(mode\): got flags 0x1 above the symmetry, allowed is 0 ",
        ),
        (
            {"kind": "log2", "step_exponent": 5},
            r"slot 41 at byte 82 \(step_exponent\): got 5 with kind log2, allowed is 6 ",
        ),
        (
            {"step_exponent": 25},
            r"slot 41 at byte 82 \(step_exponent\): got 25, allowed is -16 to 24, or 64 for no knots ",
        ),
        ({"rest": [0, 0, 9, *[0] * 18]}, r"slot 45 at byte 90 \(rest\): got 0x9, allowed is 0 "),
    ],
)
def test_what_nobody_knows_is_refused_with_its_place(what: dict[str, object], message: str) -> None:
    for call in (evaluate, evaluate_reference, values):
        with pytest.raises(Unsupported, match=f"^activation table, {message}"):
            call(ramp(**what), [1.0])
    with pytest.raises(Unsupported, match=f"^activation table, {message}"):
        outputs(ramp(**what))


# Files and captures


@pytest.mark.parametrize("name", FILES)
def test_tables_of_files(name: str) -> None:
    """What was decoded by another program, number for number."""
    table = decode(from_file(name))
    assert table.encode() == from_file(name)
    assert not table.rest.any()
    if name == "sigmoid77":
        assert (table.kind_name, table.symmetry_name, table.step_exponent) == ("centred", "none", 1)
        assert table.knots[16] == 0.5
        return
    tasks = json.loads(shared("data/ane/expected/h13_tasks.json").read_text())[name]["tasks"]
    (lut,) = [task["lut"] for task in tasks if "lut" in task]
    names = {
        "x_low": "x_min",
        "x_high": "x_max",
        "y_low": "y_below",
        "y_high": "y_above",
        "left_slope": "left_slope",
        "left_intercept": "left_intercept",
        "right_slope": "right_slope",
        "right_intercept": "right_intercept",
    }
    assert {ours: float(getattr(table, ours)) for ours in names} == {
        ours: float(lut[theirs]) for ours, theirs in names.items()
    }
    assert table.knots.tolist() == lut["knots"]
    assert (table.step_exponent, table.kind, table.symmetry) == (
        lut["log2_inv_step"],
        lut["mode_kind"],
        lut["mode_sym"],
    )
    assert table.kind + 32 * table.symmetry == lut["mode"]


def test_all_tables_of_all_files_are_compared() -> None:
    found = json.loads(shared("data/ane/expected/h13_tasks.json").read_text())
    for name, file in found.items():
        assert (name in FILES) == any("lut" in task for task in file["tasks"]), name


def captured() -> tuple[np.ndarray, np.ndarray]:
    """The codes of the inputs and outputs of the tanh table that a board gave."""
    rows = read_table(shared("data/ane/captures/tanh_m5.csv"))
    x = [int(row["x_fp16_hex"], 16) for row in rows]
    y = [int(row["ane_fp16_hex"], 16) for row in rows]
    return np.array(x, np.uint16), np.array(y, np.uint16)


def test_captured_tanh_bit_for_bit() -> None:
    x, y = captured()
    assert len(x) == 16
    assert (
        codes(evaluate(decode(from_file("unary/tanh")), x.view(np.float16))).tolist() == y.tolist()
    )
    assert (
        np.count_nonzero(codes(np.tanh(x.view(np.float16).astype(float))) == y) < 8
    )  # it is the table, not the function


# of the interpolation, before it is rounded to fp16
@pytest.mark.parametrize(
    ("name", "function", "measure", "largest"),
    [
        ("unary/tanh", "tanh", "absolute", 1.4e-3),
        ("activation/gelu", "gelu", "absolute", 6.1e-3),
        ("sigmoid77", "sigmoid", "absolute", 3.1e-3),
        ("unary/exp2", "exp2", "relative", 4.0e-4),
        ("activation/softmax", "exp2", "relative", 4.0e-4),
        ("unary/log2", "log2", "absolute", 2.9e-4),
        ("unary/log", "log2", "absolute", 2.9e-4),
        ("binary/div", "inv", "relative", 4.4e-4),
        ("unary/sqrt", "sqrt", "relative", 4.9e-4),
    ],
)
def test_largest_errors(name: str, function: str, measure: str, largest: float) -> None:
    found = errors(decode(from_file(name)), function, rounded=False).largest[measure]
    assert float(f"{found:.1e}") == largest


def test_largest_error_of_selu_below_the_line() -> None:
    assert (
        float(
            f"{errors(decode(from_file('activation/selu')), 'selu', -100, 16, rounded=False).largest['absolute']:.1e}"
        )
        == 1.2e-2
    )


MADE = {
    "tanh": "unary/tanh",
    "sigmoid": "sigmoid77",
    "sigmoid_less_half": "activation/silu",
    "exp2": "unary/exp2",
    "log2": "unary/log2",
    "sqrt": "unary/sqrt",
    "inv": "binary/div",
    "sign": "unary/sign",
    "relu6": "activation/relu6",
    "leaky_relu": "activation/leakyrelu",
}


@pytest.mark.parametrize("function", MADE)
def test_made_tables_are_those_of_the_files(function: str) -> None:
    assert fit(function) == decode(from_file(MADE[function]))


@pytest.mark.parametrize("function", ["gelu", "selu"])
def test_made_tables_have_limits_and_lines_of_the_files(function: str) -> None:
    """The compiler chose knots of these that are not the nearest to the function."""
    theirs, ours = decode(from_file(f"activation/{function}")), fit(function)
    assert ours.encode()[:8] == theirs.encode()[:8]
    assert ours.encode()[74:] == theirs.encode()[74:]
    assert np.abs(ours.knots - theirs.knots).max() < 0.0063


# Making and judging


def test_knots_are_the_function() -> None:
    table = fit(np.arctan, "from_zero", 0, 8, symmetry="odd")
    assert (table.step_exponent, table.y_high, table.y_low) == (2, np.float16(math.atan(8)), 0)
    assert np.array_equal(table.knots, np.arctan(np.arange(33) / 4).astype(np.float16))
    assert errors(table, "atan", -8, 8).largest["absolute"] < 0.006
    assert fit(np.arctan, "centred", -8, 4).step_exponent == 1
    assert fit(np.exp, "to_zero", -4, 0).step_exponent == 3
    assert fit(np.exp, "to_zero", -5, 0).step_exponent == 2
    assert fit("tanh", high=2).step_exponent == 4
    assert fit("tanh", high=2).x_high == 2


def test_lines_go_on_where_the_knots_end() -> None:
    table = fit(lambda x: 3 * x + 1, "centred", step_exponent=0)
    assert evaluate(table, [-500, -16, 5.5, 16, 500]).tolist() == [-1499, -47, 17.5, 49, 1501]
    toward = fit(np.abs, "centred", -20, 24, step_exponent=0)
    assert (toward.left_slope, toward.right_slope, toward.y_low, toward.y_high) == (-1, 1, 20, 24)
    assert evaluate(toward, [-30, -18, 20, 30]).tolist() == [20, 18, 20, 24]


def test_a_line_toward_infinity_follows_the_function() -> None:
    table = fit(np.abs, "centred", -20, 24, step_exponent=0, y_high=math.inf)
    assert (table.right_slope, table.right_intercept, table.y_high) == (1, 0, math.inf)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (np.tanh,),
            r"^kind: got None, allowed is one of from_zero, centred, to_zero, exp2, log2, inv, sqrt, rsqrt$",
        ),
        ((np.tanh, "int"), r"^kind: got 'int', allowed is one of from_zero, "),
        (("silu",), r"^kind: got None, "),
        (
            (np.tanh, "centred"),
            r"^step_exponent: got none with limits -inf and inf, allowed is to leave it out where a limit on the side of the knots ",
        ),
        ((np.tanh, "from_zero", -4), r"^step_exponent: got none with limits -4.0 and inf, "),
        (
            (np.tanh, "centred", 2, 1),
            r"^low, high: got 2 and 1, allowed is a low below high in fp16$",
        ),
        ((np.tanh, "centred", 1, 1.0001), r"^low, high: got 1 and 1.0001, "),
        (
            (np.log, "centred", -4, 4),
            r"^y_low: the function is not defined at -4.0, allowed is to say y_low$",
        ),
        (
            (lambda x: 1e4 * x, "from_zero", 0, 8),
            r"^function: got 67500.0 at the knot 6.75, allowed is at most 65504$",
        ),
    ],
)
def test_what_no_table_can_be_made_of(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(*arguments)
    with pytest.raises(
        LookupError,
        match=r"^function: got 'tan', allowed is a function of arrays or one of none, relu, ",
    ):
        fit("tan")


def test_every_name_has_values_everywhere() -> None:
    for name in FUNCTIONS:
        found = true(name, EVERY)
        assert found.dtype == np.float64
        inside = (
            EVERY.astype(float) >= 0
            if name in ("sqrt", "rsqrt", "log2", "log")
            else ~np.isnan(EVERY)
        )
        assert not np.isnan(found[inside]).any(), name
    assert {
        "tanh",
        "sigmoid",
        "sqrt",
        "rsqrt",
        "inv",
        "sqr",
        "log2",
        "exp2",
        "elu",
        "sign",
        "equal_zero",
        "relu",
    } <= set(FUNCTIONS)


def test_true_functions_at_known_places() -> None:
    known = {
        "gelu": (1, 0.8413447460685429),
        "selu": (-1, -1.1113307378125625),
        "silu": (2, 1.7615941559557649),
        "sigmoid": (-20, 2.0611536181902037e-09),
        "elu": (-2, -0.8646647167633873),
        "rsqrt": (16, 0.25),
        "sqr": (-3, 9),
        "softplus": (0, math.log(2)),
        "hard_tanh": (-7, -1),
        "sigmoid_less_half": (math.log(3), 0.25),
        "leaky_relu": (-3, -0.03),
        "less_equal_zero": (0, 1),
        "greater_than_zero": (0, 0),
        "non_zero": (2, 1),
    }
    for name, (x, y) in known.items():
        assert true(name, x) == pytest.approx(y, rel=1e-13), name


@pytest.mark.parametrize("name", FITTED)
def test_made_tables_are_near_their_functions(name: str) -> None:
    found = errors(fit(name), name, -8, 8).largest
    assert found["absolute" if name not in ("inv", "rsqrt", "exp2") else "relative"] < 0.03


def test_errors_say_how_much_and_where() -> None:
    table = ramp(right_slope=1)
    knots = table.knots.copy()
    knots[7] += 0.5
    off = errors(ramp(knots=knots, right_slope=1), lambda x: x, 0)
    assert off.loc["absolute", ["largest", "x", "y", "true"]].tolist() == [0.5, 7, 7.5, 7]
    assert off.loc["relative", ["largest", "x"]].tolist() == [0.5 / 7, 7]
    assert off.loc["ulps", ["largest", "x"]].tolist() == [0.5 / 2**-8, 7]
    assert off.inputs.tolist() == [
        31744 + 1,
        31744 - 1024,
        31744 + 1,
    ]  # -0 is 0 too; relative ones of normal numbers
    assert errors(table, lambda x: x, 0).largest.tolist() == [0, 0, 0]
    assert errors(fit("relu6"), "relu6").largest.tolist() == [0, 0, 0]


def test_errors_at_infinity() -> None:
    assert errors(fit("inv"), "inv").largest["absolute"] < 64  # 1 / 2**-24 rounds to infinity
    assert errors(fit("inv"), "inv", -1, 1, rounded=False).largest["absolute"] > 1000
    assert errors(ramp(y_high=np.inf, x_high=4), lambda x: x, 0, 8).largest["absolute"] == math.inf
    assert errors(ramp(y_high=np.nan, x_high=4), lambda x: x, 0, 8).largest["ulps"] == math.inf
    assert math.isnan(errors(ramp(), np.zeros_like, 0, 0).largest["relative"])
    with pytest.raises(
        ValueError,
        match=r"^low, high: got -5 and -1, allowed is a range that holds inputs where the function is finite$",
    ):
        errors(ramp(), "log2", -5, -1)


OF_FILES = {
    **{file: name for name, file in MADE.items()},
    "activation/gelu": "gelu",
    "activation/selu": "selu",
    "activation/softmax": "exp2",
    "unary/log": "log2",
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", FILES)
def test_functions_of_files_are_named(name: str) -> None:
    assert identify(decode(from_file(name))) == OF_FILES[name]


def test_functions_of_made_tables_are_named() -> None:
    assert {name: identify(fit(name)) for name in FITTED} == {name: name for name in FITTED}
    assert identify(fit("erf", "from_zero", 0, 4, symmetry="odd")) == "erf"
    assert identify(fit("atan", "from_zero", 0, 8, symmetry="odd")) == "atan"
    found = closest(fit("tanh"))
    assert found.index[:2].tolist() == ["tanh", "hard_tanh"]
    assert 0 < found["mean"].iloc[0] < found.largest.iloc[0] < 0.01 < found.largest.iloc[1]
    assert set(found.index) == set(FUNCTIONS)


def test_other_tables_are_not_named() -> None:
    rng = np.random.default_rng(8)
    assert [identify(random_table(rng)) for _ in range(5)] == [None] * 5
    assert (
        identify(
            fit(lambda x: np.where(x > 0, x, 0.2 * x), **{**FITS["leaky_relu"], "left": (0.2, 0)})
        )
        is None
    )
    assert identify(fit(lambda x: 2 * np.tanh(x), "from_zero", 0, 4, symmetry="odd")) is None
    between = fit(
        lambda x: (np.tanh(x) + np.clip(x, -1, 1)) / 2,
        "from_zero",
        0,
        4,
        symmetry="odd",
        right=(0, 1),
    )
    assert closest(between).index[:2].tolist() == ["hard_tanh", "tanh"]
    assert closest(between).largest.iloc[0] < 0.2
    assert identify(between) is None
    tanh = fit("tanh")
    knots = np.where(np.arange(33) == 9, 0, tanh.knots)
    assert identify(replace(tanh, knots=knots)) is None
    with pytest.raises(Unsupported, match="slot 42"):
        identify(ramp(kind="int"))


def test_last_place_is_the_distance_to_the_next_number() -> None:
    finite = EVERY[(EVERY >= 0) & (EVERY < 65504)]
    assert np.array_equal(last_place(finite), np.abs(np.spacing(finite)).astype(float))
    assert last_place([65504, 65519, 1e6]).tolist() == [32, 32, 32]


# The enums


SEED = "seeds/000_571751982c67fd8a.txt"


def printed(start: str, end: str) -> dict[int, str]:
    """Numbers and names between two lines of the notes."""
    lines = [line.strip() for line in Path(shared(SEED)).read_text().splitlines() if line.strip()]
    part = lines[lines.index(start) : lines.index(end, lines.index(start))]
    return {
        int(found[1]): found[2] for line in part if (found := re.fullmatch(r"(\d+): (\S+)", line))
    }


@pytest.mark.parametrize(
    ("enum", "start", "end", "count"),
    [
        ("opcode", "kZinIrOpCodeTranspose", "# guessing from the hwx", 49),
        ("neuron", "Investigate:", "CacheHint", 32),
        ("cache_hint", "CacheHint", "conv kinds", 4),
        ("convolution", "conv kinds", "== plist exploration ==", 3),
    ],
)
def test_enums_are_those_of_the_notes(enum: str, start: str, end: str, count: int) -> None:
    names = {
        int(row["raw"]): row["name"]
        for row in read_table(HERE / "enums.csv")
        if row["enum"] == enum
    }
    assert names == printed(start, end)
    assert sorted(names) == list(range(count))


def test_kinds_from_3_on_are_neurons_less_5() -> None:
    names = {
        row["name"].lower(): int(row["raw"])
        for row in read_table(HERE / "enums.csv")
        if row["enum"] == "neuron"
    }
    assert all(names[name] == code + 5 for name, code in entries.KINDS.items() if code >= 3)
    assert set(entries.REDUCED) < set(names)
    assert functions.FUNCTIONS.keys() >= {"sqrt", "rsqrt", "inv", "log2", "exp2"}
