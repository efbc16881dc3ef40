"""Sweeps: many models of one layer each, made from a grid of parameters, with inputs and expected
outputs."""

from __future__ import annotations

import csv
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from npulab.models.facts import PADDINGS
from npulab.models.read import read_model
from npulab.models.write import one_scale, single_op_model
from npulab.quant.emulate.many import emulate_all
from npulab.quant.layers import ACTIVATIONS, POOLS, UNIT, Add, Conv2D, FullyConnected, Layer, Pool2D
from npulab.quant.layers.spellings import with_texts
from npulab.quant.rules import QUANTIZED, QuantParams, Rule
from npulab.support.cells import guarded
from npulab.support.executors import Workers, ordered
from npulab.support.files import read_bounded, write_folders
from npulab.support.late import pd
from npulab.support.refuse import refuse_if
from npulab.support.text import plural

# A key is a name that a grid may have; the names of BOTH are allowed too. If the grid leaves the
# name out, every point has the value that stands here.
DEFAULTS: dict[str, Any] = {
    "op": "conv2d",
    "input_h": 8,
    "input_w": 8,
    "input_c": 4,
    "output_c": None,
    "kernel_h": 3,
    "kernel_w": 3,
    "stride_h": 1,
    "stride_w": 1,
    "dilation_h": 1,
    "dilation_w": 1,
    "padding": "same",
    "depthwise": False,
    "activation": None,
    "dtype": "int8",
    "per_channel": False,
    "weight_bits": 8,
}
BOTH = {
    "input": ("input_h", "input_w"),
    "kernel": ("kernel_h", "kernel_w"),
    "stride": ("stride_h", "stride_w"),
    "dilation": ("dilation_h", "dilation_w"),
}
ALLOWED: dict[str, tuple[Any, ...]] = {
    "op": ("conv2d", "fully_connected", *(f"{kind}_pool" for kind in POOLS), "add"),
    "activation": ACTIVATIONS,
    "dtype": (*QUANTIZED, "float16", "float32"),
    "depthwise": (False, True),
    "per_channel": (False, True),
    "weight_bits": (2, 4, 8),
}
# a key is a type of input with another type of weights, the value the type of the weights
WEIGHTS = {"int16": "int8", "float32": "int8"}
PARAMETERS = "parameters.csv"
MOST_BYTES = 2**30  # a larger output, or a larger table of parameters, is refused
Make = Callable[[Mapping[str, Any], np.random.Generator], Layer]


@dataclass(frozen=True)
class Sweep:
    """Layers and their models; ``skipped`` are the points of the grid without a model, each with
    the reason."""

    layers: tuple[Layer, ...]
    models: tuple[bytes, ...]
    skipped: tuple[tuple[Mapping[str, Any], str], ...] = ()
    seed: int = 0

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        return f"Sweep({plural(len(self), 'model')}, {plural(len(self.skipped), 'point')} skipped)"

    @property
    def parameters(self) -> pd.DataFrame:
        """One row per model, with the parameters of its layer."""
        return pd.DataFrame([layer.parameters for layer in self.layers])

    def inputs(self, number: int) -> tuple[Array, ...]:
        """The input tensors of the model with this number: one, two for an ``Add``; every call
        returns equal values."""
        return random_input(self.layers[number], np.random.default_rng([self.seed, number, 1]))


def sweep(grid: Mapping[str, Any], make: Make | None = None, seed: int = 0) -> Sweep:
    """A model for each point of a grid: the grid has a list of values under each name, and its
    points are all combinations of these values.

    Names are op (conv2d, fully_connected, average_pool, max_pool, min_pool, add), input_h, input_w,
    input_c, output_c, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w,
    padding, depthwise, activation, dtype, per_channel and weight_bits; ``input``, ``kernel``,
    ``stride`` and ``dilation`` set both axes. A value that is not a list counts as a list of one;
    a name that is left out has its value in ``npulab.models.sweeps.DEFAULTS``. ``make(point,
    random)`` returns the layer of a point, which is a dict with a value for each name; by default
    it is ``random_layer``. A point for which there is no layer or no file is skipped. Raises
    ValueError for an unknown name or value, and for a seed below 0.
    """
    if not isinstance(grid, Mapping):
        raise ValueError(
            f"grid: got {grid!r:.80}, allowed is values by name, such as {{'kernel': [1, 3]}}"
        )
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed: got {seed!r:.80}, allowed is a whole number, not negative")
    columns = {name: _values_of(values) for name, values in with_texts(grid).items()}
    for name, values in columns.items():
        if name not in DEFAULTS and name not in BOTH:
            raise ValueError(f"grid: got {name!r}, allowed are {', '.join((*DEFAULTS, *BOTH))}")
        for value in values:
            _refuse_value(name, value)
    layers: list[Layer] = []
    models, skipped = [], []
    for combination in itertools.product(*columns.values()):
        given = dict(zip(columns, combination, strict=True))
        point = DEFAULTS.copy()
        for name, value in given.items():
            point |= dict.fromkeys(BOTH.get(name, (name,)), value)
        random = np.random.default_rng([seed, len(layers)])
        try:
            layer = (make or random_layer)(point, random)
            models.append(single_op_model(layer))
            layers.append(layer)
        except ValueError as error:
            skipped.append((given, str(error)))
    return Sweep(tuple(layers), tuple(models), tuple(skipped), seed)


def _values_of(values: Any) -> list[Any]:
    """The values under a name of a grid, as a list; a single value becomes a list of one."""
    if isinstance(values, list | tuple | range | set):
        return list(values)
    if isinstance(values, Array) and values.ndim == 1:
        return values.tolist()
    return [values]


def _refuse_value(name: str, value: Any) -> None:
    """Raise ValueError for a value that is not allowed under a name of a grid."""
    if name in ALLOWED:
        fits, words = value in ALLOWED[name], f"one of {', '.join(map(str, ALLOWED[name]))}"
    elif name == "padding":
        fits = value in PADDINGS or np.shape(value) == (2, 2)
        words = "same, valid or ((top, bottom), (left, right))"
    else:
        fits, words = isinstance(value, int) and value >= 1, "a whole number of at least 1"
    refuse_if(not fits, "grid", f"{name} {value!r}", f"is {words}")


def write_sweep(
    folder: str | os.PathLike[str],
    grid: Mapping[str, Any],
    rule: str | Rule = "tflite-reference",
    seed: int = 0,
    make: Make | None = None,
    executor: Workers = None,
) -> Sweep:
    """Write a sweep for a board, whole or not at all: models, inputs and expected outputs as raw
    bytes.

    ``grid`` is values by name, and every combination of them is a model. Names are op (conv2d,
    fully_connected, average_pool, max_pool, min_pool, add), input_h, input_w, input_c,
    output_c, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, padding,
    depthwise, activation, dtype, per_channel and weight_bits; input, kernel, stride and dilation
    set both axes.

    Files are ``000.tflite``, ``000-input.bin`` (and ``000-other.bin`` of an ``Add``),
    ``000-expected.bin``, ... and ``parameters.csv``, one row per model with the files' sha256 and
    the rule of the expected outputs. Put the outputs of the board next to them as
    ``000-output.bin``, ...: ``check_sweep(folder)`` compares these with the expected outputs. The
    workers of ``executor`` (see ``npulab.support.executors``) compute the expected outputs; the
    files do not depend on it.

    Raises FileExistsError if the folder exists; ValueError as ``sweep``, and if every point of the
    grid is skipped.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as board:
    ...     write_sweep(f"{board}/sweep", {"kernel": [1, 3], "stride": [1, 2], "dtype": "uint8"})
    Sweep(4 models, 0 points skipped)
    """
    from tqdm.auto import tqdm

    folder = _folder(folder)
    if folder.exists():
        raise FileExistsError(f"{folder}: is there already")
    found = sweep(grid, make, seed)
    _refuse_none(found)
    digits = max(3, len(str(len(found) - 1)))
    rows, files = [], dict[str, bytes]()
    computed = emulate_all(_asked(found), rule, executor)
    bar = tqdm(computed, desc=folder.name, total=len(found), unit="model", disable=None)
    for number, expected in bar:
        layer = found.layers[number]
        contents = {"model": found.models[number]}
        contents |= _tensors(found.inputs(number), expected)
        row: dict[str, Any] = {"rule": guarded(rule if isinstance(rule, str) else rule.name)}
        for name, raw in contents.items():
            file = f"{number:0{digits}}-{name}.bin"
            if name == "model":
                file = f"{number:0{digits}}.tflite"
            files[file] = raw
            row |= {name: file, f"{name}_sha256": hashlib.sha256(raw).hexdigest()}
        rows.append(row | layer.parameters)
    files[PARAMETERS] = pd.DataFrame(rows).to_csv(index=False, lineterminator="\n").encode()
    write_folders({folder: files})
    return found


def _refuse_none(found: Sweep) -> None:
    """Raise ValueError for a sweep without a model."""
    if found:
        return
    problem = "a name has no values"
    if found.skipped:
        problem = found.skipped[0][1]
    raise ValueError(
        f"grid: got {plural(len(found.skipped), 'point')}, none of which has a model: {problem}"
    )


def _asked(found: Sweep) -> Iterator[tuple[Layer, Any]]:
    """Yield each layer of a sweep with its input: a pair for an ``Add``."""
    for number, layer in enumerate(found.layers):
        inputs = found.inputs(number)
        if isinstance(layer, Add):
            yield layer, inputs
        else:
            yield layer, inputs[0]


def _tensors(inputs: tuple[Array, ...], expected: Array) -> dict[str, bytes]:
    """The inputs of a layer and its expected output as little-endian bytes, by name."""
    tensors = {**dict(zip(("input", "other"), inputs, strict=False)), "expected": expected}
    return {name: x.astype(x.dtype.newbyteorder("<")).tobytes() for name, x in tensors.items()}


def check_sweep(
    folder: str | os.PathLike[str],
    outputs: str | os.PathLike[str] | None = None,
    executor: Workers = None,
) -> pd.DataFrame:
    """Compare the outputs of a board with the expected outputs of a sweep; one row per model:
    model, compared, mismatches, first, verdict.

    ``outputs`` is the folder with ``000-output.bin``, ..., raw bytes like the expected outputs; by
    default it is the folder of the sweep. ``first`` is the index of the first difference in the
    output (row, column, channel; only a channel for a fully connected layer), or None. The verdict
    is ``equal``, ``differs`` or ``missing``. The workers of ``executor`` (see
    ``npulab.support.executors``) read the files and compare them, so they need both folders under
    the same paths. Raises FileNotFoundError for a folder that is not a sweep; ValueError (what,
    got, allowed) for an output of another size than the expected output.
    """
    folder = _folder(folder)
    where = folder
    if outputs is not None:
        where = _folder(outputs)
    if not where.is_dir():
        raise FileNotFoundError(f"{where}: there is no such folder")
    if not (folder / PARAMETERS).is_file():
        raise FileNotFoundError(
            f"{folder}: there is no {PARAMETERS}, allowed is a folder that write_sweep made"
        )
    # each call of a worker gets one row, and reads the files of its model
    text = read_bounded(folder / PARAMETERS, MOST_BYTES).decode()
    stated = [*csv.DictReader(text.splitlines())]
    rows = []
    for _, row in ordered(partial(_compared, folder, where), stated, executor):
        rows.append(row)
    return pd.DataFrame(rows, columns=["model", "compared", "mismatches", "first", "verdict"])


def _compared(folder: Path, where: Path, row: Mapping[str, str]) -> tuple[Any, ...]:
    """The row that ``check_sweep`` returns for a row of the table of parameters."""
    path = where / row["expected"].replace("expected", "output")
    raw = read_bounded(folder / row["expected"], MOST_BYTES)
    if not path.is_file():
        return row["model"], 0, 0, None, "missing"
    size = path.stat().st_size
    if size != len(raw):
        raise ValueError(
            f"{path}: got {plural(size, 'byte')}, allowed is {len(raw)} as {row['expected']} has"
        )
    (layer,) = read_model(folder / row["model"]).layers
    dtype = np.dtype(layer.dtype).newbyteorder("<")
    got = np.frombuffer(read_bounded(path, MOST_BYTES), dtype).reshape(layer.output_shape)
    expected = np.frombuffer(raw, dtype).reshape(layer.output_shape)
    # a NaN equals nothing, not even a NaN; here two NaNs count as equal
    both_nan = (got != got) & (expected != expected)
    wrong = np.argwhere((got != expected) & ~both_nan)
    if len(wrong):
        return row["model"], got.size, len(wrong), tuple(wrong[0].tolist()), "differs"
    return row["model"], got.size, 0, None, "equal"


def _folder(given: Any) -> Path:
    refuse_if(not isinstance(given, str | os.PathLike), "folder", type(given).__name__, "is a path")
    return Path(given)


def random_layer(point: Mapping[str, Any], random: np.random.Generator) -> Layer:
    """A layer for a point of a grid, whose weights and scales are drawn so that the outputs for a
    ``random_input`` spread over their range.

    Raises ValueError if there is no such layer, for example because the kernel is larger than the
    input.
    """
    op, dtype, activation = point["op"], point["dtype"], point["activation"]
    shape = point["input_h"], point["input_w"], point["input_c"]
    window = {"stride": (point["stride_h"], point["stride_w"]), "padding": point["padding"]}
    output_q = _output_q(dtype, activation, random)
    if op == "add":
        if dtype not in QUANTIZED:
            return Add(shape, activation, dtype=dtype)
        # each input spans 40 % to 90 % of the output's range, so that sums fill the range
        scale = one_scale(output_q)
        input_q = QuantParams(scale * random.uniform(0.4, 0.9), _zero(dtype, random))
        other_q = QuantParams(scale * random.uniform(0.4, 0.9), _zero(dtype, random))
        return Add(shape, activation, input_q, other_q, output_q, dtype)
    if op.endswith("_pool"):
        return Pool2D(
            op.removesuffix("_pool"),
            (point["kernel_h"], point["kernel_w"]),
            shape,
            **window,
            activation=activation,
            input_q=output_q,
            dtype=dtype,
        )
    weights = _random_weights(point, random)
    common = {
        **_random_constants(point, weights, one_scale(output_q), random),
        "activation": activation,
        "output_q": output_q,
        "dtype": dtype,
        "weight_bits": point["weight_bits"],
    }
    if op == "fully_connected":
        return FullyConnected(weights, **common)
    dilation = point["dilation_h"], point["dilation_w"]
    depthwise = point["depthwise"]
    return Conv2D(
        weights, input_shape=shape, **window, dilation=dilation, depthwise=depthwise, **common
    )


def _outputs_of(point: Mapping[str, Any]) -> int:
    if point["output_c"]:
        return point["output_c"]
    if point["depthwise"]:
        return point["input_c"]
    return 8


def _random_weights(point: Mapping[str, Any], random: np.random.Generator) -> Array:
    """Random weights of a convolution or a fully connected layer, with the number of bits that the
    point states."""
    dtype = WEIGHTS.get(point["dtype"], point["dtype"])
    outputs, kernel = _outputs_of(point), (point["kernel_h"], point["kernel_w"])
    sizes: tuple[int, ...] = (outputs, *kernel, point["input_c"])
    if point["op"] == "fully_connected":
        sizes = outputs, point["input_c"]
    elif point["depthwise"]:
        sizes = 1, *kernel, outputs
    weights = _random_codes(dtype, sizes, random)
    if dtype == "int8":
        # the lowest int8 weight of TensorFlow Lite is -127: its hybrid kernels give wrong outputs
        # for -128
        weights = np.maximum(weights, -127)
    if point["weight_bits"] < 8:
        weights = weights // 2 ** (8 - point["weight_bits"])
    return weights


def _random_constants(
    point: Mapping[str, Any], weights: Array, output_scale: float, random: np.random.Generator
) -> dict[str, Any]:
    """The bias and the quantization of input and weights, drawn so that outputs spread over their
    range."""
    dtype, weights_type = point["dtype"], weights.dtype.name
    outputs = _outputs_of(point)
    terms = weights.size // outputs
    bias: Any = random.integers(-64, 65, outputs) / 64
    if point["per_channel"]:
        scales: Any = random.uniform(0.7, 1.3, outputs)
    else:
        scales = random.uniform(0.7, 1.3)
    if dtype == "float32":
        weight_q = QuantParams(scales / 64 / terms**0.5)
        return {"bias": bias, "input_q": UNIT, "weight_q": weight_q}
    if dtype not in QUANTIZED:
        return {"bias": bias, "input_q": UNIT, "weight_q": UNIT}
    zero = 0
    if weights_type != "int8":
        zero = int(random.integers(100, 156))
    input_scale = random.uniform(0.01, 0.1)
    input_q = QuantParams(input_scale, _zero(dtype, random))
    # ``deviation`` is about the standard deviation of the sums of products. It is scaled to a fifth
    # of the output range, so that a few outputs saturate.
    spread = _deviation(dtype, input_q.zero_point) * _deviation(weights_type, zero)
    deviation = spread / 2 ** (8 - point["weight_bits"]) * terms**0.5
    bias = random.integers(-int(deviation) - 1, int(deviation) + 2, outputs)
    fifth = output_scale * _codes(dtype) / 5
    weight_q = QuantParams(scales * fifth / deviation / input_scale, zero)
    return {"bias": bias, "input_q": input_q, "weight_q": weight_q}


def random_input(layer: Layer, random: np.random.Generator) -> tuple[Array, ...]:
    """The random input tensors of a layer, with a batch of one: one tensor, two for an ``Add``.

    float16 numbers are multiples of 1/8, so that a sum of them does not depend on the order.
    """
    first = _random_codes(layer.dtype, (1, *layer.input_shape), random)
    if isinstance(layer, Add):
        return first, _random_codes(layer.dtype, (1, *layer.input_shape), random)
    return (first,)


def _random_codes(dtype: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """A random tensor: each code of a quantized type is as likely as any other; other types get
    real numbers around 0."""
    if dtype in QUANTIZED:
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max + 1, shape).astype(dtype)
    if dtype == "float16":
        return (random.integers(-16, 17, shape) / 8).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def _zero(dtype: str, random: np.random.Generator) -> int:
    """A random zero point near the middle of a type; 0 for any type but int8 and uint8."""
    if dtype not in ("int8", "uint8"):
        return 0
    zero = int(random.integers(-40, 41))
    if dtype == "uint8":
        zero += 128
    return zero


def _codes(dtype: str) -> int:
    """The highest code of a type minus the lowest."""
    return np.iinfo(dtype).max - np.iinfo(dtype).min


def _deviation(dtype: str, zero: int) -> float:
    """The root mean square distance between a zero point and the codes of a type, if all codes are
    equally likely.
    """
    middle = (np.iinfo(dtype).max + np.iinfo(dtype).min) / 2
    return float(np.hypot(_codes(dtype) / 12**0.5, middle - zero))


def _output_q(dtype: str, activation: str | None, random: np.random.Generator) -> QuantParams:
    """A random quantization of the output, in which the range of the activation covers most of the
    range of the type."""
    if dtype not in QUANTIZED:
        return QuantParams(1.0)
    spans = {"relu6": 7.0, "relu_n1_to_1": 2.5}
    scale = spans.get(activation or "", 10.0) * random.uniform(0.9, 1.1) / _codes(dtype)
    zero = _zero(dtype, random)
    if dtype == "int16":
        # int16 has the zero point 0, so that outputs after a relu use only half of the range
        scale *= 2
    elif activation in ("relu", "relu6"):
        zero = int(np.iinfo(dtype).min) + int(random.integers(0, 12))
    return QuantParams(scale, zero)
