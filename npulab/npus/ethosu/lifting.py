"""Lifts layers from a compiler's jobs: finds each operation and the tensors that it reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy import ndarray as Array

from npulab.npus.ethosu.coefficients import parts_of, weights_and_records
from npulab.npus.ethosu.operations import ADD, POOLS, Operation, Shape3, Tensor, Words, operations
from npulab.npus.ethosu.rules import RULE
from npulab.npus.kit import SIGNED, Capture, Lifted, Unsupported, buffer_of, expect
from npulab.quant.emulate.engines import clamp_range, multipliers
from npulab.quant.layers import Add, Conv2D, FullyConnected, Layer, Network, Pool2D, QuantParams
from npulab.quant.rules import rule

KERNEL, STRIDE = "KERNEL_{}_M1", "KERNEL_STRIDE.stride_{1}_m1"
SO_FAR = "lift for ethosu: got {}, allowed {} so far"
EXPECTED = SO_FAR.format("{got} in {name}", "is {allowed}")
# The values of fields that a lift allows. PLAIN: of jobs of every layer. PER_CHANNEL: of jobs with
# a multiplier per channel and double rounding.
PLAIN = {"IFM_UPSCALE.mode": (0,), "ACTIVATION.type": (0,)}
PER_CHANNEL = {"OFM_PRECISION.scaling": (0,), "OFM_PRECISION.rounding": (0,)}
NATURAL = 2  # the value of OFM_PRECISION.rounding in jobs that compute a mean
BROADCASTS = ("height", "width", "depth", "scalar")
CODES = ("int8", "uint8")
Properties = dict[str, Any]
Pair = tuple[int, int]
# The multiplier and shift of an average pool for which the unit counts the cells of each window.
UNIT_COUNTS = (1, 0)
BITS = RULE.fraction_bits
LEFT = 20  # an addition shifts 8-bit codes to the left by this many bits

# `_sum_scales` tries STEPS scales for a sum's output: the first times 1 + n / FRACTION, which are
# neighbours in float32, up to 1.5 times the first. BLOCK are tried at a time, as many as fit into
# the processor's cache.
STEPS, BLOCK, FRACTION = 2**22, 2**14, 2**23


class Node(NamedTuple):
    """A layer of the network as its jobs show it: an operation, its tasks, and what it reads.

    ``sources`` are the numbers of the nodes whose outputs it reads, or -1 - n for input n of the
    network. ``shape`` is the shape of its first input. ``bounds`` are the least and greatest code
    of its output, ``zero`` is the output's zero point, ``dtype`` its type.
    """

    operation: Operation
    tasks: tuple[int, ...]
    sources: tuple[int, ...]
    shape: Shape3
    bounds: Pair
    zero: int
    dtype: str


def lift(capture: Capture) -> Lifted:
    """Return the layer or the network of a capture's jobs, its input and output.

    Jobs state only ratios of scales. So a tensor whose scale follows from nothing else has scale 1,
    and the weights' scale is the ratio times output scale / input scale. The buffers ``input`` and
    ``output`` are in the order rows, columns, channels. Raises Unsupported for jobs that are not
    lifted yet, ValueError for words or streams that are not a layer's.
    """
    found = nodes(capture)
    # Layers are lifted from the last to the first, because a tensor's scale may follow from the
    # layer that reads the tensor.
    scales: dict[int, float] = {}
    layers: list[Layer] = []
    for number in reversed(range(len(found))):
        layers.insert(0, _layer(capture, found, number, scales))
    sources = tuple(node.sources for node in found)
    ends = tuple(sorted(set(range(len(found))).difference(*sources)))
    network = Network(tuple(layers), sources, ends)
    outputs = [layers[number].output_shape for number in ends]
    x = _buffer(capture, "input", network.input_shapes, network.dtype)
    output = _buffer(capture, "output", outputs, network.dtype)
    if len(layers) == 1:
        return Lifted(layers[0], x, output)
    return Lifted(network, x, output)


def split(capture: Capture) -> list[Capture]:
    """Return a capture for each layer: its jobs, and the DMA jobs that moved its coefficients. A
    capture of a single layer, or of jobs that are not lifted yet, is returned as it is."""
    try:
        found = nodes(capture)
    except Unsupported:
        return [capture]
    kept = {name: data for name, data in capture.buffers.items() if name == "coefficients"}
    captures = []
    for number, node in enumerate(found):
        tasks = set(node.tasks)
        if node.operation.weighs:
            for part in parts_of(capture, node.operation):
                tasks.update(part.moved)
        jobs = tuple(capture.jobs[task] for task in sorted(tasks))
        name = f"{capture.name}-{number}"
        captures.append(replace(capture, name=name, buffers=kept, jobs=jobs))
    if len(captures) > 1:
        return captures
    return [capture]


def outline(subject: Capture | Layer) -> Mapping[str, Any]:
    """Return properties, by name, that tell layers apart, such as the number of outputs, kernel,
    stride, bounds of the output, zero points, and checksums of weights, biases and multipliers. The
    result is empty for a capture or kind of layer that cannot be lifted."""
    if isinstance(subject, Capture):
        try:
            return outline(lift(subject).layer)
        except ValueError:
            return {}
    if not isinstance(subject, Conv2D | FullyConnected | Pool2D | Add):
        return {}
    if subject.dtype not in CODES:
        return {}
    properties: Properties = {"outputs": math.prod(subject.output_shape)}
    # A fully connected layer may be run as a convolution, so its outline does not state its kind.
    if not isinstance(subject, FullyConnected):
        properties["operation"] = subject.op
    if isinstance(subject, Conv2D | Pool2D):
        properties |= _window_outline(subject)
    properties["range"] = clamp_range(subject, subject.dtype)
    if isinstance(subject, Add):
        properties |= _sum_outline(subject)
    if isinstance(subject, Conv2D | FullyConnected):
        properties |= _weights_outline(subject)
    return properties


def _window_outline(layer: Conv2D | Pool2D) -> Properties:
    """Return kernel, stride and the padding above and to the left, by name. The stride is 0 along
    an axis with a single output, because any stride computes the same."""
    steps = list(layer.stride)
    for axis in range(2):
        if layer.output_shape[axis] == 1:
            steps[axis] = 0
    before = (layer.pads[0][0], layer.pads[1][0])
    return {"kernel": layer.kernel, "stride": tuple(steps), "rows and columns before": before}


def _sum_outline(layer: Add) -> Properties:
    """Return, for each of a sum's two inputs, its scale divided by the output's scale and its zero
    point, by name.
    """
    properties: Properties = {}
    for name, q in (("first", layer.input_q), ("second", layer.other_q)):
        ratio = q.scale / layer.output_q.scale  # type: ignore[operator]
        properties[f"scale of the {name}"] = ratio
        properties[f"zero point of the {name}"] = q.zero_point
    return properties


def _weights_outline(layer: Conv2D | FullyConnected) -> Properties:
    """Return zero points, and checksums of weights, biases and multipliers, by name."""
    # The multiplier of a fully connected layer of a model is made from a product of scales in
    # float32. A lifted layer, whose scales are ratios, has input scale 1.
    if layer.op == "fully_connected" and layer.input_q.scale != 1:
        factors = multipliers(layer, rule("gemmlowp:P"), 0, len(layer.bias))
    else:
        factors = multipliers(layer, RULE, 0, len(layer.bias))
    weights = layer.weights.astype(np.int16) - layer.weight_q.zero_point
    properties: Properties = {
        "input zero point": layer.input_q.zero_point,
        "output zero point": layer.output_q.zero_point,
    }
    summed = {"weights": weights, "biases": layer.bias, "multipliers": np.stack(factors)}
    for name, values in summed.items():
        data = values.astype("<i8").tobytes()
        properties[f"checksum of {name}"] = crc32(data)
    return properties


# Nodes


def nodes(capture: Capture) -> list[Node]:
    """Return a node for each layer of a capture, in order.

    An operation that only clamps its input becomes part of the node that wrote the input. Raises
    Unsupported for an operation that reads a part of a tensor or several tensors at once.
    """
    found: list[Node] = []
    written: list[tuple[Tensor, int]] = []
    given: list[Pair] = []
    for operation in operations(capture):
        v = operation.first
        reads = [operation.tensor("IFM")]
        if v.command == "elementwise":
            reads.append(operation.tensor("IFM2"))
        sources = tuple(_source(read, written, given) for read in reads)
        number = sources[0]
        before = None
        if number >= 0:
            before = found[number]
        output = operation.tensor("OFM")
        if before and _clamps(v):
            found[number] = _clamped(before, operation)
            output = output._replace(shape=before.operation.tensor("OFM").shape)
        else:
            number = len(found)
            found.append(_node(capture, operation, sources, before))
        written = [entry for entry in written if not entry[0].overlaps(output)]
        written.append((output, number))
    return found


def _source(read: Tensor, written: list[tuple[Tensor, int]], given: list[Pair]) -> int:
    """Return the number of the node that wrote the tensor ``read``, or -1 - n for input n of the
    network. ``written`` are tensors with the node that wrote them, ``given`` the places of the
    inputs found so far."""
    found = [entry for entry in written if entry[0].overlaps(read)]
    if not found:
        place = (read.region, read.base)
        if place not in given:
            given.append(place)
        return -1 - given.index(place)
    tensor, number = found[-1]
    same = (tensor.row, tensor.step, tensor.shape[2]) == (read.row, read.step, read.shape[2])
    # The jobs of a sum may state other rows and columns, so only the number of elements must agree.
    same = same or math.prod(tensor.shape) == math.prod(read.shape)
    within = tensor.base == read.base and read.end <= tensor.end
    if len(found) > 1 or not same or not within:
        raise _unsupported(
            f"an operation that reads a tensor {read.shape} other than those that were written",
            f"is a whole written tensor such as {tensor.shape}",
        )
    return number


def _clamps(v: Words) -> bool:
    """Return true if an operation only clamps its input: a 1x1 average pool for an activation that
    the layer's own jobs do not compute."""
    if v.command != "pool" or POOLS.get(v["OP.mode"]) != "average":
        return False
    single = v.pair(KERNEL) == (1, 1) == v.pair(STRIDE)
    counts = (v["OFM_SCALE"], v["OFM_SCALE_SHIFT"]) == UNIT_COUNTS
    return single and counts and v["IFM_ZERO_POINT"] == v["OFM_ZERO_POINT"]


def _clamped(before: Node, operation: Operation) -> Node:
    """Return the node ``before`` with the bounds and the tasks of an operation that clamps its
    output."""
    low, high = _bounds(operation)
    bounds = (max(low, before.bounds[0]), min(high, before.bounds[1]))
    zero = operation.first["OFM_ZERO_POINT"]
    return before._replace(bounds=bounds, zero=zero, tasks=before.tasks + operation.tasks)


def _node(
    capture: Capture, operation: Operation, sources: tuple[int, ...], before: Node | None
) -> Node:
    """Return the node of an operation. ``before`` is the node that wrote its first input, None for
    an input of the network."""
    v = operation.first
    read = operation.tensor("IFM")
    bounds = _bounds(operation)
    zero = v["OFM_ZERO_POINT"]
    if before:
        whole = before.operation.tensor("OFM").shape
    else:
        # A network's input has as many rows as its buffer.
        size = len(capture.buffers.get("input", b""))
        rows = size // (read.width * read.shape[2])
        whole = (max(rows, read.shape[0]), read.width, read.shape[2])
    # No word of a pool states the output's zero point. It is that of the input or, for an input of
    # the network, the least code if an activation clamps below.
    if v.command == "pool":
        if before:
            zero = before.zero
        elif not zero and bounds[0] > np.iinfo(read.dtype).min:
            zero = bounds[0]
    shape = _uncut(operation, read, whole)
    dtype = operation.tensor("OFM").dtype
    return Node(operation, operation.tasks, sources, shape, bounds, zero, dtype)


def _bounds(operation: Operation) -> Pair:
    """Return the least and the greatest code of an operation's output."""
    v = operation.first
    limits = np.iinfo(operation.tensor("IFM").dtype)
    return max(v["ACTIVATION_MIN"], limits.min), min(v["ACTIVATION_MAX"], limits.max)


def _uncut(operation: Operation, read: Tensor, whole: Shape3) -> Shape3:
    """Return the shape of an operation's first input, including last rows and columns that no
    window reaches. ``read`` lacks them, because jobs leave them out; ``whole`` is the shape in
    memory.

    The jobs of a sum may state other rows and columns: its shape is ``whole`` if the number of
    elements agrees.
    """
    if operation.first.command == "elementwise":
        if math.prod(whole) == math.prod(read.shape):
            return whole
        return read.shape
    outputs = operation.tensor("OFM").shape
    sizes = list(read.shape)
    for axis, stride in enumerate(operation.first.pair(STRIDE)):
        skipped = whole[axis] - sizes[axis]
        if skipped >= 0 and (outputs[axis] == 1 or skipped < stride):
            sizes[axis] = whole[axis]
    return sizes[0], sizes[1], sizes[2]


# Layers


def _layer(capture: Capture, found: list[Node], number: int, scales: dict[int, float]) -> Layer:
    """Return the layer of node ``number``, and add the scales of its inputs to ``scales``.

    The layers that read the node's output have to be lifted before, because the output's scale may
    follow from them.
    """
    node = found[number]
    v = node.operation.first
    expect(v, PLAIN, EXPECTED, Unsupported)
    if v["OFM_HEIGHT0_M1"] < v["OFM_HEIGHT_M1"] or v["OFM_WIDTH0_M1"] < v["OFM_WIDTH_M1"]:
        raise _unsupported("an output in a ring of rows", "is an output in one piece")
    scale = scales.setdefault(number, _natural(found, number))
    activation, _ = _activation(node, scale)
    source = node.sources[0]
    if v.command == "elementwise":
        return _addition(node, activation, scale, scales)
    if v.command == "pool":
        # A pool keeps the scale and the zero point of its input.
        input_q = QuantParams(scales.setdefault(source, scale), node.zero)
        layer = _pool(node, activation, input_q)
    else:
        natural = _natural(found, source)
        input_q = QuantParams(scales.setdefault(source, natural), v["IFM_ZERO_POINT"])
        layer = _convolution(capture, node, activation, input_q, QuantParams(scale, node.zero))
    expected = node.operation.tensor("OFM").shape
    if layer.output_shape not in (expected, expected[2:]):
        raise ValueError(
            f"task {node.tasks[0]}: got an output of shape {expected}, allowed with {layer!r} "
            f"is {layer.output_shape}"
        )
    return layer


def _natural(found: list[Node], number: int) -> float:
    """Return the scale that a node's output gets if no layer that reads it states a scale.

    The output of a pool has the scale of its input, that of a sum a scale that its multipliers
    allow, any other the scale that its activation asks for. An input of the network has scale 1.
    """
    while number >= 0 and found[number].operation.first.command == "pool":
        number = found[number].sources[0]
    if number < 0:
        return 1.0
    v = found[number].operation.first
    _, asked = _activation(found[number])
    if v.command == "elementwise":
        return _sum_scales(v, asked)[2]
    return asked


def _activation(node: Node, scale: float | None = None) -> tuple[str | None, float]:
    """Return the activation that clamps to a node's bounds, and the scale of the output: ``scale``
    if it is known, else the scale at which the activation gives these bounds. Raises Unsupported
    if there is no such activation."""
    low, high = node.bounds
    reach = max(high - node.zero, node.zero - low, 1)
    asked = {None: 1.0, "relu": 1.0, "relu6": 6 / reach, "relu_n1_to_1": 1 / reach}
    for name, asked_scale in asked.items():
        used = scale or asked_scale
        q = QuantParams(used, node.zero)
        probe = Pool2D("max", (1, 1), (1, 1, 1), activation=name, input_q=q, dtype=node.dtype)
        if clamp_range(probe, node.dtype) == node.bounds:
            return name, used
    raise _unsupported(
        f"output codes within {node.bounds} with zero point {node.zero}",
        f"are the bounds of an activation (scale: {scale or 'any'})",
    )


class Window(NamedTuple):
    """The size of a node's windows (``kernel``) and the steps between them (``stride``), each
    (height, width); ``padding`` as in Conv2D."""

    kernel: Pair
    stride: Pair
    padding: tuple[Pair, Pair]


def _window(node: Node) -> Window:
    v = node.operation.first
    read = node.operation.tensor("IFM").shape
    outputs = node.operation.tensor("OFM").shape
    strides = list(v.pair(STRIDE))
    for axis in range(2):
        # A job with a single output row or column may state any stride. The layer's stride has to
        # be large enough to skip the input rows or columns that the job leaves out.
        if outputs[axis] == 1:
            strides[axis] = max(strides[axis], node.shape[axis] - read[axis] + 1)
    rows = (v["IFM_PAD_TOP"], v["IFM_PAD_BOTTOM"])
    columns = (v["IFM_PAD_LEFT"], v["IFM_PAD_RIGHT"])
    return Window(v.pair(KERNEL), (strides[0], strides[1]), (rows, columns))


def _pool(node: Node, activation: str | None, input_q: QuantParams) -> Layer:
    """Return the pool of a node. Raises Unsupported for a pool whose outputs are scaled, other than
    by the number of cells for a mean."""
    v = node.operation.first
    kind = POOLS.get(v["OP.mode"], "")
    kernel, stride, padding = _window(node)
    multiplier, shift = v["OFM_SCALE"], v["OFM_SCALE_SHIFT"]
    ratio = multiplier * 2.0**-shift * math.prod(kernel)
    # The multiplier of a mean is a little above 1 / cells of a window, so that halves below 0 are
    # rounded down and halves above 0 up.
    mean = 1 < ratio < 1 + 2.0**-28 and v["OFM_PRECISION.rounding"] == NATURAL
    unscaled = (multiplier, shift) == UNIT_COUNTS
    if not kind or not (unscaled or (kind == "average" and mean)):
        raise _unsupported(
            f"pool mode {v['OP.mode']} with multiplier and shift {(multiplier, shift)}",
            "are maximum and mean",
        )
    return Pool2D(kind, kernel, node.shape, stride, padding, activation, input_q, dtype=node.dtype)


def _convolution(
    capture: Capture,
    node: Node,
    activation: str | None,
    input_q: QuantParams,
    output_q: QuantParams,
) -> Layer:
    """Return the convolution of a node, or the fully connected layer that it runs."""
    v = node.operation.first
    expect(v, PER_CHANNEL, EXPECTED, Unsupported)
    weights, records = weights_and_records(capture, node.operation)
    ratios = records.multiplier * 2.0**-records.right_shift
    again = RULE.of_ratio(ratios)
    if not np.array_equal(again, (records.multiplier, records.right_shift - BITS)):
        raise _unsupported(
            "a multiplier and shift that no ratio of scales has",
            "are multipliers of 2**30 to 2**31 - 1 and shifts of 1 to 62",
        )
    zero = 0
    if node.dtype == "uint8":
        zero = SIGNED
    codes = weights.astype(np.int64) + zero
    limits = np.iinfo(node.dtype)
    if codes.min() < limits.min or codes.max() > limits.max:
        raise _unsupported(
            f"weights of {weights.min()} to {weights.max()}",
            f"are weights that {node.dtype} holds with a zero point of {zero}",
        )
    scales = ratios * np.asarray(output_q.scale) / np.asarray(input_q.scale)
    per_channel = tuple(scales.tolist())
    weight_q = QuantParams(per_channel, zero)
    if len(set(per_channel)) == 1:
        weight_q = QuantParams(per_channel[0], zero)
    kernel, stride, padding = _window(node)
    layer = Conv2D(
        codes.astype(node.dtype),
        records.bias,
        node.shape,
        stride,
        padding,
        v.pair("KERNEL_STRIDE.dilation_{1}_m1"),
        v.command == "depthwise",
        activation,
        input_q,
        weight_q,
        output_q,
    )
    single = node.shape[:2] == kernel == layer.output_shape[:2] == (1, 1)
    if layer.depthwise or not single:
        return layer
    matrix = layer.weights[:, 0, 0]
    return FullyConnected(matrix, layer.bias, activation, input_q, weight_q, output_q)


def _addition(
    node: Node, activation: str | None, output_scale: float, scales: dict[int, float]
) -> Add:
    """Return the layer of a node that adds two tensors.

    The unit halves the input with the larger scale and multiplies the other input by a factor; it
    multiplies their sum by another factor.
    """
    v = node.operation.first
    scaled = (
        v["IFM_PRECISION.scale_mode"] - 1
    )  # the number, 0 or 1, of the input that is multiplied
    same = node.operation.tensor("IFM").shape == node.operation.tensor("OFM").shape
    broadcast = any(v[f"IFM2_BROADCAST.broadcast_{axis}"] for axis in BROADCASTS)
    if v["OP.mode"] != ADD or scaled not in (0, 1) or not same or broadcast:
        raise _unsupported(
            f"elementwise mode {v['OP.mode']}",
            f"is mode {ADD}, a sum of two tensors of one shape of which one is scaled by 32 bits,",
        )
    small, large, output = _sum_scales(v, output_scale)
    needed = [small, large]
    if scaled == 1:
        needed.reverse()
    stated = list(map(scales.setdefault, node.sources, needed))
    if stated != needed or output != output_scale:
        raise _unsupported(
            "a sum whose tensors have other scales by other layers",
            "is a sum whose scales follow from it alone",
        )
    first = QuantParams(needed[0], v["IFM_ZERO_POINT"])
    second = QuantParams(needed[1], v["IFM2_ZERO_POINT"])
    output_q = QuantParams(output_scale, node.zero)
    return Add(node.shape, activation, first, second, output_q, node.dtype)


def _sum_scales(v: Words, asked: float) -> tuple[float, float, float]:
    """Return three float32 scales that give a sum's multipliers: of the input with the smaller
    scale, of the other input, and of the output. The output's is at least ``asked`` and as near to
    it as possible, below 1.5 times. Raises Unsupported if there are no such scales."""
    small, small_shift = v["OPA_SCALE"], v["OPA_SCALE_SHIFT"]
    out, out_shift = v["OFM_SCALE"], v["OFM_SCALE_SHIFT"]
    wanted = np.array([small, small_shift + LEFT - BITS, out, out_shift - BITS])
    for start in range(0, STEPS, BLOCK):
        steps = np.arange(start, start + BLOCK) / FRACTION
        outputs = _single(asked * (1 + steps))
        larger = _single(out * 2.0 ** (LEFT - 1 - out_shift) * outputs)
        smaller = _single(small * 2.0 ** (1 - LEFT - small_shift) * larger)
        of_small = RULE.of_ratio(smaller / (2 * larger))
        of_output = RULE.of_ratio(2 * larger / outputs / 2**LEFT)
        written = np.stack([*of_small, *of_output], -1)
        fits = (written == wanted).all(-1)
        if fits.any():
            first = int(np.argmax(fits))
            return float(smaller[first]), float(larger[first]), float(outputs[first])
    raise _unsupported(
        "a sum whose multipliers follow from no scales", "are multipliers made from float32 scales"
    )


def _single(values: Array) -> Array:
    """Return values rounded to float32, as float64."""
    return values.astype(np.float32).astype(np.float64)


def _unsupported(got: str, allowed: str) -> Unsupported:
    return Unsupported(SO_FAR.format(got, allowed))


def _buffer(
    capture: Capture, name: str, shapes: Sequence[tuple[int, ...]], dtype: str
) -> Array | None:
    """Return the tensor in the buffer ``name``; None if the capture has no such buffer or the
    network several tensors (``shapes``). Raises ValueError for a buffer of another size."""
    if name not in capture.buffers or len(shapes) != 1:
        return None
    data = buffer_of(capture, name, math.prod(shapes[0]))
    return np.frombuffer(data, dtype).reshape(shapes[0])
