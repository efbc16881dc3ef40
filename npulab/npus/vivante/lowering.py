"""Lowers a layer to the jobs that a driver would send: their words, coefficients and commands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.captures.capture import COMMANDS, Capture, Job
from npulab.captures.target import Features
from npulab.npus.kit import SIGNED, Unsupported, as_codes, of_type, refuse_if, up
from npulab.npus.kit.layers import as_dense, per_tensor, plain_activation, stepped, undilated
from npulab.npus.kit.lowering import features_asked, lowered, placed
from npulab.npus.vivante import coefficients
from npulab.npus.vivante.coefficients import DIALECTS, MESA, VENDOR, Coefficients, Geometry
from npulab.npus.vivante.commands import States, nn_states, start_to_end, stream_of, tp_states
from npulab.npus.vivante.facts import CHIPS, FACTS, USUAL_CHIP, Values, maps
from npulab.npus.vivante.moves import Move, moved_by
from npulab.npus.vivante.plans import (
    WIDEST_FULL,
    Lowered,
    as_convolution,
    image_of,
    plan,
    split_image,
)
from npulab.npus.vivante.quirks import (
    FEATURES,
    HWC_TENSORS,
    INT8_MODEL,
    NN_ALONE,
    PAD_JOB,
    VENDOR_DIALECT,
    VENDOR_FEATURES,
)
from npulab.npus.vivante.words import (
    MOST_SHIFT,
    cached_bytes,
    folded_zero,
    multiplier_of,
    nn_values,
    tiling,
)
from npulab.quant.layers import Add, Conv2D, FullyConnected

Layer = Conv2D | FullyConnected | Add
# The addresses of buffers. `tensor` is the layer's input before the first TP job. One TP job writes
# `planes` or `padded`, and the next job reads it. `output-planes` is the NN job's output if a TP
# job follows. The parameter blocks of TP jobs follow one another from `tp` on.
ADDRESSES = {
    "nn": 0x50000000,
    "coefficients": 0x40000000,
    "input": 0x60000000,
    "output": 0x70000000,
}
MORE_ADDRESSES = {
    "tp": 0x51000000,
    "tensor": 0x80000000,
    "planes": 0x90000000,
    "padded": 0xA0000000,
    "output-planes": 0xB0000000,
}
# Key: the kind of a move. Value: the name, in MORE_ADDRESSES, of the buffer that it writes if
# another move follows.
MOVED = {"transpose": "planes", "pad": "padded"}
ALIGNMENT, BLOCK_SPACING = 64, 128  # bytes: of buffers, and from one parameter block to the next
STRIDES = (1, 1), (2, 2)
# A plain stream has a header of HEAD_BYTES; each kernel has a bias and an offset of 8 bytes in all.
HEAD_BYTES, KERNEL_BYTES = 3, 8


class StartedJob(NamedTuple):
    """A job as a driver sends it: its block, its values by field, and the states that start it."""

    block: str
    values: Values
    states: States


def lower(
    layer: Layer,
    chip: str = USUAL_CHIP,
    x: Any = None,
    name: str = "lowered",
    addresses: Features | None = None,
    features: Iterable[str] = (),
    dialect: str | None = None,
) -> Capture:
    """Return the capture that Mesa 25 would send for a layer: jobs in order (TP jobs move tensors
    around the NN job), words, commands, coefficients and, with ``x``, the input.

    In the ``dialect`` ``vendor`` the NN job is that of VeriSilicon's compiler of 2025. Some of its
    choices have no known law and may differ (the target's page lists them). The shader's job that
    splits planes on V7 is missing. The default dialect is that of ``layer.driver_quirks``, else
    ``mesa``.

    ``x`` has the type of the weights and the shape ``(H, W, C)``; for ``FullyConnected`` it has I
    elements, for ``Add`` it is a pair of tensors. int8 codes are moved up by 128, as the driver
    does. ``features`` are quirks of a driver (``quirks.FEATURES``), in addition to
    ``layer.driver_quirks``. If the chip's coefficient format is not known, the capture has no
    coefficients, and the size of the kernel cache in its words is that of uncoded weights.

    The capture differs from Mesa's in these cases: images that are not square (in the capture, x is
    always the column); kernels larger than 5x5, and stride 2 layers, where Mesa's padding is wrong;
    TP jobs where Mesa's would read past the image; fully connected layers, whose weights have the
    order of a convolution's. A clamp that no code reaches is left out. Raises ValueError for a
    layer or chip that is not covered, LookupError for an unknown feature, dialect or address.
    """
    coded = _plain(_unsigned(layer))
    quirks = _quirks_asked(layer, coded, features, dialect)
    facts: Features = FACTS.features(chip)
    if VENDOR_DIALECT in quirks:
        facts = coded_chip(chip, VENDOR)
    where = placed({**ADDRESSES, **MORE_ADDRESSES}, addresses, ALIGNMENT)
    conv, low, moves = planned(coded, facts, quirks)
    tensors = {}
    if x is not None:
        tensors = _tensors(_planar(layer, conv, x), conv, low, moves)
    if NN_ALONE in quirks:
        # The capture has no TP jobs, because the driver submits each of them by itself.
        moves = []
        tensors.pop("tensor", None)
    coefficient_stream, cached = encoded(conv, low, facts, quirks)
    values = nn_values(conv, low, facts, quirks, cached)
    started = _jobs(conv, low, moves, values, facts, where)

    starts = start_to_end([job.states for job in started])
    registers, jobs = maps(chip), []
    for job, states in zip(started, starts, strict=True):
        start = Job.from_writes("STATE", states, registers["STATE"])
        jobs.append(Job(job.block, registers[job.block].encode(job.values), start=start))
    buffers = {COMMANDS: stream_of(starts).tobytes()}
    if coefficient_stream:
        buffers["coefficients"] = coefficient_stream
    named = {*ADDRESSES}
    for move in moves:
        named |= {"tp", move.source, move.target}
    used = {name: at for name, at in where.items() if name in named}
    return lowered(FACTS, name, chip, jobs, (buffers | tensors, used), coded.parameters)


def _quirks_asked(
    layer: Layer,
    coded: Layer,
    features: Iterable[str],
    dialect: str | None,
) -> set[str]:
    """Return the quirks with which a layer is lowered: those of the layer, and the features and the
    dialect that the caller asks for. ``layer`` is as the caller gave it, ``coded`` the same in
    uint8. Raises LookupError for an unknown feature or dialect, and for a feature that jobs in the
    vendor's dialect cannot have."""
    quirks = {*getattr(coded, "driver_quirks", ()), *features}
    if layer.dtype == "int8":
        quirks.add(INT8_MODEL)
    features_asked(quirks, sorted(FEATURES))
    if dialect not in (None, *DIALECTS):
        raise LookupError(f"dialect: got {dialect!r}, allowed are {', '.join(DIALECTS)}")
    if dialect == MESA:
        quirks.discard(VENDOR_DIALECT)
    elif dialect == VENDOR:
        quirks.add(VENDOR_DIALECT)
    if VENDOR_DIALECT in quirks:
        features_asked(quirks, sorted(VENDOR_FEATURES))
    return quirks


def _ring_ends(values: Values, image: int, output: int) -> dict[str, int]:
    """Return the values of the fields for the ends of two rings (memory ranges of tensors), which
    begin at the addresses ``image`` and ``output``; nothing if the job has no rings."""
    if "in_image_circular_buf_size" not in values:
        return {}
    return {
        "in_image_circular_buf_end_addr_plus_1": image + values["in_image_circular_buf_size"],
        "out_image_circular_buf_end_addr_plus_1": output + values["out_image_circular_buf_size"],
    }


def planned(layer: Layer, facts: Features, quirks: Set[str]) -> tuple[Conv2D, Lowered, list[Move]]:
    """Return the convolution that a layer of uint8 becomes, its plan for the NN unit, and the moves
    of its tensors by TP jobs.

    Raises ValueError if a driver would refuse the layer on a chip of these features (``facts``).
    """
    conv = as_convolution(layer, facts, quirks)
    widest = facts["max_kernel"]
    if conv.kernel == conv.input_shape[:2] and conv.pads == ((0, 0), (0, 0)):
        widest = max(WIDEST_FULL, widest)
    _refuse_unsupported(conv, facts, widest)
    if HWC_TENSORS in quirks and not isinstance(layer, Conv2D):
        raise ValueError(
            f"lower for vivante: got the feature {HWC_TENSORS} with {layer!r}, allowed is a Conv2D"
        )
    read, kinds = conv, []
    if HWC_TENSORS in quirks and conv.input_shape[2] > 1:
        kinds.append("transpose")
    if PAD_JOB in quirks and conv.padding not in ("same", "valid"):
        kinds.append("pad")
        (top, bottom), (left, right) = conv.pads
        height, width, channels = conv.input_shape
        shape = top + height + bottom, left + width + right, channels
        read = replace(conv, input_shape=shape, padding="valid")
    low = plan(read, facts, quirks, isinstance(layer, Add))
    # On V7 the vendor splits planes by a job of the shader, which a lowered capture does not have.
    if low.split and (VENDOR_DIALECT not in quirks or facts.get("nn_v8")):
        kinds.append("reshuffle")
    ends = ["tensor", *(MOVED[kind] for kind in kinds[:-1]), "input"]
    moves = [Move(kind, ends[n], ends[n + 1]) for n, kind in enumerate(kinds)]
    if HWC_TENSORS in quirks and conv.output_shape[2] > 1 and NN_ALONE not in quirks:
        moves.append(Move("detranspose", "output-planes", "output"))
    return conv, low, moves


def encoded(
    layer: Conv2D,
    low: Lowered,
    facts: Features,
    quirks: Set[str],
) -> tuple[bytes | None, int]:
    """Return (coefficient buffer, number of its bytes that go on chip). The buffer is None if the
    chip's format is not known; the number is then that of uncoded weights."""
    zero = layer.weight_q.zero_point
    dialect = MESA
    if VENDOR_DIALECT in quirks:
        dialect = VENDOR
    geometry = Geometry(
        facts["nn_cores"],
        low.channels,
        low.planes,
        *low.kernel,
        tiling(low, facts, quirks).superblocks,
        zero,
        low.output[0] * low.output[1],
        low.columns,
        depthwise=low.depthwise or (low.pooled and not facts.get("native_depthwise")),
        huffman=bool(facts.get("huffman_coefficients")),
        dialect=dialect,
    )
    if facts.get("unknown_coefficients"):
        largest = uncoded_bytes(geometry)
        return None, cached_bytes(low, facts, geometry.used * largest, largest)
    weights = np.full(geometry.shape, zero, np.uint8)
    weights[: geometry.channels] = low.weights
    sums = (low.weights.astype(np.int64) - zero).sum((1, 2, 3))
    bias = np.zeros(geometry.slots, np.int32)
    bias[: geometry.channels] = layer.bias - folded_zero(facts, layer.input_q.zero_point) * sums
    offsets = np.arange(geometry.slots) * geometry.plane_bytes
    content = Coefficients(weights, bias, offsets.astype(np.uint32))
    if geometry.huffman:
        # The driver chooses the symbol map by the model's weights, not by those moved up by 128.
        of_model = low.weights
        if INT8_MODEL in quirks:
            of_model = low.weights - np.uint8(SIGNED)
        symbols = coefficients.choose_symbols(of_model, geometry.dialect)
        content = replace(content, symbols=symbols)
    else:
        if geometry.vendor:
            channels = coefficients.choose_channels(weights, geometry)
            content = replace(content, channels=channels)
        zrl = 0
        if low.runs or geometry.vendor:
            zrl = coefficients.choose_zrl(content, geometry, facts["zrl_bits"])
        content = replace(content, zrl=(zrl,) * geometry.used)
    buffer = coefficients.encode(content, geometry)
    sizes = coefficients.sizes(buffer, geometry)
    return buffer, cached_bytes(low, facts, sum(sizes), max(sizes), geometry.vendor)


def uncoded_bytes(geometry: Geometry) -> int:
    """Return how many bytes the largest stream of a core would have if weights were not coded. The
    number is rounded up to a multiple of 64."""
    kernel_bytes = math.prod(geometry.shape[1:]) + KERNEL_BYTES
    return up(HEAD_BYTES + kernel_bytes * geometry.per_core, ALIGNMENT)


def coded_chip(chip: str, dialect: str = MESA) -> Features:
    """Return the features of a chip. Raises Unsupported if the format of its coefficient streams in
    ``dialect`` is not known."""
    facts = FACTS.features(chip)
    if dialect == VENDOR and facts.get("vendor_plain_coefficients"):
        return {**facts, "unknown_coefficients": 0}
    if facts.get("unknown_coefficients"):
        known = [name for name, found in CHIPS.items() if not found.get("unknown_coefficients")]
        raise Unsupported(
            f"chip: got {chip!r}, allowed are the chips whose coefficient streams are known: "
            f"{', '.join(known)}"
        )
    return facts


def _unsigned(layer: Any) -> Layer:
    """Return the layer as uint8: int8 tensors and zero points are moved up by 128, as the driver
    stores them. Raises ValueError for another kind of layer or type."""
    stored = getattr(getattr(layer, "weights", None), "dtype", getattr(layer, "dtype", None))
    if (
        not isinstance(layer, Conv2D | FullyConnected | Add)
        or layer.dtype != stored
        or layer.dtype not in ("uint8", "int8")
    ):
        raise ValueError(
            f"lower for vivante: got {layer!r} of {getattr(layer, 'dtype', 'no type')}, allowed is "
            "a Conv2D, FullyConnected or Add of uint8 or int8"
        )
    return of_type(layer, "uint8")


def _plain(layer: Layer) -> Layer:
    """Return the layer without parameters that do not change its result, such as a stride along an
    axis with one window, equal scales per channel, or a clamp that no code reaches.

    relu6 becomes ReLU if no code stands for more than 6, as in Mesa (tfl_device.c). Mesa compares
    real numbers: it leaves a layer whose highest code stands for 6.00001 to the CPU, although the
    clamp does not change its result."""
    layer = plain_activation(layer, "lower for vivante")
    if not isinstance(layer, Add):
        layer = per_tensor(layer)
    if isinstance(layer, Conv2D):
        layer = stepped(undilated(layer), STRIDES)
        if layer.output_shape[2] > 1:
            layer = as_dense(layer)
    return layer


def _refuse_unsupported(layer: Conv2D, facts: Features, widest: int) -> None:
    """Raise ValueError for the first parameter of a layer that the unit does not support."""

    def refuse(wrong: bool, parameter: str, got: object, allowed: str) -> None:
        refuse_if(wrong, f"lower for vivante: {parameter}", got, allowed)

    quantization = {name: getattr(layer, name) for name in ("input_q", "weight_q", "output_q")}
    for name, q in quantization.items():
        refuse(isinstance(q.scale, tuple), name, "a scale per channel", "is one per tensor")
    for name, q in quantization.items():
        refuse(not 0 <= q.zero_point <= 255, name, f"zero point {q.zero_point}", "is 0 to 255")
    refuse(layer.dilation != (1, 1), "dilation", layer.dilation, "is (1, 1)")
    refuse(layer.stride not in STRIDES, "stride", layer.stride, "is (1, 1) or (2, 2)")
    refuse(max(layer.kernel) > widest, "kernel", layer.kernel, f"is up to {widest}")
    most = 2 ** (facts["offset_bits"] - 1)
    (top, _), (left, _) = layer.pads
    allowed = f"is up to {most} above and to the left"
    refuse(max(top, left) > most, "padding", layer.padding, allowed)
    channels, kernels = layer.input_shape[2], layer.weights.shape[3]
    wrong = layer.depthwise and kernels != channels
    refuse(wrong, "weights", f"{kernels} depthwise channels", f"is {channels}")
    scales = [q.scale for q in quantization.values()]
    _, shift = multiplier_of(facts, *scales)
    if not 0 <= shift < MOST_SHIFT:
        raise ValueError(
            f"lower for vivante: scales: got {scales[0]} * {scales[1]} / {scales[2]}, which needs "
            f"a post shift of {shift} bits, allowed is 0 to {MOST_SHIFT - 1}"
        )


def _planar(layer: Layer, conv: Conv2D, x: Any) -> Array:
    """Return the input ``x`` as uint8 codes, in planes ``(C, H, W)`` of ``conv``, the convolution
    that the layer becomes. Raises ValueError for another shape or type than the layer's."""
    tensors = [np.asarray(x)]
    wanted, allowed = 1, f"{layer.input_shape} of the weights'"
    if isinstance(layer, Add):
        wanted, allowed = 2, f"a pair, each {layer.input_shape} of the layer's"
        if isinstance(x, tuple | list):
            tensors = [np.asarray(tensor) for tensor in x]
    if len(tensors) != wanted or not all(_fits(tensor, layer) for tensor in tensors):
        got = " and ".join(f"shape {tensor.shape} {tensor.dtype}" for tensor in tensors)
        raise ValueError(f"x: got {got}, allowed is {allowed} {layer.dtype}")
    flat = []
    for tensor in tensors:
        codes = as_codes(tensor, "uint8")
        if isinstance(layer, Add):
            codes = codes.reshape(image_of(layer)).transpose(2, 0, 1)
        elif isinstance(layer, Conv2D):
            codes = codes.transpose(2, 0, 1)
        flat.append(codes.reshape(-1))
    height, width, channels = conv.input_shape
    return np.concatenate(flat).reshape(channels, height, width)


def _fits(tensor: Array, layer: Layer) -> bool:
    """True for a tensor of the layer's type and input shape; of a fully connected layer, for a
    tensor with the layer's number of inputs."""
    shape = tensor.shape
    if isinstance(layer, FullyConnected):
        shape = (tensor.size,)
    return tensor.dtype == layer.dtype and shape == layer.input_shape


def _tensors(planar: Array, conv: Conv2D, low: Lowered, moves: Sequence[Move]) -> dict[str, bytes]:
    """Return the bytes of tensors, by buffer: ``tensor`` is the layer's input before the first TP
    job (none without TP jobs), ``input`` the image that the NN job reads."""
    zero, out = conv.input_q.zero_point, {}
    for move in moves:
        if move.kind == "transpose":
            out["tensor"] = planar.transpose(1, 2, 0).tobytes()
        elif move.source == "tensor":
            out["tensor"] = planar.tobytes()
        if move.kind == "pad":
            planar = np.pad(planar, [(0, 0), *conv.pads], constant_values=zero)
        elif move.kind == "reshuffle":
            planar = split_image(planar, low, zero)
    if low.split and "reshuffle" not in {move.kind for move in moves}:
        planar = split_image(planar, low, zero)
    elif low.thinned:
        planar = planar[:, ::2, ::2]
    out["input"] = planar.tobytes()
    return out


def _jobs(
    conv: Conv2D,
    low: Lowered,
    moves: Sequence[Move],
    values: Values,
    facts: Features,
    where: Features,
) -> list[StartedJob]:
    """Return every job in order: TP jobs that move the input, the NN job, then the TP job that
    moves its output. ``where`` has the addresses of buffers by name."""
    output = "output"
    before: list[StartedJob] = []
    after: list[StartedJob] = []
    block = where["tp"]
    for move in moves:
        started = before
        if move.target == "output":
            output, started = move.source, after
        parts = moved_by(move, conv, low, facts, where)
        blocks = [block + BLOCK_SPACING * n for n in range(len(parts))]
        for part, states in zip(parts, tp_states(blocks, move.kind == "pad"), strict=True):
            started.append(StartedJob("TP", part, states))
        block += BLOCK_SPACING * len(parts)
    addresses = {
        "kernel_address": where["coefficients"],
        "in_image_address": where["input"],
        "out_image_address": where[output],
    }
    placed_values = {**values, **addresses, **_ring_ends(values, where["input"], where[output])}
    nn = StartedJob("NN", placed_values, nn_states(where["nn"]))
    return [*before, nn, *after]
