"""From a layer to what a driver would send: the jobs in order, their words, coefficients and
commands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np

from npulab.captures.capture import COMMANDS, Capture, Job
from npulab.npus.kit import SIGNED, Unsupported, as_codes, of_type, refuse_if, up
from npulab.npus.kit.lowering import features_asked, lowered, placed
from npulab.npus.vivante import coefficients
from npulab.npus.vivante.coefficients import Coefficients, Geometry
from npulab.npus.vivante.commands import States, nn_states, start_to_end, stream_of, tp_states
from npulab.npus.vivante.facts import CHIPS, FACTS, USUAL_CHIP, maps
from npulab.npus.vivante.moves import Move, moved_by
from npulab.npus.vivante.plans import (
    WIDEST_FULL,
    Lowered,
    as_convolution,
    image_of,
    plan,
    split_image,
)
from npulab.npus.vivante.quirks import FEATURES, HWC_TENSORS, INT8_MODEL, NN_ALONE, PAD_JOB
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
# What lies where: `tensor` is the layer's input before the first TP job, `planes` and `padded` lie
# between two of them, `output-planes` is the NN job's output where a TP job follows; blocks of TP
# jobs follow one another from `tp` on.
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
MOVED = {"transpose": "planes", "pad": "padded"}  # where a tensor lies between two moves
ALIGNMENT, BLOCK_SPACING = 64, 128
HEAD_BYTES, KERNEL_BYTES = 3, 8  # of a plain stream, and of a kernel's bias and offset


def lower(
    layer: Layer,
    chip: str = USUAL_CHIP,
    x: Any = None,
    name: str = "lowered",
    addresses: Mapping[str, int] | None = None,
    features: Iterable[str] = (),
) -> Capture:
    """What Mesa 25 would send for a layer: jobs in order (TP jobs move tensors around the NN job),
    words, commands, coefficients and, with ``x``, the input.

    ``x`` is ``(H, W, C)`` in the type of the weights, I elements for ``FullyConnected``, a pair for
    ``Add``.  int8 tensors are moved up by 128 as the driver does.  ``features`` are quirks of a
    driver (``quirks.FEATURES``); ``layer.driver_quirks`` count too.  For a chip whose coefficient
    format is not known there are the words, with the kernel cache sized for weights that are not
    coded, and no coefficients.  It departs from Mesa in images that are not square (x is always the
    columns), in kernels past 5x5 and stride 2 layers whose padding Mesa has wrong, in TP jobs that
    would read past the image, and in the weight order of fully connected layers, which is that of
    the convolution. Raises ValueError for a layer or chip that is not covered, LookupError for an
    unknown feature or address.
    """
    facts, given, layer = FACTS.features(chip), layer, _unsigned(layer)
    quirks = {*getattr(layer, "driver_quirks", ()), *features}
    if given.dtype == "int8":
        quirks |= {INT8_MODEL}
    else:
        quirks |= set()
    features_asked(quirks, sorted(FEATURES))
    where = placed({**ADDRESSES, **MORE_ADDRESSES}, addresses, ALIGNMENT)
    conv, low, moves = planned(layer, facts, quirks)
    if x is None:
        tensors = {}
    else:
        tensors = _tensors(_planar(given, conv, x), conv, low, moves)
    buffer, cached = encoded(conv, low, facts, quirks)
    jobs = _jobs(conv, low, moves, nn_values(conv, low, facts, quirks, cached), facts, where)
    if NN_ALONE in quirks:
        jobs = [job for job in jobs if job[0] == "NN"]
    starts, registers = start_to_end([states for *_, states in jobs]), maps(chip)
    done = tuple(
        Job(
            block,
            registers[block].encode(values),
            start=Job.from_writes("STATE", states, registers["STATE"]),
        )
        for (block, values, _), states in zip(jobs, starts, strict=True)
    )
    named = {
        *ADDRESSES,
        *(end for move in moves for end in (move.source, move.target)),
        *(["tp"] if moves else []),
    }
    if len(done) == 1:
        named, tensors = (
            {*ADDRESSES},
            {name: data for name, data in tensors.items() if name == "input"},
        )
    buffers = {
        COMMANDS: stream_of(starts).tobytes(),
        **({"coefficients": buffer} if buffer else {}),
        **tensors,
    }
    return lowered(
        FACTS,
        name,
        chip,
        done,
        buffers,
        {name: at for name, at in where.items() if name in named},
        layer.parameters,
    )


def planned(
    layer: Layer, facts: Mapping[str, int], quirks: Set[str]
) -> tuple[Conv2D, Lowered, list[Move]]:
    """The convolution that a layer of uint8 becomes, as the unit runs it, and what is moved around
    it.

    Raises ValueError where a driver would not have it on such a chip.
    """
    conv = as_convolution(layer, facts)
    full = conv.kernel == conv.input_shape[:2] and conv.pads == ((0, 0), (0, 0))
    _supported(conv, facts, max(WIDEST_FULL, facts["max_kernel"]) if full else facts["max_kernel"])
    kinds: list[str] = []
    if HWC_TENSORS in quirks and not isinstance(layer, Conv2D):
        raise ValueError(
            f"lower for vivante: got the feature {HWC_TENSORS} with {layer!r}, allowed is a Conv2D"
        )
    if HWC_TENSORS in quirks and conv.input_shape[2] > 1:
        kinds.append("transpose")
    if PAD_JOB in quirks and conv.padding not in ("same", "valid"):
        kinds.append("pad")
        (top, bottom), (left, right) = conv.pads
        height, width, channels = conv.input_shape
        padded = replace(
            conv,
            input_shape=(top + height + bottom, left + width + right, channels),
            padding="valid",
        )
    low = plan(padded if "pad" in kinds else conv, facts, quirks, isinstance(layer, Add))
    if low.split:
        kinds += ["reshuffle"]
    ends = ["tensor", *(MOVED[kind] for kind in kinds[:-1]), "input"]
    moves = [Move(kind, *ends[n : n + 2]) for n, kind in enumerate(kinds)]
    if HWC_TENSORS in quirks and conv.output_shape[2] > 1 and NN_ALONE not in quirks:
        moves.append(Move("detranspose", "output-planes", "output"))
    return conv, low, moves


def coded_chip(chip: str) -> Mapping[str, int]:
    """The features of a chip whose coefficient streams are known; Unsupported for any other."""
    facts = FACTS.features(chip)
    if facts.get("unknown_coefficients"):
        known = [name for name, found in CHIPS.items() if not found.get("unknown_coefficients")]
        raise Unsupported(
            f"chip: got {chip!r}, coefficient streams are known of {', '.join(known)}"
        )
    return facts


def _unsigned(layer: Any) -> Layer:
    """The layer with int8 tensors and their zero points moved up by 128, as the driver stores
    them."""
    stored = getattr(getattr(layer, "weights", None), "dtype", getattr(layer, "dtype", None))
    if (
        not isinstance(layer, Conv2D | FullyConnected | Add)
        or layer.dtype != stored
        or layer.dtype not in ("uint8", "int8")
    ):
        raise ValueError(
            f"lower for vivante: got {layer!r} of {getattr(layer, 'dtype', 'no type')}, allowed is "
            "a "
            "Conv2D, FullyConnected or Add of uint8 or int8"
        )
    return of_type(layer, "uint8")


def _planar(layer: Layer, conv: Conv2D, x: Any) -> np.ndarray:
    """The input as codes of the unit, in planes ``(C, H, W)`` of the convolution that the layer
    becomes."""
    several, flat = isinstance(layer, Add), isinstance(layer, FullyConnected)
    parts = [np.asarray(part) for part in (x if several and isinstance(x, tuple | list) else [x])]
    fits = all(
        part.dtype == layer.dtype
        and (part.shape == layer.input_shape or (flat and (part.size,) == layer.input_shape))
        for part in parts
    )
    if len(parts) != 1 + several or not fits:
        kinds = " and ".join(f"shape {part.shape} {part.dtype}" for part in parts)
        if several:
            allowed = f"a pair, each {layer.input_shape} of the layer's"
        else:
            allowed = f"{layer.input_shape} of the weights'"
        raise ValueError(f"x: got {kinds}, allowed is {allowed} {layer.dtype}")
    parts = [as_codes(part, "uint8") for part in parts]
    if not flat:
        shape = layer.input_shape
        if isinstance(layer, Add):
            shape = image_of(layer)
        parts = [part.reshape(shape).transpose(2, 0, 1) for part in parts]
    height, width, channels = conv.input_shape
    return np.concatenate([part.reshape(-1) for part in parts]).reshape(channels, height, width)


def _tensors(
    planar: np.ndarray, conv: Conv2D, low: Lowered, moves: Sequence[Move]
) -> dict[str, bytes]:
    """What lies in memory before the jobs run: the layer's input, and the image that the NN job
    reads."""
    zero, out = conv.input_q.zero_point, {}
    for move in moves:
        if move.source == "tensor":
            out["tensor"] = (
                planar.transpose(1, 2, 0) if move.kind == "transpose" else planar
            ).tobytes()
        if move.kind == "pad":
            planar = np.pad(planar, [(0, 0), *conv.pads], constant_values=zero)
        elif move.kind == "reshuffle":
            planar = split_image(planar, low, zero)
    return out | {"input": np.ascontiguousarray(planar).tobytes()}


def _jobs(
    conv: Conv2D,
    low: Lowered,
    moves: Sequence[Move],
    values: Mapping[str, Any],
    facts: Mapping[str, int],
    where: Mapping[str, int],
) -> list[tuple[str, Mapping[str, Any], States]]:
    """(block, values, states that start it) of every job, in order."""
    behind = [move for move in moves if move.target == "output"]
    values = {
        **values,
        "kernel_address": where["coefficients"],
        "in_image_address": where["input"],
        "out_image_address": where[behind[0].source if behind else "output"],
    }
    out: list[tuple[str, Mapping[str, Any], States]] = []
    at = where["tp"]
    for move in moves:
        if move in behind:
            out.append(("NN", values, nn_states(where["nn"])))
        parts = moved_by(move, conv, low, facts, where)
        states = tp_states([at + BLOCK_SPACING * n for n in range(len(parts))], move.kind == "pad")
        out += [("TP", part, start) for part, start in zip(parts, states, strict=True)]
        at += BLOCK_SPACING * len(parts)
    if behind:
        return out
    return [*out, ("NN", values, nn_states(where["nn"]))]


def _supported(layer: Conv2D, facts: Mapping[str, int], widest: int) -> None:
    """Raise ValueError for the first parameter of a layer that the unit does not have."""
    where = "lower for vivante: {}".format
    q = {name: getattr(layer, name) for name in ("input_q", "weight_q", "output_q")}
    most, channels = 2 ** (facts["offset_bits"] - 1), layer.input_shape[2]
    for name, each in q.items():
        refuse_if(
            isinstance(each.scale, tuple), where(name), "a scale per channel", "is one per tensor"
        )
    for name, each in q.items():
        refuse_if(
            not 0 <= each.zero_point <= 255,
            where(name),
            f"zero point {each.zero_point}",
            "is 0 to 255",
        )
    refuse_if(layer.dilation != (1, 1), where("dilation"), layer.dilation, "is (1, 1)")
    refuse_if(
        layer.stride not in ((1, 1), (2, 2)), where("stride"), layer.stride, "is (1, 1) or (2, 2)"
    )
    refuse_if(
        layer.activation not in (None, "relu"),
        where("activation"),
        repr(layer.activation),
        "is None or 'relu'",
    )
    refuse_if(max(layer.kernel) > widest, where("kernel"), layer.kernel, f"is up to {widest}")
    refuse_if(
        max(before for before, _ in layer.pads) > most,
        where("padding"),
        layer.padding,
        f"is up to {most} above and to the left",
    )
    refuse_if(
        layer.depthwise and layer.weights.shape[3] != channels,
        where("weights"),
        f"{layer.weights.shape[3]} depthwise channels",
        f"is {channels}",
    )
    scales = [each.scale for each in q.values()]
    shift = multiplier_of(facts, *scales)[1]
    if not 0 <= shift < MOST_SHIFT:
        raise ValueError(
            f"lower for vivante: scales: got {scales[0]} * {scales[1]} / {scales[2]}, "
            f"allowed is a right shift of 0 to {MOST_SHIFT - 1} (got {shift})"
        )


def encoded(
    layer: Conv2D,
    low: Lowered,
    facts: Mapping[str, int],
    quirks: Set[str],
) -> tuple[bytes | None, int]:
    """The coefficient buffer, or None if the format of the chip is not known, and the bytes of it
    that go on chip."""
    zero = layer.weight_q.zero_point
    g = Geometry(
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
    )
    if facts.get("unknown_coefficients"):
        largest = uncoded_bytes(g)
        return None, cached_bytes(low, facts, g.used * largest, largest)
    weights = np.full(g.shape, zero, np.uint8)
    weights[: g.channels] = low.weights
    sums = (low.weights.astype(np.int64) - zero).sum((1, 2, 3))
    bias = np.zeros(g.slots, np.int32)
    bias[: g.channels] = layer.bias - folded_zero(facts, layer.input_q.zero_point) * sums
    content = Coefficients(weights, bias, (np.arange(g.slots) * g.plane_bytes).astype(np.uint32))
    if g.huffman:
        # as the model has them, modulo 256
        raw = low.weights
        if INT8_MODEL in quirks:
            raw = low.weights - np.uint8(SIGNED)
        content = replace(content, symbols=coefficients.choose_symbols(raw))
    else:
        zrl = 0
        if low.runs:
            zrl = coefficients.choose_zrl(content, g, facts["zrl_bits"])
        content = replace(content, zrl=(zrl,) * g.used)
    buffer = coefficients.encode(content, g)
    sizes = coefficients.sizes(buffer, g)
    return buffer, cached_bytes(low, facts, sum(sizes), max(sizes))


def uncoded_bytes(geometry: Geometry) -> int:
    """Bytes of the largest core's stream if weights were not coded, filled up to 64."""
    share = HEAD_BYTES + (math.prod(geometry.shape[1:]) + KERNEL_BYTES) * geometry.per_core
    return up(share, ALIGNMENT)
