"""Convolutions as streams of one pass, streams as convolutions, and the rounding of vta."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from npulab import Capture, Conv2D, QuantParams
from npulab.capture import Job
from npulab.layout import Layout, Loop
from npulab.npus.kit import buffer_of, ceil_div, placed, refuse_if, tensor_at, wrapped
from npulab.quant.rules import Rule, shift_right
from npulab.target import Item, Lifted, Unsupported

from .facts import CHIPS, ENUMS, KINDS, TABLES

LANES = 16  # channels of an entry
PLACES = {
    "uops": 0x10000,
    "bias": 0x40000,
    "coefficients": 0x100000,
    "input": 0x200000,
    "output": 0x300000,
}
# the buffer that each memory is loaded from or stored to
BUFFERS = {"uop": "uops", "inp": "input", "wgt": "coefficients", "acc": "bias", "out": "output"}
ALIGN = 256  # bytes; so that every memory can count the address in its entries
RELU, NO_RELU, HIGHEST = 0, -128, 127
CODES = {enum: {name: raw for raw, name in names.items()} for enum, names in ENUMS.items()}


@dataclass(frozen=True)
class Shift(Rule):
    """One shift to the right, with half of the last place added before if ``half``; the sum of
    both wraps."""

    half: bool = False
    fraction_bits: ClassVar[int] = 0
    multipliers: ClassVar[tuple[float, float]] = (1, 1)
    right_shifts: ClassVar[tuple[int, int]] = (0, 31)

    @property
    def rounding_direction(self) -> str:  # type: ignore[override]
        return "nearest" if self.half else "floor"

    def of_ratio(self, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        fraction, exponent = np.frexp(ratio)
        fits = (fraction == 0.5) & (exponent <= 1) & (exponent >= -30)
        self._at_most(ratio, fits, "a power of two from 2**-31 to 1")
        return np.ones(np.shape(ratio), np.int64), 1 - exponent.astype(np.int64)

    def exact(
        self, accumulators: np.ndarray, multiplier: Any, right_shift: Any, zero_point: int = 0
    ) -> np.ndarray:
        sums = np.asarray(accumulators, np.int64) * multiplier
        if self.half:
            sums = wrapped(sums + 2 ** np.asarray(right_shift, np.int64) // 2)
        return shift_right(sums, right_shift, "floor") + zero_point

    def max_deviation(self, right_shift: np.ndarray) -> Any:
        # a sum that wraps may have any value
        return 1.0 if self.half else 0.0


FLOOR, HALF_UP = Shift("vta:floor"), Shift("vta:half-up", half=True)
# symmetric codes, one shift; half of the last place is a number of 16 bits
ALLOWED = {
    "op": ["conv"],
    "dtype": ["int8"],
    "ratio": [2.0**-shift for shift in range(1, 16)],
    "input_scale": [1.0],
    "weight_scale": [1.0],
    "output_scale": [2.0**shift for shift in range(6, 12)],
    "input_zero_point": [0],
    "weight_zero_point": [0],
    "output_zero_point": [0],
}


class Form(NamedTuple):
    """What a stream of one pass says of a convolution; channels are counted in blocks of 16."""

    size: tuple[int, int]
    pads: tuple[tuple[int, int], tuple[int, int]]
    inputs: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    result: tuple[int, int]
    shift: int
    half: bool
    relu: bool

    @property
    def padded(self) -> tuple[int, int]:
        """(rows, columns) of a block of the input on chip."""
        (top, bottom), (left, right) = self.pads
        return top + self.size[0] + bottom, left + self.size[1] + right

    @property
    def plane(self) -> int:
        """Entries of a block of the output."""
        return self.result[0] * self.result[1]

    @property
    def tiles(self) -> int:
        """Tiles of weights."""
        return self.outputs * self.inputs * self.kernel[0] * self.kernel[1]

    @property
    def entries(self) -> dict[str, int]:
        """The entries that it needs of each memory on chip."""
        inputs = self.inputs * self.padded[0] * self.padded[1]
        sums = self.outputs * (1 + self.plane)  # the bias lies before the sums
        return {"uop": self.tiles + self.outputs, "inp": inputs, "wgt": self.tiles, "acc": sums}


def tensor_layout(shape: Sequence[int]) -> Layout:
    """(H, W, C): channels in blocks of 16, each a plane."""
    height, width, channels = shape
    plane = LANES * height * width
    loops = (Loop(2, LANES, plane), Loop(0, 1, LANES * width), Loop(1, 1, LANES), Loop(2, 1, 1))
    return Layout(tuple(shape), loops, dtype="int8", size=plane * ceil_div(channels, LANES))


def weight_layout(shape: Sequence[int]) -> Layout:
    """(O, H, W, I): tiles of 16 outputs by 16 inputs, the columns of the kernel the fastest."""
    outputs, height, width, inputs = shape
    tile = KINDS["wgt"].size
    block = tile * height * width
    row = block * ceil_div(inputs, LANES)
    loops = (
        Loop(0, LANES, row),
        Loop(3, LANES, block),
        Loop(1, 1, tile * width),
        Loop(2, 1, tile),
        Loop(0, 1, LANES),
        Loop(3, 1, 1),
    )
    return Layout(tuple(shape), loops, dtype="int8", size=row * ceil_div(outputs, LANES))


def tensor(capture: Capture, name: str, like: np.ndarray) -> np.ndarray:
    return tensor_layout(like.shape).unpack(capture.buffers[name])


def lower(
    layer: Any,
    chip: str = "vta16",
    x: Any = None,
    rule: str = FLOOR.name,
    addresses: Mapping[str, int] | None = None,
) -> Capture:
    """The stream of a convolution that fits on the chip at once, with what it reads; raises
    ValueError for another layer. ``rule`` is the rounding that the stream is to have."""
    form = form_of(layer, rule)
    for name, count in form.entries.items():
        most = CHIPS[chip][name]
        refuse_if(
            count > most, "layer", f"{count} entries of {name}", f"are {most}, as it has one pass"
        )
    where = placed(PLACES, addresses, ALIGN)
    bias = np.zeros(LANES * form.outputs, "<i4")
    bias[: len(layer.bias)] = layer.bias
    buffers = {
        "uops": micro_ops(form).astype("<u4").tobytes(),
        "bias": bias.tobytes(),
        "coefficients": weight_layout(layer.weights.shape).pack(layer.weights),
    }
    if x is not None:
        buffers["input"] = tensor_layout(layer.input_shape).pack(x)
    jobs = []
    for block, values in instructions(form, where):
        code = CODES["opcode"][block]
        jobs.append(Job(block, TABLES[block].encode({"opcode": code, **values})))
    return Capture(
        "lowered",
        "vta",
        chip,
        tuple(jobs),
        buffers,
        where,
        {"input_c": layer.input_shape[2], "output_c": len(layer.weights)},
        provenance="simulated",
        maps=TABLES,
    )


def form_of(layer: Any, rule: str) -> Form:
    """The form of a layer; raises ValueError if no stream of one pass can have it."""
    refuse_if(not isinstance(layer, Conv2D), "layer", type(layer).__name__, "is Conv2D")
    plain = {
        "depthwise": (False,),
        "groups": (1,),
        "dilation": ((1, 1),),
        "dtype": ("int8",),
        "output": ("codes",),
        "weight_bits": (8,),
        "activation": (None, "relu"),
    }
    for name, allowed in plain.items():
        got = getattr(layer, name)
        refuse_if(got not in allowed, name, got, f"is {' or '.join(map(str, allowed))}")
    for name in ("input_q", "weight_q", "output_q"):
        point = getattr(layer, name).zero_point
        refuse_if(point != 0, f"{name}: zero point", point, "is 0")
    rules = {FLOOR.name: FLOOR, HALF_UP.name: HALF_UP}
    refuse_if(rule not in rules, "rule", rule, f"is {' or '.join(rules)}")
    scales = layer.input_q.scale, layer.weight_q.scale, layer.output_q.scale
    refuse_if(np.ndim(scales[1]) > 0, "weight_q: scale", "one per channel", "is one")
    shift = int(rules[rule].multiplier(*scales)[1])
    return Form(
        layer.input_shape[:2],
        layer.pads,
        ceil_div(layer.input_shape[2], LANES),
        ceil_div(len(layer.weights), LANES),
        layer.kernel,
        layer.stride,
        layer.output_shape[:2],
        shift,
        rules[rule].half and shift > 0,
        layer.activation == "relu",
    )


def micro_ops(form: Form) -> np.ndarray:
    """A micro-op for each tile of weights, then one for each block of the output."""
    rows, columns = form.padded
    tile = np.arange(form.tiles).reshape(form.outputs, form.inputs, *form.kernel)
    output, inputs, row, column = np.indices(tile.shape)
    block = np.arange(form.outputs)
    table = TABLES["UOP"]
    sums = {
        "dst_idx": form.outputs + output * form.plane,
        "src_idx": inputs * rows * columns + row * columns + column,
        "wgt_idx": tile,
    }
    own = {"dst_idx": form.outputs + block * form.plane, "src_idx": block}
    return np.concatenate([table.encode(sums).reshape(-1), table.encode(own).reshape(-1)])


def instructions(form: Form, where: Mapping[str, int]) -> list[tuple[str, dict[str, int]]]:
    """The blocks and values of the instructions, without opcodes."""
    height, width = form.size
    (top, bottom), (left, right) = form.pads
    rows, columns = form.padded

    def run(name: str, count: int, **more: int) -> dict[str, int]:
        values = {"memory_type": CODES["memory"][name], "dram_base": where[BUFFERS[name]]}
        return {**values, "y_size": 1, "x_size": count, "x_stride": count, **more}

    out = [("LOAD", run("uop", form.tiles + form.outputs))]
    for block in range(form.inputs):
        values = run("inp", width, sram_base=block * rows * columns, y_size=height)
        values["dram_base"] += block * height * width * KINDS["inp"].size
        values |= {"y_pad_0": top, "y_pad_1": bottom, "x_pad_0": left, "x_pad_1": right}
        out.append(("LOAD", values))
    out.append(("LOAD", run("wgt", form.tiles, push_next_dep=1)))
    each = {"uop_bgn": form.tiles, "uop_end": form.tiles + form.outputs}
    each |= {"iter_out": 1, "iter_in": form.plane, "dst_factor_in": 1}
    out.append(("GEMM", {"reset_reg": 1, **each}))
    out.append(("LOAD", run("acc", form.outputs)))
    sums = {"pop_prev_dep": 1, "uop_end": form.tiles}
    sums |= {"iter_out": form.result[0], "iter_in": form.result[1]}
    sums |= {"dst_factor_out": form.result[1], "dst_factor_in": 1}
    sums |= {"src_factor_out": form.stride[0] * columns, "src_factor_in": form.stride[1]}
    out.append(("GEMM", sums))
    for values in operations(form):
        out.append(("ALU", {**each, **values}))
    out[-1][1]["push_next_dep"] = 1
    stored = run("out", form.outputs * form.plane, sram_base=form.outputs)
    out.append(("STORE", {**stored, "pop_prev_dep": 1, "push_prev_dep": 1}))
    out.append(("FINISH", {"pop_next_dep": 1}))
    return out


def operations(form: Form) -> list[dict[str, int]]:
    """What ALU does to the sums: the bias, the rounding, the limits."""
    codes = CODES["operation"]
    steps = [("shr", form.shift), ("max", RELU if form.relu else NO_RELU), ("min", HIGHEST)]
    if form.half:
        steps.insert(0, ("add", 2**form.shift // 2))
    out = [{"alu_opcode": codes["add"]}]
    for name, number in steps:
        out.append({"alu_opcode": codes[name], "use_imm": 1, "imm": number})
    return out


def lift(capture: Capture) -> Lifted:
    """The convolution of a stream of one pass; how many channels are used of the last blocks is
    said by the parameters, if by anything.

    The layer is lowered again. Raises Unsupported, which names the first place at which a stream
    or a buffer is not what that gives.
    """
    try:
        form = found_form(capture)
        layer = layer_of(capture, form)
        rule = rule_name(form)
        again = lower(layer, capture.chip, rule=rule, addresses=capture.addresses)
    except Unsupported:
        raise
    except (LookupError, ValueError) as error:
        text = f"capture {capture.name}: no convolution of one pass: {error}"
        raise Unsupported(text) from None
    refuse_others(capture, again)
    tensors = []
    for name, shape in (("input", layer.input_shape), ("output", layer.output_shape)):
        found = None
        if name in capture.buffers:
            found = tensor_layout(shape).unpack(capture.buffers[name])
        tensors.append(found)
    return Lifted(layer, *tensors)


def found_form(capture: Capture) -> Form:
    """The form that the words state at one place each; the others are not looked at."""
    memory = "memory_type"
    inputs = those(capture, "LOAD", memory, CODES["memory"]["inp"])
    first = inputs[0]
    outputs = those(capture, "LOAD", memory, CODES["memory"]["acc"])[0]["x_size"]
    tiles = those(capture, "LOAD", memory, CODES["memory"]["wgt"])[0]["x_size"]
    sums = those(capture, "GEMM", "reset_reg", 0)[0]
    steps = {}
    for name in ("add", "shr", "max"):
        steps[name] = those(capture, "ALU", "alu_opcode", CODES["operation"][name])
    columns = first["x_pad_0"] + first["x_size"] + first["x_pad_1"]
    taps = tiles // max(1, outputs * len(inputs))
    for name, count in (("columns", columns), ("taps", taps)):
        refuse_if(count == 0, name, count, "is at least 1", Unsupported)
    words = np.frombuffer(buffer_of(capture, "uops"), "<u4", taps)
    sources = TABLES["UOP"].decode(words[:, None])["src_idx"].astype(np.int64)
    return Form(
        (first["y_size"], first["x_size"]),
        ((first["y_pad_0"], first["y_pad_1"]), (first["x_pad_0"], first["x_pad_1"])),
        len(inputs),
        outputs,
        (1 + int((sources // columns).max()), 1 + int((sources % columns).max())),
        (sums["src_factor_out"] // columns, sums["src_factor_in"]),
        (sums["iter_out"], sums["iter_in"]),
        steps["shr"][0]["imm"],
        any(values["use_imm"] for values in steps["add"]),
        steps["max"][0]["imm"] == RELU,
    )


def those(capture: Capture, block: str, name: str, code: int) -> list[dict[str, int]]:
    """The values of the instructions of a block whose field has a value; raises Unsupported if
    there are none."""
    found = []
    for job in capture.jobs:
        values = TABLES[job.block].decode(job.words)
        if job.block == block and values[name] == code:
            found.append(values)
    where, allowed = f"capture {capture.name}: {block} with {name} {code}", "is one at least"
    refuse_if(not found, where, "none", allowed, Unsupported)
    return found


def layer_of(capture: Capture, form: Form) -> Conv2D:
    inputs = capture.parameters.get("input_c", LANES * form.inputs)
    outputs = capture.parameters.get("output_c", LANES * form.outputs)
    layout = weight_layout((outputs, *form.kernel, inputs))
    where = capture.addresses["coefficients"]
    refuse_if(not 0 <= form.shift <= 31, "shift", form.shift, "is 0 to 31")
    return Conv2D(
        tensor_at(capture, "coefficients", where, layout),
        np.frombuffer(buffer_of(capture, "bias"), "<i4", outputs),
        (*form.size, inputs),
        form.stride,
        form.pads,
        activation="relu" if form.relu else None,
        weight_q=QuantParams(2.0**-form.shift),
    )


def rule_name(form: Form) -> str:
    return HALF_UP.name if form.half else FLOOR.name


def rule_of(capture: Capture) -> str:
    return rule_name(found_form(capture))


def refuse_others(capture: Capture, again: Capture) -> None:
    """Raise Unsupported, with the first place, for a capture that is not as it is lowered again."""
    for number, (job, other) in enumerate(zip(capture.jobs, again.jobs, strict=False)):
        where = f"capture {capture.name}: job {number}"
        refuse_if(job.block != other.block, where, job.block, f"is {other.block}", Unsupported)
        values, allowed = (TABLES[job.block].decode(one.words) for one in (job, other))
        for name, value in values.items():
            wanted = f"is {allowed[name]}, as its layer is lowered"
            wrong = value != allowed[name]
            refuse_if(wrong, f"{where}, {job.block}.{name}", value, wanted, Unsupported)
    counts = len(capture.jobs), len(again.jobs)
    wrong = counts[0] != counts[1]
    refuse_if(wrong, f"capture {capture.name}: jobs", counts[0], f"are {counts[1]}", Unsupported)
    for name in ("uops", "bias", "coefficients"):
        wrong = capture.buffers[name] != again.buffers[name]
        where = f"capture {capture.name}: {name}"
        refuse_if(wrong, where, "other bytes", "are those of its layer lowered", Unsupported)


def recode(capture: Capture) -> bytes:
    return of_weights(capture, lambda layout, data: layout.recode(data))


def explain(capture: Capture) -> list[Item]:
    def items(layout: Layout, data: bytes) -> list[Item]:
        return list(layout.items(data, channel=0, row=1, column=2, plane=3))

    return of_weights(capture, items)


def of_weights(capture: Capture, question: Callable[[Layout, bytes], Any]) -> Any:
    """The answer to a question about the layout of the weights and their bytes."""
    shape = lift(capture).layer.weights.shape
    return question(weight_layout(shape), capture.buffers["coefficients"])
