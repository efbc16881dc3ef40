"""The device: three units that run a stream of instructions, from words and bytes alone."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from npulab import Capture
from npulab.npus.kit import Hang, Memory, address_of, refuse_if, refusing

from .facts import CHIPS, ENUMS, KINDS, TABLES, TOKENS

UNITS = ("load", "compute", "store")  # in the order of the data
LOADED = ("uop", "wgt", "inp", "acc", "acc8")
MOST_STEPS = 2**21  # most steps of an instruction: each accumulator with each tile of weights
Token = tuple[str, str]  # the unit that pushes it, the unit that pops it


class Step(NamedTuple):
    """An instruction: its number in the stream, its block, its values and its unit."""

    number: int
    block: str
    values: dict[str, Any]
    unit: str

    def __str__(self) -> str:
        return f"job {self.number}, {self.block}"

    def tokens(self, act: str) -> list[Token]:
        """The tokens that it pops or pushes, as ``act`` says."""
        others = TOKENS.passed(self.unit, act, self.values)
        if act == "pop":
            return [(other, self.unit) for other in others]
        return [(self.unit, other) for other in others]


@dataclass
class Device:
    """Memory outside of the chip, what STOREs wrote there, and the memories on the chip."""

    outside: Memory
    chip: dict[str, np.ndarray]
    stored: Memory = field(default_factory=lambda: Memory({}, {}))


def simulate(capture: Capture) -> bytes:
    """The bytes that the stream's STOREs leave from the address of the output on.

    Raises Hang for a stream that waits for ever, ValueError for what the units do not have.
    """
    device = device_of(capture)
    where = address_of(capture, "output", "where the output begins")
    finish(steps_of(capture), device)
    return device.stored.stretch(where)


def device_of(capture: Capture) -> Device:
    given = {name: data for name, data in capture.buffers.items() if name != "output"}
    chip = {}
    for name in dict.fromkeys(kind.holds for kind in KINDS.values()):
        kind, entries = KINDS[name], CHIPS[capture.chip][name]
        chip[name] = np.zeros((entries, *kind.shape), kind.stored)
    return Device(Memory(given, capture.addresses), chip)


def steps_of(capture: Capture) -> list[Step]:
    """The instructions up to FINISH, which has to be the last."""
    steps: list[Step] = []
    for number, job in enumerate(capture.jobs):
        last = not steps or steps[-1].block != "FINISH"
        refuse_if(not last, f"job {number}", f"{job.block} behind FINISH", "is FINISH at the end")
        values = TABLES[job.block].decode(job.words)
        with refusing(f"job {number}, {job.block}"):
            steps.append(Step(number, job.block, values, unit_of(job.block, values)))
    if not steps or steps[-1].block != "FINISH":
        raise Hang("no FINISH ends the stream")
    return steps


def unit_of(block: str, values: dict[str, Any]) -> str:
    """The unit that runs an instruction; raises ValueError for a memory that it cannot move."""
    allowed = {"LOAD": LOADED, "STORE": ("out",)}.get(block)
    if allowed is None:
        return "compute"
    return KINDS[named("memory_type", values, "memory", allowed)].unit


def named(name: str, values: dict[str, Any], enum: str, allowed: tuple[str, ...]) -> str:
    """The name of a value; raises ValueError unless it is one of ``allowed``."""
    code = values[name]
    found = ENUMS[enum].get(code, "")
    refuse_if(found not in allowed, name, found or code, f"is one of {', '.join(allowed)}")
    return found


def finish(steps: list[Step], device: Device) -> None:
    """Run all instructions, each unit its own in their order, as far as there are tokens."""
    waiting = {unit: deque(step for step in steps if step.unit == unit) for unit in UNITS}
    tokens: Counter[Token] = Counter()
    moved = True
    while moved:
        moved = False
        for queue in waiting.values():
            while queue and all(tokens[token] for token in queue[0].tokens("pop")):
                step = queue.popleft()
                tokens.subtract(step.tokens("pop"))
                with refusing(step):
                    run(step, device)
                tokens.update(step.tokens("push"))
                moved = True
    for unit, queue in waiting.items():
        for step in list(queue)[:1]:
            missing = [token[0] for token in step.tokens("pop") if not tokens[token]]
            raise Hang(
                f"{step}: the {unit} unit waits for a token of the {missing[0]} unit, which "
                "pushes none any more"
            )


def run(step: Step, device: Device) -> None:
    if step.block == "LOAD":
        load(step.values, device)
    elif step.block == "STORE":
        store(step.values, device)
    elif step.block == "GEMM":
        multiply(step.values, device)
    elif step.block == "ALU":
        calculate(step.values, device)


def load(values: dict[str, Any], device: Device) -> None:
    """Rows of entries from outside, with zeros before and after."""
    kind = KINDS[ENUMS["memory"][values["memory_type"]]]
    chip = device.chip[kind.holds]
    rows, columns = values["y_size"], values["x_size"]
    top, left = values["y_pad_0"], values["x_pad_0"]
    shape = (top + rows + values["y_pad_1"], left + columns + values["x_pad_1"])
    place = entries(values["sram_base"], shape[0] * shape[1], kind.holds, chip)
    block = np.zeros((*shape, *kind.shape), chip.dtype)
    for row in range(rows):
        start = address(values, row, kind.size)
        data = device.outside.stretch(start, columns * kind.size)
        refuse_if(
            len(data) < columns * kind.size,
            f"row {row}",
            f"{columns * kind.size} bytes from {start:#x} on",
            f"are bytes of a buffer, which end at {start + len(data):#x}",
        )
        found = np.frombuffer(data, kind.stored).reshape(columns, *kind.shape)
        block[top + row, left : left + columns] = found
    chip[place] = block.reshape(-1, *kind.shape)


def store(values: dict[str, Any], device: Device) -> None:
    """Rows of entries to outside, the low byte of each lane of ``acc``."""
    kind = KINDS["out"]
    chip = device.chip[kind.holds]
    rows, columns = values["y_size"], values["x_size"]
    place = entries(values["sram_base"], rows * columns, kind.holds, chip)
    block = chip[place].astype(kind.stored).reshape(rows, columns, *kind.shape)
    for row in range(rows):
        start = address(values, row, kind.size)
        for memory in (device.outside, device.stored):
            memory.write(start, block[row].tobytes())


def entries(start: int, count: int, name: str, chip: np.ndarray) -> slice:
    refuse_if(
        start + count > len(chip),
        "sram_base",
        f"{count} entries of {name} from {start} on",
        f"are entries below {len(chip)}",
    )
    return slice(start, start + count)


def address(values: dict[str, Any], row: int, size: int) -> int:
    """The byte at which a row begins; ``x_stride`` counts entries of ``size`` bytes."""
    return int(values["dram_base"] + row * values["x_stride"] * size)


def multiply(values: dict[str, Any], device: Device) -> None:
    """GEMM: products of inputs and weights, added to accumulators that wrap; or zeros."""
    acc = device.chip["acc"]
    micro = micro_ops(values, device)
    dst = indices("dst", values, micro, acc)
    if values["reset_reg"]:
        acc[dst] = 0
        return
    src = indices("src", values, micro, device.chip["inp"])
    wgt = indices("wgt", values, micro, device.chip["wgt"])
    order = np.argsort(wgt, kind="stable")
    tiles, first = np.unique(wgt[order], return_index=True)
    # all that is multiplied by one tile of weights is multiplied at once: sums have no order
    for tile, steps in zip(tiles, np.split(order, first[1:]), strict=False):
        weights = device.chip["wgt"][tile].astype(np.int32)
        inputs = device.chip["inp"][src[steps]].astype(np.int32)
        np.add.at(acc, dst[steps], inputs @ weights.T)


def calculate(values: dict[str, Any], device: Device) -> None:
    """ALU: accumulators and a second operand, one micro-op after another."""
    acc = device.chip["acc"]
    micro = micro_ops(values, device)
    dst = indices("dst", values, micro, acc)
    src = indices("src", values, micro, acc)  # held to be in range with use_imm too
    name = named("alu_opcode", values, "operation", tuple(OPERATIONS))
    operation = OPERATIONS[name]
    immediate = np.int32(values["imm"])
    apart = len(np.unique(dst)) == len(dst)
    if values["use_imm"] and apart:
        acc[dst] = operation(acc[dst], immediate)
    elif apart and not np.isin(src, dst).any():
        acc[dst] = operation(acc[dst], acc[src])
    else:
        for a, b in zip(dst, src, strict=True):
            acc[a] = operation(acc[a], immediate if values["use_imm"] else acc[b])


def shifted(a: np.ndarray, by: Any) -> np.ndarray:
    """``a`` shifted right by ``by`` bits, left if ``by`` is negative; no bits are left from 32 on,
    only signs."""
    wide = a.astype(np.int64)
    right = wide >> np.clip(by, 0, 32)
    return (right << np.clip(-np.asarray(by, np.int64), 0, 32)).astype(np.int32)


OPERATIONS: dict[str, Callable[..., np.ndarray]] = {
    "min": np.minimum,
    "max": np.maximum,
    "add": np.add,
    "shr": shifted,
    "mul": np.multiply,
}


def micro_ops(values: dict[str, Any], device: Device) -> dict[str, np.ndarray]:
    """The fields of the micro-ops that an instruction runs."""
    first, end = values["uop_bgn"], values["uop_end"]
    words = device.chip["uop"]
    refuse_if(end > len(words), "uop_end", end, f"is at most {len(words)}")
    return {
        name: found.astype(np.int64)
        for name, found in TABLES["UOP"].decode(words[first:end]).items()
    }


def indices(
    name: str, values: dict[str, Any], micro: dict[str, np.ndarray], chip: np.ndarray
) -> np.ndarray:
    """The entries of a memory that an instruction goes through, in the order of its steps."""
    bases = micro[f"{name}_idx"]
    loops = []
    for side in ("out", "in"):
        loops.append((values[f"iter_{side}"], values[f"{name}_factor_{side}"]))
    steps = len(bases) * loops[0][0] * loops[1][0]
    if not steps:
        return np.zeros(0, np.int64)
    last = int(bases.max()) + sum((count - 1) * factor for count, factor in loops)
    refuse_if(last >= len(chip), f"{name}_idx", f"an index of {last}", f"is below {len(chip)}")
    if steps > MOST_STEPS:
        raise Hang(f"an instruction takes {steps} steps, the simulated device {MOST_STEPS} at most")
    outer, inner = (np.arange(count) * factor for count, factor in loops)
    return (outer[:, None, None] + inner[:, None] + bases).reshape(-1)
