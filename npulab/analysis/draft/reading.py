"""A capture read with another map."""

from __future__ import annotations

from dataclasses import replace

from npulab.captures.capture import Capture, Job
from npulab.registers.map import RegisterMap


def read_with(registers: RegisterMap, capture: Capture, block: str) -> Capture:
    """The same capture with a map in the place of that of a block; register writes leave the words
    of its registers.

    Raises LookupError for a block that the capture has not, ValueError for words that are more or
    fewer than the map's.
    """
    if block not in capture.maps and block not in {job.block for job in capture.jobs}:
        raise LookupError(f"capture {capture.name}: got block {block!r}, it has "
                          f"{', '.join(dict.fromkeys(job.block for job in capture.jobs))}")
    jobs = []
    for job in capture.jobs:
        if job.block == block and job.writes:
            job = replace(Job.from_writes(block, job.writes, registers), start=job.start)
        elif job.block == block and len(job.words) != len(registers):
            more = "" if registers.dense else "; draft(..., dense=True) has the words between its registers, too"
            raise ValueError(f"words: got {len(job.words)}, allowed is {len(registers)} (block {block}){more}")
        jobs.append(job)
    return replace(capture, jobs=tuple(jobs), maps={**capture.maps, block: registers})


def block_of(registers: RegisterMap, capture: Capture) -> str:
    """The block of a capture that a map is for: the one that it is called as, else that whose map
    shares most registers with it, else the only one that there is.

    Raises LookupError where there is none of them.
    """
    mine = {(block, offset) for block, offset, _ in registers.registers}
    blocks = list(dict.fromkeys(block for block, _, _ in registers.registers))
    here = list(dict.fromkeys([*(job.block for job in capture.jobs), *capture.maps]))
    named = [block for block in here if block in blocks]
    shares = {block: sum((one, offset) in mine for one, offset, _ in capture.maps[block].registers)
              for block in here if block in capture.maps}
    if named or any(shares.values()):
        return named[0] if named else max(shares, key=lambda block: shares[block])
    if len({job.block for job in capture.jobs}) == 1:
        return capture.jobs[0].block
    raise LookupError(f"capture {capture.name}: got blocks {', '.join(here)}, allowed is one that the map has "
                      f"({', '.join(map(repr, blocks))}), or block= says which")
