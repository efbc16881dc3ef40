"""The capture of a compiled model (``.rknn``): a job for each task, the layer as parameters.

A file has three programs: for core 0 alone, for core 1 alone, and for both cores. The label of a
job states its program and core, and a tensor of the job if none of its tensors is in the model;
labels are the roles of a sweep. A command that holds an address has an offset in a tensor, which
the table ``patches`` of the parameters names. If the model is one convolution, the parameters also
have those of the layer, and those of an ``.onnx`` file beside the ``.rknn`` file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npulab.models.onnx_layers import AXES, SIDES, read_onnx
from npulab.npus.kit import (
    COMMANDS,
    Capture,
    Job,
    first_bytes,
    read_bounded,
    refuse_if,
    refusing,
)
from npulab.npus.rockchip import commands, rknn
from npulab.npus.rockchip.commands import WORDS, writes_of
from npulab.npus.rockchip.facts import CHIPS, FACTS, TABLES, registers_of
from npulab.npus.rockchip.rknn import HALF, Compiled
from npulab.npus.rockchip.tasks import BYTES, MOST_TASKS, MOST_TOGETHER, Task
from npulab.support.extras import MissingPackage
from npulab.support.text import Row

CONTAINER, TASKS = "container", "tasks"
MODEL = ".onnx"
PROGRAMS = ("core 0 alone", "core 1 alone", "both cores")
# The names of convolution operators begin with this text.
CONVOLUTION = "Conv"
LISTED = ("name", "type", "layout", "use", "shape", "stored_shape", "scale", "zero_point")
CHOICES = ("choices_a", "choices_b")
NCHW = ("n", "c", "h", "w")
# The compiler leaves out padding that no kernel reaches, so these may differ from the model.
TRIMMED = {"pad_bottom", "pad_right"}


class Patch(NamedTuple):
    """A command (its number) whose value is an address: ``offset`` bytes into ``tensor``.

    ``core`` is the number of the core whose task has the command.
    """

    tensor: str
    command: int
    offset: int
    core: int


def recognises(path: Path) -> bool:
    """Return true for a file that begins with the magic of a compiled model."""
    return path.is_file() and rknn.is_rknn(first_bytes(path, len(rknn.MAGIC)))


def read(path: Path) -> dict[str, Capture]:
    """Return the capture of a ``.rknn`` file, by the file's name without suffix.

    Parameters of an ``.onnx`` file with the same name, or with the name without ``_<chip>`` at its
    end, are added; without the package onnx they are left out, with a UserWarning. Raises
    ValueError, with file and place, for a broken file, and for two files of different layers.
    """
    data = read_bounded(path, rknn.MOST_BYTES)
    with refusing(path):
        capture = capture_of(rknn.read(data), path.stem, path.name)
    name = path.stem.removesuffix(f"_{capture.chip}")
    for beside in dict.fromkeys((path.with_suffix(MODEL), path.with_name(name + MODEL))):
        if beside.is_file():
            parameters = _with_model(capture.parameters, beside)
            return {capture.name: replace(capture, parameters=parameters)}
    return {capture.name: capture}


def capture_of(compiled: Compiled, name: str, source: str = "") -> Capture:
    """Return the capture of a compiled model, named ``name``.

    Its buffers are the whole file, the commands and the task records; the table ``tensors`` of its
    parameters states the bytes of the file that have each tensor. Raises ValueError for an unknown
    chip, and for records, commands and patches that contradict each other.
    """
    chip = compiled.root["platform"]
    refuse_if(chip not in CHIPS, "platform", repr(chip), f"is one of {', '.join(CHIPS)}")
    stream = compiled.held(compiled.of_use(rknn.COMMAND_USE))
    records = compiled.held(compiled.of_use(rknn.TASK_USE))
    words = commands.commands(stream)
    patches = list(_patches(compiled, len(words)))
    jobs = list(_jobs(compiled, chip, words, _tasks(records, len(words)), patches))
    refuse_if(not jobs, "task records", "none", "is one or more")
    parameters = {
        **_layer(compiled),
        "compiler": compiled.root["compiler"],
        "tensors": list(_tensors(compiled)),
        "patches": [patch._asdict() for patch in patches],
        "choices": list(_choices(compiled, words)),
    }
    buffers = {CONTAINER: compiled.data, COMMANDS: stream, TASKS: records}
    return Capture(
        name,
        "rockchip",
        chip,
        tuple(jobs),
        buffers,
        {},
        parameters,
        "compiler",
        source,
        f"rknn {rknn.VERSION}",
        maps=FACTS.maps(chip),
    )


def encode(capture: Capture) -> bytes:
    """Return the bytes of a ``.rknn`` file with the commands and task records of a capture.

    All other bytes are those of the capture's file. Raises ValueError if the buffer of commands or
    of task records has another length than in the file.
    """
    data = bytearray(capture.buffers[CONTAINER])
    compiled = rknn.read(bytes(data))
    for use, name in ((rknn.COMMAND_USE, COMMANDS), (rknn.TASK_USE, TASKS)):
        place, part = compiled.place(compiled.of_use(use)), capture.buffers[name]
        allowed = f"are the {len(place)} of the file"
        refuse_if(len(part) != len(place), f"buffer {name}", f"{len(part)} bytes", allowed)
        data[place.start : place.stop] = part
    return bytes(data)


def _tasks(records: bytes, words: int) -> list[Task]:
    """Return the task records that bytes have; ``words`` is the number of the file's commands.

    Raises ValueError for a record whose commands are not in the file.
    """
    count, rest = divmod(len(records), BYTES)
    wrong = rest or count > MOST_TASKS
    allowed = f"are {BYTES} for each of at most {MOST_TASKS}"
    refuse_if(wrong, "task records", f"{len(records)} bytes", allowed)
    found = [Task.of(records[at : at + BYTES]) for at in range(0, len(records), BYTES)]
    for number, task in enumerate(found):
        first, odd = divmod(task.command_address, WORDS.itemsize)
        wrong = odd or not task.commands or first + task.commands > words
        got = f"{task.commands} commands from byte {task.command_address:#x} on"
        refuse_if(wrong, f"task {number}", got, f"are some of the {words} of the file")
    total = sum(task.commands for task in found)
    refuse_if(total > MOST_TOGETHER, "tasks", f"{total} commands", f"are {MOST_TOGETHER}")
    return found


def _patches(compiled: Compiled, words: int) -> Iterator[Patch]:
    """Yield each command that holds an address, in the order of the file."""
    for row in compiled.graph["patches"]:
        places, cores = row["places"], row["cores"]
        where = f"patches of {row['tensor']!r:.40}"
        counts = f"{len(places)} places and {len(cores)} cores"
        refuse_if(len(places) != len(cores), where, counts, "is as many of both")
        for place, core in zip(places, cores, strict=True):
            command, offset = divmod(place, HALF)
            refuse_if(command >= words, where, f"command {command}", f"are {words} commands")
            yield Patch(row["tensor"], command, offset, core // HALF)


def _jobs(
    compiled: Compiled,
    chip: str,
    words: np.ndarray,
    tasks: Sequence[Task],
    patches: Sequence[Patch],
) -> Iterator[Job]:
    """Yield the job of each task."""
    block = registers_of(chip)
    registers = TABLES[block]
    ends = commands.ends(words)
    for number, task in enumerate(tasks):
        first = task.command_address // WORDS.itemsize
        last = first + task.commands
        block_words = words[first:last]
        good = commands.written(block_words)
        refuse_if(not good.all(), f"task {number}", _broken(words, first, good), "is a register")
        start = task.job
        if last < len(words) and ends[last]:
            end = writes_of(words[last : last + commands.END_WORDS])
            start = replace(Job.from_writes(block, end, registers), start=start)
        inside = [patch for patch in patches if first <= patch.command < last]
        label = _label(compiled, number, inside)
        job = Job.from_writes(block, writes_of(block_words), registers)
        yield replace(job, start=start, label=label)


def _broken(words: np.ndarray, first: int, good: np.ndarray) -> str:
    at = first + int(np.argmin(good))
    return f"command {at} of target {words['target'][at]:#06x}, {words['register'][at]:#06x}"


def _label(compiled: Compiled, number: int, patches: Sequence[Patch]) -> str:
    """Return the label of task ``number``: its program and core.

    A tensor of the task is added if none of its tensors belongs to an operator of the model.
    """
    program = sum(number >= first for first in compiled.graph["programs"]) - 1
    label = f"program {program}"
    if 0 <= program < len(PROGRAMS):
        label = PROGRAMS[program]
    if not patches:
        return label
    if program == len(PROGRAMS) - 1:
        label += f", core {patches[0].core}"
    named: set[int] = set()
    for node in compiled.graph["nodes"]:
        named.update((*node["inputs"], *node["outputs"]))
    models = {compiled.tensor(number)["name"] for number in named}
    if not any(patch.tensor in models for patch in patches):
        label += f", {patches[0].tensor}"
    return label


def _tensors(compiled: Compiled) -> Iterator[Row]:
    """Yield a row for each tensor: the columns ``LISTED`` as the file states them, the byte of the
    file at which its data begins, and the number of bytes."""
    for tensor in compiled.tensors:
        row = {name: tensor[name] for name in LISTED}
        place = compiled.place(tensor)
        yield {**row, "byte": place.start, "bytes": len(place)}


def _choices(compiled: Compiled, words: np.ndarray) -> Iterator[Row]:
    """Yield a row for each alternative value that the file states for a command.

    It is not known when the alternatives are used.
    """
    for kind in CHOICES:
        for row in compiled.graph[kind]:
            for task, values in enumerate(row["tasks"]):
                for name, pair in values.items():
                    command, value = divmod(pair, HALF)
                    if name.startswith("w") or not command:
                        continue
                    where = f"{kind}, task {task}, {name}"
                    allowed = f"are {len(words)} commands"
                    refuse_if(command >= len(words), where, f"command {command}", allowed)
                    yield {
                        "of": f"{kind}.{name}",
                        "tensor": row["tensor"],
                        "command": command,
                        "register": int(words["register"][command]),
                        "value": value,
                    }


def _layer(compiled: Compiled) -> dict[str, Any]:
    """Return the parameters of a file's only operator, if it is a convolution, else none."""
    nodes = [node for node in compiled.graph["nodes"] if node["layer"]]
    if len(nodes) != 1 or not nodes[0]["op"].startswith(CONVOLUTION):
        return {}
    node = nodes[0]
    layer = node["layer"]
    out: dict[str, Any] = {}
    ends = {"input": (node["inputs"], rknn.INPUT), "output": (node["outputs"], rknn.OUTPUT)}
    for name, (numbers, use) in ends.items():
        refuse_if(not numbers, f"operator {node['name']!r:.40}", f"no {name}", "is one")
        tensor = compiled.tensor(numbers[0])
        if tensor["use"] != use or len(tensor["shape"]) != len(NCHW):
            return {}
        out |= dict(zip((f"{name}_{axis}" for axis in NCHW[1:]), tensor["shape"][1:], strict=True))
        for what in ("scale", "zero_point"):
            if len(tensor[what]) == 1:
                out[f"{name}_{what}"] = tensor[what][0]
    for name, field in (("kernel", "kernel"), ("stride", "strides"), ("dilation", "dilations")):
        out |= _named(name, AXES, layer[field])
    out |= _named("pad", SIDES, layer["pads"])
    out["depthwise"] = int(1 < out["input_c"] == layer["groups"])
    return out


def _named(name: str, axes: Sequence[str], sizes: Sequence[int]) -> dict[str, int]:
    refuse_if(len(sizes) != len(axes), name, f"{len(sizes)} numbers", f"are {len(axes)}")
    return {f"{name}_{axis}": size for axis, size in zip(axes, sizes, strict=True)}


def _with_model(parameters: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return parameters with those of the only layer of the ``.onnx`` file ``path`` added.

    They stay unchanged if the file has another number of layers, or if the package onnx is missing.
    Raises ValueError if both files state a parameter differently.
    """
    try:
        layers = read_onnx(path)
    except MissingPackage as error:
        warnings.warn(f"{error}; parameters are taken from the .rknn files alone", stacklevel=4)
        return dict(parameters)
    if len(layers) != 1 or "input_c" not in parameters:
        return dict(parameters)
    model = layers[0].parameters
    for name in model.keys() - TRIMMED:
        stated = parameters.get(name, model[name])
        wrong = stated != model[name]
        refuse_if(wrong, f"{path}: {name}", model[name], f"is {stated}, as the .rknn has it")
    return {**model, **parameters}
