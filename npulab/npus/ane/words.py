"""The words of one task of H13 from what it does and the habits of a compiler: the rows of
``tasks.csv``, and what these speak of: work units, patches and tiles, places in L2.

Evidence: files of compiler 4.2.1 (conv_twos, conv_bias, gemm64, relu16, sigmoid77, sum64,
concat16), bare tasks of one like 5.4.1 (1600 x 2560), mul of 5.4.1 and 9.509, and words of 9.x that
joshuaswarren/mil-hwx-compiler states under research/oracles/h13.  A rule that fits all of them and
was never tried beyond is called a guess where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

from npulab.npus.ane.coefficients.kernel import Kernel
from npulab.npus.ane.facts import ENGINES, HEADER, HERE, maps
from npulab.npus.ane.memory import HALF, UNIT, Surface
from npulab.npus.ane.tasks import H13
from npulab.npus.kit import WORD_BYTES, Job, ceil_div, read_table, refuse_if, up
from npulab.npus.kit.rows import numbers_of, read_rows

CONVOLUTION, BYPASS, PLANAR = "convolution", "bypass", "planar"


# what each version of the compiler does differently, by the names of ``compilers.csv``
Habits = SimpleNamespace
HABITS = {
    compiler: Habits(**{row["habit"]: int(row["value"], 0) for row in rows})
    for compiler, rows in groupby(read_table(HERE / "compilers.csv"), itemgetter("compiler"))
}
USUAL = "4.2.1"
NO_KERNEL = Kernel(1, 1)


@dataclass(frozen=True)
class Step:
    """What one task does: ``engine`` of ``sources`` (one or two) into ``result``.

    ``bars`` are the base addresses of the sources, ``target`` that of the result, which begins
    ``offset`` bytes behind it and is a part of ``whole``.  ``kernel`` is that of a convolution,
    ``pads`` what lies above and to the left. ``engines`` are (offset, bytes) of each coefficient
    buffer.  ``fields`` are raw values of fields that the arithmetic sets.
    """

    engine: str
    sources: tuple[Surface, ...]
    bars: tuple[int, ...]
    result: Surface
    target: int
    offset: int = 0
    whole: Surface | None = None
    kernel: Kernel = NO_KERNEL
    pads: tuple[int, int] = (0, 0)
    engines: tuple[tuple[int, int], ...] = ()
    unicast: bool = False
    table: bool = False
    exact: bool = False  # of a table that DebugLogEvents tells apart
    fields: Mapping[str, int] = field(default_factory=dict)

    @property
    def planar(self) -> bool:
        return self.engine == PLANAR

    @property
    def active(self) -> int:
        """Engines that work: as many as a group has channels, up to all of them."""
        return min(ENGINES, self.result.channels // self.kernel.parts)


CELL = 16  # bytes of a stride in L2
L2_CELLS = 2**21 // CELL  # 2 MiB
LINE, BANKS = UNIT // CELL, 16
# pixels (high, wide) of a work unit by the code of ShPref, ShMin and ShMax; the last one in
# small-source mode only
SHAPES = ((2, 128), (4, 64), (8, 32), (16, 16), (8, 8))
SMALL = len(SHAPES) - 1


def l2(step: Step, habits: Habits) -> Any:
    """Where sources and result of a task lie in L2, and their strides, in 16 bytes; ValueError if
    they take more than it has."""
    channel, row, depth = l2_strides(step, step.sources[0], habits)
    rows = step.sources[0].height
    sources = row * (min(tile_height(step), rows) if step.planar else rows)
    second = second_base(sources)
    result = sources
    if len(step.sources) > 1:
        result = second + sources
    strides = result_strides(step)
    end = result + strides[1] * step.result.height * in_l2(step, habits)
    refuse_if(
        end > L2_CELLS,
        "lower for ane",
        f"{CELL * end} bytes of L2 for one task",
        f"are {CELL * L2_CELLS}; how compilers split a larger one is not known",
    )
    return SimpleNamespace(
        channel=channel,
        row=row,
        depth=depth,
        second=second,
        result=result,
        result_channel=strides[0],
        result_row=strides[1],
        result_depth=strides[2],
    )


def work_unit(step: Step, habits: Habits) -> tuple[int, int, int]:
    """Codes of the preferred, least and most shape of a work unit.

    A convolution has the shape that takes fewest units, where some take as many the narrowest that
    holds a row.  The order of the codes, and wider rows than 64, are a guess.
    """
    if step.kernel.small:
        best = SMALL
    else:
        best = fewest_units(step.result)
    if step.kernel.small or not (step.unicast or step.kernel.parts > 1):
        return best, best, best
    if habits.fixed_shapes:
        return 1, min(1, best), 1
    return 0, 0, best


def fewest_units(result: Surface) -> int:
    """The code of the shape that takes fewest units of a tensor.

    >>> [fewest_units(Surface(size, size, 1)) for size in (1, 16, 17, 32, 64)], fewest_units(Surface(1, 77, 1))
    ([3, 3, 2, 2, 1], 0)
    """
    taken = [
        ceil_div(result.height, high) * ceil_div(result.width, wide)
        for high, wide in SHAPES[:SMALL]
    ]
    codes = [code for code, many in enumerate(taken) if many == min(taken)]
    return max((code for code in codes if SHAPES[code][1] >= result.width), default=codes[-1])


def l2_strides(step: Step, source: Surface, habits: Habits) -> tuple[int, int, int]:
    """Strides of channels, rows and depth of a source: rows of more channels than engines are set
    apart.

    By 2 cells or a channel's stride, in a neural task of stride 1 by one cell more: a guess from
    strides of 1, 2 and 4. Of groups one lies there at a time.
    """
    if step.planar:
        wide = 2 ** patch_width(step)
    else:
        wide = max(
            SHAPES[work_unit(step, habits)[1]][1], 0 if step.engine == BYPASS else source.width
        )
    channel = ceil_div(HALF * min(source.width, wide), CELL)
    depth = source.channels // step.kernel.parts * channel
    if source.channels <= ENGINES and step.kernel.parts == 1:
        return channel, depth, depth
    more = not step.planar and step.kernel.stride == (1, 1) and step.kernel.parts == 1
    return channel, depth + max(2, channel) + more, depth


def result_strides(step: Step) -> tuple[int, int, int]:
    """Strides of channels, rows and depth of a result in L2."""
    channel = ceil_div(HALF * step.result.width, CELL)
    depth = step.result.channels * channel
    return channel, depth + (max(2, channel) if step.result.channels > ENGINES else 0), depth


def second_base(end: int) -> int:
    """Where the second source lies behind the first: at 64 bytes, not on the first one's bank of 16
    (a guess).

    >>> [second_base(cells) for cells in (66, 528, 2048, 4128, 18816)]
    [68, 528, 2052, 4128, 18820]
    """
    lines = ceil_div(end, LINE)
    return LINE * (lines + (lines % BANKS == 0))


def in_l2(step: Step, habits: Habits) -> bool:
    """Whether the result lies in L2 as a whole: small convolutions of early compilers."""
    return bool(habits.result_in_l2) and step.engine == CONVOLUTION and step.kernel.small


def patch_width(step: Step) -> int:
    """log2 of the width of a planar task's patch, 16 to 512 pixels."""
    return min(max(log2_up(step.result.width), 4), 9)


def patch_height(step: Step) -> int:
    """log2 of the rows of a planar task's patch: those of the tile where they are a power of two,
    else one row."""
    rows = tile_height(step)
    if rows == 2 ** log2_up(rows):
        return log2_up(rows)
    return 0


def tile_height(step: Step) -> int:
    """Rows of output of a tile: all of them; 32 in planar tasks whose sources do not fit into
    L2."""
    rows = step.result.height
    if not step.planar:
        return rows
    channel = ceil_div(HALF * min(step.sources[0].width, 2 ** patch_width(step)), CELL)
    fits = len(step.sources) * rows * (step.sources[0].channels * channel + 2) < L2_CELLS
    if fits:
        return rows
    return min(rows, 32)


def log2_up(number: int) -> int:
    """The least n with 2**n >= number.

    >>> [log2_up(n) for n in (1, 2, 3, 64)]
    [0, 1, 2, 6]
    """
    return (number - 1).bit_length()


ROWS = read_rows(HERE / "tasks.csv")
RECORDS = (
    (0x1F800, 62),
    (0x00000, 16),
    (0x13800, 28),
    (0x04800, 18),
    (0x08800, 4),
    (0x0C800, 5),
    (0x17800, 7),
)
COMPACT = ((0x1F800, 18), (0x1F8C8, 12), *RECORDS[1:])  # without the places of coefficients
SLOT = 0x100
BEHIND_EXACT = 13  # bit of DebugLogEvents that tables of sqrt, rsqrt, inv and log2 leave out


def job_of(
    step: Step,
    chip: str,
    habits: Habits,
    number: int = 0,
    count: int = 1,
    slots: tuple[int, ...] = (0,),
) -> Job:
    """The task as register writes; ``number`` of ``count``, ``slots`` the bytes at which the tasks
    of a list begin."""
    registers = maps(chip)["H13"]
    words = registers.encode(values_of(step, habits, number, count, slots), raw=True)
    places = [HEADER + WORD_BYTES * i for i in range(H13.words)]
    places += [
        address + WORD_BYTES * i for address, many in records_of(step, habits) for i in range(many)
    ]
    return Job.from_writes(
        "H13", [(place, int(words[registers.index[place]])) for place in places], registers
    )


def records_of(step: Step, habits: Habits) -> tuple[tuple[int, int], ...]:
    """(first register, how many) of each record."""
    if step.engines or not habits.compact:
        return RECORDS
    return COMPACT


def slots_of(steps: tuple[Step, ...], habits: Habits) -> tuple[int, ...]:
    """The bytes at which the tasks of a list begin, and where the last one's slot ends."""
    out = [0]
    for step in steps:
        out.append(out[-1] + up(WORD_BYTES * words_in(step, habits), SLOT))
    return tuple(out)


def words_in(step: Step, habits: Habits) -> int:
    """Words of the task in its section."""
    return H13.words + sum(1 + many for _, many in records_of(step, habits))


def values_of(
    step: Step, habits: Habits, number: int, count: int, slots: tuple[int, ...]
) -> dict[str, int]:
    """Raw values by field of every group; fields left out are 0."""
    values = {
        row.field: value
        for row, value in numbers_of(ROWS, subject(step, habits, number, count, slots))
    }
    values |= kernel_source(step, habits) | dict(step.fields)
    return {name: value for name, value in values.items() if value}


def subject(step: Step, habits: Habits, number: int, count: int, slots: tuple[int, ...]) -> Any:
    """What the rows of ``tasks.csv`` speak of."""
    source, second = step.sources[0], step.sources[1] if len(step.sources) > 1 else None
    whole, last, kernel = step.whole or step.result, number == count - 1, step.kernel
    groups, lanes = kernel.parts, kernel.lanes or kernel.usual_lanes
    preferred, least, most = work_unit(step, habits)
    return SimpleNamespace(
        step=step,
        kernel=kernel,
        habits=habits,
        l2=l2(step, habits),
        source=source,
        second=second,
        whole=whole,
        number=number,
        first=not number,
        follows=number > 0,
        last=last,
        linked=not last,
        next_size=words_in(step, habits) - 1,
        next_pointer=slots[min(number + 1, len(slots) - 1)],
        cycles=cycles(step),
        debug_events=debug_events(step, number, last),
        neural=not step.planar,
        bypass=step.engine == BYPASS,
        bar=step.bars[0],
        second_bar=step.bars[-1],
        active_code=log2_up(step.active),
        engines_code=log2_up(step.active) + 1,
        lanes_code=log2_up(lanes),
        narrow=lanes < 32,
        inputs=source.channels // groups,
        outputs=step.result.channels // groups,
        source_group=source.bytes // groups,
        whole_group=whole.bytes // groups,
        stride_h=kernel.stride[0],
        stride_w=kernel.stride[1],
        top=step.pads[0],
        left=step.pads[1],
        tile_height=tile_height(step),
        patch_width=patch_width(step),
        patch_height=patch_height(step),
        preferred=preferred,
        least=least,
        most=most,
        in_l2=in_l2(step, habits),
        passes=not in_l2(step, habits),
        kernel_set=not step.planar or habits.planar_kernel,
        filled=not step.planar or habits.planar_fill,
        formatted=not step.planar and (habits.table_format or (step.engines and not step.table)),
    )


def debug_events(step: Step, number: int, last: bool) -> int:
    """The bits of DebugLogEvents."""
    events = (0xFFF800 if last and not number else 0) | 0x68 | 2 * last
    if step.exact:
        return events - 2**BEHIND_EXACT
    return events


def cycles(step: Step) -> int:
    """The estimate of a task's length: bytes moved by 34133 and a third.

    Fits 28 tasks of compilers from 5.x on; 512 channels of one pixel have 4 where this gives 2.
    """
    moved = sum(surface.bytes for surface in (*step.sources, step.result))
    if step.table:
        moved += 0
    else:
        moved += sum(size for _, size in step.engines)
    return min(3 * moved // 102400, 2**16 - 1)


def kernel_source(step: Step, habits: Habits) -> dict[str, int]:
    """Where each engine's coefficients lie; one that is off has the length of 64 bytes."""
    if step.planar and not habits.planar_kernel:
        return {}
    out: dict[str, int] = {}
    for i in range(ENGINES):
        if i < len(step.engines):
            offset, size = step.engines[i]
        else:
            offset, size = 0, UNIT
        out |= {
            f"KernelDMASrc.CoeffDMAConfig[{i}].En": int(i < len(step.engines)),
            f"KernelDMASrc.CoeffDMAConfig[{i}].CacheHint": 2,
        }
        if records_of(step, habits) is RECORDS:
            out |= {
                f"KernelDMASrc.CoeffBaseAddr[{i}].Addr": offset // UNIT,
                f"KernelDMASrc.CoeffBfrSize[{i}].MemBfrSize": size // UNIT,
            }
    return out
