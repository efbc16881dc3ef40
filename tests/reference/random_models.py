"""Random layers of one operator with their inputs: as wide as TensorFlow Lite allows, the same
for the same seed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npulab.quant.layers import POOLS, Add, Conv2D, FullyConnected, Layer, Pool2D, pads
from npulab.quant.rules import QuantParams

Random = np.random.RandomState
WEIGHTS = {
    "int8": "int8",
    "uint8": "uint8",
    "int16": "int8",
    "float32": "int8",
    "float16": "float16",
}
# how often each operator and type comes
SHARES = {
    ("conv", "int8"): 15,
    ("conv", "uint8"): 9,
    ("conv", "int16"): 7,
    ("conv", "float32"): 5,
    ("conv", "float16"): 2,
    ("depthwise", "int8"): 11,
    ("depthwise", "uint8"): 6,
    ("depthwise", "int16"): 5,
    ("depthwise", "float32"): 3,
    ("depthwise", "float16"): 2,
    ("fully_connected", "int8"): 9,
    ("fully_connected", "uint8"): 5,
    ("fully_connected", "int16"): 4,
    ("fully_connected", "float32"): 3,
    ("fully_connected", "float16"): 1,
    **{
        (f"{kind}_pool", dtype): 1
        for kind in POOLS
        for dtype in ("int8", "uint8", "int16", "float16")
    },
    ("add", "int8"): 4,
    ("add", "uint8"): 3,
    ("add", "int16"): 2,
    ("add", "float16"): 1,
}
KINDS = tuple(SHARES)
ACTIVATIONS = (None, None, None, "relu", "relu6", "relu_n1_to_1")
CHANNELS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 23, 24, 25, 31, 32, 33, 40, 63, 64, 65)
RESERVE = 2**31 - 2**24
WORK = 300_000  # products of an output map, about


def random_case(seed: int, kinds: tuple[tuple[str, str], ...] = KINDS) -> tuple[Layer, Any]:
    """(layer, input) of a seed; the input has a batch axis, an ``Add`` has a pair.

    ``kinds`` are (operator, type) to draw from, as in ``SHARES``.
    """
    random = Random(seed)
    weight = np.array([SHARES[kind] for kind in kinds], float)
    op, dtype = kinds[random.choice(len(kinds), p=weight / weight.sum())]
    if op == "add":
        return _add(random, dtype)
    if op.endswith("_pool"):
        return _pool(random, op.removesuffix("_pool"), dtype)
    return _sum(random, op, dtype)


def kind_of(layer: Layer) -> tuple[str, str]:
    """(operator, type) of a layer."""
    return layer.op, layer.dtype


def order_matters(layer: Layer, x: Any) -> bool:
    """Whether a float32 sum of float16 numbers may depend on the order in which it is taken."""
    if layer.dtype != "float16" or isinstance(layer, Add) or layer.op in ("max_pool", "min_pool"):
        return False
    if isinstance(layer, Pool2D):
        return True  # the mean is rounded before it is a float16 number
    x, weights, bias = (
        np.abs(one.astype(float) * 2.0**24).astype(np.int64)
        for one in (x, layer.weights, layer.bias)
    )
    of_products = int(np.gcd.reduce(x, axis=None)) * int(np.gcd.reduce(weights, axis=None))
    unit = math.gcd(of_products, int(np.gcd.reduce(bias)) * 2**24)
    by_output = np.moveaxis(weights, 3 if layer.op == "depthwise" else 0, 0).reshape(len(bias), -1)
    most = int(x.max()) * int(by_output.sum(axis=1).max()) + int(bias.max()) * 2**24
    return most > unit * 2**24


def _sum(random: Random, op: str, dtype: str) -> tuple[Layer, Any]:
    """Convolution, depthwise convolution or fully connected layer."""
    batch, activation = int(random.choice([1, 1, 2, 3])), _pick(random, ACTIVATIONS)
    if op == "fully_connected":
        inputs = int(random.choice([*CHANNELS, 100, 257, 1024, 1033, 2500, 5000]))
        shape, window, weights_shape = (inputs,), {}, (_pick(random, CHANNELS), inputs)
        batch = int(random.choice([1, 2, 3, 8, 17]))
    else:
        shape, window, weights_shape = _window(random, op)
    weights, weight_zero = _weights(random, dtype, weights_shape)
    x, input_zero = _input(random, dtype, (batch, *shape))
    axis = 3 if op == "depthwise" else 0
    by_output = np.moveaxis(weights, axis, 0).reshape(weights_shape[axis], -1)
    quantization, bias = (
        _real(random, dtype, by_output)
        if dtype in ("float32", "float16")
        else _scales(
            random,
            dtype,
            by_output.astype(float) - weight_zero,
            x.astype(float) - input_zero,
            activation,
        )
    )
    input_scale, weight_scale, output_scale, output_zero = quantization
    given = {
        "activation": activation,
        "dtype": dtype,
        "input_q": QuantParams(input_scale, input_zero),
        "weight_q": QuantParams(weight_scale, weight_zero),
        "output_q": QuantParams(output_scale, output_zero),
    }
    if op == "fully_connected":
        return FullyConnected(weights, bias, **given), x
    return Conv2D(weights, bias, shape, depthwise=op == "depthwise", **window, **given), x


def _window(
    random: Random, op: str
) -> tuple[tuple[int, int, int], dict[str, Any], tuple[int, ...]]:
    """(input shape, stride and the like, shape of the weights); the output is never empty."""
    channels, outputs = _pick(random, CHANNELS), _pick(random, CHANNELS)
    kernel = _pair(random, [1, 1, 2, 3, 3, 3, 4, 5, 7])
    size = _pair(random, [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14])
    draw = random.rand()
    if draw < 0.06:  # sums of more products than float32 holds whole
        channels, kernel, size = _pick(random, (120, 192, 260)), (3, 3), _pair(random, [3, 4, 5])
    multiplier = int(random.choice([1, 1, 1, 2, 3, 4, 8]))
    if draw > 0.99:  # more outputs than are worked on at a time
        channels, kernel, size, outputs, multiplier = (
            40,
            _pair(random, [1, 2]),
            _pair(random, [57, 80]),
            64,
            1,
        )
    elif op == "conv":
        outputs = max(1, min(outputs, WORK // (math.prod(kernel) * math.prod(size) * channels)))
    if op == "depthwise":
        outputs = channels * multiplier
    stride, dilation = _pair(random, [1, 1, 1, 2, 3]), (1, 1)
    if random.rand() < (0.3 if stride == (1, 1) else 0.1):
        dilation = _pair(random, [1, 2])
    padding = _padding(random, size, kernel, stride, dilation)
    shape = (1, *kernel, outputs) if op == "depthwise" else (outputs, *kernel, channels)
    return (*size, channels), {"stride": stride, "dilation": dilation, "padding": padding}, shape


def _padding(
    random: Random,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int] = (1, 1),
) -> Any:
    """A padding with which the window fits; numbers where nothing else does, or now and then."""
    reach = [(k - 1) * spread + 1 for k, spread in zip(kernel, dilation, strict=True)]
    allowed = ["same", "same"]
    if all(n >= need for n, need in zip(size, reach, strict=True)):
        allowed += ["valid", "valid"]
    padding = _pick(random, [*allowed, "explicit"])
    if padding != "explicit":
        return padding
    base = pads("same", size, kernel, stride, dilation)
    return tuple(
        (before + int(random.randint(3)), after + int(random.randint(3))) for before, after in base
    )


def _weights(random: Random, dtype: str, shape: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """(weights, zero point): of full range, or small, so that ratios of scales come near 1 and
    above.
    """
    kind = WEIGHTS[dtype]
    if kind == "float16":
        return _halves(random, shape, 6), 0
    zero = _zero_point(random, kind) if kind == "uint8" else 0
    most = 127 if random.rand() < 0.7 else int(2 ** random.uniform(0, 7))
    info = np.iinfo(kind)
    # the hybrid kernels of LiteRT take the sign of -128 wrong, and it is outside of TensorFlow
    # Lite's specification
    low = (
        -128
        if kind == "int8" and dtype != "float32" and most == 127 and random.rand() < 0.1
        else -most
    )
    return (zero + random.randint(low, most + 1, shape)).clip(info.min, info.max).astype(kind), zero


def _input(random: Random, dtype: str, shape: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """(input, zero point)."""
    if dtype == "float16":
        return _halves(random, shape, 6), 0
    if dtype == "float32":
        x = random.normal(size=shape) * 10 ** random.uniform(
            -3, 3, (shape[0], *[1] * (len(shape) - 1))
        )
        if random.rand() < 0.2:
            x = np.rint(x * 8) / 8
        return (x * (random.rand(shape[0]) > 0.1).reshape(-1, *[1] * (len(shape) - 1))).astype(
            np.float32
        ), 0
    zero, info = 0 if dtype == "int16" else _zero_point(random, dtype), np.iinfo(dtype)
    most = 2**16 if random.rand() < 0.7 else int(2 ** random.uniform(0, 7))
    low, high = max(info.min, zero - most), min(info.max, zero + most)
    return random.randint(low, high + 1, shape).astype(dtype), zero


def _scales(
    random: Random,
    dtype: str,
    weights: np.ndarray,
    x: np.ndarray,
    activation: str | None,
) -> tuple[tuple[float, Any, float, int], np.ndarray]:
    """((input, weight and output scale, output zero point), bias) with which outputs fill their
    range and more.

    ``weights`` are ``(O, I)``; weights and ``x`` are without zero points.
    """
    info, outputs = np.iinfo(dtype), len(weights)
    zero = 0 if dtype == "int16" else _zero_point(random, dtype)
    by_channel = dtype != "uint8" and random.rand() < 0.6
    spread = np.sqrt(np.mean(x**2) * weights.shape[1] * np.mean(weights**2, axis=1)) + 1
    wide = (int(info.max) - int(info.min)) * 2 ** random.uniform(-5, 1)
    draw = random.rand()
    aim = wide / spread * 2 ** random.uniform(-1, 1, outputs)
    if draw < 0.1:  # accumulators past 2**24, far past what the products give
        aim = wide * 2 ** random.uniform(-31, -20, outputs)
    elif draw < 0.2:
        aim = 1 + 2 ** random.uniform(-20, 1, outputs) * random.choice([-0.5, 1, 0], outputs)
    aim = aim if by_channel and random.rand() < 0.9 else aim[:1]
    input_scale, output_scale = (
        _float(2 ** random.uniform(-12, 2)),
        _output_scale(random, activation),
    )
    if random.rand() < 0.3:  # ties
        input_scale, output_scale = 2.0 ** random.randint(-10, 2), 2.0 ** random.randint(-8, 1)
        aim = 2 ** np.rint(np.log2(aim))
    aim = np.resize(
        aim.clip(2.0**-31, 64 if dtype == "int16" else 128), outputs if by_channel else 1
    )
    weight_scale = (aim * output_scale / input_scale).astype(np.float32).astype(float)
    middle = x.mean() * weights.sum(axis=1) * (random.rand() < 0.7)
    code = random.uniform(info.min - 0.2 * wide, info.max + 0.2 * wide, outputs)
    bias = np.rint((code - zero) / aim - middle)
    most = np.abs(weights).sum(axis=1) * np.abs(x).max()
    # LiteRT's kernels differ by processor where an output, before the clamp, does not fit 32 bits
    limit = np.maximum(
        np.minimum(2.0**45 if dtype == "int16" else RESERVE, RESERVE / aim) - most, 0
    )
    if random.rand() < 0.05:
        bias = np.where(
            random.rand(outputs) < 0.5, np.rint(random.uniform(-1, 1, outputs) * limit), bias
        )
    bias = bias.clip(-limit, limit).astype(np.int64)
    return (
        input_scale,
        tuple(weight_scale.tolist()) if by_channel else weight_scale.item(),
        output_scale,
        zero,
    ), bias


def _real(
    random: Random, dtype: str, weights: np.ndarray
) -> tuple[tuple[float, Any, float, int], np.ndarray]:
    """As ``_scales``, for a layer whose outputs are real: hybrid or float16."""
    if dtype == "float16":
        return (1.0, 1.0, 1.0, 0), _halves(random, (len(weights),), 8)
    by_channel = random.rand() < 0.5
    scale = [_float(one) for one in 2 ** random.uniform(-12, 0, len(weights))]
    scale = scale[:1] * len(weights) if random.rand() < 0.1 else scale
    bias = random.normal(size=len(weights)) * 10 ** random.uniform(-2, 3) * (random.rand() < 0.9)
    return (1.0, tuple(scale) if by_channel else scale[0], 1.0, 0), bias.astype(np.float32)


def _pool(random: Random, kind: str, dtype: str) -> tuple[Layer, Any]:
    shape = (*_pair(random, [1, 2, 3, 4, 5, 7, 8, 12, 16]), _pick(random, CHANNELS))
    kernel = _pair(random, [1, 2, 2, 3, 3, 4, 5, 7])
    if random.rand() < 0.15:
        kernel = shape[:2]
    stride, activation = _pair(random, [1, 2, 2, 3]), _pick(random, ACTIVATIONS)
    padding = _padding(random, shape[:2], kernel, stride)
    if not isinstance(
        padding, str
    ):  # an average has none in a .tflite, and no window lies in the border
        padding = (
            "same"
            if kind == "average"
            else tuple(
                (min(before, k - 1), min(after, k - 1))
                for (before, after), k in zip(padding, kernel, strict=True)
            )
        )
    shape_of_all = (int(random.choice([1, 1, 2, 3])), *shape)
    if dtype == "float16":
        return Pool2D(kind, kernel, shape, stride, padding, activation, dtype=dtype), _halves(
            random, shape_of_all, 10
        )
    zero, info = _zero_point(random, dtype), np.iinfo(dtype)
    x = random.randint(info.min, info.max + 1, shape_of_all).astype(dtype)
    return Pool2D(
        kind,
        kernel,
        shape,
        stride,
        padding,
        activation,
        QuantParams(_output_scale(random, activation), zero),
        dtype=dtype,
    ), x


def _add(random: Random, dtype: str) -> tuple[Layer, Any]:
    shape = (*_pair(random, [1, 2, 3, 5, 8]), _pick(random, CHANNELS))[random.randint(3) :]
    activation, batch = _pick(random, ACTIVATIONS), int(random.choice([1, 2, 3]))
    shape_of_all = (batch, *shape)
    if dtype == "float16":
        return Add(shape, activation, dtype=dtype), (
            _halves(random, shape_of_all, 10),
            _halves(random, shape_of_all, 10),
        )
    zeros = [0 if dtype == "int16" else _zero_point(random, dtype) for _ in range(3)]
    output_scale, info = _output_scale(random, activation), np.iinfo(dtype)
    aim = 2 ** random.uniform(-13, 10, 2) if random.rand() < 0.3 else 2 ** random.uniform(-2, 1, 2)
    if random.rand() < 0.3:
        output_scale, aim = 2.0 ** random.randint(-8, 1), 2 ** np.rint(np.log2(aim))
    scales = [_float(one) for one in aim * output_scale]
    if random.rand() < 0.15:
        scales[1] = scales[0]
    pair = tuple(
        random.randint(info.min, info.max + 1, shape_of_all).astype(dtype) for _ in range(2)
    )
    q = [
        QuantParams(scale, zero) for scale, zero in zip([*scales, output_scale], zeros, strict=True)
    ]
    return Add(shape, activation, *q, dtype=dtype), pair


def _halves(random: Random, shape: tuple[int, ...], bits: int) -> np.ndarray:
    """float16 numbers: of so few bits that float32 holds a sum of many products whole, or of all
    magnitudes.
    """
    if random.rand() < 0.3:
        return (random.normal(size=shape) * 2 ** random.uniform(-12, 5, shape)).astype(np.float16)
    unit = 2.0 ** random.randint(-6, 1)
    return (random.randint(-(2 ** (bits - 1)), 2 ** (bits - 1) + 1, shape) * unit).astype(
        np.float16
    )


def _output_scale(random: Random, activation: str | None) -> float:
    """Now and then one that puts the activation's bound on a tie, or next to it."""
    if activation not in ("relu6", "relu_n1_to_1"):
        return _float(2 ** random.uniform(-10, 2))
    real = {"relu6": 6, "relu_n1_to_1": 1}[activation]
    if random.rand() < 0.5:
        return _float(real / 2 ** random.uniform(1, 8))
    tie = np.float32(real / (random.randint(1, 120) + 0.5))
    return float(tie + np.spacing(tie) * random.randint(-2, 3))


def _zero_point(random: Random, dtype: str) -> int:
    info = np.iinfo(dtype)
    return int(
        random.choice([info.min, info.max])
        if random.rand() < 0.15
        else random.randint(info.min, info.max + 1)
    )


def _pair(random: Random, sizes: Any) -> tuple[int, int]:
    """Two sizes, the same or not."""
    one, other = (int(n) for n in random.choice(sizes, 2))
    return (one, one) if random.rand() < 0.6 else (one, other)


def _pick(random: Random, some: Any) -> Any:
    return some[random.randint(len(some))]


def _float(value: Any) -> float:
    """The number as float32 holds it."""
    return float(np.float32(value))


def random_hybrid(seed: int) -> tuple[FullyConnected, np.ndarray, bool, str | None]:
    """(layer, input, whether its model has a bias, label of its weights) of a seed: a fully
    connected layer of float32.

    The input has 2 to 4 axes and 1 to 20 rows, some of them, or all, zeros; of some rows no value
    but the largest is more than half a step, or on one.
    """
    random = Random(seed)
    inputs, outputs = int(random.choice([*CHANNELS, 100, 257, 1000, 1536])), _pick(random, CHANNELS)
    rows = int(random.randint(1, 21))
    lead = (rows,)
    for _ in range(random.randint(3)):
        step = _pick(random, [n for n in range(1, lead[0] + 1) if lead[0] % n == 0])
        lead = (lead[0] // step, step, *lead[1:])
    weights, _ = _weights(random, "float32", (outputs, inputs))
    weights[random.rand(outputs) < 0.05] = 0
    x = random.normal(size=(rows, inputs)) * 10 ** random.uniform(-6, 6, (rows, 1))
    draw = random.rand()
    if draw < 0.2:  # halves of a step, and next to them
        x = np.rint(random.uniform(-127, 127, x.shape)) + random.choice([-0.5, 0, 0.5], x.shape)
        x[:, 0] = 127
        x = x * 2.0 ** random.randint(-9, 9, (rows, 1))
        x = np.nextafter(x.astype(np.float32), np.float32(0)) if random.rand() < 0.5 else x
    elif draw < 0.3:
        x = x * 1e-3
        x[np.arange(rows), random.randint(0, inputs, rows)] = 1
    x = x * (random.rand(rows, 1) > 0.15) * (random.rand() > 0.03)
    quantization, bias = _real(random, "float32", weights)
    biased = bool(random.rand() < 0.7)
    layer = FullyConnected(
        weights,
        bias if biased else np.zeros_like(bias),
        _pick(random, ACTIVATIONS),
        dtype="float32",
        weight_q=QuantParams(quantization[1]),
    )
    return (
        layer,
        x.astype(np.float32).reshape(*lead, inputs),
        biased,
        _pick(random, (None, "uint8")),
    )


def damage(data: bytes, seed: int) -> bytes:
    """A file with one to four places wrong: bits, words, offsets, counts, bytes that are
    missing, doubled or moved.
    """
    random = Random(seed)
    out = bytearray(data)
    for _ in range(random.randint(1, 5)):
        kind, at = random.randint(8), int(random.randint(max(len(out) - 4, 1)))
        word = slice(at // 4 * 4, at // 4 * 4 + 4)
        if kind == 0:
            out[at] ^= 2 ** int(random.randint(8))
        elif kind == 1:  # an offset or a count, as it may be stored
            value = _pick(
                random, (0, 1, 2, 4, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1)
            )
            out[word] = _little(value)
        elif kind == 2:  # one that is near what it was, before or behind
            before = int.from_bytes(out[word], "little")
            out[word] = _little(before + int(random.randint(-64, 65)))
        elif kind == 3:  # one that leads to the start, to another place of the file, or to itself
            goal = word.start
            if random.rand() < 0.7:
                goal = int(random.randint(len(out)))
            out[word] = _little(goal - word.start)
        elif kind == 4:  # an entry of a list of slots
            value = int(_pick(random, (0, 1, 2, 3, 4, 255, 32767, 65535)))
            out[at // 2 * 2 : at // 2 * 2 + 2] = _little(value, 2)
        elif kind == 5:
            out = out[:at]
        elif kind == 6:
            del out[at : at + int(random.randint(1, 9))]
        else:
            end = at + int(random.randint(1, 40))
            out[at:at] = out[at:end]
    return bytes(out)


def _little(value: int, size: int = 4) -> bytes:
    return (value % 256**size).to_bytes(size, "little")
