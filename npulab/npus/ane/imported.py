"""Importers: compiled files (hwx), folders of them, and bare task lists with their coefficients.

A bare task list is the tasks of H13 and then their coefficients, without a file around them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from npulab.npus.ane import hwx, tasks
from npulab.npus.ane.beside import beside
from npulab.npus.ane.facts import CHIPS, USUAL_CHIP, maps
from npulab.npus.ane.writing import MADE_BY, MAKER
from npulab.npus.kit import Capture, Job, first_bytes, read_bounded, refusing, up

CHIP_OF = {facts["cpusubtype"]: chip for chip, facts in CHIPS.items()}
SUFFIX, BLOB = ".hwx", ".bin"
# The number of the coefficients' base address in every file that was seen. A capture states the
# number in its parameters only if it is another number.
USUAL_BAR = 1
# Files are searched in the given folder and at most this many levels of folders below.
DEPTH = 3
TEXT, CONST = ("__TEXT", "__text"), ("__TEXT", "__const")
# A task reads coefficients if this field is not 0: on H13, on H14 and later, on H11.
KERNEL = ("Header.Header[9].KBE0", "KernelDMASrc.MasterConfig.MasterEnable", "Header.Header[6].KBE")


def recognises(path: Path) -> bool:
    """Return true for a compiled file, a bare task list, or a folder that has one, at most three
    levels down."""
    return next(_files(path), None) is not None


def read(path: Path) -> dict[str, Capture]:
    """Return the capture of each compiled file and bare task list below a path, by its name.

    A compiled file that is the only ANE file of its folder is named after the folder, and its
    capture also has the folder's source network (``net.plist``) and weights. Other captures are
    named after folder and file. Raises ValueError, with file, structure and byte offset, for a
    broken file.
    """
    files = list(_files(path))
    folders = Counter(file.parent for file, _ in files)
    out = {}
    for file, is_compiled in files:
        names: list[str] = []
        if path.is_dir():
            names += file.parent.relative_to(path).parts
        alone = is_compiled and folders[file.parent] == 1
        if not alone:
            names.append(file.stem)
        name = "-".join(names) or file.parent.absolute().name
        data = read_bounded(file, hwx.MOST_BYTES)
        if is_compiled:
            capture = compiled(data, name, str(file))
        else:
            capture = bare(data, name, str(file))
        if alone:
            sources, known = beside(file.parent)
            buffers = {**capture.buffers, **sources}
            capture = replace(capture, buffers=buffers, parameters={**known, **capture.parameters})
        out[name] = capture
    return out


def compiled(data: bytes, name: str, where: str) -> Capture:
    """Return the capture of a compiled file, from the file's bytes.

    Its parameters have ``tensors``, the file's tensors, and ``coefficients_bar``, the number of the
    coefficients' base address, if that is not 1. Errors begin with ``where``.
    """
    found = hwx.read(data, where)
    if found.subtype not in CHIP_OF:
        known = ", ".join(f"{subtype} ({chip})" for subtype, chip in CHIP_OF.items())
        raise ValueError(
            f"{where}: header at byte 0x8: got subtype {found.subtype}, allowed are {known}"
        )
    chip = CHIP_OF[found.subtype]
    program = _program(found, where)
    registers = maps(chip)
    block = chip.upper()
    jobs = []
    for task in _listed(found, program, chip, where):
        jobs.append(Job.from_writes(block, task.job_writes, registers[block]))
    # Tensors come first: a tensor may be named "text" or "coefficients", which must win below.
    addresses = {}
    for tensor in found.tensors:
        if tensor.address is not None:
            addresses[tensor.name] = tensor.address
    addresses["text"] = found.section(*TEXT).address
    buffers = {"hwx": data}
    parameters: dict[str, Any] = {"tensors": list(map(_described, found.tensors))}
    const = [part for part in found.sections if (part.segment, part.name) == CONST]
    if const and _uses_kernel(jobs, registers):
        addresses["coefficients"], buffers["coefficients"] = const[0].address, const[0].data
    at = addresses.get("coefficients")
    bars = [number for number, address in program.bars.items() if address == at]
    if bars and USUAL_BAR not in bars:
        parameters["coefficients_bar"] = bars[0]
    provenance, tool = "compiler", f"zin_ane_compiler {found.compiler}".strip()
    # npulab marks the files that it writes, so that they do not pass for files of a compiler.
    if MADE_BY in found.identity.split("\n"):
        provenance, tool = "simulated", MAKER
    return Capture(
        name,
        "ane",
        chip,
        tuple(jobs),
        buffers,
        addresses,
        parameters,
        provenance,
        source=where,
        tool=tool,
        maps=registers,
    )


def _program(found: hwx.Hwx, where: str) -> hwx.Program:
    with refusing(where):
        found.section(*TEXT)
    if len(found.programs) != 1:
        places = [f"{program.name!r} at byte {program.at:#x}" for program in found.programs]
        raise ValueError(
            f"{where}: got {len(found.programs)} program threads "
            f"({', '.join(places) or 'none from byte 0x20 on'}), allowed is one"
        )
    return found.programs[0]


def _listed(found: hwx.Hwx, program: hwx.Program, chip: str, where: str) -> list[tasks.Task]:
    """Return the tasks of a program.

    Raises ValueError if the first task or the number of tasks is not what the program states.
    """
    text = found.section(*TEXT)
    stated = f"{where}: program thread {program.name!r} at byte {program.at:#x}"
    first = program.first_task - text.address
    if not 0 <= first < max(text.size, 1):
        raise ValueError(
            f"{stated}: got its first task at {program.first_task:#x}, "
            f"allowed is {text.address:#x} to {text.address + text.size:#x}"
        )
    section = f"{where}: {','.join(TEXT)} at byte {text.offset:#x}"
    facts = CHIPS[chip]
    if facts.get("compact_records"):
        with refusing(section):
            listed = tasks.read_h14(text.data, facts["header_words"])
    else:
        form = tasks.H13 if chip == USUAL_CHIP else tasks.H11
        listed = tasks.read_list(text.data, first, program.first_words, section, form)
    if len(listed) != program.tasks:
        raise ValueError(f"{stated}: got {program.tasks} tasks, its list has {len(listed)}")
    return listed


def bare(data: bytes, name: str, where: str) -> Capture:
    """Return the capture of a bare task list of H13, from its bytes.

    Its coefficients follow the last task, at a multiple of 16 bytes.
    """
    listed = tasks.read_list(data, where=where)
    registers = maps(USUAL_CHIP)
    jobs = [Job.from_writes("H13", task.job_writes, registers["H13"]) for task in listed]
    buffers = {}
    if _uses_kernel(jobs, registers):
        buffers["coefficients"] = data[up(max(task.end for task in listed), tasks.ALIGN) :]
    return Capture(
        name,
        "ane",
        USUAL_CHIP,
        tuple(jobs),
        buffers,
        provenance="compiler",
        source=where,
        maps=registers,
    )


def _uses_kernel(jobs: Sequence[Job], registers: Mapping[str, Any]) -> bool:
    """Return true if at least one job reads coefficients."""
    for job in jobs:
        table = registers[job.block]
        for name in KERNEL:
            if name in table and table[name].extract(job.words):
                return True
    return False


def _described(tensor: hwx.Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "kind": tensor.kind,
        "bar": tensor.bar,
        "element": tensor.element,
        **dict(zip("nchwd", tensor.shape, strict=True)),
        "strides": dict(tensor.strides),
        "interleave": tensor.interleave,
        "span": tensor.span,
    }


def _files(path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield each compiled file and bare task list at or below a path, and true if it is compiled.

    The first bytes of a file decide what it is. Files of upper folders come first, then by name.
    """
    for file in _candidates(path):
        if file.is_file():
            begin = first_bytes(file, 4 * (tasks.H13.words + 3))
            is_compiled = hwx.is_hwx(begin)
            if is_compiled or tasks.is_task(begin):
                yield file, is_compiled


def _candidates(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for depth in range(DEPTH + 1):
        at_depth = path.glob("*/" * depth + "*")
        yield from sorted(file for file in at_depth if file.suffix in (SUFFIX, BLOB))
