"""Imports the folder that Mesa's etnaviv driver writes with
``ETNA_MESA_DEBUG=dump_shaders,npu_no_batching``.

A file is ``mesa-KIND-NNN-JJJ.bin``. NNN counts the jobs that the driver made of a model, in the
order they run, from 0: an operator is one job of the NN unit and jobs of the tensor processor that
move tensors around it. JJJ is the core of the tensor processor (``tp``, ``lut``), 0 elsewhere.

=============== ====================================================================
``nn``, ``tp``  the buffer with the parameter block: 34 or 31 words, and the rest of
                their memory page
``compressed``  the coefficient buffer of an NN job, whole
``lut``         the lookup table of a TP job (newer drivers)
``cmd``         the command words that start the job; only without batching
``input``       the tensor that the job reads; only without batching (newer drivers:
                always, and before the job runs)
``output``      the tensor that the job writes, after it; only without batching
=============== ====================================================================

Older drivers dump a tensor from the start of the buffer in which it lies, newer drivers from the
tensor's first byte. ``_begins`` finds out which by comparing files. Older drivers count from 0
again in each inference and in each part of a model that runs by itself, and so overwrite earlier
files; newer drivers count on. Source: Mesa, etnaviv_ml.c of 2024 and of 2025.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from npulab.npus.kit import COMMANDS, Capture, Job, refusing
from npulab.npus.vivante.commands import NN_INST_ADDR, TP_INST_ADDR, writes
from npulab.npus.vivante.facts import CHIPS, TABLES, USUAL_CHIP, Values, maps, tensor_bytes
from npulab.support.files import opened

FILE = re.compile(r"mesa-(nn|tp|compressed|lut|cmd|input|output)-([0-9]{3,})-([0-9]{3,})\.bin")
OPTIONS = "dump_shaders,npu_no_batching"
TOOL = f"Mesa etnaviv, ETNA_MESA_DEBUG={OPTIONS}"
BUFFERS = {
    "cmd": COMMANDS,
    "compressed": "coefficients",
    "lut": "lut",
    "input": "input",
    "output": "output",
}
BLOCKS = {"nn": "NN", "tp": "TP"}
# The fields that hold the addresses of a job's tensors. Key: the block, then the tensor.
PLACES = {
    "NN": {"input": "in_image_address", "output": "out_image_address"},
    "TP": {"input": "in_image_base_address", "output": "out_image_base_address"},
}
STARTS = {"NN": NN_INST_ADDR, "TP": TP_INST_ADDR}  # by block: the register that starts its job
WORD_BYTES, ALIGN = 4, 64
# The most bytes that are read of a file: far more than any tensor has, so that a broken file does
# not fill the memory.
MOST_BYTES = 2**26
# A plain coefficient buffer has a header of HEADER_WORDS. Bits 4 to 7 of the first byte of a
# Huffman buffer are HUFFMAN_VERSION. A warning lists at most SHOWN gaps in the numbers of jobs.
HEADER_WORDS = 16
HUFFMAN_VERSION = 1
SHOWN = 5


class Key(NamedTuple):
    """The parts of a file's name: its kind, the number of its job, and (``part``) the core of the
    tensor processor."""

    kind: str
    number: int
    part: int


@dataclass(frozen=True, eq=False)
class Operation:
    """A job of the driver, in parts: one for each core that takes part.

    ``block`` is NN or TP. ``blocks`` has the words ``(W,) uint32`` of each part, ``values`` the
    values of the first part by field, ``files`` the job's other files by kind."""

    number: int
    block: str
    blocks: tuple[Array, ...]
    values: Values
    files: Mapping[str, Path]

    @property
    def addresses(self) -> dict[str, int]:
        """The addresses of the job's tensors, by name: ``input`` and ``output``."""
        return {name: self.values[field] for name, field in PLACES[self.block].items()}


def recognises(path: Path) -> bool:
    """True for a folder with a file that is named as Mesa names its dumps."""
    return path.is_dir() and any(FILE.fullmatch(file.name) for file in path.iterdir())


def read(
    path: Path, provenance: str = "open driver", chip: str | None = None
) -> dict[str, Capture]:
    """Return a capture for each job of the run, in order, named by its number and its unit
    (``000-tp``, ``001-nn``).

    Without ``chip``, the likeliest chip is found from words, numbers of cores and coefficient
    headers. Gives a UserWarning if several chips fit equally, if the numbers of jobs have a gap,
    and if no output was recorded. Raises ValueError naming a file that is cut short or contradicts
    the other files of its job. Raises LookupError for an unknown chip.
    """
    if chip is not None and chip not in CHIPS:
        raise LookupError(f"chip: got {chip!r}, allowed are {', '.join(CHIPS)}")
    files = _files(path)
    numbers = sorted({key.number for key in files})
    operations = [_operation(path, number, files) for number in numbers]
    _warn_of_missing_files(path, operations)
    if chip is None:
        chip = _likeliest_chip(path, operations)
    begins = _begins(operations)
    digits = max(3, len(str(numbers[-1])))
    out = {}
    for operation in operations:
        name = f"{operation.number:0{digits}}-{operation.block.lower()}"
        capture = _capture(path, name, operation, begins, chip)
        out[name] = replace(capture, provenance=provenance)
    return out


def _files(path: Path) -> dict[Key, Path]:
    """Return the folder's files by the parts of their names. Raises ValueError if two files have
    the same parts, for a folder with such a name, and for a core where the kind has none.
    """
    out: dict[Key, Path] = {}
    for file in sorted(path.iterdir()):
        if not (match := FILE.fullmatch(file.name)):
            continue
        key = Key(match[1], int(match[2]), int(match[3]))
        if key in out:
            raise ValueError(
                f"{file}: got {out[key].name} for the same job, kind and core, allowed is one file"
            )
        if not file.is_file():
            raise ValueError(
                f"{file}: got no regular file, allowed is a file as Mesa writes it with {OPTIONS}"
            )
        if key.part and key.kind not in ("tp", "lut"):
            raise ValueError(
                f"{file}: got core {key.part}, allowed is 0 for a file of kind {key.kind}"
            )
        out[key] = file
    return out


def _operation(path: Path, number: int, files: Mapping[Key, Path]) -> Operation:
    """Return job ``number``, read from its files. Raises ValueError if a file of the job is
    missing, or if files of this number belong to several jobs.
    """
    mine = {key: file for key, file in files.items() if key.number == number}
    blocks = {key: file for key, file in mine.items() if key.kind in BLOCKS}
    kinds = {key.kind for key in blocks}
    if len(kinds) != 1:
        got = " and ".join(file.name for file in (blocks or mine).values())
        raise ValueError(
            f"{path}: got {got}, allowed is a job with either mesa-nn-{number:03}-000.bin or "
            f"mesa-tp-{number:03}-000.bin; one is missing, or the folder holds two recordings"
        )
    (kind,) = kinds
    missing = sorted({*range(len(blocks))} - {key.part for key in blocks})
    if missing:
        raise ValueError(
            f"{path}: mesa-{kind}-{number:03}-{missing[0]:03}.bin is missing, which belongs to the "
            f"same job as {next(iter(blocks.values())).name}"
        )
    block = BLOCKS[kind]
    words = tuple(_words(file, len(TABLES[block])) for _, file in sorted(blocks.items()))
    others = {
        key.kind: file for key, file in mine.items() if key.kind not in BLOCKS and key.part == 0
    }
    if block == "TP" and "compressed" in others:
        raise ValueError(
            f"{others['compressed']}: got coefficients for a TP job, allowed are coefficients only "
            f"next to mesa-nn-{number:03}-000.bin; the folder may hold two recordings"
        )
    return Operation(number, block, words, maps(USUAL_CHIP)[block].decode(words[0]), others)


def _words(file: Path, count: int | None = None) -> Array:
    """Return the first ``count`` words of a file, or all words without ``count``. Raises ValueError
    if the file has fewer words or its last word is cut off.
    """
    size = file.stat().st_size
    if size % WORD_BYTES or (count and size < WORD_BYTES * count):
        least = ""
        if count:
            least = f", at least the {count} of a parameter block"
        raise ValueError(f"{file}: got {size} bytes, allowed are whole 32-bit words{least}")
    if count:
        data = _file_bytes(file, count=WORD_BYTES * count)
    else:
        data = _file_bytes(file)
    return np.frombuffer(data, "<u4").astype(np.uint32)


def _file_bytes(file: Path, begin: int = 0, count: int | None = None) -> bytes:
    """Return ``count`` bytes of a file from byte ``begin`` on; if ``count`` is None, all bytes to
    the file's end."""
    if count is None:
        count, size = MOST_BYTES, file.stat().st_size
        if size - begin > MOST_BYTES:
            raise ValueError(f"{file}: got {size} bytes, allowed are at most {begin + MOST_BYTES}")
    with opened(file) as stream:
        stream.seek(begin)
        return stream.read(count)


def _begins(operations: Sequence[Operation]) -> dict[tuple[int, str], int]:
    """Return the byte of a file at which its tensor begins. Key: (job number, kind of the file).

    A file shows either a tensor or the whole buffer in which the tensor lies. It counts as a whole
    buffer if another file of the same size shows memory around the tensor's address: that file then
    begins at the buffer's start. Else the file begins with its tensor.
    """
    extents = {}
    for operation in operations:
        for side, address in operation.addresses.items():
            if side in operation.files:
                size = operation.files[side].stat().st_size
                extents[operation.number, side] = (address, size)
    begins = {}
    for key, (address, size) in extents.items():
        starts = [start for start, other in extents.values() if other == size]
        around = [start for start in starts if start < address < start + size]
        begins[key] = address - min(around, default=address)
    return begins


def _capture(
    path: Path,
    name: str,
    operation: Operation,
    begins: Mapping[tuple[int, str], int],
    chip: str,
) -> Capture:
    registers = maps(chip)
    jobs = [Job(operation.block, block) for block in operation.blocks]
    if "cmd" in operation.files:
        starts = _starts(operation, _words(operation.files["cmd"]))
        for part, sent in enumerate(starts):
            start = Job.from_writes("STATE", sent, registers["STATE"])
            jobs[part] = replace(jobs[part], start=start)
    buffers = {}
    for kind, buffer in BUFFERS.items():
        if kind in operation.files:
            begin = begins.get((operation.number, kind), 0)
            buffers[buffer] = _file_bytes(operation.files[kind], begin)
    addresses = operation.addresses
    if operation.block == "NN":
        addresses = {"coefficients": operation.values["kernel_address"], **addresses}
        _refuse_short_tensors(operation, buffers)
        if "coefficients" in buffers:
            buffers["coefficients"] = _as_sent(buffers["coefficients"])
        for job in jobs:
            if job.start:
                # Bits 0 to 5 of the register are not address bits: they hold the number of the slot
                # (states.csv).
                addresses["nn"] = dict(job.start.writes)[STARTS["NN"]] // ALIGN * ALIGN
    return Capture(
        name,
        "vivante",
        chip,
        tuple(jobs),
        buffers,
        addresses,
        source=path.name,
        tool=TOOL,
        maps=registers,
    )


def _starts(operation: Operation, words: Array) -> list[list[tuple[int, int]]]:
    """Return the register writes (offset, value) of each part of a job, from the ``words`` of one
    command stream: all writes up to the write that starts the part. The last part also has the
    writes after its start."""
    file = operation.files["cmd"]
    start = STARTS[operation.block]
    with refusing(file):
        sent = writes(words)
    ends = [at + 1 for at, (register, _) in enumerate(sent) if register == start]
    if len(ends) != len(operation.blocks):
        raise ValueError(
            f"{file}: got commands that start {len(ends)} jobs of block {operation.block}, allowed "
            f"are {len(operation.blocks)}, one for each file of a parameter block"
        )
    return [sent[begin:end] for begin, end in pairwise([0, *ends[:-1], len(sent)])]


def _refuse_short_tensors(operation: Operation, buffers: Mapping[str, bytes]) -> None:
    """Raise ValueError for a recorded input or output that is shorter than the words of its NN job
    ask for."""
    for name, size in tensor_bytes(operation.values).items():
        if name in buffers and len(buffers[name]) < size:
            raise ValueError(
                f"{operation.files[name]}: got {len(buffers[name])} bytes from the tensor's start "
                f"on, allowed are at least the {size} that the job's words ask for"
            )


def _as_sent(data: bytes) -> bytes:
    """Return a coefficient buffer; a plain buffer without bytes after its streams that are not 0,
    because they are what another buffer left in the memory page."""
    if len(data) < WORD_BYTES * HEADER_WORDS:
        return data
    sizes = np.frombuffer(data, "<u4", HEADER_WORDS)
    end = WORD_BYTES * HEADER_WORDS + int(sizes.astype(np.int64).sum())
    if _plain_cores(sizes) and any(data[end:]):
        return data[:end]
    return data


def _plain_cores(sizes: Array) -> int:
    """Return the number of cores that have a stream in a plain coefficient buffer; 0 if ``sizes``,
    the words of the header, are not the stream sizes of a plain buffer."""
    used = int(np.count_nonzero(sizes))
    if np.any(sizes % ALIGN) or not np.all(sizes[:used]):
        return 0
    return used


def _likeliest_chip(path: Path, operations: Sequence[Operation]) -> str:
    """Return the chip that has most of the features that the jobs show (``_signs``). If several
    chips do, return the first of them in the table and give a UserWarning.
    """
    scores = dict.fromkeys(CHIPS, 0)
    for operation in operations:
        for feature, value in _signs(operation):
            for name, facts in CHIPS.items():
                scores[name] += facts.get(feature, 0) == value
    most = max(scores.values())
    best = [name for name, score in scores.items() if score == most]
    if len(best) > 1:
        warnings.warn(
            f"{path}: the jobs fit {' and '.join(best)} equally, they are read as jobs of "
            f"{best[0]}; give --chip if it is another chip",
            stacklevel=3,
        )
    return best[0]


def _signs(operation: Operation) -> Iterator[tuple[str, int]]:
    """Yield the features that a job shows, and their values: 0 for a feature that the chip does
    not have."""
    if operation.block == "TP":
        if len(operation.blocks) > 1:  # a move runs on all cores or on one
            yield "tp_cores", len(operation.blocks)
        return
    if operation.values["no_z_offset"]:
        yield "nn_v8", 1
    else:
        yield "nn_v7", 1
    if "compressed" not in operation.files:
        return
    data = _file_bytes(operation.files["compressed"], count=WORD_BYTES * HEADER_WORDS)
    if len(data) < WORD_BYTES * HEADER_WORDS:
        return
    used = _plain_cores(np.frombuffer(data, "<u4"))
    if used:
        yield "plain_coefficients", 1
        # A job with as many channels as used cores may leave other cores idle, so it does not show
        # how many cores the chip has.
        if operation.values["out_image_z_size"] > used:
            yield "nn_cores", used
    elif data[0] // 16 == HUFFMAN_VERSION:
        yield "plain_coefficients", 0


def _warn_of_missing_files(path: Path, operations: Sequence[Operation]) -> None:
    gaps = []
    for before, after in pairwise(operation.number for operation in operations):
        if after - before == 2:
            gaps.append(f"{before + 1:03}")
        elif after - before > 2:
            gaps.append(f"{before + 1:03} to {after - 1:03}")
    if gaps:
        more = ""
        if len(gaps) > SHOWN:
            more = f" and {len(gaps) - SHOWN} more"
        warnings.warn(f"{path}: no files of job {', '.join(gaps[:SHOWN])}{more}", stacklevel=3)
    if not any("output" in operation.files for operation in operations):
        warnings.warn(
            f"{path}: no output was recorded, nothing can be compared; record with "
            f"ETNA_MESA_DEBUG={OPTIONS}",
            stacklevel=3,
        )
