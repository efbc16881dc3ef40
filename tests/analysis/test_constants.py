"""Constants in streams of bytes: place, encoding and formula, what ties, and what chance gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import constants_slowly
import numpy as np
import planted_constants
import pytest
from conftest import CAPTURES

import npulab
from npulab.analysis.laws.builds import compare_builds
from npulab.analysis.laws.constants import Constants, find_constants, matching
from npulab.analysis.laws.constants.encodings import encodings
from npulab.analysis.laws.constants.formulas import Columns, formulas_of
from npulab.analysis.laws.constants.places import WIDTHS, rows_of
from npulab.captures.sweep import Sweep

SIZE = 2824
PLACES = (0x1C, 0x81, 0x133, 0x501)
# the numbers of onnxsim/onnxsim#1283: calibration inputs x1, x2, x4
INVERSE = np.array([35.75, 17.875, 8.9375])
Y_SCALE = np.array([0.0122681, 0.0245361, 0.0490723])


def put(streams: np.ndarray, place: int, codes: Any, kind: str) -> None:
    """Write a number of each capture at a place."""
    data = np.asarray(codes).astype(kind)
    streams[:, place : place + data.itemsize] = data.view(np.uint8).reshape(len(streams), -1)


def cut_off(values: np.ndarray) -> np.ndarray:
    """bfloat16 toward zero."""
    return values.astype(np.float32).view(np.uint32) >> 16


def three_compilations() -> tuple[np.ndarray, dict[str, Any]]:
    """22 of 2,824 bytes move: two constants of 2 bytes, four copies each, and 6 bytes of noise."""
    rng = np.random.default_rng(1)
    streams = np.tile(rng.integers(0, 256, SIZE).astype(np.uint8), (3, 1))
    for place in PLACES:
        put(streams, place, cut_off(INVERSE), "<u2")
        put(streams, place + 13, cut_off(Y_SCALE), "<u2")
    streams[:, 700:706] = [[1] * 6, [2] * 6, [9] * 6]
    return streams, {"x_scale": 1 / INVERSE, "y_scale": Y_SCALE, "w_scale": [0.003] * 3}


def test_three_compilations_name_both_constants_and_what_is_tied() -> None:
    streams, parameters = three_compilations()
    assert (streams != streams[0]).any(0).sum() == 22
    assert streams[:, 0x1C:0x1E].tolist() == [[0x0F, 0x42], [0x8F, 0x41], [0x0F, 0x41]]
    answer = find_constants(streams, parameters)
    assert [str(one) for one in answer.constants] == [
        "bf16(1 / x_scale) at 0x1c, four copies; half to even or toward zero; "
        "1 / y_scale moved in one ratio with it: "
        "move the scales apart to be sure",
        "bf16(y_scale) at 0x29, four copies; toward zero; "
        "x_scale moved in one ratio with it: "
        "move the scales apart to be sure",
    ]
    assert not any(constant.sure for constant in answer.constants)
    assert answer.constants[0].places == PLACES
    assert str(answer).startswith(
        "2 constants in 3 streams of 2824 bytes: 16 of 22 moving bytes; odds of any by chance"
    )


def more_compilations(captures: int = 6, channels: int = 16) -> tuple[np.ndarray, dict[str, Any]]:
    """The same with other scales in each capture, words of the header, and pairs of bias and
    multiplier for each channel."""
    rng = np.random.default_rng(3)
    x, y, z = (rng.uniform(low, 4 * low, captures) for low in (0.012, 0.02, 0.004))
    x, y, z = (np.float32(one).astype(float) for one in (x, y, z))
    parameters: dict[str, Any] = {"x_scale": x, "y_scale": y, "z_scale": z}
    parameters["x_zero"] = rng.integers(100, 140, captures)
    parameters["y_zero"] = rng.integers(0, 256, captures)
    streams = np.tile(rng.integers(0, 256, SIZE).astype(np.uint8), (captures, 1))
    put(streams, 0x10, np.floor(x / y * 32768 + 0.5), "<u2")
    put(streams, 0x14, np.floor(z / y * 32768 + 0.5), "<u2")
    for place in PLACES:
        put(streams, place, cut_off(1 / x), "<u2")
        put(streams, place + 13, cut_off(y), "<u2")
    for channel in range(channels):
        scale = np.float32(rng.uniform(0.001, 0.01))
        total = rng.integers(-4000, 4000)
        parameters[f"w_scale_{channel}"] = np.full(captures, float(scale))
        parameters[f"w_sum_{channel}"] = np.full(captures, total)
        multiplier = np.float32(x) * scale / np.float32(y)
        product = np.float32(parameters["x_zero"] * total) * multiplier
        put(streams, 0x601 + 8 * channel, np.float32(parameters["y_zero"]) - product, "<f4")
        put(streams, 0x605 + 8 * channel, multiplier, "<f4")
    return streams, parameters


def test_more_compilations_are_unique_and_leave_no_byte() -> None:
    streams, parameters = more_compilations()
    answer = find_constants(streams, parameters)
    lines = str(answer).splitlines()
    moving = int((streams != streams[0]).any(0).sum())
    assert f"{moving} of {moving} moving bytes" in lines[0]
    assert lines[1:5] == [
        "fixed16(x_scale / y_scale * 2**15) at 0x10; half away or half to even",
        "fixed16(z_scale / y_scale * 2**15) at 0x14; half away or half to even",
        "bf16(1 / x_scale) at 0x1c, four copies; toward zero",
        "bf16(y_scale) at 0x29, four copies; toward zero",
    ]
    assert lines[5] == (
        "f32(y_zero - x_zero * w_sum_c * x_scale * w_scale_c / y_scale) at 0x601 + 8 * c, "
        "c from 0 to 15; float32 products"
    )
    assert lines[6].startswith(
        "f32(x_scale * w_scale_c / y_scale) at 0x605 + 8 * c, c from 0 to 15; float32 products"
    )
    assert len(answer.constants) == 4 + 2 * 16
    assert all(constant.sure for constant in answer.constants)


def test_bytes_of_other_parameters_are_predicted() -> None:
    streams, parameters = more_compilations(12, 5)
    half = {name: values[:6] for name, values in parameters.items()}
    rest = {name: values[6:] for name, values in parameters.items()}
    answer = find_constants(streams[:6], half)
    data, claimed = answer.predict(rest)
    moving = (streams != streams[0]).any(0)
    # where float32 steps that fit disagree on new scales, nothing is claimed
    assert claimed[:, moving].mean() > 0.8
    assert (data == streams[6:])[claimed].all()
    with pytest.raises(ValueError, match=r"^parameters: got no column y_zero, allowed are all"):
        answer.predict({name: values for name, values in rest.items() if name != "y_zero"})


def test_parameters_that_move_together_are_ties() -> None:
    scale = np.array([0.011, 0.027, 0.013, 0.045, 0.038, 0.02])
    streams = np.zeros((6, 40), np.uint8)
    put(streams, 9, scale, "<f4")
    answer = find_constants(streams, {"a_scale": scale, "b_scale": scale})
    (constant,) = answer.constants
    assert not constant.sure
    assert str(constant) == "f32(a_scale) at 0x9; as well f32(b_scale)"
    _, claimed = answer.predict({"a_scale": scale, "b_scale": scale * [1, 1, 2, 1, 1, 1]})
    assert claimed[:, 9].tolist() == [True, True, False, True, True, True]


def test_a_counter_that_a_scale_follows_is_said() -> None:
    scale = np.arange(1, 9) * 0.01
    streams = np.zeros((8, 40), np.uint8)
    put(streams, 9, np.trunc(scale * 512), "u1")
    assert streams[:, 9].tolist() == [5, 10, 15, 20, 25, 30, 35, 40]
    answer = find_constants(streams, {"scale": scale})
    (constant,) = answer.constants
    assert not constant.sure
    assert str(constant).endswith("as well a counter, +5 from each capture to the next")
    assert not answer.predict({"scale": [0.5]})[1].any()
    # in another order of the captures it is no counter
    other = [3, 0, 1, 2, 5, 4, 7, 6]
    (constant,) = find_constants(streams[other], {"scale": scale[other]}).constants
    assert constant.sure


def test_a_multiplier_has_its_shift_apart() -> None:
    rng = np.random.default_rng(8)
    ratio = 10 ** rng.uniform(-4, -1, 8)
    streams = np.tile(rng.integers(0, 256, 400).astype(np.uint8), (8, 1))
    part, shift = np.frexp(ratio)
    put(streams, 33, np.floor(part * 2.0**31 + 0.5), ">u4")
    put(streams, 44, 31 - shift, "u1")
    answer = find_constants(streams, {"ratio": ratio})
    assert [str(one) for one in answer.constants] == [
        "q31(ratio) at 0x21; half away; big-endian; right shift +31 at 0x2c"
    ]
    data, claimed = answer.predict({"ratio": [0.3, 0.0007]})
    assert data[:, 44].tolist() == [32, 41]
    assert claimed[:, 44].all()


def test_a_place_may_be_noise_on_a_quarter_of_the_captures() -> None:
    scale = np.array([0.011, 0.027, 0.013, 0.045, 0.038, 0.02, 0.05, 0.031])
    streams = np.zeros((8, 40), np.uint8)
    put(streams, 9, scale, "<f4")
    streams[2, 10] ^= 1
    streams[5, 9] ^= 64
    (constant,) = find_constants(streams, {"scale": scale}).constants
    assert str(constant) == "f32(scale) at 0x9; on 6 of 8 captures"
    assert np.flatnonzero(~constant.fits[0]).tolist() == [2, 5]
    streams[6, 11] ^= 1
    assert not any(one.width == 4 for one in find_constants(streams, {"scale": scale}).constants)


def test_builds_of_one_input_give_noise_and_addresses_first() -> None:
    rng = np.random.default_rng(4)
    scale = np.repeat([0.011, 0.027, 0.013, 0.045], 2)
    streams = np.tile(rng.integers(0, 256, 512).astype(np.uint8), (8, 1))
    put(streams, 101, scale, "<f4")
    base = 0x7F0012340000 + 4096 * rng.integers(0, 2**20, 8)
    for number, place in enumerate((256, 272, 296)):
        put(streams, place, base + 640 * number, "<u8")
    small = 16 * rng.integers(0, 2**20, 8)
    put(streams, 400, small, "<u4")
    put(streams, 408, small + 64, "<u4")
    streams[:, 300:302] = streams[:, 300:302]
    streams[:, 333:341] = rng.integers(0, 256, (8, 8))
    answer = find_constants(streams, {"scale": scale})
    assert [str(one) for one in answer.constants] == ["f32(scale) at 0x65"]
    places = {found.width: found.places for found in answer.addresses}
    assert places == {8: (256, 272, 296), 4: (400, 408)}
    assert np.flatnonzero(answer.noise).tolist() == list(range(333, 341))
    assert answer.moving == 4
    mask = answer.builds.mask()
    assert mask.dtype == np.uint32
    assert np.flatnonzero(mask).tolist() == [64, 65, 68, 69, 74, 75, 83, 84, 85, 100, 102]
    assert mask[83] == 0xFFFFFF00
    assert "noise" in {row["kind"] for row in answer.records()}
    # a label for each build says it without parameters
    labelled = compare_builds(streams, builds=np.repeat(range(4), 2))
    assert str(labelled) == str(answer.builds)


def test_copies_that_move_together_are_no_addresses() -> None:
    streams = np.zeros((2, 16), np.uint8)
    streams[1, [4, 8]] = 16
    assert not compare_builds(streams, builds=[0, 0]).addresses


def test_streams_that_change_their_length_are_aligned_first() -> None:
    rng = np.random.default_rng(5)
    scale = np.array([0.011, 0.027, 0.013, 0.045, 0.038, 0.02])
    streams = np.tile(rng.integers(0, 256, 3000).astype(np.uint8), (6, 1))
    put(streams, 1801, scale, "<f4")
    put(streams, 301, 1 / scale, "<f4")
    rows = [row.tobytes() for row in streams]
    rows[1] = rows[1][:700] + bytes(range(40)) + rows[1][700:]
    rows[4] = rows[4][:900] + rows[4][916:]
    answer = find_constants(rows, {"scale": scale})
    assert [str(one) for one in answer.constants] == [
        "f32(1 / scale) at 0x12d",
        "f32(scale) at 0x709",
    ]
    assert all(constant.fits.all() for constant in answer.constants)
    assert answer.alignment.places[1, 1801] == 1841
    assert answer.alignment.places[4, 1801] == 1785
    assert "6 streams of 2984 to 3040 bytes, aligned to stream 0" in str(answer)


def test_a_sweep_holds_words_and_parameters() -> None:
    scale = np.array([0.5, 0.27, 0.13, 0.45, 0.38])
    words = np.zeros((5, 3), np.uint32)
    words[:, 1] = np.float32(scale).view(np.uint32)
    answer = npulab.find_constants(Sweep(words, {"scale": scale, "width": range(5)}))
    assert [str(one) for one in answer.constants] == ["f32(scale) at 0x4"]


def slow_and_fast(seed: int) -> tuple[set[Any], set[Any]]:
    """The fits of the slow reference and of the fast search, without what these say of chance."""
    rng = np.random.default_rng(seed)
    scales = {}
    for number, name in enumerate("abc"):
        column = np.float32(rng.uniform(0.5, 2, 4) * 10.0**-number)
        scales[name] = column.astype(float).tolist()
    a, b, c = (np.array(scales[name]) for name in "abc")
    streams = rng.integers(0, 256, (4, 24)).astype(np.uint8)
    put(streams, 3, a / b, "<f4")
    put(streams, 10, np.rint(a * 2**14), ">u2")
    put(streams, 15, np.trunc(c * 2**12), "u1")
    put(streams, 18, np.float16(b), "<f2")
    streams[seed % 4, 15] ^= 1
    slow = constants_slowly.fits(streams, scales)
    formulas = formulas_of(Columns(("a", "b", "c"), (), np.array([a, b, c])), 2)
    everywhere = np.ones(streams.shape, bool)
    rows = [rows_of(streams, everywhere, np.zeros(24, bool), width) for width in WIDTHS]
    of_width = {one.width: one for one in rows}
    fast = set()
    for hit in matching.hits_of(rows, formulas, lambda text: None):
        stored = hit.stored
        if stored.way != "double":
            continue
        for offset, order in of_width[hit.width].of(hit.row):
            fast.add(
                constants_slowly.Fit(
                    offset,
                    ("little", "big")[order],
                    hit.width,
                    formulas.formula(hit.formula).factors,
                    stored.encoding.name,
                    stored.encoding.rounding,
                    stored.fraction,
                    hit.count,
                )
            )
    return slow, fast


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(60))
def test_the_search_finds_what_loops_find(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "FEWEST_BITS", -1e9)
    slow, fast = slow_and_fast(seed)
    assert len(slow) > 5
    assert slow == fast


def test_planted_constants_are_found() -> None:
    counts = planted_constants.judged(find_constants, range(0, 4, 2))
    planted, right, _, false = np.sum(list(counts.values()), axis=0)
    assert planted == 2 * len(planted_constants.KINDS)
    assert right >= 0.95 * planted
    assert false == 0


@pytest.mark.parametrize(
    "seeds",
    [(0, 2), pytest.param(range(1, 201, 2), marks=pytest.mark.long)],
    ids=["two", "hundred"],
)
def test_nothing_is_claimed_where_nothing_is_planted(seeds: Sequence[int]) -> None:
    for seed in seeds:
        case = planted_constants.null_of(seed)
        assert not find_constants(case.streams, case.parameters).constants, seed


@pytest.mark.long
def test_of_a_hundred_of_each_kind_nineteen_in_twenty_are_found() -> None:
    counts = planted_constants.judged(find_constants, range(1, 201, 2))
    for kind in planted_constants.KINDS:
        planted, right, _, _ = counts[kind]
        assert planted == 100
        assert right >= 95, kind


def test_every_encoding_has_its_evidence_and_its_round() -> None:
    names = {(one.name, one.rounding) for one in encodings()}
    assert len(names) == len(encodings())
    for one in encodings():
        codes, coded = one.encode(np.array([[1.0, 2.0, 1.5]]), 5)
        assert coded.all(), one
        assert len(set(codes[0].tolist())) == 3 - (one.kind == "mantissa"), one


@pytest.mark.parametrize(
    ("streams", "parameters", "text"),
    [
        ([b"ab"], {"a": [0.5]}, "streams: got 1 stream, allowed are at least 2 captures"),
        ([b"ab", b"cd"], {"a": [0.5]}, "parameters: got 1 row, allowed is one for each of the 2"),
        ([b"ab", b"cd"], {"a": [1, 2]}, "parameters: got no column of real numbers, allowed is"),
        ([b"ab", b""], {"a": [0.5, 1]}, "streams: got stream 1 without bytes, allowed are bytes"),
        ([b"ab", b"cd"], {"a": [0.5, np.nan]}, "parameters: a: got a number that is missing"),
        ([], {"a": [0.5]}, "streams: got none, allowed is one for each capture"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(streams: Any, parameters: Any, text: str) -> None:
    with pytest.raises(ValueError) as error:
        find_constants(streams, parameters)
    assert str(error.value).startswith(text)


def test_no_column_that_moves_is_an_answer_without_constants() -> None:
    answer = find_constants([b"abc", b"abd"], {"a": [1.0, 1.0]})
    assert answer.constants == ()
    assert repr(answer) == "Constants(none)"
    assert answer.table.empty
    assert isinstance(answer, Constants)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    streams, parameters = three_compilations()
    for number, row in enumerate(streams):
        Path(tmp_path, f"run{number}.bin").write_bytes(row.tobytes())
    lines = ["name,build," + ",".join(parameters)]
    for number in range(3):
        numbers = [repr(float(values[number])) for values in parameters.values()]
        lines.append(f"run{number},{number}," + ",".join(numbers))
    tmp_path.joinpath("layers.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_shell_reads_a_folder_and_a_table(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from npulab.cli import main

    asked = ["constants", str(folder), "--parameters", str(folder / "layers.csv")]
    assert main([*asked, "--leave-out", "build"]) == 0
    out = capsys.readouterr().out
    assert "bf16(1 / x_scale) at 0x1c, four copies; half to even or toward zero" in out
    assert main([*asked, "--json", "--leave-out", "build"]) == 0
    assert capsys.readouterr().out.count('"kind": "constant"') == 2
    assert main([*asked, "--leave-out", "bild"]) == 2
    assert "column: got 'bild', allowed are the columns" in capsys.readouterr().err
    assert main(["constants", str(folder)]) == 2
    assert "--parameters: got none, allowed is a table of the layers" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        "ethosu/explored-u55-128",
        pytest.param("nvdla/sweep-convolutions", marks=pytest.mark.long),
        pytest.param("rockchip/sweep-convolutions", marks=pytest.mark.long),
        pytest.param("vivante/sweep-layers-s905d3", marks=pytest.mark.long),
    ],
)
def test_sizes_of_layers_are_no_products_of_scales(name: str) -> None:
    """Words of real layers hold sizes, less one or in tiles; formulas with scales that give the same
    numbers on most layers were claimed before."""
    sweep = npulab.load_sweep(CAPTURES / f"{name}.npz")
    named = {*find_constants(sweep).table["formula"]}
    assert named
    assert named <= {*sweep.parameters}
