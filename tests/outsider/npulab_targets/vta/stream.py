"""Streams of instructions: a job for each, in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from npulab.bits import RegisterMap, read_commands, write_commands
from npulab.capture import Capture, Job
from npulab.captures.dumps import Recorded, folder_importer

from .facts import CHIPS, COMMANDS, TABLES, TOKENS

STREAM = "insns"  # the file of a dump that holds the stream
# what an instruction keeps that does nothing
KEPT = ("opcode", "memory_type", *dict.fromkeys(row.field for row in TOKENS.passes))


def jobs_of(stream: bytes) -> list[Job]:
    """A job for each instruction of a stream."""
    return [Job(block, words) for block, words in read_commands(stream, COMMANDS, "opcode")]


def stream_of(jobs: Sequence[Job]) -> bytes:
    """The stream of these jobs."""
    return write_commands([(job.block, job.words) for job in jobs], COMMANDS)


def idle(capture: Capture, number: int) -> Job | None:
    """The job's instruction with no rows and no steps, and its tokens; ``memory_type`` stays, as
    the unit goes by it. FINISH ends the stream, so it has none."""
    job = capture.jobs[number]
    if job.block == "FINISH":
        return None
    values = {}
    for name, value in TABLES[job.block].decode(job.words).items():
        if name in KEPT:
            values[name] = value
    return Job(job.block, TABLES[job.block].encode(values))


def dumped(path: Path, buffers: Mapping[str, bytes], maps: Mapping[str, RegisterMap]) -> Recorded:
    """The jobs of a dump's stream; they are the stream from then on, so it is no buffer."""
    if STREAM not in buffers:
        raise ValueError(f"{path}: got no {STREAM}.bin, allowed is a folder with this file")
    rest = {name: data for name, data in buffers.items() if name != STREAM}
    return Recorded(jobs_of(buffers[STREAM]), rest)


IMPORTERS = (folder_importer("vta", CHIPS, TABLES, dumped),)
