"""The vivante target: importer, coefficient stream, lift and lower, the simulated device."""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from conftest import CAPTURES, shared
from record_simulated import conv

import npulab
from npulab.captures.devices import Simulated
from npulab.captures.target import Target
from npulab.npus.vivante import coefficients, commands, dump, lifting, quirks, simulate

A311D = "vipnano-qi-a311d"
SEED = 20231


# The capture of update 4


def test_update4_kernel_bias_and_quantization(captures: npulab.CaptureSet, vivante: Target) -> None:
    for name in ("update4-mesa", "update4-vendor"):
        layer, x, output = vivante.lift(captures[name])
        assert layer.weights[0, :, :, 0].tobytes().hex(" ").upper() == "2C EB 40 9B 13 99 EA AF 2C"
        assert layer.bias.tolist() == [112]
        zero_points = layer.input_q.zero_point, layer.weight_q.zero_point, layer.output_q.zero_point
        assert zero_points == (125, 128, 119)
        values = captures[name].values
        assert (2**15 + values["post_multiplier"], values["post_shift"]) == (45246, 23)
        assert (layer.input_shape, layer.output_shape, layer.stride) == (
            (8, 8, 1),
            (3, 3, 1),
            (2, 2),
        )
        assert x.shape == (8, 8, 1)
        assert set(output.ravel()) == {0x77}


def test_update4_coefficients_are_explained_to_the_last_bit(
    captures: npulab.CaptureSet, vivante: Target
) -> None:
    items = vivante.explain(captures["update4-vendor"])
    assert sum(item.bits for item in items) == 640 * 8
    assert all(item.bit + item.bits == then.bit for item, then in pairwise(items))
    kinds = {
        kind: [item.value for item in items if item.kind == kind]
        for kind in {item.kind for item in items}
    }
    assert kinds["core size"] == [64, 0, 0, 0, 0, 0, 0, 0]
    assert (kinds["zero-run width"], kinds["kernels per core"], kinds["bias"], kinds["offset"]) == (
        [0],
        [1],
        [3737],
        [0],
    )
    assert (
        bytes(kinds["weight"]).hex(" ").upper() == "2C 40 EA 2C EB 80 AF 80 9B 99 80 80 13 80 80 80"
    )


def test_lower_of_lift_reproduces_update4(captures: npulab.CaptureSet, vivante: Target) -> None:
    for name in ("update4-mesa", "update4-vendor"):
        capture = captures[name]
        lifted = vivante.lift(capture)
        again = vivante.lower(
            lifted.layer, chip=capture.chip, x=lifted.x, addresses=capture.addresses
        )
        assert np.array_equal(again.words, capture.words)
        assert again.buffers["input"] == capture.buffers["input"]
        used = len(again.buffers["coefficients"])
        assert again.buffers["coefficients"] == capture.buffers["coefficients"][:used]
        assert not any(capture.buffers["coefficients"][used:])


def test_lower_gives_the_start_commands_of_mesa(
    captures: npulab.CaptureSet, vivante: Target
) -> None:
    capture = captures["update4-mesa"]
    again = vivante.lower(vivante.lift(capture).layer, addresses=capture.addresses)
    assert again.jobs == capture.jobs
    assert again.buffers["commands"] == capture.buffers["commands"]


def test_driver_of_today_makes_the_tile_even(captures: npulab.CaptureSet, vivante: Target) -> None:
    layer = replace(vivante.lift(captures["update4-mesa"]).layer, driver_quirks=frozenset())
    assert vivante.lower(layer).values["out_image_tile_y_size"] == 2
    assert (
        vivante.lower(layer, features=[quirks.ODD_STRIDE2_TILE]).values["out_image_tile_y_size"]
        == 3
    )


# Layers that Mesa's encoder lowered


def test_fields_of_every_vector_are_those_that_mesa_set(vivante: Target) -> None:
    """Both generations, each field that lies in one piece."""
    seen = 0
    chips = {7: A311D, 8: "vipnano-si-imx8mp"}
    for entry in json.loads(shared("data/vivante/vectors/index.json").read_text()):
        registers = vivante.maps(chips[entry["nn_version"]])["NN"]
        with np.load(shared(f"data/vivante/vectors/{entry['id']}.npz")) as data:
            raw = registers.decode(data["nn_words"], raw=True)
        for item in registers:
            if len(item.pieces) == 1 and not item.automatic:
                assert raw[item.name] == entry["nn_fields"].get(item.name, 0), (
                    entry["id"],
                    item.name,
                )
                seen += 1
    assert seen == 18 * 53 + 12 * 2  # two signs are fields of V7 only


# Random layers through lower, device and lift


def random_case(n: int) -> tuple[npulab.Conv2D, np.ndarray]:
    """Layers of every kind that lower takes."""
    random = np.random.RandomState(SEED + n)
    kernel, stride = [(1, 1), (1, 2), (2, 1), (3, 1), (3, 2), (4, 2), (5, 1), (5, 2), (7, 1)][n % 9]
    size = kernel + random.randint(0, 9, 2) + 1
    channels = int(random.randint(1, 9))
    padding = [("same"), ("valid"), ((1, 1), (0, 1))][random.randint(3 if kernel > 2 else 2)]
    if kernel == 2:
        padding = "valid"
    return conv(
        SEED + n,
        (int(size[0]), int(size[1]), channels),
        int(random.randint(1, 40)),
        kernel,
        2.0 ** -int(random.randint(8, 12)),
        used=float(random.choice([1.0, 0.5, 0.1])),
        stride=(stride, stride),
        padding=padding,
        activation=[None, "relu"][random.randint(2)],
    )


@pytest.mark.sample(7)
@pytest.mark.parametrize("n", range(27))
def test_device_agrees_with_emulation(n: int, vivante: Target) -> None:
    layer, x = random_case(n)
    capture = Simulated().record(vivante.lower(layer, x=x))
    expected = npulab.emulate(layer, x, vivante.rule)
    assert np.array_equal(vivante.lift(capture).output, expected)
    for known in (capture.parameters, {}):
        found = npulab.check(replace(capture, parameters=known))
        assert (found.verdict, found.words, found.coefficients) == ("equal", True, True), found


@pytest.mark.long
@pytest.mark.parametrize("n", range(27, 600))
def test_device_agrees_with_emulation_long(n: int, vivante: Target) -> None:
    test_device_agrees_with_emulation(n, vivante)


def test_depthwise_becomes_dense(vivante: Target) -> None:
    random = np.random.RandomState(SEED)
    for stride in (1, 2):
        layer = npulab.Conv2D(
            random.randint(0, 256, (1, 3, 3, 10)).astype(np.uint8),
            random.randint(-99, 99, 10),
            (8, 8, 10),
            (stride, stride),
            "same",
            depthwise=True,
            weight_q=npulab.QuantParams(0.01, 99),
        )
        x = random.randint(0, 256, (8, 8, 10)).astype(np.uint8)
        capture = Simulated().record(vivante.lower(layer, x=x))
        assert vivante.lift(capture).layer.depthwise
        assert npulab.check(capture).verdict == "equal"
        assert np.array_equal(vivante.lift(capture).layer.weights, layer.weights)


def test_int8_layer_is_moved_to_uint8(vivante: Target) -> None:
    random = np.random.RandomState(SEED)
    layer = npulab.Conv2D(
        random.randint(-128, 128, (6, 3, 3, 2)).astype(np.int8),
        random.randint(-99, 99, 6),
        (7, 7, 2),
        input_q=npulab.QuantParams(0.5, -3),
        weight_q=npulab.QuantParams(0.01, 0),
        output_q=npulab.QuantParams(0.7, 5),
    )
    x = random.randint(-128, 128, (7, 7, 2)).astype(np.int8)
    output = vivante.lift(Simulated().record(vivante.lower(layer, x=x))).output
    assert np.array_equal(output.astype(int) - 128, npulab.emulate(layer, x, vivante.rule))


def test_superblocks(vivante: Target) -> None:
    layer, x = conv(SEED, (6, 6, 40), 200, 3, 2.0**-11, padding="same")
    capture = Simulated().record(vivante.lower(layer, x=x))
    assert lifting.geometry_of(capture.values, vivante.features(A311D)).superblocks > 1
    assert npulab.check(capture).verdict == "equal"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dilation": (2, 2)}, r"dilation: got \(2, 2\), allowed is \(1, 1\)"),
        ({"stride": (3, 3)}, r"stride: got \(3, 3\)"),
        ({"stride": (2, 1)}, r"stride: got \(2, 1\)"),
        ({"activation": "relu6"}, "activation: got 'relu6'"),
        (
            {"weight_q": npulab.QuantParams([0.1, 0.2, 0.1, 0.1])},
            "weight_q: got a scale per channel",
        ),
        ({"input_q": npulab.QuantParams(1.0, 300)}, "got zero point 300, allowed is -128 to 255"),
        (
            {"padding": ((9, 9), (9, 9))},
            r"padding: got \(\(9, 9\), \(9, 9\)\), allowed is up to 8 above",
        ),
        (
            {"weight_q": npulab.QuantParams(1e9)},
            r"ratio of scales: got 1e\+09, allowed with vivante-v7:half-even is a normal float32 below 2\*\*28",
        ),
        (
            {"weight_q": npulab.QuantParams(1e6)},
            r"scales: got 1.0 \* 1000000.0 / 1.0, which is a right shift of -?\d+ bits, allowed is 0 to 127",
        ),
    ],
)
def test_layer_that_is_not_covered(change: dict[str, Any], words: str, vivante: Target) -> None:
    layer = npulab.Conv2D(
        np.zeros((4, 3, 3, 1), np.uint8),
        np.zeros(4, int),
        (8, 8, 1),
        weight_q=npulab.QuantParams(0.1),
    )
    with pytest.raises(ValueError, match=words):
        vivante.lower(replace(layer, **change))


def test_chip_that_is_not_covered(vivante: Target) -> None:
    layer = npulab.Conv2D(np.zeros((4, 3, 3, 1), np.uint8), np.zeros(4, int), (8, 8, 1))
    with pytest.raises(ValueError, match=f"^chip: got 'dream', allowed is one of {A311D}, "):
        vivante.lower(layer, chip="dream")
    with pytest.raises(
        ValueError,
        match=r"^x: got shape \(1, 8, 8\) uint8, allowed is \(8, 8, 1\) of the weights' uint8$",
    ):
        vivante.lower(layer, x=np.zeros((1, 8, 8), np.uint8))


# The coefficient stream


def geometry(random: np.random.RandomState) -> coefficients.Geometry:
    kernel = int(random.choice([1, 2, 3, 4, 5, 7]))
    channels = int(random.randint(1, 70))
    share = -(-channels // 8)
    per_block = int(random.randint(1, share + 1))
    return coefficients.Geometry(
        8,
        channels,
        int(random.randint(1, 15)),
        kernel,
        kernel,
        -(-share // per_block),
        int(random.randint(256)),
        int(random.randint(1, 500)),
        int(random.randint(3, 100)),
    )


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", range(30))
def test_streams_round_trip(seed: int) -> None:
    random = np.random.RandomState(seed)
    g = geometry(random)
    weights = random.randint(0, 256, (g.slots, g.planes, g.kernel_h, g.kernel_w)).astype(np.uint8)
    weights[random.random_sample(weights.shape) < random.random_sample()] = g.zero_point
    zrl = int(random.randint(0, 6))
    content = coefficients.Coefficients(
        weights,
        random.randint(-(2**31), 2**31, g.slots).astype(np.int32),
        random.randint(0, 2**32, g.slots, dtype=np.uint32),
        (zrl,) * g.used,
        0,
    )
    buffer = coefficients.encode(content, g)
    again = coefficients.decode(buffer + bytes(100), g)
    assert np.array_equal(again.weights, weights)
    assert np.array_equal(again.bias, content.bias)
    assert np.array_equal(again.offsets, content.offsets)
    assert coefficients.encode(again, g) == buffer + bytes(100)
    items = list(coefficients.walk(buffer, g))
    assert sum(item.bits for item in items) == 8 * len(buffer)
    assert sum(item.weights for item in items) == weights.size


def test_events_meet_every_weight_once() -> None:
    for seed in range(20):
        g = geometry(np.random.RandomState(seed))
        places = [
            event[1:]
            for core in range(g.used)
            for event in g.events(core)
            if event.kind == "weight"
        ]
        assert len(places) == len(set(places)) == g.slots * g.planes * g.kernel_h * g.kernel_w


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, 65, "got core sizes"),
        (0, 0, "got core sizes"),
        (4, 64, "got core sizes"),
        (3, 255, "got core sizes"),
        (10, 1, "got core sizes"),
        (40, 1, "in the fill from byte 32 bit 0 to byte 64, allowed is 0"),
        (64, 9, "got zero-run width 9"),
        (65, 2, "2 kernels per core, allowed is 0 to 8 and 1"),
        (100, 7, "in the fill from byte 91 bit . to byte 128"),
        (600, 1, "in the fill from byte 128 bit 0 to byte 640"),
        (64, 5, "a run of zero points goes 12 weights past the bias of channel 0"),
    ],
)
def test_broken_stream(
    captures: npulab.CaptureSet, vivante: Target, place: int, value: int, words: str
) -> None:
    data = bytearray(captures["update4-mesa"].buffers["coefficients"])
    data[place] = value
    broken = captures["update4-mesa"].with_buffers(coefficients=bytes(data))
    with pytest.raises(ValueError, match=f"^coefficients: .*{words}"):
        vivante.recode(broken)
    found = npulab.check(broken)
    assert (found.coefficients, found.verdict, found.ok) == (False, "differs", False)
    assert found.reason.startswith("coefficients: ")


@pytest.mark.parametrize("length", [0, 10, 63, 64, 100])
def test_short_buffer(captures: npulab.CaptureSet, vivante: Target, length: int) -> None:
    data = captures["update4-mesa"].buffers["coefficients"][:length]
    with pytest.raises(ValueError, match=r"^coefficients: got"):
        vivante.recode(captures["update4-mesa"].with_buffers(coefficients=data))


# Commands


def test_commands_round_trip() -> None:
    states = [(0x3930, 0x10), (0x10A0, 0xFFFF3000), (0xFFFC, 2**32 - 1)]
    words = commands.commands(states)
    assert words[0] == 0x08010E4C
    assert commands.writes(words) == states


def test_load_of_several_states() -> None:
    words = np.array([0x08030E4C, 1, 2, 3, 0x18000000, 0, 0x08010E4C, 7], np.uint32)
    assert commands.writes(words) == [(0x3930, 1), (0x3934, 2), (0x3938, 3), (0x3930, 7)]
    with pytest.raises(ValueError, match="the LOAD_STATE at word 6 has 1 states, 0 words follow"):
        commands.writes(words[:7])


# The simulated device


def test_device_calls_neither_lift_nor_emulate(
    captures: npulab.CaptureSet, vivante: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("the device must not call this")

    for name in (
        "lifting",
        "readings",
        "lowering",
        "coefficients",
        "coefficients.plain",
        "coefficients.runs",
        "coefficients.huffman",
        "coefficients.pairs",
    ):
        module = sys.modules[f"npulab.npus.vivante.{name}"]
        for function in [
            key for key, value in vars(module).items() if isinstance(value, FunctionType)
        ]:
            monkeypatch.setattr(module, function, forbidden)
    for name, functions in (
        ("quant.emulate", ("emulate", "accumulate")),
        ("quant.requantize", ("requantize",)),
        ("quant.rules", ("shift_right",)),
    ):
        for function in functions:
            monkeypatch.setattr(sys.modules[f"npulab.{name}"], function, forbidden)
    assert simulate.simulate(captures["sim-1x1"]) == captures["sim-1x1"].buffers["output"]
    source = Path(simulate.__file__).read_text(encoding="utf-8")
    assert not re.search(
        r"import.*(lifting|readings|lowering|coefficients|emulate|quant)|lift\(|emulate\(", source
    )


def test_device_runs_both_update4_captures(captures: npulab.CaptureSet) -> None:
    for name in ("update4-mesa", "update4-vendor"):
        run = Simulated().run(captures[name])
        assert (run.outcome, run.output.hex(" ").upper()) == ("done", "BC 28 BA FF B2 91 82 97 91")


def stream(place: int, value: int) -> Callable[[npulab.Capture], npulab.Capture]:
    def change(capture: npulab.Capture) -> npulab.Capture:
        data = bytearray(capture.buffers["coefficients"])
        data[place] = value
        return capture.with_buffers(coefficients=bytes(data))

    return change


def field(**values: Any) -> Callable[[npulab.Capture], npulab.Capture]:
    return lambda capture: capture.with_fields(**values)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (field(kernel_xy_size=0), "kernel_xy_size is 0"),
        (field(out_image_tile_y_size=0), "out_image_tile_y_size is 0"),
        (field(kernels_per_core=0), "kernels_per_core is 0"),
        (field(in_image_x_stride=0), "in_image_x_stride is 0"),
        (field(in_image_address=0x3348E241), "off its alignment of 64"),
        (field(out_image_address=0x20), "off its alignment"),
        (field(kernel_z_size=5), "lies outside its 64 bytes"),
        (field(kernel_xy_size=15), "overruns"),
        (field(out_image_x_size=9), "larger than its strides"),
        (
            field(out_image_z_size=16383, out_image_x_stride=65535, out_image_y_stride=65535),
            "do not fit",
        ),
        (field(kernel_data_type="fp16"), "kernel_data_type is 1"),
        (stream(88, 1), "an output plane of .* at offset 256 lies outside"),
        (field(pooling="max"), "pooling is 1, the simulated unit knows 0 and 3 only"),
        (stream(0, 32), "core 0 is given 32 bytes"),
        (stream(1, 1), "core 0 is given 320 bytes|waits for 320 bytes"),
        (stream(0, 0), "core 0 is given 0 bytes"),
        (stream(4, 64), "core 1 is given 64 bytes"),
        (stream(64, 6), "zero-run width 6, the chip has at most 5"),
        (stream(65, 9), "overruns"),
        (stream(66, 255), "overruns"),
        (lambda capture: capture.with_buffers(coefficients=b""), "no room for its header"),
        (lambda capture: capture.with_buffers(input=b""), "lies outside its 0 bytes"),
    ],
)
def test_what_hangs_hardware_hangs_the_device(
    captures: npulab.CaptureSet, reason: str, change: Callable[[npulab.Capture], npulab.Capture]
) -> None:
    run = Simulated().run(change(captures["update4-vendor"]))
    assert run.outcome == "hang"
    assert re.search(reason, run.reason), run.reason


def test_single_bit_flips_end_in_an_outcome(captures: npulab.CaptureSet) -> None:
    """No flip makes the device raise, or run long."""
    capture, device, outcomes = captures["update4-mesa"], Simulated(b""), []
    random = np.random.RandomState(SEED)
    for word, bit in zip(random.randint(0, 34, 200), random.randint(0, 32, 200), strict=True):
        words = capture.words.copy()
        words[word] ^= np.uint32(2 ** int(bit))
        outcomes.append(device(capture.with_words(words)))
    assert set(outcomes) == {"fail", "hang"}


# The text dump


def test_dump_gives_both_captures(
    dump_text: str, tmp_path: Path, captures: npulab.CaptureSet
) -> None:
    path = tmp_path / "both.txt"
    path.write_text(dump_text, encoding="utf-8")
    for side in ("mesa", "vendor"):
        got, want = npulab.load(path, side), captures[f"update4-{side}"]
        assert replace(got, name=want.name, source=want.source) == want


def test_one_side_as_a_plain_file(
    dump_text: str, tmp_path: Path, captures: npulab.CaptureSet
) -> None:
    path = tmp_path / "galcore.txt"
    path.write_text(side_of(dump_text, "+"), encoding="utf-8")
    got, want = npulab.load(path), captures["update4-vendor"]
    assert replace(got, name=want.name, source=want.source, date=want.date) == want


@pytest.fixture
def dump_text() -> str:
    return shared("seeds/002_a8df49b9735cd1f4.txt").read_text(encoding="utf-8").replace("\xa0", " ")


def side_of(text: str, sign: str) -> str:
    lines = text.split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("@@"))
    return "\n".join(line[1:] for line in lines[start + 1 :] if line[:1] in (" ", sign))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "map->relu = 0x0;  /* (0) */",
            "",
            r"field relu \(word 2\[24\]\) is missing, a job has all 91 fields of 34 words",
        ),
        (
            "map->relu = 0x0;  /* (0) */",
            "map->relu = 0x2;  /* (2) */",
            r"line \d+, side mesa: register w2 field relu: got raw 2",
        ),
        (
            "map->relu = 0x0;  /* (0) */",
            "map->relu = 0x1;  /* (0) */",
            "field relu is 0x1 and .0., which are not the same",
        ),
        (
            "map->relu = 0x0;  /* (0) */",
            "map->rely = 0x0;  /* (0) */",
            "got field rely, allowed is the fields that",
        ),
        (
            "map->relu = 0x0;  /* (0) */",
            "map->decode = 0x0;  /* (0) */",
            r"line \d+, side mesa: got field decode, allowed is the",
        ),
        ("map->relu =", "map->prelu =", "got field prelu a second time, allowed is once"),
        (
            "map->relu = 0x0;",
            "map->relu := 0x0;",
            r"fields? relu \(word 2\[24\]\), unused1 .* and \d+ more is missing",
        ),
        ("0x08010e4f,", "0x08010e4,", "allowed is a command word"),
        ("}\n", "\n", "allowed is a command word"),
        ("0x69, 0xd3", "0x69 0xd3", "allowed is bytes of the input buffer"),
        ("0xf7, 0x64, 0xc3, 0xca", "0xf7, 0x64", "of input"),
        (
            "0xf7, 0x64, 0xc3, 0xca",
            "0xf7, 0x64,",
            r"line \d+, .*allowed is bytes of the output buffer",
        ),
        ("--- /home", "-- /home", "a diff without its --- line before @@"),
    ],
)
def test_broken_dump(dump_text: str, tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in dump_text
    path = tmp_path / "broken.txt"
    path.write_text(dump_text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=words) as error:
        npulab.load_all(path)
    assert str(error.value).startswith(f"{path}, ")


def test_missing_command_word(dump_text: str, tmp_path: Path) -> None:
    """Every command word that is taken out is missed."""
    lines = dump_text.split("\n")
    words = [i for i, line in enumerate(lines) if re.match(r"[ +-] *0x[0-9a-f]{8}, /\\*", line)]
    path = tmp_path / "broken.txt"
    for i in words:
        path.write_text("\n".join(lines[:i] + lines[i + 1 :]), encoding="utf-8")
        with pytest.raises(ValueError, match=r"a command word is missing|one is missing"):
            npulab.load_all(path)
    assert len(words) == 29


def test_truncated_dump(dump_text: str, tmp_path: Path) -> None:
    """Cut anywhere inside the dump, it is refused with where it ends."""
    lines = dump_text.split("\n")
    first = next(i for i, line in enumerate(lines) if line.startswith("@@")) + 2
    last = max(i for i, line in enumerate(lines) if "0x77, 0x77" in line)
    path = tmp_path / "cut.txt"
    for end in range(first + 4, last, 7):
        path.write_text("\n".join(lines[:end]), encoding="utf-8")
        with pytest.raises(ValueError, match=r"ends inside|is missing|of input|of output"):
            npulab.load_all(path)


def test_other_files_are_not_recognised(tmp_path: Path) -> None:
    assert not dump.recognises(tmp_path)
    (tmp_path / "other").write_bytes(bytes(range(256)))
    assert not dump.recognises(tmp_path / "other")
    assert not dump.recognises(CAPTURES / "vivante" / "sim-1x1" / "capture.json")


def printed(capture: npulab.Capture) -> str:
    """A capture as the tool of update 4 prints it."""
    from npulab.npus.vivante.facts import PRINTED

    def rows(data: bytes) -> str:
        lines = [
            ", ".join(f"0x{byte:02x}" for byte in data[at : at + 12])
            for at in range(0, len(data), 12)
        ]
        return ",\n".join(f"  {line}" for line in lines)

    words = np.frombuffer(capture.buffers["commands"], "<u4")
    raw = PRINTED.decode(capture.words, raw=True)
    return "\n".join(
        [
            "{",
            *(f"    0x{word:08x}, /* ... */" for word in words),
            "}",
            *(
                f"map->{item.name} = {raw[item.name]:#x};  /* ({raw[item.name]}) */"
                for item in PRINTED
            ),
            *(rows(capture.buffers[name]) for name in ("coefficients", "input", "output")),
            "",
        ]
    )


def test_any_capture_printed_is_imported_the_same(
    captures: npulab.CaptureSet, tmp_path: Path
) -> None:
    """Each that has a command stream: the text prints one, a compiler's layer has none."""
    whole = [capture for capture in captures if "commands" in capture.buffers]
    assert len(whole) == 9
    for capture in whole:
        path = tmp_path / f"{capture.name}.txt"
        path.write_text(printed(capture), encoding="utf-8")
        got = npulab.load(path)
        assert got.jobs == capture.jobs
        assert got.buffers == capture.buffers
        assert got.addresses == capture.addresses


def test_two_printed_captures_as_one_diff(captures: npulab.CaptureSet, tmp_path: Path) -> None:
    a, b = captures["sim-1x1"], captures["sim-3x3-sparse"]
    lines = difflib.unified_diff(
        printed(a).splitlines(),
        printed(b).splitlines(),
        "/x/mesa.txt\t2026-01-02",
        "/x/galcore.txt\t2026-01-03",
        n=10**6,
        lineterm="",
    )
    path = tmp_path / "both.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    mesa, vendor = npulab.load(path, "mesa"), npulab.load(path, "vendor")
    assert (mesa.jobs, mesa.buffers, mesa.date) == (a.jobs, a.buffers, "2026-01-02")
    assert (vendor.jobs, vendor.buffers, vendor.provenance) == (b.jobs, b.buffers, "vendor driver")


def test_diff_that_leaves_lines_out(captures: npulab.CaptureSet, tmp_path: Path) -> None:
    a, b = captures["update4-mesa"], captures["update4-vendor"]
    lines = difflib.unified_diff(
        printed(a).splitlines(), printed(b).splitlines(), "mesa.txt", "galcore.txt", lineterm=""
    )
    path = tmp_path / "both.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(
        ValueError,
        match=r"line \d+: the diff leaves lines out between its hunks; make it with diff -U",
    ):
        npulab.load_all(path)
