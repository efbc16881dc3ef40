"""From what a compiler wrote back to the layers: each operation, and what it reads of which."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from npulab.npus.ethosu.coefficients import parts_of, weights_and_records
from npulab.npus.ethosu.operations import ADD, POOLS, Operation, Shape3, Tensor, Words, operations
from npulab.npus.ethosu.rules import RULE
from npulab.npus.kit import SIGNED, Capture, Lifted, Unsupported, buffer_of, expect
from npulab.quant.emulate.engines import clamp_range, multipliers
from npulab.quant.layers import Add, Conv2D, FullyConnected, Layer, Network, Pool2D, QuantParams
from npulab.quant.rules import rule

KERNEL, STRIDE = "KERNEL_{}_M1", "KERNEL_STRIDE.stride_{1}_m1"
SO_FAR = "lift for ethosu: got {}, allowed {} so far"
# what words of a layer say, and those of one with multipliers for each channel, rounded twice
PLAIN = {"IFM_UPSCALE.mode": (0,), "ACTIVATION.type": (0,)}
PER_CHANNEL = {"OFM_PRECISION.scaling": (0,), "OFM_PRECISION.rounding": (0,)}
NATURAL = 2  # how a mean is rounded
BROADCASTS = ("height", "width", "depth", "scalar")
CODES = ("int8", "uint8")
UNIT_COUNTS = (1, 0)  # multiplier and shift of an average whose windows the unit counts itself
BITS = RULE.fraction_bits
LEFT = 20  # bits that an addition moves codes of 8 bits up


class Node(NamedTuple):
    """An operation and its tasks; the nodes that it reads, or -1 - n for the n-th input, and the
    shape of the first; bounds, zero point and type of its output."""

    operation: Operation
    tasks: tuple[int, ...]
    sources: tuple[int, ...]
    shape: Shape3
    bounds: tuple[int, int]
    zero: int
    dtype: str


def lift(capture: Capture) -> Lifted:
    """The layer or the network of a capture's jobs, its input and output.

    Scales are known but for a common factor: a tensor's is 1 if nothing else follows, and weights
    have the ratio.  The buffers ``input`` and ``output`` hold rows of columns of channels.  Raises
    Unsupported for what no layer is lifted from yet, ValueError for words or streams that make
    none.
    """
    found = nodes(capture)
    scales: dict[int, float] = {}
    layers = [_layer(capture, found, number, scales) for number in reversed(range(len(found)))][
        ::-1
    ]
    used = {source for node in found for source in node.sources}
    ends = tuple(number for number in range(len(found)) if number not in used)
    network = Network(tuple(layers), tuple(node.sources for node in found), ends)
    takes, gives = network.input_shapes, [layers[number].output_shape for number in ends]
    x, output = (
        _plain(capture, name, shapes[0], network.dtype) if len(shapes) == 1 else None
        for name, shapes in (("input", takes), ("output", gives))
    )
    return Lifted(layers[0] if len(layers) == 1 else network, x, output)


def split(capture: Capture) -> list[Capture]:
    """A capture for each layer: its jobs, and those that moved its coefficients before."""
    out: list[Capture] = []
    try:
        found = nodes(capture)
    except Unsupported:
        return [capture]
    for number, node in enumerate(found):
        moved = parts_of(capture, node.operation) if node.operation.weighs else ()
        tasks = sorted({*node.tasks, *(task for part in moved for task in part.moved)})
        out.append(
            replace(
                capture,
                name=f"{capture.name}-{number}",
                buffers={
                    name: data for name, data in capture.buffers.items() if name == "coefficients"
                },
                jobs=tuple(capture.jobs[task] for task in tasks),
            )
        )
    if len(out) > 1:
        return out
    return [capture]


def outline(subject: Capture | Layer) -> Mapping[str, Any]:
    """What tells one layer from another: outputs, kernel, stride, bounds of the output, zero
    points,
    and checksums of weights, biases and multipliers; nothing of what is not lifted."""
    if isinstance(subject, Capture):
        try:
            return outline(lift(subject).layer)
        except ValueError:
            return {}
    if (
        not isinstance(subject, Conv2D | FullyConnected | Pool2D | Add)
        or subject.dtype not in CODES
    ):
        return {}
    out: dict[str, Any] = {"outputs": math.prod(subject.output_shape)}
    if not isinstance(subject, FullyConnected):  # which may be run as a convolution
        out["operation"] = subject.op
    if isinstance(subject, Conv2D | Pool2D):
        steps = zip(subject.stride, subject.output_shape, strict=False)
        out |= {
            "kernel": subject.kernel,
            "stride": tuple(step * (size > 1) for step, size in steps),
            "rows and columns before": tuple(before for before, _ in subject.pads),
        }
    out["range"] = clamp_range(subject, subject.dtype)
    if isinstance(subject, Add):
        for name, q in (("first", subject.input_q), ("second", subject.other_q)):
            out[f"scale of the {name}"] = q.scale / subject.output_q.scale  # type: ignore[operator]
            out[f"zero point of the {name}"] = q.zero_point
    if isinstance(subject, Conv2D | FullyConnected):
        weights = subject.weights.astype(np.int16) - subject.weight_q.zero_point
        # a model's fully connected layer has the product of two scales in float32
        by = (
            rule("gemmlowp:P")
            if subject.op == "fully_connected" and subject.input_q.scale != 1
            else RULE
        )
        factors = np.stack(multipliers(subject, by, 0, len(subject.bias)))
        sums = {"weights": weights, "biases": subject.bias, "multipliers": factors}
        out |= {
            "input zero point": subject.input_q.zero_point,
            "output zero point": subject.output_q.zero_point,
            **{
                f"checksum of {name}": crc32(values.astype("<i8").tobytes())
                for name, values in sums.items()
            },
        }
    return out


def nodes(capture: Capture) -> list[Node]:
    """The operations of a capture and what each reads.

    Raises Unsupported for an operation that reads parts of tensors, or a tensor in a ring of rows.
    """
    out: list[Node] = []
    written: list[tuple[Tensor, int]] = []
    given: list[tuple[int, int]] = []
    for operation in operations(capture):
        v, reads = operation.first, [operation.tensor("IFM")]
        if v.command == "elementwise":
            reads.append(operation.tensor("IFM2"))
        sources = [_source(one, written, given) for one in reads]
        to, info = operation.tensor("OFM"), np.iinfo(reads[0].dtype)
        bounds = max(v["ACTIVATION_MIN"], info.min), min(v["ACTIVATION_MAX"], info.max)
        number, before = sources[0], out[sources[0]] if sources[0] >= 0 else None
        if before and _clamps(v):
            bounds = max(bounds[0], before.bounds[0]), min(bounds[1], before.bounds[1])
            out[number] = before._replace(
                bounds=bounds, zero=v["OFM_ZERO_POINT"], tasks=before.tasks + operation.tasks
            )
            to = to._replace(shape=before.operation.tensor("OFM").shape)
        else:
            if before:
                whole = before.operation.tensor("OFM").shape
            else:
                whole = _given(capture, reads[0])
            # the zero point of a mean is not written, but where an activation begins
            zero = v["OFM_ZERO_POINT"]
            if v.command == "pool":
                if before:
                    zero = before.zero
                else:
                    zero = zero or bounds[0] * (bounds[0] > info.min)
            number, shape = len(out), _uncut(operation, reads[0], whole)
            out.append(
                Node(operation, operation.tasks, tuple(sources), shape, bounds, zero, to.dtype)
            )
        written = [
            (one, by)
            for one, by in written
            if one.region != to.region or one.end <= to.base or to.end <= one.base
        ] + [(to, number)]
    return out


def _source(read: Tensor, written: list[tuple[Tensor, int]], given: list[tuple[int, int]]) -> int:
    """The node that wrote what is read, or -1 - n for the n-th tensor that none did."""
    found = [
        (one, number)
        for one, number in written
        if one.region == read.region and one.base < read.end and read.base < one.end
    ]
    if not found:
        at = read.region, read.base
        given += [at] * (at not in given)
        return -1 - given.index(at)
    one, number = found[-1]
    same = (one.row, one.step, one.shape[2]) == (read.row, read.step, read.shape[2]) or math.prod(
        one.shape
    ) == math.prod(read.shape)
    _refuse(
        len(found) > 1 or one.base != read.base or not same or read.end > one.end,
        f"a tensor {read.shape} that is a part of others",
        f"is a whole one, as {one.shape}",
    )
    return number


def _given(capture: Capture, read: Tensor) -> Shape3:
    """The shape of a network's input: as many rows as its buffer has."""
    rows = len(capture.buffers.get("input", b"")) // (read.width * read.shape[2])
    return max(rows, read.shape[0]), read.width, read.shape[2]


def _uncut(operation: Operation, read: Tensor, whole: Shape3) -> Shape3:
    """The shape of an input with the rows and columns that a stride never reaches, which jobs leave
    out; of a sum that of the tensor it takes, as jobs fold rows and columns."""
    if operation.first.command == "elementwise":
        if math.prod(whole) == math.prod(read.shape):
            return whole
        return read.shape
    stride, outputs = operation.first.pair(STRIDE), operation.tensor("OFM").shape
    high, wide = (
        size if used <= size and (count == 1 or size < used + step) else used
        for size, used, step, count in zip(whole[:2], read.shape, stride, outputs, strict=False)
    )
    return high, wide, read.shape[2]


def _clamps(v: Words) -> bool:
    """Whether an operation copies its input and narrows it: an activation apart from its layer."""
    return (
        v.command == "pool"
        and POOLS.get(v["OP.mode"]) == "average"
        and v.pair(KERNEL) == (1, 1) == v.pair(STRIDE)
        and (v["OFM_SCALE"], v["OFM_SCALE_SHIFT"]) == UNIT_COUNTS
        and v["IFM_ZERO_POINT"] == v["OFM_ZERO_POINT"]
    )


# Layers


def _layer(capture: Capture, found: list[Node], number: int, scales: dict[int, float]) -> Layer:
    """The layer of a node; those that take its output come first, and ``scales`` are of their
    inputs."""
    node, v = found[number], found[number].operation.first
    expect(v, PLAIN, SO_FAR.format("{got} in {name}", "is {allowed}"), Unsupported)
    _refuse(
        v["OFM_HEIGHT0_M1"] < v["OFM_HEIGHT_M1"] or v["OFM_WIDTH0_M1"] < v["OFM_WIDTH_M1"],
        "an output in a ring of rows",
        "is one in one piece",
    )
    dtype, scale = node.dtype, scales.setdefault(number, _natural(found, number))
    name = _activation(node, scale)[0]
    output_q = QuantParams(scale, node.zero)
    if v.command == "elementwise":
        return _addition(node, name, output_q, scales, number)
    if v.command == "pool":
        before = scale
    else:
        before = _natural(found, node.sources[0])
    before = scales.setdefault(node.sources[0], before)
    kernel, expected = v.pair(KERNEL), node.operation.tensor("OFM").shape
    # words of a single step need not say how wide it is
    down, across = (
        step if count > 1 else max(step, size - used + 1)
        for step, count, size, used in zip(
            v.pair(STRIDE), expected, node.shape, node.operation.tensor("IFM").shape, strict=False
        )
    )
    depthwise = v.command == "depthwise"
    border = tuple(
        (v[f"IFM_PAD_{first}"], v[f"IFM_PAD_{last}"])
        for first, last in (("TOP", "BOTTOM"), ("LEFT", "RIGHT"))
    )
    input_q = QuantParams(before, node.zero if v.command == "pool" else v["IFM_ZERO_POINT"])
    if v.command == "pool":
        layer: Layer = Pool2D(
            _kind(v), kernel, node.shape, (down, across), border, name, input_q, dtype=dtype
        )
    else:
        expect(v, PER_CHANNEL, SO_FAR.format("{got} in {name}", "is {allowed}"), Unsupported)
        weights, records = weights_and_records(capture, node.operation)
        ratio = records.multiplier * 2.0**-records.right_shift
        _refuse(
            not np.array_equal(
                RULE.of_ratio(ratio), (records.multiplier, records.right_shift - BITS)
            ),
            "a multiplier and shift that no ratio has",
            "are 2**30 to 2**31 - 1 and 1 to 62",
        )
        zero = 0
        if dtype == "uint8":
            zero = SIGNED
        codes = weights.astype(np.int64) + zero
        _refuse(
            codes.min() < np.iinfo(dtype).min or codes.max() > np.iinfo(dtype).max,
            f"weights of {weights.min()} to {weights.max()}",
            f"are those of {dtype} with a zero point of {zero}",
        )
        one = tuple((ratio * scale / before).tolist())
        weight_q = QuantParams(one if len({*one}) > 1 else one[0], zero)
        apart = v.pair("KERNEL_STRIDE.dilation_{1}_m1")
        layer = Conv2D(
            codes.astype(dtype),
            records.bias,
            node.shape,
            (down, across),
            border,
            apart,
            depthwise,
            name,
            input_q,
            weight_q,
            output_q,
        )
        if node.shape[:2] == kernel == (1, 1) == layer.output_shape[:2] and not depthwise:
            layer = FullyConnected(
                layer.weights[:, 0, 0], layer.bias, name, input_q, weight_q, output_q
            )
    if layer.output_shape not in (expected, expected[2:]):
        raise ValueError(
            f"task {node.tasks[0]}: got an output of {expected}, allowed with {layer!r} "
            f"is {layer.output_shape}"
        )
    return layer


def _natural(found: list[Node], number: int) -> float:
    """The scale that a node has if nothing else says it: that of the tensor that a pool takes, one
    that a sum allows, else what its activation asks for."""
    while number >= 0 and found[number].operation.first.command == "pool":
        number = found[number].sources[0]
    if number < 0:
        return 1.0
    v, asked = found[number].operation.first, _activation(found[number])[1]
    if v.command == "elementwise":
        return _sum_scales(v, asked)[2]
    return asked


def _activation(node: Node, scale: float | None = None) -> tuple[str | None, float]:
    """The activation that narrows codes to a node's bounds, and the scale that it asks for;
    Unsupported if none does, with a scale that is known."""
    far = max(node.bounds[1] - node.zero, node.zero - node.bounds[0], 1)
    for name, scales in ((None, 1.0), ("relu", 1.0), ("relu6", 6 / far), ("relu_n1_to_1", 1 / far)):
        q = QuantParams(scale or scales, node.zero)
        probe = Pool2D("max", (1, 1), (1, 1, 1), activation=name, input_q=q, dtype=node.dtype)
        if clamp_range(probe, node.dtype) == node.bounds:
            return name, float(np.ravel(q.scale)[0])
    raise Unsupported(
        SO_FAR.format(
            f"outputs within {node.bounds} of zero point {node.zero}",
            (f"are bounds of an activation with scale {scale or 'any'}"),
        )
    )


def _kind(v: Words) -> str:
    """Which pool it is; Unsupported for one whose outputs are scaled."""
    kind, written = POOLS.get(v["OP.mode"], ""), (v["OFM_SCALE"], v["OFM_SCALE_SHIFT"])
    ratio = written[0] * 2.0 ** -written[1] * math.prod(v.pair(KERNEL))
    # a little above the mean, so that halves below 0 go down as those above 0 go up
    mean = 1 < ratio < 1 + 2.0**-28 and v["OFM_PRECISION.rounding"] == NATURAL
    _refuse(
        not kind or not (written == UNIT_COUNTS or (kind == "average" and mean)),
        f"pool {v['OP.mode']} with multiplier and shift {written}",
        "are maximum and mean",
    )
    return kind


def _addition(
    node: Node, name: str | None, output_q: QuantParams, scales: dict[int, float], number: int
) -> Add:
    """The sum of two tensors: the larger scale is halved, the other multiplied, then their sum."""
    v = node.operation.first
    scaled = v["IFM_PRECISION.scale_mode"] - 1  # the one of the two that OPA_SCALE is for
    same = node.operation.tensor("IFM").shape == node.operation.tensor("OFM").shape and not any(
        v[f"IFM2_BROADCAST.broadcast_{axis}"] for axis in BROADCASTS
    )
    _refuse(
        v["OP.mode"] != ADD or scaled not in (0, 1) or not same,
        f"elementwise operation {v['OP.mode']}",
        f"is {ADD}, a sum of two tensors of one shape with 32 bits of scale,",
    )
    small, large, out = _sum_scales(v, scales[number])
    mine = (small, large)[:: 1 - 2 * scaled]
    known = [scales.setdefault(source, one) for source, one in zip(node.sources, mine, strict=True)]
    _refuse(
        [*known, scales[number]] != [*mine, out],
        "sums of tensors whose scales other layers state",
        "is one",
    )
    first, second = map(QuantParams, mine, (v["IFM_ZERO_POINT"], v["IFM2_ZERO_POINT"]))
    return Add(node.shape, name, first, second, output_q, node.dtype)


def _sum_scales(v: Words, asked: float) -> tuple[float, float, float]:
    """Scales of float32 (of the input with the smaller one, of the other, of the output, from the
    one asked for on) that give a sum's multipliers; Unsupported if none do."""
    small, out = ((v[name], v[f"{name}_SHIFT"]) for name in ("OPA_SCALE", "OFM_SCALE"))
    wanted = np.array([*small, *out])[:, None] + [[0], [LEFT - BITS], [0], [-BITS]]
    for start in range(0, 2**22, 2**14):
        outputs = _single(asked * (1 + np.arange(start, start + 2**14) / 2**23))
        larger = _single(out[0] * 2.0 ** (LEFT - 1 - out[1]) * outputs)
        smaller = _single(small[0] * 2.0 ** (1 - LEFT - small[1]) * larger)
        made = np.stack(
            [*RULE.of_ratio(smaller / (2 * larger)), *RULE.of_ratio(2 * larger / outputs / 2**LEFT)]
        )
        fits = (made == wanted).all(0)
        if fits.any():
            at = int(np.argmax(fits))
            return float(smaller[at]), float(larger[at]), float(outputs[at])
    raise Unsupported(SO_FAR.format("a sum whose multipliers no scales have", "are those of some"))


def _refuse(wrong: Any, got: str, allowed: str) -> None:
    if wrong:
        raise Unsupported(SO_FAR.format(got, allowed))


def _single(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).astype(np.float64)


def _plain(capture: Capture, name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray | None:
    """The tensor in a buffer; ValueError if it has another size."""
    if name not in capture.buffers:
        return None
    return np.frombuffer(buffer_of(capture, name, math.prod(shape)), dtype).reshape(shape)
