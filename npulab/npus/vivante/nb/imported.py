"""Imports network binary graphs (``.nb``): a capture per file, with a job for each instruction.

The jobs are in the order of their operations. An NN or TP job has the words of its block's map. Its
``start`` is a job with the states that the command stream loads. The ``start`` of this start has
the further words of the instruction, which follow those of the map. Operations of other units are
jobs of the blocks SH and OP. Words that are addresses are 0 in a file; the table ``patches`` of the
parameters names them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy import ndarray as Array

from npulab.captures.capture import is_records
from npulab.captures.target import Claim
from npulab.npus.kit import (
    WORD_BYTES,
    Capture,
    Job,
    RegisterMap,
    first_bytes,
    read_bounded,
    read_table,
    refuse_if,
    refusing,
)
from npulab.npus.vivante import commands, words
from npulab.npus.vivante.facts import CHIPS, OTHER, REST, SHADER, USUAL_CHIP, maps
from npulab.npus.vivante.nb import file
from npulab.npus.vivante.nb.file import NONE, Graph, Section
from npulab.registers.fields import WORD_BITS
from npulab.support.text import Row, visible

START_UP, COMMAND_STREAM = "start-up", "command stream"
STATE, COEFFICIENTS, COEF_DATA = "STATE", "coefficients", "coef_data"
CHECKSUMS, OPERATIONS, ENTRIES = "checksums", "operations", "coefficient_entries"
# Bounds of the work that a broken file causes: far more than any network has.
MOST_JOBS, MOST_STATES = 2**15, 2**20
MOST_DIMS = 6
# The NN fields whose words hold the addresses of tensors and coefficients.
INPUT, OUTPUT, KERNEL = "in_image_address", "out_image_address", "kernel_address"
PIDS = {int(row["pid"], 0): row for row in read_table(file.HERE / "pids.csv")}
CODES: dict[str, dict[int, Row]] = {}
for _row in read_table(file.HERE / "codes.csv"):
    CODES.setdefault(_row["of"], {})[int(_row["code"], 0)] = _row
States = list[tuple[int, int]]


class Operation(NamedTuple):
    """An operation of a network: its ``number`` in the file, the name of its kind, the block of its
    jobs, its patches by number, and its record as words. ``item``, ``layer`` and ``states`` are
    numbers of its instruction, layer and command stream in other sections; ``layer`` and ``states``
    may be None."""

    number: int
    kind: str
    block: str
    item: int
    layer: int | None
    states: int | None
    patches: range
    record: Sequence[int]


class Stream(NamedTuple):
    """A command stream: the states (offset, value) that it loads in order, and the offset of the
    state that each word sets."""

    states: States
    places: Mapping[int, int]  # key: number of the word; value: offset of the state that it sets


def recognises(path: Path) -> bool:
    """True for a file that begins as a network binary graph."""
    return path.is_file() and file.is_nb(first_bytes(path, len(file.MAGIC)))


def read(path: Path) -> dict[str, Capture]:
    """Return the capture of a file, by the file's name.

    Gives a UserWarning if the chip of the file's PID (product number) is not known. Raises
    ValueError with file, section and byte for a broken file.
    """
    data = read_bounded(path, file.MOST_BYTES)
    with refusing(path):
        capture = capture_of(file.read(data), path.stem, path.name)
    pid = capture.parameters["pid"]
    if pid not in PIDS:
        warnings.warn(
            f"{path}: PID {pid:#x} is not in the table of chips, the words are read as those of "
            f"{capture.chip}; give --chip if it is another chip",
            stacklevel=3,
        )
    return {capture.name: capture}


def capture_of(graph: Graph, name: str, source: str = "") -> Capture:
    """Return the capture of a graph.

    If a file has one NN job, its coefficients are the buffer ``coefficients``. If it has several,
    the buffer ``coef_data`` has all coefficients, and the table ``coefficient_entries`` of the
    parameters says where the coefficients of each job lie. Raises ValueError for a number of a
    record that the file does not have."""
    chip = chip_of(graph)
    registers = maps(chip)
    operations = list(_operations(graph))
    streams = _streams(graph, operations)
    jobs, tasks = _jobs(graph, operations, streams, registers)
    patches = list(_patches(graph, operations, tasks, streams, registers))
    entries, buffers = _coefficients(graph, jobs, patches)
    buffers |= _kept(graph)
    tensors = [*_tensors(graph, "input"), *_tensors(graph, "output")]
    parameters: dict[str, Any] = {
        "pid": graph.pid,
        "header": [_header(graph, chip)],
        "sections": list(map(_described, graph.sections.values())),
        CHECKSUMS: list(_checksums(graph)),
        "tensors": tensors,
        "layers": list(_layers(graph)),
        OPERATIONS: _listed(operations, tasks),
        "patches": patches,
        ENTRIES: entries,
        **_scales(chip, jobs, patches, tensors, registers),
    }
    return Capture(
        name,
        "vivante",
        chip,
        tuple(jobs),
        buffers,
        {},
        parameters,
        "compiler",
        source,
        f"network binary graph {file.VERSION:#010x}",
        maps=registers,
    )


def chip_of(graph: Graph) -> str:
    """Return the chip of a graph's PID. For an unknown PID return the usual chip (V7), or the first
    chip with V8 if the first NN instruction shows V8."""
    if graph.pid in PIDS:
        return PIDS[graph.pid]["chip"]
    registers = maps(USUAL_CHIP)["NN"]
    for instruction in graph.nn[:1]:
        values = registers.decode(instruction[: len(registers)])
        if values["no_z_offset"]:
            return next(chip for chip, facts in CHIPS.items() if facts.get("nn_v8"))
    return USUAL_CHIP


def claims(capture: Capture) -> list[Claim]:
    """Return a claim (stated and found) for each checksum that the imported file states; none for a
    capture that was changed since."""
    rows: Any = capture.parameters.get(CHECKSUMS)
    if capture.changed or not is_records(rows):
        return []
    found = []
    for row in rows:
        what = f"CRC of {row['of']}"
        found.append(Claim(0, what, CHECKSUMS, row["stated"], row["found"], "the file's checksums"))
    return found


def split(capture: Capture) -> list[Capture]:
    """Return a capture for each layer of a network: the layer's jobs in order and, if it has
    exactly one NN job, the job's coefficients.

    A layer's capture has the name of ``capture`` with the layer's number. If ``capture`` is not
    from a ``.nb`` file or has a single layer, the list has ``capture`` alone."""
    rows = capture.parameters.get(OPERATIONS, ())
    layers: dict[int, list[int]] = {}
    for row in rows:
        if row["layer"] is not None and row["tasks"]:
            first = row["task"]
            layers.setdefault(row["layer"], []).extend(range(first, first + row["tasks"]))
    if len(layers) < 2:
        return [capture]
    data = capture.buffers.get(COEF_DATA, b"")
    entries = {row["task"]: row for row in capture.parameters[ENTRIES]}
    out = []
    for layer, tasks in layers.items():
        units = [task for task in tasks if capture.jobs[task].block == "NN"]
        buffers = {}
        if len(units) == 1 and units[0] in entries:
            entry = entries[units[0]]
            part = data[entry["byte"] : entry["byte"] + entry["bytes"]]
            buffers[COEFFICIENTS] = capture.buffers.get(COEFFICIENTS, part)
        jobs = tuple(capture.jobs[task] for task in tasks)
        name = f"{capture.name}-{layer}"
        out.append(replace(capture, name=name, jobs=jobs, buffers=buffers, parameters={}))
    return out


# Operations and their jobs


def _operations(graph: Graph) -> Iterator[Operation]:
    """Yield the operations of a file. Raises ValueError for a number of a layer, command stream or
    patch that the file does not have."""
    section = graph.sections.get("operation_info")
    table = graph.records["operation_info"]
    limits = {
        "layer": len(graph.records["layer_info"]),
        "states": len(graph.records["load_state_table"]),
    }
    patches = len(graph.records["patch_data"])
    claimed = 0
    for number, row in enumerate(table.tolist()):
        record = dict(zip(table.dtype.names or (), row, strict=True))
        where = f"{section}, item {number}"
        for field, count in limits.items():
            got = record[field]
            refuse_if(
                got >= count and got != NONE,
                f"{where}: {field}",
                got,
                f"are the {count} of the file, or {NONE:#x} for none",
            )
        first, count = record["first_patch"], record["patches"]
        code = record["type"]
        known = CODES["operation"].get(code, {"name": f"type {code}", "block": OTHER})
        if known["name"] != START_UP:
            claimed += count
        _refuse_patches(where, first, count, claimed, patches, "operations")
        yield Operation(
            number,
            known["name"],
            known["block"],
            record["item"],
            _or_none(record["layer"]),
            _or_none(record["states"]),
            range(first, first + count),
            row,
        )


def _or_none(number: int) -> int | None:
    if number == NONE:
        return None
    return number


def _streams(graph: Graph, operations: Sequence[Operation]) -> list[Stream]:
    """Return the command streams of the file, by number."""
    parts = graph.parts("load_state_table", "load_state")
    section = graph.sections.get("load_state_table")
    sizes = [len(parts[item.states]) for item in operations if item.states is not None]
    refuse_if(
        sum(sizes) > WORD_BYTES * MOST_STATES,
        f"{section}",
        f"{sum(sizes)} bytes of command streams that operations send",
        f"are at most {WORD_BYTES * MOST_STATES}",
    )
    # Many operations of a network send the same words, so equal streams are read once.
    known: dict[bytes, Stream] = {}
    for number, part in enumerate(parts):
        if part in known:
            continue
        where = f"{section}, entry {number}"
        refuse_if(len(part) % WORD_BYTES, where, f"{len(part)} bytes", "are whole words")
        with refusing(where):
            known[part] = _stream(part)
    return [known[part] for part in parts]


def _stream(part: bytes) -> Stream:
    sent = np.frombuffer(part, "<u4")
    states: States = []
    places = {}
    for at, offset, count in commands.loads(sent):
        for number, value in enumerate(sent[at + 1 : at + 1 + count].tolist()):
            states.append((offset + WORD_BYTES * number, value))
            places[at + 1 + number] = offset + WORD_BYTES * number
    return Stream(states, places)


def _jobs(
    graph: Graph,
    operations: Sequence[Operation],
    streams: Sequence[Stream],
    registers: Mapping[str, RegisterMap],
) -> tuple[list[Job], list[range]]:
    """Return the jobs in order, and for each operation the range of its jobs' numbers.

    The states of the start-up come before the states of the first job, as the driver sends
    them."""
    names = [_name(row["name"]) for row in graph.records["layer_info"]]
    begun: States = []
    jobs: list[Job] = []
    tasks = []
    states: dict[tuple[tuple[int, int], ...], Job] = {}
    for operation in operations:
        first = len(jobs)
        sent: States = []
        if operation.states is not None:
            sent = streams[operation.states].states
        if operation.kind == START_UP:
            begun += sent
            tasks.append(range(first, first))
            continue
        label = str(operation.number)
        if operation.layer is not None:
            label = f"{operation.number} {names[operation.layer]}"
        start = None
        if begun or sent:
            writes = (*begun, *sent)
            if writes not in states:
                states[writes] = Job.from_writes(STATE, writes, registers[STATE])
            start = states[writes]
        begun = []
        jobs += _instructions(graph, operation, registers, label, start)
        tasks.append(range(first, len(jobs)))
        section = graph.sections["operation_info"]
        refuse_if(len(jobs) > MOST_JOBS, section, f"{len(jobs)} jobs", f"are at most {MOST_JOBS}")
    where = str(graph.sections.get("operation_info", "section 4 (operation_info)"))
    refuse_if(not jobs, where, "no operation that makes a job", "is at least one")
    return jobs, tasks


def _instructions(
    graph: Graph,
    operation: Operation,
    registers: Mapping[str, RegisterMap],
    label: str,
    start: Job | None,
) -> Iterator[Job]:
    """Yield the jobs of an operation: a single job, or a job for each TP core that has an
    instruction. ``start`` has the operation's states, which start its first job."""
    block = operation.block
    if block == OTHER:
        yield Job(OTHER, np.array(operation.record), start=start, label=label)
        return
    kind = next(row for row in CODES["operation"].values() if row["block"] == block)
    items: Any = {"NN": graph.nn, "TP": graph.tp, SHADER: graph.records["sh_instr"]}[block]
    if operation.item >= len(items):
        raise ValueError(
            f"{graph.sections['operation_info']}, item {operation.number}: item: got "
            f"{operation.item}, allowed are the {len(items)} of {kind['section']}"
        )
    item = items[operation.item]
    if block == SHADER:
        yield Job(SHADER, item["words"], start=start, label=label)
    elif block == "NN":
        count = len(registers[block])
        behind = _behind(start, Job(REST[block], item[count:]))
        yield Job(block, item[:count], start=behind, label=label)
    else:
        yield from _of_cores(item, registers, label, start)


def _of_cores(
    item: Array, registers: Mapping[str, RegisterMap], label: str, start: Job | None
) -> Iterator[Job]:
    count = len(registers["TP"])
    for core, instruction in enumerate(item):
        if core == 0 or instruction.any():
            behind = _behind(start, Job(REST["TP"], instruction[count:]))
            yield Job("TP", instruction[:count], start=behind, label=label, unit=f"core {core}")
            start = None


def _behind(start: Job | None, rest: Job) -> Job:
    """Return the start of a job: ``start``, which has its states, and as the start of this start
    ``rest``, which has the words of the instruction behind those of the map. Without ``start``,
    return ``rest``."""
    if start is None:
        return rest
    return replace(start, start=rest)


# Words that are addresses, and what they point to


def _patches(
    graph: Graph,
    operations: Sequence[Operation],
    tasks: Sequence[range],
    streams: Sequence[Stream],
    registers: Mapping[str, RegisterMap],
) -> Iterator[Row]:
    """Yield a row for each word that the driver fills in with an address: the job and field of the
    word, or the part of the start-up, and what the address points to (``source``)."""
    owners = _owners(graph, operations)
    names = {block: _address_names(table) for block, table in registers.items()}
    for number, row in enumerate(graph.records["patch_data"].tolist()):
        where, byte, source, index, adds, form, _ = row
        place = _code("where", where)
        owner = owners.get(number, "nothing")
        task, field = None, ""
        if isinstance(owner, Operation):
            task, field = _word_of(owner, tasks[owner.number], place, byte, streams, names)
            owner = f"operation {owner.number}"
        yield {
            "task": task,
            "of": owner,
            "where": place,
            "byte": byte,
            "field": field,
            "source": _code("source", source),
            "index": index,
            "adds": adds,
            "form": form,
        }


def _refuse_patches(
    where: str, first: int, count: int, claimed: int, patches: int, owners: str
) -> None:
    """Raise ValueError if the file does not have ``count`` patches from number ``first`` on, or if
    all ``owners`` so far claim more (``claimed``) than the ``patches`` of the file."""
    refuse_if(
        first + count > patches or claimed > patches,
        f"{where}: patches",
        f"{count} from {first} on",
        f"are {patches} of all {owners} together",
    )


def _owners(graph: Graph, operations: Sequence[Operation]) -> dict[int, Operation | str]:
    """Return the operation, or the name of the part of the start-up, that each patch belongs to, by
    the patch's number."""
    owners: dict[int, Operation | str] = {}
    section = graph.sections.get("hw_init_operation")
    count, claimed = len(graph.records["patch_data"]), 0
    for number, row in enumerate(graph.records["hw_init_operation"].tolist()):
        entry, first, patches = row
        claimed += patches
        _refuse_patches(f"{section}, item {number}", first, patches, claimed, count, "items")
        owners.update(dict.fromkeys(range(first, first + patches), f"init_data entry {entry}"))
    for operation in operations:
        if operation.kind != START_UP:
            owners.update(dict.fromkeys(operation.patches, operation))
    return owners


def _address_names(registers: RegisterMap) -> dict[int, str]:
    """Return a name for each word of a map, by the word's offset: the name of its address field or,
    if it has none, of its widest field."""
    widths: dict[int, int] = {}
    names = {}
    for item in registers:
        width = sum(piece.width for piece in item.pieces)
        if item.address:
            width += WORD_BITS
        for piece in item.pieces:
            offset = registers.registers[piece.word][1]
            if width > widths.get(offset, 0):
                widths[offset], names[offset] = width, item.name
    return names


def _word_of(
    operation: Operation,
    tasks: range,
    place: str,
    byte: int,
    streams: Sequence[Stream],
    names: Mapping[str, Mapping[int, str]],
) -> tuple[int | None, str]:
    """Return the number of the job, and the name of the field, that a word of an operation belongs
    to; None and "" if no job has the word. ``byte`` is the word's byte in ``place``."""
    if place == COMMAND_STREAM and operation.states is not None:
        offset = streams[operation.states].places.get(byte // WORD_BYTES)
        if not tasks or offset is None:
            return None, ""
        return tasks[0], names[STATE].get(offset, f"state {offset:#06x}")
    if place != "instruction" or not tasks:
        return None, ""
    core, offset = divmod(byte, file.INSTRUCTION)
    if core >= len(tasks):
        return None, ""
    block = operation.block
    field = names[block].get(offset, "")
    if not field and block in REST:
        field = names[REST[block]].get(offset, "")
    return tasks[core], field


def _coefficients(
    graph: Graph, jobs: Sequence[Job], patches: Sequence[Row]
) -> tuple[list[Row], dict[str, bytes]]:
    """Return two things: a row for each entry of the coefficients, with the NN job that reads it,
    and buffers by name. The buffers are ``coefficients``, if the file has one NN job, and the whole
    section ``coef_data``, if it has other bytes."""
    parts = graph.parts("coef_data_table", COEF_DATA)
    readers: dict[int, int] = {}
    for row in patches:
        if row["field"] == KERNEL and row["source"] == COEFFICIENTS:
            readers.setdefault(row["index"], row["task"])
    rows = []
    for entry, place in enumerate(graph.records["coef_data_table"].tolist()):
        first, size = place
        rows.append({"entry": entry, "task": readers.get(entry), "byte": first, "bytes": size})
    buffers = {}
    alone = [job.block for job in jobs].count("NN") == 1
    read = [entry for entry in range(len(parts)) if entry in readers]
    if alone and len(read) == 1:
        buffers[COEFFICIENTS] = parts[read[0]]
    if COEF_DATA in graph.sections:
        data = graph.sections[COEF_DATA].data
        if data.rstrip(b"\0") != buffers.get(COEFFICIENTS, b"").rstrip(b"\0"):
            buffers[COEF_DATA] = data
    return rows, buffers


# What a file says of itself


def _kept(graph: Graph) -> dict[str, bytes]:
    """Return the bytes, by buffer name, that a capture keeps as they are: sections that are not
    read into jobs or parameters; tables and headers with a field that is not 0 and that nobody
    named; and bytes outside of sections."""
    buffers = {}
    for section in graph.sections.values():
        table = graph.records.get(section.name)
        odd = table is not None and file.is_odd(table)
        if odd or section.kept.endswith(file.BUFFER):
            buffers[section.name] = section.data
    if graph.headers:
        buffers["headers"] = graph.headers
    if graph.between:
        buffers["between_sections"] = graph.between
    return buffers


def _header(graph: Graph, chip: str) -> Row:
    row = PIDS.get(graph.pid, {"evidence": "guess", "note": "a PID that is not in the table"})
    network = ""
    for record in graph.records["network_info"]:
        network = _name(record["name"])
    return {
        "pid": f"{graph.pid:#x}",
        "chip": chip,
        "evidence": row["evidence"],
        "network": network,
        "note": row["note"],
    }


def _described(section: Section) -> Row:
    return {
        "section": section.number,
        "name": section.name,
        "byte": section.place,
        "bytes": len(section.data),
        "address": section.address,
        "align": section.align,
        "item": section.item,
        "kept": section.kept,
    }


def _checksums(graph: Graph) -> Iterator[Row]:
    """Yield a row for each checksum that the file states, with the checksum of the bytes."""
    yield {"of": "the file", "stated": f"{graph.crc:#010x}", "found": f"{graph.crc_found:#010x}"}
    by_number = {section.number: section for section in graph.sections.values()}
    found: dict[int, int] = {}
    for number, stated in graph.records["checksum"].tolist():
        row = {"of": f"section {number}", "stated": f"{stated:#010x}", "found": "no such section"}
        if number in by_number:
            section = by_number[number]
            if number not in found:
                found[number] = crc32(section.data)
            row |= {"of": section.name, "found": f"{found[number]:#010x}"}
        yield row


def _tensors(graph: Graph, kind: str) -> Iterator[Row]:
    name = f"{kind}_info"
    for number, record in enumerate(graph.records[name]):
        where = f"{graph.sections[name]}, item {number}"
        dims, scale = int(record["dims"]), float(record["scale"])
        refuse_if(dims > MOST_DIMS, f"{where}: dims", dims, f"are at most {MOST_DIMS}")
        refuse_if(not math.isfinite(scale), f"{where}: scale", scale, "is a finite number")
        yield {
            "tensor": kind,
            "number": number,
            "name": _name(record["name"]),
            "sizes": record["sizes"][:dims].tolist(),
            "format": _code("format", int(record["format"])),
            "quantization": _code("quantization", int(record["quantization"])),
            "scale": scale,
            "zero_point": int(record["zero_point"]),
        }


def _layers(graph: Graph) -> Iterator[Row]:
    for number, (name, key, operations, uid) in enumerate(graph.records["layer_info"].tolist()):
        yield {
            "layer": number,
            "name": _name(name),
            "id": key,
            "uid": uid,
            "operations": operations,
        }


def _listed(operations: Sequence[Operation], tasks: Sequence[range]) -> list[Row]:
    """Return the operations as rows: ``task`` is the number of the operation's first job, None
    without jobs, and ``tasks`` is how many jobs it has."""
    rows: list[Row] = []
    for operation, own in zip(operations, tasks, strict=True):
        first = None
        if own:
            first = own[0]
        rows.append(
            {
                "operation": operation.number,
                "kind": operation.kind,
                "layer": operation.layer,
                "item": operation.item,
                "task": first,
                "tasks": len(own),
                "patches": len(operation.patches),
            }
        )
    return rows


def _scales(
    chip: str,
    jobs: Sequence[Job],
    patches: Sequence[Row],
    tensors: Sequence[Row],
    registers: Mapping[str, RegisterMap],
) -> dict[str, float]:
    """Return the scales, by name, of a file whose only job is an NN job from an input to an output
    of the network; nothing for other files. The weights' scale follows from the job's multiplier
    and shift and the other two scales."""
    if [job.block for job in jobs] != ["NN"]:
        return {}
    scales = {}
    for row in patches:
        if row["field"] in (INPUT, OUTPUT):
            for tensor in tensors:
                affine = tensor["quantization"] == "affine" and tensor["scale"] > 0
                if affine and (tensor["tensor"], tensor["number"]) == (row["source"], row["index"]):
                    scales[f"{row['source']}_scale"] = tensor["scale"]
    if len(scales) < 2:
        return {}
    values = registers["NN"].decode(jobs[0].words)
    ratio = words.ratio_of(CHIPS[chip], values["post_multiplier"], values["post_shift"])
    return {**scales, "weight_scale": ratio * scales["output_scale"] / scales["input_scale"]}


def _code(of: str, code: int) -> str:
    """Return the name of ``code`` in the group ``of`` of codes.csv, such as ``format``; the group
    and the number, as a text, if the code has no name."""
    row = CODES[of].get(code)
    if row is None:
        return f"{of} {code}"
    return str(row["name"])


def _name(text: bytes) -> str:
    """Return a name in the file, which a zero byte ends, as a text of one line."""
    return " ".join(visible(text.split(b"\0")[0].decode("utf-8", "replace")).split())
