"""The words of one task of H13 from what it does: a rule for each group of registers, and the
habits of compilers.

Evidence: files of compiler 4.2.1 (conv_twos, conv_bias, gemm64, relu16, sigmoid77, sum64,
concat16), bare tasks of one like 5.4.1 (1600 x 2560), mul of 5.4.1 and 9.509, and words of 9.x that
joshuaswarren/mil-hwx-compiler states under research/oracles/h13.  A rule that fits all of them and
was never tried beyond is called a guess where it stands.
"""

from __future__ import annotations

from npulab.captures.capture import Job
from npulab.npus.ane.facts import ENGINES, HEADER, maps
from npulab.npus.ane.memory import UNIT
from npulab.npus.ane.placement import in_l2, l2, log2_up, patch_height, patch_width, tile_height, work_unit
from npulab.npus.ane.steps import BYPASS, Habits, Step
from npulab.npus.ane.tasks import HEADER_WORDS
from npulab.npus.kit.numbers import up
from npulab.registers.fields import WORD_BYTES

FLOAT16 = 2  # format
RECORDS = ((0x1F800, 62), (0x00000, 16), (0x13800, 28), (0x04800, 18), (0x08800, 4), (0x0C800, 5), (0x17800, 7))
COMPACT = ((0x1F800, 18), (0x1F8C8, 12), *RECORDS[1:])  # without the places of coefficients
SLOT = 0x100
BEHIND_EXACT = 13  # bit of DebugLogEvents that tables of sqrt, rsqrt, inv and log2 leave out
READ_ONLY, SOURCE_2, NO_SOURCE_2 = 0x33881, 0x33880, 0x8880
ONE = 0x3C00
ONE_FLOAT32 = 0x3F800000


def job_of(step: Step, chip: str, habits: Habits, number: int = 0, count: int = 1, slots: tuple[int, ...] = (0,),
           ) -> Job:
    """The task as register writes; ``number`` of ``count``, ``slots`` the bytes at which the tasks
    of a list begin."""
    registers = maps(chip)["H13"]
    words = registers.encode(values_of(step, habits, number, count, slots), raw=True)
    places = [HEADER + WORD_BYTES * i for i in range(HEADER_WORDS)]
    places += [address + WORD_BYTES * i for address, many in records_of(step, habits) for i in range(many)]
    return Job.from_writes("H13", [(place, int(words[registers.index[place]])) for place in places], registers)


def records_of(step: Step, habits: Habits) -> tuple[tuple[int, int], ...]:
    """(first register, how many) of each record."""
    return RECORDS if step.engines or not habits.compact else COMPACT


def slots_of(steps: tuple[Step, ...], habits: Habits) -> tuple[int, ...]:
    """The bytes at which the tasks of a list begin, and where the last one's slot ends."""
    out = [0]
    for step in steps:
        out.append(out[-1] + up(WORD_BYTES * words_in(step, habits), SLOT))
    return tuple(out)


def words_in(step: Step, habits: Habits) -> int:
    """Words of the task in its section."""
    return HEADER_WORDS + sum(1 + many for _, many in records_of(step, habits))


def values_of(step: Step, habits: Habits, number: int, count: int, slots: tuple[int, ...]) -> dict[str, int]:
    """Raw values by field of every group; fields left out are 0."""
    last = number == count - 1
    out = header(step, habits, number, last)
    if not last:
        # every task of a list that is lowered has the size of the first
        out |= {"Header.Header[1].NextSize": words_in(step, habits) - 1,
                "Header.Header[7].NextPointer": slots[number + 1]}
    out |= kernel_source(step, habits) | common(step, habits) | tile_source(step, habits) | l2(step, habits, number)
    out |= units(step, habits) | tile_target(step, habits)
    return {name: value for name, value in (out | dict(step.fields)).items() if value}


def header(step: Step, habits: Habits, number: int, last: bool) -> dict[str, int]:
    """The header words."""
    events = (0xFFF800 if last and not number else 0) | 0x68 | 2 * last
    if step.exact:
        events -= 2 ** BEHIND_EXACT
    flags = ("SPL", "TSR", "TSE", "SrcLoc", "DstLoc")
    out = {"Header.Header[0].TID": number, "Header.Header[0].LNID": int(number > 0), "Header.Header[0].EON": int(last),
           "Header.Header[1].ExeCycles": cycles(step) if habits.cycles else 0,
           "Header.Header[2].LogEvents": habits.events if last else 0x400, "Header.Header[4].DebugLogEvents": events,
           **{f"Header.Header[6].{name}": 1 for name in flags},
           "Header.Header[8].WBase": step.target, "Header.Header[8].WBE": 1, "Header.Header[8].TBE": int(not last)}
    for i, bar in enumerate(step.bars):
        out |= {f"Header.Header[8].RBase{i}": bar, f"Header.Header[8].RBE{i}": 1}
    if not step.planar:
        out["Header.Header[8].ENE"] = log2_up(step.active) + 1
    if step.engines:
        out |= {"Header.Header[9].KBase0": 1, "Header.Header[9].KBE0": 1}
    return out


def cycles(step: Step) -> int:
    """The estimate of a task's length: bytes moved by 34133 and a third.

    Fits 28 tasks of compilers from 5.x on; 512 channels of one pixel have 4 where this gives 2.
    """
    moved = sum(one.bytes for one in (*step.sources, step.result))
    moved += 0 if step.table else sum(size for _, size in step.engines)
    return min(3 * moved // 102400, 2 ** 16 - 1)


def kernel_source(step: Step, habits: Habits) -> dict[str, int]:
    """Where each engine's coefficients lie; one that is off has the length of 64 bytes."""
    if step.planar and not habits.planar_kernel:
        return {}
    out = {"KernelDMASrc.MasterConfig.MasterEnable": int(bool(step.engines)),
           "KernelDMASrc.MasterConfig.KernelSparseFmt": int(step.sparse)}
    for i in range(ENGINES):
        offset, size = step.engines[i] if i < len(step.engines) else (0, UNIT)
        out |= {f"KernelDMASrc.CoeffDMAConfig[{i}].En": int(i < len(step.engines)),
                f"KernelDMASrc.CoeffDMAConfig[{i}].CacheHint": 2}
        if records_of(step, habits) is RECORDS:
            out |= {f"KernelDMASrc.CoeffBaseAddr[{i}].Addr": offset // UNIT,
                    f"KernelDMASrc.CoeffBfrSize[{i}].MemBfrSize": size // UNIT}
    for i in range(4):
        out |= {f"KernelDMASrc.AuxDMAConfig[{i}].raw": 0x80,
                f"KernelDMASrc.AuxBfrSize[{i}].AuxBfrSize[{i}]": habits.aux_bytes // UNIT}
    return out


def common(step: Step, habits: Habits) -> dict[str, int]:
    """Sizes, kernel and work units."""
    source, result, groups = step.sources[0], step.result, step.groups
    out = {"InDim.Win": source.width, "InDim.Hin": source.height, "InDepth.Din": 1, "ChCfg.InFmt": FLOAT16,
           "ChCfg.Src2InFmt": FLOAT16 * (len(step.sources) - 1), "ChCfg.OutFmt": FLOAT16,
           "Cin.Cin": source.channels // groups, "Cout.Cout": result.channels // groups, "OutDim.Wout": result.width,
           "OutDim.Hout": result.height, "OutDepth.Dout": 1,
           "ConvCfg.Kw": step.kernel[1], "ConvCfg.Kh": step.kernel[0], "ConvCfg.OCGSize": log2_up(step.lanes),
           "ConvCfg.Sx": step.stride[1], "ConvCfg.Sy": step.stride[0], "ConvCfg.Px": step.pads[1],
           "ConvCfg.Py": step.pads[0], "ConvCfg.Ox": 1, "ConvCfg.Oy": 1, "ConvCfg3d.raw": 0x2041,
           "GroupConvCfg.NumGroups": groups, "GroupConvCfg.UnicastCin": 1, "GroupConvCfg.UnicastEn": int(step.unicast),
           "TileCfg.TileHeight": tile_height(step), "Cfg.SrcUse": 2 ** len(step.sources) - 1}
    if step.planar:
        out |= {"Cfg.TaskType": 1 + len(step.sources), "PatchCfg.PatchWidthLog2": patch_width(step),
                "PatchCfg.PatchHeightLog2": patch_height(step)}
    else:
        preferred, least, most = work_unit(step, habits)
        out |= {"Cfg.SmallSourceMode": int(step.small), "Cfg.ShPref": preferred, "Cfg.ShMin": least, "Cfg.ShMax": most,
                "Cfg.ActiveNE": log2_up(step.active), "TaskInfo.NID": 1,
                "Cfg.AccDoubleBufEn": int(habits.double_buffer and step.lanes < 32)}
    return {f"Common.{name}": value for name, value in out.items()}


def tile_source(step: Step, habits: Habits) -> dict[str, int]:
    """Strides of the sources in memory, in 64 bytes."""
    one = step.sources[0]
    out = {"DMAConfig.En": 1, "DMAConfig.CacheHint": 2, "DMAConfig.CacheHintReuse": 14,
           "DMAConfig.CacheHintNoReuse": 12, "Src2DMAConfig.raw": NO_SOURCE_2, "RowStride.Stride": one.row // UNIT,
           "PlaneStride.PlaneStride": one.plane // UNIT, "DepthStride.Stride": one.bytes // UNIT,
           "GroupStride.Stride": habits.group_strides * one.bytes // step.groups // UNIT, "Fmt.FmtMode": 1,
           "Fmt.Truncate": 3, "Fmt.MemFmt": FLOAT16, "Fmt.Interleave": 1,
           "PadStream.raw": 0x100 * (not step.planar or habits.planar_kernel)}
    for other in step.sources[1:]:
        out |= {"Src2DMAConfig.raw": SOURCE_2, "Src2RowStride.Stride": other.row // UNIT,
                "Src2PlaneStride.Stride": other.plane // UNIT, "Src2DepthStride.Stride": other.bytes // UNIT,
                "Src2GroupStride.Stride": habits.group_strides * other.bytes // UNIT, "Src2Fmt.raw": 0x2030}
    return {f"TileDMASrc.{name}": value for name, value in out.items()}


def tile_target(step: Step, habits: Habits) -> dict[str, int]:
    """Where the result lies in memory; a part of a tensor has the strides of the whole."""
    whole = step.whole or step.result
    fills = int(not step.planar or habits.planar_fill)
    out = {"DMAConfig.En": 1, "DMAConfig.CacheHint": 3, "DMAConfig.L2BfrMode": int(not in_l2(step, habits)),
           "BaseAddr.Addr": step.offset // UNIT, "RowStride.RowStride": whole.row // UNIT,
           "PlaneStride.PlaneStride": whole.plane // UNIT, "DepthStride.DepthStride": whole.bytes // UNIT,
           "GroupStride.GroupStride": habits.group_strides * whole.bytes // step.groups // UNIT, "Fmt.FmtMode": 1,
           "Fmt.Truncate": 3, "Fmt.MemFmt": FLOAT16, "Fmt.Interleave": 1, "Fmt.ZeroPadLast": fills,
           "Fmt.ZeroPadFirst": fills}
    return {f"TileDMADst.{name}": value for name, value in out.items()}


def units(step: Step, habits: Habits) -> dict[str, int]:
    """The words of the neural engines and of the planar one that the kind of task sets."""
    if step.planar:
        palette = 8 * habits.planar_kernel
        return {"NE.KernelCfg.PalettizedBits": palette, "NE.MACCfg.Bit20": int(habits.planar_kernel),
                "PE.BiasScale.Scale": ONE, "PE.PreScale.PreScale": ONE, "PE.FinalScale.FinalScale": ONE_FLOAT32,
                "PE.Cfg.SecSrc": 2 * (len(step.sources) - 1)}
    formatted = habits.table_format or (bool(step.engines) and not step.table)
    bypass = step.engine == BYPASS
    return {"NE.KernelCfg.KernelFmt": 2 * formatted, "NE.KernelCfg.PalettizedBits": 8,
            "NE.KernelCfg.SparseFmt": int(step.sparse), "NE.MACCfg.BinaryPoint": 28 * formatted,
            "NE.MACCfg.OpMode": 4 * bypass, "NE.MACCfg.KernelMode": int(bypass), "NE.MACCfg.Bit20": 1,
            "NE.PostScale.PostScale": ONE}
