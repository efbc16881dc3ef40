"""The words of one task of H13 from what it does: a rule for each group of registers, and the habits of compilers.

Evidence: files of compiler 4.2.1 (conv_twos, conv_bias, gemm64, relu16, sigmoid77, sum64, concat16), bare tasks of one
like 5.4.1 (1600 x 2560), mul of 5.4.1 and 9.509, and words of 9.x that joshuaswarren/mil-hwx-compiler states under
research/oracles/h13.  A rule that fits all of them and was never tried beyond is called a guess where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from npulab.bits import WORD_BYTES
from npulab.capture import Job
from npulab.targets.ane.facts import ENGINES, HEADER, maps
from npulab.targets.ane.memory import HALF, UNIT, Surface
from npulab.targets.ane.tasks import HEADER_WORDS

CELL = 16  # bytes of a stride in L2
L2_CELLS = 2 ** 21 // CELL  # 2 MiB
MOST_SIDE, MOST_CHANNELS = 2 ** 15 - 1, 2 ** 17 - 1  # Win, Cin
FLOAT16 = 2  # format
CONVOLUTION, BYPASS, PLANAR = "convolution", "bypass", "planar"
RECORDS = ((0x1F800, 62), (0x00000, 16), (0x13800, 28), (0x04800, 18), (0x08800, 4), (0x0C800, 5), (0x17800, 7))
COMPACT = ((0x1F800, 18), (0x1F8C8, 12), *RECORDS[1:])  # without the places of coefficients
SLOT = 0x100
# pixels (high, wide) of a work unit by the code of ShPref, ShMin and ShMax; the last one in small-source mode only
SHAPES = ((2, 128), (4, 64), (8, 32), (16, 16), (8, 8))
SMALL = len(SHAPES) - 1
BEHIND_EXACT = 13  # bit of DebugLogEvents that tables of sqrt, rsqrt, inv and log2 leave out
READ_ONLY, SOURCE_2, NO_SOURCE_2 = 0x33881, 0x33880, 0x8880
ALIASES = ("AliasConvSrc", "AliasConvRslt", "AliasPlanarSrc", "AliasPlanarRslt")
ONE = 0x3C00
ONE_FLOAT32 = 0x3F800000


class Habits(NamedTuple):
    """What compilers do differently without changing the result."""

    events: int = 0x42A
    cycles: bool = True  # say how long a task takes
    group_strides: bool = True
    aux_bytes: int = UNIT
    compact: bool = True  # tasks without coefficients leave out the places of them
    planar_kernel: bool = True  # the kernel's registers are set in planar tasks too
    planar_fill: bool = True  # fill bits of the output, in planar tasks too
    table_format: bool = True  # the format and binary point of coefficients are set without them, and for tables
    result_in_l2: bool = False  # a small convolution's result lies in L2 before it is written
    double_buffer: bool = False
    shapes: str = "any"
    sorted_names: bool = True  # BARs in the order of the tensors' names, else the output's first
    reversed_inputs: bool = False
    subtracts: bool = True


HABITS = {
    "4.2.1": Habits(0x422, False, False, 0, False, False, False, False, True, True, "fixed", False, True, False),
    "5.4.1": Habits(0x422, True, True, 0, False, False, True, True, True, True, "fixed", False, False, False),
    "9.x": Habits(),
}
USUAL = "4.2.1"


@dataclass(frozen=True)
class Step:
    """What one task does: ``engine`` of ``sources`` (one or two) into ``result``.

    ``bars`` are the base addresses of the sources, ``target`` that of the result, which begins ``offset`` bytes behind
    it and is a part of ``whole``.  ``kernel`` and ``stride`` are (h, w), ``pads`` what lies above and to the left.
    ``engines`` are (offset, bytes) of each coefficient buffer, ``lanes`` the channels of a plane.  ``fields`` are raw
    values of fields that the arithmetic sets.
    """

    engine: str
    sources: tuple[Surface, ...]
    bars: tuple[int, ...]
    result: Surface
    target: int
    offset: int = 0
    whole: Surface | None = None
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int] = (0, 0)
    engines: tuple[tuple[int, int], ...] = ()
    lanes: int = 1
    sparse: bool = False
    small: bool = False
    unicast: bool = False
    table: bool = False
    exact: bool = False  # of a table that DebugLogEvents tells apart
    fields: Mapping[str, int] = field(default_factory=dict)

    @property
    def planar(self) -> bool:
        return self.engine == PLANAR


def job_of(step: Step, chip: str, habits: Habits, number: int = 0, count: int = 1, slots: tuple[int, ...] = (0,),
           ) -> Job:
    """The task as register writes; ``number`` of ``count``, ``slots`` the bytes at which the tasks of a list begin."""
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
        out.append(out[-1] + ceil_div(WORD_BYTES * words_in(step, habits), SLOT) * SLOT)
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
        out["Header.Header[8].ENE"] = log2_up(active(step)) + 1
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
    source, result = step.sources[0], step.result
    out = {"InDim.Win": source.width, "InDim.Hin": source.height, "InDepth.Din": 1, "ChCfg.InFmt": FLOAT16,
           "ChCfg.Src2InFmt": FLOAT16 * (len(step.sources) - 1), "ChCfg.OutFmt": FLOAT16, "Cin.Cin": source.channels,
           "Cout.Cout": result.channels, "OutDim.Wout": result.width, "OutDim.Hout": result.height, "OutDepth.Dout": 1,
           "ConvCfg.Kw": step.kernel[1], "ConvCfg.Kh": step.kernel[0], "ConvCfg.OCGSize": log2_up(step.lanes),
           "ConvCfg.Sx": step.stride[1], "ConvCfg.Sy": step.stride[0], "ConvCfg.Px": step.pads[1],
           "ConvCfg.Py": step.pads[0], "ConvCfg.Ox": 1, "ConvCfg.Oy": 1, "ConvCfg3d.raw": 0x2041,
           "GroupConvCfg.NumGroups": 1, "GroupConvCfg.UnicastCin": 1, "GroupConvCfg.UnicastEn": int(step.unicast),
           "TileCfg.TileHeight": tile_height(step), "Cfg.SrcUse": 2 ** len(step.sources) - 1}
    if step.planar:
        out |= {"Cfg.TaskType": 1 + len(step.sources), "PatchCfg.PatchWidthLog2": patch_width(step),
                "PatchCfg.PatchHeightLog2": patch_height(step)}
    else:
        preferred, least, most = work_unit(step, habits)
        out |= {"Cfg.SmallSourceMode": int(step.small), "Cfg.ShPref": preferred, "Cfg.ShMin": least, "Cfg.ShMax": most,
                "Cfg.ActiveNE": log2_up(active(step)), "TaskInfo.NID": 1,
                "Cfg.AccDoubleBufEn": int(habits.double_buffer and step.lanes < 32)}
    return {f"Common.{name}": value for name, value in out.items()}


def tile_source(step: Step, habits: Habits) -> dict[str, int]:
    """Strides of the sources in memory, in 64 bytes."""
    one = step.sources[0]
    out = {"DMAConfig.En": 1, "DMAConfig.CacheHint": 2, "DMAConfig.CacheHintReuse": 14,
           "DMAConfig.CacheHintNoReuse": 12, "Src2DMAConfig.raw": NO_SOURCE_2, "RowStride.Stride": one.row // UNIT,
           "PlaneStride.PlaneStride": one.plane // UNIT, "DepthStride.Stride": one.bytes // UNIT,
           "GroupStride.Stride": habits.group_strides * one.bytes // UNIT, "Fmt.FmtMode": 1, "Fmt.Truncate": 3,
           "Fmt.MemFmt": FLOAT16, "Fmt.Interleave": 1,
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
           "GroupStride.GroupStride": habits.group_strides * whole.bytes // UNIT, "Fmt.FmtMode": 1, "Fmt.Truncate": 3,
           "Fmt.MemFmt": FLOAT16, "Fmt.Interleave": 1, "Fmt.ZeroPadLast": fills, "Fmt.ZeroPadFirst": fills}
    return {f"TileDMADst.{name}": value for name, value in out.items()}


def l2(step: Step, habits: Habits, number: int) -> dict[str, int]:
    """Where sources and result lie in L2, in 16 bytes."""
    channel, row, depth = l2_strides(step, step.sources[0], habits)
    rows = l2_rows(step)
    aliases = ALIASES if not number else ALIASES[:2]
    out = {"SourceCfg.SourceType": 2, "SourceCfg.DMAFmt": 1, "SourceCfg.DMAInterleave": 1,
           "SourceCfg.DualSource": len(step.sources) - 1, "SourceChannelStride.Stride": channel,
           "SourceRowStride.Stride": row, "SourceDepthStride.Stride": depth, "SourceGroupStride.Stride": depth,
           "ResultCfg.ResultType": 2, "ResultCfg.DMAFmt": 1, "ResultCfg.DMAInterleave": 1,
           "ResultCfg.L2BfrMode": int(not in_l2(step, habits)),
           **{f"{what}.{name}": 1 for what in ("SourceCfg", "ResultCfg") for name in aliases}}
    end = row * rows
    if len(step.sources) > 1:
        other = second_base(end)
        out |= {"Src2Base.Addr": other, "Src2ChannelStride.Stride": channel, "Src2RowStride.Stride": row,
                "Src2DepthStride.Stride": depth, "Src2GroupStride.Stride": depth}
        end = other + row * rows
    out["ResultBase.Addr"] = end
    if in_l2(step, habits):
        channel, row, depth = result_strides(step)
        out |= {"ConvResultChannelStride.Stride": channel, "ConvResultRowStride.Stride": row,
                "ResultDepthStride.Stride": depth, "ResultGroupStride.Stride": depth}
        end += row * step.result.height
    if end > L2_CELLS:
        raise ValueError(f"lower for ane: got {CELL * end} bytes of L2 for one task, allowed are {CELL * L2_CELLS}; "
                         "how compilers split a larger one is not known")
    return {f"L2.{name}": value for name, value in out.items()}


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


def active(step: Step) -> int:
    """Engines that work: as many as there are channels, up to all of them."""
    return min(ENGINES, step.result.channels)


def work_unit(step: Step, habits: Habits) -> tuple[int, int, int]:
    """Codes of the preferred, least and most shape of a work unit.

    A convolution has the shape that takes fewest units, where some take as many the narrowest that holds a row.  The
    order of the codes, and wider rows than 64, are a guess.
    """
    best = SMALL if step.small else fewest_units(step.result)
    if not step.unicast:
        return best, best, best
    if habits.shapes == "fixed":
        return 1, min(1, best), 1
    return 0, 0, best


def fewest_units(result: Surface) -> int:
    """The code of the shape that takes fewest units of a tensor.

    >>> [fewest_units(Surface(size, size, 1)) for size in (1, 16, 17, 32, 64)], fewest_units(Surface(1, 77, 1))
    ([3, 3, 2, 2, 1], 0)
    """
    taken = [ceil_div(result.height, high) * ceil_div(result.width, wide) for high, wide in SHAPES[:SMALL]]
    codes = [code for code, many in enumerate(taken) if many == min(taken)]
    return max((code for code in codes if SHAPES[code][1] >= result.width), default=codes[-1])


def l2_strides(step: Step, source: Surface, habits: Habits) -> tuple[int, int, int]:
    """Strides of channels, rows and depth of a source: rows of more channels than engines are set apart.

    By 2 cells or a channel's stride, in a neural task of stride 1 by one cell more: a guess from strides of 1, 2 and 4.
    """
    wide = 2 ** patch_width(step) if step.planar else \
        max(SHAPES[work_unit(step, habits)[1]][1], 0 if step.unicast else source.width)
    channel = ceil_div(HALF * min(source.width, wide), CELL)
    depth = source.channels * channel
    if source.channels <= ENGINES:
        return channel, depth, depth
    return channel, depth + max(2, channel) + (not step.planar and step.stride == (1, 1)), depth


def result_strides(step: Step) -> tuple[int, int, int]:
    """Strides of channels, rows and depth of a result in L2."""
    channel = ceil_div(HALF * step.result.width, CELL)
    depth = step.result.channels * channel
    return channel, depth + (max(2, channel) if step.result.channels > ENGINES else 0), depth


def second_base(end: int) -> int:
    """Where the second source lies behind the first: at 64 bytes, not on the first one's bank of 16 (a guess).

    >>> [second_base(cells) for cells in (66, 528, 2048, 4128, 18816)]
    [68, 528, 2052, 4128, 18820]
    """
    line = UNIT // CELL
    lines = ceil_div(end, line)
    return line * (lines + (lines % 16 == 0))


def in_l2(step: Step, habits: Habits) -> bool:
    """Whether the result lies in L2 as a whole: small convolutions of early compilers."""
    return habits.result_in_l2 and step.engine == CONVOLUTION and step.small


def patch_width(step: Step) -> int:
    """log2 of the width of a planar task's patch, 16 to 512 pixels."""
    return min(max(log2_up(step.result.width), 4), 9)


def patch_height(step: Step) -> int:
    """log2 of the rows of a planar task's patch: those of the tile where they are a power of two, else one row."""
    rows = tile_height(step)
    return log2_up(rows) if rows == 2 ** log2_up(rows) else 0


def l2_rows(step: Step) -> int:
    """Rows of a source in L2."""
    return min(tile_height(step), step.sources[0].height) if step.planar else step.sources[0].height


def tile_height(step: Step) -> int:
    """Rows of output of a tile: all of them; 32 in planar tasks whose sources do not fit into L2."""
    rows = step.result.height
    if not step.planar:
        return rows
    channel = ceil_div(HALF * min(step.sources[0].width, 2 ** patch_width(step)), CELL)
    fits = len(step.sources) * rows * (step.sources[0].channels * channel + 2) < L2_CELLS
    return rows if fits else min(rows, 32)


def log2_up(number: int) -> int:
    """The least n with 2**n >= number.

    >>> [log2_up(n) for n in (1, 2, 3, 64)]
    [0, 1, 2, 6]
    """
    return (number - 1).bit_length()


def ceil_div(value: int, by: int) -> int:
    return -(-value // by)
