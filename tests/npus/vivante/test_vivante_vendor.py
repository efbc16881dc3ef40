"""What VeriSilicon's own compiler writes for V7: its coefficient streams, words and layers.

The words and answers of A311D are shared data; the laws were found on layers of even index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import record_vendor
import test_vivante_coefficients as by_format
import vivante_vendor
from conftest import CAPTURES, shared
from lowered_layers import A311D, IMX8MP, S905D3, STM32MP25
from record_vendor import layer_of
from test_vivante_coefficients import bytes_drawn, same
from test_vivante_lower import layer_with

import npulab
from npulab.captures.capture import Capture, Job
from npulab.captures.target import Hang, Unsupported
from npulab.npus.vivante import coefficients, dialects, lifting, quirks
from npulab.npus.vivante.coefficients import Coefficients, Geometry
from npulab.quant.layers import Add, Conv2D, FullyConnected, QuantParams

VIVANTE = npulab.target("vivante")
REGISTERS = VIVANTE.maps(A311D)["NN"]
FACTS = VIVANTE.features(A311D)
# What the compiler chooses by laws that nobody found, and where things lie.
CHOSEN = {
    "kernel_address",
    "in_image_address",
    "out_image_address",
    "in_image_circular_buf_end_addr_plus_1",
    "out_image_circular_buf_end_addr_plus_1",
    "out_image_tile_x_size",
    "out_image_tile_y_size",
    "kernels_per_core",
    "kernel_cache_start_address",
    "kernel_cache_end_address",
    "image_cache_start_address",
    "image_cache_end_address",
    "image_caching_mode",
    "kernel_caching_mode",
}


# Streams


def geometry(random: np.random.RandomState) -> Geometry:
    plain = by_format.geometry(random, huffman_format=False)
    return replace(plain, dialect="vendor", depthwise=False)


def content(random: np.random.RandomState, g: Geometry) -> Coefficients:
    """Weights of which few to nearly all are the zero point; kernels in any order."""
    given = by_format.content(random, g)
    given.weights[random.random_sample(g.shape) < random.choice([0.1, 0.6, 0.97, 1])] = g.zero_point
    channels = tuple(random.permutation(g.channels).tolist())
    if random.randint(2) or channels == tuple(range(g.channels)):
        channels = ()
    offsets = (np.arange(g.channels) * g.plane_bytes).astype(np.uint32)
    return replace(given, offsets=offsets, channels=channels, size=0)


def by_weight(c: Coefficients, g: Geometry) -> bytes:
    at = list(c.channels or range(g.channels))
    return vivante_vendor.write(
        c.weights[at],
        c.bias[at],
        c.offsets[at],
        g.cores,
        g.superblocks,
        g.zero_point,
        c.zrl,
    )


def test_streams_are_those_written_weight_by_weight() -> None:
    reordered = 0
    for seed in range(25):
        random = np.random.RandomState(seed)
        g = geometry(random)
        given = content(random, g)
        buffer = coefficients.encode(given, g)
        assert buffer == by_weight(given, g), (seed, g)
        found = coefficients.decode(buffer, g)
        assert same(found, given), (seed, g)
        assert coefficients.encode(found, g) == buffer
        reordered += bool(given.channels)
    assert reordered > 5


def test_items_cover_every_bit_and_name_the_output_channel() -> None:
    for seed in range(8):
        random = np.random.RandomState(seed)
        g = geometry(random)
        given = replace(content(random, g), zrl=(0,) * g.used)
        buffer = coefficients.encode(given, g)
        items = list(coefficients.walk(buffer, g))
        assert items[0].bit == 0
        assert items[-1].bit + items[-1].bits == 8 * len(buffer)
        assert all(item.bit + item.bits == then.bit for item, then in pairwise(items))
        out = np.zeros(g.shape, np.uint8)
        for item in items:
            if item.kind == "weight":
                out[item.channel, item.plane, item.row, item.column] = item.value
        assert np.array_equal(out, given.weights)
        biases = {item.channel: item.value for item in items if item.kind == "bias"}
        assert biases == dict(enumerate(given.bias.astype(np.uint32).tolist()))


def test_offsets_that_are_no_planes_leave_kernels_in_their_places() -> None:
    random = np.random.RandomState(1)
    g = geometry(random)
    given = replace(content(random, g), channels=())
    given = replace(given, offsets=given.offsets + np.uint32(1))
    buffer = coefficients.encode(given, g)
    assert same(coefficients.decode(buffer, g), given)


def test_broken_streams_are_refused_with_a_place() -> None:
    refused = whole = 0
    for seed in range(40):
        random = np.random.RandomState(seed)
        g = replace(geometry(random), channels=int(random.randint(1, 10)), superblocks=1)
        buffer = coefficients.encode(content(random, g), g)
        for bits in (1, 1, 1, 5):
            data = np.frombuffer(buffer, np.uint8).copy()
            for bit in random.randint(0, 8 * min(len(data), 400), bits):
                data[bit // 8] ^= 2 ** (bit % 8)
            try:
                found = coefficients.decode(data.tobytes(), g)
            except ValueError as error:
                assert str(error).startswith("coefficients: ")  # noqa: PT017
                refused += 1
            else:
                again = coefficients.encode(found, g)
                assert same(coefficients.decode(again, g), found)
                whole += 1
    assert min(refused, whole) > 20


def test_a_run_over_two_biases_or_an_offset_is_refused() -> None:
    g = Geometry(1, 3, 2, 1, 1, 1, 7, 4, dialect="vendor")
    stream = [(2, 8), (3, 16), (2, 2), (7, 8), (1, 32), (2, 32), (3, 32), (0, 2), (9, 8)]
    body = vivante_vendor.pack_bits(stream)
    buffer = np.array([64], "<u4").tobytes().ljust(64, b"\0") + body.ljust(64, b"\0")
    said = (
        r"^coefficients: core 0 at byte 72 bit 2: a run of zero points goes 1 weights past the bias"
    )
    with pytest.raises(ValueError, match=said):
        coefficients.decode(buffer, g)
    one = replace(g, channels=1)
    stream = [(2, 8), (1, 16), (0, 2), (9, 8), (1, 32), (3, 2), (9, 8), (0, 32)]
    body = vivante_vendor.pack_bits(stream)
    buffer = np.array([64], "<u4").tobytes().ljust(64, b"\0") + body.ljust(64, b"\0")
    said = r"a run of zero points goes 3 weights past the last weight of the core"
    with pytest.raises(ValueError, match=said):
        coefficients.decode(buffer, one)


def test_channels_and_dialects_that_cannot_be() -> None:
    random = np.random.RandomState(3)
    g = geometry(random)
    given = replace(content(random, g), channels=(0, 0))
    with pytest.raises(ValueError, match=r"^coefficients: channels: got \(0, 0\), allowed is each"):
        coefficients.encode(given, g)
    with pytest.raises(ValueError, match=r"^coefficients: dialect: got 'x', allowed is mesa or v"):
        replace(g, dialect="x")


# What the compiler wrote


@cache
def answers() -> list[dict[str, Any]]:
    """The layers whole, with their words decoded."""
    shared(record_vendor.ANSWERS)
    out = record_vendor.answers()
    for layer in out:
        layer["values"] = REGISTERS.decode(layer["words"])
    assert len(out) == 60
    return out


def capture_of(answer: dict[str, Any], **change: Any) -> Capture:
    """The NN job of a layer as a .nb file has it: addresses are 0."""
    words = answer["words"]
    if change:
        words = REGISTERS.encode({**answer["values"], **change})
    buffers = {"coefficients": answer["coef"].tobytes(), "output": answer["y"].tobytes()}
    if answer["jobs"] == [2]:
        buffers["input"] = answer["x"].tobytes()
    return Capture(
        answer["name"],
        "vivante",
        A311D,
        (Job("NN", words),),
        buffers,
        {},
        provenance="compiler",
        maps=VIVANTE.maps(A311D),
    )


def by_part(test: Callable[[int], None]) -> Callable[[int], None]:
    """Run a test with a fourth of the answers always, with the others among the long tests."""
    return pytest.mark.sample(1)(pytest.mark.parametrize("part", range(4))(test))


@by_part
def test_every_buffer_is_decoded_and_written_again_byte_for_byte(part: int) -> None:
    for answer in answers()[part::4]:
        g = lifting.geometry_of(answer["values"], FACTS)
        assert g.dialect == "vendor"
        found = coefficients.decode(answer["coef"].tobytes(), g)
        assert coefficients.encode(found, g) == answer["coef"].tobytes(), answer["name"]
        assert coefficients.choose_channels(found.weights, g) == found.channels


@by_part
def test_layers_of_one_nn_job_are_lifted_as_they_are_and_give_the_outputs(part: int) -> None:
    """Without recorded parameters a kernel keeps its size, a 1x1 layer is "valid", and depthwise of
    one channel is dense."""
    for answer in [answer for answer in answers() if answer["jobs"] == [2]][part::4]:
        layer = layer_of(answer)
        for known in (layer.parameters, {}):
            capture = replace(capture_of(answer), parameters=known)
            lifted = VIVANTE.lift(capture)
            assert lifted.layer.kernel == layer.kernel, answer["name"]
            assert np.array_equal(lifted.layer.weights.ravel(), layer.weights.ravel())
            assert np.array_equal(lifted.layer.bias, layer.bias), answer["name"]
            assert lifted.layer.driver_quirks == {quirks.VENDOR_DIALECT}
            for name in ("stride", "padding", "depthwise", "activation", "input_shape", "output_q"):
                if known:
                    assert getattr(lifted.layer, name) == getattr(layer, name), name
            y = npulab.emulate(lifted.layer, lifted.x, VIVANTE.rule_of(capture))
            assert np.array_equal(y, lifted.output), answer["name"]
        assert VIVANTE.recode(capture) == answer["coef"].tobytes()
        assert sum(item.bits for item in VIVANTE.explain(capture)) == 8 * len(answer["coef"])


def test_layers_behind_a_shader_are_lifted_by_their_parameters() -> None:
    """Split planes are joined again; of a 1x1 layer the unit sees an image of half the size."""
    thinned = 0
    for answer in answers():
        if answer["jobs"] == [2]:
            continue
        layer = layer_of(answer)
        lifted = VIVANTE.lift(replace(capture_of(answer), parameters=layer.parameters)).layer
        if layer.kernel == (1, 1):
            thinned += 1
            assert lifted.stride == (1, 1)
        else:
            assert (lifted.stride, lifted.padding) == (layer.stride, layer.padding)
        assert np.array_equal(lifted.weights, layer.weights), answer["name"]
        assert np.array_equal(lifted.bias, layer.bias), answer["name"]
    assert thinned == 2


@by_part
def test_lowered_layers_have_the_compilers_words_and_bytes(part: int) -> None:
    """Of a kernel of one column, the compiler has another width of zero runs."""
    for answer in answers()[part::4]:
        capture = VIVANTE.lower(layer_of(answer), A311D, dialect="vendor")
        values = REGISTERS.decode(capture.jobs[-1].words)
        for name, value in answer["values"].items():
            if name not in CHOSEN:
                assert values[name] == value, (answer["name"], name)
        equal = capture.buffers["coefficients"] == answer["coef"].tobytes()
        assert equal or answer["values"]["layer_type"], answer["name"]


@cache
def sweep() -> list[tuple[dict[str, float], dict[str, Any]]]:
    """(parameters, fields) of each layer of the sweep."""
    with np.load(shared("data/vivante_vendor/a311d.npz")) as data:
        names = data["names"].tolist()
        parameters = [dict(zip(names, row, strict=True)) for row in data["parameters"].tolist()]
        return [
            (known, REGISTERS.decode(words))
            for known, words in zip(parameters, data["words"], strict=True)
        ]


def fields_apart(step: int) -> tuple[Counter[str], Counter[str]]:
    """Count, by field, how many of every ``step``-th layer have another value than the compiler;
    fields that the compiler chooses are counted apart."""
    differ: Counter[str] = Counter()
    chosen: Counter[str] = Counter()
    for known, wanted in sweep()[::step]:
        capture = VIVANTE.lower(layer_with(known), A311D, dialect="vendor")
        for name, value in REGISTERS.decode(capture.jobs[-1].words).items():
            if value != wanted[name]:
                (chosen if name in CHOSEN else differ)[name] += 1
    return differ, chosen


@pytest.mark.long
def test_every_field_is_the_compilers_in_nearly_all_layers() -> None:
    """Three layers are pooled and not split; the compiler's reason is not known."""
    differ, chosen = fields_apart(1)
    assert len(sweep()) == 395
    assert max(differ.values()) <= 3
    assert chosen["kernels_per_core"] == chosen["image_caching_mode"] == 11
    assert not chosen["kernel_caching_mode"]


def test_every_field_is_the_compilers_in_some_layers() -> None:
    differ, chosen = fields_apart(28)
    assert max(differ.values(), default=0) <= 1
    assert chosen["kernels_per_core"] <= 3
    assert not chosen["kernel_caching_mode"]


def test_caches_lie_behind_the_room_of_an_input_tile() -> None:
    """With the compiler's own tile, kernels per core and largest stream."""
    for _, v in sweep():
        rows, columns = v["kernel_y_size"], v["kernel_xy_size"]
        if v["layer_type"]:
            columns = 1
        tile = v["out_image_tile_y_size"] + rows - 1, v["out_image_tile_x_size"] + columns - 1
        area = min(v["in_image_y_size"] * v["in_image_x_size"], tile[0] * tile[1])
        room = -(-area // 16) * 16 * v["kernel_z_size"]
        assert v["kernel_cache_start_address"] == 0x800 + -(-room // 128) * 128


# Captures of some of them


CASES = sorted((CAPTURES / "vivante").glob("vendor-*"))


def test_captures_are_the_shared_data_byte_for_byte(tmp_path: Path) -> None:
    shared(record_vendor.ANSWERS)
    for capture in record_vendor.record():
        npulab.save(capture, tmp_path / capture.name)
    made = {file.relative_to(tmp_path): file.read_bytes() for file in tmp_path.glob("*/*")}
    stored = {}
    for case in CASES:
        stored |= {file.relative_to(case.parent): file.read_bytes() for file in case.iterdir()}
    assert made == stored


def test_captures_are_few_and_cover_the_kinds() -> None:
    assert {case.name for case in CASES} == set(record_vendor.NAMES.values())
    assert len(CASES) == 20
    assert sum(file.stat().st_size for case in CASES for file in case.iterdir()) < 150_000
    seen: Counter[str] = Counter()
    for case in CASES:
        capture = npulab.load(case)
        v = REGISTERS.decode(capture.words)
        known = capture.parameters
        found = coefficients.decode(
            capture.buffers["coefficients"], lifting.geometry_of(capture.values, FACTS)
        )
        kernel = known["kernel_h"], known["kernel_w"]
        dense = not known["depthwise"]
        seen["3x3"] += kernel == (3, 3)
        seen["5x5"] += kernel == (5, 5)
        seen["1x1 of more than 8 outputs"] += dense and kernel == (1, 1) and known["output_c"] > 8
        seen["rectangles"] += kernel[0] != kernel[1]
        seen["one column"] += bool(v["layer_type"])
        seen["depthwise"] += known["depthwise"]
        seen["whole image"] += dense and kernel == (known["input_h"], known["input_w"])
        seen["pooled"] += bool(v["pooling"])
        seen["zero runs"] += max(found.zrl) > 0
        seen["re-ordered"] += bool(found.channels)
    assert seen == {
        "3x3": 2,
        "5x5": 2,
        "1x1 of more than 8 outputs": 1,
        "rectangles": 5,
        "one column": 1,
        "depthwise": 5,
        "whole image": 1,
        "pooled": 1,
        "zero runs": 10,
        "re-ordered": 2,
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_captures_are_lifted_to_what_the_compiler_was_given(case: Path) -> None:
    capture = npulab.load(case)
    assert (capture.provenance, capture.output_provenance) == ("compiler", "vendor simulator")
    for said in ("acuitylite 6.57.1", "PID 0x88"):
        assert said in capture.source
    layer, x, output = VIVANTE.lift(capture)
    assert layer.weights.tobytes() == capture.buffers["weights"]
    assert layer.bias.astype("<i4").tobytes() == capture.buffers["bias"]
    assert layer.parameters == capture.parameters
    assert VIVANTE.recode(capture) == capture.buffers["coefficients"]
    found = npulab.check(capture)
    assert (found.verdict, found.compared) == ("equal", len(capture.buffers["output"]))
    half_up = npulab.emulate(layer, x, "vivante-v7:half-up")
    ties = int(np.sum(half_up != output))
    assert bool(ties) == case.name.endswith("-ties")


# Which dialect it is


def mesa_and_vendor() -> Iterator[tuple[str, Capture]]:
    random = np.random.RandomState(5)
    weights = random.randint(0, 256, (8, 5, 5, 2)).astype(np.uint8)
    q = QuantParams(0.5, 7)
    layer = Conv2D(
        weights,
        np.arange(8, dtype=np.int32),
        (9, 9, 2),
        input_q=q,
        weight_q=QuantParams(0.01, 120),
        output_q=q,
    )
    for dialect in ("mesa", "vendor"):
        yield dialect, VIVANTE.lower(layer, A311D, dialect=dialect)


def test_words_say_whose_coefficients_they_are() -> None:
    for dialect, capture in mesa_and_vendor():
        assert dialects.dialects_of(REGISTERS.decode(capture.words)) == (dialect,)
        layer = VIVANTE.lift(capture).layer
        again = VIVANTE.lower(layer, A311D)
        assert np.array_equal(again.words, capture.words)
        assert again.buffers["coefficients"] == capture.buffers["coefficients"]
    mesa, vendor = (capture for _, capture in mesa_and_vendor())
    assert mesa.buffers["coefficients"] != vendor.buffers["coefficients"]
    layers = [VIVANTE.lift(capture).layer for capture in (mesa, vendor)]
    assert np.array_equal(layers[0].weights, layers[1].weights)


@pytest.mark.parametrize(
    "change",
    [
        {"w31_0_32": 0},
        {"in_image_circular_buf_size": 0, "out_image_circular_buf_size": 0},
        {"w31_0_32": 0, "in_image_circular_buf_size": 0, "out_image_circular_buf_size": 0},
    ],
)
def test_words_without_all_marks_are_refused_if_both_readings_differ(
    change: dict[str, int],
) -> None:
    _, (_, vendor) = mesa_and_vendor()
    changed = vendor.with_fields(0, **change)
    said = (
        r"got coefficients that are other weights in the dialect 'mesa' than in 'vendor', allowed"
    )
    for ask in (VIVANTE.lift, VIVANTE.recode, VIVANTE.explain):
        with pytest.raises(ValueError, match=said):
            ask(changed)


def test_mesas_words_of_a_vendors_driver_are_refused_if_both_readings_differ() -> None:
    """A wide kernel in the words of the drivers of 2023 is refused; the small recorded kernel has
    the same bytes in both dialects."""
    (_, mesa), _ = mesa_and_vendor()
    with pytest.raises(ValueError, match=r"got coefficients that are other weights in the dialect"):
        VIVANTE.lift(replace(mesa, provenance="vendor driver"))
    assert VIVANTE.lift(replace(mesa, provenance="open driver")).layer.kernel == (5, 5)


def test_words_without_all_marks_are_read_if_the_readings_are_one() -> None:
    """Small kernels have the same bytes in both dialects; zero runs and uneven shares have not."""
    read = refused = 0
    off = {"in_image_circular_buf_size": 0, "out_image_circular_buf_size": 0}
    for answer in answers():
        if answer["jobs"] != [2]:
            continue
        try:
            lifted = VIVANTE.lift(capture_of(answer, **off)).layer
        except ValueError as error:
            assert "other weights in the dialect" in str(error)  # noqa: PT017
            refused += 1
        else:
            read += 1
            assert np.array_equal(lifted.weights.ravel(), layer_of(answer).weights.ravel())
    assert (read, refused) == (38, 11)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"out_image_circular_buf_size": 64},
            r"field out_image_circular_buf_size: got 64, allowed is 0 or 3136",
        ),
        (
            {"in_image_circular_buf_size": 64},
            r"in_image_circular_buf_size: got 64, allowed is 0 or",
        ),
        ({"layer_type": 1, "kernel_y_size": 3}, r"field kernel_xy_size: got 7, allowed is 3"),
        ({"in_image_x_offset_sign": 0}, r"field in_image_x_offset_sign: got 0, allowed is 1"),
        (
            {"in_image_circular_buf_end_addr_plus_1": 64},
            r"field in_image_circular_buf_end_addr_plus_1: got 64, allowed is 0 or 512",
        ),
    ],
)
def test_marks_that_would_change_the_arithmetic_are_refused(
    change: dict[str, int], said: str
) -> None:
    answer = answers()[1]
    if "out_image_circular_buf_size" in change:
        said = said.replace("3136", str(answer["values"]["out_image_circular_buf_size"]))
    with pytest.raises(ValueError, match=said):
        VIVANTE.lift(capture_of(answer, **change))


# Layers of other kinds and chips


def test_an_average_is_the_convolution_that_runs() -> None:
    """Of 2x2 cells, stride 2: dense weights of 255 and zero points, pooled."""
    weights = np.zeros((8, 2, 2, 8), np.uint8)
    weights[range(8), :, :, range(8)] = 255
    layer = Conv2D(
        weights,
        np.zeros(8, np.int32),
        (16, 16, 8),
        (2, 2),
        "valid",
        input_q=QuantParams(1.0, 0),
        weight_q=QuantParams(1 / 1020, 0),
        output_q=QuantParams(1.0, 0),
    )
    capture = replace(VIVANTE.lower(layer, A311D, dialect="vendor"), parameters={})
    values = REGISTERS.decode(capture.words)
    assert (values["pooling"], values["w31_0_32"]) == (3, 0x7804)
    lifted = VIVANTE.lift(capture).layer
    assert lifted.depthwise
    assert np.all(lifted.weights == 255)
    assert lifted.stride == (2, 2)


def test_a_fully_connected_layer_is_cut_as_the_compiler_cuts_it() -> None:
    """96 to 20: 6x8 of two planes, its kernel made square; on i.MX8MP 8x12 (page, section 5)."""
    q = QuantParams(0.5, 3)
    weights = np.random.RandomState(0).randint(0, 256, (20, 96)).astype(np.uint8)
    layer = FullyConnected(
        weights, np.zeros(20, np.int32), input_q=q, weight_q=QuantParams(0.01, 9), output_q=q
    )
    sizes = {}
    for chip in (A311D, IMX8MP):
        capture = VIVANTE.lower(layer, chip, dialect="vendor")
        v = VIVANTE.maps(chip)["NN"].decode(capture.words)
        image = v["in_image_y_size"], v["in_image_x_size"], v["kernel_z_size"]
        sizes[chip] = (*image, v["kernel_y_size"], v["kernel_xy_size"])
        lifted = VIVANTE.lift(capture).layer
        assert lifted.output_shape == (1, 1, 20)
        assert np.array_equal(lifted.weights.transpose(0, 3, 1, 2).reshape(20, 96), weights)
    assert sizes == {A311D: (6, 8, 2, 8, 8), IMX8MP: (8, 12, 1, 8, 12)}


@pytest.mark.parametrize("chip", [S905D3, STM32MP25])
def test_chips_of_two_cores_have_the_plain_stream_in_the_vendors_dialect(chip: str) -> None:
    layer = layer_of(answers()[20])
    capture = VIVANTE.lower(layer, chip, dialect="vendor")
    assert capture.buffers["coefficients"][64:67] == bytes([2, 5, 0])  # width 2, 5 of 10 kernels
    lifted = VIVANTE.lift(capture).layer
    assert np.array_equal(lifted.weights, layer.weights)
    assert np.array_equal(lifted.bias, layer.bias)
    mesa = VIVANTE.lower(layer, chip)
    assert "coefficients" not in mesa.buffers
    with pytest.raises(
        Unsupported, match=r"allowed are the chips whose coefficient streams are known:"
    ):
        VIVANTE.lift(mesa)


@pytest.mark.parametrize("name", ["a311d-pid88", "imx8mp-pid9f", "pid99", "stm32mp25-pid15"])
def test_one_layer_compiled_for_four_parts_is_lifted(name: str) -> None:
    """Weights and biases are bytes of a generator, one after another (the layer of the files)."""
    drawn = bytes_drawn(8 * 8 * 4 + 3 * 3 * 4 * 8 + 8)
    x = np.array(drawn[:256], np.uint8).reshape(4, 8, 8).transpose(1, 2, 0)
    weights = np.array(drawn[256:-8], np.uint8).reshape(8, 4, 3, 3).transpose(0, 2, 3, 1)
    capture = npulab.load(shared(f"data/vivante_vendor/nb/{name}.nb"))
    layer = VIVANTE.lift(capture).layer
    assert np.array_equal(layer.weights, weights)
    assert np.array_equal(layer.bias, np.array(drawn[-8:]) * 16 - 2000)
    assert VIVANTE.recode(capture) == capture.buffers["coefficients"]
    y = npulab.emulate(layer, x, VIVANTE.rule_of(capture)).transpose(2, 0, 1).ravel()
    assert y[:16].tolist() == [255, 253, 255, 0, 202, 0, 0, 0, 0, 255, 0, 0, 0, 255, 255, 0]


def test_native_depthwise_has_one_plane_in_the_vendors_words() -> None:
    q = QuantParams(0.5, 3)
    weights = np.random.RandomState(0).randint(0, 256, (1, 3, 3, 7)).astype(np.uint8)
    layer = Conv2D(
        weights,
        np.arange(7, dtype=np.int32),
        (6, 5, 7),
        depthwise=True,
        input_q=q,
        weight_q=QuantParams(0.01, 9),
        output_q=q,
    )
    x = np.random.RandomState(1).randint(0, 256, (6, 5, 7)).astype(np.uint8)
    capture = VIVANTE.lower(layer, IMX8MP, x, dialect="vendor")
    v = VIVANTE.maps(IMX8MP)["NN"].decode(capture.words)
    assert (v["kernel_z_size"], v["depthwise"], v["w18_28_1"], v["w31_0_32"]) == (1, 1, 1, 0x7800)
    assert (v["in_image_circular_buf_size"], v["out_image_circular_buf_size"]) == (256, 256)
    lifted = VIVANTE.lift(capture)
    assert np.array_equal(lifted.layer.weights, weights)
    assert np.array_equal(lifted.layer.bias, layer.bias)
    assert np.array_equal(lifted.x, x)
    mesa = VIVANTE.maps(IMX8MP)["NN"].decode(VIVANTE.lower(layer, IMX8MP).words)
    assert mesa["kernel_z_size"] == 7


def test_what_the_vendors_dialect_does_not_have() -> None:
    layer = layer_of(answers()[1])
    with pytest.raises(LookupError, match=r"^dialect: got 'x', allowed are mesa, vendor$"):
        VIVANTE.lower(layer, dialect="x")
    with pytest.raises(LookupError, match=r"^features: got 'hwc-tensors', allowed are int8-model"):
        VIVANTE.lower(layer, dialect="vendor", features=["hwc-tensors"])
    q = QuantParams(0.5, 0)
    add = Add((4, 4, 2), input_q=q, other_q=q, output_q=q, dtype="uint8")
    with pytest.raises(
        ValueError, match=r"because the vendor's compiler runs additions on the shader$"
    ):
        VIVANTE.lower(add, dialect="vendor")


# The simulated device


def random_layer(random: np.random.RandomState) -> tuple[Conv2D, np.ndarray]:
    channels, outputs = int(random.randint(1, 9)), int(random.randint(1, 40))
    kernel = tuple(random.randint(1, 6, 2).tolist())
    if random.randint(2):
        kernel = (kernel[0], kernel[0])
    depthwise = bool(random.randint(4) == 0)
    shape = (outputs, *kernel, channels)
    if depthwise:
        outputs = channels
        shape = (1, *kernel, channels)
    zeros = [int(zero) for zero in random.randint(0, 256, 3)]
    weights = random.randint(0, 256, shape).astype(np.uint8)
    weights[random.random_sample(shape) < random.choice([0, 0.5, 0.95])] = zeros[1]
    size = tuple((kernel + random.randint(0, 9, 2)).tolist())
    layer = Conv2D(
        weights,
        random.randint(-3000, 3000, outputs).astype(np.int32),
        (*size, channels),
        (1, 1) if random.randint(3) else (2, 2),
        "same" if random.randint(2) else "valid",
        depthwise=depthwise,
        input_q=QuantParams(0.5, zeros[0]),
        weight_q=QuantParams(0.01, zeros[1]),
        output_q=QuantParams(3.0, zeros[2]),
    )
    return layer, random.randint(0, 256, layer.input_shape).astype(np.uint8)


@pytest.mark.parametrize(("chip", "layers"), [(A311D, 24), (IMX8MP, 6)])
def test_the_device_runs_vendor_jobs_from_words_and_bytes_alone(chip: str, layers: int) -> None:
    kinds = set()
    for seed in range(layers):
        layer, x = random_layer(np.random.RandomState(seed))
        capture = VIVANTE.lower(layer, chip, x, dialect="vendor")
        v = VIVANTE.maps(chip)["NN"].decode(capture.jobs[-1].words)
        kinds |= {("layer_type", v["layer_type"]), ("pooling", v["pooling"])}
        wanted = npulab.emulate(layer, x, VIVANTE.rule_of(capture))
        output = np.frombuffer(VIVANTE.simulate(capture), np.uint8)
        assert np.array_equal(output, wanted.transpose(2, 0, 1).ravel()), (seed, layer)
        lifted = VIVANTE.lift(capture)
        y = npulab.emulate(lifted.layer, lifted.x, VIVANTE.rule_of(capture))
        assert np.array_equal(y, wanted), (seed, layer)
        bare = VIVANTE.lift(replace(capture, parameters={}))
        y = npulab.emulate(bare.layer, bare.x, VIVANTE.rule_of(capture))
        assert np.array_equal(y, wanted), (seed, layer)
    assert {("pooling", 0), ("pooling", 3)} <= kinds
    assert (("layer_type", 1) in kinds) == (chip == A311D)


def test_the_device_gives_the_compilers_outputs() -> None:
    ran = 0
    for answer in answers():
        if answer["jobs"] == [2] and answer["y"].size * answer["w"].size < 100_000:
            ran += 1
            assert VIVANTE.simulate(capture_of(answer)) == answer["y"].tobytes(), answer["name"]
    assert ran > 20


def test_the_device_hangs_where_the_compilers_simulator_asserts() -> None:
    layer, x = random_layer(np.random.RandomState(0))
    capture = VIVANTE.lower(layer, A311D, x, dialect="vendor")
    with pytest.raises(Hang, match=r"^a ring of 64 bytes is smaller than its input of \d+"):
        VIVANTE.simulate(capture.with_fields(0, in_image_circular_buf_size=64))
    size, stream = np.array([64], "<u4").tobytes(), [(2, 8), (3, 16), (2, 2), (7, 8), (1, 32)]
    body = vivante_vendor.pack_bits([*stream, (2, 32), (3, 32)])
    broken = capture_of(
        answers()[36],
        out_image_z_size=1,
        kernel_z_size=2,
        kernel_xy_size=1,
        kernel_y_size=1,
        kernels_per_core=3,
        in_image_x_offset=0,
        in_image_y_offset=0,
        coef_zero_point=7,
    )
    buffers = {**broken.buffers, "coefficients": size.ljust(64, b"\0") + body.ljust(64, b"\0")}
    with pytest.raises(Hang, match=r"^a run of zero points goes over two biases"):
        VIVANTE.simulate(replace(broken, buffers=buffers))
