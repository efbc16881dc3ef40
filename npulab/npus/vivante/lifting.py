"""From the jobs that a driver sent back to the layer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.captures.target import Features, Item, Lifted, Unsupported
from npulab.npus.kit import SIGNED, Capture, buffer_of, ceil_div, expect
from npulab.npus.vivante import coefficients, words
from npulab.npus.vivante.coefficients import MESA, VENDOR, Coefficients, Geometry
from npulab.npus.vivante.dialects import dialects_of, normal, refuse_marks
from npulab.npus.vivante.facts import CHIPS, EXPECTED, FACTS, Values, expected, tensor_bytes
from npulab.npus.vivante.lowering import coded_chip, planned
from npulab.npus.vivante.moves import Moved, Sides, moved_by, moved_input, moves_of, tensor_of
from npulab.npus.vivante.plans import join_planes
from npulab.npus.vivante.quirks import (
    HWC_TENSORS,
    INT8_MODEL,
    NN_ALONE,
    ODD_STRIDE2_TILE,
    PAD_JOB,
    VENDOR_DIALECT,
)
from npulab.npus.vivante.readings import (
    REFUSED,
    SCALES,
    Candidate,
    Reading,
    chosen,
    output_size,
    without_squaring,
)
from npulab.quant.layers import Add, Conv2D, FullyConnected, Layer, per_channel

# Key: the field ``rounding_mode``. Value: the rounding. Every capture has 1; that 0 means toward
# zero is a guess from the vendor's API.
ROUNDING = {1: words.MULTIPLIERS["nn_v7"].ties, 0: "toward-zero"}
# The recorded parameters that a lift uses. Key: the name. Value: the type and the least value.
SIZES = "input_h", "input_w", "kernel_h", "kernel_w", "stride_h", "stride_w"
KINDS: dict[str, tuple[type, Any]] = {
    **dict.fromkeys(SIZES, (int, 1)),
    **dict.fromkeys(("pad_top", "pad_bottom", "pad_left", "pad_right"), (int, 0)),
    **dict.fromkeys(SCALES, (float, 0.0)),
    "padding": (str, ""),
    "depthwise": (bool, False),
}
# An error text names at most MOST_NAMED jobs. OF_THE_VENDOR are the provenances of captures that
# the vendor's software wrote. LEAST_OFFSET is the least row or column at which the first window
# begins, on any chip. STORED_UP is what drivers add to a model's codes, by the codes' type.
MOST_NAMED = 16
OF_THE_VENDOR = "vendor driver", "compiler"
LEAST_OFFSET = -16
STORED_UP = {"uint8": 0, "int8": 128}


def lift(capture: Capture) -> Lifted:
    """Return the unlowered layer of an NN job and the TP jobs around it, its input and output.

    Words and TP jobs fix the arithmetic. Several layers may still have the same words, such as
    stride 2 with padding whose TP jobs were not recorded, or 1x1 on one channel. Then
    ``capture.parameters`` decide; without them, the plainest layer is taken that lowers to the
    same words (``readings.py``). An int8 model comes back as uint8, a fully connected layer or an
    addition as the convolution that ran. A job of the vendor's compiler is read in its dialect.
    Kernels that it made square come back in their own size if the cells that it added are empty.

    Raises ValueError if words and coefficients fit no layer, or different layers in two dialects.
    Raises Unsupported without coefficients, and unless there is exactly one NN job.
    """
    _nn_values(capture)
    blocks = [job.block for job in capture.jobs]
    if blocks.count("NN") != 1 or {*blocks} - {"NN", "TP"}:
        raise Unsupported(
            f"capture {capture.name}: got {_job_names(capture)}, a layer is lifted from one NN job "
            "and the TP jobs around it so far"
        )
    moved = moves_of(capture)
    job = _read(capture, moved)
    values, facts, geometry, content = job
    if not values["no_z_offset"]:
        _refuse_offsets(content, geometry)

    x = planes = None
    if moved.image and "tensor" in capture.buffers:
        x = moved_input(capture, moved)
    elif "input" in capture.buffers:
        planes = _planes_read(capture, values)
    known = {}
    for name, value in capture.parameters.items():
        if _is_known(name, value):
            known[name] = value
    weights = content.weights[: geometry.channels]
    cut = 0, 0
    if geometry.vendor:
        weights, cut = without_squaring(weights, geometry.zero_point, _kernel_known(known, values))
    zero = words.folded_zero(facts, values["in_image_border_const"])
    bias = _bias(content, geometry, zero)
    reading = Reading(values, facts, moved, known, weights, bias, planes, geometry.dialect, cut)
    candidate = chosen(reading)
    layer = candidate.layer
    if planes is not None:
        x = _input(planes, candidate)
    if moved.border is not None:
        layer = _without_border(layer, moved.border)
        if x is not None and planes is not None:
            (top, _), (left, _) = moved.border
            height, width, _ = layer.input_shape
            x = x[top : top + height, left : left + width]

    layer = replace(layer, driver_quirks=_quirks(layer, reading, content))
    _refuse_other_moves(capture, layer, facts)
    return Lifted(layer, x, _output(capture, values, moved))


def rule_of(capture: Capture) -> str:
    """Return the name of the rounding rule that a capture's field ``rounding_mode`` asks for.

    Raises ValueError for an unknown mode, Unsupported without an NN job.
    """
    mode = _nn_values(capture)["rounding_mode"]
    expect({"rounding_mode": mode}, {"rounding_mode": ROUNDING}, REFUSED)
    rule = words.MULTIPLIERS[words.generation(FACTS.features(capture.chip))]
    family, _, _ = rule.name.partition(":")
    return f"{family}:{ROUNDING[mode]}"


def recode(capture: Capture) -> bytes:
    """Decode the coefficient buffer, encode its content again, and return the bytes. Raises
    Unsupported without the buffer or an NN job."""
    job = _read(capture)
    return coefficients.encode(job.content, job.geometry)


def explain(capture: Capture) -> list[Item]:
    """Return every bit of the coefficient buffer, as items in order. Raises Unsupported without the
    buffer or an NN job."""
    values = _nn_values(capture)
    dialects = _dialects(capture, values)
    if len(dialects) > 1:
        geometry = _read(capture).geometry
    else:
        geometry = geometry_of(values, coded_chip(capture.chip, *dialects))
    return list(coefficients.walk(buffer_of(capture, "coefficients"), geometry))


def geometry_of(values: Values, facts: Features, dialect: str | None = None) -> Geometry:
    """Return the coefficient buffer's geometry from an NN job's values; ValueError for a size of 0.

    The default dialect is the likeliest that the values may be in.
    """
    if dialect is None:
        dialect = dialects_of(values)[0]
    values = normal(values, facts)
    expect(values, EXPECTED["geometry"], "block NN field {name}: got {got}, allowed is {allowed}")
    cores = facts["nn_cores"]
    outputs = values["out_image_z_size"]
    share = ceil_div(outputs, cores)
    superblocks = ceil_div(share, values["kernels_per_core"])
    plane_bytes = values["out_image_x_stride"] * values["out_image_y_stride"]
    if facts.get("native_depthwise"):
        depthwise = bool(values["depthwise"])
    else:
        depthwise = values["pooling"] == words.FIRST_PIXEL
    return Geometry(
        cores,
        outputs,
        values["kernel_z_size"],
        values["kernel_y_size"],
        values["kernel_xy_size"],
        superblocks,
        values["coef_zero_point"],
        plane_bytes,
        values["in_image_x_size"],
        depthwise=depthwise,
        huffman=bool(facts.get("huffman_coefficients")),
        dialect=dialect,
    )


def extent(capture: Capture, lifted: Lifted) -> range:
    """Return the range of bytes, from 0, that the jobs' output takes in its buffer. The range
    includes gaps between rows and planes."""
    return range(math.prod(_stored_output(_nn_values(capture), moves_of(capture))))


def outline(subject: Capture | Layer) -> Values:
    """Return numbers, by name, that tell two layers apart: the number of outputs, the channels, the
    zero points, and the scale (input * weights / output).

    The result is empty for a capture without an NN job or of an unknown chip, and for a layer that
    drivers do not run as an NN job. A layer with a scale per channel has neither scale nor weight
    zero point. An addition has only the number of outputs and their zero point, because drivers
    choose its other numbers.
    """
    if isinstance(subject, Capture):
        return _outline_of_words(subject)
    if not isinstance(subject, Conv2D | FullyConnected | Add) or subject.dtype not in STORED_UP:
        return {}
    up = STORED_UP[subject.dtype]
    found: dict[str, Any] = {
        "outputs": math.prod(subject.output_shape),
        "output zero point": subject.output_q.zero_point + up,
    }
    if isinstance(subject, Add):
        return found
    found["channels"] = subject.output_shape[-1]
    found["input zero point"] = subject.input_q.zero_point + up
    if per_channel(subject.weight_q.scale):
        return found
    up = STORED_UP.get(subject.weights.dtype.name, 0)
    found["weight zero point"] = subject.weight_q.zero_point + up
    first: Any = subject.input_q.scale
    found["scale"] = first * subject.weight_q.scale / subject.output_q.scale
    return found


def _outline_of_words(capture: Capture) -> dict[str, Any]:
    if capture.chip not in CHIPS or "NN" not in {job.block for job in capture.jobs}:
        return {}
    values = _nn_values(capture)
    multiplier = values["post_multiplier"]
    shift = values["post_shift"]
    return {
        "outputs": tensor_bytes(values)["output"],
        "output zero point": values["out_zero_point"],
        "channels": values["out_image_z_size"],
        "input zero point": values["in_image_border_const"],
        "weight zero point": values["coef_zero_point"],
        "scale": words.ratio_of(CHIPS[capture.chip], multiplier, shift),
    }


# Steps of a lift, in the order in which they run


def _nn_values(capture: Capture) -> dict[str, Any]:
    """Return the values of the first NN job, by field. Raises Unsupported without an NN job."""
    for job in capture.jobs:
        if job.block == "NN":
            return capture.maps["NN"].decode(job.words)
    raise Unsupported(
        f"capture {capture.name}: got {_job_names(capture)}, allowed are captures with an NN job"
    )


def _job_names(capture: Capture) -> str:
    if len(capture.jobs) > MOST_NAMED:
        return f"{len(capture.jobs)} jobs"
    if capture.jobs:
        return "jobs " + ", ".join(job.block for job in capture.jobs)
    return "no jobs"


class Read(NamedTuple):
    """What was read of an NN job: its ``values`` by field, with the sizes that the unit uses; the
    chip's features (``facts``); the geometry of its coefficient buffer; the buffer's content."""

    values: Values
    facts: Features
    geometry: Geometry
    content: Coefficients


def _read(capture: Capture, moved: Moved | None = None) -> Read:
    """Return the NN job, read in the dialect of its writer. If ``moved`` (the effect of TP jobs) is
    given, words that no layer covered by ``lift`` has are refused.

    Raises ValueError if the words fit two dialects in which the coefficients have other weights.
    """
    values = _nn_values(capture)
    dialects = _dialects(capture, values)
    if len(dialects) == 1:
        return _read_as(capture, values, moved, dialects[0])
    found = []
    refused = []
    for dialect in dialects:
        try:
            found.append(_read_as(capture, values, None, dialect))
        except ValueError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    if len(found) > 1 and not _same_content(*found):
        raise ValueError(
            f"capture {capture.name}: got coefficients that are other weights in the dialect "
            f"{MESA!r} than in {VENDOR!r}, allowed are words that have all marks (rings, word 31, "
            "kernel_cache_start_address) of one dialect and none of the other"
        )
    for read in found:
        try:
            return _read_as(capture, values, moved, read.geometry.dialect)
        except ValueError as error:
            refused.append(error)
    raise refused[-1]


def _dialects(capture: Capture, values: Values) -> tuple[str, ...]:
    """Return the dialects in which the coefficients may be, the likeliest first.

    The vendor's driver of 2023 writes the same words as Mesa (C:update4-vendor), but perhaps not
    the same order of weights.
    """
    found = dialects_of(values)
    if found == (MESA,) and capture.provenance in OF_THE_VENDOR:
        return MESA, VENDOR
    return found


def _read_as(
    capture: Capture,
    values: dict[str, Any],
    moved: Moved | None,
    dialect: str,
) -> Read:
    """Return the NN job, read in ``dialect``. With ``moved``, uncovered words are refused."""
    facts = coded_chip(capture.chip, dialect)
    if moved is not None:
        _refuse_uncovered(values, facts, dialect)
        _refuse_gaps(values, moved)
    geometry = geometry_of(values, facts, dialect)
    content = coefficients.decode(buffer_of(capture, "coefficients"), geometry)
    return Read(normal(values, facts), facts, geometry, content)


def _same_content(one: Read, other: Read) -> bool:
    """True if two readings of a coefficient buffer have the same weights, biases and output
    offsets. Kernels past the last channel, which are fill, are not compared."""
    channels = one.geometry.channels
    for name in ("weights", "bias", "offsets"):
        first = getattr(one.content, name)
        second = getattr(other.content, name)
        if not np.array_equal(first[:channels], second[:channels]):
            return False
    return True


def _refuse_uncovered(values: Values, facts: Features, dialect: str) -> None:
    """Raise ValueError for values of an NN job that no layer covered by ``lift`` has."""
    expect(values, expected(facts, dialect == VENDOR), REFUSED)
    if dialect == VENDOR:
        refuse_marks(values, facts, REFUSED)
    for axis in "xy":
        pitch = values[f"in_image_{axis}_stride"]
        allowed = {
            f"in_image_{axis}_offset": range(LEAST_OFFSET, 1),
            f"in_image_{axis}_size": range(1, pitch + 1),
        }
        expect(values, allowed, REFUSED)
    rows, columns = output_size(values)
    most_rows = values["out_image_y_stride"]
    most_columns = values["out_image_x_stride"]
    if not (0 < rows <= most_rows and 0 < columns <= most_columns):
        raise ValueError(
            f"lift for vivante: got an output of {rows} rows and {columns} columns, allowed are "
            f"1 to {most_rows} rows and 1 to {most_columns} columns, as many as its strides hold"
        )


def _refuse_gaps(values: Values, moved: Moved) -> None:
    """Raise ValueError for gaps between rows or planes of a tensor that TP jobs read or write,
    because TP jobs cannot skip bytes.
    """
    packed = {}
    if moved.image is not None:
        packed["in_image_y_stride"] = (values["in_image_y_size"],)
        packed["in_image_x_stride"] = (values["in_image_x_size"],)
    if moved.hwc_out:
        rows, columns = output_size(values)
        packed["out_image_y_stride"] = (rows,)
        packed["out_image_x_stride"] = (columns,)
    expect(values, packed, REFUSED.replace("allowed", "allowed of a tensor that TP jobs move", 1))


def _refuse_offsets(content: Coefficients, geometry: Geometry) -> None:
    """Raise ValueError if the output plane of a channel does not lie right after the plane of the
    channel before.
    """
    offsets = content.offsets[: geometry.channels]
    packed = np.arange(geometry.channels) * geometry.plane_bytes
    for channel in np.flatnonzero(offsets != packed):
        raise ValueError(
            f"coefficients: the output offset of channel {channel} is {offsets[channel]} bytes, "
            f"allowed is {packed[channel]}, right after the plane of the channel before"
        )


def _planes_read(capture: Capture, values: Values) -> Array:
    """Return the planes in the buffer ``input`` that the unit reads, (planes, rows, columns)."""
    shape = values["kernel_z_size"], values["in_image_y_stride"], values["in_image_x_stride"]
    planes = tensor_of(capture, "input", shape)
    return planes[:, : values["in_image_y_size"], : values["in_image_x_size"]]


def _is_known(name: str, value: Any) -> bool:
    """True if a lift uses the recorded parameter ``name`` and ``value`` is of the parameter's type
    and not too small."""
    if name not in KINDS:
        return False
    kind, least = KINDS[name]
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) and bool(value >= least)


def _kernel_known(known: dict[str, Any], values: Values) -> dict[str, int]:
    """Return the recorded ``kernel_h`` and ``kernel_w``, by name; for a stride 2 layer whose planes
    were split, the sizes after the split."""
    out: dict[str, int] = {}
    for name in ("kernel_h", "kernel_w"):
        if name in known:
            out[name] = known[name]
            if known.get("stride_h") == 2 and not values["pooling"]:
                out[name] = ceil_div(known[name], 2)
    return out


def _bias(content: Coefficients, geometry: Geometry, zero: int) -> Array:
    """Return the layer's bias. Drivers subtract ``zero`` * sum(weight - weight's zero point) before
    they store a bias, so the same number is added to the stored bias.
    """
    weights = content.weights[: geometry.channels].astype(np.int64)
    sums = (weights - geometry.zero_point).sum((1, 2, 3))
    bias = content.bias[: geometry.channels] + zero * sums
    return bias.astype(np.int32)


def _input(planes: Array, candidate: Candidate) -> Array:
    """Return the layer's input ``(H, W, C)`` from the planes that the unit reads."""
    layer = candidate.layer
    height, width, _ = layer.input_shape
    if candidate.border is not None:
        top, left = candidate.border
        planes = join_planes(planes)[:, top:, left:]
        # The unit's planes lack the last rows and columns of the input if no window reaches them.
        # They are filled with the zero point.
        rows = max(height - planes.shape[1], 0)
        columns = max(width - planes.shape[2], 0)
        missing = (0, 0), (0, rows), (0, columns)
        planes = np.pad(planes, missing, constant_values=layer.input_q.zero_point)
    return planes[:, :height, :width].transpose(1, 2, 0)


def _without_border(layer: Conv2D, border: Sides) -> Conv2D:
    """Return the layer whose border a TP job added: the image without the border, and the border as
    padding."""
    (top, bottom), (left, right) = border
    height, width, channels = layer.input_shape
    height -= top + bottom
    width -= left + right
    pads = layer.pads
    if pads != ((0, 0), (0, 0)) or height < 1 or width < 1:
        raise ValueError(
            f"lift for vivante: got a border of {border} from a TP job and of {pads} from "
            "the NN job, allowed is a border from only one of the two"
        )
    return replace(layer, input_shape=(height, width, channels), padding=border)


def _quirks(layer: Conv2D, r: Reading, content: Coefficients) -> frozenset[str]:
    """Return the quirks of the driver that the coefficients, the TP jobs and the tile show."""
    quirks = set()
    if r.vendor:
        quirks.add(VENDOR_DIALECT)
    if not r.vendor and _of_int8_model(r.weights, content.symbols):
        quirks.add(INT8_MODEL)
    if r.moved.hwc_in or r.moved.hwc_out:
        quirks.add(HWC_TENSORS)
    if r.moved.border is not None:
        quirks.add(PAD_JOB)
    _, low, _ = planned(layer, r.facts, quirks)
    if low.split and r.moved.split is None:
        quirks.add(NN_ALONE)
    if r.vendor:
        return frozenset(quirks)
    even_h, _ = words.tiling(low, r.facts).size
    odd_h, _ = words.tiling(low, r.facts, {ODD_STRIDE2_TILE}).size
    if r.values["out_image_tile_y_size"] == odd_h != even_h:
        quirks.add(ODD_STRIDE2_TILE)
    return frozenset(quirks)


def _of_int8_model(weights: Array, symbols: tuple[int, ...]) -> bool:
    """True if ``symbols`` is the symbol map that Mesa chooses for these weights in an int8 model,
    and not the map for a uint8 model. A map has the bit length of each Huffman symbol."""
    if not symbols or symbols == coefficients.choose_symbols(weights):
        return False
    return symbols == coefficients.choose_symbols(weights - np.uint8(SIGNED))


def _refuse_other_moves(capture: Capture, layer: Conv2D, facts: Features) -> None:
    """Raise ValueError for TP jobs that differ from those that the layer needs. Addresses of
    tensors are not compared.

    A capture without TP jobs is accepted, because NN jobs are also recorded by themselves.
    """
    registers = capture.maps["TP"]
    given = []
    for task, job in enumerate(capture.jobs):
        if job.block == "TP":
            given.append((task, registers.decode(job.words)))
    if not given:
        return
    conv, low, moves = planned(layer, facts, layer.driver_quirks)
    for move in moves:
        where = {move.source: 0, move.target: 0}
        for _, first in given[:1]:
            where[move.source] = first["in_image_base_address"]
            where[move.target] = first["out_image_base_address"]
        for values in moved_by(move, conv, low, facts, where):
            if not given:
                raise ValueError(
                    f"lift for vivante: got too few TP jobs, a {move.kind} job of the layer is "
                    "missing"
                )
            task, got = given.pop(0)
            encoded = registers.encode(values)
            for name, want in registers.decode(encoded).items():
                if got[name] != want:
                    raise ValueError(
                        f"lift for vivante: task {task}, a {move.kind} job, field {name}: "
                        f"got {got[name]}, allowed with {layer} is {want}"
                    )
    if given:
        task, _ = given[0]
        raise ValueError(
            f"lift for vivante: task {task}: got a TP job, allowed are only those of {layer}"
        )


def _output(capture: Capture, values: Values, moved: Moved) -> Array | None:
    """Return the captured output ``(H, W, C)``, None if there is none."""
    if "output" not in capture.buffers:
        return None
    stored = tensor_of(capture, "output", _stored_output(values, moved))
    if moved.hwc_out:
        return stored
    rows, columns = output_size(values)
    outside = np.ones(stored.shape, bool)
    outside[:, :rows, :columns] = False
    if len(np.unique(stored[outside])) > 1:
        raise ValueError(
            f"lift for vivante: got different bytes in the output buffer outside of {rows} rows "
            f"and {columns} columns, allowed is the same value in all bytes of the gaps"
        )
    return stored[:, :rows, :columns].transpose(1, 2, 0)


def _stored_output(values: Values, moved: Moved) -> tuple[int, int, int]:
    """Return the shape of the output in memory, gaps included: planes first, or channels last if a
    TP job transposes the output."""
    channels = values["out_image_z_size"]
    if moved.hwc_out:
        return *output_size(values), channels
    return channels, values["out_image_y_stride"], values["out_image_x_stride"]
