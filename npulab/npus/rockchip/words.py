"""The fields that a job writes, by full name: what lift and the simulated device both begin with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from npulab.captures.capture import Job
from npulab.captures.target import Unanswerable
from npulab.registers.map import RegisterMap

Raw = Mapping[str, int]
Places = dict[int, list[tuple[str, int, int]]]
# fields that change the arithmetic or the place of data in a way nothing here covers, and what they must be
COVERED = {"CNA.CONV_CON1.DECONV": 0,
           "CNA.DCOMP_CTRL.DECOMP_CONTROL": 0, "CORE.CLIP_TRUNCATE.CLIP_TRUNCATE": 0, "DPU.BN_CFG.BN_BYPASS": 1,
           "DPU.EW_CFG.EW_BYPASS": 1, "DPU.BS_CFG.BS_MUL_PRELU": 0, "DPU.BS_CFG.BS_RELUX_EN": 0}
# fields that say the same
ALIKE = (("DPU.DATA_CUBE_WIDTH.WIDTH", "CORE.DATAOUT_SIZE_0.DATAOUT_WIDTH"),
         ("DPU.DATA_CUBE_HEIGHT.HEIGHT", "CORE.DATAOUT_SIZE_0.DATAOUT_HEIGHT"),
         ("DPU.DATA_CUBE_CHANNEL.CHANNEL", "CORE.DATAOUT_SIZE_1.DATAOUT_CHANNEL"),
         ("DPU.WDMA_SIZE_1.WIDTH_WDMA", "DPU.DATA_CUBE_WIDTH.WIDTH"),
         ("DPU.WDMA_SIZE_1.HEIGHT_WDMA", "DPU.DATA_CUBE_HEIGHT.HEIGHT"),
         ("CNA.FC_DATA_SIZE0.DMA_HEIGHT", "CNA.DATA_SIZE0.DATAIN_HEIGHT"),
         ("CNA.FC_DATA_SIZE1.DMA_CHANNEL", "CNA.DATA_SIZE1.DATAIN_CHANNEL"))


class Written(dict[str, int]):
    """Raw values by full name; asking for one of a register that is not written is refused in a sentence."""

    def __missing__(self, name: str) -> int:
        raise Unanswerable(f"field {name}: the task does not write its register")


def raw_of(job: Job, maps: Mapping[str, RegisterMap]) -> Written:
    """Raw values of a job's fields and of those of its start, as ``BLOCK.REGISTER.FIELD``; of split fields none.

    ``maps`` are the register maps by block.  Raises LookupError where there is none for a block.
    """
    if job.block not in maps:
        raise LookupError(f"block: got {job.block!r}, maps are known for {', '.join(maps) or 'none'}")
    registers = maps[job.block]
    if job.writes:
        state = dict(job.writes)
    else:
        state = {offset: int(job.words[word]) for offset, word in registers.index.items()}
    places = _places(registers)
    out = Written({name: value >> lsb & 2 ** width - 1 for offset, value in state.items()
                   for name, lsb, width in places.get(offset, ())})
    out.update(raw_of(job.start, maps) if job.start else {})
    return out


@cache
def _places(registers: RegisterMap) -> Places:
    """(full name, lsb, width) of the fields at each offset."""
    out: Places = {}
    for item in registers:
        if len(item.pieces) == 1:
            piece = item.pieces[0]
            block, offset, register = registers.registers[piece.word]
            out.setdefault(offset, []).append((f"{block}.{register}.{item.name}", piece.lsb, piece.width))
    return out


def covered(v: Raw) -> None:
    """Raise ValueError where fields ask for what nothing here covers, or contradict one another."""
    for name, only in COVERED.items():
        if v[name] != only:
            raise ValueError(f"lift for rockchip: got {name} {v[name]}, allowed is {only}")
    for one, other in ALIKE:
        if v[one] != v[other]:
            raise ValueError(f"lift for rockchip: got {one} {v[one]} and {other} {v[other]}, allowed is the same")


def by_channel(v: Raw) -> bool:
    """Whether every channel has a share of its own."""
    return not v["DPU.BS_CFG.BS_BYPASS"] and not v["DPU.BS_CFG.BS_MUL_BYPASS"]
