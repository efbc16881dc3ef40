"""Vivante: the captures of update 4 and random layers, with plain integer code as the oracle."""

from __future__ import annotations

import csv
import dataclasses
import functools
import random
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import shared
from shell_runs import everything_below, flipped, json_lines, refused, shell

import npulab
import npulab.cli
from npulab.captures.devices import Simulated

REPO = Path(__file__).parents[3]
SEEDS = {"001": "001_8829da847375e5fe", "002": "002_a8df49b9735cd1f4"}
CASES = REPO / "captures" / "vivante"
MESA, VENDOR = CASES / "update4-mesa", CASES / "update4-vendor"
CORES, LINE = 8, 64
A311D, IMX8MP = "vipnano-qi-a311d", "vipnano-si-imx8mp"
PREDICTED = bytes.fromhex("BC28BAFFB291829791")
CHECK_KEYS = {"case", "target", "words", "coefficients", "compared", "mismatches", "verdict"}
VIVANTE = npulab.target("vivante")


# Helpers


def seed(number: str) -> Path:
    return shared(f"seeds/{SEEDS[number]}.txt")


def sides(text: str) -> dict[str, list[str]]:
    """Both sides of the diff in the seed, its marks and blanks taken off."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("@@")) + 1
    end = next(i for i, line in enumerate(lines) if line.startswith("This corresponds"))
    kept = {"mesa": "+", "vendor": "-"}
    return {
        side: [line.lstrip("+-\xa0 ") for line in lines[start:end] if line[:1] != other]
        for side, other in kept.items()
    }


def byte_runs(lines: Sequence[str]) -> list[bytes]:
    """The three byte dumps: each ends with the first line that has no comma behind it."""
    runs, run = [], []
    for line in lines:
        if re.match(r"0x[0-9a-f]{2}(,|$)", line):
            run += [int(digits, 16) for digits in re.findall(r"0x([0-9a-f]{2})\b", line)]
            if not line.rstrip().endswith(","):
                runs.append(bytes(run))
                run = []
    return runs


def fields_by_place() -> list[tuple[str, int, int, int]]:
    """(name in update 4, word, lsb, width) from the facts, neighbouring rows of one name joined."""
    table = shared("facts/vivante_nn_fields.csv")
    out: list[tuple[str, int, int, int]] = []
    with table.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            name, word, lsb, width = (
                row["name_update4"],
                *(int(row[c]) for c in ("word", "lsb", "width")),
            )
            if out and out[-1][:2] == (name, word):
                out[-1] = (name, word, out[-1][2], out[-1][3] + width)
            else:
                out.append((name, word, lsb, width))
    return out


def words_of_text(lines: Sequence[str]) -> np.ndarray:
    """The 34 words, from printed fields in order and places from the facts, matched by name and
    order.

    The print has ``per_channel_post_mul`` and ``unused7`` the other way round, both 0; by name it
    makes no difference.
    """
    printed: dict[str, int] = {}
    for line in lines:
        if found := re.match(r"map->(\w+) = (0x[0-9a-f]+);", line):
            printed[found[1]] = int(found[2], 16)
    words, seen, done = [0] * 34, set(), {}
    for name, word, lsb, width in fields_by_place():
        value = printed[name] >> done.get(name, 0)
        words[word] |= (value & ((1 << width) - 1)) << lsb
        done[name] = done.get(name, 0) + width
        seen.add(name)
    assert seen == set(printed)
    return np.array(words, np.uint32)


def scale_of(words: np.ndarray) -> tuple[int, int]:
    """(multiplier, right_shift) of V7, straight from the words."""
    w = [int(word) for word in words]
    mantissa = w[2] >> 26 & 1 | (w[15] >> 22 & 63) << 1 | (w[17] >> 24 & 255) << 7
    return 32768 + mantissa, (w[2] >> 27 & 31) | (w[15] >> 28 & 3) << 5


def pads_of(layer: npulab.Conv2D) -> tuple[tuple[int, int], tuple[int, int]]:
    if layer.padding == "valid":
        return (0, 0), (0, 0)
    if layer.padding != "same":
        return layer.padding
    both = []
    for n, k, s in zip(layer.input_shape[:2], layer.weights.shape[1:3], layer.stride, strict=True):
        total = max((-(-n // s) - 1) * s + k - n, 0)
        both.append((total // 2, total - total // 2))
    return both[0], both[1]


def accumulators(layer: npulab.Conv2D, x: np.ndarray) -> np.ndarray:
    (top, bottom), (left, right) = pads_of(layer)
    padded = np.pad(
        x.astype(np.int64) - layer.input_q.zero_point, ((top, bottom), (left, right), (0, 0))
    )
    kernel = layer.weights.astype(np.int64) - layer.weight_q.zero_point
    channels, kh, kw, _ = kernel.shape
    sh, sw = layer.stride
    rows, columns = (padded.shape[0] - kh) // sh + 1, (padded.shape[1] - kw) // sw + 1
    total = np.zeros((rows, columns, channels), np.int64) + layer.bias
    for r in range(kh):
        for c in range(kw):
            window = padded[r : r + sh * (rows - 1) + 1 : sh, c : c + sw * (columns - 1) + 1 : sw]
            total += window @ kernel[:, r, c].T
    return total


def scaled(accumulator: int, multiplier: int, shift: int) -> int:
    """accumulator * multiplier / 2**shift to the nearest, ties to even, in Python's integers."""
    unit = 1 << shift
    low, rest = divmod(accumulator * multiplier, unit)
    return low + (2 * rest > unit or (2 * rest == unit and low % 2))


def outputs(layer: npulab.Conv2D, x: np.ndarray, multiplier: int, shift: int) -> np.ndarray:
    zero, kind = layer.output_q.zero_point, np.iinfo(x.dtype)
    low = max(kind.min, zero) if layer.activation == "relu" else kind.min
    sums = accumulators(layer, x)
    flat = [min(max(scaled(int(a), multiplier, shift) + zero, low), kind.max) for a in sums.ravel()]
    return np.array(flat, x.dtype).reshape(sums.shape)


def tensor(raw: bytes, shape: tuple[int, int, int], dtype: np.dtype) -> np.ndarray:
    """A planar buffer as (H, W, C); int8 tensors travel with 128 added."""
    h, w, c = shape
    codes = np.frombuffer(raw, np.uint8)[: h * w * c].reshape(c, h, w).transpose(1, 2, 0)
    return (codes.astype(np.int64) - 128).astype(np.int8) if dtype == np.int8 else codes


class Kernel(NamedTuple):
    """What a stream says of an output channel; weights by (plane, row, column)."""

    weights: np.ndarray
    bias: int
    offset: int


def cd(a: int, b: int) -> int:
    return -(-a // b)


def read_streams(capture: npulab.Capture) -> dict[int, Kernel]:
    """The V7 coefficient buffer by the rules of the facts; slots past the last channel are
    dropped.
    """
    w = [int(word) for word in capture.words]
    kernel_w, kernel_h = w[0] >> 2 & 15, w[8] >> 12 & 15
    planes, resident = w[0] >> 6 & 0x3FFF, w[0] >> 20 & 127
    channels, input_w, zero = w[4] & 0x3FFF, w[1] >> 6 & 0x1FFF, w[22] & 255
    used = min(channels, CORES)
    share = cd(channels, used)
    blocks = cd(share, resident)
    data = capture.buffers["coefficients"]
    sizes = [int.from_bytes(data[4 * c : 4 * c + 4], "little") for c in range(CORES)]
    assert all(size % LINE == 0 for size in sizes)
    assert not any(sizes[used:])
    assert not any(data[4 * CORES : LINE])
    found: dict[int, Kernel] = {}
    start = LINE
    for core in range(used):
        stream = data[start : start + sizes[core]]
        start += sizes[core]
        found |= read_stream(
            stream,
            core,
            used,
            share,
            blocks,
            resident,
            planes,
            (kernel_h, kernel_w),
            zero,
            channels,
            input_w,
        )
    assert not any(data[start:])
    return {channel: kernel for channel, kernel in found.items() if channel < channels}


def row_pairs(height: int, width: int, split: bool) -> list[tuple[int, int]]:
    cells = []
    for row in range(0, height, 2):
        pair = range(row, min(row + 2, height))
        parts = [range(min(3, width)), range(3, width)] if split else [range(width)]
        cells += [(r, c) for part in parts for r in pair for c in part]
    return cells


def read_stream(
    stream: bytes,
    core: int,
    used: int,
    share: int,
    blocks: int,
    resident: int,
    planes: int,
    size: tuple[int, int],
    zero: int,
    channels: int,
    input_w: int,
) -> dict[int, Kernel]:
    bits, at = int.from_bytes(stream, "little"), 0

    def take(width: int) -> int:
        nonlocal at
        assert at + width <= 8 * len(stream), "the stream ends too early"
        at += width
        return bits >> (at - width) & ((1 << width) - 1)

    zrl = take(8)
    assert take(16) == share
    pending: list[int] = []

    def weight() -> int:
        if not pending:
            run = take(zrl)
            pending.extend([zero] * run + [take(8)])
        return pending.pop(0)

    order: list[tuple[int, int, int, int]] = []
    height, width = size
    for s in range(blocks):
        kernels = resident if s < blocks - 1 else share - resident * (blocks - 1)
        names = [core * kernels + k + s * resident * used for k in range(kernels)]
        if size == (1, 1) and channels > 8:
            order += [
                (n, p, 0, 0)
                for group in range(0, planes, 6)
                for n in names
                for p in range(group, min(group + 6, planes))
            ]
        elif planes > 1:
            cells = row_pairs(height, width, width > 3)
            order += [(n, p, r, c) for p in range(planes) for n in names for r, c in cells]
        else:
            cells = row_pairs(height, width, width > 3 and input_w > 64)
            order += [(n, 0, r, c) for n in names for r, c in cells]
    remaining = {n: planes * height * width for n, *_ in order}
    values = {n: np.zeros((planes, height, width), np.int64) for n in remaining}
    bias: dict[int, int] = {}
    offset: dict[int, int] = {}
    for n, p, r, c in order:
        values[n][p, r, c] = weight()
        if n not in bias:
            assert not pending, "a run reaches past a bias"
            bias[n] = take(32)
        remaining[n] -= 1
        if not remaining[n]:
            assert not pending, "a run reaches past an offset"
            offset[n] = take(32)
    assert bits >> at == 0, "the stream is not filled with zeros"
    assert len(stream) - cd(at, 8) < LINE
    return {n: Kernel(values[n], bias[n], offset[n]) for n in remaining}


def split(kernel: np.ndarray, zero: int) -> np.ndarray:
    """(O, H, W, I) at stride 2 as (O, 4 I, ceil(H/2), ceil(W/2)), missing cells at the zero
    point.
    """
    o, h, w, i = kernel.shape
    out = np.full((o, 4 * i, cd(h, 2), cd(w, 2)), zero, np.int64)
    for r in range(h):
        for c in range(w):
            for z in range(i):
                out[:, 4 * z + 2 * (r % 2) + c % 2, r // 2, c // 2] = kernel[:, r, c, z]
    return out


def layer_and_input(
    rng: np.random.Generator,
    kernel: tuple[int, int],
    channels: tuple[int, int],
    image: tuple[int, int],
    **options: Any,
) -> tuple[npulab.Conv2D, np.ndarray]:
    """A random layer whose outputs use most of the range."""
    dtype = options.pop("dtype", np.uint8)
    sparse = options.pop("sparse", 0.0)
    kind = np.iinfo(dtype)
    middle = kind.min + 128

    def draw(*shape: int) -> np.ndarray:
        return rng.integers(kind.min, kind.max + 1, shape).astype(dtype)

    x_zero, w_zero, y_zero = (middle + int(rng.integers(-reach, reach)) for reach in (20, 20, 60))
    weights = draw(channels[1], *kernel, channels[0])
    weights[rng.random(weights.shape) < sparse] = w_zero
    spread = float(np.sqrt(weights[0].size * (1.01 - sparse))) * 90 * rng.uniform(0.7, 1.4)
    layer = npulab.Conv2D(
        weights=weights,
        bias=rng.integers(-30000, 30000, channels[1]),
        input_shape=(*image, channels[0]),
        input_q=npulab.QuantParams(0.02, x_zero),
        weight_q=npulab.QuantParams(0.01, w_zero),
        output_q=npulab.QuantParams(0.02 * 0.01 * spread, y_zero),
        **options,
    )
    return layer, draw(*image, channels[0])


def recorded(*arguments: Any, **options: Any) -> tuple[npulab.Conv2D, np.ndarray, npulab.Capture]:
    layer, x = layer_and_input(*arguments, **options)
    return layer, x, Simulated().record(VIVANTE.lower(layer, x=x))


@functools.cache
def small() -> npulab.Capture:
    """A recorded capture that is quick to check and whose outputs are not saturated everywhere."""
    capture = recorded(np.random.default_rng(11), (3, 3), (2, 2), (5, 4))[2]
    assert npulab.check(capture).verdict == "equal"
    return capture


# The shipped captures


@pytest.fixture(params=[MESA, VENDOR], ids=lambda path: path.name)
def update4(request: pytest.FixtureRequest) -> npulab.Capture:
    return npulab.load(request.param)


def test_check_of_all_captures() -> None:
    result = shell("check", CASES, "--json")
    lines = {line["case"]: line for line in json_lines(result.out)}
    assert result.code == 0
    assert sorted(lines) == sorted(path.name for path in CASES.iterdir() if path.is_dir())
    assert len([case for case in lines if case.startswith("sim-")]) >= 6
    assert len([case for case in lines if case.startswith("vendor-")]) == 20
    for case, line in lines.items():
        assert line.keys() >= CHECK_KEYS
        assert line["target"] == "vivante"
        assert line["words"] == line["coefficients"] == "equal"
        dumped = case.startswith("update4-")
        assert line["verdict"] == ("not executed" if dumped else "equal")
        assert line["mismatches"] == (9 if dumped else 0)
        assert line["compared"] > 0


def test_check_prints_the_nine_predicted_bytes() -> None:
    result = shell("check", MESA, VENDOR, "--explain")
    assert result.out.count("BC 28 BA FF B2 91 82 97 91") >= 2
    assert "not executed" in result.out


def test_prediction_of_update4_is_what_plain_arithmetic_gives(update4: npulab.Capture) -> None:
    planes = np.frombuffer(update4.buffers["input"], np.uint8).astype(np.int64).reshape(4, 4, 4)
    (kernel,) = read_streams(update4).values()
    bias = kernel.bias
    multiplier, shift = scale_of(update4.words)
    zero = int(update4.words[22]) >> 8 & 255
    got = []
    for r in range(3):
        for c in range(3):
            sum_ = bias + int(np.sum(planes[:, r : r + 2, c : c + 2] * (kernel.weights - 128)))
            got.append(min(max(scaled(sum_, multiplier, shift) + zero, 0), 255))
    assert bytes(got) == PREDICTED
    verdict = npulab.check(update4)
    assert (verdict.verdict, verdict.compared, verdict.mismatches) == ("not executed", 9, 9)
    assert verdict.predicted.astype(np.uint8).tobytes() == PREDICTED
    assert Simulated().run(update4).output[:9] == PREDICTED


def test_layer_of_update4(update4: npulab.Capture) -> None:
    layer, x, output = VIVANTE.lift(update4)
    assert layer.weights.astype(np.uint8).tobytes().hex() == "2ceb409b1399eaaf2c"
    assert layer.weights.shape == (1, 3, 3, 1)
    assert layer.bias.tolist() == [112]
    assert [q.zero_point for q in (layer.input_q, layer.weight_q, layer.output_q)] == [
        125,
        128,
        119,
    ]
    assert (layer.stride, layer.input_shape, layer.output_shape) == ((2, 2), (8, 8, 1), (3, 3, 1))
    assert x.shape == (8, 8, 1)
    assert output.ravel().tolist() == [119] * 9
    assert outputs(layer, x, 45246, 23).astype(np.uint8).tobytes() == PREDICTED
    scale = layer.input_q.scale * layer.weight_q.scale / layer.output_q.scale
    assert scale == pytest.approx(45246 / 2**23, rel=1e-4)


def test_every_bit_of_the_coefficients_is_explained(update4: npulab.Capture) -> None:
    data = update4.buffers["coefficients"]
    assert len(data) == 640
    number, at = int.from_bytes(data, "little"), 0
    for item in VIVANTE.explain(update4):
        assert item.bit == at
        assert item.bits > 0
        if item.kind != "fill" and item.bits <= 32:
            assert item.value == number >> at & ((1 << item.bits) - 1), item
        if item.kind == "fill":
            assert number >> at & ((1 << item.bits) - 1) == 0
        at += item.bits
    assert at == 640 * 8
    assert VIVANTE.recode(update4) == data


def test_stream_of_update4_says_what_the_layer_says(update4: npulab.Capture) -> None:
    layer = VIVANTE.lift(update4).layer
    (kernel,) = read_streams(update4).values()
    assert np.array_equal(kernel.weights, split(layer.weights.astype(np.int64), 128)[0])
    stored = int(layer.bias[0]) - 125 * int(np.sum(layer.weights.astype(np.int64) - 128))
    assert (kernel.bias, kernel.offset) == (stored, 0)


def test_lower_of_lift_gives_update4_back(update4: npulab.Capture) -> None:
    layer, x, _ = VIVANTE.lift(update4)
    again = VIVANTE.lower(layer, chip=update4.chip, x=x, addresses=update4.addresses)
    assert again.words.tolist() == update4.words.tolist()
    assert (
        again.buffers["coefficients"]
        == update4.buffers["coefficients"][: len(again.buffers["coefficients"])]
    )
    assert not any(update4.buffers["coefficients"][len(again.buffers["coefficients"]) :])
    assert again.buffers["input"] == update4.buffers["input"]


def test_tile_of_three_rows_is_a_named_feature_of_lower() -> None:
    layer = VIVANTE.lift(npulab.load(MESA)).layer
    plain = dataclasses.replace(layer, driver_quirks=frozenset())
    today, then = (
        VIVANTE.lower(plain).words,
        VIVANTE.lower(plain, features=["odd-stride2-tile"]).words,
    )
    assert (int(today[4]) >> 25, int(then[4]) >> 25) == (2, 3)
    assert np.flatnonzero(today != then).tolist() == [4]


def test_simulated_captures_say_that_they_are() -> None:
    found = sorted(CASES.glob("sim-*"))
    assert len(found) >= 6
    for path in found:
        capture = npulab.load(path)
        assert capture.provenance == "simulated"
        assert "simulated" in shell("show", path).out
    for line in json_lines(shell("list", CASES, "--json").out):
        assert (line["provenance"] == "simulated") == line["case"].startswith("sim-")


@pytest.mark.parametrize("path", sorted(CASES.glob("sim-*")), ids=lambda path: path.name)
def test_simulated_capture_agrees_with_plain_arithmetic(path: Path) -> None:
    capture = npulab.load(path)
    layer, x, output = VIVANTE.lift(capture)
    assert np.array_equal(output, outputs(layer, x, *scale_of(capture.words)))
    assert len(np.unique(output)) > 3
    kernels = read_streams(capture)
    assert sorted(kernels) == list(range(layer.output_shape[2]))


# The seed's dump


def test_words_and_buffers_are_those_of_the_text(tmp_path: Path) -> None:
    path = seed("002")
    texts = sides(path.read_text(encoding="utf-8"))
    assert shell("import", path, tmp_path, "--name", "update4").code == 0
    for side, lines in texts.items():
        runs = byte_runs(lines)
        assert [len(run) for run in runs] == [640, 64, 9]
        commands = [int(line[:10], 16) for line in lines if re.match(r"0x[0-9a-f]{8}, /\*", line)]
        for capture in (
            npulab.load(tmp_path / f"update4-{side}"),
            npulab.load(CASES / f"update4-{side}"),
            npulab.load(path, case=side),
        ):
            assert capture.words.dtype == np.uint32
            assert capture.words.tolist() == words_of_text(lines).tolist()
            assert [capture.buffers[n] for n in ("coefficients", "input", "output")] == runs
            assert np.frombuffer(capture.buffers["commands"], "<u4").tolist() == commands


def test_import_gives_the_shipped_captures(tmp_path: Path) -> None:
    shell("import", seed("002"), tmp_path, "--name", "update4")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["update4-mesa", "update4-vendor"]
    for case in (MESA, VENDOR):
        for file in case.glob("*.bin"):
            assert (tmp_path / case.name / file.name).read_bytes() == file.read_bytes()


def test_load_of_a_dump_with_two_cases_names_them() -> None:
    path = seed("002")
    names = npulab.load_all(path).names
    assert len(names) == 2
    with pytest.raises(LookupError) as caught:
        npulab.load(path)
    assert all(name in str(caught.value) for name in names)
    with pytest.raises(LookupError, match="nonesuch"):
        npulab.load(path, case="nonesuch")
    message = refused(shell("show", path))
    assert all(name in message for name in names)


@pytest.mark.parametrize("blank", [" ", "\xa0"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_any_blank_and_newline_is_read(tmp_path: Path, blank: str, newline: str) -> None:
    text = seed("002").read_text(encoding="utf-8").replace("\xa0", blank).replace("\n", newline)
    (tmp_path / "dump.txt").write_text(text, encoding="utf-8", newline="")
    for capture in npulab.load_all(tmp_path / "dump.txt"):
        assert [capture.words.tolist()] == [
            npulab.load(c).words.tolist()
            for c in (MESA, VENDOR)
            if c.name.endswith(capture.tool) or c.name.endswith(capture.name)
        ]


@pytest.mark.parametrize("side", ["mesa", "vendor"])
def test_one_side_alone_is_a_dump(tmp_path: Path, side: str) -> None:
    text = "\n".join(sides(seed("002").read_text(encoding="utf-8"))[side]) + "\n"
    (tmp_path / "mine.txt").write_text(text, encoding="utf-8")
    capture = npulab.load(tmp_path / "mine.txt")
    assert capture.words.tolist() == npulab.load(CASES / f"update4-{side}").words.tolist()
    assert shell("import", tmp_path / "mine.txt", tmp_path / "out").code == 0
    (folder,) = (tmp_path / "out").iterdir()
    assert shell("check", folder).code == 0


@pytest.mark.parametrize(
    ("lines", "old", "new", "wanted"),
    [
        (0, "", "", "recognises"),
        (262, "", "", "dump"),
        (None, "map->kernel_xy_size = 0x2;\xa0 /* (2) */", "", "missing"),
        (None, "0x69, 0xd3", "0x69, 0x1d3", "input"),
        (None, "0x69, 0xd3", "0x69", "63"),
        (None, "in_image_address = 0x3348e240", "in_image_address = 0x3348e241", "address"),
        (None, "0x7f800000;\xa0 /* (2139095040)", "0x17f800000;\xa0 /* (6434062336)", "further4"),
    ],
)
def test_broken_dump_is_refused_and_nothing_written(
    tmp_path: Path, lines: int | None, old: str, new: str, wanted: str
) -> None:
    """``test_vivante.py`` has the sentences."""
    text = "\n".join(seed("002").read_text(encoding="utf-8").split("\n")[:lines])
    assert old in text
    dump = tmp_path / "dump.txt"
    dump.write_text(text.replace(old, new), encoding="utf-8")
    before = everything_below(tmp_path)
    sentence = refused(shell("import", dump, tmp_path / "out"))
    assert str(dump) in sentence
    assert wanted in sentence
    assert everything_below(tmp_path) == before


@pytest.mark.parametrize("data", [b"", b"hello\n", b"\xff\xfe\x00\x00", bytes(range(256)) * 20])
def test_what_is_no_dump_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "dump").write_bytes(data)
    for command in ("show", "check", "list"):
        assert "dump" in refused(shell(command, tmp_path / "dump"))
    refused(shell("import", tmp_path / "dump", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_import_leaves_a_case_that_is_there_alone(tmp_path: Path) -> None:
    path = seed("002")
    (tmp_path / "mine-vendor").mkdir()
    (tmp_path / "mine-vendor" / "notes.txt").write_text("precious")
    before = everything_below(tmp_path)
    assert "mine-vendor" in refused(shell("import", path, tmp_path, "--name", "mine"))
    assert everything_below(tmp_path) == before


def test_fields_lie_where_the_facts_have_them() -> None:
    """Each run of bits of the table is inside one run of the facts, and the names agree."""
    facts = {
        (word, bit): name
        for name, word, lsb, width in fields_by_place()
        for bit in range(lsb, lsb + width)
    }
    registers = VIVANTE.registers
    named = 0
    for row in registers.fields.itertuples():
        names = {facts[row.word, bit] for bit in range(row.lsb, row.lsb + row.width)}
        assert len(names) == 1, (row.field, names)
        named += names == {row.field}
    assert named > 50


# Random layers through all of it


class Case(NamedTuple):
    name: str
    kernel: tuple[int, int]
    channels: tuple[int, int]
    image: tuple[int, int]
    options: dict[str, Any] = {}  # noqa: RUF012


TWO: dict[str, Any] = {"stride": (2, 2)}
SAME: dict[str, Any] = {"padding": "same"}
LAYERS = [
    Case("3x3", (3, 3), (1, 1), (7, 9)),
    Case("3x3-same", (3, 3), (4, 12), (9, 6), SAME),
    Case("3x3-same-one-input", (3, 3), (1, 17), (6, 11), SAME),
    Case("3x3-explicit", (3, 3), (3, 5), (6, 9), {"padding": ((2, 0), (1, 2))}),
    Case("3x3-relu", (3, 3), (3, 9), (8, 5), {"activation": "relu"}),
    Case("3x3-sparse", (3, 3), (6, 10), (7, 7), {"sparse": 0.9}),
    Case("3x3-empty", (3, 3), (6, 10), (7, 7), {"sparse": 1.0}),
    Case("3x3-int8", (3, 3), (5, 7), (8, 6), {"dtype": np.int8, **SAME}),
    Case("3x3-int8-relu", (3, 3), (2, 4), (5, 9), {"dtype": np.int8, "activation": "relu"}),
    Case("3x3-wide", (3, 3), (2, 3), (4, 80), SAME),
    Case("3x3-tall", (3, 3), (2, 3), (70, 4), SAME),
    Case("3x3-many", (3, 3), (3, 300), (8, 9), SAME),
    Case("3x3-many-planes", (3, 3), (70, 3), (5, 6), SAME),
    Case("1x1", (1, 1), (16, 24), (7, 5)),
    Case("1x1-few", (1, 1), (7, 8), (6, 6)),
    Case("1x1-ragged", (1, 1), (13, 43), (5, 8)),
    Case("1x1-superblocks", (1, 1), (10, 700), (6, 7)),
    Case("1x1-one-input", (1, 1), (1, 9), (5, 6)),
    Case("1x1-one-pixel", (1, 1), (12, 30), (1, 1)),
    Case("5x5-same", (5, 5), (3, 8), (9, 12), SAME),
    Case("5x5-one-input-wide", (5, 5), (1, 4), (6, 70)),
    Case("5x5-int8", (5, 5), (2, 11), (8, 9), {"dtype": np.int8}),
    Case("5x5-sparse", (5, 5), (2, 11), (8, 9), {"sparse": 0.95}),
    Case("7x7", (7, 7), (2, 5), (9, 13)),
    Case("7x7-same", (7, 7), (3, 9), (8, 10), SAME),
    Case("3x5", (3, 5), (3, 4), (7, 9)),
    Case("4x2", (4, 2), (2, 6), (7, 9), SAME),
    Case("2-3x3", (3, 3), (1, 1), (8, 8), TWO),
    Case("2-3x3-odd", (3, 3), (3, 10), (9, 11), TWO),
    Case("2-3x3-same-even", (3, 3), (3, 10), (8, 12), {**TWO, **SAME}),
    Case("2-3x3-same-odd", (3, 3), (3, 10), (15, 13), {**TWO, **SAME, "activation": "relu"}),
    Case("2-5x5-same", (5, 5), (2, 9), (10, 13), {**TWO, **SAME}),
    Case("2-5x5", (5, 5), (2, 3), (12, 7), TWO),
    Case("2-7x7-same", (7, 7), (3, 16), (14, 14), {**TWO, **SAME}),
    Case("2-3x3-explicit", (3, 3), (2, 5), (9, 8), {**TWO, "padding": ((1, 1), (1, 1))}),
    Case("2-3x3-ahead", (3, 3), (2, 5), (8, 8), {**TWO, "padding": ((0, 1), (0, 1))}),
    Case("2-3x3-int8", (3, 3), (3, 6), (9, 10), {**TWO, **SAME, "dtype": np.int8}),
    Case("2-3x3-many", (3, 3), (4, 260), (9, 9), {**TWO, **SAME}),
    Case("2-3x3-sparse", (3, 3), (4, 20), (9, 9), {**TWO, "sparse": 0.85}),
    Case("2-1x1", (1, 1), (6, 9), (8, 10), TWO),
    Case("2-1x1-same-odd", (1, 1), (6, 20), (9, 7), {**TWO, **SAME}),
]


def by_case(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with a few of the layers always, with the others among the long tests."""
    drawn = pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)(test)
    return pytest.mark.sample(11)(drawn)


@functools.cache
def made_by_name(name: str) -> tuple[npulab.Conv2D, np.ndarray, npulab.Capture]:
    number, case = next((i, case) for i, case in enumerate(LAYERS) if case.name == name)
    return recorded(
        np.random.default_rng([number, 2023]),
        case.kernel,
        case.channels,
        case.image,
        **case.options,
    )


def made(case: Case) -> tuple[npulab.Conv2D, np.ndarray, npulab.Capture]:
    return made_by_name(case.name)


@by_case
def test_layer_is_lowered_run_and_checked(case: Case) -> None:
    layer, x, capture = made(case)
    want = outputs(layer, x, *scale_of(capture.words))
    assert np.array_equal(tensor(capture.buffers["output"], want.shape, x.dtype), want), (
        "the device is wrong"
    )
    assert np.array_equal(npulab.emulate(layer, x, rule=VIVANTE.rule), want), "emulate is wrong"
    verdict = npulab.check(capture)
    assert (verdict.verdict, verdict.words, verdict.coefficients) == ("equal", True, True), (
        verdict.reason
    )
    assert (verdict.compared, verdict.mismatches) == (want.size, 0)
    assert capture.provenance == "simulated"


@by_case
def test_streams_hold_the_layer(case: Case) -> None:
    layer, _, capture = made(case)
    move = 128 if layer.weights.dtype == np.int8 else 0
    weights = layer.weights.astype(np.int64) + move
    x_zero, w_zero = layer.input_q.zero_point + move, layer.weight_q.zero_point + move
    if layer.stride == (2, 2) and case.kernel != (1, 1):
        weights = split(weights, w_zero)
    else:
        weights = weights.transpose(0, 3, 1, 2)
    if case.kernel == (1, 1) and case.channels[0] == 1:
        weights = np.pad(weights, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=w_zero)
    kernels = read_streams(capture)
    assert sorted(kernels) == list(range(case.channels[1]))
    rows, columns, _ = layer.output_shape
    for channel, kernel in kernels.items():
        assert np.array_equal(kernel.weights, weights[channel]), channel
        bias = int(layer.bias[channel]) - x_zero * int((weights[channel] - w_zero).sum())
        assert kernel.bias == bias % 2**32
        assert kernel.offset == rows * columns * channel


@by_case
def test_lift_gives_the_layer_back(case: Case) -> None:
    layer, x, capture = made(case)
    lifted = VIVANTE.lift(capture)
    move = 128 if x.dtype == np.int8 and lifted.layer.weights.dtype == np.uint8 else 0
    assert np.array_equal(
        lifted.layer.weights.astype(np.int64), layer.weights.astype(np.int64) + move
    )
    assert lifted.layer.bias.tolist() == layer.bias.tolist()
    assert np.array_equal(lifted.x.astype(np.int64), x.astype(np.int64) + move)
    assert (lifted.layer.stride, lifted.layer.output_shape) == (layer.stride, layer.output_shape)
    assert lifted.layer.activation == layer.activation
    again = VIVANTE.lower(lifted.layer, x=lifted.x)
    assert again.words.tolist() == capture.words.tolist()
    assert again.buffers["coefficients"] == capture.buffers["coefficients"]
    assert again.buffers["input"] == capture.buffers["input"]


@pytest.mark.parametrize(
    ("kernel", "image", "padding"),
    [
        ((3, 3), (1, 1), ((2, 2), (2, 2))),
        ((3, 3), (2, 5), ((2, 2), (2, 2))),
        ((7, 7), (6, 6), ((2, 2), (2, 2))),
        ((3, 3), (1, 4), "same"),
        ((5, 5), (2, 2), "same"),
    ],
)
@pytest.mark.parametrize("stride", [(1, 1), (2, 2)])
def test_kernel_larger_than_the_image(
    kernel: tuple[int, int], image: tuple[int, int], padding: Any, stride: tuple[int, int]
) -> None:
    layer, x, capture = recorded(
        np.random.default_rng(3), kernel, (3, 2), image, padding=padding, stride=stride
    )
    want = outputs(layer, x, *scale_of(capture.words))
    assert np.array_equal(tensor(capture.buffers["output"], want.shape, x.dtype), want)
    verdict = npulab.check(capture)
    assert verdict.verdict == "equal", verdict.reason


@pytest.mark.parametrize("image", [(8, 10), (9, 7)])
def test_1x1_stride_2_on_one_channel_is_lifted_as_its_parameters_say(
    image: tuple[int, int],
) -> None:
    """The parameters name a 1x1 kernel; lower(lift(capture)) has to give the capture's words
    again.
    """
    layer, _, capture = recorded(np.random.default_rng(4), (1, 1), (1, 3), image, stride=(2, 2))
    assert (capture.parameters["kernel_h"], capture.parameters["kernel_w"]) == (1, 1)
    lifted = VIVANTE.lift(capture)
    assert npulab.check(capture).verdict == "equal"
    assert lifted.layer.weights.shape == layer.weights.shape
    assert VIVANTE.lower(lifted.layer, x=lifted.x).words.tolist() == capture.words.tolist()


def test_ties_go_to_even() -> None:
    """Accumulators that land exactly between two codes, both signs."""
    rng = np.random.default_rng(2)
    x = rng.integers(0, 256, (9, 9, 1)).astype(np.uint8)
    q = npulab.QuantParams
    layer = npulab.Conv2D(
        np.full((2, 1, 1, 1), 1, np.uint8),
        np.array([0, -200]),
        (9, 9, 1),
        input_q=q(0.5, 0),
        weight_q=q(0.5, 0),
        output_q=q(0.5, 100),
    )
    capture = Simulated().record(VIVANTE.lower(layer, x=x))
    want = (
        np.array([np.rint(x[..., 0] / 2), np.rint((x[..., 0].astype(int) - 200) / 2)]).transpose(
            1, 2, 0
        )
        + 100
    )
    assert np.array_equal(
        tensor(capture.buffers["output"], want.shape, x.dtype), np.clip(want, 0, 255)
    )
    assert npulab.check(capture).verdict == "equal"


@pytest.mark.parametrize(
    "rule",
    ["vivante-v7:floor", "vivante-v7:half-up", "vivante-v7:half-away", "vivante-v7:toward-zero"],
)
def test_another_rounding_differs(rule: str) -> None:
    """Outputs rounded by another rule turn check to differs, at the places where the rules
    disagree.
    """
    q = npulab.QuantParams
    x = np.arange(81, dtype=np.uint8).reshape(9, 9, 1)
    layer = npulab.Conv2D(
        np.full((1, 1, 1, 1), 1, np.uint8),
        np.array([-40]),
        (9, 9, 1),
        input_q=q(0.5, 0),
        weight_q=q(0.5, 0),
        output_q=q(0.5, 100),
    )
    capture = Simulated().record(VIVANTE.lower(layer, x=x))
    sums = (np.arange(81) - 40) / 2
    other = {
        "vivante-v7:floor": np.floor(sums),
        "vivante-v7:half-up": np.floor(sums + 0.5),
        "vivante-v7:half-away": np.sign(sums) * np.floor(np.abs(sums) + 0.5),
        "vivante-v7:toward-zero": np.trunc(sums),
    }[rule] + 100
    codes = other.astype(np.uint8)
    assert npulab.emulate(layer, x, rule=rule).ravel().tolist() == codes.tolist()
    verdict = npulab.check(capture.with_buffers(output=codes.tobytes()))
    assert verdict.verdict == "differs"
    assert verdict.mismatches == np.count_nonzero(codes != np.rint(sums) + 100)
    assert verdict.max == 1


# Planted errors


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", range(5))
def test_every_bit_of_the_output_counts(part: int) -> None:
    capture = small()
    data = capture.buffers["output"]
    for bit in range(part, 8 * len(data), 5):
        verdict = npulab.check(capture.with_buffers(output=flipped(data, bit)))
        assert (verdict.verdict, verdict.mismatches, verdict.max) == ("differs", 1, 1 << bit % 8), (
            bit
        )


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", range(3))
def test_every_bit_of_the_coefficients_counts(part: int) -> None:
    """A flipped bit is seen where arithmetic says so; in sizes, counts and fill it is seen
    always.
    """
    capture = small()
    data = capture.buffers["coefficients"]
    layer, x, _ = VIVANTE.lift(capture)
    scale = scale_of(capture.words)
    before = outputs(layer, x, *scale)
    seen = 0
    for item in list(VIVANTE.explain(capture))[part::3]:
        for bit in {item.bit, item.bit + item.bits // 2, item.bit + item.bits - 1}:
            bad = capture.with_buffers(coefficients=flipped(data, bit))
            verdict = npulab.check(bad)
            assert verdict.verdict in ("equal", "differs")
            if item.kind == "weight":
                weights = layer.weights.copy()
                at = item.channel, item.row, item.column, item.plane
                weights[at] ^= np.uint8(1 << bit - item.bit)
                moved = int(weights[at]) - int(layer.weights[at])
                bias = layer.bias.copy()
                bias[item.channel] += layer.input_q.zero_point * moved
                after = outputs(dataclasses.replace(layer, weights=weights, bias=bias), x, *scale)
                assert verdict.mismatches == np.count_nonzero(after != before), (bit, item)
                assert (verdict.verdict == "differs") == (verdict.mismatches > 0), (bit, item)
                seen += verdict.verdict == "differs"
            elif item.kind == "bias" and bit - item.bit < 20:
                bias = layer.bias.copy()
                value = item.value ^ 1 << bit - item.bit
                bias[item.channel] += value - item.value
                after = outputs(dataclasses.replace(layer, bias=bias), x, *scale)
                assert verdict.mismatches == np.count_nonzero(after != before), (bit, item)
            elif item.kind not in ("bias", "offset"):
                assert not verdict.ok, (bit, item)
    assert seen > 10


def test_output_offset_in_the_stream_counts() -> None:
    """A wrong output offset sends a channel's output elsewhere, so check must not call it equal."""
    capture = small()
    data = capture.buffers["coefficients"]
    for item in VIVANTE.explain(capture):
        if item.kind == "offset":
            assert not npulab.check(capture.with_buffers(coefficients=flipped(data, item.bit))).ok


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", range(7))
def test_any_wrong_bit_in_the_words_is_survived(part: int) -> None:
    capture = small()
    verdicts, outcomes = set(), set()
    for bit in random.Random(34).sample(range(34 * 32), 150)[part::7]:
        words = capture.words.copy()
        words[bit // 32] ^= np.uint32(1 << bit % 32)
        verdict = npulab.check(capture.with_words(words))
        assert verdict.words, bit
        verdicts.add(verdict.verdict)
        outcomes.add(Simulated().run(capture.with_words(words)).outcome)
    assert verdicts == {"equal", "differs"}
    assert outcomes == {"done", "hang"}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("name", "word", "lsb", "width"),
    [
        ("kernel_xy_size", 0, 2, 4),
        ("kernel_z_size", 0, 6, 14),
        ("in_image_x_size", 1, 6, 13),
        ("in_image_y_size", 1, 19, 13),
        ("in_image_x_offset", 2, 0, 3),
        ("in_image_y_offset", 2, 3, 3),
        ("post_shift", 2, 27, 5),
        ("out_image_x_size", 3, 6, 13),
        ("out_image_y_size", 3, 19, 13),
        ("out_image_z_size", 4, 0, 14),
        ("kernel_y_size", 8, 12, 4),
        ("post_multiplier", 17, 24, 8),
        ("coef_zero_point", 22, 0, 8),
        ("out_zero_point", 22, 8, 8),
    ],
)
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_wrong_bit_in_the_lowering_differs(
    name: str, word: int, lsb: int, width: int, padding: str
) -> None:
    """If a wrong bit makes the device hang or give another output, check must not say equal."""
    _, _, capture = recorded(np.random.default_rng(21), (3, 3), (2, 3), (12, 11), padding=padding)
    assert npulab.check(capture).verdict == "equal"
    wrong, missed = 0, []
    for bit in range(lsb, lsb + width):
        words = capture.words.copy()
        words[word] ^= np.uint32(1 << bit)
        bad = capture.with_words(words)
        if Simulated().run(bad).output != capture.buffers["output"]:
            wrong += 1
            if npulab.check(bad).verdict != "differs":
                missed.append(bit)
    assert not missed, f"{name}: bits {missed} of word {word} go unseen"
    assert wrong


def test_rounding_mode_means_the_same_to_device_and_check() -> None:
    """Whatever the device does with rounding_mode 0, check has to predict it or say that it
    cannot.
    """
    capture = small()
    assert int(capture.words[4]) >> 14 & 3 == 1
    other = Simulated().record(capture.with_fields(rounding_mode=0))
    assert other.buffers["output"] != capture.buffers["output"]
    assert npulab.check(capture.with_fields(rounding_mode=0)).verdict == "differs"
    assert npulab.check(other).verdict == "equal"


def test_wrong_order_in_the_stream_differs() -> None:
    """Two weights swapped, as by an encoder with another order."""
    capture = small()
    data = capture.buffers["coefficients"]
    number = int.from_bytes(data, "little")
    items = [item for item in VIVANTE.explain(capture) if item.kind == "weight" and item.bits == 8]
    assert items, "this capture was meant to have no zero runs"
    tried = 0
    for a, b in pairwise(items):
        if abs(a.value - b.value) > 40:
            other = number ^ (a.value ^ b.value) << a.bit ^ (a.value ^ b.value) << b.bit
            bad = capture.with_buffers(coefficients=other.to_bytes(len(data), "little"))
            verdict = npulab.check(bad)
            assert verdict.verdict == "differs", (a, b)
            assert verdict.coefficients
            tried += 1
    assert tried > 10


@pytest.mark.parametrize("path", sorted(CASES.glob("sim-*")), ids=lambda path: path.name)
def test_one_wrong_output_bit_of_a_shipped_case_differs(path: Path, tmp_path: Path) -> None:
    capture = npulab.load(path)
    size = VIVANTE.lift(capture).layer.output_shape
    bit = random.Random(path.name).randrange(8 * size[0] * size[1] * size[2])
    bad = capture.with_buffers(output=flipped(capture.buffers["output"], bit))
    npulab.save(bad, tmp_path / path.name)
    result = shell("check", tmp_path, "--json")
    (line,) = json_lines(result.out)
    assert (result.code, line["verdict"], line["mismatches"]) == (1, "differs", 1), bit


def test_place_of_the_first_difference() -> None:
    capture = small()
    h, w, c = VIVANTE.lift(capture).layer.output_shape
    for place in ((0, 0, 0), (h - 1, w - 1, c - 1), (1, 1, 0)):
        r, k, p = place
        data = bytearray(capture.buffers["output"])
        data[p * h * w + r * w + k] ^= 0x80
        assert npulab.check(capture.with_buffers(output=bytes(data))).first == place


def test_output_at_the_zero_point_is_not_executed_only_where_more_was_expected() -> None:
    capture = small()
    zero = int(capture.words[22]) >> 8 & 255
    filled = bytes([zero]) * len(capture.buffers["output"])
    assert npulab.check(capture.with_buffers(output=filled)).verdict == "not executed"
    almost = filled[:-1] + bytes([zero ^ 1])
    assert npulab.check(capture.with_buffers(output=almost)).verdict == "differs"
    layer, x = layer_and_input(np.random.default_rng(1), (3, 3), (1, 1), (5, 5), sparse=1.0)
    layer = dataclasses.replace(layer, bias=np.zeros(1, np.int64))
    idle = Simulated().record(VIVANTE.lower(layer, x=x))
    assert set(idle.buffers["output"]) == {layer.output_q.zero_point}
    assert npulab.check(idle).verdict == "equal"


@pytest.mark.parametrize("name", ["input", "output"])
def test_without_a_tensor_there_is_nothing_to_compare(name: str) -> None:
    capture = small()
    less = dataclasses.replace(
        capture, buffers={n: b for n, b in capture.buffers.items() if n != name}
    )
    verdict = npulab.check(less)
    assert verdict.verdict == "nothing to compare"
    assert verdict.words
    assert verdict.coefficients
    assert VIVANTE.lift(less)[1 if name == "input" else 2] is None


@pytest.mark.parametrize("name", ["input", "output", "coefficients"])
def test_short_buffer_is_a_difference_not_a_traceback(name: str) -> None:
    capture = small()
    for size in (0, 1, len(capture.buffers[name]) - 65, len(capture.buffers[name]) - 1):
        verdict = npulab.check(
            capture.with_buffers(**{name: capture.buffers[name][: max(size, 0)]})
        )
        assert verdict.verdict in ("differs", "nothing to compare"), (name, size)
        if size:
            assert not verdict.ok, (name, size)


# The simulated device


def test_device_is_an_oracle(update4: npulab.Capture) -> None:
    assert Simulated().run(update4).outcome == "done"
    assert Simulated(expected=PREDICTED)(update4) == "pass"
    assert Simulated(expected=bytes(9))(update4) == "fail"
    assert Simulated(expected=PREDICTED)(update4.with_fields(kernel_z_size=0)) == "hang"


def test_address_off_its_alignment_hangs(update4: npulab.Capture) -> None:
    table = VIVANTE.registers.fields
    aligned = table[(table.block == "NN") & table.address & (table["align"] > 0)]
    assert len(aligned) >= 2
    for row in aligned.itertuples():
        assert row.evidence not in ("", "guess", "unknown")
        if row.width < 32:
            continue  # stored without its low bits
        for off in (1, row.align // 2):
            words = update4.words.copy()
            words[row.word] += np.uint32(off)
            assert Simulated().run(update4.with_words(words)).outcome == "hang", (row.field, off)


def test_device_does_not_read_what_was_recorded() -> None:
    capture = small()
    blank = dataclasses.replace(
        capture,
        parameters={},
        name="",
        buffers={name: data for name, data in capture.buffers.items() if name != "output"},
    )
    assert Simulated().run(blank).output == capture.buffers["output"]
