"""Sweeps: many single-operator models from a grid of parameters, with inputs and expected
outputs."""

from __future__ import annotations

import csv
import hashlib
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npulab.models.facts import PADDINGS
from npulab.models.read import read_model
from npulab.models.write import one_scale, single_op_model
from npulab.quant.emulate import emulate
from npulab.quant.layers import ACTIVATIONS, POOLS, UNIT, Add, Conv2D, FullyConnected, Layer, Pool2D
from npulab.quant.rules import QUANTIZED, QuantParams, Rule
from npulab.support.cells import guarded
from npulab.support.files import read_bounded, write_folders
from npulab.support.late import pd
from npulab.support.refuse import refuse_if
from npulab.support.text import plural

# what a point of a grid may say, and what it is where the grid does not say it
DEFAULTS: dict[str, Any] = {
    "op": "conv2d",
    "input_h": 8,
    "input_w": 8,
    "input_channels": 4,
    "output_channels": None,
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
WEIGHTS = {"int16": "int8", "float32": "int8"}  # type of the weights, where it is not the input's
PARAMETERS = "parameters.csv"
MOST_BYTES = 2**30  # of an output, of the table of parameters
Make = Callable[[Mapping[str, Any], np.random.Generator], Layer]


@dataclass(frozen=True)
class Sweep:
    """Layers and their models, and the points of the grid that cannot be, with the reason."""

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
        """One row per model: the layer's parameters."""
        return pd.DataFrame([layer.parameters for layer in self.layers])

    def inputs(self, number: int) -> tuple[np.ndarray, ...]:
        """The input of a model, the same each time; two of an ``Add``."""
        return random_input(self.layers[number], np.random.default_rng([self.seed, number, 1]))


def sweep(grid: Mapping[str, Any], make: Make | None = None, seed: int = 0) -> Sweep:
    """A model for each point of a grid: every combination of the values under its names.

    Names are op (conv2d, fully_connected, average_pool, max_pool, min_pool, add), input_h, input_w,
    input_channels, output_channels, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w,
    padding, depthwise, activation, dtype, per_channel and weight_bits; ``input``, ``kernel``,
    ``stride`` and ``dilation`` set both axes; a single value stands for itself, and
    ``npulab.models.sweeps.DEFAULTS`` for a name that is left out. ``make(point, random)`` gives the
    layer of a point, ``random_layer`` where it is left out.  A point that no layer or file can
    state is skipped.  Raises ValueError for an unknown name or value.
    """
    if not isinstance(grid, Mapping):
        raise ValueError(
            f"grid: got {grid!r:.80}, allowed is values by name, such as {{'kernel': [1, 3]}}"
        )
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed: got {seed!r:.80}, allowed is a whole number, not negative")
    columns = {
        name: list(values)
        if isinstance(values, list | tuple | range | set)
        else values.tolist()
        if isinstance(values, np.ndarray) and values.ndim == 1
        else [values]
        for name, values in grid.items()
    }
    for name, values in columns.items():
        if name not in DEFAULTS and name not in BOTH:
            raise ValueError(f"grid: got {name!r}, allowed are {', '.join((*DEFAULTS, *BOTH))}")
        for value in values:
            _check(name, value)
    layers: list[Layer] = []
    models, skipped = [], []
    for combination in itertools.product(*columns.values()):
        given = dict(zip(columns, combination, strict=True))
        point = DEFAULTS | {
            axis: value for name, value in given.items() for axis in BOTH.get(name, (name,))
        }
        random = np.random.default_rng([seed, len(layers)])
        try:
            layer = (make or random_layer)(point, random)
            models.append(single_op_model(layer))
            layers.append(layer)
        except ValueError as error:
            skipped.append((given, str(error)))
    return Sweep(tuple(layers), tuple(models), tuple(skipped), seed)


def write_sweep(
    folder: str | os.PathLike[str],
    grid: Mapping[str, Any],
    rule: str | Rule = "tflite-reference",
    seed: int = 0,
    make: Make | None = None,
) -> Sweep:
    """Write a sweep for a board, whole or not at all: models, inputs and expected outputs as raw
    bytes.

    ``grid`` is values by name, and every combination of them is a model.  Names are op (conv2d,
    fully_connected, average_pool, max_pool, min_pool, add), input_h, input_w, input_channels,
    output_channels, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, padding,
    depthwise, activation, dtype, per_channel and weight_bits; input, kernel, stride and dilation
    set both axes.

    Files are ``000.tflite``, ``000-input.bin`` (and ``000-other.bin`` of an ``Add``),
    ``000-expected.bin``, ... and ``parameters.csv``, one row per model with the files' sha256 and
    the rule of the expected outputs.  What the board gives goes beside them as ``000-output.bin``,
    ..., and ``check_sweep(folder)`` compares it.  Raises FileExistsError where the folder exists;
    ValueError as ``sweep``, and where no point of the grid can be.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as board:
    ...     write_sweep(f"{board}/sweep", {"kernel": [1, 3], "stride": [1, 2], "dtype": "uint8"})
    Sweep(4 models, 0 points skipped)
    """
    from tqdm.auto import tqdm

    folder = _folder(folder)
    if folder.exists():
        raise FileExistsError(f"{folder}: is there already")
    made = sweep(grid, make, seed)
    if not made:
        raise ValueError(
            f"grid: got {plural(len(made.skipped), 'point')}, none of which can be: "
            f"{made.skipped[0][1] if made.skipped else 'a name has no values'}"
        )
    digits = max(3, len(str(len(made) - 1)))
    rows, files = [], dict[str, bytes]()
    for number, layer in enumerate(tqdm(made.layers, desc=folder.name, unit="model", disable=None)):
        inputs = made.inputs(number)
        expected = emulate(layer, inputs if isinstance(layer, Add) else inputs[0], rule)
        row: dict[str, Any] = {"rule": guarded(rule if isinstance(rule, str) else rule.name)}
        tensors = {**dict(zip(("input", "other"), inputs, strict=False)), "expected": expected}
        raws = {
            name: data.astype(data.dtype.newbyteorder("<")).tobytes()
            for name, data in tensors.items()
        }
        for name, raw in {"model": made.models[number], **raws}.items():
            if name == "model":
                file = f"{number:0{digits}}.tflite"
            else:
                file = f"{number:0{digits}}-{name}.bin"
            files[file] = raw
            row |= {name: file, f"{name}_sha256": hashlib.sha256(raw).hexdigest()}
        rows.append(row | layer.parameters)
    files[PARAMETERS] = pd.DataFrame(rows).to_csv(index=False, lineterminator="\n").encode()
    write_folders({folder: files})
    return made


def check_sweep(
    folder: str | os.PathLike[str], outputs: str | os.PathLike[str] | None = None
) -> pd.DataFrame:
    """What a board gave against what a sweep expects: model, compared, mismatches, first, verdict.

    ``outputs`` is the folder of ``000-output.bin``, ..., raw bytes as the expected ones are, by
    default the sweep's own.  ``first`` is the place (row, column, channel) of the first difference,
    or None; the verdict is ``equal``, ``differs`` or ``missing``.  Raises FileNotFoundError for a
    folder that is no sweep; ValueError (what, got, allowed) for an output of another size.
    """
    folder = _folder(folder)
    if outputs is None:
        where = folder
    else:
        where = _folder(outputs)
    if not (folder / PARAMETERS).is_file() or not where.is_dir():
        raise FileNotFoundError(
            f"{folder}: there is no {PARAMETERS}, allowed is a folder that write_sweep made"
            if where.is_dir()
            else f"{where}: there is no such folder"
        )
    rows: list[tuple[Any, ...]] = []
    for row in csv.DictReader(read_bounded(folder / PARAMETERS, MOST_BYTES).decode().splitlines()):
        path = where / row["expected"].replace("expected", "output")
        raw = read_bounded(folder / row["expected"], MOST_BYTES)
        if not path.is_file():
            rows.append((row["model"], 0, 0, None, "missing"))
            continue
        if (size := path.stat().st_size) != len(raw):
            raise ValueError(
                f"{path}: got {plural(size, 'byte')}, allowed is {len(raw)} as {row['expected']} "
                "has"
            )
        (layer,) = read_model(folder / row["model"]).layers
        got, expected = (
            np.frombuffer(data, np.dtype(layer.dtype).newbyteorder("<")).reshape(layer.output_shape)
            for data in (read_bounded(path, MOST_BYTES), raw)
        )
        wrong = np.argwhere(
            (got != expected) & ((got == got) | (expected == expected))
        )  # NaN is NaN
        first = None
        if len(wrong):
            first = tuple(wrong[0].tolist())
        rows.append(
            (row["model"], got.size, len(wrong), first, "differs" if len(wrong) else "equal")
        )
    return pd.DataFrame(rows, columns=["model", "compared", "mismatches", "first", "verdict"])


def _folder(given: Any) -> Path:
    refuse_if(not isinstance(given, str | os.PathLike), "folder", type(given).__name__, "is a path")
    return Path(given)


def random_layer(point: Mapping[str, Any], random: np.random.Generator) -> Layer:
    """A layer of a point, whose outputs spread over their range for a ``random_input``.

    Raises ValueError where there is none, as for a kernel larger than the input.
    """
    op, dtype, activation = point["op"], point["dtype"], point["activation"]
    shape = point["input_h"], point["input_w"], point["input_channels"]
    window = {"stride": (point["stride_h"], point["stride_w"]), "padding": point["padding"]}
    kernel = point["kernel_h"], point["kernel_w"]
    output_q = _output_q(dtype, activation, random)
    if op == "add":
        if dtype not in QUANTIZED:
            return Add(shape, activation, dtype=dtype)
        # each input alone spans most of the output
        input_q, other_q = (
            QuantParams(one_scale(output_q) * random.uniform(0.4, 0.9), _zero(dtype, random))
            for _ in range(2)
        )
        return Add(shape, activation, input_q, other_q, output_q, dtype)
    if op.endswith("_pool"):
        return Pool2D(
            op.removesuffix("_pool"),
            kernel,
            shape,
            **window,
            activation=activation,
            input_q=output_q,
            dtype=dtype,
        )
    outputs = point["output_channels"] or (shape[2] if point["depthwise"] else 8)
    weights_type = WEIGHTS.get(dtype, dtype)
    flat = op == "fully_connected"
    if point["depthwise"] and not flat:
        sizes = 1, *kernel, outputs
    else:
        sizes = outputs, *(kernel * (not flat)), shape[2]
    weights = _numbers(weights_type, sizes, random)
    if (
        weights_type == "int8"
    ):  # TensorFlow Lite has no lower code; its hybrid kernels take -128 wrong
        weights = np.maximum(weights, -127)
    few = 2 ** (8 - point["weight_bits"])  # codes of 8 bits for each of these
    if few > 1:
        weights = weights // few
    terms = weights.size // outputs
    bias: Any = random.integers(-64, 65, outputs) / 64
    input_q, weight_q = UNIT, UNIT
    scales: Any
    if point["per_channel"]:
        scales = random.uniform(0.7, 1.3, outputs)
    else:
        scales = random.uniform(0.7, 1.3)
    if dtype in QUANTIZED:
        if weights_type == "int8":
            zero = 0
        else:
            zero = int(random.integers(100, 156))
        input_q = QuantParams(random.uniform(0.01, 0.1), _zero(dtype, random))
        # sums of products have about this deviation; a fifth of the range makes a few outputs
        # saturate
        deviation = (
            _deviation(dtype, input_q.zero_point)
            * _deviation(weights_type, zero)
            / few
            * terms**0.5
        )
        bias = random.integers(-int(deviation) - 1, int(deviation) + 2, outputs)
        fifth = one_scale(output_q) * (np.iinfo(dtype).max - np.iinfo(dtype).min) / 5
        weight_q = QuantParams(scales * fifth / deviation / one_scale(input_q), zero)
    elif dtype == "float32":
        weight_q = QuantParams(scales / 64 / terms**0.5)
    common = {
        "activation": activation,
        "input_q": input_q,
        "weight_q": weight_q,
        "output_q": output_q,
        "dtype": dtype,
        "weight_bits": point["weight_bits"],
    }
    if flat:
        return FullyConnected(weights, bias, **common)
    return Conv2D(
        weights,
        bias,
        shape,
        **window,
        dilation=(point["dilation_h"], point["dilation_w"]),
        depthwise=point["depthwise"],
        **common,
    )


def random_input(layer: Layer, random: np.random.Generator) -> tuple[np.ndarray, ...]:
    """An input of a layer, two of an ``Add``, each with a batch of one.

    Numbers of 16 bits are eighths, so that a sum is the same in any order.
    """
    return tuple(
        _numbers(layer.dtype, (1, *layer.input_shape), random)
        for _ in range(1 + isinstance(layer, Add))
    )


def _check(name: str, value: Any) -> None:
    """Raises ValueError for a value that a name never has."""
    if name in ALLOWED:
        fits, words = value in ALLOWED[name], f"one of {', '.join(map(str, ALLOWED[name]))}"
    elif name == "padding":
        fits, words = (
            value in PADDINGS or np.shape(value) == (2, 2),
            "same, valid or ((top, bottom), (left, right))",
        )
    else:
        fits, words = isinstance(value, int) and value >= 1, "a whole number of at least 1"
    refuse_if(not fits, "grid", f"{name} {value!r}", f"is {words}")


def _numbers(dtype: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    if dtype in QUANTIZED:
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max + 1, shape).astype(dtype)
    if dtype == "float16":
        return (random.integers(-16, 17, shape) / 8).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def _zero(dtype: str, random: np.random.Generator) -> int:
    if dtype not in ("int8", "uint8"):
        return 0
    return int(random.integers(-40, 41)) + 128 * (dtype == "uint8")


def _deviation(dtype: str, zero: int) -> float:
    """Of all codes of a type, from a zero point."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return float(np.hypot((high - low) / 12**0.5, (high + low) / 2 - zero))


def _output_q(dtype: str, activation: str | None, random: np.random.Generator) -> QuantParams:
    """A quantization in which the activation's range is most of the type's."""
    if dtype not in QUANTIZED:
        return QuantParams(1.0)
    codes = np.iinfo(dtype).max - np.iinfo(dtype).min
    span = {"relu6": 7.0, "relu_n1_to_1": 2.5}.get(activation or "", 10.0) * random.uniform(
        0.9, 1.1
    )
    zero = _zero(dtype, random)
    if activation in ("relu", "relu6") and dtype != "int16":
        zero = int(np.iinfo(dtype).min) + int(random.integers(0, 12))
    return QuantParams(span / codes * (2 if dtype == "int16" else 1), zero)
