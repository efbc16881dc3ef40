"""Importers: compiled files, folders of them, and bare task lists with their coefficients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
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
USUAL_BAR = 1  # of the coefficients, in every file seen; only another number is kept
DEPTH = 3  # folders below the one that was asked for
TEXT, CONST = ("__TEXT", "__text"), ("__TEXT", "__const")
# what says that a task reads coefficients, on H13, from H14 on, and on H11
KERNEL = ("Header.Header[9].KBE0", "KernelDMASrc.MasterConfig.MasterEnable", "Header.Header[6].KBE")


def recognises(path: Path) -> bool:
    """A compiled file or a bare task list, or a folder that has some (up to three folders down)."""
    return next(_files(path), None) is not None


def read(path: Path) -> dict[str, Capture]:
    """A capture per file: a compiled one is named by its folder where that has no other, else by
    its file too.

    One that is alone in its folder has the source network and weights that lie there
    (``net.plist``) with it.

    Raises ValueError naming the file, structure and byte offset for one that is broken.
    """
    files = list(_files(path))
    folders = Counter(file.parent for file, _ in files)
    out = {}
    for file, is_compiled in files:
        alone = is_compiled and folders[file.parent] == 1
        parts = file.parent.relative_to(path).parts if path.is_dir() else ()
        own = (
            (file.parent.absolute().name,) if alone and not parts else () if alone else (file.stem,)
        )
        name = "-".join((*parts, *own))
        out[name] = (compiled if is_compiled else bare)(
            read_bounded(file, hwx.MOST_BYTES), name, str(file)
        )
        if alone:
            sources, known = beside(file.parent)
            out[name] = replace(
                out[name],
                buffers={**out[name].buffers, **sources},
                parameters={**known, **out[name].parameters},
            )
    return out


def compiled(data: bytes, name: str, where: str) -> Capture:
    """The capture in the bytes of a compiled file.

    Its parameters have the ``tensors``, and the ``coefficients_bar`` where that is not the usual 1.
    """
    found = hwx.read(data, where)
    if found.subtype not in CHIP_OF:
        known = ", ".join(f"{subtype} ({chip})" for subtype, chip in CHIP_OF.items())
        raise ValueError(
            f"{where}: header at byte 0x8: got subtype {found.subtype}, allowed are {known}"
        )
    with refusing(where):
        text = found.section(*TEXT)
    if len(found.programs) != 1:
        there = (
            ", ".join(f"{one.name!r} at byte {one.at:#x}" for one in found.programs)
            or "none from byte 0x20 on"
        )
        raise ValueError(
            f"{where}: got {len(found.programs)} program threads ({there}), allowed is one"
        )
    (program,) = found.programs
    said = f"{where}: program thread {program.name!r} at byte {program.at:#x}"
    first = program.first_task - text.address
    if not 0 <= first < max(text.size, 1):
        raise ValueError(
            f"{said}: got its first task at {program.first_task:#x}, "
            f"allowed is {text.address:#x} to {text.address + text.size:#x}"
        )
    chip = CHIP_OF[found.subtype]
    listed = _tasks(
        text.data,
        chip,
        first,
        program.first_words,
        f"{where}: {','.join(TEXT)} at byte {text.offset:#x}",
    )
    if len(listed) != program.tasks:
        raise ValueError(f"{said}: got {program.tasks} tasks, its list has {len(listed)}")
    registers = maps(chip)
    block = chip.upper()
    jobs = tuple(Job.from_writes(block, one.job_writes, registers[block]) for one in listed)
    # a tensor may have any name, these two too
    addresses = {one.name: one.address for one in found.tensors if one.address is not None} | {
        "text": text.address
    }
    buffers = {"hwx": data}
    const = next((one for one in found.sections if (one.segment, one.name) == CONST), None)
    if const is not None and _uses_kernel(jobs, registers):
        addresses["coefficients"], buffers["coefficients"] = const.address, const.data
    parameters: dict[str, Any] = {"tensors": [_tensor(one) for one in found.tensors]}
    numbers = [
        number
        for number, address in program.bars.items()
        if address == addresses.get("coefficients")
    ]
    if numbers and USUAL_BAR not in numbers:
        parameters["coefficients_bar"] = numbers[0]
    ours = MADE_BY in found.identity.split(
        "\n"
    )  # nothing that npulab wrote passes for a compiler's
    return Capture(
        name,
        "ane",
        chip,
        jobs,
        buffers,
        addresses,
        parameters,
        "simulated" if ours else "compiler",
        source=where,
        tool=MAKER if ours else f"zin_ane_compiler {found.compiler}".strip(),
        maps=registers,
    )


def bare(data: bytes, name: str, where: str) -> Capture:
    """The capture in a bare task list; what follows its last task is its coefficients."""
    listed = tasks.read_list(data, where=where)
    registers = maps(USUAL_CHIP)
    jobs = tuple(Job.from_writes("H13", one.job_writes, registers["H13"]) for one in listed)
    rest = data[up(max(one.end for one in listed), tasks.ALIGN) :]
    return Capture(
        name,
        "ane",
        USUAL_CHIP,
        jobs,
        {"coefficients": rest} if _uses_kernel(jobs, registers) else {},
        provenance="compiler",
        source=where,
        maps=registers,
    )


def _tasks(text: bytes, chip: str, first: int, words: int, where: str) -> list[tasks.Task]:
    """The tasks of a section, as the chip has them."""
    facts = CHIPS[chip]
    if not facts.get("compact_records"):
        return tasks.read_list(
            text, first, words, where, tasks.H13 if chip == USUAL_CHIP else tasks.H11
        )
    with refusing(where):
        return tasks.read_h14(text, facts["header_words"])


def _uses_kernel(jobs: tuple[Job, ...], registers: Mapping[str, Any]) -> bool:
    """Whether a task reads coefficients."""
    known = [
        (job, registers[job.block][name])
        for job in jobs
        for name in KERNEL
        if name in registers[job.block]
    ]
    return any(bool(item.extract(job.words)) for job, item in known)


def _tensor(one: hwx.Tensor) -> dict[str, Any]:
    return {
        "name": one.name,
        "kind": one.kind,
        "bar": one.bar,
        "element": one.element,
        **dict(zip("nchwd", one.shape, strict=True)),
        "strides": dict(one.strides),
        "interleave": one.interleave,
        "span": one.span,
    }


def _files(path: Path) -> Iterator[tuple[Path, bool]]:
    """(file, whether it is a compiled one) by name, the nearest first; told by what they begin
    with."""
    depths = ["/".join(["*"] * depth + ["*"]) for depth in range(DEPTH + 1)]
    found = (
        [path]
        if path.is_file()
        else (
            file
            for pattern in depths
            for file in sorted(path.glob(pattern))
            if file.suffix in (SUFFIX, BLOB)
        )
    )
    for file in found:
        if file.is_file():
            begin = first_bytes(file, 4 * (tasks.H13.words + 3))
            if hwx.is_hwx(begin) or tasks.is_task(begin):
                yield file, hwx.is_hwx(begin)
