"""Importer of the folder that Mesa's etnaviv driver writes with
``ETNA_MESA_DEBUG=dump_shaders,npu_no_batching``.

A file is ``mesa-KIND-NNN-JJJ.bin``.  NNN counts the jobs that the driver made of a model, in the
order they run, from 0: an operator is one job of the NN unit and those of the tensor processor that
turn tensors around it.  JJJ is the core of the tensor processor (``tp``, ``lut``), 0 elsewhere.

==============
======================================================================================================
``nn``, ``tp`` the buffer with the parameter block: 34 or 31 words, and what fills the memory page
behind them ``compressed`` the coefficient buffer of an NN job, whole
``lut``        the lookup table of a TP job (newer drivers)
``cmd``        the command words that start the job; only without batching
``input``      the tensor it reads; only without batching (newer drivers: always, and before the job runs)
``output``     the tensor it writes, after the job; only without batching
==============
======================================================================================================

Older drivers dump tensors from the start of their buffer, newer ones from where the tensor lies in
it; this is told from the buffers that several files show.  Older ones count from 0 in each part of
a model that runs by itself and in each inference, over what was there before; newer ones count on.
Source: Mesa, etnaviv_ml.c of 2024 and of 2025.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npulab.npus.kit import COMMANDS, Capture, Job, refusing
from npulab.npus.vivante.commands import NN_INST_ADDR, writes
from npulab.npus.vivante.facts import CHIPS, TABLES, USUAL_CHIP, maps, tensor_bytes
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
# of each kind of block the fields that say where the tensors lie
PLACES = {
    "NN": {"input": "in_image_address", "output": "out_image_address"},
    "TP": {"input": "in_image_base_address", "output": "out_image_base_address"},
}
STARTS = {
    "NN": NN_INST_ADDR,
    "TP": 0x10B8,
}  # the register that takes the block's address, rnndb and galcore
WORD_BYTES, ALIGN = 4, 64
MOST_BYTES = 2**26  # of one file: far more than any tensor, so that a broken one fills no memory
HEADER_WORDS = (
    16  # of a coefficient buffer; in the first byte of a Huffman one the high half is its version
)
HUFFMAN_VERSION = 1
SHOWN = 5


class Key(NamedTuple):
    kind: str
    number: int
    part: int


@dataclass(frozen=True, eq=False)
class Operation:
    """A job of the driver's list: ``blocks`` are the words ``(W,) uint32`` of its parts, ``values``
    the first one decoded, ``files`` its other files by kind."""

    number: int
    block: str
    blocks: tuple[np.ndarray, ...]
    values: Mapping[str, Any]
    files: Mapping[str, Path]

    @property
    def addresses(self) -> dict[str, int]:
        """Where its tensors lie, by file kind."""
        return {name: self.values[field] for name, field in PLACES[self.block].items()}


def recognises(path: Path) -> bool:
    """A folder with a file of these names."""
    return path.is_dir() and any(FILE.fullmatch(one.name) for one in path.iterdir())


def read(
    path: Path, provenance: str = "open driver", chip: str | None = None
) -> dict[str, Capture]:
    """A capture per job of the run, in order, named by its number and its unit (``000-tp``,
    ``001-nn``).

    Where ``chip`` is not said, words, cores and coefficient headers tell it; a UserWarning says
    where they leave several, where jobs are missing between others and where no output was
    recorded.  Raises ValueError naming the file that is cut short or does not go with the others;
    LookupError for an unknown chip.
    """
    if chip is not None and chip not in CHIPS:
        raise LookupError(f"chip: got {chip!r}, allowed are {', '.join(CHIPS)}")
    files = _files(path)
    operations = [
        _operation(path, number, files) for number in sorted({key.number for key in files})
    ]
    _warn_of_what_is_missing(path, operations)
    found = _chip(path, operations) if chip is None else chip
    begins = dict(_begins(operations))
    digits = max(3, len(str(operations[-1].number)))
    names = [f"{one.number:0{digits}}-{one.block.lower()}" for one in operations]
    return {
        name: _capture(path, name, one, begins, provenance, found)
        for name, one in zip(names, operations, strict=True)
    }


def _files(path: Path) -> dict[Key, Path]:
    out: dict[Key, Path] = {}
    for file in sorted(path.iterdir()):
        if not (match := FILE.fullmatch(file.name)):
            continue
        key = Key(match[1], int(match[2]), int(match[3]))
        if key in out:
            raise ValueError(f"{file}: is there as {out[key].name} too, allowed is one of them")
        if not file.is_file():
            raise ValueError(f"{file}: is no file, allowed is what {OPTIONS} wrote")
        if key.part and key.kind not in ("tp", "lut"):
            raise ValueError(f"{file}: got part {key.part}, allowed is 0 of {key.kind}")
        out[key] = file
    return out


def _operation(path: Path, number: int, files: Mapping[Key, Path]) -> Operation:
    mine = {key: file for key, file in files.items() if key.number == number}
    blocks = {key: file for key, file in mine.items() if key.kind in BLOCKS}
    kinds = {key.kind for key in blocks}
    if len(kinds) != 1:
        got = " and ".join(file.name for file in (blocks or mine).values())
        raise ValueError(
            f"{path}: got {got}, allowed is a job with either mesa-nn-{number:03}-000.bin or "
            f"mesa-tp-{number:03}-000.bin; two recordings in one folder, or a file is missing"
        )
    (kind,) = kinds
    missing = sorted({*range(len(blocks))} - {key.part for key in blocks})
    if missing:
        raise ValueError(
            f"{path}: mesa-{kind}-{number:03}-{missing[0]:03}.bin is missing, there is "
            f"{next(iter(blocks.values())).name}"
        )
    block = BLOCKS[kind]
    words = tuple(_words(file, len(TABLES[block])) for _, file in sorted(blocks.items()))
    others = {
        key.kind: file for key, file in mine.items() if key.kind not in BLOCKS and key.part == 0
    }
    if block == "TP" and "compressed" in others:
        raise ValueError(
            f"{others['compressed']}: goes with no job of the tensor processor, allowed is one "
            "beside "
            f"mesa-nn-{number:03}-000.bin; two recordings in one folder"
        )
    return Operation(number, block, words, maps(USUAL_CHIP)[block].decode(words[0]), others)


def _words(file: Path, count: int | None = None) -> np.ndarray:
    """The first words of a file, or all of them."""
    size = file.stat().st_size
    if size % WORD_BYTES or (count and size < WORD_BYTES * count):
        least = ""
        if count:
            least = f", at least the {count} of a parameter block"
        raise ValueError(f"{file}: got {size} bytes, allowed are whole 32-bit words{least}")
    data = _bytes(file, 0, WORD_BYTES * count if count else None)
    return np.frombuffer(data, "<u4").astype(np.uint32)


def _bytes(file: Path, begin: int = 0, count: int | None = None) -> bytes:
    """The bytes of a file from one on, or so many of them."""
    size = file.stat().st_size
    if count is None and size - begin > MOST_BYTES:
        raise ValueError(f"{file}: got {size} bytes, allowed are {begin + MOST_BYTES}")
    with opened(file) as stream:
        stream.seek(begin)
        return stream.read(MOST_BYTES if count is None else count)


def _begins(operations: Sequence[Operation]) -> Iterator[tuple[tuple[int, str], int]]:
    """By number and kind of a tensor's file, the byte in it at which the tensor begins.

    A file that shows a tensor within a buffer which another file shows from its start is as long as
    that one where it begins there too, shorter where it begins with the tensor.
    """
    sizes = {
        (one.number, side): (one.addresses[side], one.files[side].stat().st_size)
        for one in operations
        for side in PLACES[one.block]
        if side in one.files
    }
    starts = sorted(set(sizes.values()))
    for key, (address, size) in sizes.items():
        around = [
            start for start, length in starts if start < address < start + length and length == size
        ]
        yield key, address - around[0] if around else 0


def _capture(
    path: Path,
    name: str,
    one: Operation,
    begins: Mapping[tuple[int, str], int],
    provenance: str,
    chip: str,
) -> Capture:
    registers = maps(chip)
    words = None
    if "cmd" in one.files:
        words = _words(one.files["cmd"])
    jobs = tuple(Job(one.block, block) for block in one.blocks)
    if words is not None:
        jobs = tuple(
            replace(job, start=Job.from_writes("STATE", sent, registers["STATE"]))
            for job, sent in zip(jobs, _starts(one, words), strict=True)
        )
    buffers = {
        BUFFERS[kind]: _bytes(one.files[kind], begins.get((one.number, kind), 0))
        for kind in BUFFERS
        if kind in one.files
    }
    addresses = one.addresses
    if one.block == "NN":
        addresses = {"coefficients": one.values["kernel_address"], **addresses}
        _sizes(one, buffers)
        if "coefficients" in buffers:
            buffers["coefficients"] = _as_sent(buffers["coefficients"])
        for job in jobs:
            if job.start:
                addresses["nn"] = dict(job.start.writes)[STARTS["NN"]] // ALIGN * ALIGN
    return Capture(
        name,
        "vivante",
        chip,
        jobs,
        buffers,
        addresses,
        provenance=provenance,
        source=path.name,
        tool=TOOL,
        maps=registers,
    )


def _starts(one: Operation, words: np.ndarray) -> Iterator[list[tuple[int, int]]]:
    """The register writes that start each part of a job, from one command stream."""
    with refusing(one.files["cmd"]):
        sent = writes(words)
    ends = [at + 1 for at, (register, _) in enumerate(sent) if register == STARTS[one.block]]
    if len(ends) != len(one.blocks):
        raise ValueError(
            f"{one.files['cmd']}: starts {len(ends)} jobs of block {one.block}, allowed are "
            f"{len(one.blocks)}, one for each of its files"
        )
    for begin, end in zip([0, *ends[:-1]], [*ends[:-1], len(sent)], strict=True):
        yield sent[begin:end]


def _sizes(operation: Operation, buffers: Mapping[str, bytes]) -> None:
    """Refuse tensors that are shorter than the words of an NN job say."""
    for name, size in tensor_bytes(operation.values).items():
        if name in buffers and len(buffers[name]) < size:
            raise ValueError(
                f"{operation.files[name]}: got {len(buffers[name])} bytes from the "
                f"tensor's start on, the words of the job say {size}"
            )


def _as_sent(data: bytes) -> bytes:
    """A plain coefficient buffer without what an earlier owner of its memory page left behind the
    streams."""
    if len(data) < WORD_BYTES * HEADER_WORDS:
        return data
    sizes = np.frombuffer(data, "<u4", HEADER_WORDS)
    end = WORD_BYTES * HEADER_WORDS + int(sizes.astype(np.int64).sum())
    return data[:end] if _plain_cores(sizes) and any(data[end:]) else data


def _plain_cores(sizes: np.ndarray) -> int:
    """How many cores the header of a plain coefficient buffer names; 0 where it is none."""
    used = int(np.count_nonzero(sizes))
    return 0 if np.any(sizes % ALIGN) or not np.all(sizes[:used]) else used


def _chip(path: Path, operations: Sequence[Operation]) -> str:
    """The chip with most of the recorded signs, the first in the table if several have as many."""
    signs = [sign for one in operations for sign in _signs(one)]
    scores = {
        name: sum(facts.get(feature, 0) == value for feature, value in signs)
        for name, facts in CHIPS.items()
    }
    best = [name for name, score in scores.items() if score == max(scores.values())]
    if len(best) > 1:
        warnings.warn(
            f"{path}: the jobs go with {' and '.join(best)} alike, they are read as of {best[0]}; "
            "say --chip "
            "where it is another",
            stacklevel=3,
        )
    return best[0]


def _signs(one: Operation) -> Iterator[tuple[str, int]]:
    """Features that a job speaks for, each with its number; 0 is for one that the chip does not
    have."""
    if one.block == "TP":
        if len(one.blocks) > 1:  # work is shared by all cores or done by one
            yield "tp_cores", len(one.blocks)
        return
    yield ("nn_v8" if one.values["no_z_offset"] else "nn_v7"), 1
    data = b""
    if "compressed" in one.files:
        data = _bytes(one.files["compressed"], count=WORD_BYTES * HEADER_WORDS)
    if len(data) == WORD_BYTES * HEADER_WORDS:
        sizes = np.frombuffer(data, "<u4")
    else:
        sizes = np.zeros(0, "<u4")
    used = _plain_cores(sizes)
    if used:
        yield "plain_coefficients", 1
        if one.values["out_image_z_size"] > used:
            yield "nn_cores", used
    elif len(sizes) and data[0] // 16 == HUFFMAN_VERSION:
        yield "plain_coefficients", 0


def _warn_of_what_is_missing(path: Path, operations: Sequence[Operation]) -> None:
    numbers = [one.number for one in operations]
    gaps = [
        f"{a + 1:03}" if b - a == 2 else f"{a + 1:03} to {b - 1:03}"
        for a, b in pairwise(numbers)
        if b - a > 1
    ]
    if gaps:
        more = ""
        if len(gaps) > SHOWN:
            more = f" and {len(gaps) - SHOWN} more"
        warnings.warn(f"{path}: no files of job {', '.join(gaps[:SHOWN])}{more}", stacklevel=3)
    if not any("output" in one.files for one in operations):
        warnings.warn(
            f"{path}: no output was recorded, nothing can be compared; record with "
            f"ETNA_MESA_DEBUG={OPTIONS}",
            stacklevel=3,
        )
