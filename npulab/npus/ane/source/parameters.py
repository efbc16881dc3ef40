"""Numbers of a layer that its source network states: shapes, strides, codes, kernel.

They are the values that rows of ``parameters.csv`` and ``claims.csv`` name. Most names of
``parameters.csv`` are those of tinygrad's notes on a compiled file (source S).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from npulab.npus.ane.facts import ENGINES, enum
from npulab.npus.ane.source.network import Input, Keys, Network, Output, Unit
from npulab.npus.kit import numbers_of, read_rows, refuse_if, up

ROWS = read_rows(Path(__file__).with_name("parameters.csv"))
ALIGN = 64  # every stride is a multiple of this many bytes
WIDTHS = {"Float16": 2, "UInt8": 1, "Int8": 1, "Float32": 4}  # bytes of an element
# Codes of types: source S guesses them from files; no file shows which 8-bit type has which code.
CODES = enum("format")
# The compiler's codes of operations and of activations, by their names in networks.
OPERATIONS, NEURONS = enum("network_unit"), enum("network_neuron")
SPELLED = {name.lower(): code for name, code in NEURONS.items()}
MAIN = ("Conv", "ScaledElementWise", "ElementWise", "Pooling", "Neuron", "GOC", "Concat")
FUSED = ("GOC", "Neuron")
# The types of units that the neural engine runs.
NEURAL = ("Conv", "Neuron", "Concat")
# PE.Cfg.OpMode of a task with two sources, by the operation's name in networks. Files of networks
# show 0 and 1; that Max is 2 and Min is 3 follows from the order in the bare task files.
ELEMENTWISE = {"Add": 0, "Mult": 1, "Mul": 1, "Max": 2, "Min": 3}
# Steps and kernel sizes of a task are below these numbers; the compiler cuts larger kernels.
MOST_STEP, MOST_KERNEL = 2**2, 2**5
# ONE is 1.0 as the bits of a float16.
HALF, ONE = "Float16", 0x3C00
# Parameters that some networks do not have.
OPTIONAL = ("BiasScalar", "ScaleScalar", "UsedEngines", "EngineBytes")
AXES = {
    "Width": "width",
    "Height": "height",
    "Channel": "channels",
    "Channels": "channels",
    "Depth": "depth",
    "Batch": "batch",
}


@dataclass(frozen=True)
class Shape:
    """The sizes of a tensor, its element type as the file spells it, and its interleave.

    ``interleave`` is how many channels share a row.
    """

    width: int
    height: int
    channels: int
    depth: int = 1
    batch: int = 1
    type: str = "Float16"
    interleave: int = 1


class Strides(NamedTuple):
    """The bytes between rows, planes, depths and batches of a tensor; None if no key states it."""

    row: Any
    plane: Any
    depth: Any
    batch: Any


STRIDES = ("Row", "Plane", "Depth", "Batch")  # as they are spelled in the keys of networks


class Window(NamedTuple):
    """The sizes of a kernel, its steps, and the padding on each side of the image, in pixels."""

    width: int = 1
    height: int = 1
    depth: int = 1
    step_x: int = 1
    step_y: int = 1
    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0


@dataclass(frozen=True)
class Chain:
    """The units of a network that run in one task.

    These are the main unit, the biases and activations that change its output, and the output of
    the last of them.
    """

    main: Unit
    fused: tuple[Unit, ...]
    output: Output | None

    @property
    def neuron(self) -> str:
        """The name of the activation as the file spells it, empty without an activation."""
        for unit in (self.main, *self.fused):
            if unit.type == "Neuron":
                return str(unit.params.get("Type", ""))
        return ""

    @property
    def has_bias(self) -> bool:
        """True if a bias for each channel is added to a convolution's output."""
        given = any("BiasIndex" in unit.scalars for unit in self.fused)
        return self.main.type == "Conv" and given


def kernel_of(unit: Unit) -> Window:
    """Return the kernel of a unit; a unit without a kernel has 1 x 1 with steps of 1."""
    keys = unit.params
    step_x, step_y = [*keys.get("Step", ()), 1, 1][:2]
    return Window(
        keys.get("KernelWidth", 1),
        keys.get("KernelHeight", 1),
        keys.get("KernelDepth", 1),
        step_x,
        step_y,
        keys.get("PadTop", 0),
        keys.get("PadBot", 0),
        keys.get("PadLeft", 0),
        keys.get("PadRight", 0),
    )


def shapes(network: Network) -> dict[str, Shape]:
    """Return the shapes of all inputs, units and outputs by name.

    Raises ValueError, with the unit, for sizes that contradict each other.
    """
    found = {part.name: _input_shape(part) for part in network.inputs}
    for unit in network.sorted_units:
        found[unit.name] = _unit_shape(unit, [found[bottom] for bottom in unit.bottoms])
    for output in network.outputs:
        shape = found[output.bottom]
        found[output.name] = replace(
            shape,
            type=output.keys.get("OutputType", shape.type),
            interleave=output.keys.get("OutputInterleave", 1),
        )
    return found


def _input_shape(part: Input) -> Shape:
    keys = part.keys
    for key in ("InputWidth", "InputHeight", "InputChannels"):
        refuse_if(key not in keys, f"{part.name}.{key}", "no value", "is a whole number from 1")
    return Shape(
        keys["InputWidth"],
        keys["InputHeight"],
        keys["InputChannels"],
        keys.get("InputDepth", 1),
        keys.get("BatchSize", 1),
        keys.get("InputType", HALF),
        keys.get("InputInterleave", 1),
    )


def _unit_shape(unit: Unit, bottoms: list[Shape]) -> Shape:
    first = bottoms[0]
    kind = unit.keys.get("OutputType", first.type)
    shape = replace(first, interleave=1, type=kind)
    keys = unit.params
    if unit.type in ("Conv", "Pooling"):
        return _window_shape(unit, shape)
    changed: dict[str, Any] = {}
    if unit.type == "Concat":
        axis = _axis(unit, keys.get("Dimension", "Channel"))
        changed[axis] = sum(getattr(bottom, axis) for bottom in bottoms)
    elif unit.type == "Broadcast":
        for info in keys.get("BroadcastInfo", ()):
            changed[_axis(unit, info.get("Dimension"))] = info.get("Size", 1)
    elif unit.type == "InputView" and "Size" in keys:
        changed[_axis(unit, keys.get("Dimension", "Channel"))] = keys["Size"]
    elif unit.type == "Reshape":
        for axis, name in AXES.items():
            if f"Reshaped{axis}" in keys:
                changed[name] = keys[f"Reshaped{axis}"]
    return replace(shape, **changed)


def _window_shape(unit: Unit, image: Shape) -> Shape:
    kernel = kernel_of(unit)
    wide = image.width + kernel.left + kernel.right - kernel.width
    high = image.height + kernel.top + kernel.bottom - kernel.height
    if min(wide, high) < 0:
        raise ValueError(
            f"{unit.name}.KernelWidth: got a kernel of {kernel.width} x {kernel.height}, "
            f"allowed is one inside the padded image of {image.width} x {image.height}"
        )
    return replace(
        image,
        width=wide // kernel.step_x + 1,
        height=high // kernel.step_y + 1,
        channels=unit.keys.get("OutputChannels", image.channels),
    )


def _axis(unit: Unit, name: Any) -> str:
    if name not in AXES:
        raise ValueError(
            f"{unit.name}.Dimension: got {name!r:.40}, allowed is one of {', '.join(AXES)}"
        )
    return AXES[name]


def chain_of(network: Network) -> Chain:
    """Return the main unit of a network, with the biases and activations after it.

    The main unit is the first unit of the earliest type in ``MAIN`` that the network has. A unit
    after it belongs to the chain only if nothing else reads the unit before.

    Raises ValueError for a network without units.
    """
    refuse_if(not network.units, f"{network.name}.Units", "none", "is one or more")
    main = min(network.sorted_units, key=_rank)
    fused: list[Unit] = []
    last = main
    while True:
        readers = network.readers[last.name]
        after = readers[0] if len(readers) == 1 else None
        if not isinstance(after, Unit) or after.type not in FUSED or len(after.bottoms) != 1:
            output = next((reader for reader in readers if isinstance(reader, Output)), None)
            return Chain(main, tuple(fused), output)
        fused.append(after)
        last = after


def _rank(unit: Unit) -> int:
    if unit.type in MAIN:
        return MAIN.index(unit.type)
    return len(MAIN)


def tasks_of(network: Network) -> int:
    """Return the number of tasks of a main unit that is not cut into tiles.

    A concatenation has a task for each input, any other unit one task.
    """
    main = chain_of(network).main
    if main.type == "Concat":
        return len(main.bottoms)
    return 1


def engines_of(network: Network) -> int | None:
    """Return the number of engines with coefficients, None if it is not known.

    A convolution uses an engine for each output channel, at most 16. The number is not known for
    more than 16 channels that are no multiple of 16. A table without a convolution uses one engine.
    """
    chain = chain_of(network)
    if chain.main.type == "Conv":
        channels = shapes(network)[chain.main.name].channels
        if channels > ENGINES and channels % ENGINES:
            return None
        return min(channels, ENGINES)
    return int(nonlinear_mode(chain) == 2)


def nonlinear_mode(chain: Chain) -> int:
    """Return the value of NonlinearMode: 0 without activation, 1 for ReLU, 2 for a table."""
    if chain.neuron == "ReLU":
        return 1
    return 2 * bool(chain.neuron)


def engine_bytes(network: Network) -> int | None:
    """Return the size in bytes of each engine's coefficients, a multiple of 64.

    It is 0 without coefficients, and None if it is not known. It is known for a table without a
    convolution (128 bytes), and for dense kernels of stride 1 without a table that have at most 16
    output channels, or 16 times a power of two up to 16.
    """
    chain = chain_of(network)
    table = nonlinear_mode(chain) == 2
    if chain.main.type != "Conv":
        if table:
            return 128
        return 0
    kernel, found = kernel_of(chain.main), shapes(network)
    mode = chain.main.params.get("KernelMode", "Dense")
    dense = mode == "Dense" and kernel.depth == 1
    each = ceil(found[chain.main.name].channels / ENGINES)
    if not dense or (kernel.step_x, kernel.step_y) != (1, 1) or table:
        return None
    if engines_of(network) is None or each not in (1, 2, 4, 8, 16):
        return None
    channels = found[chain.main.bottoms[0]].channels
    taps = channels * kernel.width * kernel.height
    return up(2 * each * (taps + chain.has_bias), ALIGN)


def parameters(network: Network, task: int = 0) -> dict[str, int]:
    """Return the numbers of one task of a network's main unit, by the names of ``parameters.csv``.

    They are sizes, strides in bytes, codes of types and the kernel; a stride that the file does not
    state is derived. A task of a concatenation copies one input, and ``OutputChannels`` is the
    number of its channels. ``Unit`` and ``Neuron`` are the compiler's codes, -1 if unknown.
    ``BiasScalar`` and ``ScaleScalar`` (the 16 bits of a float16) are there if the file states them,
    ``UsedEngines`` and ``EngineBytes`` if they are known. Raises ValueError for shapes that
    contradict each other, a type without a code, and a ``task`` that the network does not have.
    """
    last = tasks_of(network) - 1
    refuse_if(not 0 <= task <= last, "task", task, f"is 0 to {last}")
    of = subject(network, task)
    of.source_code = _type_code(of.bottoms[0], of.source.type)
    of.result_code = _type_code(of.chain.main.name, of.result.type)
    return {row.field: number for row, number in numbers_of(ROWS, of)}


def _type_code(name: str, kind: str) -> int:
    """Return the code of the type ``kind`` of tensor ``name``; raise ValueError if it has none."""
    allowed = f"is one of {', '.join(CODES)}"
    refuse_if(kind not in CODES, f"{name}: type", f"{kind!r:.40}", allowed)
    return CODES[kind]


def subject(network: Network, task: int = 0) -> Any:
    """Return the values of a task that rows of ``parameters.csv`` and ``claims.csv`` may name.

    A value that is not known is None.
    """
    of = SimpleNamespace(network=network, task=task, chain=chain_of(network))
    of.main = of.chain.main
    of.tasks = tasks_of(network)
    of.conv = of.main.type == "Conv"
    of.neural = of.main.type in NEURAL
    of.bypass = of.neural and not of.conv
    of.unit = OPERATIONS.get(of.main.type, -1)
    _add_tensors(of)
    _add_strides(of)
    _add_engines(of)
    _add_constants(of)
    return of


def _add_tensors(of: Any) -> None:
    found = shapes(of.network)
    of.bottoms = of.main.bottoms
    if of.main.type == "Concat":
        of.bottoms = of.main.bottoms[of.task : of.task + 1]
    of.sources = len(of.bottoms)
    of.two = of.sources > 1
    of.alone = not of.two
    of.source = of.second = found[of.bottoms[0]]
    if of.two:
        of.second = found[of.bottoms[1]]
    of.output = of.chain.output
    last = (of.main, *of.chain.fused)[-1]
    if of.output is not None:
        last = of.output
    of.result = found[last.name]
    # a copied part is as large as its input
    of.written = of.source if of.main.type == "Concat" else of.result
    of.channels = of.written.channels
    earlier = of.main.bottoms[: of.task]
    of.before = sum(found[name].channels for name in earlier)
    of.flat = max(of.source.depth, of.result.depth) == 1
    of.has_batch = of.source.batch > 1
    # types of which a file was seen
    of.half_input = of.source.type == HALF
    of.half_output = of.result.type == HALF
    of.half_second = of.two and of.second.type == HALF


def _add_strides(of: Any) -> None:
    parts = [of.network.parts[name] for name in of.bottoms]
    first = parts[0] if isinstance(parts[0], Input) else None
    second = parts[1] if of.two and isinstance(parts[1], Input) else None
    of.input = first is not None
    of.source_strides = strides(parts[0].keys, "Input", of.source)
    of.first_strides = _stated("Input", first, of.source)
    of.second_strides = _stated("Input", second, of.second)
    output_keys = of.output.keys if of.output else {}
    of.result_strides = strides(output_keys, "Output", of.result)
    of.output_strides = _stated("Output", of.output, of.result)
    of.base = None
    axis = of.main.params.get("Dimension", "Channel")
    if of.main.type != "Concat" or axis in ("Channel", "Channels"):
        of.base = of.before * of.result_strides.plane


def _add_engines(of: Any) -> None:
    kernel = of.kernel = kernel_of(of.main)
    of.engines = engines_of(of.network)
    of.has_engines = bool(of.engines)
    of.engine_bytes = engine_bytes(of.network)
    of.engines_code = (min(of.channels, ENGINES) - 1).bit_length()
    of.engines_code_1 = of.engines_code + 1
    known = of.neural or of.main.type == "ScaledElementWise"
    # a bare bias or scale for each channel lies in memory too, in a way that no file shows
    shown = of.conv or not of.chain.fused
    of.engines_known = of.engines is not None and known and shown
    largest = max(kernel.width, kernel.height, kernel.left, kernel.top)
    of.kernel_known = known and largest < MOST_KERNEL
    of.step_known = max(kernel.step_x, kernel.step_y) < MOST_STEP
    of.kernel_code = CODES[HALF] if of.conv else 0
    kernel_type = of.main.params.get("KernelType", HALF)
    of.half_kernel = of.conv and kernel_type in (HALF, "Float32")


def _add_constants(of: Any) -> None:
    chain, params = of.chain, of.main.params
    of.has_neuron = bool(chain.neuron)
    of.neuron = 0
    if of.has_neuron:
        name = chain.neuron.lower().replace("_", "")
        of.neuron = SPELLED.get(name, -1)
    of.mode = nonlinear_mode(chain)
    scales = {"ScaleScalar", "ScaleIndex"}
    of.unscaled = of.neural and all(scales.isdisjoint(unit.scalars) for unit in chain.fused)
    bare = all(unit.type != "GOC" for unit in chain.fused)
    of.bias_known = of.unscaled and (chain.has_bias or bare)
    of.bias_scalar = _scalar(chain, "BiasScalar")
    of.scale_scalar = _scalar(chain, "ScaleScalar")
    scaled = of.main.type == "ScaledElementWise"
    of.scale = params.get("Scale", ONE)
    if of.scale_scalar is None and scaled:
        of.scale_scalar = of.scale
    of.binary = scaled and of.two and not chain.fused
    of.operation = ELEMENTWISE.get(params.get("Type", ""))
    of.constants = of.main.type == "GOC"
    of.own_bias = params.get("BiasScalar")
    of.own_scale = params.get("ScaleScalar")


def _scalar(chain: Chain, key: str) -> int | None:
    """Return the value of a key in ``Params`` of the last unit of the chain that has the key.

    The result is None if no unit has the key.
    """
    number = None
    for unit in (chain.main, *chain.fused):
        number = unit.params.get(key, number)
    return number


def strides(keys: Keys, side: str, shape: Shape) -> Strides:
    """Return the strides in bytes of an input or output, as ``keys`` state them, else derived.

    Derived: a row is a multiple of 64 bytes; a plane has all rows, a batch all planes, and a depth
    all batches, because the depth's stride is the larger in networks of several batches. That
    interleaved channels share a row is a guess, which no file shows.
    """
    length = shape.width * shape.interleave * WIDTHS.get(shape.type, 2)
    row = keys.get(f"{side}RowStride", up(length, ALIGN))
    plane = keys.get(f"{side}PlaneStride", row * shape.height)
    planes = ceil(shape.channels / shape.interleave)
    batch = keys.get(f"{side}BatchStride", plane * planes)
    depth = keys.get(f"{side}DepthStride", batch * shape.batch)
    return Strides(row, plane, depth, batch)


def _stated(side: str, part: Input | Output | None, shape: Shape) -> Strides:
    """Return the strides that the keys of an input or output state; None for a stride without a
    key."""
    keys = {} if part is None else part.keys
    found = strides(keys, side, shape)
    if part is not None and shape.interleave == 1 and shape.batch == 1:
        return found
    numbers: list[Any] = []
    for axis, number in zip(STRIDES, found, strict=True):
        said = f"{side}{axis}Stride" in keys
        numbers.append(number if said else None)
    return Strides(*numbers)
