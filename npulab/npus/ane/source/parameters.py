"""What a network says of the layer that its file is compiled to: shapes, strides and the seed's
flat numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from npulab.npus.ane.facts import ENGINES, enum
from npulab.npus.ane.source.network import Input, Network, Output, Unit
from npulab.npus.kit import numbers_of, read_rows, refuse_if, up

ROWS = read_rows(Path(__file__).with_name("parameters.csv"))
ALIGN = 64  # bytes of every stride
WIDTHS = {"Float16": 2, "UInt8": 1, "Int8": 1, "Float32": 4}  # bytes of an element
# the seed guesses these from the files; of 8-bit types nobody showed the order
CODES = enum("format")
# the compiler's operations and activations as networks spell them, with its numbers
OPERATIONS, NEURONS = enum("network_unit"), enum("network_neuron")
SPELLED = {name.lower(): code for name, code in NEURONS.items()}
MAIN = ("Conv", "ScaledElementWise", "ElementWise", "Pooling", "Neuron", "GOC", "Concat")
FUSED = ("GOC", "Neuron")
NEURAL = ("Conv", "Neuron", "Concat")  # units that the neural engine runs
# PE.Cfg.OpMode of two sources; order and spelling of the last two: 0 to 3 in the bare task files
ELEMENTWISE = {"Add": 0, "Mult": 1, "Mul": 1, "Max": 2, "Min": 3}
MOST_STEP, MOST_KERNEL = 2**2, 2**5  # of ConvCfg; larger kernels are cut by the compiler
HALF, ONE = "Float16", 0x3C00  # 1.0 as the bits of a float16
# numbers that not every network has
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
    """A tensor's extents, its type as the file spells it, and its interleave."""

    width: int
    height: int
    channels: int
    depth: int = 1
    batch: int = 1
    type: str = "Float16"
    interleave: int = 1


class Strides(NamedTuple):
    """Bytes between the rows, planes, depths and batches of a tensor; None if nothing says them."""

    row: Any
    plane: Any
    depth: Any
    batch: Any


STRIDES = ("Row", "Plane", "Depth", "Batch")  # as the keys of networks spell them


class Kernel(NamedTuple):
    """A kernel's extents, the steps it takes, and the border before and behind the image."""

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
    """What a file's tasks do: the main unit with the units that follow it alone, and the output
    that they give."""

    main: Unit
    fused: tuple[Unit, ...]
    output: Output | None

    @property
    def neuron(self) -> str:
        """The activation, as the file spells it; empty where there is none."""
        found = [one for one in (self.main, *self.fused) if one.type == "Neuron"]
        if found:
            return str(found[0].params.get("Type", ""))
        return ""

    @property
    def has_bias(self) -> bool:
        """Whether a convolution's output gets a bias for each channel."""
        return self.main.type == "Conv" and any("BiasIndex" in one.scalars for one in self.fused)


def kernel_of(unit: Unit) -> Kernel:
    """The kernel of a unit; 1 x 1 with steps of 1 where it has none."""
    keys = unit.params
    step = [*keys.get("Step", ()), 1, 1][:2]
    return Kernel(
        *(keys.get(f"Kernel{axis}", 1) for axis in ("Width", "Height", "Depth")),
        *step,
        *(keys.get(f"Pad{side}", 0) for side in ("Top", "Bot", "Left", "Right")),
    )


def shapes(network: Network) -> dict[str, Shape]:
    """The shapes of all inputs, units and outputs by name.

    Raises ValueError (unit, got, allowed) for parts that do not go together.
    """
    found = {one.name: _input_shape(one) for one in network.inputs}
    for unit in network.sorted_units:
        found[unit.name] = _unit_shape(unit, [found[bottom] for bottom in unit.bottoms])
    for one in network.outputs:
        found[one.name] = replace(
            found[one.bottom],
            type=one.keys.get("OutputType", found[one.bottom].type),
            interleave=one.keys.get("OutputInterleave", 1),
        )
    return found


def _input_shape(one: Input) -> Shape:
    for key in ("InputWidth", "InputHeight", "InputChannels"):
        refuse_if(key not in one.keys, f"{one.name}.{key}", "no value", "is a whole number from 1")
    keys = {"InputDepth": 1, "BatchSize": 1, "InputType": HALF, "InputInterleave": 1, **one.keys}
    return Shape(
        *(
            keys[key]
            for key in (
                "InputWidth",
                "InputHeight",
                "InputChannels",
                "InputDepth",
                "BatchSize",
                "InputType",
                "InputInterleave",
            )
        )
    )


def _unit_shape(unit: Unit, bottoms: list[Shape]) -> Shape:
    shape = replace(bottoms[0], interleave=1, type=unit.keys.get("OutputType", bottoms[0].type))
    keys = unit.params
    if unit.type in ("Conv", "Pooling"):
        kernel = kernel_of(unit)
        wide, high = (
            shape.width + kernel.left + kernel.right - kernel.width,
            shape.height + kernel.top + kernel.bottom - kernel.height,
        )
        if min(wide, high) < 0:
            raise ValueError(
                f"{unit.name}.KernelWidth: got a kernel of {kernel.width} x {kernel.height}, "
                "allowed "
                f"is one inside the padded image of {shape.width} x {shape.height}"
            )
        shape = replace(shape, width=wide // kernel.step_x + 1, height=high // kernel.step_y + 1)
        return replace(shape, channels=unit.keys.get("OutputChannels", shape.channels))
    if unit.type == "Concat":
        axis = _axis(unit, keys.get("Dimension", "Channel"))
        return replace(shape, **{axis: sum(getattr(one, axis) for one in bottoms)})
    if unit.type == "Broadcast":
        return replace(
            shape,
            **{
                _axis(unit, one.get("Dimension")): one.get("Size", 1)
                for one in keys.get("BroadcastInfo", ())
            },
        )
    if unit.type == "InputView" and "Size" in keys:
        return replace(shape, **{_axis(unit, keys.get("Dimension", "Channel")): keys["Size"]})
    if unit.type == "Reshape":
        return replace(
            shape,
            **{
                name: keys[f"Reshaped{axis}"]
                for axis, name in AXES.items()
                if f"Reshaped{axis}" in keys
            },
        )
    return shape


def _axis(unit: Unit, name: Any) -> str:
    if name not in AXES:
        raise ValueError(
            f"{unit.name}.Dimension: got {name!r:.40}, allowed is one of {', '.join(AXES)}"
        )
    return AXES[name]


def chain_of(network: Network) -> Chain:
    """The main unit: the first convolution, else the first that computes; and the biases and
    activations behind it.

    Raises ValueError for a network without units.
    """
    refuse_if(not network.units, f"{network.name}.Units", "none", "is one or more")
    first = network.sorted_units
    main = min(first, key=lambda unit: MAIN.index(unit.type) if unit.type in MAIN else len(MAIN))
    fused: list[Unit] = []
    while True:
        readers = network.readers[(fused[-1] if fused else main).name]
        output = next((one for one in readers if isinstance(one, Output)), None)
        after = None
        if len(readers) == 1:
            after = readers[0]
        if not isinstance(after, Unit) or after.type not in FUSED or len(after.bottoms) != 1:
            return Chain(main, tuple(fused), output)
        fused.append(after)


def tasks_of(network: Network) -> int:
    """Tasks that the main unit takes, where it is not cut into tiles: one for each input of a
    concatenation, else one."""
    main = chain_of(network).main
    if main.type == "Concat":
        return len(main.bottoms)
    return 1


def engines_of(network: Network) -> int | None:
    """Engines with coefficients: as many as output channels up to 16, or one for a table; None
    where nobody knows.

    Past 16 output channels a multiple of 16 is known to take all.
    """
    chain = chain_of(network)
    if chain.main.type == "Conv":
        channels = shapes(network)[chain.main.name].channels
        if channels > ENGINES and channels % ENGINES:
            return None
        return min(channels, ENGINES)
    return int(nonlinear_mode(chain) == 2)


def nonlinear_mode(chain: Chain) -> int:
    """0 without an activation, 1 for ReLU, 2 for one from a table."""
    if not chain.neuron:
        return 0
    if chain.neuron == "ReLU":
        return 1
    return 2


def engine_bytes(network: Network) -> int | None:
    """Bytes of each engine's coefficients, a multiple of 64; 0 without any, None where nobody
    knows.

    A dense kernel of up to 16 output channels, or 16 times a power of two up to 16; a table takes
    128.
    """
    chain = chain_of(network)
    if chain.main.type != "Conv":
        if nonlinear_mode(chain) == 2:
            return 128
        return 0
    found, kernel = shapes(network), kernel_of(chain.main)
    outputs, inputs = found[chain.main.name].channels, found[chain.main.bottoms[0]].channels
    each = ceil(outputs / ENGINES)
    dense = chain.main.params.get("KernelMode", "Dense") == "Dense" and kernel.depth == 1
    if (
        not dense
        or (kernel.step_x, kernel.step_y) != (1, 1)
        or nonlinear_mode(chain) == 2
        or engines_of(network) is None
        or each not in (1, 2, 4, 8, 16)
    ):
        return None
    return up(2 * each * (inputs * kernel.width * kernel.height + chain.has_bias), ALIGN)


def parameters(network: Network, task: int = 0) -> dict[str, int]:
    """The numbers of a network's main unit, in the seed's names: sizes, strides in bytes, codes of
    types, kernel.

    Strides that the file leaves out are derived.  A concatenation has a task for each of its
    inputs, and the numbers are those of one: what it reads, and as ``OutputChannels`` what it adds
    to the output.  ``Unit`` and ``Neuron`` are the compiler's numbers, -1 for what has none here.
    ``BiasScalar`` and ``ScaleScalar`` (the 16 bits of a float16) are there where the file says
    them, ``UsedEngines`` and ``EngineBytes`` where they follow.  Raises ValueError for shapes that
    do not go together and a type without a code.
    """
    refuse_if(not 0 <= task < tasks_of(network), "task", task, f"is 0 to {tasks_of(network) - 1}")
    of = subject(network, task)
    for name, kind in ((of.bottoms[0], of.source.type), (of.chain.main.name, of.result.type)):
        if kind not in CODES:
            raise ValueError(
                f"{name}: type: got {kind!r:.40}, allowed is one of {', '.join(CODES)}"
            )
    of.source_code, of.result_code = CODES[of.source.type], CODES[of.result.type]
    return {row.field: number for row, number in numbers_of(ROWS, of)}


def subject(network: Network, task: int = 0) -> Any:
    """What the rows of ``parameters.csv`` and ``claims.csv`` speak of: a task of a network; a
    number
    is None if nothing is known."""
    chain, found = chain_of(network), shapes(network)
    main, units = chain.main, (chain.main, *chain.fused)
    concat, conv = main.type == "Concat", main.type == "Conv"
    bottoms = main.bottoms
    if concat:
        bottoms = main.bottoms[task : task + 1]
    two, output_keys = len(bottoms) > 1, chain.output.keys if chain.output else {}
    stored = [part if isinstance(part := network.parts[name], Input) else None for name in bottoms]
    source, second = found[bottoms[0]], found[bottoms[1 if two else 0]]
    result = found[chain.output.name if chain.output else units[-1].name]
    channels = result.channels
    if concat:
        channels = source.channels
    along = not concat or main.params.get("Dimension", "Channel") in ("Channel", "Channels")
    before = sum(found[name].channels for name in main.bottoms[:task])
    kernel, engines, neural = kernel_of(main), engines_of(network), main.type in NEURAL
    known = neural or main.type == "ScaledElementWise"
    result_strides, codes = (
        strides(output_keys, "Output", result),
        (min(channels, ENGINES) - 1).bit_length(),
    )
    unscaled = neural and not any(
        {"ScaleScalar", "ScaleIndex"} & unit.scalars.keys() for unit in chain.fused
    )
    return SimpleNamespace(
        chain=chain,
        bottoms=bottoms,
        source=source,
        result=result,
        kernel=kernel,
        task=task,
        tasks=tasks_of(network),
        sources=len(bottoms),
        channels=channels,
        base=before * result_strides.plane if along else None,
        # a copied part is as large as its input
        written=source if concat else result,
        two=two,
        alone=not two,
        flat=max(source.depth, result.depth) == 1,
        has_batch=source.batch > 1,
        input=stored[0] is not None,
        output=chain.output,
        source_strides=strides(network.parts[bottoms[0]].keys, "Input", source),
        result_strides=result_strides,
        first_strides=_stated("Input", stored[0], source),
        second_strides=_stated("Input", stored[1] if two else None, second),
        output_strides=_stated("Output", chain.output, result),
        # types of which a file was seen
        half_input=source.type == HALF,
        half_output=result.type == HALF,
        half_second=two and second.type == HALF,
        kernel_code=CODES[HALF] if conv else 0,
        half_kernel=conv and main.params.get("KernelType", HALF) in (HALF, "Float32"),
        unit=OPERATIONS.get(main.type, -1),
        neural=neural,
        conv=conv,
        bypass=neural and not conv,
        neuron=SPELLED.get(chain.neuron.lower().replace("_", ""), -1) if chain.neuron else 0,
        has_neuron=bool(chain.neuron),
        mode=nonlinear_mode(chain),
        engines=engines,
        has_engines=bool(engines),
        engine_bytes=engine_bytes(network),
        engines_code=codes,
        engines_code_1=codes + 1,
        # a bare bias or scale for each channel lies in memory too, in a way that no file shows
        engines_known=engines is not None and known and (conv or not chain.fused),
        unscaled=unscaled,
        bias_known=unscaled and (chain.has_bias or all(unit.type != "GOC" for unit in chain.fused)),
        bias_scalar=_scalar(units, "BiasScalar"),
        scale_scalar=_scalar(units, "ScaleScalar"),
        binary=main.type == "ScaledElementWise" and two and not chain.fused,
        scale=main.params.get("Scale", ONE),
        operation=ELEMENTWISE.get(main.params.get("Type", "")),
        constants=main.type == "GOC",
        own_bias=main.params.get("BiasScalar"),
        own_scale=main.params.get("ScaleScalar"),
        kernel_known=known
        and max(kernel.width, kernel.height, kernel.left, kernel.top) < MOST_KERNEL,
        step_known=max(kernel.step_x, kernel.step_y) < MOST_STEP,
    )


def _scalar(units: tuple[Unit, ...], key: str) -> int | None:
    """A number that the last unit with this key gives; None if none has it."""
    scales = key == "ScaleScalar" and units[0].type == "ScaledElementWise"
    return next(
        (unit.params[key] for unit in reversed(units) if key in unit.params),
        units[0].params.get("Scale", ONE) if scales else None,
    )


def strides(keys: Mapping[str, Any], side: str, shape: Shape) -> Strides:
    """Bytes between rows, planes, depths and batches of an input or output: as its keys say, else
    derived.

    A row is a multiple of 64 bytes, a plane all rows, a batch all planes, a depth all batches (in
    networks of several batches the depth's stride is the larger one).  Interleaved channels share a
    row, which no file shows.
    """
    length = shape.width * shape.interleave * WIDTHS.get(shape.type, 2)
    row = keys.get(f"{side}RowStride", up(length, ALIGN))
    plane = keys.get(f"{side}PlaneStride", row * shape.height)
    batch = keys.get(f"{side}BatchStride", plane * ceil(shape.channels / shape.interleave))
    return Strides(row, plane, keys.get(f"{side}DepthStride", batch * shape.batch), batch)


def _stated(side: str, part: Input | Output | None, shape: Shape) -> Strides:
    """Strides of a tensor; None if nothing says them."""
    keys = {} if part is None else part.keys
    sure = part is not None and shape.interleave == 1 and shape.batch == 1
    return Strides(
        *(
            number if sure or f"{side}{axis}Stride" in keys else None
            for axis, number in zip(STRIDES, strides(keys, side, shape), strict=True)
        )
    )
